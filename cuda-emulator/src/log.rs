//! Messages on stderr, and counts of what ran.
use std::{
    collections::{BTreeMap, HashSet},
    sync::Mutex,
};

use crate::{
    driver::Config,
    machine::{Launch, Stats},
};

/// What ran, in all or in one launch of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub kernels: u64,
    /// Products of cuBLAS and fills of cuRAND.
    pub library: u64,
    pub copies: u64,
    pub memsets: u64,
    pub allocations: u64,
    pub frees: u64,
    pub host: u64,
}

/// Counts over the life of the driver.
#[derive(Default)]
pub struct Counts {
    pub total: Tally,
    pub graph_launches: u64,
    /// What the last graph launched consists of.
    pub last_graph: Tally,
    pub instructions: u64,
    kernels: BTreeMap<String, (u64, u64)>,
}

impl Counts {
    pub fn kernel(&mut self, config: &Config, launch: &Launch, stats: Stats) {
        let name = &launch.program.name;
        self.instructions += stats.instructions;
        let entry = self.kernels.entry(name.clone()).or_default();
        entry.0 += 1;
        entry.1 += stats.instructions;
        if config.log {
            eprintln!(
                "cuda-emulator: kernel {name} grid {:?} block {:?} shared {} instructions {} read {} written {}",
                launch.grid, launch.block, launch.shared, stats.instructions, stats.bytes_read, stats.bytes_written
            );
        }
    }

    pub fn graph(&mut self, config: &Config, tally: Tally) {
        self.graph_launches += 1;
        self.last_graph = tally;
        if config.log {
            eprintln!("cuda-emulator: graph launch {}: {tally:?}", self.graph_launches);
        }
    }

    pub fn report(&self) {
        eprintln!("cuda-emulator: in all {:?}, {} graph launches, {} instructions", self.total, self.graph_launches, self.instructions);
        for (name, (launches, instructions)) in &self.kernels {
            eprintln!("cuda-emulator:   {name}: {launches} launches, {instructions} instructions");
        }
    }
}

/// Prints the counts when the process ends.
pub fn at_exit(config: &Config) {
    unsafe extern "C" {
        fn atexit(f: extern "C" fn()) -> i32;
    }
    extern "C" fn report() {
        crate::driver::Locked::new().counts.report();
    }
    static ONCE: std::sync::Once = std::sync::Once::new();
    if config.log {
        ONCE.call_once(|| {
            // SAFETY: `report` stays valid as long as the library is loaded, which is until the process ends.
            unsafe { atexit(report) };
        });
    }
}

/// Says once that a function is missing; returns its library's code for "not supported".
pub fn missing(name: &'static str, code: i32) -> i32 {
    static SEEN: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut seen = SEEN.lock().unwrap_or_else(|e| e.into_inner());
    if seen.get_or_insert_default().insert(name) {
        error(&format!("{name} is not implemented"));
    }
    code
}

pub fn error(text: &str) {
    eprintln!("cuda-emulator: {text}");
}

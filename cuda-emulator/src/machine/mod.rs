//! The machine: runs a grid's blocks one after another, threads with program counters of their own.
mod access;
mod atomic;
mod block;
mod exec;
mod matrix;
mod printf;
mod race;
mod thread;
mod warp;

use std::collections::VecDeque;

pub use block::Block;

use crate::{
    decode::Program,
    error::{Code, Fault},
    memory::{Kind, Memory, State},
};

/// A launch with its arguments.
pub struct Launch<'a> {
    pub program: &'a Program,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// Bytes of the dynamic shared array.
    pub shared: usize,
    pub params: &'a [u8],
    /// All blocks are resident at once.
    pub cooperative: bool,
}

/// What the environment sets.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub seed: u64,
    pub races: bool,
    /// Instructions after which a launch counts as hung.
    pub max_instructions: u64,
}

/// What a launch did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub instructions: u64,
    pub bytes_read: u64,
    pub bytes_written: u64,
}

/// Instructions after which a block that has not finished lets the next one start: it may wait for it.
const BLOCK_SLICE: u64 = 50_000_000;
/// The same for a cooperative launch, whose blocks wait for each other by design.
const COOPERATIVE_SLICE: u64 = 200_000;

/// The state that all blocks of a launch share.
pub struct Machine<'a> {
    pub launch: &'a Launch<'a>,
    pub global: access::Global<'a>,
    pub stats: Stats,
    pub rng: Rng,
    pub races: race::Grid,
    /// Instructions executed, which is also the clock.
    pub clock: u64,
    /// Where the blocks of a cooperative launch count each other; 0 for other launches.
    pub workspace: u64,
}

/// Runs a launch to its end.
pub fn run(launch: &Launch, memory: &mut Memory, options: Options) -> Result<Stats, Fault> {
    if !launch.cooperative {
        return run_grid(launch, memory, options, 0);
    }
    let workspace = memory.allocate(64, Kind::Variable, State::Live, 0, "the grid's barrier").ok_or(Code::OutOfMemory)?;
    let host = memory.host(workspace, 64, true)?;
    // SAFETY: `host` has checked the 64 bytes.
    unsafe { host.write_bytes(0, 64) };
    let result = run_grid(launch, memory, options, workspace);
    memory.free(workspace)?;
    result
}

fn run_grid(launch: &Launch, memory: &mut Memory, options: Options, workspace: u64) -> Result<Stats, Fault> {
    let total = launch.grid.iter().map(|g| u64::from(*g)).product::<u64>();
    let mut machine = Machine {
        launch,
        global: access::Global::new(memory),
        stats: Stats::default(),
        rng: Rng::new(options.seed),
        races: race::Grid::new(options.races),
        clock: 0,
        workspace,
    };
    let order = Order::new(total, &mut machine.rng);
    let slice = if launch.cooperative { COOPERATIVE_SLICE } else { BLOCK_SLICE };
    let (mut started, mut resident, mut spare) = (0, VecDeque::new(), None);
    loop {
        // A fresh block while there is one: those that wait may wait for it.
        let mut block = if started < total {
            started += 1;
            Block::new(launch, order.at(started - 1), spare.take(), options.races)
        } else {
            let Some(block) = resident.pop_front() else { break };
            block
        };
        let limit = machine.clock.saturating_add(slice).min(options.max_instructions);
        if block.run(&mut machine, limit)? {
            spare = Some(block);
        } else if machine.clock >= options.max_instructions {
            let text = format!("kernel `{}` ran {} instructions and is not done: {}", launch.program.name, machine.clock, block.state());
            return Err(Fault::new(Code::LaunchTimeout, text));
        } else {
            resident.push_back(block);
        }
    }
    machine.stats.instructions = machine.clock;
    machine.stats.bytes_read = machine.global.read;
    machine.stats.bytes_written = machine.global.written;
    Ok(machine.stats)
}

/// A fixed pseudo-random order of the blocks without a table: an affine walk whose step has no factor in common with them.
struct Order {
    total: u64,
    start: u64,
    step: u64,
}

impl Order {
    fn new(total: u64, rng: &mut Rng) -> Self {
        let mut step = rng.below(total.max(1)) | 1;
        while gcd(step, total.max(1)) != 1 {
            step += 1;
        }
        Self { total, start: rng.below(total.max(1)), step }
    }

    fn at(&self, i: u64) -> u64 {
        ((u128::from(self.start) + u128::from(i) * u128::from(self.step)) % u128::from(self.total)) as u64
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.draw()) * u128::from(n)) >> 64) as u64
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

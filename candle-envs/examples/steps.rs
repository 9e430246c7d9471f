//! Steps per second of the environments, on one thread and on all, with observations, flags and automatic resets. Actions are random legal ones;
//! choosing them is not measured. Each figure is the median of windows. Environments of Gymnasium have a process for each thread.
//!
//!     cargo run --release -p candle-envs --example steps -- 1024 cartpole

use candle_envs::{Actions, Autoreset, Entry, shipped};
use candle_models::random::Random;
use std::error::Error;
use std::time::{Duration, Instant};

/// Short, so that most of them see no other program on their core.
const WINDOW: Duration = Duration::from_millis(1);
const WINDOWS: usize = 301;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let lanes: usize = arguments.next().as_deref().unwrap_or("1024").parse()?;
    let names: Vec<String> = arguments.collect();
    let threads = std::thread::available_parallelism()?.get();
    println!("{:<16} {lanes} side by side: million steps/s on 1 thread, on {threads}", "");
    let shipped = shipped();
    let entries = match names.is_empty() {
        true => shipped.iter().cloned().collect(),
        false => names.iter().map(|name| shipped.get(name)).collect::<Result<Vec<_>, _>>()?,
    };
    for entry in &entries {
        let on = |threads: usize| -> Result<f64, Box<dyn Error + Send + Sync>> {
            rayon::ThreadPoolBuilder::new().num_threads(threads).build()?.install(|| measure(entry, lanes))
        };
        let (one, all) = (on(1).map_err(|e| e.to_string())?, on(threads).map_err(|e| e.to_string())?);
        println!("{:<16} {:8.3} {:8.3}", entry.name(), one / 1e6, all / 1e6);
    }
    Ok(())
}

/// Steps per second.
fn measure(entry: &Entry, lanes: usize) -> Result<f64, Box<dyn Error + Send + Sync>> {
    let mut envs = entry.make(lanes, Autoreset::NextStep)?;
    envs.reset(0)?;
    let mut rates = Vec::with_capacity(WINDOWS);
    let mut t = 0;
    while rates.len() < WINDOWS {
        let (mut spent, mut steps) = (Duration::ZERO, 0);
        while spent < WINDOW {
            let actions = Actions::random(envs.spec(), envs.frame(), Random::new(1).at(t));
            let start = Instant::now();
            envs.step(&actions)?;
            spent += start.elapsed();
            (t, steps) = (t + 1, steps + lanes);
        }
        rates.push(steps as f64 / spent.as_secs_f64());
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates[WINDOWS / 2])
}

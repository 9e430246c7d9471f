//! Prints the peak memory in KiB of a process that steps 64 sessions of a bundle: what an agent's own program pays. A program
//! of its own because the others bring an allocator that trades memory for the speed of training.

use anyhow::{Context, Result};
use candle_bench::network::Network;
use candle_bench::{families, load};
use candle_models::device;

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(1) };
    let bundle = std::env::args_os().nth(1).context("usage: resident BUNDLE")?;
    println!("{}", load::resident(&Network::open(&families::shipped(), bundle.as_ref())?)?);
    Ok(())
}

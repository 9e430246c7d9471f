//! Opens a bundle on a device, takes one step in a dtype and prints a line: `candle-bench gpu` measures how long that takes from the start
//! of this process.

use anyhow::{Context, Result};
use candle_bench::harness::Subject;
use candle_bench::policy::{EngineCalls, Inputs, Network, Place};
use candle_bench::table::{Case, Pass};
use candle_models::device;

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(1) };
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().context("usage: first-answer BUNDLE DEVICE DTYPE");
    let (network, place, dtype) = (Network::open(next()?.as_ref())?, Place::open(next()?.parse()?)?, next()?);
    let case = Case { dtype, ..network.case(Pass::Step, 1, 1, 1) };
    EngineCalls::new(network.load()?, &case, &Inputs::random(&case), &place)?.run()?;
    println!("answer");
    Ok(())
}

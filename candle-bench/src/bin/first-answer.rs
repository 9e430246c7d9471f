//! Opens a bundle on a device, takes one step and prints a line: `candle-bench gpu` measures how long that takes from the start
//! of this process.

use anyhow::{Context, Result};
use candle_bench::harness::Subject;
use candle_bench::policy::{EngineCalls, Inputs, Network, Place};
use candle_bench::table::Pass;
use candle_models::device;

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(1) };
    let mut arguments = std::env::args().skip(1);
    let (bundle, device) = arguments.next().zip(arguments.next()).context("usage: first-answer BUNDLE DEVICE")?;
    let (network, place) = (Network::open(bundle.as_ref())?, Place::open(device.parse()?)?);
    let case = network.case(Pass::Step, 1, 1, 1);
    EngineCalls::new(network.load()?, &case, &Inputs::random(&case), &place)?.run()?;
    println!("answer");
    Ok(())
}

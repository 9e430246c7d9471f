//! Hidden commands: what suites start in a process of its own.

use anyhow::Result;
use candle_bench::network::Network;
use candle_bench::suite::DeviceArgument;
use candle_bench::{split, startup};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct TrainPeak {
    pub bundle: PathBuf,
    #[arg(long)]
    pub batch: usize,
    #[arg(long)]
    pub frames: usize,
    #[arg(long)]
    pub threads: usize,
}

#[derive(clap::Args)]
pub struct FirstAnswer {
    pub bundle: PathBuf,
    #[command(flatten)]
    pub device: DeviceArgument,
    #[arg(long)]
    pub dtype: String,
}

#[derive(clap::Args)]
pub struct TrainMemory {
    pub request: String,
}

pub fn train_peak(arguments: &TrainPeak) -> Result<ExitCode> {
    let TrainPeak { bundle, batch, frames, threads } = arguments;
    let [before, peak] = candle_bench::training::train_peak(&Network::open(bundle)?, *batch, *frames, *threads)?;
    println!("{before} {peak}");
    Ok(ExitCode::SUCCESS)
}

pub fn train_memory(arguments: &TrainMemory) -> Result<ExitCode> {
    println!("{}", split::memory_of(&arguments.request)?);
    Ok(ExitCode::SUCCESS)
}

/// Takes one step of a bundle and says when it had done what.
pub fn first_answer(arguments: &FirstAnswer, began_ns: u64) -> Result<ExitCode> {
    let FirstAnswer { bundle, device, dtype } = arguments;
    println!("{}", serde_json::to_string(&startup::first_answer(began_ns, &Network::open(bundle)?, device.device, dtype)?)?);
    Ok(ExitCode::SUCCESS)
}

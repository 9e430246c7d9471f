//! Hidden commands: what suites start in a process of its own.

use crate::family::Families;
use crate::network::Network;
use crate::suite::DeviceArgument;
use crate::{split, startup};
use anyhow::Result;
use std::path::PathBuf;
use std::process::ExitCode;

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

pub fn train_memory(families: &Families, arguments: &TrainMemory) -> Result<ExitCode> {
    let [before, peak] = split::memory_of(families, &arguments.request)?;
    println!("{before} {peak}");
    Ok(ExitCode::SUCCESS)
}

/// Takes one step of a bundle and says when it had done what.
pub fn first_answer(families: &Families, arguments: &FirstAnswer, began_ns: u64) -> Result<ExitCode> {
    let FirstAnswer { bundle, device, dtype } = arguments;
    println!("{}", serde_json::to_string(&startup::first_answer(began_ns, &Network::open(families, bundle)?, device.device, dtype)?)?);
    Ok(ExitCode::SUCCESS)
}

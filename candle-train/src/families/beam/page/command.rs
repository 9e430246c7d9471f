//! The command that writes the page.

use super::{Page, load};
use crate::command::command_line;
use anyhow::Result;
use clap::Args;
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Directory of the models: every bundle in it whose name begins with beam-.
    #[arg(long, value_name = "DIR", default_value = "weights")]
    weights: PathBuf,
    /// Directory of the page: README.md and its figures.
    #[arg(long, value_name = "DIR", default_value = "weights/beam")]
    out: PathBuf,
    /// Channels of the table, and the most of a point of a curve.
    #[arg(long, default_value_t = 20_000)]
    channels: usize,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    #[allow(dead_code)] // Read by the command itself, before there are other threads.
    threads: Option<usize>,
}

/// Runs the command.
pub fn write(arguments: &PageArguments) -> Result<()> {
    let start = Instant::now();
    let models = load(&arguments.weights)?;
    models.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let page = Page { models: models.found, channels: arguments.channels, command: command_line() };
    let files = page.write(&arguments.out, &|now| eprintln!("{:5.1} s: {now}", start.elapsed().as_secs_f64()))?;
    files.iter().for_each(|file| println!("{}", file.display()));
    Ok(())
}

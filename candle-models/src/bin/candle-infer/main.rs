//! `candle-infer`: runs model bundles on replays and tensors, looks into them and exports them.

mod agreement;
mod demo;
mod export;
mod inspect;
mod options;
mod output;
mod replays;
mod run;
mod tensors;

use candle_models::cli;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Runs, inspects and exports model bundles.
#[derive(Parser)]
#[command(name = "candle-infer", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a bundle on replays (.slp files, or folders of them) or on named tensors (.safetensors), frame by frame.
    Run(run::Arguments),
    /// Shows the shipped policy on the shipped simulated game: `run` without bundle and inputs.
    Demo(options::Options),
    /// Prints a bundle's signature, parameters, size and work per frame.
    Inspect(inspect::Arguments),
    /// Writes a bundle in another dtype or in 8 bits, without what training noted, and reports how far it answers like the
    /// original.
    Export(export::Arguments),
}

fn main() -> ExitCode {
    cli::main(|arguments: Arguments| match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(options) => run::run(run::Arguments::demo(options)),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
    })
}

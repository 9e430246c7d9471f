//! `candle-infer`: runs model bundles on replays and tensors, looks into them and exports them.

mod agreement;
mod demo;
mod doctor;
mod episode;
mod export;
mod generate;
mod inspect;
mod links;
mod options;
mod output;
mod passes;
mod replays;
mod run;
mod sweeps;
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
    /// Runs a bundle on replays (.slp files, or folders of them) or on named tensors (.safetensors), frame by frame; a beam
    /// controller on channels or measurements, episode by episode.
    Run(run::Arguments),
    /// Shows the shipped policy on the shipped simulated game: `run` without bundle and inputs.
    Demo(options::Options),
    /// Draws inputs for models from a seed.
    Generate(generate::Arguments),
    /// Prints a bundle's signature, parameters, size and work per frame.
    Inspect(inspect::Arguments),
    /// Writes a bundle in another dtype or in 8 bits, without what training noted, and reports how far it answers like the
    /// original.
    Export(export::Arguments),
    /// Reports what this machine computes on (devices, driver, libraries, CPU), which features this program has, and what a
    /// bundle asks of a GPU; each trouble with its remedy.
    ///
    /// The recommended load of a GPU is arithmetic from its datasheet, not a measurement. Step: the most sessions, a power of
    /// two up to 512, whose weights, states, inputs and outputs move through memory in 50 us, and whose products take no
    /// longer at the rate of bf16. Window: enough sequences of 64 frames to give each multiprocessor a tile of 128 x 128 of
    /// the widest layer, if their activations fit into half of the memory. Sessions that fit: nine tenths of the memory less
    /// the weights, over the state of one, as a power of two.
    Doctor(doctor::Arguments),
}

fn main() -> ExitCode {
    cli::main(|arguments: Arguments| match arguments.command {
        Command::Run(arguments) => run::run(arguments),
        Command::Demo(options) => run::run(run::Arguments::demo(options)),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::Inspect(arguments) => inspect::run(&arguments),
        Command::Export(arguments) => export::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&arguments),
    })
}

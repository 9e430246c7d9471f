//! The command `candle-infer` as a function of the families that a program knows: [`run`] them, its own and those shipped.
//!
//! `run` on named tensors, `inspect`, `export` and `doctor` work for every family from its signature and parameters alone. What else a
//! family can be run on, its options, its demonstration and its own comparison of an export it says in [`InferFamily`].
//!
//! ```no_run
//! use candle_models::{families, infer};
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     // SAFETY: the program has started no thread yet.
//!     unsafe { infer::run(&families::commands(), std::env::args_os()) }
//! }
//! ```

mod compare;
mod demo;
mod doctor;
mod encode;
mod export;
mod family;
mod forward;
mod generate;
mod inspect;
mod onnx;
mod options;
mod output;
mod play;
mod run;
mod tensors;

pub use compare::{Comparison, Difference, Measure, OnRandom, Rehearsal, Sequences};
pub use demo::{Demo, Player, find_shipped};
pub use family::{Call, Columns, Help, InferFamily, Opened, Reader, Source, Work};
pub use onnx::model as onnx_model;
pub use output::{Column, Failed, Output, TensorFile, line};
pub use tensors::{Finish, excerpt, percentiles};

use crate::cli;
use crate::registry::Registry;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
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
    /// Runs a bundle on named tensors (.safetensors), frame by frame
    Run(run::Arguments),
    /// Shows what is shipped: `run` without bundle and inputs, then a bundle that plays.
    Demo(options::Options),
    /// Writes what a bundle's network reads of an input of its family's own kind, a replay say, as named tensors.
    Encode(encode::Arguments),
    /// Decides live: while a game is played, frame by frame as it arrives, and presses the controller; or with --against in simulated games.
    Play(play::Arguments),
    /// Plays a recording back in real time, as the program that `play` connects to: to try it without that program.
    Playback(play::PlaybackArguments),
    /// Draws inputs for models from a seed.
    Generate(generate::Arguments),
    /// Prints a bundle's signature, parameters, size and work per frame, or with --forward its networks as a program in NumPy.
    Inspect(inspect::Arguments),
    /// Writes a bundle in another dtype or in 8 bits, without what training noted, and reports how far it answers like the
    /// original.
    Export(export::Arguments),
    /// Writes a bundle's networks as ONNX, one frame of any batch, states as inputs and outputs; compared with the engine.
    Onnx(onnx::Arguments),
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

/// Runs the command with these families; the first argument is the program's own name. The exit code is 0 for done, 1 for failed, 2 for
/// called wrongly.
///
/// # Safety
/// It sets the number of threads in the process's environment: no other thread may be running.
pub unsafe fn run<A: Into<OsString> + Clone>(registry: &Registry<dyn InferFamily>, arguments: impl IntoIterator<Item = A>) -> ExitCode {
    let parsed = command(registry).try_get_matches_from(arguments);
    let parsed = parsed.and_then(|matches| {
        let tool = matches.subcommand().and_then(|(name, _)| tools(registry).find(|(family, _)| family.name() == name));
        Ok((tool.is_none().then(|| Arguments::from_arg_matches(&matches)).transpose()?, tool.map(|(family, _)| family), matches))
    });
    cli::answer(parsed, |(arguments, tool, matches)| {
        // The options of families are in the matches of the subcommand only.
        let nothing = || cli::Usage::error("nothing to do");
        let (_, own) = matches.subcommand().ok_or_else(nothing)?;
        if let Some(family) = tool {
            return family.use_tool(own);
        }
        match arguments.ok_or_else(nothing)?.command {
            Command::Run(arguments) => run::run(registry, arguments, own),
            Command::Demo(options) => demo::show(registry, options, own),
            Command::Encode(arguments) => encode::run(registry, &arguments, own),
            Command::Play(arguments) => arguments.run(registry, own),
            Command::Playback(arguments) => arguments.run(registry, own),
            Command::Generate(arguments) => arguments.run(registry),
            Command::Inspect(arguments) => inspect::run(registry, &arguments),
            Command::Export(arguments) => export::run(registry, &arguments, own),
            Command::Onnx(arguments) => onnx::run(registry, &arguments),
            Command::Doctor(arguments) => doctor::run(registry, &arguments),
        }
    })
}

/// The families that have a command of their own, and that command.
fn tools(registry: &Registry<dyn InferFamily>) -> impl Iterator<Item = (&'static dyn InferFamily, clap::Command)> {
    registry.iter().filter_map(|family| Some((family, family.tools(clap::Command::new(family.name()))?)))
}

/// The command line with what the families add to it.
pub fn command(registry: &Registry<dyn InferFamily>) -> clap::Command {
    Arguments::command()
        .subcommands(tools(registry).map(|(_, command)| command))
        .mut_subcommand("run", |command| run::describe(options::extend(command, registry, options::RUN), registry))
        .mut_subcommand("demo", |command| demo::describe(options::extend(command, registry, options::RUN), registry))
        .mut_subcommand("encode", |command| options::extend(command, registry, options::ENCODE))
        .mut_subcommand("play", |command| options::extend(command, registry, options::PLAY))
        .mut_subcommand("playback", |command| options::extend(command, registry, options::PLAYBACK))
        .mut_subcommand("generate", |command| generate::describe(command, registry))
        .mut_subcommand("export", |command| options::extend(command, registry, options::EXPORT))
}

//! Options of `run` and `demo`, and those that families add to commands.

use super::family::InferFamily;
use crate::cli::{Computing, Usage};
use crate::exec::Launches;
use crate::registry::Registry;
use anyhow::Result;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command};
use std::path::PathBuf;

#[derive(Clone, clap::Args, Default)]
pub struct Options {
    /// Write every frame to FILE.jsonl (one JSON object per line) or FILE.safetensors (one input), complete or not at all.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print every N-th frame [default: 60 for a single input, none for several].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Threads on the CPU, 1 to 1024 [default: CANDLE_THREADS, or else 1: a step is over before a second thread has woken up].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub computing: Computing,
    /// How passes reach a GPU: captured (one graph for each batch size) or eager (kernel by kernel).
    #[arg(long, value_name = "HOW", default_value = "captured")]
    pub launches: Launches,
}

/// How families add options to a command.
pub type Adds = fn(&dyn InferFamily, Command) -> Command;
/// To `run` and `demo`.
pub const RUN: Adds = |family, command| family.options(command);
/// To `encode`.
pub const ENCODE: Adds = |family, command| family.encode_options(command);
/// To `play`.
pub const PLAY: Adds = |family, command| family.play_options(command);
/// To `playback`.
pub const PLAYBACK: Adds = |family, command| family.playback_options(command);
/// To `export`.
pub const EXPORT: Adds = |family, command| family.export_options(command);

fn own(family: &dyn InferFamily, adds: Adds) -> Vec<Arg> {
    adds(family, Command::new("")).get_arguments().cloned().collect()
}

/// The command with the options of every family. One that several have stands once, their helps one behind the other.
pub fn extend(mut command: Command, registry: &Registry<dyn InferFamily>, adds: Adds) -> Command {
    for option in registry.iter().flat_map(|family| own(family, adds)) {
        let help = |arg: &Arg| arg.get_help().map(ToString::to_string);
        let known = command.get_arguments().find(|arg| arg.get_id() == option.get_id()).map(help);
        command = match known {
            Some(known) => {
                let helps: Vec<String> = known.into_iter().chain(help(&option)).collect();
                command.mut_arg(option.get_id(), |arg| arg.help(helps.join("; ")))
            }
            // Behind those of the command, in the order of the families.
            None => {
                let place = command.get_arguments().count();
                command.arg(option.display_order(place))
            }
        };
    }
    command
}

/// Refuses options that mean nothing to that family.
pub fn check(registry: &Registry<dyn InferFamily>, family: &dyn InferFamily, adds: Adds, typed: &ArgMatches) -> Result<()> {
    let means = own(family, adds);
    let foreign = |option: &Arg| !means.iter().any(|arg| arg.get_id() == option.get_id());
    let others = registry.iter().flat_map(|other| own(other, adds)).filter(foreign);
    refuse(others, typed, &format!("a {}", family.name()))
}

/// Refuses the options of a family where its inputs are not read by the family itself but are `inputs`, which none of them means anything to.
pub fn check_unused(family: &dyn InferFamily, adds: Adds, typed: &ArgMatches, inputs: &str) -> Result<()> {
    refuse(own(family, adds).into_iter(), typed, inputs)
}

fn refuse(mut options: impl Iterator<Item = Arg>, typed: &ArgMatches, to: &str) -> Result<()> {
    match options.find(|option| typed.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine)) {
        Some(option) => {
            let name = option.get_long().unwrap_or(option.get_id().as_str());
            Err(Usage::error(format!("--{name} means nothing to {to}")))
        }
        None => Ok(()),
    }
}

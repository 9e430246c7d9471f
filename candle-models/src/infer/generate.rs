//! `candle-infer generate`: inputs for models, drawn from a seed. Each family that draws some has a command of its name.

use super::family::InferFamily;
use crate::cli::Usage;
use crate::registry::Registry;
use anyhow::Result;
use clap::{ArgMatches, Command};

/// The family that was named, and its options.
pub struct Arguments(Option<(String, ArgMatches)>);

impl clap::FromArgMatches for Arguments {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Self(matches.subcommand().map(|(name, options)| (name.to_owned(), options.clone()))))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Arguments {
    fn augment_args(command: Command) -> Command {
        command.subcommand_required(true).arg_required_else_help(true)
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

/// The command with one for each family that draws inputs.
pub fn describe(command: Command, registry: &Registry<dyn InferFamily>) -> Command {
    let commands: Vec<Command> = registry.iter().filter_map(|family| family.generator(Command::new(family.name()))).collect();
    command.hide(commands.is_empty()).subcommands(commands)
}

impl Arguments {
    /// Draws and writes them.
    pub fn run(&self, registry: &Registry<dyn InferFamily>) -> Result<()> {
        let named = self.0.as_ref().and_then(|(name, options)| Some((registry.iter().find(|family| family.name() == name)?, options)));
        let (family, options) = named.ok_or_else(|| Usage::error("nothing to do"))?;
        family.generate(options)
    }
}

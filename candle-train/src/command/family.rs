//! What the command wants to know of a family beside its networks.

use super::RunArguments;
use anyhow::{Result, bail};
use candle_models::Error;
use candle_models::registry::Family;
use clap::{ArgMatches, Command};

/// A way to train models: `candle-train NAME`.
pub trait Training: Send + Sync {
    /// The name of its command.
    fn name(&self) -> &'static str;

    /// What the help says of it: `Trains ...`.
    fn about(&self) -> &'static str;

    /// Its configurations by name.
    fn presets(&self) -> Presets;

    /// Adds its own options to those of [`RunArguments`], best those of a struct with `#[derive(clap::Args)]`: `Own::augment_args(command)`.
    fn options(&self, command: Command) -> Command {
        command
    }

    /// Makes a plan of what was typed and gives it to [`RunArguments::train`].
    ///
    /// # Errors
    /// [`Error::Config`] where the configuration is wrong, which ends the program with code 2; whatever else fails.
    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()>;

    /// Arguments that make a run of the default preset one of seconds. The property tests run it.
    fn example(&self) -> &'static [&'static str] {
        &[]
    }
}

/// A family as the command knows it.
pub trait TrainFamily: Family {
    /// The ways to train its models, a command each.
    fn trainings(&self) -> &'static [&'static dyn Training];

    /// Further commands of its own. An option `threads` of type `usize` sets the number of threads, as it does for a run.
    fn commands(&self) -> Vec<Command> {
        Vec::new()
    }

    /// Runs one of them.
    ///
    /// # Errors
    /// As [`Training::train`].
    fn run(&self, command: &str, _options: &ArgMatches) -> Result<()> {
        bail!("{command}: not a command of a {}", self.name())
    }
}

/// The configurations of a family by name.
#[derive(Debug, Clone, Copy)]
pub struct Presets {
    /// Their names.
    pub names: &'static [&'static str],
    /// The one where none is named.
    pub default: &'static str,
    /// What the help says of `--preset`.
    pub help: &'static str,
}

impl Presets {
    /// Refuses a name that there is not.
    ///
    /// # Errors
    /// [`Error::Config`] with those that there are.
    pub fn check(&self, name: &str) -> candle_models::Result<()> {
        match self.names.contains(&name) {
            true => Ok(()),
            false => Err(Error::config("preset", format!("expected one of {}, found '{name}'", self.names.join(", ")))),
        }
    }
}

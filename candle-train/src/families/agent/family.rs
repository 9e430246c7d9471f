//! What the command knows of agents.

use super::config::{RunConfig, description};
use super::ppo::PpoTraining;
use super::run::Plan;
use super::{episodes, example};
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::{Context, Result};
use candle_models::agent::AgentFamily;
use candle_models::device::Purpose;
use candle_models::random::Random;
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

#[derive(Debug, Args)]
struct AgentArguments {
    /// The agent: what it sees, what it does and the network between, in TOML. Without it and --episodes a made-up game is imitated.
    #[arg(long, value_name = "FILE", requires = "episodes")]
    description: Option<PathBuf>,
    /// Recorded episodes: a folder of .safetensors files, or one file.
    #[arg(long, value_name = "DIR", requires = "description")]
    episodes: Option<PathBuf>,
}

impl TrainFamily for AgentFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&AgentTraining, &PpoTraining]
    }
}

/// Imitation of recorded episodes.
struct AgentTraining;

impl Training for AgentTraining {
    fn name(&self) -> &'static str {
        AgentFamily.name()
    }

    fn about(&self) -> &'static str {
        "Trains an agent for a game of one's own by imitation of recorded episodes"
    }

    fn presets(&self) -> Presets {
        Presets { names: &RunConfig::PRESETS, default: "standard", help: "quick (three epochs) or standard (sixty, with dropout)" }
    }

    fn options(&self, command: Command) -> Command {
        AgentArguments::augment_args(command)
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let own = AgentArguments::from_arg_matches(options)?;
        let read = |path: &PathBuf| {
            let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
            description(&text).with_context(|| path.display().to_string())
        };
        let model = own.description.as_ref().map(read).transpose()?;
        let config = RunConfig::resolve(&asked.preset, model, asked.file()?.as_deref(), &asked.sets)?;
        let recordings = match &own.episodes {
            Some(path) => episodes::open(path, &config.model)?,
            None => example::recordings(Random::new(config.seed).stream("example"))?,
        };
        let resources = asked.resources(self.name(), Purpose::Training)?;
        asked.train(Plan::new(config, &recordings, resources, command_line())?)
    }

    /// Some ten steps.
    fn example(&self) -> &'static [&'static str] {
        &["--preset=quick", "--set=epochs=1", "--set=model.hidden=16", "--set=data.batch=8"]
    }
}

//! `candle-train ppo`.

use super::config::RunConfig;
use super::run::{Actor, Plan};
use crate::command::{Presets, RunArguments, Training, command_line};
use anyhow::Result;
use candle_models::bundle::Bundle;
use candle_models::device::Purpose;
use candle_models::families;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

#[derive(Debug, Args)]
struct Arguments {
    /// The environment; comes over that of the configuration.
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
    /// Begins with the network of this bundle in place of a new one. With `--set update.teacher=W` it is the teacher, too.
    #[arg(long, value_name = "BUNDLE")]
    start_from: Option<PathBuf>,
}

/// Learning in environments.
pub struct PpoTraining;

impl Training for PpoTraining {
    fn name(&self) -> &'static str {
        "ppo"
    }

    fn about(&self) -> &'static str {
        "Trains an agent in an environment by proximal policy optimisation"
    }

    fn presets(&self) -> Presets {
        let help = "quick (10 000 steps), classic (two layers of 64, classic control), recurrent (a GRU), minatar (two layers of 256) or duel (from a game policy)";
        Presets { names: &RunConfig::PRESETS, default: "classic", help }
    }

    fn options(&self, command: Command) -> Command {
        let help = format!("The environment, in place of that of the preset: {}", candle_envs::shipped().names());
        Arguments::augment_args(command).mut_arg("env", |env| env.help(help))
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let own = Arguments::from_arg_matches(options)?;
        let mut config = RunConfig::resolve(&asked.preset, asked.file()?.as_deref(), &asked.sets)?;
        if let Some(env) = own.env {
            config.env = env;
        }
        let actor = own.start_from.map(|path| Actor::from_bundle(&families::shipped(), &Bundle::open(path)?)).transpose()?;
        let resources = asked.resources(self.name(), Purpose::Training)?;
        asked.train(Plan::new(config, &candle_envs::shipped(), actor, resources, command_line())?)
    }

    /// Eight updates.
    fn example(&self) -> &'static [&'static str] {
        &[
            "--set=frames=256",
            "--set=rollout.steps=16",
            "--set=update.epochs=2",
            "--set=update.minibatches=2",
            "--set=actor.backbone.layers=[16]",
            "--set=critic.backbone.layers=[16]",
            "--set=evaluation.episodes=4",
        ]
    }
}

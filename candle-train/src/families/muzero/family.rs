//! What the command knows of MuZero.

use super::config::RunConfig;
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_models::muzero::MuZeroFamily;
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};

#[derive(Debug, Args)]
struct Arguments {
    /// The environment, in place of that of the preset: any whose action is one of several classes, `gym:ID` of Gymnasium too.
    #[arg(long, value_name = "NAME")]
    env: Option<String>,
}

impl TrainFamily for MuZeroFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&MuZeroTraining]
    }
}

/// Learning from its own plans.
struct MuZeroTraining;

impl Training for MuZeroTraining {
    fn name(&self) -> &'static str {
        MuZeroFamily.name()
    }

    fn about(&self) -> &'static str {
        "Trains a network to plan with in an environment, by playing with its own plans"
    }

    fn presets(&self) -> Presets {
        let help = "quick (8 000 steps), classic (classic control), tictactoe, connect-four (against itself) or minatar";
        Presets { names: &RunConfig::PRESETS, default: "classic", help }
    }

    fn options(&self, command: Command) -> Command {
        Arguments::augment_args(command)
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let mut config = RunConfig::resolve(&asked.preset, asked.file()?.as_deref(), &asked.sets)?;
        if let Some(env) = Arguments::from_arg_matches(options)?.env {
            config.env = env;
        }
        let resources = asked.resources(self.name(), Purpose::Training)?;
        asked.train(Plan::new(config, &candle_envs::shipped(), resources, command_line())?)
    }

    /// Eight updates.
    fn example(&self) -> &'static [&'static str] {
        &[
            "--set=frames=192",
            "--set=play.lanes=4",
            "--set=play.steps=8",
            "--set=play.simulations=4",
            "--set=learn.updates=2",
            "--set=learn.batch=16",
            "--set=learn.horizon=3",
            "--set=network.width=16",
            "--set=evaluation.episodes=3",
            "--set=evaluation.simulations=4",
        ]
    }
}

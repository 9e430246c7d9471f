//! What the command knows of beam controllers.

use super::config::RunConfig;
use super::page::{self, PageArguments};
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::beam::BeamFamily;
use candle_models::device::Purpose;
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};

impl TrainFamily for BeamFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&BeamTraining]
    }

    fn commands(&self) -> Vec<Command> {
        let page = PageArguments::augment_args(Command::new("beam-page"));
        vec![page.about("Measures beam controllers beside baselines, and writes the tables and figures")]
    }

    fn run(&self, _: &str, options: &ArgMatches) -> Result<()> {
        page::write(&PageArguments::from_arg_matches(options)?)
    }
}

/// Learning on fresh channels.
struct BeamTraining;

impl Training for BeamTraining {
    fn name(&self) -> &'static str {
        BeamFamily.name()
    }

    fn about(&self) -> &'static str {
        "Trains a beam controller on fresh channels"
    }

    fn presets(&self) -> Presets {
        let help = "c1, c2 or c3 (the three schemes with our recipe), or paper (scheme C3 as published)";
        Presets { names: &RunConfig::PRESETS, default: "c3", help }
    }

    fn train(&self, asked: &RunArguments, _: &ArgMatches) -> Result<()> {
        let config = RunConfig::resolve(&asked.preset, asked.file()?.as_deref(), &asked.sets)?;
        let mut plan = Plan::new(config, asked.resources(self.name(), Purpose::Tapes)?)?;
        plan.command = command_line();
        asked.train(plan)
    }

    /// Six steps.
    fn example(&self) -> &'static [&'static str] {
        &[
            "--set=episodes=48",
            "--set=episode.batch=8",
            "--set=episode.fewest=3",
            "--set=episode.evaluated=8",
            "--set=model.hidden=16",
            "--set=model.base=16",
            "--set=model.measurements=4",
            "--set=model.decision.width=32",
        ]
    }
}

//! What the command knows of beam controllers.

use super::config::RunConfig;
use super::page::{self, PageArguments};
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::beam::{BeamFamily, FAMILY};
use candle_models::bundle::Bundle;
use candle_models::device::Purpose;
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

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

#[derive(Debug, Args)]
struct BeamArguments {
    /// Begins with the parameters of this controller in place of random ones. The run has its architecture, but for what --set changes of it:
    /// parameters of another shape begin anew, and with another estimate (`model.decision.paths`, `again`, `directions`; not `places` and `unexplained`) all that decides. With `--set learns=decision` what measures stays as
    /// it is.
    #[arg(long, value_name = "BUNDLE")]
    start_from: Option<PathBuf>,
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

    fn options(&self, command: Command) -> Command {
        BeamArguments::augment_args(command)
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let own = BeamArguments::from_arg_matches(options)?;
        let start = own.start_from.as_ref().map(Bundle::open).transpose()?;
        let mut preset = RunConfig::preset(&asked.preset)?;
        if let Some(start) = &start {
            start.require_family(&[FAMILY])?;
            preset.model = start.config()?;
        }
        let config = RunConfig::resolve(&preset, asked.file()?.as_deref(), &asked.sets)?;
        let mut plan = Plan::new(config, start.as_ref(), asked.resources(self.name(), Purpose::Tapes)?)?;
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

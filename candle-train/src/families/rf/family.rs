//! What the command knows of radio networks.

use super::config::RunConfig;
use super::data;
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_models::rf::RfFamily;
use clap::{ArgMatches, Args, Command, FromArgMatches};

impl TrainFamily for RfFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&LocaliserTraining]
    }

    fn commands(&self) -> Vec<Command> {
        let data = data::Arguments::augment_args(Command::new("rf-data"));
        vec![data.about("Makes a data set of events that receivers hear: signals, their features and where the emitter was")]
    }

    fn run(&self, _: &str, options: &ArgMatches) -> Result<()> {
        data::Arguments::from_arg_matches(options)?.run()
    }
}

/// Learning on fresh events.
struct LocaliserTraining;

impl Training for LocaliserTraining {
    fn name(&self) -> &'static str {
        "localiser"
    }

    fn about(&self) -> &'static str {
        "Trains a network that locates emitters by how strongly receivers hear them, on fresh events"
    }

    fn presets(&self) -> Presets {
        let help = "standard (four million events), or quick (a small network on 200 000)";
        Presets { names: &RunConfig::PRESETS, default: "standard", help }
    }

    fn train(&self, asked: &RunArguments, _: &ArgMatches) -> Result<()> {
        let config = RunConfig::resolve(&asked.preset, asked.file()?.as_deref(), &asked.sets)?;
        asked.train(Plan::new(config, asked.resources(self.name(), Purpose::Episodes)?, command_line())?)
    }

    /// Six steps.
    fn example(&self) -> &'static [&'static str] {
        &["--set=events=48", "--set=batch=8", "--set=evaluated=8", "--set=model.hidden=12", "--set=model.components=2"]
    }
}

//! What the command knows of radio networks.

use super::config::{self, RunConfig};
use super::data;
use super::page::PageArguments;
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_models::rf::RfFamily;
use clap::{ArgMatches, Args, Command, FromArgMatches};

impl TrainFamily for RfFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&LOCALISER, &CLASSIFIER]
    }

    fn commands(&self) -> Vec<Command> {
        let data = data::Arguments::augment_args(Command::new("rf-data"));
        let page = PageArguments::augment_args(Command::new("rf-page"));
        vec![
            data.about("Makes a data set of events that receivers hear: signals, their features and where the emitter was"),
            page.about("Measures radio networks beside bounds and baselines, and writes the tables and figures"),
        ]
    }

    fn run(&self, command: &str, options: &ArgMatches) -> Result<()> {
        match command {
            "rf-page" => PageArguments::from_arg_matches(options)?.write(),
            _ => data::Arguments::from_arg_matches(options)?.run(),
        }
    }
}

/// A network that learns on fresh examples.
struct RfTraining {
    name: &'static str,
    about: &'static str,
    presets: Presets,
    preset: fn(&str) -> candle_models::Result<RunConfig>,
    /// A few steps.
    example: &'static [&'static str],
}

const LOCALISER: RfTraining = RfTraining {
    name: "localiser",
    about: "Trains a network that locates emitters by how strongly receivers hear them, on fresh events",
    presets: Presets {
        names: &config::LOCALISERS,
        default: "standard",
        help: "standard (four million events), or quick (a small network on 200 000)",
    },
    preset: RunConfig::localiser,
    example: &["--set=examples=48", "--set=batch=8", "--set=evaluated=8", "--set=task.model.hidden=12", "--set=task.model.components=2"],
};

const CLASSIFIER: RfTraining = RfTraining {
    name: "classifier",
    about: "Trains a network that tells kinds of signals apart by their samples, on fresh signals",
    presets: Presets {
        names: &config::CLASSIFIERS,
        default: "received",
        help: "received (nine kinds as a receiver has them), or coherent (symbols of five modulations behind a filter of their pulse)",
    },
    preset: RunConfig::classifier,
    example: &["--set=examples=48", "--set=batch=8", "--set=evaluated=20", "--set=task.model.channels=8", "--set=task.model.blocks=2"],
};

impl Training for RfTraining {
    fn name(&self) -> &'static str {
        self.name
    }

    fn about(&self) -> &'static str {
        self.about
    }

    fn presets(&self) -> Presets {
        self.presets
    }

    fn train(&self, asked: &RunArguments, _: &ArgMatches) -> Result<()> {
        let config = RunConfig::resolve(&(self.preset)(&asked.preset)?, asked.file()?.as_deref(), &asked.sets)?;
        asked.train(Plan::new(config, asked.resources(self.name(), Purpose::Tapes)?, command_line())?)
    }

    fn example(&self) -> &'static [&'static str] {
        self.example
    }
}

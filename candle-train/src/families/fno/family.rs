//! What the command knows of neural operators.

use super::config::RunConfig;
use super::data;
use super::ensemble;
use super::page::PageArguments;
use super::run::Plan;
use crate::command::{Presets, RunArguments, TrainFamily, Training, command_line};
use anyhow::Result;
use candle_models::device::Purpose;
use candle_models::fno::FnoFamily;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;

#[derive(Debug, Args)]
struct OperatorArguments {
    /// Pairs of fields to learn from, in place of those that the preset's solver makes: safetensors with x and y, [N, n, m], [N, n, m, C], or [N, m] over one axis; y may have times before its places. Or data sets of pde-data. Each may have another grid; the first one has the pairs that are held out, and its grid is that of the bundle.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    fields: Vec<PathBuf>,
    /// Pairs that are looked at once, when the run is over, on any grid.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    tests: Vec<PathBuf>,
}

impl TrainFamily for FnoFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&OperatorTraining]
    }

    fn commands(&self) -> Vec<Command> {
        let data = data::Arguments::augment_args(Command::new("pde-data"));
        let page = PageArguments::augment_args(Command::new("fno-page"));
        let ensemble = ensemble::Arguments::augment_args(Command::new("fno-ensemble"));
        vec![
            ensemble.about("Makes one bundle of operators that differ in their seeds, which answers with their mean and with a calibrated variance"),
            data.about("Makes a data set of fields that a solver of an equation finds: a medium and its flow, a state and what becomes of it"),
            page.about(
                "Measures neural operators beside solvers and baselines, and what their equations say of them, and writes the tables and figures",
            ),
        ]
    }

    fn run(&self, command: &str, options: &ArgMatches) -> Result<()> {
        match command {
            "fno-ensemble" => ensemble::Arguments::from_arg_matches(options)?.run(),
            "fno-page" => PageArguments::from_arg_matches(options)?.write(),
            _ => data::Arguments::from_arg_matches(options)?.run(),
        }
    }
}

struct OperatorTraining;

impl Training for OperatorTraining {
    fn name(&self) -> &'static str {
        "operator"
    }

    fn about(&self) -> &'static str {
        "Trains a neural operator on pairs of fields: a medium and its flow, a state and what becomes of it"
    }

    fn presets(&self) -> Presets {
        let help = "darcy (a medium on a square to its flow), burgers (a state on a line to those at several times), or ns (a flow of the equations of Navier and Stokes to itself a while later)";
        Presets { names: &RunConfig::PRESETS, default: "darcy", help }
    }

    fn options(&self, command: Command) -> Command {
        OperatorArguments::augment_args(command)
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let OperatorArguments { fields, tests } = OperatorArguments::from_arg_matches(options)?;
        let config = RunConfig::resolve(&RunConfig::preset(&asked.preset)?, asked.file()?.as_deref(), &asked.sets)?;
        let resources = asked.resources(self.name(), Purpose::Tapes)?;
        asked.train(Plan::new(config, &fields, &tests, resources, command_line())?)
    }

    /// Media that are made on the spot.
    fn example(&self) -> &'static [&'static str] {
        &[
            "--set=data.count=12",
            "--set=data.equation.places=6",
            "--set=held_out=4",
            "--set=batch=4",
            "--set=epochs=3",
            "--set=model.hidden=4",
            "--set=model.layers=1",
        ]
    }
}

//! Beam controllers: how they train on channels drawn anew, and the limits that the project holds itself to with them.

mod suite;
mod trainee;

use crate::case::{Case, Pass};
use crate::family::{self, BenchFamily, OwnWork};
use crate::harness::Subject;
use crate::instructions::HotPath;
use crate::memory::Memory;
use crate::readme::{self, Table};
use crate::run::{Chapter, Entry};
use crate::split::Train;
use crate::suite::Suite;
use crate::trainee::Trainee;
use anyhow::{Result, ensure};
use candle_models::beam::{BeamConfig, BeamFamily};
use candle_models::bundle::{Bundle, Manifest};
use candle_models::engine::Runner;
use candle_models::registry::{Family, Registry};
use clap::{ArgMatches, Args, Command};
use std::sync::Arc;
use trainee::{Aligned, Repeated};

/// Units of the published controller's user network.
const HIDDEN: usize = 384;
/// Episodes of a step, and of those that are played again and again.
const EPISODES: usize = 64;
/// What `memory` does with episodes.
const PLAYED: &str = "beam episodes";

/// Options of `train`.
#[derive(Args)]
#[allow(dead_code, reason = "read by name from the matches of the suite")]
struct TrainOptions {
    /// Episodes of a beam controller's step. The published controller is measured where no backbones and no bundles are named.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [EPISODES])]
    beam_batches: Vec<usize>,
    /// Width of the published controller's user network.
    #[arg(long, value_name = "H", default_value_t = HIDDEN)]
    beam_hidden: usize,
}

/// Options of `memory`.
#[derive(Args)]
#[allow(dead_code, reason = "read by name from the matches of the suite")]
struct MemoryOptions {
    /// Episodes of the published beam controller at a time.
    #[arg(long, value_name = "B", default_value_t = EPISODES)]
    episodes: usize,
    /// Width of its user network.
    #[arg(long, value_name = "H", default_value_t = HIDDEN)]
    beam_hidden: usize,
}

fn published(options: &ArgMatches) -> Result<Aligned> {
    Aligned::published(family::option(options, "beam_hidden").unwrap_or(HIDDEN))
}

impl BenchFamily for BeamFamily {
    fn options(&self, suite: &str, command: Command) -> Command {
        match suite {
            Train::NAME => TrainOptions::augment_args(command),
            Memory::NAME => MemoryOptions::augment_args(command),
            _ => command,
        }
    }

    fn shipped(&self) -> &'static [&'static str] {
        &["weights/beam-c3"]
    }

    fn quick(&self, suite: &str) -> &'static str {
        if suite == Memory::NAME { "--episodes 8 --beam-hidden 64" } else { "" }
    }

    fn suites(&self) -> Vec<Entry> {
        vec![Entry::of::<suite::BeamBench>(Chapter::Training)]
    }

    fn tables(&self) -> Vec<Table> {
        vec![Table { name: "beam", suite: suite::BeamBench::NAME, rows: readme::any, layout: readme::by_threads }]
    }

    /// From a measurement to the next beam with the shipped controller.
    fn paths(&self) -> Vec<HotPath> {
        vec![HotPath::once("beam-step", |_| {
            let model = Registry::new([&BeamFamily as &dyn Family]).load(&Bundle::open("weights/beam-c3")?)?;
            let mut runner = Runner::new(model, 1, 1)?;
            runner.floats_mut("features", 0)?.fill(0.0);
            Ok(Box::new(move || Ok(runner.step(&[false])?)))
        })]
    }

    fn trainee(&self, manifest: &Manifest) -> Result<Option<Arc<dyn Trainee>>> {
        Ok(Some(Arc::new(Aligned(serde_json::from_value(manifest.model.clone())?))))
    }

    fn trainees(&self, options: &ArgMatches) -> Result<Vec<Arc<dyn Trainee>>> {
        Ok(vec![Arc::new(published(options)?)])
    }

    fn batches(&self, options: &ArgMatches) -> Option<Vec<usize>> {
        Some(options.try_get_many("beam_batches").ok().flatten().map_or_else(|| vec![EPISODES], |batches| batches.copied().collect()))
    }

    /// Episodes of the published controller without gradients.
    fn workloads(&self, options: &ArgMatches) -> Result<Vec<OwnWork>> {
        let (trainee, batch) = (published(options)?, family::option(options, "episodes").unwrap_or(EPISODES));
        let case = Case::of(&trainee.name(), Pass::Window, [batch, trainee.0.measurements, 1], "f32");
        Ok(vec![OwnWork { name: PLAYED.to_owned(), case, config: serde_json::to_value(&trainee.0)? }])
    }

    fn workload(&self, OwnWork { name, case, config }: &OwnWork) -> Result<Box<dyn Subject>> {
        ensure!(name == PLAYED, "{name}: a beam controller has no such work");
        let config: BeamConfig = serde_json::from_value(config.clone())?;
        Ok(Box::new(Repeated::new(&config, case.batch)?))
    }
}

/// A controller that takes no time.
#[cfg(test)]
fn tiny() -> BeamConfig {
    let model = candle_train::beam::config::RunConfig::preset(trainee::PRESET).unwrap().model;
    BeamConfig { hidden: 16, base: 16, measurements: 3, ..model }
}

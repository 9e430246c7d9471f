//! Neural operators: their networks of usual sizes, how they train, and the limits that the project holds itself to with them, beside neuraloperator.

mod suite;
mod trainee;

use crate::case::Pass;
use crate::family::{self, BenchFamily, OwnWork};
use crate::harness::Subject;
use crate::instructions::{HotPath, engine_calls};
use crate::memory::Memory;
use crate::network::Network;
use crate::readme::{self, Table};
use crate::run::{Chapter, Entry};
use crate::split::Train;
use crate::suite::Suite;
use crate::trainee::Trainee;
use anyhow::{Result, bail, ensure};
use candle_models::bundle::Manifest;
use candle_models::fno::{FAMILY, FnoConfig, FnoFamily};
use clap::{ArgMatches, Args, Command};
use std::sync::Arc;
use trainee::{Learnt, Steps};

/// Pairs of a step.
const PAIRS: usize = 20;
/// Hidden channels of the usual operator.
const HIDDEN: usize = 24;
/// What `memory` does with pairs.
const TRAINED: &str = "operator training step";
/// Operators by the names that `--backbones` takes.
const KINDS: [&str; 2] = ["fno-16x16", "fno-64x64"];

/// Options of `train`.
#[derive(Args)]
#[allow(dead_code, reason = "read by name from the matches of the suite")]
struct TrainOptions {
    /// Pairs of an operator's step. The usual operator is measured where no backbones and no bundles are named.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [PAIRS])]
    operator_batches: Vec<usize>,
}

/// Options of `memory`.
#[derive(Args)]
#[allow(dead_code, reason = "read by name from the matches of the suite")]
struct MemoryOptions {
    /// Pairs of fields that an operator's training step is made of.
    #[arg(long, value_name = "B", default_value_t = PAIRS)]
    operator_pairs: usize,
    /// Its hidden channels.
    #[arg(long, value_name = "H", default_value_t = HIDDEN)]
    operator_hidden: usize,
}

/// `fno-16x16`, of the sizes that Darcy flow is learnt with: one channel to one, 8 by 8 modes, 4 blocks of 24 channels. `fno-64x64`: three channels to
/// three, 16 by 16 modes, 4 blocks of 64 channels, where operators are profiled on a GPU.
fn usual(kind: &str) -> Result<FnoConfig> {
    let small = FnoConfig { grid: [16, 16], channels: [1, 1], modes: [8, 8], hidden: HIDDEN, layers: 4, ..FnoConfig::default() };
    match kind {
        "fno-16x16" => Ok(small),
        "fno-64x64" => Ok(FnoConfig { grid: [64, 64], channels: [3, 3], modes: [16, 16], hidden: 64, ..small }),
        _ => bail!("backbone {kind}: not one of {}", KINDS.join(", ")),
    }
}

impl BenchFamily for FnoFamily {
    fn options(&self, suite: &str, command: Command) -> Command {
        match suite {
            Train::NAME => TrainOptions::augment_args(command),
            Memory::NAME => MemoryOptions::augment_args(command),
            _ => command,
        }
    }

    fn named_kinds(&self) -> &'static [&'static str] {
        &KINDS
    }

    fn usual(&self, kind: &str, _options: &ArgMatches) -> Result<Manifest> {
        Ok(Manifest::new(FAMILY, &usual(kind)?)?)
    }

    fn quick(&self, suite: &str) -> &'static str {
        if suite == Memory::NAME { "--operator-pairs 2" } else { "" }
    }

    fn suites(&self) -> Vec<Entry> {
        vec![Entry::of::<suite::FnoBench>(Chapter::Training)]
    }

    fn tables(&self) -> Vec<Table> {
        vec![Table { name: "fno", suite: suite::FnoBench::NAME, rows: readme::any, layout: readme::by_threads }]
    }

    /// A field to its answer through the engine, and a training step of one pair: with more, products have over 512 terms, from where on their blocks
    /// follow the host's caches.
    fn paths(&self) -> Vec<HotPath> {
        vec![
            HotPath::once("operator-step", |scratch| {
                let network = Network::untrained(&FnoFamily, &Manifest::new(FAMILY, &usual("fno-16x16")?)?, &scratch.join("operator"))?;
                engine_calls(&network, "f32", Pass::Step, scratch)
            }),
            HotPath::once("operator-training-step", |_| {
                let mut steps = Steps::new(&usual("fno-16x16")?, 1)?;
                Ok(Box::new(move || steps.run()))
            }),
        ]
    }

    fn trainee(&self, manifest: &Manifest) -> Result<Option<Arc<dyn Trainee>>> {
        Ok(Some(Arc::new(Learnt(serde_json::from_value(manifest.model.clone())?))))
    }

    fn trainees(&self, _options: &ArgMatches) -> Result<Vec<Arc<dyn Trainee>>> {
        Ok(vec![Arc::new(Learnt(usual("fno-16x16")?))])
    }

    fn batches(&self, options: &ArgMatches) -> Option<Vec<usize>> {
        Some(options.try_get_many("operator_batches").ok().flatten().map_or_else(|| vec![PAIRS], |batches| batches.copied().collect()))
    }

    /// Training steps of the usual operator.
    fn workloads(&self, options: &ArgMatches) -> Result<Vec<OwnWork>> {
        let batch = family::option(options, "operator_pairs").unwrap_or(PAIRS);
        let hidden = family::option(options, "operator_hidden").unwrap_or(HIDDEN);
        let operator = Learnt(FnoConfig { hidden, ..usual("fno-16x16")? });
        let case = operator.case(batch, 1, 1);
        Ok(vec![OwnWork { name: TRAINED.to_owned(), case, config: serde_json::to_value(&operator.0)? }])
    }

    fn workload(&self, OwnWork { name, case, config }: &OwnWork) -> Result<Box<dyn Subject>> {
        ensure!(name == TRAINED, "{name}: an operator has no such work");
        let config: FnoConfig = serde_json::from_value(config.clone())?;
        Ok(Box::new(Steps::new(&config, case.batch)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    #[test]
    fn operators_are_measured_where_they_are_named() {
        let (families, scratch) = (families::shipped(), tempfile::tempdir().unwrap());
        assert!(KINDS.iter().all(|kind| !family::kinds(&families).contains(kind)), "beside others they take too long");
        for (kind, parameters) in KINDS.into_iter().zip([191_881, 4_769_987]) {
            let network = Network::random(&families, kind, &ArgMatches::default(), scratch.path()).unwrap();
            assert!(network.family.name() == FAMILY && network.kind() == "fourier", "{}", network.name);
            let found: usize = network.tensors().unwrap().values().map(candle_core::Tensor::elem_count).sum();
            assert_eq!(found, parameters, "{kind}");
        }
        let error = Network::random(&families, "fno", &ArgMatches::default(), scratch.path()).unwrap_err().to_string();
        assert!(error.starts_with("backbone fno: not one of mlp, ") && error.ends_with(", fno-16x16, fno-64x64"), "{error}");
    }

    #[test]
    fn the_work_of_memory_is_a_training_step() {
        let mut work = FnoFamily.workloads(&ArgMatches::default()).unwrap();
        assert_eq!((work.len(), work[0].case.batch), (1, PAIRS));
        let OwnWork { config, case, .. } = &mut work[0];
        *config = serde_json::to_value(FnoConfig { grid: [4, 4], modes: [4, 4], hidden: 4, layers: 1, ..FnoConfig::default() }).unwrap();
        case.batch = 2;
        FnoFamily.workload(&work[0]).unwrap().run().unwrap();
        let error = FnoFamily.workload(&OwnWork { name: "sleep".to_owned(), ..work[0].clone() }).err().unwrap().to_string();
        assert_eq!(error, "sleep: an operator has no such work");
    }
}

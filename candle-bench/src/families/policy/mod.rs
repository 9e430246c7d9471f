//! Policies that play a game: their networks of usual sizes, how they train, and the limits that the project holds itself to with them.

mod gpu;
mod paths;
mod prefetched;
mod ranks;
mod targets;
mod trainee;
mod training;
mod updates;

use crate::family::{self, BenchFamily, Drawn, Updates};
use crate::instructions::HotPath;
use crate::network::Network;
use crate::readme::{self, Table};
use crate::run::{Chapter, Entry};
use crate::suite::Suite;
use crate::trainee::Trainee;
use anyhow::{Context, Result};
use candle_models::bundle::{Bundle, Manifest};
use candle_models::policy::actions::COMPONENTS;
use candle_models::policy::{BackboneConfig, FAMILY, Heads, PolicyConfig, PolicyFamily};
use candle_models::registry::Registry;
use clap::{ArgMatches, Args, Command};
use std::path::Path;
use std::sync::Arc;
use trainee::Imitated;
use updates::TrainCalls;

/// Options of every suite.
#[derive(Args)]
struct Options {
    /// Heads of random policies: autoregressive or independent.
    #[arg(long, default_value = "autoregressive", value_parser = parse_heads)]
    #[allow(dead_code, reason = "read by name from the matches of the suite")]
    heads: Heads,
}

fn parse_heads(text: &str) -> Result<Heads, String> {
    match text {
        "autoregressive" => Ok(Heads::Autoregressive),
        "independent" => Ok(Heads::Independent),
        other => Err(format!("{other} is neither autoregressive nor independent")),
    }
}

impl BenchFamily for PolicyFamily {
    fn options(&self, _suite: &str, command: Command) -> Command {
        Options::augment_args(command)
    }

    fn kinds(&self) -> &'static [&'static str] {
        &BackboneConfig::KINDS
    }

    fn usual(&self, kind: &str, options: &ArgMatches) -> Result<Manifest> {
        let backbone = BackboneConfig::named(kind).with_context(|| format!("backbone {kind}: not one of {}", self.kinds().join(", ")))?;
        let heads = family::option(options, "heads").unwrap_or_default();
        Ok(Manifest::new(FAMILY, &PolicyConfig { backbone, heads, ..PolicyConfig::default() })?)
    }

    /// Those that are measured where none is named: the network without and the one with a memory.
    fn shipped(&self) -> &'static [&'static str] {
        &["weights/policy-mlp", "weights/policy-mamba"]
    }

    fn suites(&self) -> Vec<Entry> {
        vec![
            Entry::of::<targets::Targets>(Chapter::Limits),
            Entry::of::<training::Training>(Chapter::Training),
            Entry::of::<gpu::Gpu>(Chapter::Devices),
        ]
    }

    fn tables(&self) -> Vec<Table> {
        let (targets, training) = (targets::Targets::NAME, training::Training::NAME);
        vec![
            Table { name: "policies", suite: targets, rows: readme::is_ratio, layout: readme::beside_peers },
            Table { name: "answers", suite: targets, rows: readme::is_answer, layout: readme::beside_peers },
            Table { name: "engine", suite: targets, rows: readme::is_other, layout: readme::with_evidence },
            Table { name: "floors", suite: targets, rows: readme::is_floor, layout: readme::by_pass },
            Table { name: "gains", suite: targets, rows: readme::is_gain, layout: readme::by_pass },
            Table { name: "gpu", suite: gpu::Gpu::NAME, rows: readme::any, layout: readme::by_batch },
            Table { name: "trainer", suite: training, rows: readme::any, layout: readme::by_threads },
        ]
    }

    fn paths(&self) -> Vec<HotPath> {
        paths::paths()
    }

    fn drawn(&self) -> Option<Drawn> {
        let ends = COMPONENTS.iter().map(|component| component.logit + component.logits()).collect();
        Some(Drawn { classes: "action", from: "logits", ends })
    }

    fn attention_window(&self, bundle: &Bundle) -> Result<Option<usize>> {
        Ok(bundle.config::<PolicyConfig>()?.backbone.window())
    }

    fn trainee(&self, manifest: &Manifest) -> Result<Option<Arc<dyn Trainee>>> {
        Ok(Some(Arc::new(Imitated(serde_json::from_value(manifest.model.clone())?))))
    }

    fn updates(&self) -> Option<Updates> {
        Some(|network, case, inputs| Ok(Box::new(TrainCalls::new(network, case, inputs)?)))
    }
}

/// The network of the usual size of that kind, with random weights, written below `scratch`. What the project holds itself to, and what is set
/// beside other libraries, is measured on these: the trained policies change with what was learnt about learning, and their sizes with them.
fn usual(kind: &str, scratch: &Path) -> Result<Network> {
    Network::random(&Registry::new([&PolicyFamily as &dyn BenchFamily]), kind, &ArgMatches::default(), scratch)
}

/// The configuration of a usual network.
#[cfg(test)]
fn config(kind: &str) -> PolicyConfig {
    PolicyConfig { backbone: BackboneConfig::named(kind).unwrap(), ..PolicyConfig::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::policy::actions::LOGITS;

    #[test]
    fn heads_are_an_option() {
        let command = || PolicyFamily.options("latency", Command::new("latency"));
        let heads = |matches: &ArgMatches| {
            let manifest = PolicyFamily.usual("gru", matches).unwrap();
            serde_json::from_value::<PolicyConfig>(manifest.model).unwrap().heads
        };
        let matches = command().try_get_matches_from(["latency", "--heads", "independent"]).unwrap();
        assert_eq!((heads(&matches), heads(&ArgMatches::default())), (Heads::Independent, Heads::Autoregressive));
        assert_eq!(heads(&command().try_get_matches_from(["latency"]).unwrap()), Heads::Autoregressive);
        let error = command().try_get_matches_from(["latency", "--heads", "both"]).unwrap_err().to_string();
        assert!(error.contains("both is neither autoregressive nor independent"), "{error}");
        let error = PolicyFamily.usual("lstm", &ArgMatches::default()).unwrap_err().to_string();
        assert_eq!(error, "backbone lstm: not one of mlp, mamba, gru, attention, hybrid");
    }

    #[test]
    fn the_logits_of_every_class_end_where_those_of_the_next_begin() {
        let ends = PolicyFamily.drawn().unwrap().ends;
        assert_eq!((ends.len(), ends[0], ends[7], ends[8], ends[12]), (COMPONENTS.len(), 1, 8, 25, LOGITS));
        assert!(ends.is_sorted());
    }
}

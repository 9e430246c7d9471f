//! Eager against captured: what preparing a pass costs, what it gains, and after how many calls it has paid for itself.
//!
//! Eager is operation by operation: on plain tensors on the CPU, kernel by kernel on a GPU. Captured is what the engine runs: on the CPU a
//! recorded program with packed weights, on a GPU one graph.

use crate::calls::Agreement;
use crate::calls::{Calls, Inputs, agreement, calls};
use crate::case::{Case, Execution, Pass};
use crate::figure::{Figure, Sense};
use crate::formulas::break_even_calls;
use crate::harness::{self, Comparison, Settings};
use crate::host::Host;
use crate::network::{EVERY, Network, Place};
use crate::stats;
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{Record, Shown, compared_sides, micros, rounds_in_turn};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result};
use candle_models::engine::Model;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::time::Instant;

/// Eager against captured passes: what capturing costs, what it gains, and after how many calls it has paid for itself.
#[derive(clap::Args)]
pub struct Graph {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32])]
    batches: Vec<usize>,
}

impl Suite for Graph {
    const NAME: &'static str = "graph";
    const TITLE: &'static str = "Eager against captured";
    type Row = GraphRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<GraphRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches])?;
        let suite = GraphSuite {
            networks: bench.networks(common, EVERY)?,
            batches: self.batches.clone(),
            window: common.window,
            threads: common.threads.clone(),
            place: self.device.open()?,
        };
        bench.begin(&suite.describe(&common.settings), None);
        suite.run(&common.settings, &bench.host.clone(), |row| bench.add(row))
    }
}

/// How often a pass is prepared: the median counts.
const PREPARED: usize = 7;

/// Which passes are compared.
#[derive(Debug, Clone)]
pub struct GraphSuite {
    /// The networks. On the CPU they are f32: on tensors all weights are.
    pub networks: Vec<Network>,
    /// Batches of a streaming step.
    pub batches: Vec<usize>,
    /// Frames of a window pass of one sequence.
    pub window: usize,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Where they compute.
    pub place: Place,
}

/// A pass both ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GraphRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// How far the outputs are apart.
    pub agreement: Agreement,
    /// How long: ours is captured, theirs eager. Nothing where they disagree.
    pub comparison: Option<Comparison>,
    /// To prepare the captured pass, from the model in memory, in microseconds.
    pub capture_us: f64,
    /// To prepare the eager one.
    pub eager_prepare_us: f64,
}

impl GraphRow {
    /// Calls after which capturing has paid for itself; nothing where it never does, or is not faster for sure.
    pub fn break_even(&self) -> Option<f64> {
        let c = self.comparison.as_ref().filter(|c| c.ratio_ci.low > 1.0)?;
        // What an eager pass has to prepare too is no cost of capturing.
        break_even_calls((self.capture_us - self.eager_prepare_us).max(0.0), c.theirs_us.p50, c.ours_us.p50)
    }

    /// In words.
    pub fn says(&self) -> String {
        let Some(c) = &self.comparison else { return format!("outputs disagree ({})", self.agreement.output) };
        let words = format!("captured is {}", c.in_words());
        match self.break_even() {
            Some(calls) => format!("{words}, paid for after {:.0} calls", calls.ceil()),
            None if c.told_apart() => format!("{words}, never pays"),
            None => words,
        }
    }
}

impl Record for GraphRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Pass", Everywhere),
        ("Batch", Everywhere),
        ("Threads", Everywhere),
        ("Dtype", Everywhere),
        ("Worst difference", Csv),
        ("Eager p50 latency", Everywhere),
        ("Captured p50 latency", Everywhere),
        ("Ratio", Everywhere),
        ("95% of the ratio", Everywhere),
        ("Eager prepare us", Csv),
        ("Capture us", Everywhere),
        ("Break-even calls", Everywhere),
        ("Says", Everywhere),
        ("Rounds", Csv),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Pass", "Batch", "Threads", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let (case, c) = (&self.case, self.comparison.as_ref());
        let of = |cell: &dyn Fn(&Comparison) -> String| c.map_or_else(String::new, cell);
        vec![
            case.model.clone(),
            case.backbone.clone(),
            case.pass_name(),
            case.batch.to_string(),
            case.threads.to_string(),
            case.dtype.clone(),
            self.agreement.difference(),
            of(&|c| micros(c.theirs_us.p50)),
            of(&|c| micros(c.ours_us.p50)),
            of(&|c| format!("{:.2}", c.ratio)),
            of(&|c| format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high)),
            micros(self.eager_prepare_us),
            micros(self.capture_us),
            match self.break_even() {
                Some(calls) => format!("{:.0}", calls.ceil()),
                None if self.comparison.as_ref().is_some_and(Comparison::told_apart) => "never".to_owned(),
                None => "unclear".to_owned(),
            },
            self.says(),
            of(&|c| c.rounds.to_string()),
            case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn told(&self) -> Option<String> {
        let Case { backbone, batch, threads, .. } = &self.case;
        Some(format!("{backbone} {} batch {batch} threads {threads} | {}", self.case.pass_name(), self.says()))
    }

    fn often(&self) -> String {
        rounds_in_turn(self.comparison.as_ref())
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case)
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = compared_sides(self.comparison.as_ref(), "captured mean", "eager over captured");
        figures.push(Figure::new("capture", "us", Sense::Time, self.capture_us));
        figures
    }
}

impl GraphSuite {
    /// The method in words, for the report.
    pub fn describe(&self, settings: &Settings) -> String {
        format!(
            "Eager: operation by operation, on plain tensors on the CPU and kernel by kernel on a GPU. Captured: as the engine prepares a pass, on the CPU a recorded program with packed \
             weights, on a GPU one graph. Both from inputs in the host's memory to outputs in the host's memory. {} Ours is captured, theirs eager. Capture: median of {PREPARED} preparations \
             from a model in memory; break-even is what it costs above preparing the eager pass, over what a call saves.",
            settings.describe_comparison()
        )
    }

    /// The cases in the order of the table.
    fn cases(&self, network: &Network) -> Vec<Case> {
        let passes = self.batches.iter().map(|&batch| (Pass::Step, batch, 1)).chain([(Pass::Window, 1, self.window)]);
        let case =
            |(pass, batch, frames)| self.threads.iter().map(move |&threads| self.place.of(network.case(pass, batch, frames, threads)));
        passes.flat_map(case).collect()
    }

    /// Compares every case; `seen` is called after each.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&GraphRow)) -> Result<()> {
        for network in &self.networks {
            let model = network.load()?;
            for case in self.cases(network) {
                let context = || format!("{}, {}, batch {}", case.model, case.pass_name(), case.batch);
                seen(&self.compare((network, &model), &case, settings, host).with_context(context)?);
            }
        }
        Ok(())
    }

    fn compare(&self, (network, model): (&Network, &Arc<dyn Model>), case: &Case, settings: &Settings, host: &Host) -> Result<GraphRow> {
        let inputs = Inputs::random(&**model, case);
        let prepare = |execution| self.prepare(model, &Case { execution, ..case.clone() }, &inputs, settings);
        let (mut eager, eager_prepare_us) = prepare(Execution::Eager)?;
        let (mut captured, capture_us) = prepare(Execution::Captured)?;
        let agreement = agreement(&captured.answers()?, &eager.answers()?, &case.dtype, network.family.drawn().as_ref())?;
        let comparison = match agreement.holds() {
            true => Some(harness::compare(&mut *captured, &mut *eager, settings)?),
            false => None,
        };
        Ok(GraphRow { host: host.clone(), case: case.clone(), agreement, comparison, capture_us, eager_prepare_us })
    }

    /// Calls of a case and the median time of preparing them, in microseconds.
    fn prepare(&self, model: &Arc<dyn Model>, case: &Case, inputs: &Inputs, settings: &Settings) -> Result<(Box<dyn Calls>, f64)> {
        let mut times = Vec::with_capacity(PREPARED);
        loop {
            settings.interrupt.check()?;
            let start = Instant::now();
            let calls = calls(model.clone(), case, inputs, &self.place)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            if times.len() == PREPARED {
                return Ok((calls, stats::median(&stats::sorted(&times))));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Interval, Summary};
    use crate::testing;

    #[test]
    fn both_ways_agree_and_have_a_row() {
        let directory = tempfile::tempdir().unwrap();
        let suite = GraphSuite {
            networks: vec![testing::network("mamba", directory.path())],
            batches: vec![2],
            window: 3,
            threads: vec![1],
            place: Place::cpu(),
        };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, ..Settings::default() };
        let mut rows = Vec::new();
        suite.run(&settings, &Host::detect(None), |row| rows.push(row.clone())).unwrap();
        assert_eq!(rows.len(), 2);
        for row in &rows {
            assert!(row.agreement.holds() && row.comparison.is_some(), "{row:?}");
            assert!(row.capture_us > 0.0 && row.eager_prepare_us > 0.0, "{row:?}");
            assert_eq!(row.cells().len(), GraphRow::COLUMNS.len());
        }
    }

    #[test]
    fn what_is_not_faster_never_pays_and_is_not_called_better() {
        let directory = tempfile::tempdir().unwrap();
        let case = testing::network("mlp", directory.path()).case(Pass::Step, 1, 1, 1);
        let row = |captured: f64, eager: f64, sure: f64| {
            let interval = Interval { low: eager / captured / sure, high: eager / captured * sure };
            let [ours_us, theirs_us] = [captured, eager].map(|us| Summary::of(&[us]).unwrap());
            let comparison =
                Comparison { ours_us, theirs_us, ratio: eager / captured, ratio_ci: interval, ratio_range: interval, rounds: 4 };
            let agreement = Agreement { output: "logits".to_owned(), worst: 0.0, tolerance: 1e-4 };
            let host = Host::detect(None);
            GraphRow { host, case: case.clone(), agreement, comparison: Some(comparison), capture_us: 1010.0, eager_prepare_us: 10.0 }
        };
        assert_eq!(row(100.0, 150.0, 1.1).says(), "captured is 1.50 times faster, paid for after 20 calls");
        assert_eq!(row(150.0, 100.0, 1.1).says(), "captured is 1.50 times slower, never pays");
        assert_eq!(row(100.0, 150.0, 2.0).says(), "captured is not told apart (1.50 times faster)");
        assert_eq!(row(100.0, 150.0, 2.0).break_even(), None);
        assert_eq!(row(100.0, 100.0, 1.0).says(), "captured is not told apart (as fast)");
    }
}

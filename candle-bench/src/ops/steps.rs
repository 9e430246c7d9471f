//! Where the time of an inference pass goes: the operations of a recorded model by name, on one thread.

use crate::calls::Inputs;
use crate::case::Pass;
use crate::figure::{Figure, Sense};
use crate::formulas::gflop_per_s;
use crate::harness::Settings;
use crate::host::Host;
use crate::network::{FEW, Network, Place};
use crate::report::charts::{self, Bar, Lengths, Panel, entry};
use crate::stats;
use crate::suite::{Common, Suite, SuiteRun};
use crate::table::{Record, Shown, micros};
use Shown::{Csv, Everywhere};
use anyhow::Result;
use candle_core::DType;
use candle_models::engine::{self, Runner};
use candle_models::exec::{EXPONENTIAL, Work};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Instant;

/// Rows of a streaming step. The engine's profile covers one block of rows, and these fit into it.
const BATCHES: [usize; 2] = [1, 32];

/// Where the time of an inference pass goes: the operations of recorded networks by name, on one thread.
#[derive(clap::Args)]
pub struct Steps {
    #[command(flatten)]
    common: Common,
}

impl Suite for Steps {
    const NAME: &'static str = "steps";
    const TITLE: &'static str = "Operations of an inference pass";
    type Row = StepRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<StepRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        let networks = bench.networks(common, FEW)?;
        bench.begin(&describe(&common.settings), None);
        let host = bench.host.clone();
        networks.iter().try_for_each(|network| profile(network, common.window, &common.settings, &host, |row| bench.add(row)))
    }
}

/// All steps of one name in a pass.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The network, `mamba 2x256, autoregressive heads`.
    pub model: String,
    /// Sequences of a pass.
    pub batch: usize,
    /// Frames of each.
    pub frames: usize,
    /// Name of the steps.
    pub operation: String,
    /// How many there are.
    pub steps: usize,
    /// Microseconds of all of them in a pass, median over passes.
    pub p50_us: f64,
    /// Their share of the sum over all names.
    pub share: f64,
    /// Rate of their arithmetic, where they have any.
    pub gflop_per_s: Option<f64>,
    /// Passes measured.
    pub passes: usize,
}

impl Record for StepRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Everywhere),
        ("Batch", Everywhere),
        ("Frames", Everywhere),
        ("Operation", Everywhere),
        ("Steps", Everywhere),
        ("p50 us", Everywhere),
        ("Share %", Everywhere),
        ("GFLOP/s", Everywhere),
        ("Passes", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Batch", "Frames", "Operation"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.model.clone(),
            self.batch.to_string(),
            self.frames.to_string(),
            self.operation.clone(),
            self.steps.to_string(),
            micros(self.p50_us),
            format!("{:.1}", 100.0 * self.share),
            self.gflop_per_s.map_or_else(String::new, |x| format!("{x:.1}")),
            self.passes.to_string(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::new("median of a pass", "us", Sense::Time, self.p50_us)]
    }

    fn often(&self) -> String {
        format!("{} passes", self.passes)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let mut bars: Vec<(String, Vec<(String, f64)>)> = Vec::new();
        for row in rows {
            let pass = if row.frames == 1 { "step".to_owned() } else { format!("window {}", row.frames) };
            let label = format!("{}, {pass}, batch {}", row.model, row.batch);
            entry(&mut bars, &label).push((row.operation.clone(), row.p50_us));
        }
        let bars = bars.into_iter().map(|(label, parts)| Bar { label, parts }).collect();
        charts::stacked("Where the time of a pass goes", "Median time by operation", Lengths::Shares, bars)
    }
}

/// The method in words.
fn describe(settings: &Settings) -> String {
    format!(
        "One pass after the other on one thread, the clock read behind every step, {} s of warm-up and {} s that count; steps of one name are added up within a \
         pass, printed is the median over passes. Rates count floating-point operations, a multiply-add as two, an exponential as {EXPONENTIAL}; rows of tables that are looked up \
         are added, not multiplied.",
        settings.warm_up_s, settings.window_s
    )
}

/// The operations of a model in a streaming step of one row and of several, and in a window of one sequence; `seen` is called
/// for each.
fn profile(network: &Network, window: usize, settings: &Settings, host: &Host, mut seen: impl FnMut(&StepRow)) -> Result<()> {
    for case in BATCHES.map(|batch| (batch, 1)).into_iter().chain([(1, window)]) {
        profile_case(network, case, settings, host)?.iter().for_each(&mut seen);
    }
    Ok(())
}

fn profile_case(network: &Network, (batch, frames): (usize, usize), settings: &Settings, host: &Host) -> Result<Vec<StepRow>> {
    let model = network.load()?;
    let case = network.case(Pass::Window, batch, frames, 1);
    let inputs = Inputs::random(&*model, &case);
    let mut runner = Runner::on(model.clone(), (batch, frames), &Place::cpu().of_engine(&case)?)?;
    inputs.copy_to(&mut runner)?;
    let resets = vec![false; batch * frames];
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < settings.warm_up_s {
        runner.step(&resets)?;
    }
    let (start, mut passes) = (Instant::now(), Vec::new());
    while passes.is_empty() || start.elapsed().as_secs_f64() < settings.window_s {
        settings.interrupt.check()?;
        passes.push(runner.profile(&resets)?);
    }
    let work = engine::work(&*model, batch, frames, DType::F32)?;
    let found = by_name(&passes);
    let total: f64 = found.values().map(|(_, us)| us).sum();
    let mut rows: Vec<StepRow> = found
        .into_iter()
        .map(|(operation, (steps, p50_us))| StepRow {
            host: host.clone(),
            model: network.name.clone(),
            batch,
            frames,
            operation: operation.to_owned(),
            steps,
            p50_us,
            share: p50_us / total,
            gflop_per_s: Some(flop_of(&work, operation)).filter(|flop| *flop > 0.0).map(|flop| gflop_per_s(flop, p50_us)),
            passes: passes.len(),
        })
        .collect();
    rows.sort_by(|a, b| b.p50_us.total_cmp(&a.p50_us));
    Ok(rows)
}

/// Number of steps of each name, and the median over passes of their microseconds together.
fn by_name(passes: &[Vec<(&'static str, f64)>]) -> BTreeMap<&'static str, (usize, f64)> {
    let mut sums: BTreeMap<&'static str, (usize, Vec<f64>)> = BTreeMap::new();
    for (pass, steps) in passes.iter().enumerate() {
        for &(name, seconds) in steps {
            let (count, sums) = sums.entry(name).or_default();
            sums.resize(pass + 1, 0.0);
            sums[pass] += seconds * 1e6;
            *count += usize::from(pass == 0);
        }
    }
    sums.into_iter().map(|(name, (count, sums))| (name, (count, stats::median(&stats::sorted(&sums))))).collect()
}

/// Floating-point operations of the steps of a name.
fn flop_of(work: &[Work], name: &str) -> f64 {
    work.iter().filter(|step| step.name == name).map(|step| step.flop).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::markdown;
    use crate::testing;

    fn quick() -> Settings {
        Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() }
    }

    #[test]
    fn every_architecture_has_shares_and_the_rates_of_its_products() {
        let directory = tempfile::tempdir().unwrap();
        for network in testing::examples(directory.path()) {
            let mut rows = Vec::new();
            profile(&network, 3, &quick(), &Host::detect(None), |row| rows.push(row.clone())).unwrap();
            for (batch, frames) in [(1, 1), (32, 1), (1, 3)] {
                let case: Vec<_> = rows.iter().filter(|r| (r.batch, r.frames) == (batch, frames)).collect();
                assert!((case.iter().map(|r| r.share).sum::<f64>() - 1.0).abs() < 1e-9);
                for row in &case {
                    let moves = row.operation.starts_with("join") || ["before", "coordinates", "window"].contains(&&*row.operation);
                    assert_eq!(row.gflop_per_s.is_none(), moves, "{} {}: {} steps", network.name, row.operation, row.steps);
                }
                assert!(case.iter().any(|r| r.operation == "linear"));
            }
            assert_eq!(rows[0].cells().len(), StepRow::COLUMNS.len());
            assert_eq!(markdown(&rows).lines().count(), rows.len() + 2);
        }
    }

    #[test]
    fn steps_of_a_name_are_added_within_a_pass() {
        let pass = |a: f64, b: f64| vec![("linear", a), ("gate", 1e-6), ("linear", b)];
        let found = by_name(&[pass(1e-6, 2e-6), pass(2e-6, 3e-6), pass(5e-6, 5e-6)]);
        assert_eq!(found["linear"].0, 2);
        assert!((found["linear"].1 - 5.0).abs() < 1e-9 && (found["gate"].1 - 1.0).abs() < 1e-9);
    }
}

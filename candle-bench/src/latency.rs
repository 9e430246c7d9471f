//! Latency by backbone, pass, batch and threads.

use crate::calls::{Inputs, calls};
use crate::case::{Case, Execution, Pass};
use crate::figure::Figure;
use crate::harness::{self, Measurement, Settings};
use crate::host::Host;
use crate::network::{EVERY, Network, Place};
use crate::report::charts::{self, Across, Panel, Sample, lines, network, present};
use crate::stats::Summary;
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{Record, Shown, gpu_memory, megabytes, micros, optional, percent, yes_no};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Latency percentiles and throughput by backbone, batch and threads: streaming step and window pass.
#[derive(clap::Args)]
pub struct Latency {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Batches of a streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    batches: Vec<usize>,
    /// Batches of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 8, 32])]
    window_batches: Vec<usize>,
    /// How passes are run: as the engine prepared them, or operation by operation.
    #[arg(long, value_name = "HOW", value_delimiter = ',', default_value = "captured")]
    executions: Vec<Execution>,
}

impl Suite for Latency {
    const NAME: &'static str = "latency";
    const TITLE: &'static str = "Latency by batch";
    type Row = LatencyRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<LatencyRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches, &self.window_batches])?;
        let suite = LatencySuite {
            networks: bench.networks(common, EVERY)?,
            step_batches: self.batches.clone(),
            window_batches: self.window_batches.clone(),
            window: common.window,
            threads: common.threads.clone(),
            executions: self.executions.clone(),
            place: self.device.open()?,
        };
        bench.begin(&common.settings.describe(), Some(suite.cases().len()));
        suite.run(&common.settings, &bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Which cases are measured.
#[derive(Debug, Clone)]
pub struct LatencySuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Batches of a streaming step.
    pub step_batches: Vec<usize>,
    /// Batches of a window pass.
    pub window_batches: Vec<usize>,
    /// Frames of a window.
    pub window: usize,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// How passes are run.
    pub executions: Vec<Execution>,
    /// Where they compute.
    pub place: Place,
}

impl LatencySuite {
    /// The cases in the order of the table. On tensors of the CPU all weights are f32: eager passes are those of networks in f32.
    pub fn cases(&self) -> Vec<(Network, Case)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            let possible =
                |execution: &&Execution| **execution == Execution::Captured || self.place.device.is_cuda() || network.dtype == "f32";
            for &execution in self.executions.iter().filter(possible) {
                for (pass, batches, frames) in [(Pass::Step, &self.step_batches, 1), (Pass::Window, &self.window_batches, self.window)] {
                    for &threads in &self.threads {
                        let case = |&batch: &usize| Case { execution, ..self.place.of(network.case(pass, batch, frames, threads)) };
                        cases.extend(batches.iter().map(|batch| (network.clone(), case(batch))));
                    }
                }
            }
        }
        cases
    }

    /// Measures every case; `seen` is called after each.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&LatencyRow)) -> Result<Vec<LatencyRow>> {
        let mut rows = Vec::new();
        for (network, case) in self.cases() {
            let model = network.load()?;
            let inputs = Inputs::random(&*model, &case);
            let mut calls = calls(model, &case, &inputs, &self.place)?;
            let measurement = harness::measure(&mut *calls, settings).with_context(|| case.to_string())?;
            let (bytes, gpu_mb) = (calls.bytes(), self.place.gpu_mb());
            let row = LatencyRow { host: host.clone(), case, measurement, bytes, gpu_mb };
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }
}

/// One point of the latency table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LatencyRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// How long.
    #[serde(flatten)]
    pub measurement: Measurement,
    /// Bytes of weights, states, inputs, outputs and what a pass works in, where the engine runs it.
    #[serde(default)]
    pub bytes: Option<usize>,
    /// Memory in use on the GPU that computed, in megabytes, that of other programs counted in; `None` for the CPU and
    /// where the driver does not say.
    pub gpu_mb: Option<f64>,
}

impl Record for LatencyRow {
    // Names as in perf_analyzer's CSV where the meaning is the same; latencies are microseconds there as here.
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Pass", Everywhere),
        ("Batch", Everywhere),
        ("Threads", Everywhere),
        ("Dtype", Everywhere),
        ("Execution", Everywhere),
        ("Concurrency", Csv),
        ("Inferences/Second", Everywhere),
        ("Frames/Second", Csv),
        ("p50 latency", Everywhere),
        ("p90 latency", Everywhere),
        ("p95 latency", Csv),
        ("p99 latency", Everywhere),
        ("p99.9 latency", Everywhere),
        ("Max latency", Everywhere),
        ("Avg latency", Everywhere),
        ("Avg latency low", Csv),
        ("Avg latency high", Csv),
        ("Late %", Everywhere),
        ("Requests", Csv),
        ("Windows", Csv),
        ("Steady", Everywhere),
        ("Waited %", Csv),
        ("Clock change %", Csv),
        ("Memory MB", Everywhere),
        ("GPU MB", Csv),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Pass", "Batch", "Threads", "Device", "Dtype", "Execution"];

    fn cells(&self) -> Vec<String> {
        let (case, found, latency) = (&self.case, &self.measurement, &self.measurement.latency_us);
        let rows_per_s = found.calls_per_s * case.batch as f64;
        vec![
            case.model.clone(),
            case.backbone.clone(),
            case.pass_name(),
            case.batch.to_string(),
            case.threads.to_string(),
            case.dtype.clone(),
            case.execution.name().to_owned(),
            "1".to_owned(),
            format!("{rows_per_s:.0}"),
            format!("{:.0}", rows_per_s * case.frames as f64),
            micros(latency.p50),
            optional(latency.p90),
            optional(latency.p95),
            optional(latency.p99),
            optional(latency.p99_9),
            micros(latency.max),
            micros(latency.mean),
            micros(latency.mean_ci.low),
            micros(latency.mean_ci.high),
            percent(found.late),
            latency.n.to_string(),
            found.windows.to_string(),
            yes_no(found.steady),
            percent(found.waited),
            percent(found.clock),
            self.bytes.map_or_else(String::new, megabytes),
            gpu_memory(self.gpu_mb),
            case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure { steady: self.measurement.steady, ..Figure::mean("mean latency", &self.measurement.latency_us) }]
    }

    fn told(&self) -> Option<String> {
        let Case { backbone, batch, threads, .. } = &self.case;
        let steady = if self.measurement.steady { "" } else { ", not steady" };
        let p50 = self.measurement.latency_us.p50;
        Some(format!("{backbone} {} batch {batch} threads {threads} | p50 {p50:.1} us{steady}", self.case.pass_name()))
    }

    fn often(&self) -> String {
        self.measurement.often()
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case).filter(|case| case.execution == Execution::Captured)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let median = |row: &Self| Sample {
            chart: charts::calls(&row.case),
            series: network(&row.case),
            point: (row.case.batch as f64, row.measurement.latency_us.p50),
        };
        let per_row = |row: &Self| {
            let Sample { chart, series, point } = median(row);
            Sample { chart, series, point: (point.0, row.measurement.calls_per_s * row.case.batch as f64) }
        };
        let percentiles = |rows: &mut dyn Iterator<Item = &Self>| {
            let samples = rows.flat_map(|row| {
                let (chart, series) = (format!("{}, batch {}", charts::calls(&row.case), row.case.batch), network(&row.case));
                tail(&row.measurement.latency_us).map(move |point| Sample { chart: chart.clone(), series: series.clone(), point })
            });
            lines(Across::Names(TAIL), samples)
        };
        let least = rows.iter().map(|row| row.case.batch).min().unwrap_or(0);
        let panels = [
            (
                "Median latency, µs, by batch",
                "Both axes are logarithmic.",
                charts::Shown::Open,
                lines(Across::Logarithmic, rows.iter().map(median)),
            ),
            (
                "Latency percentiles of the smallest batch, µs",
                "The slowest calls, to the right, are what a frame has to wait for.",
                charts::Shown::Open,
                percentiles(&mut rows.iter().filter(|row| row.case.batch == least)),
            ),
            (
                "Latency percentiles of the other batches, µs",
                "",
                charts::Shown::Folded,
                percentiles(&mut rows.iter().filter(|row| row.case.batch != least)),
            ),
            (
                "Rows a second, by batch",
                "Both axes are logarithmic.",
                charts::Shown::Folded,
                lines(Across::Logarithmic, rows.iter().map(per_row)),
            ),
        ];
        present(panels)
    }
}

const TAIL: &[&str] = &["p50", "p90", "p95", "p99", "p99.9", "max"];

/// Percentiles at their places in [`TAIL`]; those that were not measured are left out.
fn tail(latency_us: &Summary) -> impl Iterator<Item = (f64, f64)> {
    let Summary { p50, p90, p95, p99, p99_9, max, .. } = latency_us;
    let all = [Some(*p50), *p90, *p95, *p99, *p99_9, Some(*max)];
    all.into_iter().enumerate().filter_map(|(i, us)| Some((i as f64, us?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tail_that_was_not_measured_is_not_drawn() {
        let few: Vec<_> = tail(&Summary::of(&[1.0, 2.0, 3.0]).unwrap()).collect();
        assert_eq!(few, [(0.0, 2.0), (5.0, 3.0)]);
        assert_eq!(TAIL[5], "max");
    }
}

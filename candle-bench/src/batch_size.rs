//! Which batch to run: throughput and latency over the batch, the smallest batch that is nearly as good as the best, and the largest
//! that fits.

use crate::calls::{Inputs, calls};
use crate::case::{Case, Pass};
use crate::figure::{Figure, Sense};
use crate::harness::{self, Measurement, Settings};
use crate::host::Host;
use crate::network::{FEW, Network, Place};
use crate::report::charts::{self, Across, Panel, Sample};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{Record, Shown, megabytes, micros, optional, yes_no};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result, ensure};
use candle_models::engine::{Model, Runner};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Which batch to run: throughput and latency over the batch, the knee, and the largest that fits.
#[derive(clap::Args)]
pub struct BatchSize {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// The largest batch that is timed.
    #[arg(long, value_name = "B", default_value_t = 1024)]
    most: usize,
    #[command(flatten)]
    limits: Limits,
}

impl Suite for BatchSize {
    const NAME: &'static str = "batch-size";
    const TITLE: &'static str = "Which batch to run";
    type Row = BatchRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<BatchRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        let suite = BatchSizeSuite {
            networks: bench.networks(common, FEW)?,
            threads: common.threads.clone(),
            most: self.most,
            limits: self.limits,
            place: self.device.open()?,
        };
        suite.validate()?;
        bench.begin(&suite.describe(&common.settings), None);
        suite.run(&common.settings, &bench.host.clone(), |row| bench.add(row))
    }
}

/// Share of the best throughput from which on a batch is as good as the best.
pub const KNEE: f64 = 0.95;
/// Rows of a batch beyond which nobody asks.
const MOST: usize = 1 << 20;

/// What a batch may take.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, clap::Args)]
pub struct Limits {
    /// Largest 99th percentile of a step, in microseconds (a frame of a game by default).
    #[arg(long = "latency-limit", value_name = "US", default_value_t = 16_667.0)]
    pub latency_us: f64,
    /// Largest memory of weights, states, inputs, outputs and what a pass works in, in 10^6 bytes.
    #[arg(long = "memory-limit", value_name = "MB", default_value_t = 1000.0)]
    pub memory_mb: f64,
}

/// Streaming steps of growing batches.
#[derive(Debug, Clone)]
pub struct BatchSizeSuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// The largest batch that is timed.
    pub most: usize,
    /// What a batch may take.
    pub limits: Limits,
    /// Where they compute.
    pub place: Place,
}

/// What is to be said of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// Below the knee.
    Below,
    /// The smallest that reaches 95% of the best throughput within the limits: the one to take.
    Knee,
    /// Above the knee: more latency for hardly more throughput.
    Above,
    /// Its 99th percentile is above the limit.
    TooSlow,
}

impl Mark {
    fn name(self) -> &'static str {
        match self {
            Self::Below => "",
            Self::Knee => "recommended",
            Self::Above => "past the knee",
            Self::TooSlow => "too slow",
        }
    }
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BatchRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What.
    #[serde(flatten)]
    pub case: Case,
    /// How long.
    #[serde(flatten)]
    pub measurement: Measurement,
    /// Bytes of weights, states, inputs, outputs and what a pass works in.
    pub bytes: usize,
    /// What it may take.
    pub limits: Limits,
    /// The largest batch whose bytes are within the limit, found by preparing it.
    pub fits: usize,
    /// Share of the best throughput within the limits.
    pub share_of_best: f64,
    /// What is to be said of it.
    pub mark: Mark,
}

impl BatchRow {
    /// Rows a second.
    pub fn rows_per_s(&self) -> f64 {
        rows_per_s(&self.case, &self.measurement)
    }

    /// What is held against the limit: the 99th percentile, the maximum where there are too few calls for one.
    pub fn tail_us(&self) -> f64 {
        tail_us(&self.measurement)
    }
}

fn rows_per_s(case: &Case, measurement: &Measurement) -> f64 {
    measurement.calls_per_s * case.batch as f64
}

fn tail_us(measurement: &Measurement) -> f64 {
    measurement.latency_us.p99.unwrap_or(measurement.latency_us.max)
}

impl Record for BatchRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Dtype", Everywhere),
        ("Threads", Everywhere),
        ("Batch", Everywhere),
        ("p50 latency", Everywhere),
        ("p99 latency", Everywhere),
        ("Inferences/Second", Everywhere),
        ("Share of best %", Everywhere),
        ("Memory MB", Everywhere),
        ("Says", Everywhere),
        ("Largest that fits", Everywhere),
        ("Latency limit us", Csv),
        ("Memory limit MB", Csv),
        ("Requests", Csv),
        ("Steady", Everywhere),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Dtype", "Threads", "Batch", "Device"];

    fn cells(&self) -> Vec<String> {
        let (case, latency) = (&self.case, &self.measurement.latency_us);
        vec![
            case.model.clone(),
            case.backbone.clone(),
            case.dtype.clone(),
            case.threads.to_string(),
            case.batch.to_string(),
            micros(latency.p50),
            optional(latency.p99),
            format!("{:.0}", self.rows_per_s()),
            format!("{:.0}", 100.0 * self.share_of_best),
            megabytes(self.bytes),
            self.mark.name().to_owned(),
            self.fits.to_string(),
            format!("{:.0}", self.limits.latency_us),
            format!("{:.0}", self.limits.memory_mb),
            latency.n.to_string(),
            yes_no(self.measurement.steady),
            case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn often(&self) -> String {
        self.measurement.often()
    }

    fn pass(&self) -> Option<&Case> {
        Some(&self.case)
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let of = |value: fn(&Self) -> f64| {
            let sample = move |row: &Self| Sample {
                chart: format!("{}, {}", charts::threads(row.case.threads), row.case.device),
                series: charts::network(&row.case),
                point: (row.case.batch as f64, value(row)),
            };
            charts::lines(Across::Logarithmic, rows.iter().map(sample))
        };
        charts::present([
            ("Rows a second, by batch", "Both axes are logarithmic.", charts::Shown::Open, of(Self::rows_per_s)),
            ("99th percentile, µs, by batch", "What the limit is held against.", charts::Shown::Open, of(Self::tail_us)),
        ])
    }

    fn figures(&self) -> Vec<Figure> {
        let steady = self.measurement.steady;
        vec![
            Figure { steady, ..Figure::mean("mean latency", &self.measurement.latency_us) },
            Figure::new("bytes", "B", Sense::Cost, self.bytes as f64),
        ]
    }
}

/// A batch that was timed, before it is known how it stands to the others.
struct Timed {
    case: Case,
    measurement: Measurement,
    bytes: usize,
}

impl BatchSizeSuite {
    /// Names the argument at fault.
    pub fn validate(&self) -> Result<()> {
        let Limits { latency_us, memory_mb } = self.limits;
        ensure!(latency_us.is_finite() && latency_us > 0.0, "latency-limit: {latency_us} us is not a time");
        ensure!(memory_mb.is_finite() && memory_mb > 0.0, "memory-limit: {memory_mb} MB is not a size");
        ensure!((1..=MOST).contains(&self.most), "most: {} is not from 1 to {MOST}", self.most);
        Ok(())
    }

    /// The method in words, for the report.
    pub fn describe(&self, settings: &Settings) -> String {
        format!(
            "{} Streaming steps of batches 1, 2, 4 ... up to {}, the first that does not fit or is too slow, through the engine. A batch is within the limits if its 99th percentile \
             is at most {} us and it takes at most {} MB; recommended is the smallest with {:.0}% of the best throughput within them. The largest that fits was found by \
             preparing it, not by running it.",
            settings.describe(),
            self.most,
            self.limits.latency_us,
            self.limits.memory_mb,
            100.0 * KNEE
        )
    }

    /// Measures every network on every number of threads; `seen` is called for the batches of each when it is done.
    ///
    /// # Errors
    /// If a batch of one does not fit, among others.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&BatchRow)) -> Result<()> {
        for network in &self.networks {
            for &threads in &self.threads {
                let context = || format!("{}, {}, {threads} threads", network.name, network.dtype);
                self.sweep(network, threads, settings, host).with_context(context)?.iter().for_each(&mut seen);
            }
        }
        Ok(())
    }

    fn sweep(&self, network: &Network, threads: usize, settings: &Settings, host: &Host) -> Result<Vec<BatchRow>> {
        let model = network.load()?;
        let of = |batch: usize| self.place.of(network.case(Pass::Step, batch, 1, threads));
        let limit = (self.limits.memory_mb * 1e6) as usize;
        let fits = largest(|batch| Ok(self.bytes(&model, &of(batch))? <= limit))?;
        ensure!(
            fits > 0,
            "a batch of 1 takes {} MB and does not fit into the limit of {} MB",
            megabytes(self.bytes(&model, &of(1))?),
            self.limits.memory_mb
        );
        let mut timed = Vec::new();
        for batch in std::iter::successors(Some(1), |batch| Some(2 * batch)).take_while(|batch| *batch <= self.most.min(fits)) {
            let case = of(batch);
            let mut calls = calls(model.clone(), &case, &Inputs::random(&*model, &case), &self.place)?;
            let measurement = harness::measure(&mut *calls, settings)?;
            let bytes = calls.bytes().unwrap_or_default();
            let slow = tail_us(&measurement) > self.limits.latency_us;
            timed.push(Timed { case, measurement, bytes });
            if slow {
                break;
            }
        }
        Ok(marked(timed, self.limits, fits, host))
    }

    fn bytes(&self, model: &Arc<dyn Model>, case: &Case) -> Result<usize> {
        Ok(Runner::on(model.clone(), (case.batch, 1), &self.place.of_engine(case)?)?.bytes())
    }
}

/// The largest batch that fits, 0 where none does: doubled until one does not, then halved in between.
fn largest(mut fits: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let (mut low, mut high) = (0, 1);
    while high <= MOST && fits(high)? {
        (low, high) = (high, 2 * high);
    }
    while high - low > 1 && high <= MOST {
        let middle = low + (high - low) / 2;
        if fits(middle)? { low = middle } else { high = middle }
    }
    Ok(low)
}

/// The batches with what is to be said of each.
fn marked(timed: Vec<Timed>, limits: Limits, fits: usize, host: &Host) -> Vec<BatchRow> {
    let within = |t: &&Timed| tail_us(&t.measurement) <= limits.latency_us;
    let rate = |t: &Timed| rows_per_s(&t.case, &t.measurement);
    // Where none is fast enough a share is that of the best of all.
    let best = timed.iter().filter(within).map(rate).reduce(f64::max).or_else(|| timed.iter().map(rate).reduce(f64::max)).unwrap_or(1.0);
    let knee = timed.iter().filter(within).position(|t| rate(t) >= KNEE * best);
    let row = |(i, t): (usize, Timed)| {
        let mark = match knee {
            _ if !within(&&t) => Mark::TooSlow,
            Some(knee) if i == knee => Mark::Knee,
            Some(knee) if i > knee => Mark::Above,
            _ => Mark::Below,
        };
        let share_of_best = rate(&t) / best;
        let Timed { case, measurement, bytes } = t;
        BatchRow { host: host.clone(), case, measurement, bytes, limits, fits, share_of_best, mark }
    };
    timed.into_iter().enumerate().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Summary;
    use crate::testing;

    fn suite(directory: &std::path::Path) -> BatchSizeSuite {
        BatchSizeSuite {
            networks: vec![testing::network("mlp", directory)],
            threads: vec![1],
            most: 4,
            // However slow the machine.
            limits: Limits { latency_us: 1e12, memory_mb: 100.0 },
            place: Place::cpu(),
        }
    }

    fn timed(suite: &BatchSizeSuite, batch: usize, us: f64) -> Timed {
        let latency_us = Summary::of(&[us; 200]).unwrap();
        let measurement =
            Measurement { latency_us, calls_per_s: 1e6 / us, windows: 3, steady: true, late: None, waited: None, clock: None };
        Timed { case: suite.networks[0].case(Pass::Step, batch, 1, 1), measurement, bytes: 1000 * batch }
    }

    #[test]
    fn the_knee_is_the_smallest_batch_near_the_best_within_the_limits() {
        let directory = tempfile::tempdir().unwrap();
        let suite = suite(directory.path());
        // 10, 16, 19.5, 20 and 40 rows in a thousandth of a second; the last is too slow.
        let all = [(1, 100.0), (2, 125.0), (4, 205.0), (8, 400.0), (64, 1600.0)].map(|(batch, us)| timed(&suite, batch, us));
        let limits = Limits { latency_us: 1000.0, memory_mb: 1.0 };
        let rows = marked(all.into(), limits, 900, &Host::detect(None));
        let marks: Vec<Mark> = rows.iter().map(|row| row.mark).collect();
        assert_eq!(marks, [Mark::Below, Mark::Below, Mark::Knee, Mark::Above, Mark::TooSlow]);
        assert!((rows[0].share_of_best - 0.5).abs() < 1e-9 && (rows[3].share_of_best - 1.0).abs() < 1e-9);
        assert!(rows.iter().all(|row| row.cells().len() == BatchRow::COLUMNS.len()));
        // Where none is fast enough none is recommended.
        let rows = marked(vec![timed(&suite, 1, 5000.0)], limits, 900, &Host::detect(None));
        assert_eq!((rows[0].mark, rows[0].share_of_best), (Mark::TooSlow, 1.0));
    }

    #[test]
    fn the_largest_that_fits_is_found_exactly() {
        for most in [0, 1, 2, 3, 37, 1000] {
            let mut asked = 0;
            let found = largest(|batch| {
                asked += 1;
                Ok(batch <= most)
            });
            assert_eq!(found.unwrap(), most);
            assert!(asked <= 22, "{asked} preparations");
        }
    }

    #[test]
    fn a_sweep_ends_at_its_limits_and_a_batch_that_does_not_fit_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() };
        let mut suite = suite(directory.path());
        let mut rows = Vec::new();
        suite.run(&settings, &Host::detect(None), |row| rows.push(row.clone())).unwrap();
        let batches: Vec<usize> = rows.iter().map(|row| row.case.batch).collect();
        assert_eq!(batches, [1, 2, 4]);
        assert!(rows.iter().all(|row| row.fits > 4) && rows[2].bytes > rows[0].bytes);
        assert_eq!(rows.iter().filter(|row| row.mark == Mark::Knee).count(), 1);
        suite.limits.memory_mb = 0.1;
        let error = format!("{:#}", suite.run(&settings, &Host::detect(None), |_| {}).unwrap_err());
        assert!(error.contains("does not fit into the limit of 0.1 MB"), "{error}");
        suite.most = 0;
        assert!(suite.validate().unwrap_err().to_string().starts_with("most:"));
    }
}

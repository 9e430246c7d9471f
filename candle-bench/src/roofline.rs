//! Every fused operation and every model's pass under the roofs of this machine's CPU or GPU: what keeps each from being faster, and why.

use crate::calls::{Inputs, calls};
use crate::case::{Case, Pass};
use crate::figure::{Figure, Sense};
use crate::formulas::{self, Bound, Refused, Roofs};
use crate::harness::{self, InPool, Measurement, OnDevice, Rounds, Settings, Timed, pool};
use crate::host::Host;
use crate::network::{EVERY, Network, Place};
use crate::ops::{self, Demand, Machine, OpSuite, Peaks, Placed, Site, Work, describe_roofs, gpu};
use crate::report::charts::{self, Chart, Content, Panel};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{Record, Shown, micros};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result};
use candle_core::DType;
use candle_models::engine;
use candle_models::{device, exec};
use serde::{Deserialize, Serialize};

/// Every fused operation and every model's pass under the roofs of this machine: what keeps each from being faster.
#[derive(clap::Args)]
pub struct Roofline {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Batches of a model's streaming step.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 32, 256])]
    batches: Vec<usize>,
    /// Sequences of an operation's training pass; their frames are those of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [32])]
    sequences: Vec<usize>,
    /// Rows of a product with packed weights.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 32])]
    rows: Vec<usize>,
    /// Only operations with one of these in their name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

impl Suite for Roofline {
    const NAME: &'static str = "roofline";
    const TITLE: &'static str = "Under the roofs of the machine";
    type Row = RooflineRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<RooflineRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches, &self.sequences, &self.rows])?;
        let suite = RooflineSuite {
            networks: bench.networks(common, EVERY)?,
            batches: self.batches.clone(),
            window: common.window,
            ops: OpSuite {
                batches: self.sequences.clone(),
                frames: common.window,
                rows: self.rows.clone(),
                threads: common.threads.clone(),
                place: self.device.open()?,
                only: self.only.clone(),
                trainee: ops::optimised(bench.families),
            },
        };
        let peaks = suite.ops.peaks(&common.settings)?;
        bench.begin(&suite.describe(&peaks, &common.settings), None);
        let refused = suite.run(&peaks, &common.settings, &bench.host.clone(), |row| bench.add(row))?;
        bench.refuse_rows(&refused);
        Ok(())
    }
}

/// What is placed.
#[derive(Debug, Clone)]
pub struct RooflineSuite {
    /// Networks whose passes are placed.
    pub networks: Vec<Network>,
    /// Batches of their streaming steps.
    pub batches: Vec<usize>,
    /// Frames of a window pass of one sequence.
    pub window: usize,
    /// The fused operations, and where everything computes.
    pub ops: OpSuite,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RooflineRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The operation, or the model and its weights' dtype.
    pub operation: String,
    /// Its sizes, and what is done with it.
    pub shape: String,
    /// Threads of a call.
    pub threads: usize,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// What a call computes and moves at least.
    pub work: Work,
    /// Median of a call in microseconds.
    pub us: f64,
    /// Calls that were timed.
    pub n: usize,
    /// Whether the measurement was steady.
    pub steady: bool,
    /// The most that the machine reaches in such work.
    pub roofs: Roofs,
    /// What keeps it from being faster.
    pub bound: Bound,
    /// Why that is said, with its figures.
    pub reason: String,
}

impl RooflineRow {
    fn placed(&self) -> Placed {
        Placed { work: self.work, us: self.us, roofs: self.roofs }
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        format!(
            "{} | {} | {} threads | {} us | {}: {}",
            self.operation,
            self.shape,
            self.threads,
            micros(self.us),
            self.bound.name(),
            self.reason
        )
    }
}

impl Record for RooflineRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Operation", Everywhere),
        ("Shape", Everywhere),
        ("Threads", Everywhere),
        ("p50 us", Everywhere),
        (Placed::COLUMNS[0], Everywhere),
        (Placed::COLUMNS[1], Everywhere),
        (Placed::COLUMNS[2], Everywhere),
        (Placed::COLUMNS[3], Everywhere),
        (Placed::COLUMNS[4], Everywhere),
        (Placed::COLUMNS[5], Csv),
        (Placed::COLUMNS[6], Csv),
        ("Why", Everywhere),
        ("Requests", Csv),
        ("Steady", Csv),
        ("Device", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Operation", "Shape", "Threads", "Device"];

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![self.operation.clone(), self.shape.clone(), self.threads.to_string(), micros(self.us)];
        cells.extend(self.placed().cells());
        let steady = if self.steady { "yes" } else { "no" };
        cells.extend([self.reason.clone(), self.n.to_string(), steady.to_owned(), self.device.clone()]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure { steady: self.steady, ..Figure::new("median", "us", Sense::Time, self.us) }]
    }

    fn told(&self) -> Option<String> {
        Some(self.line())
    }

    fn often(&self) -> String {
        format!("{} calls in the last three windows, {}", self.n, if self.steady { "steady" } else { "not steady" })
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        // A row has the roofs over its own bytes and weights; drawn are the highest of each number of threads.
        let mut roofs: Vec<(usize, Roofs)> = Vec::new();
        for row in rows {
            match roofs.iter_mut().find(|(threads, _)| *threads == row.threads) {
                Some((_, best)) => {
                    best.gflop_per_s = best.gflop_per_s.max(row.roofs.gflop_per_s);
                    best.gb_per_s = best.gb_per_s.max(row.roofs.gb_per_s);
                }
                None => roofs.push((row.threads, row.roofs)),
            }
        }
        let chart = |(threads, Roofs { gflop_per_s, gb_per_s }): (usize, Roofs)| {
            let placed = |row: &Self| charts::Placed {
                name: format!("{}, {}", row.operation, row.shape),
                intensity: formulas::intensity_flop_per_byte(row.work.flop, row.work.bytes),
                gflop_per_s: formulas::gflop_per_s(row.work.flop, row.us),
                bound: row.bound.name().to_owned(),
            };
            let points = rows.iter().filter(|row| row.threads == threads && row.work.flop > 0.0).map(placed).collect();
            let roof = charts::Roof { name: charts::threads(threads), gflop_per_s, gb_per_s };
            Chart { title: charts::threads(threads), content: Content::Roofline(vec![roof], points) }
        };
        let note = "The highest roofs that were measured, those of memory of a small copy in a cache; the table holds each row against those over it.";
        charts::present([("GFLOP/s over FLOP/byte", note, charts::Shown::Open, roofs.into_iter().map(chart).collect())])
    }

    fn bound(&self) -> Option<String> {
        Some(format!("{}: {}", self.bound.name(), self.reason))
    }
}

/// What is being placed.
struct Subject {
    operation: String,
    shape: String,
    device: String,
    demand: Demand,
}

impl RooflineSuite {
    /// How it is measured, in words, with the peaks of this run.
    pub fn describe(&self, peaks: &[Peaks], settings: &Settings) -> String {
        format!(
            "{} Operations in their fused form{}, models through the engine with their inputs copied in; what a pass of a model counts is the sum over its operations. {}",
            settings.describe(),
            if self.ops.place.device.is_cuda() {
                format!(", {} put on the GPU before it is waited for, the time of one", gpu::CALLS)
            } else {
                String::new()
            },
            describe_roofs(&self.ops.place.device, peaks)
        )
    }

    /// Places everything; `seen` is called for each row. What lay above its roof is no row: it is named in what comes back.
    pub fn run(&self, peaks: &[Peaks], settings: &Settings, host: &Host, mut seen: impl FnMut(&RooflineRow)) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        for peaks in peaks {
            let pool = pool(peaks.threads)?;
            let mut machine = Machine::new(Site::of(&self.ops.place.device, &pool), settings);
            let mut place = |subject: Subject, measurement: Measurement| -> Result<()> {
                let name = format!("{}, {}, {} threads", subject.operation, subject.shape, peaks.threads);
                match row(subject, measurement, &mut machine, (peaks.threads, host)) {
                    Ok(row) => seen(&row),
                    Err(error) if error.is::<Refused>() => refused.push(format!("{name}: {error}")),
                    Err(error) => return Err(error.context(name)),
                }
                Ok(())
            };
            self.ops.each_pair(peaks.threads, |pair| {
                let subject = Subject {
                    operation: pair.operation,
                    shape: format!("{}, {}", pair.shape, pair.calculation.name()),
                    device: self.ops.place.name(),
                    demand: pair.demand,
                };
                let mut fused = pair.fused;
                let mut rounds: Box<dyn Rounds + '_> = match self.ops.place.device.is_cuda() {
                    true => Box::new(OnDevice { operation: || fused.run(), calls: gpu::CALLS, device: self.ops.place.device.clone() }),
                    false => Box::new(InPool { pool: pool.clone(), subject: Timed(fused) }),
                };
                place(subject, harness::measure(&mut *rounds, settings)?)
            })?;
            for network in &self.networks {
                self.passes(network, peaks.threads, settings, &mut place)?;
            }
        }
        Ok(refused)
    }

    fn passes(
        &self,
        network: &Network,
        threads: usize,
        settings: &Settings,
        place: &mut impl FnMut(Subject, Measurement) -> Result<()>,
    ) -> Result<()> {
        let steps = self.batches.iter().map(|&batch| (Pass::Step, batch, 1));
        for (pass, batch, frames) in steps.chain([(Pass::Window, 1, self.window)]) {
            let case = self.ops.place.of(network.case(pass, batch, frames, threads));
            let (demand, measured) = pass_of(network, &case, &self.ops.place, settings)?;
            let [operation, shape] = case.placed_as();
            place(Subject { operation, shape, device: case.device.clone(), demand }, measured)?;
        }
        Ok(())
    }
}

/// What a pass of a model asks of the machine, and how long it takes.
pub(crate) fn pass_of(network: &Network, case: &Case, place: &Place, settings: &Settings) -> Result<(Demand, Measurement)> {
    let (model, cuda) = (network.load()?, place.device.is_cuda());
    let mut calls = calls(model.clone(), case, &Inputs::random(&*model, case), place)?;
    let measured = harness::measure(&mut *calls, settings).with_context(|| format!("{}, {}", network.name, case.pass_name()))?;
    // On a GPU everything is of the weights' dtype.
    let values = if cuda { device::float_dtype(&network.dtype)? } else { DType::F32 };
    let counted = engine::work(&*model, case.batch, case.frames, values)?;
    let bytes = |counted: &[exec::Work]| counted.iter().map(|w| w.bytes).sum::<f64>();
    let work = Work { flop: counted.iter().map(|w| w.flop).sum(), bytes: bytes(&counted) };
    let demand = Demand::of(work, &network.dtype);
    if cuda {
        return Ok((demand, measured));
    }
    // Weights lie there once; of what else is moved the half, as one operation writes values that another reads.
    let moved = bytes(&engine::work(&*model, 2 * case.batch, case.frames, values)?) - work.bytes;
    let outside = counted.iter().filter(|w| w.weights.is_none()).map(|w| w.flop).sum();
    Ok((Demand { resident: work.bytes - 0.5 * moved, outside, ..demand }, measured))
}

fn row(subject: Subject, measurement: Measurement, machine: &mut Machine, (threads, host): (usize, &Host)) -> Result<RooflineRow> {
    let Subject { operation, shape, device, demand } = subject;
    let work = demand.work;
    let (us, n, steady) = (measurement.latency_us.p50, measurement.latency_us.n, measurement.steady);
    let placed = machine.placed(&demand, us)?;
    let (bound, reason) = (placed.bound(), placed.reason());
    Ok(RooflineRow { host: host.clone(), operation, shape, threads, device, work, us, n, steady, roofs: placed.roofs, bound, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Execution;
    use crate::latency::LatencySuite;
    use crate::network::Place;
    use crate::run::Run;
    use crate::table::{Report, markdown};
    use crate::{families, testing};

    #[test]
    fn operations_and_models_are_placed_with_a_reason() {
        let directory = tempfile::tempdir().unwrap();
        let suite = RooflineSuite {
            networks: vec![testing::network("mlp", directory.path())],
            batches: vec![1, 3],
            window: 4,
            ops: OpSuite {
                batches: vec![1],
                frames: 2,
                rows: vec![1],
                threads: vec![1],
                place: Place::cpu(),
                only: vec!["gru".to_owned()],
                trainee: None,
            },
        };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() };
        // Roofs high enough for any machine: what they are is not tested here.
        let peaks = [Peaks { threads: 1, gflop_per_s: 1e6, gb_per_s: 1e6 }];
        let mut rows = Vec::new();
        let refused = suite.run(&peaks, &settings, &Host::detect(None), |row| rows.push(row.clone())).unwrap();
        assert_eq!(rows.len() + refused.len(), 2 + 3, "{refused:?}");
        for row in &rows {
            assert_eq!(row.cells().len(), RooflineRow::COLUMNS.len());
            assert!(row.work.flop > 0.0 && row.work.bytes > 0.0 && row.reason.contains("GFLOP/s"), "{row:?}");
            assert_eq!(row.bound, row.placed().bound());
        }
        let model = suite.networks[0].load().unwrap();
        let [wide, narrow] = [DType::F32, DType::BF16].map(|dtype| engine::work(&*model, 3, 1, dtype).unwrap());
        for (wide, narrow) in wide.iter().zip(&narrow) {
            assert!(narrow.flop == wide.flop && (0.5 * wide.bytes..=wide.bytes).contains(&narrow.bytes), "{wide:?} {narrow:?}");
        }
        assert_eq!(markdown(&rows).lines().count(), rows.len() + 2);
        // A table of latencies in the same run learns from it what bounds each captured pass.
        let (networks, place, executions) = (suite.networks.clone(), Place::cpu(), vec![Execution::Captured, Execution::Eager]);
        let latency =
            LatencySuite { networks, step_batches: vec![1, 2], window_batches: vec![1], window: 4, threads: vec![1], executions, place };
        let latencies = latency.run(&settings, &Host::detect(None), |_| {}).unwrap();
        let out = directory.path().join("run");
        Report::new(String::new(), String::new(), rows.clone()).write(&out, "roofline").unwrap();
        Report::new(String::new(), String::new(), latencies).write(&out, "latency").unwrap();
        let run = Run::open(&families::shipped(), &out).unwrap();
        let placed = |operation: &str| rows.iter().find(|row| row.operation.starts_with("mlp") && row.shape == operation);
        for (row, shape) in run.suites["latency"].rows.iter().zip(["step, batch 1", "step, batch 2", "window 4, batch 1"]) {
            assert_eq!(row.bound, placed(shape).and_then(Record::bound), "{shape}");
        }
        assert!(run.suites["latency"].rows[3..].iter().all(|row| row.bound.is_none()), "eager passes are others");
    }
}

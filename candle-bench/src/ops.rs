//! Every fused operation beside the plain tensor operations that it stands for, on sizes that are usual in small networks.

mod inference;
mod mamba;
mod optimiser;
mod roof;
mod row;
pub mod steps;
mod training;

pub(crate) use inference::{LAYERS, Product, Weights};
pub use roof::Peaks;
pub(crate) use roof::{Demand, LEAST_BYTES, Lanes, Machine, Site, describe_roofs, fastest_product, floats, gpu, product_gflop_per_s};
pub use row::{Calculation, OpRow};

use crate::calls::Agreement;
use crate::calls::Answers;
use crate::family::{self, Families};
use crate::formulas::{self, Bound, Refused, Roofs};
use crate::harness::{self, InPool, Settings, Subject, Timed, pool};
use crate::host::Host;
use crate::network::Place;
use crate::suite::{Common, Suite, SuiteRun};
use crate::table::micros;
use crate::trainee::Trainee;
use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_models::random::Random;
use clap::ArgMatches;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;
use std::sync::Arc;

/// Every fused operation against its plain form: ratio, rate, and share of this machine's peak.
#[derive(clap::Args)]
pub struct Ops {
    #[command(flatten)]
    common: Common,
    /// Sequences of a training pass; their frames are those of a window pass.
    #[arg(long, value_name = "B", value_delimiter = ',', default_values_t = [1, 32])]
    batches: Vec<usize>,
    /// Rows of a product with packed weights.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_values_t = [1, 8, 32, 256])]
    rows: Vec<usize>,
    /// Only operations with one of these in their name.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
}

impl Suite for Ops {
    const NAME: &'static str = "ops";
    const TITLE: &'static str = "Fused operations beside their plain form";
    type Row = OpRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<OpRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&self.batches, &self.rows])?;
        let suite = OpSuite {
            batches: self.batches.clone(),
            frames: common.window,
            rows: self.rows.clone(),
            threads: common.threads.clone(),
            place: Place::cpu(),
            only: self.only.clone(),
            trainee: optimised(bench.families),
        };
        let peaks = suite.peaks(&common.settings)?;
        bench.begin(&suite.describe(&peaks, &common.settings), None);
        let refused = suite.run(&peaks, &common.settings, &bench.host.clone(), |row| bench.add(row))?;
        let (disagreeing, count) = (bench.rows().iter().filter(|row| !row.agreement.holds()).count(), bench.rows().len());
        if disagreeing > 0 {
            bench.refuse(format!("fused and plain form disagree in {disagreeing} of {count} cases"));
        }
        bench.refuse_rows(&refused);
        Ok(())
    }
}

/// Largest difference between two f32 runs, relative to one plus the largest magnitude in the tensor.
const TOLERANCE: f64 = 1e-4;

/// What one call computes and moves at least, counted from its shapes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations: a multiply-add is two, a division or a root one, an exponential [`EXPONENTIAL`](candle_models::exec::EXPONENTIAL).
    pub flop: f64,
    /// Bytes: what is read and what is written, each value once in every pass.
    pub bytes: f64,
}

impl Work {
    /// So many operations on so many f32 values that are read or written.
    fn on_values(flop: f64, values: usize) -> Self {
        Self { flop, bytes: 4.0 * values as f64 }
    }
}

/// A call under the roofs of its machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Placed {
    /// What it does.
    pub work: Work,
    /// How long that takes, in microseconds.
    pub us: f64,
    /// What the machine reaches in such work.
    pub roofs: Roofs,
}

impl Placed {
    /// Columns of a table.
    pub const COLUMNS: [&'static str; 7] = ["GFLOP/s", "GB/s", "FLOP/byte", "Share of roof %", "Bound", "Roof GFLOP/s", "Roof GB/s"];

    /// What keeps it from being faster.
    pub fn bound(&self) -> Bound {
        self.roofs.bound_of_call(self.work.flop, self.work.bytes, self.us)
    }

    /// The share of the least time that its roofs allow.
    pub fn share(&self) -> f64 {
        self.roofs.least_us(self.work.flop, self.work.bytes) / self.us
    }

    /// Why it has the bound that it has, with its figures.
    pub fn reason(&self) -> String {
        let Self { work: Work { flop, bytes }, us, roofs } = *self;
        let [arithmetic, memory] = [Work { flop, bytes: 0.0 }, Work { flop: 0.0, bytes }].map(|w| roofs.least_us(w.flop, w.bytes));
        let mut text = format!(
            "{} take {} us at {:.0} GFLOP/s, {} take {} us at {:.1} GB/s",
            scaled(flop, "FLOP"),
            micros(arithmetic),
            roofs.gflop_per_s,
            scaled(bytes, "B"),
            micros(memory),
            roofs.gb_per_s
        );
        let least = roofs.least_us(flop, bytes);
        let _ = match self.bound() {
            Bound::Overhead => write!(text, "; it takes {:.1} times the longer of the two", us / least),
            Bound::Memory | Bound::Compute => write!(text, "; it reaches {:.0}% of the longer of the two", 100.0 * least / us),
        };
        text
    }

    /// Both in a line.
    pub fn in_words(&self) -> String {
        format!("{}: {}", self.bound().name(), self.reason())
    }

    /// The cells of the columns.
    pub fn cells(&self) -> [String; 7] {
        let (Work { flop, bytes }, Roofs { gflop_per_s, gb_per_s }) = (self.work, self.roofs);
        // A row above its roof is refused before it comes here; as a cell it says so.
        let share = self.roofs.share(flop, bytes, self.us).map_or_else(|_| "above".to_owned(), |share| format!("{:.1}", 100.0 * share));
        [
            format!("{:.1}", formulas::gflop_per_s(flop, self.us)),
            format!("{:.1}", formulas::gb_per_s(bytes, self.us)),
            format!("{:.2}", formulas::intensity_flop_per_byte(flop, bytes)),
            share,
            self.bound().name().to_owned(),
            format!("{gflop_per_s:.1}"),
            format!("{gb_per_s:.1}"),
        ]
    }
}

/// `1.2 MB`, `340 KFLOP`.
fn scaled(count: f64, unit: &str) -> String {
    let (factor, prefix) = match count {
        n if n >= 1e9 => (1e9, "G"),
        n if n >= 1e6 => (1e6, "M"),
        n if n >= 1e3 => (1e3, "k"),
        _ => (1.0, ""),
    };
    let digits = if prefix.is_empty() { 0 } else { 1 };
    format!("{:.digits$} {prefix}{unit}", count / factor)
}

/// One way to do a piece of work.
pub trait Form: Subject + Send {
    /// What it computes, by name.
    ///
    /// # Errors
    /// If it cannot be computed.
    fn answers(&mut self) -> Result<Answers>;
}

/// The same work in two forms.
pub(crate) struct Pair {
    pub operation: String,
    pub shape: String,
    pub calculation: Calculation,
    pub demand: Demand,
    pub fused: Box<dyn Form>,
    plain: Box<dyn Form>,
}

/// Random numbers of that shape, normal with deviation `scale`.
pub(crate) fn normal(name: &str, shape: &[usize], scale: f32) -> candle_core::Result<Tensor> {
    let mut values = vec![0.0; shape.iter().product()];
    Random::new(5).stream(name).fill_normal(0, &mut values);
    values.iter_mut().for_each(|v| *v *= scale);
    Tensor::from_vec(values, shape, &Device::Cpu)
}

fn doubles(t: &Tensor) -> Result<Vec<f64>> {
    Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
}

/// How far the answers of the two forms are apart, relative to one plus the largest magnitude of the plain form's.
fn agreement(fused: &Answers, plain: &Answers) -> Result<Agreement> {
    ensure!(fused.len() == plain.len(), "{} answers of the fused form, {} of the plain one", fused.len(), plain.len());
    let mut found = Agreement { output: "all".to_owned(), worst: 0.0, tolerance: TOLERANCE };
    for (name, a) in fused {
        let b = plain.get(name).with_context(|| format!("{name}: the plain form gave no such answer"))?;
        ensure!(a.len() == b.len(), "{name}: {} values of the fused form, {} of the plain one", a.len(), b.len());
        let scale = 1.0 + b.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        // What is not a number is no agreement.
        let difference = |(a, b): (&f64, &f64)| Some((a - b).abs() / scale).filter(|d| !d.is_nan()).unwrap_or(f64::INFINITY);
        let worst = a.iter().zip(b).map(difference).fold(0.0, f64::max);
        if worst > found.worst {
            (found.output, found.worst) = (name.clone(), worst);
        }
    }
    Ok(found)
}

/// All operations on the given sizes.
#[derive(Debug, Clone)]
pub struct OpSuite {
    /// Sequences of a training pass.
    pub batches: Vec<usize>,
    /// Frames of each.
    pub frames: usize,
    /// Rows of a product with packed weights.
    pub rows: Vec<usize>,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Where they compute.
    pub place: Place,
    /// Only operations with one of these in their name; all if there are none.
    pub only: Vec<String>,
    /// What has the parameters that an optimiser updates; without one there is no such operation.
    pub trainee: Option<Arc<dyn Trainee>>,
}

/// What has the parameters that an optimiser updates: the usual network with memory of any family.
pub(crate) fn optimised(families: &Families) -> Option<Arc<dyn Trainee>> {
    family::usual_trainee(families, "mamba", &ArgMatches::default()).ok()
}

impl OpSuite {
    /// How it is measured, in words, with the peaks of this run.
    pub fn describe(&self, peaks: &[Peaks], settings: &Settings) -> String {
        format!(
            "The fused form against the same work in plain tensor operations of Candle, in turn, after outputs and gradients have been compared (largest \
             difference relative to one plus the largest magnitude of the tensor). Warm-up {} s each, then {} rounds of {} s of either form, the first mover \
             changing, no more after {} s. A round's ratio is the plain form's median over the fused form's; printed is the median ratio with its 95% bootstrap \
             interval: above one, the fused form is faster. Both forms run on a rayon pool of the given threads; Candle's own pool for elementwise operations has \
             one thread, as in training. The plain AdamW keeps no moving average of the parameters; the fused one does, and its bytes are counted. {}",
            settings.warm_up_s,
            settings.rounds,
            settings.window_s,
            settings.limit_s,
            describe_roofs(&self.place.device, peaks)
        )
    }

    /// Measures what the machine reaches on each number of threads, or the GPU does.
    pub fn peaks(&self, settings: &Settings) -> Result<Vec<Peaks>> {
        match self.place.device.is_cuda() {
            true => Ok(vec![Peaks::of_gpu(&self.place.device, settings)?]),
            false => self.threads.iter().map(|&n| Peaks::of_threads(n, settings)).collect(),
        }
    }

    /// Compares every operation; `seen` is called after each. What lay above its roof is no row: it is named in what comes back.
    pub fn run(&self, peaks: &[Peaks], settings: &Settings, host: &Host, mut seen: impl FnMut(&OpRow)) -> Result<Vec<String>> {
        let (mut found, mut refused) = (0, Vec::new());
        for peaks in peaks {
            let pool = pool(peaks.threads)?;
            let mut roofs = Machine::new(Site::Threads(&pool), settings);
            self.each_pair(peaks.threads, |pair| {
                let name = format!("{}, {}, {}, {} threads", pair.operation, pair.shape, pair.calculation.name(), peaks.threads);
                found += 1;
                match compare(pair, &pool, &mut roofs, (peaks, settings, host)) {
                    Ok(row) => seen(&row),
                    Err(error) if error.is::<Refused>() => refused.push(format!("{name}: {error}")),
                    Err(error) => return Err(error.context(name)),
                }
                Ok(())
            })?;
        }
        ensure!(found > 0, "only: no operation has one of {:?} in its name", self.only);
        Ok(refused)
    }

    /// Hands out the pairs one by one: together they would hold gigabytes. Those of the CPU's executor are none of a GPU.
    pub(crate) fn each_pair(&self, threads: usize, mut f: impl FnMut(Pair) -> Result<()>) -> Result<()> {
        let wanted = |name: &str| self.only.is_empty() || self.only.iter().any(|part| name.contains(part.as_str()));
        for &batch in &self.batches {
            let sizes = training::Sizes { batch, frames: self.frames, device: &self.place.device };
            for (name, make) in training::OPERATIONS.iter().filter(|(name, _)| wanted(name)) {
                make(name, sizes)?.into_iter().try_for_each(&mut f)?;
            }
            if wanted(inference::ATTENTION) && !self.place.device.is_cuda() {
                f(inference::attention(sizes, threads)?)?;
            }
        }
        if let Some(trainee) = self.trainee.as_ref().filter(|_| wanted(optimiser::NAME)) {
            f(optimiser::pair(&**trainee, &self.place.device)?)?;
        }
        if wanted(inference::PRODUCT) && !self.place.device.is_cuda() {
            for shape in inference::LAYERS {
                for weights in inference::Weights::ALL {
                    for &rows in &self.rows {
                        f(inference::product(shape, weights, rows, threads)?)?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn check(pair: &mut Pair, pool: &ThreadPool) -> Result<Agreement> {
    pool.install(|| agreement(&pair.fused.answers()?, &pair.plain.answers()?))
}

fn compare(
    mut pair: Pair,
    pool: &Arc<ThreadPool>,
    roofs: &mut Machine,
    (peaks, settings, host): (&Peaks, &Settings, &Host),
) -> Result<OpRow> {
    let agreement = check(&mut pair, pool)?;
    let Pair { operation, shape, calculation, demand, fused, plain } = pair;
    let comparison = match agreement.holds() {
        true => {
            let [mut fused, mut plain] = [fused, plain].map(|form| InPool { pool: pool.clone(), subject: Timed(form) });
            Some(harness::compare(&mut fused, &mut plain, settings)?)
        }
        false => None,
    };
    let roofs = comparison.as_ref().map(|c| roofs.over(&demand, c.ours_us.p50)).transpose()?;
    let (host, threads) = (host.clone(), peaks.threads);
    Ok(OpRow { host, operation, shape, calculation, threads, agreement, comparison, work: demand.work, roofs })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    /// Every pair of the suite on sizes that take no time.
    #[test]
    fn fused_and_plain_forms_agree() {
        let suite = OpSuite {
            batches: vec![1, 3],
            frames: 5,
            rows: vec![1, 9],
            threads: vec![2],
            place: Place::cpu(),
            only: Vec::new(),
            trainee: Some(testing::trainee("mamba")),
        };
        let (pool, mut seen) = (pool(2).unwrap(), Vec::new());
        suite
            .each_pair(2, |mut pair| {
                let found = check(&mut pair, &pool)?;
                assert!(found.holds(), "{} {}: {found:?}", pair.operation, pair.shape);
                // A form that computes nothing agrees with itself.
                let answers = pool.install(|| pair.fused.answers())?;
                assert!(answers.values().all(|a| a.iter().any(|x| *x != 0.0)), "{} {}", pair.operation, pair.shape);
                pool.install(|| pair.fused.run().and_then(|()| pair.plain.run()))?;
                seen.push(pair.operation);
                Ok(())
            })
            .unwrap();
        for (name, _) in training::OPERATIONS {
            // Forward, and forward with backward, on two batches.
            assert_eq!(seen.iter().filter(|s| s == name).count(), 4, "{name}");
        }
        for name in [inference::ATTENTION, inference::PRODUCT, optimiser::NAME] {
            assert!(seen.iter().any(|s| s == name), "{name}");
        }
    }

    #[test]
    fn a_difference_is_named_and_nan_is_one() {
        let answers = |y: f64| Answers::from([("output".to_owned(), vec![3.0, -9.0]), ("gradient of x".to_owned(), vec![y, 1.0])]);
        assert!(agreement(&answers(0.5), &answers(0.5)).unwrap().holds());
        let found = agreement(&answers(0.75), &answers(0.5)).unwrap();
        assert_eq!((found.output.as_str(), found.worst), ("gradient of x", 0.125));
        assert!(!found.holds());
        assert!(agreement(&answers(0.5 + 0.5 * TOLERANCE), &answers(0.5)).unwrap().holds());
        assert!(!agreement(&answers(f64::NAN), &answers(0.5)).unwrap().holds());
        assert!(agreement(&answers(0.5), &Answers::new()).is_err());
    }

    #[test]
    fn a_reason_names_both_roofs_and_what_is_left() {
        let placed = |us| Placed { work: Work { flop: 2e6, bytes: 1e6 }, us, roofs: Roofs { gflop_per_s: 100.0, gb_per_s: 10.0 } };
        assert_eq!(
            placed(125.0).reason(),
            "2.0 MFLOP take 20.0 us at 100 GFLOP/s, 1.0 MB take 100 us at 10.0 GB/s; it reaches 80% of the longer of the two"
        );
        assert!(placed(900.0).reason().ends_with("it takes 9.0 times the longer of the two"));
    }

    #[test]
    fn only_the_named_operations_are_run() {
        let suite = OpSuite {
            batches: vec![1],
            frames: 2,
            rows: vec![1],
            threads: vec![1],
            place: Place::cpu(),
            only: vec!["gru".to_owned()],
            trainee: None,
        };
        let mut seen = Vec::new();
        let keep = |pair: Pair| {
            seen.push((pair.operation, pair.calculation));
            Ok(())
        };
        suite.each_pair(1, keep).unwrap();
        assert_eq!(seen, [("gru".to_owned(), Calculation::Forward), ("gru".to_owned(), Calculation::ForwardBackward)]);
    }
}

//! What this machine reaches at most: in products of each kind of weights, and in moving as many bytes as an operation does.

use super::inference::{self, Weights};
use super::{Form, Work, normal, pool};
use crate::formulas::{self, Refused};
use crate::harness::{self, Settings, Subject, Timed};
use anyhow::Result;
use candle_core::Tensor;
use candle_models::ops::{self, Activation};
use rayon::ThreadPool;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Rows, columns and terms of the product that stands for the machine's peak.
pub(super) const PEAK_PRODUCT: usize = 1024;
/// Bytes of the copy that stands for the machine's peak, source and target together: larger than the caches.
pub(super) const PEAK_COPY: usize = 1 << 28;
/// Bytes of the smallest copy or sum: below, starting it would be measured.
const LEAST_BYTES: usize = 1 << 18;
/// How often a roof is measured anew before a row above it is refused: the first time something else may have run beside it.
const AGAIN: usize = 2;
/// Random numbers that fill a large buffer, over and over.
const PATTERN: usize = 1 << 16;

/// What the machine reaches on a number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    /// Threads.
    pub threads: usize,
    /// Billions of floating-point operations a second in a large product of f32 matrices.
    pub gflop_per_s: f64,
    /// Billions of bytes a second, read plus written, in a copy larger than the caches.
    pub gb_per_s: f64,
}

impl Peaks {
    /// Measures them.
    pub fn measure(threads: usize, settings: &Settings) -> Result<Self> {
        let pool = pool(threads)?;
        let gflop_per_s = product_gflop_per_s(&pool, Weights::F32, PEAK_PRODUCT, settings)?;
        Ok(Self { threads, gflop_per_s, gb_per_s: rate_of_bytes(&pool, CopyBytes::new(PEAK_COPY)?, PEAK_COPY, settings)? })
    }
}

struct LargeProduct([Tensor; 2]);

impl Subject for LargeProduct {
    fn run(&mut self) -> Result<()> {
        // The product alone: without bias and activation this is one call of gemm.
        ops::linear(&self.0[0], &self.0[1], None, Activation::None)?;
        Ok(())
    }
}

fn floats(bytes: usize) -> Result<Vec<f32>> {
    let pattern = normal("pattern", &[PATTERN], 1.0)?.to_vec1::<f32>()?;
    Ok(pattern.into_iter().cycle().take(bytes / 4).collect())
}

/// Half of the bytes into the other half.
struct CopyBytes(Vec<f32>, Vec<f32>);

impl CopyBytes {
    fn new(bytes: usize) -> Result<Self> {
        Ok(Self(floats(bytes / 2)?, floats(bytes / 2)?))
    }
}

impl Subject for CopyBytes {
    fn run(&mut self) -> Result<()> {
        let chunk = self.0.len().div_ceil(rayon::current_num_threads());
        self.1.par_chunks_mut(chunk).zip(self.0.par_chunks(chunk)).for_each(|(to, from)| to.copy_from_slice(from));
        Ok(())
    }
}

/// All of the bytes read, none written.
struct SumBytes(Vec<f32>);

impl Subject for SumBytes {
    fn run(&mut self) -> Result<()> {
        let chunk = self.0.len().div_ceil(rayon::current_num_threads());
        let sum: f32 = self.0.par_chunks(chunk).map(sum).sum();
        std::hint::black_box(sum);
        Ok(())
    }
}

/// In several sums side by side: one alone would wait for its additions.
fn sum(values: &[f32]) -> f32 {
    let mut sums = [0.0f32; 32];
    for values in values.chunks_exact(sums.len()) {
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    sums.iter().sum()
}

fn rate_of_bytes(pool: &ThreadPool, subject: impl Subject + Send, bytes: usize, settings: &Settings) -> Result<f64> {
    let measured = pool.install(|| harness::measure(&mut Timed(subject), settings))?;
    Ok(formulas::gb_per_s(bytes as f64, measured.latency_us.p50))
}

/// The rate of a product of `n` x `n` x `n`.
fn product_gflop_per_s(pool: &ThreadPool, weights: Weights, n: usize, settings: &Settings) -> Result<f64> {
    let square = |name| normal(name, &[n; 2], 1.0);
    let measured = match weights {
        Weights::F32 => {
            let product = LargeProduct([square("a")?, square("b")?]);
            pool.install(|| harness::measure(&mut Timed(product), settings))?
        }
        narrow => {
            let product: Box<dyn Form> = inference::product([n, n], narrow, n, pool.current_num_threads())?.fused;
            pool.install(|| harness::measure(&mut Timed(product), settings))?
        }
    };
    Ok(formulas::gflop_per_s(formulas::product_flop(n, n, n), measured.latency_us.p50))
}

/// What a rate is held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Roof {
    /// A large product with such weights.
    Product(Weights),
    /// The faster of a copy and a sum over so many bytes.
    Bytes(usize),
}

impl Roof {
    fn of(work: Work, weights: Weights) -> Self {
        match work {
            Work::Flop(_) => Self::Product(weights),
            // A value that is read and written counts twice, and its memory is there once. Fewer bytes are nearer to the processor, so
            // that rounding down raises the roof.
            Work::Bytes(n) => {
                let bytes = (0.5 * n) as usize;
                Self::Bytes(1 << bytes.clamp(LEAST_BYTES, PEAK_COPY).ilog2())
            }
        }
    }
}

/// The roofs of a number of threads, each measured when it is first asked for.
pub(super) struct Roofs<'a> {
    pool: &'a ThreadPool,
    settings: &'a Settings,
    found: BTreeMap<Roof, f64>,
}

impl<'a> Roofs<'a> {
    pub fn new(pool: &'a ThreadPool, peaks: &Peaks, settings: &'a Settings) -> Self {
        Self { pool, settings, found: BTreeMap::from([(Roof::Product(Weights::F32), peaks.gflop_per_s)]) }
    }

    /// The roof over a call that took so many microseconds, in the unit of its work.
    ///
    /// # Errors
    /// [`Refused`] where the call is too fast for it, also after the roof has been measured anew.
    pub fn over(&mut self, work: Work, weights: Weights, us: f64) -> Result<f64> {
        let roof = Roof::of(work, weights);
        let known = match self.found.get(&roof) {
            Some(known) => *known,
            None => self.measure(roof)?,
        };
        let best = hold(work.giga_per_s(us), known, || self.measure(roof))?;
        self.found.insert(roof, best);
        Ok(best)
    }

    fn measure(&self, roof: Roof) -> Result<f64> {
        match roof {
            Roof::Product(weights) => product_gflop_per_s(self.pool, weights, PEAK_PRODUCT, self.settings),
            Roof::Bytes(n) => {
                let copy = rate_of_bytes(self.pool, CopyBytes::new(n)?, n, self.settings)?;
                Ok(copy.max(rate_of_bytes(self.pool, SumBytes(floats(n)?), n, self.settings)?))
            }
        }
    }
}

/// The best that was found for a roof, once the rate fits below it.
fn hold(rate: f64, known: f64, mut measure: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut best = known;
    for _ in 0..AGAIN {
        if !matches!(formulas::share_of_roof(rate, best), Err(Refused::AboveRoof { .. })) {
            break;
        }
        best = best.max(measure()?);
    }
    formulas::share_of_roof(rate, best)?;
    Ok(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_above_its_roof_is_refused_after_the_roof_was_measured_anew() {
        let mut measured = 0;
        let mut low = || {
            measured += 1;
            Ok(90.0)
        };
        let error = hold(120.0, 100.0, &mut low).unwrap_err();
        assert_eq!(error.downcast_ref::<Refused>(), Some(&Refused::AboveRoof { rate: 120.0, roof: 100.0 }));
        assert_eq!(measured, AGAIN);
        // A roof that something else had run beside.
        assert_eq!(hold(120.0, 60.0, || Ok(118.0)).unwrap(), 118.0);
        assert_eq!(hold(104.0, 100.0, || panic!("it fits")).unwrap(), 100.0);
    }

    #[test]
    fn bytes_are_held_against_a_copy_of_no_more_bytes() {
        assert_eq!(Roof::of(Work::Bytes(46e6), Weights::F32), Roof::Bytes(1 << 24));
        assert_eq!(Roof::of(Work::Bytes(10.0), Weights::F32), Roof::Bytes(LEAST_BYTES));
        assert_eq!(Roof::of(Work::Bytes(1e12), Weights::F32), Roof::Bytes(PEAK_COPY));
        assert_eq!(Roof::of(Work::Flop(1e6), Weights::Q8), Roof::Product(Weights::Q8));
    }

    #[test]
    fn every_kind_of_roof_is_measured_and_holds_what_was_measured() {
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() };
        let (pool, peaks) = (pool(1).unwrap(), Peaks { threads: 1, gflop_per_s: 1e9, gb_per_s: 1e9 });
        let mut roofs = Roofs::new(&pool, &peaks, &settings);
        // A second is time enough for a megabyte.
        assert!(roofs.over(Work::Bytes(1e6), Weights::F32, 1e6).unwrap() > 0.1);
        for weights in Weights::ALL {
            let found = product_gflop_per_s(&pool, weights, 64, &settings).unwrap();
            assert!(found.is_finite() && found > 1e-3, "{weights:?}: {found}");
        }
        let refused = roofs.over(Work::Bytes(1e6), Weights::F32, 1e-3).unwrap_err();
        assert!(refused.is::<Refused>(), "{refused:?}");
        assert!((sum(&floats(1 << 12).unwrap()) - floats(1 << 12).unwrap().iter().sum::<f32>()).abs() < 1e-2);
    }
}

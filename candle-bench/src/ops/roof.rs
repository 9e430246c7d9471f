//! What this machine reaches at most: in products of each dtype, and in moving as many bytes as an operation does.

pub(crate) mod gpu;
mod registers;
mod threads;

pub(crate) use registers::{Lanes, fastest_product};
pub(crate) use threads::{floats, product_gflop_per_s};

use super::inference::Weights;
use super::{Placed, Work};
use crate::formulas::{self, Roofs};
use crate::harness::{Settings, pool};
use anyhow::Result;
use candle_core::Device;
use candle_models::exec::EXPONENTIAL;
use rayon::ThreadPool;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Rows, columns and terms of the product that stands for the machine's peak.
pub(super) const PEAK_PRODUCT: usize = 1024;
/// Bytes of the copy that stands for the machine's peak, source and target together: larger than the caches.
pub(super) const PEAK_COPY: usize = 1 << 28;
/// Bytes of the smallest copy or sum: below, starting it would be measured.
pub(crate) const LEAST_BYTES: usize = 1 << 18;
/// How often a roof is measured anew before a row above it is refused: the first time something else may have run beside it.
const AGAIN: usize = 2;

/// What roofs are those of.
#[derive(Clone, Copy)]
pub(crate) enum Site<'a> {
    /// Threads of this CPU.
    Threads(&'a ThreadPool),
    /// A GPU.
    Gpu(&'a Device),
}

impl<'a> Site<'a> {
    /// A GPU, or threads where the device is the CPU.
    pub fn of(device: &'a Device, threads: &'a ThreadPool) -> Self {
        if device.is_cuda() { Self::Gpu(device) } else { Self::Threads(threads) }
    }

    fn fastest_product(self, dtype: &str, settings: &Settings) -> Result<f64> {
        match self {
            Self::Threads(pool) => fastest_product(pool, Weights::named(dtype), settings),
            Self::Gpu(device) => gpu::fastest_product(device, dtype, settings),
        }
    }

    fn rate_of_bytes(self, bytes: usize, settings: &Settings) -> Result<f64> {
        match self {
            Self::Threads(pool) => threads::rate_of_bytes(pool, bytes, settings),
            Self::Gpu(device) => gpu::rate_of_bytes(device, bytes, settings),
        }
    }

    /// The least and the most bytes that are moved to find a roof.
    fn bytes(self) -> [usize; 2] {
        match self {
            Self::Threads(_) => [LEAST_BYTES, PEAK_COPY],
            Self::Gpu(_) => [gpu::LEAST_BYTES, gpu::PEAK_COPY],
        }
    }
}

/// What the machine reaches on a number of threads, or a GPU does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Peaks {
    /// Threads; one for a GPU.
    pub threads: usize,
    /// Billions of floating-point operations a second in a large product of f32 matrices.
    pub gflop_per_s: f64,
    /// Billions of bytes a second, read plus written, in a copy larger than the caches.
    pub gb_per_s: f64,
}

impl Peaks {
    /// Those of so many threads.
    pub fn of_threads(threads: usize, settings: &Settings) -> Result<Self> {
        let pool = pool(threads)?;
        let gflop_per_s = threads::product_gflop_per_s(&pool, Weights::F32, PEAK_PRODUCT, settings)?;
        Ok(Self { threads, gflop_per_s, gb_per_s: threads::copy_gb_per_s(&pool, PEAK_COPY, settings)? })
    }

    /// Those of a GPU.
    pub fn of_gpu(device: &Device, settings: &Settings) -> Result<Self> {
        let gflop_per_s = gpu::fastest_product(device, "f32", settings)?;
        Ok(Self { threads: 1, gflop_per_s, gb_per_s: gpu::rate_of_bytes(device, gpu::PEAK_COPY, settings)? })
    }
}

/// How rows are placed under the roofs of a device, in words, with the peaks of this run.
pub(crate) fn describe_roofs(device: &Device, peaks: &[Peaks]) -> String {
    let rates = |p: &Peaks| format!("{:.1} GFLOP/s and {:.1} GB/s", p.gflop_per_s, p.gb_per_s);
    let listed = |one: &dyn Fn(&Peaks) -> String| peaks.iter().map(one).collect::<Vec<_>>().join("; ");
    let (peaks, roofs) = match device.is_cuda() {
        true => (format!("{} in f32 products and copies on the GPU", listed(&rates)), gpu::describe()),
        false => {
            let listed = listed(&|p| format!("threads {}: {}", p.threads, rates(p)));
            let (copy, n) = (PEAK_COPY >> 20, PEAK_PRODUCT);
            (
                format!(
                    "{listed}, from a product of {n} x {n} x {n} through gemm and a copy within {copy} MiB, bytes read plus bytes written"
                ),
                threads::describe(),
            )
        }
    };
    format!(
        "Rates count from the shapes: floating-point operations (a multiply-add is two, an exponential {EXPONENTIAL}, its polynomial; an elementwise backward twice its forward) and bytes (every value \
         read or written once a pass). Peaks of this run: {peaks}. The roofs over a row: {roofs}; attainable is the lower of the two at the row's intensity. A row above {:.0}% of \
         it is refused, after the roofs have been measured anew. Bound by memory below the intensity at which the roofs meet, by compute above it, by overhead where it takes more \
         than {} times as long as both allow.",
        100.0 * formulas::ABOVE_ROOF,
        formulas::FAR_ABOVE,
    )
}

/// What roofs are asked for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Demand {
    /// What a call computes and moves.
    pub work: Work,
    /// Bytes of memory that it works on: less than it moves where values are written and read again.
    pub resident: f64,
    /// What its products multiply by, which decides how fast they can be.
    pub dtype: String,
    /// Its operations outside of products, which are in f32.
    pub outside: f64,
}

impl Demand {
    /// Of work that is all in one dtype, on memory that is read or written once.
    pub fn of(work: Work, dtype: &str) -> Self {
        Self { work, resident: work.bytes, dtype: dtype.to_owned(), outside: 0.0 }
    }
}

/// A measurement that stands for a roof.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Probe {
    /// The fastest product of that dtype.
    Product(String),
    /// The fastest way to move so many bytes.
    Bytes(usize),
}

impl Probe {
    /// In steps of an eighth of a power of two. Fewer bytes are nearer to the processor, so that rounding down raises the roof.
    fn of_bytes(resident: f64, [least, most]: [usize; 2]) -> Self {
        let resident = (resident as usize).clamp(least, most);
        let step = 1 << (resident.ilog2() - 3);
        Self::Bytes(resident / step * step)
    }
}

/// The roofs of threads or of a GPU, each measured when it is first asked for.
pub(crate) struct Machine<'a> {
    site: Site<'a>,
    settings: &'a Settings,
    found: BTreeMap<Probe, f64>,
}

impl<'a> Machine<'a> {
    pub fn new(site: Site<'a>, settings: &'a Settings) -> Self {
        Self { site, settings, found: BTreeMap::new() }
    }

    /// The roofs over a call that took so many microseconds.
    ///
    /// # Errors
    /// [`Refused`](formulas::Refused) where the call is too fast for them, also after they have been measured anew.
    pub fn over(&mut self, demand: &Demand, us: f64) -> Result<Roofs> {
        let (probes, Work { flop, bytes }) = (self.probes(demand), demand.work);
        for probe in &probes {
            if !self.found.contains_key(probe) {
                self.measure(probe)?;
            }
        }
        for _ in 0..AGAIN {
            if self.roofs(demand).share(flop, bytes, us).is_ok() {
                break;
            }
            self.measure_all(&probes)?;
        }
        let roofs = self.roofs(demand);
        roofs.share(flop, bytes, us)?;
        Ok(roofs)
    }

    /// Such a call under its roofs.
    ///
    /// # Errors
    /// As [`Self::over`].
    pub fn placed(&mut self, demand: &Demand, us: f64) -> Result<Placed> {
        Ok(Placed { work: demand.work, us, roofs: self.over(demand, us)? })
    }

    /// The roofs over such work, measured once more.
    pub fn measured_again(&mut self, demand: &Demand) -> Result<Roofs> {
        self.measure_all(&self.probes(demand))?;
        Ok(self.roofs(demand))
    }

    /// Of products, of what is outside of them, and of bytes; the first two are one where nothing is outside.
    fn probes(&self, demand: &Demand) -> [Probe; 3] {
        let outside = if demand.outside > 0.0 { "f32" } else { &demand.dtype };
        let bytes = Probe::of_bytes(demand.resident, self.site.bytes());
        [Probe::Product(demand.dtype.clone()), Probe::Product(outside.to_owned()), bytes]
    }

    /// Products and what is none follow one another: the rate of both together.
    fn roofs(&self, demand: &Demand) -> Roofs {
        let [product, wide, bytes] = self.probes(demand).map(|probe| self.found[&probe]);
        let Demand { work, outside, .. } = *demand;
        let gflop_per_s = if work.flop > 0.0 { work.flop / ((work.flop - outside) / product + outside / wide) } else { product };
        Roofs { gflop_per_s, gb_per_s: bytes }
    }

    /// Each once.
    fn measure_all(&mut self, probes: &[Probe]) -> Result<()> {
        BTreeSet::from_iter(probes).into_iter().try_for_each(|probe| self.measure(probe))
    }

    /// Keeps the best that was found: other programs make a roof lower, never higher.
    fn measure(&mut self, probe: &Probe) -> Result<()> {
        let found = match probe {
            Probe::Product(dtype) => self.site.fastest_product(dtype, self.settings)?,
            Probe::Bytes(n) => self.site.rate_of_bytes(*n, self.settings)?,
        };
        let best = self.found.entry(probe.clone()).or_insert(found);
        *best = best.max(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests;

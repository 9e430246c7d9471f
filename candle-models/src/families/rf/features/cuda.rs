//! Features on an NVIDIA GPU: launches of `features.cu` and transforms of cuFFT. The GPU measures, the host makes features of what was measured.

use super::measures::{Definition, LOWEST, Measures};
use super::{COUNT, Form, complex};
use crate::Result;
use crate::cuda::fft::Transform;
use crate::cuda::{self, Gpu, Kernel, Source};
use candle_core::{DType, Tensor};

static SOURCE: Source = Source { name: "rf_features", text: include_str!("features.cu") };
const ENVELOPE: Kernel = Kernel { source: &SOURCE, name: "envelope" };
const SPECTRUM: Kernel = Kernel { source: &SOURCE, name: "spectrum" };
const CORRELATION: Kernel = Kernel { source: &SOURCE, name: "correlation" };

/// Threads of a block and numbers of a chunk: `THREADS` and `MEASURES` in `features.cu`.
const THREADS: usize = 512;
const MEASURES: usize = 16;
/// Samples whose buffers lie in the device's memory at once: of 36 bytes each, and what cuFFT works in.
const AT_ONCE: usize = 1 << 24;

/// `Chunks` in `features.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Chunks {
    iq: u64,
    whole: u64,
    half: u64,
    powers: u64,
    lags: u64,
    floor: u64,
    measures: u64,
    eps: f64,
    samples: u32,
    repaired: u32,
    ranks: [u32; 2],
}

/// The features of chunks `[count, N, 2]` of f32, or why one has none.
pub(super) fn extract(definition: &Definition, chunks: &Tensor) -> Result<Vec<std::result::Result<[f64; COUNT], String>>> {
    let measured = measure(definition, chunks)?;
    let found = measured.iter().enumerate().map(|(i, measures)| {
        // Only of a chunk that may have no features the samples are looked at.
        let refusal = match measures.power {
            power if power > 0.0 && power.is_finite() => None,
            power => definition.refusal(power, &complex(&chunks.get(i)?)?),
        };
        Ok(refusal.map_or_else(|| Ok(definition.features(measures)), Err))
    });
    found.collect()
}

fn measure(definition: &Definition, chunks: &Tensor) -> Result<Vec<Measures>> {
    let (count, samples) = (chunks.dim(0)?, definition.samples);
    if count == 0 {
        return Ok(Vec::new());
    }
    let chunks = chunks.contiguous()?;
    // Transforms read whole complex numbers: a view may begin between two.
    let chunks = if cuda::address(&chunks)?.is_multiple_of(8) { chunks } else { chunks.copy()? };
    let gpu = Gpu::of(cuda::device_of(&chunks)?)?;
    let buffers = Buffers::new(&gpu, samples, power_of_two((AT_ONCE / samples).clamp(1, count)))?;
    let measures = cuda::empty((count, MEASURES), DType::F64, gpu.device())?;
    let mut first = 0;
    while first < count {
        // Of powers of two there are few, and as few plans.
        let group = power_of_two((count - first).min(buffers.chunks));
        buffers.measure(&gpu, definition, &chunks.narrow(0, first, group)?, &measures.narrow(0, first, group)?)?;
        first += group;
    }
    Ok(measures.to_vec2::<f64>()?.iter().map(|row| named(row)).collect())
}

/// The largest power of two that is not above a number from 1 on.
fn power_of_two(most: usize) -> usize {
    1 << most.ilog2()
}

/// The order in which `features.cu` writes them.
fn named(row: &[f64]) -> Measures {
    let mut next = row.iter().copied();
    let mut next = || next.next().unwrap_or(f64::NAN);
    Measures {
        power: next(),
        most: next(),
        mean: next(),
        variance: next(),
        crossings: next(),
        peak: next(),
        strongest: next(),
        strong: next(),
        total: next(),
        moment: next(),
        rolloff: next(),
        lowest: next(),
        lags: std::array::from_fn(|_| next()),
    }
}

/// Memory for what lies between the stages, of so many chunks.
struct Buffers {
    chunks: usize,
    whole: Tensor,
    half: Tensor,
    powers: Tensor,
    lags: Tensor,
    floor: Tensor,
}

impl Buffers {
    fn new(gpu: &Gpu, samples: usize, chunks: usize) -> Result<Self> {
        let new = |numbers: usize| cuda::empty((chunks, numbers), DType::F32, gpu.device());
        Ok(Self {
            chunks,
            whole: new(2 * samples)?,
            half: new(2 * samples)?,
            powers: new(2 * samples)?,
            lags: new(2 * (samples + 1))?,
            floor: new(samples)?,
        })
    }

    /// Measures chunks that are a power of two and for which there is room.
    fn measure(&self, gpu: &Gpu, definition: &Definition, chunks: &Tensor, to: &Tensor) -> Result<()> {
        let (count, samples) = (chunks.dim(0)?, definition.samples);
        let part = |buffer: &Tensor| buffer.narrow(0, 0, count);
        let (whole, half, powers, lags) = (part(&self.whole)?, part(&self.half)?, part(&self.powers)?, part(&self.lags)?);
        let lowest = ((LOWEST * samples as f64) as usize).max(1);
        let args = Chunks {
            iq: cuda::address(chunks)?,
            whole: cuda::address(&whole)?,
            half: cuda::address(&half)?,
            powers: cuda::address(&powers)?,
            lags: cuda::address(&lags)?,
            floor: cuda::address(&self.floor)?,
            measures: cuda::address(to)?,
            eps: definition.eps(),
            samples: samples as u32,
            repaired: u32::from(definition.form == Form::Repaired),
            ranks: [(lowest - 1) / 2, lowest / 2].map(|rank| rank as u32),
        };
        let bins = gpu.transform(Transform::Complex, samples, count)?;
        let correlation = gpu.transform(Transform::Real, 2 * samples, count)?;
        let launch = |kernel| {
            // SAFETY: the arguments are `Chunks` of `features.cu`; the buffers have room for a chunk of every block, and live until the last stage is behind
            // them in the stream.
            unsafe { gpu.launch(kernel, None, ((count, 1, 1), THREADS, 0), &args) }
        };
        launch(ENVELOPE)?;
        bins.forward(chunks, &whole)?;
        bins.forward(&half, &half)?;
        launch(SPECTRUM)?;
        correlation.forward(&powers, &lags)?;
        Ok(launch(CORRELATION)?)
    }
}

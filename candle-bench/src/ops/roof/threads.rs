//! What threads of this CPU reach at most.

use super::PEAK_PRODUCT;
use crate::formulas;
use crate::harness::{self, Settings, Subject, Timed};
use crate::ops::inference::{self, Weights};
use crate::ops::{Form, normal};
use anyhow::Result;
use candle_core::Tensor;
use candle_models::ops::{self, Activation};
use pulp::{Arch, Simd, WithSimd};
use rayon::ThreadPool;
use rayon::prelude::*;

/// Sizes of the square products with narrow weights that may be a roof, and rows of the small ones: which is fastest, caches decide.
const NARROW_PRODUCTS: [usize; 2] = [PEAK_PRODUCT / 2, PEAK_PRODUCT];
const FEW_ROWS: [usize; 2] = [1, 32];
/// Random numbers that fill a large buffer, over and over.
const PATTERN: usize = 1 << 16;

struct LargeProduct([Tensor; 2]);

impl Subject for LargeProduct {
    fn run(&mut self) -> Result<()> {
        // The product alone: without bias and activation this is one call of gemm.
        ops::linear(&self.0[0], &self.0[1], None, Activation::None)?;
        Ok(())
    }
}

pub fn floats(bytes: usize) -> Result<Vec<f32>> {
    let pattern = normal("pattern", &[PATTERN], 1.0)?.to_vec1::<f32>()?;
    Ok(pattern.into_iter().cycle().take(bytes / 4).collect())
}

/// Bytes that a call moves at least: starting threads is not to be seen.
const MOVED: usize = 1 << 24;

/// How often a call goes over so many bytes.
fn passes(bytes: usize) -> usize {
    (MOVED / bytes).max(1)
}

/// Half of the bytes into the other half, every thread its own part.
struct CopyBytes(Vec<f32>, Vec<f32>);

impl CopyBytes {
    fn new(bytes: usize) -> Result<Self> {
        Ok(Self(floats(bytes / 2)?, floats(bytes / 2)?))
    }
}

impl Subject for CopyBytes {
    fn run(&mut self) -> Result<()> {
        let (chunk, passes) = (self.0.len().div_ceil(rayon::current_num_threads()), passes(8 * self.0.len()));
        self.1.par_chunks_mut(chunk).zip(self.0.par_chunks(chunk)).for_each(|(to, from)| {
            (0..passes).for_each(|_| std::hint::black_box(&mut *to).copy_from_slice(from));
        });
        Ok(())
    }
}

/// All of the bytes read, none written.
struct SumBytes(Vec<f32>);

impl Subject for SumBytes {
    fn run(&mut self) -> Result<()> {
        let (chunk, passes, arch) = (self.0.len().div_ceil(rayon::current_num_threads()), passes(4 * self.0.len()), Arch::new());
        self.0.par_chunks(chunk).for_each(|values| {
            (0..passes).for_each(|_| {
                std::hint::black_box(arch.dispatch(Sum(std::hint::black_box(values))));
            })
        });
        Ok(())
    }
}

/// In several sums side by side: one alone would wait for its additions.
pub struct Sum<'a>(pub &'a [f32]);

impl WithSimd for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut sums = [simd.splat_f32s(0.0); 8];
        let (registers, rest) = S::as_simd_f32s(self.0);
        let mut blocks = registers.chunks_exact(8);
        for block in &mut blocks {
            for (sum, value) in sums.iter_mut().zip(block) {
                *sum = simd.add_f32s(*sum, *value);
            }
        }
        for (sum, value) in sums.iter_mut().zip(blocks.remainder()) {
            *sum = simd.add_f32s(*sum, *value);
        }
        sums.into_iter().map(|sum| simd.reduce_sum_f32s(sum)).sum::<f32>() + rest.iter().sum::<f32>()
    }
}

/// The rate of a copy of half of so many bytes into the other half.
pub fn copy_gb_per_s(pool: &ThreadPool, bytes: usize, settings: &Settings) -> Result<f64> {
    gb_per_s(pool, CopyBytes::new(bytes)?, bytes, settings)
}

/// The faster of a copy and a sum over so many bytes.
pub fn rate_of_bytes(pool: &ThreadPool, bytes: usize, settings: &Settings) -> Result<f64> {
    Ok(copy_gb_per_s(pool, bytes, settings)?.max(gb_per_s(pool, SumBytes(floats(bytes)?), bytes, settings)?))
}

fn gb_per_s(pool: &ThreadPool, subject: impl Subject + Send, bytes: usize, settings: &Settings) -> Result<f64> {
    let measured = pool.install(|| harness::measure(&mut Timed(subject), settings))?;
    Ok(formulas::gb_per_s((passes(bytes) * bytes) as f64, measured.latency_us.p50))
}

/// The rate of a product of `n` x `n` x `n`.
pub fn product_gflop_per_s(pool: &ThreadPool, weights: Weights, n: usize, settings: &Settings) -> Result<f64> {
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

/// The most operations a second in products with such weights. In f32 that is arithmetic in registers, which no product exceeds; for the
/// others the fastest of several products, for a large one need not be it: with few rows the weights are used as they come.
pub fn fastest_product(pool: &ThreadPool, weights: Weights, settings: &Settings) -> Result<f64> {
    if weights == Weights::F32 {
        let measured = pool.install(|| harness::measure(&mut Timed(MultiplyAdds), settings))?;
        return Ok(formulas::gflop_per_s(MultiplyAdds::flop(pool.current_num_threads()), measured.latency_us.p50));
    }
    let mut best = f64::NEG_INFINITY;
    for n in NARROW_PRODUCTS {
        best = best.max(product_gflop_per_s(pool, weights, n, settings)?);
    }
    for rows in FEW_ROWS {
        let product = inference::Product::new(inference::LAYERS[0], weights, rows, pool.current_num_threads())?;
        let measured = pool.install(|| harness::measure(&mut Timed(product), settings))?;
        let [inputs, outputs] = inference::LAYERS[0];
        best = best.max(formulas::gflop_per_s(formulas::product_flop(rows, inputs, outputs), measured.latency_us.p50));
    }
    Ok(best)
}

/// Multiply-adds in registers on every thread, in as many sums side by side as hide the wait for one.
struct MultiplyAdds;

/// Sums of a thread, and turns of a call: some 10 us.
const SUMS: usize = 12;
const TURNS: usize = 1 << 14;

impl MultiplyAdds {
    /// Operations of a call.
    fn flop(threads: usize) -> f64 {
        let lanes = Arch::new().dispatch(Lanes);
        2.0 * (SUMS * TURNS * lanes * threads) as f64
    }
}

impl Subject for MultiplyAdds {
    fn run(&mut self) -> Result<()> {
        rayon::broadcast(|_| std::hint::black_box(Arch::new().dispatch(InRegisters::of_unknown())));
        Ok(())
    }
}

/// Values of a register.
pub struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// `x = a x + b`, over and over. The compiler must know nothing of these numbers: of sums that are equal it computes one.
struct InRegisters {
    a: f32,
    b: f32,
    starts: [f32; SUMS],
}

impl InRegisters {
    fn of_unknown() -> Self {
        std::hint::black_box(Self { a: 0.999, b: 1e-3, starts: std::array::from_fn(|i| 1.0 + i as f32) })
    }
}

impl WithSimd for InRegisters {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (a, b) = (simd.splat_f32s(self.a), simd.splat_f32s(self.b));
        let mut sums = self.starts.map(|start| simd.splat_f32s(start));
        for _ in 0..TURNS {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(a, *sum, b);
            }
        }
        sums.into_iter().map(|sum| simd.reduce_sum_f32s(sum)).sum()
    }
}

/// How the roofs are found, in words.
pub fn describe() -> String {
    format!(
        "in f32 multiply-adds in registers, with narrower weights the fastest square product of {NARROW_PRODUCTS:?} rows or layer of {FEW_ROWS:?}; and the faster of a copy and a sum over \
         half of the bytes counted, rounded down to a power of two, which may lie in a cache"
    )
}

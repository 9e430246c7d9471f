//! What threads of this CPU reach at most.

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

/// How the roofs are found, in words.
pub fn describe() -> String {
    "arithmetic in registers by the fastest instruction for such weights (in f32 multiply-adds; in bf16 products of the tiles of AMX or dot products of AVX-512; in 8 bits, with activations of 16, \
     those of AMX or VNNI or multiply-adds of AVX2), what is no product in f32; and the faster of a copy and a sum over as many bytes as the pass works on, rounded down by at most an eighth, which may \
     lie in a cache"
        .to_owned()
}

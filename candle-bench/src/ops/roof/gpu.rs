//! What a GPU reaches at most, and products of matrices on it.

use crate::formulas;
use crate::harness::{self, OnDevice, Settings};
use crate::ops::normal;
use anyhow::{Context, Result};
use candle_core::cuda::{gemm_reduced_precision_f32, set_gemm_reduced_precision_f32};
use candle_core::{DType, Device, Tensor};

/// Operations put on a GPU before it is waited for.
pub(crate) const CALLS: usize = 10;
/// Rows of the first square product that may be a roof, and of the last. Small ones do not fill a GPU.
const PRODUCTS: [usize; 2] = [256, 8192];
/// Microseconds of a product beside which its launch is nothing: no larger one is tried.
const LONG_US: f64 = 1e4;
/// Bytes of the smallest copy that may be a roof: below, its launch would be measured. It fits into the cache of a large GPU.
pub const LEAST_BYTES: usize = 1 << 25;
/// Bytes of the copy that stands for the GPU's memory, source and target together.
pub const PEAK_COPY: usize = 1 << 30;
/// Bytes that are moved between two waits for the GPU, so that a large copy needs fewer calls.
const MOVED: usize = 2 * PEAK_COPY;

/// A product of two matrices in a dtype: f32, tf32, bf16 or f16.
pub(crate) struct Product {
    factors: [Tensor; 2],
    tf32: bool,
    /// What the process had: whether f32 factors are rounded is a setting of all of it.
    before: bool,
}

impl Product {
    pub fn new(device: &Device, factors: [&Tensor; 2], dtype: &str) -> Result<Self> {
        let narrow = match dtype {
            "bf16" => DType::BF16,
            "f16" => DType::F16,
            _ => DType::F32,
        };
        let [a, b] = factors.map(|factor| factor.to_device(device)?.to_dtype(narrow));
        Ok(Self { factors: [a?, b?], tf32: dtype == "tf32", before: gemm_reduced_precision_f32() })
    }

    fn product(&self) -> candle_core::Result<Tensor> {
        // Set anew for every product: the other side of a comparison has its own.
        set_gemm_reduced_precision_f32(self.tf32);
        self.factors[0].matmul(&self.factors[1])
    }

    /// The product `[rows, columns]`.
    pub fn output(&self) -> Result<Vec<f32>> {
        Ok(self.product()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
    }

    /// Timings of it.
    pub fn rounds(self) -> OnDevice<impl FnMut() -> candle_core::Result<Tensor>> {
        let device = self.factors[0].device().clone();
        OnDevice { device, calls: CALLS, operation: move || self.product() }
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        set_gemm_reduced_precision_f32(self.before);
    }
}

/// The most operations a second in products of a dtype: square ones of twice the size each, until that takes long. A larger one may gain where the one
/// before it did not: of an H200 in bf16 up to 4096 rows reach 695 TFLOP/s, and 8192 rows 791.
pub fn fastest_product(device: &Device, dtype: &str, settings: &Settings) -> Result<f64> {
    let [first, last] = PRODUCTS;
    // Random numbers once, over and over in the larger ones.
    let tile = normal("tile", &[first; 2], 1.0)?.to_device(device)?;
    let (mut n, mut best) = (first, f64::NEG_INFINITY);
    loop {
        let factor = tile.repeat((n / first, n / first))?;
        let us = harness::measure(&mut Product::new(device, [&factor; 2], dtype)?.rounds(), settings)?.latency_us.p50;
        let found = formulas::gflop_per_s(formulas::product_flop(n, n, n), us);
        best = best.max(found);
        if us > LONG_US || n >= last {
            return Ok(best);
        }
        n *= 2;
    }
}

/// The rate of a copy of half of so many bytes into the other half.
pub fn rate_of_bytes(device: &Device, bytes: usize, settings: &Settings) -> Result<f64> {
    let from = Tensor::zeros(bytes / 8, DType::F32, device).with_context(|| format!("a buffer of {bytes} bytes"))?;
    let mut copy = OnDevice { operation: || from.copy(), calls: (MOVED / bytes).clamp(2, CALLS), device: device.clone() };
    let us = harness::measure(&mut copy, settings)?.latency_us.p50;
    Ok(formulas::gb_per_s(bytes as f64, us))
}

/// How the roofs are found, in words.
pub fn describe() -> String {
    let [first, last] = PRODUCTS;
    format!(
        "in a dtype the fastest square product of {first} rows, twice as many and so on up to {last} while that takes no more than {:.0} ms; and a copy within the bytes that the pass works on, rounded down by at \
         most an eighth, of {} MiB at least, which may lie in a cache, and of {} MiB at most",
        LONG_US / 1e3,
        LEAST_BYTES >> 20,
        PEAK_COPY >> 20
    )
}

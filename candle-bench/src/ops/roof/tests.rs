use super::threads::{Lanes, Sum, fastest_product, floats, product_gflop_per_s};
use super::*;
use crate::formulas::Refused;
use crate::harness::{self, Subject, Timed};
use crate::host;
use pulp::{Arch, Simd, WithSimd};
use std::time::{Duration, Instant};

const CPU: [usize; 2] = [LEAST_BYTES, PEAK_COPY];

fn quick() -> Settings {
    Settings { warm_up_s: 0.0, window_s: 1e-3, ..Settings::default() }
}

#[test]
fn bytes_are_held_against_a_copy_of_no_more_bytes() {
    assert_eq!(Probe::of_bytes(46e6, CPU), Probe::Bytes(1 << 24));
    assert_eq!(Probe::of_bytes(10.0, CPU), Probe::Bytes(LEAST_BYTES));
    assert_eq!(Probe::of_bytes(1e12, CPU), Probe::Bytes(PEAK_COPY));
}

#[test]
fn a_row_above_its_roofs_is_refused_after_they_were_measured_anew() {
    let (pool, settings) = (pool(1).unwrap(), quick());
    let mut machine = Machine::new(Site::Threads(&pool), &settings);
    // A product that something else had run beside: measured anew, it is as fast as it is.
    machine.found.insert(Probe::Product("f32".to_owned()), 1e-6);
    let work = Work { flop: 1e9, bytes: 1e6 };
    // A second is time enough for either.
    let roofs = machine.over(work, "f32", 1e6).unwrap();
    assert!(roofs.gflop_per_s > 1e-3 && roofs.gb_per_s > 0.1, "{roofs:?}");
    let error = machine.over(work, "f32", 1e-3).unwrap_err();
    assert!(matches!(error.downcast_ref(), Some(Refused::AboveRoof { .. })), "{error:?}");
}

/// The largest of some numbers, over and over.
struct Largest {
    values: Vec<f32>,
    passes: usize,
}

impl WithSimd for &Largest {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut largest = [simd.splat_f32s(0.0); 8];
        for block in S::as_simd_f32s(&self.values).0.chunks_exact(8) {
            for (largest, value) in largest.iter_mut().zip(block) {
                *largest = simd.max_f32s(*largest, *value);
            }
        }
        largest.into_iter().map(|largest| simd.reduce_max_f32s(largest)).fold(0.0, f32::max)
    }
}

impl Subject for Largest {
    fn run(&mut self) -> Result<()> {
        for _ in 0..self.passes {
            std::hint::black_box(Arch::new().dispatch(std::hint::black_box(&*self)));
        }
        Ok(())
    }
}

/// Polynomials `(x + c) x + c ...` with as many different first coefficients as hide the wait for one.
struct Polynomials {
    first: [f32; 12 * 16],
    degree: usize,
}

impl WithSimd for &Polynomials {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let (x, c) = (simd.splat_f32s(std::hint::black_box(0.5)), simd.splat_f32s(std::hint::black_box(0.25)));
        let mut sum = 0.0;
        for first in S::as_simd_f32s(&self.first).0.chunks_exact(12) {
            let mut values = [x; 12];
            values.copy_from_slice(first);
            for _ in 0..self.degree {
                for value in &mut values {
                    *value = simd.mul_add_f32s(*value, x, c);
                }
            }
            sum += values.into_iter().map(|value| simd.reduce_sum_f32s(value)).sum::<f32>();
        }
        sum
    }
}

impl Subject for Polynomials {
    fn run(&mut self) -> Result<()> {
        std::hint::black_box(Arch::new().dispatch(std::hint::black_box(&*self)));
        Ok(())
    }
}

/// Work of known size reaches its roof within 5%, by the best of rounds of both in turn. Memory is new in each: where it lies decides
/// how well it fits into a cache. The clock changes, and other tests on the same core leave neither side alone: another try may follow.
fn lands_on_its_roof<S: Subject>(work: Work, kernel: impl Fn() -> S) {
    let settings = Settings { warm_up_s: 0.0, window_s: 0.005, ..Settings::default() };
    let pool = pool(1).unwrap();
    let share = || {
        let (mut machine, mut least_us) = (Machine::new(Site::Threads(&pool), &settings), f64::INFINITY);
        let probes = [Probe::Product("f32".to_owned()), Probe::of_bytes(work.bytes, CPU)];
        for _ in 0..10 {
            probes.iter().for_each(|probe| machine.measure(probe).unwrap());
            least_us = least_us.min(harness::measure(&mut Timed(kernel()), &settings).unwrap().latency_us.p50);
        }
        machine.roofs(&probes).least_us(work.flop, work.bytes) / least_us
    };
    let (start, mut found) = (Instant::now(), Vec::new());
    while start.elapsed() < TRIES {
        found.push(share());
        if found.last().is_some_and(|share| (share - 1.0).abs() <= 0.05) {
            return;
        }
    }
    panic!("shares of the roof: {found:?}");
}

/// How long a kernel may try to be alone on its core: longer than the tests beside it take.
const TRIES: Duration = Duration::from_secs(100);

/// In a cache: what other machines move beside this one says nothing about it.
#[test]
fn a_kernel_of_known_bytes_lands_on_its_roof() {
    let (bytes, passes) = (LEAST_BYTES, 2);
    let work = Work { flop: 1.0, bytes: (passes * bytes) as f64 };
    lands_on_its_roof(work, || Largest { values: floats(bytes).unwrap(), passes });
}

#[test]
fn a_kernel_of_known_operations_lands_on_its_roof() {
    let kernel = || Polynomials { first: std::array::from_fn(|i| i as f32), degree: 1 << 14 };
    let (places, degree) = (kernel().first.len(), kernel().degree);
    lands_on_its_roof(Work { flop: 2.0 * (places * degree) as f64, bytes: 4.0 * places as f64 }, kernel);
}

/// No processor begins more than two multiply-adds of a register in a cycle, and none multiplies integers in less than three.
#[test]
#[cfg(target_arch = "x86_64")]
fn arithmetic_in_registers_is_no_faster_than_the_clock_allows() {
    let pool = pool(1).unwrap();
    let lanes = Arch::new().dispatch(Lanes) as f64;
    let a_cycle = || {
        let gflop_per_s = fastest_product(&pool, Weights::F32, &quick()).unwrap();
        let cycles_per_ns = 3.0 * host::CHAIN as f64 / host::chain().as_nanos() as f64;
        gflop_per_s / cycles_per_ns / (2.0 * lanes)
    };
    // The clock may change between the two.
    let found: Vec<f64> = (0..5).map(|_| a_cycle()).collect();
    assert!(found.iter().copied().fold(f64::INFINITY, f64::min) < 2.2, "multiply-adds a cycle: {found:?}");
}

#[test]
fn every_kind_of_roof_is_measured() {
    let pool = pool(1).unwrap();
    for weights in Weights::ALL {
        let found = product_gflop_per_s(&pool, weights, 64, &quick()).unwrap();
        assert!(found.is_finite() && found > 1e-3, "{weights:?}: {found}");
    }
    // At least two operations a nanosecond: half a clock of the slowest machine, a register of four.
    let registers = fastest_product(&pool, Weights::F32, &quick()).unwrap();
    assert!(registers.is_finite() && registers > 2.0, "{registers}");
    let values = &floats(1 << 12).unwrap()[3..];
    assert!((Arch::new().dispatch(Sum(values)) - values.iter().sum::<f32>()).abs() < 1e-2);
}

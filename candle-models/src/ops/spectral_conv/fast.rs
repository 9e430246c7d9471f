//! The transform of an axis by FFT, which beats products with tables where many waves are kept of a long axis.
//!
//! Channels lie last and an FFT wants its values one behind another, so each transform gathers its lines into a buffer of the thread. Real channels go
//! through in pairs, one as the real part and one as the imaginary part of a complex line, and are told apart by the symmetry of their spectra.

use super::OutPointer;
use rustfft::num_complex::Complex32;
use rustfft::{Fft, FftPlanner};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The plans of an axis.
#[derive(Clone)]
pub(super) struct Fast {
    places: usize,
    forward: Arc<dyn Fft<f32>>,
    inverse: Arc<dyn Fft<f32>>,
}

impl std::fmt::Debug for Fast {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fast").field("places", &self.places).finish_non_exhaustive()
    }
}

/// Plans that were made before: a step of a training asks for the same ones again.
static PLANNER: LazyLock<Mutex<FftPlanner<f32>>> = LazyLock::new(|| Mutex::new(FftPlanner::new()));

thread_local! {
    /// Lines of a transform, and what a plan works in.
    static BUFFER: RefCell<Vec<Complex32>> = const { RefCell::new(Vec::new()) };
}

/// Calls `with` with zeroed space for so many lines and with what `plan` works in.
fn with_lines(plan: &dyn Fft<f32>, count: usize, with: impl FnOnce(&mut [Complex32], &mut dyn FnMut(&mut [Complex32]))) {
    BUFFER.with_borrow_mut(|buffer| {
        let (lines, scratch) = (count * plan.len(), plan.get_inplace_scratch_len());
        buffer.clear();
        buffer.resize(lines + scratch, Complex32::ZERO);
        let (lines, scratch) = buffer.split_at_mut(lines);
        with(lines, &mut |lines| plan.process_with_scratch(lines, scratch));
    });
}

/// A row of channels of a matrix that others write at the same time.
///
/// # Safety
/// Nobody else uses these values.
unsafe fn channels<'a>(of: OutPointer, at: usize, count: usize) -> &'a mut [f32] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(of.data.wrapping_add(at), count) }
}

impl Fast {
    pub fn new(places: usize) -> Self {
        let mut planner = PLANNER.lock().unwrap_or_else(PoisonError::into_inner);
        Self { places, forward: planner.plan_fft_forward(places), inverse: planner.plan_fft_inverse(places) }
    }

    /// A line `x` `[m, C]` to its first waves, `[L, 2, C]` at `out`.
    ///
    /// # Safety
    /// Nobody else uses what `out` points at.
    pub unsafe fn across(&self, x: &[f32], c: usize, shares: impl Fn(usize) -> [f64; 2], waves: usize, out: OutPointer) {
        let m = self.places;
        with_lines(&*self.forward, c.div_ceil(2), |lines, transform| {
            for (w, x) in x.chunks_exact(c).enumerate() {
                for (pair, x) in x.chunks(2).enumerate() {
                    lines[pair * m + w] = Complex32::new(x[0], x.get(1).copied().unwrap_or(0.0));
                }
            }
            transform(lines);
            for wave in 0..waves {
                let [cosine, sine] = shares(wave).map(|share| 0.5 * share as f32);
                // SAFETY: the caller's promise.
                let [re, im] = [0, 1].map(|part| unsafe { channels(out, (2 * wave + part) * c, c) });
                for (line, (re, im)) in lines.chunks_exact(m).zip(re.chunks_mut(2).zip(im.chunks_mut(2))) {
                    let (one, other) = (line[wave], line[(m - wave) % m].conj());
                    let (even, odd) = (one + other, one - other);
                    (re[0], im[0]) = (cosine * even.re, sine * even.im);
                    if let ([_, re], [_, im]) = (re, im) {
                        (*re, *im) = (cosine * odd.im, -sine * odd.re);
                    }
                }
            }
        });
    }

    /// Waves `[L, 2, C]` to a line `[m, C]` at `out`: what [`Self::across`] does, turned.
    ///
    /// # Safety
    /// Nobody else uses what `out` points at.
    pub unsafe fn along(&self, values: &[f32], c: usize, shares: impl Fn(usize) -> [f64; 2], out: OutPointer) {
        let m = self.places;
        with_lines(&*self.inverse, c.div_ceil(2), |lines, transform| {
            for (wave, values) in values.chunks_exact(2 * c).enumerate() {
                let [cosine, sine] = shares(wave).map(|share| share as f32);
                let (re, im) = values.split_at(c);
                for (line, (re, im)) in lines.chunks_exact_mut(m).zip(re.chunks(2).zip(im.chunks(2))) {
                    let pair = |x: &[f32], share: f32| [share * x[0], share * x.get(1).copied().unwrap_or(0.0)];
                    let ([a, b], [ai, bi]) = (pair(re, cosine), pair(im, sine));
                    if wave == 0 || 2 * wave == m {
                        line[wave] = Complex32::new(a, b);
                    } else {
                        // Half of a wave and of its counterpart: (a + i ai) + i (b + i bi), and of the conjugates.
                        line[wave] = Complex32::new(0.5 * (a - bi), 0.5 * (ai + b));
                        line[m - wave] = Complex32::new(0.5 * (a + bi), 0.5 * (b - ai));
                    }
                }
            }
            transform(lines);
            for w in 0..m {
                // SAFETY: the caller's promise.
                let out = unsafe { channels(out, w * c, c) };
                for (out, line) in out.chunks_mut(2).zip(lines.chunks_exact(m)) {
                    out[0] = line[w].re;
                    if let [_, out] = out {
                        *out = line[w].im;
                    }
                }
            }
        });
    }

    /// Waves `across` of lines `[n, L, 2, C]` to their coefficients `[K, L]`, each `[2, C]` and `stride` values apart.
    ///
    /// # Safety
    /// Nobody else uses the coefficients of these waves.
    pub unsafe fn down(&self, values: &[f32], c: usize, across: Range<usize>, [kept, wide]: [usize; 2], (to, stride): (OutPointer, usize)) {
        let n = self.places;
        for wave in across {
            with_lines(&*self.forward, c, |lines, transform| {
                for h in 0..n {
                    let (re, im) = values[(h * wide + wave) * 2 * c..][..2 * c].split_at(c);
                    for (channel, (re, im)) in re.iter().zip(im).enumerate() {
                        lines[channel * n + h] = Complex32::new(*re, *im);
                    }
                }
                transform(lines);
                for number in 0..kept {
                    let at = (number + n - kept / 2) % n;
                    // SAFETY: the caller's promise.
                    let (re, im) = unsafe { channels(to, (number * wide + wave) * stride, 2 * c) }.split_at_mut(c);
                    for (line, (re, im)) in lines.chunks_exact(n).zip(re.iter_mut().zip(im)) {
                        (*re, *im) = (line[at].re, line[at].im);
                    }
                }
            });
        }
    }

    /// Coefficients of waves `across` to lines: what [`Self::down`] does, turned.
    ///
    /// # Safety
    /// Nobody else uses the lines of these waves.
    pub unsafe fn up(&self, (y, stride): (&[f32], usize), c: usize, across: Range<usize>, [kept, wide]: [usize; 2], to: OutPointer) {
        let n = self.places;
        for wave in across {
            with_lines(&*self.inverse, c, |lines, transform| {
                for number in 0..kept {
                    let at = (number + n - kept / 2) % n;
                    let (re, im) = y[(number * wide + wave) * stride..][..2 * c].split_at(c);
                    for (line, (re, im)) in lines.chunks_exact_mut(n).zip(re.iter().zip(im)) {
                        line[at] = Complex32::new(*re, *im);
                    }
                }
                transform(lines);
                for h in 0..n {
                    // SAFETY: the caller's promise.
                    let (re, im) = unsafe { channels(to, (h * wide + wave) * 2 * c, 2 * c) }.split_at_mut(c);
                    for (channel, (re, im)) in re.iter_mut().zip(im).enumerate() {
                        let value = lines[channel * n + h];
                        (*re, *im) = (value.re, value.im);
                    }
                }
            });
        }
    }
}

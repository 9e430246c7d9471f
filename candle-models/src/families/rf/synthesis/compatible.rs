//! The published generator as it is, its defects included: a carrier whose phase trembles, two or three echoes, a Rayleigh amplitude that is held, and
//! white noise.
//!
//! Over n samples: `s = exp(j (2 pi f t + theta))`, theta the mean of ten of `N(0, 0.3^2)`; each echo adds what was a few samples ago, 10 to 25 dB
//! weaker and turned; the amplitude `sqrt(I^2 + Q^2)` is held for 50 to 200 ms; the whole is scaled to its power, and noise added for its ratio.
//! No delay grows with the distance, so the samples of several receivers do not say where something is.

use super::turns::Oscillator;
use super::{Labels, Reception, receivers};
use crate::ops::simd::kernel;
use crate::random::{Random, sin_cos_turn};
use crate::{Error, Result};
use candle_core::{Device, Tensor};
use rayon::prelude::*;
use rustfft::num_complex::Complex32;
use serde::{Deserialize, Serialize};

/// How signals are generated.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Compatible {
    /// Samples a second.
    pub sample_rate: f64,
    /// Samples of a signal.
    pub samples: usize,
    /// Whether there are echoes.
    pub multipath: bool,
    /// Whether the amplitude fades.
    pub fading: bool,
}

impl Default for Compatible {
    fn default() -> Self {
        Self { sample_rate: 200e3, samples: 200_000, multipath: true, fading: true }
    }
}

/// Samples that are computed while they lie in the nearest cache.
const BLOCK: usize = 2048;
/// Phases of which one is the mean, and how many of them come before its own.
const MEAN_OF: usize = 10;
const BEFORE: usize = 5;
/// The deviation of a phase, radians.
pub(super) const PHASE: f32 = 0.3;

/// An echo: samples later, and by what it is multiplied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Echo {
    pub samples: usize,
    pub gain: Complex32,
}

/// What is drawn once for a signal.
pub(super) struct Drawn {
    pub echoes: Vec<Echo>,
    /// How long an amplitude is held, samples, and those that there are; the last one is held to the end.
    pub hold: usize,
    pub amplitudes: Vec<f32>,
    /// The carrier.
    pub carrier: Oscillator,
    /// The signal's power, W, and the deviation of either part of the noise.
    pub watts: f64,
    pub deviation: f64,
}

/// Most echoes.
pub(super) const MOST_ECHOES: usize = 3;

impl Compatible {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// A [`Error::Config`] that names the field.
    pub fn validate(&self) -> Result<()> {
        if !(self.sample_rate >= 100.0 && self.sample_rate <= 1e9) {
            return Err(Error::config("sample_rate", format!("expected from 100 to 1e9 samples a second, found {}", self.sample_rate)));
        }
        if !(1..=1 << 30).contains(&self.samples) {
            return Err(Error::config("samples", format!("expected from 1 to {}, found {}", 1 << 30, self.samples)));
        }
        Ok(())
    }

    /// The signal of a receiver, `[samples]`; its numbers are those at `random`, the address of an event and a receiver. Returns what is true of it.
    ///
    /// # Errors
    /// If a value is out of range or `out` has another length.
    pub fn generate(&self, random: Random, reception: &Reception, out: &mut [Complex32]) -> Result<Labels> {
        self.validate()?;
        reception.validate(self.sample_rate)?;
        if out.len() != self.samples {
            return Err(Error::tensor("iq", format!("[{}]", self.samples), format!("[{}]", out.len())));
        }
        let Drawn { echoes, hold, amplitudes, carrier, watts, deviation } = self.drawn(random, reception);
        let longest = echoes.iter().map(|echo| echo.samples).max().unwrap_or(0);
        // What echoes repeat of the block before, then the block.
        let mut clean = vec![Complex32::default(); longest + BLOCK];
        let (mut theta, mut power) = (vec![0.0; BLOCK + MEAN_OF], 0.0);
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let first = i * BLOCK;
            self.phases(random.stream("phase"), first, &mut theta[..out.len() + MEAN_OF - 1]);
            carry(carrier, first, &theta, &mut clean[longest..longest + out.len()]);
            echo(&clean, longest, &echoes, out);
            let blocks = amplitudes.iter().enumerate().map(|(j, amplitude)| (j * hold, *amplitude));
            power += fade(first, blocks, hold, amplitudes.len(), out);
            clean.copy_within(out.len()..out.len() + longest, 0);
        }
        let mean = power / self.samples as f64;
        let gain = if mean > 0.0 { (watts / mean).sqrt() } else { 0.0 };
        let mut numbers = vec![0.0; 2 * BLOCK];
        for (i, out) in out.chunks_mut(BLOCK).enumerate() {
            let numbers = &mut numbers[..2 * out.len()];
            random.stream("noise").fill_normal(2 * (i * BLOCK) as u64, numbers);
            add_noise(gain as f32, deviation as f32, numbers, out);
        }
        Ok(Labels { reception: *reception, echoes: echoes.len(), amplitudes })
    }

    /// Signals of the receivers of one event, `[receivers, samples]`, on this thread; `random` is the event's address.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_each(&self, random: Random, receptions: &[Reception], out: &mut [Complex32]) -> Result<Vec<Labels>> {
        if out.len() != receptions.len() * self.samples {
            return Err(Error::tensor("iq", format!("[{}, {}]", receptions.len(), self.samples), format!("{} samples", out.len())));
        }
        let signals = receptions.iter().zip(out.chunks_exact_mut(self.samples.max(1))).enumerate();
        signals.map(|(i, (reception, out))| self.generate(random.at(i as u64), reception, out)).collect()
    }

    /// Signals of events and receivers, `[events, receivers, samples]`, on all threads; the same on any number of them. `random` is the root, of which
    /// event e and receiver r have the address `at(e).at(r)`, events counted from `first`.
    ///
    /// # Errors
    /// As [`generate`](Self::generate).
    pub fn generate_all(
        &self,
        random: Random,
        first: u64,
        receptions: &[Vec<Reception>],
        out: &mut [Complex32],
    ) -> Result<Vec<Vec<Labels>>> {
        let receivers = receivers(receptions)?;
        let expected = receptions.len() * receivers * self.samples;
        if out.len() != expected {
            let shape = format!("[{}, {receivers}, {}]", receptions.len(), self.samples);
            return Err(Error::tensor("iq", shape, format!("{} samples", out.len())));
        }
        if expected == 0 {
            return Ok(receptions.iter().map(|_| Vec::new()).collect());
        }
        let signals: Vec<Labels> = out
            .par_chunks_mut(self.samples)
            .enumerate()
            .map(|(i, out)| {
                let (event, receiver) = (i / receivers, i % receivers);
                self.generate(random.at(first + event as u64).at(receiver as u64), &receptions[event][receiver], out)
            })
            .collect::<Result<_>>()?;
        let mut signals = signals.into_iter();
        Ok(receptions.iter().map(|event| signals.by_ref().take(event.len()).collect()).collect())
    }

    /// Signals as a tensor `[events, receivers, samples, 2]` on a device, and what is true of them. Those of a GPU are those of the CPU but for rounding.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), or if the device has no memory for them.
    pub fn generate_on(
        &self,
        random: Random,
        first: u64,
        receptions: &[Vec<Reception>],
        device: &Device,
    ) -> Result<(Tensor, Vec<Vec<Labels>>)> {
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            return super::cuda::compatible::generate(self, random, first, receptions, device);
        }
        let receivers = receivers(receptions)?;
        let mut iq = vec![Complex32::default(); receptions.len() * receivers * self.samples];
        let labels = self.generate_all(random, first, receptions, &mut iq)?;
        let values: Vec<f32> = iq.into_iter().flat_map(|x| [x.re, x.im]).collect();
        Ok((Tensor::from_vec(values, (receptions.len(), receivers, self.samples, 2), device)?, labels))
    }

    /// What is drawn once for the signal at an address.
    pub(super) fn drawn(&self, random: Random, reception: &Reception) -> Drawn {
        let (hold, amplitudes) = self.amplitudes(random.stream("fading"));
        let watts = 1e-3 * 10f64.powf(reception.power_dbm / 10.0);
        let noise = watts / 10f64.powf(reception.snr_db / 10.0);
        Drawn {
            echoes: self.echoes(random.stream("multipath")),
            hold,
            amplitudes,
            carrier: Oscillator::new(reception.frequency_offset_hz / self.sample_rate),
            watts,
            deviation: (noise / 2.0).sqrt(),
        }
    }

    fn echoes(&self, random: Random) -> Vec<Echo> {
        if !self.multipath {
            return Vec::new();
        }
        let echo = |number: u64| {
            let between = |index: u64, low: f64, high: f64| low + (high - low) * f64::from(random.at(number).uniform(index));
            let samples = (between(0, 0.5e-6, 5e-6) * self.sample_rate) as usize;
            let gain = 10f64.powf(between(1, -25.0, -10.0) / 20.0);
            let (sin, cos) = (std::f64::consts::TAU * between(2, 0.0, 1.0)).sin_cos();
            Echo { samples: samples.min(self.samples / 4).max(1), gain: Complex32::new((gain * cos) as f32, (gain * sin) as f32) }
        };
        let count = MOST_ECHOES as u64 - 1 + u64::from(random.below(0, 2));
        (0..count).map(echo).collect()
    }

    fn amplitudes(&self, random: Random) -> (usize, Vec<f32>) {
        if !self.fading {
            return (self.samples, vec![1.0]);
        }
        let held = (0.05 + 0.15 * f64::from(random.uniform(0))) * self.sample_rate;
        let count = (self.samples / held as usize).max(1);
        let amplitudes = random.stream("amplitudes");
        let amplitude = |i: usize| amplitudes.normal(2 * i as u64).hypot(amplitudes.normal(2 * i as u64 + 1));
        (held as usize, (0..count).map(amplitude).collect())
    }

    /// The phases from [`BEFORE`] samples before `first` on, 0 before the beginning and behind the end.
    fn phases(&self, random: Random, first: usize, theta: &mut [f32]) {
        let (skip, begin) = (BEFORE.saturating_sub(first), first.saturating_sub(BEFORE));
        theta[..skip].fill(0.0);
        random.fill_normal(begin as u64, &mut theta[skip..]);
        let there = skip + (self.samples - begin).min(theta.len() - skip);
        theta[there..].fill(0.0);
    }
}

kernel! {
    /// The carrier with the mean of ten phases, from sample `first` on.
    fn carry<S>(carrier: Oscillator, first: usize, theta: &'a [f32], out: &'a mut [Complex32]) {
        const TURN: f32 = PHASE / MEAN_OF as f32 / std::f32::consts::TAU * 4_294_967_296.0;
        const LANES: usize = 16;
        for (i, out) in out.chunks_mut(LANES).enumerate() {
            let theta = &theta[i * LANES..];
            let begin = carrier.phase((first + i * LANES) as u64);
            let mut phase = [0u32; LANES];
            for (lane, phase) in phase.iter_mut().enumerate().take(out.len()) {
                // The oldest first, as numpy's convolution adds them up.
                let sum = theta[lane..lane + MEAN_OF].iter().fold(0.0f32, |sum, x| sum + x);
                let turn = (begin.wrapping_add(carrier.step().wrapping_mul(lane as u64)) >> 32) as u32;
                *phase = turn.wrapping_add((sum * TURN) as i32 as u32);
            }
            for (to, phase) in out.iter_mut().zip(phase) {
                let (sin, cos) = sin_cos_turn(phase);
                *to = Complex32::new(cos, sin);
            }
        }
    }
}

/// What arrives on all paths: samples behind the first `before` ones of `clean`.
fn echo(clean: &[Complex32], before: usize, echoes: &[Echo], out: &mut [Complex32]) {
    let n = out.len();
    out.copy_from_slice(&clean[before..before + n]);
    for echo in echoes {
        for (to, x) in out.iter_mut().zip(&clean[before - echo.samples..]) {
            *to += echo.gain * x;
        }
    }
}

/// Multiplies samples from number `first` on by the amplitude that is held there; returns their power.
fn fade(first: usize, blocks: impl Iterator<Item = (usize, f32)>, hold: usize, count: usize, out: &mut [Complex32]) -> f64 {
    let (mut power, end) = (0.0, first + out.len());
    for (i, (begin, amplitude)) in blocks.enumerate() {
        let last = i + 1 == count;
        let (from, to) = (begin.max(first), if last { end } else { (begin + hold).min(end) });
        if from >= to {
            continue;
        }
        let part = &mut out[from - first..to - first];
        part.iter_mut().for_each(|x| *x *= amplitude);
        power += part.chunks(256).map(|part| f64::from(part.iter().map(Complex32::norm_sqr).sum::<f32>())).sum::<f64>();
    }
    power
}

kernel! {
    /// Scales samples and adds noise, a number for each part.
    fn add_noise<S>(gain: f32, deviation: f32, numbers: &'a [f32], out: &'a mut [Complex32]) {
        for (to, numbers) in out.iter_mut().zip(numbers.chunks_exact(2)) {
            *to = Complex32::new(to.re * gain + numbers[0] * deviation, to.im * gain + numbers[1] * deviation);
        }
    }
}

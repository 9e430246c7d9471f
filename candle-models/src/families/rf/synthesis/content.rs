//! What is sent.

use crate::random::Random;
use crate::rf::{Complex32, Complex64, narrow, within};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// A signal before any channel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// A carrier alone.
    Carrier,
    /// A carrier whose frequency follows a sound.
    Fm {
        /// What is heard.
        sound: Sound,
        /// How far the frequency moves where the sound is 1, Hz.
        deviation_hz: f64,
    },
    /// A carrier whose amplitude follows a sound.
    Am {
        /// What is heard.
        sound: Sound,
        /// How much of the amplitude, 0 to 1.
        depth: f64,
    },
    /// Symbols.
    Digital(Digital),
}

/// A sound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Sound {
    /// Tones of those frequencies, Hz, alike and together 1 at most.
    Tones {
        /// The frequencies.
        hz: Vec<f64>,
    },
    /// Noise in the band of a telephone, in syllables, with higher frequencies raised (`y = x - 0.95 x[n - 1]`).
    Voice,
}

/// Symbols, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Digital {
    /// What a symbol is.
    pub modulation: Modulation,
    /// Samples of a symbol, 2 to 1024.
    pub samples_per_symbol: usize,
}

/// What a symbol is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Modulation {
    /// Two phases.
    Bpsk,
    /// Four phases.
    Qpsk,
    /// Eight phases.
    #[serde(rename = "8psk")]
    Psk8,
    /// Sixteen points of a grid.
    #[serde(rename = "16qam")]
    Qam16,
    /// 64 points of a grid.
    #[serde(rename = "64qam")]
    Qam64,
    /// Two frequencies without jumps of the phase, their pulses of Gauss's shape (BT 0.35, index 0.5).
    Gfsk,
    /// Two frequencies without jumps of the phase (index 0.5).
    Cpfsk,
}

impl Modulation {
    /// All of them.
    pub const ALL: [Self; 7] = [Self::Bpsk, Self::Qpsk, Self::Psk8, Self::Qam16, Self::Qam64, Self::Gfsk, Self::Cpfsk];

    /// The points of a linear one, with a mean power of 1; none of frequency shifts.
    pub fn points(self) -> Vec<Complex64> {
        let phases = |n: usize, first: f64| (0..n).map(|k| Complex64::cis(TAU * (k as f64 + first) / n as f64)).collect();
        let grid = |side: usize| {
            let level = |i: usize| 2.0 * i as f64 - (side as f64 - 1.0);
            let scale = (1.5 / ((side * side) as f64 - 1.0)).sqrt();
            (0..side * side).map(|i| Complex64::new(level(i / side), level(i % side)) * scale).collect()
        };
        match self {
            Self::Bpsk => phases(2, 0.0),
            Self::Qpsk => phases(4, 0.5),
            Self::Psk8 => phases(8, 0.0),
            Self::Qam16 => grid(4),
            Self::Qam64 => grid(8),
            Self::Gfsk | Self::Cpfsk => Vec::new(),
        }
    }
}

/// The roll-off of root-raised-cosine pulses, and how many symbols they reach to either side.
const ROLL_OFF: f64 = 0.35;
const REACH: usize = 8;
/// The bandwidth of Gauss's pulses over the symbol rate, and the index of frequency shifts.
const GAUSS: f64 = 0.35;
const INDEX: f64 = 0.5;

impl Default for Content {
    fn default() -> Self {
        Self::Fm { sound: Sound::Voice, deviation_hz: 5000.0 }
    }
}

impl Content {
    /// Refuses what makes no sense at that rate.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self, rate: f64) -> Result<()> {
        let sound = |sound: &Sound| match sound {
            Sound::Voice => within("sample_rate", rate, 8000.0..=1e9),
            Sound::Tones { hz } if hz.is_empty() => Err(Error::config("content.sound.hz", "expected at least one tone")),
            Sound::Tones { hz } => hz.iter().try_for_each(|hz| within("content.sound.hz", *hz, 0.0..=rate / 2.0)),
        };
        match self {
            Self::Carrier => Ok(()),
            Self::Fm { sound: of, deviation_hz } => {
                within("content.deviation_hz", *deviation_hz, 0.0..=rate / 2.0)?;
                sound(of)
            }
            Self::Am { sound: of, depth } => {
                within("content.depth", *depth, 0.0..=1.0)?;
                sound(of)
            }
            Self::Digital(digital) => within("content.samples_per_symbol", digital.samples_per_symbol as f64, 2.0..=1024.0),
        }
    }

    /// So many samples of it, with a mean power of about 1.
    pub fn generate(&self, random: Random, rate: f64, samples: usize) -> Vec<Complex32> {
        match self {
            Self::Carrier => vec![Complex32::new(1.0, 0.0); samples],
            Self::Fm { sound, deviation_hz } => {
                let mut phase = 0.0;
                let step = |x: f64| {
                    phase = (phase + deviation_hz * x / rate).fract();
                    narrow(Complex64::cis(TAU * phase))
                };
                sound.generate(random, rate, samples).into_iter().map(step).collect()
            }
            Self::Am { sound, depth } => sound
                .generate(random, rate, samples)
                .into_iter()
                .map(|x| Complex32::new((1.0 + depth * x.clamp(-1.0, 1.0)) as f32, 0.0))
                .collect(),
            Self::Digital(digital) => digital.generate(random, samples),
        }
    }
}

impl Sound {
    fn generate(&self, random: Random, rate: f64, samples: usize) -> Vec<f64> {
        match self {
            Self::Tones { hz } => {
                let phase = |i: usize| f64::from(random.stream("phases").uniform(i as u64));
                let at = |n: usize| {
                    hz.iter().enumerate().map(|(i, hz)| (TAU * (hz * n as f64 / rate + phase(i))).sin()).sum::<f64>() / hz.len() as f64
                };
                (0..samples).map(at).collect()
            }
            Self::Voice => {
                // Filters begin empty: what they give before their longest memory, that of 300 Hz, is full is left out.
                let lead = (rate / 300.0).ceil() as usize;
                let mut numbers = vec![0.0; lead + samples];
                random.stream("noise").fill_normal(0, &mut numbers);
                // Two poles below 3 kHz, one above 300 Hz: the pre-emphasis is that of a sound sampled at 8 kHz, whatever the rate.
                let keep = |hz: f64| (-TAU * hz / rate).exp();
                let (low, high) = (keep(3000.0), keep(300.0));
                let beat = f64::from(random.stream("syllables").uniform(0));
                let (mut first, mut second, mut slow) = (0.0, 0.0, 0.0);
                let sound = |(n, x): (usize, f32)| {
                    first = low * first + (1.0 - low) * f64::from(x);
                    second = low * second + (1.0 - low) * first;
                    slow = high * slow + (1.0 - high) * second;
                    let syllable = 0.5 - 0.5 * (TAU * (4.0 * n as f64 / rate + beat)).cos();
                    (second - 0.95 * slow) * syllable
                };
                let raw: Vec<f64> = numbers.into_iter().enumerate().map(sound).skip(lead).collect();
                // A voice is rarely louder than three times its mean.
                let square = raw.iter().map(|x| x * x).sum::<f64>() / samples.max(1) as f64;
                let scale = if square > 0.0 { 1.0 / (3.0 * square.sqrt()) } else { 0.0 };
                raw.into_iter().map(|x| (x * scale).clamp(-1.0, 1.0)).collect()
            }
        }
    }
}

impl Digital {
    fn generate(&self, random: Random, samples: usize) -> Vec<Complex32> {
        let (each, points) = (self.samples_per_symbol, self.modulation.points());
        let start = random.stream("start").below(0, each as u32) as usize;
        let symbols = random.stream("symbols");
        let count = (samples + start).div_ceil(each) + 2 * REACH + 1;
        if points.is_empty() {
            return frequency_shifts(self.modulation, each, (start, samples), |i| f64::from(2 * symbols.below(i as u64, 2)) - 1.0)
                .into_iter()
                .map(narrow)
                .collect();
        }
        let chosen: Vec<Complex64> = (0..count).map(|i| points[symbols.below(i as u64, points.len() as u32) as usize]).collect();
        let pulse: Vec<f64> = (0..=2 * REACH * each).map(|i| root_raised_cosine(i as f64 / each as f64 - REACH as f64)).collect();
        let at = |n: usize| {
            // Symbol k is at sample (k - REACH) each - start.
            let place = n + start;
            let (first, part) = (place / each, place % each);
            (0..=2 * REACH).filter_map(|j| Some(chosen[first + j] * pulse.get((2 * REACH - j) * each + part)?)).sum::<Complex64>()
        };
        (0..samples).map(|n| narrow(at(n))).collect()
    }
}

/// The phase moves by a quarter of a turn a symbol, forwards or backwards.
fn frequency_shifts(
    modulation: Modulation,
    each: usize,
    (start, samples): (usize, usize),
    symbol: impl Fn(usize) -> f64,
) -> Vec<Complex64> {
    // A symbol's share of the frequency at a distance from its middle, in symbols.
    let half = |t: f64| 0.5 * erf(t * TAU * GAUSS / (2.0 * std::f64::consts::LN_2).sqrt());
    let share = |t: f64| match modulation {
        Modulation::Gfsk => half(t + 0.5) - half(t - 0.5),
        _ => f64::from(u8::from((-0.5..0.5).contains(&t))),
    };
    let mut phase = 0.0;
    let step = |n: usize| {
        let place = (n + start) as f64 / each as f64;
        let middle = place as usize + 2;
        let frequency: f64 = (middle - 2..=middle + 2).map(|k| symbol(k) * share(place + 2.0 - k as f64 - 0.5)).sum();
        phase += 0.5 * INDEX * frequency / each as f64;
        Complex64::cis(TAU * phase)
    };
    (0..samples).map(step).collect()
}

/// The error function (Abramowitz and Stegun 7.1.26), to 1.5e-7.
fn erf(x: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let p = ((((1.061_405_429 * t - 1.453_152_027) * t + 1.421_413_741) * t - 0.284_496_736) * t + 0.254_829_592) * t;
    (1.0 - p * (-x * x).exp()).copysign(x)
}

/// The pulse at a distance in symbols; with one of its own as a filter it has no intersymbol interference. Its energy is 1 a symbol.
pub fn root_raised_cosine(t: f64) -> f64 {
    let (a, pi) = (ROLL_OFF, std::f64::consts::PI);
    if t.abs() < 1e-9 {
        return 1.0 - a + 4.0 * a / pi;
    }
    if (t.abs() - 0.25 / a).abs() < 1e-9 {
        let angle = pi / (4.0 * a);
        return a / 2f64.sqrt() * ((1.0 + 2.0 / pi) * angle.sin() + (1.0 - 2.0 / pi) * angle.cos());
    }
    let sides = (pi * t * (1.0 - a)).sin() + 4.0 * a * t * (pi * t * (1.0 + a)).cos();
    sides / (pi * t * (1.0 - (4.0 * a * t).powi(2)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rf::spectrum::{Sides, Welch, welch};
    use crate::rf::{power, wide};

    #[test]
    fn symbols_have_a_mean_power_of_one_and_no_mean() {
        for modulation in Modulation::ALL {
            let points = modulation.points();
            if points.is_empty() {
                continue;
            }
            let n = points.len() as f64;
            assert!((points.iter().map(Complex64::norm_sqr).sum::<f64>() / n - 1.0).abs() < 1e-12, "{modulation:?}");
            assert!((points.iter().sum::<Complex64>() / n).norm() < 1e-12, "{modulation:?}");
        }
        for modulation in Modulation::ALL {
            let digital = Content::Digital(Digital { modulation, samples_per_symbol: 8 });
            let found = power(&digital.generate(Random::new(1), 1e6, 40_000));
            assert!((found - 1.0).abs() < 0.06, "{modulation:?}: {found}");
        }
    }

    /// Filtered with its own pulse, every symbol stands alone.
    #[test]
    fn pulses_do_not_disturb_each_other() {
        let each = 16;
        let at = |k: i64| {
            let pulse = |i: i64| root_raised_cosine(i as f64 / f64::from(each));
            let reach = 12 * i64::from(each);
            (-reach..=reach).map(|i| pulse(i) * pulse(i - k * i64::from(each))).sum::<f64>() / f64::from(each)
        };
        assert!((at(0) - 1.0).abs() < 2e-3, "{}", at(0));
        for k in 1..5 {
            assert!(at(k).abs() < 3e-3, "{k}: {}", at(k));
        }
    }

    /// A voice of 5 kHz deviation has nearly all of its power within Carson's bandwidth.
    #[test]
    fn a_voice_fills_its_channel() {
        let signal = Content::default().generate(Random::new(2), 200e3, 200_000);
        assert!((power(&signal) - 1.0).abs() < 1e-5);
        let signal: Vec<Complex64> = signal.into_iter().map(wide).collect();
        let density =
            welch(&signal, 200e3, &Welch { segment: 4096, overlap: 2048, sides: Sides::Two, less_mean: false, ..Welch::default() })
                .unwrap();
        let share = |edge: f64| density.ascending().filter(|(f, _)| f.abs() <= edge).map(|(_, p)| p).sum::<f64>() * density.step;
        assert!(share(8e3) > 0.98 && share(500.0) < 0.9, "{} {}", share(8e3), share(500.0));
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (content, field) in [
            (Content::Fm { sound: Sound::Voice, deviation_hz: -1.0 }, "content.deviation_hz"),
            (Content::Fm { sound: Sound::Tones { hz: vec![] }, deviation_hz: 1.0 }, "content.sound.hz"),
            (Content::Am { sound: Sound::Tones { hz: vec![f64::NAN] }, depth: 0.5 }, "content.sound.hz"),
            (Content::Am { sound: Sound::Voice, depth: 2.0 }, "content.depth"),
            (Content::Digital(Digital { modulation: Modulation::Bpsk, samples_per_symbol: 1 }), "content.samples_per_symbol"),
        ] {
            assert!(content.validate(200e3).unwrap_err().to_string().contains(field), "{field}");
        }
    }
}

//! Signals with what real emitters, paths and receivers do to them, every step with numbers of its own.
//!
//! What is sent is the same for all receivers of an event: content, amplifier, the emitter's frequency, its drift and its phase noise. Then each receiver has
//! paths with delays of fractions of a sample and gains that fade, a clock and an oscillator of its own, noise, a mixer whose branches differ, and a
//! converter. Delays are those from the emitter to each receiver: they are in the signal, and can be measured there.

use super::content::Content;
use super::delay::Interpolator;
use super::fading::{Gain, Rayleigh};
use super::impairments::{Amplifier, Converter, Imbalance};
use super::turns::Oscillator;
use super::{Range, Reception, receivers};
use crate::random::Random;
use crate::rf::{narrow, power, wide, within};
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use rustfft::num_complex::{Complex32, Complex64};
use serde::{Deserialize, Serialize};
use std::f64::consts::TAU;

/// How gains of paths change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Fading {
    /// They do not.
    None,
    /// Waves from all directions.
    Rayleigh {
        /// The greatest Doppler shift, Hz.
        doppler_hz: Range,
    },
    /// The same beside one that is seen.
    Rician {
        /// The greatest Doppler shift, Hz.
        doppler_hz: Range,
        /// The power of what is seen over the others', dB.
        ratio_db: Range,
    },
}

/// Emitter, paths and receivers of a scenario. Ranges are drawn from evenly.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Physical {
    /// Samples a second.
    pub sample_rate: f64,
    /// Samples of a signal.
    pub samples: usize,
    /// What is sent.
    pub content: Content,
    /// The longest delay of a direct path, microseconds: so much is sent before the first and behind the last sample that is heard.
    pub longest_us: f64,
    /// The emitter's amplifier; none: it is linear.
    // TOML writes nothing for none, so a missing key is none again, although other missing keys have their usual value. So with `bits`.
    #[serde(default)]
    pub amplifier: Option<Amplifier>,
    /// By how much the emitter's frequency changes, Hz a second.
    pub drift_hz_per_s: Range,
    /// Width of an oscillator's line, Hz: the emitter's and each receiver's.
    pub line_hz: Range,
    /// Echoes beside the direct path.
    pub echoes: usize,
    /// How much later an echo arrives, microseconds.
    pub echo_us: Range,
    /// Power of an echo under the direct path's, dB.
    pub echo_db: Range,
    /// How gains of paths change.
    pub fading: Fading,
    /// By how many parts in a million a receiver's clock is fast.
    pub clock_ppm: Range,
    /// How much stronger one branch of a receiver's mixer is, dB.
    pub imbalance_db: Range,
    /// How far its branches are from right angles, degrees.
    pub imbalance_degrees: Range,
    /// A constant in both branches, as a part of the root mean square.
    pub constant: Range,
    /// Bits of the converter, 2 to 24; none: it is exact.
    #[serde(default)]
    pub bits: Option<u32>,
    /// How far the converter reaches beyond the root mean square, dB.
    pub headroom_db: f64,
}

impl Default for Physical {
    fn default() -> Self {
        Self {
            sample_rate: 200e3,
            samples: 200_000,
            content: Content::default(),
            longest_us: 1000.0,
            amplifier: Some(Amplifier::Rapp { smoothness: 2.0, back_off_db: 6.0 }),
            drift_hz_per_s: Range(-5.0, 5.0),
            line_hz: Range(0.1, 1.0),
            echoes: 2,
            echo_us: Range(0.5, 5.0),
            echo_db: Range(10.0, 25.0),
            fading: Fading::Rician { doppler_hz: Range(0.5, 5.0), ratio_db: Range(3.0, 12.0) },
            clock_ppm: Range(-2.0, 2.0),
            imbalance_db: Range(-0.5, 0.5),
            imbalance_degrees: Range(-1.0, 1.0),
            constant: Range(-0.01, 0.01),
            bits: Some(12),
            headroom_db: 12.0,
        }
    }
}

/// What is true of a signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// What was asked for.
    pub reception: Reception,
    /// How long the direct path takes, s.
    pub delay: f64,
    /// The emitter's drift, Hz a second.
    pub drift_hz_per_s: f64,
    /// By how many parts in a million the receiver's clock is fast.
    pub clock_ppm: f64,
    /// The power of a tone over its image, dB.
    pub image_rejection_db: f64,
    /// Delays of the echoes behind the direct path, s, and their powers under it, dB.
    pub echoes: Vec<[f64; 2]>,
    /// Numbers that the converter could not hold.
    pub clipped: u64,
}

/// Samples from one gain that is computed to the next; between them they are mixed.
const GAIN_EVERY: usize = 16;
/// The longest delay that there can be, microseconds: 3000 km.
const LONGEST_US: f64 = 1e4;

impl Physical {
    /// Content, delays, frequencies and noise alone: nothing is distorted and nothing fades.
    pub fn ideal() -> Self {
        let none = Range(0.0, 0.0);
        Self {
            amplifier: None,
            drift_hz_per_s: none,
            line_hz: none,
            echoes: 0,
            fading: Fading::None,
            clock_ppm: none,
            imbalance_db: none,
            imbalance_degrees: none,
            constant: none,
            bits: None,
            ..Self::default()
        }
    }

    /// The same with another content.
    pub fn with(&self, content: Content) -> Self {
        Self { content, ..self.clone() }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// A [`Error::Config`] that names the field.
    pub fn validate(&self) -> Result<()> {
        within("sample_rate", self.sample_rate, 1000.0..=1e9)?;
        within("samples", self.samples as f64, 1.0..=f64::from(1 << 30))?;
        let doppler = self.sample_rate / 10.0;
        let fading = match self.fading {
            Fading::None => [None, None],
            Fading::Rayleigh { doppler_hz } => [Some(doppler_hz), None],
            Fading::Rician { doppler_hz, ratio_db } => [Some(doppler_hz), Some(ratio_db)],
        };
        let ranges = [
            ("drift_hz_per_s", Some(self.drift_hz_per_s), -1e6, 1e6),
            ("line_hz", Some(self.line_hz), 0.0, self.sample_rate / 10.0),
            ("echo_us", Some(self.echo_us), 0.0, LONGEST_US),
            ("echo_db", Some(self.echo_db), 0.0, 200.0),
            ("fading.doppler_hz", fading[0], 0.0, doppler),
            ("fading.ratio_db", fading[1], -100.0, 100.0),
            ("clock_ppm", Some(self.clock_ppm), -1000.0, 1000.0),
            ("imbalance_db", Some(self.imbalance_db), -20.0, 20.0),
            ("imbalance_degrees", Some(self.imbalance_degrees), -45.0, 45.0),
            ("constant", Some(self.constant), -10.0, 10.0),
        ];
        for (field, range, least, most) in ranges {
            if let Some(Range(low, high)) = range {
                within(field, low, least..=most)?;
                within(field, high, low..=most)?;
            }
        }
        within("longest_us", self.longest_us, 0.0..=LONGEST_US)?;
        within("echoes", self.echoes as f64, 0.0..=64.0)?;
        within("headroom_db", self.headroom_db, -20.0..=60.0)?;
        if let Some(bits) = self.bits {
            within("bits", f64::from(bits), 2.0..=24.0)?;
        }
        if let Some(amplifier) = &self.amplifier {
            within("amplifier.back_off_db", amplifier.back_off_db(), -20.0..=60.0)?;
            if let Amplifier::Rapp { smoothness, .. } = amplifier {
                within("amplifier.smoothness", *smoothness, 0.5..=20.0)?;
            }
        }
        self.content.validate(self.sample_rate)
    }

    /// Samples of what is sent before the first and behind the last one that a receiver hears of a path without delay.
    fn margin(&self) -> usize {
        let echo = if self.echoes > 0 { self.echo_us.1 } else { 0.0 };
        let clock = self.samples as f64 * 1e-6 * self.clock_ppm.0.abs().max(self.clock_ppm.1.abs());
        (1e-6 * (self.longest_us + echo) * self.sample_rate + clock).ceil() as usize + Interpolator::REACH
    }

    /// What is drawn once for the emitter of an event, whose address is `random`.
    pub(super) fn emitter(&self, random: Random, frequency: f64) -> Emitter {
        Emitter {
            margin: self.margin(),
            frequency,
            carrier: Oscillator::new(frequency / self.sample_rate),
            drift: self.drift_hz_per_s.draw(random.stream("drift"), 0),
            line: self.line(random),
        }
    }

    /// The walk of an oscillator's phase.
    fn line(&self, random: Random) -> Walk {
        let width = self.line_hz.draw(random.stream("line width"), 0);
        Walk { random: random.stream("line"), deviation: (TAU * width / self.sample_rate).sqrt() / TAU }
    }

    /// Samples that are sent, with those before the first and behind the last one that is heard.
    pub(super) fn sent_samples(&self) -> usize {
        self.samples + 2 * self.margin()
    }

    /// What an event's emitter sends. `random` is the event's address.
    fn send(&self, random: Random, frequency: f64) -> Sent {
        let emitter = self.emitter(random, frequency);
        let mut signal = self.content.generate(random.stream("content"), self.sample_rate, self.sent_samples());
        let scale = (1.0 / power(&signal)).sqrt();
        if let Some(amplifier) = &self.amplifier {
            let drive = scale * amplifier.drive();
            for x in &mut signal {
                *x = narrow(amplifier.amplify(wide(*x) * drive));
            }
        }
        let scale = (1.0 / power(&signal)).sqrt();
        let mut walked = emitter.line.phases(signal.len());
        for (i, x) in signal.iter_mut().enumerate() {
            let t = (i as f64 - emitter.margin as f64) / self.sample_rate;
            let phase = turns(emitter.carrier.phase(i as u64)) + 0.5 * emitter.drift * t * t + walked.next();
            *x = narrow(wide(*x) * scale * Complex64::cis(TAU * phase));
        }
        Sent { signal, emitter }
    }

    /// Refuses receptions of an event that make no sense.
    pub(super) fn check(&self, receptions: &[Reception], delays: &[f64]) -> Result<()> {
        receptions.iter().try_for_each(|reception| reception.validate(self.sample_rate))?;
        if delays.len() != receptions.len() {
            return Err(Error::tensor("delays", format!("[{}]", receptions.len()), format!("[{}]", delays.len())));
        }
        delays.iter().try_for_each(|delay| within("delays", *delay, 0.0..=self.longest_us / 1e6))
    }

    /// Signals of all receivers of an event, `[receivers, samples]`. `random` is the event's address; `delays` are those of the direct paths, s. The emitter's
    /// frequency is that of the first receiver, others have theirs from it by their own oscillators.
    ///
    /// # Errors
    /// If a value is out of range or `out` has another length.
    pub fn generate(&self, random: Random, receptions: &[Reception], delays: &[f64], out: &mut [Complex32]) -> Result<Vec<Truth>> {
        self.validate()?;
        self.check(receptions, delays)?;
        if out.len() != receptions.len() * self.samples {
            return Err(Error::tensor("iq", format!("[{}, {}]", receptions.len(), self.samples), format!("{} samples", out.len())));
        }
        let Some(first) = receptions.first() else { return Ok(Vec::new()) };
        let sent = self.send(random, first.frequency_offset_hz);
        let receivers = out.chunks_exact_mut(self.samples).zip(receptions).zip(delays).enumerate();
        let receive = |(i, ((out, reception), delay)): (usize, ((&mut [Complex32], &Reception), &f64))| {
            self.receiver(random.at(i as u64), &sent.emitter, reception, *delay).receive(&sent.signal, out)
        };
        Ok(receivers.map(receive).collect())
    }

    /// Signals of events and receivers as a tensor `[events, receivers, samples, 2]` on a device, and what is true of them: those of the CPU but for rounding.
    /// `random` is the root, of which event e has the address `at(e)`, events counted from `first`; each has its receptions and delays as in
    /// [`generate`](Self::generate). What is sent comes from the CPU's threads, the rest is the device's work.
    ///
    /// # Errors
    /// As [`generate`](Self::generate), if events have different numbers of receivers, or if the device has no memory for them.
    pub fn generate_on(
        &self,
        random: Random,
        first: u64,
        receptions: &[Vec<Reception>],
        delays: &[Vec<f64>],
        device: &Device,
    ) -> Result<(Tensor, Vec<Vec<Truth>>)> {
        self.validate()?;
        let receivers = receivers(receptions)?;
        if delays.len() != receptions.len() {
            return Err(Error::tensor("delays", format!("[{}]", receptions.len()), format!("[{}]", delays.len())));
        }
        receptions.iter().zip(delays).try_for_each(|(receptions, delays)| self.check(receptions, delays))?;
        let shape = (receptions.len(), receivers, self.samples, 2);
        if receptions.is_empty() || receivers == 0 {
            return Ok((Tensor::zeros(shape, DType::F32, device)?, vec![Vec::new(); receptions.len()]));
        }
        #[cfg(feature = "cuda")]
        if device.is_cuda() {
            return super::cuda::physical::generate(self, random, first, receptions, delays, device);
        }
        let mut iq = vec![Complex32::default(); receptions.len() * receivers * self.samples];
        let events = iq.par_chunks_mut(receivers * self.samples).zip(receptions).zip(delays).enumerate();
        let truths =
            events.map(|(event, ((out, receptions), delays))| self.generate(random.at(first + event as u64), receptions, delays, out));
        let truths = truths.collect::<Result<_>>()?;
        let values: Vec<f32> = iq.into_iter().flat_map(|x| [x.re, x.im]).collect();
        Ok((Tensor::from_vec(values, shape, device)?, truths))
    }

    /// What is drawn once for a receiver. `random` is the address of the event and the receiver.
    pub(super) fn receiver(&self, random: Random, emitter: &Emitter, reception: &Reception, delay: f64) -> Receiver {
        let clock_ppm = self.clock_ppm.draw(random.stream("clock"), 0);
        let echo = |i: usize| {
            let draws = random.stream("echo").at(i as u64);
            [1e-6 * self.echo_us.draw(draws, 0), self.echo_db.draw(draws, 1)]
        };
        let echoes: Vec<[f64; 2]> = (0..self.echoes).map(echo).collect();
        let path = |(path, [later, below]): (usize, [f64; 2])| Path {
            begin: emitter.margin as f64 - (delay + later) * self.sample_rate,
            step: 1.0 + 1e-6 * clock_ppm,
            gain: self.gain(random.stream("fading").at(path as u64), path > 0),
            amplitude: 10f64.powf(-below / 20.0),
        };
        let watts = 1e-3 * 10f64.powf(reception.power_dbm / 10.0);
        let noise = watts / 10f64.powf(reception.snr_db / 10.0);
        let level = (watts + noise).sqrt();
        let mixer = random.stream("mixer");
        let imbalance = Imbalance::new(self.imbalance_db.draw(mixer, 0), self.imbalance_degrees.draw(mixer, 1));
        Receiver {
            paths: std::iter::once([0.0, 0.0]).chain(echoes.iter().copied()).enumerate().map(path).collect(),
            oscillator: Oscillator::new((reception.frequency_offset_hz - emitter.frequency) / self.sample_rate),
            line: self.line(random),
            watts,
            noise: random.stream("noise"),
            deviation: (noise / 2.0).sqrt(),
            imbalance,
            constant: Complex64::new(self.constant.draw(mixer, 2), self.constant.draw(mixer, 3)) * level,
            converter: self.bits.map(|bits| Converter::new(bits, level * 10f64.powf(self.headroom_db / 20.0))),
            truth: Truth {
                reception: *reception,
                delay,
                drift_hz_per_s: emitter.drift,
                clock_ppm,
                image_rejection_db: imbalance.image_rejection_db(),
                echoes,
                clipped: 0,
            },
        }
    }

    /// The gain of a path: an echo has nothing that is seen, and where nothing fades a phase of its own.
    fn gain(&self, random: Random, echo: bool) -> Gain {
        let turns = |doppler: Range| doppler.draw(random.stream("doppler"), 0) / self.sample_rate;
        match self.fading {
            Fading::None if echo => Gain::Fixed(Complex64::cis(TAU * f64::from(random.stream("phase").uniform(0)))),
            Fading::None => Gain::Fixed(Complex64::new(1.0, 0.0)),
            Fading::Rayleigh { doppler_hz } => Gain::Rayleigh(Rayleigh::new(random, turns(doppler_hz))),
            Fading::Rician { doppler_hz, .. } if echo => Gain::Rayleigh(Rayleigh::new(random, turns(doppler_hz))),
            Fading::Rician { doppler_hz, ratio_db } => {
                Gain::rician(random, turns(doppler_hz), 10f64.powf(ratio_db.draw(random.stream("ratio"), 0) / 10.0))
            }
        }
    }
}

/// What is drawn once for an emitter.
pub(super) struct Emitter {
    /// The number of the sample that is sent at time 0.
    pub margin: usize,
    /// Hz from the centre.
    pub frequency: f64,
    pub carrier: Oscillator,
    /// Hz a second.
    pub drift: f64,
    pub line: Walk,
}

/// What an emitter sends.
struct Sent {
    /// With a mean power of 1.
    signal: Vec<Complex32>,
    emitter: Emitter,
}

/// A path: the sample that is heard first is that at `begin` of what is sent, and each next one is `step` samples on.
pub(super) struct Path {
    pub begin: f64,
    pub step: f64,
    pub gain: Gain,
    pub amplitude: f64,
}

impl Path {
    /// Adds what arrives on it.
    fn add(&self, sent: &[Complex32], out: &mut [Complex32]) {
        let interpolator = Interpolator::shared();
        for (block, part) in out.chunks_mut(GAIN_EVERY).enumerate() {
            let at = block * GAIN_EVERY;
            let ends = [at, at + GAIN_EVERY].map(|n| self.gain.at(n as f64) * self.amplitude);
            for (j, x) in part.iter_mut().enumerate() {
                let share = j as f64 / GAIN_EVERY as f64;
                let place = self.begin + (at + j) as f64 * self.step;
                *x += narrow(ends[0] + (ends[1] - ends[0]) * share) * interpolator.at(sent, place);
            }
        }
    }
}

/// What is drawn once for a receiver.
pub(super) struct Receiver {
    pub paths: Vec<Path>,
    /// Of the frequency by which it is apart from the emitter's.
    pub oscillator: Oscillator,
    pub line: Walk,
    /// The signal's power, W.
    pub watts: f64,
    /// The noise's numbers, and the deviation of either part.
    pub noise: Random,
    pub deviation: f64,
    pub imbalance: Imbalance,
    pub constant: Complex64,
    pub converter: Option<Converter>,
    /// All but how many numbers the converter cannot hold.
    pub truth: Truth,
}

impl Receiver {
    /// What it has of what is sent: all paths, its power, oscillator, noise, mixer and converter.
    fn receive(self, sent: &[Complex32], out: &mut [Complex32]) -> Truth {
        out.fill(Complex32::default());
        self.paths.iter().for_each(|path| path.add(sent, out));
        let mean = power(out);
        let scale = if mean > 0.0 { (self.watts / mean).sqrt() } else { 0.0 };
        let mut numbers = vec![0.0; 2 * out.len()];
        self.noise.fill_normal(0, &mut numbers);
        let mut walked = self.line.phases(out.len());
        let mut clipped = 0;
        for (i, (x, noise)) in out.iter_mut().zip(numbers.chunks_exact(2)).enumerate() {
            let phase = turns(self.oscillator.phase(i as u64)) + walked.next();
            let noise = Complex64::new(f64::from(noise[0]), f64::from(noise[1])) * self.deviation;
            let mixed = self.imbalance.apply(wide(*x) * scale * Complex64::cis(TAU * phase) + noise) + self.constant;
            *x = narrow(self.converter.as_ref().map_or(mixed, |converter| {
                clipped += [mixed.re, mixed.im].into_iter().filter(|part| converter.clips(*part)).count() as u64;
                Complex64::new(converter.convert(mixed.re), converter.convert(mixed.im))
            }));
        }
        Truth { clipped, ..self.truth }
    }
}

/// The phase of an oscillator whose line has a width: a walk whose steps have the variance 2 pi width / rate, radians squared.
pub(super) struct Walk {
    /// The steps' numbers, and what they are multiplied by, in turns.
    pub random: Random,
    pub deviation: f64,
}

impl Walk {
    /// Its phases sample by sample, of so many at most.
    fn phases(&self, samples: usize) -> Phases<'_> {
        Phases { walk: self, block: vec![0.0; samples.min(1024)], index: 0, phase: 0.0 }
    }
}

struct Phases<'w> {
    walk: &'w Walk,
    block: Vec<f32>,
    index: usize,
    phase: f64,
}

impl Phases<'_> {
    /// The next phase, in turns.
    fn next(&mut self) -> f64 {
        let Walk { random, deviation } = self.walk;
        if *deviation == 0.0 {
            return 0.0;
        }
        let place = self.index % self.block.len();
        if place == 0 {
            random.fill_normal(self.index as u64, &mut self.block);
        }
        self.phase += deviation * f64::from(self.block[place]);
        self.index += 1;
        self.phase
    }
}

fn turns(phase: u64) -> f64 {
    phase as f64 / 18_446_744_073_709_551_616.0
}

//! Signals of several kinds, drawn as a classifier learns and is measured on them.

use candle_models::random::Random;
use candle_models::rf::synthesis::{Content, Digital, Fading, Modulation, Physical, Range, Reception};
use candle_models::rf::{Complex32, Complex64, narrow, within};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};

/// A kind of signal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Class {
    /// What it is called.
    pub name: String,
    /// What is sent.
    pub content: Content,
}

/// What lies between an emitter and the classifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Channel {
    /// A receiver that knows phase, timing and power, and filters with the symbols' pulse: each of its samples is a point of the modulation, and white noise.
    Coherent,
    /// Samples as they are received.
    Received {
        /// How far the carrier is from the centre, Hz.
        frequency_hz: Range,
        /// Paths and receiver; the content is that of the class.
        signal: Box<Physical>,
    },
}

impl Channel {
    /// Three paths within two samples that do not change while so many samples last, the carrier within 500 Hz, the clock within 50 parts in a million: after the
    /// channel of the data set RadioML 2016.10a.
    pub fn received(samples: usize) -> Self {
        let signal = Box::new(Physical {
            samples,
            longest_us: 0.0,
            echoes: 2,
            echo_us: Range(1.0, 9.0),
            echo_db: Range(2.0, 12.0),
            fading: Fading::Rician { doppler_hz: Range(0.0, 1.0), ratio_db: Range(6.0, 12.0) },
            line_hz: Range(0.1, 1.0),
            clock_ppm: Range(-50.0, 50.0),
            ..Physical::ideal()
        });
        Self::Received { frequency_hz: Range(-500.0, 500.0), signal }
    }
}

/// What is drawn: each kind as often as the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signals {
    /// The kinds.
    pub classes: Vec<Class>,
    /// The signal's power over the noise's in the whole band, dB: drawn evenly.
    pub snr_db: Range,
    /// What lies in between.
    pub channel: Channel,
}

impl Signals {
    /// The names of the classes.
    pub fn names(&self) -> Vec<String> {
        self.classes.iter().map(|class| class.name.clone()).collect()
    }

    /// The modulation of each class, if all have symbols that are points.
    pub fn modulations(&self) -> Option<Vec<Modulation>> {
        let modulation = |class: &Class| match class.content {
            Content::Digital(Digital { modulation, .. }) => Some(modulation).filter(|modulation| !modulation.points().is_empty()),
            _ => None,
        };
        self.classes.iter().map(modulation).collect()
    }

    /// Refuses what makes no sense for a classifier of so many samples.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self, samples: usize) -> Result<()> {
        let Range(low, high) = self.snr_db;
        for (value, least) in [(low, -100.0), (high, low)] {
            within("task.signals.snr_db", value, least..=100.0)?;
        }
        match &self.channel {
            Channel::Coherent => {
                let points = |class: &&Class| !matches!(class.content, Content::Digital(Digital { modulation, .. }) if !modulation.points().is_empty());
                match self.classes.iter().find(points) {
                    Some(Class { name, .. }) => {
                        Err(Error::config("task.signals.classes", format!("'{name}': expected a modulation whose symbols are points")))
                    }
                    None => Ok(()),
                }
            }
            Channel::Received { frequency_hz, signal } => {
                let named = |error| match error {
                    Error::Config { field, reason } => Error::config(format!("task.signals.channel.signal.{field}"), reason),
                    other => other,
                };
                if signal.samples != samples {
                    let reason = format!("expected the {samples} of task.model.samples, found {}", signal.samples);
                    return Err(Error::config("task.signals.channel.signal.samples", reason));
                }
                let (most, Range(low, high)) = (signal.sample_rate / 2.0, *frequency_hz);
                for (value, least) in [(low, -most), (high, low)] {
                    within("task.signals.channel.frequency_hz", value, least..=most)?;
                }
                self.classes.iter().try_for_each(|class| signal.with(class.content.clone()).validate().map_err(named))
            }
        }
    }

    /// Writes a signal of a class, with that signal-to-noise ratio. Its address is `random`.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn draw(&self, random: Random, class: usize, snr_db: f64, out: &mut [Complex32]) -> Result<()> {
        let content = &self.classes[class].content;
        match (&self.channel, content) {
            (Channel::Received { frequency_hz, signal }, _) => {
                let frequency_offset_hz = frequency_hz.draw(random.stream("frequency"), 0);
                let reception = Reception { frequency_offset_hz, power_dbm: 0.0, snr_db };
                signal.with(content.clone()).generate(random.stream("signal"), &[reception], &[0.0], out)?;
            }
            (Channel::Coherent, Content::Digital(Digital { modulation, .. })) => {
                let (points, symbols) = (modulation.points(), random.stream("symbols"));
                let deviation = (10f64.powf(-snr_db / 10.0) / 2.0).sqrt();
                let mut noise = vec![0.0; 2 * out.len()];
                random.stream("noise").fill_normal(0, &mut noise);
                for ((i, to), noise) in out.iter_mut().enumerate().zip(noise.chunks_exact(2)) {
                    let point = points[symbols.below(i as u64, points.len() as u32) as usize];
                    *to = narrow(point + Complex64::new(f64::from(noise[0]), f64::from(noise[1])) * deviation);
                }
            }
            (Channel::Coherent, _) => return Err(Error::config("task.signals.classes", "expected modulations whose symbols are points")),
        }
        Ok(())
    }
}

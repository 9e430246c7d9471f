//! What a beam controller is made of, as plain data.

use super::array::{Array, phasor};
use super::{ChannelConfig, CodebookConfig, Pursuit, SparseChannel, within};
use crate::nn::MambaConfig;
use crate::random::Random;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Which parts are learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// The user's network; the base station transmits the beam of its codebook that the user names.
    C1,
    /// The user's and the base station's networks; the codebook that is swept is fixed.
    C2,
    /// Both networks and the codebook.
    C3,
}

/// The recurrent part of the user's network.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum MemoryConfig {
    /// Gated recurrent units, one over the other.
    Gru {
        /// Layers.
        layers: usize,
    },
    /// Mamba blocks.
    Mamba {
        /// Blocks.
        layers: usize,
        /// Sizes of a block.
        #[serde(default)]
        block: MambaConfig,
    },
}

/// What the user tells the base station behind the last measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Feedback {
    /// The number of a beam.
    Index,
    /// Real numbers.
    Reals {
        /// How many.
        values: usize,
    },
    /// Numbers in -1 to 1, rounded to a grid.
    Quantised {
        /// How many.
        values: usize,
        /// Bits of each.
        bits: u32,
    },
}

/// What an array can do to the signals of its antennas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Weighting {
    /// Any amplitude and phase.
    #[default]
    Free,
    /// Phase shifters: every antenna has the same amplitude.
    Phases,
    /// Phase shifters with `2^bits` positions.
    QuantisedPhases {
        /// Bits of a phase.
        bits: u32,
    },
}

/// How the learned beams of a sweep depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sweep {
    /// As published: not at all.
    Free,
    /// They are one beam, its direction cosine moved by 2 / C from each to the next: `f_c[n] = f_0[n] exp(j 2 pi n c / C)`. A sweep
    /// that starts elsewhere is then the same sweep of a channel whose departures are moved, so the networks see every sweep from its
    /// start, and what the base station's network gives is moved back.
    Shifted,
}

/// What the user's network reads of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum View {
    /// As published: `[re y, im y, number of the beam]`.
    Scalars,
    /// The measurement in antenna space, `y w`, in a place of the beam that it was sent with; `y`, the beam as one of C, the progress
    /// and the SNR. The phase of the first measurement is the reference of all.
    Antennas,
}

/// What the user decides by, behind the last measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum DecisionConfig {
    /// As published: the state of the memory.
    State,
    /// The state and all measurements in antenna space, through residual blocks. With scheme C1 they give a receive beam for every
    /// beam of the codebook, and the user keeps that of the beam that it asks for: the best receive beams of two transmit beams that are
    /// equally good need not be alike.
    Measurements {
        /// Width of the blocks.
        width: usize,
        /// Blocks.
        layers: usize,
        /// Paths of a [`SparseChannel`](super::SparseChannel) that is estimated of the measurements; 0: none. The layers read it beside them, and what
        /// they learn is added to its beams: to the one to receive with, and to that of the paths that the feedback then begins with. The beams that are
        /// swept then stay what they are, also with scheme C3.
        #[serde(default, skip_serializing_if = "is_default")]
        paths: usize,
        /// How many of them, from the first on, are looked for again when all have been found: at most all.
        #[serde(default, skip_serializing_if = "is_default")]
        again: usize,
        /// Directions of the estimate's grids for each antenna: 3 lose less between them than 2, over twice the pairs.
        #[serde(default = "two", skip_serializing_if = "is_two")]
        directions: usize,
        /// Places that the estimate begins at, at most 8: it is the mean of what is found from each, in so many times the time. 0: the first path is looked for everywhere, once.
        #[serde(default, skip_serializing_if = "is_default")]
        places: usize,
        /// The least share of the mean power of the measurements that the estimate takes for noise, less than 1. With 0.01 rounding decides less, and
        /// little else changes where the SNR is 10 dB or less; 0: noise is what the SNR says.
        #[serde(default, skip_serializing_if = "is_default")]
        unexplained: f64,
    },
}

impl DecisionConfig {
    /// So many blocks of that width, and no estimate.
    pub fn measurements(width: usize, layers: usize) -> Self {
        Self::Measurements { width, layers, paths: 0, again: 0, directions: two(), places: 0, unexplained: 0.0 }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn two() -> usize {
    2
}

fn is_two(count: &usize) -> bool {
    *count == two()
}

/// A beam controller.
///
/// ```
/// use candle_models::beam::BeamConfig;
///
/// let config = BeamConfig::default();
/// assert!(config.validate().is_ok());
/// assert!(BeamConfig { measurements: 0, ..config }.validate().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BeamConfig {
    /// Which parts are learned.
    pub scheme: Scheme,
    /// The arrays, and the channels that it was trained on.
    pub channel: ChannelConfig,
    /// The beams that the base station sweeps: with scheme C3 those that training starts from.
    pub codebook: CodebookConfig,
    /// How learned beams depend on each other: for scheme C3.
    pub sweep: Sweep,
    /// Measurements of an episode (T).
    pub measurements: usize,
    /// What the user's network reads.
    pub view: View,
    /// The user's memory.
    pub memory: MemoryConfig,
    /// Its width.
    pub hidden: usize,
    /// What the user decides by.
    pub decision: DecisionConfig,
    /// Width of the base station's layers.
    pub base: usize,
    /// What the user tells the base station.
    pub feedback: Feedback,
    /// What the user's array can do.
    pub receive_weights: Weighting,
    /// What the base station's array can do, with scheme C1 too.
    pub transmit_weights: Weighting,
}

impl Default for BeamConfig {
    fn default() -> Self {
        Self {
            scheme: Scheme::C3,
            channel: ChannelConfig::default(),
            codebook: CodebookConfig::Random { count: 8, seed: 1 },
            sweep: Sweep::Shifted,
            measurements: 16,
            view: View::Antennas,
            memory: MemoryConfig::Gru { layers: 2 },
            hidden: 160,
            decision: DecisionConfig::measurements(512, 2),
            base: 256,
            feedback: Feedback::Reals { values: 16 },
            receive_weights: Weighting::Free,
            transmit_weights: Weighting::Free,
        }
    }
}

impl Weighting {
    fn validate(self, field: &str) -> Result<()> {
        match self {
            Self::QuantisedPhases { bits } => within(&format!("{field}.bits"), bits, 1..=16),
            _ => Ok(()),
        }
    }
}

impl BeamConfig {
    /// Names the field that is out of range. The limits keep a hostile file from asking for absurd memory.
    pub fn validate(&self) -> Result<()> {
        self.channel.validate()?;
        within("measurements", self.measurements, 1..=1024)?;
        within("codebook.count", self.codebook.count(), 1..=1024)?;
        within("hidden", self.hidden, 8..=4096)?;
        within("base", self.base, 8..=4096)?;
        match &self.memory {
            MemoryConfig::Gru { layers } => within("memory.layers", *layers, 1..=16)?,
            MemoryConfig::Mamba { layers, block } => within("memory.layers", *layers, 1..=64).and(block.validate())?,
        }
        if let DecisionConfig::Measurements { width, layers, paths, again, directions, places, unexplained } = self.decision {
            within("decision.width", width, 8..=8192)?;
            within("decision.layers", layers, 1..=64)?;
            within("decision.paths", paths, 0..=64)?;
            within("decision.again", again, 0..=paths)?;
            within("decision.directions", directions, 1..=8)?;
            within("decision.places", places, 0..=if paths > 0 { SparseChannel::PLACES } else { 0 })?;
            if !(0.0..1.0).contains(&unexplained) || (paths == 0 && unexplained > 0.0) {
                let most = if paths > 0 { "below 1" } else { "0 without an estimate" };
                return Err(Error::config("decision.unexplained", format!("expected a share of at least 0, {most}, found {unexplained}")));
            }
            let linear = [self.channel.receive, self.channel.transmit].iter().all(|array| matches!(array, Array::Ula { .. }));
            if paths > 0 && !linear {
                return Err(Error::config("decision.paths", "its directions are those of linear arrays: expected 0 with a planar one"));
            }
            let told = 3 * SparseChannel::TOLD;
            let fits = self.feedback == Feedback::Index || matches!(self.feedback, Feedback::Reals { values } if values > told);
            if paths > 0 && !fits {
                return Err(Error::config(
                    "decision.paths",
                    format!("expected 0, or as feedback an index or more than {told} reals, which tell of its paths"),
                ));
            }
        }
        match self.feedback {
            Feedback::Index => {}
            Feedback::Reals { values } => within("feedback.values", values, 1..=1024)?,
            Feedback::Quantised { values, bits } => {
                within("feedback.values", values, 1..=1024)?;
                within("feedback.bits", bits, 1..=16)?;
            }
        }
        if (self.scheme == Scheme::C1) != (self.feedback == Feedback::Index) {
            return Err(Error::config("feedback.kind", "an index goes with scheme C1, and only with it"));
        }
        self.receive_weights.validate("receive_weights")?;
        self.transmit_weights.validate("transmit_weights")
    }

    /// `beam c3 gru 2x384, 16 measurements`.
    pub fn name(&self) -> String {
        let scheme = match self.scheme {
            Scheme::C1 => "c1",
            Scheme::C2 => "c2",
            Scheme::C3 => "c3",
        };
        let (kind, layers) = match &self.memory {
            MemoryConfig::Gru { layers } => ("gru", layers),
            MemoryConfig::Mamba { layers, .. } => ("mamba", layers),
        };
        format!("beam {scheme} {kind} {layers}x{}, {} measurements", self.hidden, self.measurements)
    }

    /// Whether the networks see a sweep from its start.
    pub fn is_relative(&self) -> bool {
        self.scheme == Scheme::C3 && self.sweep == Sweep::Shifted
    }

    /// What a transmit beam is multiplied by to move its direction cosine by `2 times / C`, `[N_TX, 2]`.
    pub fn shift(&self, times: u32) -> Vec<f32> {
        let ((_, columns), beams) = (self.channel.transmit.shape(), self.codebook.count());
        let phase = |n: usize| phasor(2.0 * ((n % columns * times as usize) % beams) as f64 / beams as f64);
        (0..self.channel.transmit.elements()).flat_map(|n| phase(n).map(|x| x as f32)).collect()
    }

    /// What the estimate looks for that a decision stands on; it may stand on none.
    pub fn pursuit(&self) -> Option<Pursuit> {
        match self.decision {
            DecisionConfig::Measurements { paths, again, directions, places, unexplained, .. } if paths > 0 => {
                Some(Pursuit { paths, again, directions, places, unexplained })
            }
            _ => None,
        }
    }

    /// The beam that the sweep of an episode begins with: any with scheme C3, by the stream `start` of `random` and the episode's number;
    /// otherwise the first.
    pub fn start(&self, random: Random, episode: u64) -> u32 {
        let beams = if self.scheme == Scheme::C3 { self.codebook.count() as u32 } else { 1 };
        random.stream("start").below(episode, beams)
    }

    /// The number of the beam that is sent in step `step` of a sweep from beam `start` on.
    pub fn sent(&self, start: u32, step: usize) -> usize {
        (start as usize + step) % self.codebook.count()
    }

    /// The number under which the networks see that beam.
    pub fn seen(&self, start: u32, step: usize) -> usize {
        self.sent(if self.is_relative() { 0 } else { start }, step)
    }

    /// Numbers of a receive beam, `2 N_RX`.
    pub fn receive_width(&self) -> usize {
        2 * self.channel.receive.elements()
    }

    /// Receive beams that the decision gives: one, or one for every beam of the codebook.
    pub fn candidates(&self) -> usize {
        let chooses = self.scheme == Scheme::C1 && matches!(self.decision, DecisionConfig::Measurements { .. });
        if chooses { self.codebook.count() } else { 1 }
    }

    /// Numbers of a transmit beam, `2 N_TX`.
    pub fn transmit_width(&self) -> usize {
        2 * self.channel.transmit.elements()
    }

    /// Numbers that the user's network gives for the base station: with scheme C1 a score for every beam.
    pub fn feedback_width(&self) -> usize {
        match self.feedback {
            Feedback::Index => self.codebook.count(),
            Feedback::Reals { values } | Feedback::Quantised { values, .. } => values,
        }
    }

    /// Numbers that the user's network reads of a measurement.
    pub fn features(&self) -> usize {
        match self.view {
            View::Scalars => 3,
            View::Antennas => self.codebook.count() * self.receive_width() + 2 + self.codebook.count() + 2,
        }
    }

    /// Numbers of all measurements of an episode in antenna space, `[C, ceil(T / C), N_RX, 2]`.
    pub fn record(&self) -> usize {
        let beams = self.codebook.count();
        beams * self.measurements.div_ceil(beams) * self.receive_width()
    }

    /// Where in the record the measurement number `step` lies, made with beam `index`.
    pub fn record_place(&self, step: usize, index: usize) -> std::ops::Range<usize> {
        let (beams, width) = (self.codebook.count(), self.receive_width());
        let at = (index * self.measurements.div_ceil(beams) + step / beams) * width;
        at..at + width
    }
}

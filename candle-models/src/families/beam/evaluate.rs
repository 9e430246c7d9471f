//! What controllers and baselines gain on the same channels.

use super::baselines::{Baseline, Beams, Estimator, Measured, Transmits, Trial};
use super::channel::{noise_deviation, noise_power};
use super::complex::{normalise, squared_norm};
use super::user::ANTENNA_SCALE;
use super::{Beam, BeamConfig, ChannelConfig, Channels, Episodes, Sensing, Summary, Tapes, within};
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use rayon::prelude::*;
use std::sync::Arc;

/// Channels of a batch.
const BATCH: usize = 512;

/// A share of an evaluation. Channel i, its noise and where its sweep starts depend on the seed and on i alone, so that shares can
/// be evaluated apart, and every method meets the same channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The seed; everything random is addressed below its stream `evaluation`.
    pub seed: u64,
    /// Signal-to-noise ratio in dB.
    pub snr_db: f32,
    /// Measurements (T); gains are those of the channel at the last one.
    pub measurements: usize,
    /// What reaches a controller's networks. With [`Sensing::Shuffled`] the partner of a channel depends on the share.
    pub sensing: Sensing,
    /// Number of the share's first channel.
    pub first: u64,
    /// Channels of the share; with none there are no gains.
    pub count: usize,
}

/// Gains `G = |w^H H f|^2`, one for each channel of a share.
#[derive(Debug, Clone, PartialEq)]
pub struct Gains {
    /// The gains, in the order of the channels.
    pub values: Vec<f32>,
    /// The signal-to-noise ratio that they were reached at, in dB.
    pub snr_db: f32,
}

impl Gains {
    /// What they amount to.
    ///
    /// # Errors
    /// As [`Summary::new`]: a share without channels has none.
    pub fn summary(&self) -> Result<Summary> {
        Summary::new(&self.values, self.snr_db)
    }
}

impl Evaluation {
    /// What a controller gains on channels like those of its configuration. The sweep starts anywhere with scheme C3, at beam 0 otherwise.
    ///
    /// # Errors
    /// An SNR that is not finite or beyond 100 dB to either side (`snr_db`), no measurement or more than the controller makes
    /// (`measurements`).
    pub fn controller(&self, model: &Beam, tapes: &Tapes) -> Result<Gains> {
        self.controller_on(model, &model.config.channel, tapes)
    }

    /// The same on channels of another configuration than those that it was trained on, between the same arrays.
    ///
    /// # Errors
    /// As [`Evaluation::controller`], and if the arrays are others.
    pub fn controller_on(&self, model: &Beam, channel: &ChannelConfig, tapes: &Tapes) -> Result<Gains> {
        let config = &model.config;
        within("measurements", self.measurements, 1..=config.measurements)?;
        if channel.arrays() != config.channel.arrays() {
            let [found, expected] = [channel, &config.channel].map(|channel| format!("{:?}", channel.arrays()));
            return Err(Error::config("channel", format!("expected the controller's arrays {expected}, found {found}")));
        }
        self.gains(channel, |channels, first| {
            let decided = model.align(&self.episodes(config, channels, first), tapes)?;
            Ok(Beams { receive: host(&decided.receive)?, transmit: host(&decided.transmit)? })
        })
    }

    /// What an [`Estimator`] gains on the very measurements of [`Evaluation::controller`]: with scheme C1 it chooses a beam of the
    /// codebook, otherwise any, whatever the arrays can form. A channel takes ten milliseconds.
    ///
    /// # Errors
    /// As [`Evaluation::controller`] and [`Estimator::new`].
    pub fn estimator(&self, model: &Beam, tapes: &Tapes) -> Result<Gains> {
        let config = &model.config;
        within("measurements", self.measurements, 1..=config.measurements)?;
        let estimator = Estimator::new(&config.channel, model.sweep()?)?;
        let transmits = Transmits::of(config.scheme);
        let (random, noise) = (self.random().stream("posterior"), noise_power(self.snr_db)?);
        self.gains(&config.channel, |channels, first| {
            let episodes = self.episodes(config, channels, first);
            let seen = host(&model.measure(&episodes, tapes)?)?;
            let conclude = |(i, seen): (usize, &[f32])| {
                let measured = self.measured(config, episodes.start[i], seen);
                let measured = Measured { beams: &measured.0, sent: &measured.1, values: &measured.2, noise };
                estimator.conclude(&measured, transmits, random.at(first.wrapping_add(i as u64)))
            };
            let rows = seen.par_chunks(seen.len() / channels.batch()).enumerate();
            let found = rows.map(conclude).collect::<Result<Vec<_>>>()?;
            Ok(Beams {
                receive: found.iter().flat_map(|found| &found.receive).copied().collect(),
                transmit: found.iter().flat_map(|found| &found.transmit).copied().collect(),
            })
        })
    }

    /// Beams, what they were sent with, and values of the measurements that a record holds. It holds `y w` in antenna space: a common
    /// phase of beam and value is lost, and changes nothing of what they say.
    fn measured(&self, config: &BeamConfig, start: u32, record: &[f32]) -> (Vec<f32>, Vec<usize>, Vec<f32>) {
        let (mut beams, mut sent, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for step in 0..self.measurements {
            let mut beam = record[config.record_place(step, config.seen(start, step))].to_vec();
            values.extend([(squared_norm(&beam).sqrt() / f64::from(ANTENNA_SCALE)) as f32, 0.0]);
            normalise(&mut beam);
            beams.extend(beam);
            sent.push(config.sent(start, step));
        }
        (beams, sent, values)
    }

    /// The episodes of channels `first..`.
    fn episodes(&self, config: &BeamConfig, channels: &Arc<Channels>, first: u64) -> Episodes {
        let (random, batch) = (self.random(), channels.batch());
        Episodes {
            channels: channels.clone(),
            measurements: self.measurements,
            start: (0..batch as u64).map(|i| config.start(random, first.wrapping_add(i))).collect(),
            snr_db: vec![self.snr_db; batch],
            noise: random.stream("noise"),
            first,
            sensing: self.sensing,
        }
    }

    /// What a baseline gains on channels of a configuration: its measurements are all made at the step of a controller's last.
    ///
    /// # Errors
    /// As [`Evaluation::controller`], and as [`Baseline::beams`].
    pub fn baseline(&self, baseline: &Baseline, config: &ChannelConfig) -> Result<Gains> {
        let (step, snr_db, noise) = (self.measurements.wrapping_sub(1), self.snr_db, self.random().stream("probes"));
        self.gains(config, |channels, first| baseline.beams(&Trial { channels, step, snr_db, noise, first }))
    }

    fn random(&self) -> Random {
        Random::new(self.seed).stream("evaluation")
    }

    fn gains(&self, config: &ChannelConfig, beams: impl Fn(&Arc<Channels>, u64) -> Result<Beams>) -> Result<Gains> {
        noise_deviation(self.snr_db)?;
        within("measurements", self.measurements, 1..=1024)?;
        let mut values = Vec::new();
        while values.len() < self.count {
            let (first, batch) = (self.first.wrapping_add(values.len() as u64), BATCH.min(self.count - values.len()));
            // A row of its own would be given its own measurements: an even number of rows leaves none alone in a block.
            let made = if self.sensing == Sensing::Shuffled { batch.next_multiple_of(2) } else { batch };
            let channels = Arc::new(Channels::generate(config, self.random().stream("channels"), first, made, self.measurements)?);
            let gains = beams(&channels, first)?.gains(&channels, self.measurements - 1);
            values.extend_from_slice(&gains[..batch]);
        }
        Ok(Gains { values, snr_db: self.snr_db })
    }
}

fn host(beams: &Tensor) -> Result<Vec<f32>> {
    Ok(beams.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

#[cfg(test)]
mod tests {
    use super::super::{BeamConfig, ChannelModel, DecisionConfig, Feedback, Geometric, Scheme, alignment};
    use super::*;
    use crate::nn::Params;
    use candle_core::Device;

    fn small(scheme: Scheme) -> Beam {
        let decision = DecisionConfig::measurements(32, 1);
        let mut config = BeamConfig { scheme, measurements: 5, hidden: 16, base: 16, decision, ..BeamConfig::default() };
        if scheme == Scheme::C1 {
            config.feedback = Feedback::Index;
        }
        Beam::new(&config, &Params::init(Random::new(3), &Device::Cpu)).unwrap()
    }

    fn evaluation(first: u64, count: usize) -> Evaluation {
        Evaluation { seed: 4, snr_db: 10.0, measurements: 5, sensing: Sensing::Measurements, first, count }
    }

    fn assert_close(found: &[f32], want: &[f32]) {
        assert_eq!(found.len(), want.len());
        for (i, (x, y)) in found.iter().zip(want).enumerate() {
            assert!((x - y).abs() <= 2e-3 * (1.0 + y.abs()), "channel {i}: {x} and {y}");
        }
    }

    #[test]
    fn shares_together_are_the_whole() {
        let (whole, tapes) = (evaluation(7, 600), Tapes::default());
        let shares = [evaluation(7, 130), evaluation(137, 0), evaluation(137, 470)];
        for scheme in [Scheme::C1, Scheme::C3] {
            let model = small(scheme);
            let parts = shares.map(|share| share.controller(&model, &tapes).unwrap().values).concat();
            assert_close(&parts, &whole.controller(&model, &tapes).unwrap().values);
        }
        let config = ChannelConfig::default();
        for baseline in Baseline::standard(&config).unwrap() {
            let parts = shares.map(|share| share.baseline(&baseline, &config).unwrap().values).concat();
            assert_eq!(parts, whole.baseline(&baseline, &config).unwrap().values, "{}", baseline.name());
        }
        assert!(shares[1].baseline(&Baseline::Genie, &config).unwrap().summary().is_err(), "nothing to sum up");
    }

    #[test]
    fn gains_are_those_of_the_episodes_at_their_last_step() {
        let (mut model, tapes) = (small(Scheme::C3), Tapes::default());
        model.config.channel.mobility = Some(super::super::Mobility { doppler: 0.05, drift: 2.0 });
        let random = Random::new(4).stream("evaluation");
        let channels = Arc::new(Channels::generate(&model.config.channel, random.stream("channels"), 2, 40, 4).unwrap());
        let episodes = Episodes {
            channels: channels.clone(),
            measurements: 4,
            start: (2..42).map(|i| random.stream("start").below(i, 8)).collect(),
            snr_db: vec![3.0; 40],
            noise: random.stream("noise"),
            first: 2,
            sensing: Sensing::Measurements,
        };
        let decided = model.align(&episodes, &tapes).unwrap();
        let shares = alignment(&channels, 3, &decided.receive, &decided.transmit).unwrap();
        let shares = shares.narrow(1, 0, 1).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let want: Vec<f32> = shares.iter().zip(channels.power().chunks_exact(4)).map(|(share, power)| share * power[3]).collect();
        let found = Evaluation { snr_db: 3.0, measurements: 4, ..evaluation(2, 40) }.controller(&model, &tapes).unwrap();
        assert_close(&found.values, &want);
        let genie = Evaluation { measurements: 4, ..evaluation(2, 40) }.baseline(&Baseline::Genie, &model.config.channel).unwrap();
        assert!(genie.values.iter().zip(&want).all(|(bound, gain)| *gain <= 1.0001 * bound));
    }

    /// A lone path that is heard well is found in the measurements of networks that learned nothing, wherever the sweep started.
    #[test]
    fn an_estimator_reads_the_measurements_of_a_controller() {
        for scheme in [Scheme::C1, Scheme::C3] {
            let (mut model, tapes) = (small(scheme), Tapes::default());
            model.config.channel.model = ChannelModel::Geometric(Geometric { paths: 1, ..Geometric::default() });
            let whole = Evaluation { snr_db: 40.0, ..evaluation(3, 12) };
            let found = whole.estimator(&model, &tapes).unwrap();
            let bound = match scheme {
                Scheme::C1 => Baseline::Mrc(model.sweep().unwrap()),
                Scheme::C2 | Scheme::C3 => Baseline::Genie,
            };
            let bound = whole.baseline(&bound, &model.config.channel).unwrap();
            let lost = bound.values.iter().zip(&found.values).map(|(bound, gain)| 10.0 * (bound / gain).log10());
            let mut lost: Vec<f32> = lost.collect();
            lost.sort_by(f32::total_cmp);
            assert!(lost[0] > -1e-3 && lost[6] < 0.2, "{scheme:?}: {lost:?}");
            let share = Evaluation { snr_db: 40.0, ..evaluation(9, 2) }.estimator(&model, &tapes).unwrap();
            assert_close(&share.values, &found.values[6..8]);
        }
    }

    #[test]
    fn a_controller_meets_channels_of_another_configuration() {
        let (mut model, tapes) = (small(Scheme::C3), Tapes::default());
        let other = ChannelConfig { mobility: Some(super::super::Mobility { doppler: 0.05, drift: 2.0 }), ..model.config.channel.clone() };
        let found = evaluation(2, 40).controller_on(&model, &other, &tapes).unwrap().values;
        assert!(found != evaluation(2, 40).controller(&model, &tapes).unwrap().values);
        model.config.channel = other.clone();
        assert_eq!(found, evaluation(2, 40).controller(&model, &tapes).unwrap().values);
        let smaller = ChannelConfig { receive: super::super::Array::Ula { elements: 4 }, ..other };
        let message = evaluation(2, 0).controller_on(&model, &smaller, &tapes).unwrap_err().to_string();
        assert!(message.starts_with("config: channel: ") && message.contains("16") && message.contains('4'), "{message}");
    }

    #[test]
    fn no_channel_is_shuffled_onto_itself() {
        let (model, tapes) = (small(Scheme::C3), Tapes::default());
        for count in [1, 65, 513] {
            let with = evaluation(0, count).controller(&model, &tapes).unwrap().values;
            let shuffled = Evaluation { sensing: Sensing::Shuffled, ..evaluation(0, count) }.controller(&model, &tapes).unwrap().values;
            assert_eq!(shuffled.len(), count);
            assert!(with.last() != shuffled.last(), "the last of {count} met its own measurements");
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let (model, tapes, config) = (small(Scheme::C3), Tapes::default(), ChannelConfig::default());
        for (snr_db, measurements, field) in
            [(f32::NAN, 5, "snr_db"), (f32::INFINITY, 5, "snr_db"), (10.0, 0, "measurements"), (10.0, 6, "measurements")]
        {
            // Without channels too: a rank that has none must not hide what is wrong.
            for count in [0, 2] {
                let evaluation = Evaluation { snr_db, measurements, ..evaluation(0, count) };
                let message = evaluation.controller(&model, &tapes).unwrap_err().to_string();
                assert!(message.starts_with(&format!("config: {field}: ")), "{message}");
                if measurements != 6 {
                    let message = evaluation.baseline(&Baseline::Genie, &config).unwrap_err().to_string();
                    assert!(message.starts_with(&format!("config: {field}: ")), "{message}");
                }
            }
        }
    }
}

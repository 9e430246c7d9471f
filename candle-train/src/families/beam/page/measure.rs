//! The figures of the page, before they are text.

use super::{ABLATION_PRECISION_DB, ESTIMATED, MEASUREMENTS, MEASUREMENTS_SNR_DB, Model, PRECISION_DB, SEED, SNR_DB, SNRS_DB};
use candle_models::beam::baselines::{Estimator, Probing};
use candle_models::beam::metrics::decibels;
use candle_models::beam::{Baseline, Beam, BeamConfig, ChannelConfig, Evaluation, Gains, Scheme, Sensing, Summary, Tapes};
use candle_models::{Error, Result};

/// Channels that are evaluated before it is asked whether they are enough.
const CHUNK: usize = 2048;
/// Ablations and what they are called.
const ABLATIONS: [(Sensing, &str); 3] =
    [(Sensing::Nothing, "no measurements"), (Sensing::Shuffled, "another channel's"), (Sensing::Noise, "noise alone")];

/// A number with its standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) value: f64,
    pub(super) error: f64,
}

/// What a method reaches in the setup of all curves.
pub(super) struct Row {
    pub(super) name: String,
    /// Measurements for one channel; 0 where none is made.
    pub(super) probes: usize,
    /// At the SNR of the tables.
    pub(super) table: Summary,
    /// What is missing to the genie there.
    pub(super) below_genie: Estimate,
    /// At every SNR of the curves.
    pub(super) by_snr: Vec<Summary>,
    /// Only models have these.
    pub(super) model: Option<OfModel>,
}

/// What only models are asked.
pub(super) struct OfModel {
    /// By number of measurements.
    pub(super) by_measurements: Vec<(usize, Summary)>,
    /// With what stands in for measurements.
    pub(super) ablations: Vec<(&'static str, Summary)>,
    /// With scheme C1 the gain of the codebook's best beam, and what is missing to it.
    pub(super) ceiling: Option<(Summary, Estimate)>,
}

/// A setup with less figures: a table of its own.
pub(super) struct Other {
    pub(super) setup: ChannelConfig,
    pub(super) genie: Summary,
    /// The models that were trained for it, those of the usual setup as far as their arrays are these, and what learns nothing.
    pub(super) rows: Vec<OtherRow>,
}

/// What a method reaches in another setup.
pub(super) struct OtherRow {
    pub(super) name: String,
    /// Measurements for one channel; 0 where none is made.
    pub(super) probes: usize,
    pub(super) summary: Summary,
    /// What is missing to the genie.
    pub(super) below_genie: Estimate,
}

/// What a model's measurements say to who knows the channel's statistics.
pub(super) struct Carried {
    pub(super) name: String,
    /// What the model gains, and what the estimator does on the same measurements.
    pub(super) model: Summary,
    pub(super) estimator: Summary,
    /// What the model is below the estimator: what a better decision could gain.
    pub(super) decision: Estimate,
    /// What the estimator is below the genie, with scheme C1 below the codebook's best beam: what better measurements could gain.
    pub(super) measurements: Estimate,
}

enum Method<'a> {
    Controller(&'a Beam, &'a ChannelConfig),
    Baseline(&'a Baseline, &'a ChannelConfig),
}

/// Measures.
pub(super) struct Bench<'a> {
    channels: usize,
    tapes: Tapes,
    progress: &'a dyn Fn(&str),
}

impl<'a> Bench<'a> {
    pub(super) fn new(channels: usize, progress: &'a dyn Fn(&str)) -> Self {
        Self { channels, tapes: Tapes::default(), progress }
    }

    /// Models and baselines in one setup: models first.
    pub(super) fn setup(&self, setup: &ChannelConfig, models: &[&Model]) -> Result<Vec<Row>> {
        let measurements = models.iter().map(|model| model.beam.config.measurements).max().unwrap_or(1);
        let baselines = Baseline::standard(setup)?;
        let genie = self.all(&Method::Baseline(&Baseline::Genie, setup), SNR_DB, measurements)?;
        let mut rows = models.iter().map(|model| self.model(model, &genie)).collect::<Result<Vec<_>>>()?;
        for baseline in &baselines {
            rows.push(self.baseline(baseline, setup, measurements, &genie)?);
        }
        Ok(rows)
    }

    /// Models in other setups, those of the same in one table; those of the usual one beside them, and what learns nothing.
    pub(super) fn others(&self, models: &[&Model], usual: &[&Model]) -> Result<Vec<Other>> {
        let mut setups: Vec<(&ChannelConfig, usize, Vec<&Model>)> = Vec::new();
        for model in models {
            let config = &model.beam.config;
            // With mobility the genie of another number of measurements meets another channel.
            let same = |(setup, measurements, _): &&mut (_, _, _)| (*setup, *measurements) == (&config.channel, config.measurements);
            match setups.iter_mut().find(same) {
                Some((.., models)) => models.push(model),
                None => setups.push((&config.channel, config.measurements, vec![model])),
            }
        }
        let other = |(setup, measurements, models): (&ChannelConfig, usize, Vec<&Model>)| {
            let fits = |model: &BeamConfig| (model.channel.arrays(), model.measurements) == (setup.arrays(), measurements);
            let guests = usual.iter().copied().filter(|model| fits(&model.beam.config));
            self.other(setup, measurements, models.into_iter().chain(guests))
        };
        setups.into_iter().map(other).collect()
    }

    fn other<'b>(&self, setup: &ChannelConfig, measurements: usize, models: impl Iterator<Item = &'b Model>) -> Result<Other> {
        let genie = self.all(&Method::Baseline(&Baseline::Genie, setup), SNR_DB, measurements)?;
        let row = |name: String, probes: usize, gains: &Gains| {
            Ok::<_, Error>(OtherRow { name, probes, summary: gains.summary()?, below_genie: below(&genie, gains) })
        };
        let mut rows = Vec::new();
        for Model { name, beam } in models {
            (self.progress)(name);
            let of_another = if beam.config.channel == *setup { "" } else { ", trained on others" };
            rows.push(row(
                format!("{name}{of_another}"),
                measurements,
                &self.all(&Method::Controller(beam, setup), SNR_DB, measurements)?,
            )?);
        }
        for baseline in Baseline::standard(setup)?.iter().filter(|baseline| !matches!(baseline, Baseline::Genie)) {
            (self.progress)(&baseline.name());
            rows.push(row(baseline.name(), baseline.probes(), &self.of_table(baseline, setup, measurements)?)?);
        }
        Ok(Other { setup: setup.clone(), genie: genie.summary()?, rows })
    }

    fn model(&self, Model { name, beam }: &Model, genie: &Gains) -> Result<Row> {
        let say = |what: &str| (self.progress)(&format!("{name}: {what}"));
        let (method, measurements) = (Method::Controller(beam, &beam.config.channel), beam.config.measurements);
        say("the table");
        let gains = self.all(&method, SNR_DB, measurements)?;
        say("by SNR");
        let by_snr = self.by_snr(&method, measurements, &gains)?;
        say("by measurements");
        let mut counts: Vec<usize> = MEASUREMENTS.into_iter().filter(|t| *t < measurements).collect();
        counts.push(measurements);
        let at = |t: usize| Ok((t, self.enough(&method, MEASUREMENTS_SNR_DB, t, Sensing::Measurements, PRECISION_DB)?.summary()?));
        let by_measurements = counts.into_iter().map(at).collect::<Result<_>>()?;
        say("ablations");
        let ablation = |(sensing, what)| Ok((what, self.enough(&method, SNR_DB, measurements, sensing, ABLATION_PRECISION_DB)?.summary()?));
        let ablations = ABLATIONS.into_iter().map(ablation).collect::<Result<_>>()?;
        let ceiling = (beam.config.scheme == Scheme::C1).then(|| self.ceiling(beam, &gains)).transpose()?;
        Ok(Row {
            name: name.clone(),
            probes: measurements,
            table: gains.summary()?,
            below_genie: below(genie, &gains),
            by_snr,
            model: Some(OfModel { by_measurements, ablations, ceiling }),
        })
    }

    /// What the measurements of models carry, of those whose channels the estimator knows.
    pub(super) fn carried(&self, models: &[Model]) -> Result<Vec<Carried>> {
        let mut found = Vec::new();
        for Model { name, beam } in models {
            if let Err(error) = Estimator::new(&beam.config.channel, beam.sweep()?) {
                (self.progress)(&format!("{name}: nobody says what its measurements carry: {error}"));
                continue;
            }
            (self.progress)(&format!("{name}: what its measurements carry"));
            let bound = match beam.config.scheme {
                Scheme::C1 => Baseline::Mrc(beam.sweep()?),
                Scheme::C2 | Scheme::C3 => Baseline::Genie,
            };
            let (measurements, count) = (beam.config.measurements, (self.channels / 4).clamp(1, ESTIMATED));
            let share = Evaluation { seed: SEED, snr_db: SNR_DB, measurements, sensing: Sensing::Measurements, first: 0, count };
            let (model, estimator) = (share.controller(beam, &self.tapes)?, share.estimator(beam, &self.tapes)?);
            found.push(Carried {
                name: name.clone(),
                model: model.summary()?,
                estimator: estimator.summary()?,
                decision: below(&estimator, &model),
                measurements: below(&share.baseline(&bound, &beam.config.channel)?, &estimator),
            });
        }
        Ok(found)
    }

    /// What the best beam of a codebook reaches, and what gains are missing to it.
    fn ceiling(&self, beam: &Beam, gains: &Gains) -> Result<(Summary, Estimate)> {
        let method = Baseline::Mrc(beam.sweep()?);
        let ceiling = self.all(&Method::Baseline(&method, &beam.config.channel), SNR_DB, beam.config.measurements)?;
        Ok((ceiling.summary()?, below(&ceiling, gains)))
    }

    fn baseline(&self, baseline: &Baseline, setup: &ChannelConfig, measurements: usize, genie: &Gains) -> Result<Row> {
        (self.progress)(&baseline.name());
        let gains = self.of_table(baseline, setup, measurements)?;
        let method = Method::Baseline(baseline, setup);
        Ok(Row {
            name: baseline.name(),
            probes: baseline.probes(),
            table: gains.summary()?,
            below_genie: below(genie, &gains),
            by_snr: self.by_snr(&method, measurements, &gains)?,
            model: None,
        })
    }

    /// What a baseline gains at the SNR of the tables.
    fn of_table(&self, baseline: &Baseline, setup: &ChannelConfig, measurements: usize) -> Result<Gains> {
        let precision = if is_slow(baseline) { PRECISION_DB } else { 0.0 };
        self.enough(&Method::Baseline(baseline, setup), SNR_DB, measurements, Sensing::Measurements, precision)
    }

    /// At every SNR of the curves; `gains` are those of the table.
    fn by_snr(&self, method: &Method, measurements: usize, gains: &Gains) -> Result<Vec<Summary>> {
        let fixed = matches!(method, Method::Baseline(baseline, _) if !hears_noise(baseline));
        let at = |snr_db: f32| {
            if fixed || snr_db == SNR_DB {
                return Summary::new(&gains.values, snr_db);
            }
            self.enough(method, snr_db, measurements, Sensing::Measurements, PRECISION_DB)?.summary()
        };
        SNRS_DB.into_iter().map(at).collect()
    }

    /// On all channels.
    fn all(&self, method: &Method, snr_db: f32, measurements: usize) -> Result<Gains> {
        self.enough(method, snr_db, measurements, Sensing::Measurements, 0.0)
    }

    /// On as many channels as it takes for a standard error below `precision` dB, or on all.
    fn enough(&self, method: &Method, snr_db: f32, measurements: usize, sensing: Sensing, precision: f64) -> Result<Gains> {
        let mut gains = Gains { values: Vec::new(), snr_db };
        while gains.values.len() < self.channels {
            let (first, count) = (gains.values.len() as u64, CHUNK.min(self.channels - gains.values.len()));
            let share = Evaluation { seed: SEED, snr_db, measurements, sensing, first, count };
            gains.values.extend(match method {
                Method::Controller(beam, setup) => share.controller_on(beam, setup, &self.tapes)?.values,
                Method::Baseline(baseline, setup) => share.baseline(baseline, setup)?.values,
            });
            if gains.summary()?.error_db < precision {
                break;
            }
        }
        Ok(gains)
    }
}

/// Searches that take hundreds of microseconds for a channel.
fn is_slow(baseline: &Baseline) -> bool {
    matches!(baseline, Baseline::Exhaustive { .. } | Baseline::Omp(_))
}

fn hears_noise(baseline: &Baseline) -> bool {
    baseline.probes() > 0 && !matches!(baseline, Baseline::Exhaustive { probing: Probing::Ideal, .. })
}

/// How far gains lie below others, in dB, on the channels that both have: pairs, so that what channels have in common cancels.
fn below(above: &Gains, gains: &Gains) -> Estimate {
    let differences: Vec<f64> = above.values.iter().zip(&gains.values).map(|(a, b)| decibels(*a) - decibels(*b)).collect();
    let n = differences.len() as f64;
    let value = differences.iter().sum::<f64>() / n;
    let squares: f64 = differences.iter().map(|x| (x - value).powi(2)).sum();
    Estimate { value, error: (squares / (n - 1.0).max(1.0) / n).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_cancel_what_channels_have_in_common() {
        let gains = |values: &[f32]| Gains { values: values.to_vec(), snr_db: 0.0 };
        let found = below(&gains(&[10.0, 1000.0, 7.0]), &gains(&[1.0, 100.0]));
        assert!((found.value - 10.0).abs() < 1e-6 && found.error < 1e-6, "{found:?}");
        let found = below(&gains(&[10.0, 100.0]), &gains(&[1.0, 100.0]));
        assert!((found.value - 5.0).abs() < 1e-6 && (found.error - 5.0).abs() < 1e-6, "{found:?}");
    }

    #[test]
    fn a_point_takes_as_many_channels_as_it_needs() {
        let bench = Bench::new(5000, &|_| {});
        let setup = ChannelConfig::default();
        let method = Method::Baseline(&Baseline::Genie, &setup);
        let found = |precision| {
            let gains = bench.enough(&method, 10.0, 16, Sensing::Measurements, precision).unwrap();
            (gains.values.len(), gains.summary().unwrap().error_db)
        };
        let (all, error) = found(0.0);
        assert_eq!(all, 5000);
        assert_eq!(found(1.2 * error).0, 2 * CHUNK);
        assert_eq!(found(1.0).0, CHUNK);
    }
}

//! Learning to classify signals as a [`Task`]: fresh signals in, a score of every class out.

use super::config::RunConfig;
use super::run::{Figures, Presented};
use super::signals::Signals;
use crate::feed::feed;
use crate::parallel::{Communicator, gather, share};
use crate::task::{Context, EVALUATION_SEED, Evaluation, Loss, Metric, Score, Task};
use candle_core::{D, DType, Device, Tensor};
use candle_models::Result;
use candle_models::network::Tapes;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::ops::softmax::log_softmax;
use candle_models::random::Random;
use candle_models::rf::classifier::{Scale, greatest};
use candle_models::rf::{Classifier, ClassifierConfig, Complex32};
use rayon::prelude::*;
use std::ops::Range;

/// Signals of a pass in an evaluation.
const CHUNK: usize = 512;
/// Decibels from a signal-to-noise ratio at which it is measured to the next.
const STEP_DB: f64 = 2.0;

/// A classifier that learns.
pub struct Classification {
    model: ClassifierConfig,
    signals: Signals,
    random: Random,
    batch: usize,
    evaluated: usize,
    /// This rank's rows of a micro batch.
    rows: Range<usize>,
    tapes: Tapes,
}

/// A signal before it is made: everything else of it depends on its address alone.
#[derive(Debug, Clone, Copy)]
pub struct Drawn {
    /// Its address.
    pub random: Random,
    /// The number of its class.
    pub class: usize,
    /// Its power over the noise's, dB.
    pub snr_db: f64,
}

/// Signals as the network reads them.
pub struct Encoded {
    /// `[n, samples, width]`.
    pub iq: Vec<f32>,
    /// `[n]`.
    pub classes: Vec<u32>,
}

/// What a classifier says of signals that have one signal-to-noise ratio.
#[derive(Debug, Clone)]
pub struct Said {
    /// The ratio, dB.
    pub snr_db: f64,
    /// How often each class, `[classes, classes]`, was taken for each.
    pub confusion: Vec<u32>,
    /// The mean negative logarithm of the share that the right class had.
    pub nats: f64,
}

impl Said {
    /// The share of signals whose class was right.
    pub fn accuracy(&self) -> f64 {
        let classes = self.confusion.len().isqrt();
        let right: u32 = self.confusion.iter().step_by(classes + 1).sum();
        f64::from(right) / f64::from(self.confusion.iter().sum::<u32>().max(1))
    }
}

impl Classification {
    /// Of a run, on this rank.
    pub fn new(run: &RunConfig, model: &ClassifierConfig, signals: &Signals, ranks: &dyn Communicator) -> Self {
        Self {
            model: ClassifierConfig { classes: signals.names(), ..model.clone() },
            signals: signals.clone(),
            random: Random::new(run.seed),
            batch: run.batch,
            evaluated: run.evaluated,
            rows: share(run.batch, ranks.rank(), ranks.size()),
            tapes: Tapes::default(),
        }
    }

    /// The same with products of that kind.
    #[must_use]
    pub fn with_products(self, products: Products) -> Self {
        Self { tapes: Tapes::new(products), ..self }
    }

    /// Signals as the network reads them.
    fn encoded(&self, drawn: &[Drawn]) -> Result<Encoded> {
        let width = self.model.width() * self.model.samples;
        let mut iq = vec![0.0; drawn.len() * width];
        let rows = iq.par_chunks_mut(width).zip(drawn);
        rows.try_for_each_init(
            || vec![Complex32::default(); self.model.samples],
            |signal, (iq, Drawn { random, class, snr_db })| {
                self.signals.draw(*random, *class, *snr_db, signal)?;
                self.model.encode(signal, (self.model.scale == Scale::Given).then_some(*snr_db), iq)
            },
        )?;
        Ok(Encoded { iq, classes: drawn.iter().map(|drawn| drawn.class as u32).collect() })
    }

    /// The scores of signals, `[n, classes]`.
    fn scores(&self, network: &Classifier, signals: &Encoded, device: &Device) -> Result<Tensor> {
        let n = signals.classes.len();
        let iq = Tensor::from_slice(&signals.iq, (n, self.model.width() * self.model.samples), device)?;
        Ok(feed(network, &[iq], &self.tapes)?.get("logits")?.clone())
    }

    /// The signal-to-noise ratios at which it is measured, dB.
    pub fn ratios(&self) -> Vec<f64> {
        let candle_models::rf::synthesis::Range(low, high) = self.signals.snr_db;
        (0..=((high - low) / STEP_DB) as usize).map(|i| low + STEP_DB * i as f64).collect()
    }

    /// Signal i of a measurement at one of the [`ratios`](Self::ratios): classes take turns.
    pub fn shown(&self, random: Random, (ratio, snr_db): (usize, f64), i: usize) -> Drawn {
        Drawn { random: random.at(ratio as u64).at(i as u64), class: i % self.signals.classes.len(), snr_db }
    }

    /// What the network says of so many signals at each ratio; each rank looks at its share. `random` is the address of the signals.
    ///
    /// # Errors
    /// If the network fails.
    pub fn measure(
        &self,
        network: &Classifier,
        random: Random,
        count: usize,
        device: &Device,
        ranks: &dyn Communicator,
    ) -> Result<Vec<Said>> {
        let classes = self.signals.classes.len();
        let mine = share(count, ranks.rank(), ranks.size());
        let mut said = Vec::new();
        for ratio in self.ratios().into_iter().enumerate() {
            let mut found: Vec<[f32; 3]> = Vec::with_capacity(mine.len());
            for first in mine.clone().step_by(CHUNK) {
                let drawn: Vec<Drawn> = (first..(first + CHUNK).min(mine.end)).map(|i| self.shown(random, ratio, i)).collect();
                let signals = self.encoded(&drawn)?;
                let shares = log_softmax(&self.scores(network, &signals, device)?)?.to_vec2::<f32>()?;
                found.extend(
                    shares
                        .iter()
                        .zip(&signals.classes)
                        .map(|(shares, class)| [*class as f32, greatest(shares) as f32, -shares[*class as usize]]),
                );
            }
            let all = gather(ranks, &found)?.concat();
            let mut confusion = vec![0; classes * classes];
            all.iter().for_each(|[class, taken, _]| confusion[*class as usize * classes + *taken as usize] += 1);
            said.push(Said {
                snr_db: ratio.1,
                confusion,
                nats: all.iter().map(|row| f64::from(row[2])).sum::<f64>() / all.len().max(1) as f64,
            });
        }
        Ok(said)
    }

    /// What these parameters say of the signals of the run's evaluations.
    fn said(&self, parameters: &Params, ranks: &dyn Communicator) -> Result<Vec<Said>> {
        let network = Classifier::new(&self.model, parameters)?;
        let count = self.evaluated.div_ceil(self.ratios().len());
        self.measure(&network, Random::new(EVALUATION_SEED).stream("evaluation"), count, parameters.device(), ranks)
    }
}

impl Task for Classification {
    type Batch = Encoded;

    fn unit(&self) -> &'static str {
        "signals"
    }

    fn next_batch(&mut self, context: &Context) -> Result<Encoded> {
        let (first, random) = (context.batch * self.batch as u64, self.random.stream("training"));
        let draw = |row: usize| {
            let random = random.at(first + row as u64);
            let class = random.stream("class").below(0, self.signals.classes.len() as u32) as usize;
            Drawn { random, class, snr_db: self.signals.snr_db.draw(random.stream("snr"), 0) }
        };
        self.encoded(&self.rows.clone().map(draw).collect::<Vec<_>>())
    }

    fn loss(&mut self, parameters: &Params, signals: &Encoded, _: &Context) -> Result<Loss> {
        let network = Classifier::new(&self.model, parameters)?;
        let (n, device) = (signals.classes.len(), parameters.device());
        let scores = self.scores(&network, signals, device)?;
        let classes = Tensor::from_slice(&signals.classes, n, device)?;
        let right = scores.argmax(D::Minus1)?.eq(&classes)?.to_dtype(DType::F32)?.mean_all()?.reshape(1)?;
        let nats = log_softmax(&scores)?.gather(&classes.unsqueeze(1)?, 1)?.neg()?.mean_all()?;
        let metrics = vec![Metric::mean(&["accuracy"], right.detach())];
        Ok(Loss { weight: n as f64 / self.batch as f64, metrics, ..Loss::new(nats, n) })
    }

    /// The mean negative logarithm of the right class's share, and how often it had the greatest: over all ratios alike, and over those from 0 dB on.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        Ok(evaluation(&self.said(parameters, ranks)?))
    }
}

impl Presented for Classification {
    fn figures(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Figures> {
        let said = self.said(parameters, ranks)?;
        let mut text = "| dB | right, % |\n|---|---|\n".to_owned();
        text.extend(said.iter().map(|one| format!("| {} | {:.1} |\n", one.snr_db, 100.0 * one.accuracy())));
        let results = evaluation(&said).results();
        text += &format!("\nRight over all of them: {:.2}%.\n", 100.0 * results["accuracy"]);
        Ok(Figures { results, text })
    }
}

fn evaluation(said: &[Said]) -> Evaluation {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let accuracy = |least: f64| mean(&said.iter().filter(|one| one.snr_db >= least).map(Said::accuracy).collect::<Vec<_>>());
    let nats = mean(&said.iter().map(|one| one.nats).collect::<Vec<_>>());
    Evaluation::new(Score::minimise(nats), [("accuracy", accuracy(f64::NEG_INFINITY)), ("accuracy_from_0_db", accuracy(0.0))])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::rf::config::TaskConfig;
    use crate::parallel::Single;

    fn task(preset: &str) -> Classification {
        let run = RunConfig::classifier(preset).unwrap();
        let TaskConfig::Classification { model, signals } = &run.task else { panic!("no classifier") };
        Classification::new(&RunConfig { batch: 24, evaluated: 60, ..run.clone() }, model, signals, &Single)
    }

    /// Signals are the same again, of every class, and of their ratio.
    #[test]
    fn signals_depend_on_their_address_alone() {
        for preset in crate::families::rf::config::CLASSIFIERS {
            let task = task(preset);
            let drawn: Vec<_> = (0..27).map(|i| task.shown(Random::new(3), (0, 10.0), i)).collect();
            let all = task.encoded(&drawn).unwrap();
            let width = task.model.width() * task.model.samples;
            for (i, one) in drawn.iter().enumerate() {
                assert_eq!(task.encoded(std::slice::from_ref(one)).unwrap().iq, all.iq[i * width..][..width], "{preset} {i}");
            }
            assert!(all.iq.iter().all(|x| x.is_finite()));
        }
    }

    #[test]
    fn an_untrained_network_is_as_good_as_chance() {
        let mut task = task("coherent");
        let params = Params::init(Random::new(1), &Device::Cpu);
        let network = Classifier::new(&task.model, &params).unwrap();
        let said = task.measure(&network, Random::new(5), 10, &Device::Cpu, &Single).unwrap();
        assert_eq!(said.len(), task.ratios().len());
        assert!(said.iter().all(|one| one.confusion.iter().sum::<u32>() == 10 && one.nats > 0.5));
        let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor()));
        let params = Params::given(tensors.collect(), &Device::Cpu);
        let results = task.evaluate(&params, &Single).unwrap().results();
        assert!((0.0..=1.0).contains(&results["accuracy"]) && results["score"] > 0.5, "{results:?}");
    }

    #[test]
    fn ratios_are_those_of_the_signals() {
        assert_eq!((task("received").ratios().len(), task("coherent").ratios()[..2].to_vec()), (20, vec![-10.0, -8.0]));
    }
}

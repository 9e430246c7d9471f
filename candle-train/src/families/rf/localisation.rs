//! Learning to locate as a [`Task`]: fresh events in, a mixture of normal distributions over the plane out.

use super::config::RunConfig;
use super::run::{Figures, Presented};
use crate::feed::feed;
use crate::parallel::{Communicator, gather, share};
use crate::task::{Context, EVALUATION_SEED, Evaluation, Loss, Score, Task};
use candle_core::{D, Device, Tensor};
use candle_models::network::Tapes;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::ops::softmax::log_softmax;
use candle_models::random::Random;
use candle_models::rf::localiser::baselines::errors;
use candle_models::rf::localiser::events::Events;
use candle_models::rf::localiser::{COLUMNS, Mixture, UNIT_KM, middle};
use candle_models::rf::{Localiser, LocaliserConfig, geometry::Place};
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::ops::Range;

/// Events of a pass in an evaluation.
const CHUNK: usize = 1000;
/// Draws of a mixture by which it is found which regions a place lies in.
const DRAWS: u64 = 200;
/// Regions of highest density whose cover is measured, and what the measures are called.
const REGIONS: [(f32, &str); 2] = [(0.5, "covered_50"), (0.9, "covered_90")];

/// What an evaluation measures.
const WHAT: [(&str, &str); 6] = [
    ("rmse_km", "root mean square of the distance from the mixture's mean to the emitter, km"),
    ("p50_km", "half of all are nearer than, km"),
    ("p95_km", "95% of all are nearer than, km"),
    ("covered_50", "share of emitters in the region of highest density that should hold 50%"),
    ("covered_90", "the same of 90%"),
    ("score", "mean negative logarithm of the density at the emitter, in units of 100 km"),
];

/// A localiser that learns.
pub struct Localisation {
    model: LocaliserConfig,
    events: Events,
    middle: Place,
    random: Random,
    batch: usize,
    evaluated: usize,
    /// This rank's rows of a micro batch.
    rows: Range<usize>,
    tapes: Tapes,
}

/// Events as the network reads them, and where their emitters are.
pub struct Encoded {
    /// `[n, receivers, 6]`.
    pub numbers: Vec<f32>,
    /// `[n, receivers]`.
    pub present: Vec<f32>,
    /// East and north of the receivers' middle in units of 100 km, `[n, 2]`.
    pub targets: Vec<f32>,
}

impl Localisation {
    /// Of a run, on this rank.
    ///
    /// # Errors
    /// If the network has no room for the receivers.
    pub fn new(run: &RunConfig, model: &LocaliserConfig, ranks: &dyn Communicator) -> Result<Self> {
        let events = Events::default();
        let count = events.receivers().len();
        if model.receivers < count {
            return Err(Error::config("task.model.receivers", format!("expected at least {count}, found {}", model.receivers)));
        }
        Ok(Self {
            middle: middle(events.receivers()),
            events,
            model: model.clone(),
            random: Random::new(run.seed),
            batch: run.batch,
            evaluated: run.evaluated,
            rows: share(run.batch, ranks.rank(), ranks.size()),
            tapes: Tapes::default(),
        })
    }

    /// The same with products of that kind.
    #[must_use]
    pub fn with_products(self, products: Products) -> Self {
        Self { tapes: Tapes::new(products), ..self }
    }

    /// The events `first..` of a stream, of which everything depends on their number alone.
    ///
    /// # Errors
    /// If one cannot be encoded.
    pub fn encoded(&self, random: Random, first: u64, count: usize) -> Result<Encoded> {
        let receivers = self.model.receivers;
        let (mut numbers, mut present, mut targets) =
            (vec![0.0; count * receivers * COLUMNS], vec![0.0; count * receivers], vec![0.0; 2 * count]);
        let rows = numbers.par_chunks_mut(receivers * COLUMNS).zip(present.par_chunks_mut(receivers)).zip(targets.par_chunks_mut(2));
        rows.enumerate().try_for_each(|(i, ((numbers, present), target))| {
            let event = self.events.draw(random.at(first + i as u64));
            let [east, north] = self.middle.plane_km(&event.emitter).map(|km| (km / UNIT_KM) as f32);
            target.copy_from_slice(&[east, north]);
            self.model.encode(&event.heard(), &self.middle, numbers, present)
        })?;
        Ok(Encoded { numbers, present, targets })
    }

    /// The origin of the plane.
    pub fn middle(&self) -> &Place {
        &self.middle
    }

    /// What the network says of an event of a stream.
    ///
    /// # Errors
    /// If the network fails or says what is no mixture.
    pub fn mixture(&self, network: &Localiser, random: Random, number: u64) -> Result<Mixture> {
        let answers = self.answers(network, &self.encoded(random, number, 1)?, &Device::Cpu)?;
        let [logits, means, factors] = answers.map(|x| x.flatten_all().and_then(|x| x.to_vec1::<f32>()));
        Mixture::of(&logits?, &means?, &factors?)
    }

    /// What the network says of the first so many events of a stream; each rank looks at its share.
    ///
    /// # Errors
    /// If the network fails or says what is no mixture.
    pub fn measure(
        &self,
        network: &Localiser,
        random: Random,
        count: usize,
        device: &Device,
        ranks: &dyn Communicator,
    ) -> Result<Vec<Found>> {
        let mine = share(count, ranks.rank(), ranks.size());
        let mut found: Vec<[f32; 3]> = Vec::with_capacity(mine.len());
        for first in mine.clone().step_by(CHUNK) {
            let events = self.encoded(random, first as u64, CHUNK.min(mine.end - first))?;
            let [logits, means, factors] = self.answers(network, &events, device)?;
            let rows = |x: &Tensor| Ok::<_, Error>(x.flatten_from(1)?.to_vec2::<f32>()?);
            let (logits, means, factors) = (rows(&logits)?, rows(&means)?, rows(&factors)?);
            let measured: Result<Vec<[f32; 3]>> = (0..logits.len())
                .into_par_iter()
                .map(|i| {
                    let mixture = Mixture::of(&logits[i], &means[i], &factors[i])?;
                    let target = [0, 1].map(|j| f64::from(events.targets[2 * i + j]));
                    let place = |at: [f64; 2]| self.middle.at_km(at.map(|x| x * UNIT_KM));
                    let error = place(mixture.mean()).distance_km(&place(target));
                    let draws = random.stream("regions").at((first + i) as u64);
                    let draw = |j: u64| (f64::from(draws.stream("which").uniform(j)), [0, 1].map(|k| f64::from(draws.normal(2 * j + k))));
                    Ok([-mixture.log_density(target) as f32, error as f32, mixture.level(target, (0..DRAWS).map(draw)) as f32])
                })
                .collect();
            found.extend(measured?);
        }
        let all = gather(ranks, &found)?.concat();
        Ok(all.into_iter().map(|[nats, error_km, level]| Found { nats, error_km, level }).collect())
    }

    /// What the network says of events: logits `[n, K]`, means `[n, K, 2]` and factors `[n, K, 3]`.
    fn answers(&self, network: &Localiser, events: &Encoded, device: &Device) -> Result<[Tensor; 3]> {
        let (receivers, n) = (self.model.receivers, events.targets.len() / 2);
        let tensor = |values: &[f32], width: usize| Tensor::from_slice(values, (n, width), device);
        let inputs = [tensor(&events.numbers, receivers * COLUMNS)?, tensor(&events.present, receivers)?];
        let outputs = feed(network, &inputs, &self.tapes)?;
        let of = |name: &str, width: usize| Ok::<_, Error>(outputs.get(name)?.reshape((n, self.model.components, width))?);
        Ok([of("logits", 1)?.squeeze(2)?, of("means", 2)?, of("factors", 3)?])
    }
}

/// What a localiser says of an event, beside its truth.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    /// The negative logarithm of the density at the emitter, in units of 100 km.
    pub nats: f32,
    /// From the mixture's mean to the emitter.
    pub error_km: f32,
    /// The share of the least region of highest density in which the emitter lies.
    pub level: f32,
}

/// The negative logarithm of the density at each target, `[n]`.
fn surprise([logits, means, factors]: &[Tensor; 3], targets: &Tensor) -> Result<Tensor> {
    let column = |x: &Tensor, i: usize| x.narrow(D::Minus1, i, 1)?.squeeze(D::Minus1);
    let apart = targets.unsqueeze(1)?.broadcast_sub(means)?;
    let (dx, dy) = (column(&apart, 0)?, column(&apart, 1)?);
    let log = |i: usize| column(factors, i)?.clamp(-10f32, 10f32);
    let (log_a, log_c) = (log(0)?, log(2)?);
    let u = ((log_a.exp()? * &dx)? + (column(factors, 1)? * &dy)?)?;
    let v = (log_c.exp()? * &dy)?;
    let distance = ((u.sqr()? + v.sqr()?)? * 0.5)?;
    let logs = (((log_softmax(logits)? + log_a)? + log_c)? - distance)?;
    let most = logs.max_keepdim(D::Minus1)?.detach();
    let sum = logs.broadcast_sub(&most)?.exp()?.sum(D::Minus1)?.log()?;
    Ok(((sum + most.squeeze(D::Minus1)?)? - std::f64::consts::TAU.ln())?.neg()?)
}

impl Task for Localisation {
    type Batch = Encoded;

    fn unit(&self) -> &'static str {
        "events"
    }

    fn next_batch(&mut self, context: &Context) -> Result<Encoded> {
        let first = context.batch * self.batch as u64 + self.rows.start as u64;
        self.encoded(self.random.stream("training"), first, self.rows.len())
    }

    fn loss(&mut self, parameters: &Params, events: &Encoded, _: &Context) -> Result<Loss> {
        let network = Localiser::new(&self.model, parameters)?;
        let answers = self.answers(&network, events, parameters.device())?;
        let targets = Tensor::from_slice(&events.targets, (self.rows.len(), 2), parameters.device())?;
        let weight = self.rows.len() as f64 / self.batch as f64;
        Ok(Loss { weight, ..Loss::new(surprise(&answers, &targets)?.mean_all()?, self.rows.len()) })
    }

    /// The surprise, errors of the mixture's mean, and how often regions that should hold 50 and 90% of all emitters do.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        let (network, events) = (Localiser::new(&self.model, parameters)?, Random::new(EVALUATION_SEED).stream("evaluation"));
        let found = self.measure(&network, events, self.evaluated, parameters.device(), ranks)?;
        let mean = |of: &dyn Fn(&Found) -> f64| found.iter().map(of).sum::<f64>() / found.len() as f64;
        let [rmse, _, p50, _, p95] = errors(found.iter().map(|one| f64::from(one.error_km)).collect());
        let covered = REGIONS.map(|(level, name)| (name, mean(&|one| f64::from(u8::from(one.level <= level)))));
        let measures = [("rmse_km", rmse), ("p50_km", p50), ("p95_km", p95)];
        Ok(Evaluation::new(Score::minimise(mean(&|one| f64::from(one.nats))), measures.into_iter().chain(covered)))
    }
}

impl Presented for Localisation {
    fn figures(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Figures> {
        let results = self.evaluate(parameters, ranks)?.results();
        let text = WHAT.iter().filter_map(|(name, what)| results.get(*name).map(|figure| format!("- {what}: {figure:.3}\n"))).collect();
        Ok(Figures { results, text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Single;

    /// The loss is the mixture's own density.
    #[test]
    fn the_loss_is_the_density_of_the_mixture() {
        let run = RunConfig { batch: 8, evaluated: 2000, ..RunConfig::localiser("quick").unwrap() };
        let model = LocaliserConfig { hidden: 32, ..LocaliserConfig::default() };
        let mut task = Localisation::new(&run, &model, &Single).unwrap();
        let drawn = Params::init(Random::new(1), &Device::Cpu);
        Localiser::new(&model, &drawn).unwrap();
        let tensors = drawn.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor()));
        let params = Params::given(tensors.collect(), &Device::Cpu);
        let network = Localiser::new(&model, &params).unwrap();
        let events = task.encoded(Random::new(2), 5, 8).unwrap();
        let answers = task.answers(&network, &events, &Device::Cpu).unwrap();
        let targets = Tensor::from_slice(&events.targets, (8, 2), &Device::Cpu).unwrap();
        let found = surprise(&answers, &targets).unwrap().to_vec1::<f32>().unwrap();
        let [logits, means, factors] = answers.map(|x| x.flatten_from(1).unwrap().to_vec2::<f32>().unwrap());
        for (i, found) in found.iter().enumerate() {
            let mixture = Mixture::of(&logits[i], &means[i], &factors[i]).unwrap();
            let expected = -mixture.log_density([0, 1].map(|j| f64::from(events.targets[2 * i + j])));
            assert!((f64::from(*found) - expected).abs() < 1e-4 * expected.abs().max(1.0), "{found} {expected}");
        }
        let measured = task.evaluate(&params, &Single).unwrap().results();
        assert!(measured["rmse_km"] > 10.0 && measured["covered_90"] <= 1.0, "{measured:?}");
    }

    #[test]
    fn a_network_without_room_for_the_receivers_is_refused() {
        let run = RunConfig::localiser("quick").unwrap();
        let model = LocaliserConfig { receivers: 6, ..LocaliserConfig::default() };
        let error = Localisation::new(&run, &model, &Single).err().unwrap().to_string();
        assert_eq!(error, "config: task.model.receivers: expected at least 7, found 6");
    }
}

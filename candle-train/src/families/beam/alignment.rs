//! Learning to align beams as a [`Task`]: fresh channels in, the gain that both ends reach out.

use super::config::{EpisodeConfig, Learns, LossConfig, Objective, RunConfig};
use crate::optim::ParameterGroup;
use crate::parallel::{Communicator, gather, share};
use crate::task::{self, Context, Loss, Metric, Score, Task};
use candle_core::{D, Tensor};
use candle_models::beam::{Beam, BeamConfig, Channels, Decided, Episodes, Evaluation, Gains, Products, Scheme, Sensing, Tapes, alignment};
use candle_models::bundle::Role;
use candle_models::nn::Params;
use candle_models::ops::softmax::log_softmax;
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// What the parts of the loss are called: shares of the channel's power, and with scheme C1 how often the best beam is chosen.
const PARTS: [&str; 3] = ["gain", "receive", "transmit"];
const PARTS_OF_A_CHOICE: [&str; 4] = ["gain", "receive", "transmit", "choice"];

/// A beam controller learning to align.
pub struct Alignment {
    model: BeamConfig,
    learns: Learns,
    episode: EpisodeConfig,
    loss: LossConfig,
    random: Random,
    /// Steps over which the auxiliary loss fades.
    fading: f64,
    /// This rank's rows of a micro batch.
    rows: Range<usize>,
    tapes: Tapes,
    /// Floating-point operations of an episode with the mean number of measurements, forward and backward.
    operations: f64,
}

impl Alignment {
    /// A task at the first of `batches` micro batches.
    ///
    /// # Errors
    /// If the model cannot be described.
    pub fn new(run: &RunConfig, batches: u64, ranks: &dyn Communicator, products: Products) -> Result<Self> {
        let measurements = (run.episode.fewest + run.model.measurements) as f64 / 2.0;
        let matrices = Beam::parameters(&run.model)?.into_iter().filter(|parameter| parameter.role == Role::Matrix);
        // A multiplication and an addition each; the backward pass has two products for each of the forward pass.
        let of_a_use = |name: &str| match (Beam::measures(name), run.learns) {
            (true, Learns::All) => 6.0 * measurements,
            (true, Learns::Decision) => 2.0 * measurements,
            (false, _) => 6.0,
        };
        Ok(Self {
            operations: matrices.map(|p| of_a_use(&p.name) * p.shape.iter().product::<usize>() as f64).sum(),
            model: run.model.clone(),
            learns: run.learns,
            episode: run.episode.clone(),
            loss: run.loss.clone(),
            random: Random::new(run.seed),
            fading: run.loss.auxiliary_until * batches as f64,
            rows: share(run.episode.batch, ranks.rank(), ranks.size()),
            tapes: Tapes::new(products),
        })
    }

    /// The episodes `first..` of a stream, of which everything depends on their number alone.
    fn episodes(&self, random: Random, (first, batch): (u64, usize), measurements: usize, snr: (f64, f64)) -> Result<Episodes> {
        let channels = Channels::generate(&self.model.channel, random.stream("channels"), first, batch, self.model.measurements)?;
        let numbers = || first..first + batch as u64;
        let snr_db = |i| (snr.0 + (snr.1 - snr.0) * f64::from(random.stream("snr").uniform(i))) as f32;
        Ok(Episodes {
            channels: Arc::new(channels),
            measurements,
            start: numbers().map(|i| self.model.start(random, i)).collect(),
            snr_db: numbers().map(snr_db).collect(),
            noise: random.stream("noise"),
            first,
            sensing: Sensing::Measurements,
        })
    }

    /// `-log(share + floor)`, or the negative share.
    fn objective(&self, share: &Tensor) -> Result<Tensor> {
        Ok(match self.loss.objective {
            Objective::Share => share.mean_all()?.neg()?,
            Objective::Logarithm { floor } => (share + floor)?.log()?.mean_all()?.neg()?,
        })
    }

    /// The cross-entropy of the choice of a beam, and how often it is the best.
    fn choice(&self, model: &Beam, episodes: &Episodes, decided: &Decided) -> Result<[Tensor; 2]> {
        let swept = model.sweep()?;
        let width = self.model.receive_width();
        let channels = &episodes.channels;
        let responses = channels.responses(&swept)?;
        let last = swept.count() * width * (channels.steps() - 1);
        let best = |responses: &[f32]| {
            let power = responses[last..].chunks_exact(width).map(|h| h.iter().map(|x| x * x).sum::<f32>());
            power.enumerate().fold((0, -1.0), |best, (i, p)| if p > best.1 { (i as u32, p) } else { best }).0
        };
        let best: Vec<u32> = responses.chunks_exact(swept.count() * width * channels.steps()).map(best).collect();
        let scores = &decided.feedback;
        let best = Tensor::from_vec(best, scores.dim(0)?, scores.device())?;
        let right = scores.argmax(D::Minus1)?.eq(&best)?.to_dtype(scores.dtype())?.mean_all()?;
        Ok([cross_entropy(scores, &best)?, right])
    }
}

/// The mean of the negative logarithms of the targets' shares.
fn cross_entropy(scores: &Tensor, target: &Tensor) -> Result<Tensor> {
    Ok(log_softmax(scores)?.gather(&target.unsqueeze(1)?, 1)?.neg()?.mean_all()?)
}

impl Task for Alignment {
    type Batch = Episodes;

    fn unit(&self) -> &'static str {
        "episodes"
    }

    fn next_batch(&mut self, context: &Context) -> Result<Episodes> {
        let number = context.batch;
        let random = self.random.stream("training");
        let first = number * self.episode.batch as u64 + self.rows.start as u64;
        let spread = (self.model.measurements - self.episode.fewest) as u32;
        let measurements = self.model.measurements - random.stream("measurements").below(number, spread + 1) as usize;
        let snr = (self.episode.snr_low, self.episode.snr_high);
        self.episodes(random, (first, self.rows.len()), measurements, snr)
    }

    fn loss(&mut self, parameters: &Params, episodes: &Episodes, context: &Context) -> Result<Loss> {
        let model = Beam::new(&self.model, parameters)?;
        let seen = model.measure(episodes, &self.tapes)?;
        let seen = if self.learns == Learns::Decision { seen.detach() } else { seen };
        let decided = model.decide(&seen, episodes, &self.tapes)?;
        let shares = alignment(&episodes.channels, episodes.measurements - 1, &decided.receive, &decided.transmit)?;
        let column = |i: usize| Ok::<_, Error>(shares.narrow(1, i, 1)?);
        let mut value = self.objective(&column(0)?)?;
        let auxiliary = self.loss.auxiliary * (1.0 - context.batch as f64 / self.fading.max(1.0)).max(0.0);
        if auxiliary > 0.0 {
            value = (value + ((self.objective(&column(1)?)? + self.objective(&column(2)?)?)? * auxiliary)?)?;
        }
        let (mut parts, mut names) = (shares.detach().mean(0)?, &PARTS[..]);
        if self.model.scheme == Scheme::C1 {
            let [entropy, right] = self.choice(&model, episodes, &decided)?;
            value = (value + (entropy * self.loss.choice)?)?;
            (parts, names) = (Tensor::cat(&[&parts, &right.reshape(1)?], 0)?, &PARTS_OF_A_CHOICE[..]);
        }
        let weight = self.rows.len() as f64 / self.episode.batch as f64;
        Ok(Loss { weight, metrics: vec![Metric::mean(names, parts)], ..Loss::new(value, self.rows.len()) })
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::with_mamba(name, shape.len())
    }

    fn operations(&self) -> f64 {
        self.operations
    }

    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<task::Evaluation> {
        let model = Beam::new(&self.model, parameters)?;
        let mine = share(self.episode.evaluated, ranks.rank(), ranks.size());
        let evaluation = Evaluation {
            seed: self.random.seed(),
            snr_db: self.episode.snr as f32,
            measurements: self.model.measurements,
            sensing: Sensing::Measurements,
            first: mine.start as u64,
            count: mine.len(),
        };
        let gains = evaluation.controller(&model, &self.tapes)?;
        let snr_db = gains.snr_db;
        let summary = Gains { values: gather(ranks, &gains.values)?.concat(), snr_db }.summary()?;
        let (decibels, satisfaction) = (summary.mean_db, summary.satisfaction);
        Ok(task::Evaluation::new(Score::minimise(-decibels), [("gain_db", decibels), ("satisfaction", satisfaction)]))
    }
}

//! Learning to align beams as a [`Task`]: fresh channels in, the gain that both ends reach out.

use super::config::{EpisodeConfig, Learns, LossConfig, Objective, RunConfig};
use crate::optim::ParameterGroup;
use crate::parallel::{Communicator, gather, share};
use crate::task::{self, Context, EVALUATION_SEED, Loss, Metric, Score, Task};
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
            Objective::Share => share.neg()?,
            Objective::Logarithm { floor } => (share + floor)?.log()?.neg()?,
        })
    }

    /// Of scheme C1: the mean objective of a beam that is drawn as likely as the scores say, so that what another choice would have gained
    /// teaches them; the cross-entropy of the choice; and how often it is the best.
    fn choice(&self, model: &Beam, episodes: &Episodes, decided: &Decided) -> Result<[Tensor; 3]> {
        let (scores, candidates) = (&decided.feedback, &decided.candidates);
        let [shares, alone] = choices(&episodes.channels, episodes.measurements - 1, &model.swept()?, candidates)?;
        let likely = log_softmax(scores)?;
        let mean = (likely.exp()? * self.objective(&shares)?)?.sum(D::Minus1)?.mean_all()?;
        let best = alone.argmax(D::Minus1)?;
        let right = scores.argmax(D::Minus1)?.eq(&best)?.to_dtype(scores.dtype())?.mean_all()?;
        Ok([mean, likely.gather(&best.unsqueeze(1)?, 1)?.neg()?.mean_all()?, right])
    }
}

/// For every beam `f_c` of a codebook `[C, 2 N_TX]`: the gain `|w^H H f_c|^2` with the candidate `w` `[B, C or 1, 2 N_RX]` that goes with it, and
/// `||H f_c||^2`, what the beam alone could have, both as shares of the channel's power, `[B, C]`.
fn choices(channels: &Arc<Channels>, step: usize, codebook: &Tensor, candidates: &Tensor) -> Result<[Tensor; 2]> {
    let (rows, count, _) = candidates.dims3()?;
    let pair = |c: usize| {
        let receive = candidates.narrow(1, c.min(count - 1), 1)?.squeeze(1)?;
        alignment(channels, step, &receive, &codebook.narrow(0, c, 1)?.repeat((rows, 1))?)
    };
    let found = Tensor::stack(&(0..codebook.dim(0)?).map(pair).collect::<Result<Vec<_>>>()?, 1)?;
    let column = |i: usize| found.narrow(2, i, 1)?.squeeze(2);
    Ok([column(0)?, column(2)?])
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
        let parts = shares.detach().mean(0)?;
        let (mut value, parts, names) = if self.model.scheme == Scheme::C1 {
            let [mean, entropy, right] = self.choice(&model, episodes, &decided)?;
            let parts = Tensor::cat(&[&parts, &right.reshape(1)?], 0)?;
            ((mean + (entropy * self.loss.choice)?)?, parts, &PARTS_OF_A_CHOICE[..])
        } else {
            (self.objective(&column(0)?)?.mean_all()?, parts, &PARTS[..])
        };
        let auxiliary = self.loss.auxiliary * (1.0 - context.batch as f64 / self.fading.max(1.0)).max(0.0);
        if auxiliary > 0.0 {
            let [receive, transmit] = [column(1)?, column(2)?].map(|share| self.objective(&share));
            value = (value + ((receive? + transmit?)?.mean_all()? * auxiliary)?)?;
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
            seed: EVALUATION_SEED,
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

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;
    use candle_models::beam::{Codebook, Feedback, Mobility, Weighting};

    /// Every beam of the codebook is received with its own candidate, or all of them with the only one.
    #[test]
    fn a_choice_gains_what_its_beams_gain() {
        let mut config = BeamConfig { scheme: Scheme::C1, feedback: Feedback::Index, measurements: 4, ..BeamConfig::default() };
        config.channel.mobility = Some(Mobility { doppler: 0.02, drift: 0.0 });
        let random = Random::new(5);
        let channels = Arc::new(Channels::generate(&config.channel, random, 0, 3, 4).unwrap());
        let codebook = Codebook::generate(&config.codebook, &config.channel.transmit).unwrap();
        let (count, width) = (codebook.count(), config.receive_width());
        let sent = Tensor::from_slice(codebook.beams(), (count, config.transmit_width()), &Device::Cpu).unwrap();
        for candidates in [count, 1] {
            let drawn: Vec<f32> = (0..3 * candidates * width).map(|i| random.normal(i as u64)).collect();
            let beams = Weighting::Free.form(&Tensor::from_vec(drawn, (3 * candidates, width), &Device::Cpu).unwrap()).unwrap();
            let beams = beams.reshape((3, candidates, width)).unwrap();
            let found = choices(&channels, 2, &sent, &beams).unwrap().map(|x| x.to_vec2::<f32>().unwrap());
            for chosen in [0, count - 1] {
                let receive = beams.narrow(1, chosen.min(candidates - 1), 1).unwrap().squeeze(1).unwrap();
                let transmit = sent.narrow(0, chosen, 1).unwrap().broadcast_as((3, config.transmit_width())).unwrap();
                let pairs = alignment(&channels, 2, &receive, &transmit).unwrap().to_vec2::<f32>().unwrap();
                for (b, pair) in pairs.iter().enumerate() {
                    assert_eq!([found[0][b][chosen], found[1][b][chosen]], [pair[0], pair[2]]);
                }
            }
        }
    }
}

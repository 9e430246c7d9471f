//! Learning an operator as a [`Task`]: pairs of fields, the relative error of answers.

use super::config::RunConfig;
use super::fields::{Fields, transposed};
use super::loss::RelativeLoss;
use crate::feed::feed;
use crate::parallel::{Communicator, gather, share};
use crate::task::{Context, Evaluation, Loss, Score, Task};
use candle_core::{Device, Tensor};
use candle_models::Result;
use candle_models::fno::metrics::{relative_h1, relative_l2};
use candle_models::fno::{Fno, FnoConfig};
use candle_models::network::Tapes;
use candle_models::nn::Params;
use candle_models::random::Random;
use std::ops::Range;

/// Pairs of a pass in an evaluation.
const CHUNK: usize = 32;

/// An operator that learns.
pub struct Operator {
    model: FnoConfig,
    pairs: Fields,
    held: Fields,
    loss: RelativeLoss,
    transposed: bool,
    random: Random,
    batch: usize,
    /// This rank's rows of a micro batch.
    rows: Range<usize>,
    tapes: Tapes,
    /// An epoch and its order.
    order: (u64, Vec<u32>),
}

/// Pairs as the network reads them and should answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// `[n, places C]`.
    pub inputs: Vec<f32>,
    /// `[n, places O]`.
    pub answers: Vec<f32>,
}

/// What answers are wrong by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Errors {
    /// The mean relative error of values.
    pub l2: f64,
    /// That of values and slopes, those at the edges one-sided.
    pub h1: f64,
}

impl Operator {
    /// Of a run, on this rank.
    ///
    /// # Errors
    /// If the device has no memory.
    pub fn new(run: &RunConfig, model: &FnoConfig, [pairs, held]: [Fields; 2], ranks: &dyn Communicator, device: &Device) -> Result<Self> {
        Ok(Self {
            model: model.clone(),
            loss: RelativeLoss::new(run.loss, pairs.grid, device)?,
            pairs,
            held,
            transposed: run.transposed,
            random: Random::new(run.seed).stream("pairs"),
            batch: run.batch,
            rows: share(run.batch, ranks.rank(), ranks.size()),
            tapes: Tapes::default(),
            order: (u64::MAX, Vec::new()),
        })
    }

    /// Batches of an epoch; what is left over comes in another one.
    pub fn batches(run: &RunConfig, pairs: usize) -> u64 {
        (pairs / run.batch) as u64
    }

    /// Rows of a micro batch, which depend on its number alone.
    fn batch(&mut self, number: u64) -> Batch {
        let each = (self.pairs.len() / self.batch) as u64;
        let (epoch, first) = (number / each, (number % each) as usize * self.batch);
        if self.order.0 != epoch {
            self.order = (epoch, self.random.stream("order").at(epoch).permutation(self.pairs.len()));
        }
        let [x, y] = self.pairs.widths();
        let (mut inputs, mut answers) = (vec![0.0; self.rows.len() * x], vec![0.0; self.rows.len() * y]);
        for (row, (input, answer)) in self.rows.clone().zip(inputs.chunks_exact_mut(x).zip(answers.chunks_exact_mut(y))) {
            let [from, to] = self.pairs.pair(self.order.1[first + row] as usize);
            if self.transposed && self.random.stream("transposed").at(number).bits(row as u64).is_multiple_of(2) {
                let (side, [c, o]) = (self.pairs.grid[0], self.pairs.channels);
                transposed(from, side, c, input);
                transposed(to, side, o, answer);
            } else {
                input.copy_from_slice(from);
                answer.copy_from_slice(to);
            }
        }
        Batch { inputs, answers }
    }
}

/// What the network says of fields `[N, places C]`: `[N, places O]`, with gradients.
fn answers(network: &Fno, inputs: &[f32], width: usize, device: &Device, tapes: &Tapes) -> Result<Tensor> {
    let x = Tensor::from_slice(inputs, (inputs.len() / width, width), device)?;
    Ok(feed(network, &[x], tapes)?.get("y")?.clone())
}

/// How wrong the parameters of a network are about pairs, which may lie on another grid than it was trained on; each rank looks at its share.
///
/// # Errors
/// If the pairs have other channels, or the network fails.
pub fn errors(model: &FnoConfig, parameters: &Params, pairs: &Fields, ranks: &dyn Communicator) -> Result<Errors> {
    let network = Fno::new(&FnoConfig { channels: pairs.channels, ..model.on_grid(pairs.grid) }, parameters)?;
    let (mine, tapes, [x, y]) = (share(pairs.len(), ranks.rank(), ranks.size()), Tapes::default(), pairs.widths());
    let mut found: Vec<[f64; 2]> = Vec::with_capacity(mine.len());
    for first in mine.clone().step_by(CHUNK) {
        let chunk = first..(first + CHUNK).min(mine.end);
        let inputs = &pairs.inputs[chunk.start * x..chunk.end * x];
        let said = answers(&network, inputs, x, parameters.device(), &tapes)?.detach().flatten_all()?.to_vec1::<f32>()?;
        found.extend(said.chunks_exact(y).zip(chunk).map(|(said, i)| {
            let truth = pairs.pair(i)[1];
            [relative_l2(said, truth), relative_h1(said, truth, pairs.grid, false)]
        }));
    }
    let all = gather(ranks, &found)?.concat();
    let mean = |which: usize| all.iter().map(|errors| errors[which]).sum::<f64>() / all.len().max(1) as f64;
    Ok(Errors { l2: mean(0), h1: mean(1) })
}

impl Task for Operator {
    type Batch = Batch;

    fn unit(&self) -> &'static str {
        "pairs"
    }

    fn next_batch(&mut self, context: &Context) -> Result<Batch> {
        Ok(self.batch(context.batch))
    }

    fn loss(&mut self, parameters: &Params, batch: &Batch, _: &Context) -> Result<Loss> {
        let network = Fno::new(&self.model, parameters)?;
        let ([x, y], n) = (self.pairs.widths(), self.rows.len());
        let said = answers(&network, &batch.inputs, x, parameters.device(), &self.tapes)?;
        let truth = Tensor::from_slice(&batch.answers, (n, y), parameters.device())?;
        Ok(Loss { weight: n as f64 / self.batch as f64, ..Loss::new(self.loss.of(&said, &truth)?.mean_all()?, n) })
    }

    /// The errors on the pairs that are held out; none where there are none.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        if self.held.is_empty() {
            return Ok(Evaluation::default());
        }
        let Errors { l2, h1 } = errors(&self.model, parameters, &self.held, ranks)?;
        Ok(Evaluation::new(Score::minimise(l2), [("h1", h1)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::fno::config::{DataConfig, ModelConfig};
    use crate::parallel::Single;
    use candle_models::fno::Normaliser;

    fn task() -> (RunConfig, Operator) {
        let model = ModelConfig { modes: [4, 4], hidden: 4, layers: 1, padding: 0.0, rank: None };
        let data = DataConfig::Darcy { count: 12, places: 6 };
        let run = RunConfig { batch: 4, held_out: 3, data, model, ..RunConfig::preset("darcy").unwrap() };
        let [pairs, held] = run.generate().unwrap().split(run.held_out);
        let model = run.model.on(pairs.grid, pairs.channels, Normaliser::of(&pairs.answers).unwrap()).unwrap();
        let task = Operator::new(&run, &model, [pairs, held], &Single, &Device::Cpu).unwrap();
        (run, task)
    }

    /// An epoch has each of its pairs once, as it is or with its axes exchanged, and batches are the same again.
    #[test]
    fn batches_depend_on_their_number_alone() {
        let (_, mut task) = task();
        let batches: Vec<Batch> = (0..4).map(|number| task.batch(number)).collect();
        assert!((0..4).rev().all(|number| task.batch(number) == batches[number as usize]));
        let mut seen = Vec::new();
        for (batch, row) in (0..2).flat_map(|batch| (0..4).map(move |row| (batch, row))) {
            let input = &batches[batch].inputs[row * 36..][..36];
            let mut over = [0.0; 36];
            transposed(input, 6, 1, &mut over);
            let found = (0..task.pairs.len()).position(|i| task.pairs.pair(i)[0] == input || task.pairs.pair(i)[0] == over);
            seen.push(found.unwrap());
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 8);
        assert_ne!(batches[0], batches[2]);
    }

    #[test]
    fn errors_are_measured_on_any_grid() {
        let (_, mut task) = task();
        let drawn = Params::init(Random::new(1), &Device::Cpu);
        Fno::new(&task.model, &drawn).unwrap();
        let params = Params::given(drawn.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect(), &Device::Cpu);
        let results = task.evaluate(&params, &Single).unwrap().results();
        assert!(results["score"].is_finite() && results["h1"] > results["score"] / 2.0, "{results:?}");
        let finer = Fields::darcy(&candle_models::fno::darcy::Darcy { places: 12, ..Default::default() }, Random::new(3), 2).unwrap();
        assert!(errors(&task.model, &params, &finer, &Single).unwrap().l2.is_finite());
    }
}

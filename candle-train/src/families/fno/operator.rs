//! Learning an operator as a [`Task`]: pairs of fields, the relative error of answers.

use super::config::RunConfig;
use super::fields::{Fields, transposed};
use super::loss::{RelativeLoss, likelihood};
use crate::feed::{feed, values};
use crate::parallel::{Communicator, gather, share};
use crate::task::{Context, Evaluation, Loss, Score, Task};
use candle_core::{Device, Tensor};
use candle_models::Result;
use candle_models::fno::metrics::{relative_h1, relative_l2};
use candle_models::fno::{Fno, FnoConfig, Normaliser};
use candle_models::network::Tapes;
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use std::ops::Range;

/// How much the likelihood of an operator with a variance counts beside the error: little, so that what the answer is computed from is learnt for the answer.
const LIKELIHOOD: f64 = 0.01;

/// Pairs of a pass where nothing is learnt.
pub(super) const CHUNK: usize = 32;

/// An operator that learns.
pub struct Operator {
    model: FnoConfig,
    sources: Vec<Learnt>,
    held: Fields,
    transposed: bool,
    /// Deviation of the noise on what is read.
    noise: f32,
    random: Random,
    batch: usize,
    /// This rank's rows of a micro batch.
    rows: Range<usize>,
    /// Of the batches of all sources.
    order: Order,
}

/// Pairs that are learnt from, on one grid.
struct Learnt {
    pairs: Fields,
    loss: RelativeLoss,
    tapes: Tapes,
    /// Batches of an epoch.
    batches: usize,
    order: Order,
}

/// An order that is drawn anew for every epoch.
struct Order {
    random: Random,
    /// The epoch whose order it is.
    epoch: Option<u64>,
    order: Vec<u32>,
}

impl Order {
    fn new(random: Random, count: usize) -> Self {
        Self { random, epoch: None, order: vec![0; count] }
    }

    /// That of an epoch.
    fn of(&mut self, epoch: u64) -> &[u32] {
        if self.epoch != Some(epoch) {
            (self.epoch, self.order) = (Some(epoch), self.random.at(epoch).permutation(self.order.len()));
        }
        &self.order
    }
}

/// Pairs as the network reads them and should answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Which of the sources they are of.
    pub source: usize,
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
    /// That of all values of runs in which every answer is read again; none where every pair stands alone.
    pub roll_out: Option<f64>,
}

impl Operator {
    /// Of a run, on this rank. There is at least one source.
    ///
    /// # Errors
    /// If the answers of the first source are no numbers.
    pub fn new(run: &RunConfig, model: &FnoConfig, (sources, held): (Vec<Fields>, Fields), ranks: &dyn Communicator) -> Result<Self> {
        let random = Random::new(run.seed).stream("pairs");
        let noise = if run.noise > 0.0 { (run.noise * Normaliser::of(&sources[0].answers)?.deviation) as f32 } else { 0.0 };
        let learnt = |(number, pairs): (usize, Fields)| {
            let loss = RelativeLoss::new(run.loss, pairs.grid);
            let order = Order::new(random.stream("order").at(number as u64), pairs.len());
            Learnt { batches: pairs.len() / run.batch, pairs, loss, tapes: Tapes::default(), order }
        };
        let sources: Vec<Learnt> = sources.into_iter().enumerate().map(learnt).collect();
        let batches = sources.iter().map(|source| source.batches).sum();
        Ok(Self {
            model: model.clone(),
            sources,
            held,
            transposed: run.transposed,
            noise,
            random,
            batch: run.batch,
            rows: share(run.batch, ranks.rank(), ranks.size()),
            order: Order::new(random.stream("batches"), batches),
        })
    }

    /// The same with products of that kind.
    #[must_use]
    pub fn with_products(mut self, products: Products) -> Self {
        self.sources.iter_mut().for_each(|source| source.tapes = Tapes::new(products));
        self
    }

    /// Batches of an epoch, each of one source; pairs that are left over come in another one.
    pub fn batches(run: &RunConfig, pairs: impl IntoIterator<Item = usize>) -> u64 {
        pairs.into_iter().map(|pairs| (pairs / run.batch) as u64).sum()
    }

    /// Rows of a micro batch, which depend on its number alone.
    fn batch(&mut self, number: u64) -> Batch {
        let total = self.order.order.len() as u64;
        let epoch = number / total;
        let mut which = self.order.of(epoch)[(number % total) as usize] as usize;
        let here = |source: &Learnt| {
            let here = which < source.batches;
            which -= if here { 0 } else { source.batches };
            here
        };
        let source = self.sources.iter().position(here).expect("batches are those of all sources");
        let pairs: Vec<u32> = self.sources[source].order.of(epoch)[which * self.batch..][self.rows.clone()].to_vec();
        let [x, y] = self.sources[source].pairs.widths();
        let (mut inputs, mut answers) = (vec![0.0; pairs.len() * x], vec![0.0; pairs.len() * y]);
        let rows = inputs.chunks_exact_mut(x).zip(answers.chunks_exact_mut(y));
        for ((row, pair), to) in self.rows.clone().zip(pairs).zip(rows) {
            self.read(&self.sources[source].pairs, pair as usize, (number, row as u64), to);
        }
        Batch { source, inputs, answers }
    }

    /// A pair as a row of a micro batch: its axes may be exchanged, and what is read may have noise.
    fn read(&self, pairs: &Fields, pair: usize, (number, row): (u64, u64), (input, answer): (&mut [f32], &mut [f32])) {
        let [from, to] = pairs.pair(pair);
        if self.transposed && self.random.stream("transposed").at(number).bits(row).is_multiple_of(2) {
            let (side, [c, o]) = (pairs.grid[0], pairs.channels);
            transposed(from, side, c, input);
            transposed(to, side, o, answer);
        } else {
            input.copy_from_slice(from);
            answer.copy_from_slice(to);
        }
        if self.noise > 0.0 {
            let mut noise = vec![0.0; input.len()];
            self.random.stream("noise").at(number).at(row).fill_normal(0, &mut noise);
            input.iter_mut().zip(noise).for_each(|(input, noise)| *input += self.noise * noise);
        }
    }
}

/// What the network says of fields `[N, places C]`: `[N, places O]` by name, with gradients.
fn answers(network: &Fno, inputs: &[f32], width: usize, device: &Device, tapes: &Tapes) -> Result<NamedTensors> {
    let x = Tensor::from_slice(inputs, (inputs.len() / width, width), device)?;
    feed(network, &[x], tapes)
}

/// How wrong the parameters of a network are about pairs, which may lie on another grid than it was trained on; each rank looks at its share.
///
/// # Errors
/// If the pairs have other channels, or the network fails.
pub fn errors(model: &FnoConfig, parameters: &Params, pairs: &Fields, ranks: &dyn Communicator) -> Result<Errors> {
    let network = Fno::new(&FnoConfig { channels: pairs.channels, ..model.on_grid(pairs.grid) }, parameters)?;
    let (tapes, [x, y], states) = (Tapes::default(), pairs.widths(), pairs.states);
    let answer = |inputs: &[f32]| -> Result<Vec<f32>> { values(&answers(&network, inputs, x, parameters.device(), &tapes)?, "y") };
    let runs = share(pairs.runs(), ranks.rank(), ranks.size());
    let mut found = Vec::with_capacity(runs.len() * states);
    for chunk in chunks(runs.start * states..runs.end * states) {
        let said = answer(&pairs.inputs[chunk.start * x..chunk.end * x])?;
        found.extend(said.chunks_exact(y).zip(chunk).map(|(said, i)| {
            let truth = pairs.pair(i)[1];
            [relative_l2(said, truth), relative_h1(said, truth, pairs.grid, false)]
        }));
    }
    let mut rolled = Vec::with_capacity(runs.len());
    for chunk in chunks(if states > 1 { runs } else { 0..0 }) {
        let mut now: Vec<f32> = chunk.clone().flat_map(|run| pairs.pair(run * states)[0]).copied().collect();
        let mut said = vec![Vec::with_capacity(states * y); chunk.len()];
        for _ in 0..states {
            now = answer(&now)?;
            said.iter_mut().zip(now.chunks_exact(y)).for_each(|(said, now)| said.extend_from_slice(now));
        }
        rolled.extend(chunk.zip(said).map(|(run, said)| [relative_l2(&said, &pairs.answers[run * states * y..][..states * y])]));
    }
    let (found, rolled) = (gather(ranks, &found)?.concat(), gather(ranks, &rolled)?.concat());
    let mean = |which: usize| found.iter().map(|errors| errors[which]).sum::<f64>() / found.len().max(1) as f64;
    let roll_out = (states > 1).then(|| rolled.iter().flatten().sum::<f64>() / rolled.len().max(1) as f64);
    Ok(Errors { l2: mean(0), h1: mean(1), roll_out })
}

/// Parts of a range, few enough for a pass.
fn chunks(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(CHUNK).map(move |first| first..(first + CHUNK).min(range.end))
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
        let Learnt { pairs, loss, tapes, .. } = &self.sources[batch.source];
        let network = Fno::new(&self.model.on_grid(pairs.grid), parameters)?;
        let ([x, y], n) = (pairs.widths(), self.rows.len());
        let said = answers(&network, &batch.inputs, x, parameters.device(), tapes)?;
        let truth = Tensor::from_slice(&batch.answers, (n, y), parameters.device())?;
        let answer = said.get("y")?;
        let mut value = loss.of(answer, &truth)?.mean_all()?;
        if self.model.variance {
            value = (value + (likelihood(answer, said.get("variance")?, &truth, self.model.output.deviation)? * LIKELIHOOD)?)?;
        }
        Ok(Loss { weight: n as f64 / self.batch as f64, ..Loss::new(value, n) })
    }

    /// The errors on the pairs that are held out, of roll-outs where there are any; none where there are no pairs.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        if self.held.is_empty() {
            return Ok(Evaluation::default());
        }
        let Errors { l2, h1, roll_out } = errors(&self.model, parameters, &self.held, ranks)?;
        Ok(match roll_out {
            Some(roll_out) => Evaluation::new(Score::minimise(roll_out), [("l2", l2), ("h1", h1)]),
            None => Evaluation::new(Score::minimise(l2), [("h1", h1)]),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::fno::config::ModelConfig;
    use crate::families::fno::source::{Equation, Source};
    use crate::parallel::Single;

    fn task(sources: &[(u64, Equation)], noise: f64) -> Operator {
        let model = ModelConfig {
            modes: [4, 4],
            hidden: 4,
            layers: 1,
            padding: 0.0,
            rank: None,
            variance: false,
            residual: false,
            periodic: false,
        };
        let run = RunConfig { batch: 4, held_out: 3, noise, model, ..RunConfig::preset("darcy").unwrap() };
        let made = |(count, equation): &(u64, Equation)| Source { seed: 1, count: *count, equation: equation.clone() }.all().unwrap();
        let mut sources: Vec<Fields> = sources.iter().map(made).collect();
        let [first, held] = sources[0].clone().split(run.held_out);
        sources[0] = first;
        let model = run.model.on(held.grid, held.channels, Normaliser::of(&held.answers).unwrap()).unwrap();
        Operator::new(&run, &model, (sources, held), &Single).unwrap()
    }

    fn parameters(task: &Operator) -> Params {
        let drawn = Params::init(Random::new(1), &Device::Cpu);
        Fno::new(&task.model, &drawn).unwrap();
        Params::given(drawn.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect(), &Device::Cpu)
    }

    /// An epoch has each pair of each source once, as it is or with its axes exchanged, and batches are the same again.
    #[test]
    fn batches_depend_on_their_number_alone() {
        let mut task = task(&[(11, Equation::Darcy { places: 6 }), (4, Equation::Darcy { places: 5 })], 0.0);
        let batches: Vec<Batch> = (0..6).map(|number| task.batch(number)).collect();
        assert!((0..6).rev().all(|number| task.batch(number) == batches[number as usize]));
        let mut seen = Vec::new();
        for (batch, row) in batches[..3].iter().flat_map(|batch| (0..4).map(move |row| (batch, row))) {
            let pairs = &task.sources[batch.source].pairs;
            let (side, width) = (pairs.grid[0], pairs.widths()[0]);
            let input = &batch.inputs[row * width..][..width];
            let mut over = vec![0.0; width];
            transposed(input, side, 1, &mut over);
            let found = (0..pairs.len()).position(|i| pairs.pair(i)[0] == input || pairs.pair(i)[0] == over);
            seen.push((batch.source, found.unwrap()));
        }
        seen.sort_unstable();
        let expected: Vec<_> = (0..8).map(|i| (0, i)).chain((0..4).map(|i| (1, i))).collect();
        assert_eq!(seen, expected);
        assert_ne!(batches[..3], batches[3..]);
        let context = Context::of(1, [0, 1], Random::new(1), &Single, candle_core::DType::F32);
        let parameters = parameters(&task);
        for batch in &batches[..3] {
            assert!(task.loss(&parameters, batch, &context).unwrap().value.to_scalar::<f32>().unwrap() > 0.0);
        }
    }

    #[test]
    fn noise_is_a_part_of_the_deviation_of_the_answers() {
        let equation = Equation::Darcy { places: 6 };
        let (mut plain, mut noisy) = (task(&[(11, equation.clone())], 0.0), task(&[(11, equation)], 0.5));
        let deviation = Normaliser::of(&plain.sources[0].pairs.answers).unwrap().deviation;
        let (plain, noisy) = (plain.batch(1), noisy.batch(1));
        assert_eq!(plain.answers, noisy.answers);
        let squares: f64 = plain.inputs.iter().zip(&noisy.inputs).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let found = (squares / plain.inputs.len() as f64).sqrt() / deviation;
        assert!((0.4..0.6).contains(&found), "{found}");
    }

    #[test]
    fn errors_are_measured_on_any_grid() {
        let mut task = task(&[(11, Equation::Darcy { places: 6 })], 0.0);
        let params = parameters(&task);
        let results = task.evaluate(&params, &Single).unwrap().results();
        assert!(results["score"].is_finite() && results["h1"] > results["score"] / 2.0, "{results:?}");
        let finer = Source { seed: 3, count: 2, equation: Equation::Darcy { places: 12 } }.all().unwrap();
        assert!(errors(&task.model, &params, &finer, &Single).unwrap().l2.is_finite());
    }

    /// Of runs of one state the roll-out is the answer, and of longer ones it is that of the answers.
    #[test]
    fn roll_outs_read_what_was_answered() {
        let flow = Equation::NavierStokes { places: 6, viscosity: 1e-2, interval: 0.05, states: 2, skipped: 0 };
        let mut task = task(&[(7, flow)], 0.0);
        let (params, held) = (parameters(&task), task.held.clone());
        let network = Fno::new(&task.model, &params).unwrap();
        let answer = |x: &[f32]| values(&answers(&network, x, 36, &Device::Cpu, &Tapes::default()).unwrap(), "y").unwrap();
        let error = |run: usize| {
            let first: Vec<f32> = answer(held.pair(2 * run)[0]);
            let second: Vec<f32> = answer(&first);
            relative_l2(&[first, second].concat(), &held.answers[2 * run * 36..][..72])
        };
        let expected = (0..3).map(error).sum::<f64>() / 3.0;
        let found = errors(&task.model, &params, &held, &Single).unwrap();
        assert!((found.roll_out.unwrap() - expected).abs() < 1e-6);
        assert_eq!(task.evaluate(&params, &Single).unwrap().results()["l2"], found.l2);
    }
}

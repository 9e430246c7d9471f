//! The training step of a neural operator: the relative error of its answers to pairs of fields; one sample is one pair.

use crate::case::Case;
use crate::harness::Subject;
use crate::trainee::{Trainee, Work};
use crate::update::Update;
use anyhow::{Context as _, Result, bail, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::bundle::{Manifest, Role};
use candle_models::device::Purpose;
use candle_models::fno::darcy::Darcy;
use candle_models::fno::{FAMILY, Fno, FnoConfig};
use candle_models::nn::Params;
use candle_models::ops::Products;
use candle_models::random::Random;
use candle_train::fno::config::{ModelConfig, RunConfig};
use candle_train::fno::fields::Fields;
use candle_train::fno::operator::{Batch, Operator};
use candle_train::fno::source::{Equation, Source};
use candle_train::parallel::Single;
use candle_train::task::{Context, Task};
use candle_train::trainer::TrainerConfig;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// What the configuration of a run begins with: media and the flow through them.
const PRESET: &str = "darcy";

/// An operator that is trained.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Learnt(pub FnoConfig);

impl Trainee for Learnt {
    fn manifest(&self) -> Result<Manifest> {
        Ok(Manifest::new(FAMILY, &self.0)?)
    }

    fn training(&self) -> &'static str {
        "operator"
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn unit(&self) -> &'static str {
        "pairs"
    }

    /// A field has no time.
    fn frames(&self, _asked: usize) -> usize {
        1
    }

    fn samples(&self, case: &Case) -> usize {
        case.batch
    }

    fn weight_uses(&self, case: &Case) -> Result<f64> {
        Ok(weight_uses(&self.0)? * case.batch as f64)
    }

    fn vars(&self, device: &Device) -> Result<BTreeMap<String, Var>> {
        let params = Params::init(Random::new(0), device);
        Fno::new(&self.0, &params)?;
        Ok(params.vars())
    }

    fn trainer(&self) -> Result<TrainerConfig> {
        Ok(RunConfig::preset(PRESET)?.trainer)
    }

    fn purpose(&self) -> Purpose {
        Purpose::Tapes
    }

    fn work(&self, case: &Case, _: &Device, products: Products) -> Result<Work> {
        let (run, pairs) = (run(&self.0, case.batch, case.batch)?, fields(&self.0, case.batch)?);
        Ok(Work::new(task(&run, &self.0, pairs)?.with_products(products)))
    }

    fn program(&self, case: &Case) -> Result<(&'static str, String)> {
        let FnoConfig { grid: [n, m], channels, .. } = self.0;
        if n != m || channels != [1, 1] {
            bail!("{}: candle-train makes fields of one channel on a square", self.name());
        }
        let run = run(&self.0, case.batch, case.batch)?;
        run.validate()?;
        Ok((PRESET, candle_train::overlay::to_toml(&run)?))
    }
}

/// A run on so many pairs, none held out, as the trainer's preset has it.
pub(super) fn run(operator: &FnoConfig, batch: usize, pairs: usize) -> Result<RunConfig> {
    let &FnoConfig { grid: [n, m], modes, hidden, layers, padding, rank, variance, residual, periodic, .. } = operator;
    let model = ModelConfig { modes, hidden, layers, padding, rank, variance, residual, periodic };
    let data = Some(Source { seed: 1, count: pairs as u64, equation: Equation::Darcy { places: n } });
    Ok(RunConfig { epochs: 1_000_000, batch, held_out: 0, transposed: n == m, data, model, ..RunConfig::preset(PRESET)? })
}

/// What learns from these pairs, none of which are held out.
fn task(run: &RunConfig, operator: &FnoConfig, pairs: Fields) -> Result<Operator> {
    let [pairs, none] = pairs.split(0);
    Ok(Operator::new(run, operator, (vec![pairs], none), &Single)?)
}

/// How often the answer to one field uses a weight: a matrix at every place; the weight of a wave in a complex product, four multiply-adds.
pub(super) fn weight_uses(operator: &FnoConfig) -> Result<f64> {
    let description = Params::description();
    Fno::new(operator, &description)?;
    let &FnoConfig { modes, hidden, layers, .. } = operator;
    let [n, m] = operator.padded();
    let places = |name: &str| if name.starts_with("fno_blocks.") { n * m } else { operator.places() };
    let matrices = description.specs().into_iter().filter(|p| p.role == Role::Matrix);
    let at_places: usize = matrices.map(|p| places(&p.name) * p.shape.iter().product::<usize>()).sum();
    let waves = modes[0].min(n) * (modes[1] / 2 + 1).min(m / 2 + 1);
    Ok((at_places + layers * 4 * waves * hidden * hidden) as f64)
}

/// So many pairs on the operator's grid, a medium and its flow for every channel: the middle of a square where its sides differ. They are solved on that grid
/// itself, for what a step costs does not depend on how exact they are.
pub(super) fn fields(operator: &FnoConfig, count: usize) -> Result<Fields> {
    let &FnoConfig { grid: [n, m], channels: [c, o], .. } = operator;
    // At least one node inside: the flow is 0 on the edge.
    let side = n.max(m).max(3);
    let (darcy, random) = (Darcy { places: side, finer: 1, ..Darcy::default() }, Random::new(1).stream("fields"));
    let (mut inputs, mut answers) = (vec![0.0; count * n * m * c], vec![0.0; count * n * m * o]);
    let pairs = inputs.par_chunks_mut(n * m * c).zip(answers.par_chunks_mut(n * m * o)).enumerate();
    pairs.try_for_each(|(pair, (x, y))| {
        let (mut medium, mut flow) = (vec![0.0; side * side], vec![0.0; side * side]);
        for channel in 0..c.max(o) {
            darcy.generate(random.at((pair * c.max(o) + channel) as u64), &mut medium, &mut flow)?;
            for place in 0..n * m {
                let from = ((side - n) / 2 + place / m) * side + (side - m) / 2 + place % m;
                if channel < c {
                    x[place * c + channel] = medium[from];
                }
                if channel < o {
                    y[place * o + channel] = flow[from];
                }
            }
        }
        Ok::<_, candle_models::Error>(())
    })?;
    Ok(Fields { grid: [n, m], channels: [c, o], states: 1, inputs, answers })
}

/// Training steps without decay and clipping, as the peer makes them, on the threads of the pool that calls. Every call is one pass over the pairs, a step for
/// each batch.
pub(super) struct Steps {
    task: Operator,
    update: Update,
    /// Steps of a call, and those so far.
    steps: usize,
    number: u64,
}

impl Steps {
    /// Steps of one batch of pairs from fresh parameters.
    ///
    /// # Errors
    /// If the configuration is out of range.
    pub fn new(operator: &FnoConfig, batch: usize) -> Result<Self> {
        Self::on(operator, Learnt(operator.clone()).vars(&Device::Cpu)?, fields(operator, batch)?, batch)
    }

    /// Steps of batches of these pairs, in the order of the trainer and never transposed.
    ///
    /// # Errors
    /// If the pairs make no batch.
    pub fn on(operator: &FnoConfig, vars: BTreeMap<String, Var>, pairs: Fields, batch: usize) -> Result<Self> {
        let run = RunConfig { transposed: false, ..run(operator, batch, pairs.len())? };
        let steps = pairs.len() / batch;
        ensure!(steps > 0, "{} pairs do not make a batch of {batch}", pairs.len());
        let task = task(&run, operator, pairs)?;
        Ok(Self { task, update: Update::like_the_peer(vars)?, steps, number: 0 })
    }

    /// The parameters.
    pub fn vars(&self) -> &BTreeMap<String, Var> {
        &self.update.vars
    }

    /// One update on that batch; the loss before it.
    ///
    /// # Errors
    /// If the step fails.
    pub fn update(&mut self, batch: &Batch) -> Result<f32> {
        self.update.by(&loss(&mut self.task, &self.update.vars, batch)?)
    }

    /// The gradient of every parameter on that batch.
    ///
    /// # Errors
    /// If one has none.
    pub fn gradients(&mut self, batch: &Batch) -> Result<BTreeMap<String, Tensor>> {
        let store = loss(&mut self.task, &self.update.vars, batch)?.backward()?;
        let of = |(name, var): (&String, &Var)| {
            let gradient = store.get(var.as_tensor()).with_context(|| format!("{name}: no gradient"))?;
            Ok((name.clone(), gradient.clone()))
        };
        self.update.vars.iter().map(of).collect()
    }
}

/// The loss of parameters on a batch, with gradients.
fn loss(task: &mut Operator, vars: &BTreeMap<String, Var>, batch: &Batch) -> Result<Tensor> {
    let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
    Ok(task.loss(&Params::given(tensors, &Device::Cpu), batch, &context(0))?.value)
}

/// Micro batch `number` of a run on one rank.
fn context(number: u64) -> Context<'static> {
    Context::of(number, [0, 1], Random::new(0), &Single, DType::F32)
}

impl Subject for Steps {
    fn run(&mut self) -> Result<()> {
        for _ in 0..self.steps {
            let batch = self.task.next_batch(&context(self.number))?;
            self.number += 1;
            self.update(&batch)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::fno::usual;

    #[test]
    fn what_a_weight_is_used_for_is_counted() {
        let small = usual("fno-16x16").unwrap();
        // Multiply-adds of the perceptrons at a place, and the complex products of the 8 x 5 waves, counted by hand.
        let at_place = (3 * 48 + 48 * 24, 4 * (24 * 24 + 2 * 24 * 12), 24 * 48 + 48);
        let waves = 4 * 4 * 8 * 5 * 24 * 24;
        let count = |lift, blocks, places: usize, padded: usize| ((lift + at_place.2) * places + blocks * padded + waves) as f64;
        assert_eq!(weight_uses(&small).unwrap(), count(at_place.0 + at_place.1, 0, 256, 0));
        let padded = FnoConfig { padding: 0.25, ..small.clone() };
        assert_eq!(weight_uses(&padded).unwrap(), count(at_place.0, at_place.1, 256, 24 * 24));
        // A grid of 4 x 4 has 4 x 3 waves, a line one row of them and one coordinate.
        let coarse = weight_uses(&small.on_grid([4, 4])).unwrap();
        assert_eq!(coarse, (16 * 7104 + 4 * 4 * 4 * 3 * 24 * 24) as f64);
        let line = FnoConfig { padding: 0.5, ..small.on_grid([1, 16]) };
        assert_eq!(weight_uses(&line).unwrap(), (16 * (2496 - 48) + 32 * 4608 + 4 * 4 * 5 * 24 * 24) as f64);
        let learnt = Learnt(small);
        assert_eq!(learnt.weight_uses(&learnt.case(3, 60, 1)).unwrap(), 3.0 * 2_187_264.0);
    }

    #[test]
    fn the_other_program_trains_the_same_model() {
        let learnt = Learnt(FnoConfig { grid: [6, 6], modes: [4, 4], hidden: 4, ..usual("fno-16x16").unwrap() });
        let (preset, text) = learnt.program(&learnt.case(8, 60, 1)).unwrap();
        let run = RunConfig::resolve(&RunConfig::preset(preset).unwrap(), Some(&text), &[]).unwrap();
        let shape = run.data.as_ref().unwrap().shape();
        let output = learnt.0.output;
        assert_eq!((run.model.on([6, 6], [1, 1], output).unwrap(), run.batch, shape), (learnt.0, 8, (8, [6, 6])));
        let wide = Learnt(usual("fno-64x64").unwrap());
        let error = wide.program(&wide.case(8, 60, 1)).unwrap_err().to_string();
        assert!(error.contains("fields of one channel on a square"), "{error}");
    }

    #[test]
    fn every_grid_and_channel_has_a_field_of_its_own() {
        for (grid, channels) in [([6, 6], [1, 1]), ([4, 7], [2, 3]), ([1, 9], [1, 1]), ([1, 1], [1, 1])] {
            let operator = FnoConfig { grid, channels, ..usual("fno-16x16").unwrap() };
            let pairs = fields(&operator, 3).unwrap();
            assert_eq!((pairs.len(), pairs.grid, pairs.channels), (3, grid, channels));
            assert!((0..3).all(|i| pairs.pair(i)[1].iter().any(|y| *y > 0.0)), "{grid:?}: no flow");
            assert!(pairs.inputs.iter().all(|x| *x == 0.0 || *x == 1.0));
        }
        let wide = fields(&FnoConfig { grid: [5, 5], channels: [1, 2], ..usual("fno-16x16").unwrap() }, 2).unwrap();
        let channel = |pair: usize, channel: usize| wide.pair(pair)[1].iter().skip(channel).step_by(2).copied().collect::<Vec<_>>();
        assert!(channel(0, 0) != channel(0, 1) && channel(0, 1) != channel(1, 0));
    }

    #[test]
    fn steps_lower_the_loss_of_their_batch_and_move_every_parameter() {
        let operator = FnoConfig { grid: [6, 6], modes: [4, 4], hidden: 6, layers: 2, ..usual("fno-16x16").unwrap() };
        let (mut steps, pairs) = (Steps::new(&operator, 4).unwrap(), fields(&operator, 4).unwrap());
        let batch = Batch { source: 0, inputs: pairs.inputs, answers: pairs.answers };
        let gradients = steps.gradients(&batch).unwrap();
        assert!(gradients.keys().eq(steps.vars().keys()));
        let before: Vec<Tensor> = steps.vars().values().map(|var| var.as_tensor().copy().unwrap()).collect();
        let losses: Vec<f32> = (0..3).map(|_| steps.update(&batch).unwrap()).collect();
        assert!(losses.is_sorted_by(|a, b| a > b), "{losses:?}");
        for (before, (name, var)) in before.iter().zip(steps.vars()) {
            let moved = (before - var.as_tensor()).unwrap().abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(moved > 0.0, "{name} has not moved");
        }
        let mut epoch =
            Steps::on(&operator, Learnt(operator.clone()).vars(&Device::Cpu).unwrap(), fields(&operator, 6).unwrap(), 2).unwrap();
        epoch.run().unwrap();
        assert_eq!(epoch.number, 3);
    }
}

//! Batches of recorded episodes, made ahead on a thread of their own.

use super::episodes::{Episodes, Rows};
use crate::lanes::{Lanes, StepShape};
use crate::prefetch::{Prefetch, Source};
use candle_core::{DType, Device, Tensor};
use candle_models::agent::{AgentConfig, Observation};
use candle_models::random::Random;
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// One micro batch's frames, or a rank's share of them: B lanes of T rows. Floats lie on the loader's device, indices on the host.
#[derive(Debug)]
pub struct Batch {
    /// The agent's inputs, `[B, T, ...]`.
    pub inputs: NamedTensors,
    /// The recorded numbers of its Gaussian components, `[B, T, numbers]`; `None` where there are none.
    pub numbers: Option<Tensor>,
    /// Whether a row starts anew, lane by lane.
    pub resets: Vec<bool>,
}

/// Hands out batches by their numbers.
pub struct Loader {
    batches: Prefetch<Reader>,
    steps: u64,
    lanes: Range<usize>,
    shape: StepShape,
}

impl Loader {
    /// Of these episodes, for a device: the lanes of a batch that are `lanes`. Nothing is read before the first batch is asked for.
    ///
    /// # Errors
    /// If the episodes have fewer frames than one step.
    pub fn new(
        episodes: Arc<Episodes>,
        config: &AgentConfig,
        (shape, lanes): (StepShape, Range<usize>),
        random: Random,
        device: &Device,
    ) -> Result<Self> {
        let (specs, lengths) = (Specs::new(config), episodes.lengths());
        let Some(first) = Lanes::new(&lengths, shape, random.stream("epoch").at(0)) else {
            let (StepShape { lanes, unroll }, frames) = (shape, episodes.frames());
            let reason = format!("{frames} frames to train on are fewer than a step of {lanes} x {unroll}");
            return Err(Error::config("data.batch", reason));
        };
        let steps = first.steps() as u64;
        let reader = Reader { specs, lengths, episodes, shape, lanes: lanes.clone(), random, steps, epoch: (0, first) };
        Ok(Self { batches: Prefetch::new(reader, device)?, steps, lanes, shape })
    }

    /// Batches of an epoch.
    pub fn steps_per_epoch(&self) -> u64 {
        self.steps
    }

    /// Lanes that are read.
    pub fn lanes(&self) -> Range<usize> {
        self.lanes.clone()
    }

    /// Frames of a batch, all ranks together.
    pub fn shape(&self) -> StepShape {
        self.shape
    }

    /// Batch `number` since the run began.
    ///
    /// # Errors
    /// If the device fails.
    pub fn get(&mut self, number: u64) -> Result<Batch> {
        let (tensors, (indices, resets)) = self.batches.get(number)?;
        let (numbers, inputs): (Vec<_>, Vec<_>) = tensors.into_iter().partition(|(name, _)| name == NUMBERS);
        let inputs = inputs.into_iter().chain(indices).collect();
        Ok(Batch { inputs, numbers: numbers.into_iter().next().map(|(_, tensor)| tensor), resets })
    }
}

/// What the recorded numbers are called among the floats of a batch: no input can have that name.
const NUMBERS: &str = "action.numbers";

/// The inputs of an agent: of floats, of indices, and the action before, where it is one, and the action.
#[derive(Debug, Clone)]
pub(super) struct Specs {
    floats: Vec<TensorSpec>,
    indices: Vec<TensorSpec>,
    columns: usize,
    /// Gaussian numbers of an action.
    numbers: usize,
    sees_previous: bool,
}

impl Specs {
    pub(super) fn new(config: &AgentConfig) -> Self {
        let all = config.observation.iter().map(Observation::spec);
        let (floats, indices) = all.partition(|spec| spec.dtype() == DType::F32);
        Self { floats, indices, columns: config.columns(), numbers: config.numbers(), sees_previous: config.previous_action > 0 }
    }
}

/// Index tensors of some rows, filled in place.
pub(super) struct Indices {
    inputs: Vec<Vec<u32>>,
    previous: Vec<u32>,
    action: Vec<u32>,
}

impl Indices {
    pub(super) fn zeros(specs: &Specs, rows: usize) -> Self {
        let zeros = |width: usize| vec![0; rows * width];
        let (inputs, columns) = (specs.indices.iter().map(|spec| zeros(spec.width())).collect(), specs.columns);
        Self { inputs, previous: zeros(columns), action: zeros(columns) }
    }

    /// Where an episode is read to, with floats beside.
    pub(super) fn rows<'a>(&'a mut self, floats: Vec<&'a mut [f32]>, numbers: &'a mut [f32]) -> Rows<'a> {
        let indices = self.inputs.iter_mut().map(Vec::as_mut_slice).collect();
        Rows { floats, indices, previous: &mut self.previous, action: &mut self.action, numbers }
    }

    /// As tensors `[lanes, frames, ...]` by name.
    pub(super) fn named(self, specs: &Specs, lanes: usize, frames: usize) -> Result<Vec<(String, Tensor)>> {
        let named = |name: &str, values: Vec<u32>| {
            let width = values.len() / (lanes * frames);
            Ok((name.to_owned(), Tensor::from_vec(values, (lanes, frames, width), &Device::Cpu)?))
        };
        let mut all = specs.indices.iter().zip(self.inputs).map(|(spec, values)| named(&spec.name, values)).collect::<Result<Vec<_>>>()?;
        if specs.columns > 0 {
            all.push(named("action", self.action)?);
        }
        if specs.sees_previous {
            all.push(named("previous_action", self.previous)?);
        }
        Ok(all)
    }
}

/// Some frames side by side as the inputs of an agent with its Gaussian numbers, on the host: for each lane an episode with its rows, the rest
/// zeros.
pub(super) fn side_by_side(
    episodes: &Episodes,
    specs: &Specs,
    lanes: &[(usize, Range<usize>)],
    frames: usize,
) -> Result<(NamedTensors, Option<Tensor>)> {
    let mut floats: Vec<Vec<f32>> = specs.floats.iter().map(|spec| vec![0.0; lanes.len() * frames * spec.width()]).collect();
    let mut indices = Indices::zeros(specs, lanes.len() * frames);
    let mut numbers = vec![0.0; lanes.len() * frames * specs.numbers];
    let mut rows = indices.rows(floats.iter_mut().map(Vec::as_mut_slice).collect(), &mut numbers);
    for (lane, (episode, wanted)) in lanes.iter().enumerate().filter(|(_, (_, wanted))| !wanted.is_empty()) {
        episodes.read(*episode, wanted.clone(), lane * frames, &mut rows);
    }
    let shape = |spec: &TensorSpec| [&[lanes.len(), frames], &spec.shape[..]].concat();
    let named = |(spec, values)| Ok((TensorSpec::clone(spec).name, Tensor::from_vec::<_, f32>(values, shape(spec), &Device::Cpu)?));
    let floats = specs.floats.iter().zip(floats).map(named);
    let inputs = floats.chain(indices.named(specs, lanes.len(), frames)?.into_iter().map(Ok)).collect::<Result<_>>()?;
    let shape = (lanes.len(), frames, specs.numbers);
    let numbers = (specs.numbers > 0).then(|| Tensor::from_vec(numbers, shape, &Device::Cpu)).transpose()?;
    Ok((inputs, numbers))
}

/// Reads the batches of some lanes.
struct Reader {
    episodes: Arc<Episodes>,
    lengths: Vec<usize>,
    specs: Specs,
    shape: StepShape,
    lanes: Range<usize>,
    random: Random,
    /// Batches of an epoch.
    steps: u64,
    /// The epoch that was read last, and its order.
    epoch: (u64, Lanes),
}

impl Reader {
    fn order(&mut self, epoch: u64) -> Result<&Lanes> {
        if self.epoch.0 != epoch {
            let order = Lanes::new(&self.lengths, self.shape, self.random.stream("epoch").at(epoch));
            self.epoch = (epoch, order.ok_or_else(|| Error::Input("an epoch without a step".to_owned()))?);
        }
        Ok(&self.epoch.1)
    }
}

impl Source for Reader {
    type Host = (Vec<(String, Tensor)>, Vec<bool>);

    /// The inputs of floats, the recorded numbers, if there are any, and the numbers for sampling, which imitation has no use for.
    fn tensors(&self) -> Vec<TensorSpec> {
        let leading = [self.lanes.len(), self.shape.unroll];
        let Specs { floats, columns, numbers, .. } = &self.specs;
        let recorded = (*numbers > 0).then(|| TensorSpec::f32(NUMBERS, &[*numbers]));
        let uniform = TensorSpec::f32("uniform", &[columns + numbers]);
        let all = floats.iter().chain(&recorded).chain([&uniform]);
        all.map(|spec| TensorSpec::f32(&spec.name, &[&leading, &spec.shape[..]].concat())).collect()
    }

    fn make(&mut self, number: u64, tensors: &mut [&mut [f32]]) -> Result<Self::Host> {
        let (epoch, step) = (number / self.steps, (number % self.steps) as usize);
        let (lanes, unroll) = (self.lanes.clone(), self.shape.unroll);
        let mut indices = Indices::zeros(&self.specs, lanes.len() * unroll);
        let mut resets = vec![false; lanes.len() * unroll];
        let order = self.order(epoch)?;
        let pieces: Vec<_> = lanes.clone().map(|lane| order.stretch(step..step + 1, lane)).collect();
        let (floats, rest) = tensors.split_at_mut(self.specs.floats.len());
        let (numbers, uniform): (&mut [f32], _) = match rest {
            [uniform] => (&mut [], uniform),
            [numbers, uniform] => (numbers, uniform),
            _ => return Err(Error::Input("tensors of another batch".to_owned())),
        };
        uniform.fill(-1.0);
        let mut rows = indices.rows(floats.iter_mut().map(|values| &mut **values).collect(), numbers);
        for (lane, pieces) in pieces.into_iter().enumerate() {
            for piece in pieces {
                let start = lane * unroll + piece.at;
                // A lane that begins in the middle of an episode begins without memory.
                resets[start] = piece.rows.start == 0 || (step == 0 && piece.at == 0);
                self.episodes.read(piece.sequence, piece.rows, start, &mut rows);
            }
        }
        Ok((indices.named(&self.specs, lanes.len(), unroll)?, resets))
    }
}

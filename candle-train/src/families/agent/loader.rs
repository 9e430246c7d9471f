//! Batches of recorded episodes, made ahead on a thread of their own.

use super::episodes::{Episodes, Rows};
use crate::lanes::{Epochs, StepShape};
use crate::prefetch::{Prefetch, Source};
use candle_core::{DType, Device, Tensor};
use candle_models::agent::{AgentConfig, Component, Observation};
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
    specs: Specs,
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
        let Some(epochs) = Epochs::new(episodes.lengths(), shape, random) else {
            let (StepShape { lanes, unroll }, frames) = (shape, episodes.frames());
            let reason = format!("{frames} frames to train on are fewer than a step of {lanes} x {unroll}");
            return Err(Error::config("data.batch", reason));
        };
        let steps = epochs.batches();
        let specs = Specs::new(config);
        let reader = Reader { specs: specs.clone(), episodes, epochs, unroll: shape.unroll, lanes: lanes.clone() };
        Ok(Self { batches: Prefetch::new(reader, device), specs, steps, lanes, shape })
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
    /// If a file has changed or cannot be read, or the device fails.
    pub fn get(&mut self, number: u64) -> Result<Batch> {
        let (tensors, resets) = self.batches.get(number)?;
        let (inputs, numbers) = self.specs.apart(tensors)?;
        Ok(Batch { inputs, numbers, resets })
    }
}

/// The tensors of an agent's batch: Gaussian components and inputs of floats, inputs of indices, the classes of the action, and those before, where
/// they are an input.
#[derive(Debug, Clone)]
pub(super) struct Specs {
    floats: Vec<TensorSpec>,
    indices: Vec<TensorSpec>,
    columns: usize,
    /// How many of the floats are Gaussian components, which come first.
    gaussian: usize,
    /// Numbers that sampling would draw by.
    draws: usize,
    sees_previous: bool,
}

impl Specs {
    pub(super) fn new(config: &AgentConfig) -> Self {
        let numbers: Vec<TensorSpec> = config.action.iter().filter_map(Component::recorded).collect();
        let (gaussian, inputs) = (numbers.len(), config.observation.iter().map(Observation::spec));
        let (floats, mut indices): (Vec<_>, Vec<_>) = numbers.into_iter().chain(inputs).partition(|spec| spec.dtype() == DType::F32);
        let (columns, sees_previous) = (config.columns(), config.previous_action > 0);
        indices.extend((columns > 0).then(|| TensorSpec::u32("action", &[columns])));
        indices.extend(sees_previous.then(|| TensorSpec::u32("previous_action", &[columns])));
        Self { floats, indices, columns, gaussian, draws: columns + config.numbers(), sees_previous }
    }

    /// Tensors of a batch as the agent's inputs and its recorded numbers side by side.
    fn apart(&self, tensors: NamedTensors) -> Result<(NamedTensors, Option<Tensor>)> {
        let gaussian = &self.floats[..self.gaussian];
        let numbers = gaussian.iter().map(|spec| tensors.get(&spec.name)).collect::<Result<Vec<_>>>()?;
        let numbers = if numbers.is_empty() { None } else { Some(Tensor::cat(&numbers, 2)?) };
        let inputs = tensors.into_iter().filter(|(name, _)| gaussian.iter().all(|spec| spec.name != *name));
        Ok((inputs.collect(), numbers))
    }

    /// Where an episode is read to.
    fn rows<'a>(&self, floats: Vec<&'a mut [f32]>, mut indices: Vec<&'a mut [u32]>) -> Rows<'a> {
        let previous = if self.sees_previous { indices.pop() } else { None };
        let action = if self.columns > 0 { indices.pop() } else { None };
        Rows { floats, indices, action, previous }
    }
}

/// Some frames side by side as the inputs of an agent with its recorded numbers, on the host: for each lane an episode with its rows, the rest zeros.
pub(super) fn side_by_side(
    episodes: &Episodes,
    specs: &Specs,
    lanes: &[(usize, Range<usize>)],
    frames: usize,
) -> Result<(NamedTensors, Option<Tensor>)> {
    let n = lanes.len() * frames;
    let mut floats: Vec<Vec<f32>> = specs.floats.iter().map(|spec| vec![0.0; n * spec.width()]).collect();
    let mut indices: Vec<Vec<u32>> = specs.indices.iter().map(|spec| vec![0; n * spec.width()]).collect();
    let to = floats.iter_mut().map(Vec::as_mut_slice).collect();
    let mut rows = specs.rows(to, indices.iter_mut().map(Vec::as_mut_slice).collect());
    for (lane, (episode, wanted)) in lanes.iter().enumerate().filter(|(_, (_, wanted))| !wanted.is_empty()) {
        episodes.read(*episode, wanted.clone(), lane * frames, &mut rows)?;
    }
    let shape = |spec: &TensorSpec| [&[lanes.len(), frames], &spec.shape[..]].concat();
    let mut all = NamedTensors::new();
    for (spec, values) in specs.floats.iter().zip(floats) {
        all.insert(&spec.name, Tensor::from_vec(values, shape(spec), &Device::Cpu)?);
    }
    for (spec, values) in specs.indices.iter().zip(indices) {
        all.insert(&spec.name, Tensor::from_vec(values, shape(spec), &Device::Cpu)?);
    }
    specs.apart(all)
}

/// Reads the batches of some lanes.
struct Reader {
    episodes: Arc<Episodes>,
    specs: Specs,
    epochs: Epochs,
    unroll: usize,
    lanes: Range<usize>,
}

impl Source for Reader {
    /// Whether a row starts anew.
    type Host = Vec<bool>;

    /// Recorded numbers and the agent's inputs, among them the numbers for sampling, which imitation has no use for.
    fn tensors(&self) -> Vec<TensorSpec> {
        let shape = |spec: &TensorSpec| [&[self.lanes.len(), self.unroll], &spec.shape[..]].concat();
        let uniform = TensorSpec::f32("uniform", &[self.specs.draws]);
        let floats = self.specs.floats.iter().chain([&uniform]).map(|spec| TensorSpec::f32(&spec.name, &shape(spec)));
        floats.chain(self.specs.indices.iter().map(|spec| TensorSpec::u32(&spec.name, &shape(spec)))).collect()
    }

    fn make(&mut self, number: u64, floats: &mut [&mut [f32]], indices: &mut [&mut [u32]]) -> Result<Vec<bool>> {
        let mut resets = vec![false; self.lanes.len() * self.unroll];
        let Some((uniform, floats)) = floats.split_last_mut() else { return Err(Error::Input("tensors of another batch".to_owned())) };
        uniform.fill(-1.0);
        let floats = floats.iter_mut().map(|values| &mut **values).collect();
        let mut rows = self.specs.rows(floats, indices.iter_mut().map(|values| &mut **values).collect());
        for piece in self.epochs.batch(number, self.lanes.clone()) {
            resets[piece.at] = piece.resets;
            self.episodes.read(piece.sequence, piece.rows, piece.at, &mut rows)?;
        }
        Ok(resets)
    }
}

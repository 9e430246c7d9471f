//! The executor on Candle tensors: gradients, any dtype, training noise from addressed random numbers.
//!
//! Values lie on the model's device, indices on the host: they are made and checked there, and asking a GPU for them would make
//! it wait. The weights say what is computed in: a product casts what it reads to the dtype of its weight. Narrow numbers
//! (bf16, f16) have kernels on a GPU that compute in f32 and round what they write; on the CPU the same is done by casting.
//!
//! ```
//! use candle_models::candle_core::{Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::tensors::NamedTensors;
//! # fn main() -> candle_models::Result<()> {
//! let x = Tensor::new(&[[[1f32], [2.0]]], &Device::Cpu)?; // one sequence of two frames
//! let inputs = NamedTensors::from_iter([("x".to_owned(), x)]);
//! let mut e = TensorExecutor::new(&inputs, &[true, false], Vec::new(), &Device::Cpu);
//! let x = e.input("x")?;
//! assert_eq!(e.add(&x, &x)?.to_vec2::<f32>()?, [[2.0], [4.0]]); // a row for every frame
//! # Ok(())
//! # }
//! ```

use super::operation::{Block, Operation, Values};
use super::program::Output;
use super::{Choice, Executor, IndexColumns, SAMPLE};
use crate::device;
use crate::ops;
use crate::random::Random;
use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// Noise that training adds. The random numbers are addressed by the call's place in the pass, so the same pass draws the same noise.
#[derive(Debug, Clone, Copy)]
pub struct Regularisation {
    /// Probability that a hidden value is dropped.
    pub dropout: f32,
    /// Probability that an id is replaced by "absent".
    pub drop_ids: f32,
    /// Address of this pass: the seed and the step.
    pub random: Random,
    /// Rows of the whole batch before this pass's first: where several processes share a batch, a row's noise does not depend on
    /// how it was divided.
    pub first_row: usize,
}

/// Indices of a pass, `[rows, width]`, on the host.
///
/// ```
/// use candle_models::exec::tensors::Indices;
///
/// let ids = Indices::new(vec![1, 2, 3, 4], 2); // two rows
/// assert_eq!(ids.rows().nth(1), Some(&[3, 4][..]));
/// assert_eq!(Indices::join(&[&ids, &ids]).width(), 4);
/// ```
#[derive(Debug, Clone)]
pub struct Indices {
    values: Arc<[u32]>,
    width: usize,
}

impl Indices {
    /// Rows of `width` indices, one behind the other.
    pub fn new(values: Vec<u32>, width: usize) -> Self {
        debug_assert!(width > 0 && values.len().is_multiple_of(width));
        Self { values: values.into(), width }
    }

    fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let (_, width) = tensor.dims2()?;
        Ok(Self::new(tensor.to_dtype(DType::U32)?.flatten_all()?.to_vec1()?, width))
    }

    /// Columns.
    pub fn width(&self) -> usize {
        self.width
    }

    /// All values, one row behind the other.
    pub fn values(&self) -> &[u32] {
        &self.values
    }

    /// Row by row.
    pub fn rows(&self) -> impl Iterator<Item = &[u32]> {
        self.values.chunks(self.width)
    }

    /// Some columns.
    fn columns(&self, start: usize, len: usize) -> Self {
        Self::new(self.rows().flat_map(|row| &row[start..start + len]).copied().collect(), len)
    }

    /// Some columns, each plus the table row that index 0 of it means.
    pub(crate) fn shifted(&self, columns: &IndexColumns) -> Vec<u32> {
        let row = |row: &[u32]| columns.iter().map(|&(column, base)| row[column].saturating_add(base as u32)).collect::<Vec<_>>();
        self.rows().flat_map(row).collect()
    }

    /// Matrices side by side.
    pub fn join(parts: &[&Self]) -> Self {
        let width = parts.iter().map(|p| p.width).sum();
        let rows = parts.first().map_or(0, |p| p.values.len() / p.width);
        let row = |r: usize| parts.iter().flat_map(move |p| &p.values[r * p.width..][..p.width]);
        Self::new((0..rows).flat_map(row).copied().collect(), width)
    }

    /// As a tensor `[rows, width]` on the host.
    pub fn to_tensor(&self) -> Result<Tensor> {
        Ok(Tensor::from_slice(&self.values, (self.values.len() / self.width, self.width), &Device::Cpu)?)
    }

    /// The columns of a choice, checked: every class exists or is [`SAMPLE`].
    pub(crate) fn classes(&self, Choice { column, columns, classes }: Choice) -> Result<Self> {
        let found = self.columns(column, columns);
        match found.values.iter().find(|v| **v != SAMPLE && **v as usize >= classes) {
            Some(bad) => Err(Error::Input(format!("action column {column}: class {bad} of {classes}"))),
            None => Ok(found),
        }
    }
}

impl Output<Tensor, Indices> {
    /// Indices become a tensor on the host.
    pub(crate) fn into_tensor(self) -> Result<Tensor> {
        match self {
            Self::Floats(values) => Ok(values),
            Self::Indices(values) => values.to_tensor(),
        }
    }
}

/// A pass over whole sequences, as [`Recurrent::unroll`](crate::recurrent::Recurrent::unroll) wants it: inputs and state are checked against the
/// signature, inputs that are left out have their defaults, and what `pass` gives, the outputs `[B * T, ...]` in the signature's order, is named,
/// on the device and in f32.
///
/// # Errors
/// If inputs, resets or state are not those of a pass; if `pass` fails.
pub(crate) fn unroll(
    (signature, device): (&Signature, &Device),
    (inputs, resets, state): (&NamedTensors, &[bool], &NamedTensors),
    pass: impl FnOnce(&mut TensorExecutor) -> Result<Vec<Output<Tensor, Indices>>>,
) -> Result<(NamedTensors, NamedTensors)> {
    let given = signature.inputs.iter().find(|spec| inputs.contains(&spec.name)).or(signature.inputs.first());
    let Some(given) = given else { return Err(Error::Input("a model without inputs".to_owned())) };
    let dims = inputs.get(&given.name)?.dims();
    let &[batch, steps, ..] = dims else {
        return Err(Error::tensor(&given.name, "[batch, steps, ...]", format!("{dims:?}")));
    };
    if batch == 0 || steps == 0 {
        return Err(Error::Input(format!("a pass over {batch} sequences of {steps} frames")));
    }
    let inputs = inputs.complete(&signature.inputs, &[batch, steps])?;
    state.check(&signature.state, &[batch])?;
    if resets.len() != batch * steps {
        return Err(Error::Input(format!("{} resets for {batch} sequences of {steps} frames", resets.len())));
    }
    let states = signature.state.iter().map(|spec| Ok(state.get(&spec.name)?.to_device(device)?)).collect::<Result<_>>()?;
    let mut executor = TensorExecutor::new(&inputs, resets, states, device);
    let named = |(spec, found): (&TensorSpec, Output<Tensor, Indices>)| {
        let found = found.into_tensor()?;
        // What is computed in a narrow dtype leaves the model in f32.
        let wide = if device::is_narrow(found.dtype()) { found.to_dtype(DType::F32)? } else { found };
        let shape: Vec<usize> = [batch, steps].iter().chain(&spec.shape).copied().collect();
        Ok((spec.name.clone(), wide.to_device(device)?.reshape(shape)?))
    };
    let found = pass(&mut executor)?;
    if found.len() != signature.outputs.len() {
        return Err(Error::Input(format!("a pass gave {} outputs where the signature has {}", found.len(), signature.outputs.len())));
    }
    let outputs = signature.outputs.iter().zip(found).map(named).collect::<Result<_>>()?;
    let names = signature.state.iter().map(|spec| spec.name.clone());
    Ok((outputs, names.zip(executor.into_states()).collect()))
}

/// Runs a model on tensors. Made anew for every pass.
pub struct TensorExecutor<'a> {
    inputs: &'a NamedTensors,
    resets: &'a [bool],
    states: Vec<Tensor>,
    noise: Option<Regularisation>,
    calls: u64,
    /// Whether gradients flow through the states.
    through_time: bool,
    device: Device,
}

impl<'a> TensorExecutor<'a> {
    /// A pass over `inputs` `[B, T, ...]` with the states in the signature's order. Inputs may lie on the host: floats go to the
    /// device when they are asked for.
    pub fn new(inputs: &'a NamedTensors, resets: &'a [bool], states: Vec<Tensor>, device: &Device) -> Self {
        Self { inputs, resets, states, noise: None, calls: 0, through_time: false, device: device.clone() }
    }

    /// Adds training noise.
    pub fn with_noise(mut self, noise: Regularisation) -> Self {
        self.set_noise(noise);
        self
    }

    /// Adds training noise to what follows.
    pub fn set_noise(&mut self, noise: Regularisation) {
        self.noise = Some(noise);
    }

    /// Lets gradients flow through the states, from one pass to the pass before it: for closed loops, whose steps are passes of
    /// their own. In plain operations; on the host a tape does the same several times as fast.
    pub fn through_time(mut self) -> Self {
        self.through_time = true;
        self
    }

    /// The plain form of an operation: what its others are compared with.
    pub fn reference(&mut self, op: &dyn Operation, x: &[&Tensor], ids: &[&Indices], states: &[usize]) -> Result<Values<Tensor, Indices>> {
        op.reference(&mut TensorPass { executor: self, numbers: states }, x, ids)
    }

    /// The states behind the pass.
    pub fn into_states(self) -> Vec<Tensor> {
        self.states
    }

    fn matrix(&self, name: &str) -> Result<Tensor> {
        Ok(self.inputs.get(name)?.flatten(0, 1)?.flatten_from(1)?)
    }

    /// Probability and random numbers of the next dropout, on rows of `width` values, if there is any.
    fn next_dropout(&mut self, width: usize) -> Option<(f32, Random)> {
        let noise = self.noise.filter(|noise| noise.dropout > 0.0)?;
        Some((noise.dropout, self.next(noise, "dropout", width)))
    }

    /// The address of the next noise, on rows of `width` values.
    fn next(&mut self, noise: Regularisation, stream: &str, width: usize) -> Random {
        self.calls += 1;
        noise.random.stream(stream).at(self.calls).from_index((noise.first_row * width) as u64)
    }
}

/// A pass on tensors as one of its operations sees it.
pub struct TensorPass<'a, 'b> {
    executor: &'a mut TensorExecutor<'b>,
    /// Numbers of the operation's states.
    numbers: &'a [usize],
}

impl<'b> TensorPass<'_, 'b> {
    /// State `i` of the operation, `[B, ...]`.
    ///
    /// # Errors
    /// If it has been run with fewer states.
    pub fn state(&self, i: usize) -> Result<&Tensor> {
        Ok(&self.executor.states[self.number(i)?])
    }

    /// Replaces state `i` by the one behind the pass.
    ///
    /// # Errors
    /// As for [`Self::state`].
    pub fn set_state(&mut self, i: usize, state: Tensor) -> Result<()> {
        let number = self.number(i)?;
        self.executor.states[number] = state;
        Ok(())
    }

    /// The number of state `i` among those of the executor.
    pub(crate) fn number(&self, i: usize) -> Result<usize> {
        let number = self.numbers.get(i).copied().filter(|number| *number < self.executor.states.len());
        number.ok_or_else(|| Error::Input(format!("state {i} of {:?} among {}", self.numbers, self.executor.states.len())))
    }

    /// Whether each row starts anew, in the order of the rows.
    pub fn resets(&self) -> &'b [bool] {
        self.executor.resets
    }

    /// The device of the pass.
    pub fn device(&self) -> &Device {
        &self.executor.device
    }

    /// Whether gradients flow through the states, which asks for operations with a gradient of their states.
    pub fn is_through_time(&self) -> bool {
        self.executor.through_time
    }

    /// What runs the pass: for a block that is written in other operations.
    pub(crate) fn executor(&mut self) -> &mut TensorExecutor<'b> {
        self.executor
    }

    /// Probability and random numbers of the next dropout, on rows of `width` values, if there is any.
    pub(crate) fn next_dropout(&mut self, width: usize) -> Option<(f32, Random)> {
        self.executor.next_dropout(width)
    }

    /// Runs an operation with memory: on a GPU as it is, in f32 where the numbers are narrow and there is no kernel for them. The plain
    /// forms, through time, have none.
    pub(crate) fn remembering<const N: usize>(
        &self,
        tensors: [&Tensor; N],
        run: impl FnOnce([&Tensor; N]) -> Result<(Tensor, Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        if !self.is_through_time() && !tensors[0].device().is_cpu() {
            return run(tensors);
        }
        let mut behind = None;
        let y = widened(tensors, |tensors| {
            let (y, after) = run(tensors)?;
            behind = Some(after);
            Ok(y)
        })?;
        behind.map(|after| (y, after)).ok_or_else(|| Error::Input("an operation that left no state".to_owned()))
    }
}

/// Runs `f` in f32 where the tensors are narrow, and rounds its result as they are.
pub(crate) fn widened<const N: usize>(tensors: [&Tensor; N], f: impl FnOnce([&Tensor; N]) -> Result<Tensor>) -> Result<Tensor> {
    let dtype = tensors[0].dtype();
    if !device::is_narrow(dtype) {
        return f(tensors);
    }
    let mut wide = tensors.map(Tensor::clone);
    for tensor in &mut wide {
        *tensor = tensor.to_dtype(DType::F32)?;
    }
    Ok(f(wide.each_ref())?.to_dtype(dtype)?)
}

/// [`widened`] on the CPU only: a GPU has a kernel for narrow numbers.
pub(crate) fn emulated<const N: usize>(tensors: [&Tensor; N], f: impl FnOnce([&Tensor; N]) -> Result<Tensor>) -> Result<Tensor> {
    if tensors[0].device().is_cpu() { widened(tensors, f) } else { f(tensors) }
}

impl Executor for TensorExecutor<'_> {
    type V = Tensor;
    type I = Indices;

    fn input(&mut self, name: &str) -> Result<Tensor> {
        Ok(self.matrix(name)?.to_device(&self.device)?)
    }

    fn indices(&mut self, name: &str) -> Result<Indices> {
        Indices::from_tensor(&self.matrix(name)?)
    }

    fn run(&mut self, op: Arc<dyn Operation>, x: &[&Tensor], ids: &[&Indices], states: &[usize]) -> Result<Values<Tensor, Indices>> {
        op.tensors(&mut TensorPass { executor: self, numbers: states }, x, ids)
    }

    fn block<B: Block>(&mut self, block: &B, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let numbers = block.states();
        let mut pass = TensorPass { executor: self, numbers: &numbers };
        if block.is_one_on_tensors(&pass, x, ids) { block.tensors(&mut pass, x, ids) } else { block.compose(self, x, ids) }
    }

    fn columns(&mut self, x: &Tensor, start: usize, len: usize) -> Result<Tensor> {
        Ok(x.narrow(1, start, len)?)
    }

    fn dropout(&mut self, x: &Tensor) -> Result<Tensor> {
        match self.next_dropout(x.dim(1)?) {
            Some((probability, random)) => emulated([x], |[x]| Ok(ops::dropout(x, probability, random)?)),
            None => Ok(x.clone()),
        }
    }

    fn drop_indices(&mut self, ids: &Indices, columns: usize, absent: u32) -> Result<Indices> {
        match self.noise {
            Some(noise) if noise.drop_ids > 0.0 => {
                let mut values = ids.values.to_vec();
                let mut uniform = vec![0.0; values.len() / ids.width * columns];
                self.next(noise, "drop ids", columns).fill_uniform(0, &mut uniform);
                for (row, uniform) in values.chunks_mut(ids.width).zip(uniform.chunks(columns)) {
                    row.iter_mut().zip(uniform).filter(|(_, u)| **u < noise.drop_ids).for_each(|(v, _)| *v = absent);
                }
                Ok(Indices::new(values, ids.width))
            }
            _ => Ok(ids.clone()),
        }
    }

    fn detach(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(x.detach())
    }
}

//! The CPU engine: a model recorded once, run on batches without allocation.

use crate::bundle::{Bundle, ParameterSpec};
use crate::exec::cpu::CpuExecutor;
use crate::exec::program::{Output, Program, Recorder, Sequence};
use crate::recurrent::Recurrent;
use crate::tensors::TensorSpec;
use crate::{Error, Result};
use candle_core::DType;
use std::sync::Arc;

/// A model that the engine, the exporter, the batch command and the benchmark can run without knowing its family.
pub trait Model: Recurrent + Send + Sync {
    /// The family's name in a bundle's `config.json`.
    fn family(&self) -> &'static str;

    /// The architecture as it stands in `config.json`.
    fn config(&self) -> serde_json::Value;

    /// How many values each column of an input of indices can take: an index lies below that. Empty for other inputs.
    fn index_limits(&self, input: &str) -> Vec<u32>;

    /// Writes one pass down; the outputs in the signature's order.
    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>>;
}

/// The model of a bundle, whatever its family: a new family is one line here.
pub fn load(bundle: &Bundle) -> Result<Arc<dyn Model>> {
    bundle.require_family(&[crate::policy::FAMILY])?;
    Ok(Arc::new(crate::policy::Policy::load(bundle)?))
}

/// What the file of a bundle's parameters must hold, whatever its family: one line for a new one here too.
pub fn parameters(bundle: &Bundle) -> Result<Vec<ParameterSpec>> {
    bundle.require_family(&[crate::policy::FAMILY])?;
    crate::policy::Policy::parameters(&bundle.config()?)
}

/// Values of one dtype for all sequences: those of a sequence lie together, tensor by tensor, each `[steps, width]`.
struct Store<T> {
    values: Vec<T>,
    /// Name, place inside a sequence, values of a frame.
    tensors: Vec<(String, usize, usize)>,
    /// Values of a sequence.
    stride: usize,
}

impl<T: Copy + Default> Store<T> {
    fn new(specs: &[TensorSpec], dtype: DType, (batch, steps): (usize, usize)) -> Self {
        let (mut tensors, mut stride) = (Vec::new(), 0);
        for spec in specs.iter().filter(|s| s.dtype == dtype) {
            tensors.push((spec.name.clone(), stride, spec.width()));
            stride += steps * spec.width();
        }
        Self { values: vec![T::default(); batch * stride], tensors, stride }
    }

    fn find(&self, name: &str, expected: impl Fn() -> String) -> Result<(usize, usize)> {
        let found = self.tensors.iter().find(|(n, ..)| n == name);
        found.map(|(_, at, width)| (*at, *width)).ok_or_else(|| Error::tensor(name, expected(), "none of that name"))
    }

    /// The values of sequence `b`.
    fn sequence(&mut self, b: usize) -> &mut [T] {
        &mut self.values[b * self.stride..][..self.stride]
    }
}

/// Runs a model at a fixed number of rows and frames, keeping its state between calls.
///
/// The weights are packed by `new`: a model whose weights change afterwards needs a new runner.
pub struct Runner {
    executor: CpuExecutor,
    steps: usize,
    floats: Store<f32>,
    indices: Store<u32>,
    state: Store<f32>,
    out_floats: Store<f32>,
    out_indices: Store<u32>,
    resets: Vec<bool>,
    sequences: Vec<Sequence>,
}

impl Runner {
    /// A streaming runner: one frame of `batch` rows per call, on `threads` threads (the caller's counted).
    pub fn new(model: Arc<dyn Model>, batch: usize, threads: usize) -> Result<Self> {
        Self::windowed(model, batch, 1, threads)
    }

    /// A runner of `steps` frames of `batch` sequences per call.
    pub fn windowed(model: Arc<dyn Model>, batch: usize, steps: usize, threads: usize) -> Result<Self> {
        if batch == 0 || steps == 0 {
            return Err(Error::Input(format!("a runner of {batch} rows and {steps} frames runs nothing")));
        }
        let program = Arc::new(Program::new(model.signature(), |recorder| model.record(recorder))?);
        let (signature, size) = (program.signature(), (batch, steps));
        let mut runner = Self {
            steps,
            floats: Store::new(&signature.inputs, DType::F32, size),
            indices: Store::new(&signature.inputs, DType::U32, size),
            state: Store::new(&signature.state, DType::F32, (batch, 1)),
            out_floats: Store::new(&signature.outputs, DType::F32, size),
            out_indices: Store::new(&signature.outputs, DType::U32, size),
            resets: vec![false; batch * steps],
            sequences: Vec::new(),
            executor: CpuExecutor::new(program, size, threads),
        };
        for b in 0..batch {
            let resets: *const [bool] = &runner.resets[b * steps..][..steps];
            runner.sequences.push(Sequence {
                floats: runner.floats.sequence(b),
                indices: runner.indices.sequence(b),
                resets,
                state: runner.state.sequence(b),
                out_floats: runner.out_floats.sequence(b),
                out_indices: runner.out_indices.sequence(b),
            });
        }
        Ok(runner)
    }

    /// What the model eats, gives and carries.
    pub fn signature(&self) -> &crate::tensors::Signature {
        self.executor.program().signature()
    }

    /// An input of floats of one sequence, `[steps, width]`, to be filled before a pass. It keeps its values.
    pub fn floats_mut(&mut self, name: &str, sequence: usize) -> Result<&mut [f32]> {
        let (at, width) = self.floats.find(name, || "an input of F32".into())?;
        self.check_sequence(sequence)?;
        Ok(&mut self.floats.sequence(sequence)[at..at + self.steps * width])
    }

    /// An input of indices of one sequence, `[steps, columns]`, to be filled before a pass. It keeps its values.
    pub fn indices_mut(&mut self, name: &str, sequence: usize) -> Result<&mut [u32]> {
        let (at, width) = self.indices.find(name, || "an input of U32".into())?;
        self.check_sequence(sequence)?;
        Ok(&mut self.indices.sequence(sequence)[at..at + self.steps * width])
    }

    /// Copies an input of floats of all sequences, `[batch, steps, width]`.
    pub fn set_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let (_, width) = self.floats.find(name, || "an input of F32".into())?;
        for (b, values) in self.split(name, values, width)?.enumerate() {
            self.floats_mut(name, b)?.copy_from_slice(values);
        }
        Ok(())
    }

    /// Copies an input of indices of all sequences, `[batch, steps, columns]`.
    pub fn set_u32(&mut self, name: &str, values: &[u32]) -> Result<()> {
        let (_, width) = self.indices.find(name, || "an input of U32".into())?;
        for (b, values) in self.split(name, values, width)?.enumerate() {
            self.indices_mut(name, b)?.copy_from_slice(values);
        }
        Ok(())
    }

    fn split<'v, T>(&self, name: &str, values: &'v [T], width: usize) -> Result<std::slice::ChunksExact<'v, T>> {
        let expected = self.resets.len() * width;
        if values.len() != expected {
            return Err(Error::tensor(name, format!("{expected} values"), values.len()));
        }
        Ok(values.chunks_exact(self.steps * width))
    }

    fn check_sequence(&self, sequence: usize) -> Result<()> {
        let batch = self.sequences.len();
        if sequence < batch { Ok(()) } else { Err(Error::Input(format!("sequence {sequence} of a runner of {batch}"))) }
    }

    /// One pass over the inputs; `resets` `[batch * steps]` puts rows back to their initial state before their frame.
    pub fn step(&mut self, resets: &[bool]) -> Result<()> {
        self.begin(resets)?;
        // SAFETY: the sequences point into the vectors of this runner, which it neither moves nor shares.
        unsafe { self.executor.execute(&self.sequences) }
    }

    /// One pass like [`Self::step`] over the first rows, on one thread: the seconds that every operation took.
    pub fn profile(&mut self, resets: &[bool]) -> Result<Vec<(&'static str, f64)>> {
        self.begin(resets)?;
        // SAFETY: as in `step`.
        unsafe { self.executor.profile(&self.sequences) }
    }

    fn begin(&mut self, resets: &[bool]) -> Result<()> {
        if resets.len() != self.resets.len() {
            return Err(Error::Input(format!("{} resets for {} rows", resets.len(), self.resets.len())));
        }
        self.resets.copy_from_slice(resets);
        Ok(())
    }

    /// Row `row` of an output of floats of the last pass: frame t of sequence b is row `b * steps + t`.
    pub fn floats(&self, name: &str, row: usize) -> Result<&[f32]> {
        let (at, width) = self.out_floats.find(name, || "an output of F32".into())?;
        self.check_sequence(row / self.steps)?;
        Ok(&self.out_floats.values[row / self.steps * self.out_floats.stride + at + row % self.steps * width..][..width])
    }

    /// Row `row` of an output of indices of the last pass.
    pub fn indices(&self, name: &str, row: usize) -> Result<&[u32]> {
        let (at, width) = self.out_indices.find(name, || "an output of U32".into())?;
        self.check_sequence(row / self.steps)?;
        Ok(&self.out_indices.values[row / self.steps * self.out_indices.stride + at + row % self.steps * width..][..width])
    }

    /// All states of a sequence, one behind the other in the signature's order: to be saved, restored or copied.
    pub fn state_mut(&mut self, sequence: usize) -> Result<&mut [f32]> {
        self.check_sequence(sequence)?;
        Ok(self.state.sequence(sequence))
    }

    /// Bytes held: packed weights, states, inputs, outputs and what a pass works in.
    pub fn bytes(&self) -> usize {
        let values = self.floats.values.len() + self.state.values.len() + self.out_floats.values.len();
        let indices = self.indices.values.len() + self.out_indices.values.len();
        self.executor.program().bytes() + self.executor.bytes() + 4 * (values + indices)
    }
}

//! A model at a fixed batch, with prepared weights and memory that is allocated once.

use super::{Model, Output};
use crate::exec::slices::SliceExecutor;
use crate::{Error, Result};
use std::sync::Arc;

/// Runs a model at a fixed number of rows and frames, keeping its state between calls.
///
/// The weights are packed in the first pass, which `new` makes: a model whose weights change afterwards needs a new runner.
pub struct Runner {
    model: Arc<dyn Model>,
    executor: SliceExecutor,
    outputs: Vec<Output>,
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
        let signature = model.signature();
        let mut executor = SliceExecutor::new(&signature.inputs, &signature.state, (batch, steps), threads);
        // Prepares the weights and grows the arena; zeros are valid inputs and the reset below undoes what they leave behind.
        executor.begin(&vec![true; batch * steps])?;
        let outputs = model.run(&mut executor)?;
        (0..signature.state.len()).for_each(|i| executor.state_mut(i).fill(0.0));
        Ok(Self { model, executor, outputs })
    }

    /// The model.
    pub fn model(&self) -> &Arc<dyn Model> {
        &self.model
    }

    /// An input of floats, `[rows, width]`, to be filled before a pass. It keeps its values.
    pub fn floats_mut(&mut self, name: &str) -> Result<&mut [f32]> {
        self.executor.floats_mut(name)
    }

    /// An input of indices, `[rows, columns]`, to be filled before a pass. It keeps its values.
    pub fn indices_mut(&mut self, name: &str) -> Result<&mut [u32]> {
        self.executor.indices_mut(name)
    }

    /// Copies a whole input of floats.
    pub fn set_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        fill(name, self.executor.floats_mut(name)?, values)
    }

    /// Copies a whole input of indices.
    pub fn set_u32(&mut self, name: &str, values: &[u32]) -> Result<()> {
        fill(name, self.executor.indices_mut(name)?, values)
    }

    /// One pass over the inputs; `resets` `[batch * steps]` puts rows back to their initial state before their frame.
    pub fn step(&mut self, resets: &[bool]) -> Result<()> {
        self.executor.begin(resets)?;
        self.model.run(&mut self.executor).map(|outputs| self.outputs = outputs)
    }

    fn output(&self, name: &str) -> Result<Output> {
        let found = self.model.signature().outputs.iter().position(|s| s.name == name);
        found.map(|i| self.outputs[i]).ok_or_else(|| Error::tensor(name, "an output of the model", "none of that name"))
    }

    /// Row `row` of an output of floats of the last pass.
    pub fn floats(&self, name: &str, row: usize) -> Result<&[f32]> {
        match self.output(name)? {
            Output::Floats(slot) => Ok(self.executor.row(slot, row)),
            Output::Indices(_) => Err(Error::tensor(name, "floats", "indices")),
        }
    }

    /// Row `row` of an output of indices of the last pass.
    pub fn indices(&self, name: &str, row: usize) -> Result<&[u32]> {
        match self.output(name)? {
            Output::Indices(slot) => Ok(self.executor.index_row(slot, row)),
            Output::Floats(_) => Err(Error::tensor(name, "indices", "floats")),
        }
    }

    /// A state of all rows, `[batch, ...]`, in the signature's order: to be saved, restored or copied from row to row.
    pub fn state_mut(&mut self, state: usize) -> &mut [f32] {
        self.executor.state_mut(state)
    }

    /// Bytes held by the runner besides the model's own tensors.
    pub fn bytes(&self) -> usize {
        self.executor.bytes()
    }
}

fn fill<T: Copy>(name: &str, to: &mut [T], values: &[T]) -> Result<()> {
    if to.len() != values.len() {
        return Err(Error::tensor(name, format!("{} values", to.len()), values.len()));
    }
    to.copy_from_slice(values);
    Ok(())
}

//! A model at a fixed batch on the caller's thread: many rows in step with each other, or whole sequences at once.

use super::check::Checks;
use super::execute::{Execute, Sequence, executor};
use super::layout::{Layout, fill};
use super::slab::Slab;
use super::{Model, Placement};
use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::DType;
use std::ops::Range;
use std::sync::Arc;

/// Runs a model at a fixed number of sequences and frames, keeping its state between calls.
///
/// The weights are packed by `new`: a model whose weights change afterwards needs a new runner.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let mut games = Runner::new(model, 4, 1)?; // 4 rows, 1 thread
/// games.set_f32("features", &[0.1; 4 * 288])?;
/// games.set_u32("ids", &[14; 4 * 6])?;
/// games.step(&[true; 4])?;
/// let first = games.floats("logits", 0)?.to_vec();
/// games.step(&[true, false, false, false])?; // row 0 begins anew
/// assert_eq!(games.floats("logits", 0)?, first);
/// # Ok(())
/// # }
/// ```
pub struct Runner {
    executor: Box<dyn Execute>,
    signature: Signature,
    layout: Layout,
    checks: Checks,
    slab: Slab,
    batch: usize,
    steps: usize,
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
        Self::on(model, (batch, steps), &Placement::cpu(threads))
    }

    /// A runner of `steps` frames of `batch` sequences per call at that place.
    pub fn on(model: Arc<dyn Model>, (batch, steps): (usize, usize), place: &Placement) -> Result<Self> {
        place.validate()?;
        if batch == 0 || steps == 0 {
            return Err(Error::Input(format!("a runner of {batch} rows and {steps} frames runs nothing")));
        }
        let executor = executor(&model, place, (batch, steps, batch))?;
        let layout = Layout::new(model.signature(), steps);
        let checks = Checks::new(&layout);
        let slab = Slab::new(&layout, batch)?;
        // SAFETY: nobody else knows the slab yet.
        (0..batch).for_each(|row| unsafe { slab.clear(row as u32) });
        let resets = vec![false; batch * steps];
        let sequence = |(b, resets): (usize, &[bool])| Sequence { resets, ..slab.row(b as u32).sequence() };
        let sequences = resets.chunks_exact(steps).enumerate().map(sequence).collect();
        Ok(Self { executor, signature: model.signature().clone(), layout, checks, slab, batch, steps, resets, sequences })
    }

    /// What the model eats, gives and carries.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// An input of floats of one sequence, `[steps, width]`, to be filled before a pass. It keeps its values.
    pub fn floats_mut(&mut self, name: &str, sequence: usize) -> Result<&mut [f32]> {
        let (range, row) = (self.layout.input(name, DType::F32)?, self.row(sequence)?);
        // SAFETY: the runner owns the slab, and is borrowed for as long as the slice.
        let floats = unsafe { &mut *self.slab.row(row).floats };
        Ok(&mut floats[range])
    }

    /// An input of indices of one sequence, `[steps, columns]`, to be filled before a pass. It keeps its values.
    pub fn indices_mut(&mut self, name: &str, sequence: usize) -> Result<&mut [u32]> {
        let (range, row) = (self.layout.input(name, DType::U32)?, self.row(sequence)?);
        // SAFETY: as for floats.
        let indices = unsafe { &mut *self.slab.row(row).indices };
        Ok(&mut indices[range])
    }

    /// Copies an input of floats of all sequences, `[batch, steps, width]`.
    pub fn set_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        let len = self.layout.input(name, DType::F32)?.len();
        self.expect(name, values.len(), len)?;
        values.chunks_exact(len).enumerate().try_for_each(|(b, values)| fill(name, self.floats_mut(name, b)?, values))
    }

    /// Copies an input of indices of all sequences, `[batch, steps, columns]`.
    pub fn set_u32(&mut self, name: &str, values: &[u32]) -> Result<()> {
        let len = self.layout.input(name, DType::U32)?.len();
        self.expect(name, values.len(), len)?;
        values.chunks_exact(len).enumerate().try_for_each(|(b, values)| fill(name, self.indices_mut(name, b)?, values))
    }

    fn expect(&self, name: &str, found: usize, each: usize) -> Result<()> {
        let expected = self.batch * each;
        if found == expected { Ok(()) } else { Err(Error::tensor(name, format!("{expected} values"), found)) }
    }

    fn row(&self, sequence: usize) -> Result<u32> {
        let inside = sequence < self.batch;
        if inside { Ok(sequence as u32) } else { Err(Error::Input(format!("sequence {sequence} of a runner of {}", self.batch))) }
    }

    fn begin(&mut self, resets: &[bool]) -> Result<()> {
        if resets.len() != self.resets.len() {
            return Err(Error::Input(format!("{} resets for {} rows", resets.len(), self.resets.len())));
        }
        self.resets.copy_from_slice(resets);
        Ok(())
    }

    /// An input that was not set would answer nonsense, and an index outside its table would kill the context of a GPU.
    fn check(&self) -> Result<()> {
        self.sequences.iter().try_for_each(|s| {
            // SAFETY: the slab is the runner's, and no pass runs.
            let (floats, indices) = unsafe { (&*s.floats, &*s.indices) };
            self.checks.check(&self.layout, floats, indices)
        })
    }

    /// The place of an input among all of its kind in a sequence.
    pub(crate) fn input_place(&self, name: &str, dtype: DType) -> Result<Range<usize>> {
        self.layout.input(name, dtype)
    }

    /// The place of an output, likewise.
    pub(crate) fn output_place(&self, name: &str, dtype: DType) -> Result<Range<usize>> {
        self.layout.output(name, dtype)
    }

    /// All inputs of one sequence: floats and indices, by their places.
    pub(crate) fn inputs_mut(&mut self, sequence: usize) -> (&mut [f32], &mut [u32]) {
        let row = self.slab.row(sequence as u32);
        // SAFETY: the runner owns the slab, and is borrowed for as long as the slices, which lie apart.
        unsafe { (&mut *row.floats, &mut *row.indices) }
    }

    /// All outputs of floats of one sequence after a pass, by their places.
    pub(crate) fn outputs(&self, sequence: usize) -> &[f32] {
        // SAFETY: no pass runs while the runner is borrowed.
        unsafe { &*self.slab.row(sequence as u32).out_floats }
    }

    /// Where an input of one sequence lies, for an array of another language: 32-bit floats or indices. The memory stays in its place until
    /// the runner is dropped, and the sequences lie at equal distances. Who reads or writes it sees to it that no other method of the
    /// runner runs meanwhile.
    pub fn input_bytes(&mut self, spec: &TensorSpec, sequence: usize) -> Result<*mut [u8]> {
        self.slab.row(self.row(sequence)?).input(&self.layout, spec)
    }

    /// Where an output of one sequence lies, likewise: to be read between passes.
    pub fn output_bytes(&self, spec: &TensorSpec, sequence: usize) -> Result<*const [u8]> {
        Ok(self.slab.row(self.row(sequence)?).output(&self.layout, spec)?)
    }

    /// The states of all sequences as named tensors `[batch, ...]`, as
    /// [`Recurrent::initial_state`](crate::recurrent::Recurrent::initial_state) has them.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn save(&mut self) -> Result<NamedTensors> {
        // SAFETY: the sequences point into the slab of this runner, which nobody else uses.
        self.sequences.iter().try_for_each(|s| unsafe { self.executor.read_state(s) })?;
        // SAFETY: as above.
        let rows: Vec<&[f32]> = self.sequences.iter().map(|s| unsafe { &*s.state }).collect();
        self.layout.save(&rows)
    }

    /// Goes on from states that [`save`](Self::save) gave; [`gather_rows`](NamedTensors::gather_rows) makes those of another batch.
    ///
    /// # Errors
    /// If names, dtypes or shapes are not the model's, or a value is not finite; the runner's own states are untouched then.
    pub fn restore(&mut self, state: &NamedTensors) -> Result<()> {
        let rows = self.layout.restore(state, &self.signature.state, self.batch)?;
        self.sequences.iter().zip(rows).try_for_each(|(s, row)| {
            // SAFETY: as in `save`.
            unsafe {
                (&mut *s.state).copy_from_slice(&row);
                self.executor.write_state(s)
            }
        })
    }

    /// One pass over the inputs; `resets` `[batch * steps]` puts rows back to their initial state before their frame.
    pub fn step(&mut self, resets: &[bool]) -> Result<()> {
        self.begin(resets)?;
        self.check()?;
        // SAFETY: the sequences point into the slab and the resets of this runner, which nobody else uses.
        unsafe { self.executor.execute(&self.sequences) }
    }

    /// One pass like [`Self::step`] over the first rows, on one thread: the seconds that every operation took.
    pub fn profile(&mut self, resets: &[bool]) -> Result<Vec<(&'static str, f64)>> {
        self.begin(resets)?;
        self.check()?;
        // SAFETY: as in `step`.
        unsafe { self.executor.profile(&self.sequences) }
    }

    /// Row `row` of an output of floats of the last pass: frame t of sequence b is row `b * steps + t`.
    pub fn floats(&self, name: &str, row: usize) -> Result<&[f32]> {
        let frame = self.frame(self.layout.output(name, DType::F32)?, row);
        // SAFETY: no pass runs while the runner is borrowed.
        let floats = unsafe { &*self.slab.row(self.row(row / self.steps)?).out_floats };
        Ok(&floats[frame])
    }

    /// Row `row` of an output of indices of the last pass.
    pub fn indices(&self, name: &str, row: usize) -> Result<&[u32]> {
        let frame = self.frame(self.layout.output(name, DType::U32)?, row);
        // SAFETY: as for floats.
        let indices = unsafe { &*self.slab.row(self.row(row / self.steps)?).out_indices };
        Ok(&indices[frame])
    }

    /// The place of a row among the frames of an output.
    fn frame(&self, all: Range<usize>, row: usize) -> Range<usize> {
        let width = all.len() / self.steps;
        let start = all.start + row % self.steps * width;
        start..start + width
    }

    /// Names of the operations without a kernel where the model runs: they run on tensors on the host, and allocate memory in every pass.
    pub fn on_tensors(&self) -> &[&'static str] {
        self.executor.on_tensors()
    }

    /// Bytes held: packed weights, states, inputs, outputs and what a pass works in.
    pub fn bytes(&self) -> usize {
        self.executor.bytes() + self.slab.bytes()
    }
}

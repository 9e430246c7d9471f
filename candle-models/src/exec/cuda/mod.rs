//! Runs a recorded program on an NVIDIA GPU: weights, states and everything in between stay there, and a pass of each batch size is
//! one captured graph.
//!
//! A batch is copied to the device in one piece, runs at the smallest bucket (1, 2, 4 ...) that holds it, and comes back in one piece.
//! Rows of a bucket that no sequence fills run on states of their own.

mod memory;
mod on_tensors;
mod plan;
mod steps;

use super::Launches;
use super::program::{Output, Program, Sequence};
use crate::cuda::{CAPTURES, Gpu, Pinned, counted};
use crate::{Error, Result};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, DriverError, result, sys};
use candle_core::{CudaDevice, DType};
use memory::{Block, Failure};
pub use plan::Pass;
use plan::Plan;
use rayon::prelude::*;
use std::sync::Arc;
use std::time::Instant;
pub use steps::{Compiler, Run};

/// Words of an input or output of all rows from which several threads copy them: fewer are copied before other threads are awake.
const SHARED_COPY: usize = 1 << 17;

/// A batch size with its graph, unless passes are launched kernel by kernel.
struct Bucket {
    batch: usize,
    graph: Option<CudaGraph>,
}

/// What of an executor depends on the largest batch.
struct Buffers {
    batch: usize,
    states: Block,
    input: Block,
    output: Block,
    arena: Block,
    product: Block,
    host_input: Pinned,
    host_output: Pinned,
}

/// Runs a program on sequences of a fixed length.
pub(crate) struct CudaExecutor {
    // Dropped before the memory that they name.
    buckets: Vec<Bucket>,
    gpu: Arc<Gpu>,
    program: Program,
    plan: Plan,
    steps: Vec<(&'static str, Run)>,
    /// Names of the operations that run on tensors on the host.
    on_tensors: Vec<&'static str>,
    weights: steps::Weights,
    buffers: Buffers,
    dtype: DType,
    frames: usize,
    slots: usize,
    state_width: usize,
}

// SAFETY: graphs and memory belong to this executor alone, and the driver lets any one thread at a time use them.
unsafe impl Send for CudaExecutor {}

fn driver(what: &str, error: &DriverError) -> Error {
    Error::Input(format!("{what} on the GPU: {error}"))
}

impl CudaExecutor {
    /// For batches of at most `batch` sequences of `frames` frames each, with states for `slots` sequences, on a device that nobody
    /// else uses. Values between the operations are of `dtype`: f32, bf16 or f16.
    ///
    /// # Errors
    /// If the program cannot be compiled, or the memory is not to be had: the message says how much was asked for and is free. Where
    /// only the batch is too large, the executor takes a smaller one, says so on standard error, and cuts batches.
    pub fn new(
        mut program: Program,
        device: CudaDevice,
        dtype: DType,
        (batch, frames, slots): (usize, usize, usize),
        launches: Launches,
    ) -> Result<Self> {
        let gpu = Arc::new(Gpu::new(device)?);
        let mut plan = Plan::new(&program)?;
        let mut compiler = Compiler::new(gpu.clone(), dtype, &mut plan);
        let (steps, on_tensors) = compiler.compile(&program)?;
        let weights = compiler.finish();
        program.nodes.clear();
        let state_width = program.signature.state.iter().map(|s| s.width()).sum();
        let buffers = Buffers::new(&gpu, &plan, (batch, frames, slots), state_width, weights.product)?;
        let mut executor =
            Self { buckets: Vec::new(), gpu, program, plan, steps, on_tensors, weights, buffers, dtype, frames, slots, state_width };
        // What waits for the host cannot be captured.
        executor.warm_up(if executor.on_tensors.is_empty() { launches } else { Launches::Eager })?;
        Ok(executor)
    }

    /// Runs every bucket once, which compiles and loads what it needs, and captures it. Without graphs one bucket does.
    fn warm_up(&mut self, launches: Launches) -> Result<()> {
        let most = self.buffers.batch;
        let sizes = std::iter::successors(Some(1), |n| Some(2 * n)).take_while(|n| *n < most).chain([most]);
        let mut eager = launches == Launches::Eager;
        for batch in sizes {
            if !eager || batch == 1 {
                self.stage(&[], batch);
                self.enqueue(batch)?;
                self.synchronize()?;
            }
            let graph = if eager { None } else { Some(counted(&CAPTURES, || self.capture(batch))) };
            let graph = match graph.transpose() {
                Ok(graph) => graph,
                Err(error) => {
                    eprintln!("candle-models: passes are launched kernel by kernel, for no graph could be captured: {error}");
                    eager = true;
                    None
                }
            };
            self.buckets.push(Bucket { batch, graph });
        }
        Ok(())
    }

    fn capture(&self, batch: usize) -> Result<CudaGraph> {
        let stream = self.gpu.stream();
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(|e| driver("a capture", &e))?;
        let enqueued = self.enqueue(batch);
        // Ends the capture whatever happened in it.
        let graph = stream.end_capture(sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        enqueued?;
        let graph = graph.map_err(|e| driver("a capture", &e))?.ok_or_else(|| Error::Input("the captured graph is empty".to_owned()))?;
        graph.upload().map_err(|e| driver("a graph", &e))?;
        Ok(graph)
    }

    fn pass(&self, batch: usize) -> Pass<'_> {
        let Buffers { states, input, output, arena, product, .. } = &self.buffers;
        Pass {
            gpu: &self.gpu,
            plan: &self.plan,
            dtype: self.dtype,
            batch,
            steps: self.frames,
            input: input.address(),
            output: output.address(),
            arena: arena.address(),
            product: product.address(),
            states: states.address(),
            state_width: self.state_width,
        }
    }

    /// Puts a pass on the stream: copy in, operations, copy out.
    fn enqueue(&self, batch: usize) -> Result<()> {
        self.copy_in(batch)?;
        let pass = self.pass(batch);
        self.steps.iter().try_for_each(|(_, step)| step(&pass))?;
        self.copy_out(batch)
    }

    fn copy_in(&self, batch: usize) -> Result<()> {
        let (stream, bytes) = (self.gpu.stream(), 4 * self.plan.input_words(batch, self.frames));
        stream.context().bind_to_thread().map_err(|e| driver("a copy", &e))?;
        // SAFETY: both blocks hold the words of the largest batch, and the pinned one is not written before the pass is over.
        let copied = unsafe {
            sys::cuMemcpyHtoDAsync_v2(self.buffers.input.address(), self.buffers.host_input.pointer(), bytes, stream.cu_stream())
        };
        copied.result().map_err(|e| driver("a copy", &e))
    }

    fn copy_out(&self, batch: usize) -> Result<()> {
        let (stream, bytes) = (self.gpu.stream(), 4 * self.plan.outputs * batch * self.frames);
        // SAFETY: as for `copy_in`; it is not read before the pass is over.
        let copied = unsafe {
            sys::cuMemcpyDtoHAsync_v2(self.buffers.host_output.pointer(), self.buffers.output.address(), bytes, stream.cu_stream())
        };
        copied.result().map_err(|e| driver("a copy", &e))
    }

    fn synchronize(&self) -> Result<()> {
        self.gpu.stream().synchronize().map_err(|e| driver("a pass", &e))
    }

    /// Writes the inputs of a batch into pinned memory; rows behind the sequences are zero, reset, and have states of their own.
    fn stage(&mut self, sequences: &[Sequence], batch: usize) {
        let frames = self.frames;
        let rows = batch * frames;
        let words = &mut self.buffers.host_input.words()[..self.plan.input_words(batch, frames)];
        let (mut inputs, rest) = words.split_at_mut(self.plan.inputs * rows);
        let (slots, resets) = rest.split_at_mut(batch);
        let (mut floats, mut indices) = (0, 0);
        for input in &self.program.inputs {
            let width = input.width();
            let (plane, behind) = inputs.split_at_mut(width * rows);
            inputs = behind;
            let each = width * frames;
            let fill = |(b, to): (usize, &mut [u32])| match (sequences.get(b), input) {
                (Some(sequence), Output::Floats(_)) => {
                    // SAFETY: the promise of `execute`.
                    let from = unsafe { &(&*sequence.floats)[floats..floats + each] };
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = from.to_bits());
                }
                // SAFETY: as above.
                (Some(sequence), Output::Indices(_)) => to.copy_from_slice(unsafe { &(&*sequence.indices)[indices..indices + each] }),
                (None, _) => to.fill(0),
            };
            if plane.len() < SHARED_COPY {
                plane.chunks_exact_mut(each).enumerate().for_each(fill);
            } else {
                plane.par_chunks_exact_mut(each).enumerate().for_each(fill);
            }
            match input {
                Output::Floats(_) => floats += each,
                Output::Indices(_) => indices += each,
            }
        }
        for (b, slot) in slots.iter_mut().enumerate() {
            *slot = sequences.get(b).map_or((self.slots + b) as u32, |s| s.slot);
        }
        let reset = |row: usize| {
            // SAFETY: the promise of `execute`.
            row < rows && sequences.get(row / frames).is_none_or(|s| unsafe { (&*s.resets)[row % frames] })
        };
        for (i, word) in resets.iter_mut().enumerate() {
            *word = u32::from_le_bytes(std::array::from_fn(|byte| u8::from(reset(4 * i + byte))));
        }
    }

    /// Hands the outputs of a pass to its sequences.
    fn deliver(&mut self, sequences: &[Sequence], batch: usize) {
        let (frames, rows) = (self.frames, batch * self.frames);
        let mut planes = &self.buffers.host_output.words()[..self.plan.outputs * rows];
        let (mut floats, mut indices) = (0, 0);
        for output in &self.program.outputs {
            let width = output.width();
            let (plane, behind) = planes.split_at(width * rows);
            planes = behind;
            let each = width * frames;
            let take = |(sequence, from): (&Sequence, &[u32])| {
                // SAFETY: the promise of `execute`.
                unsafe {
                    match output {
                        Output::Floats(_) => {
                            let to = &mut (&mut *sequence.out_floats)[floats..floats + each];
                            to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(*from));
                        }
                        Output::Indices(_) => (&mut *sequence.out_indices)[indices..indices + each].copy_from_slice(from),
                    }
                }
            };
            if plane.len() < SHARED_COPY {
                sequences.iter().zip(plane.chunks_exact(each)).for_each(take);
            } else {
                sequences.par_iter().zip(plane.par_chunks_exact(each)).for_each(take);
            }
            match output {
                Output::Floats(_) => floats += each,
                Output::Indices(_) => indices += each,
            }
        }
    }

    /// One pass: every sequence's inputs to its outputs, its state on the device replaced by the one behind the pass.
    ///
    /// # Safety
    /// The slices of the sequences are as long as the program's signature says, valid, and nobody else uses them; their indices lie
    /// inside the model's tables; no two have the same slot.
    pub unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        for part in sequences.chunks(self.buffers.batch) {
            let Some(bucket) = self.buckets.iter().position(|b| b.batch >= part.len()) else {
                unreachable!("a part is not larger than the largest bucket")
            };
            let batch = self.buckets[bucket].batch;
            self.stage(part, batch);
            match &self.buckets[bucket].graph {
                Some(graph) => graph.launch().map_err(|e| driver("a graph", &e))?,
                None => self.enqueue(batch)?,
            }
            self.synchronize()?;
            self.deliver(part, batch);
        }
        Ok(())
    }

    /// The time in seconds of every operation of a pass over the first sequences, each launched alone and waited for.
    ///
    /// # Safety
    /// As for [`Self::execute`].
    pub unsafe fn profile(&mut self, sequences: &[Sequence]) -> Result<Vec<(&'static str, f64)>> {
        let part = &sequences[..sequences.len().min(self.buffers.batch)];
        self.stage(part, part.len());
        let mut times = Vec::with_capacity(self.steps.len() + 2);
        let mut timed = |name, run: &dyn Fn() -> Result<()>| {
            let start = Instant::now();
            run()?;
            self.synchronize()?;
            times.push((name, start.elapsed().as_secs_f64()));
            Ok::<(), Error>(())
        };
        timed("copy-in", &|| self.copy_in(part.len()))?;
        let pass = self.pass(part.len());
        for (name, step) in &self.steps {
            timed(name, &|| step(&pass))?;
        }
        timed("copy-out", &|| self.copy_out(part.len()))?;
        self.deliver(part, part.len());
        Ok(times)
    }

    fn state_address(&self, sequence: &Sequence) -> u64 {
        assert!((sequence.slot as usize) < self.slots, "state {} of {}", sequence.slot, self.slots);
        self.buffers.states.address() + 4 * u64::from(sequence.slot) * self.state_width as u64
    }

    /// Copies a sequence's state from the device to its host slice.
    ///
    /// # Safety
    /// The slice is valid, and nobody else uses it.
    pub unsafe fn read_state(&mut self, sequence: &Sequence) -> Result<()> {
        let (address, stream) = (self.state_address(sequence), self.gpu.stream());
        stream.context().bind_to_thread().map_err(|e| driver("a state", &e))?;
        // SAFETY: the caller's promise; the copy is waited for.
        unsafe { result::memcpy_dtoh_async(&mut *sequence.state, address, stream.cu_stream()) }.map_err(|e| driver("a state", &e))?;
        self.synchronize()
    }

    /// Copies a sequence's state from its host slice to the device.
    ///
    /// # Safety
    /// As for [`Self::read_state`].
    pub unsafe fn write_state(&mut self, sequence: &Sequence) -> Result<()> {
        let (address, stream) = (self.state_address(sequence), self.gpu.stream());
        stream.context().bind_to_thread().map_err(|e| driver("a state", &e))?;
        // SAFETY: as above.
        unsafe { result::memcpy_htod_async(address, &*sequence.state, stream.cu_stream()) }.map_err(|e| driver("a state", &e))?;
        self.synchronize()
    }

    /// Names of the operations without kernels: they run on tensors on the host, and passes are launched kernel by kernel.
    pub fn on_tensors(&self) -> &[&'static str] {
        &self.on_tensors
    }

    /// Bytes on the device: weights, states and what passes work in.
    pub fn bytes(&self) -> usize {
        let Buffers { states, input, output, arena, product, .. } = &self.buffers;
        self.weights.bytes + [states, input, output, arena, product].iter().map(|b| b.bytes()).sum::<usize>()
    }
}

impl Drop for CudaExecutor {
    fn drop(&mut self) {
        // Nothing may be under way when graphs and memory go. An error has been reported by the pass that met it.
        let _ = self.synchronize();
        self.buckets.clear();
    }
}

impl Buffers {
    /// For the largest batch up to `batch` that there is memory for.
    fn new(gpu: &Gpu, plan: &Plan, (batch, frames, slots): (usize, usize, usize), state_width: usize, product: usize) -> Result<Self> {
        let free = || gpu.stream().context().mem_get_info().map_or(0, |(free, _)| free);
        let mut size = batch.max(1);
        loop {
            match Self::of(gpu, plan, (size, frames, slots), state_width, product) {
                Ok(buffers) => {
                    if size < batch {
                        eprintln!("candle-models: batches of {size} instead of {batch}: the GPU has {} MiB free", free() >> 20);
                    }
                    return Ok(buffers);
                }
                Err(Failure::TooMuch(_)) if size > 1 => size /= 2,
                Err(Failure::TooMuch(bytes)) => {
                    let (asked, free) = (bytes.div_ceil(1 << 20), free() >> 20);
                    return Err(Error::Input(format!(
                        "the GPU's memory: asked for {asked} MiB for a batch of one with {slots} states, found {free} MiB free"
                    )));
                }
                Err(Failure::Other(error)) => return Err(driver("memory", &error)),
            }
        }
    }

    fn of(
        gpu: &Gpu,
        plan: &Plan,
        (batch, frames, slots): (usize, usize, usize),
        state_width: usize,
        product: usize,
    ) -> std::result::Result<Self, Failure> {
        let (stream, rows) = (gpu.stream(), batch * frames);
        let (input, output) = (plan.input_words(batch, frames), plan.outputs * rows);
        let pinned = |len: usize| Pinned::new(stream, len).map_err(Failure::of(Pinned::bytes(len)));
        Ok(Self {
            batch,
            states: Block::new(stream, 4 * state_width * (slots + batch))?,
            input: Block::new(stream, 4 * input)?,
            output: Block::new(stream, 4 * output)?,
            arena: Block::new(stream, 4 * plan.arena * rows)?,
            product: Block::new(stream, 4 * product * rows)?,
            host_input: pinned(input)?,
            host_output: pinned(output)?,
        })
    }
}

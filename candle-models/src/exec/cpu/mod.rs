//! Runs a recorded program on batches of any size up to a limit, on a fixed set of threads.
//!
//! A batch is cut into blocks of a few dozen rows whose values stay in the second-level cache, and threads take whole blocks:
//! they meet once per batch. A single sequence is one block, whose operations the threads share one by one.
//!
//! ```
//! # use candle_models::candle_core::{Device, Tensor};
//! # use candle_models::engine::Runner;
//! # use candle_models::exec::program::{Output, Wires};
//! # use candle_models::exec::tensors::{Indices, TensorPass};
//! # use candle_models::exec::{Executor, Operation, Values, Widths, operands};
//! # use candle_models::network::{Layers, Network};
//! # use candle_models::signature::{Signature, TensorSpec};
//! # use std::sync::Arc;
//! use candle_models::Result;
//! use candle_models::exec::cpu::{Packer, Row, RowOut, Run};
//!
//! #[derive(Debug)]
//! struct Square;
//!
//! impl Operation for Square {
//! #     fn name(&self) -> &'static str {
//! #         "square"
//! #     }
//! #     fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
//! #         let [x] = operands(self.name(), x)?;
//! #         Ok(Widths::floats(x))
//! #     }
//! #     fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
//! #         let [x] = operands(self.name(), x)?;
//! #         Ok(Values::floats(x.sqr()?))
//! #     }
//!     // Beside its name, widths and reference:
//!     fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<Run>> {
//!         let microseconds = 0.001 * wires.out()[0].width() as f32; // of a row, roughly
//!         Ok(Some(packer.for_rows(microseconds, |x: &Row, y: &mut RowOut| {
//!             y.floats(0).iter_mut().zip(x.x(0)).for_each(|(y, x)| *y = x * x);
//!             Ok(())
//!         })))
//!     }
//! }
//!
//! struct Net;
//!
//! impl Layers for Net {
//!     fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
//!         let x = e.input("x")?;
//!         Ok(vec![Output::Floats(e.apply(Square, &[&x])?)])
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! # let [inputs, outputs] = ["x", "y"].map(|name| vec![TensorSpec::f32(name, &[2])]);
//! # let signature = Signature { inputs, outputs, state: Vec::new() };
//! let net = Network::of(("net", &()), signature, &Device::Cpu, Net)?;
//! let mut runner = Runner::new(Arc::new(net), 1, 1)?;
//! runner.set_f32("x", &[3.0, -2.0])?;
//! runner.step(&[false])?;
//! assert_eq!(runner.floats("y", 0)?, [9.0, 4.0]);
//! assert!(runner.on_tensors().is_empty()); // the kernel ran, not the reference
//! # Ok(())
//! # }
//! ```

mod frame;
mod pool;
mod rows;
mod steps;

use super::block_of;
use super::program::{Node, Program, Sequence};
use super::reference::Fallback;
use crate::Result;
use crate::ops::{self, Products};
pub use frame::Frame;
use pool::Pool;
pub use pool::Threads;
pub use rows::{Row, RowOut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
pub use steps::{Packer, Run};
pub(crate) use steps::{for_channels, for_rows as share_rows, product, product_at_places};

/// Rows of the largest block, and what rows of a block are a multiple of where there are several: the tiles of a product. Values, states and a layer's
/// weights fit into a second-level cache of 1 MB: 256 rows of a Mamba take 1.2 to 1.5 times as long in blocks of 48. Processors with the tiles of AMX have 2 MB,
/// and split a layer's weights once for a block: in f32 they are fastest with the tallest blocks.
fn block_shape() -> (usize, usize) {
    if ops::simd::has_tiles() { (128, 32) } else { (36, 4) }
}

/// What one thread works in.
struct Workspace {
    arena: Vec<f32>,
    indices: Vec<u32>,
}

/// A program's operations as steps that hold their packed weights.
struct Steps {
    /// Without its operations, and with them the model's own tensors.
    program: Program,
    steps: Vec<(&'static str, Run)>,
    /// Names of the operations that run on tensors.
    on_tensors: Vec<&'static str>,
    /// Bytes of the weights.
    bytes: usize,
}

impl Steps {
    fn new(mut program: Program, products: Products) -> Result<Self> {
        let (mut packer, mut on_tensors) = (Packer { products, ..Packer::default() }, Vec::new());
        let nodes = std::mem::take(&mut program.nodes);
        let step = |node: &Node| -> Result<(&'static str, Run)> {
            let name = node.op.name();
            packer.wires = node.wires.clone();
            let run = node.op.compile(&node.wires, &mut packer)?.unwrap_or_else(|| {
                on_tensors.push(name);
                steps::on_tensors(Fallback::new(node, &program.signature))
            });
            Ok((name, run))
        };
        let steps = nodes.iter().map(step).collect::<Result<_>>()?;
        Ok(Self { program, steps, on_tensors, bytes: packer.bytes })
    }

    /// One pass over sequences of equal length; `after` is called behind every step.
    ///
    /// # Safety
    /// As for [`Frame::new`].
    unsafe fn run(
        &self,
        sequences: &[Sequence],
        arena: (&mut [f32], &mut [u32]),
        threads: &mut Threads,
        mut after: impl FnMut(),
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        let frame = unsafe { Frame::new(&self.program, sequences, arena) };
        frame.load(&self.program);
        for (_, step) in &self.steps {
            step(&frame, threads)?;
            after();
        }
        frame.store(&self.program);
        Ok(())
    }
}

/// Runs a program on sequences of a fixed length.
pub(crate) struct CpuExecutor {
    program: Steps,
    pool: Pool,
    workspaces: Vec<Mutex<Workspace>>,
    /// Sequences of the largest block.
    block: usize,
}

impl CpuExecutor {
    /// For batches of at most `batch` sequences of `steps` frames each, on `threads` threads, the caller's counted.
    pub fn new(program: Program, (batch, steps): (usize, usize), threads: usize, products: Products) -> Result<Self> {
        let program = Steps::new(program, products)?;
        let pool = Pool::new(threads.max(1));
        let Program { width, columns, .. } = &program.program;
        let block = (block_of(*width, block_shape().0) / steps.max(1)).clamp(1, batch.max(1));
        let workspace = |_| {
            let rows = block * steps;
            Mutex::new(Workspace { arena: vec![0.0; width * rows], indices: vec![0; columns * rows] })
        };
        let workspaces = (0..pool.threads()).map(workspace).collect();
        Ok(Self { program, pool, workspaces, block })
    }

    /// Names of the operations without a kernel, which run on tensors and allocate memory in every pass.
    pub fn on_tensors(&self) -> &[&'static str] {
        &self.program.on_tensors
    }

    /// Bytes of packed weights and of what the threads work in.
    pub fn bytes(&self) -> usize {
        let bytes = |w: &Mutex<Workspace>| w.lock().map_or(0, |w| 4 * (w.arena.len() + w.indices.len()));
        self.program.bytes + self.workspaces.iter().map(bytes).sum::<usize>()
    }

    /// One pass: every sequence's inputs to its outputs, its state replaced by the one behind the pass.
    ///
    /// # Safety
    /// The slices of the sequences are as long as the program's signature says, valid, and nobody else uses them.
    pub unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        let threads = self.pool.threads();
        // Every thread gets a block where there are enough sequences, and blocks are about equal.
        let most = self.block.min(sequences.len().div_ceil(threads)).max(1);
        let block = sequences.len().div_ceil(sequences.len().div_ceil(most)).next_multiple_of(block_shape().1).min(most);
        let blocks = sequences.len().div_ceil(block);
        if blocks <= 1 || threads == 1 {
            let mut shared = Threads((blocks == 1).then_some(&mut self.pool));
            // SAFETY: the caller's promise.
            return sequences.chunks(block).try_for_each(|s| unsafe { run(&self.program, &self.workspaces[0], s, &mut shared) });
        }
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let Self { program, workspaces, pool, .. } = self;
        pool.run(&|part| {
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed) * block;
                let Some(rest) = sequences.get(at..).filter(|rest| !rest.is_empty()) else { return };
                // SAFETY: the caller's promise; every block is taken once.
                let done = unsafe { run(program, &workspaces[part], &rest[..block.min(rest.len())], &mut Threads(None)) };
                if let (Err(error), Ok(mut failed)) = (done, failed.lock()) {
                    *failed = Some(error);
                }
            }
        });
        failed.into_inner().ok().flatten().map_or(Ok(()), Err)
    }

    /// The time in seconds that every step of the program takes in a pass over one block, by name.
    ///
    /// # Safety
    /// As for [`Self::execute`].
    pub unsafe fn profile(&mut self, sequences: &[Sequence]) -> Result<Vec<(&'static str, f64)>> {
        let sequences = &sequences[..self.block.min(sequences.len())];
        let mut times = Vec::with_capacity(self.program.steps.len());
        let workspace = self.workspaces[0].get_mut().unwrap_or_else(|e| e.into_inner());
        let mut last = Instant::now();
        let after = || {
            let now = Instant::now();
            times.push((now - std::mem::replace(&mut last, now)).as_secs_f64());
        };
        // SAFETY: the caller's promise.
        unsafe { self.program.run(sequences, (&mut workspace.arena, &mut workspace.indices), &mut Threads(None), after)? };
        Ok(self.program.steps.iter().map(|(name, _)| *name).zip(times).collect())
    }
}

/// One block in a thread's workspace.
///
/// # Safety
/// As for [`CpuExecutor::execute`].
unsafe fn run(program: &Steps, workspace: &Mutex<Workspace>, sequences: &[Sequence], threads: &mut Threads) -> Result<()> {
    // A part that panicked leaves nothing behind that a pass reads before it writes it.
    let mut workspace = workspace.lock().unwrap_or_else(|e| e.into_inner());
    let Workspace { arena, indices } = &mut *workspace;
    // SAFETY: the caller's promise.
    unsafe { program.run(sequences, (arena, indices), threads, || {}) }
}

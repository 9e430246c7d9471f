//! Executors: a model is written once over [`Executor`], and two executors run it. They know operations by the trait [`Operation`] alone.
//!
//! [`tensors::TensorExecutor`] works on Candle tensors: gradients, f64 for tests, training on the CPU and on CUDA.
//! [`program::Recorder`] writes the operations down once; [`cpu`] packs the weights of such a program and runs it on
//! any batch without allocation, and with the feature `cuda` another executor makes it a captured graph.
//! A `tape` differentiates such a program through time, where each step's inputs depend on the steps before: on the host, and what closed
//! loops are made of on CUDA.
//!
//! Every value is a matrix with one row per frame: row `b * steps + t` is frame t of sequence b. A streaming step is a pass
//! with one frame. Operations with memory take the number of their state in the signature's order; the executor
//! replaces that state by the one behind the pass.
//!
//! ```
//! use candle_models::candle_core::{DType, Device, Tensor};
//! use candle_models::exec::{Executor, tensors::TensorExecutor};
//! use candle_models::nn::{Linear, Params};
//! use candle_models::ops::Activation;
//! use candle_models::random::Random;
//! use candle_models::tensors::NamedTensors;
//!
//! /// Written once for every executor.
//! fn pass<E: Executor>(e: &mut E, layer: &Linear) -> candle_models::Result<E::V> {
//!     let x = e.input("x")?;
//!     let y = e.linear(&x, layer, Activation::Relu)?;
//!     e.add(&x, &y)
//! }
//!
//! # fn main() -> candle_models::Result<()> {
//! let layer = Linear::new(4, 4, &Params::init(Random::new(1), &Device::Cpu))?;
//! let x = Tensor::ones((2, 3, 4), DType::F32, &Device::Cpu)?; // two sequences of three frames
//! let inputs = NamedTensors::from_iter([("x".to_owned(), x)]);
//! let mut e = TensorExecutor::new(&inputs, &[false; 6], Vec::new(), &Device::Cpu);
//! assert_eq!(pass(&mut e, &layer)?.dims(), [6, 4]); // a row for every frame
//! # Ok(())
//! # }
//! ```

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod graph;
mod operation;
pub mod program;
mod record;
mod reference;
pub(crate) mod tape;
pub mod tensors;
pub(crate) mod work;

use crate::Result;
use crate::ops::{self, Activation, Attention, Linear, Norm};
use candle_core::{DType, Tensor};
pub use operation::{Block, Fused, Operation, Target, Values, Widths, operands, same_width};
use std::sync::Arc;
pub use tape::{Derivative, RowGradients, TapeBuilder, TapeStep};
pub use work::{EXPONENTIAL, Size, Work};

/// The values of a parameter on the host as f32.
pub(crate) fn host(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?)
}

/// The most values of the rows that go through a program together.
const BLOCK_VALUES: usize = 1 << 20;

/// How many rows of `width` values go through a program together, `most` at most: of wide ones fewer, so that several threads have some and values stay near.
fn block_of(width: usize, most: usize) -> usize {
    (BLOCK_VALUES / width.max(1)).clamp(1, most)
}

/// How passes reach a GPU.
///
/// ```
/// use candle_models::exec::Launches;
/// # fn main() -> candle_models::Result<()> {
/// assert_eq!("eager".parse::<Launches>()?, Launches::Eager);
/// assert_eq!(Launches::default(), Launches::Captured);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Launches {
    /// Each batch size is captured once as a graph and replayed: one launch a pass.
    #[default]
    Captured,
    /// Kernel by kernel: for debugging and comparison.
    Eager,
}

impl std::str::FromStr for Launches {
    type Err = crate::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "captured" => Ok(Self::Captured),
            "eager" => Ok(Self::Eager),
            _ => Err(crate::Error::Input(format!("expected captured or eager, found {text:?}"))),
        }
    }
}

/// Columns of an index matrix and the table row that index 0 of each column means.
pub type IndexColumns = [(usize, usize)];

/// How a component of an action is chosen.
///
/// ```
/// use candle_models::exec::Choice;
///
/// let buttons = Choice { column: 0, columns: 5, classes: 2 };
/// let stick = Choice { column: 5, columns: 2, classes: 17 };
/// assert_eq!((buttons.logits(), stick.logits()), (5, 34));
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Choice {
    /// First column of the component among the action's columns.
    pub column: usize,
    /// How many columns it has: one class each.
    pub columns: usize,
    /// Classes of a column; 2 means one Bernoulli logit.
    pub classes: usize,
}

impl Choice {
    /// Logits of all its columns.
    pub fn logits(&self) -> usize {
        if self.classes == 2 { self.columns } else { self.columns * self.classes }
    }
}

/// Runs operations, or notes them. A model's pass is written once over it.
pub trait Executor: Sized {
    /// A matrix of floats `[rows, width]`.
    type V: Clone;
    /// A matrix of indices `[rows, columns]`.
    type I: Clone;

    /// An input of floats by its name in the signature.
    fn input(&mut self, name: &str) -> Result<Self::V>;
    /// An input of indices by its name in the signature.
    fn indices(&mut self, name: &str) -> Result<Self::I>;
    /// Runs an operation on matrices, with its states by their numbers in the signature's order.
    fn run(&mut self, op: Arc<dyn Operation>, x: &[&Self::V], ids: &[&Self::I], states: &[usize]) -> Result<Values<Self::V, Self::I>>;
    /// Runs a block: as one where the executor has it so, operation by operation elsewhere.
    fn block<B: Block>(&mut self, block: &B, x: &[&Self::V], ids: &[&Self::I]) -> Result<Values<Self::V, Self::I>>;
    /// Some columns of `x`.
    fn columns(&mut self, x: &Self::V, start: usize, len: usize) -> Result<Self::V>;
    /// Drops values in training; otherwise the identity.
    fn dropout(&mut self, x: &Self::V) -> Result<Self::V>;
    /// Drops indices in training, replacing them by `absent`; otherwise the identity.
    fn drop_indices(&mut self, ids: &Self::I, columns: usize, absent: u32) -> Result<Self::I>;
    /// Stops the gradient; otherwise the identity.
    fn detach(&mut self, x: &Self::V) -> Result<Self::V>;

    /// Runs an operation without states or indices that makes one matrix.
    fn apply(&mut self, op: impl Operation, x: &[&Self::V]) -> Result<Self::V> {
        self.run(Arc::new(op), x, &[], &[])?.into_floats()
    }

    // Short forms of what most models use.

    /// `act(x W + b)`.
    fn linear(&mut self, x: &Self::V, layer: &Linear, act: Activation) -> Result<Self::V> {
        self.apply(ops::ActivatedLinear::new(layer, act), &[x])
    }
    /// `act(x W + b)` at every one of some places of a row.
    fn linear_at_places(&mut self, places: usize, x: &Self::V, layer: &Linear, act: Activation) -> Result<Self::V> {
        self.apply(ops::ActivatedLinear::at_places(places, layer, act), &[x])
    }
    /// `act((x joined with tables[ids]) W + b)`: column i of `ids` looks into `tables[i]`.
    fn lookup_linear(&mut self, x: &Self::V, ids: &Self::I, tables: &[&Tensor], layer: &Linear) -> Result<Self::V> {
        self.run(Arc::new(ops::LookupLinear::new(tables, layer)), &[x], &[ids], &[])?.into_floats()
    }
    /// `tables[ids] W + b`: [`lookup_linear`](Self::lookup_linear) without floats.
    fn lookup(&mut self, ids: &Self::I, tables: &[&Tensor], layer: &Linear) -> Result<Self::V> {
        self.run(Arc::new(ops::LookupLinear::new(tables, layer)), &[], &[ids], &[])?.into_floats()
    }
    /// Normalises every group of the norm's width, then applies `act`.
    fn norm(&mut self, x: &Self::V, norm: &Norm, act: Activation) -> Result<Self::V> {
        self.apply(ops::ActivatedNorm { norm: norm.clone(), act }, &[x])
    }
    /// `x` plus the table rows that the index columns name, then `act`.
    fn add_rows(&mut self, x: &Self::V, table: &Tensor, ids: &Self::I, columns: &IndexColumns, act: Activation) -> Result<Self::V> {
        self.run(Arc::new(ops::AddRows { table: table.clone(), columns: columns.to_vec(), act }), &[x], &[ids], &[])?.into_floats()
    }
    /// `a + b`.
    fn add(&mut self, a: &Self::V, b: &Self::V) -> Result<Self::V> {
        self.apply(ops::Add, &[a, b])
    }
    /// `a * silu(z)`.
    fn gate(&mut self, a: &Self::V, z: &Self::V) -> Result<Self::V> {
        self.apply(ops::Gate, &[a, z])
    }
    /// Matrices side by side.
    fn join(&mut self, parts: &[Self::V]) -> Result<Self::V> {
        self.apply(ops::Join, &parts.iter().collect::<Vec<_>>())
    }
    /// Index matrices side by side.
    fn join_indices(&mut self, parts: &[Self::I]) -> Result<Self::I> {
        self.run(Arc::new(ops::JoinIndices), &[], &parts.iter().collect::<Vec<_>>(), &[])?.into_indices()
    }
    /// The indices of the frame before, in a sequence's first frame its own; state `[columns]`.
    fn before(&mut self, ids: &Self::I, state: usize) -> Result<Self::I> {
        self.run(Arc::new(ops::Before), &[], &[ids], &[state])?.into_indices()
    }
    /// A number for each list of digits, which are columns of `ids`.
    fn joint(&mut self, ids: &[&Self::I], digits: Vec<Vec<ops::Digit>>) -> Result<Self::I> {
        self.run(Arc::new(ops::JointIndex(digits)), &[], ids, &[])?.into_indices()
    }
    /// Causal depthwise convolution and SiLU: `weight` `[taps, width]`, state `[taps - 1, width]`.
    fn causal_conv(&mut self, x: &Self::V, weight: &Tensor, bias: &Tensor, state: usize) -> Result<Self::V> {
        let op = ops::CausalConv { weight: weight.clone(), bias: bias.clone() };
        self.run(Arc::new(op), &[x], &[], &[state])?.into_floats()
    }
    /// Selective scan: `dt` raw, `bc` `[rows, 2 N]`, `a_log` `[width, N]`, `skip` `[width]`, state `[N, width]`.
    fn selective_scan(&mut self, x: [&Self::V; 3], a_log: &Tensor, skip: &Tensor, state: usize) -> Result<Self::V> {
        let op = ops::SelectiveScan { a_log: a_log.clone(), skip: skip.clone() };
        self.run(Arc::new(op), &x, &[], &[state])?.into_floats()
    }
    /// Gated recurrent unit over the input product `x` `[rows, 3 width]`, state `[width]`.
    fn gru(&mut self, x: &Self::V, hidden: &Linear, state: usize) -> Result<Self::V> {
        self.run(Arc::new(ops::GatedUnit { hidden: hidden.clone() }), &[x], &[], &[state])?.into_floats()
    }
    /// Sliding-window attention with `slopes` `[heads]` over the distance; states `[window - 1, width]` (keys, then values) and `[1]` from number `state` on.
    fn attention(&mut self, shape: Attention, qkv: [&Self::V; 3], slopes: &Tensor, state: usize) -> Result<Self::V> {
        let op = ops::Attend { shape, slopes: slopes.clone() };
        self.run(Arc::new(op), &qkv, &[], &[state, state + 1, state + 2])?.into_floats()
    }
    /// The classes of a component: those of `wanted`, and where they say [`SAMPLE`] the class that `uniform` picks from
    /// the logits (the most likely one where it is negative).
    fn choose(&mut self, logits: &Self::V, wanted: &Self::I, uniform: &Self::V, choice: Choice) -> Result<Self::I> {
        self.run(Arc::new(ops::Choose(choice)), &[logits, uniform], &[wanted], &[])?.into_indices()
    }
}

/// In place of a class: "choose one".
pub const SAMPLE: u32 = u32::MAX;

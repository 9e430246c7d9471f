//! What an operation is: the one trait that the recorder, the executors, the tape and the work counter know.
//!
//! An operation computes some columns of every row of a pass from columns of the same row, and from states where it remembers. Its reference
//! on tensors is all that it needs: an executor without a kernel for it runs that. Everything else makes it faster: a fused form on tensors,
//! kernels on the CPU and on CUDA, a derivative for the tape. An operation lies in a folder of its own below `ops`, or in another crate.

use super::Executor;
use super::cpu::{self, Packer};
#[cfg(feature = "cuda")]
use super::cuda;
use super::graph::{Graph, Value};
use super::program::{Slot, Wires};
use super::tape::{Derivative, TapeBuilder};
use super::tensors::{Indices, TensorPass};
use super::work::{Size, Work};
use crate::{Error, Result};
use candle_core::Tensor;
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// What a program is recorded for. Operations and blocks decide by it whether they run as one with what follows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The executor on the CPU, and the counting of work.
    Cpu,
    /// The executor on CUDA.
    Cuda {
        /// Frames of a sequence in a pass.
        steps: usize,
    },
    /// A tape: the program is differentiated through its steps.
    Tape,
}

/// Columns of what an operation makes.
///
/// ```
/// use candle_models::exec::Widths;
///
/// let widths = Widths::floats(8).with_scratch(&[16]);
/// assert_eq!((&widths.out[..], &widths.scratch[..]), (&[8][..], &[16][..]));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Widths {
    /// Of its matrices of floats.
    pub out: Vec<usize>,
    /// Of its index matrices.
    pub out_ids: Vec<usize>,
    /// Of matrices of floats that it works in and nobody else reads.
    pub scratch: Vec<usize>,
}

impl Widths {
    /// One matrix of floats.
    pub fn floats(width: usize) -> Self {
        Self { out: vec![width], ..Self::default() }
    }

    /// One index matrix.
    pub fn indices(columns: usize) -> Self {
        Self { out_ids: vec![columns], ..Self::default() }
    }

    /// The same with matrices to work in.
    pub fn with_scratch(self, scratch: &[usize]) -> Self {
        Self { scratch: scratch.to_vec(), ..self }
    }
}

/// What an operation makes: matrices of floats and of indices.
#[derive(Debug, Clone)]
pub struct Values<V, I> {
    /// Matrices of floats.
    pub floats: Vec<V>,
    /// Index matrices.
    pub ids: Vec<I>,
}

impl<V, I> Values<V, I> {
    /// One matrix of floats.
    pub fn floats(value: V) -> Self {
        Self { floats: vec![value], ids: Vec::new() }
    }

    /// One index matrix.
    pub fn indices(value: I) -> Self {
        Self { floats: Vec::new(), ids: vec![value] }
    }

    /// The first matrix of floats.
    pub fn into_floats(self) -> Result<V> {
        self.floats.into_iter().next().ok_or_else(|| Error::Input("an operation without a matrix of floats".to_owned()))
    }

    /// The first index matrix.
    pub fn into_indices(self) -> Result<I> {
        self.ids.into_iter().next().ok_or_else(|| Error::Input("an operation without an index matrix".to_owned()))
    }
}

/// The operands of an operation, of which there are `N`.
///
/// # Errors
/// If there are more or fewer.
pub fn operands<T: Copy, const N: usize>(operation: &str, given: &[T]) -> Result<[T; N]> {
    given.try_into().map_err(|_| Error::Input(format!("{operation}: expected {N} operands, found {}", given.len())))
}

/// Refuses rows of different widths.
pub fn same_width(operation: &str, a: usize, b: usize) -> Result<()> {
    if a == b { Ok(()) } else { Err(Error::Input(format!("{operation}: {a} and {b} values a row"))) }
}

/// An operation and what it reads and writes, in place of two that it does the work of.
pub type Fused = (Arc<dyn Operation>, Wires);

/// An operation with its parameters. All but the first three methods have defaults.
///
/// ```
/// use candle_models::Result;
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::exec::tensors::{Indices, TensorExecutor, TensorPass};
/// use candle_models::exec::{Executor, Operation, Values, Widths, operands};
/// use candle_models::tensors::NamedTensors;
///
/// /// `x^2`, by its reference alone.
/// #[derive(Debug)]
/// struct Square;
///
/// impl Operation for Square {
///     fn name(&self) -> &'static str {
///         "square"
///     }
///     fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
///         let [x] = operands(self.name(), x)?;
///         Ok(Widths::floats(x))
///     }
///     fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
///         let [x] = operands(self.name(), x)?;
///         Ok(Values::floats(x.sqr()?))
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let inputs = NamedTensors::new();
/// let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
/// let y = e.apply(Square, &[&Tensor::new(&[[3f32, -2.0]], &Device::Cpu)?])?;
/// assert_eq!(y.to_vec2::<f32>()?, [[9.0, 4.0]]);
/// # Ok(())
/// # }
/// ```
pub trait Operation: Any + Debug + Send + Sync {
    /// What profiles, messages and the counting of work call it.
    fn name(&self) -> &'static str;

    /// Columns of its results for operands of that many: `x` of floats, `ids` of indices.
    ///
    /// # Errors
    /// If the operands do not fit each other or the parameters.
    fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths>;

    /// In plain tensor operations with gradients, for every dtype and device: operands `[rows, width]` to results `[rows, width]`. States
    /// are those of `pass`, to be replaced by the ones behind it.
    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>>;

    /// A step of one frame without reset in standard operators, for printing and for other runtimes: operands `[B, width]`, indices
    /// `[B, columns]`, states `[B, ...]`, to be replaced by the ones behind the frame. `None` where nobody has written it; a block is
    /// written in the operations that it is made of.
    fn formula(&self, _graph: &mut Graph, _x: &[Value], _ids: &[Value], _states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        Ok(None)
    }

    /// The same as training wants it: fused, with gradients, where that is faster.
    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.reference(pass, x, ids)
    }

    /// One operation in place of this and the next, which alone reads what this one makes; `None` where they stay two.
    fn absorb(&self, _own: &Wires, _next: (&dyn Operation, &Wires), _target: Target) -> Option<Fused> {
        None
    }

    /// What it does in a pass on the CPU, its weights packed; `None` to run on tensors, which allocates memory in every pass.
    fn compile(&self, _wires: &Wires, _packer: &mut Packer) -> Result<Option<cpu::Run>> {
        Ok(None)
    }

    /// What it puts on the stream in a pass on CUDA, its weights uploaded; `None` to run on tensors on the host, where the whole program is
    /// launched kernel by kernel.
    #[cfg(feature = "cuda")]
    fn launch(&self, _wires: &Wires, _compiler: &mut cuda::Compiler) -> Result<Option<cuda::Run>> {
        Ok(None)
    }

    /// Its forward and backward on a tape; `None` where it has none.
    fn differentiate(&self, _wires: &Wires, _tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(None)
    }

    /// The same on CUDA.
    #[cfg(feature = "cuda")]
    fn differentiate_on_gpu(
        &self,
        _wires: &Wires,
        _tape: &mut super::tape::cuda::Builder,
    ) -> Option<Box<dyn super::tape::cuda::Derivative>> {
        None
    }

    /// What it computes and moves at least; by default its operands and results.
    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: 0.0, bytes: size.values(wires), weights: None })
    }

    /// Those of its operands and results that are f32 on CUDA, whatever the dtype of the pass.
    fn wide(&self, _wires: &Wires) -> Vec<Slot> {
        Vec::new()
    }

    /// Whether its result is its operands side by side: an executor may have them written where they will stand.
    fn joins(&self) -> bool {
        false
    }
}

impl dyn Operation {
    /// The operation as the type that it is, if it is of that type.
    pub fn downcast_ref<O: Operation>(&self) -> Option<&O> {
        (self as &dyn Any).downcast_ref()
    }
}

/// Several operations that some executors run as one.
pub trait Block: Operation + Clone {
    /// Numbers of its states in the signature's order.
    fn states(&self) -> Vec<usize>;

    /// Whether a program for that target has it as one operation.
    fn is_one(&self, target: Target) -> bool;

    /// Whether its fused form on tensors serves this pass.
    fn is_one_on_tensors(&self, pass: &TensorPass, x: &[&Tensor], ids: &[&Indices]) -> bool;

    /// The block, operation by operation.
    fn compose<E: Executor>(&self, e: &mut E, x: &[&E::V], ids: &[&E::I]) -> Result<Values<E::V, E::I>>;
}

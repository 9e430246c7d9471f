//! Launches of `gru.cu`, and the unit on tensors.

use super::GatedUnit;
use crate::cuda::{self, Gpu, Grid, Kernel, Matrix, Source, States};
use crate::exec::program::Wires;
use crate::exec::tape::cuda::{Builder, Derivative, GradOf, Grads, Memory, Net, Tape};
use crate::ops::cuda::{Resets, states_of, sums};
use crate::ops::{Linear, Target};
use candle_core::backend::BackendStorage;
use candle_core::{CudaStorage, DType, Layout, Result, Shape, Storage, Tensor, bail};

static SOURCE: Source = Source { name: "gru", text: include_str!("gru.cu") };
const HIDDEN: Kernel = Kernel { source: &SOURCE, name: "gru_hidden" };
const GATES: Kernel = Kernel { source: &SOURCE, name: "gru_gates" };
const BACKWARD: Kernel = Kernel { source: &SOURCE, name: "gru_backward" };

fn grid(batch: usize, width: u32) -> Grid {
    let threads = (width as usize).next_multiple_of(32).min(128);
    ((batch, (width as usize).div_ceil(threads), 1), threads, 0)
}

/// The states as the operand of the first product; zeros where a sequence begins anew.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GruHidden {
    pub state: States,
    /// `[batch, width]`.
    pub hidden: Matrix,
    /// The u8 of sequence b lies `b * reset_stride` behind it; 0 for none.
    pub resets: u64,
    pub reset_stride: u32,
}

impl GruHidden {
    /// # Safety
    /// Everything has the stated sizes, and the matrix that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(HIDDEN, Some(dtype), grid(batch, self.hidden.width), self) }
    }
}

/// One frame behind its products; the state is updated in place.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GruGates {
    /// Products of the inputs, `[batch, 3 width]`.
    pub x: Matrix,
    /// Products of the states without their bias, `[batch, 3 width]`.
    pub product: Matrix,
    /// `[batch, width]`.
    pub out: Matrix,
    /// The operand of the next frame's product, zeros behind a reset; [`Matrix::NONE`] for none.
    pub hidden: Matrix,
    /// f32 `[3 width]`.
    pub bias: u64,
    pub state: States,
    /// The u8 of sequence b lies `b * reset_stride` behind it, that of the next frame follows if there is `hidden`; 0 for none.
    pub resets: u64,
    /// f32 `[batch, 4 width]` and `[batch, width]` for the backward; 0 for none.
    pub kept: u64,
    pub before: u64,
    pub reset_stride: u32,
}

impl GruGates {
    /// # Safety
    /// Everything has the stated sizes, the matrices that dtype, and every sequence a slot of its own.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(GATES, Some(dtype), grid(batch, self.out.width), self) }
    }
}

/// One frame backwards; the frame behind it comes before.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GruBackward {
    /// Of the frame's output, `[batch, width]`.
    pub grad: Matrix,
    /// `dh` of the frame behind times the transposed weight; [`Matrix::NONE`] behind the last frame.
    pub product: Matrix,
    /// Gradients of both products, `[batch, 3 width]`.
    pub dx: Matrix,
    pub dh: Matrix,
    /// As [`GruGates`] left them.
    pub kept: u64,
    pub before: u64,
    /// f32 `[batch, width]`, from frame to frame.
    pub carry: u64,
    /// As for [`GruGates`].
    pub resets: u64,
    pub reset_stride: u32,
}

impl GruBackward {
    /// # Safety
    /// Everything has the stated sizes, and the matrices that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(BACKWARD, Some(dtype), grid(batch, self.grad.width), self) }
    }
}

/// Frame t of every sequence: a matrix with one row a sequence.
fn frame(x: Matrix, t: usize, steps: usize, dtype: DType) -> Matrix {
    let bytes = t as u64 * u64::from(x.stride) * dtype.size_in_bytes() as u64;
    Matrix { data: x.data + bytes, stride: x.stride * steps as u32, ..x }
}

/// The part of a contiguous f32 tensor `[steps, ...]` that belongs to frame t.
fn part(x: &Tensor, t: usize) -> Result<u64> {
    Ok(cuda::address(x)? + (t * x.elem_count() / x.dim(0)? * 4) as u64)
}

/// What a forward leaves: the output, the state behind the sequences, and what the backward reads: the gates `[T, B, 4 width]` and
/// the states that the frames started from, `[T, B, width]`.
pub(crate) struct Forward {
    pub out: CudaStorage,
    pub shape: Shape,
    pub after: Tensor,
    pub kept: [Tensor; 2],
}

/// The custom operation.
pub(crate) fn forward(
    resets: &[bool],
    before: &Tensor,
    (x, layout): (&CudaStorage, &Layout),
    (weight, weight_layout): (&CudaStorage, &Layout),
    bias: (&CudaStorage, &Layout),
) -> Result<Forward> {
    let (gpu, (batch, width), dtype) = (Gpu::of(&x.device)?, before.dims2()?, x.dtype());
    let (rows, device) = (layout.dims()[0], gpu.device());
    let (steps, shape) = (rows / batch, Shape::from((rows, width)));
    let (resets, after) = (Resets::new(resets, before.device())?, before.copy()?);
    let kept = [cuda::empty((steps, batch, 4 * width), DType::F32, device)?, cuda::empty((steps, batch, width), DType::F32, device)?];
    let (storage, out) = cuda::result(&shape, dtype, device)?;
    let (hidden, hidden_layout) = (cuda::empty((batch, width), dtype, device)?, Layout::contiguous((batch, width)));
    let (state, hidden_rows, reset) = (states_of(&after)?, cuda::matrix(&hidden)?, resets.address()?);
    let (x, bias) = (cuda::storage_matrix(x, layout)?, cuda::parameter(bias.0, bias.1, 3 * width)?);
    let first = GruHidden { state, hidden: hidden_rows, resets: reset, reset_stride: steps as u32 };
    // SAFETY: the state has a row of `width` values for every sequence.
    unsafe { first.launch(&gpu, dtype, batch)? };
    for t in 0..steps {
        let (guard, _) = hidden.storage_and_layout();
        let Storage::Cuda(operand) = &*guard else { bail!("a state elsewhere") };
        let product = operand.matmul(weight, (1, batch, 3 * width, width), &hidden_layout, weight_layout)?;
        let gates = GruGates {
            x: frame(x, t, steps, dtype),
            product: cuda::storage_matrix(&product, &Layout::contiguous((batch, 3 * width)))?,
            out: frame(out, t, steps, dtype),
            hidden: if t + 1 < steps { hidden_rows } else { Matrix::NONE },
            bias,
            state,
            resets: if reset == 0 { 0 } else { reset + t as u64 },
            kept: part(&kept[0], t)?,
            before: part(&kept[1], t)?,
            reset_stride: steps as u32,
        };
        // SAFETY: the frames lie inside their matrices, the products have the sizes of the weight, which the caller has checked.
        unsafe { gates.launch(&gpu, dtype, batch)? };
    }
    Ok(Forward { out: storage, shape, after, kept })
}

/// The gradients of the input products, of the weight and of the bias.
pub(crate) fn backward(resets: &[bool], [gates, before]: &[Tensor; 2], [x, weight, grad]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
    let (gpu, (steps, batch, width), dtype) = (Gpu::of(cuda::device_of(x)?)?, before.dims3()?, x.dtype());
    let (device, resets) = (gpu.device(), Resets::new(resets, x.device())?);
    let (dx, dh) = (cuda::empty(x.shape(), dtype, device)?, cuda::empty((steps, batch, 3 * width), dtype, device)?);
    let carry = cuda::empty((batch, width), DType::F32, device)?;
    let (grad_rows, dx_rows, reset) = (cuda::matrix(grad)?, cuda::matrix(&dx)?, resets.address()?);
    let mut product: Option<Tensor> = None;
    for t in (0..steps).rev() {
        let dh = dh.get(t)?;
        let args = GruBackward {
            grad: frame(grad_rows, t, steps, dtype),
            product: product.as_ref().map_or(Ok(Matrix::NONE), cuda::matrix)?,
            dx: frame(dx_rows, t, steps, dtype),
            dh: cuda::matrix(&dh)?,
            kept: part(gates, t)?,
            before: part(before, t)?,
            carry: cuda::address(&carry)?,
            resets: if reset == 0 { 0 } else { reset + t as u64 },
            reset_stride: steps as u32,
        };
        // SAFETY: the frames lie inside their matrices; `carry` is written by the last frame, which does not read it.
        unsafe { args.launch(&gpu, dtype, batch)? };
        product = if t > 0 { Some(dh.matmul(&weight.t()?)?) } else { None };
    }
    let dh = dh.reshape((steps * batch, 3 * width))?;
    let before = before.reshape((steps * batch, width))?.to_dtype(dtype)?;
    Ok([dx, before.t()?.matmul(&dh)?, sums::column_sums(&dh)?])
}

/// The gated recurrent unit on a tape: its matrices, and its memories beside values and gradients. States, gates and sums are f32.
pub(super) struct OnTape {
    x: usize,
    out: usize,
    hidden: Linear,
    width: usize,
    state: usize,
    products: usize,
    gates: usize,
    before: usize,
    grad_products: usize,
    through: usize,
    carry: usize,
}

impl OnTape {
    pub fn new(unit: &GatedUnit, wires: &Wires, tape: &mut Builder) -> Option<Self> {
        let (x, out, width) = (tape.matrix(&wires.x[0])?, tape.matrix(&wires.out[0])?, wires.out[0].width);
        let step = Memory { width, every_step: false, wide: true, zeros: false };
        let all = Memory { every_step: true, ..step };
        let grad_products = tape.grad_memory(Memory { width: 3 * width, wide: false, ..all });
        tape.product(&unit.hidden, (out, true), GradOf::Memory(grad_products));
        Some(Self {
            x,
            out,
            hidden: unit.hidden.clone(),
            width,
            state: tape.memory(Memory { zeros: true, ..step }),
            products: tape.memory(Memory { width: 3 * width, wide: false, ..step }),
            gates: tape.memory(Memory { width: 4 * width, ..all }),
            before: tape.memory(all),
            grad_products,
            through: tape.grad_memory(Memory { wide: false, ..step }),
            carry: tape.grad_memory(step),
        })
    }
}

impl Derivative for OnTape {
    fn forward(&self, net: &Net, tape: &Tape, t: usize) -> Result<()> {
        let product = tape.memory(self.products, 0);
        net.product(tape.value_before(self.out, t), (&self.hidden, false), (product, Target::Fresh), tape.rows())?;
        let args = GruGates {
            x: tape.value(self.x, t),
            product,
            out: tape.value(self.out, t),
            hidden: Matrix::NONE,
            bias: self.hidden.bias.as_ref().map_or(Ok(0), cuda::address)?,
            state: States { data: tape.memory(self.state, 0).data, stride: self.width as u64, slots: 0 },
            resets: 0,
            kept: tape.memory(self.gates, t).data,
            before: tape.memory(self.before, t).data,
            reset_stride: 0,
        };
        // SAFETY: all have the tape's rows; every row has a state.
        unsafe { args.launch(net.gpu(), net.dtype(), tape.rows()) }
    }

    fn backward(&self, net: &Net, tape: &Tape, grads: &mut Grads, t: usize) -> Result<()> {
        let (products, through) = (grads.memory(self.grad_products, t), grads.memory(self.through, 0));
        let args = GruBackward {
            grad: grads.value(self.out, t),
            product: if t + 1 < tape.steps() { through } else { Matrix::NONE },
            dx: grads.value(self.x, t),
            dh: products,
            kept: tape.memory(self.gates, t).data,
            before: tape.memory(self.before, t).data,
            carry: grads.memory(self.carry, 0).data,
            resets: 0,
            reset_stride: 0,
        };
        // SAFETY: all have the tape's rows; the last step does not read `carry`.
        unsafe { args.launch(net.gpu(), net.dtype(), tape.rows())? };
        if t > 0 {
            net.product(products, (&self.hidden, true), (through, Target::Fresh), tape.rows())?;
        }
        Ok(())
    }
}

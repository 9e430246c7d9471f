//! `act(x W + b)` on tensors: cuBLAS for the products, one kernel for bias and activation.

use super::{Linear, Target};
use crate::cuda::{self, Gpu};
use crate::exec::tape::cuda::{Derivative, Grads, Net, Tape};
use crate::ops::Activation;
use crate::ops::cuda::sums::column_sums;
use crate::ops::elementwise::cuda::{Epilogue, EpilogueBackward};
use candle_core::backend::BackendStorage;
use candle_core::op::BackpropOp;
use candle_core::{CudaStorage, Layout, Result, Shape, Storage, Tensor};

type Operand<'a> = (&'a CudaStorage, &'a Layout);

/// What a forward leaves: the output, and the product where the slope of the activation is not in the output.
pub(crate) struct Forward {
    pub out: CudaStorage,
    pub product: Option<Tensor>,
}

/// The custom operation, `x` and the weight contiguous.
pub(crate) fn forward(act: Activation, (x, xl): Operand, (w, wl): Operand, bias: Option<Operand>) -> Result<Forward> {
    let (gpu, (rows, inputs), (_, outputs)) = (Gpu::of(&x.device)?, xl.shape().dims2()?, wl.shape().dims2()?);
    let (shape, dtype) = (Shape::from((rows, outputs)), x.dtype());
    let product = x.matmul(w, (1, rows, outputs, inputs), xl, wl)?;
    let bias = bias.map_or(Ok(0), |(bias, layout)| cuda::parameter(bias, layout, outputs))?;
    if act == Activation::None && bias == 0 {
        return Ok(Forward { out: product, product: None });
    }
    let matrix = cuda::storage_matrix(&product, &Layout::contiguous(&shape))?;
    if matches!(act, Activation::None | Activation::Relu) {
        // SAFETY: the product has `rows` rows of `outputs` values, as many as the bias.
        unsafe { Epilogue::new(matrix, matrix, bias, act).launch(&gpu, dtype, rows)? };
        return Ok(Forward { out: product, product: None });
    }
    let (out, out_matrix) = cuda::result(&shape, dtype, gpu.device())?;
    // SAFETY: as above, for both.
    unsafe { Epilogue::new(matrix, out_matrix, bias, act).launch(&gpu, dtype, rows)? };
    let product = Tensor::from_storage(Storage::Cuda(product), shape, BackpropOp::none(), false);
    Ok(Forward { out, product: Some(product) })
}

/// The gradients of the input, if anything asks for it, of the weight, and of the bias in f32, if there is one.
pub(crate) fn backward(
    act: Activation,
    product: Option<&Tensor>,
    [x, w, out, grad]: [&Tensor; 4],
    bias: Option<&Tensor>,
) -> Result<(Option<Tensor>, Tensor, Option<Tensor>)> {
    let through = if act == Activation::None {
        grad.clone()
    } else {
        let gpu = Gpu::of(cuda::device_of(x)?)?;
        let through = cuda::empty(grad.shape(), grad.dtype(), gpu.device())?;
        // The slope of a ReLU is in its output; the others ask for what they were applied to.
        let (before, bias) = match product {
            Some(product) => (product, bias.map_or(Ok(0), cuda::address)?),
            None => (out, 0),
        };
        let args = EpilogueBackward::new(cuda::matrix(before)?, cuda::matrix(grad)?, cuda::matrix(&through)?, bias, act);
        // SAFETY: the matrices have one shape and dtype, the bias a value for each column.
        unsafe { args.launch(&gpu, grad.dtype(), grad.dim(0)?)? };
        through
    };
    let dx = x.track_op().then(|| through.matmul(&w.t()?)).transpose()?;
    Ok((dx, x.t()?.matmul(&through)?, bias.map(|_| column_sums(&through)).transpose()?))
}

/// The layer on a tape. Its bias is written ahead.
pub(super) struct OnTape {
    pub x: usize,
    pub out: usize,
    pub layer: Linear,
}

impl Derivative for OnTape {
    fn forward(&self, net: &Net, tape: &Tape, t: usize) -> Result<()> {
        let target = if self.layer.bias.is_some() { Target::Sum } else { Target::Fresh };
        net.product(tape.value(self.x, t), (&self.layer, false), (tape.value(self.out, t), target), tape.rows())
    }

    fn backward(&self, net: &Net, tape: &Tape, grads: &mut Grads, t: usize) -> Result<()> {
        let target = grads.target(self.x);
        let (dx, dy) = (grads.value(self.x, t), grads.value(self.out, t));
        net.product(dy, (&self.layer, true), (dx, target), tape.rows())
    }
}

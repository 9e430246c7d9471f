//! Launches of `cross_entropy.cu`.

use crate::cuda::{self, Gpu, Grid, Kernel, Matrix, Source};
use crate::ops::LossGroup;
use candle_core::{CudaStorage, DType, Device, Layout, Result, Shape, Tensor};

static SOURCE: Source = Source { name: "cross_entropy", text: include_str!("cross_entropy.cu") };
const LOSS: Kernel = Kernel { source: &SOURCE, name: "loss" };
const LOSS_BACKWARD: Kernel = Kernel { source: &SOURCE, name: "loss_backward" };

/// Groups that a kernel takes at most.
pub(crate) const GROUPS: usize = 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Group {
    logit: u32,
    column: u32,
    columns: u32,
    classes: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Loss {
    logits: Matrix,
    classes: u64,
    losses: u64,
    grad: u64,
    dlogits: u64,
    rows: u32,
    columns: u32,
    count: u32,
    smoothing: f32,
    groups: [Group; GROUPS],
}

/// The choices: their groups, the classes on the host `[rows, columns]`, and what label smoothing moves.
pub(crate) struct Choices<'a> {
    pub groups: &'a [LossGroup],
    pub classes: &'a [u32],
    pub columns: usize,
    pub smoothing: f32,
}

impl Choices<'_> {
    /// The arguments for these logits, and the classes on the device.
    fn args(&self, logits: Matrix, device: &Device) -> Result<(Loss, Tensor)> {
        let classes = Tensor::from_slice(self.classes, self.classes.len(), device)?;
        let mut groups = [Group::default(); GROUPS];
        for (to, g) in groups.iter_mut().zip(self.groups) {
            let [logit, column, columns, classes] = [g.logit, g.column, g.columns, g.classes].map(|n| n as u32);
            *to = Group { logit, column, columns, classes };
        }
        let loss = Loss {
            logits,
            classes: cuda::address(&classes)?,
            losses: 0,
            grad: 0,
            dlogits: 0,
            rows: (self.classes.len() / self.columns) as u32,
            columns: self.columns as u32,
            count: self.groups.len() as u32,
            smoothing: self.smoothing,
            groups,
        };
        Ok((loss, classes))
    }
}

/// A thread for every row and group.
fn grid(a: &Loss) -> Grid {
    const THREADS: usize = 128;
    (((a.rows as usize * a.count as usize).div_ceil(THREADS), 1, 1), THREADS, 0)
}

/// The custom operation on f32 logits, classes and groups checked.
pub(crate) fn forward(choices: &Choices, (x, layout): (&CudaStorage, &Layout)) -> Result<(CudaStorage, Shape)> {
    let gpu = Gpu::of(&x.device)?;
    let shape = Shape::from((layout.dims()[0], choices.groups.len()));
    let (storage, out) = cuda::result(&shape, DType::F32, gpu.device())?;
    let (args, _classes) = choices.args(cuda::storage_matrix(x, layout)?, &Device::Cuda(gpu.device().clone()))?;
    let args = Loss { losses: out.data, ..args };
    // SAFETY: the caller has checked the groups against the logits and the classes against both.
    unsafe { gpu.launch(LOSS, None, grid(&args), &args)? };
    Ok((storage, shape))
}

/// The gradient of the logits.
pub(crate) fn backward(choices: &Choices, logits: &Tensor, grad: &Tensor) -> Result<Tensor> {
    let gpu = Gpu::of(cuda::device_of(logits)?)?;
    let dlogits = Tensor::zeros(logits.shape(), DType::F32, logits.device())?;
    let (args, _classes) = choices.args(cuda::matrix(logits)?, logits.device())?;
    let args = Loss { grad: cuda::address(grad)?, dlogits: cuda::address(&dlogits)?, ..args };
    // SAFETY: as in the forward; the gradients have the shapes of losses and logits.
    unsafe { gpu.launch(LOSS_BACKWARD, None, grid(&args), &args)? };
    Ok(dlogits)
}

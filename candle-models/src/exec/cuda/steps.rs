//! What operations on CUDA are compiled with: weights go to the device here, kernels are put on the stream later.

use super::on_tensors;
use super::plan::{Pass, Plan};
use crate::Result;
use crate::cuda::{Gpu, address};
use crate::exec::program::{IndexSlot, Node, Program, Slot};
use crate::exec::reference::Fallback;
use crate::ops::Linear;
use candle_core::{CudaDevice, DType, Device, Tensor};
use std::sync::Arc;

/// What an operation does in a pass.
pub type Run = Box<dyn Fn(&Pass) -> Result<()> + Send>;

/// The steps of a program by name, and the names of the operations without kernels.
pub(super) type Steps = (Vec<(&'static str, Run)>, Vec<&'static str>);

/// What steps have on the device.
pub(super) struct Weights {
    /// Alive as long as the addresses in the steps.
    _tensors: Vec<Tensor>,
    pub bytes: usize,
    /// f32 values a row of scratch for products of many rows.
    pub product: usize,
}

/// Brings the weights of operations to the device and gives them room to work in.
pub struct Compiler<'a> {
    gpu: Arc<Gpu>,
    dtype: DType,
    plan: &'a mut Plan,
    tensors: Vec<Tensor>,
    product: usize,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(gpu: Arc<Gpu>, dtype: DType, plan: &'a mut Plan) -> Self {
        Self { gpu, dtype, plan, tensors: Vec::new(), product: 0 }
    }

    pub(super) fn finish(self) -> Weights {
        let bytes = self.tensors.iter().map(|t| t.elem_count() * t.dtype().size_in_bytes()).sum();
        Weights { _tensors: self.tensors, bytes, product: self.product }
    }

    /// All steps of a program in order.
    pub(super) fn compile(&mut self, program: &Program) -> Result<Steps> {
        let (mut steps, mut fallbacks) = (Vec::new(), Vec::new());
        for node in &program.nodes {
            if self.stands(node) {
                continue;
            }
            let name = node.op.name();
            let run = match node.op.launch(&node.wires, self)? {
                Some(run) => run,
                None => {
                    fallbacks.push(name);
                    on_tensors::step(Fallback::new(node, &program.signature))
                }
            };
            steps.push((name, run));
        }
        for (from, to) in self.plan.copies.clone() {
            steps.push(("copy", Box::new(move |pass| pass.copy(from, to))));
        }
        Ok((steps, fallbacks))
    }

    /// Whether a node joins parts that are all written where they stand.
    fn stands(&self, node: &Node) -> bool {
        let (mut start, mut column) = (0, 0);
        node.op.joins()
            && node.wires.x.iter().all(|part| {
                start += part.width;
                self.is_same_place(*part, node.wires.out[0].columns(start - part.width, part.width))
            })
            && node.wires.ids.iter().all(|part| {
                column += part.columns;
                self.stands_in(*part, node.wires.out_ids[0], column - part.columns)
            })
    }

    /// Whether an index matrix is the same memory as columns of another from `start` on.
    pub(crate) fn stands_in(&self, part: IndexSlot, whole: IndexSlot, start: usize) -> bool {
        self.plan.stands_in(part, whole, start)
    }

    /// Whether two matrices are the same memory.
    pub(crate) fn is_same_place(&self, a: Slot, b: Slot) -> bool {
        self.plan.same_place(a, b)
    }

    /// Where it runs.
    pub(crate) fn device(&self) -> &CudaDevice {
        self.gpu.device()
    }

    /// A matrix to work in, of the executor's dtype.
    pub fn scratch(&mut self, width: usize) -> Slot {
        self.plan.scratch(width)
    }

    /// A tensor on the device, contiguous, in that dtype.
    fn upload(&mut self, tensor: &Tensor, dtype: DType) -> Result<u64> {
        let device = Device::Cuda(self.gpu.device().clone());
        // Cast on the host: the device's stream is not asked before there is something to run.
        let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(dtype)?.contiguous()?.to_device(&device)?;
        let at = address(&tensor)?;
        self.tensors.push(tensor);
        Ok(at)
    }

    /// Uploads a matrix or table in the executor's dtype; its address, valid as long as the steps.
    pub fn matrix(&mut self, tensor: &Tensor) -> Result<u64> {
        self.upload(tensor, self.dtype)
    }

    /// Uploads a gain, offset or other vector in f32.
    pub fn vector(&mut self, tensor: &Tensor) -> Result<u64> {
        self.upload(tensor, DType::F32)
    }

    pub(crate) fn vector_or_none(&mut self, tensor: Option<&Tensor>) -> Result<u64> {
        tensor.map_or(Ok(0), |t| self.vector(t))
    }

    pub(crate) fn vector_or_zeros(&mut self, layer: &Linear) -> Result<u64> {
        match &layer.bias {
            Some(bias) => self.vector(bias),
            None => self.vector(&Tensor::zeros(layer.weight.dim(1)?, DType::F32, &Device::Cpu)?),
        }
    }

    pub(crate) fn words(&mut self, words: Vec<u32>) -> Result<u64> {
        let n = words.len();
        self.upload(&Tensor::from_vec(words, n, &Device::Cpu)?, DType::U32)
    }

    /// Room for the product of many rows, and behind it for its narrowed operand.
    pub(crate) fn reserve(&mut self, x: Slot, outputs: usize) {
        self.product = self.product.max(outputs + x.width);
    }

    /// A slot that kernels which know one dtype can read, with the copy that fills it.
    pub(crate) fn narrow(&mut self, slot: Slot) -> (Slot, Option<(Slot, Slot)>) {
        if self.dtype == DType::F32 || !self.plan.is_wide(slot) {
            return (slot, None);
        }
        let narrow = self.plan.scratch(slot.width);
        (narrow, Some((slot, narrow)))
    }

    /// Wraps a step whose operands `reads` and result `out` have to be of the executor's dtype: copies before and behind it.
    pub fn with_narrow<const N: usize>(
        &mut self,
        reads: [Slot; N],
        out: Slot,
        step: impl Fn(&Pass, [Slot; N], Slot) -> Result<()> + Send + 'static,
    ) -> Run {
        let reads = reads.map(|slot| self.narrow(slot));
        let (narrow_out, wide_out) = self.narrow(out);
        Box::new(move |pass| {
            for (from, to) in reads.iter().filter_map(|(_, copy)| *copy) {
                pass.copy(from, to)?;
            }
            step(pass, reads.map(|(slot, _)| slot), narrow_out)?;
            wide_out.map_or(Ok(()), |(wide, narrow)| pass.copy(narrow, wide))
        })
    }
}

//! Launches of `spectral_conv.cu`.

use super::SpectralConv;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use crate::exec::cuda::Compiler;
use candle_core::{DType, Device, Result, Tensor};

static SOURCE: Source = Source { name: "spectral_conv", text: include_str!("spectral_conv.cu") };

const fn kernel(name: &'static str) -> Kernel {
    Kernel { source: &SOURCE, name }
}

const ACROSS: Kernel = kernel("spectral_across");
const DOWN: Kernel = kernel("spectral_down");
const MIX: Kernel = kernel("spectral_mix");
const UP: Kernel = kernel("spectral_up");
const ALONG: Kernel = kernel("spectral_along");

/// What does not change from pass to pass: addresses of tables and weights, and sizes.
pub(super) struct Parameters {
    tables: [u64; 3],
    weight: u64,
    bias: u64,
    /// Places, waves, channels.
    sizes: [u32; 6],
}

/// `SpectralConv` in `spectral_conv.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    lines: Matrix,
    s: Matrix,
    y: Matrix,
    tables: [u64; 3],
    weight: u64,
    bias: u64,
    sizes: [u32; 6],
}

impl Parameters {
    pub fn new(op: &SpectralConv, compiler: &mut Compiler) -> crate::Result<Self> {
        let mut tables = [0; 3];
        for (to, table) in tables.iter_mut().zip(op.waves.for_kernels()) {
            *to = compiler.vector(&Tensor::from_slice(table, table.len(), &Device::Cpu)?)?;
        }
        let ([n, m], [k, l], [c, o]) = (op.waves.grid, op.waves.kept, op.channels);
        let sizes = [n, m, k, l, c, o].map(|size| size as u32);
        Ok(Self { tables, weight: compiler.vector(&op.weight)?, bias: compiler.vector_or_none(op.bias.as_ref())?, sizes })
    }

    /// The folded lines are the CPU's alone.
    pub fn arguments(&self, [x, out]: [Matrix; 2], [lines, _, s, y]: [Matrix; 4]) -> Arguments {
        let Self { tables, weight, bias, sizes } = *self;
        Arguments { x, out, lines, s, y, tables, weight, bias, sizes }
    }
}

impl Arguments {
    /// # Safety
    /// All matrices have these rows and the widths of the operation; those of `x` and `out` are of that dtype, the others f32.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> Result<()> {
        let [n, m, k, l, c, o] = self.sizes.map(|size| size as usize);
        for (kernel, blocks, channels) in [(ACROSS, n * l, c), (DOWN, k * l, c), (MIX, k * l, o), (UP, n * l, o), (ALONG, n * m, o)] {
            let threads = channels.next_multiple_of(32).min(128);
            // SAFETY: the caller's promise; every step reads what the step before has written, on one stream.
            unsafe { gpu.launch(kernel, Some(dtype), ((rows * blocks, channels.div_ceil(threads), 1), threads, 0), self)? };
        }
        Ok(())
    }
}

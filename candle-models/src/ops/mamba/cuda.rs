//! Launches of `mamba.cu`: one frame of a Mamba block between its two large products. For recorded programs: a pass over tensors
//! runs the operations one by one.

use crate::cuda::{Gpu, Kernel, Matrix, Source, States};
use candle_core::{DType, Result, bail};

static SOURCE: Source = Source { name: "mamba", text: include_str!("mamba.cu") };
const CONV: Kernel = Kernel { source: &SOURCE, name: "mamba_conv" };

/// Channels of a block of the first kernel: `SLICE` in `mamba.cu`.
const SLICE: usize = 64;
/// `MOST_TAPS` in `mamba.cu`.
const MOST_TAPS: u32 = 16;
/// The most states of a channel.
const MOST_STATES: usize = 256;
/// Lanes of a warp.
const WARP: usize = 32;

/// Parts that the first kernel divides the channels into.
pub(crate) fn slices(inner: usize) -> usize {
    inner.div_ceil(SLICE)
}

/// `u = silu(conv(x))` with its state in place, and for every slice of the channels its share of `u W`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MambaConv {
    /// `[batch, inner]`.
    pub x: Matrix,
    /// `[batch, inner]`.
    pub u: Matrix,
    /// `W`, `[inner, rank + 2 states]`, of the launch's dtype.
    pub projection: Matrix,
    /// f32 `[taps, inner]`.
    pub weight: u64,
    /// f32 `[inner]`.
    pub bias: u64,
    /// `[taps - 1, inner]`.
    pub state: States,
    /// One u8 per sequence; 0 for none.
    pub resets: u64,
    /// f32 `[batch, slices(inner), rank + 2 states]`: written here, read by [`MambaScan`].
    pub shares: u64,
    pub taps: u32,
}

impl MambaConv {
    /// # Safety
    /// Everything has the stated sizes, the matrices that dtype, and every sequence a slot of its own.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        const THREADS: usize = 256;
        if !(2..=MOST_TAPS).contains(&self.taps) {
            bail!("a convolution on CUDA has 2 to {MOST_TAPS} taps, found {}", self.taps);
        }
        let shared = 4 * (SLICE + THREADS / WARP * self.projection.width as usize);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(CONV, Some(dtype), ((slices(self.x.width as usize), batch, 1), THREADS, shared), self) }
    }
}

/// `out = (scan of u) silu(z)`, with the scan's state in place; the step size, B and C come from the shares.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MambaScan {
    /// `[batch, inner]`.
    pub u: Matrix,
    /// `[batch, inner]`.
    pub z: Matrix,
    /// `[batch, inner]`.
    pub out: Matrix,
    /// `[rank, inner]`, of the launch's dtype.
    pub dt_weight: Matrix,
    /// f32 `[inner]`.
    pub dt_bias: u64,
    /// f32 `[states, inner]`, negative.
    pub a: u64,
    /// f32 `[inner]`.
    pub skip: u64,
    /// `[states, inner]`.
    pub state: States,
    /// One u8 per sequence; 0 for none.
    pub resets: u64,
    /// As [`MambaConv`] left them.
    pub shares: u64,
    /// `slices(inner)`.
    pub slices: u32,
    pub rank: u32,
    pub states: u32,
}

impl MambaScan {
    /// # Safety
    /// As for [`MambaConv::launch`].
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, batch: usize) -> Result<()> {
        let states = self.states as usize;
        if states == 0 || states > MOST_STATES {
            bail!("a scan on CUDA has 1 to {MOST_STATES} states, found {states}");
        }
        // A block has at most 32 warps.
        let (name, each) = if states > 128 { ("mamba_scan8", 8) } else { ("mamba_scan4", 4) };
        let threads = states.div_ceil(each) * WARP;
        let shared = 4 * (self.rank as usize + 2 * states + 2 * threads);
        let blocks = ((self.u.width as usize).div_ceil(WARP), batch, 1);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(Kernel { source: &SOURCE, name }, Some(dtype), (blocks, threads, shared), self) }
    }
}

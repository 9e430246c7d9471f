//! Launches of `norm.cu`.

use super::activation_code;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use crate::ops::{Activation, NormKind};
use candle_core::{DType, Result};

static SOURCE: Source = Source { name: "norm", text: include_str!("norm.cu") };
const NORM: Kernel = Kernel { source: &SOURCE, name: "norm" };

/// `Norm` in `norm.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub x: Matrix,
    pub out: Matrix,
    /// Gain and offset in f32; the offset is 0 for none.
    pub weight: u64,
    pub bias: u64,
    pub rows: u32,
    /// Values that are normalised together.
    pub group: u32,
    kind: u32,
    act: u32,
    eps: f32,
}

impl Norm {
    /// `rows` rows of `x` to `out`, normalised in groups of `group` values.
    pub fn new(
        x: Matrix,
        out: Matrix,
        [weight, bias]: [u64; 2],
        rows: usize,
        group: usize,
        kind: NormKind,
        act: Activation,
        eps: f64,
    ) -> Self {
        let (kind, act) = (u32::from(kind == NormKind::Rms), activation_code(act));
        Self { x, out, weight, bias, rows: rows as u32, group: group as u32, kind, act, eps: eps as f32 }
    }

    /// # Safety
    /// The matrices have these rows and are of that dtype.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType) -> Result<()> {
        let blocks = self.rows as usize * (self.x.width / self.group) as usize;
        let threads = (self.group as usize).next_multiple_of(32).min(256);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(NORM, Some(dtype), ((blocks, 1, 1), threads, 0), self) }
    }
}

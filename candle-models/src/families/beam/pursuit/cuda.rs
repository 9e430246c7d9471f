//! Launches of `pursuit.cu`.

use super::Tables;
use crate::Result;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use crate::exec::cuda::Compiler;
use candle_core::{DType, Device, Result as CandleResult, Tensor};

static SOURCE: Source = Source { name: "pursuit", text: include_str!("pursuit.cu") };
const PURSUIT: Kernel = Kernel { source: &SOURCE, name: "pursuit" };

/// Threads of a row.
const THREADS: usize = 128;
/// Bytes of a block's own memory, on every GPU.
const SHARED: usize = 48 << 10;

/// `Pursuit` in `pursuit.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    out: Matrix,
    arrive: u64,
    leave: u64,
    beams: u64,
    sent: u64,
    power: u64,
    antennas: [u32; 2],
    directions: [u32; 2],
    columns: u32,
    measurements: u32,
    paths: u32,
}

impl Arguments {
    /// The tables on a GPU; none where a row does not fit into the memory of a block.
    pub fn new(tables: &Tables, paths: usize, compiler: &mut Compiler) -> Result<Option<Self>> {
        let mut upload = |values: &[f32]| compiler.vector(&Tensor::from_slice(values, values.len(), &Device::Cpu)?);
        let words = |pair: [usize; 2]| pair.map(|n| n as u32);
        let arguments = Self {
            x: Matrix::NONE,
            out: Matrix::NONE,
            arrive: upload(&tables.steering[0])?,
            leave: upload(&tables.steering[1])?,
            beams: upload(&tables.beams)?,
            sent: upload(&tables.sent)?,
            power: upload(&tables.power)?,
            antennas: words(tables.antennas),
            directions: words(tables.directions()),
            columns: tables.columns() as u32,
            measurements: tables.measurements() as u32,
            paths: paths as u32,
        };
        Ok((arguments.shared() <= SHARED).then_some(arguments))
    }

    /// The same for these matrices.
    pub fn of(self, [x, out]: [Matrix; 2]) -> Self {
        Self { x, out, ..self }
    }

    fn shared(&self) -> usize {
        let [antennas, directions] = [self.antennas, self.directions].map(|pair| pair.map(|n| n as usize));
        let measurements = self.measurements as usize;
        let complex = measurements * (antennas[0] + directions[0] + 2) + antennas[0] + antennas[1];
        4 * (2 * complex + directions[0] + directions[1])
    }

    /// # Safety
    /// Both matrices have these rows, are of that dtype, and have the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> CandleResult<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(PURSUIT, Some(dtype), ((rows, 1, 1), THREADS, self.shared()), self) }
    }
}

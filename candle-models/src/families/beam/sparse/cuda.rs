//! Launches of `sparse.cu`.

use super::{Pursuit, Tables};
use crate::Result;
use crate::cuda::{Gpu, Kernel, Matrix, Source};
use crate::exec::cuda::Compiler;
use candle_core::{DType, Device, Result as CandleResult, Tensor};

static SOURCE: Source = Source { name: "sparse_channel", text: include_str!("sparse.cu") };
const SPARSE: Kernel = Kernel { source: &SOURCE, name: "sparse_channel" };

/// Threads of a row.
const THREADS: usize = 256;
/// Bytes of a block's own memory, on every GPU since Ampere.
const SHARED: usize = 99 << 10;

/// `SparseChannel` in `sparse.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    x: Matrix,
    snr: Matrix,
    out: Matrix,
    arrive: u64,
    leave: u64,
    sent: u64,
    choices: u64,
    antennas: [u32; 2],
    directions: [u32; 2],
    measurements: u32,
    /// Paths that are looked for, and how many of them again.
    paths: u32,
    again: u32,
    /// Beams to choose among.
    count: u32,
    /// Places that the first path is kept near, one after the other, and how far directions are apart that are near.
    places: u32,
    width: u32,
    /// The least share of what was received that is taken for noise.
    unexplained: f32,
}

impl Arguments {
    /// The tables on a GPU; none where a row does not fit into the memory of a block.
    pub fn new(tables: &Tables, pursuit: Pursuit, compiler: &mut Compiler) -> Result<Option<Self>> {
        let mut upload = |values: &[f32]| compiler.vector(&Tensor::from_slice(values, values.len(), &Device::Cpu)?);
        let by_beam: Vec<&[f32]> = tables.sent.chunks_exact(2 * tables.directions()[1]).collect();
        let by_measurement: Vec<f32> = tables.numbers.iter().flat_map(|number| by_beam[*number]).copied().collect();
        let words = |pair: [usize; 2]| pair.map(|n| n as u32);
        let arguments = Self {
            x: Matrix::NONE,
            snr: Matrix::NONE,
            out: Matrix::NONE,
            arrive: upload(&tables.steering[0])?,
            leave: upload(&tables.steering[1])?,
            sent: upload(&by_measurement)?,
            choices: upload(if tables.choices.is_empty() { &[0.0] } else { &tables.choices })?,
            antennas: words(tables.antennas),
            directions: words(tables.directions()),
            measurements: tables.measurements() as u32,
            paths: pursuit.paths as u32,
            again: pursuit.again as u32,
            count: tables.choices() as u32,
            places: pursuit.places as u32,
            width: pursuit.directions as u32,
            unexplained: pursuit.unexplained as f32,
        };
        Ok((arguments.shared() <= SHARED).then_some(arguments))
    }

    /// The same for these matrices.
    pub fn of(self, [x, snr, out]: [Matrix; 3]) -> Self {
        Self { x, snr, out, ..self }
    }

    fn shared(&self) -> usize {
        let [antennas, directions] = [self.antennas, self.directions].map(|pair| pair.map(|n| n as usize));
        let measurements = self.measurements as usize;
        let [n, m] = antennas;
        let complex = measurements * (directions[0] + measurements + 4) + n + m + directions[1].max(self.count as usize) + n * m;
        4 * (2 * complex + (2 + self.again as usize) * directions[0] * directions[1] + directions[0] + directions[1])
    }

    /// # Safety
    /// The matrices have these rows, are of that dtype, and have the widths of the operation.
    pub unsafe fn launch(&self, gpu: &Gpu, dtype: DType, rows: usize) -> CandleResult<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(SPARSE, Some(dtype), ((rows, 1, 1), THREADS, self.shared()), self) }
    }
}

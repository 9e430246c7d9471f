//! Launches of `spectral_conv.cu`, for passes and for training.

use super::SpectralConv;
use super::waves::{Scale, Waves};
use crate::cuda::{self, Gpu, Kernel, Matrix, Source};
use candle_core::backend::BackendStorage;
use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Layout, Result, Shape, Tensor, bail};
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

static SOURCE: Source = Source { name: "spectral_conv", text: include_str!("spectral_conv.cu") };

const fn kernel(name: &'static str) -> Kernel {
    Kernel { source: &SOURCE, name }
}

/// Lines of a thread, most first.
const ACROSS: [(usize, Kernel); 2] = [(4, kernel("spectral_across")), (1, kernel("spectral_across_few"))];
const TURN: Kernel = kernel("spectral_turn");
const MIX: Kernel = kernel("spectral_mix");
const WEIGHTS: Kernel = kernel("spectral_weights");
const ALONG: [(usize, Kernel); 2] = [(2, kernel("spectral_along")), (1, kernel("spectral_along_few"))];

/// Results of a thread: waves across, coefficients down or lines, places; rows or channels of those that multiply.
const WAVES: usize = 10;
const TURNED: usize = 8;
const PLACES: usize = 16;
const MIXED: usize = 8;
/// Threads of a block.
const THREADS: usize = 128;

/// Steps of a sum that are read at once, at most.
const STEPS: usize = 8;

/// The tables of a grid on a device, f32, filled up with zeros to whole tiles and whole steps.
#[derive(Debug)]
struct Tables {
    /// `[m, waves, 2]`, of each scale.
    across: [Tensor; 2],
    /// `[n, K, 2]`.
    down: Tensor,
    /// `[K, n, 2]`: the turns of the negative angles.
    up: Tensor,
    /// `[L, m, 2]`, of each scale.
    along: [Tensor; 2],
}

impl Tables {
    fn new(waves: &Waves, device: &Device) -> Result<Self> {
        let ([n, m], [k, l]) = (waves.grid, waves.kept);
        let table = |[a, b]: [usize; 2], tile: usize, of: &dyn Fn(usize, usize) -> [f32; 2]| {
            let [length, filled] = [a.next_multiple_of(STEPS), b.next_multiple_of(tile)];
            let value = |i: usize| if i / filled < a && i % filled < b { of(i / filled, i % filled) } else { [0.0; 2] };
            Tensor::from_vec((0..length * filled).flat_map(value).collect(), (length, filled, 2), device)
        };
        let across = |scale| table([m, l], WAVES, &|place, wave| waves.pair_across(scale, wave, place));
        let along = |scale| table([l, m], PLACES, &|wave, place| waves.pair_across(scale, wave, place));
        Ok(Self {
            across: [across(Scale::Mean)?, across(Scale::Twice)?],
            down: table([n, k], TURNED, &|h, number| waves.pair_down(number, h))?,
            up: table([k, n], TURNED, &|number, h| {
                let [cosine, sine] = waves.pair_down(number, h);
                [cosine, -sine]
            })?,
            along: [along(Scale::Mean)?, along(Scale::Twice)?],
        })
    }
}

/// `Across`, `Turn` and `Along` in `spectral_conv.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Lines {
    from: Matrix,
    to: Matrix,
    table: u64,
    sizes: [u32; 5],
}

/// `Mix` and `Weights`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
struct Mix {
    s: Matrix,
    y: Matrix,
    weight: u64,
    bias: u64,
    sizes: [u32; 5],
}

/// The transforms of a grid on a device.
#[derive(Clone)]
pub(super) struct Transforms {
    tables: Arc<Tables>,
    grid: [usize; 2],
    kept: [usize; 2],
    mean: usize,
}

impl Transforms {
    /// With tables of their own.
    pub fn new(waves: &Waves, device: &CudaDevice) -> Result<Self> {
        let tables = Arc::new(Tables::new(waves, &Device::Cuda(device.clone()))?);
        Ok(Self { tables, grid: waves.grid, kept: waves.kept, mean: waves.mean_mode() })
    }

    /// With tables that are kept for the steps of a training, each of which makes its operations anew.
    fn kept(waves: &Waves, device: &CudaDevice) -> Result<Self> {
        type Key = (DeviceId, [usize; 2], [usize; 2]);
        static KEPT: LazyLock<Mutex<HashMap<Key, Transforms>>> = LazyLock::new(Mutex::default);
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (device.id(), waves.grid, waves.kept);
        if let Some(found) = kept.get(&key) {
            return Ok(found.clone());
        }
        let made = Self::new(waves, device)?;
        kept.insert(key, made.clone());
        Ok(made)
    }

    fn modes(&self) -> usize {
        self.kept[0] * self.kept[1]
    }

    /// Coefficients `s` `[modes, 2, C]` of grids `x`, over `lines` `[n, L, 2, C]`.
    ///
    /// # Safety
    /// The matrices have these rows; `x` is of that dtype, the others are f32.
    unsafe fn analyse(&self, gpu: &Gpu, scale: Scale, (dtype, rows, c): (DType, usize, usize), [x, lines, s]: [Matrix; 3]) -> Result<()> {
        let ([n, m], [k, l]) = (self.grid, self.kept);
        let across = lines_of([x, lines], &self.tables.across[scale as usize], [rows, n, m, l, c])?;
        let down = lines_of([lines, s], &self.tables.down, [rows, n, k, l, c])?;
        // SAFETY: the caller's promise; every step reads what the one before has written, on one stream.
        unsafe {
            over_lines(gpu, ACROSS, dtype, [rows * n, l.div_ceil(WAVES) * c], &across)?;
            gpu.launch(TURN, None, each(k.div_ceil(TURNED) * rows * l * c)?, &down)
        }
    }

    /// Grids `out` of coefficients `y`, likewise.
    ///
    /// # Safety
    /// As for [`Self::analyse`].
    unsafe fn synthesise(
        &self,
        gpu: &Gpu,
        scale: Scale,
        (dtype, rows, o): (DType, usize, usize),
        [y, lines, out]: [Matrix; 3],
    ) -> Result<()> {
        let ([n, m], [k, l]) = (self.grid, self.kept);
        let up = lines_of([y, lines], &self.tables.up, [rows, k, n, l, o])?;
        let along = lines_of([lines, out], &self.tables.along[scale as usize], [rows, n, m, l, o])?;
        // SAFETY: the caller's promise; every step reads what the one before has written, on one stream.
        unsafe {
            gpu.launch(TURN, None, each(n.div_ceil(TURNED) * rows * l * o)?, &up)?;
            over_lines(gpu, ALONG, dtype, [rows * n, m.div_ceil(PLACES) * o], &along)
        }
    }

    /// Products of coefficients `[modes, 2, C]` with the weights `[modes, C, 2 O]` and a part of the mean.
    ///
    /// # Safety
    /// Both matrices have these rows of f32, the weights and the bias (0 for none) their sizes.
    unsafe fn mix(&self, gpu: &Gpu, (rows, [c, o]): (usize, [usize; 2]), [s, y]: [Matrix; 2], [weight, bias]: [u64; 2]) -> Result<()> {
        let args = Mix { s, y, weight, bias, sizes: [rows, self.modes(), self.mean, c, o].map(|size| size as u32) };
        let outputs = lanes(o);
        // SAFETY: the caller's promise.
        unsafe { gpu.launch(MIX, None, ((self.modes(), rows.div_ceil(MIXED), o.div_ceil(outputs)), outputs, 0), &args) }
    }

    /// A pass from `x` to `out`. The folded lines are the CPU's alone.
    ///
    /// # Safety
    /// The matrices have these rows and the widths of the operation; `x` and `out` are of that dtype, the others f32. The weights and the bias (0 for none)
    /// have their sizes.
    pub unsafe fn pass(
        &self,
        gpu: &Gpu,
        (dtype, rows, [c, o]): (DType, usize, [usize; 2]),
        [x, out]: [Matrix; 2],
        [lines, _, s, y]: [Matrix; 4],
        parameters: [u64; 2],
    ) -> Result<()> {
        // SAFETY: the caller's promise; every step reads what the one before has written, on one stream.
        unsafe {
            self.analyse(gpu, Scale::Mean, (dtype, rows, c), [x, lines, s])?;
            self.mix(gpu, (rows, [c, o]), [s, y], parameters)?;
            self.synthesise(gpu, Scale::Twice, (dtype, rows, o), [y, lines, out])
        }
    }

    /// Memory for lines and for coefficients of so many channels.
    fn room(&self, gpu: &Gpu, rows: usize, channels: usize) -> Result<[Tensor; 2]> {
        let room = |values: usize| cuda::empty((rows, 2 * values * channels), DType::F32, gpu.device());
        Ok([room(self.grid[0] * self.kept[1])?, room(self.modes())?])
    }
}

/// Threads side by side for so many channels.
fn lanes(channels: usize) -> usize {
    channels.next_multiple_of(32).min(THREADS)
}

/// Blocks for so many threads.
fn each(threads: usize) -> Result<cuda::Grid> {
    // Kernels count them in 32 bits.
    if threads > u32::MAX as usize - THREADS {
        bail!("spectral_conv: {threads} threads for one launch; take fewer rows at a time");
    }
    Ok(((threads.div_ceil(THREADS), 1, 1), THREADS, 0))
}

/// Launches a kernel whose threads have several lines of one of so many columns: fewer lines where threads with more would not fill a large GPU.
///
/// # Safety
/// As for [`Transforms::analyse`].
unsafe fn over_lines(gpu: &Gpu, kernels: [(usize, Kernel); 2], dtype: DType, [lines, columns]: [usize; 2], args: &Lines) -> Result<()> {
    /// A quarter of the threads that 132 multiprocessors hold.
    const ENOUGH: usize = 132 * 512;
    let threads = |(each, _): (usize, Kernel)| lines.div_ceil(each) * columns;
    let chosen = if threads(kernels[0]) < ENOUGH { kernels[1] } else { kernels[0] };
    // SAFETY: the caller's promise.
    unsafe { gpu.launch(chosen.1, Some(dtype), each(threads(chosen))?, args) }
}

fn lines_of([from, to]: [Matrix; 2], table: &Tensor, sizes: [usize; 5]) -> Result<Lines> {
    Ok(Lines { from, to, table: cuda::address(table)?, sizes: sizes.map(|size| size as u32) })
}

type Operand<'a> = (&'a CudaStorage, &'a Layout);

/// The custom operation: `x` `[rows, n m C]`, the weight `[K, L, C, 2 O]` and the bias `[O]` in f32.
pub(super) fn forward(op: &SpectralConv, (x, layout): Operand, weight: Operand, bias: Operand) -> Result<(CudaStorage, Shape)> {
    let (gpu, [c, o]) = (Gpu::of(&x.device)?, op.channels);
    let (dtype, rows, transforms) = (x.dtype(), layout.dims()[0], Transforms::kept(&op.waves, &x.device)?);
    let (shape, widest) = (Shape::from((rows, op.waves.places() * o)), c.max(o));
    let (storage, out) = cuda::result(&shape, dtype, gpu.device())?;
    let ([lines, s], [_, y]) = (transforms.room(&gpu, rows, widest)?, transforms.room(&gpu, rows, o)?);
    let weight = cuda::parameter(weight.0, weight.1, op.weight.elem_count())?;
    let parameters = [weight, cuda::parameter(bias.0, bias.1, o)?];
    let (x, [lines, s, y]) = (cuda::storage_matrix(x, layout)?, [cuda::matrix(&lines)?, cuda::matrix(&s)?, cuda::matrix(&y)?]);
    // SAFETY: the matrices have the rows of `x` and the widths of the operation; freed memory is used again behind these kernels alone.
    unsafe { transforms.pass(&gpu, (dtype, rows, [c, o]), [x, out], [lines, Matrix::NONE, s, y], parameters)? };
    Ok((storage, shape))
}

/// The gradients of `x`, of the weight and of the bias.
pub(super) fn backward(op: &SpectralConv, [x, weight, grad]: [&Tensor; 3]) -> Result<[Tensor; 3]> {
    let device = cuda::device_of(x)?;
    let (gpu, [c, o], [k, l]) = (Gpu::of(device)?, op.channels, op.waves.kept);
    let (dtype, rows, transforms) = (x.dtype(), x.dim(0)?, Transforms::kept(&op.waves, device)?);
    let ([lines, _], [_, s], [_, g]) =
        (transforms.room(&gpu, rows, c.max(o))?, transforms.room(&gpu, rows, c)?, transforms.room(&gpu, rows, o)?);
    let dx = cuda::empty(x.shape(), dtype, gpu.device())?;
    let dweight = cuda::empty(weight.shape(), DType::F32, gpu.device())?;
    // conj(W) the other way, `[K, L, O, 2 C]`.
    let part = |number: usize| weight.narrow(3, number * o, o)?.transpose(2, 3);
    let turned = Tensor::cat(&[part(0)?, part(1)?.neg()?], 3)?.contiguous()?;
    let lines = cuda::matrix(&lines)?;
    let sizes = [rows, transforms.modes(), 0, c, o].map(|size| size as u32);
    let args = Mix { s: cuda::matrix(&s)?, y: cuda::matrix(&g)?, weight: cuda::address(&dweight)?, bias: 0, sizes };
    let outputs = lanes(o);
    // SAFETY: the matrices have the rows of `x` and the widths of the operation; every step reads what steps before have written, on one stream.
    unsafe {
        transforms.analyse(&gpu, Scale::Twice, (dtype, rows, o), [cuda::matrix(grad)?, lines, args.y])?;
        transforms.analyse(&gpu, Scale::Mean, (dtype, rows, c), [cuda::matrix(x)?, lines, args.s])?;
        gpu.launch(WEIGHTS, None, ((transforms.modes(), c.div_ceil(MIXED), o.div_ceil(outputs)), outputs, 0), &args)?;
        // The coefficients of the input have been used: those of its gradient take their place.
        transforms.mix(&gpu, (rows, [o, c]), [args.y, args.s], [cuda::address(&turned)?, 0])?;
        transforms.synthesise(&gpu, Scale::Mean, (dtype, rows, c), [args.s, lines, cuda::matrix(&dx)?])?;
    }
    let dbias = g.reshape((rows, k * l, 2, o))?.narrow(1, transforms.mean, 1)?.narrow(2, 0, 1)?.sum(0)?.flatten_all()?;
    Ok([dx, dweight, dbias])
}

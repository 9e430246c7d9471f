//! cuFFT: plans of one axis, or of two for complex numbers, and their transforms, as work on a stream. Sums are taken in f64.
use std::{
    collections::HashMap,
    f64::consts::PI,
    ffi::c_void,
    sync::{Arc, Mutex},
};

use crate::{
    driver::{Driver, Handle, Work, WorkKind, api},
    error::Fault,
    log,
};

const INVALID_PLAN: i32 = 1;
const INVALID_TYPE: i32 = 3;
const INVALID_VALUE: i32 = 4;
const EXEC_FAILED: i32 = 6;
const SETUP_FAILED: i32 = 7;
const INVALID_SIZE: i32 = 8;
const UNALIGNED_DATA: i32 = 9;
const NO_WORKSPACE: i32 = 13;
const NOT_SUPPORTED: i32 = 16;

/// What goes in and what comes out.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Complex,
    /// In f64, as the others are in f32.
    ComplexDouble,
    RealToComplex,
    ComplexToReal,
}

impl Kind {
    /// Numbers of a row of input and of output.
    fn row(self, length: usize) -> (usize, usize) {
        let (real, half, complex) = (length, 2 * (length / 2 + 1), 2 * length);
        match self {
            Self::Complex | Self::ComplexDouble => (complex, complex),
            Self::RealToComplex => (real, half),
            Self::ComplexToReal => (half, real),
        }
    }

    fn is_complex(self) -> bool {
        matches!(self, Self::Complex | Self::ComplexDouble)
    }

    /// Bytes of a number.
    fn size(self) -> usize {
        if self == Self::ComplexDouble { 8 } else { 4 }
    }
}

/// What a transform is made of.
#[derive(Clone)]
struct Made {
    kind: Kind,
    batch: usize,
    /// Of the axes, the first one before the last, which lies row by row.
    axes: Vec<Arc<Transform>>,
    /// Bytes of the work area, which every transform overwrites.
    work: usize,
}

#[derive(Clone, Default)]
struct Plan {
    stream: usize,
    /// Whether the program brings the work area.
    own_work: bool,
    area: u64,
    made: Option<Made>,
}

static PLANS: Mutex<Option<HashMap<i32, Plan>>> = Mutex::new(None);

fn with<T>(plan: i32, f: impl FnOnce(&mut Plan) -> Result<T, i32>) -> Result<T, i32> {
    let mut plans = PLANS.lock().unwrap_or_else(|e| e.into_inner());
    plans.get_or_insert_default().get_mut(&plan).ok_or(INVALID_PLAN).and_then(f)
}

fn status(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftCreate(plan: *mut i32) -> i32 {
    let mut key = 0;
    let code = api(|driver| {
        crate::driver::current()?;
        key = driver.handle() as i32;
        Ok(())
    });
    if code != 0 {
        return SETUP_FAILED;
    }
    PLANS.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default().insert(key, Plan::default());
    // SAFETY: the caller passes a place for the handle.
    unsafe { plan.write(key) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftDestroy(plan: i32) -> i32 {
    let mut plans = PLANS.lock().unwrap_or_else(|e| e.into_inner());
    if plans.get_or_insert_default().remove(&plan).is_some() { 0 } else { INVALID_PLAN }
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftSetStream(plan: i32, stream: Handle) -> i32 {
    status(with(plan, |p| {
        p.stream = stream as usize;
        Ok(())
    }))
}

/// Whether the library allocates the work area; to be said before the plan is made.
#[unsafe(no_mangle)]
pub extern "C" fn cufftSetAutoAllocation(plan: i32, automatic: i32) -> i32 {
    status(with(plan, |p| {
        p.own_work = automatic == 0;
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftSetWorkArea(plan: i32, area: *mut c_void) -> i32 {
    if !(area as usize).is_multiple_of(256) {
        log::error("the work area of cuFFT is not aligned to 256 bytes");
        return INVALID_VALUE;
    }
    status(with(plan, |p| {
        p.area = area as u64;
        Ok(())
    }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftMakePlanMany(
    plan: i32,
    rank: i32,
    n: *mut i32,
    inembed: *mut i32,
    _istride: i32,
    _idist: i32,
    onembed: *mut i32,
    _ostride: i32,
    _odist: i32,
    kind: u32,
    batch: i32,
    work: *mut usize,
) -> i32 {
    if !(1..=2).contains(&rank) || !inembed.is_null() || !onembed.is_null() {
        log::error("cuFFT: plans of more than two axes or of rows that lie apart are not implemented");
        return NOT_SUPPORTED;
    }
    let kind = match kind {
        0x29 => Kind::Complex,
        0x2a => Kind::RealToComplex,
        0x2c => Kind::ComplexToReal,
        0x69 => Kind::ComplexDouble,
        _ => {
            log::error(&format!("cuFFT: transforms of type {kind:#x} are not implemented"));
            return INVALID_TYPE;
        }
    };
    if rank == 2 && !kind.is_complex() {
        log::error("cuFFT: transforms of real numbers over two axes are not implemented");
        return NOT_SUPPORTED;
    }
    // SAFETY: the caller passes the lengths of `rank` axes.
    let lengths = unsafe { std::slice::from_raw_parts(n, rank as usize) };
    if batch < 1 || lengths.iter().any(|length| *length < 1) {
        return INVALID_SIZE;
    }
    let (all, batch) = (lengths.iter().map(|length| *length as usize).product::<usize>(), batch as usize);
    let axes = lengths.iter().map(|length| Arc::new(Transform::new(*length as usize))).collect();
    let made = Made { kind, batch, axes, work: 2 * kind.size() * all * batch };
    let bytes = made.work;
    let result = with(plan, |p| {
        if p.made.is_some() {
            log::error("cuFFT: a plan is made twice");
            return Err(INVALID_PLAN);
        }
        p.made = Some(made);
        Ok(())
    });
    if result.is_ok() {
        // SAFETY: the caller passes a place for the size.
        unsafe { work.write(bytes) };
    }
    status(result)
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftExecC2C(plan: i32, from: *mut c_void, to: *mut c_void, direction: i32) -> i32 {
    execute_complex(plan, Kind::Complex, from, to, direction)
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftExecZ2Z(plan: i32, from: *mut c_void, to: *mut c_void, direction: i32) -> i32 {
    execute_complex(plan, Kind::ComplexDouble, from, to, direction)
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftExecR2C(plan: i32, from: *mut c_void, to: *mut c_void) -> i32 {
    status(execute(plan, Kind::RealToComplex, from, to, Direction::Forward))
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftExecC2R(plan: i32, from: *mut c_void, to: *mut c_void) -> i32 {
    status(execute(plan, Kind::ComplexToReal, from, to, Direction::Inverse))
}

#[unsafe(no_mangle)]
pub extern "C" fn cufftGetProperty(property: u32, value: *mut i32) -> i32 {
    let Some(number) = [12, 0, 0].get(property as usize) else { return INVALID_VALUE };
    // SAFETY: the caller passes a place for the number.
    unsafe { value.write(*number) };
    0
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Forward,
    Inverse,
}

fn execute_complex(plan: i32, kind: Kind, from: *mut c_void, to: *mut c_void, direction: i32) -> i32 {
    match direction {
        -1 => status(execute(plan, kind, from, to, Direction::Forward)),
        1 => status(execute(plan, kind, from, to, Direction::Inverse)),
        _ => INVALID_VALUE,
    }
}

fn execute(plan: i32, kind: Kind, from: *mut c_void, to: *mut c_void, direction: Direction) -> Result<(), i32> {
    let (plan, made) = with(plan, |p| Ok((p.clone(), p.made.clone().ok_or(INVALID_PLAN)?)))?;
    if made.kind != kind {
        log::error("cuFFT: a plan is executed as one of another type");
        return Err(INVALID_PLAN);
    }
    let (from, to) = (from as u64, to as u64);
    if [from, to].iter().any(|address| !address.is_multiple_of(2 * kind.size() as u64)) {
        log::error("cuFFT: data that are not aligned to a complex number");
        return Err(UNALIGNED_DATA);
    }
    if !kind.is_complex() && from == to {
        log::error("cuFFT: transforms of real numbers in place, whose rows are padded, are not implemented");
        return Err(NOT_SUPPORTED);
    }
    if plan.own_work && plan.area == 0 && made.work > 0 {
        log::error("cuFFT: the plan has no work area");
        return Err(NO_WORKSPACE);
    }
    let area = if plan.own_work { plan.area } else { 0 };
    let code = api(|driver| {
        let key = driver.stream_key(plan.stream as Handle)?;
        driver.enqueue(key, Work::new(WorkKind::Library, move |driver| made.run(driver, area, from, to, direction)))
    });
    if code == 0 { Ok(()) } else { Err(EXEC_FAILED) }
}

impl Made {
    fn run(&self, driver: &mut Driver, area: u64, from: u64, to: u64, direction: Direction) -> Result<(), Fault> {
        let lengths: Vec<usize> = self.axes.iter().map(|axis| axis.length).collect();
        let named = |f: Fault| Fault::new(f.code, format!("cuFFT of {} x {lengths:?}: {}", self.batch, f.text));
        let (memory, size) = (&driver.memory, self.kind.size());
        let (read, written) = self.kind.row(lengths.iter().product());
        let input = memory.host(from, size * read * self.batch, false).map_err(named)?.cast::<u8>();
        let output = memory.host(to, size * written * self.batch, true).map_err(named)?.cast::<u8>();
        if area != 0 {
            let area = memory.host(area, self.work, true).map_err(named)?;
            // What lay there is gone after a transform.
            // SAFETY: `host` has checked the bytes.
            unsafe { area.write_bytes(0xff, self.work) };
        }
        let mut values = vec![0.0; read * self.batch];
        for (i, value) in values.iter_mut().enumerate() {
            // SAFETY: `host` has checked all of the input.
            *value = unsafe {
                let at = input.add(size * i);
                if size == 8 { at.cast::<f64>().read_unaligned() } else { f64::from(at.cast::<f32>().read_unaligned()) }
            };
        }
        if self.kind == Kind::ComplexToReal {
            // The library may use the input as memory of its own.
            // SAFETY: as above.
            unsafe { input.write_bytes(0xff, size * read * self.batch) };
        }
        for (i, row) in values.chunks_exact(read).enumerate() {
            let mut bins = self.spread(row);
            self.transform(&mut bins, direction);
            let real = self.kind == Kind::ComplexToReal;
            let numbers = bins.iter().flat_map(|x| [Some(x.0), (!real).then_some(x.1)]).flatten();
            for (j, number) in numbers.take(written).enumerate() {
                // SAFETY: `host` has checked all of the output.
                unsafe {
                    let at = output.add(size * (i * written + j));
                    if size == 8 { at.cast::<f64>().write_unaligned(number) } else { at.cast::<f32>().write_unaligned(number as f32) }
                };
            }
        }
        Ok(())
    }

    /// All axes of a row, each by its lines.
    fn transform(&self, values: &mut [Complex], direction: Direction) {
        let mut apart = 1;
        for axis in self.axes.iter().rev() {
            let length = axis.length;
            for first in (0..values.len()).filter(|i| i / apart % length == 0) {
                let mut line: Vec<Complex> = (0..length).map(|k| values[first + k * apart]).collect();
                axis.run(&mut line, direction);
                line.into_iter().enumerate().for_each(|(k, value)| values[first + k * apart] = value);
            }
            apart *= length;
        }
    }

    /// A row as complex numbers, all of them.
    fn spread(&self, row: &[f64]) -> Vec<Complex> {
        let length = self.axes[0].length;
        match self.kind {
            Kind::RealToComplex => row.iter().map(|x| Complex(*x, 0.)).collect(),
            Kind::Complex | Kind::ComplexDouble => row.chunks_exact(2).map(|x| Complex(x[0], x[1])).collect(),
            // The upper half mirrors the lower one; the imaginary parts of bins that mirror themselves do not count.
            Kind::ComplexToReal => (0..length)
                .map(|k| {
                    let (at, sign) = if 2 * k <= length { (k, 1.) } else { (length - k, -1.) };
                    Complex(row[2 * at], if 2 * at % length == 0 { 0. } else { sign * row[2 * at + 1] })
                })
                .collect(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Complex(f64, f64);

impl Complex {
    fn turn(angle: f64) -> Self {
        Self(angle.cos(), angle.sin())
    }

    fn times(self, other: Self) -> Self {
        Self(self.0 * other.0 - self.1 * other.1, self.0 * other.1 + self.1 * other.0)
    }
}

/// A transform of one length: of a power of two by halves, of any other as a convolution with a chirp (Bluestein), which has a power of two.
struct Transform {
    length: usize,
    /// Of the power of two: `exp(-2 pi i k / size)`.
    roots: Vec<Complex>,
    /// `exp(-pi i k^2 / length)`, and the transform of its inverse; empty for a power of two.
    chirp: Vec<Complex>,
    filter: Vec<Complex>,
}

impl Transform {
    fn new(length: usize) -> Self {
        let size = if length.is_power_of_two() { length } else { (2 * length - 1).next_power_of_two() };
        let roots: Vec<_> = (0..size / 2).map(|k| Complex::turn(-2. * PI * k as f64 / size as f64)).collect();
        if size == length {
            return Self { length, roots, chirp: Vec::new(), filter: Vec::new() };
        }
        // Squares are taken modulo two turns, or large ones would lose their digits.
        let chirp: Vec<_> = (0..length).map(|k| Complex::turn(-PI * (k * k % (2 * length)) as f64 / length as f64)).collect();
        let mut filter = vec![Complex(0., 0.); size];
        for (k, x) in chirp.iter().enumerate() {
            filter[k] = Complex(x.0, -x.1);
            filter[(size - k) % size] = filter[k];
        }
        halves(&mut filter, &roots);
        Self { length, roots, chirp, filter }
    }

    fn run(&self, values: &mut [Complex], direction: Direction) {
        let swap = |values: &mut [Complex]| values.iter_mut().for_each(|x| *x = Complex(x.1, x.0));
        if direction == Direction::Inverse {
            swap(values);
        }
        self.forward(values);
        if direction == Direction::Inverse {
            swap(values);
        }
    }

    fn forward(&self, values: &mut [Complex]) {
        if self.chirp.is_empty() {
            return halves(values, &self.roots);
        }
        let size = self.filter.len();
        let mut padded = vec![Complex(0., 0.); size];
        for ((to, x), turn) in padded.iter_mut().zip(values.iter()).zip(&self.chirp) {
            *to = x.times(*turn);
        }
        halves(&mut padded, &self.roots);
        // The inverse by swapped parts, before and behind.
        for (x, f) in padded.iter_mut().zip(&self.filter) {
            let y = x.times(*f);
            *x = Complex(y.1, y.0);
        }
        halves(&mut padded, &self.roots);
        for ((to, x), turn) in values.iter_mut().zip(&padded).zip(&self.chirp) {
            *to = Complex(x.1 / size as f64, x.0 / size as f64).times(*turn);
        }
    }
}

/// The transform of a power of two: bits of the places reversed, then butterflies.
fn halves(values: &mut [Complex], roots: &[Complex]) {
    let n = values.len();
    if n < 2 {
        return;
    }
    let shift = usize::BITS - n.trailing_zeros();
    for i in 0..n {
        let j = i.reverse_bits() >> shift;
        if i < j {
            values.swap(i, j);
        }
    }
    let mut width = 1;
    while width < n {
        let step = n / (2 * width);
        for block in values.chunks_exact_mut(2 * width) {
            let (low, high) = block.split_at_mut(width);
            for (k, (a, b)) in low.iter_mut().zip(high).enumerate() {
                let turned = b.times(roots[k * step]);
                (*a, *b) = (Complex(a.0 + turned.0, a.1 + turned.1), Complex(a.0 - turned.0, a.1 - turned.1));
            }
        }
        width *= 2;
    }
}

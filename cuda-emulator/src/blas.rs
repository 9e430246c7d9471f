//! cuBLAS: handles and matrix products, as work on a stream.
use std::{
    collections::HashMap,
    ffi::{c_char, c_void},
    sync::Mutex,
};

use ::half::{bf16, f16};

use crate::{
    driver::{Driver, Handle, Work, WorkKind, api},
    error::{Code, Fault},
    log,
    memory::Memory,
};

const NOT_INITIALIZED: i32 = 1;
const INVALID_VALUE: i32 = 7;
const EXECUTION_FAILED: i32 = 13;
const NOT_SUPPORTED: i32 = 15;

#[derive(Clone, Copy, Default)]
struct Blas {
    stream: usize,
    math: u32,
    /// Scalars lie in device memory.
    device_pointers: bool,
}

static HANDLES: Mutex<Option<HashMap<usize, Blas>>> = Mutex::new(None);

fn with<T>(handle: Handle, f: impl FnOnce(&mut Blas) -> T) -> Result<T, i32> {
    let mut handles = HANDLES.lock().unwrap_or_else(|e| e.into_inner());
    handles.get_or_insert_default().get_mut(&(handle as usize)).map(f).ok_or(NOT_INITIALIZED)
}

fn status(result: Result<(), i32>) -> i32 {
    result.err().unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasCreate_v2(handle: *mut Handle) -> i32 {
    let mut key = 0;
    let code = api(|driver| {
        crate::driver::current()?;
        key = driver.handle();
        Ok(())
    });
    if code != 0 {
        return NOT_INITIALIZED;
    }
    HANDLES.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert_default().insert(key, Blas::default());
    // SAFETY: the caller passes a place for the handle.
    unsafe { handle.write(key as Handle) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasDestroy_v2(handle: Handle) -> i32 {
    let mut handles = HANDLES.lock().unwrap_or_else(|e| e.into_inner());
    if handles.get_or_insert_default().remove(&(handle as usize)).is_some() { 0 } else { NOT_INITIALIZED }
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetVersion_v2(_handle: Handle, version: *mut i32) -> i32 {
    // SAFETY: the caller passes a place for the number.
    unsafe { version.write(130_100) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetStream_v2(handle: Handle, stream: Handle) -> i32 {
    status(with(handle, |b| b.stream = stream as usize))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStream_v2(handle: Handle, stream: *mut Handle) -> i32 {
    // SAFETY: the caller passes a place for the handle.
    status(with(handle, |b| unsafe { stream.write(b.stream as Handle) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetWorkspace_v2(handle: Handle, workspace: *mut c_void, _size: usize) -> i32 {
    if !(workspace as usize).is_multiple_of(256) {
        log::error("the workspace of cuBLAS is not aligned to 256 bytes");
        return INVALID_VALUE;
    }
    status(with(handle, |_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetMathMode(handle: Handle, mode: u32) -> i32 {
    status(with(handle, |b| b.math = mode))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetMathMode(handle: Handle, mode: *mut u32) -> i32 {
    // SAFETY: the caller passes a place for the mode.
    status(with(handle, |b| unsafe { mode.write(b.math) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetPointerMode_v2(handle: Handle, mode: u32) -> i32 {
    status(with(handle, |b| b.device_pointers = mode == 1))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetPointerMode_v2(handle: Handle, mode: *mut u32) -> i32 {
    // SAFETY: the caller passes a place for the mode.
    status(with(handle, |b| unsafe { mode.write(u32::from(b.device_pointers)) }))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasSetAtomicsMode(handle: Handle, _mode: u32) -> i32 {
    status(with(handle, |_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusName(status: i32) -> *const c_char {
    let name = match status {
        0 => "CUBLAS_STATUS_SUCCESS\0",
        NOT_INITIALIZED => "CUBLAS_STATUS_NOT_INITIALIZED\0",
        INVALID_VALUE => "CUBLAS_STATUS_INVALID_VALUE\0",
        EXECUTION_FAILED => "CUBLAS_STATUS_EXECUTION_FAILED\0",
        NOT_SUPPORTED => "CUBLAS_STATUS_NOT_SUPPORTED\0",
        _ => "CUBLAS_STATUS_INTERNAL_ERROR\0",
    };
    name.as_ptr().cast()
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGetStatusString(status: i32) -> *const c_char {
    cublasGetStatusName(status)
}

/// `cudaDataType_t` of real numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Type {
    F32,
    F64,
    F16,
    Bf16,
}

impl Type {
    fn new(code: u32) -> Result<Self, i32> {
        match code {
            0 => Ok(Self::F32),
            1 => Ok(Self::F64),
            2 => Ok(Self::F16),
            14 => Ok(Self::Bf16),
            _ => {
                log::error(&format!("cuBLAS: data type {code} is not implemented"));
                Err(NOT_SUPPORTED)
            }
        }
    }

    fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            _ => 2,
        }
    }

    /// # Safety
    /// `at` has a value of this type.
    unsafe fn read(self, at: *const u8) -> f64 {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F64 => at.cast::<f64>().read_unaligned(),
                Self::F32 => at.cast::<f32>().read_unaligned().into(),
                Self::F16 => f16::from_bits(at.cast::<u16>().read_unaligned()).to_f64(),
                Self::Bf16 => bf16::from_bits(at.cast::<u16>().read_unaligned()).to_f64(),
            }
        }
    }

    /// # Safety
    /// `at` has room for a value of this type.
    unsafe fn write(self, at: *mut u8, value: f64) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Self::F64 => at.cast::<f64>().write_unaligned(value),
                Self::F32 => at.cast::<f32>().write_unaligned(value as f32),
                Self::F16 => at.cast::<u16>().write_unaligned(f16::from_f32(value as f32).to_bits()),
                Self::Bf16 => at.cast::<u16>().write_unaligned(bf16::from_f32(value as f32).to_bits()),
            }
        }
    }
}

/// A matrix of a product: by columns, `ld` apart, one per batch `stride` elements apart.
#[derive(Clone, Copy)]
struct Matrix {
    address: u64,
    ty: Type,
    ld: usize,
    stride: i64,
    transposed: bool,
}

/// Where a batch's matrices are.
#[derive(Clone, Copy, PartialEq)]
enum Batch {
    Strided,
    /// The addresses are arrays of addresses in device memory.
    Pointers,
}

#[derive(Clone, Copy)]
enum Scalar {
    Value(f64),
    Device(u64, Type),
}

impl Scalar {
    fn get(self, memory: &Memory) -> Result<f64, Fault> {
        match self {
            Self::Value(v) => Ok(v),
            Self::Device(address, ty) => {
                let host = memory.host(address, ty.size(), false)?;
                // SAFETY: `host` has checked the bytes.
                Ok(unsafe { ty.read(host) })
            }
        }
    }
}

/// C = alpha A B + beta C.
#[derive(Clone, Copy)]
struct Product {
    m: usize,
    n: usize,
    k: usize,
    alpha: Scalar,
    beta: Scalar,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    count: usize,
    batch: Batch,
    f64_sums: bool,
}

impl Product {
    fn run(&self, driver: &mut Driver) -> Result<(), Fault> {
        let memory = &driver.memory;
        let (alpha, beta) = (self.alpha.get(memory)?, self.beta.get(memory)?);
        for i in 0..self.count {
            self.one(memory, i, alpha, beta)
                .map_err(|f| Fault::new(f.code, format!("cuBLAS product {} x {} x {}: {}", self.m, self.n, self.k, f.text)))?;
        }
        Ok(())
    }

    fn one(&self, memory: &Memory, i: usize, alpha: f64, beta: f64) -> Result<(), Fault> {
        // A is wanted by rows and B by columns, as f32 or f64, so that the inner loop runs along both.
        let a = self.read(memory, &self.a, i, (self.m, self.k), true)?;
        let b = self.read(memory, &self.b, i, (self.k, self.n), false)?;
        let old = if beta == 0. { Vec::new() } else { self.read(memory, &self.c, i, (self.m, self.n), false)? };
        let to = self.locate(memory, &self.c, i, (self.m, self.n), true)?;
        let rounded = |v: f64| v as f32;
        for column in 0..self.n {
            let y = &b[column * self.k..(column + 1) * self.k];
            for row in 0..self.m {
                let x = &a[row * self.k..(row + 1) * self.k];
                let sum: f64 = if self.f64_sums {
                    x.iter().zip(y).map(|(x, y)| x * y).sum()
                } else {
                    // f32 accumulation in a fixed order, as a plain kernel has it.
                    x.iter().zip(y).fold(0f32, |s, (x, y)| rounded(*x).mul_add(rounded(*y), s)).into()
                };
                let mut value = alpha * sum;
                if beta != 0. {
                    value += beta * old[column * self.m + row];
                }
                // SAFETY: `locate` has checked the whole matrix.
                unsafe { self.c.ty.write(to.add((column * self.c.ld + row) * self.c.ty.size()), value) };
            }
        }
        Ok(())
    }

    /// The start of a matrix of `rows` x `columns` as stored, all of it checked.
    fn locate(&self, memory: &Memory, x: &Matrix, i: usize, (rows, columns): (usize, usize), write: bool) -> Result<*mut u8, Fault> {
        let address = match self.batch {
            Batch::Strided => x.address.wrapping_add_signed(x.stride * i as i64 * x.ty.size() as i64),
            Batch::Pointers => {
                let at = memory.host(x.address + 8 * i as u64, 8, false)?;
                // SAFETY: `host` has checked the eight bytes.
                unsafe { at.cast::<u64>().read_unaligned() }
            }
        };
        let elements = if rows == 0 || columns == 0 { 0 } else { x.ld * (columns - 1) + rows };
        memory.host(address, elements * x.ty.size(), write)
    }

    /// Logical `rows` x `columns`, written out along rows or along columns.
    fn read(&self, memory: &Memory, x: &Matrix, i: usize, (rows, columns): (usize, usize), by_rows: bool) -> Result<Vec<f64>, Fault> {
        let stored = if x.transposed { (columns, rows) } else { (rows, columns) };
        let from = self.locate(memory, x, i, stored, false)?;
        let (outer, inner) = if by_rows { (rows, columns) } else { (columns, rows) };
        let mut out = Vec::with_capacity(rows * columns);
        for o in 0..outer {
            for n in 0..inner {
                let (r, c) = if by_rows { (o, n) } else { (n, o) };
                let (r, c) = if x.transposed { (c, r) } else { (r, c) };
                // SAFETY: `locate` has checked the whole matrix.
                out.push(unsafe { x.ty.read(from.add((c * x.ld + r) * x.ty.size())) });
            }
        }
        Ok(out)
    }
}

/// The arguments that all products have in common.
struct Call {
    handle: Handle,
    trans: [u32; 2],
    dims: [i32; 3],
    alpha: *const c_void,
    beta: *const c_void,
    scalar: Type,
    addresses: [*const c_void; 3],
    types: [Type; 3],
    lds: [i32; 3],
    strides: [i64; 3],
    count: i32,
    batch: Batch,
}

fn product(call: Call) -> Result<(), i32> {
    let blas = with(call.handle, |b| *b)?;
    let [m, n, k] = call.dims;
    if [m, n, k, call.count].iter().any(|d| *d < 0) {
        return Err(INVALID_VALUE);
    }
    let rows = [if call.trans[0] == 0 { m } else { k }, if call.trans[1] == 0 { k } else { n }, m];
    for (i, (ld, rows)) in call.lds.iter().zip(rows).enumerate() {
        if *ld < rows.max(1) {
            log::error(&format!("cuBLAS: leading dimension {ld} of matrix {i}, which has {rows} rows"));
            return Err(INVALID_VALUE);
        }
    }
    if m == 0 || n == 0 || call.count == 0 {
        return Ok(());
    }
    let matrix = |i: usize| Matrix {
        address: call.addresses[i] as u64,
        ty: call.types[i],
        ld: call.lds[i] as usize,
        stride: call.strides[i],
        transposed: i < 2 && call.trans[i] != 0,
    };
    let scalar = |at: *const c_void| {
        if blas.device_pointers {
            Scalar::Device(at as u64, call.scalar)
        } else {
            // SAFETY: the caller passes a scalar of the type that belongs to the function.
            Scalar::Value(unsafe { call.scalar.read(at.cast()) })
        }
    };
    let product = Product {
        m: m as usize,
        n: n as usize,
        k: k as usize,
        alpha: scalar(call.alpha),
        beta: scalar(call.beta),
        a: matrix(0),
        b: matrix(1),
        c: matrix(2),
        count: call.count as usize,
        batch: call.batch,
        f64_sums: call.types[0] == Type::F64,
    };
    let code = api(|driver| {
        let key = driver.stream_key(blas.stream as Handle)?;
        driver.enqueue(key, Work::new(WorkKind::Library, move |driver| product.run(driver)))
    });
    if code == Code::Success as i32 { Ok(()) } else { Err(EXECUTION_FAILED) }
}

/// The type of the scalars that belongs to a `cublasComputeType_t`.
fn scalar_type(compute: u32) -> Result<Type, i32> {
    match compute {
        64 | 65 => Ok(Type::F16),
        68 | 69 | 74..=78 => Ok(Type::F32),
        70 | 71 | 79 => Ok(Type::F64),
        _ => {
            log::error(&format!("cuBLAS: compute type {compute} is not implemented"));
            Err(NOT_SUPPORTED)
        }
    }
}

macro_rules! gemms {
    ($($plain:ident, $strided:ident, $batched:ident, $t:ty, $ty:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub extern "C" fn $plain(
            handle: Handle, ta: u32, tb: u32, m: i32, n: i32, k: i32, alpha: *const $t, a: *const c_void, lda: i32,
            b: *const c_void, ldb: i32, beta: *const $t, c: *mut c_void, ldc: i32,
        ) -> i32 {
            $strided(handle, ta, tb, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1)
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $strided(
            handle: Handle, ta: u32, tb: u32, m: i32, n: i32, k: i32, alpha: *const $t, a: *const c_void, lda: i32, stride_a: i64,
            b: *const c_void, ldb: i32, stride_b: i64, beta: *const $t, c: *mut c_void, ldc: i32, stride_c: i64, count: i32,
        ) -> i32 {
            status(product(Call {
                handle, trans: [ta, tb], dims: [m, n, k], alpha: alpha.cast(), beta: beta.cast(), scalar: $ty,
                addresses: [a, b, c], types: [$ty; 3], lds: [lda, ldb, ldc], strides: [stride_a, stride_b, stride_c], count,
                batch: Batch::Strided,
            }))
        }

        #[unsafe(no_mangle)]
        pub extern "C" fn $batched(
            handle: Handle, ta: u32, tb: u32, m: i32, n: i32, k: i32, alpha: *const $t, a: *const c_void, lda: i32,
            b: *const c_void, ldb: i32, beta: *const $t, c: *mut c_void, ldc: i32, count: i32,
        ) -> i32 {
            status(product(Call {
                handle, trans: [ta, tb], dims: [m, n, k], alpha: alpha.cast(), beta: beta.cast(), scalar: $ty,
                addresses: [a, b, c], types: [$ty; 3], lds: [lda, ldb, ldc], strides: [0; 3], count, batch: Batch::Pointers,
            }))
        }
    )*};
}

gemms! {
    cublasSgemm_v2, cublasSgemmStridedBatched, cublasSgemmBatched, f32, Type::F32;
    cublasDgemm_v2, cublasDgemmStridedBatched, cublasDgemmBatched, f64, Type::F64;
    cublasHgemm, cublasHgemmStridedBatched, cublasHgemmBatched, u16, Type::F16;
}

fn extended(call: Call, types: [u32; 3], compute: u32) -> Result<(), i32> {
    let [a, b, c] = types;
    product(Call { types: [Type::new(a)?, Type::new(b)?, Type::new(c)?], scalar: scalar_type(compute)?, ..call })
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGemmStridedBatchedEx(
    handle: Handle,
    ta: u32,
    tb: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    stride_a: i64,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    stride_b: i64,
    beta: *const c_void,
    c: *mut c_void,
    c_type: u32,
    ldc: i32,
    stride_c: i64,
    count: i32,
    compute: u32,
    _algo: i32,
) -> i32 {
    let call = Call {
        handle,
        trans: [ta, tb],
        dims: [m, n, k],
        alpha,
        beta,
        scalar: Type::F32,
        addresses: [a, b, c],
        types: [Type::F32; 3],
        lds: [lda, ldb, ldc],
        strides: [stride_a, stride_b, stride_c],
        count,
        batch: Batch::Strided,
    };
    status(extended(call, [a_type, b_type, c_type], compute))
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGemmEx(
    handle: Handle,
    ta: u32,
    tb: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    beta: *const c_void,
    c: *mut c_void,
    c_type: u32,
    ldc: i32,
    compute: u32,
    algo: i32,
) -> i32 {
    cublasGemmStridedBatchedEx(
        handle, ta, tb, m, n, k, alpha, a, a_type, lda, 0, b, b_type, ldb, 0, beta, c, c_type, ldc, 0, 1, compute, algo,
    )
}

#[unsafe(no_mangle)]
pub extern "C" fn cublasGemmBatchedEx(
    handle: Handle,
    ta: u32,
    tb: u32,
    m: i32,
    n: i32,
    k: i32,
    alpha: *const c_void,
    a: *const c_void,
    a_type: u32,
    lda: i32,
    b: *const c_void,
    b_type: u32,
    ldb: i32,
    beta: *const c_void,
    c: *mut c_void,
    c_type: u32,
    ldc: i32,
    count: i32,
    compute: u32,
    _algo: i32,
) -> i32 {
    let call = Call {
        handle,
        trans: [ta, tb],
        dims: [m, n, k],
        alpha,
        beta,
        scalar: Type::F32,
        addresses: [a, b, c],
        types: [Type::F32; 3],
        lds: [lda, ldb, ldc],
        strides: [0; 3],
        count,
        batch: Batch::Pointers,
    };
    status(extended(call, [a_type, b_type, c_type], compute))
}

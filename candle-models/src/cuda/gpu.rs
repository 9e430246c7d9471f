//! A device with our kernels: compiled modules, launches, and the addresses of tensors.

use super::compiler::Compiler;
use super::fft;
use super::{KERNELS, counted};
use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cuda_backend::cudarc::cublas;
use candle_core::cuda_backend::cudarc::driver::{self, CudaFunction, CudaModule, CudaSlice, CudaStream, DevicePtr, sys};
use candle_core::cuda_backend::{CudaStorageSlice, DeviceId, WrapErr};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Layout, Result, Shape, Storage, Tensor, bail};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// A file of kernels; `ops/cuda/common.cuh` comes before its text.
#[derive(Debug)]
pub struct Source {
    /// The file's stem.
    pub name: &'static str,
    /// Its text.
    pub text: &'static str,
}

/// A kernel by file and name. One that works on several dtypes is a family of functions `name_f32`, `name_bf16`, `name_f16`.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// The file.
    pub source: &'static Source,
    /// The function, or the family of functions.
    pub name: &'static str,
}

/// Values of a thread in kernels over rows, as in `common.cuh`: as many loads are under way at once.
pub(crate) const AT_ONCE: usize = 4;

/// A matrix in device memory, as `Rows<T>` in `common.cuh`: values of a row lie side by side, rows `stride` values apart.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Matrix {
    /// Address of the first value.
    pub data: u64,
    /// Values from one row to the next.
    pub stride: u32,
    /// Values of a row.
    pub width: u32,
}

impl Matrix {
    /// No matrix: kernels see a null pointer.
    pub const NONE: Self = Self { data: 0, stride: 0, width: 0 };

    /// Blocks for so many rows, whose threads go through the columns, a few each: several for a long row, which takes one alone half a millisecond, and one for
    /// several narrow rows, whose blocks would take longer to start than to run.
    pub fn grid(&self, rows: usize) -> Grid {
        /// Blocks along the second axis.
        const MOST: usize = 65_535;
        let width = self.width as usize;
        // As `is_narrow` in common.cuh. No block has rows that are not there.
        if width <= 32 * AT_ONCE {
            let each = [8, 4, 2].into_iter().find(|each| rows.is_multiple_of(*each)).unwrap_or(1);
            return ((rows / each, 1, 1), 32 * each, 0);
        }
        let threads = width.div_ceil(AT_ONCE).next_multiple_of(32).clamp(32, 256);
        ((rows, width.div_ceil(AT_ONCE * threads).clamp(1, MOST), 1), threads, 0)
    }

    /// Some columns of every row; `size` bytes a value.
    pub fn columns(self, start: usize, width: usize, size: usize) -> Self {
        Self { data: self.data + (start * size) as u64, width: width as u32, ..self }
    }
}

/// The f32 states of the sequences of a batch, as `States` in `common.cuh`; updated in place.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct States {
    /// Address of the state of slot 0.
    pub data: u64,
    /// Values from one slot to the next.
    pub stride: u64,
    /// Address of the slot of every sequence, u32; 0 where sequence b has slot b.
    pub slots: u64,
}

/// Blocks along three axes, threads of a block, bytes of dynamic shared memory.
pub type Grid = ((usize, usize, usize), usize, usize);

type Functions = HashMap<(&'static str, &'static str, Option<DType>), CudaFunction>;

/// A device and the kernels loaded on it.
pub struct Gpu {
    device: CudaDevice,
    stream: Arc<CudaStream>,
    compiler: Compiler,
    modules: Mutex<HashMap<&'static str, Arc<CudaModule>>>,
    functions: RwLock<Functions>,
    plans: fft::Plans,
    /// cuBLAS works in here: what it would allocate by itself cannot be captured.
    _workspace: CudaSlice<u8>,
}

/// Bytes of the cuBLAS workspace that NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;

/// Devices that have been used. Custom operations see a storage and its device only, so the kernels are found by that.
static GPUS: Mutex<Vec<(DeviceId, Arc<Gpu>)>> = Mutex::new(Vec::new());

impl Gpu {
    /// The kernels of a device; made when it is first asked for.
    pub fn of(device: &CudaDevice) -> Result<Arc<Self>> {
        let mut gpus = GPUS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, gpu)) = gpus.iter().find(|(id, _)| *id == device.id()) {
            return Ok(gpu.clone());
        }
        let gpu = Arc::new(Self::new(device.clone())?);
        gpus.push((device.id(), gpu.clone()));
        Ok(gpu)
    }

    /// Kernels of their own for a device that one executor has for itself.
    pub fn new(device: CudaDevice) -> Result<Self> {
        let stream = device.cuda_stream();
        let (major, minor) = stream.context().compute_capability().w()?;
        // SAFETY: cuBLAS writes before it reads.
        let workspace = unsafe { device.alloc::<u8>(WORKSPACE)? };
        let (data, _synced) = workspace.device_ptr(&stream);
        let handle = *device.cublas_handle().handle();
        // SAFETY: the workspace lives as long as the kernels of this device, which are never dropped.
        let status = unsafe { cublas::sys::cublasSetWorkspace_v2(handle, data as *mut c_void, WORKSPACE) };
        status.result().w()?;
        drop(_synced);
        Ok(Self {
            compiler: Compiler::new((10 * major + minor) as u32),
            modules: Mutex::new(HashMap::new()),
            functions: RwLock::new(HashMap::new()),
            plans: fft::Plans::default(),
            _workspace: workspace,
            stream,
            device,
        })
    }

    /// The device.
    pub fn device(&self) -> &CudaDevice {
        &self.device
    }

    /// The stream that everything goes through.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// A kernel's function, compiled and loaded if need be: to be called once before a capture.
    pub fn function(&self, kernel: Kernel, dtype: Option<DType>) -> Result<CudaFunction> {
        let key = (kernel.source.name, kernel.name, dtype);
        if let Some(function) = self.functions.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return Ok(function.clone());
        }
        let module = self.module(kernel.source)?;
        let name = match dtype {
            Some(dtype) => format!("{}_{}", kernel.name, dtype.as_str()),
            None => kernel.name.to_owned(),
        };
        let function = module.load_function(&name).w()?;
        self.functions.write().unwrap_or_else(PoisonError::into_inner).insert(key, function.clone());
        Ok(function)
    }

    fn module(&self, source: &'static Source) -> Result<Arc<CudaModule>> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(source.name) {
            return Ok(module.clone());
        }
        let text = [crate::ops::cuda::COMMON, "#line 1\n", source.text].concat();
        let load = || self.stream.context().load_module(self.compiler.compile(source.name, &text)?).w();
        let module = counted(&KERNELS, load)?;
        modules.insert(source.name, module.clone());
        Ok(module)
    }

    /// The plan of `batch` Fourier transforms of one length; made when it is first asked for, and kept with the memory that it works in.
    ///
    /// # Errors
    /// If cuFFT is not installed, or there is no memory.
    pub fn transform(&self, of: fft::Transform, length: usize, batch: usize) -> Result<Arc<fft::Plan>> {
        fft::plan(&self.plans, &self.device, of, length, batch)
    }

    /// Puts a kernel on the stream: `grid` blocks of `block` threads with `shared` bytes of dynamic shared memory.
    ///
    /// # Safety
    /// `args` has the layout of the kernel's only parameter, and what it points at is valid until the kernel has run.
    pub unsafe fn launch<A: Copy>(&self, kernel: Kernel, dtype: Option<DType>, (grid, block, shared): Grid, args: &A) -> Result<()> {
        /// What a block has without asking.
        const STATIC_SHARED: usize = 48 << 10;
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        let function = self.function(kernel, dtype)?;
        if shared > STATIC_SHARED {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            function.set_attribute(attribute, shared as i32).w()?;
        }
        self.stream.context().bind_to_thread().w()?;
        let mut parameters = [std::ptr::from_ref(args).cast_mut().cast::<c_void>()];
        let grid = (grid.0 as u32, grid.1 as u32, grid.2 as u32);
        // SAFETY: the caller's promise; the driver copies the parameters before it returns.
        unsafe {
            driver::result::launch_kernel(
                function.cu_function(),
                grid,
                (block as u32, 1, 1),
                shared as u32,
                self.stream.cu_stream(),
                &mut parameters,
            )
        }
        .w()
    }
}

/// The CUDA device of a tensor.
pub(crate) fn device_of(tensor: &Tensor) -> Result<&CudaDevice> {
    match tensor.device() {
        Device::Cuda(device) => Ok(device),
        other => bail!("a CUDA operation on a tensor on {other:?}"),
    }
}

/// The address of a storage's first value and the bytes of a value.
fn storage_address(storage: &CudaStorage) -> Result<(u64, usize)> {
    let stream = storage.device.cuda_stream();
    // Without event tracking the guard beside the address does nothing.
    Ok(match &storage.slice {
        CudaStorageSlice::F32(s) => (s.device_ptr(&stream).0, 4),
        CudaStorageSlice::U32(s) => (s.device_ptr(&stream).0, 4),
        CudaStorageSlice::BF16(s) => (s.device_ptr(&stream).0, 2),
        CudaStorageSlice::F16(s) => (s.device_ptr(&stream).0, 2),
        CudaStorageSlice::F64(s) => (s.device_ptr(&stream).0, 8),
        CudaStorageSlice::U8(s) => (s.device_ptr(&stream).0, 1),
        _ => bail!("a CUDA operation of ours on an unusual dtype"),
    })
}

/// A storage inside a custom operation as a matrix; a vector is one row.
pub(crate) fn storage_matrix(storage: &CudaStorage, layout: &Layout) -> Result<Matrix> {
    let (data, size) = storage_address(storage)?;
    let data = data + (layout.start_offset() * size) as u64;
    match (layout.dims(), layout.stride()) {
        ([rows, width], [stride, 1]) if *rows > 1 => Ok(Matrix { data, stride: *stride as u32, width: *width as u32 }),
        (dims, _) if layout.is_contiguous() => {
            let width = dims.last().copied().unwrap_or(1) as u32;
            Ok(Matrix { data, stride: width, width })
        }
        _ => bail!("a CUDA operation asks for rows side by side, got {layout:?}"),
    }
}

/// A tensor as a matrix: `[rows, width]` whose rows may lie apart, or anything contiguous as rows of its last axis. The
/// address is good as long as the tensor, and behind it in the stream's order.
pub(crate) fn matrix(tensor: &Tensor) -> Result<Matrix> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => storage_matrix(storage, layout),
        _ => bail!("a CUDA operation on a tensor elsewhere"),
    }
}

/// The address of a contiguous tensor.
pub fn address(tensor: &Tensor) -> Result<u64> {
    if !tensor.is_contiguous() {
        bail!("a CUDA operation asks for a contiguous tensor, got {:?}", tensor.layout());
    }
    Ok(matrix(tensor)?.data)
}

/// Refuses an operand of another shape or dtype.
pub(crate) fn same(shape: &Shape, dtype: DType, (storage, layout): (&CudaStorage, &Layout)) -> Result<()> {
    if layout.shape() != shape || storage.dtype() != dtype {
        bail!("expected {dtype:?} {shape:?}, found {:?} {:?}", storage.dtype(), layout.shape());
    }
    Ok(())
}

/// The address of a parameter: contiguous f32 of that many values.
pub(crate) fn parameter(storage: &CudaStorage, layout: &Layout, values: usize) -> Result<u64> {
    if storage.dtype() != DType::F32 || !layout.is_contiguous() || layout.shape().elem_count() != values {
        bail!("expected {values} contiguous values of f32, found {:?} {layout:?}", storage.dtype());
    }
    Ok(storage_matrix(storage, layout)?.data)
}

/// Memory for the result of a custom operation, for a kernel to write all of, and where it lies.
pub(crate) fn result(shape: &Shape, dtype: DType, device: &CudaDevice) -> Result<(CudaStorage, Matrix)> {
    // SAFETY: the caller's kernel writes every value before anything reads it; any bits are a valid number.
    let storage = unsafe { device.alloc_uninit(shape, dtype)? };
    let matrix = storage_matrix(&storage, &Layout::contiguous(shape))?;
    Ok((storage, matrix))
}

/// A tensor without values yet, for a kernel to write all of.
pub fn empty(shape: impl Into<Shape>, dtype: DType, device: &CudaDevice) -> Result<Tensor> {
    let shape = shape.into();
    // SAFETY: the caller's kernel writes every value before anything reads it; any bits are a valid number.
    let storage = unsafe { device.alloc_uninit(&shape, dtype)? };
    Ok(Tensor::from_storage(Storage::Cuda(storage), shape, BackpropOp::none(), false))
}

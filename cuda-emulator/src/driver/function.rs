//! Functions: attributes, occupancy, launches.
use std::{collections::HashMap, ffi::c_void, sync::Arc};

use super::{
    Driver, Handle, Locked, MAX_DYNAMIC_SHARED, MAX_STATIC_SHARED, MAX_THREADS, MULTIPROCESSORS, SHARED_PER_MULTIPROCESSOR,
    THREADS_PER_MULTIPROCESSOR, Work, WorkKind, api, put,
};
use crate::{
    decode::{self, Program},
    error::{Code, Fault},
    machine::Launch,
    ptx::{self, Param},
};

/// A kernel of a loaded module; decoded when it is first used.
pub struct Function {
    name: String,
    params: Vec<Param>,
    module: Arc<ptx::Module>,
    globals: Arc<HashMap<String, u64>>,
    program: Option<Arc<Program>>,
    max_dynamic: usize,
}

impl Function {
    pub(crate) fn new(entry: &ptx::Function, module: Arc<ptx::Module>, globals: Arc<HashMap<String, u64>>) -> Self {
        let (name, params) = (entry.name.clone(), entry.params.clone());
        Self { name, params, module, globals, program: None, max_dynamic: MAX_STATIC_SHARED }
    }

    fn program(&mut self) -> Result<Arc<Program>, Fault> {
        if let Some(program) = &self.program {
            return Ok(program.clone());
        }
        let target = decode::Target { module: &self.module, globals: &self.globals };
        let program =
            decode::kernel(&target, &self.name).map_err(|e| Fault::new(Code::InvalidPtx, format!("kernel `{}`: {e}", self.name)))?;
        Ok(self.program.insert(Arc::new(program)).clone())
    }
}

struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: usize,
    cooperative: bool,
}

impl Driver {
    fn function(&mut self, function: Handle) -> Result<&mut Function, Fault> {
        let key = function as usize;
        self.functions.get_mut(&key).ok_or_else(|| Fault::new(Code::InvalidHandle, format!("no function {key:#x}")))
    }
}

impl Shape {
    fn check(&self, function: &Function, program: &Program) -> Result<(), Fault> {
        let Self { grid, block, shared, .. } = self;
        let bad = |code, text: String| Err(Fault::new(code, format!("launch of `{}`: {text}", function.name)));
        let threads = block.iter().map(|b| u64::from(*b)).product::<u64>();
        if grid.contains(&0) || grid[1] > 65535 || grid[2] > 65535 || grid[0] > i32::MAX as u32 {
            return bad(Code::InvalidValue, format!("a grid of {grid:?}"));
        }
        if threads == 0 || threads > u64::from(MAX_THREADS) || block[2] > 64 {
            return bad(Code::InvalidValue, format!("a block of {block:?}, at most {MAX_THREADS} threads fit"));
        }
        if threads > u64::from(program.max_threads) {
            return bad(Code::InvalidValue, format!("{threads} threads, compiled for {}", program.max_threads));
        }
        if program.shared_static > MAX_STATIC_SHARED {
            return bad(Code::InvalidPtx, format!("{} bytes of static shared memory", program.shared_static));
        }
        if *shared > function.max_dynamic || shared + program.shared_static > MAX_DYNAMIC_SHARED {
            return bad(Code::InvalidValue, format!("{shared} bytes of dynamic shared memory, allowed are {}", function.max_dynamic));
        }
        let resident = blocks_per_multiprocessor(threads as i32, program.shared_static + shared) * MULTIPROCESSORS;
        if self.cooperative && grid.iter().map(|g| u64::from(*g)).product::<u64>() > resident as u64 {
            // CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE is 720; the text says which it is.
            return bad(Code::InvalidValue, format!("a cooperative grid of {grid:?}, at most {resident} blocks are resident"));
        }
        Ok(())
    }
}

fn blocks_per_multiprocessor(threads: i32, shared: usize) -> i32 {
    let by_threads = THREADS_PER_MULTIPROCESSOR / ((threads.max(1) + 31) / 32 * 32);
    let by_shared = if shared == 0 { 32 } else { (SHARED_PER_MULTIPROCESSOR / (shared + 1024)) as i32 };
    by_threads.min(by_shared).min(32)
}

impl Locked {
    fn launch(
        &mut self,
        function: Handle,
        shape: Shape,
        stream: Handle,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> Result<(), Fault> {
        let key = self.stream_key(stream)?;
        let function = self.function(function)?;
        let program = function.program()?;
        shape.check(function, &program)?;
        let params = arguments(&function.params, program.param_bytes, params, extra)
            .ok_or_else(|| Fault::new(Code::InvalidValue, format!("launch of `{}` without its arguments", function.name)))?;
        let work = Work::new(WorkKind::Kernel, move |driver| {
            let Shape { grid, block, shared, cooperative } = shape;
            driver.run_grid(&Launch { program: &program, grid, block, shared, params: &params, cooperative })
        });
        self.enqueue(key, work)
    }
}

/// Copies the arguments: from a list of pointers, or from the buffer in `extra`.
fn arguments(list: &[Param], bytes: usize, params: *mut *mut c_void, extra: *mut *mut c_void) -> Option<Vec<u8>> {
    let mut out = vec![0u8; bytes];
    if !extra.is_null() {
        let (mut buffer, mut size) = (std::ptr::null(), 0usize);
        for i in (0..).step_by(2) {
            // SAFETY: `extra` is a list of pairs that ends with CU_LAUNCH_PARAM_END (0).
            let (key, value) = unsafe { (extra.add(i).read() as usize, extra.add(i + 1)) };
            match key {
                0 => break,
                // SAFETY: the pair's value is there; a size is given as a pointer to it.
                1 => buffer = unsafe { value.read() } as *const u8,
                // SAFETY: as above.
                2 => size = unsafe { value.read().cast::<usize>().read() },
                _ => return None,
            }
        }
        if buffer.is_null() || size < bytes {
            return None;
        }
        // SAFETY: the buffer has `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(buffer, out.as_mut_ptr(), bytes) };
        return Some(out);
    }
    if params.is_null() && !list.is_empty() {
        return None;
    }
    for (i, param) in list.iter().enumerate() {
        // SAFETY: there is a pointer for each parameter, to as many bytes as it has.
        let from = unsafe { params.add(i).read() };
        if from.is_null() {
            return None;
        }
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from.cast(), out[param.offset..].as_mut_ptr(), param.size) };
    }
    Some(out)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared: shared as usize, cooperative: false };
    api(|driver| driver.launch(function, shape, stream, params, extra))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchCooperativeKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    params: *mut *mut c_void,
) -> i32 {
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared: shared as usize, cooperative: true };
    api(|driver| driver.launch(function, shape, stream, params, std::ptr::null_mut()))
}

/// `CUlaunchConfig`.
#[repr(C)]
pub struct LaunchConfig {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    stream: Handle,
    attributes: *const [u32; 18],
    count: u32,
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    function: Handle,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> i32 {
    if config.is_null() {
        return Code::InvalidValue as i32;
    }
    // SAFETY: the caller passes a valid configuration.
    let config = unsafe { &*config };
    let mut cooperative = false;
    for i in 0..config.count as usize {
        // SAFETY: an attribute is 72 bytes: its number, padding, and a value of 64.
        let attribute = unsafe { config.attributes.add(i).read() };
        match attribute[0] {
            // CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            2 => cooperative = attribute[2] != 0,
            // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            4 if attribute[2..5].iter().any(|d| *d > 1) => {
                crate::log::error("clusters are not implemented");
                return Code::NotSupported as i32;
            }
            _ => {}
        }
    }
    let shape = Shape { grid: config.grid, block: config.block, shared: config.shared as usize, cooperative };
    api(|driver| driver.launch(function, shape, config.stream, params, extra))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncGetAttribute(value: *mut i32, attribute: u32, function: Handle) -> i32 {
    api(|driver| {
        let version = 10 * driver.config.capability.0 + driver.config.capability.1;
        let function = driver.function(function)?;
        let program = function.program()?;
        let found = match attribute {
            0 => program.max_threads as i32,
            1 => program.shared_static as i32,
            3 => program.funcs[0].local_bytes as i32,
            // PTX has no register count; a compiler stays within what lets a full block run.
            4 => 32,
            5 | 6 => version,
            8 => function.max_dynamic as i32,
            9 => -1,
            _ => 0,
        };
        put(value, found)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(function: Handle, attribute: u32, value: i32) -> i32 {
    api(|driver| {
        let function = driver.function(function)?;
        let program = function.program()?;
        if attribute == 8 {
            let limit = MAX_DYNAMIC_SHARED - program.shared_static;
            function.max_dynamic = usize::try_from(value).ok().filter(|v| *v <= limit).ok_or_else(|| {
                Fault::new(Code::InvalidValue, format!("{value} bytes of dynamic shared memory for `{}`, at most {limit}", function.name))
            })?;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetCacheConfig(function: Handle, _config: u32) -> i32 {
    api(|driver| driver.function(function).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    blocks: *mut i32,
    function: Handle,
    threads: i32,
    shared: usize,
    _flags: u32,
) -> i32 {
    api(|driver| {
        let program = driver.function(function)?.program()?;
        put(blocks, blocks_per_multiprocessor(threads, program.shared_static + shared))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: *mut i32, function: Handle, threads: i32, shared: usize) -> i32 {
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyAvailableDynamicSMemPerBlock(bytes: *mut usize, function: Handle, blocks: i32, _threads: i32) -> i32 {
    api(|driver| {
        let program = driver.function(function)?.program()?;
        let each = SHARED_PER_MULTIPROCESSOR / blocks.max(1) as usize;
        put(bytes, each.saturating_sub(1024 + program.shared_static).min(MAX_DYNAMIC_SHARED - program.shared_static))
    })
}

type SharedOf = Option<extern "C" fn(i32) -> usize>;

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSizeWithFlags(
    grid: *mut i32,
    block: *mut i32,
    function: Handle,
    shared_of: SharedOf,
    shared: usize,
    limit: i32,
    _flags: u32,
) -> i32 {
    api(|driver| {
        let program = driver.function(function)?.program()?;
        let most = program.max_threads.min(MAX_THREADS) as i32;
        let most = if limit > 0 { most.min(limit) } else { most };
        let active = |threads: i32| {
            let dynamic = shared_of.map_or(shared, |f| f(threads));
            blocks_per_multiprocessor(threads, program.shared_static + dynamic)
        };
        let best = (1..=most / 32).map(|w| 32 * w).max_by_key(|t| (active(*t) * t, *t)).unwrap_or(most);
        put(block, best)?;
        put(grid, active(best) * MULTIPROCESSORS)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuOccupancyMaxPotentialBlockSize(
    grid: *mut i32,
    block: *mut i32,
    function: Handle,
    shared_of: SharedOf,
    shared: usize,
    limit: i32,
) -> i32 {
    cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of, shared, limit, 0)
}

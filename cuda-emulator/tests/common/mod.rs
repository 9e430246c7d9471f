//! A small safe front for the tests: a fresh driver per test, one test at a time.
#![allow(dead_code, clippy::unwrap_used)]
use std::{
    ffi::{CString, c_void},
    ptr::null_mut,
    sync::{Mutex, MutexGuard},
};

use cuda_emulator::driver::*;
pub use cuda_emulator::driver::{Config, Handle};

pub struct Session {
    pub stream: Handle,
    _guard: MutexGuard<'static, ()>,
}

/// Device memory that a test forgets to free does no harm: the next test has a fresh driver.
pub struct Kernel(pub Handle);

pub fn ok(code: i32) {
    assert_eq!(code, 0, "the driver returned {code}");
}

impl Session {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(|e| e.into_inner());
        reset(config);
        ok(cuInit(0));
        let mut context = null_mut();
        ok(cuDevicePrimaryCtxRetain(&mut context, 0));
        ok(cuCtxSetCurrent(context));
        Self { stream: new_stream(), _guard: guard }
    }

    /// Loads a module of one kernel `k` with the given parameters and body.
    pub fn kernel(&self, params: &str, body: &str) -> Kernel {
        self.module(&format!(".visible .entry k({params}) {{ {REGISTERS} {body} }}"))
    }

    /// Loads a module text without its header and finds its kernel `k`.
    pub fn module(&self, text: &str) -> Kernel {
        let text = CString::new(format!(".version 9.0\n.target sm_80\n.address_size 64\n{text}")).unwrap();
        let (mut module, mut function) = (null_mut(), null_mut());
        ok(cuModuleLoadData(&mut module, text.as_ptr().cast()));
        ok(cuModuleGetFunction(&mut function, module, c"k".as_ptr()));
        Kernel(function)
    }

    pub fn alloc(&self, bytes: usize) -> u64 {
        let mut at = 0;
        ok(cuMemAllocAsync(&mut at, bytes, self.stream));
        at
    }

    pub fn upload<T: Copy>(&self, values: &[T]) -> u64 {
        let at = self.alloc(size_of_val(values));
        ok(cuMemcpyHtoDAsync_v2(at, values.as_ptr().cast(), size_of_val(values), self.stream));
        at
    }

    pub fn download<T: Copy + Default>(&self, at: u64, n: usize) -> Vec<T> {
        let mut out = vec![T::default(); n];
        ok(cuMemcpyDtoHAsync_v2(out.as_mut_ptr().cast(), at, n * size_of::<T>(), self.stream));
        ok(cuStreamSynchronize(self.stream));
        out
    }

    pub fn launch(&self, kernel: &Kernel, grid: u32, block: u32, args: &[u64]) -> i32 {
        self.launch_shared(kernel, grid, block, 0, args)
    }

    pub fn launch_shared(&self, kernel: &Kernel, grid: u32, block: u32, shared: u32, args: &[u64]) -> i32 {
        let mut pointers: Vec<*mut c_void> = args.iter().map(|a| std::ptr::from_ref(a).cast_mut().cast()).collect();
        cuLaunchKernel(kernel.0, grid, 1, 1, block, 1, 1, shared, self.stream, pointers.as_mut_ptr(), null_mut())
    }

    pub fn sync(&self) -> i32 {
        cuStreamSynchronize(self.stream)
    }

    /// Launches and waits; the code of the launch or of the wait.
    pub fn run(&self, kernel: &Kernel, grid: u32, block: u32, args: &[u64]) -> i32 {
        match self.launch(kernel, grid, block, args) {
            0 => self.sync(),
            code => code,
        }
    }
}

pub fn new_stream() -> Handle {
    let mut stream = null_mut();
    // CU_STREAM_NON_BLOCKING
    ok(cuStreamCreate(&mut stream, 1));
    stream
}

/// Enough registers for every test.
pub const REGISTERS: &str = ".reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<33>; .reg .b64 %d<17>; .reg .f32 %f<9>; .reg .f64 %e<9>;";

/// `%d1 = out + 4 * %r1` with `%r1` the thread of the grid; the kernel's first parameter is `out`.
pub const INDEX: &str = "mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r1, %r2, %r3, %r4;
    ld.param.u64 %d0, [out]; cvta.to.global.u64 %d0, %d0; mul.wide.u32 %d1, %r1, 4; add.s64 %d1, %d0, %d1;";

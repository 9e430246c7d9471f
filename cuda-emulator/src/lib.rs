//! A stand-in for the CUDA driver, cuBLAS, cuFFT and cuRAND that runs PTX on the CPU, for tests on machines without a GPU.
//!
//! `ptx` reads modules, `decode` turns kernels into instructions, `ops` says what they compute, `machine` runs grids,
//! `driver` is the C interface with its lazily executed streams; `README.md` says how to use it.
pub mod blas;
pub mod decode;
pub mod driver;
pub mod error;
pub mod fft;
pub mod log;
pub mod machine;
pub mod memory;
pub mod ops;
pub mod ptx;
pub mod rand;

/// Symbols that programs link against and that do nothing here.
mod stubs {
    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

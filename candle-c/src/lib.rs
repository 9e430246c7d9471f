//! The engine of candle-models behind a C ABI.
//!
//! `include/candle_models.h` is generated from this crate by a test, so what is documented here is written for readers of C; what holds for
//! every function stands at the top of the header, which `cbindgen.toml` has. `docs/src/c.md` is the guide.
//!
//! A pointer is an `Option` of a reference or a box where that says what C says: such a type has the layout of a pointer, and the compiler
//! asks what becomes of null. It is a raw one, and the function `unsafe`, for text and arrays, for the options, whose length is the
//! caller's, and for handles that C writes without `const` although two threads can come with the same.

// Types are called in Rust what they are called in C.
#![allow(non_camel_case_types)]
// What the caller owes every function stands at the top of the header, once.
#![allow(clippy::missing_safety_doc)]

// In the header's order.
mod call;
mod model;

mod engine;
mod session;

mod runner;

#[cfg(test)]
mod tests;

pub use call::{candle_last_error, candle_status};
pub use engine::{candle_engine, candle_engine_close, candle_engine_free, candle_engine_start, candle_options, candle_options_init};
pub use model::{
    CANDLE_SAMPLE, candle_dtype, candle_model, candle_model_free, candle_model_load, candle_model_signature, candle_signature,
    candle_tensor,
};
pub use runner::{
    candle_runner, candle_runner_free, candle_runner_input_f32, candle_runner_input_u32, candle_runner_open, candle_runner_output_f32,
    candle_runner_output_u32, candle_runner_step,
};
pub use session::{
    candle_session, candle_session_fork, candle_session_frames, candle_session_free, candle_session_input_f32, candle_session_input_u32,
    candle_session_open, candle_session_output_f32, candle_session_output_u32, candle_session_reset, candle_session_restore,
    candle_session_save, candle_session_step, candle_session_step_within,
};

/// The version that this header describes: 10000 times the major, 100 times the minor number and the patch.
pub const CANDLE_VERSION: u32 = 100;

/// What the header says of threads.
const fn can_be_shared<T: Send + Sync>() {}
const _: () = (can_be_shared::<candle_engine>(), can_be_shared::<candle_session>(), can_be_shared::<candle_runner>()).0;

const _: () = {
    let written = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"), env!("CARGO_PKG_VERSION_PATCH"));
    let (Ok(major), Ok(minor), Ok(patch)) =
        (u32::from_str_radix(written.0, 10), u32::from_str_radix(written.1, 10), u32::from_str_radix(written.2, 10))
    else {
        panic!("a version is three numbers")
    };
    assert!(CANDLE_VERSION == 10_000 * major + 100 * minor + patch, "CANDLE_VERSION is the crate's version");
};

/// CANDLE_VERSION of the library that is in use. A program runs with a library of the version it was compiled for, or a newer one of the
/// same major number (and, as long as that is 0, of the same minor number).
#[unsafe(no_mangle)]
pub extern "C" fn candle_version() -> u32 {
    CANDLE_VERSION
}

//! Runners: many rows in step with each other.

use crate::call::{Fault, array, call, candle_status, give, hold, some, text};
use crate::{candle_model, candle_options};
use candle_models::engine::Runner;
use candle_models::signature::TensorSpec;
use std::ffi::c_char;
use std::mem::MaybeUninit;
use std::sync::Mutex;

/// A model at a fixed number of rows, each with inputs, outputs and a state of its own, that are all stepped together on the caller's
/// thread. It belongs to one thread at a time.
pub struct candle_runner(Mutex<Rows>);

struct Rows {
    runner: Runner,
    batch: usize,
    /// What the next step puts back.
    resets: Vec<bool>,
}

/// Runs the body of a function with a runner.
///
/// # Safety
/// It is null or has not been freed.
unsafe fn with(runner: *mut candle_runner, body: impl FnOnce(&mut Rows) -> Result<(), Fault>) -> candle_status {
    // SAFETY: the caller's promise. The reference is a shared one: two threads at once are told apart by the mutex.
    call(|| body(&mut *hold(&some(unsafe { runner.as_ref() }, "runner")?.0, "runner")?))
}

/// Prepares a model for `batch` rows. Of the options the device, the threads and the dtype count; NULL means the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_open(
    model: Option<&candle_model>,
    batch: usize,
    options: *const candle_options,
    runner: Option<&mut MaybeUninit<Box<candle_runner>>>,
) -> candle_status {
    call(|| {
        let (model, out) = (some(model, "model")?, some(runner, "runner")?);
        // SAFETY: the caller's promise, as the header has it.
        let place = unsafe { candle_options::read(options)? }.place;
        let runner = Runner::on(model.model.clone(), (batch, 1), &place)?;
        out.write(Box::new(candle_runner(Mutex::new(Rows { runner, batch, resets: Vec::with_capacity(batch) }))));
        Ok(())
    })
}

/// An input of floats of a row: `values` `[count]`, to be written in place between calls. It keeps its values, and the pointer stays the
/// same until the runner is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_input_f32(
    runner: *mut candle_runner,
    name: *const c_char,
    row: usize,
    values: Option<&mut MaybeUninit<*mut f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(runner, |rows| {
            let bytes = rows.runner.input_bytes(&TensorSpec::f32(text(name, "name")?, &[]), row)?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An input of indices of a row, as candle_runner_input_f32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_input_u32(
    runner: *mut candle_runner,
    name: *const c_char,
    row: usize,
    values: Option<&mut MaybeUninit<*mut u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(runner, |rows| {
            let bytes = rows.runner.input_bytes(&TensorSpec::u32(text(name, "name")?, &[]), row)?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An output of floats of a row, as the last step left it: `values` `[count]`, to be read between calls. The pointer stays the same until
/// the runner is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_output_f32(
    runner: *mut candle_runner,
    name: *const c_char,
    row: usize,
    values: Option<&mut MaybeUninit<*const f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(runner, |rows| {
            let bytes = rows.runner.output_bytes(&TensorSpec::f32(text(name, "name")?, &[]), row)?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An output of indices of a row, as candle_runner_output_f32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_output_u32(
    runner: *mut candle_runner,
    name: *const c_char,
    row: usize,
    values: Option<&mut MaybeUninit<*const u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(runner, |rows| {
            let bytes = rows.runner.output_bytes(&TensorSpec::u32(text(name, "name")?, &[]), row)?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// One frame of every row. Rows whose value in `resets` `[count]` is not 0 are put back to the initial state before it; `count` is the
/// number of rows, or 0, with `resets` NULL, for no reset. Where the model itself fails, with CANDLE_STATUS_OTHER, the states of all rows
/// are lost and have to be reset.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_runner_step(runner: *mut candle_runner, resets: *const u8, count: usize) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(runner, |rows| {
            let resets = array(resets, count, "resets")?;
            rows.resets.clear();
            rows.resets.extend(resets.iter().map(|reset| *reset != 0));
            if resets.is_empty() {
                rows.resets.resize(rows.batch, false);
            }
            Ok(rows.runner.step(&rows.resets)?)
        })
    }
}

/// Frees a runner, and with it the pointers to its inputs and outputs; NULL is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn candle_runner_free(runner: Option<Box<candle_runner>>) {
    call(|| {
        drop(runner);
        Ok(())
    });
}

//! Engines and their options.

use crate::call::{Fault, call, candle_status, some, text};
use crate::candle_model;
use candle_models::device;
use candle_models::engine::{Engine, Options, Placement};
use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};
use std::ptr;
use std::time::Duration;

/// How an engine or runner is set up. candle_options_init fills it in; a later version may add fields at the end.
#[repr(C)]
pub struct candle_options {
    /// The size of the structure in the program, set by candle_options_init.
    pub size: usize,
    /// Where passes run: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one. By default "cpu". A GPU needs a library that was
    /// built with the feature `cuda`.
    pub device: *const c_char,
    /// The dtype of weights and of values between operations: "f32", "bf16" or "f16". By default NULL, for what suits the device: f32 on
    /// the CPU, which takes no other.
    pub dtype: *const c_char,
    /// Threads that compute a batch on the CPU, the caller's or the engine's own counted: 1 to 1024, by default 1.
    pub threads: usize,
    /// Sessions that can be open at the same time: 1 to 2^20, by default 256.
    pub sessions: usize,
    /// Requests that may wait: 1 to 2^20, by default 256. A session has one at most, so a bound of `sessions` refuses none.
    pub queue: usize,
    /// Most requests that run together: 1 to 2^20, by default 32.
    pub max_batch: usize,
    /// How long the oldest request may be held back for a fuller batch, in nanoseconds: at most 10^9, by default 0.
    pub max_wait_ns: u64,
}

impl candle_options {
    fn with_defaults(size: usize) -> Self {
        let Options { place, sessions, queue, max_batch, max_wait } = Options::default();
        let max_wait_ns = max_wait.map_or(0, |wait| wait.as_nanos() as u64);
        let dtype = ptr::null();
        Self { size, device: c"cpu".as_ptr(), dtype, threads: place.threads, sessions, queue, max_batch, max_wait_ns }
    }

    /// A program that was compiled with an earlier header has a shorter structure, never a longer one.
    fn check(size: usize) -> Result<(), Fault> {
        let (least, most) = (offset_of!(Self, device), size_of::<Self>());
        if (least..=most).contains(&size) {
            return Ok(());
        }
        let cause = "candle_options_init was not called, or the library is older than the program's header";
        Err(Fault::argument(format!("options of {size} bytes: expected from {least} to {most}; {cause}")))
    }

    /// The options of a program, the defaults for the fields that it does not have and for null.
    ///
    /// # Safety
    /// It is null, or `size` bytes can be read there and the texts end with a NUL.
    pub(crate) unsafe fn read(options: *const Self) -> Result<Options, Fault> {
        let mut own = Self::with_defaults(size_of::<Self>());
        if !options.is_null() {
            // SAFETY: the caller's promise; the reference to the whole, which may be shorter than this one, is not made.
            let size = unsafe { (&raw const (*options).size).read() };
            Self::check(size)?;
            // SAFETY: so many bytes can be read, and fewer or as many written; any bytes are a value of every field.
            unsafe { ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut own).cast::<u8>(), size) };
        }
        // SAFETY: the caller's promise.
        let device = unsafe { text(own.device, "options.device")? }.parse()?;
        let dtype = match own.dtype.is_null() {
            true => None,
            // SAFETY: the caller's promise.
            false => Some(device::float_dtype(unsafe { text(own.dtype, "options.dtype")? })?),
        };
        let place = Placement { device, threads: own.threads, dtype, ..Placement::default() };
        let max_wait = Some(Duration::from_nanos(own.max_wait_ns)).filter(|wait| !wait.is_zero());
        Ok(Options { place, sessions: own.sessions, queue: own.queue, max_batch: own.max_batch, max_wait })
    }
}

/// Fills in the defaults. `size` is sizeof(candle_options).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_options_init(options: *mut candle_options, size: usize) -> candle_status {
    call(|| {
        if options.is_null() {
            return some(None, "options");
        }
        candle_options::check(size)?;
        let defaults = candle_options::with_defaults(size);
        // SAFETY: the caller has a structure of so many bytes, which are no more than ours.
        unsafe { ptr::copy_nonoverlapping((&raw const defaults).cast::<u8>(), options.cast::<u8>(), size) };
        Ok(())
    })
}

/// One model for many agents. Threads can share it.
pub struct candle_engine(pub(crate) Engine);

/// Prepares a model and allocates everything that sessions and batches need; starts a thread. NULL for `options` means the defaults.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_engine_start(
    model: Option<&candle_model>,
    options: *const candle_options,
    engine: Option<&mut MaybeUninit<Box<candle_engine>>>,
) -> candle_status {
    call(|| {
        let (model, engine) = (some(model, "model")?, some(engine, "engine")?);
        // SAFETY: the caller's promise, as the header has it.
        let options = unsafe { candle_options::read(options)? };
        engine.write(Box::new(candle_engine(Engine::start(model.model.clone(), &options)?)));
        Ok(())
    })
}

/// Closes the engine, whoever still has sessions: what is being run is finished, and every other step from now on is CANDLE_STATUS_CLOSED.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_engine_close(engine: *mut candle_engine) -> candle_status {
    call(|| {
        // SAFETY: the caller's promise, as the header has it. Other threads may use the engine.
        some(unsafe { engine.as_ref() }, "engine")?.0.close();
        Ok(())
    })
}

/// Frees an engine; NULL is nothing. It runs on until its last session has been freed.
#[unsafe(no_mangle)]
pub extern "C" fn candle_engine_free(engine: Option<Box<candle_engine>>) {
    call(|| {
        drop(engine);
        Ok(())
    });
}

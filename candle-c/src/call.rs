//! What every function goes through: panics are caught, errors become a status and a message, and null is refused.

use candle_models::Error;
use candle_models::engine::EngineError;
use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// How a call ended. After every status but those that say otherwise nothing has changed, and the call can be made again.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum candle_status {
    /// Done.
    Ok = 0,
    /// An argument is NULL, no UTF-8 or out of range, or a bundle's configuration is.
    InvalidArgument = 1,
    /// A file or directory cannot be read, or does not hold what it should.
    File = 2,
    /// A tensor does not have the name, dtype, shape or values that the model asks for, or an input without a default was not set.
    Tensor = 3,
    /// All sessions of the engine are open.
    Capacity = 4,
    /// As many requests wait as the engine's queue takes.
    Overloaded = 5,
    /// The deadline was over before the step began.
    DeadlineExceeded = 6,
    /// The model failed or panicked in the step: the state of the session is lost, and it has to be reset or restored.
    ModelFailed = 7,
    /// An earlier step failed: the session has to be reset or restored first.
    StateLost = 8,
    /// The engine is closed.
    Closed = 9,
    /// The buffer is too small: the size that it needs has been written.
    BufferTooSmall = 10,
    /// Another thread is in a call with the same session or runner.
    InUse = 11,
    /// The library panicked: an error in it or in a model that a runner runs. The session or runner of the call can only be freed.
    Panicked = 12,
    /// An earlier call with the same session or runner panicked: it can only be freed.
    Poisoned = 13,
    /// Something else, which the message says.
    Other = 14,
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Fault {
    status: candle_status,
    message: String,
}

impl Fault {
    pub fn new(status: candle_status, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    pub fn argument(message: impl Into<String>) -> Self {
        Self::new(candle_status::InvalidArgument, message)
    }

    fn panicked(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Self::new(candle_status::Panicked, format!("the library panicked: {}", text.unwrap_or("without a message")))
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::new(status(&error), error.to_string())
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Error::from(error).into()
    }
}

fn status(error: &Error) -> candle_status {
    match error {
        Error::Config { .. } | Error::Input(_) => candle_status::InvalidArgument,
        Error::Io { .. } | Error::File { .. } => candle_status::File,
        Error::Tensor { .. } => candle_status::Tensor,
        Error::Engine(EngineError::Capacity { .. }) => candle_status::Capacity,
        Error::Engine(EngineError::Overloaded { .. }) => candle_status::Overloaded,
        Error::Engine(EngineError::DeadlineExceeded) => candle_status::DeadlineExceeded,
        Error::Engine(EngineError::Panicked(_) | EngineError::Failed(_)) => candle_status::ModelFailed,
        Error::Engine(EngineError::StateLost) => candle_status::StateLost,
        Error::Engine(EngineError::Closed) => candle_status::Closed,
        Error::Engine(EngineError::Input(error)) => status(error),
        _ => candle_status::Other,
    }
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

/// The message of the last call that failed on this thread, in UTF-8; empty before the first. It is valid until the next call that
/// fails on this thread, or until the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn candle_last_error() -> *const c_char {
    // A thread that is ending may have no message any more.
    LAST_ERROR.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

/// Runs the body of a function of the interface, and keeps the message of its failure. No panic leaves it.
pub(crate) fn call(body: impl FnOnce() -> Result<(), Fault>) -> candle_status {
    // What a panic leaves half done lies behind a mutex, which the panic poisons; everything else is only read.
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return candle_status::Ok,
        Ok(Err(fault)) => fault,
        Err(panic) => Fault::panicked(&*panic),
    };
    // On a thread that is ending the status has to do.
    let _ = LAST_ERROR.try_with(|last| last.replace(c_text(&fault.message)));
    fault.status
}

/// Text for C, in which a NUL ends it.
pub(crate) fn c_text(text: &str) -> CString {
    CString::new(text.replace('\0', "\\0")).unwrap_or_default()
}

/// What an argument points to.
pub(crate) fn some<T>(argument: Option<T>, name: &str) -> Result<T, Fault> {
    argument.ok_or_else(|| Fault::argument(format!("{name} is NULL")))
}

/// Text from C.
///
/// # Safety
/// It is null or ends with a NUL, and stays as it is while the result is used.
pub(crate) unsafe fn text<'a>(argument: *const c_char, name: &str) -> Result<&'a str, Fault> {
    if argument.is_null() {
        return some(None, name);
    }
    // SAFETY: the caller's promise.
    let bytes = unsafe { CStr::from_ptr(argument) };
    bytes.to_str().map_err(|e| Fault::argument(format!("{name} is not UTF-8: {e}")))
}

/// An array from C; null where it has no values.
///
/// # Safety
/// It is null or holds that many values, and stays as it is while the result is used.
pub(crate) unsafe fn array<'a, T>(argument: *const T, count: usize, name: &str) -> Result<&'a [T], Fault> {
    match (argument.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => some(None, name),
        (false, _) if count > isize::MAX as usize / size_of::<T>() => Err(Fault::argument(format!("{name} of {count} values"))),
        // SAFETY: the caller's promise.
        (false, _) => Ok(unsafe { std::slice::from_raw_parts(argument, count) }),
    }
}

/// Tells the caller where a row of so many bytes lies and how many values it has, floats or indices of four bytes. The pointer is that of the
/// engine's memory itself: one into a borrowed slice would end with the borrow.
pub(crate) fn give<P>(
    values: Option<&mut MaybeUninit<P>>,
    count: Option<&mut MaybeUninit<usize>>,
    pointer: P,
    bytes: usize,
) -> Result<(), Fault> {
    let (values, count) = (some(values, "values")?, some(count, "count")?);
    values.write(pointer);
    count.write(bytes / size_of::<f32>());
    Ok(())
}

/// A session or runner for the time of a call.
pub(crate) fn hold<'a, T>(handle: &'a Mutex<T>, name: &str) -> Result<MutexGuard<'a, T>, Fault> {
    handle.try_lock().map_err(|refused| match refused {
        TryLockError::WouldBlock => Fault::new(candle_status::InUse, format!("another thread is in a call with the {name}")),
        TryLockError::Poisoned(_) => {
            Fault::new(candle_status::Poisoned, format!("an earlier call with the {name} panicked: it can only be freed"))
        }
    })
}

//! Sessions.

use crate::call::{Fault, array, call, candle_status, give, hold, some, text};
use crate::candle_engine;
use candle_models::candle_core::{self, Device, safetensors::load_buffer};
use candle_models::engine::Session;
use candle_models::signature::TensorSpec;
use candle_models::{Error, Result};
use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// One agent: its inputs, its outputs and the model's state, which stays from step to step. It belongs to one thread at a time, and keeps
/// its engine running.
pub struct candle_session(Mutex<Session>);

/// Runs the body of a function with a session.
///
/// # Safety
/// It is null or has not been freed.
unsafe fn with(session: *mut candle_session, body: impl FnOnce(&mut Session) -> Result<(), Fault>) -> candle_status {
    // SAFETY: the caller's promise. The reference is a shared one: two threads at once are told apart by the mutex.
    call(|| body(&mut *hold(&some(unsafe { session.as_ref() }, "session")?.0, "session")?))
}

/// Opens a session in the initial state, its inputs at their defaults.
#[unsafe(no_mangle)]
pub extern "C" fn candle_session_open(
    engine: Option<&candle_engine>,
    session: Option<&mut MaybeUninit<Box<candle_session>>>,
) -> candle_status {
    call(|| {
        let (engine, session) = (some(engine, "engine")?, some(session, "session")?);
        session.write(Box::new(candle_session(Mutex::new(engine.0.open()?))));
        Ok(())
    })
}

/// An input of floats: `values` `[count]`, to be written in place between calls. It keeps its values, and the pointer stays the same until
/// the session is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_input_f32(
    session: *mut candle_session,
    name: *const c_char,
    values: Option<&mut MaybeUninit<*mut f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let bytes = session.input_bytes(&TensorSpec::f32(text(name, "name")?, &[]))?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An input of indices, as candle_session_input_f32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_input_u32(
    session: *mut candle_session,
    name: *const c_char,
    values: Option<&mut MaybeUninit<*mut u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let bytes = session.input_bytes(&TensorSpec::u32(text(name, "name")?, &[]))?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An output of floats of the last step: `values` `[count]`, to be read between calls; zeros before the first step, anything after a failed
/// one. The pointer stays the same until the session is freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_output_f32(
    session: *mut candle_session,
    name: *const c_char,
    values: Option<&mut MaybeUninit<*const f32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let bytes = session.output_bytes(&TensorSpec::f32(text(name, "name")?, &[]))?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// An output of indices, as candle_session_output_f32.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_output_u32(
    session: *mut candle_session,
    name: *const c_char,
    values: Option<&mut MaybeUninit<*const u32>>,
    count: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let bytes = session.output_bytes(&TensorSpec::u32(text(name, "name")?, &[]))?;
            give(values, count, bytes.cast(), bytes.len())
        })
    }
}

/// One frame: the inputs to the outputs, the state to the one behind the frame. It blocks until the answer is there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_step(session: *mut candle_session) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe { with(session, |session| Ok(session.step()?)) }
}

/// candle_session_step, unless it would begin later than in so many nanoseconds: then it is CANDLE_STATUS_DEADLINE_EXCEEDED. A step that
/// has begun is finished and gives its answer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_step_within(session: *mut candle_session, nanoseconds: u64) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            // A clock that does not reach so far sets no bound.
            match Instant::now().checked_add(Duration::from_nanos(nanoseconds)) {
                Some(deadline) => Ok(session.step_before(deadline)?),
                None => Ok(session.step()?),
            }
        })
    }
}

/// Back to the initial state: the next step is the first of a game. Inputs stay.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_reset(session: *mut candle_session) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            session.reset();
            Ok(())
        })
    }
}

/// How many frames the state has behind it: steps since the session was opened, reset or restored; a fork goes on from where it was made.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_frames(session: *mut candle_session, frames: Option<&mut MaybeUninit<u64>>) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            some(frames, "frames")?.write(session.frames()?);
            Ok(())
        })
    }
}

/// Copies the state to `buffer` `[capacity]` as the bytes of a safetensors file: the tensors of the signature's states by name, each of one
/// row, `[1, dims...]`. `size` is how many bytes that is, the same for every state of a model; it is written even where the buffer is too
/// small. NULL with a capacity of 0 asks for the size alone.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_save(
    session: *mut candle_session,
    buffer: *mut c_void,
    capacity: usize,
    size: Option<&mut MaybeUninit<usize>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let size = some(size, "size")?;
            let state = session.save()?;
            let bytes = safetensors::serialize(state.iter(), None).map_err(|e| Error::from(candle_core::Error::from(e)))?;
            size.write(bytes.len());
            match (buffer.is_null(), capacity) {
                (true, 0) => Ok(()),
                (true, _) => some(None, "buffer"),
                (false, _) if capacity < bytes.len() => {
                    let message = format!("the state has {} bytes, the buffer {capacity}", bytes.len());
                    Err(Fault::new(candle_status::BufferTooSmall, message))
                }
                (false, _) => {
                    ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.cast::<u8>(), bytes.len());
                    Ok(())
                }
            }
        })
    }
}

/// Goes on from a state that candle_session_save gave, in this engine or another of the same model. Another model's state, damaged bytes
/// and numbers that are not finite are refused, and the session's own state is untouched then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_restore(session: *mut candle_session, state: *const c_void, size: usize) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            let bytes = array(state.cast::<u8>(), size, "state")?;
            let damaged = |e| Fault::argument(format!("state: expected the bytes of a safetensors file: {e}"));
            let tensors = load_buffer(bytes, &Device::Cpu).map_err(damaged)?;
            Ok(session.restore(&tensors.into_iter().collect())?)
        })
    }
}

/// A new session with the same inputs, outputs and state, which goes its own way from here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn candle_session_fork(
    session: *mut candle_session,
    fork: Option<&mut MaybeUninit<Box<candle_session>>>,
) -> candle_status {
    // SAFETY: the caller's promise, as the header has it.
    unsafe {
        with(session, |session| {
            some(fork, "fork")?.write(Box::new(candle_session(Mutex::new(session.fork()?))));
            Ok(())
        })
    }
}

/// Frees a session, and with it the pointers to its inputs and outputs; NULL is nothing. It makes room for another session.
#[unsafe(no_mangle)]
pub extern "C" fn candle_session_free(session: Option<Box<candle_session>>) {
    call(|| {
        drop(session);
        Ok(())
    });
}

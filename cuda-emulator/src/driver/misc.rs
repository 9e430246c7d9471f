//! Names of errors, entry points by name, the profiler's switches.
use std::ffi::{c_char, c_void};

use super::{put, text};
use crate::{
    error::{Code, names},
    log,
};

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorName(code: i32, name: *mut *const c_char) -> i32 {
    match names(code) {
        Some((n, _)) => put(name, n.as_ptr().cast()).map_or(Code::InvalidValue as i32, |()| 0),
        None => Code::InvalidValue as i32,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetErrorString(code: i32, name: *mut *const c_char) -> i32 {
    match names(code) {
        Some((_, t)) => put(name, t.as_ptr().cast()).map_or(Code::InvalidValue as i32, |()| 0),
        None => Code::InvalidValue as i32,
    }
}

unsafe extern "C" {
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// The functions of this library, newest version first.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress_v2(symbol: *const c_char, to: *mut *mut c_void, _version: i32, _flags: u64, status: *mut u32) -> i32 {
    let Ok(symbol) = text(symbol) else { return Code::InvalidValue as i32 };
    for suffix in ["_v4\0", "_v3\0", "_v2\0", "\0"] {
        let name = format!("{symbol}{suffix}");
        // SAFETY: the name ends with a zero; a null handle means all loaded libraries.
        let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr().cast()) };
        if !found.is_null() {
            if !status.is_null() {
                // SAFETY: the caller passes a valid place or null.
                unsafe { status.write(0) };
            }
            return put(to, found).map_or(Code::InvalidValue as i32, |()| 0);
        }
    }
    log::error(&format!("cuGetProcAddress: no {symbol}"));
    if !status.is_null() {
        // SAFETY: as above.
        unsafe { status.write(1) };
    }
    Code::NotFound as i32
}

#[unsafe(no_mangle)]
pub extern "C" fn cuGetProcAddress(symbol: *const c_char, to: *mut *mut c_void, version: i32, flags: u64) -> i32 {
    cuGetProcAddress_v2(symbol, to, version, flags, std::ptr::null_mut())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStart() -> i32 {
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuProfilerStop() -> i32 {
    0
}

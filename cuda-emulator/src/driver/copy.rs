//! Copies and fills.
//!
//! A copy from pageable memory reads its source at the call, one to pageable memory waits; page-locked memory is touched
//! when the copy runs.
use std::ffi::c_void;

use super::{Driver, Handle, Locked, Work, WorkKind, api, current};
use crate::{
    error::{Code, Fault},
    memory::Memory,
};

/// One side of a copy.
#[derive(Clone)]
enum End {
    /// An address that the driver knows: device or page-locked.
    Known(u64),
    Pageable(usize),
    Bytes(std::sync::Arc<[u8]>),
}

impl End {
    fn of(memory: &Memory, address: u64) -> Self {
        if memory.containing(address).is_some() { Self::Known(address) } else { Self::Pageable(address as usize) }
    }

    fn host(&self, memory: &Memory, len: usize, write: bool) -> Result<*mut u8, Fault> {
        match self {
            Self::Known(address) => memory.host(*address, len, write),
            Self::Pageable(address) => Ok(*address as *mut u8),
            Self::Bytes(bytes) => Ok(bytes.as_ptr().cast_mut()),
        }
    }
}

fn copy(driver: &Driver, to: &End, from: &End, len: usize) -> Result<(), Fault> {
    let (to, from) = (to.host(&driver.memory, len, true)?, from.host(&driver.memory, len, false)?);
    // SAFETY: both ends have `len` bytes: allocations are checked, pageable memory is the caller's promise.
    unsafe { std::ptr::copy(from, to, len) };
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    /// The target, the source, or both must be memory of the device.
    ToDevice,
    FromDevice,
    Within,
    Any,
}

impl Locked {
    fn copy_async(&mut self, to: u64, from: u64, len: usize, stream: Handle, direction: Direction) -> Result<(), Fault> {
        let key = self.stream_key(stream)?;
        if len == 0 {
            return Ok(());
        }
        let (to_end, mut from_end) = (
            self.end(to, len, direction != Direction::FromDevice && direction != Direction::Any, true)?,
            self.end(from, len, direction != Direction::ToDevice && direction != Direction::Any, false)?,
        );
        let capturing = self.streams[&key].capture;
        let pageable = matches!(to_end, End::Pageable(_)) || matches!(from_end, End::Pageable(_));
        if let (Some(capture), true) = (capturing, pageable) {
            // Hardware would record the address: a replay reads whatever is there by then.
            self.invalidate(capture, "a copy with pageable memory");
            let text = "a copy from or to pageable memory in a capture: every replay would use this address again";
            return Err(Fault::new(Code::CaptureUnsupported, text));
        }
        if let End::Pageable(address) = from_end {
            // SAFETY: the caller passes `len` readable bytes.
            from_end = End::Bytes(unsafe { std::slice::from_raw_parts(address as *const u8, len) }.into());
        }
        let waits = matches!(to_end, End::Pageable(_));
        self.enqueue(key, Work::new(WorkKind::Copy, move |driver| copy(driver, &to_end, &from_end, len)))?;
        if waits {
            self.run_stream(key);
        }
        Ok(())
    }

    /// The end of a copy, which must be the driver's memory if `device`.
    fn end(&self, address: u64, len: usize, device: bool, write: bool) -> Result<End, Fault> {
        if address == 0 {
            return Err(Fault::new(Code::InvalidValue, "a copy with a null pointer"));
        }
        let end = End::of(&self.memory, address);
        if device {
            let Some(a) = self.memory.containing(address) else {
                let verb = if write { "to" } else { "from" };
                return Err(Fault::new(Code::InvalidValue, format!("a copy {verb} {address:#x}: {}", self.memory.describe(address))));
            };
            if address - a.base + len as u64 > a.size as u64 {
                return Err(Fault::new(
                    Code::InvalidValue,
                    format!("a copy of {len} bytes at {address:#x} passes the end of {}", a.label()),
                ));
            }
        }
        Ok(end)
    }

    /// A copy that the host waits for; it goes through the legacy stream.
    fn copy_sync(&mut self, to: u64, from: u64, len: usize, direction: Direction) -> Result<(), Fault> {
        current()?;
        self.unsafe_call("a synchronous copy")?;
        self.legacy_in_capture()?;
        self.copy_async(to, from, len, std::ptr::null_mut(), direction)?;
        let key = self.stream_key(std::ptr::null_mut())?;
        self.run_stream(key);
        Ok(())
    }

    fn fill(&mut self, to: u64, pattern: &[u8], count: usize, stream: Option<Handle>) -> Result<(), Fault> {
        let len = pattern.len() * count;
        if len == 0 {
            return Ok(());
        }
        if !to.is_multiple_of(pattern.len() as u64) {
            return Err(Code::InvalidValue.into());
        }
        self.end(to, len, true, true)?;
        if stream.is_none() {
            self.unsafe_call("a synchronous memset")?;
        }
        let key = self.stream_key(stream.unwrap_or(std::ptr::null_mut()))?;
        let pattern = pattern.to_vec();
        let work = Work::new(WorkKind::Memset, move |driver| {
            let host = driver.memory.host(to, len, true)?;
            // SAFETY: `host` has checked `len` bytes.
            let bytes = unsafe { std::slice::from_raw_parts_mut(host, len) };
            for chunk in bytes.chunks_exact_mut(pattern.len()) {
                chunk.copy_from_slice(&pattern);
            }
            Ok(())
        });
        self.enqueue(key, work)
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpy(to: u64, from: u64, len: usize) -> i32 {
    api(|driver| driver.copy_sync(to, from, len, Direction::Any))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyAsync(to: u64, from: u64, len: usize, stream: Handle) -> i32 {
    api(|driver| driver.copy_async(to, from, len, stream, Direction::Any))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> i32 {
    api(|driver| driver.copy_sync(to, from as u64, len, Direction::ToDevice))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, stream: Handle) -> i32 {
    api(|driver| driver.copy_async(to, from as u64, len, stream, Direction::ToDevice))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> i32 {
    api(|driver| driver.copy_sync(to as u64, from, len, Direction::FromDevice))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, stream: Handle) -> i32 {
    api(|driver| driver.copy_async(to as u64, from, len, stream, Direction::FromDevice))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoD_v2(to: u64, from: u64, len: usize) -> i32 {
    api(|driver| driver.copy_sync(to, from, len, Direction::Within))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, stream: Handle) -> i32 {
    api(|driver| driver.copy_async(to, from, len, stream, Direction::Within))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyPeerAsync(to: u64, _to_context: Handle, from: u64, _from_context: Handle, len: usize, stream: Handle) -> i32 {
    api(|driver| driver.copy_async(to, from, len, stream, Direction::Within))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8_v2(to: u64, value: u8, count: usize) -> i32 {
    api(|driver| driver.fill(to, &[value], count, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16_v2(to: u64, value: u16, count: usize) -> i32 {
    api(|driver| driver.fill(to, &value.to_le_bytes(), count, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32_v2(to: u64, value: u32, count: usize) -> i32 {
    api(|driver| driver.fill(to, &value.to_le_bytes(), count, None))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle) -> i32 {
    api(|driver| driver.fill(to, &[value], count, Some(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle) -> i32 {
    api(|driver| driver.fill(to, &value.to_le_bytes(), count, Some(stream)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle) -> i32 {
    api(|driver| driver.fill(to, &value.to_le_bytes(), count, Some(stream)))
}

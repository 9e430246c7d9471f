//! Initialisation, devices and contexts. A context is always the primary one of its device.
use std::cell::Cell;

use super::{CONTEXT, Driver, Handle, Locked, api, current, put};
use crate::error::{Code, Fault};

const CONTEXT_BASE: usize = 0x800;

pub(crate) fn context_handle(device: i32) -> Handle {
    (CONTEXT_BASE + 1 + device as usize) as Handle
}

fn context_slot(context: Handle) -> Result<usize, Fault> {
    match context as usize {
        0 => Ok(0),
        c if c > CONTEXT_BASE && c < CONTEXT_BASE + 0x100 => Ok(c - CONTEXT_BASE),
        _ => Err(Code::InvalidContext.into()),
    }
}

impl Driver {
    fn device(&self, device: i32) -> Result<(), Fault> {
        if (0..self.config.devices).contains(&device) {
            return Ok(());
        }
        Err(Fault::new(Code::InvalidDevice, format!("device {device} of {}", self.config.devices)))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: u32) -> i32 {
    let mut driver = Locked::new();
    let state: &mut Driver = &mut driver;
    if state.config.devices == 0 {
        return Code::NoDevice as i32;
    }
    state.initialised = true;
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDriverGetVersion(version: *mut i32) -> i32 {
    let mut driver = Locked::new();
    let state: &mut Driver = &mut driver;
    put(version, state.config.driver_version).map_or_else(|f| f.code as i32, |()| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGet(device: *mut i32, ordinal: i32) -> i32 {
    api(|driver| {
        driver.device(ordinal)?;
        put(device, ordinal)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetCount(count: *mut i32) -> i32 {
    api(|driver| put(count, driver.config.devices))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetName(name: *mut u8, len: i32, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        copy_text(name, len, "CUDA emulator")
    })
}

fn copy_text(to: *mut u8, len: i32, text: &str) -> Result<(), Fault> {
    let room = usize::try_from(len).unwrap_or(0);
    if to.is_null() || room == 0 {
        return Err(Code::InvalidValue.into());
    }
    let n = text.len().min(room - 1);
    // SAFETY: the caller passes `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to, n);
        to.add(n).write(0);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetPCIBusId(id: *mut u8, len: i32, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        copy_text(id, len, &format!("0000:{:02x}:00.0", device + 1))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        let mut bytes = *b"cuda-emulator-00";
        bytes[15] += device as u8;
        put(uuid, bytes)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: i32) -> i32 {
    cuDeviceGetUuid_v2(uuid, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        put(bytes, driver.config.memory)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceComputeCapability(major: *mut i32, minor: *mut i32, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        put(major, driver.config.capability.0)?;
        put(minor, driver.config.capability.1)
    })
}

/// Limits that the launches check too.
pub const MAX_THREADS: u32 = 1024;
pub const MAX_STATIC_SHARED: usize = 48 << 10;
pub const MAX_DYNAMIC_SHARED: usize = 227 << 10;
pub const MULTIPROCESSORS: i32 = 132;
pub const THREADS_PER_MULTIPROCESSOR: i32 = 2048;
pub const SHARED_PER_MULTIPROCESSOR: usize = 228 << 10;

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetAttribute(value: *mut i32, attribute: i32, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        let found = match attribute {
            1..=3 => MAX_THREADS as i32,
            4 => 64,
            5 => i32::MAX,
            6 | 7 => 65535,
            8 => MAX_STATIC_SHARED as i32,
            9 => 65536,
            10 => 32,
            11 => i32::MAX,
            12 | 82 => 65536,
            // Clock rates are those of an H100; nothing here is timed.
            13 => 1_980_000,
            16 => MULTIPROCESSORS,
            14 | 51 => 512,
            15 | 31 | 32 | 41 | 78 | 79 | 80 | 83 | 90 | 95 | 102 | 115 => 1,
            33 => device + 1,
            36 => 2_619_000,
            37 => 5120,
            38 => 50 << 20,
            39 => THREADS_PER_MULTIPROCESSOR,
            40 => 3,
            75 => driver.config.capability.0,
            76 => driver.config.capability.1,
            81 => SHARED_PER_MULTIPROCESSOR as i32,
            97 => MAX_DYNAMIC_SHARED as i32,
            99 | 19 | 91 => 1,
            106 => 32,
            111 => 1024,
            _ => 0,
        };
        put(value, found)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        *driver.retained.entry(device).or_default() += 1;
        put(context, context_handle(device))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        match driver.retained.get_mut(&device) {
            Some(count) if *count > 0 => *count -= 1,
            _ => return Err(Code::InvalidContext.into()),
        }
        driver.run_all();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        put(flags, 0)?;
        put(active, i32::from(driver.retained.get(&device).is_some_and(|c| *c > 0)))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxSetFlags_v2(device: i32, _flags: u32) -> i32 {
    api(|driver| driver.device(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceCanAccessPeer(can: *mut i32, device: i32, peer: i32) -> i32 {
    api(|driver| {
        driver.device(device)?;
        driver.device(peer)?;
        put(can, i32::from(device != peer))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxEnablePeerAccess(_peer: Handle, _flags: u32) -> i32 {
    api(|_| Ok(()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: Handle) -> i32 {
    api(|_| {
        let slot = context_slot(context)?;
        CONTEXT.with(|c| c.set(slot));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> i32 {
    api(|_| {
        let slot = CONTEXT.with(Cell::get);
        put(context, if slot == 0 { std::ptr::null_mut() } else { context_handle(slot as i32 - 1) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> i32 {
    cuCtxSetCurrent(context)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> i32 {
    api(|_| {
        let slot = CONTEXT.with(|c| c.replace(0));
        if slot == 0 {
            return Err(Code::InvalidContext.into());
        }
        if context.is_null() { Ok(()) } else { put(context, context_handle(slot as i32 - 1)) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetDevice(device: *mut i32) -> i32 {
    api(|_| put(device, current()?))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetApiVersion(_context: Handle, version: *mut u32) -> i32 {
    api(|_| put(version, 3020))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> i32 {
    api(|driver| {
        current()?;
        driver.any_capture("cuCtxSynchronize")?;
        driver.run_all();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetStreamPriorityRange(least: *mut i32, greatest: *mut i32) -> i32 {
    api(|_| {
        for (to, value) in [(least, 0), (greatest, -5)] {
            if !to.is_null() {
                put(to, value)?;
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_flags: u32) -> i32 {
    api(|_| current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetFlags(flags: *mut u32) -> i32 {
    api(|_| put(flags, 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetLimit(_limit: u32, _value: usize) -> i32 {
    api(|_| current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetLimit(value: *mut usize, limit: u32) -> i32 {
    // Stack per thread, printf buffer, heap.
    api(|_| put(value, [1024, 1 << 20, 8 << 20].get(limit as usize).copied().unwrap_or(0)))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCacheConfig(_config: u32) -> i32 {
    api(|_| current().map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxGetCacheConfig(config: *mut u32) -> i32 {
    api(|_| put(config, 0))
}

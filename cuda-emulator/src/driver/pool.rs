//! Memory pools: their attributes are kept, their memory is the device's.
use std::{collections::HashMap, ffi::c_void};

use super::{Driver, Handle, api, put};
use crate::error::{Code, Fault};

#[derive(Default)]
pub struct Pool {
    attributes: HashMap<u32, u64>,
}

const DEFAULT_POOL: usize = 0x900;

impl Driver {
    fn pool(&mut self, pool: Handle) -> Result<&mut Pool, Fault> {
        let key = pool as usize;
        if key >= DEFAULT_POOL && key < DEFAULT_POOL + self.config.devices as usize {
            return Ok(self.pools.entry(key).or_default());
        }
        self.pools.get_mut(&key).ok_or_else(|| Code::InvalidValue.into())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetDefaultMemPool(pool: *mut Handle, device: i32) -> i32 {
    api(|driver| {
        if device < 0 || device >= driver.config.devices {
            return Err(Code::InvalidDevice.into());
        }
        put(pool, (DEFAULT_POOL + device as usize) as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGetMemPool(pool: *mut Handle, device: i32) -> i32 {
    cuDeviceGetDefaultMemPool(pool, device)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceSetMemPool(_device: i32, pool: Handle) -> i32 {
    api(|driver| driver.pool(pool).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolCreate(pool: *mut Handle, _properties: *const c_void) -> i32 {
    api(|driver| {
        let key = driver.handle();
        driver.pools.insert(key, Pool::default());
        put(pool, key as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolDestroy(pool: Handle) -> i32 {
    api(|driver| driver.pools.remove(&(pool as usize)).map(|_| ()).ok_or_else(|| Code::InvalidValue.into()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: Handle, _keep: usize) -> i32 {
    api(|driver| driver.pool(pool).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolSetAttribute(pool: Handle, attribute: u32, value: *const c_void) -> i32 {
    api(|driver| {
        if value.is_null() || !(1..=8).contains(&attribute) {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: the caller passes an int for the switches (1 to 3) and a 64-bit number for the sizes.
        let value = unsafe { if attribute < 4 { u64::from(value.cast::<u32>().read()) } else { value.cast::<u64>().read() } };
        driver.pool(pool)?.attributes.insert(attribute, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolGetAttribute(pool: Handle, attribute: u32, value: *mut c_void) -> i32 {
    api(|driver| {
        let (used, peak) = (driver.memory.used((pool as usize).saturating_sub(DEFAULT_POOL) as i32), driver.memory.peak);
        let kept = driver.pool(pool)?.attributes.get(&attribute).copied();
        match attribute {
            1..=3 => put(value.cast(), kept.unwrap_or(1) as u32),
            4 => put(value.cast(), kept.unwrap_or(0)),
            5 | 7 => put(value.cast(), used as u64),
            6 | 8 => put(value.cast(), peak as u64),
            _ => Err(Code::InvalidValue.into()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocFromPoolAsync(to: *mut u64, size: usize, pool: Handle, stream: Handle) -> i32 {
    api(|driver| {
        driver.pool(pool)?;
        driver.allocate_async(to, size, stream, "cuMemAllocFromPoolAsync")
    })
}

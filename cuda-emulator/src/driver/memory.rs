//! Allocation and release of memory, in stream order or at once.
use std::ffi::c_void;

use super::{Driver, GraphMemory, Handle, Locked, Work, WorkKind, api, context_handle, current, put};
use crate::{
    error::{Code, Fault},
    log,
    memory::{Kind, State},
};

impl Locked {
    /// Finds room and allocates; work that is queued may free some.
    pub(crate) fn allocate(&mut self, size: usize, kind: Kind, state: State, device: i32, origin: &str) -> Result<u64, Fault> {
        if size == 0 {
            return Err(Code::InvalidValue.into());
        }
        self.allocations_asked += 1;
        if self.config.fail_alloc == Some(self.allocations_asked) {
            let text = format!("allocation {} fails because CUDA_EMULATOR_FAIL_ALLOC asks for it", self.allocations_asked);
            return Err(Fault::new(Code::OutOfMemory, text));
        }
        let full = |d: &Driver| kind != Kind::Pinned && d.memory.used(device) + size > d.config.memory;
        if full(self) && self.captures.is_empty() {
            self.run_all();
        }
        if full(self) {
            let (used, all) = (self.memory.used(device), self.config.memory);
            return Err(Fault::new(Code::OutOfMemory, format!("{origin} of {size} bytes: {used} of {all} are in use")));
        }
        self.memory.allocate(size, kind, state, device, origin).ok_or_else(|| Code::OutOfMemory.into())
    }

    pub(crate) fn allocate_async(&mut self, to: *mut u64, size: usize, stream: Handle, origin: &str) -> Result<(), Fault> {
        let key = self.stream_key(stream)?;
        let device = self.streams[&key].device;
        let capture = self.streams[&key].capture;
        let (kind, state) = if capture.is_some() { (Kind::Graph, State::Dormant) } else { (Kind::Device, State::Pending) };
        let base = self.allocate(size, kind, state, device, origin)?;
        if let Some(capture) = capture.and_then(|c| self.captures.get_mut(&c)) {
            capture.allocated.push(base);
            self.graph_memory.insert(base, GraphMemory::default());
        }
        let work = Work::new(WorkKind::Alloc, move |driver| {
            let allocation = driver.memory.at(base).ok_or(Code::InvalidValue)?;
            allocation.state = State::Live;
            allocation.poison();
            Ok(())
        });
        self.enqueue(key, work)?;
        put(to, base)
    }

    fn free_async(&mut self, base: u64, stream: Handle) -> Result<(), Fault> {
        let key = self.stream_key(stream)?;
        if let Some(id) = self.streams[&key].capture {
            return self.free_in_capture(base, key, id);
        }
        if let Some(memory) = self.graph_memory.get_mut(&base) {
            if !memory.live {
                return Err(Fault::new(Code::InvalidValue, format!("free of graph memory {base:#x} that no launch has allocated")));
            }
            memory.live = false;
            let last = memory.orphan;
            if last {
                self.graph_memory.remove(&base);
            }
            let work = Work::new(WorkKind::Free, move |driver| match driver.memory.at(base) {
                Some(_) if last => driver.memory.free(base),
                Some(allocation) => {
                    allocation.state = State::Dormant;
                    Ok(())
                }
                None => Ok(()),
            });
            return self.enqueue(key, work);
        }
        self.check_free(base)?;
        if let Some(a) = self.memory.at(base) {
            a.free_queued = true;
        }
        self.enqueue(key, Work::new(WorkKind::Free, move |driver| driver.memory.free(base)))
    }

    /// In a capture only the graph's own memory can be freed.
    fn free_in_capture(&mut self, base: u64, key: usize, id: usize) -> Result<(), Fault> {
        let own = self.captures.get(&id).is_some_and(|c| c.allocated.contains(&base) && !c.freed.contains(&base));
        if !own {
            self.invalidate(id, "a free of memory that the capture has not allocated");
            let what = self.memory.containing(base).map_or_else(|| self.memory.describe(base), |a| a.label());
            return Err(Fault::new(Code::InvalidValue, format!("a free inside a capture of memory from outside: {what}")));
        }
        if let Some(capture) = self.captures.get_mut(&id) {
            capture.freed.push(base);
        }
        let work = Work::new(WorkKind::Free, move |driver| {
            driver.memory.at(base).ok_or(Code::InvalidValue)?.state = State::Dormant;
            Ok(())
        });
        self.enqueue(key, work)
    }

    fn check_free(&mut self, base: u64) -> Result<(), Fault> {
        match self.memory.at(base) {
            Some(a) if a.free_queued => Err(Fault::new(Code::InvalidValue, format!("second free of {}", a.label()))),
            Some(_) => Ok(()),
            None => Err(Fault::new(Code::InvalidValue, format!("free of {base:#x}: {}", self.memory.describe(base)))),
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAlloc_v2(to: *mut u64, size: usize) -> i32 {
    api(|driver| {
        let device = current()?;
        driver.unsafe_call("cuMemAlloc")?;
        let base = driver.allocate(size, Kind::Device, State::Live, device, "cuMemAlloc")?;
        driver.counts.total.allocations += 1;
        put(to, base)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocAsync(to: *mut u64, size: usize, stream: Handle) -> i32 {
    api(|driver| driver.allocate_async(to, size, stream, "cuMemAllocAsync"))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocManaged(to: *mut u64, size: usize, _flags: u32) -> i32 {
    api(|driver| {
        let device = current()?;
        driver.unsafe_call("cuMemAllocManaged")?;
        let base = driver.allocate(size, Kind::Managed, State::Live, device, "cuMemAllocManaged")?;
        put(to, base)
    })
}

/// Waits for all work, as hardware does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(base: u64) -> i32 {
    api(|driver| {
        driver.unsafe_call("cuMemFree")?;
        if base == 0 {
            return Ok(());
        }
        driver.run_all();
        driver.check_free(base)?;
        driver.counts.total.frees += 1;
        driver.graph_memory.remove(&base);
        driver.memory.free(base)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(base: u64, stream: Handle) -> i32 {
    api(|driver| if base == 0 { Ok(()) } else { driver.free_async(base, stream) })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, size: usize, _flags: u32) -> i32 {
    api(|driver| {
        let device = current()?;
        driver.unsafe_call("cuMemHostAlloc")?;
        let base = driver.allocate(size, Kind::Pinned, State::Live, device, "cuMemHostAlloc")?;
        put(to, base as *mut c_void)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAllocHost_v2(to: *mut *mut c_void, size: usize) -> i32 {
    cuMemHostAlloc(to, size, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(host: *mut c_void) -> i32 {
    api(|driver| {
        driver.unsafe_call("cuMemFreeHost")?;
        driver.run_all();
        let base = host as u64;
        if driver.memory.at(base).is_none_or(|a| a.kind != Kind::Pinned) {
            return Err(Fault::new(Code::InvalidValue, format!("{base:#x} is not page-locked memory")));
        }
        driver.memory.free(base)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostRegister_v2(host: *mut c_void, size: usize, _flags: u32) -> i32 {
    api(|driver| {
        driver.memory.register(host.cast(), size);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostUnregister(host: *mut c_void) -> i32 {
    api(|driver| {
        driver.run_all();
        match driver.memory.at(host as u64) {
            Some(a) if a.kind == Kind::Registered => driver.memory.free(host as u64),
            _ => Err(Code::InvalidValue.into()),
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostGetDevicePointer_v2(to: *mut u64, host: *mut c_void, _flags: u32) -> i32 {
    api(|driver| match driver.memory.containing(host as u64) {
        Some(_) => put(to, host as u64),
        None => Err(Code::InvalidValue.into()),
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemHostGetFlags(flags: *mut u32, _host: *mut c_void) -> i32 {
    api(|_| put(flags, 0))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> i32 {
    api(|driver| {
        let device = current()?;
        let all = driver.config.memory;
        put(free, all.saturating_sub(driver.memory.used(device)))?;
        put(total, all)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) -> i32 {
    api(|driver| {
        let a = driver.memory.containing(address).ok_or(Code::NotFound)?;
        if !base.is_null() {
            put(base, a.base)?;
        }
        if size.is_null() { Ok(()) } else { put(size, a.size) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPrefetchAsync_v2(_at: u64, _size: usize, _location: u64, _flags: u32, stream: Handle) -> i32 {
    api(|driver| driver.stream_key(stream).map(|_| ()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemAdvise_v2(_at: u64, _size: usize, _advice: u32, _location: u64) -> i32 {
    api(|_| Ok(()))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuPointerGetAttribute(data: *mut c_void, attribute: u32, address: u64) -> i32 {
    api(|driver| {
        let a = driver.memory.containing(address).ok_or(Code::InvalidValue)?;
        match attribute {
            1 => put(data.cast(), context_handle(a.device)),
            // CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
            2 => put(data.cast(), if matches!(a.kind, Kind::Pinned | Kind::Registered) { 1u32 } else { 2 }),
            3 => put(data.cast(), address),
            4 => match a.kind {
                Kind::Pinned | Kind::Registered | Kind::Managed => put(data.cast(), address),
                _ => Err(Code::InvalidValue.into()),
            },
            7 => put(data.cast(), a.base),
            8 => put(data.cast(), u32::from(a.kind == Kind::Managed)),
            9 => put(data.cast(), a.device),
            11 => put(data.cast(), a.base),
            12 => put(data.cast(), a.size),
            13 => put(data.cast(), 1u32),
            17 => put(data.cast(), std::ptr::null_mut::<c_void>()),
            _ => {
                log::error(&format!("pointer attribute {attribute} is unknown"));
                Err(Code::NotSupported.into())
            }
        }
    })
}

//! Device memory: allocations with their life, at addresses that are not used again, and the diagnosis of a bad address.
use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
};

use crate::error::{Code, Fault};

/// What an allocation is for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Device,
    /// Page-locked host memory: its address is the host's.
    Pinned,
    /// Memory of the program, registered as page-locked.
    Registered,
    Managed,
    /// A module's variable; constants are read-only.
    Variable,
    Constant,
    /// Memory that a graph allocates when it runs.
    Graph,
}

/// Where an allocation is in its life.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    /// Its allocation is queued on a stream and has not run.
    Pending,
    Live,
    /// A graph's memory between its free and the next launch, or before the first.
    Dormant,
    Freed,
}

#[derive(Debug)]
pub struct Allocation {
    pub base: u64,
    pub size: usize,
    pub host: *mut u8,
    pub state: State,
    pub kind: Kind,
    pub device: i32,
    /// The call that made it, with its number.
    pub origin: String,
    /// A queued free: freeing again is an error before it has run.
    pub free_queued: bool,
}

// SAFETY: the pointer belongs to the allocation, and the driver's lock guards all accesses.
unsafe impl Send for Allocation {}

/// All memory that kernels can reach.
#[derive(Default)]
pub struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    /// Freed ones, for messages.
    freed: BTreeMap<u64, Allocation>,
    next: u64,
    used: BTreeMap<i32, usize>,
    count: u64,
    pub peak: usize,
}

/// Addresses of allocations lie this far apart at least, and are multiples of it.
const ALIGN: usize = 512;
const FIRST: u64 = 0x0200_0000_0000;
const REMEMBERED: usize = 16384;
/// Fresh memory holds NaNs and -1, never zeros.
const POISON: u8 = 0xff;

impl Memory {
    /// Memory in use on a device, in bytes.
    pub fn used(&self, device: i32) -> usize {
        self.used.get(&device).copied().unwrap_or(0)
    }

    /// How many allocations were made.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn allocate(&mut self, size: usize, kind: Kind, state: State, device: i32, origin: &str) -> Option<u64> {
        let layout = Layout::from_size_align(size.max(1), ALIGN).ok()?;
        // SAFETY: the layout has a size above zero.
        let host = unsafe { alloc(layout) };
        if host.is_null() {
            return None;
        }
        // SAFETY: `host` has `size` bytes.
        unsafe { host.write_bytes(POISON, size) };
        self.count += 1;
        let base = if matches!(kind, Kind::Pinned | Kind::Managed) {
            host as u64
        } else {
            let base = self.next.max(FIRST);
            // A gap behind every allocation, so that a short overrun meets nothing.
            self.next = base + (size.div_ceil(ALIGN) * ALIGN + ALIGN) as u64;
            base
        };
        if kind != Kind::Pinned {
            *self.used.entry(device).or_default() += size;
            self.peak = self.peak.max(self.used(device));
        }
        let origin = format!("{origin} (allocation {})", self.count);
        self.freed.remove(&base);
        self.allocations.insert(base, Allocation { base, size, host, state, kind, device, origin, free_queued: false });
        Some(base)
    }

    /// Makes the program's own memory reachable at its address.
    pub fn register(&mut self, host: *mut u8, size: usize) {
        let base = host as u64;
        self.allocations.insert(
            base,
            Allocation {
                base,
                size,
                host,
                state: State::Live,
                kind: Kind::Registered,
                device: 0,
                origin: "cuMemHostRegister".into(),
                free_queued: false,
            },
        );
    }

    /// Ends an allocation; its address stays known as freed.
    pub fn free(&mut self, base: u64) -> Result<(), Fault> {
        let Some(mut allocation) = self.allocations.remove(&base) else {
            return Err(Fault::new(Code::InvalidValue, format!("free of {}", self.describe(base))));
        };
        if allocation.kind != Kind::Registered {
            // SAFETY: `allocate` made it with this layout.
            unsafe { dealloc(allocation.host, Layout::from_size_align_unchecked(allocation.size.max(1), ALIGN)) };
        }
        if !matches!(allocation.kind, Kind::Pinned | Kind::Registered) {
            *self.used.entry(allocation.device).or_default() -= allocation.size;
        }
        allocation.host = std::ptr::null_mut();
        allocation.state = State::Freed;
        self.freed.insert(base, allocation);
        if self.freed.len() > REMEMBERED {
            self.freed.pop_first();
        }
        Ok(())
    }

    /// The allocation that holds an address.
    pub fn containing(&self, address: u64) -> Option<&Allocation> {
        let (_, allocation) = self.allocations.range(..=address).next_back()?;
        (address - allocation.base < allocation.size.max(1) as u64).then_some(allocation)
    }

    pub fn at(&mut self, base: u64) -> Option<&mut Allocation> {
        self.allocations.get_mut(&base)
    }

    /// The host address of `len` bytes of device memory, all inside one live allocation.
    pub fn host(&self, address: u64, len: usize, write: bool) -> Result<*mut u8, Fault> {
        let allocation = self.find(address, len, write)?;
        // SAFETY: the offset is inside the allocation.
        Ok(unsafe { allocation.host.add((address - allocation.base) as usize) })
    }

    /// The live allocation that holds `len` bytes from an address.
    pub fn find(&self, address: u64, len: usize, write: bool) -> Result<&Allocation, Fault> {
        let verb = if write { "write" } else { "read" };
        let bad = |text: String| Err(Fault::new(Code::IllegalAddress, format!("{verb} of {len} bytes at {address:#x}: {text}")));
        let Some(allocation) = self.containing(address) else {
            return bad(self.describe(address));
        };
        if allocation.state == State::Pending {
            return bad(format!("{} is used before its allocation has run: a stream is not synchronised", allocation.label()));
        }
        if allocation.state == State::Dormant {
            return bad(format!("{} is not allocated now: its graph has freed it or has not been launched", allocation.label()));
        }
        if allocation.kind == Kind::Constant && write {
            return bad(format!("{} is read-only", allocation.label()));
        }
        let room = allocation.size as u64 - (address - allocation.base).min(allocation.size as u64);
        if (len as u64) > room {
            return bad(format!("only {room} bytes are left in {}", allocation.label()));
        }
        Ok(allocation)
    }

    /// What is known of an address that belongs to no allocation.
    pub fn describe(&self, address: u64) -> String {
        if let Some(a) = self.freed.range(..=address).next_back().map(|e| e.1).filter(|a| address - a.base < a.size.max(1) as u64) {
            return format!("use after free of {}", a.label());
        }
        let below = self.allocations.range(..=address).next_back().map(|e| e.1);
        let above = self.allocations.range(address..).next().map(|e| e.1);
        let mut text = "no allocation is there".to_string();
        if let Some(a) = below.filter(|a| !matches!(a.kind, Kind::Pinned | Kind::Registered)) {
            text += &format!("; {} bytes past the end of {}", address - a.base - a.size as u64, a.label());
        }
        if let Some(a) = above {
            text += &format!("; {} bytes below {}", a.base - address, a.label());
        }
        text
    }
}

impl Allocation {
    /// Fills it as if it were fresh.
    pub fn poison(&mut self) {
        // SAFETY: `host` has `size` bytes.
        unsafe { self.host.write_bytes(POISON, self.size) };
    }

    pub fn label(&self) -> String {
        format!("[{:#x}, +{}] from {}", self.base, self.size, self.origin)
    }
}

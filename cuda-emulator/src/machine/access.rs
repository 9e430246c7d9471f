//! Loads and stores: spaces, bounds, alignment.
use super::race;
use crate::{
    decode::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SIZE},
    error::{Code, Fault},
    memory::Memory,
    ptx::Space,
};

#[derive(Clone, Copy, Default)]
struct Range {
    base: u64,
    len: u64,
    host: usize,
    writable: bool,
}

/// Global memory with the ranges found last, and counters.
pub struct Global<'a> {
    memory: &'a mut Memory,
    recent: [Range; 8],
    pub read: u64,
    pub written: u64,
}

impl<'a> Global<'a> {
    pub fn new(memory: &'a mut Memory) -> Self {
        Self { memory, recent: [Range::default(); 8], read: 0, written: 0 }
    }

    /// The host address of `len` bytes.
    fn locate(&mut self, address: u64, len: usize, write: bool) -> Result<*mut u8, Fault> {
        for i in 0..self.recent.len() {
            let r = self.recent[i];
            let offset = address.wrapping_sub(r.base);
            if offset < r.len && offset + len as u64 <= r.len && (r.writable || !write) {
                if i > 3 {
                    self.recent.swap(i, i / 2);
                }
                return Ok((r.host + offset as usize) as *mut u8);
            }
        }
        let a = self.memory.find(address, len, write)?;
        let range = Range { base: a.base, len: a.size as u64, host: a.host as usize, writable: a.kind != crate::memory::Kind::Constant };
        self.recent.rotate_right(1);
        self.recent[0] = range;
        Ok((range.host + (address - range.base) as usize) as *mut u8)
    }
}

/// All memory that one thread sees.
pub struct Spaces<'a, 'b> {
    pub global: &'a mut Global<'b>,
    pub shared: &'a mut [u8],
    pub local: &'a mut Vec<u8>,
    pub frames: &'a mut Vec<u8>,
    pub params: &'a [u8],
    pub params_base: usize,
    pub race: race::Watch<'a>,
}

/// A place in memory, with what the race detector needs to know of it.
#[derive(Clone, Copy)]
pub struct Place {
    pub host: *mut u8,
    pub space: Space,
    pub address: u64,
}

impl Spaces<'_, '_> {
    /// Finds `len` bytes, `align`ed as a whole.
    pub fn place(&mut self, space: Space, address: u64, len: usize, align: usize, write: bool) -> Result<Place, Fault> {
        let (space, address) = match space {
            Space::Generic => match address {
                a if a < SHARED_WINDOW => (Space::Global, a),
                a if a < LOCAL_WINDOW => (Space::Shared, a - SHARED_WINDOW),
                a if a < PARAM_WINDOW => (Space::Local, a - LOCAL_WINDOW),
                a if a < PARAM_WINDOW + WINDOW_SIZE => (Space::Param, a),
                a => (Space::Global, a),
            },
            s => (s, address),
        };
        if address % align as u64 != 0 {
            return Err(Fault::new(Code::MisalignedAddress, format!("{space:?} address {address:#x} is not a multiple of {align}")));
        }
        let host = match space {
            Space::Global | Space::Const => {
                if write {
                    self.global.written += len as u64;
                } else {
                    self.global.read += len as u64;
                }
                self.global.locate(address, len, write)?
            }
            Space::Shared => inside(self.shared, address, len, "shared memory")?,
            Space::Local => inside(self.local, address, len, "local memory")?,
            Space::Frame => inside(self.frames, address + self.params_base as u64, len, "the parameters of a call")?,
            _ => {
                let offset = address.wrapping_sub(if address >= PARAM_WINDOW { PARAM_WINDOW } else { 0 });
                if write || offset + len as u64 > self.params.len() as u64 {
                    let text = format!("bytes {offset}..{} of {} bytes of kernel parameters", offset + len as u64, self.params.len());
                    return Err(Fault::new(Code::IllegalAddress, text));
                }
                (self.params.as_ptr() as usize + offset as usize) as *mut u8
            }
        };
        Ok(Place { host, space, address })
    }
}

fn inside(bytes: &mut [u8], address: u64, len: usize, what: &str) -> Result<*mut u8, Fault> {
    if address.checked_add(len as u64).is_none_or(|end| end > bytes.len() as u64) {
        let text = format!("bytes {address}..{} of {} bytes of {what}", address.wrapping_add(len as u64), bytes.len());
        return Err(Fault::new(Code::IllegalAddress, text));
    }
    Ok(bytes[address as usize..].as_mut_ptr())
}

/// Reads `size` bytes as a register, the sign extended where asked.
///
/// # Safety
/// `host` has `size` readable bytes.
pub unsafe fn load(host: *const u8, size: usize, signed: bool) -> u64 {
    // SAFETY: the caller's promise.
    unsafe {
        match (size, signed) {
            (1, false) => u64::from(host.read()),
            (1, true) => host.cast::<i8>().read() as u64,
            (2, false) => u64::from(host.cast::<u16>().read_unaligned()),
            (2, true) => host.cast::<i16>().read_unaligned() as u64,
            (4, false) => u64::from(host.cast::<u32>().read_unaligned()),
            (4, true) => host.cast::<i32>().read_unaligned() as u64,
            _ => host.cast::<u64>().read_unaligned(),
        }
    }
}

/// Writes the low `size` bytes of a register.
///
/// # Safety
/// `host` has `size` writable bytes.
pub unsafe fn store(host: *mut u8, size: usize, value: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        match size {
            1 => host.write(value as u8),
            2 => host.cast::<u16>().write_unaligned(value as u16),
            4 => host.cast::<u32>().write_unaligned(value as u32),
            _ => host.cast::<u64>().write_unaligned(value),
        }
    }
}

/// Writes like `store`; true if the value was there already.
///
/// # Safety
/// `host` has `size` readable and writable bytes.
pub unsafe fn replace(host: *mut u8, size: usize, value: u64) -> bool {
    let mask = u64::MAX >> (64 - 8 * size);
    // SAFETY: the caller's promise.
    unsafe {
        let old = load(host, size, false);
        store(host, size, value);
        old == value & mask
    }
}

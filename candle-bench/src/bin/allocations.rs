//! Does one kind of work with the system's allocator or with mimalloc, whichever [`ALLOCATOR_VARIABLE`] names, and counts what is asked
//! of it: `candle-bench memory` starts one of each. A program of its own, because an allocator is a program's.

use anyhow::{Context, Result, ensure};
use candle_bench::families;
use candle_bench::memory::child::{self, Requests};
use candle_bench::memory::{ALLOCATOR_VARIABLE, ALLOCATORS};
use candle_models::device;
use candle_train::command::keep_freed_memory;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

const UNDECIDED: u8 = 0;
const SYSTEM: u8 = 1;
const POOL: u8 = 2;

/// Which allocator this process has, decided at its first request and never again: memory goes back to where it came from.
static CHOICE: AtomicU8 = AtomicU8::new(UNDECIDED);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Counts every request and passes it on.
struct Counting;

impl Counting {
    fn pools() -> bool {
        match CHOICE.load(Relaxed) {
            UNDECIDED => {
                // SAFETY: the name ends with a zero. The first request comes before `main`, when no thread could change the environment.
                let value = unsafe { libc::getenv(c"CANDLE_BENCH_ALLOCATOR".as_ptr()) };
                // SAFETY: the value, where there is one, ends with a zero and stays where it is.
                let pool = !value.is_null() && unsafe { std::ffi::CStr::from_ptr(value) } == c"mimalloc";
                CHOICE.store(if pool { POOL } else { SYSTEM }, Relaxed);
                pool
            }
            choice => choice == POOL,
        }
    }

    fn count(bytes: usize) {
        COUNT.fetch_add(1, Relaxed);
        BYTES.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call is passed on to one allocator, the same one for the life of the process.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { if Self::pools() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout.size());
        // SAFETY: the caller's promise.
        unsafe { if Self::pools() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count(size);
        // SAFETY: the caller's promise; the memory came from the same allocator.
        unsafe { if Self::pools() { MiMalloc.realloc(at, layout, size) } else { System.realloc(at, layout, size) } }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise; the memory came from the same allocator.
        unsafe { if Self::pools() { MiMalloc.dealloc(at, layout) } else { System.dealloc(at, layout) } }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> Result<()> {
    let asked = std::env::var(ALLOCATOR_VARIABLE).unwrap_or_else(|_| ALLOCATORS[0].to_owned());
    ensure!(ALLOCATORS.contains(&asked.as_str()), "{ALLOCATOR_VARIABLE}: expected {}, found {asked}", ALLOCATORS.join(" or "));
    let request = std::env::args().nth(1).context("usage: allocations REQUEST")?;
    keep_freed_memory();
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(1) };
    let found = ALLOCATORS[usize::from(Counting::pools())];
    child::serve(&families::shipped(), &request, found, || Requests { count: COUNT.load(Relaxed), bytes: BYTES.load(Relaxed) })
}

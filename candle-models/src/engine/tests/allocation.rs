//! A step allocates nothing, on any thread that takes part.

use super::*;
use std::alloc::{GlobalAlloc, Layout as Block, System};
use std::cell::Cell;

thread_local! {
    /// Whether this thread takes part: other tests run at the same time. Without a destructor, so reading it allocates nothing.
    static COUNTED: Cell<bool> = const { Cell::new(false) };
    /// Allocations of this thread alone.
    static HERE: Cell<usize> = const { Cell::new(0) };
}

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: every call is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, block: Block) -> *mut u8 {
        HERE.set(HERE.get() + 1);
        if COUNTED.get() {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's promise.
        unsafe { System.alloc(block) }
    }

    unsafe fn dealloc(&self, at: *mut u8, block: Block) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, block) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The fake without its records; the engine's thread counts from its first batch on.
struct Quiet;

impl Execute for Quiet {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        COUNTED.set(true);
        // SAFETY: the engine's promise.
        sequences.iter().try_for_each(|s| unsafe { add(s) })
    }
}

/// How often `f` allocates on this thread.
pub(crate) fn allocations_here(f: impl FnOnce()) -> usize {
    let before = HERE.get();
    f();
    HERE.get() - before
}

fn allocations(f: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    f();
    ALLOCATIONS.load(Ordering::SeqCst) - before
}

#[test]
fn steps_allocate_nothing() {
    unless_it_hangs(|| {
        COUNTED.set(true);
        assert!(allocations(|| drop(std::hint::black_box(Box::new(1)))) > 0, "the counter counts");
        let engine = engine_on(Box::new(Quiet), &Options::default());
        let mut a = session(&engine, 1);
        let blocking = |a: &mut Session| {
            for _ in 0..100 {
                a.set_f32("x", &[1.0, 2.0]).unwrap();
                a.step().unwrap();
                assert!(sums(a)[2] > 0.0);
            }
        };
        blocking(&mut a);
        assert_eq!(allocations(|| blocking(&mut a)), 0, "alone");
        let mut b = session(&engine, 2);
        let waker: Waker = Arc::new(Unpark(std::thread::current())).into();
        let tasks = |a: &mut Session, b: &mut Session| {
            for n in 0..100 {
                let (mut first, mut second) = (a.step_async(), b.step_async());
                let mut done = [false; 2];
                while !done[0] {
                    done[0] = std::pin::Pin::new(&mut first).poll(&mut Context::from_waker(&waker)).is_ready();
                    // Some are cancelled.
                    done[1] = done[1] || (n % 3 > 0 && std::pin::Pin::new(&mut second).poll(&mut Context::from_waker(&waker)).is_ready());
                    std::thread::yield_now();
                }
            }
        };
        blocking(&mut a);
        tasks(&mut a, &mut b);
        assert_eq!(allocations(|| blocking(&mut a)), 0, "through the engine's thread");
        assert_eq!(allocations(|| tasks(&mut a, &mut b)), 0, "as futures");
        assert!(engine.stats().lone_steps == 200 && engine.stats().batches >= 400);
    });
}

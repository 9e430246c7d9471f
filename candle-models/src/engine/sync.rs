//! The synchronisation types of the slots and the queue, behind one name: the model checker's tests (`candle-models/loom`)
//! compile the same two files with its own.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

use std::cell::UnsafeCell;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The guard, whether or not a thread panicked while it held the lock: nothing in this module is left half done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified (or for no reason).
pub(super) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Sleeps until notified, or for that time (or for no reason).
pub(super) fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap_or_else(PoisonError::into_inner).0
}

/// A cell that the model checker can watch.
#[derive(Debug)]
pub(super) struct Cell<T>(UnsafeCell<T>);

impl<T> Cell<T> {
    pub fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// How long to look before going to sleep: waking up costs some tens of microseconds.
const LOOK: Duration = Duration::from_micros(50);
/// Looks between two glances at the clock.
const TURNS: u32 = 32;
/// Turns given to others where there is no core to look on.
const YIELDS: u32 = 8;

/// Looks for a while whether something is ready before its caller goes to sleep.
#[derive(Debug)]
pub(super) struct Patience {
    /// Threads that may look at the same time and leave a core to the one that works; 0 on a machine of one core.
    spare: usize,
    looking: AtomicUsize,
}

impl Patience {
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { spare: cores - 1, looking: AtomicUsize::new(0) }
    }

    /// Whether it became ready.
    pub fn look(&self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        if self.spare == 0 {
            return (0..YIELDS).any(|_| {
                std::thread::yield_now();
                ready()
            });
        }
        if self.looking.fetch_add(1, Relaxed) >= self.spare {
            self.looking.fetch_sub(1, Relaxed);
            return false;
        }
        let start = Instant::now();
        let mut found = false;
        while !found && start.elapsed() < LOOK {
            found = (0..TURNS).any(|_| {
                std::hint::spin_loop();
                ready()
            });
        }
        self.looking.fetch_sub(1, Relaxed);
        found
    }
}

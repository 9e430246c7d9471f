//! The synchronisation types of the slots and the queue, behind one name: the model checker's tests (`candle-models/loom`)
//! compile the same two files with its own.

pub(super) use std::sync::{Condvar, Mutex, MutexGuard, atomic};

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The guard, whether or not a thread panicked while it held the lock: nothing in this module is left half done by a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The guard, if nobody else has it.
pub(super) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
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

/// How long to look before going to sleep. Waking up costs some tens of microseconds where the core has gone to sleep too.
const LOOK: Duration = Duration::from_micros(60);
/// Looks between two glances at the clock.
const TURNS: u32 = 32;
/// Successes that are remembered: so many failures end the looking.
const CREDIT: u32 = 4;
/// Without credit every so many waits are tried nevertheless.
const TRIAL: u32 = 256;

/// Looks for a while whether something is ready before its caller goes to sleep, as long as that pays.
///
/// It does not where the thread that is waited for shares the core (always on a machine of one, often on a busy one: each
/// side looked for its whole time while the other could not run, 103 us a step instead of 2), or where answers take longer.
#[derive(Debug)]
pub(super) struct Patience {
    /// Threads that may look at the same time and leave a core to the one that works.
    spare: usize,
    looking: AtomicUsize,
    credit: AtomicU32,
    waits: AtomicU32,
}

impl Patience {
    pub fn new() -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self { spare: cores - 1, looking: AtomicUsize::new(0), credit: AtomicU32::new(CREDIT), waits: AtomicU32::new(0) }
    }

    /// Whether it became ready.
    pub fn look(&self, ready: impl Fn() -> bool) -> bool {
        if ready() {
            return true;
        }
        // Lost updates of the two numbers by threads that race for them cost a look more or less.
        let credit = self.credit.load(Relaxed);
        if self.spare == 0 || (credit == 0 && !self.waits.fetch_add(1, Relaxed).is_multiple_of(TRIAL)) {
            return false;
        }
        let found = self.looking.fetch_add(1, Relaxed) < self.spare && {
            let found = spin(ready);
            self.credit.store(if found { CREDIT.min(credit + 1) } else { credit.saturating_sub(1) }, Relaxed);
            found
        };
        self.looking.fetch_sub(1, Relaxed);
        found
    }
}

fn spin(ready: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < LOOK {
        for _ in 0..TURNS {
            std::hint::spin_loop();
            if ready() {
                return true;
            }
        }
    }
    false
}

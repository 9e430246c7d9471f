//! The library's `engine::sync` on the model checker's types.

// The name of the library's own wrapper.
#[allow(clippy::unsafe_removed_from_name)]
pub use loom::cell::UnsafeCell as Cell;
pub use loom::sync::{Condvar, Mutex, MutexGuard, atomic};

use std::time::Duration;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    mutex.try_lock().ok()
}

pub fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap()
}

pub fn wait_for<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>, time: Duration) -> MutexGuard<'a, T> {
    condvar.wait_timeout(guard, time).unwrap().0
}

/// One look: the checker tries every order anyway.
#[derive(Debug)]
pub struct Patience;

impl Patience {
    pub fn new() -> Self {
        Self
    }

    pub fn look(&self, ready: impl Fn() -> bool) -> bool {
        ready()
    }
}

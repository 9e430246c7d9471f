//! Whose turn it is to run batches: the engine's thread's, or that of a session which runs them itself.

use super::queue::Queue;
use super::sync::atomic::{Ordering, fence};
use super::sync::{Mutex, MutexGuard, lock, try_lock};
use std::ops::{Deref, DerefMut};

/// What one thread uses at a time, beside the queue of those that want it.
///
/// No request is forgotten: who finds it in use after queueing a request may go away, because whoever has it looks at the queue once more
/// after giving it back, and calls the engine's thread if there is one.
#[derive(Debug)]
pub(super) struct Turns<T>(Mutex<T>);

impl<T> Turns<T> {
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits for its turn.
    pub fn enter<'a>(&'a self, queue: &'a Queue) -> Turn<'a, T> {
        Turn { guard: Some(lock(&self.0)), queue }
    }

    /// Takes its turn if nobody else has his.
    pub fn try_enter<'a>(&'a self, queue: &'a Queue) -> Option<Turn<'a, T>> {
        // A request that was queued before this is seen by whoever is found inside: see `Turn::drop`.
        fence(Ordering::SeqCst);
        try_lock(&self.0).map(|guard| Turn { guard: Some(guard), queue })
    }
}

/// A turn: it is over when this is dropped.
pub(super) struct Turn<'a, T> {
    /// `None` only while it is being dropped.
    guard: Option<MutexGuard<'a, T>>,
    queue: &'a Queue,
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        let Some(guard) = &self.guard else { unreachable!("a turn lasts until it is dropped") };
        guard
    }
}

impl<T> DerefMut for Turn<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        let Some(guard) = &mut self.guard else { unreachable!("a turn lasts until it is dropped") };
        guard
    }
}

impl<T> Drop for Turn<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        fence(Ordering::SeqCst);
        if self.queue.len() > 0 {
            self.queue.call();
        }
    }
}

//! A session's place in the engine: who may touch its row, and who waits for it.
//!
//! ```text
//!          push            claim             finish            take
//! IDLE ----------> QUEUED ------> RUNNING ----------> DONE ----------> IDLE
//!   ^                |               |                  |
//!   +--- withdraw ---+               +--- abandon ---> ABANDONED --- finish ---> IDLE, and the row is free
//! ```
//! The session owns the row in IDLE and DONE, the engine in RUNNING and ABANDONED. In QUEUED nobody touches it: both ways
//! out of QUEUED are taken under the lock of the queue, by who takes the request out of it.

use super::EngineError;
use super::sync::atomic::{AtomicU32, Ordering};
use super::sync::{Cell, Condvar, Mutex, Patience, lock, wait};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};

/// The life cycle of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum State {
    /// No request; the session owns the row.
    Idle,
    /// In the queue.
    Queued,
    /// In a batch; the engine owns the row.
    Running,
    /// Answered; the session owns the row.
    Done,
    /// In a batch, and the session has gone; the engine owns the row.
    Abandoned,
}

/// Set beside the state by who waits for the answer.
const WAITED_FOR: u32 = 8;

/// What the engine says to a request.
#[derive(Debug)]
pub(super) struct Answer {
    pub result: Result<(), EngineError>,
    /// From the request to the start of its batch.
    pub queue: Duration,
    /// The batch.
    pub execute: Duration,
    /// Requests that ran in it; zero where none did.
    pub batch: usize,
    /// When the answer was ready.
    pub finished: Instant,
}

/// One session's place. On a cache line of its own: its session's thread looks at it while the engine writes to others.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Slot {
    word: AtomicU32,
    waker: Mutex<Option<Waker>>,
    done: Condvar,
    /// Belongs to who owns the row.
    answer: Cell<Option<Answer>>,
}

// SAFETY: `answer` is touched by the owner of the row only, and ownership changes hands by release and acquire of `word`.
unsafe impl Sync for Slot {}

impl Slot {
    pub fn new() -> Self {
        Self { word: AtomicU32::new(State::Idle as u32), waker: Mutex::new(None), done: Condvar::new(), answer: Cell::new(None) }
    }

    fn decode(word: u32) -> State {
        match word & !WAITED_FOR {
            0 => State::Idle,
            1 => State::Queued,
            2 => State::Running,
            3 => State::Done,
            _ => State::Abandoned,
        }
    }

    /// Where the request is.
    pub fn state(&self) -> State {
        Self::decode(self.word.load(Ordering::Acquire))
    }

    /// IDLE to QUEUED, by the session, with the queue locked.
    pub fn push(&self) {
        self.word.store(State::Queued as u32, Ordering::Release);
    }

    /// QUEUED to IDLE, by the session, with the queue locked and the request taken out of it.
    pub fn withdraw(&self) {
        self.word.store(State::Idle as u32, Ordering::Release);
    }

    /// QUEUED to RUNNING, by who answers, with the queue locked and the request taken out of it.
    pub fn claim(&self) {
        // The session may set its bit at the same time.
        self.word.fetch_add(State::Running as u32 - State::Queued as u32, Ordering::AcqRel);
    }

    /// RUNNING to DONE, by who claimed it; wakes who waits. Says whether the session has gone: then the row is free.
    pub fn finish(&self, answer: Answer) -> bool {
        // SAFETY: whoever claimed the request owns the row until the swap below.
        self.answer.with_mut(|a| unsafe { *a = Some(answer) });
        let before = self.word.swap(State::Done as u32, Ordering::AcqRel);
        if Self::decode(before) == State::Abandoned {
            // SAFETY: there is no session that could own the row.
            self.answer.with_mut(|a| unsafe { *a = None });
            self.word.store(State::Idle as u32, Ordering::Release);
            return true;
        }
        if before & WAITED_FOR != 0 {
            // The lock is only to be had once the session sleeps: it cannot miss this call.
            let waker = {
                let mut waker = lock(&self.waker);
                self.done.notify_all();
                waker.take()
            };
            if let Some(waker) = waker {
                // Whatever a stranger's waker does, the engine's thread lives on.
                let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| waker.wake()));
            }
        }
        false
    }

    /// RUNNING to ABANDONED, by the session that goes. Says whether the request was running still.
    pub fn abandon(&self) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while Self::decode(word) == State::Running {
            match self.word.compare_exchange_weak(word, State::Abandoned as u32, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => word = other,
            }
        }
        false
    }

    /// DONE to IDLE, by the session, which gets the answer.
    pub fn take(&self) -> Option<Answer> {
        // SAFETY: the session owns the row in DONE.
        let answer = self.answer.with_mut(|a| unsafe { (*a).take() });
        self.word.store(State::Idle as u32, Ordering::Release);
        answer
    }

    /// Says that somebody waits, and whether the request is out of the engine's hands already.
    fn await_answer(&self) -> bool {
        let word = self.word.fetch_or(WAITED_FOR, Ordering::AcqRel);
        matches!(Self::decode(word), State::Idle | State::Done)
    }

    /// Blocks until the engine has given back the row.
    pub fn wait(&self, patience: &Patience) {
        if patience.look(|| matches!(self.state(), State::Idle | State::Done)) {
            return;
        }
        let mut guard = lock(&self.waker);
        while !self.await_answer() {
            guard = wait(&self.done, guard);
        }
    }

    /// Forgets the task that waited: for the session, when it waits no longer. It can be the last that knows the task, and
    /// dropping a task can do anything: no lock may be held.
    pub fn forget_waker(&self) {
        let waker = lock(&self.waker).take();
        drop(waker);
    }

    /// Whether the engine has given back the row; if not, the task is woken when it has.
    pub fn poll(&self, context: &mut Context<'_>) -> bool {
        if matches!(self.state(), State::Idle | State::Done) {
            return true;
        }
        let mut waker = lock(&self.waker);
        match &mut *waker {
            Some(old) => old.clone_from(context.waker()),
            None => *waker = Some(context.waker().clone()),
        }
        let done = self.await_answer();
        if done {
            *waker = None;
        }
        done
    }
}

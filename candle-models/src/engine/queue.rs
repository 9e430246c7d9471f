//! The queue of requests and the slots that they come from: everything that decides who owns a row.
//!
//! Requests wait under one lock, and enter and leave the queue under it only. So a request is in exactly one hand: that of
//! the engine which formed a batch with it, of the session that withdrew it, or of whoever closed the queue.

use super::slot::{Answer, Slot, State};
use super::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use super::sync::{Condvar, Mutex, Patience, lock, wait, wait_for};
use std::collections::VecDeque;
use std::task::Context;
use std::time::{Duration, Instant};

/// A step that a session wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    /// The session's slot.
    pub slot: u32,
    /// When it came.
    pub queued: Instant,
    /// When it is too late to begin.
    pub deadline: Option<Instant>,
}

/// Why a request does not wait.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The bound.
    Full(usize),
    Closed,
}

/// Requests that have left the queue together.
#[derive(Debug)]
pub(super) struct Batch {
    /// To be run, in order of arrival.
    pub live: Vec<Request>,
    /// Past their deadlines.
    pub expired: Vec<Request>,
}

#[derive(Debug)]
struct Waiting {
    requests: VecDeque<Request>,
    /// The engine's thread sleeps and nobody has woken it yet.
    asleep: bool,
    closed: bool,
}

/// Requests in order of arrival.
#[derive(Debug)]
pub(super) struct Queue {
    slots: Box<[Slot]>,
    waiting: Mutex<Waiting>,
    arrived: Condvar,
    /// How many wait and whether the queue is closed, for a look without the lock.
    length: AtomicUsize,
    closed: AtomicBool,
    bound: usize,
    max_batch: usize,
    max_wait: Option<Duration>,
    engine: Patience,
    sessions: Patience,
}

impl Queue {
    /// A queue for `sessions` slots in which `bound` requests can wait, for batches of up to `max_batch`.
    pub fn new(sessions: usize, bound: usize, max_batch: usize, max_wait: Option<Duration>) -> Self {
        // A session has one request at most.
        let bound = bound.min(sessions);
        Self {
            slots: (0..sessions).map(|_| Slot::new()).collect(),
            waiting: Mutex::new(Waiting { requests: VecDeque::with_capacity(bound), asleep: false, closed: false }),
            arrived: Condvar::new(),
            length: AtomicUsize::new(0),
            closed: AtomicBool::new(false),
            bound,
            max_batch,
            max_wait,
            engine: Patience::new(),
            sessions: Patience::new(),
        }
    }

    /// A batch with room for all that one can hold.
    pub fn batch(&self) -> Batch {
        Batch { live: Vec::with_capacity(self.most()), expired: Vec::with_capacity(self.bound) }
    }

    /// Most requests of a batch.
    pub fn most(&self) -> usize {
        self.max_batch.min(self.bound)
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    /// Where the request of a slot is.
    pub fn state(&self, slot: u32) -> State {
        self.slot(slot).state()
    }

    /// Queues requests of idle slots one behind the other, all of them or none. Whoever queues them sees to it that they are run: by the
    /// engine's thread, which [`call`](Self::call) wakes, or on a thread of its own.
    pub fn push(&self, requests: impl ExactSizeIterator<Item = Request>) -> Result<(), Refused> {
        let mut waiting = lock(&self.waiting);
        if waiting.closed {
            return Err(Refused::Closed);
        }
        if waiting.requests.len() + requests.len() > self.bound {
            return Err(Refused::Full(self.bound));
        }
        for request in requests {
            self.slot(request.slot).push();
            waiting.requests.push_back(request);
        }
        self.length.store(waiting.requests.len(), Ordering::Release);
        Ok(())
    }

    /// Wakes the engine's thread, if it sleeps.
    pub fn call(&self) {
        let asleep = std::mem::take(&mut lock(&self.waiting).asleep);
        if asleep {
            self.arrived.notify_one();
        }
    }

    /// How many requests wait.
    pub fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Whether a batch may be held back until it is fuller.
    pub fn holds_back(&self) -> bool {
        self.max_wait.is_some()
    }

    /// Takes a slot's request back. False where it is not in the queue any more.
    pub fn withdraw(&self, slot: u32) -> bool {
        let mut waiting = lock(&self.waiting);
        let Some(at) = waiting.requests.iter().position(|r| r.slot == slot) else { return false };
        waiting.requests.remove(at);
        self.length.store(waiting.requests.len(), Ordering::Release);
        self.slot(slot).withdraw();
        drop(waiting);
        self.slot(slot).forget_waker();
        true
    }

    /// For the engine's thread: waits until there is a batch to be claimed; `open` says how many sessions there are. False once the queue is
    /// closed.
    pub fn wait_for_batch(&self, open: impl Fn() -> usize) -> bool {
        self.engine.look(|| self.len() > 0 || self.is_closed());
        let mut waiting = lock(&self.waiting);
        loop {
            if waiting.closed {
                return false;
            }
            let full = self.max_batch.min(open());
            let held = match waiting.requests.front() {
                None => None,
                Some(oldest) if waiting.requests.len() < full => self.hold(oldest.queued, &waiting.requests, Instant::now()),
                Some(_) => return true,
            };
            if held.is_none() && !waiting.requests.is_empty() {
                return true;
            }
            waiting.asleep = true;
            waiting = match held {
                Some(time) => wait_for(&self.arrived, waiting, time),
                None => wait(&self.arrived, waiting),
            };
            waiting.asleep = false;
        }
    }

    /// Claims the next batch, of what waits now: it can be empty.
    pub fn claim(&self, batch: &mut Batch) {
        batch.live.clear();
        batch.expired.clear();
        let mut waiting = lock(&self.waiting);
        let now = Instant::now();
        while batch.live.len() < self.max_batch
            && let Some(request) = waiting.requests.pop_front()
        {
            self.slot(request.slot).claim();
            let late = request.deadline.is_some_and(|deadline| deadline <= now);
            if late { batch.expired.push(request) } else { batch.live.push(request) }
        }
        self.length.store(waiting.requests.len(), Ordering::Release);
    }

    /// How long a batch that is not full is held back.
    fn hold(&self, oldest: Instant, requests: &VecDeque<Request>, now: Instant) -> Option<Duration> {
        let until = oldest + self.max_wait?;
        let pressing = requests.iter().any(|r| r.deadline.is_some_and(|deadline| deadline <= until));
        if pressing { None } else { until.checked_duration_since(now).filter(|left| !left.is_zero()) }
    }

    /// Lets nothing in any more and gives out, claimed, what waits.
    pub fn close(&self) -> Vec<Request> {
        let mut waiting = lock(&self.waiting);
        waiting.closed = true;
        self.closed.store(true, Ordering::Release);
        self.length.store(0, Ordering::Release);
        let requests: Vec<Request> = waiting.requests.drain(..).collect();
        requests.iter().for_each(|r| self.slot(r.slot).claim());
        drop(waiting);
        self.arrived.notify_one();
        requests
    }

    /// Answers a claimed request. Says whether its session has gone: then the row is free.
    pub fn finish(&self, slot: u32, answer: Answer) -> bool {
        self.slot(slot).finish(answer)
    }

    /// The answer to a slot's request, which is done.
    pub fn take(&self, slot: u32) -> Option<Answer> {
        self.slot(slot).take()
    }

    /// Blocks until the slot's request is out of the engine's hands.
    pub fn wait(&self, slot: u32) {
        self.slot(slot).wait(&self.sessions);
    }

    /// Whether the slot's request is out of the engine's hands; if not, the task is woken when it is.
    pub fn poll(&self, slot: u32, context: &mut Context<'_>) -> bool {
        self.slot(slot).poll(context)
    }

    /// Forgets the task that waited for the slot's request.
    pub fn forget_waker(&self, slot: u32) {
        self.slot(slot).forget_waker();
    }

    /// The session of that slot goes. True where its row is free, false where the engine is to free it after its batch.
    pub fn leave(&self, slot: u32) -> bool {
        loop {
            match self.state(slot) {
                State::Idle => return true,
                State::Done => drop(self.take(slot)),
                State::Queued => drop(self.withdraw(slot)),
                State::Running if self.slot(slot).abandon() => {
                    self.slot(slot).forget_waker();
                    return false;
                }
                State::Running => {}
                State::Abandoned => unreachable!("a slot is abandoned by its one session"),
            }
        }
    }
}

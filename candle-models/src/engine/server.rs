//! The engine: its memory, its thread and its counters.

use super::check::Checks;
use super::execute::{Execute, Sequence, executor};
use super::layout::Layout;
use super::queue::{Batch, Queue, Request};
use super::slab::Slab;
use super::slot::Answer;
use super::stats::{Counters, Stats, count};
use super::turn::{Turn, Turns};
use super::{EngineError, Model, Options, Session};
use crate::signature::Signature;
use crate::{Error, Result};
use candle_core::DType;
use std::ops::Deref;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One model for many agents: see the [module](super).
///
/// An engine can be shared by reference or in an [`Arc`] among threads. It runs until it is [closed](Self::close), or until it and all
/// its sessions have been dropped: whoever drops the last of them waits for its thread.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options { sessions: 2, ..Options::default() })?;
/// let agents = [engine.open()?, engine.open()?];
/// assert!(engine.open().is_err()); // both are taken
/// drop(agents);
/// assert!(engine.open().is_ok());
/// # Ok(())
/// # }
/// ```
pub struct Engine {
    pub(super) shared: Arc<Running>,
    on_tensors: Vec<&'static str>,
}

impl Engine {
    /// Prepares the model and allocates everything that sessions and batches need.
    ///
    /// # Errors
    /// If an option is out of range, the memory is not to be had or the model cannot be run.
    pub fn start(model: Arc<dyn Model>, options: &Options) -> Result<Self> {
        options.validate()?;
        let layout = Layout::new(model.signature(), 1);
        let checks = Checks::new(&layout);
        let sizes = (options.max_batch.min(options.sessions), 1, options.sessions);
        let executor = executor(&model, &options.place, sizes)?;
        Self::with(executor, (model.signature().clone(), layout, checks), options)
    }

    /// An engine on whatever runs batches, with options that were validated.
    pub(super) fn with(executor: Box<dyn Execute>, model: (Signature, Layout, Checks), options: &Options) -> Result<Self> {
        let (signature, layout, checks) = model;
        if let Some(spec) = signature.state.iter().find(|s| s.dtype() != DType::F32) {
            return Err(Error::tensor(&spec.name, "a state of F32", format!("{:?}", spec.dtype())));
        }
        let max_batch = options.max_batch.min(options.sessions).max(1);
        let on_tensors = executor.on_tensors().to_vec();
        let shared = Arc::new(Shared {
            slab: Slab::new(&layout, options.sessions)?,
            queue: Queue::new(options.sessions, options.queue, max_batch, options.max_wait),
            rows: Mutex::new(Rows { used: 0, free: Vec::with_capacity(options.sessions) }),
            sessions: options.sessions,
            keeps_states: executor.keeps_states(),
            open: AtomicUsize::new(0),
            counters: Counters::new(max_batch),
            executor: Turns::new(Some(executor)),
            batches: Mutex::default(),
            pace: Pace::default(),
            signature,
            layout,
            checks,
        });
        let body = {
            let shared = shared.clone();
            move || shared.serve()
        };
        // Its priority is the usual one. Before all others (SCHED_FIFO) it let the sessions that woke up on its processor wait for a whole
        // batch: the median answer to 64 of them on two processors took 308 us in place of 273.
        let thread = std::thread::Builder::new().name("candle-models-engine".to_owned()).spawn(body);
        let thread = thread.map_err(|e| Error::Input(format!("the engine's thread could not be started: {e}")))?;
        Ok(Self { shared: Arc::new(Running { shared, thread: Some(thread) }), on_tensors })
    }

    /// A new session in the initial state, its inputs at their defaults.
    ///
    /// # Errors
    /// [`EngineError::Capacity`] if all sessions are open, [`EngineError::Closed`] if the engine is closed.
    pub fn open(&self) -> Result<Session, EngineError> {
        Session::open(&self.shared)
    }

    /// What the engine has done since its start; it goes on meanwhile.
    pub fn stats(&self) -> Stats {
        self.shared.counters.read(self.shared.open())
    }

    /// Names of the operations without a kernel where the engine runs: they run on tensors on the host, and allocate memory in every step.
    pub fn on_tensors(&self) -> &[&'static str] {
        &self.on_tensors
    }

    /// Closes the engine, whoever still has sessions: requests that wait and steps of sessions from now on get
    /// [`EngineError::Closed`]. What is being run is finished and answered; the prepared model is freed after it.
    pub fn close(&self) {
        self.shared.close();
    }
}

/// An engine's thread and what it works on, held by the engine and by each of its sessions.
pub(super) struct Running {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Deref for Running {
    type Target = Shared;
    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take()
            // The last owner can be a task that the engine's own thread has woken.
            && thread.thread().id() != std::thread::current().id()
        {
            // A panic of that thread has been reported by the panic hook, and every request has been answered.
            let _ = thread.join();
        }
    }
}

/// Which rows are free.
struct Rows {
    /// Rows from here on have never been used.
    used: u32,
    free: Vec<u32>,
}

/// What the engine, its thread and its sessions hold together.
pub(super) struct Shared {
    pub signature: Signature,
    pub layout: Layout,
    pub checks: Checks,
    pub slab: Slab,
    pub queue: Queue,
    pub counters: Counters,
    rows: Mutex<Rows>,
    sessions: usize,
    /// Whether states live with the executor, and a row's state is a copy.
    keeps_states: bool,
    open: AtomicUsize,
    /// `None` once the engine is closed and its thread has ended.
    executor: Turns<Option<Box<dyn Execute>>>,
    /// Memory for batches that are run on sessions' threads.
    batches: Mutex<Vec<(Batch, Vec<Sequence>)>>,
    pace: Pace,
}

/// How long the last batch took, as nanoseconds and rows in one word: what the next one may take is guessed from it.
#[derive(Default)]
struct Pace(AtomicU64);

impl Pace {
    const ROWS: u32 = 20;

    fn set(&self, time: Duration, rows: usize) {
        let rows = (rows as u64).min((1 << Self::ROWS) - 1);
        let ns = (time.as_nanos() as u64).clamp(1, u64::MAX >> Self::ROWS);
        self.0.store(ns << Self::ROWS | rows, Ordering::Relaxed);
    }

    /// Nothing before the first batch.
    fn guess(&self, rows: usize) -> Option<Duration> {
        let word = self.0.load(Ordering::Relaxed);
        let (ns, before) = (word >> Self::ROWS, word & ((1 << Self::ROWS) - 1));
        (ns > 0).then(|| Duration::from_nanos(ns.saturating_mul((rows as u64).div_ceil(before.max(1)).max(1))))
    }
}

/// A batch that may take longer is left to the engine's thread: the thread of a session may have others to serve, and waking another one
/// costs some fifty microseconds.
const SHORT: Duration = Duration::from_millis(1);

/// How a batch went.
pub(super) struct Pass {
    pub result: Result<(), Fault>,
    pub started: Instant,
    pub finished: Instant,
}

/// Why a batch failed, for each of its requests.
#[derive(Debug, Clone)]
pub(super) enum Fault {
    Panicked(Arc<str>),
    Failed(Arc<Error>),
}

impl From<Fault> for EngineError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Panicked(message) => Self::Panicked(message),
            Fault::Failed(error) => Self::Failed(error),
        }
    }
}

impl Pass {
    /// Runs a batch and catches its panic.
    ///
    /// # Safety
    /// As for [`Execute::execute`].
    unsafe fn run(executor: &mut dyn Execute, sequences: &[Sequence]) -> Self {
        let started = Instant::now();
        // An executor promises that its next batch runs as if nothing had happened.
        // SAFETY: the caller's promise.
        let run = AssertUnwindSafe(|| unsafe { executor.execute(sequences) });
        let result = match catch_unwind(run) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(Fault::Failed(Arc::new(error))),
            Err(panic) => {
                let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                Err(Fault::Panicked(text.unwrap_or("without a message").into()))
            }
        };
        Self { result, started, finished: Instant::now() }
    }

    pub fn time(&self) -> Duration {
        self.finished - self.started
    }
}

/// A lone session's way to the model.
pub(super) enum Alone {
    Ran(Pass),
    /// There are others, or the engine's thread is at work.
    Others,
    Closed,
}

impl Shared {
    /// How many sessions are open.
    pub fn open(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn rows(&self) -> MutexGuard<'_, Rows> {
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A row of zeros.
    pub fn acquire(&self) -> Result<u32, EngineError> {
        if self.queue.is_closed() {
            return Err(EngineError::Closed);
        }
        let mut rows = self.rows();
        let row = match rows.free.pop() {
            Some(row) => row,
            None if (rows.used as usize) < self.sessions => {
                rows.used += 1;
                rows.used - 1
            }
            None => return Err(EngineError::Capacity { sessions: self.sessions }),
        };
        self.open.fetch_add(1, Ordering::AcqRel);
        drop(rows);
        // SAFETY: nobody else has a free row, and this one has just left their number.
        unsafe {
            self.slab.clear(row);
            self.slab.row(row).set_reset(true);
        }
        Ok(row)
    }

    /// Gives back a row that nobody touches any more.
    pub fn release(&self, row: u32) {
        let mut rows = self.rows();
        rows.free.push(row);
        self.open.fetch_sub(1, Ordering::AcqRel);
    }

    /// Runs the step of a session that owns `row` on the caller's thread, if that session is the only one.
    pub fn run_alone(&self, row: u32) -> Alone {
        if self.open() != 1 {
            return Alone::Others;
        }
        let Some(mut turn) = self.executor.try_enter(&self.queue) else { return Alone::Others };
        let Some(executor) = &mut *turn else { return Alone::Closed };
        // SAFETY: the caller owns the row.
        Alone::Ran(unsafe { Pass::run(&mut **executor, &[self.slab.row(row).sequence()]) })
    }

    /// Runs a batch of rows that the caller owns, each once, and counts it nowhere: how long it took.
    pub fn warm_up(&self, rows: &[u32]) -> Result<Duration, EngineError> {
        let sequences: Vec<Sequence> = rows.iter().map(|row| self.slab.row(*row).sequence()).collect();
        let mut turn = self.executor.enter(&self.queue);
        let executor = turn.as_mut().ok_or(EngineError::Closed)?;
        // SAFETY: the caller's rows, no two of which are the same.
        let pass = unsafe { Pass::run(&mut **executor, &sequences) };
        pass.result.clone().map_err(EngineError::from)?;
        self.pace.set(pass.time(), rows.len());
        Ok(pass.time())
    }

    /// Runs `f` on the executor with the sequence of a row that the caller owns, where states live with the executor.
    ///
    /// # Errors
    /// [`EngineError::Closed`] where they are gone with it.
    pub fn with_states(&self, row: u32, f: impl FnOnce(&mut dyn Execute, &Sequence) -> Result<()>) -> Result<(), EngineError> {
        if !self.keeps_states {
            return Ok(());
        }
        let mut turn = self.executor.enter(&self.queue);
        let executor = turn.as_mut().ok_or(EngineError::Closed)?;
        Ok(f(&mut **executor, &self.slab.row(row).sequence())?)
    }

    /// Closes the queue and answers what waited in it.
    pub fn close(&self) {
        let now = Instant::now();
        for request in self.queue.close() {
            self.refuse(request, EngineError::Closed, now);
        }
    }

    /// Answers a claimed request that is not run.
    fn refuse(&self, request: Request, error: EngineError, now: Instant) {
        let queue = now.saturating_duration_since(request.queued);
        self.answer(request.slot, Answer { result: Err(error), queue, execute: Duration::ZERO, batch: 0, finished: now });
    }

    fn answer(&self, slot: u32, answer: Answer) {
        if self.queue.finish(slot, answer) {
            self.release(slot);
        }
    }

    /// The engine's thread.
    fn serve(&self) {
        let _exit = Exit(self);
        let mut work = (self.queue.batch(), Vec::with_capacity(self.queue.most()));
        while self.queue.wait_for_batch(|| self.open()) {
            self.run_batch(self.executor.enter(&self.queue), &mut work);
        }
    }

    /// Runs the next batch on the caller's thread, if that is soon over and nobody else runs one. True where the caller need do no more for
    /// the requests that wait: they have been run, or whoever has the executor sees to them.
    pub fn run_here(&self) -> bool {
        if self.queue.holds_back() || self.pace.guess(self.queue.len()).is_none_or(|time| time > SHORT) {
            return false;
        }
        let Some(turn) = self.executor.try_enter(&self.queue) else { return true };
        let batches = || self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let mut work = batches().pop().unwrap_or_else(|| (self.queue.batch(), Vec::with_capacity(self.queue.most())));
        self.run_batch(turn, &mut work);
        batches().push(work);
        true
    }

    /// Claims, runs and answers what waits now, as far as it fits into a batch.
    fn run_batch(&self, mut turn: Turn<'_, Option<Box<dyn Execute>>>, (batch, sequences): &mut (Batch, Vec<Sequence>)) {
        self.queue.claim(batch);
        let now = Instant::now();
        for request in batch.expired.drain(..) {
            count(&self.counters.expired);
            self.refuse(request, EngineError::DeadlineExceeded, now);
        }
        if batch.live.is_empty() {
            return;
        }
        sequences.extend(batch.live.iter().map(|request| self.slab.row(request.slot).sequence()));
        // SAFETY: the requests are claimed, so that their rows belong to the engine, and every session has one.
        let pass = turn.as_mut().map(|executor| unsafe { Pass::run(&mut **executor, sequences) });
        sequences.clear();
        drop(turn);
        let size = batch.live.len();
        let Some(pass) = pass else {
            // Only the engine's thread takes the executor away, at its end: what waited in the closed queue has been refused before.
            batch.live.drain(..).for_each(|request| self.refuse(request, EngineError::Closed, now));
            return;
        };
        self.tally(batch, &pass);
        for request in batch.live.drain(..) {
            let queue = pass.started.saturating_duration_since(request.queued);
            let result = pass.result.clone().map_err(EngineError::from);
            self.answer(request.slot, Answer { result, queue, execute: pass.time(), batch: size, finished: pass.finished });
        }
    }

    fn tally(&self, batch: &Batch, pass: &Pass) {
        let (counters, size) = (&self.counters, batch.live.len());
        let result = if pass.result.is_ok() { &counters.steps } else { &counters.failed };
        result.fetch_add(size as u64, Ordering::Relaxed);
        count(&counters.batches);
        count(&counters.batch_sizes[size - 1]);
        counters.execute.record(pass.time());
        self.pace.set(pass.time(), size);
        let late = batch.live.iter().filter(|r| r.deadline.is_some_and(|deadline| deadline < pass.finished)).count();
        counters.late.fetch_add(late as u64, Ordering::Relaxed);
        batch.live.iter().for_each(|r| counters.queue.record(pass.started.saturating_duration_since(r.queued)));
    }
}

/// However the engine's thread ends, nobody waits for it in vain.
struct Exit<'a>(&'a Shared);

impl Drop for Exit<'_> {
    fn drop(&mut self) {
        self.0.close();
        let executor = self.0.executor.enter(&self.0.queue).take();
        drop(executor);
    }
}

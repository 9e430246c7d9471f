//! A session: one agent's inputs, outputs and state.

use super::layout::fill;
use super::queue::{Refused, Request};
use super::server::{Alone, Running};
use super::slot::{Answer, State};
use super::stats::count;
use super::{EngineError, Step};
use crate::Result;
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use candle_core::DType;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Where the time of a step went.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options::default())?;
/// let mut agent = engine.open()?;
/// agent.floats_mut("features")?.fill(0.1);
/// agent.indices_mut("ids")?.fill(14);
/// agent.step()?; // the only session: on this thread
/// let timing = agent.timing();
/// assert!(timing.batch == 1 && timing.queue.is_zero() && !timing.execute.is_zero());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// From the request to the start of its batch; zero for a step on the caller's own thread.
    pub queue: Duration,
    /// The batch.
    pub execute: Duration,
    /// Requests in the batch, this one counted; 1 for a step on the caller's own thread.
    pub batch: usize,
    /// From the end of the batch until the caller had the answer; zero for a step on the caller's own thread.
    pub reply: Duration,
}

/// One agent: its inputs, outputs and the model's state, which stay from step to step.
///
/// A session can move between threads, and keeps its engine running: its steps are [`EngineError::Closed`] once somebody has
/// [closed](super::Engine::close) that. Dropping it makes room for another one.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options::default())?;
/// let mut agent = engine.open()?;
/// agent.floats_mut("features")?.fill(0.1);
/// agent.indices_mut("ids")?.fill(14);
/// agent.step()?;
/// let moment = agent.save()?;
/// let mut what_if = agent.fork()?;
/// what_if.step()?;
/// agent.restore(&moment)?;
/// agent.step()?; // the same inputs from the same state
/// assert_eq!(agent.floats("logits")?, what_if.floats("logits")?);
/// # Ok(())
/// # }
/// ```
pub struct Session {
    shared: Arc<Running>,
    row: u32,
    frames: u64,
    lost: bool,
    timing: Timing,
}

impl Session {
    pub(super) fn open(shared: &Arc<Running>) -> Result<Self, EngineError> {
        let row = shared.acquire()?;
        Ok(Self { shared: shared.clone(), row, frames: 0, lost: false, timing: Timing::default() })
    }

    /// The number of its row.
    pub(super) fn row(&self) -> u32 {
        self.row
    }

    /// An input of floats, `[width]`, to be filled before a step. It keeps its values.
    pub fn floats_mut(&mut self, name: &str) -> Result<&mut [f32]> {
        self.settle();
        let range = self.shared.layout.input(name, DType::F32)?;
        // SAFETY: the session owns its row once it has settled, and it is borrowed for as long as the slice.
        let floats = unsafe { &mut *self.shared.slab.row(self.row).floats };
        Ok(&mut floats[range])
    }

    /// An input of indices, `[columns]`, to be filled before a step. It keeps its values.
    pub fn indices_mut(&mut self, name: &str) -> Result<&mut [u32]> {
        self.settle();
        let range = self.shared.layout.input(name, DType::U32)?;
        // SAFETY: as for floats.
        let indices = unsafe { &mut *self.shared.slab.row(self.row).indices };
        Ok(&mut indices[range])
    }

    /// Copies a whole input of floats.
    pub fn set_f32(&mut self, name: &str, values: &[f32]) -> Result<()> {
        fill(name, self.floats_mut(name)?, values)
    }

    /// Copies a whole input of indices.
    pub fn set_u32(&mut self, name: &str, values: &[u32]) -> Result<()> {
        fill(name, self.indices_mut(name)?, values)
    }

    /// An output of floats of the last step; zeros before the first, anything after a failed one.
    pub fn floats(&self, name: &str) -> Result<&[f32]> {
        let range = self.shared.layout.output(name, DType::F32)?;
        self.take_back();
        // SAFETY: the session owns its row, and can make no request while it is borrowed.
        let floats = unsafe { &*self.shared.slab.row(self.row).out_floats };
        Ok(&floats[range])
    }

    /// An output of indices of the last step; zeros before the first, anything after a failed one.
    pub fn indices(&self, name: &str) -> Result<&[u32]> {
        let range = self.shared.layout.output(name, DType::U32)?;
        self.take_back();
        // SAFETY: as for floats.
        let indices = unsafe { &*self.shared.slab.row(self.row).out_indices };
        Ok(&indices[range])
    }

    /// Where an input of the model's signature lies, for an array of another language: 32-bit floats or indices. The memory stays in its
    /// place until the session is dropped. Who reads or writes it sees to it that no other method of the session runs meanwhile.
    pub fn input_bytes(&mut self, spec: &TensorSpec) -> Result<*mut [u8]> {
        self.shared.slab.row(self.row).input(&self.shared.layout, spec)
    }

    /// Where an output lies, likewise: to be read between steps.
    pub fn output_bytes(&self, spec: &TensorSpec) -> Result<*const [u8]> {
        Ok(self.shared.slab.row(self.row).output(&self.shared.layout, spec)?)
    }

    /// One frame: the inputs to the outputs, the state to the one behind the frame.
    ///
    /// # Errors
    /// See [`EngineError`]: each says whether the state is lost.
    pub fn step(&mut self) -> Result<(), EngineError> {
        self.run(None)
    }

    /// [`step`](Self::step), unless it would begin after the deadline. One that is over only after it gives its answer, and is
    /// counted in [`Stats::late`](super::Stats::late).
    ///
    /// # Errors
    /// [`EngineError::DeadlineExceeded`], and those of [`step`](Self::step).
    pub fn step_before(&mut self, deadline: Instant) -> Result<(), EngineError> {
        self.run(Some(deadline))
    }

    /// A step that blocks nobody, for any runtime. It runs on the engine's thread, even that of a lone session.
    ///
    /// Dropping the future cancels the step. A request that still waits is not computed and the state is untouched. One that
    /// is being computed is finished in the background, and with it the state moves on: [`frames`](Self::frames) tells. Until
    /// then every other method that touches inputs, outputs or state blocks, for one batch at most.
    pub fn step_async(&mut self) -> Step<'_> {
        Step::new(self, None)
    }

    /// [`step_async`](Self::step_async), unless it would begin after the deadline.
    pub fn step_async_before(&mut self, deadline: Instant) -> Step<'_> {
        Step::new(self, Some(deadline))
    }

    /// Back to the initial state: the next step is the first of a game. Inputs stay.
    pub fn reset(&mut self) {
        self.settle();
        // SAFETY: the session owns its row once it has settled.
        unsafe { self.shared.slab.row(self.row).set_reset(true) };
        (self.frames, self.lost) = (0, false);
    }

    /// Brings the state into the session's row, wherever it lives.
    fn fetch(&mut self) -> Result<(), EngineError> {
        self.intact()?;
        let row = self.shared.slab.row(self.row);
        // SAFETY: the session owns its row once it has settled.
        unsafe {
            if row.is_reset() {
                (&mut *row.state).fill(0.0);
                return Ok(());
            }
            self.shared.with_states(self.row, |executor, sequence| executor.read_state(sequence))
        }
    }

    /// How many frames the state has behind it: steps since the session was opened, reset or restored (a fork goes on from
    /// where it was made). After a cancelled step it says whether that step was made.
    ///
    /// # Errors
    /// [`EngineError::StateLost`] if a step failed.
    pub fn frames(&mut self) -> Result<u64, EngineError> {
        self.intact()?;
        Ok(self.frames)
    }

    /// The state as named tensors `[1, ...]`, as [`Recurrent::initial_state`](crate::recurrent::Recurrent::initial_state) has it.
    ///
    /// # Errors
    /// [`EngineError::StateLost`] if a step failed.
    pub fn save(&mut self) -> Result<NamedTensors, EngineError> {
        self.fetch()?;
        // SAFETY: the session owns its row once it has settled.
        let state = unsafe { &*self.shared.slab.row(self.row).state };
        Ok(self.shared.layout.save(&[state])?)
    }

    /// Goes on from a state that [`save`](Self::save) gave, in this engine or another of the same model.
    ///
    /// # Errors
    /// If names, dtypes or shapes are not the model's, or a value is not finite; the session's own state is untouched then.
    pub fn restore(&mut self, state: &NamedTensors) -> Result<(), EngineError> {
        self.settle();
        let restored = self.shared.layout.restore(state, &self.shared.signature.state, 1)?;
        let row = self.shared.slab.row(self.row);
        // SAFETY: the session owns its row once it has settled.
        unsafe {
            (&mut *row.state).copy_from_slice(&restored[0]);
            self.shared.with_states(self.row, |executor, sequence| executor.write_state(sequence))?;
            row.set_reset(false);
        }
        (self.frames, self.lost) = (0, false);
        Ok(())
    }

    /// A new session with the same inputs, outputs and state, which goes its own way from here.
    ///
    /// # Errors
    /// [`EngineError::Capacity`] and [`EngineError::Closed`] as for [`Engine::open`](super::Engine::open),
    /// [`EngineError::StateLost`] if a step failed.
    pub fn fork(&mut self) -> Result<Self, EngineError> {
        self.fetch()?;
        let mut fork = Self::open(&self.shared)?;
        fork.frames = self.frames;
        // SAFETY: this session owns its row once it has settled, and the fork owns its own.
        unsafe {
            self.shared.slab.copy(self.row, fork.row);
            self.shared.with_states(fork.row, |executor, sequence| executor.write_state(sequence))?;
        }
        Ok(fork)
    }

    /// Where the time of the last step that was answered went; zero before the first and for a step that was not tried.
    pub fn timing(&self) -> Timing {
        self.timing
    }

    fn run(&mut self, deadline: Option<Instant>) -> Result<(), EngineError> {
        self.prepare()?;
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            count(&self.shared.counters.expired);
            return Err(EngineError::DeadlineExceeded);
        }
        match self.shared.run_alone(self.row) {
            Alone::Ran(pass) => {
                self.timing = Timing { execute: pass.time(), batch: 1, ..Timing::default() };
                self.shared.counters.lone.record(pass.time());
                if deadline.is_some_and(|deadline| deadline < pass.finished) {
                    count(&self.shared.counters.late);
                }
                count(if pass.result.is_ok() { &self.shared.counters.steps } else { &self.shared.counters.failed });
                count(&self.shared.counters.lone_steps);
                self.note(pass.result.map_err(EngineError::from))
            }
            Alone::Closed => Err(EngineError::Closed),
            Alone::Others => {
                self.submit(deadline)?;
                self.shared.queue.wait(self.row);
                self.collect()
            }
        }
    }

    /// Everything that can be wrong before a request is made.
    fn prepare(&mut self) -> Result<(), EngineError> {
        self.timing = Timing::default();
        self.intact()?;
        if self.shared.queue.is_closed() {
            return Err(EngineError::Closed);
        }
        let row = self.shared.slab.row(self.row);
        // SAFETY: the session owns its row once it has settled.
        let (floats, indices) = unsafe { (&*row.floats, &*row.indices) };
        Ok(self.shared.checks.check(&self.shared.layout, floats, indices)?)
    }

    fn intact(&mut self) -> Result<(), EngineError> {
        self.settle();
        if self.lost { Err(EngineError::StateLost) } else { Ok(()) }
    }

    fn submit(&mut self, deadline: Option<Instant>) -> Result<(), EngineError> {
        Self::queue(&[&mut *self], deadline)?;
        self.shared.queue.call();
        Ok(())
    }

    /// Queues requests of prepared sessions of one engine, all of them or none.
    fn queue(sessions: &[&mut Self], deadline: Option<Instant>) -> Result<(), EngineError> {
        let Some(first) = sessions.first() else { return Ok(()) };
        let (shared, queued) = (&first.shared, Instant::now());
        let requests = sessions.iter().map(|session| Request { slot: session.row, queued, deadline });
        shared.queue.push(requests).map_err(|refused| match refused {
            Refused::Closed => EngineError::Closed,
            Refused::Full(queue) => {
                count(&shared.counters.overloaded);
                EngineError::Overloaded { queue }
            }
        })
    }

    /// Queues requests of settled sessions, those of one engine next to each other. Nobody has been called to run them yet. On an error none is
    /// queued.
    pub(super) fn queue_all(sessions: &mut [&mut Self], deadline: Option<Instant>) -> Result<(), EngineError> {
        sessions.iter_mut().try_for_each(|session| session.prepare())?;
        let mut queued = 0;
        for group in sessions.chunk_by(|a, b| Arc::ptr_eq(&a.shared, &b.shared)) {
            if let Err(refused) = Self::queue(group, deadline) {
                sessions[..queued].iter_mut().for_each(|session| session.cancel());
                return Err(refused);
            }
            queued += group.len();
        }
        Ok(())
    }

    /// Has the session's request run, on this thread if that is soon over.
    pub(super) fn hurry(&self) {
        if self.shared.queue.state(self.row) == State::Queued && !self.shared.run_here() {
            self.shared.queue.call();
        }
    }

    /// The answer to the request that is done.
    fn collect(&mut self) -> Result<(), EngineError> {
        let Answer { result, queue, execute, batch, finished } = self.answer();
        self.timing = Timing { queue, execute, batch, reply: finished.elapsed() };
        self.shared.counters.reply.record(self.timing.reply);
        self.note(result)
    }

    fn answer(&self) -> Answer {
        let answer = self.shared.queue.take(self.row);
        let Some(answer) = answer else { unreachable!("a request that is done has an answer") };
        answer
    }

    /// Keeps account of the state.
    fn note(&mut self, result: Result<(), EngineError>) -> Result<(), EngineError> {
        match &result {
            Ok(()) => {
                self.frames += 1;
                // SAFETY: the session owns its row: its request has been answered.
                unsafe { self.shared.slab.row(self.row).set_reset(false) };
            }
            Err(EngineError::Panicked(_) | EngineError::Failed(_)) => self.lost = true,
            Err(_) => {}
        }
        result
    }

    /// Takes the row back from a request that a dropped future has left behind.
    fn take_back(&self) {
        if self.shared.queue.state(self.row) == State::Queued {
            self.shared.queue.withdraw(self.row);
        }
        self.shared.queue.wait(self.row);
    }

    /// Takes the row back and keeps account of what became of the request.
    fn settle(&mut self) {
        if self.shared.queue.state(self.row) == State::Idle {
            return;
        }
        self.take_back();
        self.note_left_behind();
    }

    /// [`settle`](Self::settle) without blocking.
    pub(super) fn poll_settled(&mut self, context: &mut Context<'_>) -> bool {
        if self.shared.queue.state(self.row) == State::Queued {
            self.shared.queue.withdraw(self.row);
        }
        let done = self.shared.queue.poll(self.row, context);
        if done {
            self.note_left_behind();
        }
        done
    }

    fn note_left_behind(&mut self) {
        if self.shared.queue.state(self.row) == State::Done {
            let answer = self.answer();
            // Nobody waits for this answer; what it means for the state has been kept.
            let _ = self.note(answer.result);
        }
    }

    /// Makes a request without blocking: pending while one that was cancelled is still being run.
    pub(super) fn poll_submit(&mut self, deadline: Option<Instant>, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        if !self.poll_settled(context) {
            return Poll::Pending;
        }
        Poll::Ready(self.prepare().and_then(|()| self.submit(deadline)))
    }

    /// The answer to the request, if it is there.
    pub(super) fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<(), EngineError>> {
        if self.shared.queue.poll(self.row, context) { Poll::Ready(self.collect()) } else { Poll::Pending }
    }

    /// Gives up the request.
    pub(super) fn cancel(&mut self) {
        count(&self.shared.counters.cancelled);
        if !self.shared.queue.withdraw(self.row) {
            self.shared.queue.forget_waker(self.row);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.shared.queue.leave(self.row) {
            self.shared.release(self.row);
        }
    }
}

//! Scenes of sessions and an engine on the queue of `candle-models`, in every order of their operations.
//!
//! What is checked in all of them: no operation hangs, a row is never touched by two threads at once (`Row` is a cell that
//! the checker watches), and every request is answered once or taken back.
#![cfg(test)]

// The scenes hold no batch back.
#[allow(dead_code)]
#[path = "../../src/engine/queue.rs"]
mod queue;
// The scenes do not look at the times in an answer.
#[allow(dead_code)]
#[path = "../../src/engine/slot.rs"]
mod slot;
mod sync;
#[path = "../../src/engine/turn.rs"]
mod turn;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;
use queue::{Queue, Refused, Request};
use slot::{Answer, State};
use std::task::{Context, Waker};
use std::time::{Duration, Instant};
use turn::{Turn, Turns};

/// What the slot carries and does not look into.
#[derive(Debug)]
enum EngineError {
    Closed,
}

/// What a session and the engine write to in turn.
struct Row(UnsafeCell<usize>);

// SAFETY: that only the owner touches it is what the scenes check.
unsafe impl Sync for Row {}
// SAFETY: as above.
unsafe impl Send for Row {}

struct Scene {
    queue: Queue,
    /// What the executor is to the engine.
    turns: Turns<()>,
    rows: Vec<Row>,
    free: AtomicUsize,
    steps: AtomicUsize,
}

impl Scene {
    fn new(sessions: usize, bound: usize, max_batch: usize) -> Arc<Self> {
        Arc::new(Self {
            queue: Queue::new(sessions, bound, max_batch, None),
            turns: Turns::new(()),
            rows: (0..sessions).map(|_| Row(UnsafeCell::new(0))).collect(),
            free: AtomicUsize::new(0),
            steps: AtomicUsize::new(0),
        })
    }

    fn touch(&self, slot: u32) -> usize {
        // SAFETY: the checker fails the scene if two threads are here at once for one row.
        self.rows[slot as usize].0.with_mut(|n| unsafe {
            *n += 1;
            *n
        })
    }

    fn answer(&self, slot: u32, result: Result<(), EngineError>) {
        let answer = Answer { result, queue: Duration::ZERO, execute: Duration::ZERO, batch: 0, finished: Instant::now() };
        if self.queue.finish(slot, answer) {
            self.touch(slot);
            self.free.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The engine's thread, until the queue is closed.
    fn serve(&self) {
        while self.queue.wait_for_batch(|| self.rows.len()) {
            self.run(self.turns.enter(&self.queue));
        }
    }

    /// The next batch, on any thread.
    fn run(&self, turn: Turn<'_, ()>) {
        let mut batch = self.queue.batch();
        self.queue.claim(&mut batch);
        assert!(batch.expired.is_empty());
        for request in &batch.live {
            self.touch(request.slot);
            self.steps.fetch_add(1, Ordering::Relaxed);
        }
        drop(turn);
        batch.live.iter().for_each(|request| self.answer(request.slot, Ok(())));
    }

    fn close(&self) {
        for request in self.queue.close() {
            self.answer(request.slot, Err(EngineError::Closed));
        }
    }

    fn push(&self, slot: u32) -> Result<(), Refused> {
        self.queue_only(slot)?;
        self.queue.call();
        Ok(())
    }

    /// Queues a request and calls nobody.
    fn queue_only(&self, slot: u32) -> Result<(), Refused> {
        self.touch(slot);
        self.queue.push(std::iter::once(Request { slot, queued: Instant::now(), deadline: None }))
    }

    /// A step whose batch this thread runs, unless somebody else has the executor: whether it was made.
    fn step_here(&self, slot: u32) -> bool {
        if self.queue_only(slot).is_err() {
            return false;
        }
        if let Some(turn) = self.turns.try_enter(&self.queue) {
            self.run(turn);
        }
        self.queue.wait(slot);
        self.touch(slot);
        self.queue.take(slot).is_some_and(|answer| answer.result.is_ok())
    }

    /// A blocking step: whether it was made.
    fn step(&self, slot: u32) -> bool {
        if let Err(refused) = self.push(slot) {
            assert_eq!(refused, Refused::Closed);
            return false;
        }
        self.queue.wait(slot);
        self.touch(slot);
        assert_eq!(self.queue.state(slot), State::Done);
        self.queue.take(slot).is_some_and(|answer| answer.result.is_ok())
    }

    /// Takes the row back as a session does whose future was dropped: whether the step was made all the same.
    fn take_back(&self, slot: u32) -> bool {
        if self.queue.state(slot) == State::Queued {
            self.queue.withdraw(slot);
        }
        self.queue.wait(slot);
        self.touch(slot);
        self.queue.state(slot) == State::Done && self.queue.take(slot).is_some_and(|answer| answer.result.is_ok())
    }

    fn leave(&self, slot: u32) {
        if self.queue.leave(slot) {
            self.touch(slot);
            self.free.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Runs a scene beside an engine's thread; the scene closes the queue. `switches` bounds how often a thread that could go
/// on has to make way for another: most errors need two.
fn scene(sessions: usize, max_batch: usize, switches: usize, play: impl Fn(&Arc<Scene>) + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder.check(move || {
        let scene = Scene::new(sessions, sessions, max_batch);
        let engine = thread::spawn({
            let scene = scene.clone();
            move || scene.serve()
        });
        play(&scene);
        engine.join().unwrap();
    });
}

#[test]
fn loom_a_session_gets_every_answer() {
    scene(1, 1, 5, |scene| {
        assert!(scene.step(0));
        assert!(scene.step(0));
        scene.close();
        assert_eq!(scene.steps.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_two_sessions_share_the_engine() {
    scene(2, 2, 3, |scene| {
        let other = thread::spawn({
            let scene = scene.clone();
            move || assert!(scene.step(1))
        });
        assert!(scene.step(0));
        other.join().unwrap();
        scene.close();
        assert_eq!(scene.steps.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_a_session_that_runs_its_batch_forgets_nobody() {
    // The other one calls nobody either: whoever has the executor sees to it.
    scene(2, 1, 3, |scene| {
        let other = thread::spawn({
            let scene = scene.clone();
            move || assert!(scene.step_here(1))
        });
        assert!(scene.step_here(0));
        other.join().unwrap();
        scene.close();
        assert_eq!(scene.steps.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_a_session_that_runs_its_batch_gets_along_with_one_that_waits() {
    scene(2, 2, 3, |scene| {
        let other = thread::spawn({
            let scene = scene.clone();
            move || assert!(scene.step(1))
        });
        assert!(scene.step_here(0));
        other.join().unwrap();
        scene.close();
        assert_eq!(scene.steps.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn loom_a_task_is_woken() {
    scene(1, 1, 5, |scene| {
        for _ in 0..2 {
            scene.push(0).unwrap();
            loom::future::block_on(std::future::poll_fn(|context| {
                if scene.queue.poll(0, context) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }));
            scene.touch(0);
            assert!(scene.queue.take(0).is_some_and(|answer| answer.result.is_ok()));
        }
        scene.close();
    });
}

#[test]
fn loom_a_cancelled_request_is_run_or_taken_back() {
    scene(1, 1, 5, |scene| {
        scene.push(0).unwrap();
        let made = scene.take_back(0);
        assert_eq!(scene.steps.load(Ordering::Relaxed), usize::from(made));
        // The session goes on.
        assert!(scene.step(0));
        scene.close();
    });
}

#[test]
fn loom_a_cancelled_task_leaves_the_next_step_alone() {
    scene(1, 1, 5, |scene| {
        scene.push(0).unwrap();
        let mut context = Context::from_waker(Waker::noop());
        if !scene.queue.poll(0, &mut context) && !scene.queue.withdraw(0) {
            scene.queue.forget_waker(0);
        }
        scene.take_back(0);
        assert!(scene.step(0));
        scene.close();
    });
}

#[test]
fn loom_a_row_is_freed_once_whenever_its_session_goes() {
    loom::model(|| {
        let scene = Scene::new(1, 1, 1);
        let engine = thread::spawn({
            let scene = scene.clone();
            move || scene.serve()
        });
        scene.push(0).unwrap();
        scene.leave(0);
        scene.close();
        engine.join().unwrap();
        assert_eq!((scene.free.load(Ordering::Relaxed), scene.queue.state(0)), (1, State::Idle));
    });
}

#[test]
fn loom_closing_answers_whatever_waits() {
    scene(2, 1, 3, |scene| {
        let closer = thread::spawn({
            let scene = scene.clone();
            move || scene.close()
        });
        let made = usize::from(scene.step(0)) + usize::from(scene.step(1));
        closer.join().unwrap();
        assert_eq!(scene.steps.load(Ordering::Relaxed), made);
    });
}

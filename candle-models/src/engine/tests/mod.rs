//! The engine on a fake that adds up what it is given, and waits, fails or panics when it is told to.

pub(crate) mod allocation;
mod failures;
mod requests;
mod sessions;
mod together;

use super::check::Checks;
use super::execute::{Execute, Sequence};
use super::layout::Layout;
use super::{Engine, EngineError, Options, Session};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Inputs that the fake does not add up.
const PANIC: f32 = 666.0;
const FAIL: f32 = 667.0;

/// Sums: `x` `[2]` into the state `sum` `[2]`; out come the sums (`y`), the number of frames (`count`) and `id`.
struct Fake {
    control: Arc<Control>,
}

/// What the fake has seen, and the gate that holds it up.
#[derive(Default)]
struct Control {
    shut: Mutex<bool>,
    opened: Condvar,
    /// Batches begun.
    begun: AtomicUsize,
    /// The ids of every batch.
    batches: Mutex<Vec<Vec<u32>>>,
    /// Which thread ran the last one.
    thread: Mutex<Option<std::thread::ThreadId>>,
}

impl Control {
    fn shut(&self) {
        *self.shut.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// Waits until the fake has begun that many batches.
    fn wait_for(&self, batches: usize) {
        until(|| self.begun.load(Ordering::SeqCst) >= batches);
    }

    fn pass(&self, batch: Vec<u32>) {
        self.batches.lock().unwrap().push(batch);
        *self.thread.lock().unwrap() = Some(std::thread::current().id());
        self.begun.fetch_add(1, Ordering::SeqCst);
        let mut shut = self.shut.lock().unwrap();
        while *shut {
            shut = self.opened.wait(shut).unwrap();
        }
    }

    fn last_thread(&self) -> Option<std::thread::ThreadId> {
        *self.thread.lock().unwrap()
    }

    fn batches(&self) -> Vec<Vec<u32>> {
        self.batches.lock().unwrap().clone()
    }
}

impl Execute for Fake {
    unsafe fn execute(&mut self, sequences: &[Sequence]) -> Result<()> {
        // SAFETY: the engine's promise.
        self.control.pass(sequences.iter().map(|s| unsafe { (&*s.indices)[0] }).collect());
        // SAFETY: the engine's promise.
        sequences.iter().try_for_each(|s| unsafe { add(s) })
    }
}

/// # Safety
/// The slices are valid, and those that are written overlap no other.
unsafe fn add(s: &Sequence) -> Result<()> {
    // SAFETY: the caller's promise.
    let (x, id, state) = unsafe { (&*s.floats, &*s.indices, &mut *s.state) };
    // SAFETY: the caller's promise.
    let (y, seen, resets) = unsafe { (&mut *s.out_floats, &mut *s.out_indices, &*s.resets) };
    if resets[0] {
        state.fill(0.0);
    }
    assert_eq!((x.len(), id.len(), state.len(), y.len(), seen.len()), (2, 1, 3, 3, 1));
    state[0] += x[0];
    match x[1] {
        PANIC => panic!("told to panic"),
        FAIL => return Err(Error::Input("told to fail".to_owned())),
        value => state[1] += value,
    }
    state[2] += 1.0;
    y.copy_from_slice(state);
    seen[0] = id[0];
    Ok(())
}

fn signature() -> Signature {
    Signature {
        inputs: vec![TensorSpec::f32("x", &[2]).or_f32(&[0.0; 2]), TensorSpec::u32("id", &[1]).below(&[1_000_000]).or_u32(&[0])],
        outputs: vec![TensorSpec::f32("y", &[2]), TensorSpec::f32("count", &[1]), TensorSpec::u32("id", &[1])],
        state: vec![TensorSpec::f32("sum", &[2]), TensorSpec::f32("frames", &[1])],
    }
}

fn engine_on(executor: Box<dyn Execute>, options: &Options) -> Engine {
    let (signature, layout) = (signature(), Layout::new(&signature(), 1));
    let checks = Checks::new(&layout);
    Engine::with(executor, (signature, layout, checks), options).unwrap()
}

fn engine(options: &Options) -> (Engine, Arc<Control>) {
    let control = Arc::new(Control::default());
    (engine_on(Box::new(Fake { control: control.clone() }), options), control)
}

/// A session whose id is `id`.
fn session(engine: &Engine, id: u32) -> Session {
    let mut session = engine.open().unwrap();
    session.set_u32("id", &[id]).unwrap();
    session
}

/// The sums and the number of frames that the last step gave.
fn sums(session: &Session) -> [f32; 3] {
    let y = session.floats("y").unwrap();
    [y[0], y[1], session.floats("count").unwrap()[0]]
}

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

fn until(mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < PATIENCE, "it never came");
        std::thread::yield_now();
    }
}

/// A test that hangs fails.
fn unless_it_hangs(test: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match over.recv_timeout(PATIENCE) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls until the future is ready, from this thread and without a waker.
fn finish<F: Future + Unpin>(mut future: F) -> F::Output {
    let start = Instant::now();
    loop {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        assert!(start.elapsed() < PATIENCE, "the future is never ready");
        std::thread::yield_now();
    }
}

struct Unpark(std::thread::Thread);

impl std::task::Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Sleeps between polls: nothing but the waker ends it.
fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    let waker = Arc::new(Unpark(std::thread::current())).into();
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

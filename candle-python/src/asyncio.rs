//! Steps that an asyncio loop waits for.
//!
//! A loop polls a [`Step`] as a Rust runtime does. The waker notes which step it was and writes one byte into a pipe that the loop reads:
//! steps that are answered together wake the loop once. The engine's thread never asks for the interpreter, which the loop's thread may
//! hold for milliseconds.

use crate::errors::raised;
use crate::lend::{Loan, lock};
use candle_models::engine::{EngineError, Session};
use pyo3::prelude::*;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Instant;

/// The steps of one loop that can be polled again.
#[pyclass(frozen, module = "candle_models._native")]
pub struct Wakeups(Arc<Ready>);

struct Ready {
    tokens: Mutex<Vec<u64>>,
    /// What the loop reads, and what wakers write.
    pipe: (UnixStream, UnixStream),
}

#[pymethods]
impl Wakeups {
    #[new]
    fn new() -> PyResult<Self> {
        let pipe = UnixStream::pair()?;
        pipe.0.set_nonblocking(true)?;
        pipe.1.set_nonblocking(true)?;
        Ok(Self(Arc::new(Ready { tokens: Mutex::new(Vec::new()), pipe })))
    }

    /// What the loop waits for to become readable.
    fn fileno(&self) -> i32 {
        self.0.pipe.0.as_raw_fd()
    }

    /// The tokens of steps that can be polled again.
    fn take(&self) -> Vec<u64> {
        // The bytes go before the tokens, or a token that comes in between would be left without its byte.
        let mut bytes = [0; 64];
        while matches!((&self.0.pipe.0).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        std::mem::take(&mut lock(&self.0.tokens))
    }
}

struct Wakeup {
    ready: Arc<Ready>,
    token: u64,
}

impl Wake for Wakeup {
    fn wake(self: Arc<Self>) {
        let mut tokens = lock(&self.ready.tokens);
        tokens.push(self.token);
        let first = tokens.len() == 1;
        drop(tokens);
        if first {
            // A pipe that is full wakes the loop as well.
            let _ = (&self.ready.pipe.1).write(&[1]);
        }
    }
}

/// A session that comes home once nobody computes in its memory any more: arrays show that memory, and a step that was cancelled may be in
/// a batch.
struct Settled(Loan<Session>);

impl Drop for Settled {
    fn drop(&mut self) {
        // Whether the state is lost is told by the next call.
        let _ = self.0.get().frames();
    }
}

type Answer = Pin<Box<dyn Future<Output = Result<(), EngineError>> + Send>>;

/// A step that has been asked for. It has the session until it is over.
#[pyclass(frozen, module = "candle_models._native")]
pub struct Step {
    answer: Mutex<Option<Answer>>,
    waker: Waker,
}

impl Step {
    /// A step whose token comes up in `wakeups`. Nothing happens before the first poll.
    pub fn new(wakeups: &Wakeups, token: u64, session: Loan<Session>, deadline: Option<Instant>) -> Self {
        let mut session = Settled(session);
        let answer = async move {
            match deadline {
                Some(deadline) => session.0.get().step_async_before(deadline).await,
                None => session.0.get().step_async().await,
            }
        };
        let waker = Arc::new(Wakeup { ready: wakeups.0.clone(), token }).into();
        Self { answer: Mutex::new(Some(Box::pin(answer))), waker }
    }
}

#[pymethods]
impl Step {
    /// Whether the step is over; if not, its token comes up once there is more to know.
    fn poll(&self) -> PyResult<bool> {
        let mut answer = lock(&self.answer);
        let Some(step) = &mut *answer else { return Ok(true) };
        let Poll::Ready(result) = step.as_mut().poll(&mut Context::from_waker(&self.waker)) else { return Ok(false) };
        *answer = None;
        result.map(|()| true).map_err(raised)
    }

    /// Cancels the step, if it is not over, and gives the session back; waits for the batch that it may be in.
    fn close(&self, py: Python<'_>) {
        let answer = lock(&self.answer).take();
        py.detach(|| drop(answer));
    }
}

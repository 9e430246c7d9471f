//! A step as a future.

use super::{EngineError, Session};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A step that has been asked for with [`Session::step_async`]. Dropping it cancels the step.
///
/// ```
/// use candle_models::prelude::*;
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options::default())?;
/// let mut agent = engine.open()?;
/// agent.floats_mut("features")?.fill(0.1);
/// agent.indices_mut("ids")?.fill(14);
/// {
///     // A runtime does this, and sleeps in between.
///     let (mut step, mut context) = (pin!(agent.step_async()), Context::from_waker(Waker::noop()));
///     while let Poll::Pending = step.as_mut().poll(&mut context)? {
///         std::thread::yield_now();
///     }
/// }
/// assert_eq!(agent.frames()?, 1);
/// # Ok(())
/// # }
/// ```
#[must_use = "a future does nothing unless it is awaited"]
pub struct Step<'a> {
    session: &'a mut Session,
    deadline: Option<Instant>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    Requested,
    Over,
}

impl<'a> Step<'a> {
    pub(super) fn new(session: &'a mut Session, deadline: Option<Instant>) -> Self {
        Self { session, deadline, stage: Stage::New }
    }
}

impl Future for Step<'_> {
    type Output = Result<(), EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        assert!(this.stage != Stage::Over, "a step is polled after its end");
        if this.stage == Stage::New {
            match this.session.poll_submit(this.deadline, context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(())) => this.stage = Stage::Requested,
                Poll::Ready(refused) => {
                    this.stage = Stage::Over;
                    return Poll::Ready(refused);
                }
            }
        }
        let answer = this.session.poll_answer(context);
        if answer.is_ready() {
            this.stage = Stage::Over;
        }
        answer
    }
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        if self.stage == Stage::Requested {
            self.session.cancel();
        }
    }
}

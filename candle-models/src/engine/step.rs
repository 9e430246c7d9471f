//! A step as a future.

use super::{EngineError, Session};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

/// A step that has been asked for with [`Session::step_async`]. Dropping it cancels the step.
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

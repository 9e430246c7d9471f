//! Steps as futures.

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

/// Steps of several sessions that have been asked for together: a batch takes as many of them as fit, and the future is over when all are,
/// with the first error. Dropping it cancels those that have not begun.
///
/// They are for a thread that serves many: where passes are short and nobody else runs one, the thread that polls runs the batch itself, with
/// whatever else waits by then, and no other thread has to be woken. A task that lets others go first between [`request`](Self::request) and
/// the first poll shares a batch with those that ask meanwhile. Long passes run on the engine's thread, as those of [`Session::step_async`]
/// always do.
///
/// ```
/// use candle_models::engine::Steps;
/// use candle_models::prelude::*;
/// # async fn yield_now() {}
/// # async fn both() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let engine = Engine::start(model, &Options::default())?;
/// let (mut a, mut b) = (engine.open()?, engine.open()?);
/// for agent in [&mut a, &mut b] {
///     agent.floats_mut("features")?.fill(0.1);
///     agent.indices_mut("ids")?.fill(14);
/// }
/// let steps = Steps::request(vec![&mut a, &mut b], None).await?;
/// yield_now().await; // the runtime's own
/// steps.await?;
/// assert_eq!((a.timing().batch, b.frames()?), (2, 1));
/// # Ok(())
/// # }
/// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// # let mut both = std::pin::pin!(both());
/// # while both.as_mut().poll(&mut context).is_pending() {}
/// ```
#[must_use = "the steps are cancelled unless they are awaited"]
pub struct Steps<'a> {
    /// Those that have not been answered. Answers come in the order of requests, so that the last one is waited for first.
    sessions: Vec<&'a mut Session>,
    error: Option<EngineError>,
}

impl<'a> Steps<'a> {
    /// Asks for a step of each session, unless it would begin after the deadline. Waits for steps that were cancelled while they ran.
    ///
    /// # Errors
    /// See [`EngineError`]. None of the steps is made then.
    pub async fn request(mut sessions: Vec<&'a mut Session>, deadline: Option<Instant>) -> Result<Self, EngineError> {
        for session in &mut sessions {
            std::future::poll_fn(|context| if session.poll_settled(context) { Poll::Ready(()) } else { Poll::Pending }).await;
        }
        Session::queue_all(&mut sessions, deadline)?;
        Ok(Self { sessions, error: None })
    }
}

impl Future for Steps<'_> {
    type Output = Result<(), EngineError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { sessions, error } = &mut *self;
        while let Some(session) = sessions.last_mut() {
            session.hurry();
            let Poll::Ready(answer) = session.poll_answer(context) else { return Poll::Pending };
            sessions.pop();
            *error = answer.err().or(error.take());
        }
        Poll::Ready(error.take().map_or(Ok(()), Err))
    }
}

impl Drop for Steps<'_> {
    fn drop(&mut self) {
        self.sessions.iter_mut().for_each(|session| session.cancel());
    }
}

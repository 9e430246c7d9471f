//! Bodies of calls: of requests within a time, of answers until the server ends.

use super::activity::Guard;
use super::status::ending;
use crate::listen::{Phase, closing};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http_body::{Body, Frame, SizeHint};
use hyper::HeaderMap;
use hyper::body::Incoming;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Sleep;
use tonic::Status;

/// A request's body, which has to come within a time where the call is no stream.
pub(super) struct RequestBody {
    body: Incoming,
    limit: Option<Duration>,
    /// Set once there is something to wait for: most bodies come with their headers.
    timer: Option<Pin<Box<Sleep>>>,
}

impl RequestBody {
    pub fn new(body: Incoming, limit: Option<Duration>) -> Self {
        Self { body, limit, timer: None }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        let Some(limit) = self.limit else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep(limit)));
        timer.as_mut().poll(context).map(|()| {
            let late = Status::deadline_exceeded(format!("the message did not come within {limit:?}"));
            Some(Err(late.into()))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Bytes of a frame that h2 copies behind those before it; a longer one ends a write, so that the trailers would take another system call, and
/// wake the client once more.
const PIECE: usize = 255;
/// Bytes of data that are sent as such pieces. Longer ones are worth a write of their own.
const SMALL: usize = 4 * PIECE;

/// An answer's body: its call is over once it is dropped.
pub(super) struct AnswerBody {
    body: tonic::body::Body,
    /// Of the frame that is being sent.
    rest: Bytes,
    /// Of a stream that does not end by itself: until when it lives.
    closing: Option<BoxFuture<'static, ()>>,
    over: bool,
    _open: Guard,
    /// Of a stream, which may wait for its client.
    _working: Option<Guard>,
}

impl AnswerBody {
    /// A body that ends with the server where `phase` is given.
    pub fn new(body: tonic::body::Body, open: Guard, working: Option<Guard>, phase: Option<watch::Receiver<Phase>>) -> Self {
        let until = |mut phase| Box::pin(async move { closing(&mut phase).await }) as BoxFuture<'static, ()>;
        Self { body, rest: Bytes::new(), closing: phase.map(until), over: false, _open: open, _working: working }
    }
}

impl AnswerBody {
    fn piece(&mut self) -> Frame<Bytes> {
        let length = self.rest.len().min(PIECE);
        Frame::data(self.rest.split_to(length))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.piece())));
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(match frame.map(|frame| frame.map(Frame::into_data)) {
                Some(Ok(Ok(data))) if data.len() <= SMALL => {
                    self.rest = data;
                    Some(Ok(self.piece()))
                }
                Some(Ok(Ok(data))) => Some(Ok(Frame::data(data))),
                Some(Ok(Err(trailers))) => Some(Ok(trailers)),
                Some(Err(status)) => Some(Err(status)),
                None => None,
            });
        }
        let Some(closing) = &mut self.closing else { return Poll::Pending };
        closing.as_mut().poll(context).map(|()| {
            self.over = true;
            let mut trailers = HeaderMap::new();
            Some(ending().add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && (self.over || self.body.is_end_stream())
    }
}

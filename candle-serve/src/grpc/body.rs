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

/// An answer's body: its call is over once it is dropped.
pub(super) struct AnswerBody {
    body: tonic::body::Body,
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
        Self { body, closing: phase.map(until), over: false, _open: open, _working: working }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame);
        }
        let Some(closing) = &mut self.closing else { return Poll::Pending };
        closing.as_mut().poll(context).map(|()| {
            self.over = true;
            let mut trailers = HeaderMap::new();
            Some(ending().add_header(&mut trailers).map(|()| Frame::trailers(trailers)))
        })
    }

    fn is_end_stream(&self) -> bool {
        self.over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

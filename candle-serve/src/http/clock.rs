//! How long a connection may take for what it is at: between requests, within headers, or at an answer.

use hyper_util::rt::TokioIo;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What a connection is at, in the two lowest bits; since when, in the others.
const IDLE: u64 = 0;
const HEADERS: u64 = 1;
const BUSY: u64 = 2;

/// The clock of one connection.
#[derive(Debug)]
pub(super) struct Clock {
    began: Instant,
    /// Milliseconds since the beginning, and what has gone on since then.
    now: AtomicU64,
    headers: Duration,
    idle: Duration,
}

impl Clock {
    pub fn new(headers: Duration, idle: Duration) -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), now: AtomicU64::new(IDLE), headers, idle })
    }

    fn set(&self, phase: u64) {
        self.now.store((self.began.elapsed().as_millis() as u64) << 2 | phase, Relaxed);
    }

    /// Bytes have come: if none did since the last answer, headers begin with them.
    fn heard(&self) {
        if self.now.load(Relaxed) & 3 == IDLE {
            self.set(HEADERS);
        }
    }

    /// The headers are there.
    pub fn busy(&self) {
        self.set(BUSY);
    }

    /// The answer is on its way.
    pub fn idle(&self) {
        self.set(IDLE);
    }

    /// Whether the client has taken too long.
    pub fn is_over(&self) -> bool {
        let now = self.now.load(Relaxed);
        let limit = match now & 3 {
            IDLE => self.idle,
            HEADERS => self.headers,
            _ => return false,
        };
        self.began.elapsed().saturating_sub(Duration::from_millis(now >> 2)) >= limit
    }

    /// How often to look.
    pub fn tick(&self) -> Duration {
        (self.headers.min(self.idle) / 4).max(Duration::from_millis(5))
    }
}

/// A connection that tells its clock when bytes come.
pub(super) struct Timed<S> {
    stream: S,
    clock: Arc<Clock>,
}

impl<S> Timed<S> {
    pub fn new(stream: S, clock: Arc<Clock>) -> TokioIo<Self> {
        TokioIo::new(Self { stream, clock })
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Timed<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.clock.heard();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Timed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, context: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

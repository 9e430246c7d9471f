//! Connections of HTTP/1.1.

use super::clock::{Clock, Timed};
use super::serve::answer;
use crate::listen::{Phase, closing};
use crate::options::Limits;
use crate::server::Shared;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Serves a connection until either side closes it, or the client takes too long.
pub(crate) async fn connection<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
    shared: Arc<Shared>,
    _room: OwnedSemaphorePermit,
    mut phase: watch::Receiver<Phase>,
) {
    let Limits { header_time, idle_time, .. } = shared.options.limits;
    let clock = Clock::new(header_time, idle_time);
    let service = service_fn(|request| {
        let (shared, clock) = (&shared, &clock);
        clock.busy();
        async move {
            let answer = answer(shared, request).await;
            clock.idle();
            Ok::<_, Infallible>(answer)
        }
    });
    let served = http1::Builder::new().header_read_timeout(None).serve_connection(Timed::new(stream, clock.clone()), service);
    let mut served = pin!(served);
    let mut open = true;
    loop {
        tokio::select! {
            // What the client has done wrong, or that it has gone, is nobody's concern.
            _ = served.as_mut() => return,
            () = closing(&mut phase), if open => {
                open = false;
                served.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(clock.tick()) => if clock.is_over() { return },
        }
    }
}

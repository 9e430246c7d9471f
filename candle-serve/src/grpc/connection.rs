//! A connection of HTTP/2.

use super::activity::Activity;
use super::services::Services;
use crate::listen::{Phase, closing};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::convert::Infallible;
use std::pin::pin;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{OwnedSemaphorePermit, watch};

/// Calls of a connection at the same time.
const STREAMS: u32 = 128;
/// How long a connection without a call stays once its client has been told that it will be closed.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves a connection until either side closes it, or nothing was asked for too long.
pub(crate) async fn connection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    services: Services,
    _room: OwnedSemaphorePermit,
    mut phase: watch::Receiver<Phase>,
) {
    let idle_time = services.shared.options.limits.idle_time;
    let activity = Activity::new();
    let calls = activity.clone();
    let service = service_fn(move |request| {
        let (services, activity) = (services.clone(), calls.clone());
        async move { Ok::<_, Infallible>(services.answer(request, &activity).await) }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(STREAMS).auto_date_header(false);
    // A client that is gone without a word does not answer to a ping, and its calls are given up.
    builder.keep_alive_interval(Some(idle_time));
    let served = builder.serve_connection(TokioIo::new(stream), service);
    let mut served = pin!(served);
    let mut open = true;
    loop {
        let tick = if open { (idle_time / 4).max(Duration::from_millis(5)) } else { FAREWELL / 4 };
        let leave = tokio::select! {
            // What the client has done wrong, or that it has gone, is nobody's concern.
            _ = served.as_mut() => return,
            () = closing(&mut phase), if open => true,
            () = tokio::time::sleep(tick) => {
                let (idle, free) = (activity.idle(), activity.is_free());
                if !open && (idle >= idle_time || free && idle >= FAREWELL) {
                    return;
                }
                idle >= idle_time
            }
        };
        if open && leave {
            // The client is told first: what it asks after that it asks over another connection.
            open = false;
            served.as_mut().graceful_shutdown();
        }
    }
}

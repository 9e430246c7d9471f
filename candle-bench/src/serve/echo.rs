//! A bare server: it reads every request and answers with the same bytes, on the same runtime and the same HTTP as candle-serve, and does nothing else.

use anyhow::Result;
use bytes::Bytes;
use candle_serve::Address;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use tokio::net::TcpListener;

/// Listens on a free port and answers every request with `body`, until the runtime ends.
///
/// # Errors
/// If there is no port.
pub async fn echo(body: Bytes) -> Result<Address> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = Address::Tcp(listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A connection that fails is the client's to tell.
            let _ = stream.set_nodelay(true);
            let body = body.clone();
            let answer = service_fn(move |request: Request<Incoming>| {
                let body = body.clone();
                async move {
                    // Whatever came of the request is answered alike.
                    let _ = request.into_body().collect().await;
                    Ok::<_, Infallible>(Response::new(Full::new(body)))
                }
            });
            tokio::spawn(async move { http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await });
        }
    });
    Ok(address)
}

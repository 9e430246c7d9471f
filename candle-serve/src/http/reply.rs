//! Answers.

use super::body::{Encoding, compress, work};
use crate::fault::{Fault, Kind};
use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{
    ALLOW, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Response, StatusCode};
use serde::Serialize;

/// An answer to a request.
pub(super) type Answer = Response<Full<Bytes>>;

/// Length of the JSON in front of binary tensors.
pub(super) static HEADER_LENGTH: HeaderName = HeaderName::from_static("inference-header-content-length");

/// The sequence that a request belongs to, where a balancer can see it.
pub(super) static SEQUENCE_ID: HeaderName = HeaderName::from_static("x-sequence-id");

/// The code of each kind of fault.
fn status(kind: Kind) -> StatusCode {
    match kind {
        Kind::Input => StatusCode::BAD_REQUEST,
        Kind::Unauthenticated => StatusCode::UNAUTHORIZED,
        Kind::Forbidden => StatusCode::FORBIDDEN,
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::Method => StatusCode::METHOD_NOT_ALLOWED,
        Kind::Slow => StatusCode::REQUEST_TIMEOUT,
        Kind::StateLost => StatusCode::CONFLICT,
        Kind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Kind::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Kind::Overloaded => StatusCode::TOO_MANY_REQUESTS,
        Kind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        Kind::Unsupported => StatusCode::NOT_IMPLEMENTED,
        Kind::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        Kind::Deadline => StatusCode::GATEWAY_TIMEOUT,
    }
}

/// 200 without anything.
pub(super) fn empty() -> Answer {
    Response::new(Full::default())
}

/// 200 with bytes of a type.
pub(super) fn bytes(body: impl Into<Bytes>, kind: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(body.into()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// 200 with a page for people, which loads nothing and runs nothing.
pub(super) fn html(page: String) -> Answer {
    let mut answer = bytes(page, "text/html; charset=utf-8");
    let policy = HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'");
    answer.headers_mut().insert(CONTENT_SECURITY_POLICY, policy);
    answer
}

/// 200 with JSON.
pub(super) fn json(value: &impl Serialize) -> Answer {
    // Texts, numbers, lists and maps of them are always JSON.
    bytes(serde_json::to_vec(value).unwrap_or_default(), "application/json")
}

#[derive(Serialize)]
struct Error<'a> {
    error: &'a str,
}

/// What became of a request that is not answered.
pub(super) fn fault(fault: &Fault) -> Answer {
    let mut answer = json(&Error { error: &fault.message });
    *answer.status_mut() = status(fault.kind);
    match fault.kind {
        Kind::Overloaded => drop(answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"))),
        Kind::Unauthenticated => drop(answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))),
        _ => {}
    }
    answer
}

/// The page takes other methods.
pub(super) fn other_method(found: &Fault, allowed: &[Method]) -> Answer {
    let names = allowed.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    let mut answer = fault(found);
    if let Ok(value) = HeaderValue::from_str(&names) {
        answer.headers_mut().insert(ALLOW, value);
    }
    answer
}

/// 200 with an inference: `header` is the length of its JSON where tensors follow behind it.
pub(super) async fn inference(body: Vec<u8>, header: Option<usize>, encoding: Option<Encoding>) -> Result<Answer, Fault> {
    let body: Bytes = match encoding {
        None => body.into(),
        Some(encoding) => {
            let compressed = work(move || compress(encoding, &body)).await?;
            compressed.map_err(|e| Fault::new(Kind::Failed, format!("compressing the answer: {e}")))?.into()
        }
    };
    let mut answer = bytes(body, if header.is_some() { "application/octet-stream" } else { "application/json" });
    if let Some(length) = header {
        answer.headers_mut().insert(HEADER_LENGTH.clone(), length.into());
    }
    if let Some(encoding) = encoding {
        answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(encoding.name()));
    }
    Ok(answer)
}

//! gRPC: the same requests as over HTTP, as messages of Protocol Buffers over HTTP/2.
//!
//! Messages and services are generated from `proto/` ([`crate::proto`]). Connections are accepted where those of HTTP are, and share their
//! limit; tonic reads and writes what is on them. A message becomes the protocol-neutral request that a page of HTTP makes of its JSON
//! ([`convert`]), and is answered by the same engine.

mod activity;
mod body;
mod codec;
mod connection;
mod convert;
mod describe;
mod health;
mod infer;
mod metadata;
mod service;
mod services;
mod settings;
mod status;
mod stream;

pub(crate) use codec::Codec;
pub(crate) use connection::connection;
pub(crate) use health::report;
pub(crate) use services::Services;

/// The request of a message that has nothing beside it: for fuzzers.
pub(crate) fn read(message: &crate::proto::ModelInferRequest) -> Result<crate::protocol::request::InferRequest<'_>, crate::fault::Fault> {
    convert::request(message, metadata::Beside::default())
}

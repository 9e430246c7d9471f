//! Messages, server and client of the protocol over gRPC, as `proto/inference.proto` declares them.

// Fields are named and explained by the protocol.
#![allow(missing_docs, clippy::all)]

tonic::include_proto!("inference");

/// The declarations, as reflection answers them.
pub const DESCRIPTOR: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inference.bin"));

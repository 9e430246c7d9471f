//! The server from outside: over sockets, with real bundles, and with a model that waits and fails when it is told to.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod bundles;
mod client;
mod deploy;
mod endurance;
mod fuzz;
mod grpc;
mod grpc_calls;
mod grpc_hostile;
mod grpc_keys;
mod grpc_life;
mod grpc_streams;
mod hostile;
mod keys;
mod life;
mod log;
mod metrics;
mod otlp;
mod program;
mod python;
mod redis;
mod replicas;
mod repository;
mod sequences;
mod shared_memory;
mod snapshots;
mod soak;
mod sum;
mod tls;
mod top;
mod trace;

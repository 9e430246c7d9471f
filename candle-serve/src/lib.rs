//! The engine behind the Open Inference Protocol v2: every bundle of a folder over HTTP and gRPC, without a configuration file.
//!
//! A [`Server`] listens, loads the bundles of a folder and answers clients of Triton, KServe and the like. It knows models by their
//! signatures alone. A request without a sequence id is answered from the models' initial state, its rows together in a batch; one with
//! an id is the next step of a session that stays, whose state can be read, written and forked.
//!
//! [`protocol`] reads and writes the messages of HTTP, [`proto`] has those of gRPC and a client; they know neither sockets nor models. A request is then held against a model's signature,
//! stepped in the sessions of its engine, and answered from their memory.

mod arguments;
mod fault;
#[doc(hidden)]
pub mod fuzz;
mod grpc;
mod http;
mod inference;
mod keys;
mod listen;
mod log;
mod metrics;
mod model;
mod operations;
mod options;
mod places;
pub mod proto;
pub mod protocol;
mod renewal;
mod repository;
mod sequences;
mod server;
mod shared_memory;
mod snapshots;
mod spans;
mod statistics;
mod tls;
mod top;
mod trace;
mod workers;

pub use arguments::{Arguments, KeyArguments, command};
pub use fault::{Fault, Kind};
pub use keys::{Role, create as create_key};
pub use log::{LogFormat, to_stderr};
pub use options::{Address, Limits, Options, Otlp, SnapshotStore, TlsFiles};
pub use server::Server;
pub use top::{Place, TopArguments, top};

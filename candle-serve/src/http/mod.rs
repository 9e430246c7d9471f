//! HTTP/1.1: connections, bodies and the pages of the protocol.
//!
//! Connections are served here and not by a framework, because those set no limit for the time that headers take. hyper's own limit
//! counts from the end of the last answer, so that it would close idle connections as well: [`clock`] tells the two apart.

mod body;
mod clock;
mod connection;
mod openapi;
mod pages;
mod reply;
mod route;
mod sequence;
mod serve;
mod settings;
mod shared_memory;

pub(crate) use connection::connection;

//! HTTP/1.1: connections, bodies and the pages of the protocol.
//!
//! Connections are accepted here and not by a framework, because those set no limit for the time that headers take. hyper's own limit
//! counts from the end of the last answer, so that it would close idle connections as well: [`clock`] tells the two apart.

mod body;
mod clock;
mod listen;
mod openapi;
mod pages;
mod reply;
mod route;
mod sequence;
mod serve;
mod settings;
mod shared_memory;

pub(crate) use listen::{Listener, Phase, Protocol, accept, closing};

//! The messages of the Open Inference Protocol v2: read from bytes and written as bytes, without I/O and without a model.
//!
//! A request body is JSON ([`request`]); with the binary tensor data extension tensors follow behind it. Tensor data stays where it lies
//! in the body until the model's signature says what it has to be ([`data`]). Answers are written in one piece ([`answer`]).

pub mod answer;
pub mod data;
mod datatype;
pub mod describe;
pub mod request;

pub use datatype::Datatype;

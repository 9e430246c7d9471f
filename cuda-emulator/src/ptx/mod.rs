//! PTX text, as nvcc and NVRTC write it: modules, functions (bodies are parsed when first launched), variables.
mod body;
mod module;
mod ty;

pub use body::{Body, Statement};
pub use module::{Function, Module, Param, Symbol, Variable, literal};
pub use ty::{Space, Ty};

//! Fused operations: written only where a measurement says that it matters.
//!
//! Each has a kernel over slices (the CPU executor calls it directly), a Candle custom op around it with a backward, and a
//! `reference` in plain tensor operations that the tests hold both against.

pub(crate) mod simd;

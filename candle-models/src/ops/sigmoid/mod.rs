//! `1 / (1 + exp(-x))` of every value: `x` `[rows, W]` to the same shape.

use super::by_value::by_value;
use super::simd;

by_value! {
    /// The operation: one operand.
    Sigmoid, "sigmoid", 3.0,
    value: |x| <S> simd::sigmoid::<S>(x),
    slope: |y| y * (1.0 - y),
    // By tanh: neither it nor its gradient overflows.
    reference: |x| ((x * 0.5)?.tanh()? * 0.5)? + 0.5,
    formula: exec::graph::Operator::Sigmoid,
    cuda: "sigmoid.cu", "sigmoid_rows",
}

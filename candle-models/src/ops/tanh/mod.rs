//! `tanh(x)` of every value: `x` `[rows, W]` to the same shape.

use super::by_value::by_value;
use super::simd;

by_value! {
    /// The operation: one operand.
    Tanh, "tanh", 5.0,
    value: |x| <S> simd::tanh::<S>(x),
    slope: |y| (1.0 - y * y),
    reference: |x| x.tanh(),
    formula: exec::graph::Operator::Tanh,
    cuda: "tanh.cu", "tanh_rows",
}

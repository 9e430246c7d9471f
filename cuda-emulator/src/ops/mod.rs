//! What the arithmetic instructions compute, as functions over 64-bit registers. A reader takes as many low bits as its
//! type has; a writer of a narrow signed value extends the sign, since a register may be wider than the type.
pub mod cvt;
pub mod float;
pub mod half;
pub mod int;

#[cfg(test)]
mod tests;

/// An instruction without state: its operands are one, two or three registers.
#[derive(Clone, Copy)]
pub enum Alu {
    Un(fn(u64) -> u64),
    Bin(fn(u64, u64) -> u64),
    Tri(fn(u64, u64, u64) -> u64),
}

/// A comparison.
pub type Compare = fn(u64, u64) -> bool;

pub fn f32_of(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

pub fn bits32(value: f32) -> u64 {
    u64::from(value.to_bits())
}

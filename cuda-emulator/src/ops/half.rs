//! f16 and bf16 instructions, single and in pairs: computed in f32 or f64 and rounded once.
use ::half::{bf16, f16};

use super::{
    Alu, Compare,
    float::{float_compare, lesser, round_odd, two_sum},
};
use crate::ptx::Ty;

pub fn h(bits: u64) -> f32 {
    f16::from_bits(bits as u16).to_f32()
}

pub fn b(bits: u64) -> f32 {
    bf16::from_bits(bits as u16).to_f32()
}

fn to_h(v: f32) -> u64 {
    if v.is_nan() { 0x7fff } else { u64::from(f16::from_f32(v).to_bits()) }
}

fn to_b(v: f32) -> u64 {
    if v.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(v).to_bits()) }
}

/// An f64 as an f32 that rounds to a narrower type as the f64 itself would.
fn narrow(v: f64) -> f32 {
    let r = v as f32;
    let rest = v - f64::from(r);
    if rest == 0.0 || !r.is_finite() || r.to_bits() & 1 == 1 {
        return r;
    }
    if (rest > 0.0) == (r > 0.0) { f32::from_bits(r.to_bits() + 1) } else { f32::from_bits(r.to_bits() - 1) }
}

fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (s, e) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    narrow(if e.is_nan() { s } else { round_odd(s, e) })
}

fn sat(v: f32) -> f32 {
    if v > 0.0 { v.min(1.0) } else { 0.0 }
}

fn relu(v: f32) -> f32 {
    if v > 0.0 || v.is_nan() { v } else { 0.0 }
}

fn pairs(kind: Alu1, x: [u64; 3]) -> u64 {
    kind([x[0] & 0xffff, x[1] & 0xffff, x[2] & 0xffff]) & 0xffff
        | kind([x[0] >> 16 & 0xffff, x[1] >> 16 & 0xffff, x[2] >> 16 & 0xffff]) << 16 & 0xffff_ffff
}

type Alu1 = fn([u64; 3]) -> u64;

macro_rules! forms {
    // The single and the paired form, for either type, of an expression over f32.
    ($ty:expr, $kind:ident, ($($x:ident),+) => $e:expr) => {
        Some(match $ty {
            Ty::F16 => Alu::$kind(|$($x),+| { $(let $x = h($x);)+ to_h($e) }),
            Ty::Bf16 => Alu::$kind(|$($x),+| { $(let $x = b($x);)+ to_b($e) }),
            Ty::F16x2 => Alu::$kind(|$($x),+| pairs(|x| { let mut i = x.into_iter(); $(let $x = h(i.next().unwrap_or(0));)+ to_h($e) }, three(&[$($x),+]))),
            Ty::Bf16x2 => Alu::$kind(|$($x),+| pairs(|x| { let mut i = x.into_iter(); $(let $x = b(i.next().unwrap_or(0));)+ to_b($e) }, three(&[$($x),+]))),
            _ => return None,
        })
    };
}

fn three(x: &[u64]) -> [u64; 3] {
    std::array::from_fn(|i| x.get(i).copied().unwrap_or(0))
}

pub fn alu(name: &str, parts: &[&str], ty: Ty) -> Option<Alu> {
    let has = |p: &str| parts.contains(&p);
    let paired = matches!(ty, Ty::F16x2 | Ty::Bf16x2);
    match name {
        "add" if has("sat") => forms!(ty, Bin, (x, y) => sat(x + y)),
        "sub" if has("sat") => forms!(ty, Bin, (x, y) => sat(x - y)),
        "mul" if has("sat") => forms!(ty, Bin, (x, y) => sat(x * y)),
        // The sum of two 11-bit or 8-bit significands may need more than 24 bits: through f64.
        "add" => forms!(ty, Bin, (x, y) => fma(x, 1.0, y)),
        "sub" => forms!(ty, Bin, (x, y) => fma(x, 1.0, -y)),
        "mul" => forms!(ty, Bin, (x, y) => x * y),
        "fma" if has("sat") => forms!(ty, Tri, (x, y, z) => sat(fma(x, y, z))),
        "fma" if has("relu") => forms!(ty, Tri, (x, y, z) => relu(fma(x, y, z))),
        "fma" => forms!(ty, Tri, (x, y, z) => fma(x, y, z)),
        "min" if has("NaN") => forms!(ty, Bin, (x, y) => if x.is_nan() || y.is_nan() { f32::NAN } else { lesser(x, y) }),
        "max" if has("NaN") => forms!(ty, Bin, (x, y) => if x.is_nan() || y.is_nan() { f32::NAN } else { -lesser(-x, -y) }),
        "min" => forms!(ty, Bin, (x, y) => lesser(x, y)),
        "max" => forms!(ty, Bin, (x, y) => -lesser(-x, -y)),
        "neg" if paired => Some(Alu::Un(|a| a ^ 0x8000_8000)),
        "neg" => Some(Alu::Un(|a| a ^ 0x8000)),
        "abs" if paired => Some(Alu::Un(|a| a & 0x7fff_7fff)),
        "abs" => Some(Alu::Un(|a| a & 0x7fff)),
        "ex2" => forms!(ty, Un, (x) => narrow(f64::from(x).exp2())),
        "tanh" => forms!(ty, Un, (x) => narrow(f64::from(x).tanh())),
        _ => None,
    }
}

pub fn compare(op: &str, ty: Ty) -> Option<Compare> {
    match ty {
        Ty::F16 => float_compare!(op, h),
        Ty::Bf16 => float_compare!(op, b),
        _ => None,
    }
}

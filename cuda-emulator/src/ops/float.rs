//! f32 and f64 instructions: IEEE with round to nearest, the directed modes, flush to zero, and the approximations, which
//! are computed correctly rounded here (hardware is a few units in the last place away).
use super::{Alu, Compare, bits32 as b32, f32_of as f};
use crate::ptx::Ty;

/// Flushes a subnormal to zero when `Z`.
pub fn flush<const Z: bool>(v: f32) -> f32 {
    if Z && v.is_subnormal() { 0f32.copysign(v) } else { v }
}

fn clamp01(v: f32) -> f32 {
    if v > 0.0 { v.min(1.0) } else { 0.0 }
}

/// Hardware writes this NaN, whatever the operands were.
pub fn canonical(v: f32) -> u64 {
    if v.is_nan() { 0x7fff_ffff } else { b32(v) }
}

macro_rules! variants {
    // One closure per flush and saturation mode.
    ($ftz:expr, $sat:expr, $kind:ident, ($($x:ident),+) => $e:expr) => {
        match ($ftz, $sat) {
            (false, false) => Alu::$kind(|$($x),+| { $(let $x = f($x);)+ canonical($e) }),
            (true, false) => Alu::$kind(|$($x),+| { $(let $x = flush::<true>(f($x));)+ canonical(flush::<true>($e)) }),
            (false, true) => Alu::$kind(|$($x),+| { $(let $x = f($x);)+ b32(clamp01($e)) }),
            (true, true) => Alu::$kind(|$($x),+| { $(let $x = flush::<true>(f($x));)+ b32(clamp01(flush::<true>($e))) }),
        }
    };
}

/// Which way a result that does not fit is rounded.
#[derive(Clone, Copy, PartialEq)]
pub enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

pub fn rounding(parts: &[&str]) -> Round {
    for p in parts {
        match *p {
            "rz" | "rzi" => return Round::Zero,
            "rm" | "rmi" => return Round::Down,
            "rp" | "rpi" => return Round::Up,
            _ => {}
        }
    }
    Round::Nearest
}

/// The sum of two f64 and what the rounding lost.
pub fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let s = a + b;
    let t = s - a;
    (s, (a - (s - t)) + (b - t))
}

/// Rounds the exact value `s + e` (`e` far below `s`) to f32.
pub fn round_f32(s: f64, e: f64, mode: Round) -> f32 {
    let r = s as f32;
    if !s.is_finite() || mode == Round::Nearest {
        return if mode == Round::Nearest { round_odd(s, e) as f32 } else { r };
    }
    if r.is_infinite() {
        // Overflow of a finite value: the directed modes stop at the largest number on one side.
        let stop = match mode {
            Round::Zero => true,
            Round::Down => r > 0.0,
            _ => r < 0.0,
        };
        return if stop { f32::MAX.copysign(r) } else { r };
    }
    let difference = s - f64::from(r);
    let rest = if difference == 0.0 { e } else { difference };
    let down = match mode {
        Round::Zero => s > 0.0 || (s == 0.0 && e > 0.0),
        Round::Down => true,
        _ => false,
    };
    match (down, rest) {
        (true, x) if x < 0.0 => r.next_down(),
        (false, x) if x > 0.0 => r.next_up(),
        _ => r,
    }
}

/// `s` with its last bit set when the sum is inexact, so that a second rounding sees on which side of a tie it lies.
pub fn round_odd(s: f64, e: f64) -> f64 {
    if e == 0.0 || !s.is_finite() || s.to_bits() & 1 == 1 {
        return s;
    }
    // Towards zero the neighbour below has an odd last bit; away from zero, the one above.
    if (e > 0.0) == (s > 0.0) { f64::from_bits(s.to_bits() + 1) } else { f64::from_bits(s.to_bits() - 1) }
}

fn directed_fma(a: f32, b: f32, c: f32, mode: Round) -> f32 {
    let (s, e) = two_sum(f64::from(a) * f64::from(b), f64::from(c));
    let r = round_f32(s, e, mode);
    // An exact zero of two addends with unlike signs is -0 when rounding down.
    if s == 0.0 && e == 0.0 && mode == Round::Down && (a * b).is_sign_negative() != c.is_sign_negative() { -0.0 } else { r }
}

pub fn alu(name: &str, parts: &[&str], ty: Ty) -> Option<Alu> {
    if ty == Ty::F64 {
        return alu64(name, parts);
    }
    let has = |p: &str| parts.contains(&p);
    let (z, sat, mode) = (has("ftz"), has("sat"), rounding(parts));
    // One closure per directed mode, without saturation.
    macro_rules! directed {
        ($kind:ident, ($($x:ident),+), $m:ident => $e:expr) => {
            match mode {
                Round::Zero => { const $m: Round = Round::Zero; variants!(z, sat, $kind, ($($x),+) => $e) }
                Round::Down => { const $m: Round = Round::Down; variants!(z, sat, $kind, ($($x),+) => $e) }
                _ => { const $m: Round = Round::Up; variants!(z, sat, $kind, ($($x),+) => $e) }
            }
        };
    }
    let nearest = mode == Round::Nearest;
    Some(match name {
        "add" if nearest => variants!(z, sat, Bin, (a, b) => a + b),
        "add" => directed!(Bin, (a, b), M => directed_fma(a, 1.0, b, M)),
        "sub" if nearest => variants!(z, sat, Bin, (a, b) => a - b),
        "sub" => directed!(Bin, (a, b), M => directed_fma(a, 1.0, -b, M)),
        "mul" if nearest => variants!(z, sat, Bin, (a, b) => a * b),
        "mul" => directed!(Bin, (a, b), M => round_f32(f64::from(a) * f64::from(b), 0.0, M)),
        "fma" | "mad" if nearest => variants!(z, sat, Tri, (a, b, c) => a.mul_add(b, c)),
        "fma" | "mad" => directed!(Tri, (a, b, c), M => directed_fma(a, b, c, M)),
        "div" if nearest => variants!(z, sat, Bin, (a, b) => a / b),
        "div" => directed!(Bin, (a, b), M => {
            let q = f64::from(a) / f64::from(b);
            round_f32(q, (-q).mul_add(f64::from(b), f64::from(a)) / f64::from(b), M)
        }),
        "sqrt" if nearest => variants!(z, sat, Un, (a) => a.sqrt()),
        "sqrt" => directed!(Un, (a), M => {
            let q = f64::from(a).sqrt();
            round_f32(q, (-q).mul_add(q, f64::from(a)), M)
        }),
        "rcp" if nearest => variants!(z, sat, Un, (a) => 1.0 / a),
        "rcp" => directed!(Un, (a), M => {
            let q = 1.0 / f64::from(a);
            round_f32(q, (-q).mul_add(f64::from(a), 1.0) / f64::from(a), M)
        }),
        "rsqrt" => variants!(z, sat, Un, (a) => (1.0 / f64::from(a).sqrt()) as f32),
        "ex2" => variants!(z, sat, Un, (a) => f64::from(a).exp2() as f32),
        "lg2" => variants!(z, sat, Un, (a) => f64::from(a).log2() as f32),
        "sin" => variants!(z, sat, Un, (a) => f64::from(a).sin() as f32),
        "cos" => variants!(z, sat, Un, (a) => f64::from(a).cos() as f32),
        "tanh" => variants!(z, sat, Un, (a) => f64::from(a).tanh() as f32),
        "neg" if z => Alu::Un(|a| b32(-flush::<true>(f(a)))),
        "neg" => Alu::Un(|a| u64::from(a as u32 ^ 0x8000_0000)),
        "abs" if z => Alu::Un(|a| b32(flush::<true>(f(a)).abs())),
        "abs" => Alu::Un(|a| u64::from(a as u32 & 0x7fff_ffff)),
        "min" if has("NaN") => variants!(z, sat, Bin, (a, b) => if a.is_nan() || b.is_nan() { f32::NAN } else { lesser(a, b) }),
        "max" if has("NaN") => variants!(z, sat, Bin, (a, b) => if a.is_nan() || b.is_nan() { f32::NAN } else { -lesser(-a, -b) }),
        "min" => variants!(z, sat, Bin, (a, b) => lesser(a, b)),
        "max" => variants!(z, sat, Bin, (a, b) => -lesser(-a, -b)),
        "copysign" => Alu::Bin(|a, b| u64::from((a as u32 & 0x8000_0000) | (b as u32 & 0x7fff_ffff))),
        _ => return None,
    })
}

/// The smaller number; -0 is below +0, a NaN loses.
pub fn lesser(a: f32, b: f32) -> f32 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

fn lesser64(a: f64, b: f64) -> f64 {
    if a.is_nan() {
        b
    } else if b.is_nan() || a < b || (a == b && a.is_sign_negative()) {
        a
    } else {
        b
    }
}

/// One step in the direction of the mode when the nearest value lies on the wrong side of the exact one.
fn directed64(r: f64, rest: f64, mode: Round) -> f64 {
    match mode {
        Round::Zero if rest != 0.0 && (rest < 0.0) == (r > 0.0) => {
            if r > 0.0 {
                r.next_down()
            } else {
                r.next_up()
            }
        }
        Round::Down if rest < 0.0 => r.next_down(),
        Round::Up if rest > 0.0 => r.next_up(),
        _ => r,
    }
}

fn alu64(name: &str, parts: &[&str]) -> Option<Alu> {
    macro_rules! un {
        ($a:ident => $e:expr) => {
            Alu::Un(|$a| {
                let $a = d($a);
                ($e).to_bits()
            })
        };
    }
    macro_rules! bin {
        ($a:ident, $b:ident => $e:expr) => {
            Alu::Bin(|$a, $b| {
                let ($a, $b) = (d($a), d($b));
                ($e).to_bits()
            })
        };
    }
    macro_rules! modes {
        ($a:ident, $b:ident => $r:expr, $rest:expr) => {
            match rounding(parts) {
                Round::Nearest => bin!($a, $b => $r),
                Round::Zero => bin!($a, $b => directed64($r, $rest, Round::Zero)),
                Round::Down => bin!($a, $b => directed64($r, $rest, Round::Down)),
                Round::Up => bin!($a, $b => directed64($r, $rest, Round::Up)),
            }
        };
    }
    Some(match name {
        "add" => modes!(a, b => a + b, two_sum(a, b).1),
        "sub" => modes!(a, b => a - b, two_sum(a, -b).1),
        "mul" => modes!(a, b => a * b, a.mul_add(b, -(a * b))),
        "div" => modes!(a, b => a / b, (-(a / b)).mul_add(b, a) * b.signum()),
        "fma" | "mad" if rounding(parts) == Round::Nearest => Alu::Tri(|a, b, c| d(a).mul_add(d(b), d(c)).to_bits()),
        "sqrt" if rounding(parts) == Round::Nearest => un!(a => a.sqrt()),
        "rcp" if rounding(parts) == Round::Nearest => un!(a => 1.0 / a),
        "rsqrt" => un!(a => 1.0 / a.sqrt()),
        "neg" => un!(a => -a),
        "abs" => un!(a => a.abs()),
        "min" => bin!(a, b => lesser64(a, b)),
        "max" => bin!(a, b => -lesser64(-a, -b)),
        "copysign" => bin!(a, b => b.copysign(a)),
        _ => return None,
    })
}

/// `testp` on f32 or f64.
pub fn test(parts: &[&str], ty: Ty) -> Option<fn(u64) -> bool> {
    let has = |p: &str| parts.contains(&p);
    macro_rules! tests {
        ($f:expr) => {
            if has("finite") {
                |v| $f(v).is_finite()
            } else if has("infinite") {
                |v| $f(v).is_infinite()
            } else if has("number") {
                |v| !$f(v).is_nan()
            } else if has("notanumber") {
                |v| $f(v).is_nan()
            } else if has("normal") {
                |v| $f(v).is_normal()
            } else if has("subnormal") {
                |v| $f(v).is_subnormal()
            } else {
                return None;
            }
        };
    }
    Some(if ty == Ty::F64 { tests!(d) } else { tests!(f) })
}

/// The comparison of a `setp` or `set` over numbers that `get` reads from a register.
macro_rules! float_compare {
    ($op:expr, $get:expr) => {
        Some(match $op {
            "eq" => |x, y| $get(x) == $get(y),
            "ne" => |x, y| $get(x).partial_cmp(&$get(y)).is_some_and(|o| o.is_ne()),
            "lt" => |x, y| $get(x) < $get(y),
            "le" => |x, y| $get(x) <= $get(y),
            "gt" => |x, y| $get(x) > $get(y),
            "ge" => |x, y| $get(x) >= $get(y),
            "equ" => |x, y| $get(x).partial_cmp(&$get(y)).is_none_or(|o| o.is_eq()),
            "neu" => |x, y| $get(x) != $get(y),
            "ltu" => |x, y| {
                let (x, y) = ($get(x), $get(y));
                x < y || x.is_nan() || y.is_nan()
            },
            "leu" => |x, y| {
                let (x, y) = ($get(x), $get(y));
                x <= y || x.is_nan() || y.is_nan()
            },
            "gtu" => |x, y| {
                let (x, y) = ($get(x), $get(y));
                x > y || x.is_nan() || y.is_nan()
            },
            "geu" => |x, y| {
                let (x, y) = ($get(x), $get(y));
                x >= y || x.is_nan() || y.is_nan()
            },
            "num" => |x, y| !$get(x).is_nan() && !$get(y).is_nan(),
            "nan" => |x, y| $get(x).is_nan() || $get(y).is_nan(),
            _ => return None,
        })
    };
}
pub(super) use float_compare;

pub fn compare(op: &str, parts: &[&str], ty: Ty) -> Option<Compare> {
    match (ty, parts.contains(&"ftz")) {
        (Ty::F64, _) => float_compare!(op, d),
        (Ty::F32, true) => float_compare!(op, |v| flush::<true>(f(v))),
        (Ty::F32, false) => float_compare!(op, f),
        _ => None,
    }
}

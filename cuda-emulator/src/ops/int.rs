//! Integer and bit instructions.
use super::{Alu, Compare};
use crate::ptx::Ty;

macro_rules! un {
    ($t:ty, $a:ident => $e:expr) => {
        Alu::Un(|x| {
            let $a = x as $t;
            ($e) as u64
        })
    };
}
macro_rules! bin {
    ($t:ty, $a:ident, $b:ident => $e:expr) => {
        Alu::Bin(|x, y| {
            let ($a, $b) = (x as $t, y as $t);
            ($e) as u64
        })
    };
}
macro_rules! tri {
    ($t:ty, $a:ident, $b:ident, $c:ident => $e:expr) => {
        Alu::Tri(|x, y, z| {
            let ($a, $b, $c) = (x as $t, y as $t, z as $t);
            ($e) as u64
        })
    };
}
/// The same expression for every width and sign.
macro_rules! ints {
    ($ty:expr, $mac:ident, $($arg:ident),+ => $e:expr) => {
        Some(match $ty {
            Ty::U8 | Ty::B8 => $mac!(u8, $($arg),+ => $e),
            Ty::S8 => $mac!(i8, $($arg),+ => $e),
            Ty::U16 | Ty::B16 => $mac!(u16, $($arg),+ => $e),
            Ty::S16 => $mac!(i16, $($arg),+ => $e),
            Ty::U32 | Ty::B32 => $mac!(u32, $($arg),+ => $e),
            Ty::S32 => $mac!(i32, $($arg),+ => $e),
            Ty::U64 | Ty::B64 => $mac!(u64, $($arg),+ => $e),
            Ty::S64 => $mac!(i64, $($arg),+ => $e),
            _ => return None,
        })
    };
}
/// Wide products: computed in twice the width.
macro_rules! wide {
    ($ty:expr, $mac:ident, $($arg:ident),+ => |$w:ident, $bits:ident| $e:expr) => {
        Some(match $ty {
            Ty::U16 => { type $w = u32; const $bits: u32 = 16; $mac!(u16, $($arg),+ => $e) }
            Ty::S16 => { type $w = i32; const $bits: u32 = 16; $mac!(i16, $($arg),+ => $e) }
            Ty::U32 => { type $w = u64; const $bits: u32 = 32; $mac!(u32, $($arg),+ => $e) }
            Ty::S32 => { type $w = i64; const $bits: u32 = 32; $mac!(i32, $($arg),+ => $e) }
            Ty::U64 => { type $w = u128; const $bits: u32 = 64; $mac!(u64, $($arg),+ => $e) }
            Ty::S64 => { type $w = i128; const $bits: u32 = 64; $mac!(i64, $($arg),+ => $e) }
            _ => return None,
        })
    };
}

/// The function of an integer instruction by name, variant (`lo`, `hi`, `wide`, `l`, `wrap`, ...) and type.
pub fn alu(name: &str, parts: &[&str], ty: Ty) -> Option<Alu> {
    let has = |p: &str| parts.contains(&p);
    match name {
        "add" if has("sat") => Some(Alu::Bin(|a, b| (a as i32).saturating_add(b as i32) as u64)),
        "sub" if has("sat") => Some(Alu::Bin(|a, b| (a as i32).saturating_sub(b as i32) as u64)),
        "add" => ints!(ty, bin, a, b => a.wrapping_add(b)),
        "sub" => ints!(ty, bin, a, b => a.wrapping_sub(b)),
        "mul" if has("hi") => wide!(ty, bin, a, b => |W, BITS| (a as W * b as W) >> BITS),
        "mul" if has("wide") => wide!(ty, bin, a, b => |W, _BITS| (a as W).wrapping_mul(b as W)),
        "mul" => ints!(ty, bin, a, b => a.wrapping_mul(b)),
        "mul24" => Some(match (ty, has("hi")) {
            (Ty::S32, false) => Alu::Bin(|a, b| (s24(a) * s24(b)) as i32 as u64),
            (Ty::S32, true) => Alu::Bin(|a, b| ((s24(a) * s24(b)) >> 16) as i32 as u64),
            (_, false) => Alu::Bin(|a, b| ((a & 0xff_ffff) * (b & 0xff_ffff)) as u32 as u64),
            (_, true) => Alu::Bin(|a, b| (((a & 0xff_ffff) * (b & 0xff_ffff)) >> 16) as u32 as u64),
        }),
        "mad" if has("hi") => wide!(ty, tri, a, b, c => |W, BITS| {
            let high = (a as W * b as W) >> BITS;
            u64::wrapping_add(high as _, c as _)
        }),
        "mad" if has("wide") => Some(match ty {
            Ty::U16 => Alu::Tri(|a, b, c| u64::from((a as u16 as u32 * b as u16 as u32).wrapping_add(c as u32))),
            Ty::S16 => Alu::Tri(|a, b, c| (a as i16 as i32 * b as i16 as i32).wrapping_add(c as i32) as u64),
            Ty::U32 => Alu::Tri(|a, b, c| (a as u32 as u64 * b as u32 as u64).wrapping_add(c)),
            Ty::S32 => Alu::Tri(|a, b, c| (a as i32 as i64 * b as i32 as i64).wrapping_add(c as i64) as u64),
            _ => return None,
        }),
        "mad" => ints!(ty, tri, a, b, c => a.wrapping_mul(b).wrapping_add(c)),
        "mad24" => Some(match ty {
            Ty::S32 => Alu::Tri(|a, b, c| ((s24(a) * s24(b)) as i32).wrapping_add(c as i32) as u64),
            _ => Alu::Tri(|a, b, c| u64::from((((a & 0xff_ffff) * (b & 0xff_ffff)) as u32).wrapping_add(c as u32))),
        }),
        // Division by zero is unspecified; hardware gives all ones.
        "div" => ints!(ty, bin, a, b => if b == 0 { !b } else { a.wrapping_div(b) }),
        "rem" => ints!(ty, bin, a, b => if b == 0 { a } else { a.wrapping_rem(b) }),
        "abs" => Some(match ty {
            Ty::S16 => un!(i16, a => a.wrapping_abs()),
            Ty::S32 => un!(i32, a => a.wrapping_abs()),
            Ty::S64 => un!(i64, a => a.wrapping_abs()),
            _ => return None,
        }),
        "neg" => ints!(ty, un, a => a.wrapping_neg()),
        "min" => ints!(ty, bin, a, b => a.min(b)),
        "max" if has("relu") => Some(Alu::Bin(|a, b| (a as i32).max(b as i32).max(0) as u64)),
        "max" => ints!(ty, bin, a, b => a.max(b)),
        "sad" => ints!(ty, tri, a, b, c => c.wrapping_add(if a < b { b.wrapping_sub(a) } else { a.wrapping_sub(b) })),
        "popc" | "clz" | "bfind" | "brev" | "bfe" | "bfi" | "prmt" | "fns" | "bmsk" | "szext" | "dp4a" | "dp2a" | "shf" => {
            bits(name, parts, ty)
        }
        "and" => Some(Alu::Bin(|a, b| a & b)),
        "or" => Some(Alu::Bin(|a, b| a | b)),
        "xor" => Some(Alu::Bin(|a, b| a ^ b)),
        "not" if ty == Ty::Pred => Some(Alu::Un(|a| a ^ 1)),
        "not" => Some(Alu::Un(|a| !a)),
        "cnot" => ints!(ty, un, a => u64::from(a == 0)),
        // Shift counts are 32 bits and clamp at the width.
        "shl" => Some(match ty.size() {
            2 => Alu::Bin(|a, b| u64::from((a as u16).checked_shl(b as u32).unwrap_or(0))),
            4 => Alu::Bin(|a, b| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0))),
            _ => Alu::Bin(|a, b| a.checked_shl(b as u32).unwrap_or(0)),
        }),
        "shr" => Some(match ty {
            Ty::S16 => Alu::Bin(|a, b| ((a as i16) >> (b as u32).min(15)) as u64),
            Ty::S32 => Alu::Bin(|a, b| ((a as i32) >> (b as u32).min(31)) as u64),
            Ty::S64 => Alu::Bin(|a, b| ((a as i64) >> (b as u32).min(63)) as u64),
            Ty::U16 | Ty::B16 => Alu::Bin(|a, b| u64::from((a as u16).checked_shr(b as u32).unwrap_or(0))),
            Ty::U32 | Ty::B32 => Alu::Bin(|a, b| u64::from((a as u32).checked_shr(b as u32).unwrap_or(0))),
            _ => Alu::Bin(|a, b| a.checked_shr(b as u32).unwrap_or(0)),
        }),
        _ => None,
    }
}

fn s24(v: u64) -> i64 {
    i64::from(((v as i32) << 8) >> 8)
}

fn bits(name: &str, parts: &[&str], ty: Ty) -> Option<Alu> {
    let has = |p: &str| parts.contains(&p);
    let wide = ty.size() == 8;
    Some(match name {
        "popc" if wide => Alu::Un(|a| u64::from(a.count_ones())),
        "popc" => Alu::Un(|a| u64::from((a as u32).count_ones())),
        "clz" if wide => Alu::Un(|a| u64::from(a.leading_zeros())),
        "clz" => Alu::Un(|a| u64::from((a as u32).leading_zeros())),
        "brev" if wide => Alu::Un(u64::reverse_bits),
        "brev" => Alu::Un(|a| u64::from((a as u32).reverse_bits())),
        "bfind" => match (ty, has("shiftamt")) {
            (Ty::U32, false) => Alu::Un(|a| found(u64::from(a as u32))),
            (Ty::U32, true) => Alu::Un(|a| shift_amount(found(u64::from(a as u32)), 31)),
            (Ty::S32, false) => Alu::Un(|a| found(u64::from(a as u32 ^ ((a as i32) >> 31) as u32))),
            (Ty::S32, true) => Alu::Un(|a| shift_amount(found(u64::from(a as u32 ^ ((a as i32) >> 31) as u32)), 31)),
            (Ty::U64, false) => Alu::Un(found),
            (Ty::U64, true) => Alu::Un(|a| shift_amount(found(a), 63)),
            (Ty::S64, false) => Alu::Un(|a| found(a ^ ((a as i64) >> 63) as u64)),
            (Ty::S64, true) => Alu::Un(|a| shift_amount(found(a ^ ((a as i64) >> 63) as u64), 63)),
            _ => return None,
        },
        "bfe" => match ty {
            Ty::U32 => Alu::Tri(|a, b, c| extract(u64::from(a as u32), b, c, 32, false)),
            Ty::S32 => Alu::Tri(|a, b, c| extract(u64::from(a as u32), b, c, 32, true)),
            Ty::U64 => Alu::Tri(|a, b, c| extract(a, b, c, 64, false)),
            Ty::S64 => Alu::Tri(|a, b, c| extract(a, b, c, 64, true)),
            _ => return None,
        },
        "shf" => match (has("l"), has("wrap")) {
            (true, true) => Alu::Tri(|a, b, c| funnel(a, b, c & 31, true)),
            (true, false) => Alu::Tri(|a, b, c| funnel(a, b, (c & 0xffff_ffff).min(32), true)),
            (false, true) => Alu::Tri(|a, b, c| funnel(a, b, c & 31, false)),
            (false, false) => Alu::Tri(|a, b, c| funnel(a, b, (c & 0xffff_ffff).min(32), false)),
        },
        "prmt" => match parts.iter().rfind(|p| ["f4e", "b4e", "rc8", "ecl", "ecr", "rc16"].contains(p)) {
            None => Alu::Tri(|a, b, c| permute(a, b, [c & 15, (c >> 4) & 15, (c >> 8) & 15, (c >> 12) & 15])),
            Some(&"f4e") => Alu::Tri(|a, b, c| permute(a, b, [0, 1, 2, 3].map(|i| i + (c & 3)))),
            Some(&"b4e") => Alu::Tri(|a, b, c| permute(a, b, [0, 7, 6, 5].map(|i| (i + (c & 3)) & 7))),
            Some(&"rc8") => Alu::Tri(|a, b, c| permute(a, b, [c & 3; 4])),
            Some(&"ecl") => Alu::Tri(|a, b, c| permute(a, b, [0, 1, 2, 3].map(|i: u64| i.max(c & 3)))),
            Some(&"ecr") => Alu::Tri(|a, b, c| permute(a, b, [0, 1, 2, 3].map(|i: u64| i.min(c & 3)))),
            _ => Alu::Tri(|a, b, c| permute(a, b, [0, 1, 0, 1].map(|i| i + 2 * (c & 1)))),
        },
        "bmsk" => Alu::Bin(|a, b| {
            let (start, width) = ((a as u32).min(32), (b as u32).min(32));
            u64::from(((((1u64 << width) - 1) << start) & 0xffff_ffff) as u32)
        }),
        "szext" => match ty {
            Ty::S32 => Alu::Bin(|a, b| extract(u64::from(a as u32), 0, u64::from(b as u32).min(32), 32, true)),
            _ => Alu::Bin(|a, b| extract(u64::from(a as u32), 0, u64::from(b as u32).min(32), 32, false)),
        },
        "dp4a" => {
            let signs: Vec<bool> = parts.iter().filter_map(|p| Ty::parse(p)).map(Ty::signed).collect();
            match (signs.first()?, signs.get(1)?) {
                (true, true) => Alu::Tri(|a, b, c| dot4(a, b, c, |x| i64::from(x as i8), |x| i64::from(x as i8))),
                (true, false) => Alu::Tri(|a, b, c| dot4(a, b, c, |x| i64::from(x as i8), i64::from)),
                (false, true) => Alu::Tri(|a, b, c| dot4(a, b, c, i64::from, |x| i64::from(x as i8))),
                (false, false) => Alu::Tri(|a, b, c| dot4(a, b, c, i64::from, i64::from)),
            }
        }
        _ => return None,
    })
}

fn found(v: u64) -> u64 {
    if v == 0 { 0xffff_ffff } else { u64::from(63 - v.leading_zeros()) }
}

fn shift_amount(position: u64, top: u64) -> u64 {
    if position == 0xffff_ffff { position } else { top - position }
}

/// `bfe`: `len` bits from `pos`, the sign bit repeated above the top.
fn extract(a: u64, pos: u64, len: u64, width: u64, signed: bool) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let sign_at = (pos + len).saturating_sub(1).min(width - 1);
    let fill = if signed && len > 0 && (a >> sign_at) & 1 == 1 { !0u64 } else { 0 };
    let mut out = 0;
    for i in 0..width {
        let bit = if i < len && pos + i < width { (a >> (pos + i)) & 1 } else { fill & 1 };
        out |= bit << i;
    }
    if signed && width == 32 { out as u32 as i32 as u64 } else { out }
}

/// `bfi`: the low `len` bits of `a` put into `b` at `pos`.
pub fn insert(a: u64, b: u64, pos: u64, len: u64, width: u64) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    let mut out = b;
    for i in 0..len.min(width) {
        if pos + i < width {
            out = out & !(1 << (pos + i)) | ((a >> i) & 1) << (pos + i);
        }
    }
    if width == 32 { u64::from(out as u32) } else { out }
}

fn funnel(a: u64, b: u64, n: u64, left: bool) -> u64 {
    let both = u64::from(a as u32) | u64::from(b as u32) << 32;
    u64::from(if left { ((u128::from(both) << n) >> 32) as u32 } else { (u128::from(both) >> n) as u32 })
}

fn permute(a: u64, b: u64, selectors: [u64; 4]) -> u64 {
    let both = u64::from(a as u32) | u64::from(b as u32) << 32;
    let mut out = 0u64;
    for (i, s) in selectors.into_iter().enumerate() {
        let byte = (both >> ((s & 7) * 8)) as u8;
        let byte = if s & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 };
        out |= u64::from(byte) << (8 * i);
    }
    out
}

fn dot4(a: u64, b: u64, c: u64, x: fn(u8) -> i64, y: fn(u8) -> i64) -> u64 {
    let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
    let sum: i64 = a.into_iter().zip(b).map(|(i, j)| x(i) * y(j)).sum();
    (c as u32).wrapping_add(sum as u32) as u64
}

/// `lop3` with its truth table.
pub fn lop3(a: u64, b: u64, c: u64, table: u8) -> u64 {
    let mut out = 0;
    for i in 0..8u8 {
        if table >> i & 1 == 1 {
            let pick = |v: u64, bit: u8| if i >> bit & 1 == 1 { v } else { !v };
            out |= pick(a, 2) & pick(b, 1) & pick(c, 0);
        }
    }
    u64::from(out as u32)
}

macro_rules! cmp {
    ($t:ty, $a:ident, $b:ident => $e:expr) => {
        |x, y| {
            let ($a, $b) = (x as $t, y as $t);
            $e
        }
    };
}

/// The comparison of an integer `setp` or `set`.
pub fn compare(op: &str, ty: Ty) -> Option<Compare> {
    macro_rules! all {
        ($e:tt) => {
            match ty {
                Ty::U8 | Ty::B8 => cmp!(u8, a, b => a $e b),
                Ty::S8 => cmp!(i8, a, b => a $e b),
                Ty::U16 | Ty::B16 => cmp!(u16, a, b => a $e b),
                Ty::S16 => cmp!(i16, a, b => a $e b),
                Ty::U32 | Ty::B32 => cmp!(u32, a, b => a $e b),
                Ty::S32 => cmp!(i32, a, b => a $e b),
                Ty::U64 | Ty::B64 => cmp!(u64, a, b => a $e b),
                Ty::S64 => cmp!(i64, a, b => a $e b),
                _ => return None,
            }
        };
    }
    Some(match op {
        "eq" => all!(==),
        "ne" => all!(!=),
        "lt" | "lo" => all!(<),
        "le" | "ls" => all!(<=),
        "gt" | "hi" => all!(>),
        "ge" | "hs" => all!(>=),
        _ => return None,
    })
}

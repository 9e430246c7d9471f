//! Atomic operations: one at a time, so a read and a write.
use crate::{decode::AtomOp, ptx::Ty};
use ::half::{bf16, f16};

/// What an atomic operation leaves in memory, from the old value and its operands.
pub fn apply(op: AtomOp, ty: Ty, old: u64, b: u64, c: u64) -> Option<u64> {
    Some(match op {
        AtomOp::Exch => b,
        AtomOp::Cas => {
            let mask = if ty.size() >= 8 { !0 } else { (1 << (8 * ty.size())) - 1 };
            if old & mask == b & mask { c } else { old }
        }
        AtomOp::And => old & b,
        AtomOp::Or => old | b,
        AtomOp::Xor => old ^ b,
        AtomOp::Inc => u64::from(if old as u32 >= b as u32 { 0 } else { old as u32 + 1 }),
        AtomOp::Dec => u64::from(if old as u32 == 0 || old as u32 > b as u32 { b as u32 } else { old as u32 - 1 }),
        AtomOp::Add => match ty {
            Ty::F32 => u64::from((f32::from_bits(old as u32) + f32::from_bits(b as u32)).to_bits()),
            Ty::F64 => (f64::from_bits(old) + f64::from_bits(b)).to_bits(),
            Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => halves(ty, old, b),
            _ if ty.size() == 8 => old.wrapping_add(b),
            _ => u64::from((old as u32).wrapping_add(b as u32)),
        },
        AtomOp::Min | AtomOp::Max => {
            let larger = match ty {
                Ty::S32 => (b as i32) > old as i32,
                Ty::U32 => (b as u32) > old as u32,
                Ty::S64 => (b as i64) > old as i64,
                Ty::U64 => b > old,
                _ => return None,
            };
            if larger == (op == AtomOp::Max) { b } else { old }
        }
    })
}

fn halves(ty: Ty, old: u64, b: u64) -> u64 {
    let add = |x: u16, y: u16| match ty {
        Ty::F16 | Ty::F16x2 => f16::from_f32(f16::from_bits(x).to_f32() + f16::from_bits(y).to_f32()).to_bits(),
        _ => bf16::from_f32(bf16::from_bits(x).to_f32() + bf16::from_bits(y).to_f32()).to_bits(),
    };
    let low = u64::from(add(old as u16, b as u16));
    match ty {
        Ty::F16 | Ty::Bf16 => low,
        _ => low | u64::from(add((old >> 16) as u16, (b >> 16) as u16)) << 16,
    }
}

//! Instructions against Rust's own arithmetic, over edge cases and random bits.
use super::{
    Alu,
    cvt::{Cvt, Round2, narrow},
    float, half as halves, int,
};
use crate::{machine::Rng, ptx::Ty};
use ::half::{bf16, f16};

fn inputs() -> Vec<u64> {
    let mut rng = Rng::new(7);
    let mut out = vec![0, 1, 2, 31, 32, 33, 0x7f, 0x80, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, !0];
    for f in [1f32, -1., 0.5, 1e-40, -1e-40, f32::MAX, f32::INFINITY, f32::NAN, 3.75, -2.5, 16777217.] {
        out.push(u64::from(f.to_bits()));
        out.push(f64::from(f).to_bits());
    }
    out.extend((0..200).map(|_| rng.draw()));
    out.extend((0..100).map(|_| u64::from((((rng.draw() >> 40) as f32 / 1e6) - 8.).to_bits())));
    out
}

fn alu(opcode: &str) -> (Alu, Ty) {
    let parts: Vec<&str> = opcode.split('.').collect();
    let ty = Ty::parse(parts[parts.len() - 1]).unwrap();
    let found = match ty {
        Ty::F32 | Ty::F64 => float::alu(parts[0], &parts, ty),
        Ty::F16 | Ty::Bf16 | Ty::F16x2 | Ty::Bf16x2 => halves::alu(parts[0], &parts, ty),
        _ => int::alu(parts[0], &parts, ty),
    };
    (found.unwrap_or_else(|| panic!("{opcode} is missing")), ty)
}

fn call(f: Alu, x: [u64; 3]) -> u64 {
    match f {
        Alu::Un(f) => f(x[0]),
        Alu::Bin(f) => f(x[0], x[1]),
        Alu::Tri(f) => f(x[0], x[1], x[2]),
    }
}

/// Compares `bits` low bits of an instruction's result with `want` for all pairs of inputs and some third operands.
fn check(opcode: &str, bits: u32, want: impl Fn(u64, u64, u64) -> u64) {
    let (f, _) = alu(opcode);
    let (values, mask) = (inputs(), u64::MAX >> (64 - bits));
    for (i, a) in values.iter().enumerate() {
        for (j, b) in values.iter().enumerate() {
            let c = values[(i * 31 + j * 17) % values.len()];
            let (got, want) = (call(f, [*a, *b, c]) & mask, want(*a, *b, c) & mask);
            assert_eq!(got, want, "{opcode} of {a:#x}, {b:#x}, {c:#x}: {got:#x}, expected {want:#x}");
        }
    }
}

#[test]
fn integers() {
    check("add.s32", 32, |a, b, _| a.wrapping_add(b));
    check("sub.u64", 64, |a, b, _| a.wrapping_sub(b));
    check("mul.lo.u32", 32, |a, b, _| u64::from((a as u32).wrapping_mul(b as u32)));
    check("mul.hi.u32", 32, |a, b, _| (u64::from(a as u32) * u64::from(b as u32)) >> 32);
    check("mul.hi.s32", 32, |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64);
    check("mul.hi.u64", 64, |a, b, _| ((u128::from(a) * u128::from(b)) >> 64) as u64);
    check("mul.wide.s32", 64, |a, b, _| (i64::from(a as i32) * i64::from(b as i32)) as u64);
    check("mul.wide.u16", 32, |a, b, _| u64::from(a as u16) * u64::from(b as u16));
    check("mad.lo.s32", 32, |a, b, c| u64::from((a as u32).wrapping_mul(b as u32).wrapping_add(c as u32)));
    check("mad.wide.u32", 64, |a, b, c| (u64::from(a as u32) * u64::from(b as u32)).wrapping_add(c));
    check("mad.hi.s32", 32, |a, b, c| ((i64::from(a as i32) * i64::from(b as i32)) >> 32).wrapping_add(c as i64) as u64);
    check("div.s32", 32, |a, b, _| if b as i32 == 0 { !0 } else { (a as i32).wrapping_div(b as i32) as u64 });
    check("rem.u32", 32, |a, b, _| if b as u32 == 0 { a } else { u64::from(a as u32 % b as u32) });
    check("min.s32", 32, |a, b, _| (a as i32).min(b as i32) as u64);
    check("max.u64", 64, |a, b, _| a.max(b));
    check("shl.b32", 32, |a, b, _| u64::from((a as u32).checked_shl(b as u32).unwrap_or(0)));
    check("shr.s32", 32, |a, b, _| ((a as i32) >> (b as u32).min(31)) as u64);
    check("shr.u64", 64, |a, b, _| a.checked_shr(b as u32).unwrap_or(0));
    check("shf.l.wrap.b32", 32, |a, b, c| (((b << 32 | a & 0xffff_ffff) as u128) << (c & 31) >> 32) as u64);
    check("shf.r.clamp.b32", 32, |a, b, c| ((u128::from(b as u32) << 32 | u128::from(a as u32)) >> (c as u32).min(32)) as u64);
    check("popc.b64", 32, |a, _, _| u64::from(a.count_ones()));
    check("clz.b32", 32, |a, _, _| u64::from((a as u32).leading_zeros()));
    check("brev.b32", 32, |a, _, _| u64::from((a as u32).reverse_bits()));
    check("bfind.u32", 32, |a, _, _| if a as u32 == 0 { !0 } else { u64::from(31 - (a as u32).leading_zeros()) });
    check("sad.s32", 32, |a, b, c| u64::from((a as i32).abs_diff(b as i32).wrapping_add(c as u32)));
    check("abs.s32", 32, |a, _, _| (a as i32).wrapping_abs() as u64);
    check("bfe.u32", 32, |a, b, c| {
        let (pos, len) = (b & 255, c & 255);
        if pos > 31 { 0 } else { (u64::from(a as u32) >> pos) & ((1u64 << len.min(63)) - 1) }
    });
    check("dp4a.s32.s32", 32, |a, b, c| {
        let (a, b) = ((a as u32).to_le_bytes(), (b as u32).to_le_bytes());
        (0..4).fold(c as i32, |s, i| s.wrapping_add(i32::from(a[i] as i8) * i32::from(b[i] as i8))) as u64
    });
}

#[test]
fn permutations_and_truth_tables() {
    let (f, _) = alu("prmt.b32");
    assert_eq!(call(f, [0x4433_2211, 0x8877_6655, 0x7531]), 0x8866_4422);
    assert_eq!(call(f, [0x80, 0, 0x0008]), 0x8080_80ff);
    let (f, _) = alu("bfe.s32");
    assert_eq!(call(f, [0x0000_0f00, 8, 4]) as u32, u32::MAX);
    assert_eq!(int::insert(0xabc, 0xffff_ffff, 4, 8, 32), 0xffff_fbcf);
    let (a, b, c) = (0x1234_5678u64, 0x0f0f_f0f0, 0xdead_beef);
    assert_eq!(int::lop3(a, b, c, 0xca), (a & b | !a & c) & 0xffff_ffff);
    assert_eq!(int::lop3(a, b, c, 0x96), a ^ b ^ c);
    assert_eq!(int::lop3(a, b, c, 0xfe), a | b | c);
}

/// All NaNs are one.
fn same32(v: f32) -> u64 {
    if v.is_nan() { 0x7fff_ffff } else { u64::from(v.to_bits()) }
}

fn f(v: u64) -> f32 {
    f32::from_bits(v as u32)
}

#[test]
fn floats() {
    check("add.rn.f32", 32, |a, b, _| same32(f(a) + f(b)));
    check("mul.f32", 32, |a, b, _| same32(f(a) * f(b)));
    check("fma.rn.f32", 32, |a, b, c| same32(f(a).mul_add(f(b), f(c))));
    check("div.rn.f32", 32, |a, b, _| same32(f(a) / f(b)));
    check("neg.f32", 32, |a, _, _| a ^ 0x8000_0000);
    check("sqrt.rn.f32", 32, |a, _, _| same32(f(a).sqrt()));
    check("add.ftz.f32", 32, |a, b, _| {
        let z = |v: f32| if v.is_subnormal() { 0f32.copysign(v) } else { v };
        same32(z(z(f(a)) + z(f(b))))
    });
    check("add.sat.f32", 32, |a, b, _| {
        let s = f(a) + f(b);
        u64::from((if s.is_nan() { 0. } else { s.clamp(0., 1.) + 0. }).to_bits())
    });
    check("max.f32", 32, |a, b, _| match (f(a).is_nan(), f(b).is_nan()) {
        (true, true) => 0x7fff_ffff,
        (true, false) => b,
        (false, true) => a,
        _ if f(a) == f(b) => {
            if f(a).is_sign_positive() {
                a
            } else {
                b
            }
        }
        _ => {
            if f(a) > f(b) {
                a
            } else {
                b
            }
        }
    });
    check("max.NaN.f32", 32, |a, b, _| {
        if f(a).is_nan() || f(b).is_nan() {
            0x7fff_ffff
        } else if f(a) == f(b) {
            a & b
        } else {
            same32(f(a).max(f(b)))
        }
    });
    check("fma.rn.f64", 64, |a, b, c| f64::from_bits(a).mul_add(f64::from_bits(b), f64::from_bits(c)).to_bits());
}

#[test]
fn directed_rounding_brackets_the_exact_result() {
    for (down, up) in
        [("add.rm.f32", "add.rp.f32"), ("mul.rm.f32", "mul.rp.f32"), ("fma.rm.f32", "fma.rp.f32"), ("div.rm.f32", "div.rp.f32")]
    {
        let (lo, hi, near) = (alu(down).0, alu(up).0, alu(&down.replace("rm", "rn")).0);
        for a in inputs() {
            for b in inputs() {
                let x = [a, b, b ^ 0x8000_0001];
                let (l, h, n) = (f(call(lo, x)), f(call(hi, x)), f(call(near, x)));
                if n.is_nan() {
                    continue;
                }
                assert!(l <= n && n <= h, "{down} of {a:#x}, {b:#x}: {l} {n} {h}");
                assert!(l == h || l.next_up() == h, "{down} of {a:#x}, {b:#x}: {l} and {h} are not neighbours");
                if x.iter().all(|v| f(*v).abs() < 1e15 && f(*v).abs() > 1e-15) && down.starts_with("add") {
                    let exact = f64::from(f(a)) + f64::from(f(b));
                    assert!(f64::from(l) <= exact && exact <= f64::from(h));
                }
            }
        }
    }
}

#[test]
fn narrow_floats_round_once() {
    check("add.rn.bf16", 16, |a, b, _| {
        let v = bf16::from_bits(a as u16).to_f64() + bf16::from_bits(b as u16).to_f64();
        u64::from(narrow::<7>(v, 127, Round2::Nearest))
    });
    check("mul.rn.f16", 16, |a, b, _| {
        let v = f16::from_bits(a as u16).to_f64() * f16::from_bits(b as u16).to_f64();
        u64::from(narrow::<10>(v, 15, Round2::Nearest))
    });
    let (f, _) = alu("fma.rn.f16x2");
    let pack = |a: f32, b: f32| u64::from(f16::from_f32(a).to_bits()) | u64::from(f16::from_f32(b).to_bits()) << 16;
    assert_eq!(call(f, [pack(2., -3.), pack(0.5, 4.), pack(1., 0.25)]), pack(2., -11.75));
    // A tie of the product that a tiny addend breaks.
    let (f, _) = alu("fma.rn.bf16");
    let bits = |v: f32| u64::from(bf16::from_f32(v).to_bits());
    let (a, b) = (1.0078125f32, 1.0078125f32);
    for tiny in [1e-30f32, -1e-30] {
        let want = if tiny > 0. { f64::from(a) * f64::from(b) + 1e-9 } else { f64::from(a) * f64::from(b) - 1e-9 };
        assert_eq!(call(f, [bits(a), bits(b), bits(tiny)]), u64::from(narrow::<7>(want, 127, Round2::Nearest)));
    }
}

#[test]
fn conversions() {
    let cvt = |to, from, round, sat| Cvt { to, from, round, sat, relu: false, ftz: false };
    for v in inputs() {
        let x = f(v);
        assert_eq!(
            cvt(Ty::Bf16, Ty::F32, Round2::Nearest, false).apply(v),
            if x.is_nan() { 0x7fff } else { u64::from(bf16::from_f32(x).to_bits()) }
        );
        assert_eq!(
            cvt(Ty::F16, Ty::F32, Round2::Nearest, false).apply(v),
            if x.is_nan() { 0x7fff } else { u64::from(f16::from_f32(x).to_bits()) }
        );
        assert_eq!(cvt(Ty::S32, Ty::F32, Round2::IntZero, false).apply(v) as i32, x as i32);
        assert_eq!(cvt(Ty::U8, Ty::F32, Round2::IntZero, false).apply(v) as u8, x as u8);
        assert_eq!(cvt(Ty::S32, Ty::F32, Round2::IntNearest, false).apply(v) as i32, x.round_ties_even() as i32);
        assert_eq!(cvt(Ty::F32, Ty::S64, Round2::Nearest, false).apply(v), u64::from((v as i64 as f32).to_bits()));
        assert_eq!(cvt(Ty::F64, Ty::U64, Round2::Nearest, false).apply(v), (v as f64).to_bits());
        assert_eq!(cvt(Ty::S8, Ty::S32, Round2::Nearest, true).apply(v) as i8, (v as i32).clamp(-128, 127) as i8);
        assert_eq!(cvt(Ty::U16, Ty::S32, Round2::Nearest, true).apply(v) as u16, (v as i32).clamp(0, 65535) as u16);
        assert_eq!(cvt(Ty::F32, Ty::F32, Round2::IntDown, false).apply(v), same32(x.floor()));
        let down = cvt(Ty::F32, Ty::F64, Round2::Down, false).apply(v);
        let d = f64::from_bits(v);
        assert!(
            !d.is_finite() || f64::from(f(down)) <= d && (f(down) == f32::MAX || f64::from(f(down).next_up()) > d),
            "{d:e} gives {}",
            f(down)
        );
    }
    assert_eq!(cvt(Ty::F16, Ty::F32, Round2::Zero, false).apply(u64::from(1e6f32.to_bits())), 0x7bff);
    assert_eq!(cvt(Ty::S64, Ty::F32, Round2::IntZero, false).apply(u64::from(f32::NAN.to_bits())), 1 << 63);
    assert_eq!(cvt(Ty::F32, Ty::F32, Round2::Nearest, true).apply(u64::from(7f32.to_bits())), u64::from(1f32.to_bits()));
}

#[test]
fn comparisons() {
    let nan = u64::from(f32::NAN.to_bits());
    let one = u64::from(1f32.to_bits());
    for (op, with_nan, equal) in [
        ("eq", false, true),
        ("ne", false, false),
        ("lt", false, false),
        ("geu", true, true),
        ("neu", true, false),
        ("num", false, true),
        ("nan", true, false),
    ] {
        let f = float::compare(op, &[], Ty::F32).unwrap();
        assert_eq!((f(nan, one), f(one, one)), (with_nan, equal), "{op}");
    }
    let lt = int::compare("lt", Ty::S16).unwrap();
    assert!(lt(0xffff, 0) && !lt(0, 0xffff));
    assert!(int::compare("lo", Ty::U32).unwrap()(1, 0xffff_ffff));
}

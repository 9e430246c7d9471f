//! `cvt` between all types, with rounding, saturation, `relu` and flush to zero.
use ::half::{bf16, f16};

use super::float::{Round, flush, round_f32};
use crate::ptx::Ty;

/// One conversion.
#[derive(Clone, Copy, Debug)]
pub struct Cvt {
    pub to: Ty,
    pub from: Ty,
    pub round: Round2,
    pub sat: bool,
    pub relu: bool,
    pub ftz: bool,
}

/// The rounding of a conversion: `rn` and friends, or to an integer (`rni` and friends).
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Round2 {
    Nearest,
    NearestAway,
    Zero,
    Down,
    Up,
    IntNearest,
    IntZero,
    IntDown,
    IntUp,
}

impl Round2 {
    pub fn parse(parts: &[&str]) -> Self {
        for p in parts {
            match *p {
                "rn" => return Self::Nearest,
                "rna" => return Self::NearestAway,
                "rz" => return Self::Zero,
                "rm" => return Self::Down,
                "rp" => return Self::Up,
                "rni" => return Self::IntNearest,
                "rzi" => return Self::IntZero,
                "rmi" => return Self::IntDown,
                "rpi" => return Self::IntUp,
                _ => {}
            }
        }
        Self::Nearest
    }

    fn integral(self, v: f64) -> f64 {
        match self {
            Self::IntNearest => v.round_ties_even(),
            Self::IntZero => v.trunc(),
            Self::IntDown => v.floor(),
            Self::IntUp => v.ceil(),
            _ => v,
        }
    }

    fn directed(self) -> Round {
        match self {
            Self::Zero => Round::Zero,
            Self::Down => Round::Down,
            Self::Up => Round::Up,
            _ => Round::Nearest,
        }
    }
}

impl Cvt {
    pub fn apply(self, bits: u64) -> u64 {
        if self.from.float() { self.float_source(bits) } else { self.int_source(bits) }
    }

    fn int_source(self, bits: u64) -> u64 {
        let value = match self.from {
            Ty::U8 | Ty::B8 => i128::from(bits as u8),
            Ty::S8 => i128::from(bits as i8),
            Ty::U16 | Ty::B16 => i128::from(bits as u16),
            Ty::S16 => i128::from(bits as i16),
            Ty::U32 | Ty::B32 => i128::from(bits as u32),
            Ty::S32 => i128::from(bits as i32),
            Ty::S64 => i128::from(bits as i64),
            _ => i128::from(bits),
        };
        if !self.to.float() {
            return self.int(value);
        }
        match self.to {
            Ty::F64 => {
                let r = value as f64;
                let rest = value - r as i128;
                (match self.round {
                    Round2::Zero if rest != 0 && (rest < 0) == (value > 0) => {
                        if value > 0 {
                            r.next_down()
                        } else {
                            r.next_up()
                        }
                    }
                    Round2::Down if rest < 0 => r.next_down(),
                    Round2::Up if rest > 0 => r.next_up(),
                    _ => r,
                })
                .to_bits()
            }
            Ty::F32 => {
                let r = value as f32;
                let rest = value - r as i128;
                let r = match self.round {
                    Round2::Zero if rest != 0 && (rest < 0) == (value > 0) => {
                        if value > 0 {
                            r.next_down()
                        } else {
                            r.next_up()
                        }
                    }
                    Round2::Down if rest < 0 => r.next_down(),
                    Round2::Up if rest > 0 => r.next_up(),
                    _ => r,
                };
                u64::from(r.to_bits())
            }
            // Above 2^24 in f16 all is infinite; in bf16 the f64 keeps enough bits but for ties, which need 54.
            _ => self.float(value as f64),
        }
    }

    fn int(self, value: i128) -> u64 {
        if !self.sat {
            return match self.to {
                Ty::U8 | Ty::B8 => u64::from(value as u8),
                Ty::S8 => value as i8 as u64,
                Ty::U16 | Ty::B16 => u64::from(value as u16),
                Ty::S16 => value as i16 as u64,
                Ty::U32 | Ty::B32 => u64::from(value as u32),
                Ty::S32 => value as i32 as u64,
                _ => value as u64,
            };
        }
        let (low, high) = bounds(self.to);
        value.clamp(low, high) as u64
    }

    fn float_source(self, bits: u64) -> u64 {
        let mut value = match self.from {
            Ty::F16 => f64::from(f16::from_bits(bits as u16).to_f32()),
            Ty::Bf16 => f64::from(bf16::from_bits(bits as u16).to_f32()),
            Ty::F64 => f64::from_bits(bits),
            _ => f64::from(if self.ftz { flush::<true>(f32::from_bits(bits as u32)) } else { f32::from_bits(bits as u32) }),
        };
        value = self.round.integral(value);
        if !self.to.float() {
            if value.is_nan() {
                // Hardware gives 0 in 32 bits and fewer, and the top bit in 64.
                return if self.to.size() == 8 { 1 << 63 } else { 0 };
            }
            let (low, high) = bounds(self.to);
            return (value.trunc() as i128).clamp(low, high) as u64;
        }
        self.float(value)
    }

    /// Rounds to a float type; `sat` clamps to [0, 1], with 0 for NaN.
    fn float(self, value: f64) -> u64 {
        let value = match value {
            v if self.sat => {
                if v > 0.0 {
                    v.min(1.0)
                } else {
                    0.0
                }
            }
            v if self.relu && v <= 0.0 => 0.0,
            v => v,
        };
        match self.to {
            Ty::F64 => value.to_bits(),
            Ty::F32 => {
                let r = round_f32(value, 0.0, self.round.directed());
                let r = if self.ftz { flush::<true>(r) } else { r };
                if r.is_nan() { 0x7fff_ffff } else { u64::from(r.to_bits()) }
            }
            Ty::F16 => u64::from(narrow::<10>(value, 15, self.round)),
            Ty::Bf16 => u64::from(narrow::<7>(value, 127, self.round)),
            _ => {
                // tf32: 10 bits of significand in an f32 pattern, ties away from zero with `rna`.
                let bits = (value as f32).to_bits();
                if value.is_nan() {
                    return 0x7fff_ffff;
                }
                let half = match self.round {
                    Round2::Zero => 0,
                    Round2::NearestAway => 0x1000,
                    _ => 0x0fff + (bits >> 13 & 1),
                };
                u64::from(bits.wrapping_add(half) & !0x1fff)
            }
        }
    }
}

fn bounds(ty: Ty) -> (i128, i128) {
    match ty {
        Ty::U8 | Ty::B8 => (0, i128::from(u8::MAX)),
        Ty::S8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        Ty::U16 | Ty::B16 => (0, i128::from(u16::MAX)),
        Ty::S16 => (i128::from(i16::MIN), i128::from(i16::MAX)),
        Ty::U32 | Ty::B32 => (0, i128::from(u32::MAX)),
        Ty::S32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        Ty::S64 => (i128::from(i64::MIN), i128::from(i64::MAX)),
        _ => (0, i128::from(u64::MAX)),
    }
}

/// A 16-bit float with `M` bits of significand, rounded from the f64 in one step.
pub fn narrow<const M: u32>(value: f64, bias: i32, round: Round2) -> u16 {
    let exponent_bits = 15 - M;
    let sign = (value.to_bits() >> 63) as u16;
    let infinity = ((1u32 << exponent_bits) - 1) << M;
    if value.is_nan() {
        return 0x7fff;
    }
    let magnitude = value.abs();
    if magnitude.is_infinite() {
        return sign << 15 | infinity as u16;
    }
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // The value in units of its last place: exact, since it only changes the exponent.
    let units = scale(magnitude, M as i32 - exponent);
    let whole = match round {
        Round2::Zero => units.floor(),
        Round2::Down => {
            if sign == 1 {
                units.ceil()
            } else {
                units.floor()
            }
        }
        Round2::Up => {
            if sign == 1 {
                units.floor()
            } else {
                units.ceil()
            }
        }
        Round2::NearestAway => units.round(),
        _ => units.round_ties_even(),
    };
    let mut bits = whole as u32 + (((exponent + bias - 1) as u32) << M);
    if bits >= infinity {
        let toward_zero = match round {
            Round2::Zero => true,
            Round2::Down => sign == 0,
            Round2::Up => sign == 1,
            _ => false,
        };
        bits = if toward_zero { infinity - 1 } else { infinity };
    }
    sign << 15 | bits as u16
}

fn scale(v: f64, power: i32) -> f64 {
    // Two steps keep the factors in range.
    let half = power / 2;
    v * f64::from(2).powi(half) * f64::from(2).powi(power - half)
}

/// The conversions between integers that compilers write most, without the detour over 128 bits.
pub fn quick(to: Ty, from: Ty) -> Option<fn(u64) -> u64> {
    macro_rules! from_ty {
        ($t:ty) => {
            Some(match from {
                Ty::U8 | Ty::B8 => |v| v as u8 as $t as u64,
                Ty::S8 => |v| v as i8 as $t as u64,
                Ty::U16 | Ty::B16 => |v| v as u16 as $t as u64,
                Ty::S16 => |v| v as i16 as $t as u64,
                Ty::U32 | Ty::B32 => |v| v as u32 as $t as u64,
                Ty::S32 => |v| v as i32 as $t as u64,
                Ty::S64 => |v| v as i64 as $t as u64,
                Ty::U64 | Ty::B64 => |v| v as $t as u64,
                _ => return None,
            })
        };
    }
    match to {
        Ty::U8 => from_ty!(u8),
        Ty::S8 => from_ty!(i8),
        Ty::U16 => from_ty!(u16),
        Ty::S16 => from_ty!(i16),
        Ty::U32 => from_ty!(u32),
        Ty::S32 => from_ty!(i32),
        Ty::U64 => from_ty!(u64),
        Ty::S64 => from_ty!(i64),
        _ => None,
    }
}

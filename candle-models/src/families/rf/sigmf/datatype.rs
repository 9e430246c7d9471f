//! How samples lie in a dataset.

use rustfft::num_complex::Complex32;
use std::fmt;
use std::str::FromStr;

/// A number of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// IEEE 754, single precision.
    F32,
    /// IEEE 754, double precision.
    F64,
    /// Two's complement, 32 bits.
    I32,
    /// Two's complement, 16 bits.
    I16,
    /// Two's complement, 8 bits.
    I8,
    /// Unsigned, 32 bits.
    U32,
    /// Unsigned, 16 bits.
    U16,
    /// Unsigned, 8 bits.
    U8,
}

impl Kind {
    const ALL: [(&str, Self); 8] = [
        ("f32", Self::F32),
        ("f64", Self::F64),
        ("i32", Self::I32),
        ("i16", Self::I16),
        ("i8", Self::I8),
        ("u32", Self::U32),
        ("u16", Self::U16),
        ("u8", Self::U8),
    ];

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::I16 | Self::U16 => 2,
            Self::I8 | Self::U8 => 1,
        }
    }
}

/// The type of a dataset's samples: `core:datatype`.
///
/// ```
/// use candle_models::rf::sigmf::Datatype;
///
/// let datatype: Datatype = "ci16_le".parse()?;
/// assert_eq!((datatype.complex, datatype.bytes(), datatype.to_string()), (true, 4, "ci16_le".to_owned()));
/// assert!("cf16_le".parse::<Datatype>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Datatype {
    /// Whether a sample is two numbers, I before Q. The Q of real samples is 0.
    pub complex: bool,
    /// What they are.
    pub kind: Kind,
    /// Whether the first byte of a number is its highest; of no meaning where it has one.
    pub big_endian: bool,
}

impl Datatype {
    /// `cf32_le`.
    pub const CF32: Self = Self { complex: true, kind: Kind::F32, big_endian: false };
    /// `ci16_le`.
    pub const CI16: Self = Self { complex: true, kind: Kind::I16, big_endian: false };

    /// Bytes of a sample.
    pub fn bytes(self) -> usize {
        self.kind.bytes() * if self.complex { 2 } else { 1 }
    }

    /// Reads samples that lie `stride` bytes apart, as many as there are places. Integers become numbers from -1 to 1: signed ones are divided by
    /// 2^(bits - 1), unsigned ones are (2 v - m) / m with their largest value m.
    pub fn read(self, bytes: &[u8], stride: usize, out: &mut [Complex32]) {
        match (self.kind, self.big_endian) {
            (Kind::F32, false) => self.each(bytes, stride, out, f32::from_le_bytes),
            (Kind::F32, true) => self.each(bytes, stride, out, f32::from_be_bytes),
            (Kind::F64, false) => self.each(bytes, stride, out, |b| f64::from_le_bytes(b) as f32),
            (Kind::F64, true) => self.each(bytes, stride, out, |b| f64::from_be_bytes(b) as f32),
            (Kind::I32, false) => self.each(bytes, stride, out, |b| signed(i32::from_le_bytes(b), 31)),
            (Kind::I32, true) => self.each(bytes, stride, out, |b| signed(i32::from_be_bytes(b), 31)),
            (Kind::I16, false) => self.each(bytes, stride, out, |b| signed(i16::from_le_bytes(b), 15)),
            (Kind::I16, true) => self.each(bytes, stride, out, |b| signed(i16::from_be_bytes(b), 15)),
            (Kind::I8, _) => self.each(bytes, stride, out, |b| signed(i8::from_le_bytes(b), 7)),
            (Kind::U32, false) => self.each(bytes, stride, out, |b| unsigned(u32::from_le_bytes(b), u32::MAX)),
            (Kind::U32, true) => self.each(bytes, stride, out, |b| unsigned(u32::from_be_bytes(b), u32::MAX)),
            (Kind::U16, false) => self.each(bytes, stride, out, |b| unsigned(u16::from_le_bytes(b), u16::MAX)),
            (Kind::U16, true) => self.each(bytes, stride, out, |b| unsigned(u16::from_be_bytes(b), u16::MAX)),
            (Kind::U8, _) => self.each(bytes, stride, out, |[b]| unsigned(b, u8::MAX)),
        }
    }

    fn each<const N: usize>(self, bytes: &[u8], stride: usize, out: &mut [Complex32], number: impl Fn([u8; N]) -> f32) {
        let at = |sample: &[u8], place: usize| {
            let mut number = [0; N];
            number.copy_from_slice(&sample[place * N..][..N]);
            number
        };
        for (to, sample) in out.iter_mut().zip(bytes.chunks(stride)) {
            to.re = number(at(sample, 0));
            to.im = if self.complex { number(at(sample, 1)) } else { 0.0 };
        }
    }
}

fn signed(value: impl Into<f64>, bits: i32) -> f32 {
    (value.into() / 2f64.powi(bits)) as f32
}

fn unsigned<T: Into<f64>>(value: T, most: T) -> f32 {
    let most = most.into();
    ((2.0 * value.into() - most) / most) as f32
}

impl FromStr for Datatype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || {
            format!(
                "expected c or r, one of f32 f64 i32 i16 i8 u32 u16 u8, and _le or _be behind more than 8 bits, as cf32_le; found {text}"
            )
        };
        let (complex, rest) = match text.split_at_checked(1) {
            Some(("c", rest)) => (true, rest),
            Some(("r", rest)) => (false, rest),
            _ => return Err(unknown()),
        };
        let (name, order) = match rest.split_once('_') {
            Some((name, "le")) => (name, Some(false)),
            Some((name, "be")) => (name, Some(true)),
            Some(_) => return Err(unknown()),
            None => (rest, None),
        };
        let (_, kind) = Kind::ALL.into_iter().find(|(of, _)| *of == name).ok_or_else(unknown)?;
        let big_endian = if kind.bytes() == 1 { false } else { order.ok_or_else(unknown)? };
        Ok(Self { complex, kind, big_endian })
    }
}

impl fmt::Display for Datatype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = Kind::ALL.into_iter().find(|(_, kind)| *kind == self.kind).unwrap_or(("", self.kind));
        let order = match (self.kind.bytes(), self.big_endian) {
            (1, _) => "",
            (_, true) => "_be",
            (_, false) => "_le",
        };
        write!(f, "{}{name}{order}", if self.complex { 'c' } else { 'r' })
    }
}

//! Types and state spaces of PTX.

/// A fundamental type, without the `.` in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ty {
    U8,
    U16,
    U32,
    U64,
    S8,
    S16,
    S32,
    S64,
    B8,
    B16,
    B32,
    B64,
    B128,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    Pred,
    E4m3x2,
    E5m2x2,
}

impl Ty {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "u8" => Self::U8,
            "u16" => Self::U16,
            "u32" => Self::U32,
            "u64" => Self::U64,
            "s8" => Self::S8,
            "s16" => Self::S16,
            "s32" => Self::S32,
            "s64" => Self::S64,
            "b8" => Self::B8,
            "b16" => Self::B16,
            "b32" => Self::B32,
            "b64" => Self::B64,
            "b128" => Self::B128,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            "e4m3x2" => Self::E4m3x2,
            "e5m2x2" => Self::E5m2x2,
            _ => return None,
        })
    }

    /// Size in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::S8 | Self::B8 | Self::Pred => 1,
            Self::U16 | Self::S16 | Self::B16 | Self::F16 | Self::Bf16 | Self::E4m3x2 | Self::E5m2x2 => 2,
            Self::U32 | Self::S32 | Self::B32 | Self::F32 | Self::Tf32 | Self::F16x2 | Self::Bf16x2 => 4,
            Self::U64 | Self::S64 | Self::B64 | Self::F64 => 8,
            Self::B128 => 16,
        }
    }

    pub fn signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    pub fn float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F32 | Self::F64 | Self::Tf32)
    }
}

/// Where a variable lives or an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    Generic,
    Global,
    Const,
    Shared,
    Local,
    /// The kernel's parameters.
    Param,
    /// The parameters of a call, in the frame of the caller or of the callee.
    Frame,
}

impl Space {
    pub fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "global" => Self::Global,
            "const" => Self::Const,
            "shared" => Self::Shared,
            "local" => Self::Local,
            "param" => Self::Param,
            _ => return None,
        })
    }
}

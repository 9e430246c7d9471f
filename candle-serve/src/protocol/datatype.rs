//! The protocol's names of datatypes.

use crate::fault::{Fault, one_line};
use candle_models::candle_core::DType;

/// A datatype of the protocol.
///
/// ```
/// use candle_serve::protocol::Datatype;
///
/// assert_eq!(Datatype::parse("FP32").map(Datatype::name), Ok("FP32"));
/// assert!(Datatype::parse("F32").is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datatype {
    /// A byte each: 0 or 1.
    Bool,
    /// 8 bits.
    Uint8,
    /// 16 bits.
    Uint16,
    /// 32 bits: the engine's indices.
    Uint32,
    /// 64 bits.
    Uint64,
    /// 8 bits.
    Int8,
    /// 16 bits.
    Int16,
    /// 32 bits.
    Int32,
    /// 64 bits.
    Int64,
    /// 16 bits.
    Fp16,
    /// 16 bits.
    Bf16,
    /// 32 bits: the engine's floats.
    Fp32,
    /// 64 bits.
    Fp64,
    /// Strings of bytes, each behind its length.
    Bytes,
}

/// Each by its name in requests and metadata and its name in a model configuration.
const NAMES: [(Datatype, &str, &str); 14] = [
    (Datatype::Bool, "BOOL", "TYPE_BOOL"),
    (Datatype::Uint8, "UINT8", "TYPE_UINT8"),
    (Datatype::Uint16, "UINT16", "TYPE_UINT16"),
    (Datatype::Uint32, "UINT32", "TYPE_UINT32"),
    (Datatype::Uint64, "UINT64", "TYPE_UINT64"),
    (Datatype::Int8, "INT8", "TYPE_INT8"),
    (Datatype::Int16, "INT16", "TYPE_INT16"),
    (Datatype::Int32, "INT32", "TYPE_INT32"),
    (Datatype::Int64, "INT64", "TYPE_INT64"),
    (Datatype::Fp16, "FP16", "TYPE_FP16"),
    (Datatype::Bf16, "BF16", "TYPE_BF16"),
    (Datatype::Fp32, "FP32", "TYPE_FP32"),
    (Datatype::Fp64, "FP64", "TYPE_FP64"),
    (Datatype::Bytes, "BYTES", "TYPE_STRING"),
];

impl Datatype {
    /// The datatype of that name.
    ///
    /// # Errors
    /// If the protocol has none of that name.
    pub fn parse(name: &str) -> Result<Self, Fault> {
        let found = NAMES.iter().find(|(_, known, _)| *known == name);
        found.map(|(datatype, ..)| *datatype).ok_or_else(|| {
            let names: Vec<&str> = NAMES.iter().map(|(_, name, _)| *name).collect();
            Fault::input(format!("datatype: expected one of [{}], found {}", names.join(", "), one_line(name)))
        })
    }

    fn row(self) -> (&'static str, &'static str) {
        let found = NAMES.iter().find(|(datatype, ..)| *datatype == self);
        found.map_or(("", ""), |(_, name, config)| (name, config))
    }

    /// The name in requests and metadata.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// The name in a model configuration.
    pub fn config_name(self) -> &'static str {
        self.row().1
    }

    /// What the engine's tensors of that dtype are called: it has floats and indices of 32 bits.
    pub fn of(dtype: DType) -> Self {
        if dtype == DType::U32 { Self::Uint32 } else { Self::Fp32 }
    }
}

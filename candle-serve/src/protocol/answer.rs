//! Answers to inferences.

use super::Datatype;
use candle_models::candle_core::DType;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};

/// Values of an output, row by row.
#[derive(Debug)]
pub enum Rows<'a> {
    /// Floats of 32 bits.
    Floats(Vec<&'a [f32]>),
    /// Indices of 32 bits.
    Indices(Vec<&'a [u32]>),
}

impl Rows<'_> {
    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Floats(rows) => rows.len(),
            Self::Indices(rows) => rows.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Floats(rows) => rows.iter().map(|row| size_of_val(*row)).sum(),
            Self::Indices(rows) => rows.iter().map(|row| size_of_val(*row)).sum(),
        }
    }

    pub(crate) fn datatype(&self) -> Datatype {
        Datatype::of(if matches!(self, Self::Indices(_)) { DType::U32 } else { DType::F32 })
    }

    /// Little-endian, as numbers lie in memory on every machine that Candle runs on.
    pub(crate) fn append(&self, body: &mut Vec<u8>) {
        match self {
            Self::Floats(rows) => rows.iter().for_each(|row| body.extend_from_slice(bytemuck::cast_slice(row))),
            Self::Indices(rows) => rows.iter().for_each(|row| body.extend_from_slice(bytemuck::cast_slice(row))),
        }
    }
}

/// As one flat array.
impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut array = serializer.serialize_seq(None)?;
        match self {
            Self::Floats(rows) => rows.iter().copied().flatten().try_for_each(|value| array.serialize_element(value))?,
            Self::Indices(rows) => rows.iter().copied().flatten().try_for_each(|value| array.serialize_element(value))?,
        }
        array.end()
    }
}

/// An output of an answer.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The shape of a row.
    pub shape: &'a [usize],
    /// The values.
    pub rows: Rows<'a>,
    /// Whether the values stand behind the JSON.
    pub binary: bool,
}

#[derive(Serialize)]
struct Head<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    outputs: Vec<HeadTensor<'a>>,
}

#[derive(Serialize)]
struct HeadTensor<'a> {
    name: &'a str,
    datatype: &'static str,
    shape: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Rows<'a>>,
}

#[derive(Serialize)]
struct Size {
    binary_data_size: usize,
}

/// Writes an answer: its body, and the length of the JSON where binary tensors follow behind it.
///
/// ```
/// use candle_serve::protocol::answer::{Rows, Tensor, write};
///
/// let tensor = |binary| Tensor { name: "y", shape: &[2], rows: Rows::Floats(vec![&[0.5, 1.0]]), binary };
/// let (body, header) = write(("m", "1"), Some("7"), &[tensor(false)]);
/// assert_eq!(header, None);
/// assert_eq!(
///     String::from_utf8_lossy(&body),
///     r#"{"model_name":"m","model_version":"1","id":"7","outputs":[{"name":"y","datatype":"FP32","shape":[1,2],"data":[0.5,1.0]}]}"#
/// );
/// let (body, header) = write(("m", "1"), None, &[tensor(true)]);
/// assert_eq!(body[header.expect("binary")..], [0, 0, 0, 63, 0, 0, 128, 63]);
/// ```
pub fn write((name, version): (&str, &str), id: Option<&str>, tensors: &[Tensor<'_>]) -> (Vec<u8>, Option<usize>) {
    let head =
        |tensor: &'_ Tensor<'_>| (tensor.rows.bytes(), std::iter::once(tensor.rows.count()).chain(tensor.shape.iter().copied()).collect());
    let outputs = tensors.iter().map(|tensor| {
        let (bytes, shape) = head(tensor);
        HeadTensor {
            name: tensor.name,
            datatype: tensor.rows.datatype().name(),
            shape,
            parameters: tensor.binary.then_some(Size { binary_data_size: bytes }),
            data: (!tensor.binary).then_some(&tensor.rows),
        }
    });
    let head = Head { model_name: name, model_version: version, id, outputs: outputs.collect() };
    let binary = || tensors.iter().filter(|tensor| tensor.binary);
    let mut body = Vec::with_capacity(256 + 96 * tensors.len() + binary().map(|tensor| tensor.rows.bytes()).sum::<usize>());
    // Texts and numbers are always JSON, and memory is always written to.
    if serde_json::to_writer(&mut body, &head).is_err() {
        unreachable!("texts and numbers have a JSON form");
    }
    let length = body.len();
    binary().for_each(|tensor| tensor.rows.append(&mut body));
    (body, binary().next().map(|_| length))
}

//! Answers to inferences.

use super::Datatype;
use super::request::SharedRange;
use candle_models::candle_core::DType;
use serde::ser::SerializeSeq;
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt::Display;
use std::num::NonZeroU64;

/// Values of an output, row by row.
#[derive(Debug)]
pub enum Rows<'a> {
    /// Floats of 32 bits.
    Floats(Vec<&'a [f32]>),
    /// Indices of 32 bits.
    Indices(Vec<&'a [u32]>),
    /// Texts.
    Texts(Vec<Vec<String>>),
}

impl Rows<'_> {
    /// The best `most` places of each row's last dimension, which is `width` long, as texts `value:index` with the best first; of equal
    /// values the first place. Fewer where the dimension is shorter: the number comes second.
    ///
    /// ```
    /// use candle_serve::protocol::answer::Rows;
    ///
    /// let most = std::num::NonZeroU64::new(2).expect("2 is not 0");
    /// let (Rows::Texts(rows), 2) = Rows::Floats(vec![&[0.25, 1.5, -1.0]]).classes(3, most) else { panic!("expected texts") };
    /// assert_eq!(rows, [["1.5:1", "0.25:0"]]);
    /// ```
    pub fn classes(&self, width: usize, most: NonZeroU64) -> (Rows<'static>, usize) {
        let most = usize::try_from(most.get()).map_or(width, |most| most.min(width));
        let rows = match self {
            Self::Floats(rows) => rows.iter().map(|row| best(row, width, most, f32::total_cmp)).collect(),
            Self::Indices(rows) => rows.iter().map(|row| best(row, width, most, u32::cmp)).collect(),
            Self::Texts(rows) => rows.iter().map(|row| best(row, width, most, String::cmp)).collect(),
        };
        (Rows::Texts(rows), most)
    }

    pub(crate) fn count(&self) -> usize {
        match self {
            Self::Floats(rows) => rows.len(),
            Self::Indices(rows) => rows.len(),
            Self::Texts(rows) => rows.len(),
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Floats(rows) => rows.iter().map(|row| size_of_val(*row)).sum(),
            Self::Indices(rows) => rows.iter().map(|row| size_of_val(*row)).sum(),
            Self::Texts(rows) => rows.iter().flatten().map(|text| size_of::<u32>() + text.len()).sum(),
        }
    }

    pub(crate) fn datatype(&self) -> Datatype {
        match self {
            Self::Floats(_) => Datatype::of(DType::F32),
            Self::Indices(_) => Datatype::of(DType::U32),
            Self::Texts(_) => Datatype::Bytes,
        }
    }

    /// Little-endian, as numbers lie in memory on every machine that Candle runs on; texts behind their lengths in four bytes.
    pub fn append(&self, body: &mut Vec<u8>) {
        match self {
            Self::Floats(rows) => rows.iter().for_each(|row| body.extend_from_slice(bytemuck::cast_slice(row))),
            Self::Indices(rows) => rows.iter().for_each(|row| body.extend_from_slice(bytemuck::cast_slice(row))),
            Self::Texts(rows) => rows.iter().flatten().for_each(|text| {
                body.extend_from_slice(&(text.len() as u32).to_le_bytes());
                body.extend_from_slice(text.as_bytes());
            }),
        }
    }
}

fn best<T: Display>(row: &[T], width: usize, most: usize, order: fn(&T, &T) -> Ordering) -> Vec<String> {
    let text = |part: &[T]| {
        let mut places: Vec<usize> = (0..part.len()).collect();
        places.sort_by(|a, b| order(&part[*b], &part[*a]));
        places.truncate(most);
        places.into_iter().map(|at| format!("{}:{at}", part[at])).collect::<Vec<_>>()
    };
    row.chunks(width.max(1)).flat_map(text).collect()
}

/// As one flat array.
impl Serialize for Rows<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut array = serializer.serialize_seq(None)?;
        match self {
            Self::Floats(rows) => rows.iter().copied().flatten().try_for_each(|value| array.serialize_element(value))?,
            Self::Indices(rows) => rows.iter().copied().flatten().try_for_each(|value| array.serialize_element(value))?,
            Self::Texts(rows) => rows.iter().flatten().try_for_each(|text| array.serialize_element(text))?,
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
    pub shape: Cow<'a, [usize]>,
    /// The values.
    pub rows: Rows<'a>,
    /// Whether the values stand behind the JSON.
    pub binary: bool,
    /// Where they were written to in place of the answer.
    pub shared: Option<&'a SharedRange>,
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
    parameters: Option<Place<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Rows<'a>>,
}

/// Where values are that are not in the JSON.
#[derive(Serialize)]
#[serde(untagged)]
enum Place<'a> {
    Behind { binary_data_size: usize },
    Shared { shared_memory_region: &'a str, shared_memory_byte_size: u64, shared_memory_offset: u64 },
}

impl<'a> Place<'a> {
    fn of(tensor: &Tensor<'a>) -> Option<Self> {
        match tensor.shared {
            Some(SharedRange { region, offset, byte_size }) => {
                Some(Self::Shared { shared_memory_region: region, shared_memory_byte_size: *byte_size, shared_memory_offset: *offset })
            }
            None => tensor.binary.then(|| Self::Behind { binary_data_size: tensor.rows.bytes() }),
        }
    }
}

/// Writes an answer: its body, and the length of the JSON where binary tensors follow behind it.
///
/// ```
/// use candle_serve::protocol::answer::{Rows, Tensor, write};
///
/// let tensor = |binary| Tensor { name: "y", shape: [2][..].into(), rows: Rows::Floats(vec![&[0.5, 1.0]]), binary, shared: None };
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
    let outputs = tensors.iter().map(|tensor| {
        let parameters = Place::of(tensor);
        HeadTensor {
            name: tensor.name,
            datatype: tensor.rows.datatype().name(),
            shape: std::iter::once(tensor.rows.count()).chain(tensor.shape.iter().copied()).collect(),
            data: parameters.is_none().then_some(&tensor.rows),
            parameters,
        }
    });
    let head = Head { model_name: name, model_version: version, id, outputs: outputs.collect() };
    let binary = || tensors.iter().filter(|tensor| tensor.binary && tensor.shared.is_none());
    let mut body = Vec::with_capacity(256 + 96 * tensors.len() + binary().map(|tensor| tensor.rows.bytes()).sum::<usize>());
    // Texts and numbers are always JSON, and memory is always written to.
    if serde_json::to_writer(&mut body, &head).is_err() {
        unreachable!("texts and numbers have a JSON form");
    }
    let length = body.len();
    binary().for_each(|tensor| tensor.rows.append(&mut body));
    (body, binary().next().map(|_| length))
}

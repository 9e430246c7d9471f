//! Requests for an inference.

use super::Datatype;
use crate::fault::{Fault, one_line};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::time::Duration;

/// Longest id of a sequence, as a text.
pub(crate) const ID_LIMIT: usize = 128;

/// Which sequence a step belongs to. A text of digits that a number is written with is that number, so that every id has one form in a
/// path.
///
/// ```
/// use candle_serve::protocol::request::SequenceId;
///
/// assert_eq!(SequenceId::text("17")?, Some(SequenceId::Number(17)));
/// assert_eq!(SequenceId::text("")?, None);
/// # Ok::<(), candle_serve::Fault>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SequenceId {
    /// A number above 0.
    Number(u64),
    /// Another text that is not empty.
    Text(Box<str>),
}

impl SequenceId {
    /// The sequence of that number; 0 is none.
    pub fn number(id: u64) -> Option<Self> {
        (id != 0).then_some(Self::Number(id))
    }

    /// The sequence of that name; an empty one is none.
    ///
    /// # Errors
    /// If the name is longer than 128 bytes.
    pub fn text(id: &str) -> Result<Option<Self>, Fault> {
        if id.len() > ID_LIMIT {
            return Err(Fault::input(format!("sequence_id: expected at most {ID_LIMIT} bytes, found {}", id.len())));
        }
        match id.parse::<u64>() {
            Ok(number) if number.to_string() == id => Ok(Self::number(number)),
            _ if id.is_empty() => Ok(None),
            _ => Ok(Some(Self::Text(id.into()))),
        }
    }

    /// The whole of it, as a text that is no other id's.
    pub fn as_str(&self) -> Cow<'_, str> {
        match self {
            Self::Number(id) => Cow::Owned(id.to_string()),
            Self::Text(id) => Cow::Borrowed(id),
        }
    }
}

impl std::fmt::Display for SequenceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(id) => write!(f, "{id}"),
            Self::Text(id) => f.write_str(&one_line(id)),
        }
    }
}

/// A step of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SequenceStep {
    /// Which.
    pub id: SequenceId,
    /// Whether it begins, or begins anew, with this step.
    pub start: bool,
    /// Whether it ends with this step.
    pub end: bool,
}

impl SequenceStep {
    /// The step that a request says. Its id can stand beside the request, where balancers see it, in its parameters, or in both.
    ///
    /// ```
    /// use candle_serve::protocol::request::{SequenceId, SequenceStep};
    ///
    /// let (inside, outside) = (None, Some(SequenceId::Number(7)));
    /// let step = SequenceStep::of(inside, outside, (true, false))?;
    /// assert_eq!(step, Some(SequenceStep { id: SequenceId::Number(7), start: true, end: false }));
    /// assert!(SequenceStep::of(Some(SequenceId::Number(8)), Some(SequenceId::Number(7)), (true, false)).is_err());
    /// # Ok::<(), candle_serve::Fault>(())
    /// ```
    ///
    /// # Errors
    /// If they are two.
    pub fn of(inside: Option<SequenceId>, outside: Option<SequenceId>, (start, end): (bool, bool)) -> Result<Option<Self>, Fault> {
        match (inside, outside) {
            (Some(inside), Some(outside)) if inside != outside => {
                Err(Fault::input(format!("expected one sequence, found sequence_id {inside} and the header x-sequence-id {outside}")))
            }
            (inside, outside) => Ok(inside.or(outside).map(|id| Self { id, start, end })),
        }
    }
}

/// What a tensor of a request holds, where it lies in the body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// The text of a JSON array, flat or nested, in row-major order.
    Json(Bytes),
    /// Little-endian values in row-major order.
    Raw(Bytes),
    /// The same, outside of the request.
    Shared(SharedRange),
}

/// A part of a region of shared memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedRange {
    /// The region's name.
    pub region: String,
    /// Where it begins in the region, in bytes.
    pub offset: u64,
    /// How long it is.
    pub byte_size: u64,
}

impl SharedRange {
    /// The range that the parameters `shared_memory_region`, `..._byte_size` and `..._offset` of a tensor say, if it has the first.
    ///
    /// # Errors
    /// If there is a region and no size.
    pub fn of(tensor: &str, region: Option<String>, byte_size: Option<u64>, offset: Option<u64>) -> Result<Option<Self>, Fault> {
        let Some(region) = region else { return Ok(None) };
        let missing = || Fault::tensor(tensor, "the parameter shared_memory_byte_size with shared_memory_region", "none");
        Ok(Some(Self { region, offset: offset.unwrap_or(0), byte_size: byte_size.ok_or_else(missing)? }))
    }
}

/// A tensor of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Input<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// The whole shape, the batch first.
    pub shape: Vec<u64>,
    /// What the values are.
    pub datatype: Datatype,
    /// The values.
    pub data: Data,
}

/// An output that a request asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output<'a> {
    /// The name.
    pub name: Cow<'a, str>,
    /// Whether the answer has its values behind the JSON.
    pub binary: bool,
    /// How many classes are wanted in place of the values: see [`super::answer::Rows::classes`].
    pub classes: Option<NonZeroU64>,
    /// Where the values are to be written, in place of the answer.
    pub shared: Option<SharedRange>,
}

impl<'a> Output<'a> {
    /// The output of that name with its parameters; 0 classes are none.
    ///
    /// # Errors
    /// If classes are to be written into shared memory.
    pub fn of(name: Cow<'a, str>, binary: bool, classification: Option<u64>, shared: Option<SharedRange>) -> Result<Self, Fault> {
        let classes = classification.and_then(NonZeroU64::new);
        if classes.is_some() && shared.is_some() {
            return Err(Fault::tensor(&name, "either classification or shared_memory_region", "both"));
        }
        Ok(Self { name, binary, classes, shared })
    }
}

/// A request for an inference, checked as far as that goes without a model.
#[derive(Debug, Clone, PartialEq)]
pub struct InferRequest<'a> {
    /// Comes back in the answer.
    pub id: Option<Cow<'a, str>>,
    /// The sequence that is to be stepped; without one the rows of the batch are begun anew.
    pub sequence: Option<SequenceStep>,
    /// How long the answer may take.
    pub timeout: Option<Duration>,
    /// The tensors.
    pub inputs: Vec<Input<'a>>,
    /// What is to be answered; `None`, or an empty list, is all outputs.
    pub outputs: Option<Vec<Output<'a>>>,
    /// Whether outputs that do not say so themselves are answered behind the JSON.
    pub binary: bool,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    parameters: Option<Parameters<'a>>,
    #[serde(borrow)]
    inputs: Vec<BodyInput<'a>>,
    #[serde(borrow, default)]
    outputs: Option<Vec<BodyOutput<'a>>>,
}

#[derive(Deserialize, Default)]
struct Parameters<'a> {
    #[serde(borrow, default)]
    sequence_id: Option<Id<'a>>,
    #[serde(default)]
    sequence_start: bool,
    #[serde(default)]
    sequence_end: bool,
    timeout: Option<u64>,
    #[serde(default)]
    binary_data_output: bool,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected sequence_id to be a number from 0 to 2^64 - 1 or a text")]
enum Id<'a> {
    Number(u64),
    #[serde(borrow)]
    Text(Cow<'a, str>),
}

#[derive(Deserialize)]
struct BodyInput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Vec<u64>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(default)]
    parameters: Option<TensorParameters>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct BodyOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default)]
    parameters: Option<TensorParameters>,
}

#[derive(Deserialize, Default)]
struct TensorParameters {
    binary_data: Option<bool>,
    binary_data_size: Option<u64>,
    classification: Option<u64>,
    shared_memory_region: Option<String>,
    shared_memory_byte_size: Option<u64>,
    shared_memory_offset: Option<u64>,
}

impl TensorParameters {
    fn shared(&mut self, tensor: &str) -> Result<Option<SharedRange>, Fault> {
        SharedRange::of(tensor, self.shared_memory_region.take(), self.shared_memory_byte_size, self.shared_memory_offset)
    }
}

impl<'a> InferRequest<'a> {
    /// Reads a body. `header` is the length of its JSON where tensors follow behind it, `sequence` the id that stands beside the body.
    ///
    /// ```
    /// use bytes::Bytes;
    /// use candle_serve::protocol::request::{Data, InferRequest};
    ///
    /// let json = r#"{"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [[0.5, 1]]}]}"#;
    /// let body = Bytes::from_static(json.as_bytes());
    /// let request = InferRequest::parse(&body, None, None)?;
    /// assert_eq!(request.inputs[0].data, Data::Json(Bytes::from_static(b"[[0.5, 1]]")));
    /// # Ok::<(), candle_serve::Fault>(())
    /// ```
    ///
    /// # Errors
    /// If it is not such a body; the message says where.
    pub fn parse(body: &'a Bytes, header: Option<usize>, sequence: Option<SequenceId>) -> Result<Self, Fault> {
        let length = header.unwrap_or(body.len());
        let Some(json) = body.get(..length) else {
            return Err(Fault::input(format!("expected {length} bytes of JSON, found a body of {}", body.len())));
        };
        // Serde would take a list of the values as well.
        if json.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|first| *first != b'{') {
            return Err(Fault::input("request: expected an object of JSON"));
        }
        let parsed: Body<'a> = serde_json::from_slice(json).map_err(|e| Fault::input(format!("request: {}", one_line(&e.to_string()))))?;
        let mut tail = header.map(|_| body.slice(length..));
        let inputs = parsed.inputs.into_iter().map(|input| read_input(input, body, &mut tail)).collect::<Result<Vec<_>, _>>()?;
        if let Some(rest) = tail.filter(|rest| !rest.is_empty()) {
            return Err(Fault::input(format!("the body has {} bytes more than its inputs behind the JSON", rest.len())));
        }
        no_twins("input", inputs.iter().map(|input| &*input.name))?;
        let parameters = parsed.parameters.unwrap_or_default();
        let outputs = parsed.outputs.map(|outputs| read_outputs(outputs, parameters.binary_data_output)).transpose()?;
        Ok(Self {
            id: parsed.id,
            sequence: parameters.sequence(sequence)?,
            timeout: parameters.timeout.filter(|timeout| *timeout > 0).map(Duration::from_micros),
            inputs,
            outputs,
            binary: parameters.binary_data_output,
        })
    }
}

impl Parameters<'_> {
    fn sequence(&self, outside: Option<SequenceId>) -> Result<Option<SequenceStep>, Fault> {
        let id = match &self.sequence_id {
            Some(Id::Number(id)) => SequenceId::number(*id),
            Some(Id::Text(id)) => SequenceId::text(id)?,
            None => None,
        };
        SequenceStep::of(id, outside, (self.sequence_start, self.sequence_end))
    }
}

/// Takes an input's values out of the body: `tail` is what is left behind the JSON.
fn read_input<'a>(input: BodyInput<'a>, body: &Bytes, tail: &mut Option<Bytes>) -> Result<Input<'a>, Fault> {
    let BodyInput { name, shape, datatype, parameters, data } = input;
    let mut parameters = parameters.unwrap_or_default();
    let shared = parameters.shared(&name)?;
    let wrong = |expected: &str, found: &str| Err(Fault::tensor(&name, expected, found));
    let data = match (data, parameters.binary_data_size, shared, tail) {
        (None, None, Some(range), _) => Data::Shared(range),
        (Some(_), Some(_), None, _) => return wrong("either data or binary_data_size", "both"),
        (_, _, Some(_), _) => return wrong("either shared_memory_region or values in the body", "both"),
        (None, None, None, _) => return wrong("data or the parameter binary_data_size", "neither"),
        (None, Some(_), None, None) => return wrong("the header Inference-Header-Content-Length with binary data", "none"),
        (Some(data), None, None, _) => Data::Json(body.slice_ref(data.get().as_bytes())),
        (None, Some(size), None, Some(tail)) => match usize::try_from(size) {
            Ok(size) if size <= tail.len() => Data::Raw(tail.split_to(size)),
            _ => return wrong(&format!("{size} bytes in the body"), &tail.len().to_string()),
        },
    };
    let datatype = Datatype::parse(&datatype).map_err(|fault| Fault::input(format!("tensor {}: {fault}", one_line(&name))))?;
    Ok(Input { name, shape, datatype, data })
}

fn read_outputs(outputs: Vec<BodyOutput<'_>>, binary: bool) -> Result<Vec<Output<'_>>, Fault> {
    let read = |BodyOutput { name, parameters }| {
        let mut parameters: TensorParameters = parameters.unwrap_or_default();
        let shared = parameters.shared(&name)?;
        Output::of(name, parameters.binary_data.unwrap_or(binary), parameters.classification, shared)
    };
    let outputs: Vec<_> = outputs.into_iter().map(read).collect::<Result<_, Fault>>()?;
    no_twins("output", outputs.iter().map(|output| &*output.name))?;
    Ok(outputs)
}

/// Names are few: a request with thousands of them is refused by the model, and is looked through quickly all the same.
pub(crate) fn no_twins<'n>(what: &str, names: impl Iterator<Item = &'n str>) -> Result<(), Fault> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Fault::input(format!("{what} {}: expected once, found twice", one_line(name))));
        }
    }
    Ok(())
}

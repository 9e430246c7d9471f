//! A request for an inference held against a model's signature: whatever protocol it came by, and everything about it that can be wrong
//! before an engine is asked.

use crate::fault::{Fault, Kind, one_line};
use crate::protocol::Datatype;
use crate::protocol::data::{raw_texts, values};
use crate::protocol::request::{Data, ID_LIMIT, InferRequest, Input, SequenceId, SequenceStep};
use crate::shared_memory::{Regions, Window};
use bytes::Bytes;
use candle_models::candle_core::DType;
use candle_models::engine::Session;
use candle_models::signature::{Signature, TensorSpec, Values};
use std::borrow::Cow;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// The tensors that say which sequences the rows of a batch belong to, one for each row.
pub(crate) const IDS: &str = "__sequence_id";
const STARTS: &str = "__sequence_start";
const ENDS: &str = "__sequence_end";
/// Why an input's values are none in shared memory any more.
const HERE: &str = "what lies in shared memory is read before it is looked at";
/// Bytes that a row can have of any of them: a length and the longest id.
const CONTROL_LIMIT: usize = size_of::<u32>() + ID_LIMIT;

/// Values of an input, `[rows, width]`.
#[derive(Debug)]
enum Given {
    /// Little-endian, as they lie in the body.
    Raw(Bytes),
    Floats(Vec<f32>),
    Indices(Vec<u32>),
}

/// An output that is to be answered.
#[derive(Debug)]
pub(crate) struct Wanted {
    /// Its place in the signature.
    pub index: usize,
    /// Whether its values stand behind the JSON.
    pub binary: bool,
    /// How many classes are wanted in place of the values.
    pub classes: Option<NonZeroU64>,
    /// Where its values are to be written, in place of the answer.
    pub shared: Option<Window>,
}

/// What an engine is to compute.
#[derive(Debug)]
pub(crate) struct Inference {
    /// Comes back in the answer.
    pub id: Option<String>,
    /// How many rows.
    pub rows: usize,
    /// The sequence of each row; empty where every row is begun anew.
    pub sequences: Vec<SequenceStep>,
    /// When the step has to have begun.
    pub deadline: Option<Instant>,
    /// What is to be answered.
    pub outputs: Vec<Wanted>,
    /// By the signature's inputs; `None` is its default.
    inputs: Vec<Option<Given>>,
}

impl Inference {
    /// Holds a request against the signature of a model that takes up to `max_batch` rows. Inputs that lie in `regions` are read from there.
    pub fn new(signature: &Signature, max_batch: usize, regions: &Regions, request: &InferRequest<'_>) -> Result<Self, Fault> {
        let (control, inputs): (Vec<_>, Vec<_>) = request.inputs.iter().partition(|input| [IDS, STARTS, ENDS].contains(&&*input.name));
        let most = (max_batch * CONTROL_LIMIT) as u64;
        let control = control.into_iter().map(|input| here(input, regions, most)).collect::<Result<Vec<_>, _>>()?;
        let mut given: Vec<Option<Given>> = signature.inputs.iter().map(|_| None).collect();
        let mut rows = None;
        for input in inputs {
            let Some(at) = signature.inputs.iter().position(|spec| spec.name == input.name) else {
                return Err(Fault::tensor(&input.name, "an input of the model", format!("only [{}]", names(&signature.inputs))));
            };
            let spec = &signature.inputs[at];
            let found = batch(input, &spec.shape)?;
            agree(&mut rows, input, found, max_batch)?;
            let expected = found * (spec.width() * size_of::<f32>()) as u64;
            let input = here(input, regions, expected)?;
            given[at] = Some(read(&input, spec, found)?);
        }
        required(signature, &given)?;
        let vector = sequences(&control, &mut rows, max_batch)?;
        let rows = rows.unwrap_or(1);
        let sequences = match (vector, request.sequence.clone()) {
            (Some(_), Some(_)) => return Err(Fault::input(format!("expected the parameter sequence_id or the tensor {IDS}, found both"))),
            (Some(steps), None) => steps,
            (None, Some(_)) if rows != 1 => {
                return Err(Fault::input(format!(
                    "expected a batch of 1 with a sequence_id, found {rows}: the tensor {IDS} has one for each"
                )));
            }
            (None, step) => step.into_iter().collect(),
        };
        let inference = Self {
            id: request.id.as_deref().map(str::to_owned),
            rows,
            sequences,
            deadline: request.timeout.map(|timeout| Instant::now() + timeout.min(Duration::from_secs(86_400))),
            outputs: wanted(signature, regions, rows, request)?,
            inputs: given,
        };
        inference.check(signature)?;
        Ok(inference)
    }

    /// A body that is the one input that the model has to be given, of one row: all outputs are answered behind the JSON. It goes on with the
    /// sequence that stands beside it.
    pub fn bare(signature: &Signature, body: Bytes, sequence: Option<SequenceId>) -> Result<Self, Fault> {
        let required: Vec<usize> = (0..signature.inputs.len()).filter(|at| signature.inputs[*at].is_required()).collect();
        let &[at] = &required[..] else {
            let reason = format!("a body without JSON: expected a model that has to be given one input, found {}", required.len());
            return Err(Fault::input(reason));
        };
        let spec = &signature.inputs[at];
        let mut inputs: Vec<Option<Given>> = signature.inputs.iter().map(|_| None).collect();
        inputs[at] = Some(raw(spec, body, 1)?);
        let outputs = (0..signature.outputs.len()).map(|index| Wanted { index, binary: true, classes: None, shared: None }).collect();
        let sequences = sequence.map(|id| SequenceStep { id, start: false, end: false }).into_iter().collect();
        Ok(Self { id: None, rows: 1, sequences, deadline: None, outputs, inputs })
    }

    /// Rows of a batch stand or fall together: a value that the engine would refuse in one of them is refused before any is stepped, or begun
    /// anew. Where there is nothing to be undone it is left to the engine.
    fn check(&self, signature: &Signature) -> Result<(), Fault> {
        if self.rows == 1 && !self.sequences.iter().any(|step| step.start) {
            return Ok(());
        }
        for (spec, given) in signature.inputs.iter().zip(&self.inputs) {
            match given {
                Some(Given::Floats(values)) => spec.check_f32_from(0, values)?,
                Some(Given::Indices(values)) => spec.check_u32_from(0, values)?,
                Some(Given::Raw(bytes)) if spec.dtype() == DType::U32 => spec.check_u32_from(0, &aligned(bytes))?,
                Some(Given::Raw(bytes)) => spec.check_f32_from(0, &aligned(bytes))?,
                None => {}
            }
        }
        Ok(())
    }

    /// Writes a row's inputs into a session: those that were not given at their defaults, whatever an earlier step has left there.
    pub fn fill(&self, signature: &Signature, row: usize, session: &mut Session) -> Result<(), Fault> {
        for (spec, given) in signature.inputs.iter().zip(&self.inputs) {
            if spec.dtype() == DType::U32 {
                let to = session.indices_mut(&spec.name)?;
                match (given, spec.values()) {
                    (Some(Given::Raw(bytes)), _) => copy(bytes, row, bytemuck::cast_slice_mut(to)),
                    (Some(Given::Indices(values)), _) => copy(values, row, to),
                    (None, Values::Indices { default: Some(default), .. }) => to.copy_from_slice(default),
                    _ => {}
                }
            } else {
                let to = session.floats_mut(&spec.name)?;
                match (given, spec.values()) {
                    (Some(Given::Raw(bytes)), _) => copy(bytes, row, bytemuck::cast_slice_mut(to)),
                    (Some(Given::Floats(values)), _) => copy(values, row, to),
                    (None, Values::Floats { default: Some(default), .. }) => to.copy_from_slice(default),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

/// Row `row` of values that were counted before.
fn copy<T: Copy>(values: &[T], row: usize, to: &mut [T]) {
    to.copy_from_slice(&values[row * to.len()..][..to.len()]);
}

/// Values from bytes that may lie anywhere.
fn aligned<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn names(specs: &[TensorSpec]) -> String {
    specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// The shape that a request's tensor has to have.
fn shape(row: &[usize]) -> String {
    format!("[{}]", std::iter::once("-1".to_owned()).chain(row.iter().map(usize::to_string)).collect::<Vec<_>>().join(", "))
}

/// The batch of a tensor whose rows have that shape.
fn batch(input: &Input<'_>, row: &[usize]) -> Result<u64, Fault> {
    match input.shape.split_first() {
        Some((batch, found)) if found.iter().copied().eq(row.iter().map(|n| *n as u64)) => Ok(*batch),
        _ => {
            let found: Vec<String> = input.shape.iter().take(8).map(u64::to_string).collect();
            let more = if input.shape.len() > 8 { ", ..." } else { "" };
            Err(Fault::tensor(&input.name, format!("shape {}", shape(row)), format!("[{}{more}]", found.join(", "))))
        }
    }
}

/// All tensors have the same batch, of which the model takes at most `max_batch`.
fn agree(rows: &mut Option<usize>, input: &Input<'_>, found: u64, max_batch: usize) -> Result<(), Fault> {
    match *rows {
        Some(rows) if found == rows as u64 => Ok(()),
        Some(rows) => Err(Fault::tensor(&input.name, format!("a batch of {rows}, as of the tensors before it"), found)),
        None if (1..=max_batch as u64).contains(&found) => {
            *rows = Some(found as usize);
            Ok(())
        }
        None => Err(Fault::tensor(&input.name, format!("a batch from 1 to {max_batch}"), found)),
    }
}

/// An input with its values: those in shared memory are read, if they are not more bytes than it can have.
fn here<'i, 'r>(input: &'i Input<'r>, regions: &Regions, most: u64) -> Result<Cow<'i, Input<'r>>, Fault> {
    let Data::Shared(range) = &input.data else { return Ok(Cow::Borrowed(input)) };
    if range.byte_size > most {
        return Err(Fault::tensor(&input.name, format!("a shared_memory_byte_size of at most {most}"), range.byte_size));
    }
    let data = Data::Raw(regions.window(range)?.read()?);
    Ok(Cow::Owned(Input { data, ..input.clone() }))
}

/// Values of `rows` rows that were found to be at most the largest batch.
fn read(input: &Input<'_>, spec: &TensorSpec, rows: u64) -> Result<Given, Fault> {
    let expected = Datatype::of(spec.dtype());
    if input.datatype != expected {
        return Err(Fault::tensor(&input.name, format!("datatype {}", expected.name()), input.datatype.name()));
    }
    let count = rows as usize * spec.width();
    match &input.data {
        Data::Raw(bytes) => raw(spec, bytes.clone(), rows as usize),
        Data::Json(json) if expected == Datatype::Uint32 => Ok(Given::Indices(values(&input.name, json, count)?)),
        Data::Json(json) => Ok(Given::Floats(values(&input.name, json, count)?)),
        Data::Shared(_) => unreachable!("{HERE}"),
    }
}

fn raw(spec: &TensorSpec, bytes: Bytes, rows: usize) -> Result<Given, Fault> {
    let expected = rows * spec.width() * size_of::<f32>();
    if bytes.len() != expected {
        return Err(Fault::tensor(&spec.name, format!("{expected} bytes"), bytes.len()));
    }
    Ok(Given::Raw(bytes))
}

fn required(signature: &Signature, given: &[Option<Given>]) -> Result<(), Fault> {
    let missing = signature.inputs.iter().zip(given).find(|(spec, given)| given.is_none() && spec.is_required());
    match missing {
        Some((spec, _)) => {
            let datatype = Datatype::of(spec.dtype()).name();
            Err(Fault::tensor(&spec.name, format!("{datatype} {}: it has no default", shape(&spec.shape)), "no such input"))
        }
        None => Ok(()),
    }
}

/// The outputs that a request asks for; all of them where it names none.
fn wanted(signature: &Signature, regions: &Regions, rows: usize, request: &InferRequest<'_>) -> Result<Vec<Wanted>, Fault> {
    let Some(outputs) = request.outputs.as_ref().filter(|outputs| !outputs.is_empty()) else {
        return Ok((0..signature.outputs.len())
            .map(|index| Wanted { index, binary: request.binary, classes: None, shared: None })
            .collect());
    };
    let find = |output: &crate::protocol::request::Output<'_>| {
        let index = signature.outputs.iter().position(|spec| spec.name == output.name);
        let unknown = || Fault::tensor(&output.name, "an output of the model", format!("only [{}]", names(&signature.outputs)));
        let index = index.ok_or_else(unknown)?;
        if output.classes.is_some() && signature.outputs[index].shape.is_empty() {
            return Err(Fault::tensor(&output.name, "an output of several values a row with the parameter classification", "one"));
        }
        let size = (rows * signature.outputs[index].width() * size_of::<f32>()) as u64;
        let shared = output.shared.as_ref().map(|range| regions.window(range)?.for_output(&output.name, size)).transpose()?;
        Ok(Wanted { index, binary: output.binary, classes: output.classes, shared })
    };
    let wanted: Vec<Wanted> = outputs.iter().map(find).collect::<Result<_, Fault>>()?;
    let windows: Vec<&Window> = wanted.iter().filter_map(|output| output.shared.as_ref()).collect();
    let meets = |(at, window): (usize, &&Window)| windows[..at].iter().any(|other| window.overlaps(other));
    match windows.iter().enumerate().any(meets) {
        true => Err(Fault::input("expected a place of its own in shared memory for each output, found two that overlap")),
        false => Ok(wanted),
    }
}

/// The sequence of each row, from the tensors that say so.
fn sequences(control: &[Cow<'_, Input<'_>>], rows: &mut Option<usize>, max_batch: usize) -> Result<Option<Vec<SequenceStep>>, Fault> {
    let Some(ids) = control.iter().find(|input| input.name == IDS) else {
        return match control.first() {
            Some(input) => Err(Fault::tensor(IDS, format!("to be present with {}", one_line(&input.name)), "no such input")),
            None => Ok(None),
        };
    };
    for input in control {
        agree(rows, input, batch(input, &[])?, max_batch)?;
    }
    let count = rows.unwrap_or(1);
    let flags = |name: &str| match control.iter().find(|input| input.name == name) {
        Some(input) => booleans(input, count),
        None => Ok(vec![false; count]),
    };
    let (starts, ends) = (flags(STARTS)?, flags(ENDS)?);
    let steps = identify(ids, count)?.into_iter().zip(starts).zip(ends);
    let steps: Vec<_> = steps.map(|((id, start), end)| SequenceStep { id, start, end }).collect();
    let mut sorted: Vec<&SequenceId> = steps.iter().map(|step| &step.id).collect();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Fault::tensor(IDS, "each sequence once", format!("{} twice", pair[0]))),
        None => Ok(Some(steps)),
    }
}

fn identify(input: &Input<'_>, count: usize) -> Result<Vec<SequenceId>, Fault> {
    let ids: Vec<Option<SequenceId>> = match (input.datatype, &input.data) {
        (Datatype::Uint64, Data::Json(json)) => values(IDS, json, count)?.into_iter().map(SequenceId::number).collect(),
        (Datatype::Uint64, Data::Raw(bytes)) if bytes.len() == 8 * count => {
            aligned::<u64>(bytes).into_iter().map(SequenceId::number).collect()
        }
        (Datatype::Uint64, Data::Raw(bytes)) => return Err(Fault::tensor(IDS, format!("{} bytes", 8 * count), bytes.len())),
        (Datatype::Bytes, data) => {
            let texts = match data {
                Data::Json(json) => values::<String>(IDS, json, count)?,
                Data::Raw(bytes) => raw_texts(IDS, bytes, count)?,
                Data::Shared(_) => unreachable!("{HERE}"),
            };
            texts.iter().map(|id| SequenceId::text(id)).collect::<Result<_, _>>()?
        }
        (Datatype::Uint64, Data::Shared(_)) => unreachable!("{HERE}"),
        (found, _) => return Err(Fault::tensor(IDS, "datatype UINT64 or BYTES", found.name())),
    };
    let missing = || Fault::tensor(IDS, "a sequence for each row", "0 or an empty text");
    ids.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)
}

fn booleans(input: &Input<'_>, count: usize) -> Result<Vec<bool>, Fault> {
    if input.datatype != Datatype::Bool {
        return Err(Fault::tensor(&input.name, "datatype BOOL", input.datatype.name()));
    }
    match &input.data {
        Data::Json(json) => values(&input.name, json, count),
        Data::Raw(bytes) if bytes.len() == count => Ok(bytes.iter().map(|byte| *byte != 0).collect()),
        Data::Raw(bytes) => Err(Fault::tensor(&input.name, format!("{count} bytes"), bytes.len())),
        Data::Shared(_) => unreachable!("{HERE}"),
    }
}

/// A protocol's part that this server does not have.
pub(crate) fn unsupported(what: impl std::fmt::Display) -> Fault {
    Fault::new(Kind::Unsupported, format!("{what} is not supported"))
}

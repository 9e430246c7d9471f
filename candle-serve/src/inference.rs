//! A request for an inference held against a model's signature: whatever protocol it came by, and everything about it that can be wrong
//! before an engine is asked.

use crate::fault::{Fault, Kind, one_line};
use crate::keys::Principal;
use crate::protocol::Datatype;
use crate::protocol::data::{raw_texts, values as json};
use crate::protocol::request::{Data, ID_LIMIT, InferRequest, Input, SequenceId, SequenceStep};
use crate::shared_memory::{Regions, Window};
use bytes::Bytes;
use candle_models::candle_core::DType;
use candle_models::engine::Session;
use candle_models::signature::{self, Signature, TensorSpec};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// The tensors that say which sequences the rows of a batch belong to, one for each row.
pub(crate) const IDS: &str = "__sequence_id";
const STARTS: &str = "__sequence_start";
const ENDS: &str = "__sequence_end";
/// Bytes that a row can have of any of them: a length and the longest id.
const CONTROL_LIMIT: usize = size_of::<u32>() + ID_LIMIT;

/// A tensor of a request with its values at hand, wherever they were.
struct Here<'i, 'r> {
    input: &'i Input<'r>,
    values: Values,
}

enum Values {
    /// The text of a JSON array.
    Json(Bytes),
    /// Little-endian, as they lie in the body or in shared memory.
    Raw(Bytes),
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
    /// Whose sequences they are.
    pub principal: Principal,
    /// How many rows.
    pub rows: usize,
    /// The sequence of each row; empty where every row is begun anew.
    pub sequences: Vec<SequenceStep>,
    /// When the step has to have begun.
    pub deadline: Option<Instant>,
    /// What is to be answered.
    pub outputs: Vec<Wanted>,
    /// The values of the signature's inputs, `[rows, width]` each and as they lie in memory; `None` is the default.
    inputs: Vec<Option<Bytes>>,
}

impl Inference {
    /// Holds a principal's request against the signature of a model that takes up to `max_batch` rows. Inputs that lie in `regions` are read
    /// from there.
    pub fn new(
        (signature, max_batch): (&Signature, usize),
        regions: &Regions,
        principal: Principal,
        request: &InferRequest<'_>,
    ) -> Result<Self, Fault> {
        let (control, inputs): (Vec<_>, Vec<_>) = request.inputs.iter().partition(|input| [IDS, STARTS, ENDS].contains(&&*input.name));
        let most = (max_batch * CONTROL_LIMIT) as u64;
        let control = control.into_iter().map(|input| here(input, regions, most)).collect::<Result<Vec<_>, _>>()?;
        let mut given: Vec<Option<Bytes>> = signature.inputs.iter().map(|_| None).collect();
        let mut rows = None;
        for input in inputs {
            let Some(at) = signature.inputs.iter().position(|spec| spec.name == input.name) else {
                return Err(Fault::tensor(&input.name, "an input of the model", format!("only [{}]", names(&signature.inputs))));
            };
            let spec = &signature.inputs[at];
            let found = batch(input, &spec.shape)?;
            agree(&mut rows, input, found, max_batch)?;
            let expected = found * (spec.width() * size_of::<f32>()) as u64;
            given[at] = Some(read(&here(input, regions, expected)?, spec, found)?);
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
            principal,
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
    pub fn bare(signature: &Signature, principal: Principal, body: Bytes, sequence: Option<SequenceId>) -> Result<Self, Fault> {
        let required: Vec<usize> = (0..signature.inputs.len()).filter(|at| signature.inputs[*at].is_required()).collect();
        let &[at] = &required[..] else {
            let reason = format!("a body without JSON: expected a model that has to be given one input, found {}", required.len());
            return Err(Fault::input(reason));
        };
        let spec = &signature.inputs[at];
        let mut inputs: Vec<Option<Bytes>> = signature.inputs.iter().map(|_| None).collect();
        inputs[at] = Some(raw(spec, body, 1)?);
        let outputs = (0..signature.outputs.len()).map(|index| Wanted { index, binary: true, classes: None, shared: None }).collect();
        let sequences = sequence.map(|id| SequenceStep { id, start: false, end: false }).into_iter().collect();
        Ok(Self { id: None, principal, rows: 1, sequences, deadline: None, outputs, inputs })
    }

    /// Rows of a batch stand or fall together: a value that the engine would refuse in one of them is refused before any is stepped, or begun
    /// anew. Where there is nothing to be undone it is left to the engine.
    fn check(&self, signature: &Signature) -> Result<(), Fault> {
        if self.rows == 1 && !self.sequences.iter().any(|step| step.start) {
            return Ok(());
        }
        for (spec, bytes) in signature.inputs.iter().zip(&self.inputs) {
            match (spec.dtype(), bytes) {
                (_, None) => {}
                (DType::U32, Some(bytes)) => spec.check_u32_from(0, &aligned(bytes))?,
                (_, Some(bytes)) => spec.check_f32_from(0, &aligned(bytes))?,
            }
        }
        Ok(())
    }

    /// Writes a row's inputs into a session: those that were not given at their defaults, whatever an earlier step has left there.
    pub fn fill(&self, signature: &Signature, row: usize, session: &mut Session) -> Result<(), Fault> {
        for (spec, bytes) in signature.inputs.iter().zip(&self.inputs) {
            let (to, default): (&mut [u8], Option<&[u8]>) = match spec.values() {
                signature::Values::Indices { default, .. } => {
                    (bytemuck::cast_slice_mut(session.indices_mut(&spec.name)?), default.as_deref().map(bytemuck::cast_slice))
                }
                signature::Values::Floats { default, .. } => {
                    (bytemuck::cast_slice_mut(session.floats_mut(&spec.name)?), default.as_deref().map(bytemuck::cast_slice))
                }
            };
            // Both were counted before.
            let row = bytes.as_ref().map(|bytes| &bytes[row * to.len()..][..to.len()]);
            if let Some(values) = row.or(default) {
                to.copy_from_slice(values);
            }
        }
        Ok(())
    }
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

/// A tensor with its values: those in shared memory are read, if they are not more bytes than it can have.
fn here<'i, 'r>(input: &'i Input<'r>, regions: &Regions, most: u64) -> Result<Here<'i, 'r>, Fault> {
    let values = match &input.data {
        Data::Json(json) => Values::Json(json.clone()),
        Data::Raw(bytes) => Values::Raw(bytes.clone()),
        Data::Shared(range) if range.byte_size > most => {
            return Err(Fault::tensor(&input.name, format!("a shared_memory_byte_size of at most {most}"), range.byte_size));
        }
        Data::Shared(range) => Values::Raw(regions.window(range)?.read()?),
    };
    Ok(Here { input, values })
}

/// Values of `rows` rows that were found to be at most the largest batch.
fn read(Here { input, values }: &Here<'_, '_>, spec: &TensorSpec, rows: u64) -> Result<Bytes, Fault> {
    let expected = Datatype::of(spec.dtype());
    if input.datatype != expected {
        return Err(Fault::tensor(&input.name, format!("datatype {}", expected.name()), input.datatype.name()));
    }
    let count = rows as usize * spec.width();
    match values {
        Values::Raw(bytes) => raw(spec, bytes.clone(), rows as usize),
        Values::Json(text) if expected == Datatype::Uint32 => Ok(in_memory(&json::<u32>(&input.name, text, count)?)),
        Values::Json(text) => Ok(in_memory(&json::<f32>(&input.name, text, count)?)),
    }
}

fn in_memory<T: bytemuck::NoUninit>(values: &[T]) -> Bytes {
    Bytes::copy_from_slice(bytemuck::cast_slice(values))
}

fn raw(spec: &TensorSpec, bytes: Bytes, rows: usize) -> Result<Bytes, Fault> {
    let expected = rows * spec.width() * size_of::<f32>();
    if bytes.len() != expected {
        return Err(Fault::tensor(&spec.name, format!("{expected} bytes"), bytes.len()));
    }
    Ok(bytes)
}

fn required(signature: &Signature, given: &[Option<Bytes>]) -> Result<(), Fault> {
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
fn sequences(control: &[Here<'_, '_>], rows: &mut Option<usize>, max_batch: usize) -> Result<Option<Vec<SequenceStep>>, Fault> {
    let Some(ids) = control.iter().find(|tensor| tensor.input.name == IDS) else {
        return match control.first() {
            Some(tensor) => Err(Fault::tensor(IDS, format!("to be present with {}", one_line(&tensor.input.name)), "no such input")),
            None => Ok(None),
        };
    };
    for Here { input, .. } in control {
        agree(rows, input, batch(input, &[])?, max_batch)?;
    }
    let count = rows.unwrap_or(1);
    let flags = |name: &str| match control.iter().find(|tensor| tensor.input.name == name) {
        Some(tensor) => booleans(tensor, count),
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

fn identify(Here { input, values }: &Here<'_, '_>, count: usize) -> Result<Vec<SequenceId>, Fault> {
    let ids: Vec<Option<SequenceId>> = match (input.datatype, values) {
        (Datatype::Uint64, Values::Json(text)) => json(IDS, text, count)?.into_iter().map(SequenceId::number).collect(),
        (Datatype::Uint64, Values::Raw(bytes)) if bytes.len() == 8 * count => {
            aligned::<u64>(bytes).into_iter().map(SequenceId::number).collect()
        }
        (Datatype::Uint64, Values::Raw(bytes)) => return Err(Fault::tensor(IDS, format!("{} bytes", 8 * count), bytes.len())),
        (Datatype::Bytes, values) => {
            let texts = match values {
                Values::Json(text) => json::<String>(IDS, text, count)?,
                Values::Raw(bytes) => raw_texts(IDS, bytes, count)?,
            };
            texts.iter().map(|id| SequenceId::text(id)).collect::<Result<_, _>>()?
        }
        (found, _) => return Err(Fault::tensor(IDS, "datatype UINT64 or BYTES", found.name())),
    };
    let missing = || Fault::tensor(IDS, "a sequence for each row", "0 or an empty text");
    ids.into_iter().collect::<Option<Vec<_>>>().ok_or_else(missing)
}

fn booleans(Here { input, values }: &Here<'_, '_>, count: usize) -> Result<Vec<bool>, Fault> {
    if input.datatype != Datatype::Bool {
        return Err(Fault::tensor(&input.name, "datatype BOOL", input.datatype.name()));
    }
    match values {
        Values::Json(text) => json(&input.name, text, count),
        Values::Raw(bytes) if bytes.len() == count => Ok(bytes.iter().map(|byte| *byte != 0).collect()),
        Values::Raw(bytes) => Err(Fault::tensor(&input.name, format!("{count} bytes"), bytes.len())),
    }
}

/// A protocol's part that this server does not have.
pub(crate) fn unsupported(what: impl std::fmt::Display) -> Fault {
    Fault::new(Kind::Unsupported, format!("{what} is not supported"))
}

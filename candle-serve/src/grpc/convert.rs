//! Messages of inferences from and to the protocol-neutral ones.

use super::metadata::Beside;
use crate::fault::{Fault, one_line};
use crate::model::{Model, VERSION};
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::protocol::Datatype;
use crate::protocol::answer::Tensor;
use crate::protocol::request::{Data, InferRequest, Input, Output, SequenceId, SequenceStep, SharedRange, no_twins};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

type Parameters = BTreeMap<String, InferParameter>;

/// What a number of a parameter can be.
const NUMBER: &str = "a number from 0 to 2^64 - 1";

/// The request of a message and what is said beside it.
pub(super) fn request(message: &ModelInferRequest, Beside { limit, sequence: outside }: Beside) -> Result<InferRequest<'_>, Fault> {
    let (inputs, raw) = (&message.inputs, &message.raw_input_contents);
    let own = inputs.iter().filter(|input| !input.parameters.contains_key(REGION)).count();
    if !raw.is_empty() && raw.len() != own {
        return Err(Fault::input(format!("raw_input_contents: expected one for each of {own} inputs, found {}", raw.len())));
    }
    let mut raw = raw.iter();
    let inputs = inputs.iter().map(|input| read_input(input, &mut raw)).collect::<Result<Vec<_>, _>>()?;
    no_twins("input", inputs.iter().map(|input| &*input.name))?;
    let outputs = message.outputs.iter().map(read_output).collect::<Result<Vec<_>, _>>()?;
    no_twins("output", outputs.iter().map(|output| &*output.name))?;
    let own = number(&message.parameters, "timeout", NUMBER)?.filter(|timeout| *timeout > 0).map(Duration::from_micros);
    Ok(InferRequest {
        id: Some(Cow::Borrowed(&*message.id)).filter(|id| !id.is_empty()),
        sequence: sequence(&message.parameters, outside)?,
        timeout: own.into_iter().chain(limit).min(),
        inputs,
        outputs: Some(outputs),
        binary: true,
    })
}

fn read_output(output: &InferRequestedOutputTensor) -> Result<Output<'_>, Fault> {
    let InferRequestedOutputTensor { name, parameters } = output;
    Output::of(Cow::Borrowed(name), true, number(parameters, "classification", NUMBER)?, shared(name, parameters)?)
}

/// The name of a region of shared memory, where a tensor has one.
const REGION: &str = "shared_memory_region";

/// Where in shared memory the values of a tensor lie.
fn shared(tensor: &str, parameters: &Parameters) -> Result<Option<SharedRange>, Fault> {
    let region = match choice(parameters, REGION) {
        None => None,
        Some(ParameterChoice::StringParam(region)) => Some(region.clone()),
        Some(found) => return Err(wrong(REGION, "a text", found)),
    };
    let number = |name| number(parameters, name, NUMBER);
    SharedRange::of(tensor, region, number("shared_memory_byte_size")?, number("shared_memory_offset")?)
}

/// An input, the values of which are the next ones of `raw` unless it has its own or lies in shared memory.
fn read_input<'a>(input: &'a InferInputTensor, raw: &mut std::slice::Iter<'a, Bytes>) -> Result<Input<'a>, Fault> {
    let name = &*input.name;
    let shared = shared(name, &input.parameters)?;
    let datatype = Datatype::parse(&input.datatype).map_err(|fault| Fault::input(format!("tensor {}: {fault}", one_line(name))))?;
    let size = |size: &i64| u64::try_from(*size).map_err(|_| Fault::tensor(name, "sizes from 0 in its shape", size));
    let shape = input.shape.iter().map(size).collect::<Result<_, _>>()?;
    let raw = if shared.is_some() { None } else { raw.next() };
    let data = match (shared, &input.contents, raw) {
        (Some(_), Some(_), _) => return Err(Fault::tensor(name, "either contents or shared memory", "both")),
        (_, Some(_), Some(_)) => return Err(Fault::tensor(name, "either contents or raw_input_contents", "both")),
        (None, None, None) => return Err(Fault::tensor(name, "contents or raw_input_contents", "neither")),
        (Some(range), None, _) => Data::Shared(range),
        (None, None, Some(raw)) => Data::Raw(raw.clone()),
        (None, Some(contents), None) => Data::Raw(typed(name, datatype, contents)?),
    };
    Ok(Input { name: Cow::Borrowed(name), shape, datatype, data })
}

/// Values as they would lie in `raw_input_contents`.
fn typed(name: &str, datatype: Datatype, contents: &InferTensorContents) -> Result<Bytes, Fault> {
    let expected = match datatype {
        Datatype::Bool => "bool_contents",
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 => "int_contents",
        Datatype::Int64 => "int64_contents",
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 => "uint_contents",
        Datatype::Uint64 => "uint64_contents",
        Datatype::Fp32 => "fp32_contents",
        Datatype::Fp64 => "fp64_contents",
        Datatype::Bytes => "bytes_contents",
        Datatype::Fp16 | Datatype::Bf16 => "raw_input_contents",
    };
    let counts = [
        ("bool_contents", contents.bool_contents.len()),
        ("int_contents", contents.int_contents.len()),
        ("int64_contents", contents.int64_contents.len()),
        ("uint_contents", contents.uint_contents.len()),
        ("uint64_contents", contents.uint64_contents.len()),
        ("fp32_contents", contents.fp32_contents.len()),
        ("fp64_contents", contents.fp64_contents.len()),
        ("bytes_contents", contents.bytes_contents.len()),
    ];
    if let Some((found, _)) = counts.iter().find(|(field, count)| *field != expected && *count > 0) {
        return Err(Fault::tensor(name, format!("{} in {expected}", datatype.name()), format!("values in {found}")));
    }
    Ok(match datatype {
        Datatype::Bool => contents.bool_contents.iter().map(|value| u8::from(*value)).collect(),
        Datatype::Uint32 => Bytes::copy_from_slice(bytemuck::cast_slice(&contents.uint_contents)),
        Datatype::Uint64 => Bytes::copy_from_slice(bytemuck::cast_slice(&contents.uint64_contents)),
        Datatype::Fp32 => Bytes::copy_from_slice(bytemuck::cast_slice(&contents.fp32_contents)),
        Datatype::Bytes => {
            // A message is far shorter than 4 GiB.
            let text = |text: &Bytes| [&(text.len() as u32).to_le_bytes()[..], text].concat();
            contents.bytes_contents.iter().flat_map(text).collect()
        }
        // The engine has no such tensors: it refuses the datatype, whatever the values are.
        _ => Bytes::new(),
    })
}

fn choice<'p>(parameters: &'p Parameters, name: &str) -> Option<&'p ParameterChoice> {
    parameters.get(name)?.parameter_choice.as_ref()
}

fn wrong(name: &str, expected: &str, found: &ParameterChoice) -> Fault {
    let found = match found {
        ParameterChoice::BoolParam(value) => value.to_string(),
        ParameterChoice::Int64Param(value) => value.to_string(),
        ParameterChoice::Uint64Param(value) => value.to_string(),
        ParameterChoice::DoubleParam(value) => format!("{value:?}"),
        ParameterChoice::StringParam(value) => format!("the text {}", one_line(value)),
    };
    Fault::input(format!("{name}: expected {expected}, found {found}"))
}

fn number(parameters: &Parameters, name: &str, expected: &str) -> Result<Option<u64>, Fault> {
    match choice(parameters, name) {
        None => Ok(None),
        Some(ParameterChoice::Uint64Param(value)) => Ok(Some(*value)),
        Some(found @ ParameterChoice::Int64Param(value)) => u64::try_from(*value).map(Some).map_err(|_| wrong(name, expected, found)),
        Some(found) => Err(wrong(name, expected, found)),
    }
}

fn flag(parameters: &Parameters, name: &str) -> Result<bool, Fault> {
    match choice(parameters, name) {
        None => Ok(false),
        Some(ParameterChoice::BoolParam(value)) => Ok(*value),
        Some(found) => Err(wrong(name, "true or false", found)),
    }
}

/// The sequence that is to be stepped, whose id can stand beside the message.
pub(super) fn sequence(parameters: &Parameters, outside: Option<SequenceId>) -> Result<Option<SequenceStep>, Fault> {
    let id = match choice(parameters, "sequence_id") {
        Some(ParameterChoice::StringParam(id)) => SequenceId::text(id)?,
        _ => number(parameters, "sequence_id", "a number from 0 to 2^64 - 1 or a text")?.and_then(SequenceId::number),
    };
    SequenceStep::of(id, outside, (flag(parameters, "sequence_start")?, flag(parameters, "sequence_end")?))
}

/// The answer with those outputs.
pub(super) fn answer(model: &Model, id: Option<&str>, tensors: &[Tensor<'_>]) -> ModelInferResponse {
    // What lies in shared memory is not repeated; its place among the values stays empty.
    let bytes = |tensor: &Tensor<'_>| if tensor.shared.is_some() { 0 } else { tensor.rows.bytes() };
    let mut values = Vec::with_capacity(tensors.iter().map(bytes).sum());
    tensors.iter().filter(|tensor| tensor.shared.is_none()).for_each(|tensor| tensor.rows.append(&mut values));
    // One piece of memory for all of them.
    let mut values = Bytes::from(values);
    let output = |tensor: &Tensor<'_>| InferOutputTensor {
        name: tensor.name.to_owned(),
        datatype: tensor.rows.datatype().name().to_owned(),
        shape: std::iter::once(tensor.rows.count()).chain(tensor.shape.iter().copied()).map(|size| size as i64).collect(),
        parameters: tensor.shared.map(written).unwrap_or_default(),
        contents: None,
    };
    ModelInferResponse {
        model_name: model.name.clone(),
        model_version: VERSION.to_owned(),
        id: id.unwrap_or_default().to_owned(),
        parameters: Parameters::new(),
        outputs: tensors.iter().map(output).collect(),
        raw_output_contents: tensors.iter().map(|tensor| values.split_to(bytes(tensor))).collect(),
    }
}

/// Where an output was written, as a request says it.
fn written(range: &SharedRange) -> Parameters {
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    // Regions are files, whose sizes are no larger.
    let number = |n: u64| parameter(ParameterChoice::Int64Param(i64::try_from(n).unwrap_or(i64::MAX)));
    let region = parameter(ParameterChoice::StringParam(range.region.clone()));
    let (offset, size) = (number(range.offset), number(range.byte_size));
    let named = [(REGION, region), ("shared_memory_byte_size", size), ("shared_memory_offset", offset)];
    named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

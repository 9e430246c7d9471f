//! Messages of inferences from and to the protocol-neutral ones.

use crate::fault::{Fault, one_line};
use crate::inference::unsupported;
use crate::model::{Model, VERSION};
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::model_infer_response::InferOutputTensor;
use crate::proto::{InferParameter, InferTensorContents, ModelInferRequest, ModelInferResponse};
use crate::protocol::Datatype;
use crate::protocol::answer::Tensor;
use crate::protocol::request::{Data, InferRequest, Input, Output, SequenceId, SequenceStep, no_twins};
use bytes::Bytes;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

type Parameters = BTreeMap<String, InferParameter>;

/// What a number of a parameter can be.
const NUMBER: &str = "a number from 0 to 2^64 - 1";

/// The request of a message whose client waits for `limit`.
pub(super) fn request(message: &ModelInferRequest, limit: Option<Duration>) -> Result<InferRequest<'_>, Fault> {
    let (inputs, raw) = (&message.inputs, &message.raw_input_contents);
    if !raw.is_empty() && raw.len() != inputs.len() {
        return Err(Fault::input(format!("raw_input_contents: expected one for each of {} inputs, found {}", inputs.len(), raw.len())));
    }
    let mut raw = raw.iter();
    let inputs = inputs.iter().map(|input| read_input(input, raw.next())).collect::<Result<Vec<_>, _>>()?;
    no_twins("input", inputs.iter().map(|input| &*input.name))?;
    let output = |output: &'_ crate::proto::model_infer_request::InferRequestedOutputTensor| {
        refuse(&output.name, &output.parameters)?;
        Ok(Cow::Owned(output.name.clone()))
    };
    let outputs: Vec<Cow<'_, str>> = message.outputs.iter().map(output).collect::<Result<_, Fault>>()?;
    no_twins("output", outputs.iter().map(|name| &**name))?;
    let own = number(&message.parameters, "timeout", NUMBER)?.filter(|timeout| *timeout > 0).map(Duration::from_micros);
    Ok(InferRequest {
        id: Some(Cow::Borrowed(&*message.id)).filter(|id| !id.is_empty()),
        sequence: sequence(&message.parameters)?,
        timeout: own.into_iter().chain(limit).min(),
        inputs,
        outputs: Some(outputs.into_iter().map(|name| Output { name, binary: true }).collect()),
        binary: true,
    })
}

/// Parameters that change what a request means are refused where they are not served; others are ignored.
fn refuse(tensor: &str, parameters: &Parameters) -> Result<(), Fault> {
    match ["classification", "shared_memory_region"].into_iter().find(|name| parameters.contains_key(*name)) {
        Some(name) => Err(unsupported(format_args!("tensor {}: the parameter {name}", one_line(tensor)))),
        None => Ok(()),
    }
}

fn read_input<'a>(input: &'a InferInputTensor, raw: Option<&Bytes>) -> Result<Input<'a>, Fault> {
    let name = &*input.name;
    refuse(name, &input.parameters)?;
    let datatype = Datatype::parse(&input.datatype).map_err(|fault| Fault::input(format!("tensor {}: {fault}", one_line(name))))?;
    let size = |size: &i64| u64::try_from(*size).map_err(|_| Fault::tensor(name, "sizes from 0 in its shape", size));
    let shape = input.shape.iter().map(size).collect::<Result<_, _>>()?;
    let values = match (&input.contents, raw) {
        (Some(_), Some(_)) => return Err(Fault::tensor(name, "either contents or raw_input_contents", "both")),
        (None, None) => return Err(Fault::tensor(name, "contents or raw_input_contents", "neither")),
        (None, Some(raw)) => raw.clone(),
        (Some(contents), None) => typed(name, datatype, contents)?,
    };
    Ok(Input { name: Cow::Borrowed(name), shape, datatype, data: Data::Raw(values) })
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

/// The sequence that is to be stepped.
pub(super) fn sequence(parameters: &Parameters) -> Result<Option<SequenceStep>, Fault> {
    let id = match choice(parameters, "sequence_id") {
        Some(ParameterChoice::StringParam(id)) => SequenceId::text(id)?,
        _ => number(parameters, "sequence_id", "a number from 0 to 2^64 - 1 or a text")?.and_then(SequenceId::number),
    };
    let (start, end) = (flag(parameters, "sequence_start")?, flag(parameters, "sequence_end")?);
    Ok(id.map(|id| SequenceStep { id, start, end }))
}

/// The answer with those outputs.
pub(super) fn answer(model: &Model, id: Option<&str>, tensors: &[Tensor<'_>]) -> ModelInferResponse {
    let mut values = Vec::with_capacity(tensors.iter().map(|tensor| tensor.rows.bytes()).sum());
    tensors.iter().for_each(|tensor| tensor.rows.append(&mut values));
    // One piece of memory for all of them.
    let mut values = Bytes::from(values);
    let output = |tensor: &Tensor<'_>| InferOutputTensor {
        name: tensor.name.to_owned(),
        datatype: tensor.rows.datatype().name().to_owned(),
        shape: std::iter::once(tensor.rows.count()).chain(tensor.shape.iter().copied()).map(|size| size as i64).collect(),
        ..InferOutputTensor::default()
    };
    ModelInferResponse {
        model_name: model.name.clone(),
        model_version: VERSION.to_owned(),
        id: id.unwrap_or_default().to_owned(),
        parameters: Parameters::new(),
        outputs: tensors.iter().map(output).collect(),
        raw_output_contents: tensors.iter().map(|tensor| values.split_to(tensor.rows.bytes())).collect(),
    }
}

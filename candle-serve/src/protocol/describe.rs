//! What a server says of itself and of its models.

use super::Datatype;
use candle_models::signature::{Signature, TensorSpec, Values};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Of [`EXTENSIONS`] one that a server has only where it was asked for.
pub const SHARED_MEMORY: &str = "system_shared_memory";
/// Another one.
pub const TRACE: &str = "trace";

/// The parts of the protocol beyond its core that this server can have: those that work.
pub const EXTENSIONS: [&str; 10] = [
    "binary_tensor_data",
    "classification",
    "logging",
    "model_configuration",
    "model_repository",
    "sequence",
    "sequence(string_id)",
    "statistics",
    SHARED_MEMORY,
    TRACE,
];

/// The server.
#[derive(Debug, Serialize)]
pub struct ServerMetadata {
    /// The program.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What it has beyond the protocol's core.
    pub extensions: Vec<&'static str>,
}

/// A tensor, the batch first as -1.
#[derive(Debug, Serialize)]
pub struct TensorMetadata<'a> {
    /// The name.
    pub name: &'a str,
    /// What its values are.
    pub datatype: &'static str,
    /// The whole shape.
    pub shape: Vec<i64>,
}

/// A model.
#[derive(Debug, Serialize)]
pub struct ModelMetadata<'a> {
    /// The name.
    pub name: &'a str,
    /// The only one.
    pub versions: [&'a str; 1],
    /// What runs it.
    pub platform: &'static str,
    /// What it can be given.
    pub inputs: Vec<TensorMetadata<'a>>,
    /// What it answers.
    pub outputs: Vec<TensorMetadata<'a>>,
}

/// What runs the models.
pub const PLATFORM: &str = "candle";

impl<'a> ModelMetadata<'a> {
    /// From a signature.
    pub fn new(name: &'a str, version: &'a str, signature: &'a Signature) -> Self {
        let tensor = |spec: &'a TensorSpec| TensorMetadata {
            name: &spec.name,
            datatype: Datatype::of(spec.dtype()).name(),
            shape: std::iter::once(-1).chain(dims(spec)).collect(),
        };
        Self {
            name,
            versions: [version],
            platform: PLATFORM,
            inputs: signature.inputs.iter().map(tensor).collect(),
            outputs: signature.outputs.iter().map(tensor).collect(),
        }
    }
}

fn dims(spec: &TensorSpec) -> impl Iterator<Item = i64> {
    spec.shape.iter().map(|n| *n as i64)
}

/// An input, in a configuration.
#[derive(Debug, Serialize)]
pub struct ConfigInput<'a> {
    /// The name.
    pub name: &'a str,
    /// What its values are.
    pub data_type: &'static str,
    /// The shape without the batch.
    pub dims: Vec<i64>,
    /// Whether it has a default.
    pub optional: bool,
}

/// An output, in a configuration.
#[derive(Debug, Serialize)]
pub struct ConfigOutput<'a> {
    /// The name.
    pub name: &'a str,
    /// What its values are.
    pub data_type: &'static str,
    /// The shape without the batch.
    pub dims: Vec<i64>,
}

/// How sequences are served.
#[derive(Debug, Serialize)]
pub struct SequenceBatching {
    /// How long one may be idle.
    pub max_sequence_idle_microseconds: u64,
    /// Each gives a batch one step at most.
    pub oldest: Oldest,
}

/// Sequences whose next steps are batched, the oldest first.
#[derive(Debug, Serialize)]
pub struct Oldest {
    /// How many there can be at the same time.
    pub max_candidate_sequences: usize,
}

/// A parameter of a configuration.
#[derive(Debug, Serialize)]
pub struct Text {
    /// Its value.
    pub string_value: String,
}

/// The configuration of a model, as far as it has one.
#[derive(Debug, Serialize)]
pub struct ModelConfig<'a> {
    /// The name.
    pub name: &'a str,
    /// What runs it.
    pub platform: &'static str,
    /// The same.
    pub backend: &'static str,
    /// Most rows of a request.
    pub max_batch_size: usize,
    /// What it can be given.
    pub input: Vec<ConfigInput<'a>>,
    /// What it answers.
    pub output: Vec<ConfigOutput<'a>>,
    /// Of a model that has a state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_batching: Option<SequenceBatching>,
    /// What each tensor means and which values an input can take, in words.
    pub parameters: BTreeMap<String, Text>,
}

/// How a model is served.
#[derive(Debug, Clone, Copy)]
pub struct Served {
    /// Most rows of a request.
    pub max_batch: usize,
    /// Sessions that can be open at the same time.
    pub sessions: usize,
    /// How long a sequence may be idle, in microseconds.
    pub idle: u64,
}

impl<'a> ModelConfig<'a> {
    /// From a signature. Only a model with a state is configured for sequences.
    pub fn new(name: &'a str, family: &str, signature: &'a Signature, served: Served) -> Self {
        let data_type = |spec: &TensorSpec| Datatype::of(spec.dtype()).config_name();
        let input = |spec: &'a TensorSpec| ConfigInput {
            name: &spec.name,
            data_type: data_type(spec),
            dims: dims(spec).collect(),
            optional: !spec.is_required(),
        };
        let output = |spec: &'a TensorSpec| ConfigOutput { name: &spec.name, data_type: data_type(spec), dims: dims(spec).collect() };
        let text = |name: String, text: String| (name, Text { string_value: text });
        let inputs = signature.inputs.iter().map(|spec| text(format!("input.{}", spec.name), describe(spec)));
        let outputs = signature.outputs.iter().filter(|spec| !spec.meaning.is_empty());
        let outputs = outputs.map(|spec| text(format!("output.{}", spec.name), spec.meaning.to_owned()));
        let sequence_batching =
            SequenceBatching { max_sequence_idle_microseconds: served.idle, oldest: Oldest { max_candidate_sequences: served.sessions } };
        Self {
            name,
            platform: PLATFORM,
            backend: PLATFORM,
            max_batch_size: served.max_batch,
            input: signature.inputs.iter().map(input).collect(),
            output: signature.outputs.iter().map(output).collect(),
            sequence_batching: (!signature.state.is_empty()).then_some(sequence_batching),
            parameters: inputs.chain(outputs).chain([text("family".to_owned(), family.to_owned())]).collect(),
        }
    }
}

/// An input in words.
fn describe(spec: &TensorSpec) -> String {
    let values = match spec.values() {
        Values::Floats { within, .. } if *within == candle_models::signature::ANY => "finite numbers".to_owned(),
        Values::Floats { within, .. } => format!("numbers from {} to below {}", within.start, within.end),
        Values::Indices { below, sample, .. } => {
            let limit = below.iter().max().map_or("indices".to_owned(), |most| format!("indices below {most} at most"));
            if *sample { format!("{limit}, or 4294967295 where the model is to choose") } else { limit }
        }
    };
    let need = if spec.is_required() { "must be given" } else { "has a default" };
    let meaning = if spec.meaning.is_empty() { String::new() } else { format!("{}; ", spec.meaning) };
    format!("{meaning}{values}; {need}")
}

/// A model of the repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IndexEntry {
    /// The model.
    pub name: String,
    /// Its version.
    pub version: &'static str,
    /// Whether it is served.
    pub state: State,
    /// Why it is not served.
    pub reason: String,
}

/// Whether a model is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum State {
    /// It is.
    Ready,
    /// It is not: it failed to load, was unloaded, or was never asked for.
    Unavailable,
    /// It is about to be.
    Loading,
    /// It is about not to be.
    Unloading,
}

impl State {
    /// The protocol's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "READY",
            Self::Unavailable => "UNAVAILABLE",
            Self::Loading => "LOADING",
            Self::Unloading => "UNLOADING",
        }
    }
}

/// The body of a request for the index.
#[derive(Debug, Default, Deserialize)]
pub struct IndexRequest {
    /// Whether only models that are served are wanted.
    #[serde(default)]
    pub ready: bool,
}

/// The body of a request to load or unload a model.
#[derive(Debug, Default, Deserialize)]
pub struct RepositoryRequest {
    /// What is to be done otherwise than usual.
    #[serde(default)]
    pub parameters: BTreeMap<String, serde_json::Value>,
}

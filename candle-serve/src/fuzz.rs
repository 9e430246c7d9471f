//! Any bytes as a request for an inference, without sockets: for fuzzers, and for the tests that run their seeds.

use crate::fault::Fault;
use crate::grpc;
use crate::inference::Inference;
use crate::proto::ModelInferRequest;
use crate::protocol::request::InferRequest;
use crate::shared_memory::Regions;
use bytes::Bytes;
use candle_models::Result;
use candle_models::candle_core::Device;
use candle_models::engine::{Engine, Model, Options};
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use prost::Message;
use std::sync::{Arc, LazyLock};

/// Most rows of a request.
const ROWS: usize = 4;

/// A model with an input of each kind that is never stepped.
struct Unstepped(Signature);

impl Recurrent for Unstepped {
    fn signature(&self) -> &Signature {
        &self.0
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn unroll(&self, _: &NamedTensors, _: &[bool], _: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        unreachable!("nobody steps it")
    }
}

impl Model for Unstepped {
    fn family(&self) -> &'static str {
        "unstepped"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

struct Target {
    signature: Signature,
    engine: Engine,
    regions: Regions,
}

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let signature = Signature {
        inputs: vec![
            TensorSpec::f32("x", &[2]),
            TensorSpec::f32("bounded", &[1, 3]).within(-1.0..1.0).or_f32(&[0.0; 3]),
            TensorSpec::u32("ids", &[2]).below(&[5, 7]).or_u32(&[0, 0]),
        ],
        outputs: vec![TensorSpec::f32("y", &[3]), TensorSpec::u32("best", &[])],
        state: vec![TensorSpec::f32("h", &[1])],
    };
    let options = Options { sessions: ROWS, max_batch: ROWS, ..Options::default() };
    let engine = Engine::start(Arc::new(Unstepped(signature.clone())), &options);
    Target { signature, engine: engine.unwrap_or_else(|error| panic!("{error}")), regions: Regions::new(true) }
});

/// A body of `POST .../infer`: its first two bytes are the length of the JSON in front of binary values, 65535 that there are none.
pub fn http(bytes: &[u8]) {
    let Some((length, body)) = bytes.split_first_chunk::<2>() else { return };
    let header = Some(usize::from(u16::from_le_bytes(*length))).filter(|length| *length < usize::from(u16::MAX));
    let Target { signature, regions, .. } = &*TARGET;
    let body = Bytes::copy_from_slice(body);
    check(match header {
        Some(0) => Inference::bare(signature, None, body, None),
        _ => InferRequest::parse(&body, header, None).and_then(|request| Inference::new((signature, ROWS), regions, None, &request)),
    });
}

/// A message of `ModelInfer`.
pub fn grpc(bytes: &[u8]) {
    let Ok(message) = ModelInferRequest::decode(bytes) else { return };
    let Target { signature, regions, .. } = &*TARGET;
    check(grpc::read(&message).and_then(|request| Inference::new((signature, ROWS), regions, None, &request)));
}

/// What was read is what an engine can be asked; a fault is told in one line that is not long.
fn check(read: std::result::Result<Inference, Fault>) {
    let Target { signature, engine, .. } = &*TARGET;
    match read {
        Ok(inference) => {
            assert!((1..=ROWS).contains(&inference.rows));
            assert!(inference.sequences.is_empty() || inference.sequences.len() == inference.rows);
            assert!(inference.outputs.iter().all(|wanted| wanted.index < signature.outputs.len()));
            for row in 0..inference.rows {
                let mut session = engine.open().unwrap_or_else(|error| panic!("{error}"));
                inference.fill(signature, row, &mut session).unwrap_or_else(|fault| panic!("{fault}"));
            }
        }
        Err(fault) => {
            assert!(!fault.message.contains(char::is_control), "{:?}", fault.message);
            assert!(fault.message.len() < 2000, "{}", fault.message.len());
        }
    }
}

//! Requests of every kind, whole, cut off at each byte and damaged: what fuzzers begin with (`fuzz/`), in a form that takes a moment.

use bytes::Bytes;
use candle_serve::fuzz;
use candle_serve::proto::infer_parameter::ParameterChoice::{BoolParam, Int64Param, StringParam, Uint64Param};
use candle_serve::proto::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use candle_serve::proto::{InferTensorContents, ModelInferRequest};
use prost::Message;
use serde_json::json;
use std::path::PathBuf;

use crate::grpc::{input, parameter};

fn http_seeds() -> Vec<Vec<u8>> {
    let x = json!({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.5, -1e30]});
    let raw = |name: &str, datatype: &str, shape: &[usize], size: usize| json!({"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}});
    let plain = [
        json!({"inputs": [x]}),
        json!({"id": "an id", "parameters": {"sequence_id": "a", "sequence_start": true, "timeout": 5, "binary_data_output": true}, "inputs": [x]}),
        json!({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4.5]]},
            {"name": "bounded", "shape": [2, 1, 3], "datatype": "FP32", "data": [[[0, 0.5, -1]], [[0, 0, 0.99]]]},
            {"name": "ids", "shape": [2, 2], "datatype": "UINT32", "data": [4, 6, 0, 0]},
            {"name": "__sequence_id", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]},
            {"name": "__sequence_end", "shape": [2], "datatype": "BOOL", "data": [true, false]}],
            "outputs": [{"name": "best"}, {"name": "y", "parameters": {"classification": 2, "binary_data": true}}]}),
        json!({"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32",
            "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 8, "shared_memory_offset": 16}}]}),
    ];
    let mut seeds: Vec<Vec<u8>> = plain.iter().map(|json| [&[0xff; 2], json.to_string().as_bytes()].concat()).collect();
    let head =
        json!({"inputs": [raw("x", "FP32", &[2, 2], 16), raw("ids", "UINT32", &[2, 2], 16), raw("__sequence_id", "UINT64", &[2], 16),
        raw("__sequence_start", "BOOL", &[2], 2)]})
        .to_string();
    let floats = [0.5f32, 1.0, -2.0, 3.0].iter().flat_map(|x| x.to_le_bytes());
    let tail = floats.chain([4u32, 6, 1, 0].iter().flat_map(|id| id.to_le_bytes())).chain([7u64, 8].iter().flat_map(|id| id.to_le_bytes()));
    seeds.push([&(head.len() as u16).to_le_bytes()[..], head.as_bytes(), &tail.chain([1, 0]).collect::<Vec<u8>>()].concat());
    seeds.push([&[0; 2][..], &0.5f32.to_le_bytes(), &1.5f32.to_le_bytes()].concat());
    seeds
}

fn grpc_seeds() -> Vec<Vec<u8>> {
    let output = |name: &str, classes: i64| InferRequestedOutputTensor {
        name: name.to_owned(),
        parameters: [("classification".to_owned(), parameter(Int64Param(classes)))].into(),
    };
    let typed = |input: InferInputTensor, contents: InferTensorContents| InferInputTensor { contents: Some(contents), ..input };
    let parameters = [("sequence_id", Uint64Param(7)), ("sequence_start", BoolParam(true)), ("timeout", Int64Param(5))];
    let raw = ModelInferRequest {
        model_name: "m".to_owned(),
        id: "an id".to_owned(),
        parameters: parameters.map(|(name, choice)| (name.to_owned(), parameter(choice))).into(),
        inputs: vec![input("x", "FP32", &[1, 2]), input("ids", "UINT32", &[1, 2])],
        outputs: vec![output("y", 2), output("best", 0)],
        raw_input_contents: vec![Bytes::from_static(&[0; 8]), Bytes::from_static(&[1; 8])],
        ..ModelInferRequest::default()
    };
    let values = InferTensorContents { fp32_contents: vec![1.0, 2.0, 3.0, 4.0], ..InferTensorContents::default() };
    let names = InferTensorContents { bytes_contents: vec!["a".into(), "b".into()], ..InferTensorContents::default() };
    let flags = InferTensorContents { bool_contents: vec![true, false], ..InferTensorContents::default() };
    let many = ModelInferRequest {
        inputs: vec![
            typed(input("x", "FP32", &[2, 2]), values),
            typed(input("__sequence_id", "BYTES", &[2]), names),
            typed(input("__sequence_start", "BOOL", &[2]), flags),
        ],
        ..ModelInferRequest::default()
    };
    let region = [("shared_memory_region", StringParam("r".to_owned())), ("shared_memory_byte_size", Int64Param(8))];
    let mut shared = input("x", "FP32", &[1, 2]);
    shared.parameters = region.map(|(name, choice)| (name.to_owned(), parameter(choice))).into();
    let shared = ModelInferRequest { inputs: vec![shared], ..ModelInferRequest::default() };
    [raw, many, shared].iter().map(Message::encode_to_vec).collect()
}

/// Every prefix, every byte replaced by some others, and pairs of parts from two seeds.
fn damaged(seeds: &[Vec<u8>], read: fn(&[u8])) {
    for seed in seeds {
        (0..=seed.len()).for_each(|length| read(&seed[..length]));
        let mut damaged = seed.clone();
        for at in 0..seed.len() {
            for byte in [0, 0xff, b'"', b'9', b'-', seed[at] ^ 1, seed[at] ^ 0x80] {
                damaged[at] = byte;
                read(&damaged);
            }
            damaged[at] = seed[at];
        }
        for other in seeds {
            (0..seed.len().min(other.len())).step_by(3).for_each(|at| read(&[&seed[..at], &other[at..]].concat()));
        }
    }
}

#[test]
fn requests_that_are_damaged_anywhere_are_read_or_refused() {
    let (http, grpc) = (http_seeds(), grpc_seeds());
    // Where a fuzzer is to begin.
    if let Some(folder) = std::env::var_os("CANDLE_FUZZ_SEEDS").map(PathBuf::from) {
        for (name, seeds) in [("http_infer", &http), ("grpc_infer", &grpc)] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            seeds.iter().enumerate().for_each(|(at, seed)| std::fs::write(folder.join(name).join(at.to_string()), seed).unwrap());
        }
    }
    damaged(&http, fuzz::http);
    damaged(&grpc, fuzz::grpc);
}

//! Calls that are answered: every method, with the shipped bundles through their signatures and with a model that adds up.

use crate::bundles::{ROWS, Shipped, bytes, datatype};
use crate::client::{Running, SHIPPED, alone};
use crate::grpc::{Grpc, add, connect, floats, input, step};
use crate::sum;
use candle_models::prelude::*;
use candle_serve::proto::infer_parameter::ParameterChoice::{Int64Param, StringParam, Uint64Param};
use candle_serve::proto::model_config::SchedulingChoice;
use candle_serve::proto::*;
use serde_json::{Value, json};
use tonic::Code;

/// A request with values as they lie in memory.
fn raw(shipped: &Shipped, inputs: &[Tensor]) -> ModelInferRequest {
    let specs = &shipped.model.signature().inputs;
    let shape = |tensor: &Tensor| tensor.dims().iter().map(|n| *n as i64).collect::<Vec<_>>();
    ModelInferRequest {
        model_name: shipped.name.clone(),
        id: "a request".to_owned(),
        inputs: specs.iter().zip(inputs).map(|(spec, tensor)| input(&spec.name, datatype(spec), &shape(tensor))).collect(),
        raw_input_contents: inputs.iter().map(|tensor| bytes(tensor).into()).collect(),
        ..ModelInferRequest::default()
    }
}

/// The same with values in the fields of their datatypes.
fn typed(shipped: &Shipped, inputs: &[Tensor]) -> ModelInferRequest {
    let mut request = raw(shipped, inputs);
    request.raw_input_contents.clear();
    for (input, tensor) in request.inputs.iter_mut().zip(inputs) {
        let flat = tensor.flatten_all().unwrap();
        let mut contents = InferTensorContents::default();
        match tensor.dtype() {
            DType::U32 => contents.uint_contents = flat.to_vec1().unwrap(),
            _ => contents.fp32_contents = flat.to_vec1().unwrap(),
        }
        input.contents = Some(contents);
    }
    request
}

fn compare(client: &mut Grpc<'_>, shipped: &Shipped, rows: usize) {
    let inputs = shipped.draw(7, rows);
    let expected = shipped.expected(&inputs, rows);
    for request in [raw(shipped, &inputs), typed(shipped, &inputs)] {
        let answer = client.infer(request).unwrap();
        assert_eq!((&*answer.id, &*answer.model_name, &*answer.model_version), ("a request", &*shipped.name, "1"));
        for (spec, output) in shipped.model.signature().outputs.iter().zip(&answer.outputs) {
            let shape: Vec<i64> = [rows].iter().chain(&spec.shape).map(|n| *n as i64).collect();
            assert_eq!((&*output.name, &*output.datatype, &output.shape), (&*spec.name, datatype(spec), &shape));
            assert!(output.contents.is_none());
        }
        assert_eq!((answer.outputs.len(), answer.raw_output_contents.len()), (expected.len(), expected.len()));
        let found: Vec<Vec<u8>> = answer.raw_output_contents.iter().map(|bytes| bytes.to_vec()).collect();
        shipped.agree(&found, &expected, rows);
    }
}

#[test]
fn every_bundle_answers_over_grpc_as_its_engine_does() {
    let server = alone();
    let mut client = server.grpc();
    for shipped in Shipped::all() {
        compare(&mut client, shipped, ROWS);
        compare(&mut client, shipped, 1);
    }
}

#[test]
fn every_bundle_describes_itself_as_over_http() {
    let (mut http, mut grpc) = (SHIPPED.client(), SHIPPED.grpc());
    let Grpc { runtime, client } = &mut grpc;
    for Shipped { name, .. } in Shipped::all() {
        let (name, version) = (name.clone(), "1".to_owned());
        let request = ModelMetadataRequest { name: name.clone(), version };
        let found = runtime.block_on(client.model_metadata(request)).unwrap().into_inner();
        let tensor = |tensor: &model_metadata_response::TensorMetadata| json!({"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.shape});
        let tensors = |list: &[model_metadata_response::TensorMetadata]| list.iter().map(tensor).collect::<Vec<_>>();
        let (inputs, outputs) = (tensors(&found.inputs), tensors(&found.outputs));
        let metadata =
            json!({"name": found.name, "versions": found.versions, "platform": found.platform, "inputs": inputs, "outputs": outputs});
        assert_eq!(metadata, http.get(&format!("/v2/models/{name}")).ok().json());
        let request = ModelConfigRequest { name: name.clone(), ..Default::default() };
        let config = runtime.block_on(client.model_config(request)).unwrap().into_inner().config.unwrap();
        assert_eq!(as_json(&config), http.get(&format!("/v2/models/{name}/config")).ok().json());
    }
    let server = runtime.block_on(client.server_metadata(ServerMetadataRequest {})).unwrap().into_inner();
    let server = json!({"name": server.name, "version": server.version, "extensions": server.extensions});
    assert_eq!(server, http.get("/v2").ok().json());
    assert!(runtime.block_on(client.server_live(ServerLiveRequest {})).unwrap().into_inner().live);
    assert!(runtime.block_on(client.server_ready(ServerReadyRequest {})).unwrap().into_inner().ready);
    let mut ready = |name: &str, version: &str| {
        let request = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        runtime.block_on(client.model_ready(request)).unwrap().into_inner().ready
    };
    assert!(ready("policy-mlp", "") && ready("policy-mlp", "1"));
    assert!(!ready("policy-mlp", "2") && !ready("none", "") && !ready("", ""));
}

/// A configuration as HTTP has it.
fn as_json(config: &ModelConfig) -> Value {
    let data_type = |number: i32| DataType::try_from(number).unwrap().as_str_name();
    let input = |input: &ModelInput| {
        let data_type = data_type(input.data_type);
        json!({"name": input.name, "data_type": data_type, "dims": input.dims, "optional": input.optional})
    };
    let output = |output: &ModelOutput| json!({"name": output.name, "data_type": data_type(output.data_type), "dims": output.dims});
    let parameters: serde_json::Map<String, Value> =
        config.parameters.iter().map(|(name, text)| (name.clone(), json!({"string_value": text.string_value}))).collect();
    let mut json = json!({
        "name": config.name, "platform": config.platform, "backend": config.backend, "max_batch_size": config.max_batch_size,
        "input": config.input.iter().map(input).collect::<Vec<_>>(), "output": config.output.iter().map(output).collect::<Vec<_>>(),
        "parameters": parameters,
    });
    if let Some(SchedulingChoice::SequenceBatching(sequences)) = &config.scheduling_choice {
        let Some(model_sequence_batching::StrategyChoice::Oldest(oldest)) = &sequences.strategy_choice else { panic!("no strategy") };
        json["sequence_batching"] = json!({
            "max_sequence_idle_microseconds": sequences.max_sequence_idle_microseconds,
            "oldest": {"max_candidate_sequences": oldest.max_candidate_sequences},
        });
    }
    json
}

#[test]
fn outputs_are_chosen_one_by_one_over_grpc() {
    let server = alone();
    let shipped = Shipped::all().iter().find(|shipped| shipped.name == "policy-mlp").unwrap();
    let inputs = shipped.draw(5, 1);
    let expected = shipped.expected(&inputs, 1);
    let mut request = raw(shipped, &inputs);
    let wanted = ["logits", "action"];
    request.outputs =
        wanted.map(|name| model_infer_request::InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() }).into();
    let answer = server.grpc().infer(request).unwrap();
    let place = |name: &str| shipped.model.signature().outputs.iter().position(|spec| spec.name == name).unwrap();
    assert_eq!(answer.outputs.iter().map(|output| &*output.name).collect::<Vec<_>>(), wanted);
    assert_eq!(answer.raw_output_contents, wanted.map(|name| expected[place(name)].clone()));
}

#[test]
fn messages_are_taken_compressed() {
    let server = alone();
    let shipped = Shipped::all().iter().find(|shipped| shipped.name == "policy-mamba").unwrap();
    let inputs = shipped.draw(5, 1);
    for encoding in [tonic::codec::CompressionEncoding::Gzip, tonic::codec::CompressionEncoding::Deflate] {
        let mut client = server.grpc();
        client.client = client.client.send_compressed(encoding);
        let answer = client.infer(raw(shipped, &inputs)).unwrap();
        assert_eq!(answer.raw_output_contents, shipped.expected(&inputs, 1));
    }
}

fn server(gate: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", gate);
    (Running::new(sum::options(folder.path()), sum::families()), folder)
}

#[test]
fn a_sequence_goes_on_whatever_it_is_asked_by() {
    let (server, _folder) = server("whatever");
    let (mut grpc, mut http) = (server.grpc(), server.client());
    let mut sum = |request| grpc.infer(request).map(|answer| floats(&answer));
    assert_eq!(sum(step(1.0, Uint64Param(7), true)).unwrap(), [1.0]);
    assert_eq!(sum(step(2.0, Int64Param(7), false)).unwrap(), [3.0]);
    let body = json!({
        "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [4]}], "parameters": {"sequence_id": 7},
    });
    assert_eq!(http.post("/v2/models/m/infer", &body).ok().json()["outputs"][0]["data"], json!([7.0]));
    let mut beside = tonic::Request::new(add(8.0));
    beside.metadata_mut().insert("x-sequence-id", "7".parse().unwrap());
    let answer = server.runtime.block_on(server.grpc().client.model_infer(beside)).unwrap();
    assert_eq!(floats(answer.get_ref()), [15.0]);
    assert_eq!(sum(step(0.0, StringParam("7".to_owned()), false)).unwrap(), [15.0]);
    assert_eq!(sum(step(1.0, StringParam("seven".to_owned()), true)).unwrap(), [1.0]);
    // 0 and an empty text are none; so are requests without one.
    for none in [Int64Param(0), StringParam(String::new())] {
        assert_eq!(sum(step(5.0, none, false)).unwrap(), [5.0]);
    }
    assert_eq!(sum(add(5.0)).unwrap(), [5.0]);
    // An input that is left out has its default.
    let mut empty = step(0.0, Int64Param(7), false);
    (empty.inputs, empty.raw_input_contents) = (Vec::new(), Vec::new());
    assert_eq!(sum(empty).unwrap(), [15.5]);
    let mut last = step(1.0, Int64Param(7), false);
    last.parameters.insert("sequence_end".to_owned(), crate::grpc::parameter(infer_parameter::ParameterChoice::BoolParam(true)));
    assert_eq!(sum(last).unwrap(), [16.5]);
    let over = sum(step(1.0, Int64Param(7), false)).unwrap_err();
    let message = "inference request for sequence 7 to model 'm' must specify the START flag on the first request of the sequence";
    assert_eq!((over.code(), over.message()), (Code::InvalidArgument, message));
}

/// A request of two rows, each of another sequence.
pub fn both(xs: [f32; 2], ids: [&str; 2], start: bool) -> ModelInferRequest {
    let contents = |contents| Some(contents);
    let mut x = input("x", "FP32", &[2, 1]);
    x.contents = contents(InferTensorContents { fp32_contents: xs.to_vec(), ..Default::default() });
    let mut id = input("__sequence_id", "BYTES", &[2]);
    id.contents =
        contents(InferTensorContents { bytes_contents: ids.map(|id| id.as_bytes().to_vec().into()).into(), ..Default::default() });
    let mut starts = input("__sequence_start", "BOOL", &[2]);
    starts.contents = contents(InferTensorContents { bool_contents: vec![start; 2], ..Default::default() });
    ModelInferRequest { model_name: "m".to_owned(), inputs: vec![x, id, starts], ..Default::default() }
}

#[test]
fn several_sequences_are_stepped_by_one_call() {
    let (server, _folder) = server("several");
    let mut client = server.grpc();
    assert_eq!(floats(&client.infer(both([1.0, 2.0], ["a", "12"], true)).unwrap()), [1.0, 2.0]);
    assert_eq!(floats(&client.infer(both([10.0, 20.0], ["12", "a"], false)).unwrap()), [12.0, 21.0]);
    assert_eq!(floats(&client.infer(step(100.0, Int64Param(12), false)).unwrap()), [112.0]);
    let mut numbers = both([1.0, 1.0], ["", ""], false);
    numbers.inputs[1].datatype = "UINT64".to_owned();
    numbers.inputs[1].contents = Some(InferTensorContents { uint64_contents: vec![12, 13], ..Default::default() });
    assert_eq!(client.infer(numbers).unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(floats(&client.infer(step(0.0, Int64Param(12), false)).unwrap()), [112.0]);
}

#[test]
fn models_are_loaded_unloaded_and_counted_over_grpc() {
    let (server, folder) = server("counted");
    sum::save(folder.path(), "later", "counted");
    let mut http = server.client();
    let mut grpc = server.grpc();
    (1..=3u8).for_each(|x| drop(grpc.infer(add(x.into())).unwrap()));
    assert!(
        grpc.infer(ModelInferRequest { model_name: "m".to_owned(), inputs: vec![input("y", "FP32", &[1])], ..Default::default() }).is_err()
    );
    let Grpc { runtime, client } = &mut grpc;
    let statistics = |client: &mut grpc_inference_service_client::GrpcInferenceServiceClient<_>, name: &str| {
        let request = ModelStatisticsRequest { name: name.to_owned(), ..Default::default() };
        runtime.block_on(client.model_statistics(request)).unwrap().into_inner().model_stats
    };
    let [of_m] = &statistics(client, "m")[..] else { panic!("expected one model") };
    let expected = http.get("/v2/models/m/stats").ok().json()["model_stats"][0].clone();
    let duration = |duration: &Option<StatisticDuration>| duration.map(|d| json!({"count": d.count, "ns": d.ns})).unwrap();
    let stats = of_m.inference_stats.as_ref().unwrap();
    for (name, found) in [
        ("success", &stats.success),
        ("fail", &stats.fail),
        ("queue", &stats.queue),
        ("compute_input", &stats.compute_input),
        ("compute_infer", &stats.compute_infer),
        ("compute_output", &stats.compute_output),
        ("cache_hit", &stats.cache_hit),
        ("cache_miss", &stats.cache_miss),
    ] {
        assert_eq!(duration(found), expected["inference_stats"][name], "{name}");
    }
    assert_eq!((stats.success.unwrap().count, stats.fail.unwrap().count), (3, 1));
    assert_eq!(
        (json!(of_m.last_inference), json!(of_m.execution_count)),
        (expected["last_inference"].clone(), expected["execution_count"].clone())
    );
    assert_eq!((of_m.inference_count, of_m.batch_stats[0].batch_size), (3, 1));
    assert_eq!(duration(&of_m.batch_stats[0].compute_infer), expected["batch_stats"][0]["compute_infer"]);
    let index = |client: &mut grpc_inference_service_client::GrpcInferenceServiceClient<_>, ready| {
        let request = RepositoryIndexRequest { ready, ..Default::default() };
        let models = runtime.block_on(client.repository_index(request)).unwrap().into_inner().models;
        models.into_iter().map(|model| [model.name, model.version, model.state, model.reason]).collect::<Vec<_>>()
    };
    let (m, later) = (["m", "1", "READY", ""], ["later", "1", "UNAVAILABLE", "not loaded"]);
    assert_eq!(index(client, false), [later, m]);
    assert_eq!(index(client, true), [m]);
    let load = |name: &str| RepositoryModelLoadRequest { model_name: name.to_owned(), ..Default::default() };
    runtime.block_on(client.repository_model_load(load("later"))).unwrap();
    assert_eq!(statistics(client, "").len(), 2);
    let unload = RepositoryModelUnloadRequest { model_name: "m".to_owned(), ..Default::default() };
    runtime.block_on(client.repository_model_unload(unload)).unwrap();
    assert_eq!(index(client, false), [["later", "1", "READY", ""], ["m", "1", "UNAVAILABLE", "unloaded"]]);
    let status = runtime.block_on(client.model_infer(add(1.0))).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "model 'm' is not loaded: unloaded"));
    let status = runtime.block_on(client.repository_model_load(load("none"))).unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "unknown model: 'none' is not found"));
    std::fs::write(folder.path().join("m/config.json"), "{").unwrap();
    let status = runtime.block_on(client.repository_model_load(load("m"))).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().starts_with("failed to load 'm': "), "{}", status.message());
}

#[test]
fn a_connection_can_have_more_calls_than_run_at_the_same_time() {
    let (server, _folder) = server("more calls");
    let client = server.grpc();
    let calls: Vec<_> = (1..=400).map(|x| client.spawn(add(x as f32))).collect();
    for (x, call) in (1..=400).zip(calls) {
        assert_eq!(floats(&server.runtime.block_on(call).unwrap().unwrap()), [x as f32]);
    }
}

#[test]
fn calls_come_over_a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    sum::save(folder.path(), "m", "grpc over unix");
    let mut options = sum::options(folder.path().join("m"));
    options.grpc = vec![format!("unix:{}", path.display()).parse().unwrap()];
    let mut running = Running::new(options, sum::families());
    let channel = running.runtime.block_on(connect(format!("unix://{}", path.display())));
    let mut client = grpc_inference_service_client::GrpcInferenceServiceClient::new(channel);
    let answer = running.runtime.block_on(client.model_infer(add(1.0))).unwrap();
    assert_eq!(floats(answer.get_ref()), [1.0]);
    let server = running.server.take().unwrap();
    assert!(running.runtime.block_on(server.stop()));
    assert!(!path.exists());
}

//! Calls that are wrong: each is answered with its code and with words that say what is wrong, and nothing else goes wrong with it.

use crate::client::{Client, PATIENCE, Running, SHIPPED};
use crate::grpc::{INFER, add, call, floats, frame, input, parameter, step};
use crate::grpc_streams::Stream;
use crate::sum::{self, FAILS};
use bytes::Bytes;
use candle_models::random::Random;
use candle_serve::proto::infer_parameter::ParameterChoice::{DoubleParam, Int64Param, StringParam};
use candle_serve::proto::model_infer_request::InferRequestedOutputTensor;
use candle_serve::proto::*;
use flate2::Compression;
use prost::Message;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use tonic::Code;

fn valid() -> ModelInferRequest {
    ModelInferRequest {
        model_name: "policy-mlp".to_owned(),
        inputs: vec![input("features", "FP32", &[1, 288]), input("ids", "UINT32", &[1, 6])],
        raw_input_contents: vec![Bytes::from(vec![0; 4 * 288]), Bytes::from([14u32; 6].map(u32::to_le_bytes).concat())],
        ..ModelInferRequest::default()
    }
}

/// The valid request with something else in it.
fn but(change: impl FnOnce(&mut ModelInferRequest)) -> ModelInferRequest {
    let mut request = valid();
    change(&mut request);
    request
}

/// The valid request whose second input has its values in the message.
fn typed(contents: InferTensorContents) -> ModelInferRequest {
    but(|request| {
        request.raw_input_contents.clear();
        request.inputs[0].contents = Some(InferTensorContents { fp32_contents: vec![0.0; 288], ..Default::default() });
        request.inputs[1].contents = Some(contents);
    })
}

fn uint(values: &[u32]) -> InferTensorContents {
    InferTensorContents { uint_contents: values.to_vec(), ..Default::default() }
}

fn with_parameter(name: &str, choice: infer_parameter::ParameterChoice) -> ModelInferRequest {
    but(|request| drop(request.parameters.insert(name.to_owned(), parameter(choice))))
}

#[test]
fn a_wrong_call_is_told_what_is_wrong() {
    let mut client = SHIPPED.grpc();
    client.infer(valid()).unwrap();
    client.infer(typed(uint(&[14; 6]))).unwrap();
    let unknown = || InferRequestedOutputTensor { name: "logit".to_owned(), ..Default::default() };
    let cases = [
        (but(|r| drop(r.raw_input_contents.pop())), "raw_input_contents: expected one for each of 2 inputs, found 1"),
        (but(|r| r.raw_input_contents.push(Bytes::new())), "raw_input_contents: expected one for each of 2 inputs, found 3"),
        (but(|r| r.raw_input_contents.clear()), "tensor features: expected contents or raw_input_contents, found neither"),
        (but(|r| r.inputs[1].contents = Some(uint(&[14; 6]))), "tensor ids: expected either contents or raw_input_contents, found both"),
        (but(|r| r.inputs[0].shape = vec![-1, 288]), "tensor features: expected sizes from 0 in its shape, found -1"),
        (but(|r| r.inputs[0].shape = vec![1, i64::MIN]), "tensor features: expected sizes from 0 in its shape, found -9223372036854775808"),
        (but(|r| r.inputs[0].shape = vec![288]), "tensor features: expected shape [-1, 288], found [288]"),
        (but(|r| r.inputs[0].shape = vec![]), "tensor features: expected shape [-1, 288], found []"),
        (but(|r| r.inputs[0].shape = vec![i64::MAX, 288]), "tensor features: expected a batch from 1 to 32, found 9223372036854775807"),
        (but(|r| r.inputs[0].shape = vec![1; 100_000]), "tensor features: expected shape [-1, 288], found [1, 1, 1, 1, 1, 1, 1, 1, ...]"),
        (but(|r| r.inputs[0].shape = vec![0, 288]), "tensor features: expected a batch from 1 to 32, found 0"),
        (but(|r| r.inputs[1].shape = vec![2, 6]), "tensor ids: expected a batch of 1, as of the tensors before it, found 2"),
        (but(|r| r.raw_input_contents[1] = Bytes::from_static(&[0; 23])), "tensor ids: expected 24 bytes, found 23"),
        (but(|r| r.inputs[1].datatype = "INT64".to_owned()), "tensor ids: expected datatype UINT32, found INT64"),
        (but(|r| r.inputs[1].name = "features".to_owned()), "input features: expected once, found twice"),
        (typed(uint(&[14; 5])), "tensor ids: expected 24 bytes, found 20"),
        (typed(InferTensorContents::default()), "tensor ids: expected 24 bytes, found 0"),
        (
            typed(InferTensorContents { int_contents: vec![14; 6], ..Default::default() }),
            "tensor ids: expected UINT32 in uint_contents, found values in int_contents",
        ),
        (
            typed(InferTensorContents { bool_contents: vec![true], ..uint(&[14; 6]) }),
            "tensor ids: expected UINT32 in uint_contents, found values in bool_contents",
        ),
        (but(|r| r.outputs = vec![unknown(), unknown()]), "output logit: expected once, found twice"),
        (with_parameter("timeout", Int64Param(-1)), "timeout: expected a number from 0 to 2^64 - 1, found -1"),
        (with_parameter("timeout", StringParam("soon".to_owned())), "timeout: expected a number from 0 to 2^64 - 1, found the text soon"),
        (with_parameter("sequence_start", Int64Param(1)), "sequence_start: expected true or false, found 1"),
        (with_parameter("sequence_id", Int64Param(-7)), "sequence_id: expected a number from 0 to 2^64 - 1 or a text, found -7"),
        (with_parameter("sequence_id", DoubleParam(1.5)), "sequence_id: expected a number from 0 to 2^64 - 1 or a text, found 1.5"),
        (with_parameter("sequence_id", StringParam("x".repeat(129))), "sequence_id: expected at most 128 bytes, found 129"),
    ];
    for (request, message) in cases {
        let status = client.infer(request).unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    for (start, request) in [
        ("tensor logit: expected an output of the model, found only [", but(|r| r.outputs = vec![unknown()])),
        ("tensor feature: expected an input of the model, found only [", but(|r| r.inputs[0].name = "feature".to_owned())),
        ("tensor ids: datatype: expected one of [BOOL, ", but(|r| r.inputs[1].datatype = "U32".to_owned())),
        ("tensor ids: expected an index up to ", typed(uint(&[999_999, 14, 14, 14, 14, 14]))),
    ] {
        let status = client.infer(request).unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(start), "{}", status.message());
    }
    client.infer(valid()).unwrap();
}

#[test]
fn every_kind_of_fault_has_its_code() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "codes");
    let mut options = sum::options(folder.path());
    options.engine.sessions = 2;
    let server = Running::new(options, sum::families());
    let mut client = server.grpc();
    let mut refused = |request| {
        let status = client.infer(request).unwrap_err();
        (
            status.code(),
            status.message().to_owned(),
            status.metadata().get("grpc-retry-pushback-ms").map(|ms| ms.to_str().unwrap().to_owned()),
        )
    };
    let told = |code, message: &str| (code, message.to_owned(), None);
    let named =
        |model: &str, version: &str| ModelInferRequest { model_name: model.to_owned(), model_version: version.to_owned(), ..add(1.0) };
    assert_eq!(refused(named("none", "")), told(Code::NotFound, "unknown model: 'none' is not found"));
    assert_eq!(refused(named("m", "2")), told(Code::NotFound, "model 'm' has version 1, and no version 2"));
    assert_eq!(refused(named("../m", "")), told(Code::NotFound, "unknown model: '../m' is not found"));
    assert_eq!(refused(add(FAILS)), told(Code::Internal, "the model failed: asked to fail"));
    let mut shared = add(1.0);
    shared.raw_input_contents.clear();
    let range = [
        ("shared_memory_region".to_owned(), parameter(StringParam("r".to_owned()))),
        ("shared_memory_byte_size".to_owned(), parameter(Int64Param(4))),
    ];
    shared.inputs[0].parameters.extend(range);
    let off = "shared memory is not allowed: the server was started without --allow-shared-memory";
    assert_eq!(refused(shared), told(Code::Unimplemented, off));
    server.grpc().infer(step(1.0, Int64Param(1), true)).unwrap();
    assert_eq!(refused(step(FAILS, Int64Param(1), false)).0, Code::Internal);
    let lost = "the state was lost in a failed step: reset or restore the session";
    assert_eq!(refused(step(1.0, Int64Param(1), false)), told(Code::FailedPrecondition, lost));
    server.grpc().infer(step(1.0, Int64Param(2), true)).unwrap();
    let full = (Code::ResourceExhausted, "all 2 sessions of the engine are open".to_owned(), Some("1000".to_owned()));
    assert_eq!(refused(step(1.0, Int64Param(3), true)), full);
}

#[test]
fn methods_and_services_that_are_missing_say_so() {
    for (path, message) in [
        (
            "/inference.GRPCInferenceService/SystemSharedMemoryStatus",
            "shared memory is not allowed: the server was started without --allow-shared-memory",
        ),
        ("/inference.GRPCInferenceService/CudaSharedMemoryRegister", "shared memory on a GPU is not supported"),
        ("/inference.GRPCInferenceService/CudaSharedMemoryUnregister", "shared memory on a GPU is not supported"),
        ("/inference.GRPCInferenceService/None", ""),
        ("/other.Service/Method", "there is no service for /other.Service/Method"),
        ("/", "there is no service for /"),
    ] {
        assert_eq!(call(&SHIPPED, path, &[], frame(&[])), (Code::Unimplemented, message.to_owned()), "{path}");
    }
    let config = [("config".to_owned(), ModelRepositoryParameter::default())].into();
    let load = RepositoryModelLoadRequest { model_name: "policy-mlp".to_owned(), parameters: config, ..Default::default() };
    let path = "/inference.GRPCInferenceService/RepositoryModelLoad";
    let message = "the parameter config of a load is not supported".to_owned();
    assert_eq!(call(&SHIPPED, path, &[], frame(&load.encode_to_vec())), (Code::Unimplemented, message));
    let load = RepositoryModelLoadRequest { repository_name: "other".to_owned(), ..Default::default() };
    let message = "repository_name is not supported".to_owned();
    assert_eq!(call(&SHIPPED, path, &[], frame(&load.encode_to_vec())), (Code::Unimplemented, message));
}

#[test]
fn settings_of_the_log_are_checked() {
    use log_settings_request::SettingValue;
    use log_settings_request::setting_value::ParameterChoice::{BoolParam, StringParam, Uint32Param};
    let mut client = SHIPPED.grpc();
    for (name, choice, message) in [
        ("log_info", Some(Uint32Param(1)), "log_info: expected true or false, found a number"),
        ("log_verbose_level", Some(BoolParam(true)), "log_verbose_level: expected a number from 0 to 2^32 - 1, found true or false"),
        ("log_format", None, "log_format: expected a text, found nothing"),
        ("log_color", Some(BoolParam(true)), "there is no setting log_color"),
        (
            "log_file",
            Some(StringParam("/tmp/log".to_owned())),
            "log_file: expected \"\", which is set where the server is started, found \"/tmp/log\"",
        ),
    ] {
        let settings = [(name.to_owned(), SettingValue { parameter_choice: choice })].into();
        let status = client.runtime.block_on(client.client.log_settings(LogSettingsRequest { settings })).unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
}

#[test]
fn what_is_no_message_is_refused() {
    for body in [frame(b"\xff"), frame(&[0x0a, 0xff]), frame(&[0x0a, 2, 0xc3, 0x28]), frame(&vec![0x0b; 1000])] {
        let (code, message) = call(&SHIPPED, INFER, &[], body);
        assert_eq!(code, Code::InvalidArgument, "{message}");
        assert!(message.starts_with("request: failed to decode Protobuf message"), "{message}");
    }
    // Frames that are none are the fault of the client's library.
    let long = [&[0, 0, 0, 0, 9][..], b"short"].concat();
    for body in [Vec::new(), vec![0, 0], long, [&[7][..], &frame(b"")].concat(), [&[1][..], &frame(b"")[1..]].concat()] {
        let (code, message) = call(&SHIPPED, INFER, &[], body);
        assert!(matches!(code, Code::Internal | Code::Unimplemented), "{code:?} {message}");
    }
    for timeout in ["", "1", "S", "1s", "123456789S", "-1S"] {
        let (code, message) = call(&SHIPPED, INFER, &[("grpc-timeout", timeout)], frame(&valid().encode_to_vec()));
        let expected = format!("grpc-timeout: expected up to 8 digits and one of H, M, S, m, u, n, found {timeout}");
        assert_eq!((code, message), (Code::InvalidArgument, expected));
    }
    assert_eq!(call(&SHIPPED, INFER, &[("grpc-encoding", "br")], frame(b"")).0, Code::Unimplemented);
    assert_eq!(call(&SHIPPED, INFER, &[], frame(&valid().encode_to_vec())).0, Code::Ok);
}

#[test]
fn large_and_bloated_messages_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "large messages");
    let mut options = sum::options(folder.path());
    options.limits.body = 10_000;
    let server = Running::new(options, sum::families());
    let message = "expected a message of at most 10000 bytes, found more".to_owned();
    assert_eq!(call(&server, INFER, &[], frame(&vec![0; 10_001])), (Code::ResourceExhausted, message.clone()));
    // One that says that it is large has sent nothing yet.
    assert_eq!(call(&server, INFER, &[], vec![0, 0xff, 0xff, 0xff, 0xff]), (Code::ResourceExhausted, message));
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&vec![0; 1 << 20]).unwrap();
    let bomb = encoder.finish().unwrap();
    assert!(bomb.len() < 10_000);
    let body = [&[1][..], &frame(&bomb)[1..]].concat();
    assert_eq!(call(&server, INFER, &[("grpc-encoding", "gzip")], body).0, Code::ResourceExhausted);
    assert_eq!(floats(&server.grpc().infer(add(1.0)).unwrap()), [1.0]);
    // What was asked before it over a stream is answered.
    let mut stream = Stream::open(&server, &[]);
    stream.send(add(1.0));
    stream.send(ModelInferRequest { id: "x".repeat(10_001), ..add(1.0) });
    assert_eq!(stream.values(), [1.0]);
    let status = stream.receive().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, "expected a message of at most 10000 bytes, found more"));
}

#[test]
fn damaged_messages_harm_nobody() {
    let right = valid().encode_to_vec();
    let mut answered = 0;
    for round in 0..300u64 {
        let mut message = right.clone();
        let random = Random::new(round);
        let draw = |index: u64, below: usize| random.below(index, below as u32) as usize;
        for change in 0..1 + draw(0, 4) as u64 {
            let at = draw(10 + change, message.len());
            match draw(20 + change, 3) {
                0 => message[at] = draw(30 + change, 256) as u8,
                1 => message.truncate(at.max(1)),
                _ => message.insert(at, draw(40 + change, 256) as u8),
            }
        }
        let (code, text) = call(&SHIPPED, INFER, &[], frame(&message));
        assert!(matches!(code, Code::Ok | Code::InvalidArgument | Code::NotFound | Code::Unimplemented), "{code:?} {text}");
        answered += usize::from(code == Code::Ok);
    }
    assert!(answered > 0);
    SHIPPED.grpc().infer(valid()).unwrap();
}

#[test]
fn silent_clients_are_let_go() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "silent");
    let mut options = sum::options(folder.path());
    options.limits.idle_time = Duration::from_millis(100);
    options.limits.connections = 2;
    let server = Running::new(options, sum::families());
    // One that says nothing, and one that speaks something else.
    let connect = || TcpStream::connect(server.grpc_address()).unwrap();
    let (mut silent, mut other) = (connect(), connect());
    other.write_all(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
    for stream in [&mut silent, &mut other] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut rest = Vec::new();
        // It is closed, whether by a last word or a reset.
        let _ = stream.read_to_end(&mut rest);
    }
    // Connections of HTTP have the same room, and the same time.
    let since = Instant::now();
    let answered = || {
        let mut http = Client::connect(server.address()).patient();
        http.send("GET", "/v2/health/live", &[], b"");
        http.try_receive()
    };
    while answered().is_none() {
        assert!(since.elapsed() < PATIENCE);
    }
}

#[test]
fn a_message_that_does_not_come_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", "does not come");
    let mut options = sum::options(folder.path());
    options.limits.body_time = Duration::from_millis(20);
    let server = Running::new(options, sum::families());
    let status = server.runtime.block_on(async {
        let mut grpc = tonic::client::Grpc::new(server.connect().await);
        grpc.ready().await.unwrap();
        let never = futures_util::stream::pending::<ModelInferRequest>();
        let codec = tonic_prost::ProstCodec::<ModelInferRequest, ModelInferResponse>::default();
        grpc.client_streaming(tonic::Request::new(never), INFER.parse().unwrap(), codec).await.unwrap_err()
    });
    assert_eq!((status.code(), status.message()), (Code::DeadlineExceeded, "the message did not come within 20ms"));
}

//! Deadlines, clients that go away, health, reflection, and the end of a server over gRPC.

use crate::client::{PATIENCE, Running, options, weights};
use crate::grpc::{INFER, add, call, floats, frame, ready, step};
use crate::sum::{self, WAITS};
use candle_models::families;
use candle_serve::Server;
use candle_serve::proto::ModelInferRequest;
use candle_serve::proto::infer_parameter::ParameterChoice::Int64Param;
use prost::Message;
use std::time::Duration;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const SERVICE: &str = "inference.GRPCInferenceService";

fn server(gate: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", gate);
    let mut options = sum::options(folder.path());
    options.patience = PATIENCE;
    (Running::new(options, sum::families()), folder)
}

#[test]
fn a_call_that_is_too_late_leaves_the_state_as_it_was() {
    let (server, _folder) = server("late call");
    let gate = sum::gate("late call");
    let mut client = server.grpc();
    client.infer(step(1.0, Int64Param(1), true)).unwrap();
    let busy = client.spawn(add(WAITS));
    gate.reached(1);
    // The header, the parameter, and the smaller of both; over a stream it is the stream's.
    let late = |parameter: i64| {
        let mut request = step(2.0, Int64Param(1), false);
        request.parameters.insert("timeout".to_owned(), crate::grpc::parameter(Int64Param(parameter)));
        frame(&request.encode_to_vec())
    };
    let mut http = server.client();
    let told = (Code::DeadlineExceeded, "the deadline was over before the step began".to_owned());
    std::thread::scope(|scope| {
        let server = &server;
        let calls = [
            (&[("grpc-timeout", "1m")][..], 0),
            (&[], 1000),
            (&[("grpc-timeout", "1H")], 1000),
            (&[("grpc-timeout", "1000u")], 60_000_000),
        ];
        let calls = calls.map(|(headers, parameter)| scope.spawn(move || call(server, INFER, headers, late(parameter))));
        // Three of them wait for the one that was first, which waits for the engine.
        http.wait_for("nv_inference_request_failure", "m", 3.0);
        std::thread::sleep(Duration::from_millis(5));
        gate.open();
        calls.into_iter().for_each(|call| assert_eq!(call.join().unwrap(), told));
    });
    assert_eq!(floats(&server.runtime.block_on(busy).unwrap().unwrap()), [WAITS]);
    let headers = [("grpc-timeout", "0n"), ("triton_grpc_error", "true")];
    let stream = "/inference.GRPCInferenceService/ModelStreamInfer";
    assert_eq!(
        call(&server, stream, &headers, late(0)),
        (Code::DeadlineExceeded, "the deadline was over before the step began".to_owned())
    );
    assert_eq!(floats(&client.infer(step(0.0, Int64Param(1), false)).unwrap()), [1.0]);
}

#[test]
fn a_call_that_is_given_up_gives_its_step_up() {
    let (server, _folder) = server("call given up");
    let gate = sum::gate("call given up");
    let (mut client, mut http) = (server.grpc(), server.client());
    client.infer(step(1.0, Int64Param(1), true)).unwrap();
    client.infer(step(1.0, Int64Param(2), true)).unwrap();
    let first = client.spawn(step(WAITS, Int64Param(1), false));
    gate.reached(1);
    let second = client.spawn(step(10.0, Int64Param(2), false));
    http.wait_for("nv_inference_pending_request_count", "m", 2.0);
    let third = client.spawn(step(100.0, Int64Param(1), false));
    http.wait_for("candle_sequence_requests_waiting", "m", 1.0);
    [third, second, first].into_iter().for_each(|call| call.abort());
    http.wait_for("nv_inference_pending_request_count", "m", 0.0);
    assert_eq!(http.metric("candle_sequence_requests_waiting", "m"), 0.0);
    gate.open();
    // The one that ran is finished, the ones that waited were never made.
    assert_eq!(floats(&client.infer(step(0.0, Int64Param(1), false)).unwrap()), [1.0 + WAITS]);
    assert_eq!(floats(&client.infer(step(0.0, Int64Param(2), false)).unwrap()), [1.0]);
}

#[test]
fn what_runs_over_grpc_is_finished_before_the_end() {
    let (mut server, _folder) = server("grpc end");
    let gate = sum::gate("grpc end");
    let client = server.grpc();
    let busy = client.spawn(add(WAITS));
    gate.reached(1);
    // Connections without a call: one that has made one before, and one that has not said a word.
    let mut idle = server.grpc();
    idle.infer(ModelInferRequest::default()).unwrap_err();
    let _silent = std::net::TcpStream::connect(server.grpc_address()).unwrap();
    drop(client);
    drop(idle);
    let idle = server.channel();
    let address = server.grpc_address();
    assert_eq!(ready(address), Ok(true));
    server.runtime.block_on(server.server.as_ref().unwrap().leave());
    assert_eq!(ready(address), Ok(false));
    let stopped = server.runtime.spawn(server.server.take().unwrap().stop());
    let since = std::time::Instant::now();
    while std::net::TcpStream::connect(address).is_ok() {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(!stopped.is_finished());
    gate.open();
    assert_eq!(floats(&server.runtime.block_on(busy).unwrap().unwrap()), [WAITS]);
    assert!(server.runtime.block_on(stopped).unwrap());
    drop(idle);
}

#[test]
fn health_says_whether_the_server_is_ready() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(Server::start(options(weights().join("policy-mlp")), families::shipped())).unwrap();
    let running = Running { runtime, server: Some(server) };
    let mut client = HealthClient::new(running.channel());
    let check = |client: &mut HealthClient<_>, service: &str| {
        let request = HealthCheckRequest { service: service.to_owned() };
        running.runtime.block_on(client.check(request)).map(|reply| reply.into_inner().status()).map_err(|status| status.code())
    };
    for service in ["", SERVICE] {
        assert_eq!(check(&mut client, service), Ok(ServingStatus::NotServing));
    }
    assert_eq!(check(&mut client, "none"), Err(Code::NotFound));
    assert_eq!(ready(running.grpc_address()), Ok(false));
    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let mut watch = running.runtime.block_on(client.watch(request)).unwrap().into_inner();
    let mut next = || running.runtime.block_on(watch.message()).map(|reply| reply.unwrap().status()).map_err(|status| status.code());
    assert_eq!(next(), Ok(ServingStatus::NotServing));
    running.runtime.block_on(running.server.as_ref().unwrap().load()).unwrap();
    assert_eq!(next(), Ok(ServingStatus::Serving));
    assert_eq!(check(&mut client, SERVICE), Ok(ServingStatus::Serving));
    running.runtime.block_on(running.server.as_ref().unwrap().leave());
    assert_eq!(next(), Ok(ServingStatus::NotServing));
    assert_eq!(check(&mut client, ""), Ok(ServingStatus::NotServing));
    // A call that would last for ever ends with the server.
    let Running { runtime, server } = running;
    let stopped = runtime.spawn(server.unwrap().stop());
    let ended = runtime.block_on(async {
        loop {
            match watch.message().await {
                Ok(Some(_)) => {}
                Ok(None) => return Code::Ok,
                Err(status) => return status.code(),
            }
        }
    });
    assert_eq!(ended, Code::Unavailable);
    assert!(runtime.block_on(stopped).unwrap());
}

#[test]
fn reflection_names_the_services_and_their_messages() {
    let (server, _folder) = server("reflection");
    let mut client = ServerReflectionClient::new(server.channel());
    let ask = |message: MessageRequest| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asked =
        [ask(MessageRequest::ListServices(String::new())), ask(MessageRequest::FileContainingSymbol(format!("{SERVICE}.ModelInfer")))];
    let answers: Vec<ServerReflectionResponse> = server.runtime.block_on(async {
        let mut stream = client.server_reflection_info(futures_util::stream::iter(asked)).await.unwrap().into_inner();
        let mut answers = Vec::new();
        while let Some(answer) = stream.message().await.unwrap() {
            answers.push(answer);
        }
        answers
    });
    let [Some(MessageResponse::ListServicesResponse(list)), Some(MessageResponse::FileDescriptorResponse(files))] =
        [0, 1].map(|at| answers[at].message_response.clone())
    else {
        panic!("expected a list and a file: {answers:?}")
    };
    let names: Vec<&str> = list.service.iter().map(|service| &*service.name).collect();
    assert!([SERVICE, "grpc.health.v1.Health"].iter().all(|name| names.contains(name)), "{names:?}");
    let file = &files.file_descriptor_proto[0];
    assert!(file.windows(16).any(|window| window == b"ModelStreamInfer"));
}

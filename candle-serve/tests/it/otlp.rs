//! Spans of requests, as a collector of OpenTelemetry gets them.

use crate::client::{PATIENCE, Running, options, weights};
use crate::grpc::{INFER, add, call, frame, step};
use crate::life::PROGRAM;
use crate::program::Program;
use crate::sum::{self, FAILS, WAITS};
use candle_serve::Otlp;
use candle_serve::proto::infer_parameter::ParameterChoice;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::json;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};
use tonic::codegen::Service;
use tonic::{Code, Request, Response, Status};

const SERVER: i32 = SpanKind::Server as i32;
const ERROR: i32 = StatusCode::Error as i32;

/// What has come, and who has sent it.
#[derive(Default, Clone)]
struct Received(Arc<Mutex<Vec<(Resource, Span)>>>);

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(&self, request: Request<ExportTraceServiceRequest>) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for group in request.into_inner().resource_spans {
            let resource = group.resource.unwrap();
            let spans = group.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (resource.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// A collector that runs until it is dropped.
struct Collector {
    _runtime: Runtime,
    address: SocketAddr,
    received: Received,
}

impl Collector {
    fn new() -> Self {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Received::default());
        let server = TraceServiceServer::new(received.clone());
        runtime.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let server = server.clone();
                let service = service_fn(move |request| server.clone().call(request));
                tokio::spawn(http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { _runtime: runtime, address, received }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The spans of a trace, in the order in which they began.
    fn of(&self, trace: u8) -> Vec<Span> {
        let received = self.received.0.lock().unwrap();
        let mut spans: Vec<Span> = received.iter().map(|(_, span)| span.clone()).filter(|span| span.trace_id == id::<16>(trace)).collect();
        spans.sort_by_key(|span| (span.start_time_unix_nano, span.kind != SERVER));
        spans
    }

    /// The only span of a trace.
    fn only(&self, trace: u8) -> Span {
        let mut spans = self.of(trace);
        assert_eq!(spans.len(), 1, "{spans:#?}");
        spans.remove(0)
    }
}

fn id<const N: usize>(last: u8) -> Vec<u8> {
    let mut id = vec![0; N];
    id[N - 1] = last;
    id
}

/// The header of a client whose trace and span have that number.
fn parent(number: u8, flags: &str) -> String {
    format!("00-{number:032x}-{number:016x}-{flags}")
}

/// Values of attributes as texts, in the order of `names`; those that are not there are empty.
fn values<const N: usize>(attributes: &[KeyValue], names: [&str; N]) -> [String; N] {
    names.map(|name| {
        let found = attributes.iter().find(|attribute| attribute.key == name).and_then(|attribute| attribute.value.clone()?.value);
        match found {
            Some(Value::StringValue(text)) => text,
            Some(Value::IntValue(number)) => number.to_string(),
            Some(Value::BoolValue(flag)) => flag.to_string(),
            None => String::new(),
            Some(other) => panic!("{name}: {other:?}"),
        }
    })
}

const HTTP: [&str; 3] = ["http.request.method", "http.route", "http.response.status_code"];
const GRPC: [&str; 3] = ["rpc.system.name", "rpc.method", "rpc.response.status_code"];
const MODEL: [&str; 3] = ["candle.model", "candle.rows", "candle.sequence"];

fn status(span: &Span) -> i32 {
    span.status.as_ref().map_or(0, |status| status.code)
}

/// A server of the model `m` that sends its spans there.
fn server(folder: &std::path::Path, gate: &str, otlp: Otlp) -> Running {
    sum::save(folder, "m", gate);
    Running::new(candle_serve::Options { otlp: Some(otlp), ..sum::options(folder) }, sum::families())
}

impl Running {
    /// Ends it, so that everything is sent.
    fn stop(mut self) -> bool {
        let server = self.server.take().unwrap();
        self.runtime.block_on(server.stop())
    }
}

fn infer(x: f32) -> serde_json::Value {
    json!({"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}]})
}

#[test]
fn a_request_over_http_has_a_span() {
    let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::new());
    let server = server(folder.path(), "otlp http", Otlp { endpoint: collector.endpoint(), rate: None });
    let gate = sum::gate("otlp http");
    let mut client = server.client();
    let mut post = |trace: u8, flags: &str, body: serde_json::Value| {
        let parent = parent(trace, flags);
        client.call("POST", "/v2/models/m/infer", &[("traceparent", &parent), ("tracestate", "vendor=value")], body.to_string().as_bytes())
    };
    let mut body = infer(1.0);
    body["parameters"] = json!({"sequence_id": "somebody", "sequence_start": true});
    post(1, "01", body).ok();
    post(2, "00", infer(1.0)).ok();
    assert_eq!(post(3, "01", infer(FAILS)).status, 500);
    assert_eq!(post(4, "01", json!({"inputs": [{"name": "none"}]})).status, 400);
    // One of no client's trace, and one whose client goes away.
    client.post("/v2/models/m/infer", &infer(1.0)).ok();
    assert_eq!(client.call("BREW", "/v2/coffee", &[("traceparent", &parent(5, "01"))], b"").status, 404);
    client.call("GET", "/v2/health/live", &[("traceparent", &parent(6, "01"))], b"").ok();
    let mut leaving = server.client();
    leaving.send("POST", "/v2/models/m/infer", &[("traceparent", &parent(7, "01"))], infer(WAITS).to_string().as_bytes());
    gate.reached(1);
    leaving.hang_up();
    client.wait_for("nv_inference_pending_request_count", "m", 0.0);
    gate.open();
    assert!(server.stop());

    let spans = collector.of(1);
    let [request, queue, compute] = &spans[..] else { panic!("{spans:#?}") };
    assert_eq!((request.name.as_str(), request.kind), ("POST /v2/models/{model}/infer", SERVER));
    assert_eq!((&request.parent_span_id, request.trace_state.as_str(), status(request)), (&id::<8>(1), "vendor=value", 0));
    assert_eq!(values(&request.attributes, HTTP), ["POST", "/v2/models/{model}/infer", "200"]);
    assert_eq!(values(&request.attributes, MODEL), ["m", "1", "true"]);
    assert_eq!(
        [queue, compute].map(|span| (span.name.as_str(), &span.parent_span_id)),
        ["queue", "compute"].map(|name| (name, &request.span_id))
    );
    assert_eq!(values(&compute.attributes, ["candle.batch"]), ["1"]);
    let times = [request.start_time_unix_nano, queue.start_time_unix_nano, queue.end_time_unix_nano];
    let times = [&times[..], &[compute.start_time_unix_nano, compute.end_time_unix_nano, request.end_time_unix_nano]].concat();
    assert!(times.is_sorted() && queue.end_time_unix_nano == compute.start_time_unix_nano, "{times:?}");
    // Whose sequence it is is nobody's business.
    assert!(!format!("{spans:?}").contains("somebody"), "{spans:#?}");

    assert!(collector.of(2).is_empty() && collector.of(6).is_empty());
    let failed = collector.only(3);
    assert_eq!(
        (status(&failed), values(&failed.attributes, ["error.type", HTTP[2], MODEL[0]])),
        (ERROR, ["500", "500", "m"].map(str::to_owned))
    );
    let refused = collector.only(4);
    assert_eq!((status(&refused), values(&refused.attributes, ["error.type", HTTP[2]])), (0, ["", "400"].map(str::to_owned)));
    let unknown = collector.only(5);
    assert_eq!((unknown.name.as_str(), values(&unknown.attributes, HTTP)), ("_OTHER", ["_OTHER", "", "404"].map(str::to_owned)));
    let left = collector.of(7);
    assert_eq!((left[0].name.as_str(), values(&left[0].attributes, HTTP)[2].as_str()), ("POST /v2/models/{model}/infer", ""));

    let received = collector.received.0.lock().unwrap();
    let root = received
        .iter()
        .find(|(_, span)| span.parent_span_id.is_empty())
        .map(|(resource, span)| (values(&resource.attributes, ["service.name"]), span));
    let (service, root) = root.unwrap();
    assert_eq!((service, root.name.as_str()), (["candle-serve".to_owned()], "POST /v2/models/{model}/infer"));
}

#[test]
fn a_call_and_a_request_of_a_stream_have_spans() {
    let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::new());
    let server = server(folder.path(), "otlp grpc", Otlp { endpoint: collector.endpoint(), rate: None });
    let calls =
        |trace: u8, flags: &str, x: f32| call(&server, INFER, &[("traceparent", &parent(trace, flags))], frame(&add(x).encode_to_vec())).0;
    assert_eq!((calls(1, "01", 1.0), calls(2, "00", 1.0), calls(3, "01", FAILS)), (Code::Ok, Code::Ok, Code::Internal));
    let unknown = call(&server, "/inference.GRPCInferenceService/Brew", &[("traceparent", &parent(4, "01"))], frame(&[]));
    assert_eq!(unknown.0, Code::Unimplemented);
    let mut grpc = server.grpc();
    let id = || ParameterChoice::StringParam("somebody".to_owned());
    let steps = vec![step(1.0, id(), true), step(2.0, id(), false), step(FAILS, id(), false)];
    let mut request = Request::new(futures_util::stream::iter(steps));
    request.metadata_mut().insert("traceparent", parent(5, "01").parse().unwrap());
    let answers = grpc.runtime.block_on(async {
        let mut answers = grpc.client.model_stream_infer(request).await.unwrap().into_inner();
        let mut errors = Vec::new();
        while let Some(answer) = answers.message().await.unwrap() {
            errors.push(!answer.error_message.is_empty());
        }
        errors
    });
    assert_eq!(answers, [false, false, true]);
    drop(grpc);
    assert!(server.stop());

    let spans = collector.of(1);
    let names: Vec<_> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["inference.GRPCInferenceService/ModelInfer", "queue", "compute"]);
    assert_eq!((spans[0].kind, &spans[0].parent_span_id, status(&spans[0])), (SERVER, &self::id::<8>(1), 0));
    assert_eq!(values(&spans[0].attributes, GRPC), ["grpc", "inference.GRPCInferenceService/ModelInfer", "OK"]);
    assert_eq!(values(&spans[0].attributes, MODEL), ["m", "1", "false"]);
    assert!(collector.of(2).is_empty());
    let failed = collector.only(3);
    assert_eq!(
        (status(&failed), values(&failed.attributes, ["error.type", GRPC[2]])),
        (ERROR, ["INTERNAL", "INTERNAL"].map(str::to_owned))
    );
    let unknown = collector.only(4);
    assert_eq!(
        (unknown.name.as_str(), values(&unknown.attributes, GRPC)),
        ("_OTHER", ["grpc", "_OTHER", "UNIMPLEMENTED"].map(str::to_owned))
    );
    let streamed: Vec<Span> = collector.of(5).into_iter().filter(|span| span.kind == SERVER).collect();
    assert!(
        streamed
            .iter()
            .all(|span| span.name == "inference.GRPCInferenceService/ModelStreamInfer" && span.parent_span_id == self::id::<8>(5))
    );
    let codes: Vec<_> = streamed.iter().map(|span| values(&span.attributes, [GRPC[2]])[0].clone()).collect();
    assert_eq!(codes, ["OK", "OK", "INTERNAL"]);
}

#[test]
fn clients_that_do_not_say_are_sampled_at_a_rate() {
    let (folder, collector) = (tempfile::tempdir().unwrap(), Collector::new());
    let server = server(folder.path(), "otlp rate", Otlp { endpoint: collector.endpoint(), rate: Some(0.0) });
    let mut client = server.client();
    for _ in 0..20 {
        client.post("/v2/models/m/infer", &infer(1.0)).ok();
    }
    // What is no header of a trace is none.
    for wrong in ["", "00-1-1-01", "00-00000000000000000000000000000000-0000000000000000-01"] {
        client.call("POST", "/v2/models/m/infer", &[("traceparent", wrong)], infer(1.0).to_string().as_bytes()).ok();
    }
    client.call("GET", "/v2/models/m", &[("traceparent", &parent(1, "01"))], b"").ok();
    assert!(server.stop());
    let received = collector.received.0.lock().unwrap();
    let names: Vec<_> = received.iter().map(|(_, span)| span.name.as_str()).collect();
    assert_eq!(names, ["GET /v2/models/{model}"]);
}

#[test]
fn a_collector_that_is_away_costs_no_request() {
    // One that nobody listens at, and one that takes connections and says nothing.
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for (gate, address) in [("otlp closed", closed), ("otlp silent", silent.local_addr().unwrap())] {
        let folder = tempfile::tempdir().unwrap();
        let server = server(folder.path(), gate, Otlp { endpoint: format!("http://{address}"), rate: None });
        let mut client = server.client();
        // More than are kept for it.
        for _ in 0..1500 {
            client.post("/v2/models/m/infer", &infer(1.0)).ok();
        }
        let since = Instant::now();
        assert!(server.stop());
        assert!(since.elapsed() < PATIENCE);
    }
    let wrong = candle_serve::Options {
        otlp: Some(Otlp { endpoint: "not a URL".to_owned(), rate: None }),
        ..options(weights().join("policy-mlp"))
    };
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(candle_serve::Server::start(wrong, candle_models::families::shipped()));
    assert!(refused.err().unwrap().to_string().starts_with("--otlp: "));
}

/// The program with a bundle, and what it says on its standard error until it has been told to end; one request is asked meanwhile.
fn program(arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg(weights().join("policy-mlp")).args(["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--grace", "0"]).args(arguments);
    let mut program = Program::spawn(command.envs(variables.iter().copied()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(program.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let address = line.split("http://").nth(1).unwrap().split(',').next().unwrap();
    crate::client::Client::connect(address.parse().unwrap()).get("/v2/models/policy-mlp").ok();
    program.signal("TERM");
    let mut text = String::new();
    program.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
    assert_eq!(program.0.wait().unwrap().code(), Some(0), "{text}");
    text
}

#[test]
fn the_program_sends_spans_where_it_is_told_to() {
    let collector = Collector::new();
    program(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()), ("OTEL_SERVICE_NAME", "agents")]);
    let closed = format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
    // What is given goes before what stands in the environment.
    program(&["--otlp", &collector.endpoint(), "--otlp-rate", "1"], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &closed)]);
    program(&[], &[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint()), ("OTEL_SDK_DISABLED", "true")]);
    let text = program(&["--otlp", &closed], &[]);
    assert_eq!(text.matches("spans were not exported").count(), 1, "{text}");
    let received = collector.received.0.lock().unwrap();
    let found: Vec<_> =
        received.iter().map(|(resource, span)| (values(&resource.attributes, ["service.name"])[0].clone(), span.name.as_str())).collect();
    assert_eq!(found, ["agents", "candle-serve"].map(|service| (service.to_owned(), "GET /v2/models/{model}")));
}

//! Inferences over streams.

use crate::client::Running;
use crate::grpc::{add, floats, parameter, step};
use crate::grpc_calls::both;
use crate::sum::{self, FAILS, WAITS};
use candle_serve::proto::infer_parameter::ParameterChoice::{BoolParam, Int64Param, StringParam};
use candle_serve::proto::{ModelInferRequest, ModelStreamInferResponse};
use futures_util::stream::poll_fn;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tonic::{Code, Request, Status, Streaming};

/// Both ends of a stream.
pub struct Stream {
    runtime: tokio::runtime::Handle,
    requests: Option<UnboundedSender<ModelInferRequest>>,
    answers: Streaming<ModelStreamInferResponse>,
}

impl Stream {
    pub fn open(server: &Running, metadata: &[(&'static str, &'static str)]) -> Self {
        let (requests, mut received) = unbounded_channel();
        let mut request = Request::new(poll_fn(move |context| received.poll_recv(context)));
        metadata.iter().for_each(|(name, value)| drop(request.metadata_mut().insert(*name, value.parse().unwrap())));
        let mut client = server.grpc().client;
        let answers = server.runtime.block_on(client.model_stream_infer(request)).unwrap().into_inner();
        Self { runtime: server.runtime.handle().clone(), requests: Some(requests), answers }
    }

    pub fn send(&self, request: ModelInferRequest) {
        self.requests.as_ref().unwrap().send(request).unwrap();
    }

    /// Says that no request will come.
    pub fn finish(&mut self) {
        self.requests = None;
    }

    /// `None` at the end of the stream.
    pub fn receive(&mut self) -> Result<Option<ModelStreamInferResponse>, Status> {
        self.runtime.block_on(self.answers.message())
    }

    /// The values of the next answer.
    #[track_caller]
    pub fn values(&mut self) -> Vec<f32> {
        let answer = self.receive().unwrap().expect("an answer");
        assert_eq!(answer.error_message, "");
        let answer = answer.infer_response.unwrap();
        assert_eq!(answer.parameters["triton_final_response"], parameter(BoolParam(true)));
        floats(&answer)
    }

    /// The next answer is that error.
    #[track_caller]
    pub fn told(&mut self, id: &str, model: &str, message: &str) {
        let answer = self.receive().unwrap().unwrap();
        let response = answer.infer_response.unwrap();
        assert_eq!((&*response.id, &*response.model_name, &*answer.error_message), (id, model, message));
        assert_eq!(response.parameters["triton_final_response"], parameter(BoolParam(true)));
        assert!(response.outputs.is_empty());
    }
}

fn server(gate: &str) -> (Running, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    sum::save(folder.path(), "m", gate);
    (Running::new(sum::options(folder.path()), sum::families()), folder)
}

#[test]
fn sequences_of_a_stream_are_stepped_in_its_order() {
    let (server, _folder) = server("order");
    let mut stream = Stream::open(&server, &[]);
    // Far more than may wait for a sequence, or run at the same time, all asked for before the first is answered.
    for frame in 0..100 {
        for id in 1..=3 {
            stream.send(step(id as f32, Int64Param(id), frame == 0));
        }
        stream.send(add(7.0));
    }
    stream.finish();
    for frame in 1..=100 {
        for id in 1..=3 {
            assert_eq!(stream.values(), [(frame * id) as f32]);
        }
        assert_eq!(stream.values(), [7.0]);
    }
    assert!(stream.receive().unwrap().is_none());
}

#[test]
fn several_sequences_of_a_request_wait_for_those_before_it() {
    let (server, _folder) = server("before");
    let gate = sum::gate("before");
    let mut stream = Stream::open(&server, &[]);
    let id = |id: &str| StringParam(id.to_owned());
    stream.send(both([1.0, 2.0], ["a", "b"], true));
    stream.send(step(WAITS, id("a"), false));
    stream.send(both([10.0, 20.0], ["b", "a"], false));
    stream.send(step(100.0, id("b"), false));
    assert_eq!(stream.values(), [1.0, 2.0]);
    gate.reached(1);
    gate.open();
    assert_eq!(stream.values(), [1.0 + WAITS]);
    assert_eq!(stream.values(), [12.0, 21.0 + WAITS]);
    assert_eq!(stream.values(), [112.0]);
}

#[test]
fn those_that_need_not_wait_are_batched() {
    let (server, _folder) = server("batched");
    let gate = sum::gate("batched");
    let mut stream = Stream::open(&server, &[]);
    stream.send(add(WAITS));
    gate.reached(1);
    for id in 1..=20 {
        stream.send(step(id as f32, Int64Param(id), true));
    }
    let mut http = server.client();
    http.wait_for("nv_inference_pending_request_count", "m", 21.0);
    gate.open();
    assert_eq!(stream.values(), [WAITS]);
    (1..=20).for_each(|id| assert_eq!(stream.values(), [id as f32]));
    assert!(http.metric("nv_inference_exec_count", "m") < 21.0);
}

#[test]
fn an_error_is_told_and_the_stream_goes_on() {
    let (server, _folder) = server("goes on");
    let mut stream = Stream::open(&server, &[]);
    let named = |mut request: ModelInferRequest, id: &str| {
        request.id = id.to_owned();
        request
    };
    // A step that fails takes its batch with it: it is alone.
    stream.send(step(1.0, Int64Param(1), true));
    assert_eq!(stream.values(), [1.0]);
    stream.send(named(add(FAILS), "failed"));
    stream.told("failed", "m", "the model failed: asked to fail");
    stream.send(named(ModelInferRequest { model_name: "none".to_owned(), ..Default::default() }, "nowhere"));
    stream.send(named(step(1.0, BoolParam(true), false), "no id"));
    stream.send(step(1.0, Int64Param(1), false));
    stream.told("nowhere", "none", "unknown model: 'none' is not found");
    stream.told("no id", "m", "sequence_id: expected a number from 0 to 2^64 - 1 or a text, found true");
    assert_eq!(stream.values(), [2.0]);
}

#[test]
fn an_error_ends_the_stream_of_a_client_that_wants_that() {
    let (server, _folder) = server("ends");
    let mut stream = Stream::open(&server, &[("triton_grpc_error", "true")]);
    stream.send(step(1.0, Int64Param(1), true));
    assert_eq!(stream.values(), [1.0]);
    stream.send(step(1.0, Int64Param(2), false));
    let status = stream.receive().unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("must specify the START flag"), "{}", status.message());
    assert!(stream.receive().unwrap().is_none());
    // What was asked for before has been made.
    assert_eq!(floats(&server.grpc().infer(step(1.0, Int64Param(1), false)).unwrap()), [2.0]);
}

#[test]
fn a_stream_that_is_given_up_gives_its_steps_up() {
    let (server, _folder) = server("given up");
    let gate = sum::gate("given up");
    let mut http = server.client();
    let mut stream = Stream::open(&server, &[]);
    stream.send(step(1.0, Int64Param(1), true));
    assert_eq!(stream.values(), [1.0]);
    stream.send(step(WAITS, Int64Param(1), false));
    gate.reached(1);
    stream.send(step(10.0, Int64Param(2), true));
    http.wait_for("nv_inference_pending_request_count", "m", 2.0);
    drop(stream);
    http.wait_for("nv_inference_pending_request_count", "m", 0.0);
    gate.open();
    let mut client = server.grpc();
    // The one that ran is finished, the one that waited was never made.
    assert_eq!(floats(&client.infer(step(0.0, Int64Param(1), false)).unwrap()), [1.0 + WAITS]);
    assert_eq!(client.infer(step(0.0, Int64Param(2), false)).unwrap_err().code(), Code::InvalidArgument);
}

#[test]
fn the_end_of_the_server_ends_streams_once_they_are_answered() {
    let (mut server, _folder) = server("end of the server");
    let gate = sum::gate("end of the server");
    let mut busy = Stream::open(&server, &[]);
    let mut idle = Stream::open(&server, &[]);
    busy.send(add(WAITS));
    gate.reached(1);
    let stopped = server.runtime.spawn(server.server.take().unwrap().stop());
    let status = idle.receive().unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "the server is about to end"));
    assert!(!stopped.is_finished());
    gate.open();
    assert_eq!(busy.values(), [WAITS]);
    assert_eq!(busy.receive().unwrap_err().code(), Code::Unavailable);
    assert!(server.runtime.block_on(stopped).unwrap());
}

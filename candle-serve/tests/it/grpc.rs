//! Clients over gRPC: the generated one, and one that says exactly what it is told to.

use crate::client::{PATIENCE, Running};
use bytes::Bytes;
use candle_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use candle_serve::proto::infer_parameter::ParameterChoice;
use candle_serve::proto::model_infer_request::InferInputTensor;
use candle_serve::proto::{InferParameter, ModelInferRequest, ModelInferResponse, ServerReadyRequest};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

/// The path of inferences.
pub const INFER: &str = "/inference.GRPCInferenceService/ModelInfer";

/// A connection to a server of this process.
pub struct Grpc<'s> {
    pub runtime: &'s Runtime,
    pub client: GrpcInferenceServiceClient<Channel>,
}

impl Running {
    pub fn channel(&self) -> Channel {
        self.runtime.block_on(self.connect())
    }

    pub async fn connect(&self) -> Channel {
        connect(format!("http://{}", self.grpc_address())).await
    }

    pub fn grpc(&self) -> Grpc<'_> {
        let client = GrpcInferenceServiceClient::new(self.channel());
        Grpc { runtime: &self.runtime, client }
    }
}

pub async fn connect(address: String) -> Channel {
    Endpoint::from_shared(address).unwrap().timeout(PATIENCE).connect().await.unwrap()
}

impl Grpc<'_> {
    pub fn infer(&mut self, request: ModelInferRequest) -> Result<ModelInferResponse, Status> {
        self.runtime.block_on(self.client.model_infer(request)).map(tonic::Response::into_inner)
    }

    /// The same request from a second connection, while this one goes on.
    pub fn spawn(
        &self,
        request: impl tonic::IntoRequest<ModelInferRequest>,
    ) -> tokio::task::JoinHandle<Result<ModelInferResponse, Status>> {
        let (mut client, request) = (self.client.clone(), request.into_request());
        self.runtime.spawn(async move { client.model_infer(request).await.map(tonic::Response::into_inner) })
    }
}

/// Whether the server there says that it is ready.
pub fn ready(address: SocketAddr) -> Result<bool, Code> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut client = GrpcInferenceServiceClient::new(connect(format!("http://{address}")).await);
        client.server_ready(ServerReadyRequest {}).await.map(|reply| reply.into_inner().ready).map_err(|status| status.code())
    })
}

pub fn parameter(choice: ParameterChoice) -> InferParameter {
    InferParameter { parameter_choice: Some(choice) }
}

/// A tensor without its values.
pub fn input(name: &str, datatype: &str, shape: &[i64]) -> InferInputTensor {
    InferInputTensor { name: name.to_owned(), datatype: datatype.to_owned(), shape: shape.to_vec(), ..InferInputTensor::default() }
}

/// A request to the model `m` that adds up.
pub fn add(x: f32) -> ModelInferRequest {
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![input("x", "FP32", &[1, 1])],
        raw_input_contents: vec![Bytes::copy_from_slice(&x.to_le_bytes())],
        ..ModelInferRequest::default()
    }
}

/// The same within a sequence.
pub fn step(x: f32, id: ParameterChoice, start: bool) -> ModelInferRequest {
    let mut request = add(x);
    request.parameters.insert("sequence_id".to_owned(), parameter(id));
    request.parameters.insert("sequence_start".to_owned(), parameter(ParameterChoice::BoolParam(start)));
    request
}

/// The floats of an answer's only output.
pub fn floats(answer: &ModelInferResponse) -> Vec<f32> {
    assert_eq!((answer.outputs.len(), answer.raw_output_contents.len()), (1, 1));
    answer.raw_output_contents[0].as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// A message as it stands in a call's body.
pub fn frame(message: &[u8]) -> Vec<u8> {
    [&[0][..], &(message.len() as u32).to_be_bytes(), message].concat()
}

/// Makes a call with that body, and answers its code and message. Unlike tonic's client it leaves deadlines to the server.
pub fn call(server: &Running, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (Code, String) {
    let address = server.grpc_address();
    let mut request = Request::post(format!("http://{address}{path}")).header("content-type", "application/grpc").header("te", "trailers");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::new(Bytes::from(body))).unwrap();
    let answered = server.runtime.block_on(async {
        let stream = TokioIo::new(tokio::net::TcpStream::connect(address).await.unwrap());
        let (mut sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        let connection = tokio::spawn(connection);
        let reply = sender.send_request(request).await.unwrap();
        let (head, body) = reply.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned();
        connection.abort();
        Status::from_header_map(&trailers.unwrap_or(head.headers))
    });
    let status = answered.expect("a status");
    (status.code(), status.message().to_owned())
}

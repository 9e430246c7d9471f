//! The same over gRPC: a client that sends one call again and again, and a bare echo of tonic.

use super::client::{Drawn, draw};
use crate::harness::Subject;
use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use candle_models::signature::Signature;
use candle_serve::Address;
use candle_serve::proto::ModelInferRequest;
use candle_serve::proto::model_infer_request::InferInputTensor;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, client, server};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use std::convert::Infallible;
use std::future::{Ready, ready};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, UnaryService};

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The message of a step of one row with random inputs.
///
/// # Errors
/// If an input cannot be drawn.
pub fn message(signature: &Signature, model: &str) -> Result<Vec<u8>> {
    let drawn = draw(signature, 1)?;
    let input = |Drawn { name, datatype, shape, .. }: &Drawn| InferInputTensor {
        name: name.clone(),
        datatype: (*datatype).to_owned(),
        shape: shape.iter().map(|size| *size as i64).collect(),
        ..InferInputTensor::default()
    };
    let inputs = drawn.iter().map(input).collect();
    let raw_input_contents = drawn.iter().map(|input| input.bytes.clone().into()).collect();
    Ok(ModelInferRequest { model_name: model.to_owned(), inputs, raw_input_contents, ..ModelInferRequest::default() }.encode_to_vec())
}

/// A connection over which one call is made again and again, on a runtime of the thread that makes it.
pub struct Caller {
    runtime: Runtime,
    sender: client::conn::http2::SendRequest<Full<Bytes>>,
    /// With its prefix.
    message: Bytes,
    uri: String,
}

impl Caller {
    /// Connects; `message` is sent with each call.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn connect(address: &Address, message: &[u8]) -> Result<Self> {
        let Address::Tcp(address) = address else { bail!("expected an address of TCP") };
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (sender, connection) = runtime.block_on(async {
            let stream = TcpStream::connect(address).await.with_context(|| address.to_string())?;
            stream.set_nodelay(true)?;
            anyhow::Ok(client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?)
        })?;
        runtime.spawn(connection);
        let mut framed = BytesMut::with_capacity(PREFIX + message.len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(message.len())?);
        framed.put(message);
        let uri = format!("http://{address}/inference.GRPCInferenceService/ModelInfer");
        Ok(Self { runtime, sender, message: framed.freeze(), uri })
    }

    /// Makes a call, and gives the answer's message.
    ///
    /// # Errors
    /// If the connection is lost, or the answer is not a success.
    pub fn call(&mut self) -> Result<Bytes> {
        let Self { runtime, sender, message, uri } = self;
        runtime.block_on(async {
            let request = Request::post(&**uri).header("content-type", "application/grpc").header("te", "trailers");
            sender.ready().await?;
            let answer = sender.send_request(request.body(Full::new(message.clone()))?).await?;
            let headers = answer.headers().clone();
            let body = answer.into_body().collect().await?;
            // A call that fails at once has its status in the headers.
            let status = body.trailers().unwrap_or(&headers);
            ensure!(status.get("grpc-status").is_some_and(|status| status == "0"), "the server answered {status:?}");
            let mut body = body.to_bytes();
            ensure!(body.len() >= PREFIX, "an answer of {} bytes", body.len());
            body.advance(PREFIX);
            Ok(body)
        })
    }
}

impl Subject for Caller {
    fn run(&mut self) -> Result<()> {
        self.call().map(drop)
    }
}

/// Listens on a free port and answers every call with the message `answer`, until the runtime ends.
///
/// # Errors
/// If there is no port.
pub async fn echo(answer: Bytes) -> Result<Address> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = Address::Tcp(listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            // A connection that fails is the client's to tell.
            let _ = stream.set_nodelay(true);
            let answer = answer.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let echo = Echo(answer.clone());
                async move { Ok::<_, Infallible>(Grpc::new(Plain).unary(echo, request).await) }
            });
            let connection = server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(async move { connection.serve_connection(TokioIo::new(stream), service).await });
        }
    });
    Ok(address)
}

struct Echo(Bytes);

impl UnaryService<Bytes> for Echo {
    type Response = Bytes;
    type Future = Ready<Result<tonic::Response<Bytes>, Status>>;

    fn call(&mut self, _: tonic::Request<Bytes>) -> Self::Future {
        ready(Ok(tonic::Response::new(self.0.clone())))
    }
}

/// Messages that nobody looks into.
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

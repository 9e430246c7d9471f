//! Who may do what over gRPC, and under TLS.

use crate::keys::server;
use crate::tls;
use bytes::Bytes;
use candle_serve::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use candle_serve::proto::infer_parameter::ParameterChoice;
use candle_serve::proto::model_infer_request::InferInputTensor;
use candle_serve::proto::*;
use std::io::{Read, Write};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};

fn with<T>(key: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if !key.is_empty() {
        request.metadata_mut().insert("authorization", key.parse().unwrap());
    }
    request
}

fn step(x: f32, start: bool) -> ModelInferRequest {
    let input = InferInputTensor { name: "x".to_owned(), datatype: "FP32".to_owned(), shape: vec![1, 1], ..InferInputTensor::default() };
    let parameter = |choice| InferParameter { parameter_choice: Some(choice) };
    let parameters = [
        ("sequence_id".to_owned(), parameter(ParameterChoice::StringParam("x".to_owned()))),
        ("sequence_start".to_owned(), parameter(ParameterChoice::BoolParam(start))),
    ];
    ModelInferRequest {
        model_name: "m".to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::copy_from_slice(&x.to_le_bytes())],
        parameters: parameters.into_iter().collect(),
        ..ModelInferRequest::default()
    }
}

fn code<T>(result: Result<Response<T>, Status>) -> Code {
    result.err().map_or(Code::Ok, |status| status.code())
}

#[test]
fn calls_need_keys_of_their_roles() {
    let folder = tempfile::tempdir().unwrap();
    let (server, [alice, bob, root]) = server(folder.path());
    let address = server.server.as_ref().unwrap().grpc_addresses()[0].to_string();
    let address = format!("http://{address}");
    server.runtime.block_on(async {
        let channel: Channel = Endpoint::from_shared(address).unwrap().connect().await.unwrap();
        let mut client = GrpcInferenceServiceClient::new(channel);
        assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
        assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
        for key in ["", "Bearer none", "Basic none"] {
            assert_eq!(code(client.server_metadata(with(key, ServerMetadataRequest {})).await), Code::Unauthenticated);
            assert_eq!(code(client.model_infer(with(key, step(1.0, true))).await), Code::Unauthenticated);
            let stream = client.model_stream_infer(with(key, futures_util::stream::iter([step(1.0, true)]))).await;
            assert_eq!(code(stream), Code::Unauthenticated);
        }
        let load = || RepositoryModelLoadRequest { model_name: "m".to_owned(), ..RepositoryModelLoadRequest::default() };
        let status = || SystemSharedMemoryStatusRequest::default();
        assert_eq!(code(client.repository_model_load(with(&alice, load())).await), Code::PermissionDenied);
        assert_eq!(code(client.system_shared_memory_status(with(&alice, status())).await), Code::PermissionDenied);
        assert_eq!(code(client.log_settings(with(&alice, LogSettingsRequest::default())).await), Code::PermissionDenied);
        assert_eq!(code(client.repository_model_load(with(&root, load())).await), Code::Ok);
        assert_eq!(code(client.server_metadata(with(&alice, ServerMetadataRequest {})).await), Code::Ok);
        // A sequence belongs to whoever began it, over a stream as well.
        assert_eq!(code(client.model_infer(with(&alice, step(5.0, true))).await), Code::Ok);
        assert_eq!(code(client.model_infer(with(&bob, step(1.0, false))).await), Code::InvalidArgument);
        let mut streamed = async |key: &str| {
            let stream = client.model_stream_infer(with(key, futures_util::stream::iter([step(1.0, false)]))).await;
            stream.unwrap().into_inner().message().await.unwrap().unwrap()
        };
        assert!(streamed(&bob).await.error_message.contains("must specify the START flag"));
        assert_eq!(streamed(&alice).await.infer_response.unwrap().raw_output_contents[0][..], 6.0_f32.to_le_bytes());
    });
}

#[test]
fn calls_are_answered_under_tls() {
    let (folder, authority) = (tempfile::tempdir().unwrap(), tls::Authority::new());
    let server = tls::server(tls::files(folder.path(), &authority, None), crate::client::PATIENCE);
    let candle_serve::Address::Tcp(address) = server.server.as_ref().unwrap().grpc_addresses()[0] else { panic!("expected a port") };
    let mut stream = tls::connect(address, authority.roots(), None);
    // The preface of HTTP/2 and an empty frame of settings, which the server answers with its own.
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut frame = [0; 9];
    stream.read_exact(&mut frame).unwrap();
    assert_eq!((frame[3], stream.conn.alpn_protocol()), (4, Some(&b"h2"[..])));
}

//! What can be called over a connection: the protocol's service, the one that says whether the server is well, and reflection.

use super::activity::{Activity, Guard};
use super::body::{AnswerBody, RequestBody};
use super::service::Service;
use super::status::{status, too_large};
use crate::fault::{Kind, one_line};
use crate::keys::Role;
use crate::proto;
use crate::proto::grpc_inference_service_server::GrpcInferenceServiceServer;
use crate::server::Shared;
use crate::spans::{Span, Spans};
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::{Request, Response};
use std::convert::Infallible;
use std::sync::Arc;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{BoxFuture, Service as Call};
use tonic::{Code, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::Builder;

/// The name of the protocol's service.
pub(super) const SERVICE: &str = "inference.GRPCInferenceService";
const HEALTH: &str = "grpc.health.v1.Health";

/// Its methods that have a span each; a name that is none of a method is not told.
const METHODS: [&str; 17] = [
    "CudaSharedMemoryRegister",
    "CudaSharedMemoryStatus",
    "CudaSharedMemoryUnregister",
    "LogSettings",
    "ModelConfig",
    "ModelInfer",
    "ModelMetadata",
    "ModelReady",
    "ModelStatistics",
    "RepositoryIndex",
    "RepositoryModelLoad",
    "RepositoryModelUnload",
    "ServerMetadata",
    "SystemSharedMemoryRegister",
    "SystemSharedMemoryStatus",
    "SystemSharedMemoryUnregister",
    "TraceSetting",
];

type Handler = Arc<dyn Fn(Request<RequestBody>) -> BoxFuture<Response<Body>, Infallible> + Send + Sync>;

/// The services of every connection.
#[derive(Clone)]
pub(crate) struct Services {
    /// By their names.
    list: Arc<[(&'static str, Handler)]>,
    pub shared: Arc<Shared>,
}

impl Services {
    /// The services, and what says from now on whether the server is ready; it is not yet.
    pub async fn new(shared: Arc<Shared>) -> Result<(Self, HealthReporter), tonic_reflection::server::Error> {
        let reporter = HealthReporter::new();
        for name in ["", SERVICE] {
            reporter.set_service_status(name, ServingStatus::NotServing).await;
        }
        // Answers are small, and every client says that it takes compressed ones: they are not.
        let inference = GrpcInferenceServiceServer::new(Service { shared: shared.clone() })
            .max_decoding_message_size(shared.options.limits.body)
            .accept_compressed(CompressionEncoding::Gzip)
            .accept_compressed(CompressionEncoding::Deflate);
        let reflection = || {
            Builder::configure()
                .register_encoded_file_descriptor_set(proto::DESCRIPTOR)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        let list = [
            (SERVICE, handler(inference)),
            (HEALTH, handler(HealthServer::new(HealthService::from_health_reporter(reporter.clone())))),
            ("grpc.reflection.v1.ServerReflection", handler(reflection().build_v1()?)),
            ("grpc.reflection.v1alpha.ServerReflection", handler(reflection().build_v1alpha()?)),
        ];
        Ok((Self { list: Arc::new(list), shared }, reporter))
    }

    /// The answer to a call, whatever it is.
    pub(super) async fn answer(&self, request: Request<Incoming>, activity: &Arc<Activity>) -> Response<AnswerBody> {
        let (open, working) = (Guard::open(activity), Guard::working(activity));
        let path = request.uri().path();
        let in_service =
            |name: &str| path.strip_prefix('/').and_then(|path| path.strip_prefix(name)).is_some_and(|rest| rest.starts_with('/'));
        let found = self.list.iter().find(|(name, _)| in_service(name));
        let ours = found.is_some_and(|(name, _)| *name == SERVICE);
        // A stream takes as long as its client wants. Those of inferences end by themselves where the server does.
        let streams = !ours || path.ends_with("/ModelStreamInfer");
        let handler =
            found.map(|(_, handler)| handler).ok_or_else(|| Status::unimplemented(format!("there is no service for {}", one_line(path))));
        let limits = &self.shared.options.limits;
        let authorization = request.headers().get(AUTHORIZATION).map(HeaderValue::as_bytes);
        let identified = self.shared.identify(authorization, role(request.uri().path())).map_err(|fault| {
            self.shared.refused.count(fault.kind);
            status(fault)
        });
        let principal = identified.as_ref().ok().cloned().flatten();
        // Without a key a client is not even told which services there are.
        let handler = identified.and(handler);
        let mut request = request.map(|body| RequestBody::new(body, (!streams).then_some(limits.body_time)));
        request.extensions_mut().insert(principal);
        let span = match &self.shared.spans {
            Some(spans) if ours => span(spans, &mut request),
            _ => None,
        };
        let answer = match handler {
            Ok(handler) => match handler(request).await {
                Ok(answer) => answer,
                Err(never) => match never {},
            },
            Err(unknown) => unknown.into_http(),
        };
        let answer = match Status::from_header_map(answer.headers()) {
            // Nothing else has this code.
            Some(status) if status.code() == Code::OutOfRange => {
                self.shared.refused.count(Kind::TooLarge);
                too_large(limits).into_http()
            }
            _ => answer,
        };
        if let Some(span) = span {
            span.end_grpc(Status::from_header_map(answer.headers()).map_or(Code::Ok, |status| status.code()));
        }
        let phase = (streams && !ours).then(|| self.shared.phase.clone());
        answer.map(|body| AnswerBody::new(body, open, streams.then_some(working), phase))
    }
}

/// A call's span, and what it stands below in the request; in a stream each request will have one.
fn span(spans: &Spans, request: &mut Request<RequestBody>) -> Option<Span> {
    let parent = spans.parent(request.headers());
    let method = request.uri().path().trim_start_matches('/').to_owned();
    match method.strip_prefix(SERVICE)? {
        "/ServerLive" | "/ServerReady" => None,
        "/ModelStreamInfer" => {
            request.extensions_mut().insert(parent);
            None
        }
        name => {
            let known = METHODS.contains(&name.trim_start_matches('/'));
            let span = spans.grpc(&parent, if known { &method } else { "_OTHER" })?;
            request.extensions_mut().insert(span.clone());
            Some(span)
        }
    }
}

/// What a key has to be good for; `None` where there need be none.
fn role(path: &str) -> Option<Role> {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or((path, ""));
    match (service, method) {
        (HEALTH, _) | (SERVICE, "ServerLive" | "ServerReady") => None,
        (SERVICE, "RepositoryModelLoad" | "RepositoryModelUnload" | "TraceSetting" | "LogSettings") => Some(Role::Admin),
        (SERVICE, memory) if memory.contains("SharedMemory") => Some(Role::Admin),
        _ => Some(Role::Infer),
    }
}

fn handler<S>(service: S) -> Handler
where
    S: Call<Request<RequestBody>, Response = Response<Body>, Error = Infallible, Future = BoxFuture<Response<Body>, Infallible>>,
    S: Clone + Send + Sync + 'static,
{
    Arc::new(move |request| service.clone().call(request))
}

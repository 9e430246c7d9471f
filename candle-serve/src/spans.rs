//! Spans of requests, for a collector of OpenTelemetry: which request of whom came when, what became of it, and how long its steps waited and
//! took. A client that sends `traceparent` has them as children of its own span, and says by the flag in it whether there are any.
//!
//! Spans are sent by a thread of their own. Where the collector is away they are dropped, and no request waits.

mod exporter;

use crate::log::Log;
use crate::options::Otlp;
use crate::trace::Trace;
use exporter::Exporter;
use hyper::{HeaderMap, Method, StatusCode};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanKind, Status, TraceContextExt, Tracer, TracerProvider};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_otlp::WithExportConfig;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracer, SdkTracerProvider};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tonic::Code;

/// How long the end of a server waits for the last spans to be sent.
const PATIENCE: Duration = Duration::from_secs(5);
const NAME: &str = "candle-serve";
/// Methods of HTTP.
static METHODS: [Method; 9] =
    [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::DELETE, Method::CONNECT, Method::OPTIONS, Method::TRACE, Method::PATCH];

/// What a span stands below: its client's, or nothing.
pub(crate) type Parent = Context;

/// What makes spans of a server.
pub(crate) struct Spans {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    propagator: TraceContextPropagator,
}

/// Headers of a request, over whatever protocol.
struct Headers<'a>(&'a HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let value = self.0.get(key)?.to_str().ok()?;
        // Whoever reads it takes shorter numbers as well, which are none of a trace.
        let whole = || value.trim().split('-').map(str::len).take(4).eq([2, 32, 16, 2]);
        (key != "traceparent" || whole()).then_some(value)
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

impl Spans {
    /// Spans for that collector, which need not be there yet. Has to be called on a runtime, which sends them.
    ///
    /// # Errors
    /// If the collector's address is none.
    pub fn new(Otlp { endpoint, rate }: &Otlp, log: Arc<Log>) -> Result<Self, String> {
        let exporter = opentelemetry_otlp::SpanExporter::builder().with_tonic().with_endpoint(endpoint).build();
        let exporter = Exporter::new(exporter.map_err(|e| format!("--otlp: {e}"))?, log);
        let named = ["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"].map(|name| std::env::var(name).unwrap_or_default());
        let mut resource = Resource::builder();
        if named[0].is_empty() && !named[1].contains("service.name=") {
            resource = resource.with_service_name(NAME);
        }
        let mut builder = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build());
        if let Some(rate) = rate {
            builder = builder.with_sampler(Sampler::ParentBased(Box::new(Sampler::TraceIdRatioBased(*rate))));
        }
        let provider = builder.build();
        let scope = InstrumentationScope::builder(NAME).with_version(env!("CARGO_PKG_VERSION")).build();
        Ok(Self { tracer: provider.tracer_with_scope(scope), provider, propagator: TraceContextPropagator::new() })
    }

    /// What a request belongs to.
    pub fn parent(&self, headers: &HeaderMap) -> Parent {
        self.propagator.extract_with_context(&Context::new(), &Headers(headers))
    }

    /// The span of a request that begins, if it is one of those that are exported.
    fn begin(&self, parent: &Parent, name: String, attributes: Vec<KeyValue>) -> Option<Span> {
        let moment = (Instant::now(), SystemTime::now());
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Server).with_start_time(moment.1).with_attributes(attributes);
        let context = Context::new().with_span(self.tracer.build_with_context(builder, parent));
        let recording = context.span().is_recording();
        recording.then(|| Span { context, tracer: self.tracer.clone(), moment })
    }

    /// The span of a page, by its method and the form of its path. What a client has made up is not told.
    pub fn http(&self, headers: &HeaderMap, method: &Method, route: Option<&'static str>) -> Option<Span> {
        let method = METHODS.iter().find(|known| *known == method).map_or("_OTHER", |known| known.as_str());
        let name = route.map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
        let mut attributes = vec![KeyValue::new("http.request.method", method)];
        attributes.extend(route.map(|route| KeyValue::new("http.route", route)));
        self.begin(&self.parent(headers), name, attributes)
    }

    /// The span of a call, or of a request of a stream.
    pub fn grpc(&self, parent: &Parent, method: &str) -> Option<Span> {
        let attributes = vec![KeyValue::new("rpc.system.name", "grpc"), KeyValue::new("rpc.method", method.to_owned())];
        self.begin(parent, method.to_owned(), attributes)
    }

    /// Sends what there is, for 5 s at most. It takes its time, and wants the runtime to go on meanwhile.
    pub fn stop(&self) {
        // The log has been told of what could not be sent.
        let _ = self.provider.shutdown_with_timeout(PATIENCE);
    }
}

/// A request whose span is exported in the end; also one that is given up, without a status.
#[derive(Clone)]
pub(crate) struct Span {
    context: Context,
    tracer: SdkTracer,
    /// When it began, on both clocks.
    moment: (Instant, SystemTime),
}

impl Span {
    /// What was found out about an inference: its model, and, where it came so far, how many rows it had, whether they were steps of
    /// sequences (whose ids may be somebody's names, and are not told), and the spans of its time in the queue and of its batch.
    pub fn inference(&self, model: &str, trace: &Trace) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("candle.model", model.to_owned()));
        let Some(step) = trace.stepped() else { return };
        span.set_attribute(KeyValue::new("candle.rows", step.rows as i64));
        span.set_attribute(KeyValue::new("candle.sequence", step.sequence));
        let time = |at: Instant| self.moment.1 + at.saturating_duration_since(self.moment.0);
        let child = |name: &'static str, from, to, attributes: Vec<KeyValue>| {
            let builder = self.tracer.span_builder(name).with_start_time(time(from)).with_attributes(attributes);
            let child = self.tracer.build_with_context(builder, &self.context);
            Context::new().with_span(child).span().end_with_timestamp(time(to));
        };
        child("queue", step.queue, step.compute, Vec::new());
        child("compute", step.compute, step.output, vec![KeyValue::new("candle.batch", step.batch as i64)]);
    }

    /// Ends it with the status of its answer.
    pub fn end_http(self, status: StatusCode) {
        let span = self.context.span();
        span.set_attribute(KeyValue::new("http.response.status_code", i64::from(status.as_u16())));
        // What a client has done wrong is no error of the server.
        self.end(status.is_server_error().then(|| status.as_str().to_owned()));
    }

    /// The same with a code of gRPC.
    pub fn end_grpc(self, code: Code) {
        let name = name(code);
        self.context.span().set_attribute(KeyValue::new("rpc.response.status_code", name));
        let servers =
            [Code::Unknown, Code::DeadlineExceeded, Code::Unimplemented, Code::Internal, Code::Unavailable, Code::DataLoss].contains(&code);
        self.end(servers.then(|| name.to_owned()));
    }

    fn end(self, error: Option<String>) {
        let span = self.context.span();
        if let Some(error) = error {
            span.set_status(Status::error(""));
            span.set_attribute(KeyValue::new("error.type", error));
        }
        span.end_with_timestamp(self.moment.1 + self.moment.0.elapsed());
    }
}

/// The names of codes, as the conventions want them.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

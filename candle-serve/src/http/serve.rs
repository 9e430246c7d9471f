//! What each page answers.

use super::body::{self, Encoding};
use super::reply::{self, Answer, HEADER_LENGTH, SEQUENCE_ID};
use super::route::Route;
use super::{openapi, sequence, settings, shared_memory};
use crate::fault::{Fault, Kind, one_line};
use crate::inference::Inference;
use crate::keys::{Principal, Role};
use crate::log;
use crate::metrics;
use crate::model::{Model, VERSION};
use crate::options::Limits;
use crate::protocol::answer::{Tensor, write};
use crate::protocol::describe::{IndexRequest, RepositoryRequest};
use crate::protocol::request::{InferRequest, SequenceId};
use crate::server::Shared;
use crate::spans::{Span, Spans};
use crate::statistics::{Report, Times};
use crate::trace::{Stages, Trace};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Instant;

/// The answer to a request, whatever it is.
pub(super) async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    let began = Instant::now();
    let (head, body) = request.into_parts();
    let span = shared.spans.as_ref().and_then(|spans| span(spans, &head));
    let result = page(shared, &head, body, span.as_ref()).await;
    let call = head.uri.path();
    let model = call.split('/').skip_while(|part| *part != "models").nth(1);
    shared.request(log::Request { protocol: "HTTP", call, model }, began.elapsed(), result.as_ref().err());
    let answer = result.unwrap_or_else(|fault| match Route::of(call) {
        Ok(route) if fault.kind == Kind::Method => reply::other_method(&fault, route.methods()),
        _ => reply::fault(&fault),
    });
    span.into_iter().for_each(|span| span.end_http(answer.status()));
    answer
}

/// The span of a request, if it is to be exported: of none that machines send all day to see how the server is.
fn span(spans: &Spans, head: &Parts) -> Option<Span> {
    let route = match Route::of(head.uri.path()) {
        Ok(Route::Live | Route::Ready | Route::Metrics) => return None,
        route => route.ok().map(|route| route.template()),
    };
    spans.http(&head.headers, &head.method, route)
}

async fn page(shared: &Arc<Shared>, head: &Parts, body: Incoming, span: Option<&Span>) -> Result<Answer, Fault> {
    let route = Route::of(head.uri.path());
    let principal = identify(shared, &head.headers, route.as_ref().ok())?;
    let route = route?;
    if !route.methods().contains(&head.method) {
        let names = route.methods().iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
        return Err(Fault::new(Kind::Method, format!("expected {names}, found {}", head.method)));
    }
    let models = &shared.repository;
    let body = Received { headers: &head.headers, body, limits: &shared.options.limits };
    match route {
        Route::Server => Ok(reply::json(&shared.metadata())),
        Route::Live => Ok(reply::empty()),
        Route::Ready => ready(shared),
        Route::Metrics => Ok(reply::bytes(metrics::text(shared), "text/plain; version=0.0.4; charset=utf-8")),
        Route::Docs => Ok(reply::html(openapi::page())),
        Route::OpenApi => Ok(reply::json(&openapi::document())),
        Route::Model(name) => Ok(reply::json(&models.model(name)?.metadata())),
        Route::ModelReady(name) => models.model(name).map(|_| reply::empty()),
        Route::Config(name) => Ok(reply::json(&shared.config(&*models.model(name)?))),
        Route::Stats(name) => Ok(statistics(&shared.models(name)?)),
        Route::Infer(name) => infer(shared, name, principal, (body, span)).await,
        Route::Index => {
            let IndexRequest { ready } = body.json().await?;
            Ok(reply::json(&shared.index(ready).await?))
        }
        Route::Load(name) => {
            let request: RepositoryRequest = body.json().await?;
            shared.load(name, request.parameters.keys().map(String::as_str)).await.map(|()| reply::empty())
        }
        Route::Unload(name) => {
            let RepositoryRequest { .. } = body.json().await?;
            shared.unload(name).await.map(|()| reply::empty())
        }
        Route::Sequence(name, id) if head.method == Method::DELETE => {
            sequence::delete(&*models.model(name)?, &sequence::name(&principal, &id)?).await
        }
        Route::Sequence(name, id) => sequence::get(&*models.model(name)?, &sequence::name(&principal, &id)?).await,
        Route::State(name, id) if head.method == Method::GET => {
            sequence::save(&*models.model(name)?, &sequence::name(&principal, &id)?).await
        }
        Route::State(name, id) => sequence::restore(&*models.model(name)?, &sequence::name(&principal, &id)?, body.read().await?).await,
        Route::Fork(name, id) => {
            sequence::fork(&*models.model(name)?, &principal, &sequence::name(&principal, &id)?, body.json().await?).await
        }
        Route::Regions(name) => shared_memory::status(&shared.regions, name.as_deref()),
        Route::Register(name) => shared_memory::register(&shared.regions, &name, body.required().await?),
        Route::Unregister(name) => shared_memory::unregister(&shared.regions, name.as_deref()),
        Route::Logging if head.method == Method::GET => settings::log(&shared.log, None),
        Route::Logging => settings::log(&shared.log, Some(body.required().await?)),
        Route::Trace(name) => {
            name.map_or(Ok(()), |name| models.model(name).map(drop))?;
            let change = if head.method == Method::POST { Some(body.required().await?) } else { None };
            settings::trace(&shared.traces, name, change)
        }
        Route::CudaRegions => Ok(reply::json(&[(); 0])),
    }
}

/// Who asks, if that may see the page. Without a key only the pages of health are answered, and not even said which others there are.
fn identify(shared: &Shared, headers: &HeaderMap, route: Option<&Route<'_>>) -> Result<Principal, Fault> {
    let needed = route.map_or(Some(Role::Infer), Route::role);
    shared.identify(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes), needed)
}

/// A body that is on its way.
struct Received<'a> {
    headers: &'a HeaderMap,
    body: Incoming,
    limits: &'a Limits,
}

impl Received<'_> {
    async fn read(self) -> Result<Bytes, Fault> {
        body::read(self.headers, self.body, self.limits).await
    }

    /// Its JSON; of an empty one the defaults.
    async fn json<T: DeserializeOwned + Default>(self) -> Result<T, Fault> {
        let bytes = self.read().await?;
        if bytes.iter().all(u8::is_ascii_whitespace) { Ok(T::default()) } else { parse(&bytes) }
    }

    /// Its JSON, which there has to be.
    async fn required<T: DeserializeOwned>(self) -> Result<T, Fault> {
        parse(&self.read().await?)
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Fault> {
    serde_json::from_slice(body).map_err(|e| Fault::input(format!("request: {}", one_line(&e.to_string()))))
}

fn ready(shared: &Shared) -> Result<Answer, Fault> {
    match shared.readiness() {
        None => Ok(reply::empty()),
        Some(reason) => Err(Fault::new(Kind::Unavailable, reason)),
    }
}

#[derive(Serialize)]
struct AllStatistics<'a> {
    model_stats: Vec<Report<'a>>,
}

fn statistics(models: &[Arc<Model>]) -> Answer {
    let model_stats = models.iter().map(|model| model.report()).collect();
    reply::json(&AllStatistics { model_stats })
}

async fn infer(
    shared: &Arc<Shared>,
    name: &str,
    principal: Principal,
    (body, span): (Received<'_>, Option<&Span>),
) -> Result<Answer, Fault> {
    let model = shared.repository.model(name)?;
    let mut trace = shared.traces.begin(name, span.is_some());
    let answer = model.counted(inferred(shared, &model, principal, body, &mut trace)).await;
    shared.finish(name, trace, span);
    answer
}

async fn inferred(
    shared: &Shared,
    model: &Model,
    principal: Principal,
    body: Received<'_>,
    trace: &mut Option<Trace>,
) -> Result<(Answer, usize, Times), Fault> {
    let headers = body.headers;
    trace.stage("HTTP_RECV_START");
    let (header, sequence) = (header_length(headers)?, sequence_id(headers)?);
    let body = body.read().await?;
    trace.stage("HTTP_RECV_END");
    trace.stage("REQUEST_START");
    let inference = match header {
        Some(0) => Inference::bare(&model.signature, principal, body, sequence)?,
        _ => {
            let request = InferRequest::parse(&body, header, sequence)?;
            Inference::new((&model.signature, model.max_batch), &shared.regions, principal, &request)?
        }
    };
    let write = |tensors: &[Tensor<'_>]| write((&model.name, VERSION), inference.id.as_deref(), tensors);
    // The next request of a sequence need not wait for the compression.
    let ((body, length), times) = model.infer(&inference, trace, write).await?;
    trace.step(&times, &inference);
    trace.stage("REQUEST_END");
    let answer = reply::inference(body, length, Encoding::wanted(headers)).await?;
    trace.stage("HTTP_SEND_START");
    Ok((answer, inference.rows, times))
}

fn header_length(headers: &HeaderMap) -> Result<Option<usize>, Fault> {
    let Some(value) = headers.get(&HEADER_LENGTH) else { return Ok(None) };
    let text = value.to_str().unwrap_or_default().trim();
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let length = digits.then(|| text.parse().ok()).flatten();
    length
        .map(Some)
        .ok_or_else(|| Fault::input(format!("Inference-Header-Content-Length: expected a number of bytes, found {}", one_line(text))))
}

/// The sequence that a balancer can see.
fn sequence_id(headers: &HeaderMap) -> Result<Option<SequenceId>, Fault> {
    let Some(value) = headers.get(&SEQUENCE_ID) else { return Ok(None) };
    let text =
        std::str::from_utf8(value.as_bytes()).map_err(|_| Fault::input("x-sequence-id: expected a text in UTF-8, found other bytes"))?;
    SequenceId::text(text.trim())
}

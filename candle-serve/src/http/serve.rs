//! What each page answers.

use super::body::{self, Encoding};
use super::reply::{self, Answer, HEADER_LENGTH};
use super::route::Route;
use super::sequence;
use crate::fault::{Fault, Kind, one_line};
use crate::inference::Inference;
use crate::metrics;
use crate::model::{Model, VERSION};
use crate::operations::SERVER;
use crate::protocol::answer::{Tensor, write};
use crate::protocol::describe::{IndexRequest, RepositoryRequest};
use crate::protocol::request::InferRequest;
use crate::server::Shared;
use crate::statistics::{Report, Times};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The answer to a request, whatever it is.
pub(super) async fn answer(shared: &Arc<Shared>, request: Request<Incoming>) -> Answer {
    page(shared, request).await.unwrap_or_else(|fault| reply::fault(&fault))
}

async fn page(shared: &Arc<Shared>, request: Request<Incoming>) -> Result<Answer, Fault> {
    let (head, body) = request.into_parts();
    let route = Route::of(head.uri.path())?;
    if !route.methods().contains(&head.method) {
        return Ok(reply::other_method(&head.method, route.methods()));
    }
    let limits = &shared.options.limits;
    let models = &shared.repository;
    match route {
        Route::Server => Ok(reply::json(&SERVER)),
        Route::Live => Ok(reply::empty()),
        Route::Ready => ready(shared),
        Route::Metrics => Ok(reply::bytes(metrics::text(&models.served()), "text/plain; version=0.0.4; charset=utf-8")),
        Route::Model(name) => Ok(reply::json(&models.model(name)?.metadata())),
        Route::ModelReady(name) => models.model(name).map(|_| reply::empty()),
        Route::Config(name) => Ok(reply::json(&shared.config(&*models.model(name)?))),
        Route::Stats(name) => Ok(statistics(&shared.models(name)?)),
        Route::Infer(name) => infer(shared, name, &head.headers, body).await,
        Route::Index => {
            let IndexRequest { ready } = parse(&body::read(&head.headers, body, limits).await?)?;
            Ok(reply::json(&shared.index(ready).await?))
        }
        Route::Load(name) => {
            let request: RepositoryRequest = parse(&body::read(&head.headers, body, limits).await?)?;
            shared.load(name, request.parameters.keys().map(String::as_str)).await.map(|()| reply::empty())
        }
        Route::Unload(name) => {
            let RepositoryRequest { .. } = parse(&body::read(&head.headers, body, limits).await?)?;
            shared.unload(name).await.map(|()| reply::empty())
        }
        Route::Sequence(name, id) => {
            let model = models.model(name)?;
            if head.method == Method::DELETE { sequence::delete(&model, &id).await } else { sequence::get(&model, &id).await }
        }
        Route::State(name, id) => {
            let model = models.model(name)?;
            if head.method == Method::GET {
                return sequence::save(&model, &id).await;
            }
            sequence::restore(&model, &id, body::read(&head.headers, body, limits).await?).await
        }
        Route::Fork(name, id) => {
            let model = models.model(name)?;
            sequence::fork(&model, &id, parse(&body::read(&head.headers, body, limits).await?)?).await
        }
    }
}

/// The JSON of a body; of an empty one the defaults.
fn parse<T: DeserializeOwned + Default>(body: &Bytes) -> Result<T, Fault> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok(T::default());
    }
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

async fn infer(shared: &Arc<Shared>, name: &str, headers: &HeaderMap, body: Incoming) -> Result<Answer, Fault> {
    let model = shared.repository.model(name)?;
    model.counted(inferred(shared, &model, headers, body)).await
}

async fn inferred(shared: &Shared, model: &Model, headers: &HeaderMap, body: Incoming) -> Result<(Answer, usize, Times), Fault> {
    let header = header_length(headers)?;
    let body = body::read(headers, body, &shared.options.limits).await?;
    let inference = match header {
        Some(0) => Inference::bare(&model.signature, body)?,
        _ => Inference::new(&model.signature, model.max_batch, &InferRequest::parse(&body, header)?)?,
    };
    let write = |tensors: &[Tensor<'_>]| write((&model.name, VERSION), inference.id.as_deref(), tensors);
    // The next request of a sequence need not wait for the compression.
    let ((body, length), times) = model.infer(&inference, write).await?;
    Ok((reply::inference(body, length, Encoding::wanted(headers)).await?, inference.rows, times))
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

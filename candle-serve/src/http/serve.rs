//! What each page answers.

use super::body::{self, Encoding, work};
use super::reply::{self, Answer, HEADER_LENGTH, SEQUENCE_ID};
use super::route::Route;
use super::sequence;
use crate::fault::{Fault, Kind, one_line};
use crate::inference::{Inference, unsupported};
use crate::metrics;
use crate::model::{Model, VERSION};
use crate::protocol::answer::write;
use crate::protocol::describe::{EXTENSIONS, IndexRequest, ModelConfig, ModelMetadata, RepositoryRequest, Served, ServerMetadata};
use crate::protocol::request::{InferRequest, SequenceId};
use crate::server::Shared;
use crate::statistics::Report;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::{HeaderMap, Method, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Instant;

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
        Route::Server => {
            let (name, version) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
            Ok(reply::json(&ServerMetadata { name, version, extensions: EXTENSIONS }))
        }
        Route::Live => Ok(reply::empty()),
        Route::Ready => ready(shared),
        Route::Metrics => Ok(reply::bytes(metrics::text(&models.served()), "text/plain; version=0.0.4; charset=utf-8")),
        Route::Model(name) => {
            let model = models.model(name)?;
            Ok(reply::json(&ModelMetadata::new(&model.name, VERSION, &model.signature)))
        }
        Route::ModelReady(name) => models.model(name).map(|_| reply::empty()),
        Route::Config(name) => {
            let model = models.model(name)?;
            Ok(config(shared, &model))
        }
        Route::Stats(name) => {
            let models = match name {
                Some(name) => vec![models.model(name)?],
                None => models.served(),
            };
            Ok(statistics(&models))
        }
        Route::Infer(name) => infer(shared, name, &head.headers, body).await,
        Route::Index => {
            let IndexRequest { ready } = parse(&body::read(&head.headers, body, limits).await?)?;
            let shared = shared.clone();
            Ok(reply::json(&work(move || shared.repository.index(ready)).await?))
        }
        Route::Load(name) => {
            plain(&parse(&body::read(&head.headers, body, limits).await?)?)?;
            let (shared, name) = (shared.clone(), name.to_owned());
            // It is finished even where the client does not wait for it.
            work(move || shared.repository.load(&name)).await?.map(|()| reply::empty())
        }
        Route::Unload(name) => {
            // A model here depends on no other: `unload_dependents` asks for nothing.
            let RepositoryRequest { .. } = parse(&body::read(&head.headers, body, limits).await?)?;
            let (shared, name) = (shared.clone(), name.to_owned());
            work(move || shared.repository.unload(&name)).await?.map(|()| reply::empty())
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

/// A bundle is loaded as it lies there: what asks for something else is refused.
fn plain(request: &RepositoryRequest) -> Result<(), Fault> {
    match request.parameters.keys().find(|name| *name == "config" || name.starts_with("file:")) {
        Some(name) => Err(unsupported(format_args!("the parameter {} of a load", one_line(name)))),
        None => Ok(()),
    }
}

fn ready(shared: &Shared) -> Result<Answer, Fault> {
    match shared.readiness() {
        None => Ok(reply::empty()),
        Some(reason) => Err(Fault::new(Kind::Unavailable, reason)),
    }
}

fn config(shared: &Shared, model: &Model) -> Answer {
    let served = Served {
        max_batch: model.max_batch,
        sessions: shared.repository.options().sessions,
        idle: shared.repository.idle().as_micros() as u64,
    };
    reply::json(&ModelConfig::new(&model.name, &model.family, &model.signature, served))
}

#[derive(Serialize)]
struct AllStatistics<'a> {
    model_stats: Vec<Report<'a>>,
}

fn statistics(models: &[Arc<Model>]) -> Answer {
    let model_stats = models.iter().map(|model| model.statistics.report(&model.name, &model.engine.stats())).collect();
    reply::json(&AllStatistics { model_stats })
}

async fn infer(shared: &Arc<Shared>, name: &str, headers: &HeaderMap, body: Incoming) -> Result<Answer, Fault> {
    let model = shared.repository.model(name)?;
    let running = model.statistics.begin();
    match inferred(shared, &model, headers, body).await {
        Ok((answer, rows, times)) => {
            running.success(rows, &times);
            Ok(answer)
        }
        Err(fault) => {
            running.fail(&fault);
            Err(fault)
        }
    }
}

async fn inferred(
    shared: &Shared,
    model: &Model,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(Answer, usize, crate::statistics::Times), Fault> {
    let (header, sequence) = (header_length(headers)?, sequence_id(headers)?);
    let body = body::read(headers, body, &shared.options.limits).await?;
    let inference = match header {
        Some(0) => Inference::bare(&model.signature, body, sequence)?,
        _ => Inference::new(&model.signature, model.max_batch, &InferRequest::parse(&body, header, sequence)?)?,
    };
    let mut stepped = model.step(&inference).await?;
    let began = Instant::now();
    let tensors = stepped.tensors(&model.signature, &inference)?;
    let (body, length) = write((&model.name, VERSION), inference.id.as_deref(), &tensors);
    drop(tensors);
    stepped.times.output = began.elapsed();
    let times = stepped.times;
    // The next request of a sequence need not wait for the compression.
    drop(stepped);
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

/// The sequence that a balancer can see.
fn sequence_id(headers: &HeaderMap) -> Result<Option<SequenceId>, Fault> {
    let Some(value) = headers.get(&SEQUENCE_ID) else { return Ok(None) };
    let text =
        std::str::from_utf8(value.as_bytes()).map_err(|_| Fault::input("x-sequence-id: expected a text in UTF-8, found other bytes"))?;
    SequenceId::text(text.trim())
}

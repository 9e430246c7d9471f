//! What each page answers.

use super::body::{self, Encoding, work};
use super::reply::{self, Answer, HEADER_LENGTH};
use super::route::Route;
use super::sequence;
use crate::fault::{Fault, Kind, one_line};
use crate::inference::{Inference, unsupported};
use crate::keys::{Principal, Role};
use crate::metrics;
use crate::model::{Model, VERSION};
use crate::protocol::answer::write;
use crate::protocol::describe::{EXTENSIONS, IndexRequest, ModelConfig, ModelMetadata, RepositoryRequest, Served, ServerMetadata};
use crate::protocol::request::InferRequest;
use crate::server::Shared;
use crate::statistics::Report;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{AUTHORIZATION, HeaderValue};
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
    let route = Route::of(head.uri.path());
    let principal = identify(shared, &head.headers, route.as_ref().ok())?;
    let route = route?;
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
        Route::Infer(name) => infer(shared, name, principal, &head.headers, body).await,
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
            let (model, id) = (models.model(name)?, sequence::name(&principal, &id)?);
            if head.method == Method::DELETE { sequence::delete(&model, &id).await } else { sequence::get(&model, &id).await }
        }
        Route::State(name, id) => {
            let (model, id) = (models.model(name)?, sequence::name(&principal, &id)?);
            if head.method == Method::GET {
                return sequence::save(&model, &id).await;
            }
            sequence::restore(&model, &id, body::read(&head.headers, body, limits).await?).await
        }
        Route::Fork(name, id) => {
            let (model, id) = (models.model(name)?, sequence::name(&principal, &id)?);
            sequence::fork(&model, &principal, &id, parse(&body::read(&head.headers, body, limits).await?)?).await
        }
    }
}

/// Who asks, if that may see the page. Without a key only the pages of health are answered, and not even said which others there are.
fn identify(shared: &Shared, headers: &HeaderMap, route: Option<&Route<'_>>) -> Result<Principal, Fault> {
    let (Some(keys), Some(needed)) = (&shared.keys, route.map_or(Some(Role::Infer), Route::role)) else { return Ok(None) };
    keys.check(headers.get(AUTHORIZATION).map(HeaderValue::as_bytes), needed).map(Some)
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

async fn infer(shared: &Arc<Shared>, name: &str, principal: Principal, headers: &HeaderMap, body: Incoming) -> Result<Answer, Fault> {
    let model = shared.repository.model(name)?;
    let running = model.statistics.begin();
    match inferred(shared, &model, principal, headers, body).await {
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
    principal: Principal,
    headers: &HeaderMap,
    body: Incoming,
) -> Result<(Answer, usize, crate::statistics::Times), Fault> {
    let header = header_length(headers)?;
    let body = body::read(headers, body, &shared.options.limits).await?;
    let mut inference = match header {
        Some(0) => Inference::bare(&model.signature, body)?,
        _ => Inference::new(&model.signature, model.max_batch, &InferRequest::parse(&body, header)?)?,
    };
    inference.principal = principal;
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

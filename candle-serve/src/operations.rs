//! What a server can be asked, whatever protocol it is asked by.

use crate::fault::{Fault, Kind, one_line};
use crate::inference::{Inference, unsupported};
use crate::log;
use crate::model::{Model, VERSION};
use crate::protocol::answer::Tensor;
use crate::protocol::describe::{IndexEntry, ModelConfig, ModelMetadata, Served, ServerMetadata};
use crate::server::Shared;
use crate::spans::Span;
use crate::statistics::{Report, Times};
use crate::trace::Trace;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Does something that takes its time where nobody waits for it. It is finished even where the client does not wait for it.
pub(crate) async fn work<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Fault> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| Fault::new(Kind::Failed, panic.to_string()))
}

/// A model has one version.
pub(crate) fn check_version(model: &str, version: &str) -> Result<(), Fault> {
    if version == VERSION {
        return Ok(());
    }
    let reason = format!("model '{}' has version {VERSION}, and no version {}", one_line(model), one_line(version));
    Err(Fault::new(Kind::NotFound, reason))
}

impl Shared {
    /// What the server is.
    pub fn metadata(&self) -> ServerMetadata {
        ServerMetadata { name: env!("CARGO_PKG_NAME"), version: env!("CARGO_PKG_VERSION"), extensions: self.extensions() }
    }

    /// How a model is served.
    pub fn config<'a>(&self, model: &'a Model) -> ModelConfig<'a> {
        let served = Served {
            max_batch: model.max_batch,
            sessions: self.repository.options().sessions,
            idle: self.repository.idle().as_micros() as u64,
        };
        ModelConfig::new(&model.name, &model.family, &model.signature, served)
    }

    /// Counts a request that is answered, or refused, and tells the log of it.
    pub fn request(&self, request: log::Request<'_>, time: Duration, fault: Option<&Fault>) {
        fault.into_iter().for_each(|fault| self.refused.count(fault.kind));
        self.log.request(request, time, fault);
    }

    /// Writes a trace of a request to a model, if there is one, and tells the request's span of it.
    pub fn finish(&self, model: &str, trace: Option<Trace>, span: Option<&Span>) {
        let Some(trace) = trace else { return };
        self.traces.finish(model, &trace).unwrap_or_else(|error| self.log.trace_lost(&error));
        span.into_iter().for_each(|span| span.inference(model, &trace));
    }

    /// One model, or all that are served.
    pub fn models(&self, name: Option<&str>) -> Result<Vec<Arc<Model>>, Fault> {
        match name {
            Some(name) => Ok(vec![self.repository.model(name)?]),
            None => Ok(self.repository.served()),
        }
    }

    /// Every model with its state.
    pub async fn index(self: &Arc<Self>, ready: bool) -> Result<Vec<IndexEntry>, Fault> {
        let shared = self.clone();
        work(move || shared.repository.index(ready)).await
    }

    /// Loads a bundle as it lies there: parameters that ask for something else are refused.
    pub async fn load<'p>(self: &Arc<Self>, name: &str, mut parameters: impl Iterator<Item = &'p str>) -> Result<(), Fault> {
        if let Some(parameter) = parameters.find(|name| *name == "config" || name.starts_with("file:")) {
            return Err(unsupported(format_args!("the parameter {} of a load", one_line(parameter))));
        }
        let (shared, name) = (self.clone(), name.to_owned());
        work(move || shared.repository.load(&name)).await?
    }

    /// Stops serving a model. A model here depends on no other: `unload_dependents` asks for nothing.
    pub async fn unload(self: &Arc<Self>, name: &str) -> Result<(), Fault> {
        let (shared, name) = (self.clone(), name.to_owned());
        work(move || shared.repository.unload(&name)).await?
    }
}

impl Model {
    /// Its tensors.
    pub fn metadata(&self) -> ModelMetadata<'_> {
        ModelMetadata::new(&self.name, VERSION, &self.signature)
    }

    /// What it has been asked.
    pub fn report(&self) -> Report<'_> {
        self.statistics.report(&self.name, &self.engine.stats())
    }

    /// Counts a request and what becomes of it: `answered` gives the answer, how many rows it had, and where its time went.
    pub async fn counted<T>(&self, answered: impl Future<Output = Result<(T, usize, Times), Fault>>) -> Result<T, Fault> {
        let running = self.statistics.begin();
        match answered.await {
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

    /// Steps the rows of a request, and has the outputs written before their sequences go on.
    pub async fn infer<T>(
        &self,
        inference: &Inference,
        trace: &mut Option<Trace>,
        write: impl FnOnce(&[Tensor<'_>]) -> T,
    ) -> Result<(T, Times), Fault> {
        let mut stepped = self.step(inference, trace).await?;
        let began = Instant::now();
        let tensors = stepped.tensors(&self.signature, inference)?;
        let answer = write(&tensors);
        if let Some(trace) = trace.as_mut().filter(|trace| trace.has_tensors()) {
            trace.outputs(&tensors);
        }
        stepped.times.output = began.elapsed();
        Ok((answer, stepped.times))
    }
}

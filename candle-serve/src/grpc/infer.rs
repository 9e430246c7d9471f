//! An inference, from its message to the answer's.

use super::convert;
use super::metadata::Beside;
use crate::fault::Fault;
use crate::inference::Inference;
use crate::keys::Principal;
use crate::log;
use crate::operations::check_version;
use crate::places::NAME_LIMIT;
use crate::proto::{ModelInferRequest, ModelInferResponse};
use crate::protocol::answer::Tensor;
use crate::server::Shared;
use crate::spans::Span;
use crate::trace::Stages;
use std::time::Instant;

/// Answers a request. Dropping the future gives the step up.
pub(super) async fn infer(
    shared: &Shared,
    principal: &Principal,
    message: &ModelInferRequest,
    beside: Beside,
    span: Option<&Span>,
) -> Result<ModelInferResponse, Fault> {
    let began = Instant::now();
    let answered = inferred(shared, principal, message, beside, span).await;
    tell(shared, "ModelInfer", &message.model_name, began, answered.as_ref().err());
    answered
}

async fn inferred(
    shared: &Shared,
    principal: &Principal,
    message: &ModelInferRequest,
    beside: Beside,
    span: Option<&Span>,
) -> Result<ModelInferResponse, Fault> {
    version(&message.model_name, &message.model_version)?;
    let model = shared.repository.model(&message.model_name)?;
    let mut trace = shared.traces.begin(&model.name, span.is_some());
    let answered = async {
        trace.stage("REQUEST_START");
        let request = convert::request(message, beside)?;
        let inference = Inference::new((&model.signature, model.max_batch), &shared.regions, principal.clone(), &request)?;
        let write = |tensors: &[Tensor<'_>]| convert::answer(&model, inference.id.as_deref(), tensors);
        let (answer, times) = model.infer(&inference, &mut trace, write).await?;
        trace.step(&times, &inference);
        trace.stage("REQUEST_END");
        Ok((answer, inference.rows, times))
    };
    let answer = model.counted(answered).await;
    shared.finish(&model.name, trace, span);
    answer
}

/// Tells the log of a call that is answered, or refused. A name that no model can have is not repeated: it can be as long as a message.
pub(super) fn tell(shared: &Shared, call: &str, model: &str, began: Instant, fault: Option<&Fault>) {
    let model = Some(model).filter(|model| (1..=NAME_LIMIT).contains(&model.len()));
    shared.request(log::Request { protocol: "gRPC", call, model }, began.elapsed(), fault);
}

/// A message without a version means the only one.
pub(super) fn version(model: &str, version: &str) -> Result<(), Fault> {
    if version.is_empty() { Ok(()) } else { check_version(model, version) }
}

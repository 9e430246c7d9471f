//! An inference, from its message to the answer's.

use super::convert;
use crate::fault::Fault;
use crate::inference::Inference;
use crate::keys::Principal;
use crate::operations::check_version;
use crate::proto::{ModelInferRequest, ModelInferResponse};
use crate::protocol::answer::Tensor;
use crate::server::Shared;
use std::time::Duration;

/// Answers a client that waits for `limit`. Dropping the future gives the step up.
pub(super) async fn infer(
    shared: &Shared,
    principal: &Principal,
    message: &ModelInferRequest,
    limit: Option<Duration>,
) -> Result<ModelInferResponse, Fault> {
    version(&message.model_name, &message.model_version)?;
    let model = shared.repository.model(&message.model_name)?;
    let answered = async {
        let mut inference = Inference::new(&model.signature, model.max_batch, &shared.regions, &convert::request(message, limit)?)?;
        inference.principal = principal.clone();
        let write = |tensors: &[Tensor<'_>]| convert::answer(&model, inference.id.as_deref(), tensors);
        let (answer, times) = model.infer(&inference, write).await?;
        Ok((answer, inference.rows, times))
    };
    model.counted(answered).await
}

/// A message without a version means the only one.
pub(super) fn version(model: &str, version: &str) -> Result<(), Fault> {
    if version.is_empty() { Ok(()) } else { check_version(model, version) }
}

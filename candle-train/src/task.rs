//! What is trained: a source of losses over parameters that the [`Trainer`](crate::trainer::Trainer) updates.

use crate::parallel::Communicator;
use candle_core::Tensor;
use candle_models::Result;
use candle_models::nn::Params;
use candle_models::tensors::NamedTensors;
use std::collections::BTreeMap;
use std::time::Duration;

/// The loss of this rank's share of one micro batch.
#[derive(Debug)]
pub struct Loss {
    /// The scalar to differentiate: a mean over the samples.
    pub value: Tensor,
    /// Its shares `[k]` for the metrics, means as well: read after the step, together with the loss.
    pub parts: Tensor,
    /// Their names.
    pub names: &'static [&'static str],
    /// How much it counts: its samples over those of the whole micro batch, samples without weight left out. 1 for a run of one
    /// rank whose samples all count.
    pub weight: f64,
    /// Samples in it.
    pub samples: usize,
    /// How long the task waited for its data.
    pub waited: Duration,
}

/// A source of losses. One micro batch after the other comes from a cursor that can be saved; every rank takes its share of each
/// ([`share`](crate::parallel::share)).
pub trait Task {
    /// What a sample is called: `frames`.
    fn unit(&self) -> &'static str;

    /// The loss of the next micro batch. `parameters` are this step's: in the dtype to compute in, rounded where the run trains for
    /// 8 bits; gradients flow through them to what the trainer updates.
    fn loss(&mut self, parameters: &Params) -> Result<Loss>;

    /// Drops what it carries between batches, after a step that was not finite.
    fn forget(&mut self) -> Result<()> {
        Ok(())
    }

    /// Results of these parameters (the moving average) on held-out data, none without such data; `score` among them decides
    /// which checkpoint is best: lower is better. Each rank measures a share, and all return the same.
    fn evaluate(&mut self, _parameters: &Params, _ranks: &dyn Communicator) -> Result<BTreeMap<String, f64>> {
        Ok(BTreeMap::new())
    }

    /// Carried tensors, with this rank's share of the batch as their first axis, on the host; and the place in the data.
    fn save(&self) -> Result<(NamedTensors, serde_json::Value)>;

    /// Continues from what [`Self::save`] gave.
    fn restore(&mut self, carried: &NamedTensors, cursor: &serde_json::Value) -> Result<()>;
}

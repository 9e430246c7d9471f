//! What every training step that is measured ends with: gradients of a loss, and the update that they make.

use anyhow::{Context, Result};
use candle_core::{Tensor, Var};
use candle_train::gradients::Gradients;
use candle_train::optim::{Optimiser, OptimiserConfig, ParameterGroup};
use std::collections::BTreeMap;

/// As in the peer's program.
const LEARNING_RATE: f64 = 1e-3;

/// Parameters and what updates them.
pub(crate) struct Update {
    /// The parameters.
    pub vars: BTreeMap<String, Var>,
    /// Those of the last loss.
    pub gradients: Gradients,
    optimiser: Optimiser,
    learning_rate: f64,
}

impl Update {
    /// Updates of those parameters, none made yet.
    pub fn new(vars: BTreeMap<String, Var>, optimiser: OptimiserConfig, learning_rate: f64) -> Result<Self> {
        let (gradients, mut optimiser) = (Gradients::zeros(&vars)?, Optimiser::new(optimiser, &vars)?);
        // As the tasks of the trainer have it.
        optimiser.set_groups(|name, shape| ParameterGroup::with_mamba(name, shape.len()))?;
        Ok(Self { vars, gradients, optimiser, learning_rate })
    }

    /// Updates as the peer makes them: without decay and clipping, for the two sides treat these differently.
    pub fn like_the_peer(vars: BTreeMap<String, Var>) -> Result<Self> {
        Self::new(vars, OptimiserConfig { weight_decay: 0.0, clip: 0.0, ..OptimiserConfig::default() }, LEARNING_RATE)
    }

    /// Backward and one update; the loss.
    pub fn by(&mut self, loss: &Tensor) -> Result<f32> {
        self.gradients.clear();
        self.gradients.add(&self.vars, &loss.backward()?)?;
        let step = self.optimiser.step(&self.gradients, &loss.detach().reshape(1)?, self.learning_rate)?;
        step.figures.first().copied().context("no loss came back")
    }
}

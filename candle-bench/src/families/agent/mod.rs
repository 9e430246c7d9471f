//! Agents by description: bundles and what their signatures say are what is measured.

use crate::family::BenchFamily;
use anyhow::Result;
use candle_models::agent::{AgentConfig, AgentFamily};
use candle_models::bundle::Bundle;

impl BenchFamily for AgentFamily {
    fn attention_window(&self, bundle: &Bundle) -> Result<Option<usize>> {
        Ok(bundle.config::<AgentConfig>()?.backbone.window())
    }
}

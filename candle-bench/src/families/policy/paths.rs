//! Paths of policies whose instructions are counted.

use super::updates::Windows;
use crate::calls::Inputs;
use crate::case::{Case, Pass};
use crate::instructions::{Calls, HotPath, engine_calls};
use crate::update::Update;
use anyhow::{Context, Result};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::nn::Params;
use candle_models::policy::{BackboneConfig, Policy, PolicyConfig, PolicyFamily, replay};
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use std::path::Path;

/// A bundle to read.
const BUNDLE: &str = "weights/policy-mlp";
/// Sequences and frames of a training step.
const TRAINED: (usize, usize) = (2, 8);

/// Frames and windows of policies of usual sizes, a training step, and the reading of replays and bundles.
pub(super) fn paths() -> Vec<HotPath> {
    vec![
        HotPath::steps("mlp-step-f32", |scratch| usual("mlp", "f32", Pass::Step, scratch)),
        HotPath::steps("mlp-step-q8", |scratch| usual("mlp", "q8", Pass::Step, scratch)),
        HotPath::steps("mamba-step-f32", |scratch| usual("mamba", "f32", Pass::Step, scratch)),
        HotPath::steps("mamba-step-q8", |scratch| usual("mamba", "q8", Pass::Step, scratch)),
        HotPath::once("mlp-window-f32", |scratch| usual("mlp", "f32", Pass::Window, scratch)),
        HotPath::once("mamba-window-f32", |scratch| usual("mamba", "f32", Pass::Window, scratch)),
        HotPath::once("training-step", |_| training()),
        HotPath::once("replay", |_| replay()),
        HotPath::once("bundle", |_| bundle()),
    ]
}

fn usual(kind: &str, dtype: &str, pass: Pass, scratch: &Path) -> Result<Calls> {
    engine_calls(&super::usual(kind, scratch)?, dtype, pass, scratch)
}

/// Forward, backward and update of a small Mamba policy. Narrow enough that no product has more than 512 terms, from where on the product's
/// blocks follow the host's caches.
fn training() -> Result<Calls> {
    let backbone = BackboneConfig::named("mamba").context("no backbone mamba")?;
    let config = PolicyConfig { hidden: 64, embedding: 16, backbone, ..PolicyConfig::default() };
    let params = Params::init(Random::new(2).stream("weights"), &Device::Cpu);
    let policy = Policy::new(&config, &params)?;
    let case = Case::of(&config.name(), Pass::Train, [TRAINED.0, TRAINED.1, 1], "f32");
    let mut update = Update::like_the_peer(params.vars())?;
    let inputs = Inputs::random(&policy, &case);
    let windows = Windows::new(policy, &case, &inputs)?;
    let state = windows.initial_state(&case)?;
    Ok(Box::new(move || update.by(&windows.pass(&state, 0.0)?.2).map(drop)))
}

/// A replay's bytes to its frames.
fn replay() -> Result<Calls> {
    let name = "examples/data/simulated.slp";
    let bytes = std::fs::read(name).context(name)?;
    Ok(Box::new(move || replay::read_bytes(&bytes, name).map(drop).map_err(Into::into)))
}

/// A bundle's directory to a model with checked weights.
fn bundle() -> Result<Calls> {
    Ok(Box::new(|| Registry::new([&PolicyFamily as &dyn Family]).load(&Bundle::open(BUNDLE)?).map(drop).map_err(Into::into)))
}

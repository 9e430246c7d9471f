//! The paths whose instructions are counted.

use crate::calls::{EngineCalls, Inputs, STREAM_FRAMES};
use crate::case::{Case, Pass};
use crate::harness::Subject;
use crate::network::{Network, Place};
use crate::train::Windows;
use crate::update::Update;
use anyhow::{Context, Result, ensure};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::engine::Runner;
use candle_models::families;
use candle_models::nn::Params;
use candle_models::policy::{BackboneConfig, Policy, PolicyConfig, replay};
use candle_models::random::Random;
use clap::ValueEnum;
use std::path::Path;

/// The function in which instructions count, by a part of its name.
pub(super) const COUNTED: &str = "instructions::paths::counted";
/// Frames of a window pass: one second.
const WINDOW: usize = 60;
/// Sequences and frames of a training step.
const TRAINED: (usize, usize) = (2, 8);
/// Calls before those that count: the first ones allocate.
const WARM_UP: usize = 2;

/// What is counted, on fixed inputs and one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum HotPath {
    /// One frame of the shipped MLP policy.
    MlpStepF32,
    /// The same with 8-bit weights.
    MlpStepQ8,
    /// One frame of the shipped Mamba policy.
    MambaStepF32,
    /// The same with 8-bit weights.
    MambaStepQ8,
    /// 60 frames of the MLP policy.
    MlpWindowF32,
    /// 60 frames of the Mamba policy.
    MambaWindowF32,
    /// From a measurement to the next beam with the shipped controller.
    BeamStep,
    /// Forward, backward and update of a small Mamba policy.
    TrainingStep,
    /// A replay's bytes to its frames.
    Replay,
    /// A bundle's directory to a model with checked weights.
    Bundle,
}

impl HotPath {
    /// As it stands in the table, `mamba-step-q8`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Calls that are counted together.
    pub fn calls(self) -> u64 {
        match self {
            // Every frame of the inputs once: the draws of actions take other ways in each.
            Self::MlpStepF32 | Self::MlpStepQ8 | Self::MambaStepF32 | Self::MambaStepQ8 => STREAM_FRAMES as u64,
            _ => 1,
        }
    }

    /// Makes the path's calls, of which only the last ones count. The repository is the current directory.
    pub fn run(self) -> Result<()> {
        #[cfg(target_arch = "x86_64")]
        ensure!(std::arch::is_x86_feature_detected!("avx2"), "this machine has no AVX2, whose kernels are counted");
        // Threads of a pool would not be counted, and waiting ones would be: this thread is the pool.
        rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build_global()?;
        let scratch = tempfile::tempdir().context("no directory for the weights")?;
        let mut work = self.work(scratch.path())?;
        (0..WARM_UP).try_for_each(|_| work())?;
        (0..self.calls()).try_for_each(|_| counted(&mut *work))
    }

    fn work(self, scratch: &Path) -> Result<Box<dyn FnMut() -> Result<()>>> {
        match self {
            Self::MlpStepF32 => engine_calls("policy-mlp", "f32", Pass::Step, scratch),
            Self::MlpStepQ8 => engine_calls("policy-mlp", "q8", Pass::Step, scratch),
            Self::MambaStepF32 => engine_calls("policy-mamba", "f32", Pass::Step, scratch),
            Self::MambaStepQ8 => engine_calls("policy-mamba", "q8", Pass::Step, scratch),
            Self::MlpWindowF32 => engine_calls("policy-mlp", "f32", Pass::Window, scratch),
            Self::MambaWindowF32 => engine_calls("policy-mamba", "f32", Pass::Window, scratch),
            Self::BeamStep => {
                let mut runner = Runner::new(families::shipped().load(&Bundle::open("weights/beam-c3")?)?, 1, 1)?;
                Ok(Box::new(move || Ok(runner.step(&[false])?)))
            }
            Self::TrainingStep => training(),
            Self::Replay => {
                let name = "examples/data/simulated.slp";
                let bytes = std::fs::read(name).context(name)?;
                Ok(Box::new(move || replay::read_bytes(&bytes, name).map(drop).map_err(Into::into)))
            }
            Self::Bundle => Ok(Box::new(|| families::shipped().load(&Bundle::open("weights/policy-mlp")?).map(drop).map_err(Into::into))),
        }
    }
}

fn engine_calls(bundle: &str, dtype: &str, pass: Pass, scratch: &Path) -> Result<Box<dyn FnMut() -> Result<()>>> {
    let network = Network::open(&Path::new("weights").join(bundle))?.stored(dtype, scratch)?;
    let case = network.case(pass, 1, if pass == Pass::Step { 1 } else { WINDOW }, 1);
    let model = network.load()?;
    let inputs = Inputs::random(&*model, &case);
    let mut calls = EngineCalls::new(model, &case, &inputs, &Place::cpu())?;
    Ok(Box::new(move || calls.run()))
}

/// Narrow enough that no product has more than 512 terms, from where on the product's blocks follow the host's caches.
fn training() -> Result<Box<dyn FnMut() -> Result<()>>> {
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

/// One call that counts. The name is what callgrind looks for, so it must stay a function of its own.
#[inline(never)]
fn counted(work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    work()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_has_a_name_of_its_own() {
        let names: std::collections::BTreeSet<String> = HotPath::value_variants().iter().map(|path| path.name()).collect();
        assert_eq!(names.len(), HotPath::value_variants().len());
        assert!(names.contains("mamba-step-q8") && names.contains("training-step"), "{names:?}");
    }

    #[test]
    fn callgrind_finds_the_counted_function_by_its_name() {
        assert!(std::any::type_name_of_val(&counted).ends_with(COUNTED), "{}", std::any::type_name_of_val(&counted));
    }
}

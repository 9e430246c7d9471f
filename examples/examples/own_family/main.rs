//! A family of models of one's own in the commands `candle-train`, `candle-infer` and `candle-bench`: a pursuer remembers where its target was and says which
//! way to steer. The network and the family are here, its training is in `train.rs`.
//!
//! `cargo run --release --example own_family -- train pursuer --out chase` trains one; `inspect chase/bundle`, `export chase/bundle small
//! --dtype q8` and `run small targets.safetensors` do as ever, with `position` `[T, 2]` and `speed` `[T, 1]` in the file; `bench latency
//! --bundles small` measures it.

mod train;

use candle_bench::family::BenchFamily;
use candle_models::bundle::{Bundle, Manifest};
use candle_models::exec::Executor;
use candle_models::exec::program::Output;
use candle_models::infer::{self, InferFamily};
use candle_models::network::{Layers, Network};
use candle_models::nn::{Gru, Linear, Params};
use candle_models::ops::Activation;
use candle_models::registry::{Family, Networks};
use candle_models::signature::{Signature, TensorSpec};
use candle_models::{Error, Result, families};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::sync::Arc;

/// What stands in `config.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PursuerConfig {
    /// Width of both layers, 1 to 1024.
    pub hidden: usize,
}

/// Position and speed through two layers, the second with memory, to a direction.
pub struct Pursuer {
    input: Linear,
    memory: Gru,
    output: Linear,
}

impl Pursuer {
    /// The network with parameters from `params`.
    pub fn network(config: &PursuerConfig, params: &Params) -> Result<Network<Self>> {
        let (width, mut state) = (config.hidden, Vec::new());
        if !(1..=1024).contains(&width) {
            return Err(Error::config("hidden", format!("{width} is outside 1..=1024")));
        }
        let memory = Gru::new(width, width, &params.pp("memory"), &mut state)?;
        let inputs = vec![TensorSpec::f32("position", &[2]), TensorSpec::f32("speed", &[1])];
        let signature = Signature { inputs, outputs: vec![TensorSpec::f32("steering", &[2])], state };
        let [input, output] = [("input", 3, width), ("output", width, 2)].map(|(name, from, to)| Linear::new(from, to, &params.pp(name)));
        Network::of((PursuerFamily.name(), config), signature, params.device(), Self { input: input?, memory, output: output? })
    }
}

impl Layers for Pursuer {
    /// Written once for all executors: tensors with gradients, slices on the CPU, CUDA.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let parts = [e.input("position")?, e.input("speed")?];
        let x = e.join(&parts)?;
        let x = e.linear(&x, &self.input, Activation::Relu)?;
        let x = self.memory.forward(e, &x)?;
        Ok(vec![Output::Floats(e.linear(&x, &self.output, Activation::None)?)])
    }
}

/// What engine and commands know of pursuers.
pub struct PursuerFamily;

impl Family for PursuerFamily {
    fn name(&self) -> &'static str {
        "pursuer"
    }

    fn describe(&self, bundle: &Bundle) -> Result<String> {
        Ok(format!("pursuer {}", bundle.config::<PursuerConfig>()?.hidden))
    }

    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks> {
        Ok(vec![("pursuer", Arc::new(Pursuer::network(&bundle.config()?, params)?))])
    }

    fn examples(&self) -> Result<Vec<Manifest>> {
        Ok(vec![Manifest::new(self.name(), &PursuerConfig { hidden: 16 })?])
    }
}

/// Tensors by the signature are all that it is run on.
impl InferFamily for PursuerFamily {}

/// Bundles and what its signature says are all that is measured.
impl BenchFamily for PursuerFamily {}

/// The commands with one family more.
pub fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().collect();
    // `train` is `candle-train`, `bench` is `candle-bench`, everything else `candle-infer`. Each has its registry, and its line of registration.
    // SAFETY: the program has started no thread yet.
    unsafe {
        match arguments.get(1).map(String::as_str) {
            Some("train") => {
                arguments.remove(1);
                candle_train::command::run(&candle_train::families::shipped().with(&PursuerFamily), arguments)
            }
            Some("bench") => {
                arguments.remove(1);
                candle_bench::command::run(&candle_bench::families::shipped().with(&PursuerFamily), arguments)
            }
            _ => infer::run(&families::commands().with(&PursuerFamily), arguments),
        }
    }
}

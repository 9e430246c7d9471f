//! One update of a network's parameters by AdamW, against Candle's.

use super::{Calculation, Demand, Form, Pair, Work, doubles, normal};
use crate::calls::Answers;
use crate::harness::Subject;
use crate::trainee::Trainee;
use anyhow::Result;
use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Tensor, Var};
use candle_nn::optim::{Optimizer, ParamsAdamW};
use candle_train::gradients::Gradients;
use candle_train::optim::{Optimiser, OptimiserConfig};
use std::collections::BTreeMap;

pub(super) const NAME: &str = "adamw";
const LEARNING_RATE: f64 = 1e-3;
/// Values that an update touches for every parameter: it reads the gradient for its norm, then value, gradient, two moments
/// and the average, and writes all but the gradient.
const TOUCHED: usize = 10;
/// Operations for every parameter: the gradient's square for the norm, two moments, their corrections, a root, a division, the step, the
/// average.
const OPERATIONS: f64 = 18.0;

struct Fused {
    vars: BTreeMap<String, Var>,
    gradients: Gradients,
    /// A finite one: it only has to let the update through.
    loss: Tensor,
    optimiser: Optimiser,
}

struct Plain {
    vars: BTreeMap<String, Var>,
    gradients: GradStore,
    optimiser: candle_nn::AdamW,
}

impl Subject for Fused {
    fn run(&mut self) -> Result<()> {
        Ok(self.optimiser.step(&self.gradients, &self.loss, LEARNING_RATE).map(drop)?)
    }
}

impl Subject for Plain {
    fn run(&mut self) -> Result<()> {
        Ok(self.optimiser.step(&self.gradients)?)
    }
}

fn values(vars: &BTreeMap<String, Var>) -> Result<Answers> {
    vars.iter().map(|(name, var)| Ok((name.clone(), doubles(var)?))).collect()
}

impl Form for Fused {
    /// The parameters behind the first update.
    fn answers(&mut self) -> Result<Answers> {
        self.run()?;
        values(&self.vars)
    }
}

impl Form for Plain {
    fn answers(&mut self) -> Result<Answers> {
        self.run()?;
        values(&self.vars)
    }
}

/// The variables of a network and the gradients of a loss whose gradients are random.
fn problem(trainee: &dyn Trainee, device: &Device) -> Result<(BTreeMap<String, Var>, GradStore)> {
    let vars = trainee.vars(device)?;
    let term = |(name, var): (&String, &Var)| (var.as_tensor() * normal(name, var.dims(), 1.0)?.to_device(device)?)?.sum_all();
    let terms = vars.iter().map(term).collect::<candle_core::Result<Vec<_>>>()?;
    let gradients = Tensor::stack(&terms, 0)?.sum_all()?.backward()?;
    Ok((vars, gradients))
}

pub(super) fn pair(trainee: &dyn Trainee, device: &Device) -> Result<Pair> {
    // Without decay and clipping: Candle's decays every parameter and does not clip.
    let config = OptimiserConfig { weight_decay: 0.0, clip: 0.0, ..OptimiserConfig::default() };
    let theirs = ParamsAdamW { lr: LEARNING_RATE, beta1: config.beta1, beta2: config.beta2, eps: config.eps, weight_decay: 0.0 };
    let (vars, store) = problem(trainee, device)?;
    let n: usize = vars.values().map(|v| v.elem_count()).sum();
    let mut gradients = Gradients::zeros(&vars)?;
    gradients.add(&vars, &store)?;
    let fused = Fused { optimiser: Optimiser::new(config, &vars)?, gradients, loss: Tensor::zeros(1, DType::F32, device)?, vars };
    let (vars, gradients) = problem(trainee, device)?;
    let plain = Plain { optimiser: candle_nn::AdamW::new(vars.values().cloned().collect(), theirs)?, gradients, vars };
    let work = Work::on_values(OPERATIONS * n as f64, TOUCHED * n);
    Ok(Pair {
        operation: NAME.to_owned(),
        shape: format!("{n} parameters in {} tensors", plain.vars.len()),
        calculation: Calculation::Update,
        // Most values are read and written in their place.
        demand: Demand { resident: 0.5 * work.bytes, ..Demand::of(work, "f32") },
        fused: Box::new(fused),
        plain: Box::new(plain),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn updates_move_every_parameter_on_both_sides() {
        let trainee = crate::testing::trainee("mamba");
        let Pair { mut fused, mut plain, .. } = pair(&*trainee, &Device::Cpu).unwrap();
        let before = values(&problem(&*trainee, &Device::Cpu).unwrap().0).unwrap();
        for after in [fused.answers().unwrap(), plain.answers().unwrap()] {
            for (name, after) in after {
                // The first step of Adam is as long as the learning rate.
                let moved = after.iter().zip(&before[&name]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
                assert!((moved - LEARNING_RATE).abs() < 1e-5, "{name}: {moved}");
            }
        }
    }
}

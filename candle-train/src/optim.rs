//! AdamW with an exponential moving average of the parameters, one pass over flat slices per parameter.
//!
//! For gradient g (after clipping) and step t from 1 (Loshchilov and Hutter 2019, algorithm 2):
//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - lr decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),
//! then ema = ema + (1 - d) (p - ema) with d = min(ema_decay, (1 + t) / (10 + t)), so that the average forgets the
//! initial weights quickly in short runs.

use crate::gradients::Gradients;
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor, Var};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// What AdamW needs beside the learning rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdamW {
    /// Decay of the mean of gradients.
    pub beta1: f64,
    /// Decay of the mean of squared gradients.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Decoupled weight decay, for the parameters that [`decays`] names.
    pub weight_decay: f64,
    /// The largest gradient norm over all parameters; 0 switches clipping off.
    pub clip: f64,
    /// Decay of the moving average of the parameters; 0 makes it the parameters themselves.
    pub ema: f64,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.3, clip: 1.0, ema: 0.99 }
    }
}

impl AdamW {
    /// Refuses values outside their range.
    pub fn validate(&self) -> Result<()> {
        let share = |field: &str, x: f64| {
            let ok = (0.0..1.0).contains(&x);
            if ok { Ok(()) } else { Err(Error::config(field, format!("expected a value from 0 to below 1, found {x}"))) }
        };
        share("optimiser.beta1", self.beta1)?;
        share("optimiser.beta2", self.beta2)?;
        share("optimiser.ema", self.ema)?;
        for (field, x) in [("eps", self.eps), ("weight_decay", self.weight_decay), ("clip", self.clip)] {
            if !(x.is_finite() && x >= 0.0) {
                return Err(Error::config(format!("optimiser.{field}"), format!("expected a value of 0 or more, found {x}")));
            }
        }
        Ok(())
    }
}

/// Whether weight decay acts on a parameter: on matrices, not on biases, norms and the skip of a state-space layer (all
/// one-dimensional), nor on its transition matrix `a_log`, where decay would shorten the memory.
pub fn decays(name: &str, rank: usize) -> bool {
    rank >= 2 && !name.rsplit('.').next().is_some_and(|last| last.eq_ignore_ascii_case("a_log"))
}

/// The optimiser's memory of every parameter, in name order.
#[derive(Debug)]
pub struct Optimiser {
    config: AdamW,
    /// Updates made so far.
    updates: u64,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    var: Var,
    decay: bool,
    mean: Vec<f32>,
    square: Vec<f32>,
    ema: Vec<f32>,
}

impl Optimiser {
    /// A fresh optimiser: zero moments, the average equal to the parameters.
    pub fn new(config: AdamW, vars: &BTreeMap<String, Var>) -> Result<Self> {
        let slot = |(name, var): (&String, &Var)| -> Result<Slot> {
            let n = var.elem_count();
            let decay = decays(name, var.rank());
            let ema = var.flatten_all()?.to_vec1::<f32>()?;
            Ok(Slot { name: name.clone(), var: var.clone(), decay, mean: vec![0.0; n], square: vec![0.0; n], ema })
        };
        Ok(Self { config, updates: 0, slots: vars.iter().map(slot).collect::<Result<_>>()? })
    }

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// One update of every parameter that has a gradient; gradients are multiplied by `scale` first.
    pub fn step(&mut self, gradients: &Gradients, scale: f32, learning_rate: f64) -> Result<()> {
        self.updates += 1;
        let t = self.updates as f64;
        let c = &self.config;
        let ema = c.ema.min((1.0 + t) / (10.0 + t));
        let factors = Factors {
            scale,
            beta1: c.beta1 as f32,
            beta2: c.beta2 as f32,
            fresh1: (1.0 - c.beta1) as f32,
            fresh2: (1.0 - c.beta2) as f32,
            eps: c.eps as f32,
            keep: (1.0 - learning_rate * c.weight_decay) as f32,
            rate: (learning_rate / (1.0 - c.beta1.powf(t))) as f32,
            unbias: (1.0 / (1.0 - c.beta2.powf(t)).sqrt()) as f32,
            follow: if c.ema > 0.0 { (1.0 - ema) as f32 } else { 1.0 },
        };
        let updates = self.slots.par_iter_mut().zip(gradients.slices()).map(|(slot, gradient)| {
            let Some(gradient) = gradient else { return Ok(()) };
            let keep = if slot.decay { factors.keep } else { 1.0 };
            let moments = Mutex::new((&mut slot.mean, &mut slot.square, &mut slot.ema));
            slot.var.inplace_op1(&Update { gradient, moments, factors: Factors { keep, ..factors } })
        });
        Ok(updates.collect::<candle_core::Result<()>>()?)
    }

    /// The moving average of the parameters.
    pub fn average(&self) -> Result<NamedTensors> {
        self.tensors("", |s| &s.ema)
    }

    /// The moments, as `mean.<name>` and `square.<name>`.
    pub fn moments(&self) -> Result<NamedTensors> {
        Ok(self.tensors("mean.", |s| &s.mean)?.into_iter().chain(self.tensors("square.", |s| &s.square)?).collect())
    }

    /// Continues from what [`Self::moments`] and [`Self::average`] gave after `updates` updates.
    pub fn restore(&mut self, updates: u64, moments: &NamedTensors, average: &NamedTensors) -> Result<()> {
        self.updates = updates;
        for slot in &mut self.slots {
            slot.mean = values(moments, &format!("mean.{}", slot.name), slot.var.dims())?;
            slot.square = values(moments, &format!("square.{}", slot.name), slot.var.dims())?;
            slot.ema = values(average, &slot.name, slot.var.dims())?;
        }
        Ok(())
    }

    fn tensors(&self, prefix: &str, pick: impl Fn(&Slot) -> &Vec<f32>) -> Result<NamedTensors> {
        let tensor = |s: &Slot| Ok((format!("{prefix}{}", s.name), Tensor::from_slice(pick(s), s.var.dims(), &Device::Cpu)?));
        self.slots.iter().map(tensor).collect()
    }
}

fn values(tensors: &NamedTensors, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
    let tensor = tensors.get(name)?;
    if tensor.dims() != dims {
        return Err(Error::tensor(name, format!("{dims:?}"), format!("{:?}", tensor.dims())));
    }
    Ok(tensor.flatten_all()?.to_vec1()?)
}

/// The numbers of one step that are the same for every value.
#[derive(Debug, Clone, Copy)]
struct Factors {
    scale: f32,
    beta1: f32,
    beta2: f32,
    /// 1 - beta1 and 1 - beta2, subtracted in f64: 1 - 0.999 in f32 is off by 1.3e-5 of itself.
    fresh1: f32,
    fresh2: f32,
    eps: f32,
    /// 1 - lr * decay.
    keep: f32,
    /// lr / (1 - beta1^t).
    rate: f32,
    /// 1 / sqrt(1 - beta2^t).
    unbias: f32,
    /// 1 - ema decay.
    follow: f32,
}

/// The update of one parameter. Its place for CUDA is `cuda_fwd` of the same operation, with the moments on the device.
struct Update<'a> {
    gradient: &'a [f32],
    // Candle hands the operation out by shared reference; nobody else locks this.
    moments: Mutex<(&'a mut Vec<f32>, &'a mut Vec<f32>, &'a mut Vec<f32>)>,
    factors: Factors,
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let (CpuStorage::F32(values), Some((start, end))) = (storage, layout.contiguous_offsets()) else {
            candle_core::bail!("adamw: expected a contiguous f32 parameter")
        };
        let Ok(mut moments) = self.moments.lock() else { candle_core::bail!("adamw: an update panicked") };
        let (mean, square, ema) = &mut *moments;
        let f = self.factors;
        let memory = mean.iter_mut().zip(square.iter_mut()).zip(ema.iter_mut());
        for ((p, g), ((m, v), e)) in values[start..end].iter_mut().zip(self.gradient).zip(memory) {
            let g = g * f.scale;
            *m = f.beta1 * *m + f.fresh1 * g;
            *v = f.beta2 * *v + f.fresh2 * g * g;
            *p = *p * f.keep - f.rate * *m / (v.sqrt() * f.unbias + f.eps);
            *e += f.follow * (*p - *e);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, values: &[f32], shape: &[usize]) -> BTreeMap<String, Var> {
        [(name.to_owned(), Var::from_slice(values, shape, &Device::Cpu).unwrap())].into()
    }

    fn gradients(vars: &BTreeMap<String, Var>, values: &[f32]) -> Gradients {
        // The loss sum(values * p) has the gradient `values`.
        let var = vars.values().next().unwrap();
        let values = Tensor::from_slice(values, var.shape(), &Device::Cpu).unwrap();
        let loss = (var.as_tensor() * values).unwrap().sum_all().unwrap();
        let mut gradients = Gradients::zeros(vars);
        gradients.add(vars, &loss.backward().unwrap()).unwrap();
        gradients
    }

    fn read(var: &Var) -> Vec<f32> {
        var.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Reference from PyTorch 2.11:
    /// ```python
    /// p = torch.nn.Parameter(torch.tensor([[1., -2.], [3., .5]]))
    /// o = torch.optim.AdamW([p], lr=.1, betas=(.9, .99), eps=1e-8, weight_decay=.3)
    /// for g in [[.1, -.2, .3, 0.], [.5, .5, -.5, 0.], [-1., .25, .125, 0.]]:
    ///     p.grad = torch.tensor(g).reshape(2, 2); o.step(); print(p.flatten().tolist())
    /// ```
    #[test]
    fn three_steps_equal_the_reference() {
        let expected = [
            [0.87, -1.84, 2.810_000_2, 0.485],
            [0.757_974_57, -1.828_949_3, 2.755_025_1, 0.470_45],
            [0.761_834_56, -1.831_978_2, 2.681_172_1, 0.456_336_53],
        ];
        let steps = [[0.1f32, -0.2, 0.3, 0.0], [0.5, 0.5, -0.5, 0.0], [-1.0, 0.25, 0.125, 0.0]];
        let start = [1.0f32, -2.0, 3.0, 0.5];
        let vars = one("layer.weight", &start, &[2, 2]);
        let mut optimiser = Optimiser::new(AdamW { beta2: 0.99, ema: 0.15, ..AdamW::default() }, &vars).unwrap();
        let mut ema = start;
        for ((step, g), expected) in steps.iter().enumerate().zip(expected) {
            optimiser.step(&gradients(&vars, g), 1.0, 0.1).unwrap();
            let (found, average) = (read(&vars["layer.weight"]), optimiser.average().unwrap());
            let average: Vec<f32> = average.get("layer.weight").unwrap().flatten_all().unwrap().to_vec1().unwrap();
            // (1 + t) / (10 + t) is 0.18 at t = 1: the limit of 0.15 holds throughout.
            for i in 0..4 {
                ema[i] = 0.15 * ema[i] + 0.85 * found[i];
                assert!((found[i] - expected[i]).abs() < 1e-6, "step {step}, value {i}: expected {}, found {}", expected[i], found[i]);
                assert!((average[i] - ema[i]).abs() < 1e-6, "step {step}, average {i}: expected {}, found {}", ema[i], average[i]);
            }
        }
    }

    #[test]
    fn the_first_step_moves_by_the_learning_rate() {
        let vars = one("layer.bias", &[1.0, 1.0, 1.0], &[3]);
        let mut optimiser = Optimiser::new(AdamW::default(), &vars).unwrap();
        optimiser.step(&gradients(&vars, &[100.0, -0.001, 0.0]), 1.0, 0.01).unwrap();
        let found = read(&vars["layer.bias"]);
        // No decay on a bias: the value without a gradient stays.
        for (found, expected) in found.iter().zip([0.99, 1.01, 1.0]) {
            assert!((found - expected).abs() < 1e-5, "expected {expected}, found {found}");
        }
    }

    #[test]
    fn decay_spares_vectors_and_the_transition_matrix() {
        assert!(decays("backbone.0.in_proj.weight", 2));
        assert!(decays("backbone.0.conv.weight", 2));
        assert!(!decays("backbone.0.norm.weight", 1));
        assert!(!decays("backbone.0.d", 1));
        assert!(!decays("backbone.0.a_log", 2));
        assert!(!decays("backbone.0.A_log", 2));
    }

    #[test]
    fn restored_moments_continue_bit_for_bit() {
        let run = |split: Option<usize>| {
            let vars = one("w", &[0.3, -0.7], &[1, 2]);
            let mut optimiser = Optimiser::new(AdamW::default(), &vars).unwrap();
            for step in 0..6 {
                if split == Some(step) {
                    let (moments, average) = (optimiser.moments().unwrap(), optimiser.average().unwrap());
                    let updates = optimiser.updates();
                    optimiser = Optimiser::new(AdamW::default(), &vars).unwrap();
                    optimiser.restore(updates, &moments, &average).unwrap();
                }
                optimiser.step(&gradients(&vars, &[(step as f32).sin(), 0.1]), 0.5, 0.01).unwrap();
            }
            let average = optimiser.average().unwrap().get("w").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            (read(&vars["w"]), average)
        };
        assert_eq!(run(None), run(Some(3)));
    }

    #[test]
    fn a_parameter_without_a_gradient_is_left_alone() {
        let mut vars = one("a", &[1.0, 1.0], &[1, 2]);
        vars.extend(one("b", &[2.0, 2.0], &[1, 2]));
        let mut optimiser = Optimiser::new(AdamW::default(), &vars).unwrap();
        optimiser.step(&gradients(&vars, &[1.0, 1.0]), 1.0, 0.1).unwrap();
        assert_ne!(read(&vars["a"]), [1.0, 1.0]);
        assert_eq!(read(&vars["b"]), [2.0, 2.0]);
    }
}

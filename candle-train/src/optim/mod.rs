//! AdamW and SGD with momentum, with an exponential moving average of the parameters: one pass over flat slices per parameter on
//! the CPU, one over all parameters on CUDA. Both do the same arithmetic in the same order.
//!
//! For gradient g (after clipping) and step t from 1 (Loshchilov and Hutter 2019, algorithm 2):
//! m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; p = p - lr decay p - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps),
//! then ema = ema + (1 - d) (p - ema) with d = min(ema_decay, (1 + t) / (10 + t)), so that the average forgets the
//! initial weights quickly in short runs.
//!
//! SGD (the same paper, algorithm 1): m = b1 m + g; p = p - lr decay p - lr m. It is AdamW's arithmetic with other factors: v stays
//! zero and the denominator one.
//!
//! ```
//! use candle_train::optim::{OptimiserConfig, ParameterGroup, Rule};
//!
//! let plain = OptimiserConfig { rule: Rule::Sgd, beta1: 0.0, ema: 0.0, clip: 0.0, ..OptimiserConfig::default() };
//! assert!(plain.validate().is_ok());
//! assert_eq!(ParameterGroup::by_rank(1).weight_decay, 0.0); // biases do not decay
//! ```

mod groups;
mod host;

pub use groups::ParameterGroup;

#[cfg(feature = "cuda")]
use crate::flat::FlatMoments;
use crate::gradients::Gradients;
use candle_core::{Tensor, Var};
use candle_models::ops::slices::AdamwFactors;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How gradients become updates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// By the mean of the gradients over the root of the mean of their squares.
    Adamw,
    /// By the sum of the gradients, older ones decaying.
    Sgd,
}

/// What the optimiser needs beside the learning rate.
///
/// ```
/// use candle_train::optim::{OptimiserConfig, Rule};
///
/// let momentum = OptimiserConfig { rule: Rule::Sgd, ..OptimiserConfig::default() };
/// assert!(momentum.validate().is_ok());
/// assert!(OptimiserConfig { beta1: 1.0, ..momentum }.validate().is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OptimiserConfig {
    /// How gradients become updates.
    pub rule: Rule,
    /// Decay of the mean of gradients; SGD's momentum.
    pub beta1: f64,
    /// Decay of the mean of squared gradients (AdamW).
    pub beta2: f64,
    /// Added to the denominator (AdamW).
    pub eps: f64,
    /// Decoupled weight decay, of the parameters whose [`ParameterGroup`] has it.
    pub weight_decay: f64,
    /// The largest gradient norm over all parameters; 0 switches clipping off.
    pub clip: f64,
    /// Decay of the moving average of the parameters; 0 makes it the parameters themselves.
    pub ema: f64,
}

impl Default for OptimiserConfig {
    fn default() -> Self {
        Self { rule: Rule::Adamw, beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.3, clip: 1.0, ema: 0.99 }
    }
}

impl OptimiserConfig {
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

/// The optimiser's memory of every parameter, in name order.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor, Var};
/// use candle_train::gradients::Gradients;
/// use candle_train::optim::{Optimiser, OptimiserConfig};
/// use std::collections::BTreeMap;
/// # fn main() -> candle_models::Result<()> {
/// let vars = BTreeMap::from([("x".to_owned(), Var::new(&[3f32], &Device::Cpu)?)]);
/// let mut optimiser = Optimiser::new(OptimiserConfig::default(), &vars)?;
/// let mut gradients = Gradients::zeros(&vars)?;
/// let loss = vars["x"].sqr()?.sum_all()?;
/// gradients.add(&vars, &loss.backward()?)?;
/// let step = optimiser.step(&gradients, &loss.reshape(1)?, 0.1)?;
/// assert!(step.updated && (step.norm - 6.0).abs() < 1e-6);
/// assert!((vars["x"].to_vec1::<f32>()?[0] - 2.9).abs() < 1e-3); // AdamW's first step is as long as the rate
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Optimiser {
    config: OptimiserConfig,
    /// Updates made so far.
    updates: u64,
    memory: Memory,
}

/// Where the moments lie: beside the parameters.
#[derive(Debug)]
enum Memory {
    Host(host::Moments),
    #[cfg(feature = "cuda")]
    Cuda(FlatMoments),
}

/// What a step did, read back at its end.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The norm of all gradients before clipping.
    pub norm: f64,
    /// The figures that came with the step.
    pub figures: Vec<f32>,
    /// Whether the parameters were updated: the norm and the first figure, the loss, are finite.
    pub updated: bool,
}

impl Step {
    pub(crate) fn new(norm: f64, figures: Vec<f32>) -> Self {
        let updated = norm.is_finite() && figures.first().is_none_or(|loss| loss.is_finite());
        Self { norm, figures, updated }
    }
}

impl Optimiser {
    /// A fresh optimiser: zero moments, the average equal to the parameters, groups [by rank](ParameterGroup::by_rank). All parameters
    /// are on one device.
    pub fn new(config: OptimiserConfig, vars: &BTreeMap<String, Var>) -> Result<Self> {
        let memory = match vars.values().next().map(|var| var.device()) {
            #[cfg(feature = "cuda")]
            Some(candle_core::Device::Cuda(device)) => Memory::Cuda(FlatMoments::new(device, vars)?),
            _ => Memory::Host(host::Moments::new(vars)?),
        };
        Ok(Self { config, updates: 0, memory })
    }

    /// Updates every parameter from here on as the group that `of` gives it by its name and shape says.
    ///
    /// # Errors
    /// If a factor is negative or not finite.
    pub fn set_groups(&mut self, of: impl Fn(&str, &[usize]) -> ParameterGroup) -> Result<()> {
        let of = |name: &str, dims: &[usize]| {
            let group = of(name, dims);
            for (factor, x) in [("learning rate", group.learning_rate), ("weight decay", group.weight_decay)] {
                if !(x.is_finite() && x >= 0.0) {
                    return Err(Error::tensor(name, format!("a factor of 0 or more on the {factor}"), x));
                }
            }
            Ok(group)
        };
        match &mut self.memory {
            Memory::Host(memory) => memory.set_groups(of),
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.set_groups(of),
        }
    }

    /// Updates made so far.
    pub fn updates(&self) -> u64 {
        self.updates
    }

    /// One update of every parameter that has a gradient, clipped by the norm over all of them. `figures` `[n]` are numbers on the
    /// same device of which the first is the loss: they are read together with the norm, which on CUDA is the one time that the
    /// host waits for the device. Where the norm or the loss is not finite nothing changes.
    pub fn step(&mut self, gradients: &Gradients, figures: &Tensor, learning_rate: f64) -> Result<Step> {
        let factors = |group: ParameterGroup| self.config.factors(self.updates + 1, learning_rate, group);
        let clipping = gradients.clipping(self.config.clip);
        let step = match &mut self.memory {
            Memory::Host(moments) => moments.step(gradients, figures, clipping, &factors)?,
            #[cfg(feature = "cuda")]
            Memory::Cuda(moments) => moments.step(gradients.flat()?, figures, clipping, &factors)?,
        };
        self.updates += u64::from(step.updated);
        Ok(step)
    }

    /// The moving average of the parameters, on the host.
    pub fn average(&self) -> Result<NamedTensors> {
        self.tensors("", Moment::Average)
    }

    /// The moments, as `mean.<name>` and `square.<name>`, on the host.
    pub fn moments(&self) -> Result<NamedTensors> {
        Ok(self.tensors("mean.", Moment::Mean)?.into_iter().chain(self.tensors("square.", Moment::Square)?).collect())
    }

    /// Continues from what [`Self::moments`] and [`Self::average`] gave after `updates` updates, on this or another device.
    pub fn restore(&mut self, updates: u64, moments: &NamedTensors, average: &NamedTensors) -> Result<()> {
        self.updates = updates;
        for (moment, prefix, from) in
            [(Moment::Mean, "mean.", moments), (Moment::Square, "square.", moments), (Moment::Average, "", average)]
        {
            let values = |name: &str, dims: &[usize]| values(from, &format!("{prefix}{name}"), dims);
            match &mut self.memory {
                Memory::Host(memory) => memory.set(moment, values)?,
                #[cfg(feature = "cuda")]
                Memory::Cuda(memory) => memory.set(moment, values)?,
            }
        }
        Ok(())
    }

    fn tensors(&self, prefix: &str, moment: Moment) -> Result<NamedTensors> {
        let tensors = match &self.memory {
            Memory::Host(memory) => memory.tensors(moment)?,
            #[cfg(feature = "cuda")]
            Memory::Cuda(memory) => memory.tensors(moment)?,
        };
        Ok(tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect())
    }
}

/// What the optimiser remembers of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// Mean of the gradients.
    Mean,
    /// Mean of their squares.
    Square,
    /// Average of the parameter.
    Average,
}

fn values(tensors: &NamedTensors, name: &str, dims: &[usize]) -> Result<Vec<f32>> {
    let tensor = tensors.get(name)?;
    if tensor.dims() != dims {
        return Err(Error::tensor(name, format!("{dims:?}"), format!("{:?}", tensor.dims())));
    }
    Ok(tensor.flatten_all()?.to_vec1()?)
}

impl OptimiserConfig {
    /// Of update number `t`, from 1.
    fn factors(&self, t: u64, learning_rate: f64, group: ParameterGroup) -> AdamwFactors {
        let (t, learning_rate) = (t as f64, learning_rate * group.learning_rate);
        let ema = self.ema.min((1.0 + t) / (10.0 + t));
        let adamw = AdamwFactors {
            beta1: self.beta1 as f32,
            beta2: self.beta2 as f32,
            fresh1: (1.0 - self.beta1) as f32,
            fresh2: (1.0 - self.beta2) as f32,
            eps: self.eps as f32,
            keep: (1.0 - learning_rate * self.weight_decay * group.weight_decay) as f32,
            rate: (learning_rate / (1.0 - self.beta1.powf(t))) as f32,
            unbias: (1.0 / (1.0 - self.beta2.powf(t)).sqrt()) as f32,
            follow: if self.ema > 0.0 { (1.0 - ema) as f32 } else { 1.0 },
        };
        match self.rule {
            Rule::Adamw => adamw,
            Rule::Sgd => AdamwFactors { fresh1: 1.0, fresh2: 0.0, eps: 1.0, rate: learning_rate as f32, unbias: 0.0, ..adamw },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn no_figures() -> Tensor {
        Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap()
    }

    fn one(name: &str, values: &[f32], shape: &[usize]) -> BTreeMap<String, Var> {
        [(name.to_owned(), Var::from_slice(values, shape, &Device::Cpu).unwrap())].into()
    }

    fn gradients(vars: &BTreeMap<String, Var>, values: &[f32]) -> Gradients {
        // The loss sum(values * p) has the gradient `values`.
        let var = vars.values().next().unwrap();
        let values = Tensor::from_slice(values, var.shape(), &Device::Cpu).unwrap();
        let loss = (var.as_tensor() * values).unwrap().sum_all().unwrap();
        let mut gradients = Gradients::zeros(vars).unwrap();
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
        let mut optimiser =
            Optimiser::new(OptimiserConfig { beta2: 0.99, ema: 0.15, clip: 0.0, ..OptimiserConfig::default() }, &vars).unwrap();
        let mut ema = start;
        for ((step, g), expected) in steps.iter().enumerate().zip(expected) {
            optimiser.step(&gradients(&vars, g), &no_figures(), 0.1).unwrap();
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

    /// Reference from PyTorch 2.11, whose decay is coupled and therefore 0 here:
    /// ```python
    /// p = torch.nn.Parameter(torch.tensor([1., -2.]))
    /// o = torch.optim.SGD([p], lr=.1, momentum=.9)
    /// for g in [[.1, -.2], [.5, .5], [-1., .25]]:
    ///     p.grad = torch.tensor(g); o.step(); print(p.tolist())
    /// ```
    #[test]
    fn sgd_with_momentum_equals_the_reference() {
        let expected = [[0.99, -1.98], [0.931, -2.012], [0.9779, -2.0658]];
        let vars = one("layer.weight", &[1.0, -2.0], &[1, 2]);
        let config = OptimiserConfig { rule: Rule::Sgd, weight_decay: 0.0, clip: 0.0, ..OptimiserConfig::default() };
        let mut optimiser = Optimiser::new(config, &vars).unwrap();
        for (g, expected) in [[0.1f32, -0.2], [0.5, 0.5], [-1.0, 0.25]].iter().zip(expected) {
            optimiser.step(&gradients(&vars, g), &no_figures(), 0.1).unwrap();
            let found = read(&vars["layer.weight"]);
            assert!(found.iter().zip(expected).all(|(f, e)| (f - e).abs() < 1e-6), "expected {expected:?}, found {found:?}");
        }
    }

    #[test]
    fn the_first_step_moves_by_the_learning_rate() {
        let vars = one("layer.bias", &[1.0, 1.0, 1.0], &[3]);
        let mut optimiser = Optimiser::new(OptimiserConfig { clip: 0.0, ..OptimiserConfig::default() }, &vars).unwrap();
        optimiser.step(&gradients(&vars, &[100.0, -0.001, 0.0]), &no_figures(), 0.01).unwrap();
        let found = read(&vars["layer.bias"]);
        // No decay on a bias: the value without a gradient stays.
        for (found, expected) in found.iter().zip([0.99, 1.01, 1.0]) {
            assert!((found - expected).abs() < 1e-5, "expected {expected}, found {found}");
        }
    }

    #[test]
    fn a_step_that_is_not_finite_changes_nothing() {
        let vars = one("w", &[0.5, -0.5], &[1, 2]);
        let mut optimiser = Optimiser::new(OptimiserConfig::default(), &vars).unwrap();
        let loss = |x: f32| Tensor::new(&[x, 7.0], &Device::Cpu).unwrap();
        for (gradient, loss_) in [(f32::NAN, 1.0), (f32::INFINITY, 1.0), (1.0, f32::NAN)] {
            let step = optimiser.step(&gradients(&vars, &[gradient, 0.0]), &loss(loss_), 0.1).unwrap();
            assert!(!step.updated && step.figures[1] == 7.0, "{gradient}, {loss_}: {step:?}");
        }
        assert_eq!((optimiser.updates(), read(&vars["w"])), (0, vec![0.5, -0.5]));
        assert!(optimiser.step(&gradients(&vars, &[1.0, 0.0]), &loss(1.0), 0.1).unwrap().updated);
        assert_eq!(optimiser.updates(), 1);
    }

    #[test]
    fn a_group_has_a_learning_rate_and_a_decay_of_its_own() {
        let groups = |name: &str, _: &[usize]| match name {
            "fast" => ParameterGroup { learning_rate: 3.0, weight_decay: 0.0 },
            "frozen" => ParameterGroup { learning_rate: 0.0, weight_decay: 1.0 },
            _ => ParameterGroup { learning_rate: 1.0, weight_decay: 2.0 },
        };
        for (name, learning_rate, weight_decay) in [("fast", 0.03, 0.0), ("frozen", 0.0, 0.3), ("slow", 0.01, 0.6)] {
            let [grouped, plain] = [(0.01, 0.3, true), (learning_rate, weight_decay, false)].map(|(learning_rate, weight_decay, group)| {
                let vars = one(name, &[0.5, -0.25], &[1, 2]);
                let mut optimiser = Optimiser::new(OptimiserConfig { weight_decay, ..OptimiserConfig::default() }, &vars).unwrap();
                if group {
                    optimiser.set_groups(groups).unwrap();
                }
                for _ in 0..3 {
                    optimiser.step(&gradients(&vars, &[0.5, 0.25]), &no_figures(), learning_rate).unwrap();
                }
                read(&vars[name])
            });
            assert!(grouped.iter().zip(&plain).all(|(a, b)| (a - b).abs() < 1e-7), "{name}: {grouped:?} instead of {plain:?}");
            assert_eq!(plain == [0.5, -0.25], name == "frozen");
        }
        let vars = one("w", &[0.5], &[1]);
        let mut optimiser = Optimiser::new(OptimiserConfig::default(), &vars).unwrap();
        let error =
            optimiser.set_groups(|_, _| ParameterGroup { learning_rate: f64::NAN, ..ParameterGroup::PLAIN }).unwrap_err().to_string();
        assert!(error.contains("tensor w: expected a factor of 0 or more on the learning rate"), "{error}");
    }

    #[test]
    fn restored_moments_continue_bit_for_bit() {
        let run = |split: Option<usize>| {
            let vars = one("w", &[0.3, -0.7], &[1, 2]);
            let mut optimiser = Optimiser::new(OptimiserConfig::default(), &vars).unwrap();
            for step in 0..6 {
                if split == Some(step) {
                    let (moments, average) = (optimiser.moments().unwrap(), optimiser.average().unwrap());
                    let updates = optimiser.updates();
                    optimiser = Optimiser::new(OptimiserConfig::default(), &vars).unwrap();
                    optimiser.restore(updates, &moments, &average).unwrap();
                }
                optimiser.step(&gradients(&vars, &[(step as f32).sin(), 0.1]), &no_figures(), 0.01).unwrap();
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
        let mut optimiser = Optimiser::new(OptimiserConfig::default(), &vars).unwrap();
        optimiser.step(&gradients(&vars, &[1.0, 1.0]), &no_figures(), 0.1).unwrap();
        assert_ne!(read(&vars["a"]), [1.0, 1.0]);
        assert_eq!(read(&vars["b"]), [2.0, 2.0]);
    }
}

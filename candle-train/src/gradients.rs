//! Gradients of one step, summed over its micro batches, as flat slices in name order.
//!
//! This is the place where several processes will reduce: between the last [`Gradients::add`] and the clipping.

use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, Device, Storage, Tensor, Var};
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// One gradient per parameter, in name order.
#[derive(Debug)]
pub struct Gradients(Vec<Gradient>);

#[derive(Debug)]
struct Gradient {
    name: String,
    /// Of the step before where the loss has not depended on the parameter yet.
    sum: Vec<f32>,
    /// Whether the loss depended on the parameter in this step.
    present: bool,
}

impl Gradient {
    fn values(&self) -> Option<&[f32]> {
        self.present.then_some(self.sum.as_slice())
    }

    /// Adds a contiguous f32 tensor; the first one of a step replaces what is there.
    fn add(&mut self, grad: &Tensor) -> Result<()> {
        let (storage, layout) = grad.storage_and_layout();
        let (Storage::Cpu(CpuStorage::F32(values)), Some((start, end))) = (&*storage, layout.contiguous_offsets()) else {
            return Err(Error::tensor(&self.name, "a contiguous gradient on the CPU", format!("{layout:?}")));
        };
        if self.present {
            self.sum.iter_mut().zip(&values[start..end]).for_each(|(s, g)| *s += g);
        } else {
            self.sum.copy_from_slice(&values[start..end]);
        }
        self.present = true;
        Ok(())
    }
}

/// In f64, over eight lanes: one sum waits four cycles for each value.
fn sum_of_squares(values: &[f32]) -> f64 {
    let (chunks, tail) = values.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, x) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(*x) * f64::from(*x);
        }
    }
    lanes.iter().sum::<f64>() + tail.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>()
}

impl Gradients {
    /// Zeros for every parameter.
    pub fn zeros(vars: &BTreeMap<String, Var>) -> Self {
        Self(vars.iter().map(|(name, v)| Gradient { name: name.clone(), sum: vec![0.0; v.elem_count()], present: false }).collect())
    }

    /// Forgets the step before.
    pub fn clear(&mut self) {
        self.0.iter_mut().for_each(|g| g.present = false);
    }

    /// Adds the gradients of one backward pass. A parameter that the loss does not depend on is left out.
    pub fn add(&mut self, vars: &BTreeMap<String, Var>, grads: &GradStore) -> Result<()> {
        let pairs: Vec<_> = vars.iter().map(|(name, var)| (name, grads.get(var))).collect();
        self.0.par_iter_mut().zip(pairs).try_for_each(|(slot, (name, grad))| {
            let Some(grad) = grad else { return Ok(()) };
            if slot.name != *name || slot.sum.len() != grad.elem_count() {
                return Err(Error::tensor(name, format!("{} values for {}", slot.sum.len(), slot.name), grad.elem_count()));
            }
            slot.add(&grad.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.contiguous()?)
        })
    }

    /// The Euclidean norm over all parameters. Each parameter is summed in one order in f64, and the parameters in name
    /// order, so that the value does not depend on the number of threads.
    pub fn norm(&self) -> f64 {
        let squares: Vec<f64> = self.0.par_iter().map(|g| sum_of_squares(g.values().unwrap_or_default())).collect();
        squares.iter().sum::<f64>().sqrt()
    }

    /// The first parameter, by name, whose gradient is not finite.
    pub fn not_finite(&self) -> Option<&str> {
        self.0.iter().find(|g| g.values().is_some_and(|v| v.iter().any(|x| !x.is_finite()))).map(|g| g.name.as_str())
    }

    /// Parameters that the loss did not depend on.
    pub fn absent(&self) -> Vec<&str> {
        self.0.iter().filter(|g| !g.present).map(|g| g.name.as_str()).collect()
    }

    /// Per parameter in name order: the gradient, or `None` if the loss did not depend on it.
    pub(crate) fn slices(&self) -> Vec<Option<&[f32]>> {
        self.0.iter().map(Gradient::values).collect()
    }
}

/// The factor that brings `norm` down to `limit`, 1 when it is already below. Zero switches clipping off.
pub fn clip_factor(norm: f64, limit: f64) -> f32 {
    if limit > 0.0 && norm > limit { (limit / norm) as f32 } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn vars() -> BTreeMap<String, Var> {
        let var = |v: &[f32]| Var::new(v, &Device::Cpu).unwrap();
        [("a", var(&[3.0])), ("b", var(&[0.0, 4.0])), ("unused", var(&[1.0]))].map(|(n, v)| (n.to_owned(), v)).into()
    }

    /// The loss 0.5 * (|a|^2 + |b|^2): its gradient is the parameters themselves.
    fn backward(vars: &BTreeMap<String, Var>) -> GradStore {
        let square = |n: &str| vars[n].sqr().unwrap().sum_all().unwrap();
        ((square("a") + square("b")).unwrap() * 0.5).unwrap().backward().unwrap()
    }

    #[test]
    fn micro_batches_add_up() {
        let vars = vars();
        let mut grads = Gradients::zeros(&vars);
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm(), 5.0);
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm(), 10.0);
        assert_eq!(grads.absent(), ["unused"]);
        assert_eq!(grads.slices()[1], Some([0.0, 8.0].as_slice()));
        grads.clear();
        assert_eq!(grads.norm(), 0.0);
        assert_eq!(grads.absent().len(), 3);
    }

    #[test]
    fn the_tensor_that_broke_is_named() {
        let vars = vars();
        vars["b"].set(&candle_core::Tensor::new(&[0.0, f32::NAN], &Device::Cpu).unwrap()).unwrap();
        let mut grads = Gradients::zeros(&vars);
        grads.add(&vars, &backward(&vars)).unwrap();
        assert!(!grads.norm().is_finite());
        assert_eq!(grads.not_finite(), Some("b"));
    }

    #[test]
    fn clipping_keeps_the_direction() {
        assert_eq!(clip_factor(5.0, 1.0), 0.2);
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(5.0, 0.0), 1.0);
    }
}

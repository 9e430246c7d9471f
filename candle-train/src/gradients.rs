//! Gradients of one step, summed over its micro batches, as flat slices in name order.
//!
//! This is the place where several processes will reduce: between the last [`Gradients::add`] and the clipping.

use candle_core::backprop::GradStore;
use candle_core::{DType, Var};
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// One gradient per parameter, in name order.
#[derive(Debug)]
pub struct Gradients(Vec<Gradient>);

#[derive(Debug)]
struct Gradient {
    name: String,
    sum: Vec<f32>,
    /// Whether the loss depended on the parameter in this step.
    present: bool,
}

impl Gradients {
    /// Zeros for every parameter.
    pub fn zeros(vars: &BTreeMap<String, Var>) -> Self {
        Self(vars.iter().map(|(name, v)| Gradient { name: name.clone(), sum: vec![0.0; v.elem_count()], present: false }).collect())
    }

    /// Forgets the step before.
    pub fn clear(&mut self) {
        for g in &mut self.0 {
            g.sum.fill(0.0);
            g.present = false;
        }
    }

    /// Adds the gradients of one backward pass. A parameter that the loss does not depend on is left out.
    pub fn add(&mut self, vars: &BTreeMap<String, Var>, grads: &GradStore) -> Result<()> {
        for (slot, (name, var)) in self.0.iter_mut().zip(vars) {
            let Some(grad) = grads.get(var) else { continue };
            if slot.name != *name || slot.sum.len() != grad.elem_count() {
                return Err(Error::tensor(name, format!("{} values for {}", slot.sum.len(), slot.name), grad.elem_count()));
            }
            let grad = grad.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            slot.present = true;
            slot.sum.iter_mut().zip(&grad).for_each(|(s, g)| *s += g);
        }
        Ok(())
    }

    /// The Euclidean norm over all parameters. Each parameter is summed in order in f64, and the parameters in name
    /// order, so that the value does not depend on the number of threads.
    pub fn norm(&self) -> f64 {
        let squares: Vec<f64> = self.0.par_iter().map(|g| g.sum.iter().map(|&x| f64::from(x) * f64::from(x)).sum()).collect();
        squares.iter().sum::<f64>().sqrt()
    }

    /// The first parameter, by name, whose gradient is not finite.
    pub fn not_finite(&self) -> Option<&str> {
        self.0.iter().find(|g| g.sum.iter().any(|x| !x.is_finite())).map(|g| g.name.as_str())
    }

    /// Parameters that the loss did not depend on.
    pub fn absent(&self) -> Vec<&str> {
        self.0.iter().filter(|g| !g.present).map(|g| g.name.as_str()).collect()
    }

    /// Per parameter in name order: the gradient, or `None` if the loss did not depend on it.
    pub(crate) fn slices(&self) -> Vec<Option<&[f32]>> {
        self.0.iter().map(|g| g.present.then_some(g.sum.as_slice())).collect()
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

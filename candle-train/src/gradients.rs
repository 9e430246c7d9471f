//! Gradients of one step, summed over its micro batches, as flat slices in name order.
//!
//! On CUDA they lie in one buffer, so that one kernel can reduce or apply them all. This is the place where several processes will reduce: between the last [`Gradients::add`] and the clipping.

#[cfg(feature = "cuda")]
use crate::flat::FlatGradients;
use candle_core::backprop::GradStore;
use candle_core::{CpuStorage, DType, Storage, Tensor, Var};
use candle_models::{Error, Result};
use rayon::prelude::*;
use std::collections::BTreeMap;

/// One gradient per parameter, in name order, on the parameters' device.
#[derive(Debug)]
pub struct Gradients(Sums);

#[derive(Debug)]
pub(crate) enum Sums {
    /// One vector per parameter.
    Host(Vec<Gradient>),
    /// All in one buffer.
    #[cfg(feature = "cuda")]
    Cuda(FlatGradients),
}

#[derive(Debug)]
pub(crate) struct Gradient {
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
    pub fn zeros(vars: &BTreeMap<String, Var>) -> Result<Self> {
        #[cfg(feature = "cuda")]
        if let Some(candle_core::Device::Cuda(device)) = vars.values().next().map(|var| var.device()) {
            return Ok(Self(Sums::Cuda(FlatGradients::new(device, vars)?)));
        }
        let zeros = |(name, v): (&String, &Var)| Gradient { name: name.clone(), sum: vec![0.0; v.elem_count()], present: false };
        Ok(Self(Sums::Host(vars.iter().map(zeros).collect())))
    }

    /// Forgets the step before.
    pub fn clear(&mut self) {
        match &mut self.0 {
            Sums::Host(gradients) => gradients.iter_mut().for_each(|g| g.present = false),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.clear(),
        }
    }

    /// Adds the gradients of one backward pass. A parameter that the loss does not depend on is left out.
    pub fn add(&mut self, vars: &BTreeMap<String, Var>, grads: &GradStore) -> Result<()> {
        let pairs: Vec<_> = vars.iter().map(|(name, var)| (name, grads.get(var))).collect();
        match &mut self.0 {
            Sums::Host(gradients) => gradients.par_iter_mut().zip(pairs).try_for_each(|(slot, (name, grad))| {
                let Some(grad) = grad else { return Ok(()) };
                check(name, (&slot.name, slot.sum.len()), grad)?;
                slot.add(&grad.to_dtype(DType::F32)?.contiguous()?)
            }),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.add(&pairs),
        }
    }

    /// The Euclidean norm over all parameters. Each parameter is summed in one order in f64, and the parameters in name
    /// order, so that the value does not depend on the number of threads. On CUDA the host waits for it.
    pub fn norm(&self) -> Result<f64> {
        match &self.0 {
            Sums::Host(gradients) => {
                let squares: Vec<f64> = gradients.par_iter().map(|g| sum_of_squares(g.values().unwrap_or_default())).collect();
                Ok(squares.iter().sum::<f64>().sqrt())
            }
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => Ok(gradients.to_host()?.iter().flatten().map(|v| sum_of_squares(v)).sum::<f64>().sqrt()),
        }
    }

    /// The first parameter, by name, whose gradient is not finite. On CUDA all gradients are copied to the host for it.
    pub fn not_finite(&self) -> Result<Option<&str>> {
        let broken = |values: &[f32]| values.iter().any(|x| !x.is_finite());
        match &self.0 {
            Sums::Host(gradients) => Ok(gradients.iter().find(|g| g.values().is_some_and(broken)).map(|g| g.name.as_str())),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => {
                let values = gradients.to_host()?;
                let found = values.iter().position(|v| v.as_deref().is_some_and(broken));
                Ok(found.map(|i| gradients.name(i)))
            }
        }
    }

    /// Parameters that the loss did not depend on.
    pub fn absent(&self) -> Vec<&str> {
        match &self.0 {
            Sums::Host(gradients) => gradients.iter().filter(|g| !g.present).map(|g| g.name.as_str()).collect(),
            #[cfg(feature = "cuda")]
            Sums::Cuda(gradients) => gradients.absent(),
        }
    }

    /// Per parameter in name order: the gradient, or `None` if the loss did not depend on it.
    pub(crate) fn slices(&self) -> Result<Vec<Option<&[f32]>>> {
        match &self.0 {
            Sums::Host(gradients) => Ok(gradients.iter().map(Gradient::values).collect()),
            #[cfg(feature = "cuda")]
            Sums::Cuda(_) => Err(Error::Input("gradients of parameters on the CPU, found some on CUDA".to_owned())),
        }
    }

    #[cfg(feature = "cuda")]
    pub(crate) fn flat(&self) -> Result<&FlatGradients> {
        match &self.0 {
            Sums::Cuda(gradients) => Ok(gradients),
            Sums::Host(_) => Err(Error::Input("gradients of parameters on CUDA, found some on the CPU".to_owned())),
        }
    }
}

/// A gradient has the size of its parameter.
fn check(name: &str, (expected, size): (&str, usize), grad: &Tensor) -> Result<()> {
    if name != expected || size != grad.elem_count() {
        return Err(Error::tensor(name, format!("{size} values for {expected}"), grad.elem_count()));
    }
    Ok(())
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
        let mut grads = Gradients::zeros(&vars).unwrap();
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm().unwrap(), 5.0);
        grads.add(&vars, &backward(&vars)).unwrap();
        assert_eq!(grads.norm().unwrap(), 10.0);
        assert_eq!(grads.absent(), ["unused"]);
        assert_eq!(grads.slices().unwrap()[1], Some([0.0, 8.0].as_slice()));
        grads.clear();
        assert_eq!(grads.norm().unwrap(), 0.0);
        assert_eq!(grads.absent().len(), 3);
    }

    #[test]
    fn the_tensor_that_broke_is_named() {
        let vars = vars();
        vars["b"].set(&candle_core::Tensor::new(&[0.0, f32::NAN], &Device::Cpu).unwrap()).unwrap();
        let mut grads = Gradients::zeros(&vars).unwrap();
        grads.add(&vars, &backward(&vars)).unwrap();
        assert!(!grads.norm().unwrap().is_finite());
        assert_eq!(grads.not_finite().unwrap(), Some("b"));
    }

    #[test]
    fn clipping_keeps_the_direction() {
        assert_eq!(clip_factor(5.0, 1.0), 0.2);
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(5.0, 0.0), 1.0);
    }
}

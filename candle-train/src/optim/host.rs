//! The update on the CPU.

use super::{Moment, ParameterGroup, Step};
use crate::gradients::{Clipping, Gradients};
use candle_core::{CpuStorage, Device, InplaceOp1, Layout, Tensor, Var};
use candle_models::Result;
use candle_models::ops::slices::{AdamwFactors, adamw};
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::sync::Mutex;

/// One slot per parameter, in name order.
#[derive(Debug)]
pub(super) struct Moments(Vec<Slot>);

#[derive(Debug)]
struct Slot {
    name: String,
    var: Var,
    group: ParameterGroup,
    mean: Vec<f32>,
    square: Vec<f32>,
    ema: Vec<f32>,
}

impl Slot {
    fn moment(&mut self, moment: Moment) -> &mut Vec<f32> {
        match moment {
            Moment::Mean => &mut self.mean,
            Moment::Square => &mut self.square,
            Moment::Average => &mut self.ema,
        }
    }

    fn read(&self, moment: Moment) -> &[f32] {
        match moment {
            Moment::Mean => &self.mean,
            Moment::Square => &self.square,
            Moment::Average => &self.ema,
        }
    }
}

impl Moments {
    pub fn new(vars: &BTreeMap<String, Var>) -> Result<Self> {
        let slot = |(name, var): (&String, &Var)| -> Result<Slot> {
            let n = var.elem_count();
            let group = ParameterGroup::by_rank(var.rank());
            let ema = var.flatten_all()?.to_vec1::<f32>()?;
            Ok(Slot { name: name.clone(), var: var.clone(), group, mean: vec![0.0; n], square: vec![0.0; n], ema })
        };
        Ok(Self(vars.iter().map(slot).collect::<Result<_>>()?))
    }

    pub fn set_groups(&mut self, of: impl Fn(&str, &[usize]) -> Result<ParameterGroup>) -> Result<()> {
        self.0.iter_mut().try_for_each(|slot| {
            slot.group = of(&slot.name, slot.var.dims())?;
            Ok(())
        })
    }

    pub fn step(
        &mut self,
        gradients: &Gradients,
        figures: &Tensor,
        clipping: Clipping,
        factors: &(dyn Fn(ParameterGroup) -> AdamwFactors + Sync),
    ) -> Result<Step> {
        let step = Step::new(gradients.norm()?, figures.to_vec1()?);
        if !step.updated {
            return Ok(step);
        }
        let scale = clipping.factor(step.norm);
        let updates = self.0.par_iter_mut().zip(gradients.slices()?).map(|(slot, gradient)| {
            let Some(gradient) = gradient else { return Ok(()) };
            let moments = Mutex::new((&mut slot.mean, &mut slot.square, &mut slot.ema));
            slot.var.inplace_op1(&Update { gradient, moments, scale, factors: factors(slot.group) })
        });
        updates.collect::<candle_core::Result<()>>()?;
        Ok(step)
    }

    pub fn tensors(&self, moment: Moment) -> Result<Vec<(String, Tensor)>> {
        let tensor = |s: &Slot| Ok((s.name.clone(), Tensor::from_slice(s.read(moment), s.var.dims(), &Device::Cpu)?));
        self.0.iter().map(tensor).collect()
    }

    pub fn set(&mut self, moment: Moment, values: impl Fn(&str, &[usize]) -> Result<Vec<f32>>) -> Result<()> {
        self.0.iter_mut().try_for_each(|slot| {
            *slot.moment(moment) = values(&slot.name, slot.var.dims())?;
            Ok(())
        })
    }
}

/// The update of one parameter.
struct Update<'a> {
    gradient: &'a [f32],
    // Candle hands the operation out by shared reference; nobody else locks this.
    moments: Mutex<(&'a mut Vec<f32>, &'a mut Vec<f32>, &'a mut Vec<f32>)>,
    /// What gradients are multiplied by.
    scale: f32,
    factors: AdamwFactors,
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
        adamw(&mut values[start..end], self.gradient, mean, square, ema, self.scale, self.factors);
        Ok(())
    }
}

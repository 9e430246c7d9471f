//! Networks over rows side by side, and what they read and give: kept, so that other networks can be asked the same.

use crate::Result;
use crate::engine::{Model, Placement, Runner};
use crate::infer::Sequences;
use crate::signature::TensorSpec;
use crate::tensors::NamedTensors;
use candle_core::{Device, Tensor};
use std::sync::Arc;

/// A network over so many rows. All that it reads and gives are floats.
pub struct Network {
    pub runner: Runner,
    rows: usize,
    kept: Option<Vec<Pass>>,
}

/// What a network read and gave in one pass.
pub struct Pass {
    resets: Vec<bool>,
    /// By name, `[rows, width]`.
    inputs: Vec<(String, Vec<f32>)>,
    /// By name, `[rows, width]`.
    pub outputs: Vec<(String, Vec<f32>)>,
}

impl Network {
    pub fn new(model: &Arc<dyn Model>, rows: usize, place: &Placement) -> Result<Self> {
        Ok(Self { runner: Runner::on(model.clone(), (rows, 1), place)?, rows, kept: None })
    }

    /// One pass over the inputs.
    pub fn step(&mut self, resets: &[bool]) -> Result<()> {
        self.runner.step(resets)?;
        if let Some(mut kept) = self.kept.take() {
            kept.push(self.last(resets)?);
            self.kept = Some(kept);
        }
        Ok(())
    }

    /// From now on passes are kept.
    pub fn keep(&mut self) {
        self.kept = Some(Vec::new());
    }

    /// The passes that were kept.
    pub fn kept(&mut self) -> Vec<Pass> {
        self.kept.take().unwrap_or_default()
    }

    /// What this network makes of the inputs of those passes.
    pub fn repeat(&mut self, passes: &[Pass]) -> Result<Vec<Pass>> {
        let mut again = Vec::with_capacity(passes.len());
        for Pass { resets, inputs, .. } in passes {
            inputs.iter().try_for_each(|(name, values)| self.runner.set_f32(name, values))?;
            self.runner.step(resets)?;
            again.push(self.last(resets)?);
        }
        Ok(again)
    }

    /// The last pass.
    fn last(&mut self, resets: &[bool]) -> Result<Pass> {
        let mut pass = Pass { resets: resets.to_vec(), inputs: Vec::new(), outputs: Vec::new() };
        for name in names(&self.runner.signature().inputs) {
            let mut values = Vec::new();
            for row in 0..self.rows {
                values.extend_from_slice(self.runner.floats_mut(&name, row)?);
            }
            pass.inputs.push((name, values));
        }
        for name in names(&self.runner.signature().outputs) {
            let values = (0..self.rows).map(|row| self.runner.floats(&name, row)).collect::<Result<Vec<_>>>()?.concat();
            pass.outputs.push((name, values));
        }
        Ok(pass)
    }
}

/// What passes read, each of them a frame.
pub fn sequences(passes: &[Pass]) -> Result<Sequences> {
    let rows = passes.first().map_or(0, |pass| pass.resets.len());
    let mut inputs = NamedTensors::new();
    for (i, (name, _)) in passes.iter().take(1).flat_map(|pass| &pass.inputs).enumerate() {
        let frame = |pass: &Pass| Ok(Tensor::from_slice(&pass.inputs[i].1, (rows, pass.inputs[i].1.len() / rows), &Device::Cpu)?);
        inputs.insert(name.clone(), Tensor::stack(&passes.iter().map(frame).collect::<Result<Vec<_>>>()?, 1)?);
    }
    let resets = (0..rows).flat_map(|row| passes.iter().map(move |pass| pass.resets[row])).collect();
    Ok(Sequences { size: [rows, passes.len()], inputs, resets })
}

fn names(specs: &[TensorSpec]) -> Vec<String> {
    specs.iter().map(|spec| spec.name.clone()).collect()
}

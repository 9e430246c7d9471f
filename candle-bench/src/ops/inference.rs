//! Kernels of the CPU's executor: products with packed weights, and attention over its window.
//!
//! A model of one operation runs in the engine's runner. Both sides keep their inputs; the runner's copies of one input and one
//! output a call are part of its time.

use super::training::Sizes;
use super::{Calculation, Demand, Form, Pair, Work, doubles, normal};
use crate::calls::Answers;
use crate::formulas::product_flop;
use crate::harness::Subject;
use crate::network::computes_in;
use anyhow::Result;
use candle_core::{DType, Device, Tensor};
use candle_models::engine::{Placement, Runner};
use candle_models::exec::Executor;
use candle_models::exec::program::Output;
use candle_models::network::{Layers, Network};
use candle_models::nn::Linear;
use candle_models::ops::{self, Activation, Attention, Format};
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use std::sync::Arc;

pub(super) const PRODUCT: &str = "product with packed weights";
pub(super) const ATTENTION: &str = "attention";

/// Inputs and outputs of layers: an MLP's, the two of a Mamba block, small heads'.
pub(crate) const LAYERS: [[usize; 2]; 4] = [[512, 512], [256, 1024], [512, 256], [128, 128]];
/// Model width and attention of a small network.
const WIDTH: usize = 256;
const WINDOW: Attention = Attention { heads: 4, window: 60 };

/// How the weights of a product are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Weights {
    F32,
    Bf16,
    Q8,
}

impl Weights {
    pub const ALL: [Self; 3] = [Self::F32, Self::Bf16, Self::Q8];

    /// By the name of a dtype; f32 where there is no product with such weights.
    pub fn named(dtype: &str) -> Self {
        Self::ALL.into_iter().find(|weights| weights.name() == dtype).unwrap_or(Self::F32)
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::Q8 => "q8",
        }
    }

    /// Bytes of so many of them.
    fn bytes(self, count: usize) -> f64 {
        let each = match self {
            Self::F32 => 4.0,
            Self::Bf16 => 2.0,
            Self::Q8 => 1.0,
        };
        each * count as f64
    }

    /// A weight `[inputs, outputs]` rounded to what the format can hold, so that both forms multiply by the same values.
    fn round(self, weight: &Tensor) -> Result<(Tensor, Format)> {
        Ok(match self {
            Self::F32 => (weight.clone(), Format::F32),
            Self::Bf16 => (weight.to_dtype(DType::BF16)?.to_dtype(DType::F32)?, Format::Bf16),
            Self::Q8 => {
                let (values, outputs) = (weight.flatten_all()?.to_vec1::<f32>()?, weight.dim(1)?);
                let format = Format::q8(&values, outputs);
                let Format::Q8(scale) = &format else { unreachable!("made as 8 bits") };
                let integers = format.integers(&values).unwrap_or_default();
                let values: Vec<f32> = integers.iter().zip(scale.iter().cycle()).map(|(i, s)| f32::from(*i) * s).collect();
                (Tensor::from_vec(values, weight.dims(), &Device::Cpu)?, format)
            }
        })
    }
}

/// The operations that are measured.
#[derive(Debug, Clone)]
enum Layer {
    Linear(Linear),
    Attention(Tensor),
}

impl Layers for Layer {
    fn pass<E: Executor>(&self, e: &mut E) -> candle_models::Result<Vec<Output<E::V, E::I>>> {
        let y = match self {
            Self::Linear(layer) => {
                let x = e.input("x")?;
                e.linear(&x, layer, Activation::None)?
            }
            Self::Attention(slopes) => {
                let (q, k, v) = (e.input("q")?, e.input("k")?, e.input("v")?);
                e.attention(WINDOW, [&q, &k, &v], slopes, 0)?
            }
        };
        Ok(vec![Output::Floats(y)])
    }
}

impl Layer {
    fn signature(&self) -> Signature {
        let float = |name: &str, width: usize| TensorSpec::f32(name, &[width]);
        match self {
            Self::Linear(layer) => {
                let [inputs, outputs] = [0, 1].map(|axis| layer.weight.dims()[axis]);
                Signature { inputs: vec![float("x", inputs)], outputs: vec![float("y", outputs)], state: Vec::new() }
            }
            Self::Attention(_) => Signature {
                inputs: ["q", "k", "v"].map(|name| float(name, WIDTH)).to_vec(),
                outputs: vec![float("y", WIDTH)],
                state: vec![
                    TensorSpec::f32("keys", &[WINDOW.window - 1, WIDTH]),
                    TensorSpec::f32("values", &[WINDOW.window - 1, WIDTH]),
                    TensorSpec::f32("count", &[1]),
                ],
            },
        }
    }
}

/// The model in the engine.
struct Packed {
    runner: Runner,
    resets: Vec<bool>,
}

impl Packed {
    fn new(model: Arc<Network<Layer>>, sizes: Sizes, inputs: &NamedTensors, place: &Placement) -> Result<Self> {
        let mut runner = Runner::on(model, (sizes.batch, sizes.frames), place)?;
        for (name, values) in inputs.iter() {
            runner.set_f32(name, &values.flatten_all()?.to_vec1()?)?;
        }
        Ok(Self { runner, resets: starts(sizes) })
    }
}

/// Every pass begins anew.
fn starts(sizes: Sizes) -> Vec<bool> {
    (0..sizes.rows()).map(|row| row % sizes.frames == 0).collect()
}

impl Subject for Packed {
    fn run(&mut self) -> Result<()> {
        Ok(self.runner.step(&self.resets)?)
    }
}

impl Form for Packed {
    fn answers(&mut self) -> Result<Answers> {
        self.run()?;
        let rows = (0..self.resets.len()).map(|row| self.runner.floats("y", row)).collect::<candle_models::Result<Vec<_>>>()?;
        Ok(Answers::from([("output".to_owned(), rows.concat().into_iter().map(f64::from).collect())]))
    }
}

/// The model on tensors.
struct OnTensors {
    model: Arc<Network<Layer>>,
    inputs: NamedTensors,
    state: NamedTensors,
    resets: Vec<bool>,
}

impl OnTensors {
    fn output(&self) -> Result<Tensor> {
        let Layer::Linear(Linear { weight, bias, .. }) = self.model.layers() else {
            return Ok(self.model.unroll(&self.inputs, &self.resets, &self.state)?.0.get("y")?.clone());
        };
        Ok(ops::linear_reference(&self.inputs.get("x")?.flatten(0, 1)?, weight, bias.as_ref(), Activation::None)?)
    }
}

impl Subject for OnTensors {
    fn run(&mut self) -> Result<()> {
        self.output().map(drop)
    }
}

impl Form for OnTensors {
    fn answers(&mut self) -> Result<Answers> {
        Ok(Answers::from([("output".to_owned(), doubles(&self.output()?)?)]))
    }
}

/// Both forms of a model of one layer.
fn forms(layer: Layer, sizes: Sizes, threads: usize) -> Result<[Box<dyn Form>; 2]> {
    let model = Arc::new(Network::of(("layer", &()), layer.signature(), &Device::Cpu, layer)?);
    let mut inputs = NamedTensors::new();
    for spec in &model.signature().inputs {
        inputs.insert(&spec.name, normal(&spec.name, &[sizes.batch, sizes.frames, spec.width()], 1.0)?);
    }
    let packed = Packed::new(model.clone(), sizes, &inputs, &Placement::cpu(threads))?;
    let state = model.initial_state(sizes.batch)?;
    Ok([Box::new(packed), Box::new(OnTensors { model, inputs, state, resets: starts(sizes) })])
}

/// `x W + b` with weights packed at load, against Candle's product with the same values as an f32 tensor.
pub(super) fn product([inputs, outputs]: [usize; 2], weights: Weights, rows: usize, threads: usize) -> Result<Pair> {
    let weight = normal("weight", &[inputs, outputs], 1.0 / (inputs as f32).sqrt())?;
    let (weight, format) = weights.round(&weight)?;
    let layer = Linear { weight, bias: Some(normal("bias", &[outputs], 0.1)?), format };
    let [fused, plain] = forms(Layer::Linear(layer), Sizes { batch: rows, frames: 1, device: &Device::Cpu }, threads)?;
    let work = Work {
        flop: product_flop(rows, inputs, outputs),
        bytes: weights.bytes(inputs * outputs) + 4.0 * (rows * (inputs + outputs) + outputs) as f64,
    };
    Ok(Pair {
        operation: PRODUCT.to_owned(),
        shape: format!("{rows} x {inputs} to {outputs}, {}", weights.name()),
        calculation: Calculation::Inference,
        demand: Demand::of(work, weights.name()),
        fused,
        plain,
    })
}

/// `x W` alone, with weights packed in a dtype.
pub(crate) struct Product {
    packed: Packed,
    /// The input `[rows, inputs]`.
    pub x: Vec<f32>,
    /// The weight `[inputs, outputs]` before it was rounded.
    pub weight: Vec<f32>,
}

impl Product {
    /// A product of random matrices, in bf16 with activations of bf16 where the CPU computes in that.
    pub fn new([inputs, outputs]: [usize; 2], weights: Weights, rows: usize, threads: usize) -> Result<Self> {
        let weight = normal("weight", &[inputs, outputs], 1.0 / (inputs as f32).sqrt())?;
        let (rounded, format) = weights.round(&weight)?;
        let layer = Layer::Linear(Linear { weight: rounded, bias: None, format });
        let model = Arc::new(Network::of(("layer", &()), layer.signature(), &Device::Cpu, layer)?);
        let x = normal("x", &[rows, 1, inputs], 1.0)?;
        let given = NamedTensors::from_iter([("x".to_owned(), x.clone())]);
        let dtype = (weights == Weights::Bf16 && computes_in(DType::BF16)).then_some(DType::BF16);
        let place = Placement { dtype, ..Placement::cpu(threads) };
        let packed = Packed::new(model, Sizes { batch: rows, frames: 1, device: &Device::Cpu }, &given, &place)?;
        Ok(Self { packed, x: x.flatten_all()?.to_vec1()?, weight: weight.flatten_all()?.to_vec1()? })
    }

    /// The output of a pass, `[rows, outputs]`.
    pub fn output(&mut self) -> Result<Vec<f32>> {
        self.packed.run()?;
        let rows = (0..self.packed.resets.len()).map(|row| self.packed.runner.floats("y", row));
        Ok(rows.collect::<candle_models::Result<Vec<_>>>()?.concat())
    }
}

impl Subject for Product {
    fn run(&mut self) -> Result<()> {
        self.packed.run()
    }
}

/// Pairs of a frame and one that it sees, over a window from its start.
fn visible(frames: usize) -> usize {
    (1..=frames).map(|t| t.min(WINDOW.window)).sum()
}

/// Attention over a window from its start. On tensors it is made of products and masks, in training too.
pub(super) fn attention(sizes: Sizes, threads: usize) -> Result<Pair> {
    let slopes = normal("slopes", &[WINDOW.heads], 0.1)?;
    let [fused, plain] = forms(Layer::Attention(slopes), sizes, threads)?;
    // A multiply-add a channel for the score, one for the sum of values.
    let work = Work {
        flop: 2.0 * product_flop(sizes.batch, visible(sizes.frames), WIDTH),
        // Queries, keys, values and the output; the states are read and written.
        bytes: 4.0 * (4 * sizes.rows() * WIDTH + 4 * sizes.batch * (WINDOW.window - 1) * WIDTH) as f64,
    };
    Ok(Pair {
        operation: ATTENTION.to_owned(),
        shape: format!("{} x {}, {WIDTH}, {} heads, window {}", sizes.batch, sizes.frames, WINDOW.heads, WINDOW.window),
        calculation: Calculation::Inference,
        demand: Demand::of(work, "f32"),
        fused,
        plain,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_sees_its_window_at_most() {
        assert_eq!((visible(1), visible(3), visible(WINDOW.window)), (1, 6, 1830));
        assert_eq!(visible(WINDOW.window + 2), 1830 + 2 * WINDOW.window);
    }

    #[test]
    fn rounded_weights_are_what_the_format_holds() {
        let weight = normal("weight", &[8, 4], 1.0).unwrap();
        for weights in Weights::ALL {
            let (once, _) = weights.round(&weight).unwrap();
            let worst = (&once - &weight).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
            assert_eq!(worst == 0.0, weights == Weights::F32, "{weights:?}");
            assert!(worst < 0.02, "{weights:?}: {worst}");
        }
    }
}

//! The network of an agent: inputs to trunk, trunk to action.

use super::{AgentConfig, Component, ConvSizes, Observation};
use crate::bundle::ParameterSpec;
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{ActionHeads, Backbone, Decision, Head, Init, Linear, Norm, Params};
use crate::ops::conv2d::Conv2d;
use crate::ops::pool2d::Pool2d;
use crate::ops::{Activation, Format};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};

/// Width of the autoregressive stream and of the layer inside each component.
const STREAM: usize = 128;
/// Width of the layer inside each component that knows no class before it, and inside numbers.
const INNER: usize = 64;

/// Observation to action.
pub type Agent = Network<AgentLayers>;

/// Every input into one layer with layer norm and GELU, the backbone, the heads.
pub struct AgentLayers {
    config: AgentConfig,
    /// Convolutions of each input in the description's order; none but for grids.
    convolutions: Vec<Vec<Convolution>>,
    /// A table for each column of ids, then for each column of the last action.
    tables: Vec<Tensor>,
    /// The first layer over floats and grids, and over what is looked up; their sum is normalised.
    floats: Option<Linear>,
    looked_up: Option<Linear>,
    input_norm: Norm,
    backbone: Backbone,
    heads: ActionHeads,
    /// Of each component, where its classes stand for numbers.
    numbers: Vec<Option<Numbers>>,
}

/// A convolution, its norm and what is left of its result.
struct Convolution {
    layer: Conv2d,
    norm: Norm,
    pool: Option<Pool2d>,
}

/// Makes of an action the number that one of its components stands for: tables over all its columns, zeros but for that component.
struct Numbers {
    tables: Vec<Tensor>,
    sum: Linear,
}

impl Agent {
    /// The network with parameters from `params`.
    ///
    /// # Errors
    /// If the description is out of range, or a parameter is missing or has another shape.
    pub fn new(config: &AgentConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let (first, trunk) = (config.backbone.inputs(config.hidden), config.backbone.outputs(config.hidden));
        let mut state = Vec::new();
        let backbone = Backbone::new(&config.backbone, config.hidden, params, &mut state)?;
        let layer = |name: &str, inputs: usize| (inputs > 0).then(|| Linear::new(inputs, first, &params.pp("input").pp(name))).transpose();
        let [floats, looked_up] = config.widths()?;
        let layers = AgentLayers {
            convolutions: config.observation.iter().map(|input| convolutions(input, params)).collect::<Result<_>>()?,
            tables: tables(config, params)?,
            floats: layer("floats", floats)?,
            looked_up: layer("looked_up", looked_up)?,
            input_norm: Norm::layer(first, &params.pp("input_norm"))?,
            backbone,
            heads: heads(config, trunk, &params.pp("heads"))?,
            numbers: config.components().map(|component| numbers(config, component, params.device())).collect::<Result<_>>()?,
            config: config.clone(),
        };
        Self::of((super::FAMILY, config), signature(config, state), params.device(), layers)
    }

    /// Names and shapes of the parameters of an agent of that description, without memory for them.
    ///
    /// # Errors
    /// If the description is out of range.
    pub fn parameters(config: &AgentConfig) -> Result<Vec<ParameterSpec>> {
        let params = Params::description();
        Self::new(config, &params)?;
        Ok(params.specs())
    }
}

impl Layers for AgentLayers {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let x = self.first_layer(e)?;
        let x = e.norm(&x, &self.input_norm, Activation::Gelu)?;
        let x = e.dropout(&x)?;
        let trunk = self.backbone.forward(e, &x)?;
        let trunk = e.dropout(&trunk)?;
        let Decision { classes, numbers, distributions } = self.heads.forward(e, &trunk, None)?;
        let mut outputs = Vec::new();
        if let Some((logits, action)) = &classes {
            outputs.extend([Output::Floats(logits.clone()), Output::Indices(action.clone())]);
        }
        match &distributions[..] {
            [] => {}
            [one] => outputs.push(Output::Floats(one.clone())),
            several => outputs.push(Output::Floats(e.join(several)?)),
        }
        let mut drawn = numbers.into_iter();
        for (component, numbers) in self.config.action.iter().zip(&self.numbers) {
            if let (Some(Numbers { tables, sum }), Some((_, action))) = (numbers, &classes) {
                outputs.push(Output::Floats(e.lookup(action, &tables.iter().collect::<Vec<_>>(), sum)?));
            } else if component.numbers() > 0 {
                outputs.extend(drawn.next().map(Output::Floats));
            }
        }
        Ok(outputs)
    }
}

impl AgentLayers {
    /// The first layer over floats, grids and what is looked up.
    fn first_layer<E: Executor>(&self, e: &mut E) -> Result<E::V> {
        let (mut floats, mut ids) = (Vec::new(), Vec::new());
        for (input, layers) in self.config.observation.iter().zip(&self.convolutions) {
            if let Observation::Ids { name, .. } = input {
                ids.push(e.indices(name)?);
                continue;
            }
            let mut x = e.input(input.name())?;
            for Convolution { layer, norm, pool } in layers {
                x = e.apply(layer.clone(), &[&x])?;
                x = e.norm(&x, norm, Activation::Gelu)?;
                if let Some(pool) = pool {
                    x = e.apply(*pool, &[&x])?;
                }
            }
            floats.push(x);
        }
        if self.config.previous_action > 0 {
            ids.push(e.indices("previous_action")?);
        }
        let floats = match &self.floats {
            Some(layer) => {
                let floats = if let [one] = &floats[..] { one.clone() } else { e.join(&floats)? };
                Some(e.linear(&floats, layer, Activation::None)?)
            }
            None => None,
        };
        let Some(layer) = &self.looked_up else { return floats.ok_or_else(without_input) };
        let ids = if let [one] = &ids[..] { one.clone() } else { e.join_indices(&ids)? };
        let looked_up = e.lookup(&ids, &self.tables.iter().collect::<Vec<_>>(), layer)?;
        match floats {
            Some(floats) => e.add(&floats, &looked_up),
            None => Ok(looked_up),
        }
    }
}

/// Of a description that has been checked this is never said.
fn without_input() -> Error {
    Error::config("observation", "expected at least one input")
}

fn convolutions(input: &Observation, params: &Params) -> Result<Vec<Convolution>> {
    let layer = |(i, ConvSizes { convolution: shape, channels, pool }): (usize, ConvSizes)| {
        let params = params.pp("inputs").pp(input.name()).pp(i);
        let patch = shape.kernel.iter().product::<usize>() * shape.channels;
        let layer = Conv2d::new(shape, Linear::new(patch, channels, &params.pp("conv"))?)?;
        Ok(Convolution { layer, norm: Norm::layer(channels, &params.pp("norm"))?, pool })
    };
    input.convolutions()?.into_iter().enumerate().map(layer).collect()
}

fn tables(config: &AgentConfig, params: &Params) -> Result<Vec<Tensor>> {
    let mut tables = Vec::new();
    let mut columns = |params: &Params, below: &[u32], width: usize| -> Result<()> {
        for (column, rows) in below.iter().enumerate() {
            tables.push(params.get(&column.to_string(), &[*rows as usize, width], Init::Normal(1.0))?);
        }
        Ok(())
    };
    for input in &config.observation {
        if let Observation::Ids { name, below, embedding } = input {
            columns(&params.pp("inputs").pp(name), below, *embedding)?;
        }
    }
    if config.previous_action > 0 {
        columns(&params.pp("inputs.previous_action"), &config.classes(), config.previous_action)?;
    }
    Ok(tables)
}

fn heads(config: &AgentConfig, trunk: usize, params: &Params) -> Result<ActionHeads> {
    let names: Vec<String> = config.action.iter().map(|component| format!("components.{}", component.name())).collect();
    // The random numbers of numbers lie behind those of classes.
    let mut next = config.columns();
    let head = |(column, component): (usize, &Component)| {
        let numbers = component.numbers();
        next += numbers;
        match component.gaussian() {
            Some(gaussian) => Head::Numbers { column: next - numbers, columns: numbers, gaussian },
            None => Head::Classes(component.choice(column)),
        }
    };
    let heads = config.components().map(head);
    let components: Vec<_> = names.iter().zip(heads).map(|(name, head)| (name.as_str(), INNER, head)).collect();
    ActionHeads::new(config.heads, [trunk, STREAM], &components, None, params)
}

/// `None` where classes are no numbers.
fn numbers(config: &AgentConfig, (at, component): (usize, &Component), device: &Device) -> Result<Option<Numbers>> {
    let Some(centres) = component.centres() else { return Ok(None) };
    let table = |(column, classes): (usize, u32)| {
        let values = if column == at { centres.clone() } else { vec![0.0; classes as usize] };
        Tensor::from_vec(values, (classes as usize, 1), device)
    };
    let tables = config.classes().into_iter().enumerate().map(table).collect::<candle_core::Result<Vec<_>>>()?;
    let weight = Tensor::ones((tables.len(), 1), DType::F32, device)?;
    Ok(Some(Numbers { tables, sum: Linear { weight, bias: None, format: Format::F32 } }))
}

fn signature(config: &AgentConfig, state: Vec<TensorSpec>) -> Signature {
    let (columns, classes) = (config.columns(), config.classes());
    let mut inputs: Vec<TensorSpec> = config.observation.iter().map(Observation::spec).collect();
    if config.previous_action > 0 {
        let previous = TensorSpec::u32("previous_action", &[columns]).below(&classes).or_u32(&config.neutral());
        inputs.push(previous.says("classes of the last action"));
    }
    let mut outputs = Vec::new();
    if columns > 0 {
        let action = TensorSpec::u32("action", &[columns]).below(&classes).or_sample();
        inputs.push(action.says("classes that are given; SAMPLE: chosen by the network"));
        let logits = TensorSpec::f32("logits", &[config.logits()]);
        outputs.push(logits.says("those of the components side by side; of two classes that of class 1"));
        outputs.push(TensorSpec::u32("action", &[columns]).says("classes of the components side by side"));
    }
    let (numbers, draws) = (config.numbers(), columns + config.numbers());
    let uniform = TensorSpec::f32("uniform", &[draws]).within(-1.0..1.0).or_f32(&vec![-1.0; draws]);
    inputs.push(uniform.says(if numbers == 0 {
        "where the network chooses: a number from 0 draws a class, one below 0 takes the most likely"
    } else {
        "for each class and then for each Gaussian number: one from 0 draws, one below 0 takes the most likely class and the mean"
    }));
    if numbers > 0 {
        let gaussian = TensorSpec::f32("gaussian", &[2 * numbers]);
        outputs.push(gaussian.says("of each Gaussian component the means, and behind them the logarithms of the standard deviations"));
    }
    for component in &config.action {
        if component.centres().is_some() {
            outputs.push(TensorSpec::f32(component.name(), &[1]).says("the number at the centre of the chosen bin"));
        } else if component.numbers() > 0 {
            outputs.push(TensorSpec::f32(component.name(), &[component.numbers()]).says("numbers within the component's bounds"));
        }
    }
    Signature { inputs, outputs, state }
}

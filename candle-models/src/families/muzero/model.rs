//! Encoder, dynamics and heads, as two networks.
//!
//! With E values of an embedding, A actions and K atoms:
//! `initial`: observation -> embedding, logits `[A]`, value; `recurrent`: embedding, action -> embedding, reward, logits `[A]`, value. Both say what they
//! make values of, too: `value_logits` and `reward_logits` `[K]`, which training needs.
//!
//! An embedding is layer-normalised, over a board in every place: that keeps it of one size however often the dynamics are applied, as the published
//! scaling to [0, 1] does. What an action does is added to the first layer of the dynamics from a table, which for a dense layer is the weight of a
//! one-hot input, and for a convolution that of a plane for each action.

use super::{FAMILY, MuZeroConfig, NetworkConfig, config};
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Dense, Init, Linear, Norm, Params};
use crate::ops::conv2d::{Conv2d, Conv2dShape};
use crate::ops::softmax::Softmax;
use crate::ops::{Activation, Format};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// Width of the layer inside the value and reward heads over a board.
const INNER: usize = 64;
/// Channels of the heads over a board.
const HEAD_CHANNELS: usize = 8;

/// The two networks, which share the heads of the prior policy and of the value.
pub struct MuZero {
    /// Where a search begins.
    pub initial: Network<Initial>,
    /// What comes of an action, where that is learnt.
    pub recurrent: Option<Network<Recurrent>>,
}

impl MuZero {
    /// The networks with parameters from `params`.
    ///
    /// # Errors
    /// If the description is out of range, or a parameter is missing or has another shape.
    pub fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let prediction = Prediction::new(config, &params.pp("prediction"))?;
        let initial =
            Initial { inputs: names(config), encoder: Encoder::new(config, &params.pp("encoder"))?, prediction: prediction.clone() };
        let [of_initial, of_recurrent] = signatures(config);
        let device = params.device();
        let recurrent = match config.dynamics {
            config::Dynamics::Rules => None,
            config::Dynamics::Learnt => {
                let reward = ValueHead::new(config, &params.pp("reward"))?;
                let recurrent = Recurrent { dynamics: Dynamics::new(config, &params.pp("dynamics"))?, reward, prediction };
                Some(Network::of((FAMILY, config), of_recurrent, device, recurrent)?)
            }
        };
        Ok(Self { initial: Network::of((FAMILY, config), of_initial, device, initial)?, recurrent })
    }
}

fn names(config: &MuZeroConfig) -> Vec<String> {
    config.observation.iter().map(|input| input.name().to_owned()).collect()
}

fn signatures(config: &MuZeroConfig) -> [Signature; 2] {
    let floats = |name: &str, width: usize, says| TensorSpec::f32(name, &[width]).says(says);
    let embedding = || floats("embedding", config.embedding(), "what is known of where the game stands");
    let ends = || {
        [
            floats("logits", config.actions, "the prior policy"),
            floats("value", 1, "what is to be expected from here, by who is to move"),
            floats("value_logits", config.support.count(), "the distribution that the value is the mean of"),
        ]
    };
    let action = TensorSpec::u32("action", &[1]).below(&[config.actions as u32]).says("what is done");
    let reward = [
        floats("reward", 1, "what the action earns, for who takes it"),
        floats("reward_logits", config.support.count(), "the distribution that the reward is the mean of"),
    ];
    let inputs = config.observation.iter().map(crate::families::agent::Observation::spec).collect();
    let initial = Signature { inputs, outputs: [embedding()].into_iter().chain(ends()).collect(), state: Vec::new() };
    let outputs = [embedding()].into_iter().chain(ends()).chain(reward).collect();
    [initial, Signature { inputs: vec![embedding(), action], outputs, state: Vec::new() }]
}

/// The layers of `initial`.
pub struct Initial {
    inputs: Vec<String>,
    encoder: Encoder,
    prediction: Prediction,
}

impl Layers for Initial {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let inputs = self.inputs.iter().map(|name| e.input(name)).collect::<Result<Vec<_>>>()?;
        let x = if let [one] = &inputs[..] { one.clone() } else { e.join(&inputs)? };
        let embedding = self.encoder.forward(e, &x)?;
        let ends = self.prediction.forward(e, &embedding)?;
        Ok([embedding].into_iter().chain(ends).map(Output::Floats).collect())
    }
}

/// The layers of `recurrent`.
pub struct Recurrent {
    dynamics: Dynamics,
    reward: ValueHead,
    prediction: Prediction,
}

impl Layers for Recurrent {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let (embedding, action) = (e.input("embedding")?, e.indices("action")?);
        let (hidden, embedding) = self.dynamics.forward(e, &embedding, &action)?;
        let reward = self.reward.forward(e, &hidden)?;
        let ends = self.prediction.forward(e, &embedding)?;
        Ok([embedding].into_iter().chain(ends).chain(reward).map(Output::Floats).collect())
    }
}

/// A convolution of an odd patch that keeps the places, over channels last.
fn convolution([height, width, channels]: [usize; 3], side: usize, outputs: usize, params: &Params) -> Result<Conv2d> {
    let padding = [side / 2; 2];
    let shape = Conv2dShape { input: [height, width], channels, kernel: [side; 2], stride: [1; 2], padding };
    Conv2d::new(shape, Linear::new(side * side * channels, outputs, params)?)
}

/// A layer whose outputs start as zeros: nothing is preferred until something is learnt.
fn silent(inputs: usize, outputs: usize, params: &Params) -> Result<Linear> {
    Linear::started(inputs, outputs, [Init::Constant(0.0), Init::Constant(0.0)], params)
}

/// `x + conv(GELU(norm(conv(GELU(norm(x))))))` in every place (He et al. 2016).
#[derive(Clone)]
struct Block {
    norms: [Norm; 2],
    convolutions: [Conv2d; 2],
}

impl Block {
    fn new([height, width]: [usize; 2], channels: usize, params: &Params) -> Result<Self> {
        let norm = |i: usize| Norm::layer(channels, &params.pp("norm").pp(i));
        let layer = |i: usize| convolution([height, width, channels], 3, channels, &params.pp("conv").pp(i));
        Ok(Self { norms: [norm(0)?, norm(1)?], convolutions: [layer(0)?, layer(1)?] })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let mut y = x.clone();
        for (norm, layer) in self.norms.iter().zip(&self.convolutions) {
            y = e.norm(&y, norm, Activation::Gelu)?;
            y = e.apply(layer.clone(), &[&y])?;
        }
        e.add(x, &y)
    }
}

fn blocks(places: [usize; 2], channels: usize, blocks: usize, params: &Params) -> Result<Vec<Block>> {
    (0..blocks).map(|i| Block::new(places, channels, &params.pp("blocks").pp(i))).collect()
}

fn no_board() -> Error {
    Error::config("observation", "expected one grid")
}

/// Observation to embedding.
enum Encoder {
    Mlp { layers: Vec<Dense>, out: Linear, norm: Norm },
    Board { first: Conv2d, blocks: Vec<Block>, norm: Norm },
}

impl Encoder {
    fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        Ok(match config.network {
            NetworkConfig::Mlp { width, layers } => {
                let inputs: usize = config.observation.iter().map(|input| input.spec().width()).sum();
                let layer = |i: usize| Dense::new(if i == 0 { inputs } else { width }, width, &params.pp("layers").pp(i));
                let layers = (0..layers).map(layer).collect::<Result<_>>()?;
                Self::Mlp { layers, out: Linear::new(width, width, &params.pp("out"))?, norm: Norm::layer(width, &params.pp("norm"))? }
            }
            NetworkConfig::Board { channels, blocks: n } => {
                let [height, width, seen] = config.board().ok_or_else(no_board)?;
                Self::Board {
                    first: convolution([height, width, seen], 3, channels, &params.pp("first"))?,
                    blocks: blocks([height, width], channels, n, params)?,
                    norm: Norm::layer(channels, &params.pp("norm"))?,
                }
            }
        })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        match self {
            Self::Mlp { layers, out, norm } => {
                let mut x = x.clone();
                for layer in layers {
                    x = layer.forward(e, &x)?;
                }
                let x = e.linear(&x, out, Activation::None)?;
                e.norm(&x, norm, Activation::None)
            }
            Self::Board { first, blocks, norm } => {
                let mut x = e.apply(first.clone(), &[x])?;
                for block in blocks {
                    x = block.forward(e, &x)?;
                }
                e.norm(&x, norm, Activation::None)
            }
        }
    }
}

/// Embedding and action to what the reward is read from, and to the next embedding.
struct Dynamics {
    /// A row for each action.
    actions: Tensor,
    layers: DynamicsLayers,
    norm: Norm,
}

enum DynamicsLayers {
    Mlp { first: Linear, norm: Norm, layers: Vec<Dense>, out: Linear },
    Board { first: Conv2d, norm: Norm, second: Conv2d, blocks: Vec<Block> },
}

impl Dynamics {
    fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        // What a one-hot input would have: the scale of a layer's weights.
        let table =
            |width: usize, inputs: usize| params.get("actions", &[config.actions, width], Init::Uniform(1.0 / (inputs as f32).sqrt()));
        Ok(match config.network {
            NetworkConfig::Mlp { width, layers } => {
                let layer = |i: usize| Dense::new(width, width, &params.pp("layers").pp(i));
                let layers = DynamicsLayers::Mlp {
                    first: Linear::new(width, width, &params.pp("first"))?,
                    norm: Norm::layer(width, &params.pp("first_norm"))?,
                    layers: (1..layers).map(layer).collect::<Result<_>>()?,
                    out: Linear::new(width, width, &params.pp("out"))?,
                };
                Self { actions: table(width, config.actions)?, layers, norm: Norm::layer(width, &params.pp("norm"))? }
            }
            NetworkConfig::Board { channels, blocks: n } => {
                let [height, width, _] = config.board().ok_or_else(no_board)?;
                let layer = |name: &str| convolution([height, width, channels], 3, channels, &params.pp(name));
                let layers = DynamicsLayers::Board {
                    first: layer("first")?,
                    norm: Norm::layer(channels, &params.pp("first_norm"))?,
                    second: layer("second")?,
                    blocks: blocks([height, width], channels, n, params)?,
                };
                Self { actions: table(config.embedding(), 9)?, layers, norm: Norm::layer(channels, &params.pp("norm"))? }
            }
        })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V, action: &E::I) -> Result<(E::V, E::V)> {
        let (hidden, next) = match &self.layers {
            DynamicsLayers::Mlp { first, norm, layers, out } => {
                let y = e.linear(x, first, Activation::None)?;
                let y = e.add_rows(&y, &self.actions, action, &[(0, 0)], Activation::None)?;
                let mut y = e.norm(&y, norm, Activation::Gelu)?;
                for layer in layers {
                    y = layer.forward(e, &y)?;
                }
                let next = e.linear(&y, out, Activation::None)?;
                let next = e.add(x, &next)?;
                (y, next)
            }
            DynamicsLayers::Board { first, norm, second, blocks } => {
                let y = e.apply(first.clone(), &[x])?;
                let y = e.add_rows(&y, &self.actions, action, &[(0, 0)], Activation::None)?;
                let y = e.norm(&y, norm, Activation::Gelu)?;
                let y = e.apply(second.clone(), &[&y])?;
                let mut next = e.add(x, &y)?;
                for block in blocks {
                    next = block.forward(e, &next)?;
                }
                (y, next)
            }
        };
        Ok((hidden, e.norm(&next, &self.norm, Activation::None)?))
    }
}

/// The heads over an embedding: logits of the prior policy, value and its distribution.
#[derive(Clone)]
struct Prediction {
    policy: PolicyHead,
    value: ValueHead,
}

impl Prediction {
    fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        Ok(Self { policy: PolicyHead::new(config, &params.pp("policy"))?, value: ValueHead::new(config, &params.pp("value"))? })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<[E::V; 3]> {
        let logits = self.policy.forward(e, x)?;
        let [value, distribution] = self.value.forward(e, x)?;
        Ok([logits, value, distribution])
    }
}

/// A layer with layer norm and GELU over an embedding, or over each place of a board.
#[derive(Clone)]
enum Reading {
    Mlp(Dense),
    Board(Conv2d, Norm),
}

impl Reading {
    /// The layer, and how many values it gives.
    fn new(config: &MuZeroConfig, params: &Params) -> Result<(Self, usize)> {
        Ok(match config.network {
            NetworkConfig::Mlp { width, .. } => (Self::Mlp(Dense::new(width, width, params)?), width),
            NetworkConfig::Board { channels, .. } => {
                let [height, width, _] = config.board().ok_or_else(no_board)?;
                let layer = convolution([height, width, channels], 1, HEAD_CHANNELS, &params.pp("conv"))?;
                (Self::Board(layer, Norm::layer(HEAD_CHANNELS, &params.pp("norm"))?), height * width * HEAD_CHANNELS)
            }
        })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        match self {
            Self::Mlp(layer) => layer.forward(e, x),
            Self::Board(layer, norm) => {
                let x = e.apply(layer.clone(), &[x])?;
                e.norm(&x, norm, Activation::Gelu)
            }
        }
    }
}

#[derive(Clone)]
struct PolicyHead {
    reading: Reading,
    out: Linear,
}

impl PolicyHead {
    fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        let (reading, width) = Reading::new(config, params)?;
        Ok(Self { reading, out: silent(width, config.actions, &params.pp("out"))? })
    }

    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<E::V> {
        let x = self.reading.forward(e, x)?;
        e.linear(&x, &self.out, Activation::None)
    }
}

/// A number as the mean of a distribution over the atoms.
#[derive(Clone)]
struct ValueHead {
    reading: Reading,
    /// Over a board, where what is read has many values.
    inner: Option<Linear>,
    out: Linear,
    atoms: Linear,
}

impl ValueHead {
    fn new(config: &MuZeroConfig, params: &Params) -> Result<Self> {
        let (reading, width) = Reading::new(config, params)?;
        let inner = match config.network {
            NetworkConfig::Board { .. } => Some(Linear::new(width, INNER, &params.pp("inner"))?),
            NetworkConfig::Mlp { .. } => None,
        };
        let out = silent(if inner.is_some() { INNER } else { width }, config.support.count(), &params.pp("out"))?;
        Ok(Self { reading, inner, out, atoms: mean(&config.support.atoms(), params.device())? })
    }

    /// The number and its distribution's logits.
    fn forward<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<[E::V; 2]> {
        let mut x = self.reading.forward(e, x)?;
        if let Some(inner) = &self.inner {
            x = e.linear(&x, inner, Activation::Gelu)?;
        }
        let logits = e.linear(&x, &self.out, Activation::None)?;
        let shares = e.apply(Softmax { group: None }, &[&logits])?;
        Ok([e.linear(&shares, &self.atoms, Activation::None)?, logits])
    }
}

/// The mean of a distribution over these numbers.
fn mean(atoms: &[f32], device: &Device) -> Result<Linear> {
    Ok(Linear { weight: Tensor::from_slice(atoms, (atoms.len(), 1), device)?, bias: None, format: Format::F32 })
}

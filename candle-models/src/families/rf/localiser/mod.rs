//! Where an emitter is, from how strongly several receivers hear it: a network that looks at all receivers at once and answers with a mixture of
//! normal distributions over the plane.
//!
//! Every receiver is a token: what it heard and where it stands, through a layer of its own. Tokens attend to each other ([`SetAttention`], receivers
//! that heard nothing have no say), a query made of everything gathers them, and a perceptron makes the mixture ([`Mixture`]) of that. Lengths are in
//! units of 100 km east and north of the middle of the receivers.

pub mod baselines;
pub mod events;
mod map;
mod mixture;
#[cfg(test)]
mod tests;

pub use map::map_svg;
pub use mixture::{Gaussian, Mixture};

use super::geometry::Place;
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Linear, Norm, Params, within};
use crate::ops::Activation;
use crate::ops::conv2d::{Conv2d, Conv2dShape};
use crate::ops::set_attention::SetAttention;
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// Numbers of a receiver: power, signal-to-noise ratio, frequency offset, east, north, altitude.
pub const COLUMNS: usize = 6;
/// What the network sees of a number: so many of its unit are 1, from this value on.
pub const SCALES: [(&str, f64, f64); COLUMNS] = [
    ("power_dbm", 20.0, -100.0),
    ("snr_db", 20.0, 0.0),
    ("frequency_offset_hz", 50.0, 0.0),
    ("east_km", UNIT_KM, 0.0),
    ("north_km", UNIT_KM, 0.0),
    ("altitude_m", 500.0, 0.0),
];
/// Kilometres of a unit of length.
pub const UNIT_KM: f64 = 100.0;

/// A localiser.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LocaliserConfig {
    /// Most receivers, 2 to 256.
    pub receivers: usize,
    /// Width of a token, 4 to 1024.
    pub hidden: usize,
    /// Heads of the attention, which divide the width.
    pub heads: usize,
    /// Times that tokens attend to each other, 0 to 16.
    pub layers: usize,
    /// Normal distributions of the mixture, 1 to 64.
    pub components: usize,
}

impl Default for LocaliserConfig {
    fn default() -> Self {
        Self { receivers: 7, hidden: 64, heads: 4, layers: 1, components: 4 }
    }
}

impl LocaliserConfig {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        within("receivers", self.receivers, 2..=256)?;
        within("hidden", self.hidden, 4..=1024)?;
        within("layers", self.layers, 0..=16)?;
        within("components", self.components, 1..=64)?;
        if self.heads == 0 || !self.hidden.is_multiple_of(self.heads) {
            return Err(Error::config("heads", format!("expected a divisor of hidden = {}, found {}", self.hidden, self.heads)));
        }
        Ok(())
    }

    /// What tells it from others.
    pub fn name(&self) -> String {
        let Self { receivers, hidden, heads, layers, components } = self;
        format!(
            "localiser of up to {receivers} receivers, {layers} x attention of {heads} heads over {hidden}, {components} normal distributions"
        )
    }

    fn signature(&self) -> Signature {
        let spec = |name: &str, shape: &[usize]| TensorSpec::f32(name, shape);
        Signature {
            inputs: vec![spec("receivers", &[self.receivers, COLUMNS]), spec("present", &[self.receivers])],
            outputs: vec![spec("logits", &[self.components]), spec("means", &[self.components, 2]), spec("factors", &[self.components, 3])],
            state: Vec::new(),
        }
    }
}

/// What a receiver heard.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heard {
    /// Where it stands.
    pub receiver: Place,
    /// The signal's power, dBm.
    pub power_dbm: f64,
    /// The signal's power over the noise's, dB.
    pub snr_db: f64,
    /// The strongest frequency's distance from the centre, Hz.
    pub frequency_offset_hz: f64,
}

impl LocaliserConfig {
    /// Writes what receivers heard as the network reads it: numbers `[receivers, 6]` and who is there, `[receivers]`. `middle` is the origin of the plane.
    ///
    /// # Errors
    /// If there are no receivers or too many, a number is not finite, or a slice has another length.
    pub fn encode(&self, heard: &[Heard], middle: &Place, numbers: &mut [f32], present: &mut [f32]) -> Result<()> {
        if heard.is_empty() || heard.len() > self.receivers {
            return Err(Error::Input(format!("receivers: expected from 1 to {}, found {}", self.receivers, heard.len())));
        }
        for (name, found, expected) in [("receivers", numbers.len(), self.receivers * COLUMNS), ("present", present.len(), self.receivers)]
        {
            if found != expected {
                return Err(Error::tensor(name, format!("{expected} values"), found));
            }
        }
        numbers.fill(0.0);
        present.fill(0.0);
        for (i, (heard, to)) in heard.iter().zip(numbers.chunks_exact_mut(COLUMNS)).enumerate() {
            let [east, north] = middle.plane_km(&heard.receiver);
            let raw = [heard.power_dbm, heard.snr_db, heard.frequency_offset_hz, east, north, heard.receiver.altitude];
            for ((to, raw), (name, scale, zero)) in to.iter_mut().zip(raw).zip(SCALES) {
                if !raw.is_finite() {
                    return Err(Error::Input(format!("receiver {i}: {name}: expected a finite number, found {raw}")));
                }
                *to = ((raw - zero) / scale) as f32;
            }
            present[i] = 1.0;
        }
        Ok(())
    }
}

/// The middle of receivers: the origin of their plane.
pub fn middle(receivers: &[Place]) -> Place {
    let mean = |of: fn(&Place) -> f64| receivers.iter().map(of).sum::<f64>() / receivers.len().max(1) as f64;
    Place::new(mean(|place| place.latitude), mean(|place| place.longitude), mean(|place| place.altitude))
}

/// What receivers heard to where the emitter may be.
pub type Localiser = Network<LocaliserLayers>;

/// A layer for each receiver, attention between them, a query that gathers them, and what makes the mixture.
pub struct LocaliserLayers {
    /// `[COLUMNS, W]` and `[W, W]` for every receiver, a norm between them.
    tokens: [Conv2d; 2],
    token_norm: Norm,
    blocks: Vec<Block>,
    query: Linear,
    gather: Conv2d,
    gathering: SetAttention,
    hidden: [Linear; 2],
    logits: Linear,
    means: Linear,
    factors: Linear,
}

/// `x + mix(attention(norm x))`, then `x + down(norm(up x))`.
struct Block {
    norm: Norm,
    query: Conv2d,
    key_value: Conv2d,
    attention: SetAttention,
    mix: Conv2d,
    up: Conv2d,
    up_norm: Norm,
    down: Conv2d,
}

impl Localiser {
    /// The network with parameters from `params`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or a parameter is missing or has another shape.
    pub fn new(config: &LocaliserConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let &LocaliserConfig { receivers, hidden, heads, layers, components } = config;
        // A layer that every receiver has for itself is a convolution over them.
        let each = |name: &str, inputs: usize, outputs: usize, params: &Params| {
            let shape = Conv2dShape { input: [receivers, 1], channels: inputs, kernel: [1, 1], stride: [1, 1], padding: [0, 0] };
            Conv2d::new(shape, Linear::new(inputs, outputs, &params.pp(name))?)
        };
        let block = |i: usize| {
            let params = params.pp("blocks").pp(i);
            Ok(Block {
                norm: Norm::layer(hidden, &params.pp("norm"))?,
                query: each("query", hidden, hidden, &params)?,
                key_value: each("key_value", hidden, 2 * hidden, &params)?,
                attention: SetAttention::new([receivers; 2], heads, hidden)?,
                mix: each("mix", hidden, hidden, &params)?,
                up: each("up", hidden, 2 * hidden, &params)?,
                up_norm: Norm::layer(2 * hidden, &params.pp("up_norm"))?,
                down: each("down", 2 * hidden, hidden, &params)?,
            })
        };
        let linear = |name: &str, inputs: usize, outputs: usize| Linear::new(inputs, outputs, &params.pp(name));
        let layers = LocaliserLayers {
            tokens: [each("token", COLUMNS, hidden, params)?, each("token_hidden", hidden, hidden, params)?],
            token_norm: Norm::layer(hidden, &params.pp("token_norm"))?,
            blocks: (0..layers).map(block).collect::<Result<_>>()?,
            query: linear("gather.query", receivers * COLUMNS, hidden)?,
            gather: each("key_value", hidden, 2 * hidden, &params.pp("gather"))?,
            gathering: SetAttention::new([1, receivers], heads, hidden)?,
            hidden: [linear("hidden.0", hidden, 2 * hidden)?, linear("hidden.1", 2 * hidden, 2 * hidden)?],
            logits: linear("logits", 2 * hidden, components)?,
            means: linear("means", 2 * hidden, 2 * components)?,
            factors: linear("factors", 2 * hidden, 3 * components)?,
        };
        Self::of((super::FAMILY, &super::RfConfig::Localiser(config.clone())), config.signature(), params.device(), layers)
    }
}

impl Layers for LocaliserLayers {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let (numbers, present) = (e.input("receivers")?, e.input("present")?);
        let x = e.apply(self.tokens[0].clone(), &[&numbers])?;
        let x = e.norm(&x, &self.token_norm, Activation::Gelu)?;
        let mut x = e.apply(self.tokens[1].clone(), &[&x])?;
        for block in &self.blocks {
            let normed = e.norm(&x, &block.norm, Activation::None)?;
            let (q, kv) = (e.apply(block.query.clone(), &[&normed])?, e.apply(block.key_value.clone(), &[&normed])?);
            let mixed = e.apply(block.attention, &[&q, &kv, &present])?;
            let mixed = e.apply(block.mix.clone(), &[&mixed])?;
            x = e.add(&x, &mixed)?;
            let up = e.apply(block.up.clone(), &[&x])?;
            let up = e.norm(&up, &block.up_norm, Activation::Gelu)?;
            let down = e.apply(block.down.clone(), &[&up])?;
            x = e.add(&x, &down)?;
        }
        let query = e.linear(&numbers, &self.query, Activation::None)?;
        let kv = e.apply(self.gather.clone(), &[&x])?;
        let x = e.apply(self.gathering, &[&query, &kv, &present])?;
        let x = e.linear(&x, &self.hidden[0], Activation::Gelu)?;
        let x = e.linear(&x, &self.hidden[1], Activation::Gelu)?;
        [&self.logits, &self.means, &self.factors]
            .map(|head| e.linear(&x, head, Activation::None).map(Output::Floats))
            .into_iter()
            .collect()
    }
}

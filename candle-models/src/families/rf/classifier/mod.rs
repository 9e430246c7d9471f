//! Which of several kinds a signal is, from its samples: convolutions over time, their mean and largest values, and a score for every class.
//!
//! The first layer is `tanh(conv(x))`: a norm there would hide how strong a sample is, which tells constellations apart. A block is `y = GELU(norm(conv(x)))` with a step of one or two samples, then `y + GELU(norm(conv(y)))`. Steps of two halve the number of samples and double
//! what a later convolution sees. With a kernel of one sample the order of the samples does not count, as it does not where each is a symbol of its own.
//!
//! ```
//! use candle_models::candle_core::Device;
//! use candle_models::engine::{Engine, Options};
//! use candle_models::nn::Params;
//! use candle_models::random::Random;
//! use candle_models::rf::{Classifier, ClassifierConfig, Complex32};
//! use std::sync::Arc;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = ClassifierConfig { channels: 8, blocks: 2, ..ClassifierConfig::new(["BPSK", "QPSK"]) };
//! let network = Classifier::new(&config, &Params::init(Random::new(1), &Device::Cpu))?;
//! let engine = Engine::start(Arc::new(network), &Options::default())?;
//! let mut session = engine.open()?;
//! let signal: Vec<Complex32> = (0..128).map(|n| Complex32::from_polar(3e-5, 0.3 * n as f32)).collect();
//! config.encode(&signal, session.floats_mut("iq")?)?;
//! session.step()?;
//! assert_eq!(session.floats("logits")?.len(), 2);
//! # Ok(())
//! # }
//! ```

pub mod ceiling;
#[cfg(test)]
mod tests;

use super::{Complex32, power};
use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Linear, Norm, Params, within};
use crate::ops::Activation;
use crate::ops::conv2d::{Conv2d, Conv2dShape};
use crate::ops::pool2d::{Pool2d, Pooling};
use crate::ops::tanh::Tanh;
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// What a signal is multiplied by before the network reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// What makes its mean power 1: how strong it is, nobody knows.
    Unit,
    /// Nothing: its receiver has scaled it so that the power of the signal without its noise is 1.
    Given,
}

/// A classifier.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClassifierConfig {
    /// What there is to be told apart, 2 to 256 names.
    pub classes: Vec<String>,
    /// Samples of a signal, 1 to 65536.
    pub samples: usize,
    /// What they are multiplied by.
    pub scale: Scale,
    /// Channels, 4 to 512.
    pub channels: usize,
    /// Samples that a convolution sees, odd, 1 to 63.
    pub kernel: usize,
    /// Blocks, 1 to 16.
    pub blocks: usize,
    /// Samples from a place to the next in every block, 1 or 2.
    pub stride: usize,
}

impl Default for ClassifierConfig {
    fn default() -> Self {
        Self { classes: Vec::new(), samples: 128, scale: Scale::Unit, channels: 32, kernel: 7, blocks: 4, stride: 2 }
    }
}

impl ClassifierConfig {
    /// Of those classes, over 128 samples.
    pub fn new<S: Into<String>>(classes: impl IntoIterator<Item = S>) -> Self {
        Self { classes: classes.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        within("classes", self.classes.len(), 2..=256)?;
        if let Some(name) = self.classes.iter().enumerate().find_map(|(i, name)| self.classes[..i].contains(name).then_some(name)) {
            return Err(Error::config("classes", format!("expected each name once, found '{name}' again")));
        }
        within("samples", self.samples, 1..=1 << 16)?;
        within("channels", self.channels, 4..=512)?;
        within("kernel", self.kernel, 1..=63)?;
        within("blocks", self.blocks, 1..=16)?;
        within("stride", self.stride, 1..=2)?;
        if self.kernel.is_multiple_of(2) {
            return Err(Error::config("kernel", format!("expected an odd number of samples, found {}", self.kernel)));
        }
        Ok(())
    }

    /// What tells it from others.
    pub fn name(&self) -> String {
        let Self { classes, samples, channels, kernel, blocks, .. } = self;
        format!(
            "classifier of {samples} samples into {} kinds, {blocks} blocks of {channels} channels with kernels of {kernel}",
            classes.len()
        )
    }

    /// Writes a signal as the network reads it: `[samples, 2]`.
    ///
    /// # Errors
    /// If a length is another one, a sample is not finite, or the signal has no power and the scale needs it.
    pub fn encode(&self, signal: &[Complex32], iq: &mut [f32]) -> Result<()> {
        if signal.len() != self.samples {
            return Err(Error::Input(format!("a signal: expected {} samples, found {}", self.samples, signal.len())));
        }
        if iq.len() != 2 * self.samples {
            return Err(Error::tensor("iq", format!("{} values", 2 * self.samples), iq.len()));
        }
        if let Some(at) = signal.iter().position(|x| !x.is_finite()) {
            return Err(Error::Input(format!("sample {at}: expected finite numbers, found {}", signal[at])));
        }
        let scale = match self.scale {
            Scale::Given => 1.0,
            Scale::Unit => match power(signal) {
                0.0 => return Err(Error::Input("a signal: all of its samples are 0".to_owned())),
                power => power.sqrt().recip(),
            },
        };
        for (to, x) in iq.chunks_exact_mut(2).zip(signal) {
            to.copy_from_slice(&[x.re, x.im].map(|part| (f64::from(part) * scale) as f32));
        }
        Ok(())
    }

    fn signature(&self) -> Signature {
        Signature {
            inputs: vec![TensorSpec::f32("iq", &[self.samples, 2]).says("in-phase and quadrature parts of the samples")],
            outputs: vec![TensorSpec::f32("logits", &[self.classes.len()]).says("a score of every class")],
            state: Vec::new(),
        }
    }
}

/// Samples to scores of classes.
pub type Classifier = Network<ClassifierLayers>;

/// The layers of a [`Classifier`].
pub struct ClassifierLayers {
    first: Conv2d,
    blocks: Vec<Block>,
    /// The mean and the largest value of each channel.
    pools: [Pool2d; 2],
    hidden: Linear,
    logits: Linear,
}

struct Block {
    step: (Conv2d, Norm),
    stay: (Conv2d, Norm),
}

impl Classifier {
    /// The network with parameters from `params`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or a parameter is missing or has another shape.
    pub fn new(config: &ClassifierConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let &ClassifierConfig { samples, channels, kernel, stride, .. } = config;
        // A convolution that keeps the places, or every second one, and how many places there are then.
        let convolution = |[length, inputs]: [usize; 2], stride: usize, params: &Params| {
            let shape = Conv2dShape::line([length, inputs], kernel, stride, kernel / 2);
            Ok::<_, Error>((Conv2d::new(shape, Linear::new(kernel * inputs, channels, params)?)?, shape.output()?[1]))
        };
        let layer = |places: [usize; 2], stride: usize, params: &Params| {
            let (layer, length) = convolution(places, stride, &params.pp("conv"))?;
            Ok::<_, Error>(((layer, Norm::layer(channels, &params.pp("norm"))?), length))
        };
        let (first, mut length) = convolution([samples, 2], 1, &params.pp("first"))?;
        let mut blocks = Vec::with_capacity(config.blocks);
        for i in 0..config.blocks {
            let params = params.pp("blocks").pp(i);
            let (step, shorter) = layer([length, channels], stride, &params.pp("step"))?;
            let (stay, _) = layer([shorter, channels], 1, &params.pp("stay"))?;
            blocks.push(Block { step, stay });
            length = shorter;
        }
        let pool = |pooling| Pool2d::new(pooling, Conv2dShape::line([length, channels], length, 1, 0));
        let layers = ClassifierLayers {
            first,
            blocks,
            pools: [pool(Pooling::Average)?, pool(Pooling::Max)?],
            hidden: Linear::new(2 * channels, 2 * channels, &params.pp("hidden"))?,
            logits: Linear::new(2 * channels, config.classes.len(), &params.pp("logits"))?,
        };
        Self::of((super::FAMILY, &super::RfConfig::Classifier(config.clone())), config.signature(), params.device(), layers)
    }
}

impl Layers for ClassifierLayers {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let apply = |e: &mut E, (layer, norm): &(Conv2d, Norm), x: &E::V| {
            let y = e.apply(layer.clone(), &[x])?;
            e.norm(&y, norm, Activation::Gelu)
        };
        let iq = e.input("iq")?;
        let x = e.apply(self.first.clone(), &[&iq])?;
        let mut x = e.apply(Tanh, &[&x])?;
        for block in &self.blocks {
            x = apply(e, &block.step, &x)?;
            let y = apply(e, &block.stay, &x)?;
            x = e.add(&x, &y)?;
        }
        let [mean, most] = [e.apply(self.pools[0], &[&x])?, e.apply(self.pools[1], &[&x])?];
        let x = e.join(&[mean, most])?;
        let x = e.linear(&x, &self.hidden, Activation::Gelu)?;
        Ok(vec![Output::Floats(e.linear(&x, &self.logits, Activation::None)?)])
    }
}

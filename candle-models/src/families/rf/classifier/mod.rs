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
//! config.encode(&signal, None, session.floats_mut("iq")?)?;
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

/// What is known of a signal's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scale {
    /// Nothing: it is multiplied by what makes its mean power 1.
    Unit,
    /// All: its receiver has scaled it so that the power of the signal without its noise is 1, and knows the signal-to-noise ratio, which the network reads
    /// beside every sample.
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
    /// What is known of their power.
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

    /// Numbers that the network reads of a sample: its two parts, and the signal-to-noise ratio in tens of decibels where that is known.
    pub fn width(&self) -> usize {
        match self.scale {
            Scale::Unit => 2,
            Scale::Given => 3,
        }
    }

    /// Writes a signal as the network reads it: `[samples, width]`. The signal-to-noise ratio, dB, is asked for where the scale is [`Scale::Given`].
    ///
    /// # Errors
    /// If a length is another one, a number is not finite, the ratio is missing or too much, or the signal has no power and the scale needs it.
    pub fn encode(&self, signal: &[Complex32], snr_db: Option<f64>, iq: &mut [f32]) -> Result<()> {
        let width = self.width();
        if signal.len() != self.samples {
            return Err(Error::Input(format!("a signal: expected {} samples, found {}", self.samples, signal.len())));
        }
        if iq.len() != width * self.samples {
            return Err(Error::tensor("iq", format!("{} values", width * self.samples), iq.len()));
        }
        if let Some(at) = signal.iter().position(|x| !x.is_finite()) {
            return Err(Error::Input(format!("sample {at}: expected finite numbers, found {}", signal[at])));
        }
        let scale = match (self.scale, snr_db) {
            (Scale::Given, Some(snr_db)) if (-100.0..=100.0).contains(&snr_db) => 1.0,
            (Scale::Given, Some(snr_db)) => {
                return Err(Error::Input(format!("the signal-to-noise ratio: expected from -100 to 100 dB, found {snr_db}")));
            }
            (Scale::Given, None) => {
                return Err(Error::Input("this classifier reads the signal-to-noise ratio, which is missing".to_owned()));
            }
            (Scale::Unit, Some(_)) => return Err(Error::Input("this classifier does not read a signal-to-noise ratio".to_owned())),
            (Scale::Unit, None) => match power(signal) {
                0.0 => return Err(Error::Input("a signal: all of its samples are 0".to_owned())),
                power => power.sqrt().recip(),
            },
        };
        for (to, x) in iq.chunks_exact_mut(width).zip(signal) {
            to[..2].copy_from_slice(&[x.re, x.im].map(|part| (f64::from(part) * scale) as f32));
            if let (Some(to), Some(snr_db)) = (to.get_mut(2), snr_db) {
                *to = (snr_db / 10.0) as f32;
            }
        }
        Ok(())
    }

    fn signature(&self) -> Signature {
        let says = match self.scale {
            Scale::Unit => "in-phase and quadrature parts of the samples",
            Scale::Given => "in-phase and quadrature parts of the samples, and the signal-to-noise ratio in tens of dB",
        };
        Signature {
            inputs: vec![TensorSpec::f32("iq", &[self.samples, self.width()]).says(says)],
            outputs: vec![TensorSpec::f32("logits", &[self.classes.len()]).says("a score of every class")],
            state: Vec::new(),
        }
    }
}

/// Which of some scores is the greatest: the first of equal ones.
pub fn greatest<T: PartialOrd + Copy>(scores: &[T]) -> usize {
    (1..scores.len()).fold(0, |best, i| if scores[i] > scores[best] { i } else { best })
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
        let (first, mut length) = convolution([samples, config.width()], 1, &params.pp("first"))?;
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

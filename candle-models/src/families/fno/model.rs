//! The Fourier neural operator (Li et al. 2020, arXiv 2010.08895; as the library neuraloperator 2.0 has it).
//!
//! Shapes: a grid of `n` by `m` places, `C` channels of the input and `O` of the answer, `H` hidden ones.
//!
//! ```text
//! h = lift([x, i / n, j / m])                  a perceptron C + 2 -> 2 H -> H at every place, GELU between; on a periodic grid with its
//!                                              longest waves in place of the two ([`Coordinates`])
//! h = pad(h)                                   zeros on both sides of each axis, round(padding n) of them
//! repeat:  y = act(spectral(h) + h A)          the convolution over the lowest waves, and a matrix at every place
//!          h = act(y -> H / 2 -> H + g h)      a perceptron at every place, and a gain for each channel
//! y = project(crop(h))                         a perceptron H -> 2 H -> O at every place, GELU between
//! y = y + x                                    of a residual operator
//! ```
//!
//! `act` is GELU, and nothing in the last block. The names of the parameters are those of neuraloperator; a matrix lies as `[inputs, outputs]`, weights of
//! waves as `[K, L, C, 2 O]` ([`SpectralConv`]). An operator may answer with a variance of the truth around its answer as well: a second perceptron like the
//! last one, named `deviation`, and a sigmoid say the standard deviation as a part of that of all answers (Nix and Weigend 1994). An [`Ensemble`] is several
//! operators, those of member `i` named `members.i`, that answer with their mean and with a variance. Not included: norms between blocks, other lengths of the
//! grid than 1.

use crate::exec::Executor;
use crate::exec::program::Output;
use crate::network::{Layers, Network};
use crate::nn::{Init, Linear, Params, within};
use crate::ops::grid::{Coordinates, Window};
use crate::ops::multiply::Multiply;
use crate::ops::sigmoid::Sigmoid;
use crate::ops::skip::Skip;
use crate::ops::spectral_conv::{SpectralConv, WaveWeight};
use crate::ops::{Activation, Format};
use crate::signature::{Signature, TensorSpec};
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use serde::{Deserialize, Serialize};

/// What normalised values were divided by and moved by: `value = deviation normalised + mean`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normaliser {
    /// The mean of all values of a training set.
    pub mean: f64,
    /// Their standard deviation.
    pub deviation: f64,
}

impl Normaliser {
    /// Of these values; deviations are divided by one less than there are.
    ///
    /// # Errors
    /// If there are fewer than two, all are the same, or one is not finite.
    pub fn of(values: &[f32]) -> Result<Self> {
        let n = values.len() as f64;
        let mean = values.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
        let deviation = (values.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / (n - 1.0)).sqrt();
        let normaliser = Self { mean, deviation };
        normaliser.validate()?;
        Ok(normaliser)
    }

    /// Refuses what nothing can be divided by.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        if !self.mean.is_finite() {
            return Err(Error::config("output.mean", format!("expected a finite number, found {}", self.mean)));
        }
        if !(self.deviation.is_finite() && self.deviation > 0.0) {
            return Err(Error::config("output.deviation", format!("expected a positive number, found {}", self.deviation)));
        }
        Ok(())
    }
}

/// Operators that answer together (Lakshminarayanan et al. 2017, arXiv 1612.01474): their mean, and a variance of the truth around it,
/// `scale^2 (noise^2 + s^2)`, where `s^2` is the variance of their answers and, where each has one of its own, the mean of those.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ensemble {
    /// Operators, 2 to 64.
    pub members: usize,
    /// Deviation of the truth beside that, the same at every place, in units of an answer.
    pub noise: f64,
    /// By how much deviations are stretched, so that intervals of a normal distribution hold as much of the truth as they say.
    pub scale: f64,
}

impl Ensemble {
    fn validate(&self) -> Result<()> {
        within("ensemble.members", self.members, 2..=64)?;
        for (name, value) in [("noise", self.noise), ("scale", self.scale)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(Error::config(format!("ensemble.{name}"), format!("expected 0 or a positive number, found {value}")));
            }
        }
        Ok(())
    }
}

/// An operator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FnoConfig {
    /// Places of the grid down and across, 1 to 4096 each; 1 down for a line. The same parameters serve any grid.
    pub grid: [usize; 2],
    /// Channels of the field that is read and of the answer, 1 to 256.
    pub channels: [usize; 2],
    /// Waves down, and twice those across as they are counted on both sides of 0: 1 to 512 each. Weights are `[down, across / 2 + 1]`.
    pub modes: [usize; 2],
    /// Hidden channels, 2 to 1024.
    pub hidden: usize,
    /// Blocks, 1 to 32.
    pub layers: usize,
    /// Zeros on each side of the grid as a part of its places, 0 to 1.
    pub padding: f64,
    /// Weights of waves as a Tucker product with so many times the numbers of a dense one, above 0 to 1; none: they are dense.
    pub rank: Option<f64>,
    /// How answers (of a residual operator: what they differ by) were normalised in training: the operator answers with physical values.
    pub output: Normaliser,
    /// Whether it answers with a variance of its own, learnt with the answer.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub variance: bool,
    /// Whether the layers say by how much the answer differs from the field that is read, which has the same channels.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub residual: bool,
    /// Whether what leaves the grid on one side comes back on the other, so that its longest waves say where a place is ([`Coordinates`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub periodic: bool,
    /// Several such operators in place of one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ensemble: Option<Ensemble>,
}

impl Default for FnoConfig {
    fn default() -> Self {
        let output = Normaliser { mean: 0.0, deviation: 1.0 };
        let (variance, residual, periodic, ensemble) = (false, false, false, None);
        Self {
            grid: [16, 16],
            channels: [1, 1],
            modes: [8, 8],
            hidden: 24,
            layers: 4,
            padding: 0.0,
            rank: None,
            output,
            variance,
            residual,
            periodic,
            ensemble,
        }
    }
}

impl FnoConfig {
    /// Refuses what makes no sense.
    ///
    /// # Errors
    /// That names the field.
    pub fn validate(&self) -> Result<()> {
        for (name, values, most) in [("grid", self.grid, 4096), ("channels", self.channels, 256), ("modes", self.modes, 512)] {
            values.into_iter().enumerate().try_for_each(|(i, value)| within(&format!("{name}.{i}"), value, 1..=most))?;
        }
        within("hidden", self.hidden, 2..=1024)?;
        within("layers", self.layers, 1..=32)?;
        if !(0.0..=1.0).contains(&self.padding) {
            return Err(Error::config("padding", format!("expected from 0 to 1, found {}", self.padding)));
        }
        if let Some(rank) = self.rank.filter(|rank| !(*rank > 0.0 && *rank <= 1.0)) {
            return Err(Error::config("rank", format!("expected above 0 to 1, found {rank}")));
        }
        if self.periodic && self.padding > 0.0 {
            return Err(Error::config("periodic", "a periodic grid is not padded with zeros: expected padding = 0"));
        }
        if self.residual && self.channels[0] != self.channels[1] {
            let reason = format!("an answer of {} channels is no change of a field of {}", self.channels[1], self.channels[0]);
            return Err(Error::config("residual", reason));
        }
        self.ensemble.iter().try_for_each(Ensemble::validate)?;
        self.output.validate()
    }

    /// What tells it from others.
    pub fn name(&self) -> String {
        let Self { grid: [n, m], channels: [inputs, outputs], modes: [down, across], hidden, layers, .. } = self;
        let rank = self.rank.map_or_else(String::new, |rank| format!(" of rank {rank}"));
        let variance = if self.variance { ", with a variance" } else { "" };
        let residual = if self.residual { ", as a change" } else { "" };
        let periodic = if self.periodic { ", periodic" } else { "" };
        let members = self.ensemble.map_or_else(String::new, |ensemble| format!(", {} members", ensemble.members));
        format!(
            "fourier operator of {inputs} to {outputs} fields on {n} x {m} places, {layers} blocks of {hidden} channels, {down} x {across} modes{rank}{periodic}{residual}{variance}{members}"
        )
    }

    /// The same operator on another grid.
    #[must_use]
    pub fn on_grid(&self, grid: [usize; 2]) -> Self {
        Self { grid, ..self.clone() }
    }

    /// Places.
    pub fn places(&self) -> usize {
        self.grid[0] * self.grid[1]
    }

    /// Zeros on each side of an axis; a line has none above it. Halves are rounded to even numbers, as Python does.
    fn margin(&self) -> [usize; 2] {
        self.grid.map(|places| if places == 1 { 0 } else { (self.padding * places as f64).round_ties_even() as usize })
    }

    /// Places of the grid with its padding, which blocks work on.
    pub fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.grid[axis] + 2 * self.margin()[axis])
    }

    /// What puts the places beside the channels that are read.
    fn coordinates(&self) -> Coordinates {
        Coordinates { grid: self.grid, channels: self.channels[0], periodic: self.periodic }
    }

    fn signature(&self) -> Signature {
        let field = |name: &str, channels: usize| TensorSpec::f32(name, &[self.grid[0], self.grid[1], channels]);
        let mut outputs = vec![field("y", self.channels[1]).says("the answer, at the same places")];
        if self.variance || self.ensemble.is_some() {
            outputs.push(field("variance", self.channels[1]).says("of the truth around the answer"));
        }
        Signature { inputs: vec![field("x", self.channels[0]).says("the field, at every place its channels")], outputs, state: Vec::new() }
    }
}

/// A field to a field.
pub type Fno = Network<FnoLayers>;

/// The layers of an [`Fno`].
pub struct FnoLayers {
    coordinates: Coordinates,
    residual: bool,
    members: Vec<Member>,
    /// Of an ensemble.
    spread: Option<Spread>,
    places: usize,
}

/// One operator.
struct Member {
    lifting: [Linear; 2],
    /// Pads and crops, where there is padding.
    windows: Option<[Window; 2]>,
    blocks: Vec<Block>,
    projection: [Linear; 2],
    /// Of an operator with a variance of its own.
    deviation: Option<Deviation>,
    /// Places, without padding and with it.
    places: [usize; 2],
}

struct Block {
    spectral: SpectralConv,
    around: Linear,
    perceptron: [Linear; 2],
    gain: Tensor,
}

/// How large the error of an answer is.
struct Deviation {
    perceptron: [Linear; 2],
    /// The square of a part of the deviation of all answers to a variance.
    variance: Linear,
}

/// What an operator says of a field.
struct Answer<V> {
    y: V,
    variance: Option<V>,
}

/// How answers of members become one, channel by channel.
struct Spread {
    /// A sum to a mean.
    mean: Linear,
    /// A mean, to be taken from an answer.
    minus: Tensor,
    /// A sum of squares to a variance.
    variance: Linear,
    /// A sum of the members' own variances to their part of it.
    own: Linear,
}

impl Fno {
    /// The operator with parameters from `params`.
    ///
    /// # Errors
    /// If the configuration makes no sense, or a parameter is missing or has another shape.
    pub fn new(config: &FnoConfig, params: &Params) -> Result<Self> {
        config.validate()?;
        let (members, spread) = match &config.ensemble {
            None => (vec![Member::new(config, params)?], None),
            Some(ensemble) => {
                let member = |i| Member::new(config, &params.pp("members").pp(i));
                let spread = Spread::new(ensemble, config.channels[1], params.device())?;
                ((0..ensemble.members).map(member).collect::<Result<_>>()?, Some(spread))
            }
        };
        let layers = FnoLayers { coordinates: config.coordinates(), residual: config.residual, members, spread, places: config.places() };
        Self::of((super::FAMILY, config), config.signature(), params.device(), layers)
    }
}

impl Member {
    fn new(config: &FnoConfig, params: &Params) -> Result<Self> {
        let &FnoConfig { grid, channels: [_, outputs], hidden, modes, .. } = config;
        let perceptron = |[inputs, inner, outputs]: [usize; 3], params: &Params| -> Result<[Linear; 2]> {
            let layer = |i: usize, inputs, outputs| Linear::new(inputs, outputs, &params.pp("fcs").pp(i));
            Ok([layer(0, inputs, inner)?, layer(1, inner, outputs)?])
        };
        let (margin, padded) = (config.margin(), config.padded());
        // Real and imaginary parts together have the variance 2 / (inputs + outputs).
        let spread = (1.0 / hidden as f32).sqrt();
        let block = |i: usize| {
            let of = |name: &str| params.pp("fno_blocks").pp(name).pp(i);
            let shape = [modes[0], modes[1] / 2 + 1, hidden, hidden];
            let weight = match config.rank {
                Some(rank) => WaveWeight::tucker(shape, rank, spread, &of("convs"))?,
                None => WaveWeight::dense(shape, spread, &of("convs"))?,
            };
            let bias = of("convs").get("bias", &[hidden], Init::Normal(spread))?;
            Ok::<_, Error>(Block {
                spectral: SpectralConv::new(padded, &weight, Some(&bias))?,
                around: Linear::without_bias(hidden, hidden, &of("fno_skips").pp("conv"))?,
                perceptron: perceptron([hidden, hidden / 2, hidden], &of("channel_mlp"))?,
                gain: of("channel_mlp_skips").get("weight", &[hidden], Init::Constant(1.0))?,
            })
        };
        let [first, last] = perceptron([hidden, 2 * hidden, outputs], &params.pp("projection"))?;
        let deviation = || {
            let variance = each_channel(outputs, config.output.deviation.powi(2), 0.0, params.device())?;
            Ok::<_, Error>(Deviation { perceptron: perceptron([hidden, 2 * hidden, outputs], &params.pp("deviation"))?, variance })
        };
        Ok(Self {
            lifting: perceptron([config.coordinates().outputs(), 2 * hidden, hidden], &params.pp("lifting"))?,
            windows: (margin != [0, 0]).then(|| [Window::pad(grid, margin, hidden), Window::crop(grid, margin, hidden)]),
            blocks: (0..config.layers).map(block).collect::<Result<_>>()?,
            projection: [first, physical(last, config.output)?],
            deviation: config.variance.then(deviation).transpose()?,
            places: [config.places(), padded[0] * padded[1]],
        })
    }

    /// What it says of a field `x` with the coordinates of its places.
    fn pass<E: Executor>(&self, e: &mut E, x: &E::V) -> Result<Answer<E::V>> {
        let perceptron = |e: &mut E, places: usize, [first, last]: &[Linear; 2], x: &E::V| {
            let x = e.linear_at_places(places, x, first, Activation::Gelu)?;
            e.linear_at_places(places, &x, last, Activation::None)
        };
        let [places, padded] = self.places;
        let mut h = perceptron(e, places, &self.lifting, x)?;
        if let Some([pad, _]) = self.windows {
            h = e.apply(pad, &[&h])?;
        }
        for (i, block) in self.blocks.iter().enumerate() {
            let act = if i + 1 == self.blocks.len() { Activation::None } else { Activation::Gelu };
            let waves = e.apply(block.spectral.clone(), &[&h])?;
            let around = e.linear_at_places(padded, &h, &block.around, Activation::None)?;
            let y = e.apply(Skip { gain: None, act }, &[&waves, &around])?;
            let y = perceptron(e, padded, &block.perceptron, &y)?;
            h = e.apply(Skip { gain: Some(block.gain.clone()), act }, &[&y, &h])?;
        }
        if let Some([_, crop]) = self.windows {
            h = e.apply(crop, &[&h])?;
        }
        let y = perceptron(e, places, &self.projection, &h)?;
        let variance = |Deviation { perceptron: layers, variance }: &Deviation| {
            let part = perceptron(e, places, layers, &h)?;
            let part = e.apply(Sigmoid, &[&part])?;
            let square = e.apply(Multiply, &[&part, &part])?;
            e.linear_at_places(places, &square, variance, Activation::None)
        };
        Ok(Answer { y, variance: self.deviation.as_ref().map(variance).transpose()? })
    }
}

/// A layer whose answers are normalised, as one whose answers are not.
fn physical(layer: Linear, Normaliser { mean, deviation }: Normaliser) -> Result<Linear> {
    let bias = layer.bias.map(|bias| bias.affine(deviation, mean)).transpose()?;
    Ok(Linear { weight: (layer.weight * deviation)?, bias, format: layer.format })
}

/// `factor x + more` of every channel.
fn each_channel(channels: usize, factor: f64, more: f64, device: &Device) -> Result<Linear> {
    let weight = (Tensor::eye(channels, DType::F32, device)? * factor)?;
    Ok(Linear { weight, bias: Some(Tensor::full(more as f32, channels, device)?), format: Format::F32 })
}

impl Spread {
    fn new(ensemble: &Ensemble, channels: usize, device: &Device) -> Result<Self> {
        let &Ensemble { members, noise, scale } = ensemble;
        let each = |factor: f64, more: f64| each_channel(channels, factor, more, device);
        let (count, squared) = (members as f64, scale * scale);
        Ok(Self {
            mean: each(1.0 / count, 0.0)?,
            minus: Tensor::full(-1f32, channels, device)?,
            variance: each(squared / (count - 1.0), squared * noise * noise)?,
            own: each(squared / count, 0.0)?,
        })
    }

    /// The mean and the variance of answers.
    fn pass<E: Executor>(&self, e: &mut E, places: usize, answers: &[Answer<E::V>]) -> Result<Answer<E::V>> {
        let total = sum(e, answers.iter().map(|answer| &answer.y))?;
        let mean = e.linear_at_places(places, &total, &self.mean, Activation::None)?;
        let square = |answer: &Answer<E::V>| {
            let difference = e.apply(Skip { gain: Some(self.minus.clone()), act: Activation::None }, &[&answer.y, &mean])?;
            e.apply(Multiply, &[&difference, &difference])
        };
        let squares = answers.iter().map(square).collect::<Result<Vec<_>>>()?;
        let total = sum(e, &squares)?;
        let mut variance = e.linear_at_places(places, &total, &self.variance, Activation::None)?;
        if answers.iter().all(|answer| answer.variance.is_some()) {
            let total = sum(e, answers.iter().filter_map(|answer| answer.variance.as_ref()))?;
            let own = e.linear_at_places(places, &total, &self.own, Activation::None)?;
            variance = sum(e, [&variance, &own])?;
        }
        Ok(Answer { y: mean, variance: Some(variance) })
    }
}

/// The sum of two values or more.
fn sum<'a, E: Executor>(e: &mut E, values: impl IntoIterator<Item = &'a E::V>) -> Result<E::V>
where
    E::V: 'a,
{
    let mut values = values.into_iter();
    let first = values.next().ok_or_else(|| Error::Input("a sum of no values".to_owned()))?.clone();
    values.try_fold(first, |sum, value| e.apply(Skip { gain: None, act: Activation::None }, &[&sum, value]))
}

impl Layers for FnoLayers {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let field = e.input("x")?;
        let x = e.apply(self.coordinates, &[&field])?;
        let mut answers = self.members.iter().map(|member| member.pass(e, &x)).collect::<Result<Vec<_>>>()?;
        let Answer { mut y, variance } = match &self.spread {
            None => answers.remove(0),
            Some(spread) => spread.pass(e, self.places, &answers)?,
        };
        if self.residual {
            y = sum(e, [&y, &field])?;
        }
        Ok([Some(y), variance].into_iter().flatten().map(Output::Floats).collect())
    }
}

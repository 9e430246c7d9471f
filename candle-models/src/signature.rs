//! Signatures: what a model eats, gives and carries, by name.
//!
//! An input says which values it can take and what it holds until it is set. Sessions and runners check the one before every pass and
//! fill in the other.
//!
//! ```
//! use candle_models::signature::TensorSpec;
//!
//! let classes = vec![3, 2];
//! let inputs = [
//!     TensorSpec::f32("position", &[2]).says("metres"),                            // must be set
//!     TensorSpec::u32("last_move", &[2]).below(&classes).or_u32(&[1, 0]),          // 1 and 0 until it is set
//!     TensorSpec::u32("move", &[2]).below(&classes).or_sample(),                   // chosen by the model unless it is set
//!     TensorSpec::f32("uniform", &[2]).within(-1.0..1.0).or_f32(&[-1.0, -1.0]),
//! ];
//! assert!(inputs[0].is_required() && !inputs[1].is_required());
//! ```

use crate::exec::SAMPLE;
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::ops::Range;

/// What a model eats, gives and carries. Every shape leaves out the leading batch axis.
///
/// ```
/// use candle_models::bundle::Bundle;
/// use candle_models::families;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mamba")?)?;
/// let signature = model.signature();
/// let required: Vec<&str> = signature.inputs.iter().filter(|spec| spec.is_required()).map(|spec| spec.name.as_str()).collect();
/// assert_eq!(required, ["features", "ids"]);
/// assert!(signature.outputs.iter().any(|spec| spec.name == "action"));
/// assert!(!signature.state.is_empty()); // it remembers
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Signature {
    /// Inputs of a frame.
    pub inputs: Vec<TensorSpec>,
    /// Outputs of a frame.
    pub outputs: Vec<TensorSpec>,
    /// State carried from frame to frame; empty for a model without memory.
    pub state: Vec<TensorSpec>,
}

/// All finite floats.
pub const ANY: Range<f32> = f32::MIN..f32::INFINITY;

/// One named tensor of a signature: its shape behind the batch axis (and the time axis, in an unroll), and its values.
///
/// ```
/// use candle_models::candle_core::DType;
/// use candle_models::signature::TensorSpec;
///
/// let card = TensorSpec::u32("card", &[2]).below(&[52, 52]);
/// assert_eq!((card.dtype(), card.width(), card.is_required()), (DType::U32, 2, true));
/// assert!(card.check_u32(&[51, 0]).is_ok());
/// assert!(card.check_u32(&[52, 0]).unwrap_err().to_string().contains("card"));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct TensorSpec {
    /// The name, as in `features`.
    pub name: String,
    /// The shape of one row: `[288]`, `[512, 16]`.
    pub shape: Vec<usize>,
    /// See [`values`](Self::values).
    values: Values,
    /// What the values mean, in words; may be empty.
    pub meaning: &'static str,
}

/// The kind of a tensor's values and, of an input, which it can take and what it holds until it is set. An input without a default must be
/// set before the first pass.
///
/// ```
/// use candle_models::signature::{TensorSpec, Values};
///
/// let speed = TensorSpec::f32("speed", &[1]).within(0.0..1.0).or_f32(&[0.5]);
/// let Values::Floats { within, default } = speed.values() else { panic!("floats") };
/// assert_eq!((within, default), (&(0.0..1.0), &Some(vec![0.5])));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// 32-bit floats: always finite.
    Floats {
        /// Where they lie, the end left out.
        within: Range<f32>,
        /// One row.
        default: Option<Vec<f32>>,
    },
    /// Indices of 32 bits.
    Indices {
        /// How many values each column can take: an index lies below that. Empty where anything goes.
        below: Vec<u32>,
        /// Whether [`SAMPLE`] can stand in place of an index: "choose one".
        sample: bool,
        /// One row.
        default: Option<Vec<u32>>,
    },
}

impl TensorSpec {
    /// A tensor of finite 32-bit floats.
    pub fn f32(name: impl Into<String>, shape: &[usize]) -> Self {
        Self::new(name, shape, Values::Floats { within: ANY, default: None })
    }

    /// A tensor of indices.
    pub fn u32(name: impl Into<String>, shape: &[usize]) -> Self {
        Self::new(name, shape, Values::Indices { below: Vec::new(), sample: false, default: None })
    }

    fn new(name: impl Into<String>, shape: &[usize], values: Values) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), values, meaning: "" }
    }

    /// The same with floats from the start of a range up to its end, which is left out.
    ///
    /// # Panics
    /// If it holds indices, or nothing lies in the range.
    #[must_use]
    pub fn within(mut self, range: Range<f32>) -> Self {
        assert!(range.start < range.end, "{}: nothing lies in {range:?}", self.name);
        match &mut self.values {
            Values::Floats { within, .. } => *within = range,
            Values::Indices { .. } => panic!("{} holds indices", self.name),
        }
        self
    }

    /// The same with an index below each of these in its column.
    ///
    /// # Panics
    /// If it holds floats, has another number of columns, or no index lies below a limit.
    #[must_use]
    pub fn below(mut self, limits: &[u32]) -> Self {
        assert_eq!(limits.len(), self.width(), "{}: one limit for each column", self.name);
        assert!(!limits.contains(&0), "{}: no index lies below 0", self.name);
        match &mut self.values {
            Values::Indices { below, .. } => *below = limits.to_vec(),
            Values::Floats { .. } => panic!("{} holds floats", self.name),
        }
        self
    }

    /// The same with [`SAMPLE`] in place of an index where the model is to choose: in every column until it is set.
    ///
    /// # Panics
    /// If it holds floats.
    #[must_use]
    pub fn or_sample(mut self) -> Self {
        let width = self.width();
        match &mut self.values {
            Values::Indices { sample, default, .. } => (*sample, *default) = (true, Some(vec![SAMPLE; width])),
            Values::Floats { .. } => panic!("{} holds floats", self.name),
        }
        self
    }

    /// The same with these values until it is set.
    ///
    /// # Panics
    /// If it holds indices, or these are not a row that it can take.
    #[must_use]
    pub fn or_f32(mut self, row: &[f32]) -> Self {
        assert_eq!(row.len(), self.width(), "{}: a default for each value", self.name);
        match &mut self.values {
            Values::Floats { within, default } => {
                assert!(row.iter().all(|x| x.is_finite() && within.contains(x)), "{}: its default lies outside {within:?}", self.name);
                *default = Some(row.to_vec());
            }
            Values::Indices { .. } => panic!("{} holds indices", self.name),
        }
        self
    }

    /// The same with these indices until it is set.
    ///
    /// # Panics
    /// If it holds floats, or these are not a row that it can take.
    #[must_use]
    pub fn or_u32(mut self, row: &[u32]) -> Self {
        assert_eq!(row.len(), self.width(), "{}: a default for each column", self.name);
        match &mut self.values {
            Values::Indices { below, default, .. } => {
                assert!(below.iter().zip(row).all(|(below, index)| index < below), "{}: its default is out of range", self.name);
                *default = Some(row.to_vec());
            }
            Values::Floats { .. } => panic!("{} holds floats", self.name),
        }
        self
    }

    /// The same with what its values mean, in words.
    #[must_use]
    pub fn says(mut self, meaning: &'static str) -> Self {
        self.meaning = meaning;
        self
    }

    /// The kind of its values; of an input, which it can take and what it holds until it is set.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// `F32` or `U32`.
    pub fn dtype(&self) -> DType {
        match self.values {
            Values::Floats { .. } => DType::F32,
            Values::Indices { .. } => DType::U32,
        }
    }

    /// Values in one row.
    pub fn width(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether, as an input, it must be set before the first pass.
    pub fn is_required(&self) -> bool {
        matches!(self.values, Values::Floats { default: None, .. } | Values::Indices { default: None, .. })
    }

    /// How many values the index in a column can take, `None` where anything goes and for floats. Columns count on from row to row.
    pub fn limit(&self, column: usize) -> Option<u32> {
        match &self.values {
            Values::Indices { below, .. } if !below.is_empty() => Some(below[column % below.len()]),
            _ => None,
        }
    }

    /// What an input holds until it is set, of one row on the host; `None` if it must be set.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn default_row(&self) -> Result<Option<Tensor>> {
        let row = match &self.values {
            Values::Floats { default: Some(row), .. } => Tensor::from_slice(row, &self.shape[..], &Device::Cpu)?,
            Values::Indices { default: Some(row), .. } => Tensor::from_slice(row, &self.shape[..], &Device::Cpu)?,
            _ => return Ok(None),
        };
        Ok(Some(row))
    }

    /// Whether, as an input, [`SAMPLE`] can stand in it: the model chooses then.
    pub fn can_sample(&self) -> bool {
        matches!(self.values, Values::Indices { sample: true, .. })
    }

    /// Checks the floats of some rows.
    ///
    /// # Errors
    /// If one is not finite or out of range; floats in a tensor of indices.
    pub fn check_f32(&self, values: &[f32]) -> Result<()> {
        self.refuse(self.wrong_f32(values)?, (values.len() != self.width()).then_some(0))
    }

    /// The same of rows that others come before, `first` of them: the message counts those.
    ///
    /// # Errors
    /// As [`check_f32`](Self::check_f32).
    pub fn check_f32_from(&self, first: usize, values: &[f32]) -> Result<()> {
        self.refuse(self.wrong_f32(values)?, Some(first))
    }

    /// Checks the indices of some rows.
    ///
    /// # Errors
    /// If one is out of range; indices in a tensor of floats.
    pub fn check_u32(&self, values: &[u32]) -> Result<()> {
        self.refuse(self.wrong_u32(values)?, (values.len() != self.width()).then_some(0))
    }

    /// The same of rows that others come before, `first` of them: the message counts those.
    ///
    /// # Errors
    /// As [`check_u32`](Self::check_u32).
    pub fn check_u32_from(&self, first: usize, values: &[u32]) -> Result<()> {
        self.refuse(self.wrong_u32(values)?, Some(first))
    }

    /// The first float that cannot be: its place, what was expected and what was found.
    fn wrong_f32(&self, values: &[f32]) -> Result<Option<(usize, [String; 2])>> {
        let Values::Floats { within, .. } = &self.values else { return Err(Error::tensor(&self.name, "indices", "floats")) };
        let Some(at) = values.iter().position(|x| !x.is_finite() || !within.contains(x)) else { return Ok(None) };
        let bounded = || format!("numbers from {} to below {}", within.start, within.end);
        let expected = if values[at].is_finite() { bounded() } else { "finite numbers".to_owned() };
        Ok(Some((at, [expected, values[at].to_string()])))
    }

    fn wrong_u32(&self, values: &[u32]) -> Result<Option<(usize, [String; 2])>> {
        let Values::Indices { sample, .. } = &self.values else { return Err(Error::tensor(&self.name, "floats", "indices")) };
        let right = |i: usize, index: u32| self.limit(i).is_none_or(|limit| index < limit) || (*sample && index == SAMPLE);
        let Some(at) = values.iter().enumerate().position(|(i, index)| !right(i, *index)) else { return Ok(None) };
        let last = self.limit(at).unwrap_or_default() - 1;
        let expected = format!("an index up to {last}{}", if *sample { " or SAMPLE" } else { "" });
        let found = if values[at] == SAMPLE { "SAMPLE".to_owned() } else { values[at].to_string() };
        Ok(Some((at, [expected, found])))
    }

    /// `first`: the number of the first row, where rows are counted.
    fn refuse(&self, wrong: Option<(usize, [String; 2])>, first: Option<usize>) -> Result<()> {
        let Some((at, [expected, found])) = wrong else { return Ok(()) };
        let (row, column) = (at / self.width(), at % self.width());
        let row = first.map_or(String::new(), |first| format!(" of row {}", first + row));
        Err(Error::tensor(&self.name, expected, format!("{found} in column {column}{row}")))
    }

    /// Values of so many rows, drawn for a test or a measurement: floats evenly from their range, normally where it is [`ANY`], indices
    /// below their limits, 0 or 1 where there are none.
    ///
    /// # Errors
    /// If the memory is not to be had.
    pub fn draw(&self, leading: &[usize], random: &Random) -> Result<Tensor> {
        let random = random.stream(&self.name);
        let shape: Vec<usize> = leading.iter().chain(&self.shape).copied().collect();
        let count = shape.iter().product();
        Ok(match &self.values {
            Values::Floats { within, .. } => {
                let mut values = vec![0.0; count];
                if *within != ANY {
                    random.fill_uniform(0, &mut values);
                    // Rounding may reach the end, which is left out.
                    let scaled = |x: f32| within.start + (within.end - within.start) * x;
                    values.iter_mut().for_each(|x| *x = Some(scaled(*x)).filter(|x| within.contains(x)).unwrap_or(within.start));
                } else {
                    random.fill_normal(0, &mut values);
                }
                Tensor::from_vec(values, shape, &Device::Cpu)?
            }
            Values::Indices { .. } => {
                let draw = |i: usize| random.below(i as u64, self.limit(i).unwrap_or(2));
                Tensor::from_vec((0..count).map(draw).collect::<Vec<u32>>(), shape, &Device::Cpu)?
            }
        })
    }
}

//! Where a model's parameters come from: made from addressed random numbers, read from a bundle, or only described.

use crate::bundle::{Parameter, ParameterSpec};
use crate::ops::{self, Format};
use crate::random::Random;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor, Var};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// How a parameter starts.
///
/// ```
/// use candle_models::candle_core::Device;
/// use candle_models::nn::{Init, Params};
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// let gain = params.get("gain", &[3], Init::Constant(1.0))?;
/// let weight = params.get("weight", &[64], Init::Uniform(0.25))?.to_vec1::<f32>()?;
/// assert_eq!(gain.to_vec1::<f32>()?, [1.0; 3]);
/// assert!(weight.iter().all(|w| w.abs() <= 0.25));
/// # Ok(())
/// # }
/// ```
pub enum Init<'a> {
    /// All the same.
    Constant(f32),
    /// Uniform in `[-bound, bound)`.
    Uniform(f32),
    /// Normal with mean 0.
    Normal(f32),
    /// A function of the value's place and of a uniform number in [0, 1).
    Values(&'a dyn Fn(usize, f32) -> f32),
}

enum Source {
    Fresh { random: Random, vars: BTreeMap<String, Var> },
    Given(BTreeMap<String, Parameter>),
    Description(Vec<ParameterSpec>),
}

/// Hands out parameters by dotted name. Cheap to clone; a clone names into the same set.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::nn::{Linear, Params};
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let build = |params: &Params| Linear::new(3, 8, &params.pp("layer"));
/// // New ones, to be trained.
/// let params = Params::init(Random::new(1), &Device::Cpu);
/// build(&params)?;
/// assert_eq!(params.vars().keys().collect::<Vec<_>>(), ["layer.bias", "layer.weight"]);
/// // Beginning with values of one's own.
/// let bias = |width| Tensor::ones(width, DType::F32, &Device::Cpu);
/// params.set([(&"layer.bias".to_owned(), &bias(8)?)])?;
/// assert_eq!(params.vars()["layer.bias"].to_vec1::<f32>()?, [1.0; 8]);
/// let refused = params.set([(&"layer.bias".to_owned(), &bias(9)?)]).unwrap_err();
/// assert!(refused.to_string().contains("layer.bias"), "{refused}");
/// // What there would be, without memory for it.
/// let description = Params::description();
/// build(&description)?;
/// assert_eq!(description.specs()[1].shape, [3, 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Params {
    source: Rc<RefCell<Source>>,
    prefix: String,
    dtype: DType,
    /// What matrices are cast to when they are asked for.
    compute: Option<DType>,
    /// Whether matrices come out on the grid of 8-bit integers that they will be stored in.
    rounded: bool,
    device: Device,
}

impl Params {
    fn new(source: Source, dtype: DType, device: &Device) -> Self {
        Self { source: Rc::new(RefCell::new(source)), prefix: String::new(), dtype, compute: None, rounded: false, device: device.clone() }
    }

    /// New variables in f32. A value depends on the seed and the parameter's name only, not on the order of creation.
    pub fn init(random: Random, device: &Device) -> Self {
        Self::init_dtype(random, DType::F32, device)
    }

    /// New variables of another dtype: f64 for finite differences.
    pub fn init_dtype(random: Random, dtype: DType, device: &Device) -> Self {
        Self::new(Source::Fresh { random, vars: BTreeMap::new() }, dtype, device)
    }

    /// Parameters that exist; every name that the model asks for must be there with its shape. They are moved to the device.
    pub fn given(tensors: BTreeMap<String, Tensor>, device: &Device) -> Self {
        Self::stored(tensors.into_iter().map(|(name, tensor)| (name, Parameter::from(tensor))).collect(), device)
    }

    /// [`Params::given`], with weights in the format in which a bundle stores them.
    pub fn stored(parameters: BTreeMap<String, Parameter>, device: &Device) -> Self {
        Self::new(Source::Given(parameters), DType::F32, device)
    }

    /// Records names and shapes and hands out tensors without memory behind them.
    pub fn description() -> Self {
        Self::new(Source::Description(Vec::new()), DType::F32, &Device::Cpu)
    }

    /// A view whose matrices come out in `dtype`; vectors, gains, taps, biases and tables stay as they are. The cast is part of
    /// the graph: over [`Self::given`] variables in f32, gradients flow back to them (mixed precision, Micikevicius et al. 2018).
    #[must_use]
    pub fn computing_in(self, dtype: DType) -> Self {
        Self { compute: Some(dtype), ..self }
    }

    /// A view whose matrices have the values that 8-bit storage will give them, while gradients pass to the parameters as if nothing
    /// had been rounded: quantisation-aware training (Jacob et al. 2018).
    #[must_use]
    pub fn rounded_to_8_bits(self) -> Self {
        Self { rounded: true, ..self }
    }

    /// A group: names inside are `prefix.name`.
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        let prefix = if self.prefix.is_empty() { name.to_string() } else { format!("{}.{name}", self.prefix) };
        Self { prefix, ..self.clone() }
    }

    /// The device that parameters lie on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The parameter of that name and shape.
    pub fn get(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        Ok(self.parameter(ParameterSpec::new(self.pp(name).prefix, shape), init)?.tensor)
    }

    /// A parameter that training leaves as it is: no gradient reaches it.
    pub fn frozen(&self, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        let tensor = self.get(name, shape, init)?;
        Ok(if tensor.track_op() { tensor.detach() } else { tensor })
    }

    /// The weight `[inputs, outputs]` of a linear layer, which a bundle may hold in 8 bits, and how it was stored.
    pub fn matrix(&self, name: &str, shape: [usize; 2], init: Init) -> Result<(Tensor, Format)> {
        let Parameter { tensor, format } = self.parameter(ParameterSpec::matrix(self.pp(name).prefix, shape), init)?;
        let tensor = if self.rounded { ops::fake_quantise(&tensor)? } else { tensor };
        let tensor = match self.compute {
            Some(dtype) => tensor.to_dtype(dtype)?,
            None => tensor,
        };
        Ok((tensor, format))
    }

    fn parameter(&self, spec: ParameterSpec, init: Init) -> Result<Parameter> {
        let (name, shape) = (&spec.name, spec.shape.as_slice());
        match &mut *self.source.borrow_mut() {
            Source::Fresh { random, vars } => {
                if let Some(var) = vars.get(name) {
                    return Err(Error::tensor(name, "a parameter asked for once", format!("one of shape {:?} already", var.dims())));
                }
                let var = Var::from_tensor(&start(*random, name, shape, init, &self.device)?.to_dtype(self.dtype)?)?;
                let tensor = var.as_tensor().clone();
                vars.insert(spec.name, var);
                Ok(tensor.into())
            }
            Source::Given(parameters) => {
                let found = parameters.get(name).ok_or_else(|| Error::tensor(name, format!("shape {shape:?}"), "nothing"))?;
                if found.tensor.dims() != shape {
                    return Err(Error::tensor(name, format!("shape {shape:?}"), format!("{:?}", found.tensor.dims())));
                }
                Ok(Parameter { tensor: found.tensor.to_device(&self.device)?, ..found.clone() })
            }
            Source::Description(specs) => {
                let tensor = Tensor::zeros((), self.dtype, &self.device)?.broadcast_as(shape)?;
                specs.push(spec);
                Ok(tensor.into())
            }
        }
    }

    /// Gives variables made so far other values, from whatever device.
    ///
    /// # Errors
    /// If there is no variable of a name, or it has another shape.
    pub fn set<'a>(&self, values: impl IntoIterator<Item = (&'a String, &'a Tensor)>) -> Result<()> {
        let vars = self.vars();
        for (name, value) in values {
            let var = vars.get(name).ok_or_else(|| Error::tensor(name, "a parameter of the model", "none"))?;
            if var.dims() != value.dims() {
                return Err(Error::tensor(name, format!("shape {:?}", var.dims()), format!("{:?}", value.dims())));
            }
            var.set(&value.to_dtype(self.dtype)?.to_device(&self.device)?)?;
        }
        Ok(())
    }

    /// The variables made so far, in name order.
    pub fn vars(&self) -> BTreeMap<String, Var> {
        match &*self.source.borrow() {
            Source::Fresh { vars, .. } => vars.clone(),
            _ => BTreeMap::new(),
        }
    }

    /// The parameters described so far, in name order.
    pub fn specs(&self) -> Vec<ParameterSpec> {
        let mut specs = match &*self.source.borrow() {
            Source::Description(specs) => specs.clone(),
            _ => Vec::new(),
        };
        specs.sort_by(|a, b| a.name.cmp(&b.name));
        specs
    }
}

fn start(random: Random, name: &str, shape: &[usize], init: Init, device: &Device) -> Result<Tensor> {
    let random = random.stream(name);
    let mut values = vec![0.0f32; shape.iter().product()];
    match init {
        Init::Constant(c) => values.fill(c),
        Init::Uniform(bound) => {
            random.fill_uniform(0, &mut values);
            values.iter_mut().for_each(|v| *v = (2.0 * *v - 1.0) * bound);
        }
        Init::Normal(deviation) => {
            random.fill_normal(0, &mut values);
            values.iter_mut().for_each(|v| *v *= deviation);
        }
        Init::Values(f) => {
            random.fill_uniform(0, &mut values);
            values.iter_mut().enumerate().for_each(|(i, v)| *v = f(i, *v));
        }
    }
    Ok(Tensor::from_vec(values, shape, device)?)
}

//! What is measured: a model of any family on disk, and where it computes.

use crate::case::{Case, Execution, Pass};
use crate::family::{self, BenchFamily, Families};
use crate::trainee::Trainee;
use anyhow::{Context, Result};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::bundle::{self, Bundle, CONFIG, Manifest, Role, Storage};
use candle_models::device::{self, ChosenDevice, DeviceChoice, Purpose};
use candle_models::engine::{Model, Placement};
use candle_models::exec::Launches;
use candle_models::nn::Params;
use candle_models::nvml;
use candle_models::random::Random;
use candle_models::registry::Registry;
use clap::ArgMatches;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where calls compute.
#[derive(Debug, Clone)]
pub struct Place {
    /// `cpu` or `cuda:0`, as it was found.
    pub(crate) choice: DeviceChoice,
    /// The opened device.
    pub device: Device,
}

impl Place {
    /// The CPU.
    pub fn cpu() -> Self {
        Self { choice: DeviceChoice::Cpu, device: Device::Cpu }
    }

    /// Opens a device. Where a GPU was hoped for and is not there, a warning says why.
    pub fn open(choice: DeviceChoice) -> Result<Self> {
        let ChosenDevice { device, fallback } = choice.open()?;
        fallback.iter().for_each(|reason| eprintln!("warning: {reason}"));
        let choice = match (&device, choice) {
            (Device::Cuda(_), DeviceChoice::Auto) => DeviceChoice::Cuda(0),
            (Device::Cuda(_), named) => named,
            _ => DeviceChoice::Cpu,
        };
        Ok(Self { choice, device })
    }

    /// `cpu` or `cuda:0`.
    pub fn name(&self) -> String {
        self.choice.to_string()
    }

    /// Where the engine runs a case: on a GPU in the dtype that its weights are stored in, on a CPU as well where it computes in that.
    pub fn of_engine(&self, case: &Case) -> Result<Placement> {
        let dtype = match self.device.is_cuda() {
            true => Some(device::float_dtype(&case.dtype)?),
            false => device::float_dtype(&case.dtype).ok().filter(|dtype| computes_in(*dtype)),
        };
        let launches = if case.execution == Execution::Eager { Launches::Eager } else { Launches::Captured };
        Ok(Placement { device: self.choice, dtype, launches, ..Placement::cpu(case.threads) })
    }

    /// A case here instead of on the CPU.
    pub fn of(&self, case: Case) -> Case {
        Case { device: self.name(), ..case }
    }

    /// Megabytes in use on the GPU, that of other programs counted in; `None` for the CPU and where the driver does not say.
    pub fn gpu_mb(&self) -> Option<f64> {
        nvml::device_memory_in_use(&self.device).map(|bytes| bytes as f64 / 1e6)
    }
}

/// Whether this CPU takes products in that dtype.
pub(crate) fn computes_in(dtype: DType) -> bool {
    device::compute_dtype(Some(dtype), &Device::Cpu, Purpose::Inference).is_ok()
}

/// Every kind of usual networks but those that have to be named.
pub const EVERY: &[&str] = &[];
/// Two kinds, one without memory and one with it, for suites that take long.
pub const FEW: &[&str] = &["mlp", "mamba"];

/// A model on disk.
#[derive(Debug, Clone)]
pub struct Network {
    /// What it is a model of.
    pub family: &'static dyn BenchFamily,
    /// Directory with `config.json` and `model.safetensors`.
    pub bundle: PathBuf,
    /// The bundle that it was made from, which peers read.
    pub original: PathBuf,
    /// How its weights are stored: `f32`, `bf16`, `q8`.
    pub dtype: String,
    /// `mamba 2x256 state 16, autoregressive heads`.
    pub name: String,
}

impl Network {
    /// Opens a bundle of any family.
    ///
    /// # Errors
    /// If it cannot be read or its family is not registered.
    pub fn open(families: &Families, bundle: &Path) -> Result<Self> {
        Self::of(families.family(&Bundle::open(bundle)?)?, bundle)
    }

    /// Opens a bundle of a family.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of(family: &'static dyn BenchFamily, bundle: &Path) -> Result<Self> {
        let opened = Bundle::open(bundle)?;
        let stored: BTreeSet<String> = opened.parameters()?.into_iter().map(|p| p.dtype).collect();
        let narrow = [("I8", "q8"), ("BF16", "bf16"), ("F16", "f16")].into_iter().find(|(name, _)| stored.contains(*name));
        let dtype = narrow.map_or("f32", |(_, name)| name).to_owned();
        let name = family.describe(&opened)?;
        Ok(Self { family, bundle: bundle.to_owned(), original: bundle.to_owned(), dtype, name })
    }

    /// The network with its weights stored otherwise, written below `directory`.
    ///
    /// # Errors
    /// If the weights cannot be stored so, or writing fails.
    pub fn stored(&self, dtype: &str, directory: &Path) -> Result<Self> {
        if dtype == self.dtype {
            return Ok(self.clone());
        }
        // Of all bundles that are measured together, one of its own.
        let bundle = directory.join(format!("{}-{dtype}", self.bundle.display().to_string().replace(['/', '.'], "-")));
        Registry::new([self.family]).export(&Bundle::open(&self.bundle)?, Storage::parse(dtype)?, &bundle)?;
        Ok(Self { bundle, dtype: dtype.to_owned(), ..self.clone() })
    }

    /// Writes the bundle of a usual network of some kind with random weights below `directory`.
    ///
    /// # Errors
    /// If no family has a network of that kind, or writing fails.
    pub fn random(families: &Families, kind: &str, options: &ArgMatches, directory: &Path) -> Result<Self> {
        let (family, manifest) = family::usual(families, kind, options)?;
        Self::untrained(family, &manifest, &directory.join(kind))
    }

    /// Writes a network with random weights into `bundle`.
    ///
    /// # Errors
    /// If the configuration is out of range or writing fails.
    pub fn untrained(family: &'static dyn BenchFamily, manifest: &Manifest, bundle: &Path) -> Result<Self> {
        std::fs::create_dir_all(bundle).with_context(|| bundle.display().to_string())?;
        std::fs::write(bundle.join(CONFIG), serde_json::to_vec(manifest)?).with_context(|| bundle.display().to_string())?;
        let random = Random::new(2).stream("weights");
        let params = Params::init(random, &Device::Cpu);
        family.networks(&Bundle::open(bundle)?, &params)?;
        let tensors: BTreeMap<String, Tensor> =
            params.vars().iter().map(|(name, var)| Ok((name.clone(), without_zeros(name, var, random)?))).collect::<Result<_>>()?;
        bundle::save(bundle, manifest, &tensors, serde_json::Value::Null, &[])?;
        Self::of(family, bundle)
    }

    /// Its architecture, as the family has it.
    ///
    /// # Errors
    /// If the bundle cannot be read.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C> {
        Ok(Bundle::open(&self.bundle)?.config()?)
    }

    /// Its training.
    ///
    /// # Errors
    /// If the bundle cannot be read or its family does not train.
    pub fn trainee(&self) -> Result<Arc<dyn Trainee>> {
        family::trainee(&Registry::new([self.family]), Bundle::open(&self.bundle)?.manifest())
    }

    /// Its kind, the first word of its name: `mamba`.
    pub fn kind(&self) -> &str {
        self.name.split(' ').next().unwrap_or_default()
    }

    /// A case of this network on the CPU.
    pub fn case(&self, pass: Pass, batch: usize, frames: usize, threads: usize) -> Case {
        Case::of(&self.name, pass, [batch, frames, threads], &self.dtype)
    }

    /// Its weights by name.
    ///
    /// # Errors
    /// If the bundle does not hold exactly those of its network.
    pub fn tensors(&self) -> Result<BTreeMap<String, Tensor>> {
        let opened = Bundle::open(&self.bundle)?;
        Ok(opened.read_tensors(&self.family.parameters(&opened)?)?)
    }

    /// The network with its weights, for inference.
    ///
    /// # Errors
    /// If the bundle does not hold exactly the weights of its network.
    pub fn load(&self) -> Result<Arc<dyn Model>> {
        Ok(Registry::new([self.family]).load(&Bundle::open(&self.bundle)?)?)
    }

    /// Multiply-adds of a frame in the products with weights: one for every weight.
    ///
    /// # Errors
    /// If the bundle cannot be read.
    pub fn products(&self) -> Result<usize> {
        let matrices = self.family.parameters(&Bundle::open(&self.bundle)?)?.into_iter().filter(|p| p.role == Role::Matrix);
        Ok(matrices.map(|p| p.shape.iter().product::<usize>()).sum())
    }
}

/// What starts at zero gets random values: a comparison of outputs would not see it otherwise.
fn without_zeros(name: &str, var: &Var, random: Random) -> Result<Tensor> {
    let mut values = var.flatten_all()?.to_vec1::<f32>()?;
    if values.iter().all(|v| *v == 0.0) {
        random.stream("zeros").stream(name).fill_normal(0, &mut values);
        values.iter_mut().for_each(|v| *v *= 0.1);
    }
    Ok(Tensor::from_vec(values, var.shape(), &Device::Cpu)?)
}

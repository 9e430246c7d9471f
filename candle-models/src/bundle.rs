//! A model is a directory: `config.json`, `model.safetensors`, `README.md` (the model card) and the further files that its family
//! names ([`Family::files`](crate::registry::Family::files)).
//!
//! This module knows no family. It checks a directory against what the family says its parameters are, before memory is
//! taken for them, and replaces a directory only by a complete one. Every failure is one line with file, tensor, what
//! was expected and what was found.
//!
//! The weight `x.weight` of a linear layer may lie in 8 bits: I8 `[inputs, outputs]` beside the factors of its columns,
//! `x.weight.scale`, F32 `[outputs]`, finite and not negative.
//!
//! ```no_run
//! # fn main() -> candle_models::Result<()> {
//! use candle_models::bundle::{Bundle, ParameterSpec};
//!
//! let bundle = Bundle::open("weights/policy-mlp")?;
//! bundle.require_family(&["policy"])?;
//! let config: serde_json::Map<_, _> = bundle.config()?;
//! let tensors = bundle.read_tensors(&[ParameterSpec::new("trunk.0.weight", &[288, 512])])?;
//! # Ok(())
//! # }
//! ```

use crate::files::{read_limited, write_atomic, write_directory};
use crate::ops::Format;
use crate::stored::{self, Entry, Stored};
use crate::tensors::NamedTensors;
use crate::{Error, Result, one_line};
use candle_core::{DType, Device, Tensor};
use safetensors::tensor::{Dtype, TensorInfo};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Architecture: [`Manifest`] as JSON.
pub const CONFIG: &str = "config.json";
/// Parameters.
pub const MODEL: &str = "model.safetensors";
/// Model card: data, command, seed, metrics.
pub const CARD: &str = "README.md";
/// The version of the layout above that this crate writes and reads.
pub const FORMAT_VERSION: u32 = 1;

const CONFIG_LIMIT: u64 = 1 << 20;
const EXTRA_LIMIT: u64 = 64 << 20;

/// The content of `config.json`. Unknown keys are refused.
///
/// ```
/// use candle_models::bundle::{FORMAT_VERSION, Manifest};
/// use candle_models::policy::PolicyConfig;
/// # fn main() -> candle_models::Result<()> {
/// let manifest = Manifest::new("policy", &PolicyConfig::default())?;
/// assert_eq!((manifest.family.as_str(), manifest.format_version), ("policy", FORMAT_VERSION));
/// assert_eq!(manifest.model["heads"], "autoregressive");
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Which kind of model it is: the name of a [`Family`](crate::registry::Family).
    pub family: String,
    /// [`FORMAT_VERSION`].
    pub format_version: u32,
    /// The family's own configuration.
    pub model: serde_json::Value,
}

impl Manifest {
    /// A manifest of this crate's format version.
    ///
    /// # Errors
    /// If the configuration has no JSON form.
    pub fn new(family: impl Into<String>, config: &impl Serialize) -> Result<Self> {
        let model = serde_json::to_value(config).map_err(|e| Error::config("model", e))?;
        Ok(Self { family: family.into(), format_version: FORMAT_VERSION, model })
    }
}

/// A parameter that a model has: what `model.safetensors` must hold.
///
/// ```
/// use candle_models::bundle::{ParameterSpec, Role};
///
/// let weight = ParameterSpec::matrix("trunk.weight", [288, 512]); // may be stored in 8 bits
/// let bias = ParameterSpec::new("trunk.bias", &[512]);
/// assert_eq!((weight.role, bias.role), (Role::Matrix, Role::Other));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParameterSpec {
    /// The name, dotted: `backbone.0.in.weight`.
    pub name: String,
    /// The whole shape.
    pub shape: Vec<usize>,
    /// What it is for.
    pub role: Role,
}

/// What a parameter is for, which decides how it may be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The weight `[inputs, outputs]` of a linear layer: F32, F16, BF16 or 8 bits.
    Matrix,
    /// Anything else: F32, F16 or BF16.
    Other,
}

impl ParameterSpec {
    /// A parameter by name and shape.
    pub fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec(), role: Role::Other }
    }

    /// The weight of a linear layer.
    pub fn matrix(name: impl Into<String>, shape: [usize; 2]) -> Self {
        Self { role: Role::Matrix, ..Self::new(name, &shape) }
    }
}

/// A parameter as it lies in the file.
///
/// ```
/// use candle_models::bundle::Bundle;
/// # fn main() -> candle_models::Result<()> {
/// let parameters = Bundle::open("../weights/policy-mlp")?.parameters()?;
/// let stored = &parameters[0];
/// assert_eq!((stored.name.as_str(), stored.dtype.as_str(), &stored.shape[..]), ("action_states", "F32", &[399, 64][..]));
/// assert_eq!(stored.bytes, 4 * 399 * 64);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredParameter {
    /// The name.
    pub name: String,
    /// The shape.
    pub shape: Vec<usize>,
    /// The dtype as safetensors writes it: `F32`, `F16`, `BF16`, `I8`.
    pub dtype: String,
    /// Bytes in the file, those of an 8-bit weight's factors counted in.
    pub bytes: usize,
}

/// A parameter as a model gets it.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// The values.
    pub tensor: Tensor,
    /// How the file stores them, F16 apart: that is kept as f32 in memory.
    pub format: Format,
}

impl From<Tensor> for Parameter {
    fn from(tensor: Tensor) -> Self {
        Self { tensor, format: Format::F32 }
    }
}

/// What parameters are stored as.
///
/// ```
/// use candle_models::bundle::Storage;
/// use candle_models::candle_core::DType;
/// # fn main() -> candle_models::Result<()> {
/// assert_eq!(Storage::parse("q8")?, Storage::Q8);
/// assert_eq!(Storage::parse("bf16")?, Storage::Float(DType::BF16));
/// assert!(Storage::parse("q4").is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    /// All in one dtype: F32, F16 or BF16.
    Float(DType),
    /// The weights of linear layers in 8 bits, everything else in f32.
    Q8,
}

impl Storage {
    /// `f32`, `f16`, `bf16` or `q8`.
    pub fn parse(name: &str) -> Result<Self> {
        match (name, crate::device::float_dtype(name)) {
            ("q8", _) => Ok(Self::Q8),
            (_, Ok(dtype)) => Ok(Self::Float(dtype)),
            (_, Err(_)) => Err(Error::Input(format!("expected f32, f16, bf16 or q8, found {name:?}"))),
        }
    }

    /// A parameter stored so.
    pub fn parameter(self, role: Role, Parameter { tensor, format }: Parameter) -> Result<Parameter> {
        let format = match (self, role, format) {
            (Self::Float(dtype), ..) => return Ok(tensor.to_dtype(dtype)?.into()),
            // As it was, to the bit.
            (Self::Q8, Role::Matrix, format @ Format::Q8(_)) => format,
            (Self::Q8, Role::Matrix, _) => Format::q8(&tensor.flatten_all()?.to_vec1::<f32>()?, tensor.dim(1)?),
            (Self::Q8, Role::Other, _) => Format::F32,
        };
        Ok(Parameter { tensor, format })
    }
}

/// A model directory whose configuration has been read and checked.
///
/// ```
/// use candle_models::bundle::Bundle;
/// use candle_models::policy::PolicyConfig;
/// # fn main() -> candle_models::Result<()> {
/// let bundle = Bundle::open("../weights/policy-mlp")?;
/// let config: PolicyConfig = bundle.config()?;
/// let values: usize = bundle.parameters()?.iter().map(|parameter| parameter.shape.iter().product::<usize>()).sum();
/// assert_eq!((bundle.manifest().family.as_str(), config.hidden, values), ("policy", 256, 1_077_674));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Bundle {
    dir: PathBuf,
    manifest: Manifest,
}

impl Bundle {
    /// Reads `config.json`.
    ///
    /// # Errors
    /// If `dir` is not a directory, or its `config.json` is missing, not JSON, of another format version, or has
    /// missing or unknown keys.
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        let found = std::fs::metadata(&dir).map_err(Error::io(&dir))?;
        if !found.is_dir() {
            return Err(Error::file(&dir, format!("expected a model directory with {CONFIG} and {MODEL}, found a file")));
        }
        let path = dir.join(CONFIG);
        let bytes = read_limited(&path, CONFIG_LIMIT)?;
        let value: serde_json::Value = parse(&path, serde_json::from_slice(&bytes))?;
        // The version first: a later version may well have other keys.
        match value.get("format_version") {
            Some(version) if *version != FORMAT_VERSION => {
                let found = one_line(&version.to_string());
                return Err(Error::file(&path, format!("format_version: expected {FORMAT_VERSION}, found {found}")));
            }
            _ => {}
        }
        let manifest = parse(&path, serde_json::from_value(value))?;
        Ok(Self { dir, manifest })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The content of `config.json`.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Checks that the family is one of `known`.
    pub fn require_family(&self, known: &[&str]) -> Result<()> {
        if known.contains(&self.manifest.family.as_str()) {
            return Ok(());
        }
        let reason = format!("family: expected one of [{}], found {}", known.join(", "), one_line(&self.manifest.family));
        Err(Error::file(self.dir.join(CONFIG), reason))
    }

    /// The family's configuration, from the key `model`. The family's own `validate` comes after this.
    ///
    /// # Errors
    /// If a key is unknown, missing or of the wrong type.
    pub fn config<C: DeserializeOwned>(&self) -> Result<C> {
        let parsed = serde_json::from_value(self.manifest.model.clone());
        parsed.map_err(|e| Error::file(self.dir.join(CONFIG), format!("model: {}", one_line(&e.to_string()))))
    }

    /// What `model.safetensors` holds, in name order, from its header alone.
    pub fn parameters(&self) -> Result<Vec<StoredParameter>> {
        let stored = Stored::open(&self.dir.join(MODEL))?;
        let found = stored.tensors();
        let size = |info: &TensorInfo| info.data_offsets.1 - info.data_offsets.0;
        let is_8_bit = |info: &TensorInfo| info.dtype == Dtype::I8;
        let belongs = |name: &str| name.strip_suffix(SCALE).and_then(|weight| found.get(weight)).is_some_and(|w| is_8_bit(w));
        let parameter = |(name, info): (&String, &&TensorInfo)| StoredParameter {
            name: name.clone(),
            shape: info.shape.clone(),
            dtype: info.dtype.to_string(),
            bytes: size(info) + if is_8_bit(info) { found.get(&scale_of(name)).map_or(0, |scale| size(scale)) } else { 0 },
        };
        Ok(found.iter().filter(|(name, _)| !belongs(name)).map(parameter).collect())
    }

    /// The metadata in `model.safetensors`: how the weights came about. Null if there is none.
    pub fn metadata(&self) -> Result<serde_json::Value> {
        Stored::open(&self.dir.join(MODEL))?.metadata()
    }

    /// The parameters as f32 tensors on the CPU, if the file holds exactly `expected`, in F32, F16, BF16 or, the weights
    /// of linear layers, 8 bits, and nothing but finite numbers.
    ///
    /// Names, dtypes, shapes and sizes are checked before the first tensor is read.
    pub fn read_tensors(&self, expected: &[ParameterSpec]) -> Result<BTreeMap<String, Tensor>> {
        Ok(self.read_parameters(expected)?.into_iter().map(|(name, parameter)| (name, parameter.tensor)).collect())
    }

    /// [`Bundle::read_tensors`] with the format of each.
    pub fn read_parameters(&self, expected: &[ParameterSpec]) -> Result<BTreeMap<String, Parameter>> {
        let mut stored = Stored::open(&self.dir.join(MODEL))?;
        check(&stored, expected)?;
        let infos: BTreeMap<String, TensorInfo> = stored.tensors().into_iter().map(|(name, info)| (name, info.clone())).collect();
        let mut read = |spec: &ParameterSpec| {
            let (name, info) = (&spec.name, &infos[&spec.name]);
            let (tensor, format) = match info.dtype {
                Dtype::I8 => {
                    let scale = scale_of(name);
                    stored.read_scaled(name, info, (&scale, &infos[&scale]))?
                }
                Dtype::BF16 => (stored.read(name, info)?, Format::Bf16),
                _ => (stored.read(name, info)?, Format::F32),
            };
            Ok((name.clone(), Parameter { tensor, format }))
        };
        expected.iter().map(&mut read).collect()
    }

    /// Another file of the bundle as bytes, if it is there (at most 64 MiB).
    pub fn read_file(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.dir.join(check_name(name)?);
        if !path.try_exists().map_err(Error::io(&path))? {
            return Ok(None);
        }
        read_limited(&path, EXTRA_LIMIT).map(Some)
    }

    /// Another safetensors file of the bundle, if it is there.
    pub fn read_named(&self, name: &str) -> Result<Option<NamedTensors>> {
        let path = self.dir.join(check_name(name)?);
        if !path.try_exists().map_err(Error::io(&path))? {
            return Ok(None);
        }
        NamedTensors::load_safetensors(path).map(Some)
    }
}

/// Writes a bundle, complete or not at all. An existing bundle at `dir` stays until the new one is complete; a directory
/// that holds anything but configuration, parameters, card and what `files` names is refused.
///
/// `metadata` says how the weights came about; `files` are further files by name ([`CARD`], those of the family).
///
/// # Errors
/// If a tensor is not F32, F16 or BF16 or not finite, or if writing fails: then nothing has changed.
pub fn save(
    dir: impl AsRef<Path>,
    manifest: &Manifest,
    tensors: &BTreeMap<String, Tensor>,
    metadata: serde_json::Value,
    files: &[(&str, Vec<u8>)],
) -> Result<()> {
    let parameters = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone().into())).collect();
    let files: Vec<_> = files.iter().map(|(name, bytes)| (*name, Some(bytes.clone()))).collect();
    save_parameters(dir, manifest, &parameters, metadata, &files)
}

/// [`save`], with the weights that have an 8-bit format stored so. The others are stored in their tensor's dtype. A file without
/// bytes is one that the new bundle goes without, whether an older one at `dir` has it or not.
pub fn save_parameters(
    dir: impl AsRef<Path>,
    manifest: &Manifest,
    parameters: &BTreeMap<String, Parameter>,
    metadata: serde_json::Value,
    files: &[(&str, Option<Vec<u8>>)],
) -> Result<()> {
    parameters.iter().try_for_each(|(name, parameter)| check_finite(name, &parameter.tensor))?;
    let mut own = vec![CONFIG, MODEL, CARD];
    for (name, _) in files {
        if [CONFIG, MODEL].contains(&check_name(name)?) {
            return Err(Error::Input(format!("{name} is written from the manifest and the tensors, not as a further file")));
        }
        own.push(name);
    }
    let mut config = serde_json::to_string_pretty(manifest).map_err(|e| Error::config("model", e))?;
    config.push('\n');
    let mut entries = Vec::new();
    for (name, parameter) in parameters {
        push_entries(name, parameter, &mut entries)?;
    }
    write_directory(dir, &own, |dir| {
        write_atomic(dir.join(CONFIG), config.as_bytes())?;
        stored::write(&dir.join(MODEL), entries, &metadata)?;
        let present = files.iter().filter_map(|(name, bytes)| Some((name, bytes.as_ref()?)));
        present.into_iter().try_for_each(|(name, bytes)| write_atomic(dir.join(name), bytes))
    })
}

/// A parameter as one tensor of the file, or as integers and factors.
fn push_entries(name: &str, Parameter { tensor, format }: &Parameter, entries: &mut Vec<Entry>) -> Result<()> {
    let Format::Q8(scale) = format else {
        entries.push(Entry::new(name, tensor)?);
        return Ok(());
    };
    if tensor.dims().len() != 2 || tensor.dims()[1] != scale.len() {
        return Err(Error::tensor(name, format!("[inputs, {}], as many columns as factors", scale.len()), format!("{:?}", tensor.dims())));
    }
    let integers = format.integers(&tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?).unwrap_or_default();
    entries.push(Entry::integers(name, tensor.dims(), integers));
    entries.push(Entry::new(&scale_of(name), &Tensor::from_slice(scale, scale.len(), &Device::Cpu)?)?);
    Ok(())
}

/// What the factors of an 8-bit weight are called, behind the weight's name.
const SCALE: &str = ".scale";

fn scale_of(weight: &str) -> String {
    format!("{weight}{SCALE}")
}

/// Compares what a file holds with what a model has, without reading a tensor.
fn check(stored: &Stored, expected: &[ParameterSpec]) -> Result<()> {
    let found = stored.tensors();
    let mut names = BTreeSet::new();
    for spec in expected {
        let dtype = check_shape(stored, &found, &spec.name, &spec.shape)?;
        names.insert(spec.name.clone());
        match (dtype, spec.role) {
            (Dtype::F32 | Dtype::F16 | Dtype::BF16, _) => {}
            (Dtype::I8, Role::Matrix) => {
                let scale = scale_of(&spec.name);
                match check_shape(stored, &found, &scale, &spec.shape[1..])? {
                    Dtype::F32 => names.insert(scale),
                    other => return Err(stored.wrong(&scale, "F32", other)),
                };
            }
            (other, Role::Matrix) => return Err(stored.wrong(&spec.name, "F32, F16, BF16 or I8", other)),
            (other, Role::Other) => return Err(stored.wrong(&spec.name, "F32, F16 or BF16", other)),
        }
    }
    match found.into_iter().find(|(name, _)| !names.contains(name)) {
        Some((extra, info)) => {
            let found = one_line(&format!("{} {:?}", info.dtype, info.shape));
            Err(stored.wrong(&extra, "no tensor of that name in this model", found))
        }
        None => Ok(()),
    }
}

/// The dtype of a tensor that must be there with that shape.
fn check_shape(stored: &Stored, found: &BTreeMap<String, &TensorInfo>, name: &str, shape: &[usize]) -> Result<Dtype> {
    match found.get(name) {
        Some(info) if info.shape == shape => Ok(info.dtype),
        Some(info) => Err(stored.wrong(name, format!("{shape:?}"), one_line(&format!("{:?}", info.shape)))),
        None => Err(stored.wrong(name, format!("{shape:?}"), "no tensor of that name")),
    }
}

fn check_finite(name: &str, tensor: &Tensor) -> Result<()> {
    if !matches!(tensor.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return Err(Error::tensor(name, "F32, F16 or BF16", format!("{:?}", tensor.dtype())));
    }
    let values = tensor.flatten_all()?.to_dtype(DType::F32)?.to_vec1::<f32>()?;
    match values.iter().position(|v| !v.is_finite()) {
        Some(i) => Err(Error::tensor(name, "finite numbers", format!("{} at index {i}", values[i]))),
        None => Ok(()),
    }
}

/// A further file is directly in the bundle.
fn check_name(name: &str) -> Result<&str> {
    if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', ':', '\0']) {
        return Err(Error::Input(format!("{}: expected the plain name of a file in the bundle", one_line(name))));
    }
    Ok(name)
}

fn parse<T>(path: &Path, parsed: serde_json::Result<T>) -> Result<T> {
    parsed.map_err(|e| Error::file(path, one_line(&e.to_string())))
}

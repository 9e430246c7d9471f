//! Families of models, and the registry by which engine and commands know them.
//!
//! A family is a folder and a line. It says what its bundles are called and which networks lie in one ([`Family`]); from that follow
//! the parameters that a bundle must hold, loading, exporting and the property tests. A program registers the families that it wants
//! to read:
//!
//! ```
//! use candle_models::bundle::Bundle;
//! use candle_models::families::{beam::BeamFamily, policy::PolicyFamily};
//! use candle_models::registry::{Family, Registry};
//!
//! # fn main() -> candle_models::Result<()> {
//! let registry: Registry<dyn Family> = Registry::new([&PolicyFamily, &BeamFamily]);
//! let model = registry.load(&Bundle::open("../weights/policy-mlp")?)?;
//! assert_eq!(model.family(), "policy");
//! # Ok(())
//! # }
//! ```
//!
//! [`families::shipped`](crate::families::shipped) has those of this crate.

use crate::bundle::{self, Bundle, CARD, Manifest, ParameterSpec, Storage};
use crate::engine::Model;
use crate::exec::graph::{Graph, Tables};
use crate::nn::Params;
use crate::{Error, Result};
use candle_core::Device;
use std::path::Path;
use std::sync::Arc;

/// The networks of a bundle by name, the one that is stepped frame by frame first.
pub type Networks = Vec<(&'static str, Arc<dyn Model>)>;

/// A kind of model that bundles can hold.
///
/// ```
/// use candle_models::bundle::{Bundle, Manifest};
/// use candle_models::nn::Params;
/// use candle_models::policy::{Policy, PolicyConfig};
/// use candle_models::registry::{Family, Networks, Registry};
/// use std::sync::Arc;
///
/// /// Policies under a name of their own.
/// struct Fighters;
///
/// impl Family for Fighters {
///     fn name(&self) -> &'static str {
///         "fighters"
///     }
///     fn describe(&self, bundle: &Bundle) -> candle_models::Result<String> {
///         Ok(format!("fighter, {} wide", bundle.config::<PolicyConfig>()?.hidden))
///     }
///     fn networks(&self, bundle: &Bundle, params: &Params) -> candle_models::Result<Networks> {
///         Ok(vec![("fighter", Arc::new(Policy::new(&bundle.config()?, params)?))])
///     }
///     fn examples(&self) -> candle_models::Result<Vec<Manifest>> {
///         Ok(vec![Manifest::new(self.name(), &PolicyConfig::default())?])
///     }
/// }
///
/// # fn main() -> candle_models::Result<()> {
/// let registry: Registry<dyn Family> = Registry::new([&Fighters]);
/// let refused = registry.load(&Bundle::open("../weights/policy-mlp")?).err().expect("another family");
/// assert!(refused.to_string().ends_with("family: expected one of [fighters], found policy"));
/// # Ok(())
/// # }
/// ```
pub trait Family: Send + Sync {
    /// The name in a bundle's `config.json`.
    fn name(&self) -> &'static str;

    /// What tells a bundle's architecture from others, in words: first the kind, `mamba 2x256 state 16, autoregressive heads`. No
    /// weight is read.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    fn describe(&self, bundle: &Bundle) -> Result<String>;

    /// The networks of a bundle, the one that is stepped frame by frame first, with parameters from `params`: those of the bundle, new
    /// ones, or a mere description, which has shapes and no memory.
    ///
    /// # Errors
    /// If the configuration cannot be read or is out of range, or if parameters are missing.
    fn networks(&self, bundle: &Bundle, params: &Params) -> Result<Networks>;

    /// Small configurations, at least one of each architecture that the family knows. The property tests run over them.
    ///
    /// # Errors
    /// If a configuration has no JSON form.
    fn examples(&self) -> Result<Vec<Manifest>>;

    /// Files that a bundle may hold beside its configuration, parameters and card. An export keeps them.
    fn files(&self) -> &'static [&'static str] {
        &[]
    }

    /// What the file of a bundle's parameters must hold, in name order, without memory for it.
    ///
    /// # Errors
    /// If the configuration cannot be read or is out of range.
    fn parameters(&self, bundle: &Bundle) -> Result<Vec<ParameterSpec>> {
        let params = Params::description();
        self.networks(bundle, &params)?;
        Ok(params.specs())
    }

    /// The networks of a bundle with its parameters on a device, every tensor checked before memory is taken for it.
    ///
    /// # Errors
    /// If the configuration is out of range or the bundle does not hold exactly its parameters.
    fn load(&self, bundle: &Bundle, device: &Device) -> Result<Networks> {
        let parameters = bundle.read_parameters(&self.parameters(bundle)?)?;
        self.networks(bundle, &Params::stored(parameters, device))
    }
}

/// The families that a program knows. `F` is [`Family`] or a trait over it that says more of a family.
///
/// ```
/// use candle_models::bundle::Bundle;
/// use candle_models::families;
/// # fn main() -> candle_models::Result<()> {
/// let families = families::shipped();
/// let bundle = Bundle::open("../weights/beam-c3")?;
/// let networks: Vec<&str> = families.networks(&bundle)?.iter().map(|(name, _)| *name).collect();
/// assert_eq!(networks[0], "user"); // stepped measurement by measurement; behind it those that answer once
/// assert!(families.describe(&bundle)?.contains("16"));
/// # Ok(())
/// # }
/// ```
pub struct Registry<F: ?Sized + 'static> {
    families: Vec<&'static F>,
}

impl<F: Family + ?Sized> Registry<F> {
    /// The families in the order in which they are to be named. Of several with one name the first answers.
    pub fn new<const N: usize>(families: [&'static F; N]) -> Self {
        Self { families: families.to_vec() }
    }

    /// The same with one more family.
    #[must_use]
    pub fn with(mut self, family: &'static F) -> Self {
        self.families.push(family);
        self
    }

    /// The families in the order of their registration.
    pub fn iter(&self) -> impl Iterator<Item = &'static F> {
        self.families.iter().copied()
    }

    /// The family of a bundle.
    ///
    /// # Errors
    /// If it is not registered: the error lists those that are.
    pub fn family(&self, bundle: &Bundle) -> Result<&'static F> {
        let names: Vec<&str> = self.iter().map(|family| family.name()).collect();
        bundle.require_family(&names)?;
        let unknown = || Error::config("family", format!("expected one of [{}]", names.join(", ")));
        self.iter().find(|family| family.name() == bundle.manifest().family).ok_or_else(unknown)
    }

    /// [`Family::describe`] of a bundle of any registered family.
    ///
    /// # Errors
    /// If the family is not registered or the configuration cannot be read.
    pub fn describe(&self, bundle: &Bundle) -> Result<String> {
        self.family(bundle)?.describe(bundle)
    }

    /// [`Family::parameters`] of a bundle of any registered family.
    ///
    /// # Errors
    /// If the family is not registered, or the configuration cannot be read or is out of range.
    pub fn parameters(&self, bundle: &Bundle) -> Result<Vec<ParameterSpec>> {
        self.family(bundle)?.parameters(bundle)
    }

    /// The networks of a bundle of any registered family, on the CPU.
    ///
    /// # Errors
    /// If the family is not registered, the configuration is out of range or the bundle does not hold exactly its parameters.
    pub fn networks(&self, bundle: &Bundle) -> Result<Networks> {
        self.family(bundle)?.load(bundle, &Device::Cpu)
    }

    /// The steps of a bundle's networks in standard operators, with its parameters under their names.
    ///
    /// # Errors
    /// As [`Registry::networks`]; if a network is not recorded or has an operation without a formula.
    pub fn graphs(&self, bundle: &Bundle, tables: Tables) -> Result<Vec<(&'static str, Graph)>> {
        let family = self.family(bundle)?;
        let parameters = bundle.read_parameters(&family.parameters(bundle)?)?;
        let networks = family.networks(bundle, &Params::stored(parameters.clone(), &Device::Cpu))?;
        let graph = |model: &dyn Model| Graph::new(model, parameters.iter().map(|(name, parameter)| (name, &parameter.tensor)), tables);
        networks.iter().map(|(name, model)| Ok((*name, graph(&**model)?))).collect()
    }

    /// The network of a bundle that is stepped frame by frame, on the CPU.
    ///
    /// # Errors
    /// As [`Registry::networks`]; a bundle without a network.
    pub fn load(&self, bundle: &Bundle) -> Result<Arc<dyn Model>> {
        let first = self.networks(bundle)?.into_iter().next();
        first.map(|(_, model)| model).ok_or_else(|| Error::file(bundle.dir(), "the bundle holds no network"))
    }

    /// Writes a bundle to `dir` with its parameters stored otherwise, and with the files that inference wants; what training has noted
    /// beside the weights stays behind.
    ///
    /// # Errors
    /// If the bundle does not hold its model's parameters, or one is not finite in the new dtype; if writing fails.
    pub fn export(&self, bundle: &Bundle, storage: Storage, dir: impl AsRef<Path>) -> Result<()> {
        let family = self.family(bundle)?;
        let specs = family.parameters(bundle)?;
        let mut found = bundle.read_parameters(&specs)?;
        let found = specs.into_iter().filter_map(|spec| Some((spec.role, found.remove_entry(&spec.name)?)));
        let stored = found.map(|(role, (name, parameter))| Ok((name, storage.parameter(role, parameter)?))).collect::<Result<_>>()?;
        let files = [CARD].iter().chain(family.files()).map(|name| Ok((*name, bundle.read_file(name)?))).collect::<Result<Vec<_>>>()?;
        bundle::save_parameters(dir, bundle.manifest(), &stored, serde_json::Value::Null, &files)
    }
}

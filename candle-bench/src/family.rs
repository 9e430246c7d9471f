//! What the benchmark wants to know of a family beside its networks. Everything has a default: a family without a method here has its
//! bundles measured by every suite that needs a network and its inputs alone.

use crate::calls::Inputs;
use crate::case::Case;
use crate::harness::Subject;
use crate::instructions::HotPath;
use crate::network::Network;
use crate::ops::Form;
use crate::readme::Table;
use crate::run::Entry;
use crate::trainee::Trainee;
use anyhow::{Context, Result, bail};
use candle_models::bundle::{Bundle, Manifest};
use candle_models::registry::{Family, Registry};
use clap::{ArgMatches, Command};
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// The families that a program measures.
pub type Families = Registry<dyn BenchFamily>;

/// Makes the training step of a network on given inputs, which a peer makes too. Its answer is the loss before and after the first update.
pub type Updates = fn(&Network, &Case, &Inputs) -> Result<Box<dyn Form>>;

/// A family as the benchmark knows it.
pub trait BenchFamily: Family {
    /// Adds its own options to the command of a suite, best those of a struct with `#[derive(clap::Args)]`. They have defaults: they are
    /// read by [`option`] where there may be none of them.
    fn options(&self, _suite: &str, command: Command) -> Command {
        command
    }

    /// Kinds of networks with usual sizes, by the names that `--backbones` takes, in the order of a table.
    fn kinds(&self) -> &'static [&'static str] {
        &[]
    }

    /// Further kinds, which a suite measures where `--backbones` names them and not by itself: beside the others they would take long.
    fn named_kinds(&self) -> &'static [&'static str] {
        &[]
    }

    /// The network of one of all these kinds.
    ///
    /// # Errors
    /// If there is no such kind.
    fn usual(&self, kind: &str, _options: &ArgMatches) -> Result<Manifest> {
        bail!("backbone {kind}: a {} has none", self.name())
    }

    /// Bundles that lie in the repository, relative to it: what `all` measures.
    fn shipped(&self) -> &'static [&'static str] {
        &[]
    }

    /// Arguments by which its own options of a suite ask for little: what `all --quick` measures.
    fn quick(&self, _suite: &str) -> &'static str {
        ""
    }

    /// Suites that are about this family alone.
    fn suites(&self) -> Vec<Entry> {
        Vec::new()
    }

    /// Tables of its suites that a Markdown file can ask for.
    fn tables(&self) -> Vec<Table> {
        Vec::new()
    }

    /// Paths of its own whose instructions are counted.
    fn paths(&self) -> Vec<HotPath> {
        Vec::new()
    }

    /// Which classes its networks draw, and from what. Outputs are compared number by number where it says nothing.
    fn drawn(&self) -> Option<Drawn> {
        None
    }

    /// Frames that a frame of a network sees, itself included, where it attends to a window of some.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    fn attention_window(&self, _bundle: &Bundle) -> Result<Option<usize>> {
        Ok(None)
    }

    /// The training of a configuration, if the family trains.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    fn trainee(&self, _manifest: &Manifest) -> Result<Option<Arc<dyn Trainee>>> {
        Ok(None)
    }

    /// What `train` measures of it where nothing is named.
    ///
    /// # Errors
    /// If an option is out of range.
    fn trainees(&self, _options: &ArgMatches) -> Result<Vec<Arc<dyn Trainee>>> {
        Ok(Vec::new())
    }

    /// Batches of its training step, where an option of its own says them.
    fn batches(&self, _options: &ArgMatches) -> Option<Vec<usize>> {
        None
    }

    /// Its training step on given inputs.
    fn updates(&self) -> Option<Updates> {
        None
    }

    /// Work of its own that `memory` does with and without a pool.
    ///
    /// # Errors
    /// If an option is out of range.
    fn workloads(&self, _options: &ArgMatches) -> Result<Vec<OwnWork>> {
        Ok(Vec::new())
    }

    /// One of these, ready to be done.
    ///
    /// # Errors
    /// If there is none of that name, or for a configuration that cannot be.
    fn workload(&self, work: &OwnWork) -> Result<Box<dyn Subject>> {
        bail!("{}: a {} has no such work", work.name, self.name())
    }
}

impl fmt::Debug for dyn BenchFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Classes that networks draw column by column, each from floats of the same pass that depend on the classes before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drawn {
    /// The output of classes.
    pub classes: &'static str,
    /// The output that they are drawn from.
    pub from: &'static str,
    /// Where in it the floats of each class end.
    pub ends: Vec<usize>,
}

/// Work of a family by its name, with its sizes and its configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct OwnWork {
    /// In words.
    pub name: String,
    /// Its sizes.
    pub case: Case,
    /// What it is done with.
    pub config: Value,
}

/// The value of an option of a family; none in a command that has no such option.
pub fn option<T: Clone + Send + Sync + 'static>(options: &ArgMatches, name: &str) -> Option<T> {
    options.try_get_one(name).ok().flatten().cloned()
}

/// The family of a name.
///
/// # Errors
/// If it is not registered.
pub fn named(families: &Families, name: &str) -> Result<&'static dyn BenchFamily> {
    families.iter().find(|family| family.name() == name).with_context(|| format!("no family {name} in this program"))
}

/// The kinds of usual networks of all families that suites measure by themselves.
pub fn kinds(families: &Families) -> Vec<&'static str> {
    families.iter().flat_map(|family| family.kinds()).copied().collect()
}

/// The usual network of a kind, and its family.
///
/// # Errors
/// If no family has a network of that name.
pub fn usual(families: &Families, kind: &str, options: &ArgMatches) -> Result<(&'static dyn BenchFamily, Manifest)> {
    let family = families.iter().find(|family| family.kinds().contains(&kind) || family.named_kinds().contains(&kind));
    let family = family.with_context(|| {
        let named = families.iter().flat_map(|family| family.named_kinds()).copied();
        format!("backbone {kind}: not one of {}", kinds(families).into_iter().chain(named).collect::<Vec<_>>().join(", "))
    })?;
    Ok((family, family.usual(kind, options)?))
}

/// The training of a configuration of any family.
///
/// # Errors
/// If the family is not registered or does not train.
pub fn trainee(families: &Families, manifest: &Manifest) -> Result<Arc<dyn Trainee>> {
    let family = named(families, &manifest.family)?;
    family.trainee(manifest)?.with_context(|| format!("a {} is not trained", family.name()))
}

/// The training of the usual network of a kind.
///
/// # Errors
/// As [`usual`] and [`trainee`].
pub fn usual_trainee(families: &Families, kind: &str, options: &ArgMatches) -> Result<Arc<dyn Trainee>> {
    trainee(families, &usual(families, kind, options)?.1)
}

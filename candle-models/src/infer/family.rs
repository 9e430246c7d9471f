//! What the command wants to know of a family beside its networks. Everything has a default: a family without a method here is run on
//! tensors of its signature, inspected, exported and looked at by the doctor.

use super::compare::{Comparison, OnRandom, Rehearsal};
use super::demo::Demo;
use super::output::Output;
use super::tensors::Finish;
use crate::bundle::{Bundle, ParameterSpec, Role};
use crate::cli;
use crate::engine::{Model, Placement};
use crate::registry::{Family, Networks, Registry};
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use anyhow::{Context, Result, bail};
use clap::{ArgMatches, Command};
use serde_json::{Map, Value};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A family as the command knows it.
pub trait InferFamily: Family {
    /// What the help of `run` says of it.
    fn help(&self) -> Help {
        Help::default()
    }

    /// Adds its own options to `run` and `demo`, best those of a struct with `#[derive(clap::Args)]`: `Own::augment_args(command)`.
    /// An option that another family has too stands once, with both helps, and must have the same type.
    fn options(&self, command: Command) -> Command {
        command
    }

    /// Refuses options that contradict each other, or that many inputs.
    ///
    /// # Errors
    /// A [`cli::Usage`] that names the option.
    fn check_options(&self, _options: &ArgMatches, _inputs: usize) -> Result<()> {
        Ok(())
    }

    /// The files of its own kind that a path stands for, a folder for those in it; `None` if it reads nothing but tensors.
    ///
    /// # Errors
    /// If there are none.
    fn collect(&self, _path: &Path) -> Result<Option<Vec<PathBuf>>> {
        Ok(None)
    }

    /// Whether its own reader takes a file of tensors. Otherwise the network reads it by its signature.
    fn reads(&self, _tensors: &NamedTensors, _signature: &Signature) -> bool {
        false
    }

    /// Whether it draws inputs of its own where none is named.
    fn draws(&self) -> bool {
        false
    }

    /// A reader for what [`collect`](Self::collect), [`reads`](Self::reads) and [`draws`](Self::draws) claim.
    ///
    /// # Errors
    /// If the bundle or the options do not allow it.
    fn reader(&self, call: &Call) -> Result<Box<dyn Reader>> {
        bail!("{}: a {} reads named tensors only", call.opened.bundle.dir().display(), self.name())
    }

    /// Adds its own options to `encode`.
    fn encode_options(&self, command: Command) -> Command {
        command
    }

    /// The inputs `[sequences, frames, ...]` that a file of its own kind holds for a bundle.
    ///
    /// # Errors
    /// If it reads none, or this one is damaged.
    fn encode(&self, _bundle: &Bundle, path: &Path, _options: &ArgMatches) -> Result<NamedTensors> {
        bail!("{}: a {} reads named tensors only, there is nothing to encode", path.display(), self.name())
    }

    /// Adds its own options to `play`.
    fn play_options(&self, command: Command) -> Command {
        command
    }

    /// Decides live, until what it plays is over.
    ///
    /// # Errors
    /// If the bundle or the options do not allow it, or what it plays is lost.
    fn play(&self, call: &Call) -> Result<()> {
        bail!("{}: a {} does not play", call.opened.bundle.dir().display(), self.name())
    }

    /// Adds its own options to `playback`.
    fn playback_options(&self, command: Command) -> Command {
        command
    }

    /// Plays recordings, those that [`collect`](Self::collect) claims, back for [`play`](Self::play).
    ///
    /// # Errors
    /// If one is damaged.
    fn playback(&self, _recordings: &[PathBuf], _options: &ArgMatches) -> Result<()> {
        bail!("recordings of a {} are not played back", self.name())
    }

    /// A command of the family's name beside those that every family has: `command` with what it takes.
    fn tools(&self, _command: Command) -> Option<Command> {
        None
    }

    /// Does what that command was asked for.
    ///
    /// # Errors
    /// If it cannot be done.
    fn use_tool(&self, _options: &ArgMatches) -> Result<()> {
        bail!("a {} has no tools", self.name())
    }

    /// What the columns of its networks' inputs and outputs hold, where that has names.
    fn columns(&self) -> Vec<Columns> {
        Vec::new()
    }

    /// What is made of the outputs of a pass over tensors before they are written: nothing.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    fn finish(&self, _bundle: &Bundle) -> Result<Finish> {
        Ok(Box::new(|_, _| {}))
    }

    /// What is shipped of it and shown where no bundle is named.
    fn demo(&self) -> Option<Demo> {
        None
    }

    /// What a pass costs, for `inspect`: every matrix in every frame.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    fn work(&self, bundle: &Bundle) -> crate::Result<Work> {
        Ok(Work::each_frame(Work::products(&self.parameters(bundle)?, |_| true)))
    }

    /// Adds its own options to `export`, as [`options`](Self::options) does to `run`.
    fn export_options(&self, command: Command) -> Command {
        command
    }

    /// How an export is compared with the original: on random sequences.
    ///
    /// # Errors
    /// If what the options name cannot be compared on.
    fn comparison(&self, original: &Opened, _options: &ArgMatches) -> Result<Box<dyn Comparison>> {
        Ok(Box::new(OnRandom::new(&original.networks)?))
    }

    /// What its networks as ONNX are held against the engine on: random sequences.
    ///
    /// # Errors
    /// If a network does not run.
    fn rehearsal(&self, original: &Opened) -> crate::Result<Rehearsal> {
        Rehearsal::random(&original.networks)
    }

    /// Makes of an empty command that of `generate NAME`, if inputs can be drawn for it.
    fn generator(&self, _command: Command) -> Option<Command> {
        None
    }

    /// Runs that command.
    ///
    /// # Errors
    /// If nothing can be drawn or written.
    fn generate(&self, _options: &ArgMatches) -> Result<()> {
        bail!("inputs of a {} are not drawn", self.name())
    }
}

/// What the help of `run` says of a family.
#[derive(Debug, Clone, Copy, Default)]
pub struct Help {
    /// What it is run on, as it goes on behind "on named tensors (.safetensors), frame by frame; ".
    pub run: &'static str,
    /// A paragraph about its inputs.
    pub inputs: &'static str,
}

/// Some columns of an input or output that hold one thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Columns {
    /// The tensor.
    pub tensor: &'static str,
    /// Which of its columns.
    pub columns: Range<usize>,
    /// What they hold.
    pub name: String,
    /// How, in words; may be empty.
    pub meaning: String,
}

/// A bundle with its family and networks.
pub struct Opened {
    /// The bundle.
    pub bundle: Bundle,
    /// Its family.
    pub family: &'static dyn InferFamily,
    /// Its networks on the CPU, by name.
    pub networks: Networks,
}

impl Opened {
    /// Opens a bundle of a registered family.
    ///
    /// # Errors
    /// As [`Bundle::open`] and [`Registry::networks`].
    pub fn new(registry: &Registry<dyn InferFamily>, dir: &Path) -> Result<Self> {
        Self::load(registry, Bundle::open(dir)?).with_context(|| dir.display().to_string())
    }

    pub(super) fn load(registry: &Registry<dyn InferFamily>, bundle: Bundle) -> crate::Result<Self> {
        let family = registry.family(&bundle)?;
        let networks = family.load(&bundle, &candle_core::Device::Cpu)?;
        if networks.is_empty() {
            return Err(crate::Error::file(bundle.dir(), "the bundle holds no network"));
        }
        Ok(Self { bundle, family, networks })
    }

    /// The family and what tells the bundle's architecture from others.
    ///
    /// # Errors
    /// If the configuration cannot be read.
    pub fn describe(&self) -> crate::Result<String> {
        Ok(format!("{} {}", self.family.name(), self.family.describe(&self.bundle)?))
    }

    /// The network that is stepped frame by frame.
    pub fn model(&self) -> &Arc<dyn Model> {
        let (_, model) = &self.networks[0];
        model
    }

    /// Operations of that network that have no kernel on the CPU.
    ///
    /// # Errors
    /// If the network cannot be recorded.
    pub(super) fn on_tensors(&self) -> crate::Result<Vec<&'static str>> {
        Ok(crate::engine::Runner::new(self.model().clone(), 1, 1)?.on_tensors().to_vec())
    }
}

/// What a reader is opened for.
pub struct Call<'a> {
    /// The bundle.
    pub opened: &'a Opened,
    /// The options of `run`, the family's own among them.
    pub options: &'a ArgMatches,
    /// Where and in what to compute.
    pub place: &'a Placement,
    /// Print every so many frames, if any.
    pub every: Option<usize>,
}

/// An input of a family's own kind.
pub enum Source<'a> {
    /// What the family draws itself.
    Drawn,
    /// A file that the family collected.
    File(&'a Path),
    /// Tensors that the family takes, and the file that they were read from.
    Tensors(&'a Path, &'a NamedTensors),
}

/// Runs a bundle on inputs of its family's own kind, one after the other.
pub trait Reader {
    /// Runs on one input to its end.
    ///
    /// # Errors
    /// If the input is damaged or does not fit the model; a [`Failed`](super::Failed) if results cannot be written.
    fn run(&mut self, source: &Source, output: &mut Output) -> Result<()>;

    /// Prints lines about everything that was run. `model` is the bundle's name, `place` where it was computed.
    ///
    /// # Errors
    /// If they cannot be written.
    fn summary(&self, model: &str, place: &str) -> Result<()>;

    /// Frames of all inputs.
    fn frames(&self) -> u64;
}

/// Multiply-adds of one row: inputs times outputs of every linear layer. Lookups, norms, convolutions, the scan and attention over the
/// window are left out.
pub struct Work {
    /// In every frame.
    pub frame: usize,
    /// In words, with what is computed less often.
    pub text: String,
    /// Further keys of the JSON report.
    pub json: Map<String, Value>,
}

impl Work {
    /// Of a model that computes the same in every frame.
    pub fn each_frame(frame: usize) -> Self {
        Self { frame, text: format!("{} multiply-adds per row and frame", cli::count(frame as u64)), json: Map::new() }
    }

    /// Of the linear layers whose weights have such names.
    pub fn products(parameters: &[ParameterSpec], of: impl Fn(&str) -> bool) -> usize {
        let matrices = parameters.iter().filter(|spec| spec.role == Role::Matrix && of(&spec.name));
        matrices.map(|spec| spec.shape.iter().product::<usize>()).sum()
    }
}

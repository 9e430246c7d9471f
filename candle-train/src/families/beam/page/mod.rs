//! What beam controllers reach, beside baselines on the same channels, as a page of tables and figures.
//!
//! Means are those of the gains in dB unless a table says otherwise. The page is the same for any number of threads.

mod command;
mod figures;
mod measure;
mod text;

use crate::host::Host;
use crate::report::sections::{self, Section};
use candle_core::Device;
use candle_models::beam::{Beam, ChannelConfig, FAMILY, Scheme};
use candle_models::bundle::Bundle;
use candle_models::{Error, Result};
pub(super) use command::{PageArguments, write};
use measure::Bench;
use std::fs;
use std::path::{Path, PathBuf};

/// The seed of the page's channels, which no evaluation of a run has.
pub const SEED: u64 = 2024;
/// The signal-to-noise ratio of the tables in dB.
pub const SNR_DB: f32 = 10.0;
/// The signal-to-noise ratios of the curves in dB.
pub const SNRS_DB: [f32; 9] = [-15.0, -10.0, -5.0, 0.0, 5.0, 10.0, 15.0, 20.0, 25.0];
/// The numbers of measurements that episodes are ended behind, as far as a model makes so many; all of its own come to them.
pub const MEASUREMENTS: [usize; 8] = [1, 3, 5, 7, 8, 9, 15, 16];
/// The signal-to-noise ratio of those episodes in dB.
pub const MEASUREMENTS_SNR_DB: f32 = 5.0;
/// The standard error in dB from which on a point of a curve, and a slow search, needs no more channels.
pub const PRECISION_DB: f64 = 0.03;
/// The same for ablations, whose effect is hundreds of times that.
pub const ABLATION_PRECISION_DB: f64 = 0.1;

/// The most channels for the estimator, which takes ten milliseconds for one; it is given one of four.
pub const ESTIMATED: usize = 5000;

/// What names of bundles begin with.
const PREFIX: &str = "beam-";
/// Most channels: a billion would take days.
const MAX_CHANNELS: usize = 1 << 24;

/// A controller to measure.
pub struct Model {
    /// The name of its bundle.
    pub name: String,
    /// The controller.
    pub beam: Beam,
}

/// The bundles of a directory.
pub struct Models {
    /// The controllers, by name.
    pub found: Vec<Model>,
    /// What was left out, and why.
    pub warnings: Vec<String>,
}

/// Loads every bundle `beam-*` of a directory.
///
/// # Errors
/// If there is no controller among them, or one cannot be read.
pub fn load(weights: &Path) -> Result<Models> {
    let entries = fs::read_dir(weights).map_err(Error::io(weights))?.collect::<Result<Vec<_>, _>>().map_err(Error::io(weights))?;
    let mut names: Vec<String> = entries.iter().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| name.starts_with(PREFIX) && weights.join(name).is_dir());
    names.sort();
    let mut models = Models { found: Vec::new(), warnings: Vec::new() };
    for name in names {
        let bundle = Bundle::open(weights.join(&name))?;
        match bundle.require_family(&[FAMILY]) {
            Ok(()) => models.found.push(Model { beam: Beam::load(&bundle, &Device::Cpu)?, name }),
            Err(error) => models.warnings.push(format!("left out: {error}")),
        }
    }
    if models.found.is_empty() {
        return Err(Error::file(weights, format!("expected bundles of beam controllers, {PREFIX}*, found none")));
    }
    Ok(models)
}

/// A page to be made.
pub struct Page {
    /// The controllers.
    pub models: Vec<Model>,
    /// Channels of the tables, and the most of a point of a curve.
    pub channels: usize,
    /// The command that makes the page.
    pub command: String,
}

impl Page {
    /// Measures everything, says meanwhile at what it is, and writes the page to a directory. Gives the files: `README.md` and, where a
    /// model's setup is the specification's (32 x 16 antennas, three paths), `gain.svg`, `satisfaction.svg` and `steps.svg`; where a
    /// codebook was learned, `codebook.svg`.
    ///
    /// # Errors
    /// No channels, or too many of them; a directory that cannot be written, which is found before anything is measured.
    pub fn write(&self, out: &Path, progress: &dyn Fn(&str)) -> Result<Vec<PathBuf>> {
        if !(1..=MAX_CHANNELS).contains(&self.channels) {
            return Err(Error::config("channels", format!("expected 1 to {MAX_CHANNELS}, found {}", self.channels)));
        }
        sections::reserve(out)?;

        let bench = Bench::new(self.channels, progress);
        let usual = ChannelConfig::default();
        let (usual_models, others): (Vec<&Model>, Vec<&Model>) = self.models.iter().partition(|model| model.beam.config.channel == usual);
        let (mut text, mut figures) = (String::new(), Vec::new());
        if !usual_models.is_empty() {
            let measured = bench.setup(&usual, &usual_models)?;
            text += &text::body(&measured);
            figures.push(("gain.svg".to_owned(), figures::gain(&measured)?));
            figures.push(("satisfaction.svg".to_owned(), figures::satisfaction(&measured)?));
            figures.push(("steps.svg".to_owned(), figures::measurements(&measured)?));
        }
        text += &text::others(&bench.others(&others, &usual_models)?);
        text += &text::carried(&bench.carried(&self.models)?);
        let learned: Vec<&Model> = self.models.iter().filter(|model| model.beam.config.scheme == Scheme::C3).collect();
        if !learned.is_empty() {
            text += text::PATTERNS;
            figures.push(("codebook.svg".to_owned(), figures::patterns(&learned)?));
        }
        sections::write(out, text::head(self, &Host::detect()), vec![Section { text, figures }])
    }
}

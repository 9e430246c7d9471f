//! What radio networks reach, beside bounds and baselines on the same examples, as a page of tables and figures.
//!
//! The page is the same for any number of threads.

mod arrival;
mod classification;
mod frequency;
mod localisation;

use super::config::{CLASSIFIERS, RunConfig, TaskConfig};
use super::signals::Signals;
use crate::command::command_line;
use crate::report::sections;
use anyhow::Result;
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::Family;
use candle_models::rf::{Classifier, ClassifierConfig, FAMILY, Localiser, LocaliserConfig, RfConfig, RfFamily};
use candle_models::{Error, cli};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The seed of the page's examples: those of runs have the run's.
const SEED: u64 = 2026;

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Directories of the models: every bundle of a radio network in them. Those of one description are seeds of one model.
    #[arg(long, value_name = "DIR", default_values = ["weights", "weights/rf/seeds"])]
    weights: Vec<PathBuf>,
    /// Directory of the page: README.md and its figures.
    #[arg(long, value_name = "DIR", default_value = "weights/rf")]
    out: PathBuf,
    /// Events of a localiser's table.
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    events: u32,
    /// Signals of a classifier at each signal-to-noise ratio.
    #[arg(long, value_name = "N", default_value_t = 2000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    signals: u32,
    /// Carriers whose frequency is measured at each signal-to-noise ratio.
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    tones: u32,
    /// Emitters that are located by arrival at each signal-to-noise ratio.
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=100_000))]
    emitters: u32,
    /// How long they send, s.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    seconds: f64,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    #[allow(dead_code)] // Read by the command itself, before there are other threads.
    threads: Option<usize>,
}

/// Twice the longest delay must fit four times.
fn seconds(text: &str) -> std::result::Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds| (0.01..=10.0).contains(seconds))
        .ok_or_else(|| format!("expected from 0.01 to 10 seconds, found {text}"))
}

/// A model, once for every seed it was trained with.
pub(super) struct Seeds<C, N> {
    pub config: C,
    pub networks: Vec<N>,
}

impl PageArguments {
    /// Measures everything and writes the page.
    ///
    /// # Errors
    /// If there are no models, or one cannot be read; if the directory cannot be written, which is found before anything is measured.
    pub fn write(&self) -> Result<()> {
        let begun = Instant::now();
        let say = |what: &str| eprintln!("{:5.1} s: {what}", begun.elapsed().as_secs_f64());
        let (localisers, classifiers) = self.load()?;
        sections::reserve(&self.out)?;
        let random = Random::new(SEED).stream("page");
        let mut parts = Vec::new();
        if !localisers.is_empty() {
            parts.push(localisation::section(&localisers, random.stream("events"), self.events as usize, &say)?);
        }
        say("frequencies");
        parts.push(frequency::section(random.stream("tones"), self.tones as usize)?);
        say("arrival");
        parts.push(arrival::section(random.stream("arrival"), self.emitters as usize, self.seconds)?);
        for (seeds, signals, preset) in &classifiers {
            say(&format!("classifiers, {preset}"));
            parts.push(classification::section(seeds, (signals, preset), random.stream("signals"), self.signals as usize)?);
        }
        let head = format!(
            "{} What is drawn here (seed {SEED}) no training has seen. A range is that of the seeds of a model.\n",
            sections::head("Radio networks", &command_line())
        );
        sections::write(&self.out, head, parts)?.iter().for_each(|file| println!("{}", file.display()));
        Ok(())
    }

    /// The bundles of radio networks by description; classifiers with the signals of the preset that has their classes, and its name.
    #[allow(clippy::type_complexity)]
    fn load(&self) -> Result<(Vec<Seeds<LocaliserConfig, Localiser>>, Vec<(Seeds<ClassifierConfig, Classifier>, Signals, &'static str)>)> {
        let (mut localisers, mut classifiers) = (Vec::new(), Vec::new());
        for path in self.weights.iter().map(|folder| bundles(folder)).collect::<Result<Vec<_>>>()?.concat() {
            let bundle = Bundle::open(&path)?;
            if bundle.require_family(&[FAMILY]).is_err() {
                continue;
            }
            let params = Params::stored(bundle.read_parameters(&RfFamily.parameters(&bundle)?)?, &Device::Cpu);
            match bundle.config()? {
                RfConfig::Localiser(config) => add(&mut localisers, config.clone(), Localiser::new(&config, &params)?),
                RfConfig::Classifier(config) => add(&mut classifiers, config.clone(), Classifier::new(&config, &params)?),
            }
        }
        if localisers.is_empty() && classifiers.is_empty() {
            let folders: Vec<String> = self.weights.iter().map(|folder| folder.display().to_string()).collect();
            anyhow::bail!("{}: expected bundles of radio networks, found none", folders.join(", "));
        }
        let mut known = Vec::new();
        for seeds in classifiers {
            match of_preset(&seeds.config)? {
                Some((signals, preset)) => known.push((seeds, signals, preset)),
                None => cli::warn(format!("left out: {}: no preset has its classes", seeds.config.name())),
            }
        }
        Ok((localisers, known))
    }
}

/// The folders that hold a bundle, by name; none where the folder is missing.
fn bundles(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries.collect::<Result<Vec<_>, _>>().map_err(Error::io(folder))?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(Error::io(folder)(error).into()),
    };
    let mut paths: Vec<PathBuf> = entries.into_iter().map(|entry| entry.path()).filter(|path| path.join("config.json").is_file()).collect();
    paths.sort();
    Ok(paths)
}

fn add<C: PartialEq, N>(all: &mut Vec<Seeds<C, N>>, config: C, network: N) {
    match all.iter_mut().find(|seeds| seeds.config == config) {
        Some(seeds) => seeds.networks.push(network),
        None => all.push(Seeds { config, networks: vec![network] }),
    }
}

/// The signals that a classifier was made for, by its classes and how it reads them.
fn of_preset(config: &ClassifierConfig) -> Result<Option<(Signals, &'static str)>> {
    for preset in CLASSIFIERS {
        let TaskConfig::Classification { model, signals } = RunConfig::classifier(preset)?.task else { continue };
        if signals.names() == config.classes && (model.samples, model.scale) == (config.samples, config.scale) {
            return Ok(Some((*signals, preset)));
        }
    }
    Ok(None)
}

//! What neural operators reach beside baselines on the same fields, what the equations say of their answers, and pictures of both, as a page of tables and figures.
//!
//! The page is the same for any number of threads.

mod burgers;
mod darcy;
mod heat;
mod measure;
#[cfg(test)]
mod tests;

use super::fields::Fields;
use crate::command::command_line;
use crate::host::Host;
use anyhow::Result;
use candle_core::Device;
use candle_models::Error;
use candle_models::bundle::Bundle;
use candle_models::files::{AtomicFile, write_atomic};
use candle_models::fno::{FAMILY, Fno, FnoConfig, FnoFamily};
use candle_models::nn::Params;
use candle_models::registry::Family;
use clap::Args;
use measure::{Model, Test};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The seed of the page's fields: those of runs have the run's.
const SEED: u64 = 2026;

/// The page's text.
const README: &str = "README.md";

/// Where shipped operators lie, each with its seeds.
const DARCY: [&str; 3] = ["weights/fno-darcy", "weights/fno/seeds/darcy-2", "weights/fno/seeds/darcy-3"];
const BURGERS: [&str; 3] = ["weights/fno-burgers", "weights/fno/seeds/burgers-2", "weights/fno/seeds/burgers-3"];

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Bundles of operators for Darcy flow; those of one description are seeds of one model. Default: those of weights/fno-darcy, weights/fno/seeds/darcy-2 and darcy-3 that are there.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    darcy: Vec<PathBuf>,
    /// Bundles of operators for Burgers' equation. Default: those of weights/fno-burgers, weights/fno/seeds/burgers-2 and burgers-3 that are there.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    burgers: Vec<PathBuf>,
    /// Directory of the files of pairs. Default: pde in the directory that CANDLE_DATA names.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Pairs of Darcy flow that no training has seen, each file on a grid of its own.
    #[arg(long, value_name = "FILE", num_args = 1.., default_values = ["darcy_test_16.safetensors", "darcy_test_32.safetensors"])]
    darcy_tests: Vec<PathBuf>,
    /// Pairs of Darcy flow that were learnt from: their mean is a baseline.
    #[arg(long, value_name = "FILE", default_value = "darcy_train_16.safetensors")]
    darcy_train: PathBuf,
    /// Pairs of Burgers' equation that no training has seen.
    #[arg(long, value_name = "FILE", num_args = 1.., default_values = ["burgers_test_16.safetensors"])]
    burgers_tests: Vec<PathBuf>,
    /// Pairs of each equation that are made for the page.
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    made: u32,
    /// Places a side of the pairs that are made; they are read at every fourth, at every second and at all of these.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = places)]
    places: usize,
    /// Directory of the page: README.md and its figures.
    #[arg(long, value_name = "DIR", default_value = "weights/fno")]
    out: PathBuf,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    #[allow(dead_code)] // Read by the command itself, before there are other threads.
    threads: Option<usize>,
}

/// A grid that is read at every fourth place.
fn places(text: &str) -> std::result::Result<usize, String> {
    let read = text.parse().ok().filter(|places: &usize| (16..=256).contains(places) && places.is_multiple_of(4));
    read.ok_or_else(|| format!("expected a multiple of 4 from 16 to 256, found {text}"))
}

/// A part of the page: its text, and its figures by name.
#[derive(Default)]
pub(super) struct Section {
    pub text: String,
    pub figures: Vec<(String, String)>,
}

impl Section {
    /// Shows a figure, with what it is.
    pub fn show(&mut self, name: String, says: &str, svg: String) {
        self.text += &format!("\n![{says}]({name})\n\n*{says}* {PRINTED}\n");
        self.figures.push((name, svg));
    }
}

/// Where a table or a figure comes from; the whole command stands above all of them.
const PRINTED: &str = "Printed by `candle-train fno-page`.";

impl PageArguments {
    /// Measures everything and writes the page.
    ///
    /// # Errors
    /// If there are no operators, one cannot be read or is of another equation; if a file of pairs cannot be read; if the directory cannot be written, which is
    /// found before anything is measured.
    pub fn write(&self) -> Result<()> {
        let begun = Instant::now();
        let say = |what: &str| eprintln!("{:5.1} s: {what}", begun.elapsed().as_secs_f64());
        let (darcy, burgers) = (load(&self.darcy, DARCY)?, load(&self.burgers, BURGERS)?);
        if darcy.is_empty() && burgers.is_empty() {
            anyhow::bail!("{}, {}: expected bundles of neural operators, found none", DARCY.join(", "), BURGERS.join(", "));
        }
        let tests = |files: &[PathBuf]| files.iter().map(|file| self.test(file)).collect::<Result<Vec<Test>>>();
        // All that is read, before anything is measured.
        let darcy = (!darcy.is_empty())
            .then(|| {
                Ok::<_, anyhow::Error>(
                    (darcy::Darcy { models: darcy, tests: tests(&self.darcy_tests)?, train: self.test(&self.darcy_train)? }).check()?,
                )
            })
            .transpose()?;
        let burgers = (!burgers.is_empty())
            .then(|| Ok::<_, anyhow::Error>((burgers::Burgers { models: burgers, tests: tests(&self.burgers_tests)? }).check()?))
            .transpose()?;
        std::fs::create_dir_all(&self.out).map_err(Error::io(&self.out))?;
        drop(AtomicFile::create(self.out.join(README))?);
        let made = (u64::from(self.made), self.places);
        let mut sections = Vec::new();
        if let Some(darcy) = darcy {
            sections.push(darcy.section(made, &say)?);
        }
        if let Some(burgers) = burgers {
            sections.push(burgers.section(made, &say)?);
        }
        let mut text = format!(
            "# Neural operators\n\nWritten by\n\n```sh\n{}\n```\n\non {}. What is made here (seed {SEED}) no training has seen. A figure of several seeds is their mean and, in brackets, \
             their range; the card of a bundle says how it was trained. Errors are relative to the truth, a mean over pairs: of values (L2), and of values and slopes (H1, \
             one-sided at the edges).\n",
            command_line(),
            Host::detect()
        );
        for Section { text: part, figures } in sections {
            text += &part;
            for (name, svg) in figures {
                write_atomic(self.out.join(&name), svg.as_bytes())?;
                println!("{}", self.out.join(name).display());
            }
        }
        // The text last: it shows the figures.
        write_atomic(self.out.join(README), text.as_bytes())?;
        println!("{}", self.out.join(README).display());
        Ok(())
    }

    /// The pairs of a file.
    fn test(&self, file: &Path) -> Result<Test> {
        let path = match (&self.data, std::env::var_os("CANDLE_DATA")) {
            _ if file.is_absolute() => file.to_owned(),
            (Some(folder), _) => folder.join(file),
            (None, Some(root)) => Path::new(&root).join("pde").join(file),
            (None, None) => return Err(Error::config("--data", "expected the directory of the files of pairs, or CANDLE_DATA").into()),
        };
        let pairs = Fields::read(&path)?;
        if pairs.channels != [1, 1] {
            return Err(Error::file(&path, format!("expected one channel of each field, found {:?}", pairs.channels)).into());
        }
        let name = path.file_stem().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Test { name, pairs })
    }
}

/// The operators of these bundles by description; where none are given, of the shipped ones that are there.
fn load(given: &[PathBuf], shipped: [&str; 3]) -> Result<Vec<Model>> {
    let there = || shipped.iter().map(PathBuf::from).filter(|path| path.join("config.json").is_file()).collect();
    let paths: Vec<PathBuf> = if given.is_empty() { there() } else { given.to_owned() };
    let mut models: Vec<Model> = Vec::new();
    for path in paths {
        let bundle = Bundle::open(&path)?;
        bundle.require_family(&[FAMILY])?;
        let (config, parameters) =
            (bundle.config::<FnoConfig>()?, Params::stored(bundle.read_parameters(&FnoFamily.parameters(&bundle)?)?, &Device::Cpu));
        if config.channels != [1, 1] {
            return Err(Error::file(
                &path,
                format!("expected an operator of one field to one field, found {:?} channels", config.channels),
            )
            .into());
        }
        Fno::new(&config, &parameters)?;
        // What was learnt from made pairs, anew for every seed, has another mean each.
        let alike = |model: &&mut Model| FnoConfig { output: config.output, ..model.config().clone() } == config;
        match models.iter_mut().find(alike) {
            Some(model) => model.seeds.push((config, parameters)),
            None => models.push(Model { seeds: vec![(config, parameters)] }),
        }
    }
    Ok(models)
}

/// A figure of several seeds: the mean, and from the least to the greatest where there are several.
fn of_seeds(values: &[f64], digits: usize) -> String {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (least, most) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(*x), most.max(*x)));
    if values.len() < 2 { format!("{mean:.digits$}") } else { format!("{mean:.digits$} ({least:.digits$} to {most:.digits$})") }
}

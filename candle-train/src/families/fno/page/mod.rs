//! What neural operators reach beside baselines on the same fields, what the equations say of their answers, and pictures of both, as a page of tables and figures.
//!
//! The page is the same for any number of threads.

mod burgers;
mod darcy;
mod flows;
mod heat;
mod measure;
#[cfg(test)]
mod tests;

use super::fields::{self, Fields};
use super::source::Equation;
use super::stored::Stored;
use crate::command::command_line;
use crate::report::sections;
use anyhow::Result;
use candle_models::Error;
use candle_models::fno::FnoConfig;
use clap::Args;
use measure::{Model, Test};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The seed of the page's fields: those of runs have the run's.
const SEED: u64 = 2026;

/// The most runs of flows that are made: they have many states.
const FLOWS_MADE: u64 = 20;

/// Where shipped operators lie, each with its seeds.
const DARCY: &[&str] = &[
    "weights/fno-darcy",
    "weights/fno/seeds/darcy-2",
    "weights/fno/seeds/darcy-3",
    "weights/fno-darcy-ensemble",
    "weights/fno-darcy-fine",
    "weights/fno/seeds/darcy-fine-2",
    "weights/fno/seeds/darcy-fine-3",
];
const BURGERS: &[&str] = &["weights/fno-burgers", "weights/fno/seeds/burgers-2", "weights/fno/seeds/burgers-3"];
const FLOWS: &[&str] = &["weights/fno-ns", "weights/fno/seeds/ns-2", "weights/fno/seeds/ns-3"];

#[derive(Debug, Args)]
pub struct PageArguments {
    /// Bundles of operators for Darcy flow; those of one description that learnt from as many pairs are seeds of one model. Default: the shipped ones, weights/fno-darcy and others, that are there.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    darcy: Vec<PathBuf>,
    /// Bundles of operators for Burgers' equation. Default: the shipped ones that are there.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    burgers: Vec<PathBuf>,
    /// Bundles of operators for flows of the equations of Navier and Stokes, trained as the preset ns is. Default: the shipped ones that are there.
    #[arg(long, value_name = "DIR", num_args = 1..)]
    flows: Vec<PathBuf>,
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
        let (darcy, burgers, flows) = (load(&self.darcy, DARCY)?, load(&self.burgers, BURGERS)?, load(&self.flows, FLOWS)?);
        if darcy.is_empty() && burgers.is_empty() && flows.is_empty() {
            anyhow::bail!("{}: expected bundles of neural operators, found none", [DARCY, BURGERS, FLOWS].concat().join(", "));
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
        sections::reserve(&self.out)?;
        let made = (u64::from(self.made), self.places);
        let mut parts = Vec::new();
        if let Some(darcy) = darcy {
            parts.push(darcy.section(made, &say)?);
        }
        if let Some(burgers) = burgers {
            parts.push(burgers.section(made, &say)?);
        }
        if let Some(model) = flows.first() {
            let equation = Equation::flow(2 * model.config().grid[0]);
            parts.push(flows::Flows { models: flows, equation }.section(made.0.min(FLOWS_MADE), &say)?);
        }
        let head = format!(
            "{} What is made here (seed {SEED}) no training has seen. A figure of several seeds is their mean and, in brackets, their range; the card of a \
             bundle says how it was trained. Errors are relative to the truth, a mean over pairs: of values (L2), and of values and slopes (H1, one-sided at the \
             edges).\n",
            sections::head("Neural operators", &command_line())
        );
        sections::write(&self.out, head, parts)?.iter().for_each(|file| println!("{}", file.display()));
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
        Ok(Test { name: fields::name(&path), pairs: Fields::read_single(&path)? })
    }
}

/// The operators of these bundles by description; where none are given, of the shipped ones that are there.
fn load(given: &[PathBuf], shipped: &[&str]) -> Result<Vec<Model>> {
    let there = || shipped.iter().map(PathBuf::from).filter(|path| path.join("config.json").is_file()).collect();
    let paths: Vec<PathBuf> = if given.is_empty() { there() } else { given.to_owned() };
    let mut models: Vec<Model> = Vec::new();
    for path in paths {
        let stored = Stored::read(&path)?;
        // What was learnt from made pairs, anew for every seed, has another mean each.
        let alike = |model: &&mut Model| {
            let config = FnoConfig { output: stored.config.output, ..model.config().clone() };
            (config, model.seeds[0].pairs) == (stored.config.clone(), stored.pairs)
        };
        match models.iter_mut().find(alike) {
            Some(model) => model.seeds.push(stored),
            None => models.push(Model { seeds: vec![stored] }),
        }
    }
    Ok(models)
}

//! What every run is asked, and the run itself.

use super::resume;
use crate::parallel::connect::{connect, gpus, local_device};
use crate::parallel::environment::from_environment;
use crate::plan::{TrainingPlan, TrainingResult};
use crate::run::{Ended, Place};
use crate::stop::{Reason, Stop};
use crate::trainer::{Outcome, Resources};
use anyhow::{Context, Result};
use candle_models::cli::Computing;
use candle_models::device::Purpose;
use candle_models::ops::Products;
use clap::Args;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a run is asked whatever it trains.
#[derive(Debug, Args)]
pub struct RunArguments {
    // The family says which there are.
    /// The configuration by name.
    #[arg(long)]
    pub preset: String,
    /// Directory of the run: config.toml, metrics.jsonl, report.html, checkpoints/, and at the end the model in bundle/.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// TOML file whose keys replace those of the preset.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// A key of the configuration, as in `--set trainer.schedule.peak=5e-4`; comes over --config. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub sets: Vec<String>,
    /// Continues the run in --out, if there is one.
    #[arg(long)]
    resume: bool,
    /// Stops after this time with a checkpoint, as in 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    max_time: Option<Duration>,
    /// Checks and prints everything, trains nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    computing: Computing,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    #[allow(dead_code)] // Read by the command itself, before there are other threads.
    threads: Option<usize>,
    /// All that was typed behind the program's name.
    #[arg(skip)]
    pub(super) typed: Vec<OsString>,
}

impl RunArguments {
    /// The text of --config, which [`overlay::resolve`](crate::overlay::resolve) lays over the preset, and `sets` over both.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn file(&self) -> Result<Option<String>> {
        let Some(path) = &self.config else { return Ok(None) };
        Ok(Some(std::fs::read_to_string(path).with_context(|| path.display().to_string())?))
    }

    /// What this process computes with, and the ranks that it computes with to train `what`, the family's name.
    ///
    /// # Errors
    /// If the device cannot be opened or does not compute in that dtype; if the other ranks cannot be reached, or train something else.
    pub fn resources(&self, what: &str, purpose: Purpose) -> Result<Resources> {
        let launched = from_environment()?;
        let computing = self.computing.clone().on(|choice| local_device(choice, launched.as_ref(), gpus()))?;
        let (device, dtype) = computing.open(purpose)?;
        // That configurations are the same is checked, key by key, when the run begins.
        let ranks = connect(launched.as_ref(), &device, what)?;
        Ok(Resources::new(device, dtype, ranks))
    }

    /// Prints what a plan is. If that is not all that was asked for, trains it, says how the run ended and writes the model, of a run that
    /// was stopped as it is, to the directory `bundle` below --out.
    ///
    /// # Errors
    /// If --out is missing or cannot be made; if training or writing fails.
    pub fn train<P: TrainingPlan>(&self, plan: P) -> Result<()> {
        let leads = plan.resources().ranks.rank() == 0;
        if leads {
            let about = plan.about()?;
            println!("{}\n{}\n{}; {}", about.configuration, about.model, plan.describe(), place_of(plan.resources()));
        }
        let Some(out) = self.directory()? else { return Ok(()) };
        let trained = plan.train(&self.place(out), &Stop::after(self.max_time).on_signals()?)?;
        if leads { conclude(&trained, out) } else { Ok(()) }
    }

    /// Whether nothing is to be trained or left behind.
    pub fn is_dry(&self) -> bool {
        self.dry_run
    }

    /// Makes the directory of the run; none for a dry one.
    pub(crate) fn directory(&self) -> Result<Option<&Path>> {
        let out = match &self.out {
            _ if self.dry_run => return Ok(None),
            Some(out) => out,
            None => return Err(candle_models::Error::config("--out", "expected the directory of the run, or --dry-run").into()),
        };
        std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
        Ok(Some(out))
    }

    /// Where the run starts.
    fn place(&self, out: &Path) -> Place {
        let place = if self.resume { Place::resume(out) } else { Place::create(out) };
        match resume::note(&self.typed) {
            Some(note) => place.noting(resume::FILE, note),
            None => place,
        }
    }
}

/// Says how a run ended and saves its model, as it is where the run was stopped.
fn conclude(trained: &impl TrainingResult, out: &Path) -> Result<()> {
    let Ended { outcome, step, shipped, time, .. } = trained.ended();
    if let Outcome::Stopped(reason) = outcome {
        let why = match reason {
            Reason::Signal => "by a signal",
            Reason::Time => "by the time limit",
            Reason::Callback => "by a callback",
            Reason::NoImprovement => "because held-out scores no longer improve",
        };
        let then = if outcome.done() { "" } else { "; --resume continues" };
        println!("stopped {why} at step {step}{then}");
    }
    let bundle = bundle_of(out);
    let figures = trained.save(&bundle)?;
    let best = if shipped == step { String::new() } else { format!("; the model is that of step {shipped}, the best score") };
    println!("{figures}{step} steps in {:.1} s{best}", time.as_secs_f64());
    println!("report in {}", out.join("report.html").display());
    println!("{}", model_in(&bundle));
    Ok(())
}

/// Where a run leaves its model.
pub(crate) fn bundle_of(run: &Path) -> PathBuf {
    run.join("bundle")
}

/// Where a model is, and what can be done with it.
pub(crate) fn model_in(bundle: &Path) -> String {
    let bundle = bundle.display();
    format!("model in {bundle}: candle-infer inspect {bundle} says what it takes, candle-infer run {bundle} INPUT runs it")
}

/// `on the CPU, in f32` and on how many ranks.
fn place_of(Resources { device, dtype, products, ranks }: &Resources) -> String {
    let (place, dtype) = (if device.is_cuda() { "CUDA" } else { "the CPU" }, dtype.as_str());
    let dtype = if *products == Products::Bf16 { "f32 with products in bf16" } else { dtype };
    let ranks = if ranks.size() == 1 { String::new() } else { format!(", on {} ranks", ranks.size()) };
    format!("on {place}, in {dtype}{ranks}")
}

/// This process's command as it goes into a model card, that of a resumed run as it was asked for: the program and absolute paths, which mean nothing elsewhere, by their last part.
pub fn command_line() -> String {
    let typed: Vec<OsString> = std::env::args_os().collect();
    let asked = resume::expand(typed.clone()).map_or(typed, |(asked, _)| asked);
    words(asked.into_iter().map(|argument| argument.to_string_lossy().into_owned()))
}

fn words(arguments: impl Iterator<Item = String>) -> String {
    let word = |(i, argument): (usize, String)| {
        let path = Path::new(&argument);
        let name = path.file_name().filter(|_| i == 0 || path.is_absolute()).map(|name| name.to_string_lossy().into_owned());
        let word = name.unwrap_or(argument);
        if word.contains([' ', '\'', '"', '$']) { format!("'{}'", word.replace('\'', "'\\''")) } else { word }
    };
    arguments.enumerate().map(word).collect::<Vec<_>>().join(" ")
}

/// `90s`, `30m`, `2h`, or seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((i, 's')) => (&text[..i], 1.0),
        Some((i, 'm')) => (&text[..i], 60.0),
        Some((i, 'h')) => (&text[..i], 3600.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().filter(|x| (0.0..=1e9).contains(x));
    seconds.map(|x| Duration::from_secs_f64(x * unit)).ok_or_else(|| format!("expected a time such as 90s, 30m or 2h, found '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        for (text, seconds) in [("90s", 90), ("1.5m", 90), ("2h", 7200), ("7", 7), ("0", 0)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "m", "-1s", "1e99h", "soon", "nan"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_card_shows_no_private_paths() {
        let arguments = ["target/release/candle-train", "--replays", "/games/slippi", "--set", "a.b=c d"].map(str::to_owned);
        assert_eq!(words(arguments.into_iter()), "candle-train --replays slippi --set 'a.b=c d'");
    }
}

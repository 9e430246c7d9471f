//! `candle-infer rf`: what a recording is, its spectrum to look at, its features for other programs, what kind of signal it holds.

mod classify;
mod features;
mod picture;
mod spectrum;
#[cfg(test)]
mod tests;

use super::RfFamily;
use super::sigmf::{Checked, Recording};
use crate::cli::{self, Usage, warn};
use crate::infer::InferFamily;
use anyhow::Result;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::path::{Path, PathBuf};

/// Looks at recordings of radio signals (SigMF): FILE is the metadata (.sigmf-meta), the dataset (.sigmf-data), their common name, or an archive
/// (.sigmf, of several recordings as ARCHIVE.sigmf/NAME).
#[derive(Args)]
struct Rf {
    #[command(subcommand)]
    command: Tool,
}

#[derive(Subcommand)]
enum Tool {
    /// Prints what a recording says of itself, and checks its dataset against its hash.
    Info(Info),
    /// Prints how a recording's power is spread over frequencies, and draws it: the density, and the spectrogram over time.
    Spectrum(spectrum::Arguments),
    /// Writes 18 features of every chunk of a recording, and their statistics over groups of chunks.
    Features(features::Arguments),
    /// Says which kind of signal a recording holds, by a classifier.
    Classify(classify::Arguments),
}

#[derive(Args)]
struct Info {
    /// The recording.
    #[arg(value_name = "FILE")]
    recording: PathBuf,
}

impl InferFamily for RfFamily {
    fn tools(&self, command: Command) -> Option<Command> {
        Some(Rf::augment_args(command))
    }

    fn use_tool(&self, options: &ArgMatches) -> Result<()> {
        match Rf::from_arg_matches(options)?.command {
            Tool::Info(info) => info.run(),
            Tool::Spectrum(arguments) => arguments.run(),
            Tool::Features(arguments) => arguments.run(),
            Tool::Classify(arguments) => arguments.run(),
        }
    }
}

/// Opens a recording, checks it, and says what is not as it should be.
fn open(path: &Path) -> Result<Recording> {
    let recording = Recording::open(path)?;
    recording.warnings.iter().for_each(warn);
    if recording.check()? == Checked::Truncated {
        warn("core:sha512 is that of the whole dataset: what is left of it is used");
    }
    Ok(recording)
}

/// So many samples of a recording as seconds make.
fn samples(seconds: f64, rate: f64, option: &str) -> Result<usize> {
    let samples = (seconds * rate).round();
    if (1.0..=f64::from(1 << 26)).contains(&samples) {
        return Ok(samples as usize);
    }
    Err(Usage::error(format!("{option} {seconds}: at {rate} samples a second that is {samples} samples, expected from 1 to {}", 1 << 26)))
}

impl Info {
    fn run(&self) -> Result<()> {
        let recording = Recording::open(&self.recording)?;
        recording.warnings.iter().for_each(warn);
        let global = &recording.meta.global;
        let line = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                println!("{name:<14} {value}");
            }
        };
        line("samples", Some(cli::count(recording.len())));
        line("datatype", Some(global.datatype.to_string()));
        line("sample rate", global.sample_rate.map(|rate| format!("{rate} Hz")));
        line("duration", global.sample_rate.map(|rate| format!("{:.6} s", recording.len() as f64 / rate)));
        line("channels", global.channels.map(|channels| channels.to_string()));
        for (name, text) in [
            ("description", &global.description),
            ("author", &global.author),
            ("hardware", &global.hardware),
            ("recorder", &global.recorder),
            ("licence", &global.license),
        ] {
            line(name, text.clone());
        }
        for (i, capture) in recording.meta.captures.iter().enumerate() {
            let mut says = vec![format!("from sample {}", capture.sample_start)];
            says.extend(capture.frequency.map(|frequency| format!("{frequency} Hz")));
            says.extend(capture.datetime.clone());
            let place =
                recording.meta.geolocation(capture.sample_start).map(|place| format!("at longitude and latitude {:?}", place.coordinates));
            says.extend(place);
            line(&format!("capture {i}"), Some(says.join(", ")));
        }
        line("annotations", Some(cli::count(recording.meta.annotations.len() as u64)));
        let checked = match recording.check()? {
            Checked::Same => "its SHA-512 is right",
            Checked::Unknown => "no SHA-512 is given",
            Checked::Truncated => "a part of it is missing",
        };
        line("dataset", Some(checked.to_owned()));
        Ok(())
    }
}

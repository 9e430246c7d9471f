//! Options of `run` and `demo`.

use anyhow::Result;
use candle_models::beam;
use candle_models::beam::channel::noise_deviation;
use candle_models::cli::{Computing, Usage};
use candle_models::exec::Launches;
use std::path::PathBuf;

#[derive(clap::Args, Default)]
pub struct Options {
    /// Controller port of the player to watch, 1 to 4; both players if left out.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=4))]
    pub port: Option<u8>,
    /// Write every frame to FILE.jsonl (one JSON object per line) or FILE.safetensors (one input), complete or not at all.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print every N-th frame [default: 60 for a single input, none for several].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Threads on the CPU, 1 to 1024 [default: CANDLE_THREADS, or else 1: a step is over before a second thread has woken up].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    #[command(flatten)]
    pub computing: Computing,
    /// How passes reach a GPU: captured (one graph for each batch size) or eager (kernel by kernel).
    #[arg(long, value_name = "HOW", default_value = "captured")]
    pub launches: Launches,
    /// Draw the actions from the policy's distribution instead of taking the most likely class of each component.
    #[arg(long)]
    pub sample: bool,
    /// Seed of the drawn actions, which the same seed draws alike for the same file; with a beam controller that of channels, first
    /// beams and noise [default: 0].
    #[arg(long)]
    pub seed: Option<u64>,
    /// Play like the player of this tag, one that the policy was trained with [default: the recorded player's own].
    #[arg(long, value_name = "TAG")]
    pub name: Option<String>,
    /// With a beam controller, the signal-to-noise ratio in dB where a file does not say it [default: 10].
    #[arg(long, value_name = "DB", allow_negative_numbers = true, value_parser = snr_db)]
    pub snr: Option<f32>,
}

impl Options {
    /// Refuses what means nothing to a model of that family.
    pub fn check(&self, family: &str) -> Result<()> {
        let meant = if family == beam::FAMILY {
            [("--port", self.port.is_some()), ("--sample", self.sample), ("--name", self.name.is_some())]
        } else {
            [("--snr", self.snr.is_some()), ("--seed without --sample", self.seed.is_some() && !self.sample), ("", false)]
        };
        match meant.iter().find(|(_, given)| *given) {
            Some((option, _)) => Err(Usage::error(format!("{option} means nothing to a {family}"))),
            None => Ok(()),
        }
    }
}

/// A signal-to-noise ratio in dB as typed.
pub fn snr_db(text: &str) -> Result<f32> {
    let snr_db = text.parse()?;
    noise_deviation(snr_db)?;
    Ok(snr_db)
}

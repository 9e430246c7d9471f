//! Options of `run` and `demo`.

use candle_models::cli::Computing;
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
    /// Seed of the drawn actions; the same seed draws the same for the same file.
    #[arg(long, default_value_t = 0, requires = "sample")]
    pub seed: u64,
    /// Play like the player of this tag, one that the policy was trained with [default: the recorded player's own].
    #[arg(long, value_name = "TAG")]
    pub name: Option<String>,
}

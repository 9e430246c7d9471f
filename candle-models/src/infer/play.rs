//! `candle-infer play` and `playback`: a bundle that decides while something happens, and a stand-in for what happens.

use super::family::{Call, InferFamily, Opened};
use super::options::{self, Options};
use crate::bundle::Bundle;
use crate::cli::{self, Computing, Usage};
use crate::device;
use crate::exec::Launches;
use crate::registry::Registry;
use anyhow::{Context, Result};
use clap::{ArgMatches, FromArgMatches};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: PathBuf,
    /// Print every N-th frame.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), default_value = "60")]
    every: u64,
    /// Threads on the CPU, 1 to 1024 [default: CANDLE_THREADS, or else 1: a step is over before a second thread has woken up].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    #[command(flatten)]
    computing: Computing,
}

#[derive(clap::Args)]
pub struct PlaybackArguments {
    /// What was recorded, or a folder of it.
    recording: PathBuf,
}

impl Arguments {
    pub fn run(self, registry: &Registry<dyn InferFamily>, typed: &ArgMatches) -> Result<()> {
        let threads = cli::stream_threads(self.threads)?;
        // SAFETY: the caller of the command has promised that no other thread is running.
        unsafe { device::configure_threads(threads) };
        self.play(registry, typed, threads)
    }

    fn play(self, registry: &Registry<dyn InferFamily>, typed: &ArgMatches, threads: usize) -> Result<()> {
        let bundle = Bundle::open(&self.bundle)?;
        let family = registry.family(&bundle).with_context(|| self.bundle.display().to_string())?;
        options::check(registry, family, options::PLAY, typed)?;
        let opened = Opened::load(registry, bundle).with_context(|| self.bundle.display().to_string())?;
        let place = self.computing.placement(threads, Launches::default())?;
        let every = Some(usize::try_from(self.every).unwrap_or(usize::MAX));
        family.play(&Call { opened: &opened, options: typed, place: &place, every })
    }
}

/// Plays with a shipped bundle and such options of `play`, and where those of `demo` say how to compute and what to print, as they say. The
/// number of threads has been configured.
pub fn shipped(registry: &Registry<dyn InferFamily>, bundle: &Path, own: &[&str], options: Options) -> Result<()> {
    let words = ["candle-infer", "play"].map(OsStr::new).into_iter().chain([bundle.as_os_str()]).chain(own.iter().map(OsStr::new));
    let typed = super::command(registry).try_get_matches_from(words)?;
    let (_, typed) = typed.subcommand().ok_or_else(|| Usage::error("nothing to play"))?;
    let arguments = Arguments::from_arg_matches(typed)?;
    let Options { threads, computing, every, .. } = options;
    let threads = cli::stream_threads(threads)?;
    Arguments { computing, every: every.unwrap_or(arguments.every), ..arguments }.play(registry, typed, threads)
}

impl PlaybackArguments {
    /// By the family whose recording it is.
    pub fn run(&self, registry: &Registry<dyn InferFamily>, typed: &ArgMatches) -> Result<()> {
        for family in registry.iter() {
            if let Some(recordings) = family.collect(&self.recording)? {
                options::check(registry, family, options::PLAYBACK, typed)?;
                return family.playback(&recordings, typed);
            }
        }
        Err(Usage::error(format!("{}: no family plays that back", self.recording.display())))
    }
}

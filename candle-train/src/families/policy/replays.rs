//! The games that the command is asked to train on or to measure: replays that were named, or simulated ones.

use super::dataset::Measured;
use super::run::Games;
use super::shards::{self, Info, Part, Prepared, Shard};
use super::split::{HoldOut, Split, split};
use crate::command::RunArguments;
use crate::parallel::Communicator;
use anyhow::{Context, Result, bail};
use candle_models::policy::{replay, simulation};
use clap::Args;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Games and frames of each that are simulated where no replays are given, and the seed of the first: the shipped game, which policies are
/// shown, has a lower one, so that nobody learns from it.
const SIMULATED_GAMES: u64 = 12;
const FIRST_SEED: u64 = 100;
const SIMULATED_FRAMES: usize = 3600;

#[derive(Debug, Args)]
pub struct ReplayArguments {
    /// Replays (.slp), folders or archives (.zip, .tar, .tar.gz, .tgz) of them, or folders of shards, which `encode` or --cache left and which need
    /// no replays. Without any, games are simulated.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    replays: Vec<PathBuf>,
    /// Replays to hold out, by name (`t02`), or players by connect code or name, separated by commas. Default: the players of a share of the games,
    /// `data.held_out`, chosen by who they are; no game of theirs is trained on.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    hold_out: Vec<String>,
    /// Directory of encoded replays, to share between runs. Default: OUT/shards;
    /// none that stays for a dry run.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct EncodeArguments {
    /// Replays (.slp), or folders or archives (.zip, .tar, .tar.gz, .tgz) of them.
    #[arg(long, value_name = "PATH", num_args = 1.., required = true)]
    replays: Vec<PathBuf>,
    /// Folder of the shards. What lies there already is not encoded again.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Encode part I of N, 0/8 to 7/8 say, for jobs of an array, which may run at once and write into the same folder: all parts together
    /// write the files of one run, byte for byte.
    #[arg(long, value_name = "I/N", default_value = "0/1", hide_default_value = true)]
    shard: Part,
    /// Threads [default: the processors].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
}

impl EncodeArguments {
    /// Encodes what is not encoded yet.
    ///
    /// # Errors
    /// If the folder cannot be written, or none of all replays can be used.
    pub fn run(&self) -> Result<()> {
        let start = Instant::now();
        let replays = replay::collect(&self.replays)?;
        let Prepared { shards, encoded, warnings } = shards::encode_part(&replays, &self.out, self.shard)?;
        warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let (games, bytes) = (shards.len(), shards.iter().map(Shard::bytes).sum::<usize>());
        if games == 0 && self.shard == Part::ALL {
            bail!("none of {} replays can be used", replays.len());
        }
        let (out, seconds) = (self.out.display(), start.elapsed().as_secs_f64());
        println!("{out}: {games} games ({:.0} MB), {encoded} encoded now, {seconds:.1} s", bytes as f64 / 1e6);
        Ok(())
    }
}

impl ReplayArguments {
    /// Whether no replays were named.
    pub fn simulated(&self) -> bool {
        self.replays.is_empty()
    }

    /// The shards of the games. Rank 0 encodes them; others find them, or encode their own where they have another disk.
    ///
    /// # Errors
    /// If a replay cannot be read or a shard not written.
    pub fn load(&self, asked: &RunArguments, ranks: &dyn Communicator) -> Result<Vec<Arc<Shard>>> {
        if ranks.rank() > 0 {
            ranks.barrier()?;
        }
        let start = Instant::now();
        // What a dry run encodes goes with it.
        let scratch = if asked.is_dry() { Some(tempfile::tempdir().context("no directory for encoded replays")?) } else { None };
        let cache = match (&self.cache, &scratch, &asked.out) {
            (Some(cache), ..) => cache.clone(),
            (None, Some(scratch), _) => scratch.path().to_owned(),
            (None, None, Some(out)) => out.join("shards"),
            (None, None, None) => std::env::temp_dir().join("candle-train-shards"),
        };
        let replays = if self.simulated() { simulate(&cache)? } else { shards::collect(&self.replays)? };
        let prepared = shards::prepare(&replays, &cache)?;
        if ranks.rank() == 0 {
            ranks.barrier()?;
        } else if prepared.encoded == 0 {
            // Rank 0 has said all there is to say.
            return Ok(prepared.shards.into_iter().map(Arc::new).collect());
        }
        prepared.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
        let bytes: usize = prepared.shards.iter().map(Shard::bytes).sum();
        let (games, encoded, seconds) = (prepared.shards.len(), prepared.encoded, start.elapsed().as_secs_f64());
        eprintln!("{games} games ({:.0} MB), {encoded} encoded now, {seconds:.1} s", bytes as f64 / 1e6);
        Ok(prepared.shards.into_iter().map(Arc::new).collect())
    }

    /// The games to train on and those held out: the ones named, or the players of that share.
    pub fn split(&self, shards: &[Arc<Shard>], share: f64) -> Result<Games> {
        let hold_out = if self.hold_out.is_empty() { HoldOut::Share(share) } else { HoldOut::Named(self.hold_out.clone()) };
        let (infos, Split { train, held_out, known }) = divide(shards, &hold_out)?;
        if let Some(example) = known.first() {
            let (n, example) = (known.len(), &infos[*example].source);
            eprintln!(
                "warning: {n} training games ({example}) share players, or an evening, with held-out ones: the measure says little of strangers"
            );
        }
        Ok(Games { train: train.into_iter().map(|i| shards[i].clone()).collect(), held_out: measured(shards, held_out) })
    }

    /// The games named by --hold-out, if any were.
    pub fn named(&self, shards: &[Arc<Shard>]) -> Result<Option<Vec<Measured>>> {
        if self.hold_out.is_empty() {
            return Ok(None);
        }
        Ok(Some(measured(shards, divide(shards, &HoldOut::Named(self.hold_out.clone()))?.1.held_out)))
    }
}

fn divide<'a>(shards: &'a [Arc<Shard>], hold_out: &HoldOut) -> Result<(Vec<&'a Info>, Split)> {
    let infos: Vec<&Info> = shards.iter().map(|shard| shard.info()).collect();
    let split = split(&infos, hold_out)?;
    Ok((infos, split))
}

fn measured(shards: &[Arc<Shard>], held_out: Vec<(usize, [bool; 2])>) -> Vec<Measured> {
    held_out.into_iter().map(|(i, players)| Measured { game: shards[i].clone(), players }).collect()
}

fn simulate(cache: &Path) -> Result<Vec<PathBuf>> {
    let directory = cache.join("simulated");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    eprintln!("no --replays: training on {SIMULATED_GAMES} simulated games");
    let write = |seed: u64| -> Result<PathBuf> {
        let path = directory.join(format!("simulated{seed}.slp"));
        // Always written: an older version's simulation must not be mistaken for this one's. Ranks that share the disk write the same.
        let mine = path.with_extension(std::process::id().to_string());
        replay::write(&simulation::simulate(seed, SIMULATED_FRAMES), &mine)?;
        std::fs::rename(&mine, &path).with_context(|| path.display().to_string())?;
        Ok(path)
    };
    (FIRST_SEED..FIRST_SEED + SIMULATED_GAMES).map(write).collect()
}

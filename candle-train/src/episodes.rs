//! Environments in training, their episodes, and what a run in them leaves, whichever way is learnt from them.
//!
//! ```
//! use candle_envs::Episode;
//! use candle_train::episodes::mean_and_error;
//!
//! let episode = |reward| Episode { lane: 0, reward, steps: 10, terminated: true };
//! assert_eq!(mean_and_error(&[episode(1.0), episode(3.0)]), (2.0, 1.0));
//! ```

use crate::checkpoint::{SavedFiles, StateFiles};
use crate::export::{EQUATIONS, Skeleton};
use crate::parallel::{Communicator, gather, share};
use crate::plan::TrainingResult;
use crate::run::Ended;
use crate::task::{Evaluation, Metric, Reduction, Score};
use candle_core::{Device, Tensor};
use candle_envs::{Autoreset, Entry, EnvError, Episode, VectorEnv};
use candle_models::bundle::{self, CARD};
use candle_models::random::Random;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

/// Where the seeds of evaluations begin: far from those of training, which count from a run's seed.
pub const SEEDS: u64 = 1 << 40;
/// Episodes whose rewards the metrics average.
const RECENT: usize = 100;
/// Where checkpoints keep the environments.
const ENVIRONMENTS: &str = "environments.json";

/// The error of an environment as one of training.
pub fn failed(error: EnvError) -> Error {
    Error::Input(error.to_string())
}

/// Rewards and lengths of the last episodes of all ranks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Recent(VecDeque<(f64, u32)>);

impl Recent {
    /// Takes in what has ended on every rank.
    ///
    /// # Errors
    /// If the other ranks fail.
    pub fn add(&mut self, ended: &[Episode], ranks: &dyn Communicator) -> Result<()> {
        let mine: Vec<(f64, u32)> = ended.iter().map(|episode| (episode.reward, episode.steps)).collect();
        self.0.extend(gather(ranks, &mine)?.concat());
        let old = self.0.len().saturating_sub(RECENT);
        self.0.drain(..old);
        Ok(())
    }

    /// Their means, once there are any; the same on every rank.
    ///
    /// # Errors
    /// If the device fails.
    pub fn metric(&self, device: &Device) -> Result<Option<Metric>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let mean = |f: fn(&(f64, u32)) -> f64| (self.0.iter().map(f).sum::<f64>() / self.0.len() as f64) as f32;
        let values = Tensor::new(&[mean(|episode| episode.0), mean(|episode| f64::from(episode.1))], device)?;
        Ok(Some(Metric { names: &["reward", "episode_steps"], values, reduction: Reduction::Max }))
    }
}

/// Mean and standard error of the rewards.
pub fn mean_and_error(episodes: &[Episode]) -> (f64, f64) {
    let n = episodes.len().max(1) as f64;
    let mean = episodes.iter().map(|episode| episode.reward).sum::<f64>() / n;
    let variance = episodes.iter().map(|episode| (episode.reward - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

/// The mean reward as a score, with its error and the mean length.
pub fn evaluation(episodes: &[Episode]) -> Evaluation {
    let (mean, error) = mean_and_error(episodes);
    let steps = episodes.iter().map(|episode| f64::from(episode.steps)).sum::<f64>() / episodes.len().max(1) as f64;
    Evaluation::new(Score::maximise(mean), [("reward", mean), ("reward_error", error), ("episode_steps", steps)])
}

/// One episode of each of several environments, number i from the seed [`SEEDS`]` + i`; every rank plays some, and all get all of them, in the order
/// of the seeds. `begin` is told which environments are this rank's and gives what makes step t of them: the episodes that end with it, by lane.
///
/// # Errors
/// If playing or the other ranks fail.
pub fn one_each<F: FnMut(u64) -> Result<Vec<Episode>>>(
    episodes: usize,
    ranks: &dyn Communicator,
    begin: impl FnOnce(Range<usize>) -> Result<F>,
) -> Result<Vec<Episode>> {
    let mine = share(episodes, ranks.rank(), ranks.size());
    let mut ended: Vec<(usize, f64, u32, bool)> = Vec::new();
    if !mine.is_empty() {
        let (mut step, mut open, mut t) = (begin(mine.clone())?, vec![true; mine.len()], 0);
        while open.contains(&true) {
            for Episode { lane, reward, steps, terminated } in step(t)? {
                if std::mem::take(&mut open[lane]) {
                    ended.push((mine.start + lane, reward, steps, terminated));
                }
            }
            t += 1;
        }
    }
    let mut all: Vec<_> = gather(ranks, &ended)?.concat();
    all.sort_by_key(|episode| episode.0);
    Ok(all.into_iter().map(|(lane, reward, steps, terminated)| Episode { lane, reward, steps, terminated }).collect())
}

/// Environments of a rank in training: number i of all is seeded with `seed + i`.
///
/// # Errors
/// If there are none for it, or one of them fails.
pub fn environments(entry: &Entry, lanes: &Range<usize>, seed: u64) -> Result<Box<dyn VectorEnv>> {
    let mut envs = entry.make(lanes.len(), Autoreset::NextStep).map_err(failed)?;
    envs.reset(seed.wrapping_add(lanes.start as u64)).map_err(failed)?;
    Ok(envs)
}

/// Writes the environments of a rank to a checkpoint, where they can be written down.
///
/// # Errors
/// If they cannot be saved, or the disk is full.
pub fn save(envs: &mut dyn VectorEnv, files: &mut StateFiles) -> Result<()> {
    let Some(envs) = envs.resumable() else { return Ok(()) };
    let saved = envs.save().map_err(failed)?;
    files.write(ENVIRONMENTS, |file| file.write_all(&saved))
}

/// What became of the environments of a checkpoint.
#[must_use]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resumed {
    /// They go on to the bit.
    Exactly,
    /// They are not in the checkpoint: other episodes have begun in them, and those that a run was stopped in have no end.
    Anew,
}

/// Goes on with the environments of a checkpoint, whichever ranks had them; this rank's begin with number `first`. Where they cannot be written down, new
/// episodes begin, seeded by `random` and their number, and a warning says so.
///
/// # Errors
/// If they are damaged, of another kind, or fewer, or one of them fails.
pub fn restore(envs: &mut dyn VectorEnv, first: usize, files: &SavedFiles, random: Random) -> Result<Resumed> {
    let lanes = envs.lanes();
    let Some(saved) = envs.resumable().filter(|_| files.has(ENVIRONMENTS)) else {
        // Of 32 bits, which is what older environments take.
        envs.reset((u64::from(random.bits(0)) + first as u64) & u64::from(u32::MAX)).map_err(failed)?;
        if first == 0 {
            eprintln!("warning: the environments of {} are not in the checkpoint: their episodes begin anew", envs.spec().name);
        }
        return Ok(Resumed::Anew);
    };
    let damaged = |e: serde_json::Error| Error::file(ENVIRONMENTS, e);
    let mut all: Vec<serde_json::Value> = Vec::new();
    for rank in 0..files.ranks() {
        let of_rank: Vec<serde_json::Value> = serde_json::from_reader(files.open_of(rank, ENVIRONMENTS)?).map_err(damaged)?;
        all.extend(of_rank);
    }
    let end = first + lanes;
    let mine = all.get(first..end).ok_or_else(|| Error::tensor(ENVIRONMENTS, format!("{end} environments and more"), all.len()))?;
    saved.restore(&serde_json::to_vec(mine).map_err(damaged)?).map_err(failed)?;
    Ok(Resumed::Exactly)
}

/// What a run in an environment gave.
pub struct Trained {
    /// How it ended, and the parameters of the model.
    pub ended: Ended,
    /// Mean reward of the evaluation's episodes, and its standard error; `None` where the run was stopped.
    pub reward: Option<(f64, f64)>,
    /// What its bundle holds beside the parameters.
    pub skeleton: Skeleton,
    /// What its card says.
    pub card: Card,
}

/// What the card of a run in an environment says.
pub struct Card {
    /// The heading.
    pub title: String,
    /// What the network is, in words; may be empty.
    pub model: String,
    /// Steps of the environment.
    pub frames: u64,
    /// The run's seed.
    pub seed: u64,
    /// What asked for the run.
    pub command: String,
    /// The configuration in TOML.
    pub configuration: String,
    /// What the episodes were measured on, behind their rewards: how many, and how they were played.
    pub measured_on: String,
}

impl Trained {
    /// The mean reward in words.
    fn measured(&self) -> Option<String> {
        let (mean, error) = self.reward?;
        Some(format!("reward {mean:.2} with a standard error of {error:.2}, over {}", self.card.measured_on))
    }

    fn text(&self) -> String {
        let Self { ended, card: Card { title, model, frames, seed, command, configuration, .. }, .. } = self;
        let values: usize = ended.parameters.values().map(|tensor| tensor.elem_count()).sum();
        let (step, minutes, mut text) = (ended.step, ended.time.as_secs_f64() / 60.0, String::new());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {title}\n\n{model}{values} parameters.\n\n{EQUATIONS}\n## Training\n");
        let _ =
            writeln!(text, "{frames} steps of the environment, {step} updates, seed {seed}; {minutes:.1} minutes since the last start.\n");
        let _ = writeln!(text, "{}```sh\n{command}\n```\n\n```toml\n{configuration}```\n", ended.remark());
        if let Some(measured) = self.measured() {
            let _ = writeln!(text, "## Measured\n\n{measured}.");
        }
        text
    }
}

impl TrainingResult for Trained {
    fn ended(&self) -> &Ended {
        &self.ended
    }

    /// The averaged parameters and the card.
    fn save(&self, directory: &Path) -> Result<String> {
        let Card { frames, seed, command, .. } = &self.card;
        let metadata = serde_json::json!({
            "steps": self.ended.shipped, "frames": frames, "seed": seed, "command": command,
            "trained_with": concat!("candle-train ", env!("CARGO_PKG_VERSION")),
        });
        let mut files = vec![(CARD, self.text().into_bytes())];
        files.extend(self.skeleton.files.clone());
        bundle::save(directory, &self.skeleton.manifest, &self.ended.parameters, metadata, &files)?;
        Ok(self.measured().map_or_else(String::new, |measured| format!("{measured}\n")))
    }
}

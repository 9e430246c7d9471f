//! What is said of episodes in environments, whichever way is learnt from them.
//!
//! ```
//! use candle_envs::Episode;
//! use candle_train::episodes::mean_and_error;
//!
//! let episode = |reward| Episode { lane: 0, reward, steps: 10, terminated: true };
//! assert_eq!(mean_and_error(&[episode(1.0), episode(3.0)]), (2.0, 1.0));
//! ```

use crate::parallel::{Communicator, gather};
use crate::task::{Evaluation, Metric, Reduction, Score};
use candle_core::{Device, Tensor};
use candle_envs::{EnvError, Episode};
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Where the seeds of evaluations begin: far from those of training, which count from a run's seed.
pub const SEEDS: u64 = 1 << 40;
/// Episodes whose rewards the metrics average.
const RECENT: usize = 100;

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

/// The episodes of all ranks in the order of their lanes.
///
/// # Errors
/// If the other ranks fail.
pub fn of_all(mine: &[Episode], ranks: &dyn Communicator) -> Result<Vec<Episode>> {
    let mine: Vec<_> = mine.iter().map(|Episode { lane, reward, steps, terminated }| (*lane, *reward, *steps, *terminated)).collect();
    let mut all: Vec<_> = gather(ranks, &mine)?.concat();
    all.sort_by_key(|episode| episode.0);
    Ok(all.into_iter().map(|(lane, reward, steps, terminated)| Episode { lane, reward, steps, terminated }).collect())
}

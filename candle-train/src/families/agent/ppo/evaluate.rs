//! Measuring an actor on episodes that begin from seeds of their own.

use super::config::EvaluationConfig;
use super::rollout::{Acting, Game, Player, failed};
use crate::parallel::{Communicator, gather, share};
use candle_envs::{Autoreset, Entry, Episode};
use candle_models::Result;
use candle_models::engine::Model;
use candle_models::random::Random;
use std::sync::Arc;

/// Where the seeds of evaluation begin: far from those of training, which count from the run's seed.
pub const SEEDS: u64 = 1 << 40;

/// Plays one episode in each of several environments; every rank plays some, and all get all of them, in the order of the seeds.
///
/// # Errors
/// If an environment or the network fails.
pub fn play(model: Arc<dyn Model>, entry: &Entry, config: &EvaluationConfig, ranks: &dyn Communicator) -> Result<Vec<Episode>> {
    let mine = share(config.episodes, ranks.rank(), ranks.size());
    let mut ended: Vec<(usize, f64, u32, bool)> = Vec::new();
    if !mine.is_empty() {
        let (game, lanes) = (Game::new((entry.spec)()), mine.len());
        let mut envs = entry.make(lanes, Autoreset::NextStep).map_err(failed)?;
        envs.reset(SEEDS + mine.start as u64).map_err(failed)?;
        let mut acting = Acting::new(&game, Player::new(model, &game, lanes, None)?, lanes, None);
        let (mut open, mut t) = (vec![true; lanes], 0);
        while open.contains(&true) {
            let chosen = acting
                .choose(envs.frame(), config.choice, |lane| Random::new(SEEDS).stream("evaluation").at((mine.start + lane) as u64).at(t))?;
            for episode in &envs.step(&chosen.actions).map_err(failed)?.episodes {
                if std::mem::take(&mut open[episode.lane]) {
                    ended.push((mine.start + episode.lane, episode.reward, episode.steps, episode.terminated));
                }
            }
            t += 1;
        }
    }
    let mut all: Vec<_> = gather(ranks, &ended)?.concat();
    all.sort_by_key(|episode| episode.0);
    Ok(all.into_iter().map(|(lane, reward, steps, terminated)| Episode { lane, reward, steps, terminated }).collect())
}

/// Mean and standard error of the rewards.
pub fn mean_and_error(episodes: &[Episode]) -> (f64, f64) {
    let n = episodes.len().max(1) as f64;
    let mean = episodes.iter().map(|episode| episode.reward).sum::<f64>() / n;
    let variance = episodes.iter().map(|episode| (episode.reward - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
    (mean, (variance / n).sqrt())
}

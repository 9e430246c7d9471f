//! Measuring an actor on episodes that begin from seeds of their own.

use super::config::EvaluationConfig;
use super::rollout::{Acting, Game, Player};
use crate::episodes::{SEEDS, failed, of_all};
use crate::parallel::{Communicator, share};
use candle_envs::{Autoreset, Entry, Episode};
use candle_models::Result;
use candle_models::engine::Model;
use candle_models::random::Random;
use std::sync::Arc;

/// Plays one episode in each of several environments; every rank plays some, and all get all of them, in the order of the seeds.
///
/// # Errors
/// If an environment or the network fails.
pub fn play(model: Arc<dyn Model>, entry: &Entry, config: &EvaluationConfig, ranks: &dyn Communicator) -> Result<Vec<Episode>> {
    let mine = share(config.episodes, ranks.rank(), ranks.size());
    let mut ended = Vec::new();
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
                    ended.push(Episode { lane: mine.start + episode.lane, ..*episode });
                }
            }
            t += 1;
        }
    }
    of_all(&ended, ranks)
}

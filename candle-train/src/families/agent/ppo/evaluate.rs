//! Measuring an actor on episodes that begin from seeds of their own.

use super::acting::{Acting, Game, Player};
use super::config::EvaluationConfig;
use crate::episodes::{self, SEEDS, failed, one_each};
use crate::parallel::Communicator;
use candle_envs::{Entry, Episode};
use candle_models::Result;
use candle_models::engine::Model;
use candle_models::random::Random;
use std::sync::Arc;

/// Plays one episode in each of several environments; every rank gets all of them.
///
/// # Errors
/// If an environment or the network fails.
pub fn play(model: Arc<dyn Model>, entry: &Entry, config: &EvaluationConfig, ranks: &dyn Communicator) -> Result<Vec<Episode>> {
    let game = Game::new(entry.spec().clone());
    one_each(config.episodes, ranks, |mine| {
        let lanes = mine.len();
        let mut envs = episodes::environments(entry, &mine, SEEDS)?;
        let mut acting = Acting::new(&game, Player::new(model, &game, lanes, None)?, lanes, None);
        Ok(move |t| {
            let address = |lane: usize| Random::new(SEEDS).stream("evaluation").at((mine.start + lane) as u64).at(t);
            let chosen = acting.choose(envs.frame(), config.choice, address)?;
            Ok(envs.step(&chosen.actions).map_err(failed)?.episodes.clone())
        })
    })
}

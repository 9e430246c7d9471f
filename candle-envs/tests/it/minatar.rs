//! MinAtar's games as environments. That they are MinAtar's own, traces of it check beside their rules.

use candle_envs::minatar::{Asterix, Breakout, Freeway, MinAtar, Seaquest, SpaceInvaders};
use candle_envs::{Actions, Autoreset, Env, Episode, Frame, Pcg64, Vector, VectorEnv};

const LANES: usize = 1024;

/// The first episode of each of many games, played by `act`.
fn episodes<E: Env>(mut act: impl FnMut(&Frame, usize) -> u32) -> Vec<Episode> {
    let mut games = Vector::<E>::new(LANES, Autoreset::NextStep).unwrap();
    games.reset(7).unwrap();
    let mut first = vec![None; LANES];
    while first.iter().any(Option::is_none) {
        let classes = (0..LANES).map(|lane| act(games.frame(), lane)).collect();
        for episode in &games.step(&Actions::classes(classes)).unwrap().episodes {
            first[episode.lane].get_or_insert(*episode);
        }
    }
    first.into_iter().flatten().collect()
}

fn mean(episodes: &[Episode]) -> f64 {
    episodes.iter().map(|episode| episode.reward).sum::<f64>() / episodes.len() as f64
}

/// What random play is worth: in MinAtar 1.0.15 the mean of 8000 games of Breakout, 1000 of Freeway, 2000 of Asterix and of Space Invaders and 4000 of
/// Seaquest. The bounds are more than four standard errors of the difference.
#[test]
fn random_play_is_worth_what_it_is_in_minatar() {
    let mut random = Pcg64::new(1);
    let mut anything = |_: &Frame, _: usize| random.below(6);
    let near = |name: &str, found: f64, expected: f64, within: f64| {
        assert!((found - expected).abs() < within, "{name}: {found}, expected {expected}");
    };
    near("breakout", mean(&episodes::<MinAtar<Breakout>>(&mut anything)), 0.52, 0.12);
    let freeway = episodes::<MinAtar<Freeway>>(&mut anything);
    near("freeway", mean(&freeway), 0.14, 0.10);
    assert!(freeway.iter().all(|episode| episode.steps == 2501 && episode.terminated));
    near("asterix", mean(&episodes::<MinAtar<Asterix>>(&mut anything)), 0.50, 0.14);
    near("space-invaders", mean(&episodes::<MinAtar<SpaceInvaders>>(&mut anything)), 2.87, 0.37);
    near("seaquest", mean(&episodes::<MinAtar<Seaquest>>(&mut anything)), 0.10, 0.06);
}

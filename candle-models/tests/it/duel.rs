//! Many games of the simulation, counted.

use candle_models::policy::simulation::{Keys, Punish, Score, Script, Side, bots, policy, score};
use candle_models::prelude::*;
use candle_models::random::Random;
use std::path::Path;

#[test]
fn a_bot_that_punishes_beats_the_script_and_the_script_beats_any_keys() {
    let share = |score: Score| {
        assert_eq!(score.sides.map(|side| side.games), [6, 6]);
        assert!(score.sides.iter().all(|side| side.stocks.iter().any(|lost| *lost >= 4)));
        score.share()
    };
    assert!(share(score::<Script, _>(12, 5, 0, bots::<Punish, _>()).unwrap()) > 0.8);
    assert!(share(score::<Script, _>(12, 5, 0, bots::<Keys, _>()).unwrap()) < 0.2);
    let (few, many) = (score::<Script, _>(12, 5, 0, bots::<Script, _>()), score::<Script, _>(12, 12, 0, bots::<Script, _>()));
    assert_eq!(few.unwrap(), many.unwrap(), "games do not depend on how many are played at a time");
}

fn shipped(name: &str, rows: usize) -> Runner {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights").join(name);
    Runner::new(families::shipped().load(&Bundle::open(folder).unwrap()).unwrap(), rows, 1).unwrap()
}

/// Of a thousand games it loses five.
#[test]
fn the_shipped_player_beats_the_script_from_either_side() {
    let player = policy(shipped("duel", 4), Some(Random::new(1)));
    let score = score::<Script, _>(4, 4, 77, player).unwrap();
    assert!(score.sides.iter().all(|side| side.share() >= 0.5), "{score:?}");
}

#[test]
fn a_policy_from_recordings_beats_any_keys() {
    // .86 of 100 games.
    let score = score::<Keys, _>(8, 8, 0, policy(shipped("policy-simulated", 8), Some(Random::new(0)))).unwrap();
    assert!(score.games() == 8 && score.share() >= 0.5, "{score:?}");
}

/// In words, and before anything is played.
#[test]
fn a_network_that_reads_something_else_plays_nothing() {
    for (name, reason) in [("cartpole", "expected an input of the model"), ("beam-c1", "expected 268 values, found 288")] {
        let error = score::<Script, _>(2, 1, 0, policy(shipped(name, 1), None)).unwrap_err();
        assert!(error.to_string().starts_with(&format!("tensor features: {reason}")), "{name}: {error}");
    }
    let error = score::<Script, _>(2, 1, 0, policy(shipped("duel", 2), None)).unwrap_err().to_string();
    assert!(error.contains("features") && error.contains("576"), "{error}");
}

#[test]
fn a_score_is_said_by_side() {
    let fox = Side { games: 2, wins: 1, draws: 1, frames: 9001, stocks: [7, 3], damage: [700.0, 250.5] };
    let score = Score { sides: [Side::default(), fox] };
    let expected = "2 games: 0.750 of the points (95 %: 0.198 to 0.973)\n\
                    as Marth: 0 of 0 games won, 0 drawn; a game: 0 frames, stocks 0.00 to 0.00, damage 0 to 0 %\n\
                    as Fox  : 1 of 2 games won, 1 drawn; a game: 4500 frames, stocks 3.50 to 1.50, damage 350 to 125 %";
    assert_eq!(score.to_string(), expected);
}

//! The duel beside the fight that it is made of.

use candle_envs::duel::{Duel, Versus};
use candle_envs::{Action, Actions, Env, EnvError, Pcg64, Resumable, VectorEnv, View};
use candle_models::policy::actions;
use candle_models::policy::embedding::{Embedding, IDS, WIDTH};
use candle_models::policy::simulation::{Bot, Fight, Keys, Script, chances, simulate};
use candle_models::prelude::*;
use candle_models::random::Random;
use std::path::Path;

type Classes = [u32; actions::ACTION];

fn seen(duel: &Duel) -> (Vec<f32>, Vec<u32>) {
    let (mut floats, mut ids) = (vec![0.0; WIDTH], vec![0; IDS]);
    duel.observe(View { floats: &mut floats, ids: &mut ids });
    (floats, ids)
}

/// The script as the player gives the recorded game of the seed, seen as training saw it; so the classes of its actions lose nothing, and what is
/// chosen after a frame acts in the next one.
#[test]
fn two_scripts_play_the_recorded_game() {
    for player in 0..2 {
        let game = simulate(9, 3000);
        let (mut duel, mut script) = (Duel::<Script>::new(player, 9), Script::new(chances(9, player)));
        assert_eq!((duel.game.side(), game.frames[123].id), (player, 0));
        for t in 123..3000 {
            let mut expected = (vec![0.0; WIDTH], vec![0; IDS]);
            Embedding::default().encode(&game, t, player, None, &mut expected.0, &mut expected.1).unwrap();
            assert_eq!(seen(&duel), expected, "before frame {t}");
            let [own, other] = duel.game.fighters();
            let chosen = actions::Action::from_controller(&script.decide(duel.game.fight().frame() + 1, &own, &other));
            duel.step(Action { classes: &chosen.to_ids(), numbers: &[] }).unwrap();
            assert_eq!(duel.game.fight().players(), game.frames[t].players, "frame {t}");
        }
    }
}

/// The same game with both scripts outside: each lane shows what its player sees, and gets what the other one loses.
#[test]
fn two_who_are_told_what_to_do_fight_the_same_fight() {
    let (mut fight, mut scripts) = (Versus::default(), [0, 1].map(|player| Script::new(chances(9, player))));
    let mut duels = [0, 1].map(|player| Duel::<Script>::new(player, 9));
    fight.reset(0).unwrap();
    let mut totals = [0.0; 2];
    while !fight.frame().terminated[0] {
        let mut classes = Vec::new();
        for (player, (duel, script)) in duels.iter_mut().zip(&mut scripts).enumerate() {
            let (floats, ids) = seen(duel);
            assert_eq!(fight.frame().floats[player * WIDTH..][..WIDTH], floats, "player {player}");
            assert_eq!(fight.frame().ids[player * IDS..][..IDS], ids, "player {player}");
            let [own, other] = duel.game.fighters();
            let chosen = actions::Action::from_controller(&script.decide(duel.game.fight().frame() + 1, &own, &other));
            duel.game.play(chosen.to_controller());
            classes.extend(chosen.to_ids());
        }
        let frame = fight.step(&Actions::classes(classes)).unwrap();
        let [one, two] = [0, 1].map(|player| f64::from(frame.rewards[player]));
        assert!((one + two).abs() < 1e-6 && !frame.ignored[0] && !frame.first[1]);
        totals = [totals[0] + one, totals[1] + two];
    }
    let episodes = fight.frame().episodes.clone();
    assert!(episodes.len() == 2 && episodes[0].terminated && (episodes[1].reward - totals[1]).abs() < 1e-3, "{episodes:?}");

    // What was kept goes on as the original does: both begin anew.
    let mut other = Versus::default();
    other.restore(&fight.save().unwrap()).unwrap();
    let still = Actions::classes(actions::Action::default().to_ids().repeat(2));
    for _ in 0..2 {
        let (found, expected) = (other.step(&still).unwrap(), fight.step(&still).unwrap());
        assert_eq!((found, expected.first[0]), (expected, expected.ignored[0]));
    }
    assert_eq!(fight.step(&Actions::classes(vec![9; 26])).unwrap_err().to_string().split(':').next(), Some("duel, environment 0"));
    assert!(matches!(fight.step(&Actions::classes(vec![0; 13])), Err(EnvError::Shape { expected: 26, found: 13, .. })));
    assert!(matches!(fight.restore(b"[]"), Err(EnvError::Saved { .. })));
}

/// Random actions: whoever looks at the fighters alone counts the same reward.
#[test]
fn the_reward_is_what_happened() {
    let mut duel = Duel::<Script>::default();
    duel.reset(Pcg64::new(3));
    let (mut keys, mut total, mut frames) = (Keys::new(Random::new(3)), 0.0, 0);
    let mut fight = Fight::ready();
    let mut points = [0.0, 0.0];
    loop {
        let [own, other] = duel.game.fighters();
        let chosen = actions::Action::from_controller(&keys.decide(frames, &own, &other));
        let step = duel.step(Action { classes: &chosen.to_ids(), numbers: &[] }).unwrap();
        let exchange = fight.step(duel.game.fight().players().map(|player| player.controller));
        (total, frames) = (total + step.reward, frames + 1);
        for (points, (damage, lost)) in points.iter_mut().zip(exchange.damage.into_iter().zip(exchange.lost)) {
            *points -= 0.01 * f64::from(damage) + f64::from(u8::from(lost));
        }
        assert_eq!(step.terminated, fight.is_over());
        if step.terminated {
            break;
        }
    }
    let own = duel.game.side();
    assert!(frames > 500 && (total - (points[own] - points[1 - own])).abs() < 1e-9, "{frames} frames, {total}, {points:?}");
    assert!(total < -3.0, "{total}: nobody wins by pressing anything");
}

#[test]
fn training_sees_both_sides() {
    let sides: Vec<usize> = (0..64)
        .map(|seed| {
            let mut duel = Duel::<Script>::default();
            duel.reset(Pcg64::new(seed));
            assert_eq!(duel.game.seen().players[0].fighter.character, [18, 1][duel.game.side()]);
            duel.game.side()
        })
        .collect();
    let foxes = sides.iter().sum::<usize>();
    assert!((16..48).contains(&foxes), "{foxes} of 64");
}

#[test]
fn an_action_out_of_range_changes_nothing() {
    let mut duel = Duel::<Script>::default();
    duel.reset(Pcg64::new(1));
    let before = duel.game.fight().clone();
    let mut classes: Classes = actions::Action::default().to_ids();
    classes[12] = 5;
    for wrong in [&classes[..], &classes[..12]] {
        let error = duel.step(Action { classes: wrong, numbers: &[] }).unwrap_err();
        assert!(matches!(&error, EnvError::IllegalAction { .. }), "{error}");
    }
    assert_eq!(duel.game.fight(), &before);
}

/// An action's columns are a policy's, and an agent at rest does what a policy at rest does.
#[test]
fn an_agent_for_it_is_at_rest_where_a_policy_is() {
    let spec = Duel::<Script>::spec();
    let config =
        candle_models::agent::AgentConfig { observation: spec.observation.clone(), action: spec.action.clone(), ..Default::default() };
    config.validate().unwrap();
    assert_eq!(config.neutral(), actions::Action::default().to_ids());
    let classes: Vec<u32> = actions::COMPONENTS.iter().map(|component| component.classes.into()).collect();
    assert_eq!((config.classes(), config.logits(), spec.columns()), (classes, actions::LOGITS, actions::ACTION));
    let stick = spec.action[1].centres().unwrap();
    let places: Vec<f32> = (0..17u8)
        .map(|class| {
            let mut classes = actions::Action::default().classes();
            classes[8] = class;
            actions::Action::new(classes).unwrap().to_controller().main_stick[0]
        })
        .collect();
    assert_eq!(stick, places);
}

/// What a policy sees before a frame is what it saw in training before the action of that frame: it finds what the script does as likely as its card
/// says of games held out, .371 nats a frame, and what the script does a frame later much less so.
#[test]
fn a_policy_from_recordings_expects_what_the_script_does() {
    let (rows, frames) = (8, 500);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/policy-simulated");
    let mut runner = Runner::new(families::shipped().load(&Bundle::open(folder).unwrap()).unwrap(), rows, 1).unwrap();
    let mut duels: Vec<Duel> = (0..rows).map(|row| Duel::new(row % 2, 5000 + row as u64)).collect();
    let mut scripts: Vec<Script> = duels.iter().zip(5000..).map(|(duel, seed)| Script::new(chances(seed, duel.game.side()))).collect();
    let mut done = vec![actions::Action::default(); rows];
    let mut logits = vec![[0.0; actions::LOGITS]; rows];
    let (mut now, mut later) = (0.0, 0.0);
    for frame in 0..frames {
        let before = done.clone();
        for (row, (duel, script)) in duels.iter().zip(&mut scripts).enumerate() {
            let (floats, ids) = seen(duel);
            runner.floats_mut("features", row).unwrap().copy_from_slice(&floats);
            runner.indices_mut("ids", row).unwrap().copy_from_slice(&ids);
            runner.indices_mut("previous_action", row).unwrap().copy_from_slice(&before[row].to_ids());
            let [own, other] = duel.game.fighters();
            done[row] = actions::Action::from_controller(&script.decide(frame, &own, &other));
            runner.indices_mut("action", row).unwrap().copy_from_slice(&done[row].to_ids());
        }
        runner.step(&vec![frame == 0; rows]).unwrap();
        for (row, duel) in duels.iter_mut().enumerate() {
            later += actions::nll(&logits[row], &done[row]).iter().sum::<f32>();
            logits[row].copy_from_slice(runner.floats("logits", row).unwrap());
            now += actions::nll(&logits[row], &done[row]).iter().sum::<f32>();
            duel.game.play(done[row].to_controller());
        }
    }
    let [now, later] = [now, later].map(|sum| sum / (rows as f32 * frames as f32));
    assert!((0.3..0.45).contains(&now) && later > 1.5 * now, "{now} nats a frame, {later} of the next one's");
}

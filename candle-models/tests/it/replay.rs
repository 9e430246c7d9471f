//! Reading replays: real ones against an independent reader's numbers, damaged ones, and mutated bytes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_models::Error;
use candle_models::policy::game::{Frame, Game};
use candle_models::policy::replay;
use serde_json::Value;

/// A folder of the real data, or `None` with a loud remark.
fn data(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED the tests on real replays: CANDLE_DATA is not set");
        return None;
    };
    let path = Path::new(&root).join(folder);
    assert!(path.is_dir(), "CANDLE_DATA is set but {} does not exist", path.display());
    Some(path)
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Sums that went through another order of additions.
fn close(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1e6)
}

#[test]
fn every_real_game_matches_the_independent_reader() {
    let Some(folder) = data("slippi") else { return };
    let truth: Vec<Value> = serde_json::from_slice(&std::fs::read(folder.join("truth.json")).unwrap()).unwrap();
    assert_eq!(truth.len(), 24);
    for expected in &truth {
        let name = expected["file"].as_str().unwrap();
        let game = replay::read(folder.join(name)).unwrap_or_else(|error| panic!("{error}"));
        compare_game(name, &game, expected);
    }
}

fn compare_game(name: &str, game: &Game, expected: &Value) {
    assert_eq!(game.incomplete, None, "{name}");
    let (major, minor, patch) = game.version;
    assert_eq!(format!("{major}.{minor}.{patch}"), expected["version"].as_str().unwrap(), "{name}");
    assert_eq!(game.raw_frames as u64, expected["frames_raw"].as_u64().unwrap(), "{name}: raw frames");
    assert_eq!(game.frames.len() as u64, expected["frames_unique"].as_u64().unwrap(), "{name}: unique frames");
    assert_eq!(i64::from(game.frames[0].id), expected["first_id"].as_i64().unwrap(), "{name}");
    assert_eq!(i64::from(game.frames.last().unwrap().id), expected["last_id"].as_i64().unwrap(), "{name}");
    assert!(game.frames.windows(2).all(|pair| pair[0].id + 1 == pair[1].id), "{name}: ids rise by one");
    game.check().unwrap_or_else(|error| panic!("{name}: {error}"));
    for (index, player) in game.players.iter().enumerate() {
        let port = format!("P{}", player.port + 1);
        compare_sums(&format!("{name} {port}"), game, index, &expected["aggregates"][&port]);
        compare_follower(&format!("{name} {port}f"), game, index, &expected["aggregates"][format!("{port}f")]);
    }
    for sample in expected["samples"].as_array().unwrap() {
        compare_sample(name, game, sample);
    }
}

fn compare_sums(name: &str, game: &Game, index: usize, expected: &Value) {
    let players = || game.frames.iter().map(|frame| frame.players[index]);
    assert_eq!(game.frames.len() as u64, expected["n"].as_u64().unwrap(), "{name}");
    let sums = [
        ("sum_post_x", players().map(|p| f64::from(p.fighter.position[0])).sum::<f64>()),
        ("sum_post_y", players().map(|p| f64::from(p.fighter.position[1])).sum()),
        ("sum_percent", players().map(|p| f64::from(p.fighter.percent)).sum()),
        ("sum_joystick_x", players().map(|p| f64::from(p.controller.main_stick[0])).sum()),
        ("sum_state", players().map(|p| f64::from(p.fighter.action_state)).sum()),
        ("or_buttons_physical", f64::from(players().fold(0, |all, p| all | p.controller.buttons))),
        ("frames_any_button", players().filter(|p| p.controller.buttons != 0).count() as f64),
    ];
    for (key, found) in sums {
        assert!(close(found, number(&expected[key])), "{name} {key}: found {found}, expected {}", expected[key]);
    }
}

fn compare_follower(name: &str, game: &Game, index: usize, expected: &Value) {
    let followers: Vec<_> = game.frames.iter().filter_map(|frame| frame.players[index].nana).collect();
    if expected.is_null() {
        assert!(followers.is_empty(), "{name}: {} frames with a follower that the other reader lacks", followers.len());
        return;
    }
    assert_eq!(followers.len() as u64, expected["n"].as_u64().unwrap(), "{name}");
    let x: f64 = followers.iter().map(|f| f64::from(f.position[0])).sum();
    assert!(close(x, number(&expected["sum_post_x"])), "{name}: x {x}, expected {}", expected["sum_post_x"]);
    let states: f64 = followers.iter().map(|f| f64::from(f.action_state)).sum();
    assert!(close(states, number(&expected["sum_state"])), "{name}: states {states}, expected {}", expected["sum_state"]);
}

fn compare_sample(name: &str, game: &Game, sample: &Value) {
    let id = sample["id"].as_i64().unwrap();
    let frame = &game.frames[(id - i64::from(game.frames[0].id)) as usize];
    assert_eq!(i64::from(frame.id), id);
    for (index, player) in game.players.iter().enumerate() {
        let port = format!("P{}", player.port + 1);
        let name = format!("{name} frame {id} {port}");
        compare_fields(&name, &controller_fields(frame, index), &sample["ports"][&port]["pre"]);
        compare_fields(&name, &fighter_fields(frame, index), &sample["ports"][&port]["post"]);
        let follower = &sample["ports"][format!("{port}f")]["post"];
        assert_eq!(frame.players[index].nana.is_some(), !follower.is_null(), "{name}: follower");
        if let Some(nana) = frame.players[index].nana {
            let mut with_nana = *frame;
            with_nana.players[index].fighter = nana;
            compare_fields(&format!("{name} follower"), &fighter_fields(&with_nana, index), follower);
        }
    }
    let items = sample["items"].as_u64().unwrap_or(0);
    let kept = frame.projectiles.iter().flatten().count() as u64;
    assert_eq!(kept, items.min(frame.projectiles.len() as u64), "{name} frame {id}: items");
}

/// Exact: these values went through no arithmetic. What the file's version lacks must be zero.
fn compare_fields(name: &str, found: &HashMap<&str, f64>, expected: &Value) {
    for (key, found) in found {
        let wanted = match *key {
            "hitstun" => {
                let in_hitstun = expected["state_flags"][3].as_u64().unwrap_or(0) & 2 != 0;
                if in_hitstun { number(&expected["misc_as"]) } else { 0.0 }
            }
            "on_ground" => f64::from(u8::from(expected["airborne"].as_u64() == Some(0))),
            "invulnerable" => f64::from(u8::from(expected["hurtbox_state"].as_u64().unwrap_or(0) != 0)),
            key => expected.get(key).map_or(0.0, number),
        };
        assert!(*found == wanted, "{name} {key}: found {found}, expected {wanted}");
    }
}

fn controller_fields(frame: &Frame, index: usize) -> HashMap<&'static str, f64> {
    let controller = frame.players[index].controller;
    HashMap::from([
        ("buttons_physical", f64::from(controller.buttons)),
        ("joystick_x", f64::from(controller.main_stick[0])),
        ("joystick_y", f64::from(controller.main_stick[1])),
        ("cstick_x", f64::from(controller.c_stick[0])),
        ("cstick_y", f64::from(controller.c_stick[1])),
        ("triggers", f64::from(controller.shoulder)),
    ])
}

fn fighter_fields(frame: &Frame, index: usize) -> HashMap<&'static str, f64> {
    let fighter = frame.players[index].fighter;
    HashMap::from([
        ("character", f64::from(fighter.character)),
        ("state", f64::from(fighter.action_state)),
        ("state_age", f64::from(fighter.action_frame)),
        ("x", f64::from(fighter.position[0])),
        ("y", f64::from(fighter.position[1])),
        ("direction", f64::from(fighter.facing)),
        ("percent", f64::from(fighter.percent)),
        ("shield", f64::from(fighter.shield)),
        ("stocks", f64::from(fighter.stocks)),
        ("jumps", f64::from(fighter.jumps)),
        ("on_ground", f64::from(u8::from(fighter.on_ground))),
        ("invulnerable", f64::from(u8::from(fighter.invulnerable))),
        ("hitstun", f64::from(fighter.hitstun)),
        ("self_x_air", f64::from(fighter.velocity[0])),
        ("self_x_ground", f64::from(fighter.velocity[1])),
        ("self_y", f64::from(fighter.velocity[2])),
        ("knockback_x", f64::from(fighter.velocity[3])),
        ("knockback_y", f64::from(fighter.velocity[4])),
    ])
}

#[test]
fn every_odd_file_gives_a_game_or_one_line() {
    let Some(folder) = data("slippi_edge") else { return };
    let files = replay::collect([&folder]).unwrap();
    assert_eq!(files.len(), 14);
    for path in files {
        match replay::read(&path) {
            Ok(game) => {
                assert!(!game.frames.is_empty(), "{}", path.display());
                eprintln!("{}: {} frames, {:?}", path.display(), game.frames.len(), game.incomplete);
            }
            Err(error) => {
                let text = error.to_string();
                eprintln!("{text}");
                assert!(matches!(error, Error::File { .. }), "{text}");
                assert!(text.starts_with(&path.display().to_string()) && !text.contains('\n'), "{text}");
            }
        }
    }
}

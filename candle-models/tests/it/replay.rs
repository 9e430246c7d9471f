//! Reading replays: real ones against an independent reader's numbers, damaged ones, and mutated bytes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_models::Error;
use candle_models::policy::game::{Fighter, Frame, Game, Player, Projectile};
use candle_models::policy::{replay, simulation::simulate};
use serde_json::Value;

/// A folder of the real data, or `None` with a loud remark.
pub(super) fn data(folder: &str) -> Option<PathBuf> {
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

#[test]
fn who_played_and_when_is_read_in_every_format() {
    let Some(folder) = data("slippi") else { return };
    // The file's metadata says so before format 3.9, its events from there on; a console knows no players.
    for (name, players, recorded) in [
        ("t01_peppi_console_name__Falcon_Peach__DL__v1.7.1", [["", ""], ["", ""]], 1_553_425_924),
        ("t06_peppi_netplay_name__Falco_Falco__BF__v2.0.1", [["xxxxxxx", ""], ["xxxxxxx", ""]], 1_575_434_080),
        ("t07_slippilab_sample__Fox_Fox__BF__v3.12.0", [["", ""], ["", ""]], 1_652_674_682),
        ("t09_peppi_ics2__ICs_Falco__DL__v3.12.0", [["xxxxxx", "XX#111"], ["yyyyyyyyyyyyy", "YYYY#222"]], 1_660_540_359),
    ] {
        let reader = replay::Reader::open(folder.join(format!("{name}.slp"))).unwrap();
        let found = reader.game().players.each_ref().map(|player| [player.name.as_str(), player.code.as_str()]);
        assert_eq!((found, reader.game().recorded), (players, Some(recorded)), "{name}");
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

/// Exact: these values are `f32` that went through no arithmetic. What the file's version lacks must be zero.
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
        assert!(*found as f32 == wanted as f32, "{name} {key}: found {found}, expected {wanted}");
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
        let name = path.file_name().unwrap().to_str().unwrap();
        let recovered = [("e02", 2891), ("e14", 7780)].into_iter().find(|(prefix, _)| name.starts_with(prefix));
        match replay::read(&path) {
            Ok(game) => {
                if let Some((_, frames)) = recovered {
                    assert_eq!(game.frames.len(), frames, "{name}");
                }
                assert!(!game.frames.is_empty(), "{}", path.display());
                eprintln!("{}: {} frames, {:?}", path.display(), game.frames.len(), game.incomplete);
            }
            Err(error) => {
                let text = error.to_string();
                assert!(recovered.is_none(), "{text}");
                eprintln!("{text}");
                assert!(matches!(error, Error::File { .. }), "{text}");
                assert!(text.starts_with(&path.display().to_string()) && !text.contains('\n'), "{text}");
            }
        }
    }
}

#[test]
fn what_is_no_replay_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let reason = |path: &Path| match replay::read(path).unwrap_err() {
        Error::File { reason, .. } => reason,
        error => panic!("{error}"),
    };
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    assert_eq!(reason(folder.path()), "is a directory, not a replay");
    assert_eq!(reason(&file("empty.slp", b"")), "too short for a Slippi replay");
    assert_eq!(reason(&file("text.slp", b"a text of some length")), "not a Slippi replay: the signature is missing");
    assert_eq!(reason(&file("head.slp", b"{U\x03raw[$U#l\0\0\0\x09")), "the file breaks off");
    let large = file("large.slp", b"");
    std::fs::File::options().write(true).open(&large).unwrap().set_len(replay::MAX_BYTES + 1).unwrap();
    assert_eq!(reason(&large), "134217729 bytes are too many for a replay (at most 134217728)");
    assert!(matches!(replay::read(folder.path().join("none.slp")), Err(Error::Io { .. })));
}

#[test]
fn folders_are_listed_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir_all(path("b/deep")).unwrap();
    for name in ["b/deep/2.slp", "b/1.SLP", "a.slp", "notes.txt"] {
        std::fs::write(path(name), b"").unwrap();
    }
    let expected = vec![path("notes.txt"), path("a.slp"), path("b/1.SLP"), path("b/deep/2.slp")];
    assert_eq!(replay::collect([path("notes.txt"), folder.path().to_owned()]).unwrap(), expected);
    std::fs::create_dir(path("c")).unwrap();
    assert!(replay::collect([path("c")]).unwrap_err().to_string().contains("the folder holds no .slp file"));
    assert!(matches!(replay::collect([path("none")]), Err(Error::Io { .. })));
}

#[test]
fn a_written_game_reads_back_equal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("game.slp");
    for seed in 0..3 {
        let game = simulate(seed, 2500);
        replay::write(&game, &path).unwrap();
        assert_eq!(replay::read(&path).unwrap(), game);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing but the replay is left");
}

/// Every field of a frame, with values that the simulation does not have.
#[test]
fn followers_projectiles_and_high_ports_survive_writing() {
    let mut game = simulate(1, 300);
    game.players[0].port = 1;
    game.players[1] = Player { port: 3, character: 14, name: "プレイヤー".to_owned(), code: "プレ#1".to_owned(), computer: false };
    for (index, frame) in game.frames.iter_mut().enumerate() {
        let nana = Fighter { character: 11, hitstun: 3.5, shield: 12.25, ..frame.players[1].fighter };
        frame.players[1].nana = (index % 7 < 4).then_some(nana);
        for slot in 0..index % 4 {
            let owner = [Some(0), Some(1), None][slot];
            frame.projectiles[slot] = Some(Projectile { owner, kind: 54, position: [1.5, index as f32], velocity: [-2.0, 0.5] });
        }
    }
    assert_eq!(replay::read_bytes(&replay::to_bytes(&game).unwrap(), "memory").unwrap(), game);
    game.players[1].character = 2;
    let text = replay::to_bytes(&game).unwrap_err().to_string();
    assert_eq!(text, "frame -123: player 1 has a follower but does not play the Ice Climbers");
    game.players[0].port = 3;
    assert!(replay::to_bytes(&game).unwrap_err().to_string().contains("two rising ports"));
}

#[test]
fn numbers_that_are_not_finite_read_as_zero() {
    let mut game = simulate(1, 200);
    game.frames[50].players[0].fighter.position = [f32::NAN, f32::INFINITY];
    game.frames[60].players[1].controller.main_stick[0] = f32::NEG_INFINITY;
    let read = replay::read_bytes(&replay::to_bytes(&game).unwrap(), "memory").unwrap();
    assert_eq!(read.frames[50].players[0].fighter.position, [0.0; 2]);
    assert_eq!(read.frames[60].players[1].controller.main_stick[0], 0.0);
}

/// Rolled-back frames, as the game records them: the id again, with other values.
#[test]
fn the_last_occurrence_of_a_frame_counts() {
    let played = simulate(2, 600);
    let mut recorded = played.clone();
    let mut wrong = played.frames[400..407].to_vec();
    wrong.iter_mut().for_each(|frame| frame.players[0].fighter.percent = 999.0);
    recorded.frames.splice(400..400, wrong);
    let read = replay::read_bytes(&replay::to_bytes(&recorded).unwrap(), "memory").unwrap();
    assert_eq!((read.frames == played.frames, read.raw_frames), (true, 607));

    let mut far = played.clone();
    far.frames.truncate(500);
    far.frames.push(played.frames[500 - replay::MAX_ROLLBACK - 2]);
    let read = replay::read_bytes(&replay::to_bytes(&far).unwrap(), "memory").unwrap();
    assert_eq!(read.frames[..], played.frames[..500]);
    assert!(read.incomplete.unwrap().contains("reaches back more than"));

    let mut gap = played.clone();
    gap.frames.remove(300);
    let read = replay::read_bytes(&replay::to_bytes(&gap).unwrap(), "memory").unwrap();
    assert_eq!(read.frames[..], played.frames[..300]);
    assert_eq!(read.incomplete.unwrap(), "frame 178 follows frame 176: frames are missing");
}

#[test]
fn a_reader_gives_the_frames_of_the_whole() {
    let game = simulate(4, 1500);
    let bytes = replay::to_bytes(&game).unwrap();
    let mut reader = replay::Reader::new(std::io::Cursor::new(&bytes), "memory").unwrap();
    assert_eq!((reader.game().stage, &reader.game().players, reader.game().frames.len()), (32, &game.players, 0));
    let frames: Vec<_> = reader.by_ref().collect();
    assert_eq!(frames, game.frames);
    assert_eq!((reader.game().raw_frames, &reader.game().incomplete), (1500, &None));
}

/// A file cut anywhere keeps every frame that is completely in it.
#[test]
fn truncation_keeps_complete_frames() {
    let game = simulate(5, 400);
    let bytes = replay::to_bytes(&game).unwrap();
    let mut before = 0;
    for length in (0..bytes.len()).step_by(997) {
        let Ok(read) = replay::read_bytes(&bytes[..length], "cut") else {
            assert_eq!(before, 0, "{length} bytes");
            continue;
        };
        assert_eq!(read.frames[..], game.frames[..read.frames.len()]);
        let whole_frames = (length as f64 / bytes.len() as f64 * 400.0) as usize;
        assert!(read.frames.len() >= before && whole_frames.abs_diff(read.frames.len()) <= 4, "{length}: {}", read.frames.len());
        before = read.frames.len();
        assert!(read.incomplete.is_some() || before == 400, "{length} bytes: {:?}", read.incomplete);
    }
    assert!(before >= 398);
}

/// Flipped bits, overwritten bytes, cuts, doubled and removed pieces: a game or a one-line error, and always the same.
#[test]
fn mutated_bytes_never_panic() {
    let mut sources = vec![replay::to_bytes(&simulate(6, 300)).unwrap()];
    if let Some(folder) = data("slippi_edge") {
        let files = replay::collect([&folder]).unwrap();
        sources.extend(files.iter().map(|path| std::fs::read(path).unwrap()).filter(|bytes| bytes.len() < 200_000));
    }
    let mut state = 0x1234_5678_9abc_def0_u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below.max(1)
    };
    let (mut games, mut errors) = (0, 0);
    for case in 0..800 {
        let mut bytes = sources[case % sources.len()].clone();
        for _ in 0..1 + random(4) {
            mutate(&mut bytes, &mut random);
        }
        match replay::read_bytes(&bytes, "mutated") {
            Ok(game) => {
                games += 1;
                assert!(!game.frames.is_empty() && game.frames.len() <= game.raw_frames);
                assert!(game.frames.windows(2).all(|pair| pair[0].id + 1 == pair[1].id));
            }
            Err(error) => {
                errors += 1;
                assert!(!error.to_string().contains('\n'), "{error}");
            }
        }
    }
    assert!(games > 100 && errors > 100, "{games} games and {errors} errors: the mutations miss one side");
}

/// One mutation; half of them hit the first 800 bytes, where the sizes and the start are.
fn mutate(bytes: &mut Vec<u8>, random: &mut impl FnMut(usize) -> usize) {
    let span = if random(2) == 0 { bytes.len().min(800) } else { bytes.len() };
    let at = random(span);
    let end = (at + 1 + random(600)).min(bytes.len());
    match random(6) {
        _ if bytes.is_empty() => {}
        0 | 1 => bytes[at] ^= 1 << random(8),
        2 => bytes[at] = random(256) as u8,
        3 => bytes.truncate(at + random(bytes.len())),
        4 => drop(bytes.drain(at..end)),
        _ => {
            let piece = bytes[at..end].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

/// A frame's inputs that name another frame: the library asserts, and the reader reports without a panic message.
#[test]
fn an_assertion_of_the_parser_is_a_reason() {
    let game = simulate(6, 300);
    let mut bytes = replay::to_bytes(&game).unwrap();
    let mut event = vec![0x37];
    event.extend(77_i32.to_be_bytes());
    let at = bytes.windows(5).position(|window| window == event).unwrap();
    bytes[at + 4] += 1;
    let read = replay::read_bytes(&bytes, "asserting").unwrap();
    assert_eq!(read.frames[..], game.frames[..200]);
    let reason = read.incomplete.unwrap();
    assert!(reason.starts_with("malformed event: assertion") && !reason.contains('\n'), "{reason}");
}

/// Maps within maps in the metadata: reading them by recursion would exhaust the stack.
#[test]
fn deep_metadata_costs_only_the_names() {
    let Some(folder) = data("slippi") else { return };
    let path = replay::collect([folder]).unwrap().into_iter().find(|path| path.to_str().unwrap().contains("t06")).unwrap();
    let mut bytes = std::fs::read(path).unwrap();
    let whole = replay::read_bytes(&bytes, "whole").unwrap();
    assert!(whole.players.iter().all(|player| !player.name.is_empty()), "the names stand in the metadata: {:?}", whole.players);
    let events = 15 + u32::from_be_bytes(bytes[11..15].try_into().unwrap()) as usize;
    bytes.truncate(events);
    bytes.extend_from_slice(b"U\x08metadata{");
    bytes.extend(b"U\x01a{".repeat(100_000));
    let read = replay::read_bytes(&bytes, "deep").unwrap();
    assert_eq!(read.frames, whole.frames);
}

/// The sample that the repository ships, made by this crate.
const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/data/simulated.slp");

fn sample() -> Vec<u8> {
    replay::to_bytes(&simulate(2, 1200)).unwrap()
}

#[test]
fn the_shipped_sample_is_what_the_simulation_gives() {
    let stored = std::fs::read(SAMPLE).unwrap();
    assert!(
        stored == sample(),
        "{SAMPLE} differs; `CANDLE_WRITE_SAMPLE=1 cargo test --workspace --test it -- --ignored write_the_sample` makes it anew"
    );
    assert!(stored.len() <= 400_000, "{} bytes", stored.len());
    let game = replay::read(SAMPLE).unwrap();
    assert_eq!((game.frames.len(), game.players[0].name.as_str(), game.players[1].name.as_str()), (1200, "Simulated 1", "Simulated 2"));
    assert!(stored.windows(10).any(|window| window == b"simulated}".as_slice()), "the console's name says simulated");
}

#[test]
#[ignore = "deep: nothing of its own; it writes examples/data/simulated.slp where CANDLE_WRITE_SAMPLE is set"]
fn write_the_sample() {
    if std::env::var_os("CANDLE_WRITE_SAMPLE").is_some() {
        std::fs::write(SAMPLE, sample()).unwrap();
    }
}

#[test]
#[ignore = "deep: reads every real replay five times and prints how fast; --release --nocapture for figures"]
fn reading_speed() {
    let Some(folder) = data("slippi") else { return };
    let files: Vec<_> = replay::collect([folder]).unwrap().iter().map(|path| std::fs::read(path).unwrap()).collect();
    for _ in 0..5 {
        let start = std::time::Instant::now();
        let frames: usize = files.iter().map(|bytes| replay::read_bytes(bytes, "memory").unwrap().raw_frames).sum();
        let seconds = start.elapsed().as_secs_f64();
        let rate = frames as f64 / seconds;
        println!("{frames} raw frames in {seconds:.3} s: {rate:.0} frames/s on one thread");
    }
}

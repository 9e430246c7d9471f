//! Encoding, the cache, and damage to it.

use super::checked::Checked;
use super::encode::returns;
use super::*;
use crate::stamp::Stamp;
use candle_models::policy::actions::Action;
use candle_models::policy::embedding::Embedding;
use candle_models::policy::replay;
use std::fs;
use std::path::PathBuf;

fn write_replays(dir: &Path, frames: &[usize]) -> Vec<PathBuf> {
    let write = |(i, &n): (usize, &usize)| {
        let path = dir.join(format!("g{i}.slp"));
        fs::write(&path, replay::to_bytes(&testing::game(i as u64, n)).unwrap()).unwrap();
        path
    };
    frames.iter().enumerate().map(write).collect()
}

fn only_shard(cache: &Path) -> PathBuf {
    let mut files = fs::read_dir(cache).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap()
}

/// Writes to a file as it is, and as if it had been written when it was written before. The time of its last change of status, which no program
/// sets, moves with the tick of the file system's clock: it is written until that has come.
fn overwrite(file: &Path, bytes: &[u8]) {
    let before = fs::metadata(file).unwrap();
    let tick = || {
        fs::write(file, bytes).unwrap();
        File::options().write(true).open(file).unwrap().set_modified(before.modified().unwrap()).unwrap();
        Stamp::of(&fs::metadata(file).unwrap()) != Stamp::of(&before)
    };
    while !tick() {}
}

#[test]
fn rows_are_what_the_encoder_gives() {
    let game = testing::game(1, BLOCK + 100);
    let shard = Shard::from_game(&game, "g").unwrap();
    assert_eq!(shard.rows(), BLOCK + 99);
    for player in 0..2 {
        let rows = BLOCK - 5..BLOCK + 99; // Across the border of two blocks.
        let (mut features, mut ids) = (vec![0.0; rows.len() * WIDTH], vec![0; rows.len() * IDS]);
        shard.observations(player, rows.clone(), &mut features, &mut ids);
        let (mut expected, mut expected_ids) = ([0.0; WIDTH], [0; IDS]);
        for (i, row) in rows.enumerate() {
            Embedding::default().encode(&game, row + 1, player, None, &mut expected, &mut expected_ids).unwrap();
            assert_eq!(ids[i * IDS..][..IDS], expected_ids);
            for (k, (found, expected)) in features[i * WIDTH..].iter().zip(expected).enumerate() {
                // Half precision: 11 significant bits.
                assert!((found - expected).abs() <= 0.0005 * expected.abs(), "column {k}: expected {expected}, found {found}");
            }
            let action = Action::from_controller(&game.frames[row + 1].players[player].controller);
            assert_eq!(shard.action(player, row + 1), action.classes());
        }
    }
}

#[test]
fn every_limit_of_the_schema_survives_half_precision() {
    for field in &SCHEMA {
        for limit in field.clip {
            assert!(limit.abs() <= 10.0 && f16::from_f32(limit).to_f32() == limit, "{}: {limit}", field.name);
        }
    }
    const { assert!(ACTION_STATES < 1 << 16 && CHARACTERS < 1 << 16) };
}

#[test]
fn returns_are_discounted_rewards() {
    let mut game = testing::game(1, 500);
    for frame in &mut game.frames {
        frame.players.iter_mut().for_each(|p| (p.fighter.percent, p.fighter.stocks) = (0.0, 4));
    }
    for frame in &mut game.frames[10..] {
        frame.players[1].fighter.percent = 20.0; // Player 0 hits in frame 10.
    }
    for frame in &mut game.frames[250..] {
        (frame.players[1].fighter.stocks, frame.players[1].fighter.percent) = (3, 0.0);
    }
    let (ours, theirs) = (returns(&game, 0), returns(&game, 1));
    let close = |found: f32, expected: f64| assert!((f64::from(found) - expected).abs() < 1e-6, "expected {expected}, found {found}");
    close(ours[249], 1.0);
    close(ours[9], 0.2 + 0.5); // The stock falls one half-life later.
    close(ours[250], 0.0);
    assert!(ours.iter().zip(&theirs).all(|(a, b)| *a == -b));
}

#[test]
fn the_second_run_reads_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let replays = write_replays(dir.path(), &[30, 50]);
    let cache = dir.path().join("cache");
    let first = prepare(&replays, &cache).unwrap();
    assert_eq!((first.encoded, first.shards.len(), first.shards[1].rows()), (2, 2, 49));
    let second = prepare(&replays, &cache).unwrap();
    assert_eq!((second.encoded, second.shards.len()), (0, 2));
    assert_eq!(second.shards[0].info(), first.shards[0].info());
}

#[test]
fn broken_and_repeated_replays_are_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut replays = write_replays(dir.path(), &[30]);
    for (name, content) in [("empty.slp", vec![]), ("noise.slp", vec![7; 1000]), ("same.slp", fs::read(&replays[0]).unwrap())] {
        fs::write(dir.path().join(name), content).unwrap();
        replays.push(dir.path().join(name));
    }
    replays.push(dir.path().join("missing.slp"));
    let all = prepare(&replays, &dir.path().join("cache")).unwrap();
    assert_eq!(all.shards.len(), 1);
    for name in ["empty.slp", "noise.slp", "same.slp", "missing.slp"] {
        assert!(all.warnings.iter().any(|w| w.contains(name)), "{name} in {:?}", all.warnings);
    }
    let error = prepare(&replays[1..3], &dir.path().join("cache")).unwrap_err().to_string();
    assert!(error.starts_with("none of 2 replays can be used"), "{error}");
}

#[test]
fn a_damaged_shard_is_found_and_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let replays = write_replays(dir.path(), &[200]);
    let cache = dir.path().join("cache");
    prepare(&replays, &cache).unwrap();
    let file = only_shard(&cache);
    let good = fs::read(&file).unwrap();
    let damage: [fn(&mut Vec<u8>); 4] = [|b| b.truncate(5000), |b| b.clear(), |b| b[100_000] ^= 4, |b| b[20] ^= 1];
    for (i, damage) in damage.iter().enumerate() {
        let mut bytes = good.clone();
        damage(&mut bytes);
        overwrite(&file, &bytes);
        let all = prepare(&replays, &cache).unwrap();
        assert_eq!(all.encoded, 1, "damage {i}");
        assert!(all.warnings[0].starts_with("encoded again: "), "{:?}", all.warnings);
        assert_eq!(fs::read(&file).unwrap(), good);
    }
}

#[test]
fn what_is_not_a_number_is_refused_by_game_player_and_row() {
    // Of a game, the encoder takes what is not finite for zero; the return of a game in memory is the way past it.
    let mut game = testing::game(1, 50);
    game.frames[20].players[1].fighter.percent = f32::NAN;
    let error = Shard::from_game(&game, "g1").map(drop).unwrap_err().to_string();
    assert_eq!(error, "g1: player 0, row 0: the return is not a finite number");

    // In a shard that somebody else wrote, hash and all.
    let mut bytes = encode(&testing::game(1, 50), "g1", "").unwrap();
    let parse = |bytes: &[u8]| Shard::parse(Bytes::Owned(bytes.to_vec()), Path::new("x")).unwrap();
    let good = parse(&bytes);
    good.check(Path::new("x")).unwrap();
    let place = good.views[1].features.start + (5 * WIDTH + 3) * 2;
    bytes[place..place + 2].copy_from_slice(&f16::NAN.to_le_bytes());
    let hash = content_of(&SafeTensors::deserialize(&bytes).unwrap()).unwrap();
    let (at, old) = (bytes.windows(64).position(|w| w == good.info.content.as_bytes()).unwrap(), good.info.content.len());
    bytes[at..at + old].copy_from_slice(hash.as_bytes());
    let error = parse(&bytes).check(Path::new("x")).unwrap_err().to_string();
    assert!(error.starts_with("x: g1: player 1, row 5: feature 3 (") && error.ends_with(") is not a finite number"), "{error}");

    // In the cache: it is built again, and the reason is told.
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[50]), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let file = only_shard(&cache);
    overwrite(&file, &bytes);
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.encoded, all.shards.len()), (1, 1));
    assert!(all.warnings[0].contains("player 1, row 5"), "{:?}", all.warnings);
}

#[test]
fn what_was_checked_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[60, 70]), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let note = cache.join("checked.json");
    // A shard with a wrong bit and a replay with other bytes are taken for good if their states are noted as checked: so nobody
    // read them.
    let shard = only_shard(&cache);
    let mut bytes = fs::read(&shard).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let before: Checked = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    overwrite(&shard, &bytes);
    overwrite(&replays[0], &vec![7; fs::metadata(&replays[0]).unwrap().len() as usize]);
    let stamp = |path: &Path| serde_json::to_value(Stamp::of(&fs::metadata(path).unwrap())).unwrap();
    let mut forged = serde_json::to_value(&before).unwrap();
    forged["shards"][shard.file_name().unwrap().to_str().unwrap()] = stamp(&shard);
    forged["replays"][replays[0].to_str().unwrap()][0] = stamp(&replays[0]);
    fs::write(&note, forged.to_string()).unwrap();
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.encoded, all.shards.len(), all.warnings), (0, 2, vec![]));

    // Without the note, or with what it said before, both are found.
    for text in [None, Some("{"), Some("forgotten")] {
        match text {
            None => fs::remove_file(&note).unwrap(),
            Some("forgotten") => fs::write(&note, serde_json::to_vec(&before).unwrap()).unwrap(),
            Some(text) => fs::write(&note, text).unwrap(),
        }
        overwrite(&shard, &bytes);
        let all = prepare(&replays, &cache).unwrap();
        assert!(all.warnings.iter().any(|w| w.contains("g0.slp")), "{:?}", all.warnings);
        assert_eq!((all.encoded, all.shards.len()), (usize::from(all.warnings.len() > 1), 1), "{:?}", all.warnings);
    }
}

#[test]
fn a_replay_that_changed_is_encoded_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[60, 60]), dir.path().join("cache"));
    let before = prepare(&replays, &cache).unwrap();
    let other = fs::read(&replays[1]).unwrap();
    assert_eq!(other.len(), fs::metadata(&replays[0]).unwrap().len() as usize, "a content of the same size");
    overwrite(&replays[0], &replay::to_bytes(&testing::game(9, 60)).unwrap());
    let after = prepare(&replays, &cache).unwrap();
    assert_eq!(after.encoded, 1);
    assert_ne!(after.shards[0].info(), before.shards[0].info());
    assert_eq!(after.shards[1].info(), before.shards[1].info());
}

#[test]
fn a_moved_cache_is_checked_once() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache, moved) = (write_replays(dir.path(), &[60]), dir.path().join("a"), dir.path().join("b"));
    prepare(&replays, &cache).unwrap();
    fs::create_dir(&moved).unwrap();
    for file in fs::read_dir(&cache).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), moved.join(file.file_name())).unwrap();
    }
    let note = || fs::read(moved.join("checked.json")).unwrap();
    let copied = note();
    assert_eq!(prepare(&replays, &moved).unwrap().encoded, 0);
    let checked = note();
    assert_ne!(checked, copied, "copies are other files");
    assert_eq!(prepare(&replays, &moved).unwrap().encoded, 0);
    assert_eq!(note(), checked);
}

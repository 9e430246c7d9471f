//! Encoding, files of games, and damage to them.

use super::encode::returns;
use super::record::{is_whole, put};
use super::*;
use crate::stamp::Stamp;
use candle_models::policy::embedding::{ACTION_STATES, CHARACTERS, SCHEMA};
use candle_models::policy::game::{Fighter, PROJECTILES, Projectile};
use candle_models::policy::replay;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn write_replays(dir: &Path, frames: &[usize]) -> Vec<PathBuf> {
    let write = |(i, &n): (usize, &usize)| {
        let path = dir.join(format!("g{i:03}.slp"));
        fs::write(&path, replay::to_bytes(&testing::game(i as u64, n)).unwrap()).unwrap();
        path
    };
    frames.iter().enumerate().map(write).collect()
}

/// The files below a folder, by name.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => _ = found.insert(path.clone(), fs::read(path).unwrap()),
        }
    }
    found
}

/// The shards among them.
fn shards_of(cache: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    files(cache).into_iter().filter(|(path, _)| path.extension().is_some_and(|e| e == "safetensors")).collect()
}

fn only_shard(cache: &Path) -> PathBuf {
    let shards = shards_of(cache);
    assert_eq!(shards.len(), 1);
    shards.into_keys().next().unwrap()
}

/// Writes to a file as it is, and as if it had been written when it was written before. The time of its last change of status, which no program
/// sets, moves with the tick of the file system's clock: it is written until that has come.
fn overwrite(file: &Path, bytes: &[u8]) {
    let before = fs::metadata(file).unwrap();
    let tick = || {
        fs::write(file, bytes).unwrap();
        fs::File::options().write(true).open(file).unwrap().set_modified(before.modified().unwrap()).unwrap();
        Stamp::of(&fs::metadata(file).unwrap()) != Stamp::of(&before)
    };
    while !tick() {}
}

/// All that can be read of a game, as bits.
fn bits(shard: &Shard) -> Result<Vec<u32>> {
    let frames = shard.frames(0..shard.info.frames)?;
    let (rows, mut bits) = (shard.rows(), Vec::new());
    for player in 0..2 {
        let (mut features, mut ids, mut values) = (vec![0.0; rows * WIDTH], vec![0; rows * IDS], vec![0.0; rows]);
        frames.observe(player, 0..rows, &mut features, &mut ids, &mut values)?;
        bits.extend(features.iter().chain(&values).map(|x| x.to_bits()).chain(ids));
        bits.extend((0..=rows).flat_map(|frame| frames.action(player, frame).to_ids()));
    }
    Ok(bits)
}

#[test]
fn rows_are_what_the_encoder_gives() {
    let game = testing::game(1, 200);
    let shard = Shard::from_game(&game, "g").unwrap();
    assert_eq!(shard.rows(), 199);
    for player in 0..2 {
        let rows = 90..199;
        let (mut features, mut ids) = (vec![0.0; rows.len() * WIDTH], vec![0; rows.len() * IDS]);
        let mut values = vec![0.0; rows.len()];
        let frames = shard.frames(rows.start..rows.end + 1).unwrap();
        frames.observe(player, rows.clone(), &mut features, &mut ids, &mut values).unwrap();
        let (mut expected, mut expected_ids) = ([0.0; WIDTH], [0; IDS]);
        for (i, row) in rows.enumerate() {
            Embedding::default().encode(&game, row + 1, player, None, &mut expected, &mut expected_ids).unwrap();
            assert_eq!(ids[i * IDS..][..IDS], expected_ids);
            for (k, (found, expected)) in features[i * WIDTH..].iter().zip(expected).enumerate() {
                assert_eq!(*found, f16::from_f32(expected).to_f32(), "row {row}, column {k}");
            }
            let action = Action::from_controller(&game.frames[row + 1].players[player].controller);
            assert_eq!(frames.action(player, row + 1), action);
            assert_eq!(values[i], returns(&game, player)[row]);
        }
    }
}

#[test]
fn every_frame_comes_back_to_the_bit() {
    let random = candle_models::random::Random::new(3);
    let fighter = |i: u64| Fighter {
        character: random.below(i, 33) as u8,
        action_state: random.below(i + 1, 400) as u16,
        action_frame: random.uniform(i + 2),
        position: [random.uniform(i + 3), -random.uniform(i + 4)],
        facing: -1.0,
        percent: f32::NAN,
        shield: random.uniform(i + 5),
        stocks: 3,
        jumps: 2,
        on_ground: i.is_multiple_of(2),
        invulnerable: i.is_multiple_of(3),
        hitstun: f32::INFINITY,
        velocity: std::array::from_fn(|k| random.uniform(i + 6 + k as u64)),
    };
    for i in 0..64u64 {
        let mut frame = testing::game(i, 2).frames[1];
        for (p, player) in frame.players.iter_mut().enumerate() {
            player.fighter = fighter(100 * i + p as u64);
            player.nana = (i >> p & 1 == 1).then(|| fighter(100 * i + 50 + p as u64));
        }
        for slot in (0..PROJECTILES).filter(|slot| (i / 2) >> slot & 1 == 1) {
            let owner = [None, Some(0), Some(1)][slot % 3];
            frame.projectiles[slot] = Some(Projectile { owner, kind: slot as u16 + 300, position: [1.5, -2.0], velocity: [-0.0, 0.25] });
        }
        let mut bytes = Vec::new();
        put(&mut bytes, 7, i as usize, &frame, [0.5, -0.5]);
        assert!(is_whole(&bytes, 7, i as usize));
        let record = Record(&bytes[..bytes.len() - 4]);
        // Of what is no number, the bits.
        assert_eq!(format!("{:?}", record.frame()), format!("{frame:?}"));
        assert_eq!([record.value(0), record.value(1)], [0.5, -0.5]);
        for (seed, number) in [(8, i as usize), (7, i as usize + 1)] {
            assert!(!is_whole(&bytes, seed, number), "a frame of another game, or another frame");
        }
        for bit in 0..8 * bytes.len() {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_whole(&bytes, 7, i as usize), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..bytes.len()).all(|n| !is_whole(&bytes[..n], 7, i as usize)));
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
fn what_is_not_a_number_is_refused_by_game_player_and_row() {
    // Of a game, the encoder takes what is not finite for zero; the return of a game in memory is the way past it.
    let mut game = testing::game(1, 50);
    game.frames[20].players[1].fighter.percent = f32::NAN;
    let error = Shard::from_game(&game, "g1").map(drop).unwrap_err().to_string();
    assert_eq!(error, "g1: player 0, row 0: the return is not a finite number");
    let mut bytes = Vec::new();
    put(&mut bytes, 1, 0, &game.frames[0], [f32::NAN, 0.0]);
    assert!(!is_whole(&bytes, 1, 0));
    let error = Shard::from_game(&testing::game(1, 1), "g1").map(drop).unwrap_err().to_string();
    assert_eq!(error, "g1: expected at least 2 frames, found 1");
}

#[test]
fn the_second_run_reads_the_cache() {
    let dir = tempfile::tempdir().unwrap();
    let replays = write_replays(dir.path(), &[30, 50]);
    let cache = dir.path().join("cache");
    let first = prepare(&replays, &cache).unwrap();
    assert_eq!((first.encoded, first.shards.len(), first.shards[1].rows()), (2, 2, 49));
    let before = files(&cache);
    let second = prepare(&replays, &cache).unwrap();
    assert_eq!((second.encoded, second.shards.len()), (0, 2));
    assert_eq!(second.shards[0].info(), first.shards[0].info());
    assert_eq!(files(&cache), before);
    // They are what they are in memory, but for the checksums.
    for (i, (shard, frames)) in second.shards.iter().zip([30, 50]).enumerate() {
        assert_eq!(bits(shard).unwrap(), bits(&Shard::from_game(&testing::game(i as u64, frames), "").unwrap()).unwrap());
    }
}

#[test]
fn broken_and_repeated_replays_are_passed_over_with_the_same_words_at_every_start() {
    let dir = tempfile::tempdir().unwrap();
    let mut replays = write_replays(dir.path(), &[30]);
    for (name, content) in [("empty.slp", vec![]), ("noise.slp", vec![7; 1000]), ("same.slp", fs::read(&replays[0]).unwrap())] {
        fs::write(dir.path().join(name), content).unwrap();
        replays.push(dir.path().join(name));
    }
    let cache = dir.path().join("cache");
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!(prepare(&replays, &cache).unwrap().warnings, all.warnings);
    replays.push(dir.path().join("missing.slp"));
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.shards.len(), all.encoded), (1, 0));
    for name in ["empty.slp", "noise.slp", "same.slp", "missing.slp"] {
        assert!(all.warnings.iter().any(|w| w.contains(name)), "{name} in {:?}", all.warnings);
    }
    let error = prepare(&replays[1..3], &cache).unwrap_err().to_string();
    assert!(error.starts_with("none of 2 replays can be used"), "{error}");
}

#[test]
fn a_damaged_head_is_found_and_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let replays = write_replays(dir.path(), &[200]);
    let cache = dir.path().join("cache");
    prepare(&replays, &cache).unwrap();
    let file = only_shard(&cache);
    let good = fs::read(&file).unwrap();
    let damage: [fn(&mut Vec<u8>); 5] =
        [|b| b.truncate(5000), |b| b.clear(), |b| b[20] ^= 1, |b| b[..8].fill(255), |b| b[..8].copy_from_slice(&[1, 0, 0, 0, 0, 0, 0, 0])];
    for (i, damage) in damage.iter().enumerate() {
        let mut bytes = good.clone();
        damage(&mut bytes);
        fs::write(&file, &bytes).unwrap();
        let all = prepare(&replays, &cache).unwrap();
        assert_eq!(all.encoded, 1, "damage {i}");
        assert!(all.warnings[0].starts_with("encoded again: "), "{:?}", all.warnings);
        assert_eq!(fs::read(&file).unwrap(), good);
    }
    fs::remove_file(&file).unwrap();
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.encoded, all.warnings, fs::read(&file).unwrap()), (1, vec![], good));
}

#[test]
fn no_damage_behind_the_head_gives_a_wrong_row() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[40, 12]), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let file = only_shard(&cache);
    let good = fs::read(&file).unwrap();
    let head = 8 + u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    let read = || -> Result<Vec<Vec<u32>>> { prepare(&replays, &cache).unwrap().shards.iter().map(bits).collect() };
    let expected = read().unwrap();
    for place in (head..good.len()).step_by(7) {
        let mut bytes = good.clone();
        bytes[place] ^= 16;
        fs::write(&file, &bytes).unwrap();
        let error = read().unwrap_err().to_string();
        assert!(error.contains(".safetensors: g00") && error.contains("remove the file"), "{error}");
    }
    // What is there is read while it is there.
    fs::write(&file, &good).unwrap();
    let opened = prepare(&replays, &cache).unwrap();
    fs::write(&file, &good[..good.len() - 10]).unwrap();
    assert_eq!(bits(&opened.shards[0]).unwrap(), expected[0]);
    assert!(bits(&opened.shards[1]).unwrap_err().to_string().contains("cut off"));
    // As the message says.
    fs::remove_file(&file).unwrap();
    assert_eq!(read().unwrap(), expected);
}

#[test]
fn whatever_a_header_says_there_is_no_panic() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[20]), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let file = only_shard(&cache);
    let good = fs::read(&file).unwrap();
    let length = u64::from_le_bytes(*good.first_chunk().unwrap()) as usize;
    let (header, data) = (String::from_utf8(good[8..8 + length].to_vec()).unwrap(), &good[8 + length..]);
    let forged = |from: &str, to: &str| {
        let header = header.replace(from, to);
        assert_ne!(header, String::from_utf8_lossy(&good[8..8 + length]), "{from}");
        fs::write(&file, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()).unwrap();
        file::open(&file).and_then(|games| games.iter().map(bits).collect::<Result<Vec<_>>>())
    };
    for (from, to) in [
        (r#"\"frames\":20"#, r#"\"frames\":21"#),
        (r#"\"frames\":20"#, r#"\"frames\":1"#),
        (r#"\"frames\":20"#, r#"\"frames\":900"#),
        (r#"\"frames\":20"#, r#"\"frames\":18446744073709551615"#),
        (r#"\"frames\":20"#, r#"\"frames\":-1"#),
        (r#"\"version\":3"#, r#"\"version\":2"#),
        (r#"\"replay\":\""#, r#"\"replay\":\"0"#),
        (r#""0":"#, r#""1":"#),
        ("U8", "I8"),
        ("\"shard\"", "\"sherd\""),
    ] {
        assert!(forged(from, to).is_err(), "{to}");
    }
    assert!(forged(r#"\"stage\":31"#, r#"\"stage\":999"#).is_ok(), "any other stage is the seventh");
}

#[test]
fn what_was_seen_is_not_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[60, 70]), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let note = files(&cache.join("replays")).into_keys().next().unwrap();
    // A replay with other bytes is taken for the one that was encoded if its state is noted as seen: so nobody read it.
    let before: serde_json::Value = serde_json::from_slice(&fs::read(&note).unwrap()).unwrap();
    overwrite(&replays[0], &vec![7; fs::metadata(&replays[0]).unwrap().len() as usize]);
    let mut forged = before.clone();
    forged["replays"][0]["stamp"] = serde_json::to_value(Stamp::of(&fs::metadata(&replays[0]).unwrap())).unwrap();
    fs::write(&note, forged.to_string()).unwrap();
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.encoded, all.shards.len(), all.warnings), (0, 2, vec![]));

    // Without the note, or with what it said before, it is found.
    for text in ["", "{", "[]", &before.to_string()] {
        fs::write(&note, text).unwrap();
        let all = prepare(&replays, &cache).unwrap();
        assert!(all.warnings.iter().any(|w| w.contains("g000.slp")), "{:?}", all.warnings);
        assert_eq!((all.encoded, all.shards.len()), (0, 1), "{:?}", all.warnings);
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
    assert_eq!(bits(&after.shards[1]).unwrap(), bits(&before.shards[1]).unwrap());
}

#[test]
fn replays_that_moved_are_not_encoded_again() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache) = (write_replays(dir.path(), &[60, 50]), dir.path().join("a"));
    prepare(&replays, &cache).unwrap();
    let moved = dir.path().join("b");
    fs::rename(&cache, &moved).unwrap();
    assert_eq!(prepare(&replays, &moved).unwrap().encoded, 0);
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let replays: Vec<PathBuf> = replays.iter().map(|path| other.join(path.file_name().unwrap())).collect();
    replays.iter().for_each(|path| fs::rename(dir.path().join(path.file_name().unwrap()), path).unwrap());
    let shards = shards_of(&moved);
    assert_eq!(prepare(&replays, &moved).unwrap().encoded, 0);
    assert_eq!(shards_of(&moved), shards);
}

/// Many short replays, two of them alike and one broken.
fn many(dir: &Path) -> Vec<PathBuf> {
    // What lies together follows from the folder's name, too.
    let dir = dir.join("games");
    fs::create_dir_all(&dir).unwrap();
    let mut replays = write_replays(&dir, &[5; 150]);
    fs::copy(&replays[3], &replays[80]).unwrap();
    fs::write(&replays[40], "broken").unwrap();
    replays.sort();
    replays
}

#[test]
fn parts_write_the_files_of_the_whole() {
    let dir = tempfile::tempdir().unwrap();
    let replays = many(dir.path());
    let whole = dir.path().join("whole");
    assert_eq!(prepare(&replays, &whole).unwrap().shards.len(), 148);
    let names = |cache: &Path| -> Vec<(PathBuf, Vec<u8>)> {
        files(cache).into_iter().map(|(path, bytes)| (path.strip_prefix(cache).unwrap().to_owned(), bytes)).collect()
    };
    let expected = names(&whole);
    assert!(shards_of(&whole).len() > 2, "several files");
    for of in [1, 2, 3, 50] {
        let cache = dir.path().join(format!("parts{of}"));
        // The last part first.
        for number in (0..of).rev() {
            encode_part(&replays, &cache, format!("{number}/{of}").parse().unwrap()).unwrap();
        }
        assert!(names(&cache) == expected, "{of} parts");
        let again = prepare(&replays, &cache).unwrap();
        assert_eq!((again.encoded, again.shards.len()), (0, 148));
    }
    for wrong in ["2/2", "3/2", "1", "1/", "/", "a/b", "0/0", "-1/2"] {
        assert!(wrong.parse::<Part>().is_err(), "{wrong}");
    }
}

#[test]
fn programs_that_encode_at_once_do_not_harm_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, cache, alone) = (many(dir.path()), dir.path().join("cache"), dir.path().join("alone"));
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| prepare(&replays, &cache).unwrap())).collect();
        threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap().shards.len(), 148));
    });
    prepare(&replays, &alone).unwrap();
    assert!(shards_of(&cache).into_values().eq(shards_of(&alone).into_values()));
    assert_eq!(files(&cache).len(), files(&alone).len(), "nothing else is left");
}

#[test]
fn a_replay_more_changes_one_file() {
    let dir = tempfile::tempdir().unwrap();
    let (mut replays, cache) = (many(dir.path()), dir.path().join("cache"));
    prepare(&replays, &cache).unwrap();
    let before = shards_of(&cache);
    let new = dir.path().join("games/g0505.slp");
    fs::write(&new, replay::to_bytes(&testing::game(1000, 9)).unwrap()).unwrap();
    replays.push(new);
    replays.sort();
    let all = prepare(&replays, &cache).unwrap();
    assert_eq!((all.encoded, all.shards.len()), (1, 149));
    let after = shards_of(&cache);
    assert!(before.iter().all(|(path, bytes)| after[path] == *bytes) && after.len() <= before.len() + 2);
}

#[test]
fn shards_alone_are_the_games_of_their_replays() {
    let dir = tempfile::tempdir().unwrap();
    let (folder, cache) = (dir.path().join("replays"), dir.path().join("cache"));
    fs::create_dir(&folder).unwrap();
    many(&folder);
    let files = collect(std::slice::from_ref(&folder)).unwrap();
    let from_replays = prepare(&files, &cache).unwrap();
    fs::remove_dir_all(&folder).unwrap();
    let alone = collect(std::slice::from_ref(&cache)).unwrap();
    assert_eq!(alone.len(), shards_of(&cache).len());
    let other = dir.path().join("other");
    let from_shards = prepare(&alone, &other).unwrap();
    let all = |prepared: &Prepared| -> Vec<_> { prepared.shards.iter().map(|shard| (shard.info.clone(), bits(shard).unwrap())).collect() };
    assert!(all(&from_shards) == all(&from_replays));
    // What another version left there is passed over.
    fs::write(cache.join("old.safetensors"), "old").unwrap();
    let with_old = prepare(&collect(std::slice::from_ref(&cache)).unwrap(), &other).unwrap();
    assert_eq!(with_old.shards.len(), 148);
    assert!(with_old.warnings.iter().any(|w| w.starts_with("passed over: ") && w.contains("old.safetensors")), "{:?}", with_old.warnings);
}

//! Encoding of real games: every frame of every replay, seen by both players.

use candle_models::policy::embedding::{self, ACTION_STATES, CHARACTERS, Embedding, IDS, Observation, SCHEMA, WIDTH};
use candle_models::policy::game::{Game, internal_character};
use candle_models::policy::replay;

/// Internal id of the leading Ice Climber.
const POPO: u8 = 10;

/// Features `[frames, 288]` and ids `[frames, 6]` of one player's view of a whole game.
struct Encoded {
    features: Vec<f32>,
    ids: Vec<u32>,
}

fn encode(game: &Game, player: usize) -> Encoded {
    let frames = game.frames.len();
    // Whatever the encoder does not write is seen.
    let (mut features, mut ids) = (vec![f32::NAN; frames * WIDTH], vec![u32::MAX; frames * IDS]);
    Embedding::default().encode_game(game, 1..frames + 1, player, None, &mut features, &mut ids).unwrap();
    Encoded { features, ids }
}

fn assert_within_limits(name: &str, encoded: &Encoded) {
    for (t, row) in encoded.features.chunks(WIDTH).enumerate() {
        for field in &SCHEMA {
            for (k, value) in row[field.offset..][..field.width].iter().enumerate() {
                let [low, high] = field.clip;
                assert!((low..=high).contains(value), "{name}, frame {}: {}[{k}] is {value}, not in {low} to {high}", t + 1, field.name);
            }
        }
        let used = SCHEMA.last().map_or(0, |field| field.offset + field.width);
        assert!(row[used..].iter().all(|v| *v == 0.0), "{name}, frame {}: the columns behind the schema are not zero", t + 1);
    }
    for (t, row) in encoded.ids.chunks(IDS).enumerate() {
        let inside = row[..4].iter().all(|id| *id < ACTION_STATES) && row[4..].iter().all(|id| *id < CHARACTERS);
        assert!(inside, "{name}, frame {}: ids {row:?}", t + 1);
    }
}

/// Mirroring encoded frames is encoding mirrored observations, and twice is the identity bit for bit.
fn assert_mirrors(name: &str, game: &Game, player: usize, encoded: &Encoded) {
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let (mut features, mut ids) = (encoded.features.clone(), encoded.ids.clone());
    embedding::mirror(&mut features, &mut ids);
    let (mut row, mut row_ids) = ([0.0; WIDTH], [0; IDS]);
    for t in 1..=game.frames.len() {
        let mirrored = Observation::of(game, t, player).unwrap().mirror();
        Embedding::default().observe(&mirrored, None, &mut row, &mut row_ids).unwrap();
        assert_eq!(row, features[(t - 1) * WIDTH..][..WIDTH], "{name}, frame {t}");
        assert_eq!(row_ids, ids[(t - 1) * IDS..][..IDS], "{name}, frame {t}");
    }
    embedding::mirror(&mut features, &mut ids);
    assert!(bits(&features) == bits(&encoded.features) && ids == encoded.ids, "{name}: mirrored twice");
}

/// Frames in which a column differs from zero.
fn frames_with(encoded: &Encoded, field: &str) -> usize {
    let column = SCHEMA.iter().find(|f| f.name == field).unwrap().offset;
    encoded.features.chunks(WIDTH).filter(|row| row[column] != 0.0).count()
}

#[test]
fn every_real_frame_encodes_within_the_schema() {
    let Some(folder) = super::replay::data("slippi") else { return };
    let (mut frames, mut climbers) = (0, 0);
    for path in replay::collect([folder]).unwrap() {
        let game = replay::read(&path).unwrap();
        for player in 0..2 {
            let name = format!("{}, player {player}", path.file_name().unwrap().display());
            let encoded = encode(&game, player);
            assert_within_limits(&name, &encoded);
            assert_mirrors(&name, &game, player, &encoded);
            frames += game.frames.len();
            if internal_character(game.players[player].character) == Some(POPO) {
                climbers += 1;
                let alive = frames_with(&encoded, "own.nana.exists");
                assert!(alive > game.frames.len() / 4, "{name}: Nana in {alive} of {} frames", game.frames.len());
                for field in ["own.nana.position", "own.nana.facing", "own.nana.percent", "own.nana.stocks", "own.nana.synced"] {
                    assert!(frames_with(&encoded, field) > 0, "{name}: {field} is always zero");
                }
            } else {
                let columns = SCHEMA.iter().filter(|f| f.name.starts_with("own.nana."));
                columns.for_each(|f| assert_eq!(frames_with(&encoded, f.name), 0, "{name}: {}", f.name));
            }
        }
    }
    assert!(climbers > 0, "the games have Ice Climbers among them");
    println!("{frames} frames encoded");
}

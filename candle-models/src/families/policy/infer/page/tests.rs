use super::*;
use crate::families::policy::actions::ACTION;
use crate::families::policy::simulation::simulate;

/// What a replay calls things may be anything.
const EVIL: &str = "</script><img src=x onerror=1>\"'&";

fn value<T: bytemuck::AnyBitPattern>(column: &Value) -> Vec<T> {
    let bytes = STANDARD.decode(column["data"].as_str().unwrap()).unwrap();
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn recording(frames: usize) -> Recording {
    Recording { game: simulate(3, frames), decided: [None, None] }
}

#[test]
fn no_name_of_a_replay_becomes_markup() {
    let page = |name: &str, file: &str| {
        let mut recording = recording(10);
        for player in &mut recording.game.players {
            (player.name, player.code) = (name.to_owned(), name.to_owned());
        }
        recording.game.incomplete = Some(name.to_owned());
        recording.html(Path::new(file), &json!({ "name": name, "delay": 0, "seed": null, "plays_like": name })).unwrap()
    };
    let (plain, evil) = (page("Somebody", "game.slp"), page(EVIL, &format!("{}.slp", EVIL.replace('/', ""))));
    assert_eq!(evil.matches('<').count(), plain.matches('<').count(), "a name opens an element");
    assert!(evil.contains("<title>&lt;script&gt;&lt;img src=x onerror=1&gt;&quot;&#39;&amp;.slp: replay</title>"), "{}", &evil[..900]);
    // The script finds every name as it stands in the replay.
    let json = evil.split("id=\"replay\">").nth(1).unwrap().split("</script>").next().unwrap();
    let found: Value = serde_json::from_str(json).unwrap();
    for text in [&found["players"][0]["name"], &found["players"][1]["code"], &found["model"]["name"], &found["incomplete"]] {
        assert_eq!(text, EVIL);
    }
}

#[test]
fn columns_hold_what_the_game_and_the_decisions_say() {
    let mut recording = recording(400);
    let classes: [u8; ACTION] = [1, 0, 0, 1, 0, 0, 0, 1, 16, 8, 0, 3, 4];
    let action = Action::new(classes).unwrap();
    recording.decided[1] = Some(Decided {
        first: 1,
        recorded: vec![packed(&action)],
        chosen: vec![packed(&Action::default())],
        nats: vec![[0, 1, 1000, 65535, 7, 8]],
    });
    let (json, frames) = (recording.json("game.slp", &Value::Null), &recording.game.frames);
    assert_eq!(value::<i32>(&json["ids"]), frames.iter().map(|frame| frame.id).collect::<Vec<_>>());
    for player in 0..2 {
        let columns = &json["players"][player]["frames"];
        let numbers = |name: &str| value::<i16>(&columns[name]);
        let bytes = |name: &str| value::<u8>(&columns[name]);
        let (x, y, percent, state) = (numbers("x"), numbers("y"), numbers("percent"), numbers("state"));
        let (stocks, flags, character) = (bytes("stocks"), bytes("flags"), bytes("character"));
        for (i, fighter) in frames.iter().map(|frame| frame.players[player].fighter).enumerate() {
            let near = |found: i16, expected: f32, parts: f32| (f32::from(found) / parts - expected).abs() <= 0.5 / parts;
            assert!(
                near(x[i], fighter.position[0], PARTS) && near(y[i], fighter.position[1], PARTS) && near(percent[i], fighter.percent, 32.0)
            );
            assert_eq!((state[i] as u16, stocks[i], character[i]), (fighter.action_state, fighter.stocks, fighter.character));
            let expected = [fighter.on_ground, fighter.invulnerable, fighter.hitstun > 0.0, fighter.facing < 0.0];
            assert_eq!([0, 1, 2, 3].map(|bit| flags[i] >> bit & 1 == 1), expected, "frame {i}");
        }
    }
    let decided = &json["players"][1]["decided"];
    assert_eq!((json["players"][0]["decided"].is_null(), &decided["first"]), (true, &json!(1)));
    assert_eq!(value::<u8>(&decided["recorded"]), [0b1000_1001, 16, 8, 0, 3, 4]);
    assert_eq!(value::<u8>(&decided["chosen"]), [0, 8, 8, 8, 8, 0]);
    assert_eq!(value::<u16>(&decided["nats"]), [0, 1, 1000, 65535, 7, 8]);
}

#[test]
fn projectiles_and_followers_are_in_the_picture() {
    let mut recording = recording(3);
    let frame = &mut recording.game.frames[1];
    frame.projectiles[2] = Some(game::Projectile { owner: Some(1), position: [-20.5, 7.25], ..Default::default() });
    frame.projectiles[4] = Some(game::Projectile { owner: None, position: [1e9, f32::NAN], ..Default::default() });
    frame.players[0].nana = Some(Fighter { position: [3.0, 4.0], ..Default::default() });
    let dots = &recording.json("game.slp", &Value::Null)["dots"];
    assert_eq!(value::<u8>(&dots["count"]), [0, 3, 0]);
    assert_eq!(value::<u8>(&dots["owner"]), [1, 2, 4]);
    assert_eq!(value::<i16>(&dots["x"]), [-1312, i16::MAX, 192]);
    assert_eq!(value::<i16>(&dots["y"]), [464, 0, 256]);
}

#[test]
fn every_stage_has_its_shape() {
    for (id, name, edge) in STAGES {
        let stage = stages::stage(id).unwrap_or_else(|| panic!("{name} has no shape"));
        let ends = [stage.floor[0][0], stage.floor[stage.floor.len() - 1][0]];
        assert!((ends[0] + edge).abs() < 0.01 && (ends[1] - edge).abs() < 0.01, "{name}: {ends:?}");
        let [left, right, top, bottom] = stage.blast;
        for [y, from, to] in stage.platforms {
            assert!(left < *from && from < to && *to < right && bottom < 0.0 && 0.0 < *y && *y < top, "{name}");
        }
    }
    assert!(stages::stage(4).is_none());
}

/// Fighters that stand still in recorded games stand on what is drawn.
#[test]
fn recorded_fighters_stand_on_the_stages() {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED stages beside real replays: CANDLE_DATA is not set");
        return;
    };
    const STAND: u16 = 14;
    let mut counts = std::collections::BTreeMap::<u16, (usize, usize)>::new();
    for path in replay::collect([Path::new(&root).join("slippi")]).unwrap() {
        let game = replay::read(path).unwrap();
        let Some(stage) = stages::stage(game.stage) else { continue };
        let floors = stage.floor.windows(2).map(|ends| [ends[0], ends[1]]);
        let platforms = stage.platforms.iter().map(|[y, left, right]| [[*left, *y], [*right, *y]]);
        let grounds: Vec<[[f32; 2]; 2]> = floors.chain(platforms).collect();
        let (stood, on) = counts.entry(game.stage).or_default();
        let fighters = game.frames.iter().flat_map(|frame| frame.players.map(|player| player.fighter));
        for fighter in fighters.filter(|fighter| fighter.on_ground && fighter.action_state == STAND) {
            *stood += 1;
            *on += usize::from(grounds.iter().any(|[[x0, y0], [x1, y1]]| {
                let [x, y] = fighter.position;
                let height = y0 + (y1 - y0) * (x - x0) / (x1 - x0);
                (x0 - 0.1..=x1 + 0.1).contains(&x) && (y - height).abs() < 0.7
            }));
        }
    }
    eprintln!("stage: stood, on what is drawn: {counts:?}");
    assert_eq!(counts.len(), STAGES.len());
    for (id, (stood, on)) in counts {
        // Some stand on what moves.
        let least = if stages::stage(id).unwrap().unseen.is_empty() { 1.0 } else { 0.8 };
        assert!(on as f64 >= least * stood as f64, "stage {id}: {on} of {stood} frames on what is drawn");
    }
}

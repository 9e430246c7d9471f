//! What the columns hold, and that nothing leaks into them.

use super::super::game::{Frame, Player};
use super::*;
use crate::random::numbers;

fn fighter(next: &mut impl FnMut() -> f32) -> Fighter {
    let mut signed = |range: f32| (next() - 0.5) * 2.0 * range;
    let [x, y] = [signed(120.0), signed(80.0)];
    let velocity = std::array::from_fn(|_| signed(4.0));
    Fighter {
        character: (next() * 40.0) as u8,
        action_state: if next() < 0.3 { (next() * 3.0) as u16 } else { (next() * 410.0) as u16 },
        action_frame: next() * 100.0,
        position: [x, y],
        facing: if next() < 0.5 { -1.0 } else { 1.0 },
        percent: next() * 180.0,
        shield: next() * 60.0,
        stocks: (next() * 5.0) as u8,
        jumps: (next() * 7.0) as u8,
        on_ground: next() < 0.5,
        invulnerable: next() < 0.5,
        hitstun: next() * 80.0,
        velocity,
    }
}

fn player(next: &mut impl FnMut() -> f32) -> PlayerFrame {
    let mut signed = || next() * 2.0 - 1.0;
    let controller = Controller { main_stick: [signed(), signed()], c_stick: [signed(), signed()], shoulder: 0.4, buttons: 0 };
    let controller = Controller { buttons: (next() * 8192.0) as u16, shoulder: next(), ..controller };
    PlayerFrame { controller, fighter: fighter(next), nana: (next() < 0.5).then(|| fighter(next)) }
}

fn game(seed: u64, frames: usize) -> Game {
    let mut next = numbers(seed);
    let frame = |id: usize, next: &mut dyn FnMut() -> f32| {
        let mut next = next;
        let players = [player(&mut next), player(&mut next)];
        let projectiles = std::array::from_fn(|_| {
            (next() < 0.5).then(|| Projectile {
                owner: [None, Some(0), Some(1)][(next() * 3.0) as usize],
                kind: (next() * 200.0) as u16,
                position: [next() * 100.0 - 50.0, next() * 50.0],
                velocity: [next() * 8.0 - 4.0, next() - 0.5],
            })
        });
        Frame { id: id as i32 - 123, players, projectiles }
    };
    let frames = (0..frames).map(|id| frame(id, &mut next)).collect();
    Game { stage: 31, players: [Player::default(), Player::default()], frames, ..Game::default() }
}

fn row(game: &Game, t: usize, player: usize) -> (Vec<f32>, Vec<u32>) {
    let (mut features, mut ids) = (vec![f32::NAN; WIDTH], vec![7777; IDS]);
    Embedding::default().encode(game, t, player, None, &mut features, &mut ids).unwrap();
    (features, ids)
}

fn observe(observation: &Observation) -> (Vec<f32>, Vec<u32>) {
    let (mut features, mut ids) = (vec![f32::NAN; WIDTH], vec![7777; IDS]);
    Embedding::default().observe(observation, None, &mut features, &mut ids).unwrap();
    (features, ids)
}

#[test]
fn the_schema_adds_up() {
    let mut end = 0;
    for field in &SCHEMA {
        assert_eq!(field.offset, end, "{} starts where the one before it ends", field.name);
        assert!(field.width > 0 && field.scale > 0.0 && field.clip[0] < field.clip[1], "{}", field.name);
        assert!((field.odd as usize) < 1 << field.width.min(8), "{}", field.name);
        // Changing the sign stays within the limits only if they are symmetric.
        assert!(field.odd == 0 || field.clip[0] == -field.clip[1], "{}", field.name);
        end += field.width;
    }
    assert_eq!(end, 283);
    let names: HashSet<&str> = SCHEMA.iter().map(|f| f.name).collect();
    assert_eq!(names.len(), FIELDS);
    let starts = ["own.percent", "opponent.percent", "stage", "previous.buttons", "name", "distance", "projectile0.exists"];
    assert_eq!(starts.map(offset), [0, 56, 112, 119, 132, 244, 248]);
    let categories = ACTION_CATEGORIES;
    assert!(categories.windows(2).all(|pair| pair[0].2 < pair[1].1) && categories.iter().all(|c| c.1 <= c.2));
}

/// One input at a time, through the whole path, against the column and the value that the schema names.
#[test]
fn every_input_lands_in_its_column() {
    let base = Observation { stage: 31, ..Observation::default() };
    let check = |name: &str, k: usize, expected: f32, change: &dyn Fn(&mut Observation)| {
        let mut observation = base;
        change(&mut observation);
        let found = observe(&observation).0[offset(name) + k];
        assert!((found - expected).abs() < 1e-6, "{name}[{k}]: expected {expected}, found {found}");
    };
    type Set = fn(&mut Fighter);
    let fields: [(&str, usize, f32, Set); 16] = [
        ("percent", 0, 0.5, |f| f.percent = 50.0),
        ("facing", 0, -1.0, |f| f.facing = -1.0),
        ("position", 0, -2.0, |f| f.position[0] = -40.0),
        ("position", 1, 1.5, |f| f.position[1] = 30.0),
        ("invulnerable", 0, 1.0, |f| f.invulnerable = true),
        ("jumps", 0, 1.0 / 3.0, |f| f.jumps = 2),
        ("shield", 0, 0.6, |f| f.shield = 60.0),
        ("on_ground", 0, 1.0, |f| f.on_ground = true),
        ("velocity", 0, 0.5, |f| f.velocity[0] = 1.0),
        ("velocity", 1, 1.0, |f| f.velocity[1] = 2.0),
        ("velocity", 2, 1.5, |f| f.velocity[2] = 3.0),
        ("velocity", 4, 2.5, |f| f.velocity[4] = 5.0),
        ("hitstun", 0, 0.25, |f| f.hitstun = 30.0),
        ("action_frame", 0, 2.0, |f| f.action_frame = 200.0),
        ("stocks", 0, 0.75, |f| f.stocks = 3),
        ("ledge", 0, 0.5, |f| f.position[0] = -34.2),
    ];
    for (who, side) in ["own", "opponent"].into_iter().enumerate() {
        for (name, k, expected, set) in fields {
            check(&format!("{side}.{name}"), k, expected, &|o| set(&mut o.players[who].fighter));
            if !["jumps", "shield", "velocity", "ledge"].contains(&name) {
                check(&format!("{side}.nana.{name}"), k, expected, &|o| set(o.players[who].nana.insert(Fighter::default())));
            }
        }
        let nana = |state: u16| move |o: &mut Observation| o.players[who].nana.insert(Fighter::default()).action_state = state;
        check(&format!("{side}.nana.exists"), 0, 1.0, &|o| nana(14)(o));
        check(&format!("{side}.nana.exists"), 0, 0.0, &|_| ());
        check(&format!("{side}.nana.category"), 0, 1.0, &|o| nana(10)(o));
        check(&format!("{side}.nana.category"), 12, 1.0, &|o| nana(65)(o));
        check(&format!("{side}.nana.category"), 24, 1.0, &|o| nana(382)(o));
        check(&format!("{side}.nana.attacking"), 0, 1.0, &|o| nana(44)(o));
        check(&format!("{side}.nana.grabbing"), 0, 1.0, &|o| nana(212)(o));
        check(&format!("{side}.nana.can_act"), 0, 1.0, &|o| nana(14)(o));
        check(&format!("{side}.nana.synced"), 0, 1.0, &|o| nana(0)(o));
        check(&format!("{side}.nana.synced"), 0, 0.0, &|o| nana(14)(o));
    }
    for (i, (id, _)) in STAGES.into_iter().enumerate() {
        check("stage", i, 1.0, &|o| o.stage = id);
    }
    check("stage", 6, 1.0, &|o| o.stage = 9);
    check("previous.buttons", 0, 1.0, &|o| o.players[0].controller.buttons = buttons::A);
    check("previous.buttons", 7, 1.0, &|o| o.players[0].controller.buttons = buttons::D_UP);
    check("previous.main_stick", 1, -0.5, &|o| o.players[0].controller.main_stick[1] = -0.5);
    check("previous.c_stick", 0, 0.25, &|o| o.players[0].controller.c_stick[0] = 0.25);
    check("previous.shoulder", 0, 0.35, &|o| o.players[0].controller.shoulder = 0.35);
    let apart = |o: &mut Observation| o.players[1].fighter.position = [-30.0, 40.0];
    check("distance", 0, 0.25, &apart);
    check("relative.x", 0, -0.15, &apart);
    check("relative.y", 0, 0.4, &apart);
    check("frame", 0, 0.5, &|o| o.frame_id = 14400);
    let projectile = Projectile { owner: Some(1), kind: 99, position: [20.0, -20.0], velocity: [2.0, -4.0] };
    for (i, expected) in [1.0, -0.5, 1.0, -1.0, 0.99, 1.0, -2.0].into_iter().enumerate() {
        check("projectile4.exists", i, expected, &|o| o.projectiles[4] = Some(projectile));
    }
}

/// The action of frame t must not be readable from what is encoded for it.
#[test]
fn nothing_of_the_frame_to_predict_leaks() {
    let whole = game(1, 12);
    for t in 1..12 {
        let mut other = whole.clone();
        other.frames[t..].clone_from_slice(&game(2, 12).frames[t..]);
        assert_ne!(whole.frames[t], other.frames[t]);
        for player in 0..2 {
            assert_eq!(row(&whole, t, player), row(&other, t, player), "frame {t}");
        }
        // And the frame before does matter: its fighters and the player's own controller, not the opponent's.
        let mut before = whole.clone();
        before.frames[t - 1].players[1].controller.main_stick = [0.123, 0.456];
        assert_eq!(row(&whole, t, 0), row(&before, t, 0));
        let (own, stick) = (row(&before, t, 1).0, offset("previous.main_stick"));
        assert_eq!(own[stick..stick + 2], [0.123, 0.456]);
        before.frames[t - 1].players[1].fighter.percent = 199.0;
        assert_ne!(row(&whole, t, 0), row(&before, t, 0));
    }
}

#[test]
fn both_players_see_the_same_from_their_sides() {
    let mut whole = game(3, 4);
    let shot = Projectile { owner: Some(1), kind: 54, ..Projectile::default() };
    whole.frames[1].projectiles[0] = Some(shot);
    let (one, two) = (row(&whole, 2, 0), row(&whole, 2, 1));
    let opponent = offset("opponent.percent");
    assert_eq!(one.0[..opponent], two.0[opponent..2 * opponent]);
    assert_eq!([one.1[0], one.1[2], one.1[4]], [two.1[1], two.1[3], two.1[5]]);
    let owner = offset("projectile0.owner");
    assert_eq!((one.0[owner], two.0[owner]), (-0.5, 0.5));
    assert_eq!(one.0[offset("relative.x")], -two.0[offset("relative.x")]);
}

/// Left and right exchanged in the whole recording, written without the code under test.
fn mirrored(game: &Game) -> Game {
    let mut game = game.clone();
    for frame in &mut game.frames {
        for player in &mut frame.players {
            player.controller.main_stick[0] *= -1.0;
            player.controller.c_stick[0] *= -1.0;
            for fighter in [Some(&mut player.fighter), player.nana.as_mut()].into_iter().flatten() {
                fighter.position[0] *= -1.0;
                fighter.facing *= -1.0;
                [0, 1, 3].iter().for_each(|i| fighter.velocity[*i] *= -1.0);
                let sides = [(1, 2), (2, 1), (264, 265), (265, 264)];
                if let Some((_, other)) = sides.iter().find(|(id, _)| *id == fighter.action_state) {
                    fighter.action_state = *other;
                }
            }
        }
        for projectile in frame.projectiles.iter_mut().flatten() {
            projectile.position[0] *= -1.0;
            projectile.velocity[0] *= -1.0;
        }
    }
    game
}

#[test]
fn the_mirror_is_an_involution_and_the_mirrored_game() {
    let whole = game(4, 200);
    let other = mirrored(&whole);
    let mut swapped = 0;
    for t in 1..=200 {
        for player in 0..2 {
            let observation = Observation::of(&whole, t, player).unwrap();
            assert_eq!(observation.mirror().mirror(), observation);
            assert_eq!(observation.mirror(), Observation::of(&other, t, player).unwrap());
            let (features, ids) = row(&whole, t, player);
            let (mut m, mut m_ids) = (features.clone(), ids.clone());
            mirror(&mut m, &mut m_ids);
            assert_eq!((&m, &m_ids), (&row(&other, t, player).0, &row(&other, t, player).1));
            assert_ne!(m, features);
            swapped += usize::from(m_ids != ids);
            mirror(&mut m, &mut m_ids);
            assert!(m.iter().zip(&features).all(|(a, b)| a.to_bits() == b.to_bits()));
            assert_eq!(m_ids, ids);
        }
    }
    assert!(swapped > 10, "the source has deaths to the left and right");
}

#[test]
fn whatever_goes_in_finite_numbers_within_the_limits_come_out() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 3.8e22, -1e30, 1e-40] {
        let fighter = Fighter {
            character: 255,
            action_state: u16::MAX,
            action_frame: bad,
            position: [bad, -bad],
            facing: bad,
            percent: bad,
            shield: bad,
            hitstun: bad,
            velocity: [bad; 5],
            ..Fighter::default()
        };
        let controller = Controller { main_stick: [bad; 2], c_stick: [bad; 2], shoulder: bad, buttons: u16::MAX };
        let player = PlayerFrame { controller, fighter, nana: Some(fighter) };
        let projectile = Projectile { owner: Some(9), kind: u16::MAX, position: [bad; 2], velocity: [bad; 2] };
        let observation = Observation {
            stage: u16::MAX,
            frame_id: i32::MIN,
            players: [player, PlayerFrame::default()],
            projectiles: [Some(projectile); PROJECTILES],
        };
        let (features, ids) = observe(&observation);
        for field in &SCHEMA {
            let columns = &features[field.offset..field.offset + field.width];
            assert!(columns.iter().all(|v| (field.clip[0]..=field.clip[1]).contains(v)), "{} of {bad}: {columns:?}", field.name);
        }
        assert_eq!(features[283..], [0.0; 5]);
        assert_eq!(ids, [398, 0, 398, 398, 32, 0]);
    }
}

#[test]
fn names_have_their_columns() {
    let names: Vec<String> = (0..NAMES).map(|i| format!("P{i}")).collect();
    let embedding = Embedding::new(&names).unwrap();
    assert_eq!((embedding.name_index("P111"), embedding.name_index("nobody")), (Some(111), None));
    let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
    embedding.observe(&Observation::default(), Some(111), &mut features, &mut ids).unwrap();
    let block = &features[offset("name")..offset("name") + NAMES];
    assert_eq!((block.iter().sum::<f32>(), block[111]), (1.0, 1.0));
    let error = embedding.observe(&Observation::default(), Some(112), &mut features, &mut ids).unwrap_err();
    assert!(error.to_string().contains("112"));
    let more: Vec<String> = (0..=NAMES).map(|i| format!("P{i}")).collect();
    for wrong in [more, vec!["A".into(), "A".into()], vec![String::new()]] {
        assert!(Embedding::new(&wrong).unwrap_err().to_string().starts_with("config: names"));
    }
}

#[test]
fn a_range_of_frames_is_the_frames_one_by_one() {
    let whole = game(5, 40);
    let (mut features, mut ids) = (vec![0.0; 40 * WIDTH], vec![0; 40 * IDS]);
    Embedding::default().encode_game(&whole, 1..41, 1, None, &mut features, &mut ids).unwrap();
    for t in 1..41 {
        let (f, i) = row(&whole, t, 1);
        assert_eq!((&features[(t - 1) * WIDTH..t * WIDTH], &ids[(t - 1) * IDS..t * IDS]), (&f[..], &i[..]));
    }
}

#[test]
fn wrong_requests_are_errors() {
    let whole = game(6, 3);
    let embedding = Embedding::default();
    let (mut features, mut ids) = (vec![0.0; WIDTH], vec![0; IDS]);
    for (t, player, part) in [(0, 0, "frame 0"), (4, 0, "frame 4"), (usize::MAX, 0, "expected a frame of 1 to 3"), (1, 2, "player 2")] {
        let error = embedding.encode(&whole, t, player, None, &mut features, &mut ids).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(embedding.encode(&whole, 1, 0, None, &mut features[1..], &mut ids).is_err());
    assert!(embedding.encode(&whole, 1, 0, None, &mut features, &mut ids[1..]).is_err());
    assert!(embedding.encode_game(&whole, 1..3, 0, None, &mut features, &mut ids).is_err());
    assert!(Observation::of(&Game::default(), 1, 0).is_err());
}

//! How good a player is in duels, or how fast duels are.
//!
//! `cargo run --release -p candle-envs --example duel -- score [--player script|punish|keys|DIR] [--opponent script|punish|keys] [--games N] [--seed N]`
//! `cargo run --release -p candle-envs --example duel -- speed`
//!
//! DIR is the bundle of a game policy, or of an agent for duels.

use candle_envs::duel::{Duel, Opponent, Score, bots, policy, score};
use candle_envs::{Actions, Autoreset, Env, Vector, VectorEnv, View};
use candle_models::Error;
use candle_models::policy::actions::{ACTION, Action};
use candle_models::policy::embedding::{IDS, WIDTH};
use candle_models::policy::simulation::{Keys, Punish, Script, simulate};
use candle_models::prelude::*;
use candle_models::random::Random;
use std::hint::black_box;
use std::time::Instant;

/// Games that go on at a time: a policy decides in all of them at once.
const SEATS: usize = 64;

fn main() -> candle_models::Result<()> {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("score") => report(&Asked::read(arguments)?),
        Some("speed") => speed(),
        _ => Err(Error::Input("expected score or speed".to_owned())),
    }
}

struct Asked {
    player: String,
    opponent: String,
    games: u32,
    seed: u64,
}

impl Asked {
    fn read(mut arguments: impl Iterator<Item = String>) -> candle_models::Result<Self> {
        let mut asked = Self { player: "script".to_owned(), opponent: "script".to_owned(), games: 1000, seed: 1_000_000 };
        while let Some(name) = arguments.next() {
            let wrong = || Error::Input(format!("{name}: expected --player, --opponent, --games or --seed with a value"));
            let value = arguments.next().ok_or_else(wrong)?;
            match name.as_str() {
                "--player" => asked.player = value,
                "--opponent" => asked.opponent = value,
                "--games" => asked.games = value.parse().map_err(|_| wrong())?,
                "--seed" => asked.seed = value.parse().map_err(|_| wrong())?,
                _ => return Err(wrong()),
            }
        }
        Ok(asked)
    }
}

fn report(asked: &Asked) -> candle_models::Result<()> {
    let start = Instant::now();
    let score = match asked.opponent.as_str() {
        "script" => against::<Script>(asked),
        "punish" => against::<Punish>(asked),
        "keys" => against::<Keys>(asked),
        other => Err(Error::Input(format!("--opponent: expected script, punish or keys, found {other}"))),
    }?;
    println!("{} against {}, {score}", asked.player, asked.opponent);
    let (frames, seconds) = (score.sides.iter().map(|side| side.frames).sum::<u64>(), start.elapsed().as_secs_f64());
    println!("{frames} frames in {seconds:.1} s, {:.0} ns each", 1e9 * seconds / frames.max(1) as f64);
    Ok(())
}

fn against<O: Opponent>(asked: &Asked) -> candle_models::Result<Score> {
    let Asked { player, games, seed, .. } = asked;
    match player.as_str() {
        "script" => score::<O, _>(*games, SEATS, *seed, bots::<Script, _>()),
        "punish" => score::<O, _>(*games, SEATS, *seed, bots::<Punish, _>()),
        "keys" => score::<O, _>(*games, SEATS, *seed, bots::<Keys, _>()),
        bundle => {
            let model = families::shipped().load(&Bundle::open(bundle)?)?;
            let seats = SEATS.min(*games as usize).max(1);
            score::<O, _>(*games, seats, *seed, policy(Runner::new(model, seats, 1)?, Some(Random::new(*seed).stream("actions"))))
        }
    }
}

/// What each part costs in a frame, on one thread: the median of many runs so short that other programs interrupt few of them.
fn speed() -> candle_models::Result<()> {
    const FRAMES: u32 = 64 * 32;
    let mut duel = Duel::<Script>::default();
    let (mut floats, mut ids) = (vec![0.0; WIDTH], vec![0; IDS]);
    let random = Random::new(1).stream("speed");
    let classes: Vec<[u32; ACTION]> =
        (0..4096).map(|i| std::array::from_fn(|k| random.at(i).below(k as u64, Action::default().to_ids()[k].max(1) * 2))).collect();
    let step = |duel: &mut Duel<Script>, i: u32| -> candle_models::Result<()> {
        let action = candle_envs::Action { classes: &classes[(i % 4096) as usize], numbers: &[] };
        let done = duel.step(action).map_err(|e| Error::Input(e.to_string()))?.terminated;
        if done {
            duel.reset(duel.random().clone());
        }
        Ok(())
    };
    let games = median(|| Ok(simulate(1, 28_923).frames.len() as u32))?;
    println!("two scripts, recorded           {games:6.1} ns a frame");
    let mut next = 0..;
    let alone = median(|| next.by_ref().take(FRAMES as usize).try_for_each(|i| step(&mut duel, i)).map(|()| FRAMES))?;
    println!("step against the script         {alone:6.1} ns");
    let view = |duel: &Duel<Script>, floats: &mut [f32], ids: &mut [u32]| {
        duel.observe(View { floats, ids });
        black_box(floats);
    };
    let seen = median(|| {
        (0..FRAMES).for_each(|_| view(&duel, &mut floats, &mut ids));
        Ok(FRAMES)
    })?;
    println!("observation                     {seen:6.1} ns");
    let mut many = Vector::<Duel>::new(64, Autoreset::SameStep).map_err(|e| Error::Input(e.to_string()))?;
    many.reset(0).map_err(|e| Error::Input(e.to_string()))?;
    let actions: Vec<Actions> = classes.chunks_exact(64).map(|chunk| Actions::classes(chunk.concat())).collect();
    let vector = median(|| {
        for actions in actions.iter().take(FRAMES as usize / 64) {
            many.step(actions).map_err(|e| Error::Input(e.to_string()))?;
        }
        Ok(FRAMES)
    })?;
    println!("64 side by side, all of it      {vector:6.1} ns, {:.2} million steps a second", 1e3 / vector);
    Ok(())
}

fn median(mut run: impl FnMut() -> candle_models::Result<u32>) -> candle_models::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..501 {
        let start = Instant::now();
        let frames = run()?;
        times.push(start.elapsed().as_secs_f64() * 1e9 / f64::from(frames));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

//! Two agents, each on a thread of its own, that share one engine: one copy of the weights, a session each.
//!
//! `cargo run --release --example two_agents -- [--bundle DIR] [--frames N]`
//!
//! The game is simulated and does not obey the agents. Without a bundle the policy has random parameters.

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::device;
use candle_models::engine::{Engine, EngineError, Options, Session};
use candle_models::nn::Params;
use candle_models::policy::actions::Action;
use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
use candle_models::policy::game::Game;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::random::Random;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Before this frame nobody can act.
const FIRST: usize = 124;
const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 60);

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(1) };
    let (mut bundle, mut frames) = (None, 300);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--bundle" => bundle = Some(value),
            "--frames" => frames = value.parse().with_context(|| format!("--frames {value}"))?,
            _ => bail!("{argument}: expected --bundle DIR or --frames N"),
        }
    }
    let policy = Arc::new(match bundle {
        Some(dir) => Policy::load(&Bundle::open(dir)?)?,
        None => Policy::new(&PolicyConfig::default(), &Params::init(Random::new(0), &Device::Cpu))?,
    });
    let embedding = Embedding::new(&policy.config().names)?;
    let engine = Engine::start(policy, &Options { sessions: 2, ..Options::default() })?;
    let game = simulate(1, frames + FIRST);
    let sessions = [engine.open()?, engine.open()?];
    std::thread::scope(|scope| {
        let (game, embedding) = (&game, &embedding);
        let start = |(player, session)| scope.spawn(move || play(session, player, game, embedding));
        let agents: Vec<_> = sessions.into_iter().enumerate().map(start).collect();
        agents.into_iter().try_for_each(|agent| agent.join().unwrap_or_else(|_| bail!("an agent panicked")))
    })?;
    let stats = engine.stats();
    let us = |time: Duration| time.as_secs_f64() * 1e6;
    println!("{} steps in {} batches, by size {:?}", stats.steps, stats.batches, &stats.batch_sizes);
    for (stage, times) in [("waiting", &stats.queue), ("running", &stats.execute), ("replying", &stats.reply)] {
        println!("{stage:>9}: p50 {:>6.1} us, p99 {:>6.1} us", us(times.percentile(0.5)), us(times.percentile(0.99)));
    }
    Ok(())
}

fn play(mut agent: Session, player: usize, game: &Game, embedding: &Embedding) -> Result<()> {
    let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
    let (mut previous, mut missed) = (Action::default(), 0);
    let mut deadline = Instant::now();
    for t in FIRST..game.frames.len() {
        deadline += FRAME;
        let mut seen = Observation::of(game, t, player)?;
        seen.players[0].controller = previous.to_controller();
        embedding.observe(&seen, None, &mut features, &mut ids)?;
        agent.set_f32("features", &features)?;
        agent.set_u32("ids", &ids)?;
        agent.set_u32("previous_action", &previous.to_ids())?;
        match agent.step_before(deadline) {
            Ok(()) => previous = Action::from_ids(agent.indices("action")?)?,
            // Too late for this frame: hold what is pressed.
            Err(EngineError::DeadlineExceeded) => missed += 1,
            Err(error) => return Err(error.into()),
        }
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
    }
    println!("player {player}: {} frames, {missed} missed, the last action is {previous}", agent.frames()?);
    Ok(())
}

//! An agent at 60 Hz: open a model, show it every frame, press what it chooses, and mind the deadline.
//!
//! `cargo run --release --example agent_loop -- [--bundle DIR] [--frames N]`
//!
//! The game is simulated and does not obey the agent: what is shown is the loop around a model (one trained without
//! delay, whose action is pressed in the next frame). Without a bundle the policy has random parameters.

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::bundle::Bundle;
use candle_models::device;
use candle_models::engine::{Model, Runner};
use candle_models::nn::Params;
use candle_models::policy::actions::Action;
use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
use candle_models::policy::simulation::simulate;
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::random::Random;
use std::sync::Arc;
use std::time::{Duration, Instant};

const FRAME: Duration = Duration::from_nanos(1_000_000_000 / 60);

fn main() -> Result<()> {
    // SAFETY: no other thread has been started yet. A single row is over before a second thread has woken up.
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
    play(policy, frames)
}

fn play(policy: Arc<Policy>, frames: usize) -> Result<()> {
    let embedding = Embedding::new(&policy.config().names)?;
    println!("{} on a simulated game, {frames} frames at 60 Hz", policy.family());
    let mut agent = Runner::new(policy, 1, 1)?;
    // Before frame 0 nobody can act.
    let game = simulate(1, frames + 124);
    let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
    let mut previous = Action::default();
    let (mut times, mut late) = (Vec::with_capacity(frames), 0);
    let mut deadline = Instant::now();
    for t in 124..game.frames.len() {
        deadline += FRAME;
        let start = Instant::now();
        let mut seen = Observation::of(&game, t, 0)?;
        seen.players[0].controller = previous.to_controller();
        embedding.observe(&seen, None, &mut features, &mut ids)?;
        agent.set_f32("features", &features)?;
        agent.set_u32("ids", &ids)?;
        agent.set_u32("previous_action", &previous.to_ids())?;
        agent.step(&[t == 124])?;
        let action = Action::from_ids(agent.indices("action", 0)?)?;
        let time = start.elapsed();
        if t % 60 == 4 {
            println!("frame {:>5} {:>6.1} us  {action}", game.frames[t].id, time.as_secs_f64() * 1e6);
        }
        previous = action;
        times.push(time);
        match deadline.checked_duration_since(Instant::now()) {
            Some(rest) => std::thread::sleep(rest),
            None => late += 1,
        }
    }
    times.sort();
    let share = |p: f64| times.get((p * times.len() as f64) as usize).or(times.last()).map_or(0.0, |t| t.as_secs_f64() * 1e6);
    println!("p50 {:.1} us, p99 {:.1} us; {late} of {} deadlines of 16.67 ms missed", share(0.5), share(0.99), times.len());
    Ok(())
}

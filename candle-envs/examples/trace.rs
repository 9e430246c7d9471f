//! Prints what an environment does under random actions, a line of JSON per reset or step, for `scripts/gymnasium-check.py` to do again in
//! Python. The numbers of actions go beyond their bounds by a quarter.
//!
//!     cargo run --release -p candle-envs --example trace -- cartpole 42 100 1 next_step

use candle_envs::{Actions, Autoreset, Frame, VectorEnv, shipped};
use candle_models::random::Random;
use serde_json::{Value, json};
use std::error::Error;
use std::io::{BufWriter, Write, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, seed, steps, lanes, autoreset] = &arguments[..] else {
        return Err("usage: trace ENVIRONMENT SEED STEPS LANES next_step|same_step|disabled".into());
    };
    let (seed, steps, autoreset): (u64, u64, Autoreset) = (seed.parse()?, steps.parse()?, serde_json::from_value(json!(autoreset))?);
    let mut envs = shipped().get(name)?.make(lanes.parse()?, autoreset)?;
    let mut out = BufWriter::new(stdout().lock());
    envs.reset(seed)?;
    line(&mut out, envs.as_mut(), json!({ "reset": seed }))?;
    for t in 0..steps {
        let mut actions = Actions::random(envs.spec(), envs.frame(), Random::new(seed).at(t));
        actions.numbers.iter_mut().for_each(|number| *number *= 1.25);
        envs.step(&actions)?;
        line(&mut out, envs.as_mut(), json!({ "classes": actions.classes, "numbers": actions.numbers }))?;
        let Frame { terminated, truncated, .. } = envs.frame();
        let ended: Vec<bool> = terminated.iter().zip(truncated).map(|(terminated, truncated)| *terminated || *truncated).collect();
        if autoreset == Autoreset::Disabled && ended.contains(&true) {
            envs.reset_lanes(&ended)?;
            line(&mut out, envs.as_mut(), json!({ "reset_lanes": ended }))?;
        }
    }
    Ok(out.flush()?)
}

/// A line: what was done and what came of it, with the states as they are saved, in f64.
fn line(out: &mut impl Write, envs: &mut dyn VectorEnv, done: Value) -> Result<(), Box<dyn Error>> {
    let saved: Value = serde_json::from_slice(&envs.resumable().ok_or("nothing to read states from")?.save()?)?;
    let states: Vec<&Value> = saved.as_array().into_iter().flatten().map(|lane| &lane["env"]["state"]).collect();
    let Frame { floats, rewards, terminated, truncated, first, ignored, final_floats, episodes, .. } = envs.frame();
    let episodes: Vec<Value> = episodes.iter().map(|episode| json!([episode.lane, episode.reward, episode.steps])).collect();
    let line = json!({
        "done": done, "states": states, "floats": floats, "rewards": rewards, "terminated": terminated, "truncated": truncated,
        "first": first, "ignored": ignored, "final_floats": final_floats, "episodes": episodes,
    });
    Ok(writeln!(out, "{line}")?)
}

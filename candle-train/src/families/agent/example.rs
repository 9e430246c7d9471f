//! A made-up game, on which everything here can be tried and tested: what the agent does asks for memory.
//!
//! A signal is shown for one frame now and then; three frames later the agent turns as it said. Meanwhile its speed follows the distance to
//! what is ahead. The first can only be imitated with memory, the second without.

use super::episodes::Recording;
use candle_core::{Device, Tensor};
use candle_models::Result;
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::nn::BackboneConfig;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use std::sync::Arc;

/// Frames between a signal and the turn.
const DELAY: usize = 3;
/// Probability that a signal is shown in a frame.
const SHOWN: f32 = 0.25;
/// Bins of the speed.
const BINS: usize = 5;
/// Episodes of a run without recordings, and frames of each.
const EPISODES: u64 = 80;
const FRAMES: usize = 64;

/// The description of an agent that plays it.
pub fn description() -> AgentConfig {
    let distance = Observation::Floats { name: "distance".to_owned(), shape: vec![2], low: Some(0.0), high: Some(1.0) };
    let signal = Observation::Ids { name: "signal".to_owned(), below: vec![3], embedding: 4 };
    let turn = Component::Discrete { name: "turn".to_owned(), classes: 3 };
    let speed = Component::Binned { name: "speed".to_owned(), low: 0.0, high: 1.0, bins: BINS };
    let backbone = BackboneConfig::Gru { layers: 1 };
    AgentConfig { backbone, observation: vec![distance, signal], action: vec![turn, speed], ..AgentConfig::default() }
}

/// What was seen and done in an episode of so many frames: the tensors of a file.
///
/// # Errors
/// If the memory is not to be had.
pub fn play(random: Random, frames: usize) -> Result<NamedTensors> {
    let (shown, which, moved) = (random.stream("shown"), random.stream("which"), random.stream("moved"));
    let signal = |t: usize| if shown.uniform(t as u64) < SHOWN { 1 + which.below(t as u64, 2) } else { 0 };
    let signals: Vec<u32> = (0..frames).map(signal).collect();
    let (mut place, mut distance, mut action) = ([0.5f32; 2], Vec::new(), Vec::new());
    for t in 0..frames {
        for (axis, place) in place.iter_mut().enumerate() {
            *place = (*place + 0.3 * (moved.uniform((2 * t + axis) as u64) - 0.5)).clamp(0.0, 1.0);
        }
        distance.extend(place);
        let turn = t.checked_sub(DELAY).map_or(0, |before| signals[before]);
        action.extend([turn, ((place[0] * BINS as f32) as u32).min(BINS as u32 - 1)]);
    }
    let tensors = [
        ("distance".to_owned(), Tensor::from_vec(distance, (frames, 2), &Device::Cpu)?),
        ("signal".to_owned(), Tensor::from_vec(signals, (frames, 1), &Device::Cpu)?),
        ("action".to_owned(), Tensor::from_vec(action, (frames, 2), &Device::Cpu)?),
    ];
    Ok(tensors.into_iter().collect())
}

/// Recordings of the game, an episode each.
///
/// # Errors
/// If the memory is not to be had.
pub fn recordings(random: Random) -> Result<Vec<Arc<Recording>>> {
    let config = description();
    let one = |episode: u64| Ok(Arc::new(Recording::new(&format!("example {episode}"), &play(random.at(episode), FRAMES)?, &config)?));
    (0..EPISODES).map(one).collect()
}

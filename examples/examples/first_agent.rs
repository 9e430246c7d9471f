//! The program of the README: a trained policy chooses an action in every frame of a simulated game.
//!
//! `cargo run --release --example first_agent` in the folder that holds `weights`.

use candle_models::policy::actions::{ACTION, Action};
use candle_models::policy::embedding::{Embedding, IDS, Observation, WIDTH};
use candle_models::policy::{PolicyConfig, simulation};
use candle_models::prelude::*;
use candle_models::random::Random;

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let bundle = Bundle::open("weights/policy-mamba")?;
    let engine = Engine::start(families::shipped().load(&bundle)?, &Options::default())?;
    let mut agent = engine.open()?; // one session per agent, on any thread; its state stays inside
    let embedding = Embedding::new(&bundle.config::<PolicyConfig>()?.names)?;
    let (mut features, mut ids, mut uniform) = ([0.0; WIDTH], [0; IDS], [0.0; ACTION]);
    let game = simulation::simulate(1, 600); // in its place yours, which fills an `Observation` in each frame
    for frame in 124..600 {
        embedding.observe(&Observation::of(&game, frame, 0)?, None, &mut features, &mut ids)?;
        agent.set_f32("features", &features)?;
        agent.set_u32("ids", &ids)?;
        Random::new(7).at(frame as u64).fill_uniform(0, &mut uniform);
        agent.set_f32("uniform", &uniform)?; // actions are drawn, as likely as the policy finds them
        agent.step()?; // or step_before(deadline), or step_async().await
        let chosen = agent.indices("action")?.to_vec();
        println!("{}", Action::from_ids(&chosen)?); // the buttons, sticks and shoulder to press
        agent.set_u32("previous_action", &chosen)?;
    }
    Ok(())
}

//! A game of your own, learnt by playing it: one `impl Env`, a plan, and the agent in a session of the engine.
//!
//! A ball falls from the top of a field, and a paddle below is to be where it lands. `cargo run --release --example own_env -- [FRAMES]`

use anyhow::Result;
use candle_envs::{Action, Autoreset, Env, Environments, Pcg64, Scene, Spec, Step, Vector, VectorEnv, View};
use candle_models::agent::{Component, Observation};
use candle_models::prelude::*;
use candle_train::agent::ppo::{config::RunConfig, run::Plan};
use candle_train::plan::{TrainingPlan, TrainingResult};
use candle_train::run::{Place, Resources, Stop};
use serde::{Deserialize, Serialize};

const WIDTH: i32 = 9;
const HEIGHT: i32 = 8;

/// A ball that moves to a side as it falls, and a paddle.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Catch {
    ball: [i32; 2],
    drift: i32,
    paddle: i32,
    random: Pcg64,
}

impl Env for Catch {
    fn spec() -> Spec {
        Spec {
            name: "catch".into(),
            observation: vec![Observation::Floats { name: "field".to_owned(), shape: vec![4], low: None, high: None }],
            action: vec![Component::Discrete { name: "move".to_owned(), classes: 3 }],
            players: 1,
            max_steps: Some(HEIGHT as u32),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        (self.ball, self.paddle) = ([random.below(WIDTH as u32) as i32, 0], WIDTH / 2);
        (self.drift, self.random) = (random.below(3) as i32 - 1, random);
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    /// To the left, nowhere, to the right.
    fn step(&mut self, action: Action) -> candle_envs::Result<Step> {
        self.paddle = (self.paddle + action.classes[0] as i32 - 1).clamp(0, WIDTH - 1);
        let next = self.ball[0] + self.drift;
        self.drift = if (0..WIDTH).contains(&next) { self.drift } else { -self.drift };
        self.ball = [self.ball[0] + self.drift, self.ball[1] + 1];
        let landed = self.ball[1] == HEIGHT - 1;
        let reward = if landed && self.ball[0] == self.paddle { 1.0 } else { 0.0 };
        Ok(Step { reward, terminated: landed, truncated: false })
    }

    /// Numbers of the order of one.
    fn observe(&self, to: View) {
        let seen = [self.ball[0], self.ball[1], self.paddle].map(|x| x as f32 / 4.0 - 1.0);
        to.floats.copy_from_slice(&[seen[0], seen[1], seen[2], self.drift as f32]);
    }

    fn draw(&self) -> Scene {
        let mut scene = Scene::new(WIDTH as f32, HEIGHT as f32, [16, 24, 32]);
        scene.circle([self.ball[0] as f32 + 0.5, self.ball[1] as f32 + 0.5], 0.4, [240, 200, 80]);
        scene.rectangle([self.paddle as f32 - 0.2, HEIGHT as f32 - 0.4], [1.4, 0.3], [120, 180, 250]);
        scene
    }
}

fn main() -> Result<()> {
    let frames = std::env::args().nth(1).map_or(Ok(60_000), |frames| frames.parse())?;
    let mut config = RunConfig::preset("classic")?;
    (config.env, config.frames) = ("catch".to_owned(), frames);
    let environments = Environments::default().with::<Catch>("A ball is to be caught");
    let plan = Plan::new(config, &environments, None, Resources::default(), "own_env".to_owned())?;
    let trained = plan.train(&Place::memory(), &Stop::after(None).on_signals()?)?;
    let folder = std::env::temp_dir().join(format!("own_env-{}", std::process::id()));
    print!("{}", trained.save(&folder)?);

    // What was learnt, as any program would use it.
    let engine = Engine::start(families::shipped().load(&Bundle::open(&folder)?)?, &Options::default())?;
    let (mut agent, mut game) = (engine.open()?, Vector::<Catch>::new(1, Autoreset::NextStep)?);
    game.reset(7)?;
    let mut caught = [0, 0];
    while caught[1] < 20 {
        agent.set_f32("field", &game.frame().floats)?;
        agent.step()?;
        let frame = game.step(&candle_envs::Actions::classes(agent.indices("action")?.to_vec()))?;
        for episode in &frame.episodes {
            caught = [caught[0] + usize::from(episode.reward > 0.0), caught[1] + 1];
        }
    }
    println!("caught {} of {} balls", caught[0], caught[1]);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

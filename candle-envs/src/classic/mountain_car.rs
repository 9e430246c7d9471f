//! MountainCar-v0: a car too weak for the hill has to swing up (Moore, "Efficient memory-based learning for robot control", 1990).

use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::{Component, Observation};
use serde::{Deserialize, Serialize};

const LEFT: f64 = -1.2;
const RIGHT: f64 = 0.6;
const GOAL: f64 = 0.5;
const FASTEST: f64 = 0.07;
const FORCE: f64 = 0.001;
const GRAVITY: f64 = 0.0025;

/// A car in a valley. It is pushed to the left (0), not at all (1) or to the right (2); each step costs 1 until it is on the hill to the right.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct MountainCar {
    /// Position, -1.2 to 0.6, and speed per step.
    pub state: [f64; 2],
    random: Pcg64,
}

impl Env for MountainCar {
    fn spec() -> Spec {
        Spec {
            name: "mountain-car".into(),
            observation: vec![Observation::Floats { name: "state".to_owned(), shape: vec![2], low: None, high: None }],
            action: vec![Component::Discrete { name: "push".to_owned(), classes: 3 }],
            players: 1,
            max_steps: Some(200),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        self.state = [random.uniform(-0.6, -0.4), 0.0];
        self.random = random;
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let push = match action.classes {
            [class @ 0..=2] => f64::from(*class) - 1.0,
            other => return Err(EnvError::illegal(format!("{other:?}"), "expected 0, 1 or 2")),
        };
        let [x, speed] = self.state;
        let speed = (speed + (push * FORCE + (3.0 * x).cos() * -GRAVITY)).clamp(-FASTEST, FASTEST);
        let x = (x + speed).clamp(LEFT, RIGHT);
        self.state = [x, if x == LEFT { speed.max(0.0) } else { speed }];
        Ok(Step { reward: -1.0, terminated: x >= GOAL && speed >= 0.0, truncated: false })
    }

    fn observe(&self, to: View) {
        to.floats.iter_mut().zip(self.state).for_each(|(to, x)| *to = x as f32);
    }

    /// That of Gymnasium's picture.
    fn rate() -> f32 {
        30.0
    }

    fn draw(&self) -> Scene {
        let mut scene = Scene::new(1.8, 1.2, [255, 255, 255]);
        let place = |x: f32| [x + 1.2, 1.1 - (0.45 * (3.0 * x).sin() + 0.55)];
        let ground: Vec<[f32; 2]> = (0..=60).map(|i| place(-1.2 + 0.03 * i as f32)).collect();
        ground.windows(2).for_each(|ends| scene.line(ends[0], ends[1], 0.01, [40, 40, 40]));
        let [x, y] = place(GOAL as f32);
        scene.line([x, y], [x, y - 0.15], 0.01, [40, 40, 40]);
        scene.rectangle([x, y - 0.15], [0.08, 0.05], [200, 180, 40]);
        let [x, y] = place(self.state[0] as f32);
        scene.circle([x, y - 0.05], 0.05, [50, 60, 80]);
        scene
    }
}

//! CartPole-v1: a pole on a cart is to be kept upright (Barto, Sutton, Anderson, "Neuronlike adaptive elements that can solve difficult
//! learning control problems", 1983).

use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::{Component, Observation};
use serde::{Deserialize, Serialize};

const GRAVITY: f64 = 9.8;
/// Mass of cart and pole together, kg.
const MASS: f64 = 1.1;
const POLE_MASS: f64 = 0.1;
/// Half of the pole, m.
const LENGTH: f64 = 0.5;
/// N.
const FORCE: f64 = 10.0;
/// s.
const STEP: f64 = 0.02;
const EDGE: f64 = 2.4;
const LEAN: f64 = 12.0 * 2.0 * std::f64::consts::PI / 360.0;

/// A cart with a pole. It is pushed to the left (0) or to the right (1); each step gives 1.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct CartPole {
    /// Position (m), speed, angle (rad) and angular speed.
    pub state: [f64; 4],
    random: Pcg64,
}

impl Env for CartPole {
    fn spec() -> Spec {
        Spec {
            name: "cartpole".into(),
            observation: vec![Observation::Floats { name: "state".to_owned(), shape: vec![4], low: None, high: None }],
            action: vec![Component::Discrete { name: "push".to_owned(), classes: 2 }],
            players: 1,
            max_steps: Some(500),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        self.state = std::array::from_fn(|_| random.uniform(-0.05, 0.05));
        self.random = random;
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    // Inlined it is a fifth faster side by side: 42 instead of 35 million steps/s.
    #[inline]
    fn step(&mut self, action: Action) -> Result<Step> {
        let force = match action.classes {
            [0] => -FORCE,
            [1] => FORCE,
            other => return Err(EnvError::illegal(format!("{other:?}"), "expected 0 or 1")),
        };
        let [x, speed, angle, turn] = self.state;
        let (sin, cos) = angle.sin_cos();
        let push = (force + POLE_MASS * LENGTH * (turn * turn) * sin) / MASS;
        let turning = (GRAVITY * sin - cos * push) / (LENGTH * (4.0 / 3.0 - POLE_MASS * (cos * cos) / MASS));
        let pushing = push - POLE_MASS * LENGTH * turning * cos / MASS;
        self.state = [x + STEP * speed, speed + STEP * pushing, angle + STEP * turn, turn + STEP * turning];
        let [x, _, angle, _] = self.state;
        Ok(Step { reward: 1.0, terminated: x.abs() > EDGE || angle.abs() > LEAN, truncated: false })
    }

    fn observe(&self, to: View) {
        to.floats.iter_mut().zip(self.state).for_each(|(to, x)| *to = x as f32);
    }

    /// As fast as it is: a step is 0.02 s.
    fn rate() -> f32 {
        50.0
    }

    fn draw(&self) -> Scene {
        let mut scene = Scene::new(4.8, 2.0, [255, 255, 255]);
        let [x, _, angle, _] = self.state.map(|x| x as f32);
        let (x, y) = (x + 2.4, 1.5);
        scene.line([0.0, y + 0.1], [4.8, y + 0.1], 0.02, [40, 40, 40]);
        scene.rectangle([x - 0.25, y - 0.1], [0.5, 0.2], [50, 60, 80]);
        scene.line([x, y - 0.1], [x + angle.sin(), y - 0.1 - angle.cos()], 0.08, [200, 150, 100]);
        scene.circle([x, y - 0.1], 0.05, [120, 120, 200]);
        scene
    }
}

//! Pendulum-v1: a pendulum is to be swung up and held there, with as little torque as it takes.

use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::{Component, Observation};
use serde::{Deserialize, Serialize};
use std::f64::consts::{PI, TAU};

const GRAVITY: f64 = 10.0;
/// N m.
const STRONGEST: f32 = 2.0;
/// Rad/s.
const FASTEST: f64 = 8.0;
/// s.
const STEP: f64 = 0.05;

/// A pendulum of 1 m and 1 kg, turned by a torque between -2 and 2; what is beyond is clipped. A step costs by how far from upright it is, how
/// fast, and by the torque.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Pendulum {
    /// Angle from upright (rad), also of several turns, and angular speed (rad/s).
    pub state: [f64; 2],
    random: Pcg64,
}

impl Env for Pendulum {
    fn spec() -> Spec {
        let torque = f64::from(STRONGEST);
        Spec {
            name: "pendulum".into(),
            observation: vec![Observation::Floats { name: "state".to_owned(), shape: vec![3], low: None, high: None }],
            action: vec![Component::Gaussian { name: "torque".to_owned(), columns: 1, low: Some(-torque), high: Some(torque) }],
            players: 1,
            max_steps: Some(200),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        self.state = [random.uniform(-PI, PI), random.uniform(-1.0, 1.0)];
        self.random = random;
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let torque = match action.numbers {
            [torque] if !torque.is_nan() => torque.clamp(-STRONGEST, STRONGEST),
            other => return Err(EnvError::illegal(format!("{other:?}"), "expected a number from -2 to 2")),
        };
        let [angle, speed] = self.state;
        let lean = (angle + PI).rem_euclid(TAU) - PI;
        // Gymnasium computes with the torque in f32 until it meets the f64 of the state.
        let cost = lean * lean + 0.1 * (speed * speed) + f64::from(0.001 * (torque * torque));
        let turning = 1.5 * GRAVITY * angle.sin() + f64::from(3.0 * torque);
        let speed = (speed + turning * STEP).clamp(-FASTEST, FASTEST);
        self.state = [angle + speed * STEP, speed];
        Ok(Step { reward: -cost, terminated: false, truncated: false })
    }

    fn observe(&self, to: View) {
        let [angle, speed] = self.state;
        let (sin, cos) = angle.sin_cos();
        to.floats.iter_mut().zip([cos, sin, speed]).for_each(|(to, x)| *to = x as f32);
    }

    /// As fast as it is: a step is 0.05 s.
    fn rate() -> f32 {
        20.0
    }

    fn draw(&self) -> Scene {
        let mut scene = Scene::new(4.4, 4.4, [255, 255, 255]);
        let angle = self.state[0] as f32;
        // A positive angle leans to the left, as in Gymnasium's picture.
        scene.line([2.2, 2.2], [2.2 - angle.sin(), 2.2 - angle.cos()], 0.2, [204, 77, 77]);
        scene.circle([2.2, 2.2], 0.05, [0, 0, 0]);
        scene
    }
}

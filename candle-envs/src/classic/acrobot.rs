//! Acrobot-v1: two links hang from a bar, only the joint between them has a motor, and the end is to be swung above the bar (Sutton,
//! "Generalization in reinforcement learning: successful examples using sparse coarse coding", 1996).

use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::{Component, Observation};
use serde::{Deserialize, Serialize};
use std::f64::consts::{FRAC_PI_2, PI, TAU};

const GRAVITY: f64 = 9.8;
/// Rad/s, of each link.
const FASTEST: [f64; 2] = [4.0 * PI, 9.0 * PI];
/// s.
const STEP: f64 = 0.2;

/// Two links of 1 m and 1 kg. The torque between them is -1 (0), none (1) or 1 N m (2); each step costs 1 until the end is 1 m above the bar.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Acrobot {
    /// Angle of the first link from hanging (rad), angle of the second from the first, and their angular speeds (rad/s).
    pub state: [f64; 4],
    random: Pcg64,
}

impl Env for Acrobot {
    fn spec() -> Spec {
        Spec {
            name: "acrobot".into(),
            observation: vec![Observation::Floats { name: "state".to_owned(), shape: vec![6], low: None, high: None }],
            action: vec![Component::Discrete { name: "torque".to_owned(), classes: 3 }],
            players: 1,
            max_steps: Some(500),
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        // Gymnasium begins in f32 and goes on in f64.
        self.state = std::array::from_fn(|_| f64::from(random.uniform(-0.1, 0.1) as f32));
        self.random = random;
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let torque = match action.classes {
            [class @ 0..=2] => f64::from(*class) - 1.0,
            other => return Err(EnvError::illegal(format!("{other:?}"), "expected 0, 1 or 2")),
        };
        let [first, second, turn, bend] = runge_kutta(self.state, torque);
        let [first, second] = [first, second].map(wrap);
        self.state = [first, second, turn.clamp(-FASTEST[0], FASTEST[0]), bend.clamp(-FASTEST[1], FASTEST[1])];
        let terminated = -first.cos() - (second + first).cos() > 1.0;
        Ok(Step { reward: if terminated { 0.0 } else { -1.0 }, terminated, truncated: false })
    }

    fn observe(&self, to: View) {
        let [first, second, turn, bend] = self.state;
        let ((sin, cos), (second_sin, second_cos)) = (first.sin_cos(), second.sin_cos());
        to.floats.iter_mut().zip([cos, sin, second_cos, second_sin, turn, bend]).for_each(|(to, x)| *to = x as f32);
    }

    fn draw(&self) -> Scene {
        let mut scene = Scene::new(4.4, 4.4, [255, 255, 255]);
        let [first, second, ..] = self.state.map(|x| x as f32);
        let below = |[x, y]: [f32; 2], angle: f32| [x + angle.sin(), y + angle.cos()];
        let bar = [2.2, 2.2];
        let joint = below(bar, first);
        let end = below(joint, first + second);
        scene.line([0.0, 1.2], [4.4, 1.2], 0.02, [40, 40, 40]);
        for (from, to) in [(bar, joint), (joint, end)] {
            scene.line(from, to, 0.2, [0, 180, 180]);
            scene.circle(from, 0.1, [200, 200, 40]);
        }
        scene
    }
}

/// The state after a step by the Runge-Kutta method of the fourth order.
fn runge_kutta(state: [f64; 4], torque: f64) -> [f64; 4] {
    let ahead = |slope: [f64; 4], time: f64| change(std::array::from_fn(|i| state[i] + time * slope[i]), torque);
    let k1 = change(state, torque);
    let k2 = ahead(k1, STEP / 2.0);
    let k3 = ahead(k2, STEP / 2.0);
    let k4 = ahead(k3, STEP);
    std::array::from_fn(|i| state[i] + STEP / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i]))
}

/// What the state changes by in a second. The order of the sums is Gymnasium's, so that results are equal to the bit.
fn change([first, second, turn, bend]: [f64; 4], torque: f64) -> [f64; 4] {
    let (sin, cos) = second.sin_cos();
    let d1 = 0.25 + (1.25 + cos) + 1.0 + 1.0;
    let d2 = 0.25 + 0.5 * cos + 1.0;
    let phi2 = 0.5 * GRAVITY * (first + second - FRAC_PI_2).cos();
    let phi1 = -0.5 * (bend * bend) * sin - bend * turn * sin + 1.5 * GRAVITY * (first - FRAC_PI_2).cos() + phi2;
    let bending = (torque + d2 / d1 * phi1 - 0.5 * (turn * turn) * sin - phi2) / (1.25 - d2 * d2 / d1);
    [turn, bend, -(d2 * bending + phi1) / d1, bending]
}

/// The same angle between minus and plus half a turn.
fn wrap(angle: f64) -> f64 {
    if angle.abs() <= PI { angle } else { angle - TAU * ((angle.abs() - PI) / TAU).ceil().copysign(angle) }
}

//! Classic control beside Gymnasium.

use candle_envs::classic::CartPole;
use candle_envs::{Action, Env, Pcg64};

/// Golden values of Gymnasium 1.4.0: `gymnasium.make("CartPole-v1")`, `reset(seed=42)`, then five steps.
#[test]
fn cartpole_is_gymnasiums() {
    let mut pole = CartPole::default();
    pole.reset(Pcg64::new(42));
    let near = |found: [f64; 4], expected: [f64; 4]| {
        assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-12), "{found:?}, expected {expected:?}");
    };
    near(pole.state, [0.0273956048556, -0.0061121560248, 0.0358597919911, 0.0197368029059]);
    for class in [1, 0, 1, 1, 0] {
        assert!(!pole.step(Action { classes: &[class], numbers: &[] }).unwrap().terminated);
    }
    near(pole.state, [0.0422939559316, 0.1866812242286, 0.0166159897326, -0.2216322154339]);
}

//! Classic control beside Gymnasium.

use candle_envs::classic::{Acrobot, CartPole, MountainCar, Pendulum};
use candle_envs::{Action, Actions, Autoreset, Env, Pcg64, Step, Vector, VectorEnv, View};
use candle_models::random::Random;

fn seeded<E: Env>(seed: u64) -> E {
    let mut env = E::default();
    env.reset(Pcg64::new(seed));
    env
}

fn choose<E: Env>(env: &mut E, class: u32) -> Step {
    env.step(Action { classes: &[class], numbers: &[] }).unwrap()
}

fn seen<E: Env>(env: &E) -> Vec<f32> {
    let mut floats = vec![0.0; E::spec().floats()];
    env.observe(View { floats: &mut floats, ids: &mut [] });
    floats
}

#[track_caller]
fn near(found: &[f64], expected: &[f64]) {
    assert_eq!(found.len(), expected.len());
    assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-12), "{found:?}, expected {expected:?}");
}

// Golden values of Gymnasium 1.4.0, printed by `scripts/gymnasium-check.py`: `reset(seed=42)`, then five steps.

#[test]
fn cartpole_is_gymnasiums() {
    let mut env: CartPole = seeded(42);
    near(&env.state, &[0.027395604855596334, -0.006112156024794771, 0.03585979199113824, 0.019736802905936393]);
    for class in [1, 0, 1, 1, 0] {
        assert_eq!(choose(&mut env, class), Step { reward: 1.0, ..Step::default() });
    }
    near(&env.state, &[0.04229395593161793, 0.1866812242286434, 0.01661598973263259, -0.22163221543388395]);
    assert_eq!(seen(&env), [0.042_293_955, 0.186_681_23, 0.016_615_99, -0.221_632_21]);
}

#[test]
fn mountain_car_is_gymnasiums() {
    let mut env: MountainCar = seeded(42);
    near(&env.state, &[-0.44520879028880733, 0.0]);
    for class in [2, 0, 1, 2, 0] {
        assert_eq!(choose(&mut env, class), Step { reward: -1.0, ..Step::default() });
    }
    near(&env.state, &[-0.4518781213924846, -0.0028641621733750547]);
    assert_eq!(seen(&env), [-0.451_878_13, -0.002_864_162_2]);
}

#[test]
fn acrobot_is_gymnasiums() {
    let mut env: Acrobot = seeded(42);
    near(&env.state, &[0.05479120835661888, -0.01222431194037199, 0.07171958684921265, 0.039473604410886765]);
    for class in [2, 0, 1, 2, 0] {
        assert_eq!(choose(&mut env, class), Step { reward: -1.0, ..Step::default() });
    }
    near(&env.state, &[-0.019530962758473772, 0.11459123729108872, -0.008258867720542212, -0.24450921282981067]);
    assert_eq!(seen(&env), [0.999_809_27, -0.019_529_72, 0.993_441_6, 0.114_340_62, -0.008_258_868, -0.244_509_22]);
}

#[test]
fn pendulum_is_gymnasiums() {
    let mut env: Pendulum = seeded(42);
    near(&env.state, &[1.721316619099806, -0.12224312049589536]);
    let mut reward = 0.0;
    for torque in [1.0, -2.5, 0.25, 2.0, -0.5] {
        let step = env.step(Action { classes: &[], numbers: &[torque] }).unwrap();
        assert!(!step.terminated && !step.truncated);
        reward = step.reward;
    }
    near(&env.state, &[2.245343368530281, 3.5597569252673336]);
    near(&[reward], &[-5.159471700496919]);
    assert_eq!(seen(&env), [-0.624_543_6, 0.780_989_94, 3.559_757]);
}

/// The state of a step that an error stops is as it was before.
#[test]
fn what_no_rule_allows_is_refused() {
    let mut pendulum: Pendulum = seeded(1);
    let before = pendulum.state;
    for numbers in [&[f32::NAN][..], &[], &[0.0, 0.0]] {
        assert!(pendulum.step(Action { classes: &[], numbers }).is_err());
    }
    assert_eq!(pendulum.state, before);
    let mut beyond = pendulum.clone();
    beyond.step(Action { classes: &[], numbers: &[f32::INFINITY] }).unwrap();
    pendulum.step(Action { classes: &[], numbers: &[2.0] }).unwrap();
    assert_eq!(pendulum.state, beyond.state);
    let illegal = Action { classes: &[3], numbers: &[] };
    assert!(seeded::<MountainCar>(1).step(illegal).is_err() && seeded::<Acrobot>(1).step(illegal).is_err());
}

/// The sum of the rewards of an episode with the classes that `policy` chooses for what it sees.
fn played<E: Env>(seed: u64, policy: impl Fn(&[f32]) -> u32) -> f64 {
    let mut envs = Vector::<E>::new(1, Autoreset::SameStep).unwrap();
    envs.reset(seed).unwrap();
    loop {
        let class = policy(&envs.frame().floats);
        if let Some(episode) = envs.step(&Actions::classes(vec![class])).unwrap().episodes.first() {
            return episode.reward;
        }
    }
}

#[test]
fn known_policies_reach_what_they_are_known_for() {
    for seed in 0..20 {
        let balanced = played::<CartPole>(seed, |s| u32::from(0.1 * s[0] + 0.2 * s[1] + 3.0 * s[2] + 0.5 * s[3] > 0.0));
        assert_eq!(balanced, 500.0, "seed {seed}");
    }
    let mean = (0..50).map(|seed| played::<MountainCar>(seed, |s| if s[1] < 0.0 { 0 } else { 2 })).sum::<f64>() / 50.0;
    assert!((-125.0..-115.0).contains(&mean), "the car needs {mean}");
}

#[test]
fn a_pole_that_nobody_cares_for_falls_after_22_steps() {
    let mut poles = Vector::<CartPole>::new(500, Autoreset::NextStep).unwrap();
    poles.reset(0).unwrap();
    let (mut steps, mut episodes) = (0, 0);
    for t in 0..500 {
        let actions = Actions::random(poles.spec(), poles.frame(), Random::new(0).at(t));
        for episode in &poles.step(&actions).unwrap().episodes {
            (steps, episodes) = (steps + episode.steps, episodes + 1);
        }
    }
    let mean = f64::from(steps) / f64::from(episodes);
    assert!((21.7..22.7).contains(&mean), "{mean} steps");
}

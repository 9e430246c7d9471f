//! Learning in environments: what is learnt by which network, on how many ranks, and what is refused.

use crate::ranks::on_ranks;
use candle_envs::{Action, Env, Environments, Pcg64, Scene, Spec, Step, View, shipped};
use candle_models::agent::{Component, Observation};
use candle_models::bundle::Bundle;
use candle_models::families;
use candle_models::nn::BackboneConfig;
use candle_train::agent::ppo::config::RunConfig;
use candle_train::agent::ppo::run::{Actor, Plan, Trained};
use candle_train::parallel::Single;
use candle_train::plan::{TrainingPlan, TrainingResult};
use candle_train::run::{Place, Resources, Stop};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Shows a sign in the first of four steps only. In each step a class and a number are to say it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Recall {
    sign: f32,
    steps: u32,
    random: Pcg64,
}

impl Env for Recall {
    fn spec() -> Spec {
        Spec {
            name: "recall".into(),
            observation: vec![Observation::Floats { name: "shown".to_owned(), shape: vec![1], low: None, high: None }],
            action: vec![
                Component::Discrete { name: "said".to_owned(), classes: 2 },
                Component::Gaussian { name: "pointed".to_owned(), columns: 1, low: Some(-1.0), high: Some(1.0) },
            ],
            players: 1,
            max_steps: None,
        }
    }

    fn reset(&mut self, mut random: Pcg64) {
        (self.sign, self.steps) = (if random.double() < 0.5 { -1.0 } else { 1.0 }, 0);
        self.random = random;
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> candle_envs::Result<Step> {
        let said = f64::from(u8::from((action.classes[0] == 1) == (self.sign > 0.0)));
        let pointed = 1.0 - f64::from((action.numbers[0] - 0.5 * self.sign).abs());
        self.steps += 1;
        Ok(Step { reward: 0.125 * (said + pointed), terminated: self.steps == 4, truncated: false })
    }

    fn observe(&self, to: View) {
        to.floats[0] = if self.steps == 0 { self.sign } else { 0.0 };
    }

    fn draw(&self) -> Scene {
        Scene::new(1.0, 1.0, [0; 3])
    }
}

/// One of four classes, the first legal one, is worth something; which are legal is drawn, and seen.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Legal {
    legal: [bool; 4],
    steps: u32,
    random: Pcg64,
}

impl Legal {
    fn draw_legal(&mut self) {
        self.legal = std::array::from_fn(|_| self.random.double() < 0.5);
        self.legal[self.random.below(4) as usize] = true;
    }
}

impl Env for Legal {
    fn spec() -> Spec {
        Spec {
            name: "legal".into(),
            observation: vec![Observation::Floats { name: "legal".to_owned(), shape: vec![4], low: None, high: None }],
            action: vec![Component::Discrete { name: "taken".to_owned(), classes: 4 }],
            players: 1,
            max_steps: Some(8),
        }
    }

    fn reset(&mut self, random: Pcg64) {
        (self.random, self.steps) = (random, 0);
        self.draw_legal();
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> candle_envs::Result<Step> {
        let class = action.classes[0] as usize;
        if !self.legal[class] {
            return Err(candle_envs::EnvError::illegal(class, "a legal class"));
        }
        let reward = f64::from(u8::from(self.legal.iter().position(|legal| *legal) == Some(class)));
        self.draw_legal();
        Ok(Step { reward, terminated: false, truncated: false })
    }

    fn observe(&self, to: View) {
        to.floats.iter_mut().zip(self.legal).for_each(|(to, legal)| *to = f32::from(u8::from(legal)));
    }

    fn legal(&self, mask: &mut [bool]) {
        mask.copy_from_slice(&self.legal);
    }

    fn draw(&self) -> Scene {
        Scene::new(1.0, 1.0, [0; 3])
    }
}

fn games() -> Environments {
    shipped().with::<Recall>("Remembers a sign").with::<Legal>("Takes what is legal")
}

fn small(env: &str, backbone: BackboneConfig, rollouts: u64) -> RunConfig {
    let mut config = RunConfig::preset("classic").unwrap();
    (config.env, config.rollout.lanes, config.rollout.steps) = (env.to_owned(), 16, 16);
    (config.update.discount, config.trainer.schedule.peak) = (0.9, 5e-3);
    for network in [&mut config.actor, &mut config.critic] {
        (network.hidden, network.backbone) = (16, backbone.clone());
    }
    config.frames = rollouts * 256;
    (config.trainer.evaluate_every, config.trainer.save_every) = (0, 0);
    config
}

fn mlp() -> BackboneConfig {
    BackboneConfig::Mlp { layers: vec![16] }
}

fn train(config: RunConfig) -> Trained {
    let plan = Plan::new(config, &games(), None, Resources::default(), String::new()).unwrap();
    plan.train(&Place::memory(), &Stop::after(None)).unwrap()
}

/// Classes and numbers together; and an episode's later steps ask for memory.
#[test]
fn what_asks_for_memory_is_learnt_with_memory_only() {
    let reward = |backbone| train(small("recall", backbone, 40)).reward.unwrap().0;
    let (gru, mlp) = (reward(BackboneConfig::Gru { layers: 1 }), reward(mlp()));
    // Without memory three of four steps are guesses: half of the classes, half of the way.
    assert!(gru > 0.9, "with memory {gru}");
    assert!(mlp < 0.75, "without memory {mlp}");
}

#[test]
fn what_is_not_legal_is_never_taken() {
    let reward = train(small("legal", mlp(), 25)).reward.unwrap().0;
    assert!(reward > 7.0, "{reward} of 8");
}

/// One minibatch an epoch has the same rows whoever holds them.
#[test]
fn two_ranks_do_what_one_does() {
    let mut config = small("recall", BackboneConfig::Gru { layers: 1 }, 3);
    (config.update.minibatches, config.update.epochs, config.trainer.optimiser.eps) = (1, 2, 1e-3);
    let plan = |ranks| Plan::new(config.clone(), &games(), None, Resources { ranks, ..Resources::default() }, String::new()).unwrap();
    let values = |trained: &Trained| -> Vec<f32> {
        trained.ended.parameters.values().flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
    };
    let one = plan(Arc::new(Single)).train(&Place::memory(), &Stop::after(None)).unwrap();
    let two = on_ranks(2, |ranks| plan(ranks).train(&Place::memory(), &Stop::after(None)));
    for trained in two {
        let trained = trained.unwrap();
        let (mine, theirs) = (values(&one), values(&trained));
        let far = mine.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far < 2e-4, "{far}");
        let rewards = [&one, &trained].map(|trained| trained.reward.unwrap().0);
        assert!((rewards[0] - rewards[1]).abs() < 0.02, "{rewards:?}");
    }
}

/// A teacher keeps its pupil: with a large weight the parameters hardly move the actions.
#[test]
fn a_bundle_is_trained_on_and_held_by_its_teacher() {
    let dir = tempfile::tempdir().unwrap();
    let bundle = dir.path().join("bundle");
    let first = train(small("legal", mlp(), 10));
    first.save(&bundle).unwrap();
    let start = || Actor::from_bundle(&families::shipped(), &Bundle::open(&bundle).unwrap()).unwrap();
    let go_on = |teacher: f64| {
        let mut config = small("legal", mlp(), 12);
        (config.update.teacher, config.update.critic_alone, config.update.entropy) = (teacher, 2, 0.5);
        let plan = Plan::new(config, &games(), Some(start()), Resources::default(), String::new()).unwrap();
        plan.train(&Place::memory(), &Stop::after(None)).unwrap()
    };
    let distance = |trained: &Trained| -> f64 {
        let far = |(name, tensor): (&String, &candle_core::Tensor)| {
            let before = first.ended.parameters.get(name).unwrap();
            f64::from((tensor - before).unwrap().sqr().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap())
        };
        trained.ended.parameters.iter().filter(|(name, _)| name.starts_with("heads.")).map(far).sum()
    };
    let (held, free) = (distance(&go_on(20.0)), distance(&go_on(0.0)));
    assert!(held < 0.5 * free, "held {held}, free {free}");
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let refused = |change: &dyn Fn(&mut RunConfig)| {
        let mut config = small("recall", mlp(), 1);
        change(&mut config);
        Plan::new(config, &games(), None, Resources::default(), String::new()).err().unwrap().to_string()
    };
    assert!(refused(&|c| c.env = "chess".to_owned()).contains("env: expected one of"));
    assert_eq!(refused(&|c| c.update.discount = 1.5), "config: update.discount: expected 0 to 1, found 1.5");
    assert!(refused(&|c| c.rollout.lanes = 0).starts_with("config: rollout.lanes: expected 1 to"));
    assert!(refused(&|c| c.update.minibatches = 257).starts_with("config: update.minibatches: expected 1 to 256"));
    assert!(refused(&|c| c.trainer.accumulate = 2).contains("minibatches are updates"));
    assert!(refused(&|c| c.actor.hidden = 1).contains("hidden"));
}

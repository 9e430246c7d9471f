//! Learning to plan: what is learnt, and what is refused.

use candle_envs::board::{Replies, TicTacToe, reply_tree};
use candle_envs::{Action, Env, Environments, Pcg64, Scene, Spec, Step, View, shipped};
use candle_models::agent::{Component, Observation};
use candle_models::bundle::Bundle;
use candle_models::candle_core::Device;
use candle_models::muzero::{Dynamics, MuZeroFamily, NetworkConfig};
use candle_models::nn::Params;
use candle_models::registry::Family;
use candle_train::muzero::config::{RunConfig, Search};
use candle_train::muzero::play::Planned;
use candle_train::muzero::run::{Plan, Trained};
use candle_train::plan::TrainingPlan;
use candle_train::run::{Place, Resources, Stop};
use serde::{Deserialize, Serialize};

/// Places in a row, from the middle of which one goes left or right. The left end earns a little at once; the right end, twice as far, three times as
/// much.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Corridor {
    at: i32,
    random: Pcg64,
}

impl Env for Corridor {
    fn spec() -> Spec {
        Spec {
            name: "corridor".into(),
            observation: vec![Observation::Floats { name: "place".to_owned(), shape: vec![7], low: None, high: None }],
            action: vec![Component::Discrete { name: "step".to_owned(), classes: 2 }],
            players: 1,
            max_steps: Some(20),
        }
    }

    fn reset(&mut self, random: Pcg64) {
        (self.at, self.random) = (2, random);
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> candle_envs::Result<Step> {
        self.at += if action.classes[0] == 1 { 1 } else { -1 };
        let reward = match self.at {
            0 => 0.3,
            6 => 1.0,
            _ => 0.0,
        };
        Ok(Step { reward, terminated: reward > 0.0, truncated: false })
    }

    fn observe(&self, to: View) {
        to.floats.fill(0.0);
        to.floats[self.at as usize] = 1.0;
    }

    fn draw(&self) -> Scene {
        Scene::new(7.0, 1.0, [0; 3])
    }
}

fn games() -> Environments {
    shipped().with::<Corridor>("Goes the longer way")
}

fn small() -> RunConfig {
    let mut config = RunConfig::preset("classic").unwrap();
    config.env = "corridor".to_owned();
    (config.play.lanes, config.play.steps, config.play.simulations) = (8, 20, 8);
    (config.learn.updates, config.learn.batch, config.learn.unroll, config.learn.horizon) = (10, 32, 3, 3);
    (config.network, config.frames) = (NetworkConfig::Mlp { width: 16, layers: 1 }, 5_000);
    // Who waits loses something.
    config.learn.discount = 0.9;
    (config.evaluation.episodes, config.evaluation.simulations) = (4, 8);
    (config.trainer.evaluate_every, config.trainer.save_every) = (0, 0);
    config
}

fn train(config: RunConfig) -> Trained {
    let plan = Plan::new(config, &games(), Resources::default(), String::new()).unwrap();
    plan.train(&Place::memory(), &Stop::after(None)).unwrap()
}

#[test]
fn the_longer_way_is_learnt_by_either_search() {
    // The published search needs more simulations to try what its prior does not favour.
    for (search, simulations, consistency) in [(Search::Gumbel, 8, 0.0), (Search::Puct, 24, 0.0), (Search::Gumbel, 8, 2.0)] {
        let mut config = small();
        config.learn.consistency = consistency;
        (config.play.search, config.play.simulations, config.evaluation.simulations) = (search, simulations, simulations);
        let reward = train(config).reward.unwrap().0;
        assert_eq!(reward, 1.0, "{search:?}, consistency {consistency}");
    }
}

/// Nothing is learnt of what comes of an action, nothing of it is in the bundle, and some play suffices to beat random moves.
#[test]
fn a_board_is_learnt_by_its_rules() {
    let mut config = RunConfig::preset("connect-four").unwrap();
    (config.env, config.frames) = ("tictactoe".to_owned(), 4_000);
    config.network = NetworkConfig::Board { channels: 8, blocks: 1 };
    (config.play.lanes, config.play.steps, config.play.simulations) = (16, 16, 16);
    (config.learn.updates, config.learn.batch, config.learn.buffer) = (4, 64, 4_000);
    (config.evaluation.episodes, config.evaluation.simulations) = (16, 32);
    let trained = train(config);
    let reward = trained.reward.unwrap().0;
    assert!(reward > 0.7, "{reward}");
    let names: Vec<&String> = trained.ended.parameters.keys().collect();
    assert!(names.iter().all(|name| name.starts_with("encoder.") || name.starts_with("prediction.")), "{names:?}");
}

/// Every line of play to which replies can lead, from either side.
#[test]
fn the_shipped_tic_tac_toe_loses_to_no_reply() {
    let bundle = Bundle::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../weights/tictactoe")).unwrap();
    let parameters = bundle.read_parameters(&MuZeroFamily.parameters(&bundle).unwrap()).unwrap();
    let parameters = Params::stored(parameters, &Device::Cpu);
    let mut player = Planned::new::<TicTacToe>(&bundle.config().unwrap(), &parameters, 32, (Search::Gumbel, 16)).unwrap();
    for side in 0..2 {
        let Replies { wins, losses, .. } = reply_tree::<TicTacToe>(&mut player, side).unwrap();
        assert!(wins > 50 && losses == 0, "as player {side}: {wins} won, {losses} lost");
    }
}

#[test]
fn what_cannot_be_trained_is_refused() {
    let refused = |change: &dyn Fn(&mut RunConfig)| {
        let mut config = small();
        change(&mut config);
        Plan::new(config, &games(), Resources::default(), String::new()).err().unwrap().to_string()
    };
    assert!(refused(&|c| c.env = "chess".to_owned()).contains("env: expected one of"));
    assert_eq!(refused(&|c| c.play.simulations = 0), "config: play.simulations: expected 1 to 65536, found 0");
    let small = refused(&|c| (c.learn.buffer, c.learn.memory_mb) = (100_000_000, 10));
    assert!(small.contains("more than learn.memory_mb 10"), "{small}");
    assert!(refused(&|c| c.learn.buffer = 30).contains("too few for 8 environments"));
    assert!(refused(&|c| c.learn.unroll = 0).contains("learn.unroll: expected 1 to 64"));
    assert!(refused(&|c| c.dynamics = Dynamics::Rules).contains("learn.unroll: expected 0 to 0"));
    let without = refused(&|c| (c.dynamics, c.learn.unroll) = (Dynamics::Rules, 0));
    assert!(without.contains("corridor has no rules"), "{without}");
    assert!(refused(&|c| c.learn.discount = 0.0).contains("discount"));
    assert!(refused(&|c| c.network = NetworkConfig::Board { channels: 8, blocks: 1 }).contains("expected one grid"));
}

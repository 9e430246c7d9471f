//! Training in memory.

use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, Heads};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Place, Plan, Trained};
use candle_train::policy::shards::Shard;
use candle_train::stop::Stop;
use candle_train::trainer::{Outcome, with_large_stack};
use std::sync::Arc;

fn games(train: u64, held_out: u64, frames: usize) -> Games {
    let shard = |seed: u64| Arc::new(Shard::from_game(&simulate(seed, frames), &format!("simulated{seed}")).unwrap());
    Games { train: (0..train).map(shard).collect(), held_out: (train..train + held_out).map(shard).collect() }
}

fn config(backbone: &str, epochs: u64) -> RunConfig {
    let mut config = RunConfig::preset("quick").unwrap();
    config.epochs = epochs;
    config.model.backbone = BackboneConfig::named(backbone).unwrap();
    if let BackboneConfig::Mlp { layers } = &mut config.model.backbone {
        *layers = vec![64];
    }
    (config.model.hidden, config.model.embedding) = (32, 8);
    (config.data.batch, config.data.unroll) = (4, 32);
    config
}

fn train(config: RunConfig, games: &Games, order: Order) -> Trained {
    with_large_stack(|| Plan::new(config, games, order)?.train(&Place::Memory, &Stop::after(None))).unwrap()
}

#[test]
fn one_batch_is_learnt_by_heart() {
    let games = games(1, 0, 600);
    for (backbone, heads) in [("mlp", Heads::Independent), ("gru", Heads::Autoregressive)] {
        let mut config = config(backbone, 60);
        config.model.heads = heads;
        config.trainer.schedule.peak = 1e-2;
        let loss = train(config, &games, Order::FirstBatch).loss;
        assert!(loss < 0.05, "{backbone}: {loss} nats a frame after training on one batch");
    }
}

#[test]
fn a_short_run_beats_guessing_by_frequency() {
    let mut config = config("mamba", 12);
    config.trainer.schedule.peak = 1e-2;
    let trained = train(config, &games(4, 1, 1500), Order::Epochs);
    assert_eq!(trained.outcome, Outcome::Finished);
    let total = |name: &str| trained.table.iter().find(|r| r.0.contains(name)).unwrap().1.all().total();
    let (policy, marginal) = (total("mamba"), total("marginal"));
    assert!(policy < 0.5 * marginal, "policy {policy}, marginal frequencies {marginal} nats a frame");
    let frames = |i: usize| trained.table[i].1.all().frames;
    assert!((0..trained.table.len()).all(|i| frames(i) == 2 * 1499), "all rows of the table are about the same frames");
}

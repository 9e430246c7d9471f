//! Training in memory.

use candle_core::DType;
use candle_models::device;
use candle_models::ops::Products;
use candle_models::policy::actions::Action;
use candle_models::policy::baselines::Baselines;
use candle_models::policy::prior;
use candle_models::policy::replay;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, Heads};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan, Trained};
use candle_train::policy::shards::{self, Shard};
use candle_train::run::Place;
use candle_train::stop::Stop;
use candle_train::trainer::{Outcome, Resources, Weights, with_large_stack};
use std::path::Path;
use std::sync::Arc;

fn games(train: u64, held_out: u64, frames: usize) -> Games {
    let shard = |seed: u64| Arc::new(Shard::from_game(&simulate(seed, frames), &format!("simulated{seed}")).unwrap());
    Games { train: (0..train).map(shard).collect(), held_out: (train..train + held_out).map(|i| shard(i).into()).collect() }
}

fn config(backbone: &str, epochs: u64) -> RunConfig {
    let mut config = RunConfig::preset("quick").unwrap();
    config.epochs = epochs;
    config.model.backbone = BackboneConfig::named(backbone).unwrap();
    if let BackboneConfig::Mlp { layers } = &mut config.model.backbone {
        *layers = vec![64];
    }
    // Over count tables a policy has little to learn before it knows much.
    (config.model.hidden, config.model.embedding, config.model.prior) = (32, 8, false);
    (config.data.batch, config.data.unroll) = (4, 32);
    config
}

fn train(config: RunConfig, games: &Games, order: Order) -> Trained {
    with_large_stack(|| Plan::new(config, games, order)?.train(&Place::memory(), &Stop::after(None))).unwrap()
}

#[test]
fn one_batch_is_learnt_by_heart() {
    let games = games(1, 0, 600);
    for (backbone, heads) in [("mlp", Heads::Independent), ("gru", Heads::Autoregressive)] {
        let mut config = config(backbone, 16);
        config.model.heads = heads;
        config.trainer.schedule.peak = 1e-2;
        let loss = train(config, &games, Order::FirstBatch).ended.loss;
        assert!(loss < 0.05, "{backbone}: {loss} nats a frame after training on one batch");
    }
}

#[test]
fn a_short_run_beats_guessing_by_frequency() {
    let mut config = config("mamba", 6);
    config.trainer.schedule.peak = 1e-2;
    let trained = train(config, &games(2, 1, 1000), Order::Epochs);
    assert_eq!(trained.ended.outcome, Outcome::Finished);
    let total = |name: &str| trained.table.iter().find(|r| r.0.contains(name)).unwrap().1.all().total();
    let (policy, marginal) = (total("mamba"), total("marginal"));
    assert!(policy < 0.5 * marginal, "policy {policy}, marginal frequencies {marginal} nats a frame");
    let frames = |i: usize| trained.table[i].1.all().frames;
    assert!((0..trained.table.len()).all(|i| frames(i) == 2 * 999), "all rows of the table are about the same frames");
}

#[test]
fn a_prior_is_counted_and_training_leaves_it() {
    let games = games(2, 1, 1000);
    let run = |prior| {
        let mut config = config("gru", 1);
        (config.model.prior, config.trainer.schedule.peak) = (prior, 1e-3);
        train(config, &games, Order::Epochs)
    };
    let sequences: Vec<Vec<Action>> = (0..2)
        .flat_map(|seed| {
            let game = simulate(seed, 1000);
            [0, 1].map(|player| game.frames.iter().map(|frame| Action::from_controller(&frame.players[player].controller)).collect())
        })
        .collect();
    let [with, without] = [true, false].map(run);
    for (name, table) in prior::of(&Baselines::fit(&sequences)).unwrap() {
        let found = &with.ended.parameters[&name];
        let [found, expected] = [found, &table].map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        assert!(found == expected, "{name} is not what was counted");
        assert!(!without.ended.parameters.contains_key(&name));
    }
    // So few steps teach a network little: what it begins with decides.
    let total = |trained: &Trained| trained.table.iter().find(|row| row.0.contains("gru")).unwrap().1.all().total();
    let [with, without] = [&with, &without].map(total);
    assert!(with < 0.5 * without, "{with} nats a frame with a prior, {without} without");
    let mut refused = config("gru", 1);
    (refused.model.prior, refused.model.heads) = (true, Heads::Independent);
    assert!(Plan::new(refused, &games, Order::Epochs).unwrap_err().to_string().contains("prior"));
}

/// The losses of all steps of a run of that dtype on the CPU.
fn losses(config: &RunConfig, games: &Games, dtype: DType) -> Vec<f64> {
    losses_of(config, games, Resources { dtype, ..Resources::default() }, u64::MAX)
}

/// The losses of the first steps.
fn losses_of(config: &RunConfig, games: &Games, resources: Resources, steps: u64) -> Vec<f64> {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::create(dir.path());
    with_large_stack(|| {
        let mut plan = Plan::new(config.clone(), games, Order::Epochs)?.on(resources)?;
        plan.steps = plan.steps.min(steps);
        plan.train(&place, &Stop::after(None))
    })
    .unwrap();
    let lines = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.filter_map(|line| line["loss"].as_f64()).collect()
}

#[test]
fn the_loss_in_bf16_follows_the_loss_in_f32() {
    bf16_follows_f32(&["mamba"]);
}

/// On a processor with tiles for them; elsewhere they are in f32.
#[test]
fn the_loss_with_products_in_bf16_follows_the_loss_in_f32() {
    let games = games(2, 0, 900);
    for backbone in ["mlp", "gru", "mamba"] {
        let mut config = config(backbone, 1);
        (config.trainer.log_every, config.model.heads, config.model.hidden) = (1, Heads::Autoregressive, 64);
        let of = |products| losses_of(&config, &games, Resources { products, ..Resources::default() }, u64::MAX);
        let [wide, narrow] = [Products::F32, Products::Bf16].map(of);
        assert_eq!(wide != narrow, device::simd() == "amx", "{backbone}: whether anything was rounded");
        let worst = wide.iter().zip(&narrow).map(|(w, n)| (w - n).abs() / w).fold(0.0, f64::max);
        assert!(wide.len() == narrow.len() && worst < 0.05, "{backbone}: {} and {} steps, the worst {worst}", wide.len(), narrow.len());
    }
}

#[test]
#[ignore = "deep: the other backbones of the test above"]
fn the_loss_of_other_backbones_in_bf16_follows_the_loss_in_f32() {
    bf16_follows_f32(&["mlp", "gru", "attention"]);
}

fn bf16_follows_f32(backbones: &[&str]) {
    let games = games(2, 0, 900);
    for &backbone in backbones {
        let mut config = config(backbone, 2);
        config.trainer.log_every = 1;
        config.noise.dropout = 0.1;
        if let BackboneConfig::Attention { heads, window, .. } = &mut config.model.backbone {
            (*heads, *window) = (2, 8);
        }
        let [wide, narrow] = [DType::F32, DType::BF16].map(|dtype| losses(&config, &games, dtype));
        assert!(wide.len() > 40 && wide.len() == narrow.len(), "{backbone}: {} and {} steps", wide.len(), narrow.len());
        assert_ne!(wide, narrow, "{backbone}: nothing was rounded");
        let worst = wide.iter().zip(&narrow).map(|(w, n)| (w - n).abs() / w).fold(0.0, f64::max);
        let [w, n] = [&wide, &narrow].map(|losses| losses[losses.len() - 8..].iter().sum::<f64>() / 8.0);
        eprintln!("{backbone}: {:.3} to {w:.4} in f32 and {n:.4} in bf16, steps differ by up to {worst:.2e}", wide[0]);
        assert!(w < 0.6 * wide[0], "{backbone}: from {} to {w}", wide[0]);
        assert!(worst < 0.05 && (w - n).abs() < 0.02 * w, "{backbone}: {w} in f32, {n} in bf16, worst step {worst}");
    }
}

/// Means over 25 steps.
fn smooth(losses: &[f64]) -> Vec<f64> {
    losses.chunks(25).map(|chunk| chunk.iter().sum::<f64>() / chunk.len() as f64).collect()
}

#[test]
#[ignore = "deep: a real replay and ten times the steps of the test above; needs CANDLE_DATA"]
fn five_hundred_steps_on_a_real_replay_in_bf16_are_those_in_f32() {
    let Some(data) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("skipped: CANDLE_DATA is not set");
        return;
    };
    let replays = replay::collect(&[Path::new(&data).join("slippi")]).unwrap();
    let two: Vec<_> =
        replays.into_iter().filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("t0"))).take(2).collect();
    let cache = tempfile::tempdir().unwrap();
    let train = shards::prepare(&two, cache.path()).unwrap().shards.into_iter().map(Arc::new).collect();
    let games = Games { train, held_out: Vec::new() };
    let mut config = config("mamba", 20);
    (config.data.batch, config.data.unroll, config.trainer.log_every) = (8, 16, 1);
    // The heads and the rate of the preset `mamba`.
    (config.model.heads, config.trainer.schedule.peak) = (Heads::Autoregressive, 1e-3);
    let with = [
        Resources::default(),
        Resources { dtype: DType::BF16, ..Resources::default() },
        Resources { products: Products::Bf16, ..Resources::default() },
    ];
    let [wide, narrow, rounded] = with.map(|resources| losses_of(&config, &games, resources, 500));
    assert_eq!([&wide, &narrow, &rounded].map(Vec::len), [500; 3]);
    assert_ne!(wide, narrow, "nothing was rounded");
    let apart = |narrow: &[f64]| smooth(&wide).iter().zip(smooth(narrow)).map(|(w, n)| (w - n).abs() / w).fold(0.0, f64::max);
    let worst = apart(&narrow).max(apart(&rounded));
    let [first, last] = [smooth(&wide)[0], smooth(&wide)[19]];
    eprintln!("from {first:.3} to {last:.3} nats a frame; curves differ by {:.2}% at most", 100.0 * worst);
    assert!(last < 0.5 * first && worst < 0.01, "from {first} to {last}, curves differ by {worst}");
}

#[test]
fn training_in_f16_and_for_8_bits_learns_as_well() {
    let games = games(2, 0, 900);
    let mut config = config("mamba", 3);
    config.trainer.log_every = 1;
    let mut rounded = config.clone();
    rounded.trainer.weights = Weights::Q8;
    let [wide, narrow, rounded] =
        [(&config, DType::F32), (&config, DType::F16), (&rounded, DType::F32)].map(|(config, dtype)| losses(config, &games, dtype));
    assert_ne!(wide, rounded, "nothing was rounded");
    let end = |losses: &[f64]| losses[losses.len() - 16..].iter().sum::<f64>() / 16.0;
    let [w, n, q] = [&wide, &narrow, &rounded].map(|losses| end(losses));
    eprintln!("{:.3} to {w:.4} in f32, {n:.4} in f16, {q:.4} with weights of 8 bits", wide[0]);
    assert!(w < 0.6 * wide[0] && (n - w).abs() < 0.05 * w && (q - w).abs() < 0.05 * w, "{w} in f32, {n} in f16, {q} in 8 bits");
}

//! Several ranks, as threads, train what one rank does.

use candle_core::Device;
use candle_models::nn::Params;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, Heads, Policy};
use candle_models::random::Random;
use candle_models::{Error, Result};
use candle_train::optim::{OptimiserConfig, Rule};
use candle_train::parallel::{Communicator, Single, threads};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan, Trained};
use candle_train::policy::shards::Shard;
use candle_train::run::Place;
use candle_train::schedule::Schedule;
use candle_train::stop::{Reason, Stop};
use candle_train::trainer::{Outcome, Resources, with_large_stack};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Two games to train on; more short ones held out than are measured at a time.
fn games() -> &'static Games {
    static GAMES: LazyLock<Games> = LazyLock::new(|| {
        let shard = |seed: u64, frames| Arc::new(Shard::from_game(&simulate(seed, frames), &format!("simulated{seed}")).unwrap());
        Games { train: vec![shard(0, 420), shard(1, 420)], held_out: (2..19).map(|seed| shard(seed, 90).into()).collect() }
    });
    &GAMES
}

/// Five lanes, which neither two nor four ranks share evenly; some rows without weight; dropout; two micro batches a step.
fn config() -> RunConfig {
    let mut config = RunConfig::preset("mamba").unwrap();
    config.model.heads = Heads::Autoregressive;
    config.model.backbone = BackboneConfig::named("mamba").unwrap();
    if let BackboneConfig::Mamba { layers, block } = &mut config.model.backbone {
        (*layers, block.state) = (1, 4);
    }
    (config.model.hidden, config.model.embedding) = (16, 4);
    (config.epochs, config.data.batch, config.data.unroll, config.data.burn_in) = (2, 5, 6, 4);
    (config.trainer.log_every, config.trainer.accumulate, config.trainer.compare_every) = (1, 2, 7);
    config
}

/// Runs `f` on every rank of a group of threads.
pub fn on_ranks<T: Send>(size: usize, f: impl Fn(Arc<dyn Communicator>) -> Result<T> + Sync) -> Vec<Result<T>> {
    let f = &f;
    std::thread::scope(|scope| {
        let rank = |rank: threads::ThreadRank| scope.spawn(move || with_large_stack(|| f(Arc::new(rank))));
        let threads: Vec<_> = threads::group(size, Duration::from_secs(120)).into_iter().map(rank).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

fn train(ranks: Arc<dyn Communicator>, config: RunConfig, place: &Place, stop: &Stop) -> Result<Trained> {
    let resources = Resources { ranks, ..Resources::default() };
    Plan::new(config, games(), Order::Epochs)?.on(resources)?.train(place, stop)
}

fn train_on(size: usize, config: &RunConfig, place: &Place, stop: &Stop) -> Vec<Trained> {
    match size {
        1 => vec![with_large_stack(|| train(Arc::new(Single), config.clone(), place, stop)).unwrap()],
        _ => on_ranks(size, |ranks| train(ranks, config.clone(), place, stop)).into_iter().collect::<Result<_>>().unwrap(),
    }
}

/// Momentum without AdamW's division: that makes much of the rounding of gradients near zero.
fn with_sgd() -> RunConfig {
    let mut config = config();
    config.trainer.optimiser = OptimiserConfig { rule: Rule::Sgd, clip: 10.0, ..config.trainer.optimiser };
    config.trainer.schedule.peak = 0.02;
    config
}

fn values(trained: &Trained) -> Vec<f32> {
    trained.ended.parameters.values().flat_map(|t| t.flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect()
}

/// The largest difference over the root mean square of the parameters.
fn distance(a: &Trained, b: &Trained) -> f64 {
    let (a, b) = (values(a), values(b));
    let scale = (a.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / a.len() as f64).sqrt();
    a.iter().zip(&b).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, f64::max) / scale
}

/// What one step of SGD with the learning rate 1 changes: the gradient.
fn gradient(size: usize) -> Vec<f64> {
    let mut config = with_sgd();
    let optimiser = OptimiserConfig { weight_decay: 0.0, clip: 0.0, ema: 0.0, ..config.trainer.optimiser };
    (config.trainer.optimiser, config.trainer.schedule) = (optimiser, Schedule { peak: 1.0, warmup: 0, ..config.trainer.schedule });
    let after = train_on(size, &config, &Place::memory(), &Stop::after(Some(Duration::ZERO))).remove(0);
    assert_eq!(after.ended.step, 1);
    let params = Params::init(Random::new(config.seed).stream("parameters"), &Device::Cpu);
    Policy::new(&after.config.model, &params).unwrap();
    let before = params.vars().into_values().flat_map(|v| v.flatten_all().unwrap().to_vec1::<f32>().unwrap());
    before.zip(values(&after)).map(|(before, after)| f64::from(before - after)).collect()
}

#[test]
fn the_gradient_is_that_of_one_rank() {
    let one = gradient(1);
    let norm = |values: &[f64]| values.iter().map(|x| x * x).sum::<f64>().sqrt();
    for size in [2, 4] {
        let error: Vec<f64> = gradient(size).iter().zip(&one).map(|(a, b)| a - b).collect();
        let error = norm(&error) / norm(&one);
        assert!(norm(&one) > 0.1 && error < 1e-6, "{size} ranks: {error:e}");
    }
}

#[test]
fn two_ranks_train_what_one_does() {
    trained_as_by_one(&[2], [(with_sgd(), 1e-5)]);
}

#[test]
#[ignore = "deep: four ranks, and AdamW, beside the test above"]
fn two_and_four_ranks_train_what_one_does_with_either_rule() {
    trained_as_by_one(&[2, 4], [(with_sgd(), 1e-5), (config(), 1e-3)]);
}

/// Largest differences over the root mean square of the parameters beside each configuration.
fn trained_as_by_one<const N: usize>(sizes: &[usize], configurations: [(RunConfig, f64); N]) {
    for (config, tolerance) in configurations {
        let one = train_on(1, &config, &Place::memory(), &Stop::after(None)).remove(0);
        assert!(one.ended.step >= 50, "{} steps", one.ended.step);
        for &size in sizes {
            let all = train_on(size, &config, &Place::memory(), &Stop::after(None));
            assert!(all.iter().all(|t| values(t) == values(&all[0])), "ranks of {size} ended with different parameters");
            let (rule, distance) = (config.trainer.optimiser.rule, distance(&one, &all[0]));
            eprintln!("{size} ranks, {rule:?}: {distance:.1e} from one after {} steps", one.ended.step);
            assert!(distance < tolerance, "{size} ranks, {rule:?}: {distance:e} from one after {} steps", one.ended.step);
            for (expected, found) in one.table.iter().zip(&all[size - 1].table) {
                let (expected, found) = (expected.1.all().total(), found.1.all().total());
                assert!((expected - found).abs() < 1e-4 * expected, "{size} ranks: {found} instead of {expected}");
            }
        }
    }
}

#[test]
fn gradients_that_travel_during_the_backward_pass_are_the_same() {
    let losses = |overlap: bool, bucket_mb: f64| {
        let all = on_ranks(2, |ranks| {
            let mut config = config();
            (config.epochs, config.trainer.overlap, config.trainer.bucket_mb) = (1, overlap, bucket_mb);
            train(ranks, config, &Place::memory(), &Stop::after(None))
        });
        let all: Vec<Vec<f32>> = all.iter().map(|t| values(t.as_ref().unwrap())).collect();
        assert_eq!(all[0], all[1]);
        all.into_iter().next()
    };
    let plain = losses(false, 25.0);
    for bucket_mb in [25.0, 0.01, 1e-6] {
        assert_eq!(losses(true, bucket_mb), plain, "buckets of {bucket_mb} MB");
    }
}

#[test]
fn a_run_continues_on_another_number_of_ranks() {
    let whole = train_on(1, &with_sgd(), &Place::memory(), &Stop::after(None)).remove(0);
    let dir = tempfile::tempdir().unwrap();
    let place = Place::resume(dir.path());
    let mut sizes = [1, 3, 2, 5].into_iter().cycle();
    let mut parts = 0;
    let last = loop {
        let size = sizes.next().unwrap();
        // Each group of ranks makes one step, or twenty.
        let stop = if parts < 8 { Stop::after(Some(Duration::ZERO)) } else { Stop::after(None) };
        let mut all = train_on(size, &with_sgd(), &place, &stop);
        parts += 1;
        assert!(all.iter().all(|t| t.ended.outcome == all[0].ended.outcome && t.ended.step == all[0].ended.step));
        if all[0].ended.outcome == Outcome::Finished {
            break all.remove(0);
        }
        assert_eq!((all[0].ended.outcome, all[0].ended.step), (Outcome::Stopped(Reason::Time), parts));
    };
    assert_eq!(last.ended.step, whole.ended.step);
    let distance = distance(&whole, &last);
    assert!(distance < 1e-5, "{distance:e} from the run on one rank");
    // Every step was logged once, by one rank.
    let lines = std::fs::read_to_string(dir.path().join("metrics.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let steps: Vec<u64> = lines.iter().filter(|l| !l["loss"].is_null()).map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=whole.ended.step).collect::<Vec<_>>());
}

#[test]
fn one_rank_that_is_asked_to_stop_stops_all() {
    let dir = tempfile::tempdir().unwrap();
    let place = Place::create(dir.path());
    let all = on_ranks(3, |ranks| {
        let limit = (ranks.rank() == 2).then_some(Duration::ZERO);
        train(ranks, config(), &place, &Stop::after(limit))
    });
    for trained in all {
        let trained = trained.unwrap();
        assert_eq!((trained.ended.outcome, trained.ended.step), (Outcome::Stopped(Reason::Time), 1));
    }
    assert_eq!(latest(dir.path()), "step-000000000001");
}

fn latest(directory: &Path) -> String {
    std::fs::read_to_string(directory.join("checkpoints/latest")).unwrap()
}

#[test]
fn what_is_wrong_on_one_rank_is_heard_on_all() {
    let message = |result: &Result<Trained>| result.as_ref().map(|_| ()).unwrap_err().to_string();
    // Another configuration.
    let all = on_ranks(2, |ranks| {
        let mut config = config();
        config.trainer.accumulate += ranks.rank();
        train(ranks, config, &Place::memory(), &Stop::after(None))
    });
    for result in &all {
        let expected = "rank 1 cannot train with rank 0: config.trainer.accumulate: 2 on rank 0, 3 on rank 1";
        assert_eq!(message(result), expected);
    }
    // A directory that rank 0 cannot write.
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let all = on_ranks(2, |ranks| train(ranks, config(), &Place::create(file.clone()), &Stop::after(None)));
    assert!(message(&all[1]).contains("rank 0: ") && message(&all[1]).contains("file"), "{}", message(&all[1]));
    // More ranks than lanes.
    let all = on_ranks(6, |ranks| train(ranks, config(), &Place::memory(), &Stop::after(None)));
    let error = message(&all[5]);
    assert_eq!(error, "config: data.batch: 5 sequences cannot be shared by 6 ranks");
    assert!(matches!(all[0].as_ref().map(|_| ()).unwrap_err(), Error::Config { .. }));
}

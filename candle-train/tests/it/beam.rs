//! Beam controllers: the command as a user runs it, and ranks.

use crate::held::Held;
use crate::{assert_equal_runs, run, text};
use candle_models::Result;
use candle_models::beam::{Beam, DecisionConfig, Evaluation, Products, Sensing, Tapes};
use candle_models::bundle::Bundle;
use candle_models::nn::Params;
use candle_train::beam::config::{Learns, RunConfig};
use candle_train::beam::run::{Plan, Trained};
use candle_train::optim::Rule;
use candle_train::parallel::{Communicator, Single};
use candle_train::plan::TrainingResult;
use candle_train::run::Place;
use candle_train::stop::Stop;
use candle_train::trainer::Resources;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// `candle-train beam` on two threads, with small networks and thirty steps.
fn small(out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.args(["beam", "--threads", "2", "--out"]).arg(out);
    for set in [
        "episodes=2880",
        "episode.batch=48",
        "episode.fewest=3",
        "episode.evaluated=64",
        "model.hidden=16",
        "model.base=16",
        "model.measurements=4",
        "model.decision.width=32",
        "trainer.accumulate=2",
        "trainer.save_every=3",
        "trainer.evaluate_every=10",
        "trainer.log_every=1",
    ] {
        command.args(["--set", set]);
    }
    command
}

#[test]
fn a_killed_run_goes_on_to_the_parameters_of_one_that_was_not() {
    let dir = tempfile::tempdir().unwrap();
    for preset in ["c1", "c3"] {
        let (whole, killed) = (dir.path().join(preset), dir.path().join(format!("{preset}-killed")));
        let command = |out: &Path| {
            let mut command = small(out);
            command.args(["--preset", preset]);
            command
        };
        let done = run(&mut command(&whole));
        assert!(done.status.success(), "{}", text(&done.stderr));
        for _ in 0..2 {
            // Every third step is saved.
            Held::saved(command(&killed).arg("--resume"), &killed, 4).kill();
        }
        let done = run(command(&killed).arg("--resume"));
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_equal_runs(&killed, &whole);
        let model = Beam::load(&Bundle::open(whole.join("bundle")).unwrap(), &candle_core::Device::Cpu).unwrap();
        assert_eq!((model.config.hidden, model.base.is_some()), (16, preset == "c3"));
        let card = std::fs::read_to_string(whole.join("bundle/README.md")).unwrap();
        assert!(card.contains("mean of 10 log10 G, in dB: ") && card.contains("--preset"), "{card}");
    }
}

fn tiny() -> RunConfig {
    let mut config = RunConfig::preset("c3").unwrap();
    (config.episodes, config.episode.batch, config.episode.evaluated) = (5 * 20, 5, 7);
    (config.model.hidden, config.model.base, config.model.measurements, config.episode.fewest) = (12, 8, 4, 3);
    config.model.decision = DecisionConfig::measurements(16, 1);
    (config.trainer.optimiser.rule, config.trainer.schedule.peak, config.trainer.schedule.warmup) = (Rule::Sgd, 1e-2, 0);
    config
}

fn train(ranks: Arc<dyn Communicator>, config: RunConfig) -> Result<Trained> {
    Plan::new(config, None, Resources { ranks, ..Resources::default() })?.train(&Place::memory(), &Stop::after(None))
}

/// A run that begins with a controller and lets only its decision learn takes the steps that the decision takes where everything learns, and leaves
/// what measures as it is, whatever the decision's size.
#[test]
fn a_decision_learns_alone_by_the_measurements_of_a_controller() {
    let dir = tempfile::tempdir().unwrap();
    let before = train(Arc::new(Single), tiny()).unwrap();
    before.save(dir.path()).unwrap();
    let bundle = Bundle::open(dir.path()).unwrap();
    let plan = |config: RunConfig, start| Plan::new(config, start, Resources::default());
    let done = |config| plan(config, Some(&bundle)).unwrap().train(&Place::memory(), &Stop::after(None)).unwrap().ended.parameters;
    let values = |x: &candle_core::Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let one = |learns| {
        let mut config = RunConfig { episodes: 5, learns, ..tiny() };
        // What does not learn has no part in the norm by which gradients are clipped.
        config.trainer.optimiser.clip = 1e6;
        config
    };
    let (all, alone) = (done(one(Learns::All)), done(one(Learns::Decision)));
    for (name, began) in &before.ended.parameters {
        let [began, all, alone] = [began, &all[name], &alone[name]].map(values);
        let decides = Beam::decides(name);
        assert_eq!(began == alone, !decides, "{name}");
        let worst = all.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(!decides || worst < 1e-6, "{name}: {worst}");
    }

    let wider = |mut config: RunConfig| {
        config.model.decision = DecisionConfig::measurements(24, 2);
        config
    };
    let wide = done(wider(one(Learns::Decision)));
    assert_eq!(wide["decision.input.bias"].dims(), [24]);
    for (name, tensor) in wide.iter().filter(|(name, _)| !Beam::decides(name)) {
        assert_eq!(values(tensor), values(&before.ended.parameters[name]), "{name}");
    }
    assert!(["user.", "first", "codebook"].iter().all(|part| wide.keys().any(|name| name.starts_with(part))));

    // What is learned adds to the beams of an estimate from nothing, also where the controller has parameters of that name and shape.
    let mut estimating = one(Learns::Decision);
    estimating.model.decision =
        DecisionConfig::Measurements { width: 16, layers: 1, paths: 1, again: 0, directions: 2, places: 0, unexplained: 0.0 };
    estimating.trainer.schedule.peak = 1e-9;
    assert!(values(&done(estimating)["base.beam.weight"]).iter().all(|x| x.abs() < 1e-6));

    let refused = |config: RunConfig, start| plan(config, start).unwrap_err().to_string();
    assert!(refused(one(Learns::Decision), None).starts_with("config: learns: "));
    let mut other = one(Learns::Decision);
    other.model.hidden = 16;
    let message = refused(other.clone(), Some(&bundle));
    assert!(message.contains("user.") && message.contains("16") && message.contains("12"), "{message}");
    assert!(plan(RunConfig { learns: Learns::All, ..other }, Some(&bundle)).is_ok(), "what has another shape begins anew");
}

#[test]
fn ranks_train_what_one_rank_does() {
    let alone = train(Arc::new(Single), tiny()).unwrap();
    for size in [2, 3] {
        for trained in crate::ranks::on_ranks(size, |ranks| train(ranks, tiny())) {
            let trained = trained.unwrap();
            for (name, want) in &alone.ended.parameters {
                let flat = |x: &candle_core::Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let (found, want) = (flat(&trained.ended.parameters[name]), flat(want));
                let size_of = want.iter().fold(1e-2f32, |m, x| m.max(x.abs()));
                let worst = found.iter().zip(&want).map(|(f, w)| (f - w).abs()).fold(0.0, f32::max);
                assert!(worst < 1e-4 * size_of, "{size} ranks, {name}: {worst} of {size_of}");
            }
            assert!((trained.figures["gain_db"] - alone.figures["gain_db"]).abs() < 1e-2);
        }
    }
    let error = crate::ranks::on_ranks(6, |ranks| train(ranks, tiny())).remove(0).unwrap_err().to_string();
    assert_eq!(error, "config: episode.batch: 5 episodes cannot be shared by 6 ranks");
}

#[test]
fn a_few_hundred_steps_align_better_than_chance_and_need_what_they_measure() {
    let mut config = RunConfig::preset("c3").unwrap();
    (config.episodes, config.episode.batch, config.episode.evaluated) = (128 * 250, 128, 512);
    (config.model.hidden, config.model.base) = (48, 64);
    config.model.decision = DecisionConfig::measurements(96, 1);
    (config.episode.snr_low, config.episode.snr_high) = (10.0, 10.0);
    let model_config = config.model.clone();
    let trained = train(Arc::new(Single), config).unwrap();
    // Random beams have 0.5 dB.
    assert!(trained.figures["gain_db"] > 14.0, "{:?}", trained.figures);
    let model = Beam::new(&model_config, &Params::given(trained.ended.parameters, &candle_core::Device::Cpu)).unwrap();
    let gain = |sensing| {
        let evaluation = Evaluation { seed: 77, snr_db: 10.0, measurements: 16, sensing, first: 0, count: 512 };
        evaluation.controller(&model, &Tapes::new(Products::F32)).unwrap().summary().unwrap().mean_db
    };
    let with = gain(Sensing::Measurements);
    for sensing in [Sensing::Nothing, Sensing::Shuffled, Sensing::Noise] {
        assert!(gain(sensing) < with - 8.0, "{sensing:?}: {} of {with}", gain(sensing));
    }
}

#[test]
fn what_is_wrong_ends_with_a_message() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run");
    for (arguments, message) in [
        (vec!["--set", "model.feedback.values=0"], "feedback.values: 0 is outside"),
        (vec!["--set", "episode.snr_low=nan"], "episode.snr_low: expected -100 to 100 dB"),
        (vec!["--set", "learns=decision"], "learns: a decision can learn alone"),
    ] {
        let output = run(small(&out).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
        assert!(text(&output.stderr).contains(message), "{}", text(&output.stderr));
    }
    let output = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).args(["beam", "--dry-run"]));
    assert!(output.status.success() && text(&output.stdout).contains("steps of 512 episodes"), "{}", text(&output.stderr));
    assert!(!out.exists());
}

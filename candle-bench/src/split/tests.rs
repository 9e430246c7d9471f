use super::*;
use crate::{families, testing};
use candle_core::{Device, Tensor};
use steps::{Phased, Whole};

fn quick() -> Settings {
    Settings { warm_up_s: 0.0, window_s: 0.001, rounds: 4, max_windows: 3, ..Settings::default() }
}

fn suite(trainees: Trainees) -> TrainSplitSuite {
    TrainSplitSuite {
        trainees,
        frames: 4,
        threads: vec![1],
        dtypes: vec!["f32".to_owned()],
        place: Place::cpu(),
        program: "nowhere".into(),
        ranks: None,
        settings: quick(),
    }
}

#[test]
fn every_part_of_every_family_is_timed() {
    let trainees: Trainees = testing::small_trainees().into_iter().map(|trainee| (trainee, vec![2, 3])).collect();
    assert!(trainees.len() > 1);
    let suite = suite(trainees);
    let rows = suite.run(&Host::detect(Some("test".into())), |_| {}).unwrap();
    assert!(suite.not_available().is_empty());
    let found: Vec<_> = rows.iter().map(|row| (row.unit.as_str(), row.samples)).collect();
    let expected =
        suite.trainees.iter().flat_map(|(trainee, _)| [2, 3].map(|batch| (trainee.unit(), trainee.samples(&trainee.case(batch, 4, 1)))));
    assert_eq!(found, expected.collect::<Vec<_>>());
    assert!(found.contains(&("frames", 8)) && found.contains(&("episodes", 3)) && found.contains(&("pairs", 3)), "{found:?}");
    for row in rows {
        let Split { data, forward, backward, optimiser, communication } = row.split;
        assert!(data > 0.0 && forward > 0.0 && backward > 0.0 && optimiser > 0.0, "{:?}", row.split);
        assert_eq!(communication, 0.0, "one rank waits for nobody");
        assert!(row.step_us.n == 4 && row.steps >= 4, "{row:?}");
        assert!((row.split.sum() + row.left_over_us() - row.step_us.p50).abs() < 1e-6 * row.step_us.p50);
        // A peak that something else ran beside makes it a refusal.
        match row.mfu {
            Some(mfu) => assert!(mfu > 0.0 && mfu <= formulas::ABOVE_ROOF, "{row:?}"),
            None => assert!(row.note.starts_with("MFU not available: ") && row.note.contains("% of a roof"), "{}", row.note),
        }
        assert!(row.peak_mb.is_none() && row.note.contains("peak memory not available: nowhere: "), "{}", row.note);
    }
}

#[test]
fn several_ranks_have_communication_and_the_computation_of_a_share() {
    let directory = tempfile::tempdir().unwrap();
    let mlp = testing::trainee("mlp");
    let program = crate::ranks::testing::trainer(directory.path(), "$n");
    let suite = TrainSplitSuite { ranks: Some((program, vec![1, 2, 4])), ..suite(vec![(mlp, vec![3])]) };
    let rows = suite.run(&Host::detect(Some("test".into())), |_| {}).unwrap();
    assert_eq!(rows.iter().map(|row| row.ranks).collect::<Vec<_>>(), [1, 2], "three sequences are too few for four");
    let (row, split) = (&rows[1], rows[1].split);
    // Steps of 14 to 19 ms in rounds of two.
    assert_eq!((row.steps, row.step_us.n, row.step_us.p50), (6, 3, 16_500.0));
    assert!((split.communication - 3300.0).abs() < 1e-6 && (split.data - 1650.0).abs() < 1e-6, "{split:?}");
    assert!(split.forward > 0.0 && split.backward > 0.0 && split.optimiser > 0.0, "{split:?}");
    assert!(row.note.contains("measured alone") && row.peak_mb.is_none());
    let asked = std::fs::read_to_string(directory.path().join("asked")).unwrap();
    assert!(asked.starts_with("launch --nproc 2 ") && asked.contains(" --preset mamba --config "), "{asked}");
}

/// Parts of another computation would say nothing of the trainer's step.
#[test]
fn steps_with_a_clock_train_what_the_trainer_trains_bit_for_bit() {
    for trainee in testing::small_trainees().into_iter().chain([testing::trainee("mamba")]) {
        let (case, cpu) = (trainee.case(2, 5, 1), Device::Cpu);
        let mut whole = Whole::new(&*trainee, &case, &cpu).unwrap();
        let mut phased = Phased::new(&*trainee, &case, &cpu).unwrap();
        (0..3).for_each(|_| assert!(!whole.step().unwrap().is_zero()));
        let spent: f64 = harness::Rounds::round(&mut phased, 3).unwrap().latencies_us.iter().sum();
        assert!((spent - 3.0 * phased.last(1).sum()).abs() < 1e-6 * spent);
        let (ours, theirs) = (whole.average().unwrap(), phased.average().unwrap());
        assert!(!ours.is_empty() && ours.keys().eq(theirs.keys()));
        for (name, tensor) in &ours {
            let values = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(values(tensor), values(&theirs[name]), "{name}");
        }
    }
}

#[test]
fn a_step_adds_up_within_its_tolerance_only() {
    let mlp = testing::trainee("mlp");
    let row = |step: f64| TrainRow {
        host: Host::detect(Some("test".into())),
        case: mlp.case(1, 2, 1),
        ranks: 1,
        unit: "frames".to_owned(),
        samples: 2,
        steps: 1,
        step_us: Summary::of(&[step]).unwrap(),
        split: Split { data: 1.0, forward: 30.0, backward: 50.0, optimiser: 15.0, communication: 4.0 },
        parts_over_step: None,
        parts_over_step_ci: None,
        gflop_per_s: 1.0,
        peak_gflop_per_s: Some(10.0),
        mfu: Some(0.1),
        peak_mb: None,
        gpu_mb: None,
        note: String::new(),
    };
    assert!(row(100.0).adds_up() && row(110.0).adds_up() && row(91.0).adds_up());
    assert!(!row(112.0).adds_up() && !row(89.0).adds_up());
    assert!(row(200.0).line().contains("left over 50.0%, DOES NOT ADD UP"), "{}", row(200.0).line());
    assert_eq!(row(200.0).samples_per_s(), 1e4);
    let json = serde_json::to_string(&row(100.0)).unwrap();
    assert_eq!(serde_json::from_str::<TrainRow>(&json).unwrap(), row(100.0));
    let text = crate::table::csv(&[row(100.0)]);
    assert!(text.lines().all(|line| line.matches(',').count() >= 30), "{text}");
}

#[test]
fn a_share_above_the_roof_is_refused_and_one_without_a_roof_is_none() {
    assert_eq!(mfu(30.0, Some(100.0)), Ok(0.3));
    assert!(mfu(120.0, Some(100.0)).unwrap_err().contains("120% of a roof"));
    assert!(mfu(120.0, None).unwrap_err().contains("not measured on a CPU"));
}

#[test]
fn a_round_that_something_disturbed_is_not_what_a_step_takes() {
    let step = |us: f64| Split { data: us, forward: 2.0 * us, ..Split::default() };
    let round = Split::mean(&[step(1.0), step(5.0)]);
    assert_eq!((round.data, round.forward, round.sum()), (3.0, 6.0, 9.0), "a wait now and then counts");
    let found = Split::median(&[round, step(1000.0), round]);
    assert_eq!((found, found.parts()[1]), (round, ("forward", 6.0)));
}

#[test]
fn what_this_device_does_not_compute_in_is_said() {
    let mlp = testing::trainee("mlp");
    let suite = TrainSplitSuite { dtypes: vec!["f16".to_owned(), "f8".to_owned()], ..suite(vec![(mlp, vec![1])]) };
    let (rows, reasons) = (suite.run(&Host::detect(None), |_| {}).unwrap(), suite.not_available());
    assert!(rows.is_empty() && reasons.len() == 2, "{reasons:?}");
    assert!(
        reasons[0].contains(": not available: config: dtype: expected f32") && reasons[0].ends_with(" on this device, found f16"),
        "{}",
        reasons[0]
    );
}

#[test]
fn a_process_says_how_much_memory_training_took() {
    let (families, trainee) = (families::shipped(), testing::trainee("mlp"));
    let request = MemoryRequest { case: trainee.case(2, 4, 1), config: trainee.manifest().unwrap() };
    let [before, peak] = memory_of(&families, &serde_json::to_string(&request).unwrap()).unwrap();
    assert!(before > 1000 && peak >= before, "{before} and {peak} kB");
    assert!(memory_of(&families, "{}").unwrap_err().to_string().starts_with("not a request"));
    let stranger = MemoryRequest { config: Manifest::new("poker", &()).unwrap(), ..request };
    let error = memory_of(&families, &serde_json::to_string(&stranger).unwrap()).unwrap_err().to_string();
    assert_eq!(error, "no family poker in this program");
}

#[test]
fn the_other_program_is_asked_for_the_same_family_and_gets_its_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run.toml");
    for trainee in testing::small_trainees() {
        let case = trainee.case(8, 6, 1);
        let (preset, text) = trainee.program(&case).unwrap();
        let arguments = program_arguments(&*trainee, &case, &file).unwrap();
        let expected = [trainee.training(), "--preset", preset, "--config", file.to_str().unwrap()];
        assert_eq!(arguments, expected.map(OsString::from));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
        // Another process makes the same from what it is told.
        let again = family::trainee(&families::shipped(), &trainee.manifest().unwrap()).unwrap();
        assert_eq!((again.name(), again.program(&case).unwrap()), (trainee.name(), (preset, text)));
    }
}

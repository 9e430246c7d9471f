use super::*;
use crate::figure::Sense;
use crate::harness::Comparison;
use crate::stats::{Interval, Summary};
use crate::table::{Record, csv, markdown};
use crate::testing;

fn counted(requests: usize, bytes: usize, faults: usize) -> Counted {
    Counted {
        round: Round { latencies_us: vec![1.0; 10], seconds: 1e-5 },
        allocator: "system".to_owned(),
        requests,
        bytes,
        faults,
        mapped_bytes: -2_000_000,
        peak_kilobytes: 10_000,
    }
}

/// The published pool: 98% of memory reused, 0.554 s with it and 0.052 s without.
fn row(with_us: f64, without_us: f64) -> MemoryRow {
    let directory = tempfile::tempdir().unwrap();
    let ratio = without_us / with_us;
    MemoryRow {
        host: Host::detect(Some("test".into())),
        case: testing::network("mlp", directory.path()).case(Pass::Step, 1, 1, 1),
        workload: "training step".to_owned(),
        without: Side::of("system", &[counted(100, 409_600, 100)]),
        with: Side::of("mimalloc", &[counted(100, 409_600, 2)]),
        comparison: Comparison {
            ours_us: Summary::of(&[with_us]).unwrap(),
            theirs_us: Summary::of(&[without_us]).unwrap(),
            ratio,
            ratio_ci: Interval { low: 0.97 * ratio, high: 1.03 * ratio },
            ratio_range: Interval { low: 0.9 * ratio, high: 1.1 * ratio },
            rounds: 4,
        },
    }
}

#[test]
fn a_pool_that_is_slower_is_printed_as_slower_however_much_it_reuses() {
    let slower = row(0.554e6, 0.052e6);
    assert_eq!(slower.with.reused, Some(0.98));
    assert_eq!(slower.verdict(), "10.7 times slower");
    for text in [markdown(std::slice::from_ref(&slower)), csv(std::slice::from_ref(&slower)), slower.line()] {
        assert!(text.contains("10.7 times slower") && !text.contains("faster"), "{text}");
    }
    let ratio = &slower.figures()[1];
    assert!(ratio.value < 0.1 && ratio.sense == Sense::Rate, "{ratio:?}");
    assert_eq!(row(100.0, 150.0).verdict(), "1.50 times faster");
    assert_eq!(row(100.0, 101.0).verdict(), "not told apart (1.01 times faster)");
    let nothing = Side::of("system", &[counted(0, 0, 0)]);
    let idle = MemoryRow { without: nothing.clone(), with: nothing, ..row(100.0, 150.0) };
    assert_eq!(idle.verdict(), "asked for nothing; 1.50 times faster");
}

#[test]
fn counts_are_those_of_a_call() {
    let side = Side::of("system", &[counted(30, 8192, 1), counted(50, 8192, 1)]);
    assert_eq!((side.calls, side.requests, side.faults, side.reused), (20, 4.0, 0.1, Some(0.5)));
    assert!((side.mapped_mb + 4.0).abs() < 1e-9 && (side.peak_mb - 10.24).abs() < 1e-9, "{side:?}");
    assert_eq!(Side::of("system", &[counted(0, 0, 0)]).reused, None, "nothing was asked for");
    let back: MemoryRow = serde_json::from_str(&serde_json::to_string(&row(2.0, 3.0)).unwrap()).unwrap();
    assert_eq!(back, row(2.0, 3.0));
}

#[test]
fn narrow_weights_are_for_the_engine_and_a_missing_program_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let network = testing::network("mlp", directory.path());
    let narrow = network.stored("q8", directory.path()).unwrap();
    let own = Workload::Own { family: "toy".to_owned(), name: "a round".to_owned(), config: serde_json::Value::Null };
    let case = network.case(Pass::Window, 4, 3, 1);
    let suite = MemorySuite {
        networks: vec![network, narrow],
        rows: 1,
        batch: 2,
        frames: 3,
        own: vec![(own, case)],
        program: directory.path().join("nowhere"),
        place: Place::cpu(),
        settings: Settings::default(),
    };
    let names: Vec<_> = suite.cases().iter().map(|(work, case)| (work.name().to_owned(), case.dtype.clone())).collect();
    let expected =
        [("engine step", "f32"), ("step on tensors", "f32"), ("training step", "f32"), ("engine step", "q8"), ("a round", "f32")];
    assert_eq!(names, expected.map(|(name, dtype)| (name.to_owned(), dtype.to_owned())));
    let error = suite.run(&Host::detect(None), |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("nowhere: cannot be started"), "{error:#}");
}

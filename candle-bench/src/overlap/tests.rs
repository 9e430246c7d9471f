use super::*;
use crate::figure::Sense;
use crate::table::{Record, csv};
use crate::testing;

fn suite(kinds: &[&str]) -> OverlapSuite {
    OverlapSuite {
        trainees: kinds.iter().map(|kind| testing::trainee(kind)).collect(),
        batches: vec![2],
        frames: 4,
        threads: vec![1],
        place: Place::cpu(),
        settings: Settings { window_s: 0.001, rounds: 4, ..Settings::default() },
    }
}

#[test]
fn a_loop_has_an_efficiency_between_nothing_and_all() {
    let rows = suite(&["mlp", "mamba"]).run(&Host::detect(Some("test".into())), |_| {}).unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row.rounds == 4 && row.steps >= LEAST_STEPS && row.copy_us.n == 4, "{row:?}");
        match row.hidden {
            Some(Hidden { efficiency, efficiency_ci, gain, .. }) => {
                assert!(
                    (0.0..=1.0).contains(&efficiency) && efficiency_ci.low <= efficiency && efficiency <= efficiency_ci.high,
                    "{row:?}"
                );
                assert!(gain > 0.0, "{row:?}");
            }
            // Whatever else runs beside so short a measurement.
            None => assert!(row.advice.starts_with("refused: ") && row.figures()[1].value.is_nan(), "{row:?}"),
        }
        assert!(row.copy_us.p50 > 0.0 && row.compute_us.p50 > 0.0 && row.both_us.p50 > 0.0, "{row:?}");
        let text = csv(std::slice::from_ref(&row));
        assert!(text.contains("loader's thread"), "{text}");
        let back: OverlapRow = serde_json::from_str(&serde_json::to_string(&row).unwrap()).unwrap();
        assert_eq!(back, row);
        assert_eq!(row.figures().iter().map(|f| f.sense).collect::<Vec<_>>(), [Sense::Time, Sense::Rate, Sense::Yield]);
    }
}

fn rounds(of: impl Fn(f64) -> Round) -> Vec<Round> {
    (0..12).map(|i| of(1.0 + 0.001 * f64::from(i % 3))).collect()
}

#[test]
fn what_is_hidden_is_recommended_and_what_costs_is_not() {
    let all = hidden(&rounds(|x| Round { copy: 40.0 * x, compute: 100.0, both: 100.0 * x })).unwrap();
    assert!(all.efficiency > 0.99 && all.gain > 1.39, "{all:?}");
    assert_eq!(gain_words(&all), "prefetch: a step takes 28.5% less time");
    let half = hidden(&rounds(|x| Round { copy: 40.0 * x, compute: 100.0, both: 120.0 })).unwrap();
    assert!((half.efficiency - 0.5).abs() < 0.01, "{half:?}");
    let worse = hidden(&rounds(|x| Round { copy: 40.0, compute: 100.0, both: 154.0 * x })).unwrap();
    assert!(worse.efficiency == 0.0 && worse.gain < 1.0, "{worse:?}");
    assert!(
        gain_words(&worse).starts_with("no prefetch: both together are 10.")
            && gain_words(&worse).ends_with("slower than one after the other")
    );
    let none = hidden(&rounds(|x| Round { copy: 1.0, compute: 100.0, both: 100.9 * x })).unwrap();
    assert!(gain_words(&none).starts_with("no gain that can be told from noise"), "{}", gain_words(&none));
}

#[test]
fn both_that_are_faster_than_the_longer_one_are_refused() {
    let error = hidden(&rounds(|_| Round { copy: 40.0, compute: 49.0, both: 1.0 })).unwrap_err();
    assert!(error.to_string().contains("the data did not start where it was said to"), "{error}");
    // One round by noise is not.
    let mut some = rounds(|_| Round { copy: 40.0, compute: 100.0, both: 102.0 });
    some[5].both = 80.0;
    assert!((hidden(&some).unwrap().efficiency - 0.95).abs() < 1e-9);
    assert!(hidden(&[]).is_err());
}

#[test]
fn what_makes_its_batches_in_the_step_has_nothing_to_overlap() {
    let trainees =
        testing::small_trainees().into_iter().filter(|t| t.prefetched(&t.case(2, 4, 1), &Place::cpu()).unwrap().is_none()).collect();
    let suite = OverlapSuite { trainees, ..suite(&[]) };
    assert!(!suite.trainees.is_empty());
    let error = format!("{:#}", suite.run(&Host::detect(None), |_| {}).unwrap_err());
    assert!(error.ends_with("its batches are made in the step, and not ahead by a thread"), "{error}");
}

#[test]
fn processors_that_are_shared_are_named() {
    assert_eq!(contention(2, 1), "");
    assert_eq!(contention(1, 1), "the loader's thread shares the one processor with the step: what it hides it takes from it");
    assert!(contention(2, 2).starts_with("the loader's thread shares all 2 processors"));
    assert!(suite(&[]).remarks().unwrap().contains("values are computed where they lie"));
}

use super::*;
use crate::table::{Record, csv};
use crate::testing;
use std::path::Path;

fn suite(directory: &Path, kinds: &[&str]) -> ScalingSuite {
    ScalingSuite {
        networks: kinds.iter().map(|kind| testing::network(kind, directory)).collect(),
        frames: vec![30, 60, 90],
        batches: vec![1, 4],
        sessions: vec![1, 2],
        load_seconds: 0.05,
        threads: vec![1],
        place: Place::cpu(),
        ranks: RankScaling { program: None, counts: vec![1, 2], batch: 4, frames: 8, seconds: 1 },
        settings: Settings { warm_up_s: 0.0, window_s: 0.001, max_windows: 3, ..Settings::default() },
    }
}

#[test]
fn every_axis_has_its_curve_and_a_window_has_two_sides() {
    let directory = tempfile::tempdir().unwrap();
    let suite = suite(directory.path(), &["mlp", "attention"]);
    let rows = suite.run(&Host::detect(Some("test".into())), |_| {}).unwrap();
    let found: Vec<_> = rows.iter().map(|row| (row.case.backbone.as_str(), row.axis, row.part.as_str(), row.points.len())).collect();
    let expected = [
        ("mlp", Axis::Frames, "all", 3),
        ("mlp", Axis::Batch, "all", 2),
        ("mlp", Axis::Sessions, "all", 2),
        ("attention", Axis::Frames, "all", 3),
        ("attention", Axis::Frames, "up to the window of 60", 2),
        ("attention", Axis::Frames, "from the window of 60", 2),
        ("attention", Axis::Batch, "all", 2),
        ("attention", Axis::Sessions, "all", 2),
        ("networks", Axis::Ranks, "all", 0),
    ];
    assert_eq!(found, expected);
    for row in rows.iter().filter(|row| row.axis != Axis::Ranks) {
        let law = row.law.unwrap();
        assert!(law.exponent.is_finite() && law.points == row.points.len(), "{row:?}");
        assert_eq!((law.range.low, law.range.high), (row.points[0].x as f64, row.points[row.points.len() - 1].x as f64));
        assert!(row.points.iter().all(|p| p.latency_us.p50 > 0.0 && p.samples_per_s > 0.0));
    }
    let missing = &rows[8];
    assert!(missing.note.contains("--features cli,mpi") && missing.line().ends_with(&missing.note), "{}", missing.line());
    assert!(missing.figures()[0].value.is_nan());
}

#[test]
fn ranks_have_efficiency_and_communication() {
    let point = |x: usize, us: f64, efficiency: f64| Point {
        x,
        latency_us: Summary::of(&[us]).unwrap(),
        steady: true,
        samples_per_s: 1e6 / us,
        efficiency: Some(efficiency),
        communication: Some(0.125 * (x - 1) as f64),
    };
    let case = testing::trainee("mlp").case(4, 8, 1);
    let points = vec![point(1, 100.0, 1.0), point(2, 60.0, 0.83), point(4, 50.0, 0.5)];
    let row = ScalingRow::new(&Host::detect(Some("test".into())), case, Axis::Ranks, "all".to_owned(), points);
    let text = csv(std::slice::from_ref(&row));
    assert!(text.contains("\"1: 1.00, 2: 0.83, 4: 0.50\",\"1: 0.0, 2: 12.5, 4: 37.5\""), "{text}");
    assert!(row.law.unwrap().exponent < -0.4 && row.line().contains("x^-0.5"), "{}", row.line());
    let json = serde_json::to_string(&row).unwrap();
    assert_eq!(serde_json::from_str::<ScalingRow>(&json).unwrap(), row);
}

#[test]
fn ranks_of_another_program_are_a_curve() {
    let directory = tempfile::tempdir().unwrap();
    let program = Some(crate::ranks::testing::trainer(directory.path(), "$n"));
    let whole = suite(directory.path(), &["mlp"]);
    let ranks = RankScaling { program, ..whole.ranks.clone() };
    let whole = ScalingSuite { ranks, threads: Vec::new(), sessions: Vec::new(), ..whole };
    let rows = whole.run(&Host::detect(Some("test".into())), |_| {}).unwrap();
    let [row] = &rows[..] else { panic!("{rows:?}") };
    let found: Vec<_> = row.points.iter().map(|p| (p.x, p.latency_us.p50, p.efficiency)).collect();
    // The stand-in is no faster with two.
    assert_eq!(found, [(1, 16_500.0, Some(1.0)), (2, 16_500.0, Some(0.5))]);
    assert!(row.points.iter().all(|p| p.communication.is_some_and(|share| (share - 0.2).abs() < 1e-9)), "{row:?}");
}

#[test]
fn what_cannot_be_a_curve_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let whole = suite(directory.path(), &[]);
    let error = |suite: ScalingSuite| suite.validate().unwrap_err().to_string();
    assert!(error(ScalingSuite { frames: vec![60, 30], ..whole.clone() }).starts_with("frames: expected rising numbers"));
    assert!(error(ScalingSuite { batches: vec![0, 3], ..whole.clone() }).starts_with("batches:"));
    let ranks = |counts: Vec<usize>| RankScaling { counts, ..whole.ranks.clone() };
    assert!(error(ScalingSuite { ranks: ranks(vec![2, 4]), ..whole.clone() }).contains("one rank, which is missing"));
    assert!(error(ScalingSuite { ranks: ranks(vec![1, 8]), ..whole.clone() }).starts_with("rank-counts: from 1 to 4"));
    assert!(error(ScalingSuite { load_seconds: 0.0, ..whole }).starts_with("load-seconds:"));
}

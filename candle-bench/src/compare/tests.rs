use super::*;
use crate::families;
use crate::host::Host;
use crate::latency::LatencyRow;
use crate::load::LoadRow;
use crate::ops::OpRow;
use crate::ops::steps::StepRow;
use crate::peers::PeerRow;
use crate::table::Record;
use crate::target::TargetRow;
use std::path::Path;

fn interval(low: f64, high: f64) -> Option<Interval> {
    Some(Interval { low, high })
}

fn time(value: f64, half: f64) -> Figure {
    Figure { interval: interval(value - half, value + half), ..Figure::new("mean latency", "us", Sense::Time, value) }
}

fn verdict(before: &Figure, after: &Figure) -> (Verdict, Option<&'static str>) {
    let found = ComparedFigure::of(before, after, 0.05);
    (found.verdict, found.why)
}

#[test]
fn a_longer_time_is_slower_and_a_higher_rate_faster() {
    assert_eq!(verdict(&time(100.0, 1.0), &time(120.0, 1.0)), (Verdict::Slower, None));
    assert_eq!(verdict(&time(120.0, 1.0), &time(100.0, 1.0)), (Verdict::Faster, None));
    let rate = |value| Figure { sense: Sense::Rate, ..time(value, 1.0) };
    assert_eq!(verdict(&rate(100.0), &rate(120.0)), (Verdict::Faster, None));
    assert_eq!(verdict(&rate(120.0), &rate(100.0)), (Verdict::Slower, None));
    let of = |sense, value| Figure { sense, ..time(value, 1.0) };
    assert_eq!(verdict(&of(Sense::Cost, 24.0), &of(Sense::Cost, 72.0)), (Verdict::Worse, None));
    assert_eq!(verdict(&of(Sense::Yield, 24.0), &of(Sense::Yield, 72.0)), (Verdict::Better, None));
}

/// The field's wrong claim of a pool that reuses 98% of its memory and takes 10.7 times as long.
#[test]
fn a_slower_optimisation_is_printed_as_slower() {
    let found = ComparedFigure::of(&time(52_000.0, 100.0), &time(554_000.0, 900.0), 0.05);
    assert_eq!(found.verdict, Verdict::Slower);
    assert!((found.change - 9.65).abs() < 0.01, "{}", found.change);
    assert!(found.verdict.is_loss() && found.verdict.word() == "slower");
}

#[test]
fn what_cannot_be_told_apart_is_unclear() {
    let (a, b) = (time(100.0, 1.0), time(120.0, 1.0));
    assert_eq!(verdict(&a, &time(120.0, 19.5)), (Verdict::Unclear, Some("overlap")));
    assert_eq!(verdict(&a, &Figure { steady: false, ..b.clone() }), (Verdict::Unclear, Some("unsteady")));
    assert_eq!(verdict(&Figure { steady: false, ..a.clone() }, &b), (Verdict::Unclear, Some("unsteady")));
    assert_eq!(verdict(&a, &Figure { interval: None, ..b }), (Verdict::Unclear, Some("no interval")));
    assert_eq!(verdict(&a, &time(104.0, 1.0)), (Verdict::Unclear, Some("too little")));
}

#[test]
fn a_limit_stands_in_for_an_interval() {
    let share = |value, kept| Figure { kept: Some(kept), ..Figure::new("figure", "share", Sense::Yield, value) };
    assert_eq!(verdict(&share(0.6, true), &share(0.4, false)), (Verdict::Worse, Some("limit")));
    assert_eq!(verdict(&share(0.4, false), &share(0.6, true)), (Verdict::Better, Some("limit")));
    assert_eq!(verdict(&share(0.9, true), &share(0.6, true)), (Verdict::Unclear, Some("no interval")));
}

#[test]
fn a_figure_that_can_no_longer_be_measured_is_lost() {
    let (measured, none) = (time(100.0, 1.0), Figure::new("mean latency", "us", Sense::Time, f64::NAN));
    assert_eq!(verdict(&measured, &none), (Verdict::Lost, None));
    assert_eq!(verdict(&none, &measured), (Verdict::Found, None));
    assert_eq!(verdict(&none, &none), (Verdict::Unclear, Some("not measured")));
    assert!(Verdict::Lost.is_loss() && !Verdict::Found.is_loss());
}

fn row(batch: usize, mean: f64) -> Row {
    let identity = Identity::new(vec![("Model", "mlp 512-512, independent heads".to_owned()), ("Batch", batch.to_string())]);
    let host = Host::detect(Some("bench-1".to_owned()));
    Row { identity, host, figures: vec![time(mean, 1.0)], cells: Vec::new(), often: String::new(), bound: None, placed_as: None }
}

fn run(rows: Vec<Row>) -> Run {
    let (command, method) = ("candle-bench latency".to_owned(), String::new());
    let suite = SuiteReport { command, method, interrupted: false, columns: LatencyRow::COLUMNS, rows, charts: Vec::new() };
    Run {
        directory: PathBuf::from("runs/x"),
        suites: BTreeMap::from([("latency".to_owned(), suite)]),
        unknown: Vec::new(),
        known: Vec::new(),
    }
}

#[test]
fn rows_are_matched_by_what_identifies_them() {
    let before = run(vec![row(1, 100.0), row(8, 200.0), row(32, 300.0)]);
    let after = run(vec![row(64, 500.0), row(8, 250.0), row(1, 50.0)]);
    let found = compare(&before, &after, 0.05).unwrap();
    let suite = &found.suites[0];
    let verdicts: Vec<_> = suite.rows.iter().map(|r| (r.case.cells().nth(1).unwrap(), r.figures[0].verdict)).collect();
    assert_eq!(verdicts, [("8", Verdict::Slower), ("1", Verdict::Faster)]);
    assert_eq!((suite.only_before.clone(), suite.only_after.clone()), (vec![row(32, 0.0).identity], vec![row(64, 0.0).identity]));
    assert_eq!(found.regressions, 1);
}

#[test]
fn a_row_that_was_measured_twice_is_not_compared() {
    let found = compare(&run(vec![row(1, 100.0), row(8, 1.0)]), &run(vec![row(1, 100.0), row(1, 900.0), row(8, 1.0)]), 0.05).unwrap();
    assert_eq!(found.suites[0].repeated, [row(1, 0.0).identity]);
    assert_eq!((found.suites[0].rows.len(), found.regressions), (1, 0));
}

#[test]
fn what_is_slower_elsewhere_is_no_regression() {
    let elsewhere = |mean| Row { host: Host { cpu: "other".to_owned(), ..row(1, mean).host }, ..row(1, mean) };
    let found = compare(&run(vec![row(1, 100.0), row(8, 1.0)]), &run(vec![elsewhere(300.0), row(8, 1.0)]), 0.05).unwrap();
    let row = &found.suites[0].rows[0];
    assert_eq!((row.elsewhere.as_slice(), row.figures[0].verdict, found.regressions), (&["cpu"][..], Verdict::Slower, 0));
    let text = found.text(80);
    assert!(text.contains("1 of 2 rows were measured elsewhere (other cpu)") && text.contains("No regression."), "{text}");
}

#[test]
fn runs_without_a_row_in_common_are_refused() {
    let error = compare(&run(vec![row(1, 1.0)]), &run(vec![row(2, 1.0)]), 0.05).unwrap_err().to_string();
    assert!(error.ends_with("no row is in both"), "{error}");
    let error = compare(&run(vec![row(1, 1.0)]), &run(vec![row(1, 1.0)]), f64::NAN).unwrap_err().to_string();
    assert!(error.starts_with("threshold:"), "{error}");
}

/// The sizes that a terminal has, down to one that a path does not fit into.
#[test]
fn no_line_is_wider_than_the_terminal() {
    let before = run(vec![row(1, 73.9), row(8, 345_886.0), row(32, 0.5), row(3, 1.0)]);
    let found = compare(&before, &run(vec![row(1, 80.1), row(8, 157_217.0), row(32, 0.5), row(4, 1.0)]), 0.05).unwrap();
    for width in [60, 61, 72, 80, 100, 200] {
        let text = found.text(width);
        let longest = text.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(longest <= width, "{width}: {longest}\n{text}");
        assert!(text.contains("Regressions: 1") && text.contains("+8.4%") && text.contains("slower"), "{text}");
    }
    assert_eq!(found.text(10), found.text(60));
}

/// Every run in the repository, whatever version wrote it.
#[test]
fn committed_runs_compare_with_themselves() {
    let mut suites = BTreeSet::new();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("runs")).unwrap() {
        let run = Run::open(&families::shipped(), &entry.unwrap().path()).unwrap();
        let found = compare(&run, &run, 0.0).unwrap();
        assert!(run.unknown.is_empty() && found.regressions == 0, "{found:?}");
        for suite in &found.suites {
            assert_eq!(suite.rows.len(), run.suites[&suite.name].rows.len(), "{}", suite.name);
            assert!(suite.repeated.is_empty() && suite.only_before.is_empty(), "{}", suite.name);
            assert!(suite.rows.iter().all(|row| !row.figures.is_empty() && row.figures.iter().all(|f| f.verdict == Verdict::Unclear)));
            suites.insert(suite.name.clone());
        }
    }
    let expected = crate::run::suites(&families::shipped()).into_iter().map(|entry| entry.name);
    assert_eq!(expected.collect::<BTreeSet<_>>(), suites.iter().map(String::as_str).collect());
}

#[test]
fn every_column_of_an_identity_exists() {
    fn check<R: Record>() {
        let exists = |name: &str| R::COLUMNS.iter().any(|(column, _)| *column == name);
        assert!(!R::IDENTITY.is_empty() && R::IDENTITY.iter().all(|name| exists(name)), "{:?}", R::IDENTITY);
    }
    check::<LatencyRow>();
    check::<PeerRow>();
    check::<LoadRow>();
    check::<OpRow>();
    check::<StepRow>();
    check::<TargetRow>();
}

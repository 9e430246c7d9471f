use super::*;
use crate::case::{Case, Pass};
use crate::families;
use crate::figure::Figure;
use crate::harness::Measurement;
use crate::latency::LatencyRow;
use crate::stats::Summary;
use crate::table::Report;
use crate::target::{Limit, TargetRow};
use std::sync::LazyLock;

const EVIL: &str = "<script>alert('x')</script>&\"|, second";

fn row(model: &str, batch: usize, us: f64) -> LatencyRow {
    let samples: Vec<f64> = (0..100).map(|i| us + f64::from(i)).collect();
    let case = Case {
        model: model.to_owned(),
        backbone: "mlp".to_owned(),
        pass: Pass::Step,
        batch,
        frames: 1,
        threads: 1,
        device: "cpu".to_owned(),
        dtype: "f32".to_owned(),
        execution: crate::case::Execution::Captured,
    };
    let measurement = Measurement {
        latency_us: Summary::of(&samples).unwrap(),
        calls_per_s: 1000.0,
        windows: 3,
        steady: batch != 8,
        late: None,
        waited: None,
        clock: None,
    };
    // Asked once: it starts git.
    static HOST: LazyLock<Host> = LazyLock::new(|| Host::detect(Some("bench-1".to_owned())));
    LatencyRow { host: HOST.clone(), case, measurement, bytes: None, gpu_mb: None }
}

fn target(found: f64) -> TargetRow {
    let LatencyRow { host, case, .. } = row("mlp", 1, 1.0);
    let (what, unit, evidence) = ("a figure".to_owned(), "us".to_owned(), "11 rounds".to_owned());
    TargetRow { host, case, what, found, found_ci: None, limit: Limit::AtMost(2.0), unit, evidence }
}

/// The page of a run with these rows.
fn page(rows: Vec<LatencyRow>, targets: Vec<TargetRow>, advice: &[Recommendation]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let run = directory.path().join("a-run");
    let (command, method) = ("candle-bench latency --host <b>".to_owned(), "As <i>said</i>.".to_owned());
    Report::new(command.clone(), method.clone(), rows).write(&run, "latency").unwrap();
    Report { interrupted: true, ..Report::new(command, method, targets) }.write(&run, "targets").unwrap();
    let file = directory.path().join("pages/report.html");
    write(&Run::open(&families::shipped(), &run).unwrap(), advice, &file).unwrap();
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn a_page_has_every_row_column_and_method() {
    let rows: Vec<_> = [1, 8, 64].into_iter().flat_map(|b| [row("mlp", b, 10.0 * b as f64), row("gru", b, 20.0 * b as f64)]).collect();
    let page = page(rows, vec![target(1.0), target(3.0), target(f64::NAN)], &[]);
    assert_eq!(page.matches("<tr").count(), 2 + 6 + 3, "a head for each table, and every row");
    for part in [
        "<h1>a-run</h1>",
        "<dt>Host</dt><dd>bench-1</dd>",
        "<a href=\"#latency\">Latency by batch</a> <span>6 rows</span>",
        "<span>3 rows, interrupted</span>",
        "Interrupted: rows are missing.",
        "<pre>candle-bench latency --host &lt;b&gt;</pre>",
        "As &lt;i&gt;said&lt;/i&gt;.",
        "data-what=\"gru, step, batch 64, threads 1, cpu, f32, captured\"",
        "data-often=\"100 calls in the last 3 of 3 windows, steady\"",
        "data-often=\"11 rounds\"",
        "<span class=\"mark\">unsteady</span>",
        "<span class=\"mark\">misses its limit</span>",
        "not measured</td>",
        "<td class=\"n\" data-value=\"2\">&lt;= 2</td>",
        "Median latency, µs, by batch",
        "<title>gru, 64: 1330</title>",
    ] {
        assert!(page.contains(part), "{part}: {page}");
    }
    for (column, _) in <LatencyRow as crate::table::Record>::COLUMNS {
        assert!(page.contains(&format!(">{}</th>", escape(column).replace('/', "/<wbr>"))), "{column}");
    }
    assert_eq!(page.matches("<span class=\"mark\">unsteady</span>").count(), 2);
    assert!(!page.contains("id=\"recommendations\""));
}

#[test]
fn a_page_asks_no_other_place_for_anything() {
    let page = page(vec![row("mlp", 1, 1.0), row("mlp", 2, 2.0)], vec![target(1.0)], &[]);
    let pictures = page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count();
    assert!(pictures > 0);
    assert_eq!(page.matches("://").count(), pictures, "the namespace of SVG is the only address");
    assert!(!page.contains("@import") && !page.contains("url(") && page.contains("default-src 'none'"));
}

#[test]
fn nothing_from_a_file_becomes_markup() {
    let mut evil = target(1.0);
    (evil.what, evil.evidence, evil.unit) = (EVIL.to_owned(), EVIL.to_owned(), EVIL.to_owned());
    evil.host.cpu = EVIL.to_owned();
    let advice = ["kind", "what", "gain", "evidence"].map(|field| format!("{field}{EVIL}"));
    let [kind, what, gain, evidence] = advice;
    let page =
        page(vec![row(EVIL, 1, 1.0), row(EVIL, 2, 2.0), row("mlp", 2, 2.0)], vec![evil], &[Recommendation { kind, what, gain, evidence }]);
    assert_eq!((page.matches("<script").count(), page.matches("</script").count()), (1, 1), "{page}");
    assert!(page.contains("&lt;script&gt;") && page.contains("id=\"recommendations\""));
}

#[test]
fn odd_and_many_rows_make_a_page() {
    for (rows, targets) in [
        (vec![], vec![]),
        (vec![row("mlp", 1, 0.0)], vec![target(f64::NAN)]),
        ((1..=400).map(|batch| row("mlp", batch, batch as f64)).collect(), vec![target(f64::INFINITY)]),
    ] {
        let count = rows.len() + targets.len();
        let page = page(rows, targets, &[]);
        assert_eq!(page.matches("<tr data-").count() + page.matches("<tr class=\"marked\"").count(), count);
        assert!(!page.contains("NaN"), "{page}");
    }
}

/// Every run in the repository.
#[test]
fn committed_runs_have_a_page() {
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("runs")).unwrap() {
        let run = Run::open(&families::shipped(), &entry.unwrap().path()).unwrap();
        let page = html(&run, &[]).unwrap();
        let rows: Vec<_> = run.suites.values().flat_map(|suite| &suite.rows).collect();
        assert_eq!(page.matches(" data-what=").count(), rows.len());
        assert!(run.suites.keys().all(|name| page.contains(&format!("<section id=\"{name}\""))), "{:?}", run.directory);
        assert!(rows.iter().all(|row| row.figures.iter().all(|figure: &Figure| !figure.name.is_empty())));
        assert!(rows.iter().all(|row| !row.often.is_empty()), "how often every row was measured");
    }
}

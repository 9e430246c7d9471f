use super::*;
use crate::case::{Case, Pass};
use crate::host::Host;

fn row(what: &str, threads: usize, found: f64, (limit, unit): (Limit, &str), evidence: &str) -> TargetRow {
    let case = Case {
        model: "mlp 512-512, autoregressive heads".to_owned(),
        backbone: "mlp".to_owned(),
        pass: Pass::Step,
        batch: 8,
        frames: 1,
        threads,
        device: "cpu".to_owned(),
        dtype: "f32".to_owned(),
        execution: crate::case::Execution::Captured,
    };
    TargetRow::new(&Host::detect(Some("test".to_owned())), case, what, (found, limit, unit), evidence.to_owned())
}

/// A run with both suites in `root`.
fn run(root: &Path) {
    let (most, share, us) = ((Limit::AtMost(0.7), "x"), (Limit::AtLeast(0.5), "share"), (Limit::AtMost(2.0), "us"));
    let rows = vec![
        row("MLP step over a peer's", 1, 0.472, most, "74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds"),
        row("MLP step over a peer's", 2, 0.961, most, "2954.4 us, onnxruntime 1.25.1 3080.9 us, 6 rounds"),
        row("training over a peer's", 1, f64::NAN, most, "outputs disagree: a|b by 1.0e-1"),
        row("share of the peak", 1, 0.42, share, "99 of 196 GFLOP/s, 6 per weight"),
        row("engine over a step", 1, 0.178, us, "9.2 us, bare 9.1 us, medians"),
    ];
    Report::new("candle-bench targets".to_owned(), "as said.".to_owned(), rows).write(&root.join("runs/a"), "targets").unwrap();
    let percent = (Limit::AtMost(3.0), "%");
    let rows =
        vec![row("above the sum", 1, 2.1, percent, "174.3 ms, bare 173.0 ms"), row("above the sum", 2, 0.649, percent, "96.4 ms; x")];
    Report::new("candle-bench training".to_owned(), "as said.".to_owned(), rows).write(&root.join("runs/a"), "training").unwrap();
}

const TABLES: [Table; 4] = [
    Table { name: "ratios", suite: "targets", rows: is_ratio, layout: beside_peers },
    Table { name: "engine", suite: "targets", rows: is_other, layout: with_evidence },
    Table { name: "trainer", suite: "training", rows: any, layout: by_threads },
    Table { name: "radio", suite: "radio", rows: any, layout: by_threads },
];

fn filled(text: &str) -> Result<Filled> {
    let directory = tempfile::tempdir().unwrap();
    run(directory.path());
    let file = directory.path().join("README.md");
    std::fs::write(&file, text).unwrap();
    fill(&TABLES, &file)
}

fn error(text: &str) -> String {
    format!("{:#}", filled(text).unwrap_err())
}

#[test]
fn shares_of_floors_stand_by_pass_and_threads() {
    let least = (Limit::AtLeast(0.7), FLOOR);
    let of = |dtype: &str, pass, batch, row: TargetRow| {
        let case = Case { dtype: dtype.to_owned(), pass, batch, frames: if pass == Pass::Step { 1 } else { 60 }, ..row.case };
        TargetRow { case, ..row }
    };
    let rows = [
        of("f32", Pass::Step, 1, row("step", 1, 0.912, least, "")),
        of("f32", Pass::Window, 32, row("window", 1, 0.699, least, "")),
        of("q8", Pass::Step, 1, row("step", 1, f64::NAN, least, "")),
        of("f32", Pass::Step, 1, row("step", 2, 0.5, least, "")),
    ];
    assert!(rows.iter().all(|row| is_floor(row) && !is_ratio(row) && !is_other(row)));
    assert_eq!(
        by_pass(&rows),
        "| threads 1 / 2 | step, batch 1 | window 60, batch 32 |\n|---|---:|---:|\n| mlp, f32 | 0.91 / **0.50** | **0.70** |\n| mlp, q8 | **above** | |\n"
    );
}

#[test]
fn tables_say_what_the_run_says() {
    let text = "# A\n<!-- table: ratios runs/a -->\nold\n<!-- end -->\n\n<!-- table: engine runs/a -->\n<!-- end -->\n<!-- table: trainer runs/a -->\n<!-- end -->\nz";
    let found = filled(text).unwrap();
    assert_eq!(
        found.text,
        "# A\n<!-- table: ratios runs/a -->\n\
         | threads 1 / 2 | ours, us | peer | theirs, us | ratio | limit |\n\
         |---|---:|---|---:|---:|---:|\n\
         | MLP step, batch 8 | 74.8 / 2 954 | onnxruntime 1.25.1 | 158 / 3 081 | 0.472 / **0.961** | 0.7 |\n\
         | training, batch 8 | - | | - | **outputs disagree: a\\|b by 1.0e-1** | 0.7 |\n\
         <!-- end -->\n\n<!-- table: engine runs/a -->\n\
         | | threads | found | limit | from |\n\
         |---|---:|---:|---:|---|\n\
         | share of the peak | 1 | **0.420** | at least 0.5 | 99 of 196 GFLOP/s, 6 per weight |\n\
         | engine over a step | 1 | 0.178 us | at most 2 us | 9.2 us, bare 9.1 us, medians |\n\
         <!-- end -->\n<!-- table: trainer runs/a -->\n\
         | | one thread | 2 threads | limit |\n\
         |---|---:|---:|---:|\n\
         | above the sum | 2.10% (174.3 ms) | 0.649% (96.4 ms) | at most 3% |\n\
         <!-- end -->\nz"
    );
    assert_eq!((found.tables, found.stale.len()), (3, 3));
}

#[test]
fn a_stale_table_is_named_and_a_fresh_one_is_not() {
    let fresh = filled("<!-- table: trainer runs/a -->\n<!-- end -->\n").unwrap().text;
    assert_eq!(filled(&fresh).unwrap(), Filled { text: fresh.clone(), stale: Vec::new(), tables: 1 });
    let edited = fresh.replace("2.10%", "2.00%") + "<!-- table: engine runs/a -->\n<!-- end -->\n";
    let stale = filled(&edited).unwrap().stale;
    assert_eq!(stale.len(), 2);
    assert!(stale[0].ends_with("README.md:1: trainer runs/a") && stale[1].ends_with(":6: engine runs/a"), "{stale:?}");
}

#[test]
fn what_cannot_be_filled_is_named_with_its_line() {
    let message = error("\n<!-- table: nothing runs/a -->\n<!-- end -->\n");
    assert!(message.contains("README.md:2") && message.contains("table nothing: not one of ratios, engine, trainer, radio"), "{message}");
    let message = error("<!-- table: ratios runs/gone -->\n<!-- end -->\n");
    assert!(message.contains("README.md:1") && message.contains("runs/gone/targets.json: cannot be read"), "{message}");
    let message = error("<!-- table: radio runs/a -->\n<!-- end -->\n");
    assert!(message.contains("runs/a/radio.json: cannot be read"), "{message}");
    for unfinished in ["<!-- table: trainer runs/a -->\n", "<!-- table: trainer runs/a -->\n<!-- table: trainer runs/a -->\n<!-- end -->\n"]
    {
        assert!(error(unfinished).contains("README.md:1: no <!-- end -->"), "{}", error(unfinished));
    }
    assert!(error("text\n<!-- end -->\n").contains("README.md:2: <!-- end --> without"));
    assert!(error("<!-- table: trainer -->\n<!-- end -->\n").contains("a marker is <!-- table: NAME RUN-DIRECTORY -->"));
    assert!(fill(&TABLES, Path::new("/nowhere/README.md")).unwrap_err().to_string().contains("/nowhere/README.md: cannot be read"));
}

#[test]
fn numbers_have_three_digits_and_their_thousands_apart() {
    assert_eq!([2.1, 0.0251, 14.31, 275.0, 230_223.0].map(significant), ["2.10", "0.025", "14.3", "275", "230 223"]);
    assert_eq!(["7748164", "100", "1234.5", "1000"].map(thousands), ["7 748 164", "100", "1 234.5", "1 000"]);
}

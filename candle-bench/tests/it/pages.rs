//! `candle-bench report` and `readme`: what they write, and how they refuse.

use crate::run;
use candle_bench::{families, readme};
use std::path::{Path, PathBuf};
use std::process::Command;

fn candle_bench() -> Command {
    Command::new(env!("CARGO_BIN_EXE_candle-bench"))
}

fn committed() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("runs/2026-11-21-2-core-xeon")
}

#[test]
fn a_report_lies_in_its_run_or_where_it_is_asked_for() {
    let scratch = tempfile::tempdir().unwrap();
    let copy = scratch.path().join("copy");
    std::fs::create_dir(&copy).unwrap();
    std::fs::copy(committed().join("targets.json"), copy.join("targets.json")).unwrap();
    let (code, text, said) = run(candle_bench().arg("report").arg(&copy));
    let file = copy.join("report.html");
    assert_eq!((code, text.trim()), (Some(0), file.to_str().unwrap()), "{said}");
    assert!(std::fs::read_to_string(&file).unwrap().contains("<section id=\"targets\""));
    let other = scratch.path().join("made/page.html");
    let (code, _, said) = run(candle_bench().arg("report").arg(committed()).arg("--out").arg(&other));
    assert_eq!(code, Some(0), "{said}");
    assert!(std::fs::read_to_string(&other).unwrap().contains("<section id=\"latency\""));
}

#[test]
fn what_is_no_run_has_no_report() {
    let scratch = tempfile::tempdir().unwrap();
    let refused = |part: &str| {
        let (code, text, said) = run(candle_bench().arg("report").arg(scratch.path().join("run")));
        assert_eq!((code, text.as_str()), (Some(1), ""), "{said}");
        assert!(said.starts_with("error: ") && said.contains(part), "{part}: {said}");
        assert!(!scratch.path().join("run/report.html").exists());
    };
    refused("run: no such directory");
    std::fs::create_dir(scratch.path().join("run")).unwrap();
    refused("run: not a run directory");
    std::fs::write(scratch.path().join("run/latency.json"), "{\"format\": 7}").unwrap();
    refused("latency.json: format 7 is that of another version");
    std::fs::write(scratch.path().join("run/latency.json"), "{\"rows\": [{}]}").unwrap();
    refused("latency.json: not a report of suite latency");
}

#[test]
fn a_stale_table_fails_the_check_and_is_made_anew() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("README.md");
    std::fs::write(&file, format!("<!-- table: policies {} -->\nold\n<!-- end -->\n", committed().display())).unwrap();
    let readme = |more: &[&str]| run(candle_bench().arg("readme").arg(&file).args(more));
    let (code, _, said) = readme(&["--check"]);
    assert!(code == Some(1) && said.contains("README.md:1: policies ") && said.contains("candle-bench readme"), "{said}");
    let (code, text, said) = readme(&[]);
    assert!(code == Some(0) && text.contains("1 tables, 1 of them new"), "{text}{said}");
    let (code, _, said) = readme(&["--check"]);
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert!(std::fs::read_to_string(&file).unwrap().contains("| 74.8 / 23.0 | onnxruntime 1.25.1 | 158 / 95.7 | 0.472 / 0.240 | 0.7 |"));
    std::fs::write(&file, "<!-- table: nothing here -->\n<!-- end -->\n").unwrap();
    let (code, _, said) = readme(&[]);
    assert!(code == Some(1) && said.contains("table nothing: not one of policies"), "{said}");
}

#[test]
fn the_tables_of_this_repository_are_fresh() {
    let (mut tables, known) = (0, readme::tables(&families::shipped()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let docs = readme::with_tables(&[root, &root.join("docs/src")]).unwrap();
    assert_eq!(
        docs.iter().map(|file| file.file_name().unwrap()).collect::<Vec<_>>(),
        ["README.md", "beam.md", "benchmarks.md", "gpu.md", "serving.md"]
    );
    for file in docs {
        let filled = readme::fill(&known, &file).unwrap();
        assert!(filled.stale.is_empty(), "{:?}: candle-bench readme makes them anew", filled.stale);
        tables += filled.tables;
    }
    assert!(tables >= 4, "{tables}");
}

//! What the real TensorBoard reads from a run's event files is what `metrics.jsonl` says.

use crate::{replays, run, small, text};
use candle_train::metrics::{Reporter, StepFigures};
use candle_train::task::{Evaluation, Score};
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs the comparing script; `None` where no Python has the package.
fn compare(directory: &Path) -> Option<String> {
    let python = || Command::new("python3");
    let importable = python().args(["-c", "import tensorboard"]).output().is_ok_and(|o| o.status.success());
    if !importable {
        assert!(std::env::var_os("CANDLE_REQUIRE_TENSORBOARD").is_none(), "python3 cannot import tensorboard");
        eprintln!("skipped: python3 cannot import tensorboard");
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/read_events.py");
    let output = run(python().arg(script).arg(directory));
    assert!(output.status.success(), "{}", text(&output.stderr));
    Some(text(&output.stdout).trim().to_owned())
}

fn report(directory: &Path, from: u64, to: u64) {
    let mut reporter = Reporter::new(Some(directory), from, 100, 2, "frames").unwrap().describing("seed = 1").unwrap();
    for step in from + 1..=to {
        let loss = if step == 6 { f64::NAN } else { 1.0 / step as f64 + from as f64 };
        let parts = [("buttons", 0.1 * step as f64), ("main_x", 3e-12)].into();
        let time = Duration::from_millis(step);
        reporter.step(&StepFigures { step, loss, norm: 0.5, time, samples: 64, parts, ..StepFigures::default() }).unwrap();
        if step % 10 == 0 {
            reporter.evaluation(step, &Evaluation::new(Score::minimise(loss), [("accuracy", 0.25)])).unwrap();
        }
    }
}

#[test]
fn tensorboard_reads_a_run_that_was_killed_and_resumed() {
    let dir = tempfile::tempdir().unwrap();
    report(dir.path(), 0, 31);
    let newest = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
        names.filter(|path| path.to_string_lossy().contains("tfevents")).max().unwrap()
    };
    // Killed inside a write to either file.
    for path in [newest(), dir.path().join("metrics.jsonl")] {
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"{\"step\":30").unwrap();
    }
    report(dir.path(), 20, 45);
    report(dir.path(), 40, 50);
    report(dir.path(), 16, 24);
    // Thirteen figures and two parts of the steps 1, 2, 4 to 24, of which one loss is not a number; two results of steps 10 and 20;
    // the configuration at steps 0 and 16. Where there is no /proc, `peak_mb` is missing.
    if let Some(found) = compare(dir.path()).filter(|_| cfg!(target_os = "linux")) {
        assert_eq!(found, "17 tags, 198 values, 2 texts");
    }
}

#[test]
fn tensorboard_reads_a_training_run() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 400), dir.path().join("out"));
    let output = run(&mut small(&replays, &out));
    assert!(output.status.success(), "{}", text(&output.stderr));
    if let Some(found) = compare(&out) {
        eprintln!("{found}");
    }
}

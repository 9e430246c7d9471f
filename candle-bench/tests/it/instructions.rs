//! `candle-bench instructions` with a stand-in for valgrind, which gives every path the same count.

use crate::run;
use std::path::Path;
use std::process::Command;

/// A program that answers as valgrind does and says that every path took so many instructions.
fn stand_in(scratch: &Path, version: &str, total: u64) {
    let program = format!(
        r#"#!/bin/sh
[ "$1" = --version ] && {{ echo {version}; exit; }}
for argument; do case "$argument" in --callgrind-out-file=*) printf 'events: Ir\nfn=(1) product\n1 {total}\ntotals: {total}\n' > "${{argument#*=}}";; esac; done
"#
    );
    let file = scratch.join("valgrind");
    std::fs::write(&file, program).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&file).status().unwrap().success());
}

fn instructions(scratch: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-bench"));
    command.arg("instructions").args(arguments).arg("--valgrind").arg(scratch.join("valgrind"));
    run(command.arg("--table").arg(scratch.join("table.csv")))
}

#[test]
fn a_path_that_needs_more_fails_by_name_and_one_that_needs_fewer_asks_for_a_new_table() {
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path();
    stand_in(scratch, "valgrind-3.19.0", 80_000);
    let (code, _, said) = instructions(scratch, &["--check"]);
    assert!(code == Some(1) && said.contains("table.csv: no table"), "{said}");
    assert_eq!(instructions(scratch, &["--write"]).0, Some(0));
    let (code, text, said) = instructions(scratch, &["--check"]);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{text}");
    assert!(text.contains("mamba-step-q8: 10000 instructions a call, 10000 in the table"), "{text}");

    let table = scratch.join("table.csv");
    let kept = std::fs::read_to_string(&table).unwrap();
    std::fs::write(
        &table,
        kept.replace("mlp-step-f32,10000,", "mlp-step-f32,9700,")
            .replace("mlp-step-f32,9700,product", "mlp-step-f32,9000,product")
            .replace("replay,80000,", "replay,90000,"),
    )
    .unwrap();
    let (code, _, said) = instructions(scratch, &["--check"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("error: mlp-step-f32: 10000 instructions a call, +3.1% of 9700 in the table: a regression"), "{said}");
    assert!(said.contains("error: replay: 80000 instructions a call, -11.1% of 90000 in the table: better: make the table anew"), "{said}");
    // The table's functions are named with what they took more or less.
    assert!(said.contains("\n  +1000 in product\n") && said.contains("\n  -10000 in product\n"), "{said}");
    assert_eq!(said.lines().count(), 4, "{said}");
}

#[test]
fn another_valgrind_is_told_and_passes_but_a_missing_row_fails() {
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path();
    stand_in(scratch, "valgrind-3.19.0", 80_000);
    assert_eq!(instructions(scratch, &["--write"]).0, Some(0));
    stand_in(scratch, "valgrind-3.99.0", 160_000);
    let (code, _, said) = instructions(scratch, &["--check"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with("warning: counts not comparable: valgrind valgrind-3.19.0 in the table, valgrind-3.99.0 here"), "{said}");

    let table = scratch.join("table.csv");
    let kept = std::fs::read_to_string(&table).unwrap();
    let without: Vec<&str> = kept.lines().filter(|line| !line.starts_with("beam-step,")).collect();
    std::fs::write(&table, without.join("\n")).unwrap();
    let (code, _, said) = instructions(scratch, &["--check"]);
    assert!(code == Some(1) && said.contains("beam-step: counted, and not in the table"), "{said}");
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let scratch = scratch.path();
    let (code, _, said) = instructions(scratch, &[]);
    assert!(code == Some(1) && said.contains("apt-get install valgrind"), "{said}");
    stand_in(scratch, "valgrind-3.19.0", 0);
    let (code, _, said) = instructions(scratch, &["--only", "replay"]);
    assert!(code == Some(1) && said.contains("replay: nothing was counted"), "{said}");
    let (code, _, said) = instructions(scratch, &["--only", "nothing"]);
    assert!(code == Some(2) && said.contains("mamba-window-f32"), "{said}");
}

//! Shell blocks: our programs take the arguments, and what is named is there.

use crate::root;
use clap::Command;
use std::fs;
use std::path::Path;

/// What is not ours, or made by the line before.
const OTHERS: [&str; 15] = [
    "git",
    "cd",
    "source",
    "export",
    "tar",
    "pip",
    "curl",
    "maturin",
    "cc",
    "python",
    "./agent",
    "PYTHON=python3",
    "program",
    "gpu-suite/run.sh",
    "haproxy",
];

/// The commands of a shell block, their comments cut off.
fn commands(text: &str) -> Vec<Vec<String>> {
    let text = text.replace("\\\n", " ");
    let parts = text.lines().flat_map(|line| line.split(" #").next().unwrap_or_default().split("&&"));
    let words = parts.map(|part| part.split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned()).collect());
    words.filter(|words: &Vec<String>| !words.is_empty()).collect()
}

fn program(name: &str) -> Option<Command> {
    Some(match name {
        "candle-infer" => candle_models::infer::command(&candle_models::families::commands()),
        "candle-train" => candle_train::command::command(&candle_train::families::shipped()),
        "candle-bench" => candle_bench::command::command(&candle_bench::families::shipped()),
        "candle-serve" => candle_serve::command(),
        _ => return None,
    })
}

/// Arguments that one of our programs takes. What goes to a file or another program is the shell's.
fn parse(name: &str, arguments: &[String]) -> Result<(), String> {
    let own = arguments.iter().position(|word| [">", ">>", "|"].contains(&word.as_str())).unwrap_or(arguments.len());
    let line = std::iter::once(name.to_owned()).chain(arguments[..own].iter().cloned());
    let command = program(name).ok_or_else(|| format!("no program {name}"))?;
    // A launcher's own command line stands behind its options.
    if let Some(inner) = arguments.first().filter(|word| *word == "launch").and(arguments.get(3..)) {
        parse(name, inner)?;
    }
    command.try_get_matches_from(line).map(drop).map_err(|error| error.to_string())
}

fn cargo(words: &[String]) -> Result<(), String> {
    let behind = |option: &str| words.iter().position(|word| word == option).and_then(|at| words.get(at + 1));
    for feature in behind("--features").into_iter().flat_map(|list| list.split(',')) {
        let package = behind("-p").map_or("candle-models", String::as_str);
        let (package, feature) = feature.split_once('/').unwrap_or((package, feature));
        let manifest = fs::read_to_string(root().join(package).join("Cargo.toml")).map_err(|_| format!("no package {package}"))?;
        if !manifest.lines().any(|line| line.starts_with(&format!("{feature} = ["))) {
            return Err(format!("{package} has no feature {feature}"));
        }
    }
    if let Some(example) = behind("--example") {
        let file = root().join("examples/examples").join(example);
        if !file.is_dir() && !file.with_extension("rs").is_file() {
            return Err(format!("no example {example}"));
        }
    }
    match (behind("--bin"), words.iter().position(|word| word == "--")) {
        (Some(name), at) if words[0] == "run" => parse(name, at.map_or(&[], |at| &words[at + 1..])),
        _ => Ok(()),
    }
}

fn check(words: &[String]) -> Result<(), String> {
    let is_variable =
        |word: &&String| word.split_once('=').is_some_and(|(name, _)| name.chars().all(|c| c.is_ascii_uppercase() || c == '_'));
    let words = &words[words.iter().take_while(is_variable).count()..];
    let Some((first, arguments)) = words.split_first() else { return Ok(()) };
    // What stands in the repository is there.
    for path in words.iter().filter(|word| {
        ["weights/", "examples/data/", "candle-bench/runs/", "candle-serve/deploy/"].iter().any(|start| word.starts_with(start))
    }) {
        if !root().join(path).exists() {
            return Err(format!("no {path}"));
        }
    }
    let name = Path::new(first).file_name().unwrap_or_default().to_string_lossy();
    match &*name {
        "cargo" => cargo(arguments),
        name if program(name).is_some() => parse(name, arguments),
        _ if root().join(first).is_file() || OTHERS.contains(&first.as_str()) => Ok(()),
        _ => Err(format!("no program {first}")),
    }
}

/// That every command of a shell block is taken.
pub fn check_block(text: &str) -> Result<(), String> {
    commands(text).iter().try_for_each(|words| check(words).map_err(|reason| format!("{}: {reason}", words.join(" "))))
}

#[test]
fn a_command_that_is_not_taken_is_found() {
    for line in [
        "candle-infer run weights/policy-mlp x.slp --no-such-option",
        "cargo run --release --bin candle-train -- policy --preset none such",
        "cargo run --release --example no_such_example",
        "cargo build -p candle-train --features no-such-feature",
        "candle-infer inspect weights/no-such-bundle",
        "no-such-program",
        "candle-train launch --nproc 2 no-such-family",
    ] {
        assert!(check_block(line).is_err(), "{line}");
    }
    assert!(check_block("candle-infer inspect --forward weights/policy-mlp > x.py && cd x # a remark").is_ok());
}

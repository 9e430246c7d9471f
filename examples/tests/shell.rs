//! The shell blocks of every Markdown file: our programs take the arguments, and what is named is there.
#![allow(clippy::unwrap_used)]

use clap::Command;
use std::fs;
use std::path::{Path, PathBuf};

/// What is not ours, or made by the line before.
const OTHERS: [&str; 13] =
    ["git", "cd", "source", "export", "tar", "pip", "maturin", "cc", "python", "./agent", "PYTHON=python3", "program", "gpu-suite/run.sh"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Markdown files that are in the repository: those of folders that build or fetch are not.
fn documents(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && !["target", "node_modules", "runs"].contains(&name.as_str()) {
                documents(&path, found);
            }
        } else if name.ends_with(".md") && name != "CHANGELOG.md" {
            found.push(path);
        }
    }
}

/// The commands of the shell blocks of a text, their comments cut off.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut blocks = text.split("\n```");
    blocks.next();
    let shell = blocks.filter_map(|block| block.strip_prefix("sh\n"));
    let lines = shell.flat_map(|block| block.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>());
    let parts = lines.flat_map(|line| line.split(" #").next().unwrap().split("&&").map(str::to_owned).collect::<Vec<_>>());
    let words = parts.map(|part| part.split_whitespace().map(|word| word.trim_matches(['\'', '"']).to_owned()).collect());
    words.filter(|words: &Vec<String>| !words.is_empty()).collect()
}

fn program(name: &str) -> Option<Command> {
    Some(match name {
        "candle-infer" => candle_models::infer::command(&candle_models::families::commands()),
        "candle-train" => candle_train::command::command(&candle_train::families::shipped()),
        "candle-bench" => candle_bench::command::command(&candle_bench::families::shipped()),
        _ => return None,
    })
}

/// Arguments that one of our programs takes. What goes to a file or another program is the shell's.
fn parse(name: &str, arguments: &[String]) -> Result<(), String> {
    let own = arguments.iter().position(|word| [">", "|"].contains(&word.as_str())).unwrap_or(arguments.len());
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
    for path in words.iter().filter(|word| ["weights/", "examples/data/", "candle-bench/runs/"].iter().any(|start| word.starts_with(start)))
    {
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

#[test]
fn every_command_of_every_document_is_taken() {
    let mut found = Vec::new();
    documents(root(), &mut found);
    let (mut count, mut wrong) = (0, Vec::new());
    for path in &found {
        for words in commands(&fs::read_to_string(path).unwrap()) {
            count += 1;
            if let Err(reason) = check(&words) {
                wrong.push(format!("{}: {}: {reason}", path.strip_prefix(root()).unwrap().display(), words.join(" ")));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 50, "{count} commands in {} files", found.len());
}

#[test]
fn a_command_that_is_not_taken_is_found() {
    let check = |line: &str| commands(&format!("\n```sh\n{line}\n```\n")).iter().map(|words| check(words)).collect::<Result<Vec<_>, _>>();
    for line in [
        "candle-infer run weights/policy-mlp x.slp --no-such-option",
        "cargo run --release --bin candle-train -- policy --preset none such",
        "cargo run --release --example no_such_example",
        "cargo build -p candle-train --features no-such-feature",
        "candle-infer inspect weights/no-such-bundle",
        "no-such-program",
        "candle-train launch --nproc 2 no-such-family",
    ] {
        assert!(check(line).is_err(), "{line}");
    }
    assert!(check("candle-infer inspect --forward weights/policy-mlp > x.py && cd x # a remark").is_ok());
}

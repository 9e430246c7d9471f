//! Every public type of the modules below has an example in its documentation, or its module has one.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Where a module lies, without `.rs` or `/mod.rs`.
const MODULES: [&str; 56] = [
    "candle-models/src/bundle",
    "candle-models/src/device",
    "candle-models/src/engine",
    "candle-models/src/error",
    "candle-models/src/exec",
    "candle-models/src/exec/cpu",
    "candle-models/src/exec/graph",
    "candle-models/src/exec/program",
    "candle-models/src/exec/tensors",
    "candle-models/src/families/agent",
    "candle-models/src/families/beam",
    "candle-models/src/families/beam/array",
    "candle-models/src/families/beam/channel",
    "candle-models/src/families/beam/codebook",
    "candle-models/src/families/policy",
    "candle-models/src/families/policy/actions",
    "candle-models/src/families/policy/baselines",
    "candle-models/src/families/policy/embedding",
    "candle-models/src/families/policy/game",
    "candle-models/src/files",
    "candle-models/src/network",
    "candle-models/src/nn",
    "candle-models/src/ops",
    "candle-models/src/ops/conv2d",
    "candle-models/src/ops/multiply",
    "candle-models/src/ops/slices",
    "candle-models/src/ops/softmax",
    "candle-models/src/processors",
    "candle-models/src/random",
    "candle-models/src/recurrent",
    "candle-models/src/registry",
    "candle-models/src/signature",
    "candle-models/src/tensors",
    "candle-train/src/budget",
    "candle-train/src/callback",
    "candle-train/src/carried",
    "candle-train/src/checkpoint",
    "candle-train/src/dataset",
    "candle-train/src/early_stop",
    "candle-train/src/export",
    "candle-train/src/gradients",
    "candle-train/src/host",
    "candle-train/src/identity",
    "candle-train/src/lanes",
    "candle-train/src/metrics",
    "candle-train/src/optim",
    "candle-train/src/overlay",
    "candle-train/src/parallel",
    "candle-train/src/prefetch",
    "candle-train/src/run",
    "candle-train/src/scale",
    "candle-train/src/schedule",
    "candle-train/src/stop",
    "candle-train/src/summary",
    "candle-train/src/task",
    "candle-train/src/trainer",
];

/// A public type: where, its name, and whether its own documentation has an example.
struct Type {
    place: String,
    name: String,
    own: bool,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn file_of(module: &Path) -> PathBuf {
    let file = module.with_extension("rs");
    if file.is_file() { file } else { module.join("mod.rs") }
}

/// Whether lines of documentation have a block of Rust.
fn has_example<'a>(lines: impl Iterator<Item = &'a str>) -> bool {
    let fences = lines.filter_map(|line| line.trim_start_matches(['/', '!']).trim().strip_prefix("```"));
    // Every other fence closes a block.
    fences.step_by(2).any(|language| matches!(language, "" | "no_run"))
}

/// What a file defines at its outermost level: of `names`, or everything.
fn types_of(file: &Path, text: &str, names: Option<&BTreeSet<String>>, found: &mut Vec<Type>) {
    let lines: Vec<&str> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let kinds = ["pub struct ", "pub enum ", "pub trait "];
        let Some(rest) = kinds.iter().find_map(|kind| line.strip_prefix(kind)) else { continue };
        let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if names.is_some_and(|names| !names.contains(&name)) {
            continue;
        }
        let above = lines[..at].iter().rev().copied().take_while(|line| line.starts_with("///") || line.starts_with("#["));
        let above: Vec<&str> = above.filter(|line| line.starts_with("///")).collect();
        let own = has_example(above.into_iter().rev());
        found.push(Type { place: format!("{}:{}", file.strip_prefix(root()).unwrap().display(), at + 1), name, own });
    }
}

/// Those of the private modules below that a file makes public by `pub use`.
fn reexported(file: &Path, text: &str, names: Option<&BTreeSet<String>>, found: &mut Vec<Type>) {
    let folder = if file.ends_with("mod.rs") { file.parent().unwrap().to_owned() } else { file.with_extension("") };
    for used in text.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let Some((module, inside)) = used.split_once("::") else { continue };
        let below = file_of(&folder.join(module));
        // Public modules stand in the list themselves.
        if !below.is_file() || !text.contains(&format!("\nmod {module};")) {
            continue;
        }
        let chosen = inside.split(|c: char| !c.is_alphanumeric() && c != '_').map(str::to_owned);
        let chosen: Option<BTreeSet<String>> = match names {
            names if inside == "*" => names.cloned(),
            Some(names) => Some(chosen.filter(|name| names.contains(name)).collect()),
            None => Some(chosen.collect()),
        };
        let text = fs::read_to_string(&below).unwrap();
        types_of(&below, &text, chosen.as_ref(), found);
        reexported(&below, &text, chosen.as_ref(), found);
    }
}

#[test]
fn every_public_type_has_an_example() {
    let (mut own, mut by_module, mut without) = (0, 0, Vec::new());
    for module in MODULES {
        let file = file_of(&root().join(module));
        let text = fs::read_to_string(&file).unwrap();
        let shows = has_example(text.lines().take_while(|line| line.starts_with("//!")));
        let mut found = Vec::new();
        types_of(&file, &text, None, &mut found);
        reexported(&file, &text, None, &mut found);
        for found in found {
            match (found.own, shows) {
                (true, _) => own += 1,
                (false, true) => by_module += 1,
                (false, false) => without.push(format!("{}: {} has no example, nor has {module}", found.place, found.name)),
            }
        }
    }
    assert!(without.is_empty(), "{}", without.join("\n"));
    assert!(own > 80, "{own} types with an example of their own");
    println!("{own} types have an example of their own, {by_module} that of their module");
}

#[test]
fn a_type_without_an_example_is_found() {
    let text = "/// A.\n///\n/// ```\n/// assert!(true);\n/// ```\n#[derive(Debug)]\npub struct A;\n\n\
                /// ```text\n/// B\n/// ```\npub enum B {}\n\npub trait C {}\nstruct D;\n";
    let mut found = Vec::new();
    types_of(&root().join("a.rs"), text, None, &mut found);
    let found: Vec<(&str, bool)> = found.iter().map(|found| (found.name.as_str(), found.own)).collect();
    assert_eq!(found, [("A", true), ("B", false), ("C", false)]);
}

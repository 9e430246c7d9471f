//! The program of the README is the example `first_agent`, and chooses different actions in different states.
//!
//! It reads weights from the current folder and prints, so this test starts itself anew as that program.
#![allow(clippy::unwrap_used)]

#[path = "../examples/first_agent.rs"]
mod first_agent;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Set where this test is the program.
const CHILD: &str = "FIRST_AGENT_CHILD";

fn main() {
    if std::env::var_os(CHILD).is_some() {
        return first_agent::main().unwrap();
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let (_, shown) = readme.split_once("```rust").unwrap();
    let (_, shown) = shown.split_once('\n').unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let (_, program) = include_str!("../examples/first_agent.rs").split_once("\n\n").unwrap();
    assert_eq!(shown, program.replace("pub(crate) fn main", "fn main"), "the README shows examples/examples/first_agent.rs");

    let output = Command::new(std::env::current_exe().unwrap()).current_dir(root).env(CHILD, "1").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    let actions: Vec<&str> = printed.lines().collect();
    assert_eq!(actions.len(), 476);
    let different: BTreeSet<&str> = actions.iter().copied().collect();
    assert!(different.len() >= 10, "{} different actions in {} states", different.len(), actions.len());
    println!("the program of the README chooses {} different actions in {} states: ok", different.len(), actions.len());
}

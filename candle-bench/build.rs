//! Tells the program which compiler built it: instruction counts of two compilers say nothing about each other.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc).arg("--version").output().ok().filter(|output| output.status.success());
    let version = output.map_or_else(|| "unknown".to_owned(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    println!("cargo::rustc-env=CANDLE_BENCH_RUSTC={version}");
}

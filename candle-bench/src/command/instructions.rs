//! `candle-bench instructions`: the counts of hot paths beside the table that is kept of them.

use crate::family::Families;
use crate::host;
use crate::instructions::{HotPath, Table, Verdict, paths};
use anyhow::{Context, Result};
use candle_models::cli::Usage;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Instructions {
    /// Fails where a path needs over 2% more or fewer instructions than the table says; counts of another compiler are told and pass.
    #[arg(long, conflicts_with_all = ["write", "only"])]
    pub check: bool,
    /// Writes the counts as the new table.
    #[arg(long, conflicts_with = "only")]
    pub write: bool,
    /// Only these paths.
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    pub only: Vec<String>,
    /// The table.
    #[arg(long, value_name = "FILE", default_value = "candle-bench/instructions.csv")]
    pub table: PathBuf,
    /// The valgrind that counts.
    #[arg(long, value_name = "FILE", default_value = "valgrind")]
    pub valgrind: PathBuf,
}

#[derive(clap::Args)]
pub struct CountedPath {
    pub path: String,
}

/// How many functions are named below a path that changed.
const NAMED: usize = 5;
/// The command that makes the table anew, as messages name it.
const RENEW: &str = "CARGO_INCREMENTAL=0 cargo run --bin candle-bench -- instructions --write";

pub fn instructions(families: &Families, arguments: &Instructions) -> Result<ExitCode> {
    let Instructions { check, write, only, table, valgrind } = arguments;
    // Read before minutes of counting.
    let kept = if *check { Some(read(arguments)?) } else { None };
    let program = host::this_program()?;
    let paths = if only.is_empty() { paths(families) } else { only.iter().map(|name| named(families, name)).collect::<Result<_>>()? };
    let now = Table::count(&paths, &program, valgrind, |path, instructions| {
        let before = kept.as_ref().and_then(|kept| kept.counts.get(path.name));
        let beside = before.map_or_else(String::new, |before| format!(", {} in the table", before.total));
        println!("{}: {instructions} instructions a call{beside}", path.name);
    })?;
    if *write {
        std::fs::write(table, now.text()).with_context(|| table.display().to_string())?;
        eprintln!("written: {}", table.display());
    }
    kept.map_or(Ok(ExitCode::SUCCESS), |kept| judge(&kept, &now))
}

/// Takes one path, in a process that is counted.
pub fn counted(families: &Families, arguments: &CountedPath) -> Result<ExitCode> {
    named(families, &arguments.path)?.run().map(|()| ExitCode::SUCCESS)
}

fn named(families: &Families, name: &str) -> Result<HotPath> {
    let paths = paths(families);
    let known = || paths.iter().map(|path| path.name).collect::<Vec<_>>().join(", ");
    paths.iter().find(|path| path.name == name).copied().ok_or_else(|| Usage::error(format!("path {name}: not one of {}", known())))
}

fn read(arguments: &Instructions) -> Result<Table> {
    let file = arguments.table.display();
    let text = std::fs::read_to_string(&arguments.table).with_context(|| format!("{file}: no table ({RENEW} makes it)"))?;
    Table::parse(&text).with_context(|| file.to_string())
}

fn judge(kept: &Table, now: &Table) -> Result<ExitCode> {
    // Before anything else: a path without a row must not hide behind another compiler.
    let changes = kept.changes(now).with_context(|| format!("the table has to be made anew: {RENEW}"))?;
    let different = kept.build.differs(&now.build);
    if !different.is_empty() {
        eprintln!("warning: counts not comparable: {} ({RENEW} makes the table anew)", different.join("; "));
        return Ok(ExitCode::SUCCESS);
    }
    let mut code = ExitCode::SUCCESS;
    for change in changes {
        let percent = 100.0 * change.share();
        let advice = match change.verdict() {
            Verdict::Unchanged => continue,
            Verdict::More => "a regression, or the price of something: then make the table anew and say so",
            Verdict::Fewer => "better: make the table anew, or it can be lost again unseen",
        };
        eprintln!(
            "error: {}: {} instructions a call, {percent:+.1}% of {} in the table: {advice} ({RENEW})",
            change.path, change.now, change.before
        );
        for (function, instructions) in change.functions.iter().take(NAMED) {
            eprintln!("  {instructions:+} in {function}");
        }
        code = ExitCode::FAILURE;
    }
    Ok(code)
}

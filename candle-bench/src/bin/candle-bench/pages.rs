//! What is made from runs that were measured before.

use crate::arguments::{Page, Readme};
use anyhow::{Context, Result};
use candle_bench::run::Run;
use candle_bench::{readme, recommend, report};
use std::process::ExitCode;

pub fn report(arguments: &Page) -> Result<ExitCode> {
    let run = Run::open(&arguments.run)?;
    let file = arguments.out.clone().unwrap_or_else(|| arguments.run.join(report::REPORT));
    report::write(&run, &recommend::of_run(&arguments.run)?, &file)?;
    println!("{}", file.display());
    Ok(ExitCode::SUCCESS)
}

pub fn readme(arguments: &Readme) -> Result<ExitCode> {
    let Readme { files, check } = arguments;
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let filled = readme::fill(file)?;
        if *check {
            for table in &filled.stale {
                eprintln!("error: {table}: not what the run says, candle-bench readme makes it anew");
                code = ExitCode::FAILURE;
            }
            continue;
        }
        if !filled.stale.is_empty() {
            candle_models::files::write_atomic(file, filled.text.as_bytes())
                .with_context(|| format!("{}: cannot be written", file.display()))?;
        }
        println!("{}: {} tables, {} of them new", file.display(), filled.tables, filled.stale.len());
    }
    Ok(code)
}

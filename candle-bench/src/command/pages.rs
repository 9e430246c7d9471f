//! What is made from runs that were measured before.

use crate::family::Families;
use crate::run::Run;
use crate::{readme, recommend, report};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Page {
    /// Directory of the run.
    pub run: PathBuf,
    /// Where the page goes [default: report.html in the directory of the run].
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

#[derive(clap::Args)]
pub struct Readme {
    /// The Markdown files; the runs that a file names lie relative to it [default: README.md and those of docs/src, where they ask for a table].
    #[arg(value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write nothing and fail where a table is not what its run says.
    #[arg(long)]
    pub check: bool,
}

pub fn report(families: &Families, arguments: &Page) -> Result<ExitCode> {
    let run = Run::open(families, &arguments.run)?;
    let file = arguments.out.clone().unwrap_or_else(|| arguments.run.join(report::REPORT));
    report::write(&run, &recommend::of_run(&arguments.run)?, &file)?;
    println!("{}", file.display());
    Ok(ExitCode::SUCCESS)
}

pub fn readme(families: &Families, arguments: &Readme) -> Result<ExitCode> {
    let Readme { files, check } = arguments;
    let files = if files.is_empty() { readme::with_tables(&[Path::new("."), Path::new("docs/src")])? } else { files.clone() };
    let (tables, mut code) = (readme::tables(families), ExitCode::SUCCESS);
    for file in &files {
        let filled = readme::fill(&tables, file)?;
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

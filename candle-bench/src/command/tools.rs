//! What looks at the machine, or at two runs.

use crate::compare;
use crate::family::Families;
use crate::interrupt::Interrupt;
use crate::run::Run;
use crate::self_check::{self, Here};
use crate::suite::DeviceArgument;
use crate::text::terminal_width;
use anyhow::Result;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Compare {
    /// Directory of the earlier run.
    pub before: PathBuf,
    /// Directory of the later run.
    pub after: PathBuf,
    /// Change in percent below which a figure is unclear: its interval knows the noise within a run, not that from one run to the next.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0)]
    pub threshold: f64,
    /// JSON for programs instead of tables.
    #[arg(long)]
    pub json: bool,
}

#[derive(clap::Args)]
pub struct SelfCheck {
    #[command(flatten)]
    pub device: DeviceArgument,
    /// Only these checks.
    #[arg(long, value_name = "CHECK", value_delimiter = ',')]
    pub only: Vec<String>,
}

/// Runs that cannot be compared are bad use.
pub fn compare(families: &Families, arguments: &Compare) -> Result<ExitCode> {
    let compared = || -> Result<_> {
        let [before, after] = [Run::open(families, &arguments.before)?, Run::open(families, &arguments.after)?];
        compare::compare(&before, &after, arguments.threshold / 100.0)
    };
    let compared = match compared() {
        Ok(compared) => compared,
        Err(error) => {
            eprintln!("error: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let text = if arguments.json { serde_json::to_string_pretty(&compared)? + "\n" } else { compared.text(terminal_width()) };
    // A reader that has seen enough is no error.
    std::io::stdout().write_all(text.as_bytes()).or_else(|e| if e.kind() == ErrorKind::BrokenPipe { Ok(()) } else { Err(e) })?;
    Ok(if compared.regressions > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub fn self_check(families: &Families, arguments: &SelfCheck) -> Result<ExitCode> {
    let checks = self_check::named(&arguments.only)?;
    let here = Here { families, place: arguments.device.open()?, interrupt: Interrupt::default() };
    here.interrupt.on_signal()?;
    let refused = self_check::run(&checks, &here, |name, finding| println!("{}", self_check::line(name, finding)))?;
    if refused.is_empty() {
        println!("all {} checks hold", checks.len());
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} of {} checks do not hold: {}", refused.len(), checks.len(), refused.join(", "));
    Ok(ExitCode::FAILURE)
}

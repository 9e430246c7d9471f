//! The command `candle-train` as a function of the families that a program knows: [`run`] them, its own and those shipped.
//!
//! What every run is asked, where it keeps its files, when it stops, what is printed of it and how its bundle is written is the same for all
//! ([`RunArguments`]). A family says in [`TrainFamily`] how its models can be trained; each [`Training`] says which presets and options it has and makes a
//! [`TrainingPlan`](crate::plan::TrainingPlan) of them.
//!
//! ```no_run
//! use candle_train::{command, families};
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     // SAFETY: the program has started no thread yet.
//!     unsafe { command::run(&families::shipped(), std::env::args_os()) }
//! }
//! ```

mod allocator;
mod arguments;
mod data;
mod family;
mod launch;
mod resume;
mod watch;

pub use allocator::keep_freed_memory;
pub use arguments::{RunArguments, command_line};
pub(crate) use arguments::{bundle_of, model_in};
pub use data::DataArguments;
pub use family::{Presets, TrainFamily, Training};

use crate::checkpoint::Which;
use crate::export::export;
use crate::{parallel, report};
use anyhow::{Result, bail};
use candle_models::device;
use candle_models::registry::Registry;
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

/// The commands that know no family.
#[derive(Debug, Subcommand)]
enum General {
    /// Runs the command behind it in several processes of this machine, its ranks, which train together.
    Launch(launch::Arguments),
    /// Makes report.html of a run again, from its metrics.
    Report(ReportArguments),
    /// Makes one page of several runs' learning curves: those that differ in their seed alone are one curve, mean and spread.
    Compare(CompareArguments),
    /// Continues a run as it was asked for; options behind it come over those of then, as `--set epochs=8` for a longer run.
    Resume(ResumeArguments),
    /// Makes a model bundle of a checkpoint of a run, whether it goes on, was stopped or was killed.
    Export(ExportArguments),
    /// Shows an environment in the terminal, with a model that acts in it or without; plays board games with you; writes a GIF or an SVG; serves a page.
    Watch(watch::Arguments),
}

#[derive(Debug, Args)]
struct ResumeArguments {
    /// Directory of the run.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Options of the run's own command.
    #[arg(value_name = "OPTIONS", trailing_var_arg = true, allow_hyphen_values = true)]
    options: Vec<OsString>,
}

#[derive(Debug, Args)]
struct ExportArguments {
    /// Directory of the run.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Where to write the bundle [default: DIR/bundle].
    #[arg(long, value_name = "BUNDLE")]
    out: Option<PathBuf>,
    /// Which checkpoint: latest, best (by the score of its evaluation) or the number of a step.
    #[arg(long, value_name = "WHICH", default_value = "latest")]
    step: Which,
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// Directory of the run.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Debug, Args)]
struct CompareArguments {
    /// Directories of the runs.
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Where to write the page.
    #[arg(long, value_name = "FILE", default_value = "comparison.html")]
    out: PathBuf,
}

/// Runs the command with these families; the first argument is the program's own name. The exit code is 0 for done, or stopped on request
/// with a checkpoint, 1 for failed, 2 for called wrongly.
///
/// # Safety
/// It sets the number of threads in the process's environment: no other thread may be running.
pub unsafe fn run<A: Into<OsString>>(registry: &Registry<dyn TrainFamily>, arguments: impl IntoIterator<Item = A>) -> ExitCode {
    keep_freed_memory();
    let (arguments, elsewhere) = match resume::expand(arguments.into_iter().map(Into::into).collect()) {
        Ok(expanded) => expanded,
        Err(error) => {
            parallel::tell(&error);
            return ExitCode::from(1);
        }
    };
    if let Some(folder) = elsewhere {
        eprintln!("warning: the run was started in {}: relative paths are now those of this folder", folder.display());
    }
    let matches = match command(registry).try_get_matches_from(&arguments) {
        Ok(matches) => matches,
        Err(error) => {
            // A closed pipe is no reason to complain about.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    // Every command has a name: without one the line above has answered.
    let (name, options) = matches.subcommand().unwrap_or(("", &matches));
    let threads = options.try_get_one("threads").ok().flatten().copied();
    // SAFETY: the caller has started no other thread, and nothing above starts one.
    let configured = device::threads(threads).map(|threads| unsafe { device::configure_threads(threads) });
    match configured.map_err(Into::into).and_then(|()| answer(registry, name, options, &matches, &arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            parallel::tell(&error);
            let usage = matches!(error.downcast_ref(), Some(candle_models::Error::Config { .. }));
            ExitCode::from(if usage { 2 } else { 1 })
        }
    }
}

/// The command line: for each family its trainings and its further commands, then what knows no family.
pub fn command(registry: &Registry<dyn TrainFamily>) -> Command {
    let command = Command::new("candle-train").version(env!("CARGO_PKG_VERSION"));
    let of = |training: &&'static dyn Training| {
        let Presets { default, help, .. } = training.presets();
        // What a resumed run is asked for anew comes behind what it was asked for first.
        let own = RunArguments::augment_args(training.options(Command::new(training.name()))).args_override_self(true);
        own.mut_arg("preset", |preset| preset.required(false).default_value(default).help(help)).about(training.about())
    };
    let of = |family: &'static dyn TrainFamily| family.trainings().iter().map(of).chain(family.commands());
    let command = General::augment_subcommands(command.subcommands(registry.iter().flat_map(of)));
    let command = command.about("Trains the models of candle-models").subcommand_required(true).arg_required_else_help(true);
    let example = trainings(registry).next().map_or("NAME", |training| training.name());
    let environments = candle_envs::shipped().iter().map(candle_envs::Entry::name).collect::<Vec<_>>().join(", ");
    let command = command.mut_subcommand("watch", |watch| watch.mut_arg("env", |env| env.help(format!("The environment: {environments}"))));
    command.mut_subcommand("launch", |launch| {
        launch.mut_arg("command", |ranks| ranks.help(format!("What every rank runs, as in `{example} --out run`")))
    })
}

/// Of all families.
fn trainings(registry: &Registry<dyn TrainFamily>) -> impl Iterator<Item = &'static dyn Training> {
    registry.iter().flat_map(|family| family.trainings()).copied()
}

fn answer(registry: &Registry<dyn TrainFamily>, name: &str, options: &ArgMatches, all: &ArgMatches, arguments: &[OsString]) -> Result<()> {
    if let Some(training) = trainings(registry).find(|training| training.name() == name) {
        let mut asked = RunArguments::from_arg_matches(options)?;
        asked.typed = arguments.get(1..).unwrap_or_default().to_vec();
        training.presets().check(&asked.preset)?;
        return training.train(&asked, options);
    }
    if let Some(family) = registry.iter().find(|family| family.commands().iter().any(|command| command.get_name() == name)) {
        return family.run(name, options);
    }
    match General::from_arg_matches(all)? {
        General::Launch(asked) => asked.run(before(&Vec::from_iter(std::env::args_os().skip(1)), arguments)),
        // Its arguments have been replaced by those of the run, which is no command `resume` then.
        General::Resume(ResumeArguments { directory, .. }) => bail!("{}: no run that can be resumed", directory.display()),
        General::Export(ExportArguments { directory, out, step }) => {
            let out = out.unwrap_or_else(|| bundle_of(&directory));
            let step = export(registry, &directory, step, &out)?;
            println!("step {step}: {}", model_in(&out));
            Ok(())
        }
        General::Compare(CompareArguments { directories, out }) => {
            report::compare(&directories, &out)?;
            println!("{}", out.display());
            Ok(())
        }
        General::Watch(asked) => asked.run(registry),
        General::Report(ReportArguments { directory }) => {
            println!("{}", report::write(&directory)?.display());
            Ok(())
        }
    }
}

/// The process's arguments, without its name, that stand before those of this command: a program of several commands is told by them which is
/// meant.
fn before<'a>(process: &'a [OsString], arguments: &[OsString]) -> &'a [OsString] {
    process.strip_suffix(arguments.get(1..).unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_told_which_command_of_a_program_is_meant() {
        let words = |text: &str| text.split_whitespace().map(OsString::from).collect::<Vec<_>>();
        let process = words("train launch --nproc 2 x --out y");
        assert_eq!(before(&process, &words("program launch --nproc 2 x --out y")), words("train"));
        assert_eq!(before(&process, &words("program train launch --nproc 2 x --out y")), words(""));
        // Arguments that are not the process's own.
        assert_eq!(before(&process, &words("program report y")), words(""));
    }
}

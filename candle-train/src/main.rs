//! The command `candle-train`. Exit codes: 0 done (or stopped on request, with a checkpoint), 1 failed, 2 usage.

mod command;

use clap::Parser;
use std::process::ExitCode;

// Candle allocates a fresh buffer for every result: an allocator that keeps large blocks saves the page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = command::Arguments::parse();
    let threads = match candle_models::device::threads(arguments.threads()) {
        Ok(threads) => threads,
        Err(error) => return failure(&error.into()),
    };
    // SAFETY: the first thing after reading the arguments; no other thread has been started.
    unsafe { candle_models::device::configure_threads(threads) };
    match command::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(&error),
    }
}

fn failure(error: &anyhow::Error) -> ExitCode {
    candle_train::parallel::tell(error);
    let usage = matches!(error.downcast_ref(), Some(candle_models::Error::Config { .. }));
    ExitCode::from(if usage { 2 } else { 1 })
}

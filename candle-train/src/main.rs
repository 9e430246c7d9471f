//! `candle-train` with the shipped families.

use candle_train::{command, families};
use std::process::ExitCode;

// Candle allocates a fresh buffer for every result: an allocator that keeps large blocks saves the page faults.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // SAFETY: the program has started no thread yet.
    unsafe { command::run(&families::shipped(), std::env::args_os()) }
}

//! `candle-bench` with the shipped families.

use candle_bench::{command, families};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // SAFETY: the program has started no thread yet.
    unsafe { command::run(&families::shipped(), std::env::args_os()) }
}

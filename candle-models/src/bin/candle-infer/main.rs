//! `candle-infer` with the shipped families.

use candle_models::{families, infer};
use std::process::ExitCode;

fn main() -> ExitCode {
    // SAFETY: the program has started no thread yet.
    unsafe { infer::run(&families::commands(), std::env::args_os()) }
}

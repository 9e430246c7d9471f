//! The number of threads of a case, set and counted.

use crate::protocol::Unavailable;
use anyhow::Result;
use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;

/// Where the libraries read it.
const VARIABLES: [&str; 2] = ["RAYON_NUM_THREADS", "CANDLE_NUM_THREADS"];
/// CPU time of a round from which on its threads are counted, in seconds.
const COUNTED_S: f64 = 0.1;
/// By how much the threads' CPU time may exceed that of the busiest times their number: clocks are read one after the other.
const TOLERANCE: f64 = 1.1;

/// Goes on with that many threads: in this process if it has them, otherwise in itself anew, which answers `request`.
pub fn limit(threads: usize, request: &str) -> Result<()> {
    let number = threads.to_string();
    if VARIABLES.iter().all(|name| std::env::var(name).is_ok_and(|value| value == number)) {
        // The calling thread is one of the pool's: work is not handed to another, which it would wait for. Later calls find the pool there.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads).use_current_thread().build_global();
        return Ok(());
    }
    let mut command = std::process::Command::new(std::env::current_exe()?);
    command.arg(request.trim_end()).envs(VARIABLES.map(|name| (name, &number)));
    Err(command.exec().into())
}

/// CPU time of every thread of this process so far.
pub fn seconds() -> BTreeMap<i32, f64> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    threads.filter_map(number).filter_map(|thread| Some((thread, clock(thread)?))).collect()
}

/// Nothing for a thread that has ended.
fn clock(thread: i32) -> Option<f64> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // The clock of another thread, as pthread_getcpuclockid names it: CPUCLOCK_PERTHREAD and CPUCLOCK_SCHED.
    // SAFETY: the call writes to `time` alone.
    let failed = unsafe { libc::clock_gettime((!thread << 3) | 6, &mut time) };
    (failed == 0).then(|| time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9)
}

/// That no more threads computed than the case allows. Whoever computes beside this process does not change the shares.
pub fn check(library: &str, threads: usize, before: &BTreeMap<i32, f64>, after: &BTreeMap<i32, f64>) -> Result<()> {
    let used: Vec<f64> = after.iter().map(|(thread, seconds)| seconds - before.get(thread).unwrap_or(&0.0)).collect();
    let (total, busiest) = (used.iter().sum::<f64>(), used.iter().fold(0.0, |a: f64, b| a.max(*b)));
    if total >= COUNTED_S && total > TOLERANCE * threads as f64 * busiest {
        return Err(Unavailable(format!("{library} computed on {:.1} threads, the case allows {threads}", total / busiest)).into());
    }
    Ok(())
}

//! The processors that this process may use, and how to keep them from falling asleep.

use crate::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// The processors that this process may use, by number; none where the system does not say.
pub fn usable() -> Vec<usize> {
    usable_by(0)
}

/// Those that a thread may use; 0 is the calling one.
#[cfg(target_os = "linux")]
fn usable_by(thread: i32) -> Vec<usize> {
    // SAFETY: a set of processors is plain bits, for which zero is valid.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is as large as said, and belongs to this frame.
    if unsafe { libc::sched_getaffinity(thread, size_of_val(&set), &raw mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: every number is below the size of the set.
    (0..8 * size_of_val(&set)).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

#[cfg(not(target_os = "linux"))]
fn usable_by(_thread: i32) -> Vec<usize> {
    Vec::new()
}

/// Keeps the calling thread on one of the [`usable`] processors. Where that is refused it runs anywhere.
#[cfg(target_os = "linux")]
pub fn stay_on(cpu: usize) {
    // SAFETY: as above; such a number is below the size of a set, and the call reads the set only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

/// Keeps the calling thread on one of the [`usable`] processors. Where that is refused it runs anywhere.
#[cfg(not(target_os = "linux"))]
pub fn stay_on(_cpu: usize) {}

/// Whom a thread goes before.
///
/// ```
/// use candle_models::processors::{Priority, set_priority};
///
/// # if cfg!(target_os = "linux") {
/// // Work that is not to disturb the agents.
/// std::thread::spawn(|| set_priority(Priority::Idle)).join().expect("no panic").expect("anyone may step back");
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Priority {
    /// All threads of usual priority: Linux's `SCHED_FIFO`, which is for root and whom root allows it.
    RealTime,
    /// Nobody: Linux's `SCHED_IDLE`.
    Idle,
}

/// Gives the calling thread that priority.
///
/// # Errors
/// If the system does not allow it, or has no such priority.
#[cfg(target_os = "linux")]
pub fn set_priority(priority: Priority) -> std::io::Result<()> {
    let (class, level) = match priority {
        Priority::RealTime => (libc::SCHED_FIFO, 1),
        Priority::Idle => (libc::SCHED_IDLE, 0),
    };
    // SAFETY: the structure is plain numbers, and the call reads it only; 0 is the calling thread.
    let refused = unsafe {
        let mut parameters: libc::sched_param = std::mem::zeroed();
        parameters.sched_priority = level;
        libc::sched_setscheduler(0, class, &raw const parameters) != 0
    };
    if refused { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// Gives the calling thread that priority.
///
/// # Errors
/// If the system does not allow it, or has no such priority.
#[cfg(not(target_os = "linux"))]
pub fn set_priority(_priority: Priority) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// Every processor that this process may use stays awake until this is dropped.
///
/// On each a thread turns in a loop at the lowest priority that there is (Linux: `SCHED_IDLE`), and gives way to whoever else has work. A
/// processor that has nothing to do falls asleep, and who wakes it waits for it: on hardware some tens of microseconds, in a virtual machine
/// until the host, to which it was given back, has a processor for it again. What this is worth depends on the host, and
/// `candle-bench load --awake` measures it: on two virtual processors 64 agents at 60 Hz had their answers a fifth sooner
/// (`docs/src/benchmarks.md`).
///
/// It costs the electricity, or the bill, of processors that never rest, and where two of them share a core, what each of them takes from
/// the other.
///
/// ```
/// # fn main() -> candle_models::Result<()> {
/// # if cfg!(target_os = "linux") {
/// let awake = candle_models::processors::Awake::start()?;
/// // Here agents play.
/// drop(awake);
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Awake {
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Awake {
    /// Starts a thread on each processor.
    ///
    /// # Errors
    /// If the system does not name the processors, has no priority below all others, or threads cannot be started.
    pub fn start() -> Result<Self> {
        let mut awake = Self { over: Arc::default(), threads: Vec::new() };
        for cpu in usable() {
            let over = awake.over.clone();
            let (tell, told) = std::sync::mpsc::sync_channel(1);
            let body = move || {
                stay_on(cpu);
                let behind = set_priority(Priority::Idle);
                let turns = behind.is_ok();
                // Whoever waits for this has either heard it or is gone.
                let _ = tell.send(behind);
                while turns && !over.load(Relaxed) {
                    std::hint::spin_loop();
                }
            };
            let thread = std::thread::Builder::new().name("candle-models-awake".to_owned()).stack_size(1 << 16).spawn(body);
            awake.threads.push(thread.map_err(refused)?);
            told.recv().unwrap_or_else(|e| Err(std::io::Error::other(e))).map_err(refused)?;
        }
        if awake.threads.is_empty() {
            return Err(refused("the system does not name those that this process may use"));
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            // A loop does not panic.
            let _ = thread.join();
        }
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Input(format!("processors cannot be kept awake: {why}"))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    /// Which class of priority the threads have that keep processors awake, and on which they may run, as the system reports it.
    fn awake() -> Vec<(i32, Vec<usize>)> {
        let mut found = Vec::new();
        for task in std::fs::read_dir("/proc/self/task").unwrap() {
            let task = task.unwrap();
            // A thread may end while it is looked at.
            let Ok(name) = std::fs::read_to_string(task.path().join("comm")) else { continue };
            if name.starts_with("candle-models-a") {
                let thread = task.file_name().to_str().unwrap().parse().unwrap();
                // SAFETY: a question about a thread of this process.
                found.push((unsafe { libc::sched_getscheduler(thread) }, usable_by(thread)));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn every_processor_has_a_thread_behind_all_others_until_the_end() {
        let mut expected: Vec<_> = usable().into_iter().map(|cpu| (libc::SCHED_IDLE, vec![cpu])).collect();
        expected.sort();
        assert!(!expected.is_empty());
        let kept = Awake::start().unwrap();
        assert_eq!(awake(), expected);
        drop(kept);
        // A thread that has been waited for is still listed until the system has put it away.
        let start = Instant::now();
        while !awake().is_empty() && start.elapsed() < Duration::from_secs(60) {
            std::thread::yield_now();
        }
        assert_eq!(awake(), []);
    }

    #[test]
    fn a_thread_stays_where_it_was_put() {
        let last = *usable().last().unwrap();
        std::thread::spawn(move || {
            stay_on(last);
            assert_eq!(usable(), [last]);
        })
        .join()
        .unwrap();
    }
}

//! Threads that share one product: they spin for the few microseconds between two operations of a step and sleep otherwise.
//!
//! A work-stealing pool costs several microseconds to wake for every product; a step of a small network has a dozen
//! products of a few microseconds each.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, Thread};

/// Turns of the spin loop before a waiting thread sleeps: some 50 us.
const SPINS: u32 = 20_000;

type Job = *const (dyn Fn(usize) + Sync);

struct Shared {
    /// Rises by one for every job.
    epoch: AtomicU64,
    remaining: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    job: Mutex<Option<SendJob>>,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

#[derive(Clone, Copy)]
struct SendJob(Job);

// SAFETY: the closure behind the pointer is `Sync`, and `run` returns only after every worker is done with it.
unsafe impl Send for SendJob {}

/// A fixed set of threads; the caller's own thread is part 0.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` in all, the caller's counted.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            epoch: AtomicU64::new(0),
            remaining: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: Mutex::new(None),
            panic: Mutex::new(None),
        });
        let workers = (1..threads)
            .filter_map(|part| {
                let shared = shared.clone();
                // A thread that cannot be had is a thread less, not an error: its part is taken by `run`.
                std::thread::Builder::new().name(format!("candle-models-{part}")).spawn(move || work(&shared, part)).ok()
            })
            .collect();
        Self { shared, workers }
    }

    /// Threads in all.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(part)` for every part below [`Pool::threads`], one on each thread, and waits for all.
    pub fn run(&mut self, f: &(dyn Fn(usize) + Sync)) {
        if self.workers.is_empty() {
            return f(0);
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; this function does not return before `remaining` is 0, behind which no worker uses it.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(f) };
        if let Ok(mut slot) = shared.job.lock() {
            *slot = Some(SendJob(job));
        }
        shared.remaining.store(self.workers.len(), Ordering::Relaxed);
        shared.epoch.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|w| wake(w.thread()));
        }
        let own = catch_unwind(AssertUnwindSafe(|| f(0)));
        let mut spins = 0u32;
        while shared.remaining.load(Ordering::Acquire) > 0 {
            spins = spins.wrapping_add(1);
            if spins > SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let theirs = shared.panic.lock().ok().and_then(|mut p| p.take());
        if let Some(panic) = own.err().or(theirs) {
            resume_unwind(panic);
        }
    }
}

fn wake(thread: &Thread) {
    thread.unpark();
}

fn work(shared: &Shared, part: usize) {
    let mut seen = 0;
    loop {
        wait(shared, seen);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        seen = shared.epoch.load(Ordering::SeqCst);
        let job = shared.job.lock().ok().and_then(|j| *j);
        if let Some(SendJob(job)) = job {
            // SAFETY: `run` keeps the closure alive until `remaining` reaches 0 below.
            let result = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)(part) }));
            if let (Err(panic), Ok(mut slot)) = (result, shared.panic.lock()) {
                *slot = Some(panic);
            }
        }
        shared.remaining.fetch_sub(1, Ordering::Release);
    }
}

/// Returns when the epoch is no longer `seen`.
fn wait(shared: &Shared, seen: u64) {
    for _ in 0..SPINS {
        if shared.epoch.load(Ordering::Acquire) != seen {
            return;
        }
        std::hint::spin_loop();
    }
    shared.sleeping.fetch_add(1, Ordering::SeqCst);
    while shared.epoch.load(Ordering::SeqCst) == seen {
        std::thread::park();
    }
    shared.sleeping.fetch_sub(1, Ordering::SeqCst);
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            wake(worker.thread());
            // A worker never panics outside `catch_unwind`; there is nothing to report from a destructor anyway.
            let _ = worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_runs_once_per_job_even_after_sleep() {
        let mut pool = Pool::new(3);
        for round in 0..200 {
            let counts: Vec<AtomicUsize> = (0..3).map(|_| AtomicUsize::new(0)).collect();
            pool.run(&|part| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
            if round % 50 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        }
    }

    #[test]
    fn a_panic_in_a_part_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2);
        let result = catch_unwind(AssertUnwindSafe(|| pool.run(&|part| assert_eq!(part, 0, "part {part} fails"))));
        assert!(result.is_err());
        let ran = AtomicUsize::new(0);
        pool.run(&|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    }
}

//! Threads that share one product: they spin for the few microseconds between two operations of a step and sleep otherwise.
//!
//! A work-stealing pool costs several microseconds to wake for every product; a step of a small network has a dozen
//! products of a few microseconds each. The parts of a job are claimed one by one, so a thread that the system has put
//! aside holds nobody up: the caller takes its part. (With fixed parts a step beside another busy process took 11 ms.)

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Turns of the spin loop before a waiting thread sleeps: some 50 us.
const SPINS: u32 = 20_000;

type Job = *const (dyn Fn(usize) + Sync);

/// What is left of a job: its number (wrapping), the next part to claim, the number of parts.
#[derive(Clone, Copy, PartialEq)]
struct Claim {
    epoch: u32,
    next: u16,
    parts: u16,
}

impl Claim {
    fn pack(self) -> u64 {
        u64::from(self.epoch) << 32 | u64::from(self.next) << 16 | u64::from(self.parts)
    }

    fn unpack(bits: u64) -> Self {
        Self { epoch: (bits >> 32) as u32, next: (bits >> 16) as u16, parts: bits as u16 }
    }
}

struct Shared {
    claim: AtomicU64,
    /// Parts that are done.
    done: AtomicUsize,
    sleeping: AtomicUsize,
    stop: AtomicBool,
    /// Written by `run` while no part can be claimed, read only by who has claimed one.
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn std::any::Any + Send>>>,
}

// SAFETY: `job` is written before the parts of its epoch can be claimed and read only between a claim and the `done` that
// `run` waits for; the closure behind the pointer is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

impl Shared {
    /// Claims a part of the current job, if one is left.
    fn claim(&self) -> Option<usize> {
        let mut bits = self.claim.load(Ordering::Acquire);
        loop {
            let now = Claim::unpack(bits);
            if now.next >= now.parts {
                return None;
            }
            let taken = Claim { next: now.next + 1, ..now }.pack();
            match self.claim.compare_exchange_weak(bits, taken, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(now.next as usize),
                Err(other) => bits = other,
            }
        }
    }

    /// Runs parts until none is left.
    fn work(&self) {
        while let Some(part) = self.claim() {
            // SAFETY: the claim keeps `run`, and with it the closure, alive until `done` counts this part.
            let job = unsafe { *self.job.get() };
            // SAFETY: as above.
            let run = || job.iter().for_each(|job| unsafe { (**job)(part) });
            if let (Err(panic), Ok(mut slot)) = (catch_unwind(AssertUnwindSafe(run)), self.panic.lock()) {
                *slot = Some(panic);
            }
            self.done.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns when the epoch is no longer `seen`.
    fn wait(&self, seen: u32) -> u32 {
        let epoch = |order| Claim::unpack(self.claim.load(order)).epoch;
        for _ in 0..SPINS {
            if epoch(Ordering::Acquire) != seen {
                return epoch(Ordering::Acquire);
            }
            std::hint::spin_loop();
        }
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        while epoch(Ordering::SeqCst) == seen {
            std::thread::park();
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
        epoch(Ordering::Acquire)
    }
}

/// Time in microseconds below which work stays on one thread: handing out a part and waiting for it takes about one.
const WORTH_SHARING: f32 = 4.0;

/// The threads that a pass may use: those of a pool, or its own alone.
pub struct Threads<'a>(pub(super) Option<&'a mut Pool>);

impl Threads<'_> {
    /// Runs `f(part, parts)` for every part of work that takes `micros` on one thread: all at once where that is worth it.
    pub(crate) fn share(&mut self, micros: f32, f: impl Fn(usize, usize) + Sync) {
        match &mut self.0 {
            Some(pool) if micros >= WORTH_SHARING && pool.threads() > 1 => {
                let parts = pool.threads();
                pool.run(&|part| f(part, parts));
            }
            _ => f(0, 1),
        }
    }
}

/// A fixed set of threads, the caller's own among them.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool of `threads` in all, the caller's counted.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            claim: AtomicU64::new(0),
            done: AtomicUsize::new(0),
            sleeping: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
        });
        let spawn = |number: usize| {
            let shared = shared.clone();
            let body = move || {
                let mut seen = 0;
                while !shared.stop.load(Ordering::Acquire) {
                    shared.work();
                    seen = shared.wait(seen);
                }
            };
            // A thread that cannot be had is a thread less, not an error: the others take its parts.
            std::thread::Builder::new().name(format!("candle-models-{number}")).spawn(body).ok()
        };
        let workers = (1..threads.min(usize::from(u16::MAX))).filter_map(spawn).collect();
        Self { shared, workers }
    }

    /// Threads in all.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(part)` once for every part below [`Pool::threads`] and waits for all. A panic in a part is the caller's.
    pub fn run(&mut self, f: &(dyn Fn(usize) + Sync)) {
        let shared = &*self.shared;
        // SAFETY: only the lifetime is erased; this function does not return before all parts are done.
        let job = unsafe { std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), Job>(f) };
        // SAFETY: every part of the job before is done, and nothing can be claimed until the store below.
        unsafe { *shared.job.get() = Some(job) };
        shared.done.store(0, Ordering::Relaxed);
        let parts = self.threads();
        self.publish(parts);
        shared.work();
        let mut spins = 0u32;
        while shared.done.load(Ordering::Acquire) < parts {
            spins = spins.saturating_add(1);
            if spins > SPINS { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        if let Some(panic) = shared.panic.lock().ok().and_then(|mut p| p.take()) {
            resume_unwind(panic);
        }
    }

    /// Opens the next epoch with that many parts and wakes who sleeps.
    fn publish(&self, parts: usize) {
        let epoch = Claim::unpack(self.shared.claim.load(Ordering::Relaxed)).epoch.wrapping_add(1);
        self.shared.claim.store(Claim { epoch, next: 0, parts: parts as u16 }.pack(), Ordering::SeqCst);
        if self.shared.sleeping.load(Ordering::SeqCst) > 0 {
            self.workers.iter().for_each(|w| w.thread().unpark());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.publish(0);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
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

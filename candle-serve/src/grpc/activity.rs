//! What a connection is at.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Calls of a connection.
#[derive(Debug)]
pub(super) struct Activity {
    began: Instant,
    /// Those that are not over until their answer has been taken.
    open: AtomicUsize,
    /// Those that wait for the server, or for what their client will say.
    working: AtomicUsize,
    /// When the last one began or was answered, in milliseconds since the beginning.
    last: AtomicU64,
}

impl Activity {
    pub fn new() -> Arc<Self> {
        Arc::new(Self { began: Instant::now(), open: AtomicUsize::new(0), working: AtomicUsize::new(0), last: AtomicU64::new(0) })
    }

    fn touch(&self) {
        self.last.store(self.began.elapsed().as_millis() as u64, Relaxed);
    }

    /// Whether there is no call.
    pub fn is_free(&self) -> bool {
        self.open.load(Relaxed) == 0
    }

    /// For how long nothing was asked, and nothing answered.
    pub fn idle(&self) -> Duration {
        if self.working.load(Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.began.elapsed().saturating_sub(Duration::from_millis(self.last.load(Relaxed)))
    }
}

/// Counts a call as long as it is there.
pub(super) struct Guard {
    activity: Arc<Activity>,
    counter: fn(&Activity) -> &AtomicUsize,
}

impl Guard {
    fn new(activity: &Arc<Activity>, counter: fn(&Activity) -> &AtomicUsize) -> Self {
        counter(activity).fetch_add(1, Relaxed);
        activity.touch();
        Self { activity: activity.clone(), counter }
    }

    /// Of a call until its answer has been taken.
    pub fn open(activity: &Arc<Activity>) -> Self {
        Self::new(activity, |activity| &activity.open)
    }

    /// Of a call until its answer is there.
    pub fn working(activity: &Arc<Activity>) -> Self {
        Self::new(activity, |activity| &activity.working)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.activity.touch();
        (self.counter)(&self.activity).fetch_sub(1, Relaxed);
    }
}

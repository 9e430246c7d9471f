//! Why sequences end, and how many have.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why a sequence has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its client has said that it is over.
    Asked,
    Idle,
    /// A step has failed, and its state is lost; the client has to begin anew.
    Lost,
    /// Its model was loaded anew, with other inputs, outputs or states.
    Reloaded,
    Unloaded,
    Deleted,
}

/// All of them, in the words of the metric.
const ALL: [(Why, &str); 6] = [
    (Why::Asked, "end"),
    (Why::Idle, "idle"),
    (Why::Lost, "lost"),
    (Why::Reloaded, "reload"),
    (Why::Unloaded, "unload"),
    (Why::Deleted, "deleted"),
];

impl Why {
    /// What is said of the sequence, or of its model, in a message.
    pub fn text(self) -> &'static str {
        match self {
            Self::Asked => "has ended",
            Self::Idle => "was idle for too long and ended",
            Self::Lost => "lost its state",
            Self::Reloaded => "was loaded anew",
            Self::Unloaded => "was unloaded",
            Self::Deleted => "was deleted",
        }
    }
}

/// How many sequences have ended.
#[derive(Debug, Default)]
pub(crate) struct Ended([AtomicU64; ALL.len()]);

impl Ended {
    pub fn count(&self, why: Why, count: usize) {
        if let Some(at) = ALL.iter().position(|(known, _)| *known == why) {
            self.0[at].fetch_add(count as u64, Relaxed);
        }
    }

    /// By the words of the metric.
    pub fn read(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ALL.iter().zip(&self.0).map(|((_, word), count)| (*word, count.load(Relaxed)))
    }
}

//! Ctrl-C: a run ends between two windows, and what it has measured stays.

use anyhow::{Context, Result, ensure};
use signal_hook::consts::SIGINT;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit code of a run that was interrupted, 128 and the number of the signal as shells have it.
pub const EXIT_CODE: u8 = 128 + SIGINT as u8;

/// Whether the run is to end. Asked between windows, rounds and loads; clones ask for the same.
#[derive(Debug, Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT asks for the end. The second one ends the process at once, with [`EXIT_CODE`] too.
    pub fn on_signal(&self) -> Result<()> {
        signal_hook::flag::register_conditional_shutdown(SIGINT, EXIT_CODE.into(), self.0.clone())
            .and_then(|_| signal_hook::flag::register(SIGINT, self.0.clone()))
            .map(drop)
            .context("SIGINT cannot be waited for")
    }

    /// Whether it came.
    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// An error if it came.
    pub fn check(&self) -> Result<()> {
        ensure!(!self.came(), "interrupted");
        Ok(())
    }
}

#[cfg(test)]
impl Interrupt {
    /// As if the signal had come.
    pub fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

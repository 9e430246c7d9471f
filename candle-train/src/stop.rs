//! When a run stops before its last step: a signal or the clock. Both let the step finish and the checkpoint be saved.
//!
//! ```
//! use candle_train::stop::{Reason, Stop};
//! use std::time::Duration;
//! # fn main() -> candle_models::Result<()> {
//! let stop = Stop::after(Some(Duration::from_secs(3600))).on_signals()?; // asked after every step
//! assert_ne!(stop.now(), Some(Reason::Time));
//! # Ok(())
//! # }
//! ```

use candle_models::{Error, Result};
use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Why a run stopped early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// SIGTERM, SIGINT or SIGUSR1 came.
    Signal,
    /// The time given is used up.
    Time,
    /// A [callback](crate::callback) said so.
    Callback,
    /// Held-out scores no longer improve: the run has done what it was for.
    NoImprovement,
}

/// Asked after every step.
///
/// ```
/// use candle_train::stop::{Reason, Stop};
/// use std::time::Duration;
///
/// assert_eq!(Stop::after(None).now(), None);
/// assert_eq!(Stop::after(Some(Duration::ZERO)).now(), Some(Reason::Time));
/// ```
#[derive(Debug, Clone)]
pub struct Stop {
    flag: Arc<AtomicBool>,
    start: Instant,
    limit: Option<Duration>,
}

impl Stop {
    /// Stops after `limit`, or never.
    pub fn after(limit: Option<Duration>) -> Self {
        Self { flag: Arc::default(), start: Instant::now(), limit }
    }

    /// Stops at SIGTERM, SIGINT or SIGUSR1 (the one that mpirun passes on) too. A second signal ends the process at once with code 1.
    pub fn on_signals(self) -> Result<Self> {
        for signal in [SIGTERM, SIGINT, SIGUSR1] {
            signal_hook::flag::register_conditional_shutdown(signal, 1, self.flag.clone())
                .and_then(|_| signal_hook::flag::register(signal, self.flag.clone()))
                .map_err(|e| Error::Input(format!("signal {signal}: {e}")))?;
        }
        Ok(self)
    }

    /// Whether to stop now.
    pub fn now(&self) -> Option<Reason> {
        if self.flag.load(Ordering::Relaxed) {
            return Some(Reason::Signal);
        }
        self.limit.is_some_and(|limit| self.start.elapsed() >= limit).then_some(Reason::Time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stops_at_its_limit_only() {
        assert_eq!(Stop::after(None).now(), None);
        assert_eq!(Stop::after(Some(Duration::from_secs(3600))).now(), None);
        assert_eq!(Stop::after(Some(Duration::ZERO)).now(), Some(Reason::Time));
    }
}

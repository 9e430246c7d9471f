//! How an engine is set up.

use crate::device::DeviceChoice;
use crate::exec::Launches;
use crate::{Error, Result};
use candle_core::DType;
use std::time::Duration;

/// Most sessions of an engine: a slip of the pen lies above.
const MAX_SESSIONS: usize = 1 << 20;
/// Most threads of a batch, as in [`crate::device::threads`].
const MAX_THREADS: usize = 1024;
/// Longest time that a request may be held back for others.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// Where passes run.
///
/// ```
/// use candle_models::prelude::*;
/// # fn main() -> candle_models::Result<()> {
/// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
/// let two = Placement::cpu(2);
/// let engine = Engine::start(model, &Options { place: two, ..Options::default() })?;
/// assert!(engine.on_tensors().is_empty()); // every operation has a kernel
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    /// The CPU by default; [`DeviceChoice::Auto`] takes a GPU if there is one, and says why not on standard error.
    pub device: DeviceChoice,
    /// Threads that compute a batch on the CPU, the caller's or the engine's own counted; 1 to 1024. By default 1: a step is over
    /// before a second thread has woken up.
    pub threads: usize,
    /// The dtype of weights and of values between operations; by default what suits the device, f32 on the CPU. States, sums and outputs are f32
    /// everywhere. A CPU that multiplies bf16 faster than f32 (Intel's with AMX, AMD's with AVX-512) takes that for its products, values between them in f32; others take none but f32.
    pub dtype: Option<DType>,
    /// How passes reach a GPU.
    pub launches: Launches,
}

impl Default for Placement {
    fn default() -> Self {
        Self::cpu(1)
    }
}

impl Placement {
    /// On the CPU, on so many threads.
    pub fn cpu(threads: usize) -> Self {
        Self { device: DeviceChoice::Cpu, threads, dtype: None, launches: Launches::default() }
    }

    /// Names the field that is out of range.
    pub(super) fn validate(&self) -> Result<()> {
        within("threads", self.threads, MAX_THREADS)
    }
}

fn within(field: &str, value: usize, most: usize) -> Result<()> {
    let right = (1..=most).contains(&value);
    if right { Ok(()) } else { Err(Error::config(field, format!("expected from 1 to {most}, found {value}"))) }
}

/// How an engine is set up. Everything is allocated at the start.
///
/// ```
/// use candle_models::prelude::*;
/// use std::time::Duration;
///
/// let few = Options { sessions: 4, max_batch: 4, ..Options::default() };
/// assert!(few.validate().is_ok());
/// let slow = Options { max_wait: Some(Duration::from_secs(2)), ..few };
/// assert_eq!(slow.validate().unwrap_err().to_string(), "config: max_wait: expected at most 1s, found 2s");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where batches run.
    pub place: Placement,
    /// Sessions that can be open at the same time; 1 to 2^20, by default 256. Memory that no session has used yet is not taken.
    pub sessions: usize,
    /// Requests that may wait; more are refused as [`Overloaded`](super::EngineError::Overloaded). By default 256. A session
    /// has one request at most, so a bound of `sessions` refuses none.
    pub queue: usize,
    /// Most requests that run together; by default 32.
    pub max_batch: usize,
    /// How long the engine may hold back the oldest request for a fuller batch, at most 1 s; by default it runs what waits. It
    /// does not wait where every open session has a request, or where a deadline would pass.
    pub max_wait: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { place: Placement::default(), sessions: 256, queue: 256, max_batch: 32, max_wait: None }
    }
}

impl Options {
    /// Names the field that is out of range.
    pub fn validate(&self) -> Result<()> {
        self.place.validate()?;
        within("sessions", self.sessions, MAX_SESSIONS)?;
        within("queue", self.queue, MAX_SESSIONS)?;
        within("max_batch", self.max_batch, MAX_SESSIONS)?;
        match self.max_wait {
            Some(wait) if wait > MAX_WAIT => Err(Error::config("max_wait", format!("expected at most {MAX_WAIT:?}, found {wait:?}"))),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_out_of_range_name_the_field() {
        let message = |options: Options| options.validate().unwrap_err().to_string();
        assert!(Options::default().validate().is_ok());
        assert_eq!(
            message(Options { place: Placement::cpu(0), ..Default::default() }),
            "config: threads: expected from 1 to 1024, found 0"
        );
        assert_eq!(message(Options { sessions: 0, ..Default::default() }), "config: sessions: expected from 1 to 1048576, found 0");
        assert_eq!(message(Options { queue: 0, ..Default::default() }), "config: queue: expected from 1 to 1048576, found 0");
        let most = Options { max_batch: usize::MAX, ..Default::default() };
        assert!(message(most).starts_with("config: max_batch: expected from 1 to 1048576"));
        let long = Options { max_wait: Some(Duration::from_secs(2)), ..Default::default() };
        assert_eq!(message(long), "config: max_wait: expected at most 1s, found 2s");
    }
}

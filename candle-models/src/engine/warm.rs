//! Batches that are run before the first request.

use super::{Engine, EngineError, Session};
use crate::random::Random;
use crate::signature::TensorSpec;
use candle_core::DType;
use std::time::{Duration, Instant};

impl Engine {
    /// Runs batches of 1, of 2 and of the most fresh sessions: what a first step touches for the first time is there when requests come,
    /// and a model that fails on every input is found. Batches of several are left out where they would take longer than `limit`, all
    /// together and by the time of those before them. Inputs are at their defaults; those without one are drawn. Nothing of it is
    /// counted in [`Self::stats`].
    ///
    /// ```
    /// use candle_models::prelude::*;
    /// use std::time::Duration;
    /// # fn main() -> candle_models::Result<()> {
    /// let model = families::shipped().load(&Bundle::open("../weights/policy-mlp")?)?;
    /// let engine = Engine::start(model, &Options::default())?;
    /// engine.warm_up(Duration::from_millis(5))?;
    /// assert_eq!((engine.stats().steps, engine.stats().open), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As of a step, and [`EngineError::Capacity`] where other sessions leave no room.
    pub fn warm_up(&self, limit: Duration) -> Result<(), EngineError> {
        let began = Instant::now();
        let most = self.shared.queue.most();
        let mut sizes = vec![1, 2, most];
        sizes.retain(|size| *size <= most);
        sizes.dedup();
        let mut sessions: Vec<Session> = Vec::with_capacity(most);
        let mut last: Option<(Duration, u32)> = None;
        for size in sizes {
            let too_long = |(time, rows): (Duration, u32)| began.elapsed() + time * (size as u32).div_ceil(rows) > limit;
            if last.is_some_and(too_long) {
                break;
            }
            while sessions.len() < size {
                let mut session = self.open()?;
                self.shared.signature.inputs.iter().try_for_each(|spec| fill(&mut session, spec))?;
                sessions.push(session);
            }
            let rows: Vec<u32> = sessions.iter().map(Session::row).collect();
            last = Some((self.shared.warm_up(&rows)?, size as u32));
        }
        Ok(())
    }
}

/// Writes values that the input can take, if it has none yet.
fn fill(session: &mut Session, spec: &TensorSpec) -> crate::Result<()> {
    if !spec.is_required() {
        return Ok(());
    }
    let drawn = spec.draw(&[1], &Random::new(0))?.flatten_all()?;
    match spec.dtype() {
        DType::U32 => session.set_u32(&spec.name, &drawn.to_vec1()?),
        _ => session.set_f32(&spec.name, &drawn.to_vec1()?),
    }
}

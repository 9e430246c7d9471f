//! One agent of a load: when it asks, and what it sees.

use crate::calls::{Inputs, STREAM_FRAMES};
use crate::harness::FRAME;
use crate::interrupt::Interrupt;
use crate::load::Arrivals;
use anyhow::Result;
use candle_models::engine::{EngineError, Session};
use candle_models::random::Random;
use std::time::{Duration, Instant};

/// A request that was answered, or that was given up at its deadline. A closed loop makes some ten thousand a second: it is small.
#[derive(Clone, Copy)]
pub(super) struct Sample {
    pub due: Instant,
    /// From then until its answer, or until it was given up.
    pub total: Duration,
    pub answer: Option<Answer>,
}

/// Where the time of an answer went.
#[derive(Clone, Copy)]
pub(super) struct Answer {
    /// Wake, queue, execute and reply, in microseconds.
    pub parts_us: [f32; 4],
    /// Requests that were computed together.
    pub batch: u32,
}

impl Answer {
    pub fn execute(&self) -> Duration {
        Duration::from_secs_f64(f64::from(self.parts_us[2]) / 1e6)
    }
}

/// What an agent has seen.
#[derive(Default)]
pub(super) struct Log {
    pub samples: Vec<Sample>,
    pub overloaded: usize,
}

impl Log {
    fn answers(&self) -> usize {
        self.samples.iter().filter(|sample| sample.answer.is_some()).count()
    }
}

/// What one agent does.
pub(super) struct Plan {
    pub arrivals: Arrivals,
    /// Of this agent alone.
    pub random: Random,
    pub begin: Instant,
    /// Requests that are due from here on count.
    pub counted: Instant,
    pub end: Instant,
    pub interrupt: Interrupt,
}

impl Plan {
    /// When the first request is due, and what follows the one that was due at `last`.
    fn first(&self) -> Instant {
        match self.arrivals {
            Arrivals::Closed => self.begin,
            Arrivals::Ticks => self.begin + FRAME.mul_f32(self.random.uniform(0)),
            Arrivals::Poisson => self.begin + self.gap(0),
        }
    }

    fn next(&self, last: Instant, number: u64) -> Instant {
        match self.arrivals {
            Arrivals::Closed => Instant::now(),
            Arrivals::Ticks => last + FRAME,
            Arrivals::Poisson => last + self.gap(number),
        }
    }

    /// An exponential time with the mean of a frame.
    fn gap(&self, number: u64) -> Duration {
        FRAME.mul_f32(-(1.0 - self.random.uniform(number)).ln())
    }

    /// Asks until the end, and once at least for an answer that counts.
    pub fn play(&self, mut session: Session, frames: &[Inputs]) -> Result<Log> {
        debug_assert_eq!(frames.len(), STREAM_FRAMES);
        let mut log = Log::default();
        // A closed loop answers some ten thousand times a second, the others sixty. Growing would be measured, and so would the first touch of
        // every page: sixty-four logs that grew at once kept the engine waiting for 50 ms. The pages of a closed loop's log are left untouched:
        // there can be 256 of these logs, and most would touch far more memory than they fill.
        if self.arrivals == Arrivals::Closed {
            log.samples.reserve(1 << 17);
        } else {
            let most = 75.0 * (self.end - self.counted).as_secs_f64() + 64.0;
            log.samples.resize(most as usize, Sample { due: self.begin, total: Duration::ZERO, answer: None });
            log.samples.clear();
        }
        let (mut due, mut number) = (self.first(), 0);
        // However slow the machine, an agent waits for one answer that counts.
        while (due < self.end || log.answers() == 0) && !self.interrupt.came() {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            // In a closed loop there is no deadline that could be missed before the request is made.
            let asked = Instant::now();
            let due_at = if self.arrivals == Arrivals::Closed { asked } else { due };
            frames[number as usize % frames.len()].copy_to(&mut session)?;
            let result = session.step_before(due_at + FRAME);
            let total = due_at.elapsed();
            if due_at >= self.counted {
                let sample = Sample { due: due_at, total, answer: None };
                match result {
                    Ok(()) => {
                        let timing = session.timing();
                        let parts = [asked - due_at, timing.queue, timing.execute, timing.reply];
                        let answer = Answer { parts_us: parts.map(|part| part.as_secs_f32() * 1e6), batch: timing.batch as u32 };
                        log.samples.push(Sample { answer: Some(answer), ..sample });
                    }
                    Err(EngineError::DeadlineExceeded) => log.samples.push(sample),
                    Err(EngineError::Overloaded { .. }) => log.overloaded += 1,
                    Err(other) => return Err(other.into()),
                }
            }
            number += 1;
            due = self.next(due, number);
        }
        Ok(log)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arrivals: Arrivals) -> Plan {
        let begin = Instant::now();
        Plan {
            arrivals,
            random: Random::new(4),
            begin,
            counted: begin,
            end: begin + Duration::from_secs(60),
            interrupt: Interrupt::default(),
        }
    }

    #[test]
    fn open_loops_ask_sixty_times_a_second() {
        for arrivals in [Arrivals::Ticks, Arrivals::Poisson] {
            let plan = plan(arrivals);
            let (mut due, mut number) = (plan.first(), 0u64);
            let mut gaps = Vec::new();
            while due < plan.end {
                number += 1;
                let next = plan.next(due, number);
                gaps.push((next - due).as_secs_f64() * 60.0);
                due = next;
            }
            assert!((3400..3800).contains(&gaps.len()), "{arrivals:?}: {} requests a minute", gaps.len());
            let variance = gaps.iter().map(|g| (g - 1.0).powi(2)).sum::<f64>() / gaps.len() as f64;
            let expected = if arrivals == Arrivals::Poisson { 1.0 } else { 0.0 };
            assert!((variance - expected).abs() < 0.15, "{arrivals:?}: variance {variance} of gaps in frames");
        }
    }
}

//! Many agents on one engine: what a step takes in a closed loop, at 60 frames a second, and with random arrivals.
//!
//! Every agent is a thread with a session of its own. In an open loop a request has a time at which it is due, whether or not
//! the one before has been answered, and its latency counts from then: a stall is seen by every request that it delays.

mod agent;
mod row;

pub use row::{LoadRow, STAGES, Stage};

use crate::calls::Inputs;
use crate::case::{Case, Pass};
use crate::host::{self, Host};
use crate::interrupt::Interrupt;
use crate::lateness::{Lateness, wake_on_time};
use crate::network::{FEW, Network, Place};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use agent::{Log, Plan};
use anyhow::{Context, Result, ensure};
use candle_models::engine::{Engine, Options};
use candle_models::processors::Awake;
use candle_models::random::Random;
use serde::{Deserialize, Serialize};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Many agents on one engine: latency by stage in a closed loop, at 60 Hz and with random arrivals; missed deadlines.
#[derive(clap::Args)]
pub struct Load {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// When agents ask.
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_value = "closed,ticks,poisson")]
    arrivals: Vec<Arrivals>,
    /// Numbers of agents.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128, 256])]
    sessions: Vec<usize>,
    /// Seconds of every load behind its warm-up.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    duration: f64,
    /// Keep the processors awake meanwhile, as `candle_models::processors::Awake` does for a program of yours.
    #[arg(long)]
    awake: bool,
}

impl Suite for Load {
    const NAME: &'static str = "load";
    const TITLE: &'static str = "Many agents on one engine";
    type Row = LoadRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<LoadRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        let suite = LoadSuite {
            networks: bench.networks(common, FEW)?,
            arrivals: self.arrivals.clone(),
            sessions: self.sessions.clone(),
            threads: common.threads.clone(),
            place: self.device.open()?,
            seconds: self.duration,
            awake: self.awake,
            warm_up: common.settings.warm_up_s,
            interrupt: common.settings.interrupt.clone(),
        };
        suite.validate()?;
        bench.begin(&suite.describe(), Some(suite.cases().len()));
        suite.run(&bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// When an agent asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Arrivals {
    /// As soon as it has its answer.
    Closed,
    /// Every sixtieth of a second; agents begin at random moments of a frame.
    Ticks,
    /// At random, sixty times a second on average.
    Poisson,
}

impl Arrivals {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Ticks => "ticks",
            Self::Poisson => "poisson",
        }
    }
}

/// Which loads are put on the engine.
#[derive(Debug, Clone)]
pub struct LoadSuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// When agents ask.
    pub arrivals: Vec<Arrivals>,
    /// How many agents there are.
    pub sessions: Vec<usize>,
    /// Threads of the engine.
    pub threads: Vec<usize>,
    /// Where it computes.
    pub place: Place,
    /// Seconds of a load behind its warm-up.
    pub seconds: f64,
    /// Whether processors that have nothing to do stay awake.
    pub awake: bool,
    /// Seconds before anything counts.
    pub warm_up: f64,
    /// Ends a load early, with an error.
    pub interrupt: Interrupt,
}

impl LoadSuite {
    /// Names the argument at fault.
    pub fn validate(&self) -> Result<()> {
        ensure!(self.sessions.iter().all(|&n| n > 0), "sessions: a load has at least one agent");
        ensure!(self.seconds.is_finite() && self.seconds > 0.0, "duration: {} s is not a length", self.seconds);
        ensure!(self.warm_up.is_finite() && self.warm_up >= 0.0, "warm-up: {} s is not a time", self.warm_up);
        Ok(())
    }

    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "Every session is a thread of its own that copies an observation in, steps and reads the answer; {} s count after {} s of warm-up. closed: the \
             next request follows the answer. ticks: 60 requests a second, sessions at random phases. poisson: 60 a second on average, at random. Latency counts \
             from the moment a request is due; wake is how late the agent's thread ran, queue, execute and reply are the engine's. Less machine: without \
             what the pauses of the machine add behind an engine without a fault, which takes what waits in batches as long as those measured; a pause is a time in \
             which a thread that does nothing but sleep was due and did not run, and the processor where they cost most counts. Longest pause is the most at once. \
             Missed: no answer within 16.67 ms.{}",
            self.seconds,
            self.warm_up,
            if self.awake { " Threads that give way to all others kept the processors awake." } else { "" }
        )
    }

    /// The loads in the order of the table.
    pub fn cases(&self) -> Vec<(Network, Arrivals, usize, usize)> {
        let mut cases = Vec::new();
        for network in &self.networks {
            for &arrivals in &self.arrivals {
                for &threads in &self.threads {
                    cases.extend(self.sessions.iter().map(|&sessions| (network.clone(), arrivals, threads, sessions)));
                }
            }
        }
        cases
    }

    /// Measures every load; `seen` is called after each.
    pub fn run(&self, host: &Host, mut seen: impl FnMut(&LoadRow)) -> Result<Vec<LoadRow>> {
        let mut rows = Vec::new();
        for (network, arrivals, threads, sessions) in self.cases() {
            let case = self.place.of(network.case(Pass::Step, sessions, 1, threads));
            let row = self.load(&network, case, arrivals, host).with_context(|| format!("{sessions} sessions, {arrivals:?}"))?;
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }

    fn load(&self, network: &Network, case: Case, arrivals: Arrivals, host: &Host) -> Result<LoadRow> {
        let count = case.batch;
        let options = Options { place: self.place.of_engine(&case)?, sessions: count, queue: count, ..Options::default() };
        let model = network.load()?;
        let frames = Inputs::random(&*model, &Case { batch: 1, ..case.clone() }).each_frame();
        let engine = Engine::start(model, &options)?;
        let sessions = (0..count).map(|_| Ok(engine.open()?)).collect::<Result<Vec<_>>>()?;
        // Threads start before the clock does.
        let begin = Instant::now() + Duration::from_millis(50 + count as u64);
        let counted = begin + Duration::from_secs_f64(self.warm_up);
        let end = counted + Duration::from_secs_f64(self.seconds);
        let barrier = Barrier::new(count + 1);
        let _awake = self.awake.then(Awake::start).transpose()?;
        let (records, batches, lateness) = std::thread::scope(|scope| -> Result<_> {
            let mut agents = Vec::with_capacity(count);
            for (i, session) in sessions.into_iter().enumerate() {
                let (random, interrupt) = (Random::new(1).stream("arrivals").at(i as u64), self.interrupt.clone());
                let plan = Plan { arrivals, random, begin, counted, end, interrupt };
                let (frames, barrier) = (&frames, &barrier);
                let body = move || {
                    // An agent that is woken late asks late, which would be no fault of the engine.
                    wake_on_time();
                    barrier.wait();
                    plan.play(session, frames)
                };
                agents.push(std::thread::Builder::new().name(format!("agent-{i}")).stack_size(1 << 18).spawn_scoped(scope, body)?);
            }
            barrier.wait();
            std::thread::sleep(counted.saturating_duration_since(Instant::now()));
            let before = engine.stats();
            let lateness = Lateness::until(end, &self.interrupt)?;
            let after = engine.stats();
            let records: Result<Vec<Log>> =
                agents.into_iter().map(|a| a.join().map_err(|_| anyhow::anyhow!("an agent panicked"))?).collect();
            let steps = (after.steps - after.lone_steps) - (before.steps - before.lone_steps);
            let batches = after.batches - before.batches;
            // A lone session makes no batches: its steps count as batches of one.
            Ok((records?, if batches == 0 { 1.0 } else { steps as f64 / batches as f64 }, lateness))
        })?;
        self.interrupt.check()?;
        let load = (arrivals, self.awake, self.seconds);
        row::row(host, case, load, (batches, options.max_batch.min(count)), &lateness, &records)
    }
}

/// Sessions of a process whose memory is read.
pub const SESSIONS: usize = 64;

/// Opens a bundle, steps 64 sessions and returns the peak of the process's resident set in KiB.
pub fn resident(network: &Network) -> Result<u64> {
    let model = network.load()?;
    let frames = Inputs::random(&*model, &network.case(Pass::Step, 1, 1, 1)).each_frame();
    let engine = Engine::start(model, &Options { sessions: SESSIONS, ..Options::default() })?;
    let mut sessions = (0..SESSIONS).map(|_| engine.open()).collect::<Result<Vec<_>, _>>()?;
    for frame in &frames {
        for session in &mut sessions {
            frame.copy_to(session)?;
            session.step()?;
        }
    }
    host::peak_kilobytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn every_load_answers_and_its_stages_add_up() {
        let directory = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", directory.path());
        let suite = LoadSuite {
            networks: vec![network],
            arrivals: vec![Arrivals::Closed, Arrivals::Ticks, Arrivals::Poisson],
            sessions: vec![1, 3],
            threads: vec![1],
            place: Place::cpu(),
            seconds: 0.3,
            awake: false,
            warm_up: 0.1,
            interrupt: Interrupt::default(),
        };
        suite.validate().unwrap();
        let rows = suite.run(&Host::detect(Some("test".into())), |_| {}).unwrap();
        assert_eq!(rows.len(), suite.cases().len());
        for row in rows {
            let (case, latency) = (&row.case, &row.latency_us);
            assert!(latency.n > 0 && row.overloaded == 0, "{case:?} {latency:?}");
            if row.arrivals != Arrivals::Closed {
                assert!(row.answers_per_s < 90.0 * case.batch as f64, "{} answers a second from {}", row.answers_per_s, case.batch);
            }
        }
    }

    #[test]
    fn a_process_knows_the_peak_of_its_memory() {
        let directory = tempfile::tempdir().unwrap();
        assert!(resident(&testing::network("mlp", directory.path())).unwrap() > 1000);
    }
}

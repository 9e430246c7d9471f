//! Many agents on one engine: what a step takes in a closed loop, at 60 frames a second, and with random arrivals.
//!
//! Every agent is a thread with a session of its own. In an open loop a request has a time at which it is due, whether or not
//! the one before has been answered, and its latency counts from then: a stall is seen by every request that it delays.

use crate::calls::{Inputs, STREAM_FRAMES};
use crate::case::{Case, Pass};
use crate::figure::Figure;
use crate::harness::FRAME;
use crate::host::{self, Host};
use crate::interrupt::Interrupt;
use crate::lateness::Lateness;
use crate::network::{FEW, Network, Place};
use crate::report::charts::{self, Across, Bar, Chart, Content, Lengths, Panel, entry, lines, network, threads};
use crate::stats::{Summary, percentile, sorted};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{Record, Shown, longest, micros, optional};
use anyhow::{Context, Result, ensure};
use candle_models::engine::{Engine, EngineError, Options, Session};
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

/// Names of the stages of a latency.
pub const STAGES: [&str; 4] = ["wake", "queue", "execute", "reply"];

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
    /// Seconds before anything counts.
    pub warm_up: f64,
    /// Ends a load early, with an error.
    pub interrupt: Interrupt,
}

/// What one load showed. Times are microseconds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LoadRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The network; its batch is the number of sessions.
    #[serde(flatten)]
    pub case: Case,
    /// When agents asked.
    pub arrivals: Arrivals,
    /// Seconds that were measured.
    pub seconds: f64,
    /// Answers a second.
    pub answers_per_s: f64,
    /// Requests of a batch on average.
    pub mean_batch: f64,
    /// From the moment a request was due to its answer.
    #[serde(flatten)]
    pub latency_us: Summary,
    /// Where that went: how late the agent woke up, its wait in the queue, its batch, the way back.
    pub stages: [Stage; 4],
    /// The latency less the machine's part of it: the time in which a thread that only sleeps was due and did not run, on the processor
    /// where that is longest. Reports from before there was this figure have none.
    #[serde(default)]
    pub own_us: Option<Summary>,
    /// The longest that such a thread was kept waiting.
    pub pause_us: f64,
    /// Requests without an answer within a frame.
    pub missed: usize,
    /// Those of them that would have missed it without the machine's part.
    #[serde(default)]
    pub own_missed: Option<usize>,
    /// Requests refused because too many waited.
    pub overloaded: usize,
}

impl Record for LoadRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Shown::Csv),
        ("Backbone", Shown::Everywhere),
        ("Dtype", Shown::Everywhere),
        ("Arrivals", Shown::Everywhere),
        ("Sessions", Shown::Everywhere),
        ("Threads", Shown::Everywhere),
        ("Inferences/Second", Shown::Everywhere),
        ("Mean batch", Shown::Everywhere),
        ("p50 latency", Shown::Everywhere),
        ("p99 latency", Shown::Everywhere),
        ("p99.9 latency", Shown::Everywhere),
        ("Max latency", Shown::Everywhere),
        ("Wake p50/p99", Shown::Everywhere),
        ("Queue p50/p99", Shown::Everywhere),
        ("Execute p50/p99", Shown::Everywhere),
        ("Reply p50/p99", Shown::Everywhere),
        ("p99 less machine", Shown::Everywhere),
        ("p99.9 less machine", Shown::Everywhere),
        ("Longest pause", Shown::Everywhere),
        ("Missed", Shown::Everywhere),
        ("Missed less machine", Shown::Everywhere),
        ("Overloaded", Shown::Csv),
        ("Requests", Shown::Everywhere),
        ("Seconds", Shown::Csv),
        ("Device", Shown::Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Dtype", "Arrivals", "Sessions", "Threads", "Device"];

    fn cells(&self) -> Vec<String> {
        let (case, latency) = (&self.case, &self.latency_us);
        let mut cells = vec![
            case.model.clone(),
            case.backbone.clone(),
            case.dtype.clone(),
            self.arrivals.name().to_owned(),
            case.batch.to_string(),
            case.threads.to_string(),
            format!("{:.0}", self.answers_per_s),
            format!("{:.1}", self.mean_batch),
            micros(latency.p50),
            optional(latency.p99),
            optional(latency.p99_9),
            micros(latency.max),
        ];
        cells.extend(self.stages.iter().map(|s| format!("{} / {}", micros(s.p50), micros(s.p99))));
        cells.extend([
            optional(self.own_us.as_ref().and_then(|own| own.p99)),
            optional(self.own_us.as_ref().and_then(|own| own.p99_9)),
            micros(self.pause_us),
            self.missed.to_string(),
            self.own_missed.map(|missed| missed.to_string()).unwrap_or_default(),
            self.overloaded.to_string(),
            latency.n.to_string(),
            format!("{}", self.seconds),
        ]);
        cells.push(case.device.clone());
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        vec![Figure::mean("mean latency", &self.latency_us)]
    }

    fn told(&self) -> Option<String> {
        let Case { backbone, batch, threads, .. } = &self.case;
        Some(format!(
            "{backbone} {:?} {batch} sessions, {threads} threads | p50 {:.1} us, {:.0} answers a second, {} missed",
            self.arrivals, self.latency_us.p50, self.answers_per_s, self.missed
        ))
    }

    fn often(&self) -> String {
        format!("{} answers in {} s", self.latency_us.n, self.seconds)
    }

    /// The stage that takes longest, by medians.
    fn bound(&self) -> Option<String> {
        longest(STAGES.into_iter().zip(self.stages.iter().map(|stage| stage.p50)))
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let title = |row: &Self| format!("{}, {}, {}", row.arrivals.name(), network(&row.case), threads(row.case.threads));
        let samples = rows.iter().flat_map(|row| {
            let latency = &row.latency_us;
            let shown = [("p50", Some(latency.p50)), ("p99", latency.p99), ("p99.9", latency.p99_9), ("max", Some(latency.max))];
            shown.into_iter().map(move |(name, us)| {
                // What was not measured keeps the place, and so the colour, of its line.
                let point = (row.case.batch as f64, us.unwrap_or(f64::NAN));
                charts::Sample { chart: title(row), series: name.to_owned(), point }
            })
        });
        let mut bars: Vec<(String, Vec<Bar>)> = Vec::new();
        for row in rows {
            let parts = STAGES.iter().zip(&row.stages).map(|(name, stage)| ((*name).to_owned(), stage.p50));
            let sessions = row.case.batch;
            let label = if sessions == 1 { "1 session".to_owned() } else { format!("{sessions} sessions") };
            entry(&mut bars, &title(row)).push(Bar { label, parts: parts.collect() });
        }
        let stages = bars.into_iter().map(|(title, bars)| Chart { title, content: Content::Bars(Lengths::Shares, bars) }).collect();
        charts::present([
            ("Latency, µs, by sessions", "Both axes are logarithmic.", charts::Shown::Open, lines(Across::Logarithmic, samples)),
            (
                "Where the latency goes",
                "Medians of the stages; beside each bar is their sum, which is not the median of the latency.",
                charts::Shown::Open,
                stages,
            ),
        ])
    }
}

/// A part of the latency, in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Stage {
    /// Median.
    pub p50: f64,
    /// 99th percentile, the largest where there are fewer than a hundred.
    pub p99: f64,
}

/// A request that was answered, or that was given up at its deadline. A closed loop makes some ten thousand a second: it is small.
#[derive(Clone, Copy)]
struct Sample {
    due: Instant,
    total_us: f32,
    /// Wake, queue, execute and reply of an answer.
    parts_us: Option<[f32; 4]>,
}

impl Sample {
    /// The latency without what the machine took of it.
    fn own_us(&self, lateness: &Lateness) -> f64 {
        let total = f64::from(self.total_us);
        let machine = lateness.within(self.due, self.due + Duration::from_secs_f64(total / 1e6));
        (total - micros_of(machine)).max(0.0)
    }
}

/// What an agent has seen.
#[derive(Default)]
struct Log {
    samples: Vec<Sample>,
    overloaded: usize,
}

impl Log {
    fn answers(&self) -> usize {
        self.samples.iter().filter(|sample| sample.parts_us.is_some()).count()
    }
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
             from the moment a request is due; wake is how late the agent's thread ran, queue, execute and reply are the engine's. Less machine: without the time in \
             which a thread that does nothing but sleep was due and did not run, on the processor where that is longest; longest pause is the most of it at once. \
             Missed: no answer within 16.67 ms.",
            self.seconds, self.warm_up
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
        let (records, batches, lateness) = std::thread::scope(|scope| -> Result<_> {
            let mut agents = Vec::with_capacity(count);
            for (i, session) in sessions.into_iter().enumerate() {
                let (random, interrupt) = (Random::new(1).stream("arrivals").at(i as u64), self.interrupt.clone());
                let plan = Plan { arrivals, random, begin, counted, end, interrupt };
                let (frames, barrier) = (&frames, &barrier);
                let body = move || {
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
        row(host, case, (arrivals, self.seconds), (batches, &lateness), &records)
    }
}

/// What one agent does.
struct Plan {
    arrivals: Arrivals,
    random: Random,
    begin: Instant,
    counted: Instant,
    end: Instant,
    interrupt: Interrupt,
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

    fn play(&self, mut session: Session, frames: &[Inputs]) -> Result<Log> {
        debug_assert_eq!(frames.len(), STREAM_FRAMES);
        let mut log = Log::default();
        // A closed loop answers some ten thousand times a second; growing would be measured.
        log.samples.reserve(if self.arrivals == Arrivals::Closed { 1 << 17 } else { 1 << 10 });
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
                let sample = Sample { due: due_at, total_us: micros_of(total) as f32, parts_us: None };
                match result {
                    Ok(()) => {
                        let timing = session.timing();
                        let parts = [asked - due_at, timing.queue, timing.execute, timing.reply].map(|part| micros_of(part) as f32);
                        log.samples.push(Sample { parts_us: Some(parts), ..sample });
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

fn micros_of(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn row(
    host: &Host,
    case: Case,
    (arrivals, seconds): (Arrivals, f64),
    (mean_batch, lateness): (f64, &Lateness),
    records: &[Log],
) -> Result<LoadRow> {
    let asked: Vec<Sample> = records.iter().flat_map(|log| log.samples.iter().copied()).collect();
    let answers: Vec<(Sample, [f32; 4])> = asked.iter().filter_map(|sample| Some((*sample, sample.parts_us?))).collect();
    let summary = |us: &dyn Fn(&Sample) -> f64| {
        let times: Vec<f64> = answers.iter().map(|(sample, _)| us(sample)).collect();
        Summary::of(&times).context("no request was answered")
    };
    let stage = |i: usize| {
        let sorted = sorted(&answers.iter().map(|(_, parts)| f64::from(parts[i])).collect::<Vec<_>>());
        let most = sorted.last().copied().unwrap_or(0.0);
        Stage { p50: percentile(&sorted, 0.5).unwrap_or(most), p99: percentile(&sorted, 0.99).unwrap_or(most) }
    };
    let total = |sample: &Sample| f64::from(sample.total_us);
    let own = |sample: &Sample| sample.own_us(lateness);
    let missed = |us: &dyn Fn(&Sample) -> f64| asked.iter().filter(|sample| us(sample) > micros_of(FRAME)).count();
    Ok(LoadRow {
        host: host.clone(),
        case,
        arrivals,
        seconds,
        answers_per_s: answers.len() as f64 / seconds,
        mean_batch,
        latency_us: summary(&total)?,
        stages: [0, 1, 2, 3].map(stage),
        own_us: Some(summary(&own)?),
        pause_us: micros_of(lateness.longest()),
        missed: missed(&total),
        own_missed: Some(missed(&own)),
        overloaded: records.iter().map(|log| log.overloaded).sum(),
    })
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
    fn stages_and_latency_are_those_of_all_answers() {
        let directory = tempfile::tempdir().unwrap();
        let case = testing::network("mlp", directory.path()).case(Pass::Step, 2, 1, 1);
        // Two agents; wake, queue, execute and reply of each answer. The first gave up three requests.
        let due = Instant::now();
        let log = |us: u16, given_up| {
            let answer = |us: u16| {
                let us = f32::from(us);
                Sample { due, total_us: 15.0 * us, parts_us: Some([us, 2.0 * us, 4.0 * us, 8.0 * us]) }
            };
            let late = std::iter::repeat_n(Sample { due, total_us: 17_000.0, parts_us: None }, given_up);
            Log { samples: (us..us + 50).map(answer).chain(late).collect(), overloaded: 1 }
        };
        let machine = Lateness::default();
        let row = row(&Host::detect(None), case, (Arrivals::Ticks, 2.0), (1.5, &machine), &[log(1, 3), log(51, 0)]).unwrap();
        assert_eq!((row.latency_us.n, row.answers_per_s, row.missed, row.own_missed, row.overloaded), (100, 50.0, 3, Some(3), 2));
        let close = |found: f64, want: f64| assert!((found - want).abs() < 1e-6, "{found} and {want}");
        for (stage, part) in row.stages.iter().zip([1.0, 2.0, 4.0, 8.0]) {
            close(stage.p50, 50.0 * part);
            close(stage.p99, 99.0 * part);
        }
        for (found, want) in [(row.latency_us.p50, 757.5), (row.latency_us.max, 1500.0), (row.pause_us, 0.0)] {
            close(found, want);
        }
        // Without pauses of the machine everything is the engine's own.
        assert_eq!(row.own_us, Some(row.latency_us));
    }

    #[test]
    fn a_process_knows_the_peak_of_its_memory() {
        let directory = tempfile::tempdir().unwrap();
        assert!(resident(&testing::network("mlp", directory.path())).unwrap() > 1000);
    }
}

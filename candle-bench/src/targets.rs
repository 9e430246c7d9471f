//! The figures that this project holds itself to, measured in one run and set against their limits.

use crate::calls::{EngineCalls, Inputs};
use crate::case::{Case, Pass};
use crate::figure::{Figure, Sense};
use crate::formulas;
use crate::harness::{self, Settings, Subject, Timed};
use crate::host::Host;
use crate::load::{Arrivals, LoadSuite};
use crate::network::{Network, Place, products};
use crate::ops::Peaks;
use crate::peer::{Library, Peer};
use crate::peers::PeerRow;
use crate::peers::PeerSuite;
use crate::stats::Interval;
use crate::table::{Record, Shown, number};
use anyhow::{Context, Result};
use candle_models::engine::{Engine, Options, Session};
use serde::{Deserialize, Serialize};
use std::process::Command;

/// In the place of a figure that could not be measured; the evidence says why.
const NOT_MEASURED: &str = "not measured";

/// Sessions of the load and of the memory figure.
pub const SESSIONS: usize = 64;

/// One figure and its limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TargetRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What was measured.
    #[serde(flatten)]
    pub case: Case,
    /// In words.
    pub what: String,
    /// The figure, in `unit`; not a number where it could not be measured.
    #[serde(deserialize_with = "number")]
    pub found: f64,
    /// Its 95% interval, where it comes from rounds in turn.
    #[serde(default)]
    pub found_ci: Option<Interval>,
    /// What it may be at most, or at least.
    pub limit: Limit,
    /// Unit of both.
    pub unit: String,
    /// What the figure was made from.
    pub evidence: String,
}

/// What a ratio to a peer was made from; its text is the evidence of such a row, and is read back from it.
#[derive(Debug, Clone, PartialEq)]
pub struct Sides {
    /// Our median, in microseconds.
    pub ours_us: f64,
    /// Whom with, `onnxruntime 1.25.1`.
    pub peer: String,
    /// Their median, in microseconds.
    pub theirs_us: f64,
    /// Rounds of either side.
    pub rounds: usize,
}

impl std::fmt::Display for Sides {
    /// `74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds`.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { ours_us, peer, theirs_us, rounds } = self;
        write!(f, "{ours_us:.1} us, {peer} {theirs_us:.1} us, {rounds} rounds")
    }
}

impl Sides {
    /// What [`Display`](std::fmt::Display) wrote; nothing for any other evidence.
    pub fn read(evidence: &str) -> Option<Self> {
        let (ours, rest) = evidence.split_once(" us, ")?;
        let (theirs, rounds) = rest.rsplit_once(" us, ")?;
        let (peer, theirs) = theirs.rsplit_once(' ')?;
        let rounds = rounds.strip_suffix(" rounds")?.parse().ok()?;
        Some(Self { ours_us: ours.parse().ok()?, peer: peer.to_owned(), theirs_us: theirs.parse().ok()?, rounds })
    }
}

/// A bound.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The figure is to lie at or below it.
    AtMost(f64),
    /// The figure is to lie at or above it.
    AtLeast(f64),
}

impl TargetRow {
    /// Whether the figure keeps its limit; one that is not a number does not.
    pub fn met(&self) -> bool {
        match self.limit {
            Limit::AtMost(most) => self.found <= most,
            Limit::AtLeast(least) => self.found >= least,
        }
    }

    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let Self { what, found, unit, evidence, case, .. } = self;
        let met = if self.met() { "met" } else { "NOT MET" };
        let found = if found.is_finite() { format!("{found:.3} {unit}") } else { NOT_MEASURED.to_owned() };
        format!("{what} | batch {} threads {} | {found} | {met} | {evidence}", case.batch, case.threads)
    }
}

impl Record for TargetRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("What", Shown::Everywhere),
        ("Batch", Shown::Everywhere),
        ("Threads", Shown::Everywhere),
        ("Dtype", Shown::Csv),
        ("Found", Shown::Everywhere),
        ("Limit", Shown::Everywhere),
        ("Unit", Shown::Everywhere),
        ("Met", Shown::Everywhere),
        ("From", Shown::Everywhere),
        ("Model", Shown::Csv),
        ("Device", Shown::Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["What", "Model", "Batch", "Threads", "Dtype", "Device"];

    fn cells(&self) -> Vec<String> {
        let limit = match self.limit {
            Limit::AtMost(most) => format!("<= {most}"),
            Limit::AtLeast(least) => format!(">= {least}"),
        };
        let digits = if self.found >= 10.0 { 1 } else { 3 };
        vec![
            self.what.clone(),
            self.case.batch.to_string(),
            self.case.threads.to_string(),
            self.case.dtype.clone(),
            if self.found.is_finite() { format!("{:.digits$}", self.found) } else { NOT_MEASURED.to_owned() },
            limit,
            self.unit.clone(),
            if self.met() { "yes" } else { "no" }.to_owned(),
            self.evidence.clone(),
            self.case.model.clone(),
            self.case.device.clone(),
        ]
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        let sense = if matches!(self.limit, Limit::AtMost(_)) { Sense::Cost } else { Sense::Yield };
        let figure = Figure::new("figure", &self.unit, sense, self.found);
        vec![Figure { interval: self.found_ci, kept: Some(self.met()), ..figure }]
    }

    fn often(&self) -> String {
        self.evidence.clone()
    }
}

/// What is measured.
#[derive(Debug)]
pub struct TargetSuite {
    /// The MLP policy and the Mamba policy, each as f32 and with 8-bit weights.
    pub mlp: [Network; 2],
    /// As above.
    pub mamba: [Network; 2],
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Seconds of the load.
    pub load_seconds: f64,
    /// Lengths of the other measurements.
    pub settings: Settings,
}

impl TargetSuite {
    /// Measures everything; `seen` is called after each figure.
    pub fn run(&self, peer: &mut Peer, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        let mut add = |row: TargetRow| {
            seen(&row);
            rows.push(row);
        };
        self.peers(peer, host, &mut add)?;
        self.overheads(host, &mut add)?;
        self.load(host, &mut add)?;
        add(self.memory(host)?);
        Ok(rows)
    }

    fn peers(&self, peer: &mut Peer, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let (onnx, torch) = (Library::Onnxruntime, Library::Pytorch);
        let [mlp, narrow_mlp] = &self.mlp;
        let [mamba, narrow_mamba] = &self.mamba;
        for (batch, most) in [(1, 0.70), (8, 0.85), (32, 0.85), (256, 0.95)] {
            self.ratio("MLP step over ONNX Runtime's", mlp, (Pass::Step, batch, onnx, most), peer, host, add)?;
        }
        self.ratio("8-bit MLP step over ONNX Runtime's f32", narrow_mlp, (Pass::Step, 1, onnx, 0.4), peer, host, add)?;
        self.ratio("Mamba step over PyTorch's", mamba, (Pass::Step, 1, torch, 0.25), peer, host, add)?;
        self.ratio("8-bit Mamba step over PyTorch's f32", narrow_mamba, (Pass::Step, 1, torch, 0.12), peer, host, add)?;
        for network in [mamba, narrow_mamba] {
            for batch in [1, 32] {
                let what =
                    if network.dtype == "f32" { "Mamba window 60 over PyTorch's" } else { "8-bit Mamba window 60 over PyTorch's f32" };
                self.ratio(what, network, (Pass::Window, batch, torch, 0.1), peer, host, add)?;
            }
        }
        let training = (Pass::Train, 32, torch, 0.025);
        for row in self.ratio("Mamba training step 32 x 60 over PyTorch's", mamba, training, peer, host, add)? {
            add(self.matmul_share(row)?);
        }
        Ok(())
    }

    /// Our time over theirs, on every number of threads. Gives back what was compared.
    fn ratio(
        &self,
        what: &str,
        network: &Network,
        (pass, batch, library, most): (Pass, usize, Library, f64),
        peer: &mut Peer,
        host: &Host,
        add: &mut impl FnMut(TargetRow),
    ) -> Result<Vec<PeerRow>> {
        let suite = PeerSuite {
            networks: vec![network.clone()],
            libraries: vec![library],
            passes: vec![pass],
            step_batches: vec![batch],
            window_batches: vec![batch],
            train_batch: batch,
            window: 60,
            threads: self.threads.clone(),
            place: Place::cpu(),
        };
        let run = suite.run(peer, &self.settings, host, |row: &PeerRow| {
            let (found, evidence) = match &row.comparison {
                Some(c) => {
                    let (peer, rounds) = (row.peer.clone(), c.rounds);
                    (1.0 / c.ratio, Sides { ours_us: c.ours_us.p50, peer, theirs_us: c.theirs_us.p50, rounds }.to_string())
                }
                None => (f64::NAN, format!("outputs disagree: {}", row.agreement)),
            };
            add(TargetRow {
                host: host.clone(),
                case: row.case.clone(),
                what: what.into(),
                found,
                found_ci: row.comparison.as_ref().map(|c| c.ratio_ci.inverse()),
                limit: Limit::AtMost(most),
                unit: "x".into(),
                evidence,
            });
        });
        run?.whole()
    }

    /// The operations of a training step over its time, as a share of what a large product reaches on as many threads.
    fn matmul_share(&self, training: PeerRow) -> Result<TargetRow> {
        let PeerRow { host, case, agreement, comparison, .. } = training;
        let micros = comparison.map_or(f64::NAN, |c| c.ours_us.p50);
        let flop = formulas::training_flop((products(&self.mamba[0].policy()?)? * case.batch * case.frames) as f64);
        let (ours, peak) = (formulas::gflop_per_s(flop, micros), Peaks::of_threads(case.threads, &self.settings)?.gflop_per_s);
        Ok(TargetRow {
            host,
            case,
            what: "Mamba training step, share of the machine's own matrix product".into(),
            found: ours / peak,
            found_ci: None,
            limit: Limit::AtLeast(0.5),
            unit: "share".into(),
            evidence: match ours.is_finite() {
                true => format!("{ours:.0} of {peak:.0} GFLOP/s, 6 per weight and frame"),
                false => format!("outputs disagree: {agreement}"),
            },
        })
    }

    /// What the engine adds to a step of the MLP with 8-bit weights, the fastest model there is.
    fn overheads(&self, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let network = &self.mlp[1];
        let case = network.case(Pass::Step, 1, 1, 1);
        let inputs = Inputs::random(&*network.load()?, &case);
        for (what, company, most) in
            [("engine over a bare step, lone session inline", 0, 2.0), ("engine over a bare step, through its thread", 1, 15.0)]
        {
            let engine = Engine::start(network.load()?, &Options { sessions: 1 + company, ..Options::default() })?;
            let session = engine.open()?;
            // A second open session, even an idle one, sends the first through the engine's thread.
            let _company = (0..company).map(|_| engine.open()).collect::<Result<Vec<_>, _>>()?;
            let mut through = Timed(SessionCalls { session, frames: inputs.each_frame(), next: 0 });
            let mut bare = Timed(EngineCalls::new(network.load()?, &case, &inputs, &Place::cpu())?);
            let compared = harness::compare(&mut through, &mut bare, &self.settings)?;
            let (ours, theirs) = (compared.ours_us.p50, compared.theirs_us.p50);
            add(TargetRow {
                host: host.clone(),
                case: case.clone(),
                what: what.into(),
                found: ours - theirs,
                found_ci: None,
                limit: Limit::AtMost(most),
                unit: "us".into(),
                evidence: format!("{ours:.1} us, bare {theirs:.1} us, medians"),
            });
        }
        Ok(())
    }

    fn load(&self, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let suite = LoadSuite {
            networks: vec![self.mamba[0].clone()],
            arrivals: vec![Arrivals::Ticks],
            sessions: vec![SESSIONS],
            threads: vec![1],
            place: Place::cpu(),
            seconds: self.load_seconds,
            warm_up: 1.0,
            interrupt: self.settings.interrupt.clone(),
        };
        for row in suite.run(host, |_| {})? {
            let evidence = format!(
                "{} steps in {} s, p50 {:.0} us, max {:.1} ms; a thread that only sleeps was up to {:.1} ms late",
                row.latency_us.n,
                row.seconds,
                row.latency_us.p50,
                row.latency_us.max / 1e3,
                row.pause_us / 1e3
            );
            let target = |what: &str, found: f64, most: f64, unit: &str| TargetRow {
                host: host.clone(),
                case: row.case.clone(),
                what: what.into(),
                found,
                found_ci: None,
                limit: Limit::AtMost(most),
                unit: unit.into(),
                evidence: evidence.clone(),
            };
            add(target("64 sessions at 60 Hz, Mamba, p99.9", row.latency_us.p99_9.unwrap_or(row.latency_us.max) / 1e3, 4.0, "ms"));
            add(target("64 sessions at 60 Hz, Mamba, deadlines missed", row.missed as f64, 0.0, "steps"));
        }
        Ok(())
    }

    /// The peak memory of a process that opens the Mamba bundle and steps 64 sessions.
    fn memory(&self, host: &Host) -> Result<TargetRow> {
        let network = &self.mamba[0];
        let program = std::env::current_exe().context("this program cannot be found")?.with_file_name("resident");
        let output = Command::new(program).arg(&network.bundle).output().context("a second process cannot be started")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let kilobytes: f64 =
            text.trim().parse().with_context(|| format!("no peak from it: {}", String::from_utf8_lossy(&output.stderr)))?;
        Ok(TargetRow {
            host: host.clone(),
            case: network.case(Pass::Step, SESSIONS, 1, 1),
            what: "memory of a process with one bundle and 64 sessions".into(),
            found: kilobytes * 1024.0 / 1e6,
            found_ci: None,
            limit: Limit::AtMost(30.0),
            unit: "MB".into(),
            evidence: "peak resident set, program included, the system's allocator".into(),
        })
    }
}

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
    peak_kilobytes()
}

/// The peak of this process's resident set in KiB.
pub fn peak_kilobytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("the peak of memory is read from /proc, which is not there")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    line.trim().trim_end_matches("kB").trim().parse().context("VmHWM is not a number")
}

/// A call copies an observation into a session and steps it.
struct SessionCalls {
    session: Session,
    frames: Vec<Inputs>,
    next: usize,
}

impl Subject for SessionCalls {
    fn run(&mut self) -> Result<()> {
        self.frames[self.next].copy_to(&mut self.session)?;
        self.next = (self.next + 1) % self.frames.len();
        Ok(self.session.step()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::policy::Heads;

    #[test]
    fn a_limit_is_met_at_its_value_and_never_by_what_is_not_a_number() {
        let directory = tempfile::tempdir().unwrap();
        let case = Network::random("mlp", Heads::Independent, directory.path()).unwrap().case(Pass::Step, 1, 1, 1);
        let row = |found, limit| TargetRow {
            host: Host::detect(Some("test".into())),
            case: case.clone(),
            what: "x".into(),
            found,
            found_ci: None,
            limit,
            unit: "us".into(),
            evidence: String::new(),
        };
        assert!(row(2.0, Limit::AtMost(2.0)).met() && !row(2.1, Limit::AtMost(2.0)).met());
        assert!(row(0.5, Limit::AtLeast(0.5)).met() && !row(0.4, Limit::AtLeast(0.5)).met());
        assert!(!row(f64::NAN, Limit::AtMost(2.0)).met() && !row(f64::NAN, Limit::AtLeast(0.0)).met());
        assert_eq!(row(1.0, Limit::AtMost(2.0)).cells().len(), TargetRow::COLUMNS.len());
        let unknown = row(f64::NAN, Limit::AtMost(2.0));
        assert!(unknown.line().contains("| not measured | NOT MET") && !unknown.line().contains("NaN"), "{}", unknown.line());
        assert_eq!(unknown.cells()[4], "not measured");
        let back: TargetRow = serde_json::from_str(&serde_json::to_string(&row(f64::NAN, Limit::AtMost(2.0))).unwrap()).unwrap();
        assert!(back.found.is_nan() && !back.met());
    }

    #[test]
    fn the_sides_of_a_ratio_are_read_back_from_its_evidence() {
        let sides = Sides { ours_us: 74.8, peer: "onnxruntime 1.25.1".into(), theirs_us: 158.0, rounds: 6 };
        assert_eq!(sides.to_string(), "74.8 us, onnxruntime 1.25.1 158.0 us, 6 rounds");
        assert_eq!(Sides::read(&sides.to_string()), Some(sides));
        for other in
            ["11.2 us, bare 9.1 us, medians", "outputs disagree: logits by 1.0e-1", "", "174.3 ms, bare 173.0 ms, median of 8 rounds"]
        {
            assert_eq!(Sides::read(other), None, "{other}");
        }
    }

    #[test]
    fn a_process_knows_the_peak_of_its_memory() {
        let directory = tempfile::tempdir().unwrap();
        let network = Network::random("mlp", Heads::Independent, directory.path()).unwrap();
        assert!(resident(&network).unwrap() > 1000);
    }
}

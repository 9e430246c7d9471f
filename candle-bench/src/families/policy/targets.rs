//! The figures that this project holds itself to, measured in one run and set against their limits.

use crate::calls::{EngineCalls, Inputs, calls};
use crate::case::{Case, Pass};
use crate::formulas::{self, Refused};
use crate::harness::{self, Comparison, Settings, Subject, Timed, pool};
use crate::host::Host;
use crate::load::{Arrivals, LoadSuite, SESSIONS};
use crate::network::{Network, Place};
use crate::ops::{Machine, Peaks, Site};
use crate::peer::{Library, Processes};
use crate::peers::PeerRow;
use crate::peers::PeerSuite;
use crate::roofline::pass_of;
use crate::split;
use crate::suite::{Common, Programs, Suite, SuiteRun};
use crate::table::micros;
use crate::target::{FLOOR, Judged, Limit, OVER_F32, TargetRow};
use anyhow::{Context, Result, ensure};
use candle_models::device;
use candle_models::engine::{Engine, Options, Session};
use std::process::Command;

/// The figures that the project holds itself to, beside their limits; of policies of usual sizes with random weights.
#[derive(clap::Args)]
pub struct Targets {
    #[command(flatten)]
    common: Common,
    /// Seconds of the load of 64 sessions.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    load_seconds: f64,
    #[command(flatten)]
    programs: Programs,
}

impl Suite for Targets {
    const NAME: &'static str = "targets";
    const TITLE: &'static str = "The project's own limits";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        ensure!(self.load_seconds > 0.0, "load: {} s is not a length", self.load_seconds);
        let usual = |kind: &str| -> Result<[Network; 3]> {
            let network = super::usual(kind, bench.scratch())?;
            let [halves, bytes] = ["bf16", "q8"].map(|dtype| network.stored(dtype, bench.scratch()));
            Ok([network, halves?, bytes?])
        };
        let suite = TargetSuite {
            mlp: usual("mlp")?,
            mamba: usual("mamba")?,
            threads: common.threads.clone(),
            load_seconds: self.load_seconds,
            settings: common.settings.clone(),
        };
        let mut peers = self.programs.processes();
        // Most of them: without it there is little to judge.
        peers.of(Library::Onnxruntime)?;
        bench.begin(&common.settings.describe_comparison(), None);
        suite.run(&mut peers, &bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Rounds of a pass and its roofs.
const ROUNDS: usize = 5;

/// What is measured.
#[derive(Debug)]
pub struct TargetSuite {
    /// The MLP policy with weights in f32, bf16 and 8 bits.
    pub mlp: [Network; 3],
    /// And the Mamba policy.
    pub mamba: [Network; 3],
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// Seconds of the load.
    pub load_seconds: f64,
    /// Lengths of the other measurements.
    pub settings: Settings,
}

impl TargetSuite {
    /// Measures everything; `seen` is called after each figure.
    pub fn run(&self, peers: &mut Processes, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        let mut add = |row: TargetRow| {
            seen(&row);
            rows.push(row);
        };
        self.peers(peers, host, &mut add)?;
        self.shares(host, &mut add)?;
        self.overheads(host, &mut add)?;
        self.load(host, &mut add)?;
        add(self.memory(host)?);
        Ok(rows)
    }

    fn peers(&self, peers: &mut Processes, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let ([mlp, _, narrow_mlp], [mamba, _, narrow_mamba]) = (&self.mlp, &self.mamba);
        for (batch, most) in [(1, 0.70), (8, 0.80), (32, 0.80), (256, 0.80)] {
            self.ratio("MLP step over the fastest peer's", mlp, (Pass::Step, batch, most), peers, host, add)?;
        }
        self.ratio("8-bit MLP step over the fastest f32 peer's", narrow_mlp, (Pass::Step, 1, 0.4), peers, host, add)?;
        self.ratio("Mamba step over the fastest peer's", mamba, (Pass::Step, 1, 0.55), peers, host, add)?;
        self.ratio("8-bit Mamba step over the fastest f32 peer's", narrow_mamba, (Pass::Step, 1, 0.2), peers, host, add)?;
        for network in [mamba, narrow_mamba] {
            let (what, most) = match network.dtype == "f32" {
                true => ("Mamba window 60 over the fastest peer's", 0.35),
                false => ("8-bit Mamba window 60 over the fastest f32 peer's", 0.25),
            };
            for batch in [1, 32] {
                self.ratio(what, network, (Pass::Window, batch, most), peers, host, add)?;
            }
        }
        let training = (Pass::Train, 32, 0.1);
        for row in self.ratio("Mamba training step 32 x 60 over the fastest peer's", mamba, training, peers, host, add)? {
            add(self.matmul_share(row)?);
        }
        self.narrow_training(host, add)
    }

    /// The trainer's steps with products in bf16 beside those in f32, on a CPU that trains so.
    fn narrow_training(&self, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let (mamba, settings) = (&self.mamba[0], &self.settings);
        for &threads in &self.threads {
            let case = mamba.case(Pass::Train, 32, 60, threads);
            let narrow = Case { dtype: "bf16".into(), ..case.clone() };
            let Some(compared) = split::compare(&*mamba.trainee()?, [&narrow, &case], settings)? else { return Ok(()) };
            add(over_f32(compared, host, narrow, "Mamba training step in bf16 over f32", (Limit::AtLeast(2.0), "times")));
        }
        Ok(())
    }

    /// Our time over that of the fastest peer, on every number of threads. Gives back a comparison of each, where there is one.
    fn ratio(
        &self,
        what: &str,
        network: &Network,
        (pass, batch, most): (Pass, usize, f64),
        peers: &mut Processes,
        host: &Host,
        add: &mut impl FnMut(TargetRow),
    ) -> Result<Vec<PeerRow>> {
        let mut compared = Vec::new();
        for &threads in &self.threads {
            let suite = PeerSuite {
                networks: vec![network.clone()],
                libraries: Library::rivals(pass).to_vec(),
                passes: vec![pass],
                step_batches: vec![batch],
                window_batches: vec![batch],
                train_batch: batch,
                window: 60,
                threads: vec![threads],
                place: Place::cpu(),
            };
            let run = suite.run(peers, &self.settings, host, |_| {})?;
            let Judged { found, found_ci, evidence } = run.beside_fastest();
            let frames = if pass == Pass::Step { 1 } else { suite.window };
            add(TargetRow {
                host: host.clone(),
                case: network.case(pass, batch, frames, threads),
                what: what.into(),
                found,
                found_ci,
                limit: Limit::AtMost(most),
                unit: "x".into(),
                evidence,
            });
            compared.extend(run.rows.into_iter().find(|row| row.comparison.is_some()));
        }
        Ok(compared)
    }

    /// The share of its floor that a pass reaches: the least time that this machine's arithmetic and memory allow it, over the time that it takes.
    fn shares(&self, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let passes = [(Pass::Step, 1), (Pass::Step, 32), (Pass::Step, 256), (Pass::Window, 1), (Pass::Window, 32)];
        for &threads in &self.threads {
            let (pool, place) = (pool(threads)?, Place::cpu());
            for (name, networks) in [("MLP", &self.mlp), ("Mamba", &self.mamba)] {
                for (network, (pass, batch)) in networks.iter().flat_map(|network| passes.map(|pass| (network, pass))) {
                    let (frames, what) = if pass == Pass::Step { (1, "step") } else { (60, "window 60") };
                    let case = network.case(pass, batch, frames, threads);
                    if network.dtype != "f32" && batch * frames > 1 && device::simd() == "amx" {
                        add(self.gain(network, &networks[0], case, format!("{name} {what} in {} over f32", network.dtype), host)?);
                        continue;
                    }
                    let (found, evidence) = self.share(network, &case, &place, Site::Threads(&pool))?;
                    // Weights of a lone row come from memory in any dtype; of many rows narrow ones are less at home.
                    let least = if network.dtype == "f32" || batch * frames == 1 { 0.7 } else { 0.55 };
                    let what = format!("{name} {what} in {} beside its floor", network.dtype);
                    add(TargetRow::new(host, case, what, (found, Limit::AtLeast(least), FLOOR), evidence));
                }
            }
        }
        Ok(())
    }

    /// The speed of a pass beside that of the same in f32. On tiles what is no product decides: arithmetic on them has hardly a floor.
    fn gain(&self, network: &Network, wide: &Network, case: Case, what: String, host: &Host) -> Result<TargetRow> {
        let place = Place::cpu();
        let calls = |network: &Network, case: &Case| {
            let model = network.load()?;
            calls(model.clone(), case, &Inputs::random(&*model, case), &place)
        };
        let mut ours = calls(network, &case)?;
        let mut theirs = calls(wide, &wide.case(case.pass, case.batch, case.frames, case.threads))?;
        let compared = harness::compare(&mut *ours, &mut *theirs, &self.settings)?;
        Ok(over_f32(compared, host, case, &what, (Limit::AtLeast(3.0), OVER_F32)))
    }

    /// The median share of rounds, each of which measures pass and roofs anew: what runs beside this program slows both.
    fn share(&self, network: &Network, case: &Case, place: &Place, site: Site) -> Result<(f64, String)> {
        let [warm_up_s, window_s] = [self.settings.warm_up_s, self.settings.window_s].map(|s| s / ROUNDS as f64);
        let settings = Settings { warm_up_s, window_s, ..self.settings.clone() };
        let (mut rounds, mut refused) = (Vec::new(), String::new());
        for _ in 0..ROUNDS {
            let (demand, measured) = pass_of(network, case, place, &settings)?;
            match Machine::new(site, &settings).placed(&demand, measured.latency_us.p50) {
                Ok(placed) => rounds.push(placed),
                Err(error) if error.is::<Refused>() => refused = error.to_string(),
                Err(error) => return Err(error),
            }
        }
        rounds.sort_by(|a, b| a.share().total_cmp(&b.share()));
        match rounds[..] {
            // Most of them, or it is no measurement.
            [least, .., most] if rounds.len() > ROUNDS / 2 => {
                let middle = rounds[rounds.len() / 2];
                let range = format!("{:.2} to {:.2} in {} rounds", least.share(), most.share(), rounds.len());
                Ok((middle.share(), format!("{} us: {}; {range}", micros(middle.us), middle.reason())))
            }
            _ => Ok((f64::NAN, refused)),
        }
    }

    /// The operations of a training step over its time, as a share of what a large product reaches on as many threads.
    fn matmul_share(&self, training: PeerRow) -> Result<TargetRow> {
        let PeerRow { host, case, agreement, comparison, .. } = training;
        let micros = comparison.map_or(f64::NAN, |c| c.ours_us.p50);
        let flop = formulas::training_flop((self.mamba[0].products()? * case.batch * case.frames) as f64);
        let (ours, peak) = (formulas::gflop_per_s(flop, micros), Peaks::of_threads(case.threads, &self.settings)?.gflop_per_s);
        Ok(TargetRow {
            host,
            case,
            what: "Mamba training step, share of the machine's own matrix product".into(),
            found: ours / peak,
            found_ci: None,
            limit: Limit::AtLeast(0.65),
            unit: "share".into(),
            evidence: match ours.is_finite() {
                true => format!("{ours:.0} of {peak:.0} GFLOP/s, 6 per weight and frame"),
                false => format!("outputs disagree: {agreement}"),
            },
        })
    }

    /// What the engine adds to a step of the MLP with 8-bit weights, the fastest model there is.
    fn overheads(&self, host: &Host, add: &mut impl FnMut(TargetRow)) -> Result<()> {
        let network = &self.mlp[2];
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
            networks: vec![self.mamba[0].clone(), self.mamba[2].clone()],
            arrivals: vec![Arrivals::Ticks],
            sessions: vec![SESSIONS],
            threads: vec![1],
            place: Place::cpu(),
            seconds: self.load_seconds,
            awake: false,
            warm_up: 1.0,
            interrupt: self.settings.interrupt.clone(),
        };
        for row in suite.run(host, |_| {})? {
            let (all, own) = (&row.latency_us, row.own_us.as_ref().context("a load that was measured without the machine's lateness")?);
            let evidence = format!(
                "{} steps in {} s, p50 {:.0} us, p99.9 {:.1} ms, max {:.1} ms, {} late; a thread that only sleeps was up to {:.1} ms late",
                all.n,
                row.seconds,
                all.p50,
                all.p99_9.unwrap_or(all.max) / 1e3,
                all.max / 1e3,
                row.missed,
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
            let missed = row.own_missed.unwrap_or(row.missed) as f64;
            let what = format!("64 sessions at 60 Hz, {}Mamba", if row.case.dtype == "q8" { "8-bit " } else { "" });
            add(target(&format!("{what}, p99.9 less the machine's pauses"), own.p99_9.unwrap_or(own.max) / 1e3, 1.0, "ms"));
            add(target(&format!("{what}, deadlines missed less those"), missed, 0.0, "steps"));
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

/// How many times the speed in f32 a narrow type has.
fn over_f32(compared: Comparison, host: &Host, case: Case, what: &str, (limit, unit): (Limit, &str)) -> TargetRow {
    let Comparison { ours_us, theirs_us, rounds, ratio, ratio_ci, .. } = compared;
    let evidence = format!("{} us, in f32 {}, {rounds} rounds", micros(ours_us.p50), micros(theirs_us.p50));
    TargetRow { found_ci: Some(ratio_ci), ..TargetRow::new(host, case, what, (ratio, limit, unit), evidence) }
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

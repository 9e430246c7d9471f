//! Whether this machine, as it is now, can be measured: what the tables stand on, checked against sources whose times are known.
//!
//! Every check depends on the processor, its clock and the programs beside it, which is why none of them is a test. What a check refuses
//! says that rows measured here and now are not worth keeping.

use crate::calls::{Inputs, calls};
use crate::case::Pass;
use crate::family::{self, Families};
use crate::formulas::{self, speed_in_words};
use crate::graph::GraphSuite;
use crate::harness::{self, Settings, Subject, Timed, pool};
use crate::host::{self, Host};
use crate::interrupt::Interrupt;
use crate::load::{Arrivals, LoadSuite};
use crate::network::{Network, Place};
use crate::ops::{self, Demand, Machine, Site, Work};
use crate::overlap::OverlapSuite;
use crate::precision::PrecisionSuite;
use crate::scaling::{RankScaling, ScalingSuite};
use crate::split::TrainSplitSuite;
use crate::stats;
use anyhow::{Context, Result, ensure};
use clap::ArgMatches;
use pulp::{Arch, Simd, WithSimd};
use std::time::{Duration, Instant};

/// Where the checks run.
#[derive(Clone)]
pub struct Here<'a> {
    /// Whose usual networks are measured.
    pub families: &'a Families,
    /// Where suites compute.
    pub place: Place,
    /// Ends a check between two measurements.
    pub interrupt: Interrupt,
}

impl Here<'_> {
    fn settings(&self, warm_up_s: f64, window_s: f64) -> Settings {
        Settings { warm_up_s, window_s, interrupt: self.interrupt.clone(), ..Settings::default() }
    }

    /// Measurements of a suite that take no longer than they must.
    fn quick(&self) -> Settings {
        Settings { rounds: 4, max_windows: 3, ..self.settings(0.0, 1e-3) }
    }
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Whether it is what was expected.
    pub holds: bool,
    /// The figures, in words.
    pub found: String,
    /// What they should be, in words.
    pub expected: String,
}

impl Finding {
    fn new(holds: bool, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self { holds, found: found.into(), expected: expected.into() }
    }
}

/// A check by its name.
#[derive(Clone, Copy)]
pub struct Check {
    /// As it is printed, and as `--only` takes it.
    pub name: &'static str,
    run: fn(&Here) -> Result<Finding>,
}

/// Every check, in the order in which they run.
pub const CHECKS: [Check; 15] = [
    Check { name: "clock", run: clock },
    Check { name: "unsteady", run: unsteady },
    Check { name: "slower", run: slower },
    Check { name: "equal", run: equal },
    Check { name: "roof-of-bytes", run: roof_of_bytes },
    Check { name: "roof-of-operations", run: roof_of_operations },
    Check { name: "registers", run: registers },
    Check { name: "rates", run: rates },
    Check { name: "products", run: products },
    Check { name: "capture", run: capture },
    Check { name: "split", run: split },
    Check { name: "overlap", run: overlap },
    Check { name: "scaling", run: scaling },
    Check { name: "stages", run: stages },
    Check { name: "long-games", run: long_games },
];

/// Runs checks and tells of each; the names of those that do not hold. A check that fails does not hold.
pub fn run(checks: &[Check], here: &Here, mut tell: impl FnMut(&str, &Finding)) -> Result<Vec<&'static str>> {
    let mut refused = Vec::new();
    for check in checks {
        here.interrupt.check()?;
        let finding = (check.run)(here).unwrap_or_else(|error| Finding::new(false, format!("error: {error:#}"), "a measurement"));
        here.interrupt.check()?;
        tell(check.name, &finding);
        if !finding.holds {
            refused.push(check.name);
        }
    }
    Ok(refused)
}

/// Checks by name, all where none is named.
pub fn named(names: &[String]) -> Result<Vec<Check>> {
    let known = || CHECKS.map(|check| check.name).join(", ");
    let find =
        |name: &String| CHECKS.into_iter().find(|check| check.name == name).with_context(|| format!("{name}: not one of {}", known()));
    if names.is_empty() { Ok(CHECKS.to_vec()) } else { names.iter().map(find).collect() }
}

/// A finding in one line.
pub fn line(name: &str, finding: &Finding) -> String {
    let Finding { holds, found, expected } = finding;
    format!("{} {name}: {found}; expected {expected}", if *holds { "holds  " } else { "REFUSED" })
}

/// Every call waits, without sleeping, for a time that follows from its number.
struct Spin<F> {
    call: u32,
    us: F,
}

impl<F: Fn(u32) -> u64> Subject for Spin<F> {
    fn run(&mut self) -> Result<()> {
        let (start, length) = (Instant::now(), Duration::from_micros((self.us)(self.call)));
        self.call += 1;
        while start.elapsed() < length {
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn spin<F: Fn(u32) -> u64>(us: F) -> Timed<Spin<F>> {
    Timed(Spin { call: 0, us })
}

/// Waits of known length are measured as long as they are. The median: other programs delay some of the calls, and no call is faster.
fn clock(here: &Here) -> Result<Finding> {
    let settings = here.settings(0.02, 0.1);
    let mut found = Vec::new();
    for us in [200u64, 1000] {
        let latency = harness::measure(&mut spin(|_| us), &settings)?.latency_us;
        found.push((us as f64, latency.p50, latency.mean));
    }
    let holds = found.iter().all(|(us, p50, mean)| (p50 / us - 1.0).abs() < 0.01 && mean >= us);
    let words: Vec<_> = found.iter().map(|(us, p50, mean)| format!("a wait of {us} us has p50 {p50:.1} us, mean {mean:.1} us")).collect();
    Ok(Finding::new(holds, words.join(", "), "medians within 1% and means no shorter"))
}

/// Calls that become longer and longer are not called steady.
fn unsteady(here: &Here) -> Result<Finding> {
    let settings = Settings { max_windows: 5, ..here.settings(0.0, 0.002) };
    let found = harness::measure(&mut spin(|call| 10 + u64::from(call)), &settings)?;
    let holds = !found.steady && found.windows == 5;
    Ok(Finding::new(holds, format!("waits that grow by 1 us a call: {}", found.often()), "5 windows, not steady"))
}

/// The ratio of two waits, theirs over ours.
fn ratio(here: &Here, ours: u64, theirs: u64) -> Result<harness::Comparison> {
    harness::compare(&mut spin(|_| ours), &mut spin(|_| theirs), &here.settings(0.01, 0.02))
}

/// What takes half as long again is told apart and called slower.
fn slower(here: &Here) -> Result<Finding> {
    let found = ratio(here, 300, 200)?;
    let words = speed_in_words(found.ratio);
    let holds = (found.ratio - 2.0 / 3.0).abs() < 0.02 && found.ratio_ci.high < 1.0 && words.ends_with("slower");
    Ok(Finding::new(holds, format!("300 us against 200 us: ratio {:.3}, {words}", found.ratio), "0.667 within 0.02, slower"))
}

/// Nothing is faster than itself.
fn equal(here: &Here) -> Result<Finding> {
    let found = ratio(here, 200, 200)?;
    let holds = (found.ratio - 1.0).abs() < 0.01;
    Ok(Finding::new(holds, format!("200 us against 200 us: ratio {:.3}", found.ratio), "1 within 0.01"))
}

/// The largest of some numbers, over and over.
struct Largest {
    values: Vec<f32>,
    passes: usize,
}

impl WithSimd for &Largest {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let mut largest = [simd.splat_f32s(0.0); 8];
        for block in S::as_simd_f32s(&self.values).0.chunks_exact(8) {
            for (largest, value) in largest.iter_mut().zip(block) {
                *largest = simd.max_f32s(*largest, *value);
            }
        }
        largest.into_iter().map(|largest| simd.reduce_max_f32s(largest)).fold(0.0, f32::max)
    }
}

impl Subject for Largest {
    fn run(&mut self) -> Result<()> {
        for _ in 0..self.passes {
            std::hint::black_box(Arch::new().dispatch(std::hint::black_box(&*self)));
        }
        Ok(())
    }
}

/// Polynomials `(x + c) x + c ...` with as many different first coefficients as hide the wait for one.
struct Polynomials {
    first: [f32; 12 * 16],
    degree: usize,
}

/// `x` and `c`.
const POINT: [f32; 2] = [0.5, 0.25];

impl WithSimd for &Polynomials {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        let [x, c] = std::hint::black_box(POINT).map(|value| simd.splat_f32s(value));
        let mut sum = 0.0;
        for first in S::as_simd_f32s(&self.first).0.chunks_exact(12) {
            let mut values = [x; 12];
            values.copy_from_slice(first);
            for _ in 0..self.degree {
                for value in &mut values {
                    *value = simd.mul_add_f32s(*value, x, c);
                }
            }
            sum += values.into_iter().map(|value| simd.reduce_sum_f32s(value)).sum::<f32>();
        }
        sum
    }
}

impl Subject for Polynomials {
    fn run(&mut self) -> Result<()> {
        std::hint::black_box(Arch::new().dispatch(std::hint::black_box(&*self)));
        Ok(())
    }
}

/// How far from its roof work of known size may be found.
const OFF_ROOF: f64 = 0.05;
/// How long a kernel may try to be alone on its core.
const TRIES: Duration = Duration::from_secs(30);

/// Work of known size reaches its roof, by the best of rounds of both in turn. Memory is new in each: where it lies decides how well it fits
/// into a cache. The clock changes, and programs on the same core leave neither side alone: another try may follow.
fn reaches_its_roof<S: Subject>(here: &Here, work: Work, kernel: impl Fn() -> Result<S>) -> Result<Finding> {
    let (settings, pool) = (here.settings(0.0, 0.005), pool(1)?);
    let (start, mut shares) = (Instant::now(), Vec::new());
    while start.elapsed() < TRIES {
        let (mut machine, mut least_us) = (Machine::new(Site::Threads(&pool), &settings), f64::INFINITY);
        let mut roofs = None;
        for _ in 0..10 {
            roofs = Some(machine.measured_again(&Demand::of(work, "f32"))?);
            least_us = least_us.min(harness::measure(&mut Timed(kernel()?), &settings)?.latency_us.p50);
        }
        shares.push(roofs.context("no roof")?.least_us(work.flop, work.bytes) / least_us);
        if shares.last().is_some_and(|share| (share - 1.0).abs() <= OFF_ROOF) {
            break;
        }
    }
    let nearest = shares.iter().copied().min_by(|a, b| (a - 1.0).abs().total_cmp(&(b - 1.0).abs())).context("no try")?;
    let found = format!("{nearest:.3} of the roof, the nearest of {} tries", shares.len());
    Ok(Finding::new((nearest - 1.0).abs() <= OFF_ROOF, found, format!("1 within {OFF_ROOF}")))
}

/// A kernel of known bytes reaches its roof. In a cache: what other machines move beside this one says nothing about it.
fn roof_of_bytes(here: &Here) -> Result<Finding> {
    let (bytes, passes) = (ops::LEAST_BYTES, 2);
    let work = Work { flop: 1.0, bytes: (passes * bytes) as f64 };
    reaches_its_roof(here, work, || Ok(Largest { values: ops::floats(bytes)?, passes }))
}

/// A kernel of known operations reaches its roof.
fn roof_of_operations(here: &Here) -> Result<Finding> {
    let kernel = || Polynomials { first: std::array::from_fn(|i| i as f32), degree: 1 << 14 };
    let (places, degree) = (kernel().first.len(), kernel().degree);
    let work = Work { flop: 2.0 * (places * degree) as f64, bytes: 4.0 * places as f64 };
    reaches_its_roof(here, work, || Ok(kernel()))
}

/// No processor begins more than two multiply-adds of a register in a cycle, and none multiplies integers in less than three.
fn registers(here: &Here) -> Result<Finding> {
    let (pool, settings) = (pool(1)?, here.settings(0.0, 1e-3));
    let lanes = Arch::new().dispatch(ops::Lanes) as f64;
    // The clock may change between the two.
    let mut least = f64::INFINITY;
    for _ in 0..5 {
        let cycles_per_ns = 3.0 * host::CHAIN as f64 / host::chain().as_nanos() as f64;
        least = least.min(ops::fastest_product(&pool, ops::Weights::F32, &settings)? / cycles_per_ns / (2.0 * lanes));
    }
    // Elsewhere a multiplication may take other than three cycles.
    let holds = least < 2.2 || !cfg!(target_arch = "x86_64");
    Ok(Finding::new(holds, format!("{least:.2} multiply-adds of a register in a cycle"), "at most 2.2 on x86-64"))
}

/// At least two operations a nanosecond in registers: half a clock of the slowest machine, a register of four.
fn rates(here: &Here) -> Result<Finding> {
    let (pool, settings) = (pool(1)?, here.settings(0.0, 1e-3));
    let registers = ops::fastest_product(&pool, ops::Weights::F32, &settings)?;
    let (mut slowest, mut words) = (f64::INFINITY, vec![format!("registers {registers:.1}")]);
    for weights in ops::Weights::ALL {
        let rate = ops::product_gflop_per_s(&pool, weights, 64, &settings)?;
        slowest = slowest.min(rate);
        words.push(format!("{weights:?} {rate:.1}"));
    }
    let holds = registers.is_finite() && registers > 2.0 && slowest > 1e-3;
    Ok(Finding::new(holds, format!("{} GFLOP/s", words.join(", ")), "registers above 2, products above 0.001"))
}

/// Products in every dtype lie below the roofs of this machine.
fn products(here: &Here) -> Result<Finding> {
    let suite = PrecisionSuite { products: vec![64], rows: vec![2], networks: Vec::new(), threads: vec![1], place: here.place.clone() };
    let mut rows = 0;
    let refused = suite.run(&here.quick(), &Host::detect(None), |_| rows += 1)?;
    let found = if refused.is_empty() { format!("{rows} rows") } else { refused.join("; ") };
    Ok(Finding::new(refused.is_empty(), found, "no product above its roof"))
}

fn network(here: &Here, kind: &str, directory: &tempfile::TempDir) -> Result<Network> {
    Network::random(here.families, kind, &ArgMatches::default(), directory.path())
}

/// Preparing a captured pass costs more than preparing an eager one.
fn capture(here: &Here) -> Result<Finding> {
    let directory = tempfile::tempdir()?;
    let (networks, place) = (vec![network(here, "mamba", &directory)?], here.place.clone());
    let suite = GraphSuite { networks, batches: vec![2], window: 3, threads: vec![1], place };
    let mut rows = Vec::new();
    suite.run(&here.quick(), &Host::detect(None), |row| rows.push((row.capture_us, row.eager_prepare_us)))?;
    let words: Vec<_> = rows.iter().map(|(captured, eager)| format!("{captured:.0} us captured, {eager:.0} us eager")).collect();
    Ok(Finding::new(rows.iter().all(|(captured, eager)| captured > eager), words.join(", "), "more for the captured pass"))
}

/// The parts of a training step together take about as long as the step, which lies below its roof.
fn split(here: &Here) -> Result<Finding> {
    let suite = TrainSplitSuite {
        trainees: vec![(family::usual_trainee(here.families, "mlp", &ArgMatches::default())?, vec![8])],
        frames: 16,
        threads: vec![1],
        dtypes: vec!["f32".to_owned()],
        place: here.place.clone(),
        // Memory is not what is looked at.
        program: "nowhere".into(),
        ranks: None,
        settings: Settings { window_s: 0.05, ..here.quick() },
    };
    let row = suite.run(&Host::detect(None), |_| {})?.pop().context("no row")?;
    let (parts, mfu) = (row.parts_over_step.context("no parts")?, row.mfu.context("no share of the machine's own product")?);
    let holds = (0.5..2.0).contains(&parts) && mfu > 0.0 && mfu <= formulas::ABOVE_ROOF;
    let expected = format!("0.5 to 2, above 0 and at most {}", formulas::ABOVE_ROOF);
    Ok(Finding::new(holds, format!("parts take {parts:.2} times the step, MFU {mfu:.3}"), expected))
}

/// A training step costs more than making its batch, and what one hides of the other lies between nothing and all.
fn overlap(here: &Here) -> Result<Finding> {
    let suite = OverlapSuite {
        trainees: vec![family::usual_trainee(here.families, "mlp", &ArgMatches::default())?],
        batches: vec![2],
        frames: 4,
        threads: vec![1],
        place: here.place.clone(),
        settings: Settings { window_s: 0.02, ..here.quick() },
    };
    let rows = suite.run(&Host::detect(None), |_| {})?;
    let row = rows.first().context("no row")?;
    let (copy, compute) = (row.copy_us.p50, row.compute_us.p50);
    let holds = compute > copy && row.hidden.is_some();
    Ok(Finding::new(
        holds,
        format!("{copy:.0} us for a batch, {compute:.0} us for a step, {}", row.advice),
        "the step longer, an efficiency",
    ))
}

/// Six times the frames of an MLP take longer.
fn scaling(here: &Here) -> Result<Finding> {
    let directory = tempfile::tempdir()?;
    let suite = ScalingSuite {
        networks: vec![network(here, "mlp", &directory)?],
        frames: vec![30, 90, 180],
        batches: vec![1, 4],
        sessions: Vec::new(),
        load_seconds: 0.05,
        threads: vec![1],
        place: here.place.clone(),
        ranks: RankScaling { program: None, counts: vec![1, 2], batch: 4, frames: 8, seconds: 1 },
        settings: here.quick(),
    };
    let rows = suite.run(&Host::detect(None), |_| {})?;
    let points = &rows.first().context("no row")?.points;
    ensure!(points.len() == 3, "{} points", points.len());
    let (least, most) = (points[0].latency_us.p50, points[2].latency_us.p50);
    Ok(Finding::new(most > least, format!("{least:.0} us for 30 frames, {most:.0} us for 180"), "more for more"))
}

/// The stages of an answer add up to it, as medians do.
fn stages(here: &Here) -> Result<Finding> {
    let directory = tempfile::tempdir()?;
    let suite = LoadSuite {
        networks: vec![network(here, "mlp", &directory)?],
        arrivals: vec![Arrivals::Closed, Arrivals::Ticks],
        sessions: vec![1, 3],
        threads: vec![1],
        place: here.place.clone(),
        seconds: 0.5,
        awake: false,
        warm_up: 0.1,
        interrupt: here.interrupt.clone(),
    };
    let mut worst = (0.0, String::new());
    for row in suite.run(&Host::detect(None), |_| {})? {
        let (parts, whole) = (row.stages.iter().map(|stage| stage.p50).sum::<f64>(), row.latency_us.p50);
        let share = parts / (3.0 * whole + 100.0);
        if share >= worst.0 {
            worst = (share, format!("stages of {parts:.0} us in {whole:.0} us, {} sessions", row.case.batch));
        }
    }
    Ok(Finding::new(worst.0 < 1.0, worst.1, "medians of the stages below 100 us and three times the median answer"))
}

/// A streaming step costs the same at frame 10 and at frame 100 000, with every backbone.
fn long_games(here: &Here) -> Result<Finding> {
    let directory = tempfile::tempdir()?;
    let (mut holds, mut words) = (true, Vec::new());
    for kind in family::kinds(here.families) {
        let network = network(here, kind, &directory)?;
        let (case, model) = (here.place.of(network.case(Pass::Step, 1, 1, 1)), network.load()?);
        let mut calls = calls(model.clone(), &case, &Inputs::random(&*model, &case), &here.place)?;
        let mut median = |steps: usize| Ok::<_, anyhow::Error>(stats::median(&stats::sorted(&calls.round(steps)?.latencies_us)));
        let (early, _, late) = (median(1000)?, median(98_500)?, median(1000)?);
        here.interrupt.check()?;
        holds &= late < 1.5 * early + 2.0;
        words.push(format!("{kind} {early:.1} to {late:.1} us"));
    }
    Ok(Finding::new(holds, words.join(", "), "at most half as long again and 2 us"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families;

    fn here(families: &Families) -> Here<'_> {
        Here { families, place: Place::cpu(), interrupt: Interrupt::default() }
    }

    #[test]
    fn checks_that_do_not_hold_or_cannot_be_made_are_named() {
        let checks = [
            Check { name: "good", run: |_| Ok(Finding::new(true, "1 us", "1 us")) },
            Check { name: "bad", run: |_| Ok(Finding::new(false, "2 us", "1 us")) },
            Check { name: "broken", run: |_| Err(anyhow::anyhow!("no clock")) },
        ];
        let mut lines = Vec::new();
        let refused = run(&checks, &here(&families::shipped()), |name, finding| lines.push(line(name, finding))).unwrap();
        assert_eq!(refused, ["bad", "broken"]);
        let expected = [
            "holds   good: 1 us; expected 1 us",
            "REFUSED bad: 2 us; expected 1 us",
            "REFUSED broken: error: no clock; expected a measurement",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn an_interrupt_ends_the_checks() {
        let families = families::shipped();
        let here = here(&families);
        here.interrupt.now();
        assert_eq!(run(&CHECKS, &here, |_, _| panic!("nothing was checked")).unwrap_err().to_string(), "interrupted");
    }

    #[test]
    fn checks_are_found_by_their_names() {
        let names: std::collections::BTreeSet<_> = CHECKS.iter().map(|check| check.name).collect();
        assert_eq!(names.len(), CHECKS.len());
        assert_eq!(named(&[]).unwrap().len(), CHECKS.len());
        assert_eq!(named(&["clock".to_owned(), "roof-of-bytes".to_owned()]).unwrap().len(), 2);
        let error = named(&["clocks".to_owned()]).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("clocks: not one of clock, unsteady, "), "{error}");
    }

    /// What the kernels of known work compute: their count of operations and bytes is that of their loops.
    #[test]
    fn kernels_of_known_work_do_it() {
        let largest = Largest { values: (0..4096).map(|i| ((i * 37) % 4096) as f32).collect(), passes: 1 };
        assert_eq!(Arch::new().dispatch(&largest), 4095.0);
        let polynomials = Polynomials { first: std::array::from_fn(|i| i as f32), degree: 3 };
        let value = |first: f32| (0..3).fold(first, |value, _| value * POINT[0] + POINT[1]);
        let expected: f32 = polynomials.first.iter().map(|first| value(*first)).sum();
        assert!((Arch::new().dispatch(&polynomials) - expected).abs() < 1e-3 * expected);
    }

    #[test]
    fn a_wait_ends_no_sooner_than_it_says() {
        let mut wait = Spin { call: 0, us: |call: u32| 100 * u64::from(call + 1) };
        let start = Instant::now();
        (0..3).for_each(|_| wait.run().unwrap());
        assert!(wait.call == 3 && start.elapsed() >= Duration::from_micros(600));
    }
}

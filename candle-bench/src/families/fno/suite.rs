//! The fno family beside neuraloperator on PyTorch: the same answers, gradients and updates, then the time and the memory of both.

use super::trainee::{Learnt, Steps, fields, weight_uses};
use super::{HIDDEN, PAIRS};
use crate::calls::{Answers, read_answers};
use crate::case::{Case, Pass};
use crate::formulas;
use crate::harness::{self, Comparison, InPool, Rounds, Settings, Subject, Timed, pool};
use crate::host::{Host, this_program};
use crate::network::Network;
use crate::ops::Peaks;
use crate::peer::{Library, Peer, PeerCase, Unavailable};
use crate::split;
use crate::suite::{Common, Python, Suite, SuiteRun};
use crate::target::{Limit, Sides, TargetRow};
use anyhow::{Context, Result, ensure};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::bundle::Manifest;
use candle_models::engine::{self, Engine, Options, Placement, Session};
use candle_models::fno::{FAMILY, FnoConfig, FnoFamily, Normaliser};
use candle_models::tensors::NamedTensors;
use candle_train::fno::fields::Fields;
use candle_train::fno::operator::Batch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The figures of neural operators beside neuraloperator on PyTorch: parity, training, the answer to one field, memory.
#[derive(clap::Args)]
pub struct FnoBench {
    #[command(flatten)]
    common: Common,
    /// Pairs of a training step.
    #[arg(long, value_name = "B", default_value_t = PAIRS)]
    batch: usize,
    /// Pairs of an epoch, a multiple of the batch.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pairs: usize,
    /// Places of a field down and across.
    #[arg(long, value_name = "N", default_value_t = 16)]
    places: usize,
    /// Waves down, and twice those across.
    #[arg(long, value_name = "K", default_value_t = 8)]
    modes: usize,
    /// Hidden channels.
    #[arg(long, value_name = "H", default_value_t = HIDDEN)]
    hidden: usize,
    #[command(flatten)]
    python: Python,
}

impl Suite for FnoBench {
    const NAME: &'static str = "fno";
    const TITLE: &'static str = "Neural operators";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&[self.batch], &[self.pairs]])?;
        let suite = FnoSuite {
            operator: FnoConfig { grid: [self.places; 2], modes: [self.modes; 2], hidden: self.hidden, ..super::usual("fno-16x16")? },
            batch: self.batch,
            pairs: self.pairs,
            threads: common.threads.clone(),
            program: this_program()?,
            settings: common.settings.clone(),
        };
        suite.validate()?;
        bench.begin(&suite.describe(), None);
        suite.run(|| self.python.start(), &bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Updates after which parameters are compared.
const UPDATES: usize = 10;
/// A figure in a million, the unit of differences.
const MILLION: f64 = 1e6;

/// What is measured.
#[derive(Debug)]
pub struct FnoSuite {
    /// The operator, one channel to one on a square; answers are normalised as the pairs are.
    pub operator: FnoConfig,
    /// Pairs of a training step.
    pub batch: usize,
    /// Pairs of an epoch.
    pub pairs: usize,
    /// Threads of a call.
    pub threads: Vec<usize>,
    /// This command, which is started again to see how much memory a step takes.
    pub program: PathBuf,
    /// Lengths of the measurements.
    pub settings: Settings,
}

impl FnoSuite {
    /// # Errors
    /// Names the argument at fault.
    pub fn validate(&self) -> Result<()> {
        self.operator.validate()?;
        ensure!(self.pairs.is_multiple_of(self.batch), "pairs: {} are no whole batches of {}", self.pairs, self.batch);
        Ok(())
    }

    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "{} Differences: the largest one of a tensor over the largest magnitude of theirs, of the worst tensor, in ppm; answers are those of the engine, \
             gradients and {UPDATES} updates those of one batch. Both sides minimise the relative H1 error with periodic differences by AdamW without decay, on pairs \
             of Darcy flow in an order drawn anew in each epoch; theirs is torch.optim.AdamW, which has a second moment for each part of a complex number, as ours has: \
             neuraloperator's own has one for both. Memory: VmHWM of two processes that have made training steps. Operations of an answer are counted \
             from shapes, those of a training step are 6 for every use of a weight, a complex product being four; its transforms are not counted.",
            self.settings.describe_comparison()
        )
    }

    /// Measures everything; `seen` is called after each figure. Where `peer` starts no process, what is compared with it is not measured.
    pub fn run(&self, peer: impl Fn() -> Result<Peer>, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Result<Vec<TargetRow>> {
        let scratch = tempfile::tempdir().context("no directory for the peer's bundle")?;
        let pairs = fields(&self.operator, self.pairs)?;
        let operator = FnoConfig { output: Normaliser::of(&pairs.answers)?, ..self.operator.clone() };
        let manifest = Manifest::new(FAMILY, &operator)?;
        let network = Network::untrained(&FnoFamily, &manifest, &scratch.path().join("bundle"))?;
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let bench =
                Bench { suite: self, operator: &operator, network: &network, pairs: &pairs, threads, scratch: scratch.path(), host };
            let mut peer = Theirs(peer().map_err(|error| format!("{error:#}")));
            for part in [Bench::training, Bench::epoch, Bench::answer] {
                self.settings.interrupt.check()?;
                for row in part(&bench, &mut peer)? {
                    seen(&row);
                    rows.push(row);
                }
            }
        }
        Ok(rows)
    }
}

/// What rows of one number of threads share.
struct Bench<'a> {
    suite: &'a FnoSuite,
    operator: &'a FnoConfig,
    network: &'a Network,
    pairs: &'a Fields,
    threads: usize,
    scratch: &'a Path,
    host: &'a Host,
}

/// The peer, or why there is none.
struct Theirs(Result<Peer, String>);

/// How long a call of ours takes, and how it compares where there is a peer.
struct Compared {
    us: f64,
    comparison: Result<(Comparison, String), String>,
}

impl Theirs {
    /// Prepares a case. A peer that does not have it is none from then on.
    fn prepare(&mut self, case: &PeerCase) -> Result<()> {
        if let Ok(peer) = &mut self.0 {
            match peer.prepare(case) {
                Err(error) if error.is::<Unavailable>() => self.0 = Err(error.to_string()),
                prepared => prepared?,
            }
        }
        Ok(())
    }

    /// Rounds of ours in turn with what was prepared, or alone.
    fn beside(&mut self, ours: &mut dyn Rounds, settings: &Settings) -> Result<Compared> {
        match &mut self.0 {
            Ok(peer) => {
                let compared = harness::compare(ours, peer, settings)?;
                let name = format!("{} on {}", peer.versions().package("neuraloperator"), peer.versions().of(Library::Pytorch));
                Ok(Compared { us: compared.ours_us.p50, comparison: Ok((compared, name)) })
            }
            Err(reason) => Ok(Compared { us: harness::measure(ours, settings)?.latency_us.p50, comparison: Err(reason.clone()) }),
        }
    }
}

impl Bench<'_> {
    fn case(&self, pass: Pass, batch: usize) -> Case {
        Case::of(&self.operator.name(), pass, [batch, 1, self.threads], "f32")
    }

    fn row(&self, case: &Case, what: &str, figure: (f64, Limit, &str), evidence: String) -> TargetRow {
        TargetRow::new(self.host, case.clone(), what, figure, evidence)
    }

    /// What the peer is to do with the first pairs, `batches` of them.
    fn theirs(&self, pass: Pass, batch: usize, batches: usize) -> Result<PeerCase> {
        let (grid, channels, [x, y]) = (self.pairs.grid, self.pairs.channels, self.pairs.widths());
        let tensor = |values: &[f32], width: usize, channels: usize| {
            Tensor::from_slice(&values[..batch * batches * width], (batch, batches, grid[0], grid[1], channels), &Device::Cpu)
        };
        let mut inputs = NamedTensors::new();
        inputs.insert("x".to_owned(), tensor(&self.pairs.inputs, x, channels[0])?);
        inputs.insert("y".to_owned(), tensor(&self.pairs.answers, y, channels[1])?);
        let file = |name: &str| self.scratch.join(format!("{name}.safetensors"));
        inputs.save_safetensors(file("inputs"))?;
        Ok(PeerCase {
            library: Library::Pytorch,
            device: "cpu".to_owned(),
            dtype: "f32".to_owned(),
            bundle: self.network.bundle.clone(),
            onnx: None,
            pass,
            batch,
            frames: batches,
            threads: self.threads,
            inputs: file("inputs"),
            outputs: file("outputs"),
        })
    }

    /// Training steps on the first pairs, so many of them in a batch, from the weights of the network.
    fn steps(&self, pairs: usize) -> Result<Steps> {
        let [x, y] = self.pairs.widths();
        let (inputs, answers) = (self.pairs.inputs[..pairs * x].to_vec(), self.pairs.answers[..pairs * y].to_vec());
        let vars = self.network.tensors()?.into_iter().map(|(name, tensor)| Ok((name, Var::from_tensor(&tensor)?)));
        let vars = vars.collect::<Result<BTreeMap<String, Var>>>()?;
        Steps::on(self.operator, vars, Fields { inputs, answers, ..self.pairs.clone() }, self.suite.batch)
    }

    /// Memory, gradients, updates and time of a training step.
    fn training(&self, peer: &mut Theirs) -> Result<Vec<TargetRow>> {
        let FnoSuite { batch, settings, .. } = self.suite;
        let case = self.case(Pass::Train, *batch);
        let their_base = peer.0.as_mut().ok().map(Peer::peak_kilobytes).transpose()?;
        let theirs = self.theirs(Pass::Train, *batch, 1)?;
        peer.prepare(&theirs)?;
        let memory = self.memory(&case, peer, their_base)?;

        let (pool, mut steps) = (pool(self.threads)?, self.steps(*batch)?);
        let differences = match &peer.0 {
            Ok(_) => Ok((pool.install(|| self.updated(&mut steps))?, read_answers(&theirs.outputs)?)),
            Err(reason) => Err(reason.clone()),
        };
        let mut rows = vec![];
        for (what, group, most, goal) in [
            ("gradients beside neuraloperator's", "gradient.", 100.0, 10.0),
            ("parameters after ten updates beside neuraloperator's", "parameter.", 1000.0, 100.0),
        ] {
            rows.push(self.difference(&case, what, group, (most, goal), &differences)?);
        }

        let compared = peer.beside(&mut InPool { pool, subject: Timed(steps) }, settings)?;
        rows.push(self.faster(&case, "training steps over neuraloperator's", &compared));
        let peak = Peaks::of_threads(self.threads, settings)?.gflop_per_s;
        let flop = formulas::training_flop(weight_uses(self.operator)? * *batch as f64);
        let ours = formulas::gflop_per_s(flop, compared.us);
        let evidence = format!("{ours:.1} of {peak:.0} GFLOP/s, {:.0} us, 6 per use of a weight", compared.us);
        let what = "training step, share of the machine's own f32 product";
        rows.push(self.row(&case, what, (ours / peak, Limit::AtLeast(0.25), "share"), evidence));
        rows.push(memory);
        Ok(rows)
    }

    /// Gradients of the first batch, and parameters after updates on it.
    fn updated(&self, steps: &mut Steps) -> Result<Answers> {
        let batch = Batch {
            source: 0,
            inputs: self.pairs.inputs[..self.suite.batch * self.pairs.widths()[0]].to_vec(),
            answers: self.pairs.answers[..self.suite.batch * self.pairs.widths()[1]].to_vec(),
        };
        let values = |tensor: &Tensor| Ok::<_, anyhow::Error>(tensor.to_dtype(DType::F64)?.flatten_all()?.to_vec1::<f64>()?);
        let mut answers = Answers::new();
        for (name, gradient) in steps.gradients(&batch)? {
            answers.insert(format!("gradient.{name}"), values(&gradient)?);
        }
        for _ in 0..UPDATES {
            steps.update(&batch)?;
        }
        for (name, var) in steps.vars() {
            answers.insert(format!("parameter.{name}"), values(var.as_tensor())?);
        }
        Ok(answers)
    }

    /// The time of a pass over all pairs.
    fn epoch(&self, peer: &mut Theirs) -> Result<Vec<TargetRow>> {
        let FnoSuite { batch, pairs, settings, .. } = self.suite;
        peer.prepare(&self.theirs(Pass::Train, *batch, pairs / batch)?)?;
        let mut ours = InPool { pool: pool(self.threads)?, subject: Timed(self.steps(*pairs)?) };
        let compared = peer.beside(&mut ours, settings)?;
        Ok(vec![self.faster(&self.case(Pass::Train, *batch), &format!("epochs of {pairs} pairs over neuraloperator's"), &compared)])
    }

    /// One field to its answer: whether both say the same, through a session of an engine beside theirs, and what it computes.
    fn answer(&self, peer: &mut Theirs) -> Result<Vec<TargetRow>> {
        let FnoSuite { settings, .. } = self.suite;
        let (case, model) = (self.case(Pass::Step, 1), self.network.load()?);
        let theirs = self.theirs(Pass::Step, 1, 1)?;
        peer.prepare(&theirs)?;
        let field = &self.pairs.inputs[..self.pairs.widths()[0]];
        let options = Options { place: Placement::cpu(self.threads), sessions: 1, ..Options::default() };
        let mut session = Answered { session: Engine::start(model.clone(), &options)?.open()?, field };
        session.run()?;
        let said = session.session.floats("y")?.iter().map(|y| f64::from(*y)).collect();
        let differences = match &peer.0 {
            Ok(_) => Ok((Answers::from([("y".to_owned(), said)]), read_answers(&theirs.outputs)?)),
            Err(reason) => Err(reason.clone()),
        };
        let mut rows = vec![self.difference(&case, "answer beside neuraloperator's", "y", (10.0, 1.0), &differences)?];

        let compared = peer.beside(&mut Timed(session), settings)?;
        let what = "answer to one field over neuraloperator's";
        rows.push(match &compared.comparison {
            Ok((comparison, name)) => {
                let evidence = format!("{}; goal 0.15", sides(comparison, name));
                let figure = (1.0 / comparison.ratio, Limit::AtMost(0.3), "x");
                TargetRow { found_ci: Some(comparison.ratio_ci.inverse()), ..self.row(&case, what, figure, evidence) }
            }
            Err(reason) => self.row(&case, what, (f64::NAN, Limit::AtMost(0.3), "x"), reason.clone()),
        });
        let counted = engine::work(&*model, 1, 1, DType::F32)?;
        let sum = |of: fn(&candle_models::exec::Work) -> f64| counted.iter().map(of).sum::<f64>();
        let (flop, bytes) = (sum(|work| work.flop), sum(|work| work.bytes));
        let peak = Peaks::of_threads(self.threads, settings)?.gflop_per_s;
        let ours = formulas::gflop_per_s(flop, compared.us);
        let evidence = format!(
            "{ours:.1} of {peak:.0} GFLOP/s, {:.0} us for {:.2} MFLOP and {:.2} MB, {:.1} FLOP a byte",
            compared.us,
            flop / 1e6,
            bytes / 1e6,
            formulas::intensity_flop_per_byte(flop, bytes)
        );
        let what = "answer to one field, share of the machine's own f32 product";
        rows.push(self.row(&case, what, (ours / peak, Limit::AtLeast(0.25), "share"), evidence));
        Ok(rows)
    }

    /// The worst difference of a group of tensors, whose names begin so.
    fn difference(
        &self,
        case: &Case,
        what: &str,
        group: &str,
        (most, goal): (f64, f64),
        differences: &Result<(Answers, Answers), String>,
    ) -> Result<TargetRow> {
        let (found, evidence) = match differences {
            Ok((ours, theirs)) => {
                let (name, worst) = apart(ours, theirs, group)?;
                (MILLION * worst, format!("{worst:.1e} in {name}; goal {goal} ppm"))
            }
            Err(reason) => (f64::NAN, reason.clone()),
        };
        Ok(self.row(case, what, (found, Limit::AtMost(most), "ppm"), evidence))
    }

    /// How often ours is done while theirs is done once.
    fn faster(&self, case: &Case, what: &str, Compared { comparison, .. }: &Compared) -> TargetRow {
        match comparison {
            Ok((comparison, name)) => {
                let evidence = format!("{}; goal 4", sides(comparison, name));
                let row = self.row(case, what, (comparison.ratio, Limit::AtLeast(2.0), "x"), evidence);
                TargetRow { found_ci: Some(comparison.ratio_ci), ..row }
            }
            Err(reason) => self.row(case, what, (f64::NAN, Limit::AtLeast(2.0), "x"), reason.clone()),
        }
    }

    /// Peaks of the resident set of two processes that have trained, `their_base` that of the peer before it was asked for anything.
    fn memory(&self, case: &Case, peer: &mut Theirs, their_base: Option<u64>) -> Result<TargetRow> {
        let (what, limit) = ("peak memory of training over neuraloperator's", Limit::AtMost(0.5));
        let peer = match &mut peer.0 {
            Ok(peer) => peer,
            Err(reason) => return Ok(self.row(case, what, (f64::NAN, limit, "x"), reason.clone())),
        };
        let theirs = peer.peak_kilobytes()?;
        let [our_base, ours] = split::memory_of_a_process(&self.suite.program, &Learnt(self.operator.clone()), case)?;
        let mb = |kilobytes: u64| kilobytes as f64 * 1024.0 / 1e6;
        let evidence = format!(
            "{:.0} MB with the trainer and its average, {:.0} MB before anything is loaded; {:.0} MB, {:.0} MB when PyTorch is imported; goal 0.3",
            mb(ours),
            mb(our_base),
            mb(theirs),
            mb(their_base.unwrap_or(0))
        );
        Ok(self.row(case, what, (ours as f64 / theirs as f64, limit, "x"), evidence))
    }
}

fn sides(comparison: &Comparison, name: &str) -> Sides {
    let Comparison { ours_us, theirs_us, rounds, .. } = comparison;
    Sides { ours_us: ours_us.p50, peer: name.to_owned(), theirs_us: theirs_us.p50, rounds: *rounds, without: Vec::new() }
}

/// The tensor that differs most among those whose names begin so: its largest difference over the largest magnitude of theirs.
fn apart(ours: &Answers, theirs: &Answers, group: &str) -> Result<(String, f64)> {
    let mut worst = (String::new(), 0.0);
    for (name, a) in ours.iter().filter(|(name, _)| name.starts_with(group)) {
        let b = theirs.get(name).with_context(|| format!("{name}: the peer gave no such tensor"))?;
        ensure!(a.len() == b.len(), "{name}: {} values of ours, {} of theirs", a.len(), b.len());
        let largest = b.iter().map(|b| b.abs()).fold(f64::MIN_POSITIVE, f64::max);
        // What is not a number differs without limit.
        let of = |(a, b): (&f64, &f64)| Some((a - b).abs() / largest).filter(|d| !d.is_nan()).unwrap_or(f64::INFINITY);
        let relative = a.iter().zip(b).map(of).fold(0.0, f64::max);
        if worst.0.is_empty() || relative > worst.1 {
            worst = (name.clone(), relative);
        }
    }
    ensure!(!worst.0.is_empty(), "{group}: no such tensors");
    Ok(worst)
}

/// A field into a session, and its answer.
struct Answered<'a> {
    session: Session,
    field: &'a [f32],
}

impl Subject for Answered<'_> {
    fn run(&mut self) -> Result<()> {
        self.session.set_f32("x", self.field)?;
        Ok(self.session.step()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite() -> FnoSuite {
        let operator = FnoConfig { grid: [6, 6], modes: [4, 4], hidden: 4, layers: 1, ..FnoConfig::default() };
        let settings = Settings { warm_up_s: 0.0, window_s: 1e-3, rounds: 4, max_windows: 3, ..Settings::default() };
        FnoSuite { operator, batch: 2, pairs: 4, threads: vec![1], program: "nowhere".into(), settings }
    }

    #[test]
    fn without_a_peer_ours_is_measured_and_what_is_missing_is_said() {
        let suite = suite();
        let rows = suite.run(|| anyhow::bail!("no interpreter"), &Host::detect(Some("test".into())), |_| {}).unwrap();
        let (alone, beside): (Vec<_>, Vec<_>) = rows.iter().partition(|row| row.what.contains(", share of "));
        assert_eq!((alone.len(), beside.len()), (2, 7));
        assert!(alone.iter().all(|row| row.found > 0.0 && row.unit == "share"), "{alone:?}");
        for row in beside {
            assert!(row.found.is_nan() && !row.met() && row.evidence == "no interpreter", "{row:?}");
        }
        let uneven = FnoSuite { pairs: 5, ..suite };
        assert_eq!(uneven.validate().unwrap_err().to_string(), "pairs: 5 are no whole batches of 2");
    }

    #[test]
    fn both_sides_are_given_the_same_pairs() {
        let (suite, scratch) = (suite(), tempfile::tempdir().unwrap());
        let pairs = fields(&suite.operator, suite.pairs).unwrap();
        let manifest = Manifest::new(FAMILY, &suite.operator).unwrap();
        let network = Network::untrained(&FnoFamily, &manifest, &scratch.path().join("bundle")).unwrap();
        let host = Host::detect(Some("test".into()));
        let bench = Bench {
            suite: &suite,
            operator: &suite.operator,
            network: &network,
            pairs: &pairs,
            threads: 1,
            scratch: scratch.path(),
            host: &host,
        };
        let case = bench.theirs(Pass::Train, 2, 2).unwrap();
        let inputs = NamedTensors::load_safetensors(&case.inputs).unwrap();
        assert_eq!(inputs.get("y").unwrap().dims(), [2, 2, 6, 6, 1]);
        assert_eq!(inputs.get("x").unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap(), pairs.inputs);
        let answers = bench.updated(&mut bench.steps(2).unwrap()).unwrap();
        let names: Vec<String> = network.tensors().unwrap().into_keys().collect();
        let expected = ["gradient", "parameter"].map(|group| names.iter().map(move |name| format!("{group}.{name}")));
        assert!(answers.keys().eq(expected.into_iter().flatten().collect::<Vec<_>>().iter()), "{:?}", answers.keys());
    }

    #[test]
    fn the_tensor_that_differs_most_is_named() {
        let answers = |a: [f64; 2], b: [f64; 2]| Answers::from([("g.a".to_owned(), a.to_vec()), ("g.b".to_owned(), b.to_vec())]);
        let theirs = answers([1.0, -4.0], [0.0, 0.5]);
        assert_eq!(apart(&theirs, &theirs, "g.").unwrap().1, 0.0);
        assert_eq!(apart(&answers([1.0, -3.0], [0.0, 0.625]), &theirs, "g.").unwrap(), ("g.a".to_owned(), 0.25));
        assert_eq!(apart(&answers([1.0, -3.0], [0.25, 0.5]), &theirs, "g.").unwrap(), ("g.b".to_owned(), 0.5));
        assert_eq!(apart(&answers([f64::NAN, -4.0], [0.0, 0.5]), &theirs, "g.").unwrap(), ("g.a".to_owned(), f64::INFINITY));
        let error = |ours: &Answers, group| apart(ours, &theirs, group).unwrap_err().to_string();
        assert_eq!(error(&theirs, "h."), "h.: no such tensors");
        assert_eq!(error(&Answers::from([("g.c".to_owned(), vec![])]), "g."), "g.c: the peer gave no such tensor");
        assert_eq!(error(&Answers::from([("g.a".to_owned(), vec![1.0])]), "g."), "g.a: 1 values of ours, 2 of theirs");
    }
}

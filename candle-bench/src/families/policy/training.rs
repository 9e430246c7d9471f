//! What the trainer adds to the work that training is: time above the bare sum, memory beside PyTorch's, time of a checkpoint.

use super::ranks::RankSuite;
use super::trainee::{games, run};
use super::updates::Windows;
use crate::calls::Inputs;
use crate::case::{Case, Pass};
use crate::harness::{Rounds, Settings, Subject, Timed, pool};
use crate::host::{self, Host};
use crate::network::Network;
use crate::peer::{Library, Peer, PeerCase};
use crate::split::{self, MEMORY_STEPS};
use crate::stats::{self, Interval};
use crate::suite::{Common, Python, Suite, SuiteRun};
use crate::target::{Limit, TargetRow};
use crate::update::Update;
use anyhow::{Context, Result, ensure};
use candle_core::{Device, Var};
use candle_models::nn::Params;
use candle_models::policy::{Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_train::checkpoint::{Checkpoint, Retention, Store, Writer, host_copy};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan};
use candle_train::run::Place;
use candle_train::stop::Stop;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// What the trainer adds to its work: time above the bare sum, memory beside PyTorch's, time of a checkpoint; Mamba policy.
#[derive(clap::Args)]
pub struct Training {
    #[command(flatten)]
    common: Common,
    /// Sequences of a step; their frames are those of a window.
    #[arg(long, value_name = "B", default_value_t = 32)]
    batch: usize,
    /// candle-train, built with the feature mpi: measures two ranks beside one too.
    #[arg(long, value_name = "PROGRAM")]
    ranks: Option<PathBuf>,
    #[command(flatten)]
    python: Python,
}

impl Suite for Training {
    const NAME: &'static str = "training";
    const TITLE: &'static str = "What the trainer adds";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&[self.batch]])?;
        let suite = TrainingSuite {
            network: super::usual("mamba", bench.scratch())?,
            batch: self.batch,
            frames: common.window,
            threads: common.threads.clone(),
            settings: common.settings.clone(),
        };
        bench.begin(&suite.describe(), None);
        let host = bench.host.clone();
        suite.run(|| self.python.start(), &host, |row| bench.add(row))?;
        if let Some(program) = &self.ranks {
            let ranks = RankSuite { program: program.clone(), batch: suite.batch, frames: suite.frames, rounds: 3 };
            ranks.run(&suite.network, &host)?.iter().for_each(|row| bench.add(row));
        }
        Ok(())
    }
}

/// Steps of a run of the trainer, and those of them that do not count: the first ones find cold memory.
const STEPS: u64 = 10;
const COLD_STEPS: usize = 3;
/// Of the training steps before a peak of memory is read, the peer makes these when it is prepared.
const PREPARED_STEPS: usize = 2;
/// The checkpoint's model, and how often it is saved.
const PARAMETERS: usize = 10_000_000;
const SAVES: usize = 7;

/// What is measured.
#[derive(Debug)]
pub struct TrainingSuite {
    /// A policy in f32; its architecture is trained, from fresh weights.
    pub network: Network,
    /// Sequences of a step.
    pub batch: usize,
    /// Frames of a sequence.
    pub frames: usize,
    /// Threads of a step.
    pub threads: Vec<usize>,
    /// Lengths of the measurements.
    pub settings: Settings,
}

impl TrainingSuite {
    /// Measures everything; `seen` is called after each figure. Where `peer` starts no process, memory is left out.
    pub fn run(&self, peer: impl Fn() -> Result<Peer>, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        for &threads in &self.threads {
            let case = self.network.case(Pass::Train, self.batch, self.frames, threads);
            for row in [self.overhead(&case, host)?, self.memory(&case, peer()?, host)?] {
                seen(&row);
                rows.push(row);
            }
        }
        let row = self.checkpoint(host)?;
        seen(&row);
        rows.push(row);
        Ok(rows)
    }

    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "Trainer: its own times of a step, from asking for the batch to the update, against forward, backward and update of one batch in the same process, in \
             rounds of {STEPS} steps of either in turn, of which {COLD_STEPS} do not count; the median of the rounds' ratios of medians. Memory: VmHWM of two \
             processes after {MEMORY_STEPS} steps, ours with its loader, moments and average, the peer with its batch and moments. Checkpoint: parameters, two moments and an \
             average copied and handed to the writer, and the same until everything is synced to the disk of the temporary directory."
        )
    }

    /// The trainer's step against forward, backward and optimiser alone, in rounds of either in turn.
    fn overhead(&self, case: &Case, host: &Host) -> Result<TargetRow> {
        let pool = pool(case.threads)?;
        let (games, model) = (Games { train: games()?, held_out: Vec::new() }, self.network.config()?);
        let mut bare = Timed(BareStep::new(&model, case)?);
        let (mut ratios, mut ours, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        let start = Instant::now();
        while ratios.len() < self.settings.rounds && (ratios.len() < 4 || start.elapsed().as_secs_f64() < self.settings.limit_s) {
            self.settings.interrupt.check()?;
            let trainer = || steps_of_trainer(&model, case, &games);
            let mut sum = || Ok::<_, anyhow::Error>(bare.round(STEPS as usize)?.latencies_us.split_off(COLD_STEPS));
            // Who goes first changes: whatever the machine does in between falls on both.
            let (a, b) = if ratios.len() % 2 == 0 {
                let a = pool.install(trainer)?;
                (a, pool.install(&mut sum)?)
            } else {
                let b = pool.install(&mut sum)?;
                (pool.install(trainer)?, b)
            };
            ratios.push(median(&a) / median(&b));
            ours.extend(a);
            sums.extend(b);
        }
        let (ours, sums) = (median(&ours) / 1e3, median(&sums) / 1e3);
        Ok(TargetRow {
            host: host.clone(),
            case: case.clone(),
            what: "trainer's step above forward, backward and optimiser".into(),
            found: 100.0 * (median(&ratios) - 1.0),
            found_ci: Some(percent_above_one(stats::median_interval(&ratios))),
            limit: Limit::AtMost(3.0),
            unit: "%".into(),
            evidence: format!("{ours:.1} ms, bare {sums:.1} ms, median of {} rounds of {STEPS} steps in turn", ratios.len()),
        })
    }

    /// Peaks of the resident set of two processes that train the same architecture on batches of one size.
    fn memory(&self, case: &Case, mut peer: Peer, host: &Host) -> Result<TargetRow> {
        let [our_base, ours] = split::memory_of_a_process(&host::this_program()?, &*self.network.trainee()?, case)?.map(|kb| kb as f64);

        let scratch = tempfile::tempdir().context("no directory for the inputs of the peer")?;
        let their_base = peer.peak_kilobytes()? as f64;
        Inputs::random(&*self.network.load()?, case).tensors()?.save_safetensors(scratch.path().join("inputs.safetensors"))?;
        peer.prepare(&PeerCase {
            library: Library::Pytorch,
            device: case.device.clone(),
            dtype: "f32".to_owned(),
            bundle: std::path::absolute(&self.network.original)?,
            onnx: None,
            pass: case.pass,
            batch: case.batch,
            frames: case.frames,
            threads: case.threads,
            inputs: scratch.path().join("inputs.safetensors"),
            outputs: scratch.path().join("outputs.safetensors"),
        })?;
        peer.round(MEMORY_STEPS - PREPARED_STEPS)?;
        let theirs = peer.peak_kilobytes()? as f64;
        let mb = |kilobytes: f64| kilobytes * 1024.0 / 1e6;
        Ok(TargetRow {
            host: host.clone(),
            case: case.clone(),
            what: "peak memory of training over PyTorch's".into(),
            found: ours / theirs,
            found_ci: None,
            limit: Limit::AtMost(0.5),
            unit: "x".into(),
            evidence: format!(
                "{:.0} MB with loader and average, {:.0} MB before anything is loaded; {} {:.0} MB, {:.0} MB when its libraries are imported",
                mb(ours),
                mb(our_base),
                peer.versions().of(Library::Pytorch),
                mb(theirs),
                mb(their_base)
            ),
        })
    }

    /// How long training waits for a checkpoint of parameters, two moments and an average, and how long until it is on the disk.
    fn checkpoint(&self, host: &Host) -> Result<TargetRow> {
        let directory = tempfile::tempdir().context("no directory for checkpoints")?;
        let mut writer = Writer::new(Store::open(directory.path(), Retention::default())?)?;
        let vars = (0..40).map(|i| Ok((format!("{i:02}"), Var::ones(PARAMETERS / 40, candle_core::DType::F32, &Device::Cpu)?)));
        let vars = vars.collect::<Result<BTreeMap<String, Var>>>()?;
        let (mut waits, mut totals) = (Vec::new(), Vec::new());
        for step in 0..SAVES as u64 {
            let start = Instant::now();
            let copy = || vars.iter().map(|(name, var)| Ok((name.clone(), host_copy(var)?))).collect::<Result<NamedTensors>>();
            let groups = ["parameters", "moments.mean", "moments.square", "average"];
            let tensors = groups.into_iter().map(|group| Ok((group.to_owned(), copy()?))).collect::<Result<_>>()?;
            writer.save(Checkpoint { step, tensors, ..Checkpoint::default() })?;
            waits.push(start.elapsed().as_secs_f64());
            writer.finish()?;
            totals.push(start.elapsed().as_secs_f64());
        }
        let (slowest, total) = (waits.iter().copied().fold(0.0, f64::max), median(&totals));
        Ok(TargetRow {
            host: host.clone(),
            case: Case { model: format!("{PARAMETERS} parameters"), ..self.network.case(Pass::Train, 1, 1, 1) },
            what: "checkpoint of 10 M parameters, time that training waits".into(),
            found: median(&waits),
            found_ci: None,
            limit: Limit::AtMost(0.3),
            unit: "s".into(),
            evidence: format!("160 MB, median of {SAVES}, slowest {slowest:.3} s; {total:.2} s until hashed and on the disk"),
        })
    }
}

fn percent_above_one(ratio: Interval) -> Interval {
    Interval { low: 100.0 * (ratio.low - 1.0), high: 100.0 * (ratio.high - 1.0) }
}

fn median(samples: &[f64]) -> f64 {
    stats::median(&stats::sorted(samples))
}

/// A run of this architecture that writes every step.
fn run_of(model: &PolicyConfig, case: &Case) -> Result<RunConfig> {
    let mut run = run(model, case)?;
    (run.epochs, run.trainer.log_every) = (1000, 1);
    Ok(run)
}

/// Times of the trainer's steps in microseconds, from asking for the batch to the update, behind the cold ones.
fn steps_of_trainer(model: &PolicyConfig, case: &Case, games: &Games) -> Result<Vec<f64>> {
    let directory = tempfile::tempdir().context("no directory for the metrics")?;
    let mut plan = Plan::new(run_of(model, case)?, games, Order::Epochs)?;
    plan.steps = STEPS;
    plan.train(&Place::create(directory.path()), &Stop::after(None))?;
    let lines = std::fs::read_to_string(directory.path().join("metrics.jsonl"))?;
    let lines = lines.lines().map(serde_json::from_str::<serde_json::Value>).collect::<Result<Vec<_>, _>>()?;
    let times: Vec<f64> = lines.iter().filter_map(|line| Some(line["ms"].as_f64()? * 1e3)).collect();
    ensure!(times.len() == STEPS as usize, "metrics of {} steps, expected {STEPS}", times.len());
    Ok(times[COLD_STEPS..].to_vec())
}

/// Forward, backward and optimiser of the policy's loss on one batch, and nothing else.
struct BareStep {
    run: RunConfig,
    windows: Windows,
    state: NamedTensors,
    update: Update,
}

impl BareStep {
    fn new(model: &PolicyConfig, case: &Case) -> Result<Self> {
        let run = run_of(model, case)?;
        let params = Params::init(Random::new(0), &Device::Cpu);
        let policy = Policy::new(model, &params)?;
        let inputs = Inputs::random(&policy, case);
        let windows = Windows::new(policy, case, &inputs)?;
        let update = Update::new(params.vars(), run.trainer.optimiser.clone(), run.trainer.schedule.peak)?;
        Ok(Self { state: windows.initial_state(case)?, run, windows, update })
    }
}

impl Subject for BareStep {
    fn run(&mut self) -> Result<()> {
        let (outputs, state, imitation) = self.windows.pass(&self.state, self.run.loss.smoothing)?;
        self.state = state.map(|_, t| Ok(t.detach()))?;
        let value = outputs.get("value")?.sqr()?.mean_all()?;
        self.update.by(&(imitation + (value * self.run.loss.value)?)?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use candle_core::Tensor;

    fn tiny(directory: &std::path::Path) -> (Network, Case) {
        let network = testing::network("mlp", directory);
        let case = network.case(Pass::Train, 2, 4, 1);
        (network, case)
    }

    #[test]
    fn every_warm_step_of_the_trainer_is_timed() {
        let directory = tempfile::tempdir().unwrap();
        let (network, case) = tiny(directory.path());
        let times = steps_of_trainer(&network.config().unwrap(), &case, &Games { train: games().unwrap(), held_out: Vec::new() }).unwrap();
        assert_eq!(times.len(), STEPS as usize - COLD_STEPS);
        assert!(times.iter().all(|&us| us > 1.0), "{times:?}");
    }

    #[test]
    fn the_bare_step_trains_what_the_trainer_trains() {
        let directory = tempfile::tempdir().unwrap();
        let (network, case) = tiny(directory.path());
        let mut bare = BareStep::new(&network.config().unwrap(), &case).unwrap();
        let before: Vec<Tensor> = bare.update.vars.values().map(|var| var.as_tensor().copy().unwrap()).collect();
        bare.run().unwrap();
        assert!(bare.update.gradients.present().iter().all(|present| *present));
        for (before, (name, var)) in before.iter().zip(&bare.update.vars) {
            let moved = (before - var.as_tensor()).unwrap().abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(moved > 0.0, "{name} has not moved");
        }
    }
}

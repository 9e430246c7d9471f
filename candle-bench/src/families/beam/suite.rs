//! The beam family: a training step beside PyTorch's and the machine's matrix product, channels, and the next beam for one user.

use super::trainee::{PRESET, episodes, weight_uses};
use crate::calls::{Answers, agreement, read_answers};
use crate::case::{Case, Pass};
use crate::formulas;
use crate::harness::{self, Settings, Subject, Timed};
use crate::host::Host;
use crate::ops::Peaks;
use crate::peer::{Library, Peer, PeerCase};
use crate::suite::{Common, Python, Suite, SuiteRun};
use crate::target::{Limit, TargetRow};
use crate::update::Update;
use anyhow::{Context, Result, ensure};
use candle_core::{Device, Tensor};
use candle_models::beam::{Beam, BeamConfig, BeamFamily, Products, Tapes, alignment};
use candle_models::bundle::{self, Bundle, Manifest, Storage};
use candle_models::engine::{Engine, Options, Session};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use candle_models::tensors::NamedTensors;
use candle_train::beam::config::RunConfig;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// The figures of the beam family: training of the published network beside PyTorch, channels, the next beam of the shipped one.
#[derive(clap::Args)]
pub struct BeamBench {
    #[command(flatten)]
    common: Common,
    /// Episodes of a training step.
    #[arg(long, value_name = "B", default_value_t = 256)]
    batch: usize,
    /// Width of the user's network in training.
    #[arg(long, value_name = "H", default_value_t = 384)]
    hidden: usize,
    /// The controller whose next beam is timed.
    #[arg(long, value_name = "DIR", default_value = "weights/beam-c3")]
    bundle: PathBuf,
    #[command(flatten)]
    python: Python,
}

impl Suite for BeamBench {
    const NAME: &'static str = "beam";
    const TITLE: &'static str = "Beam alignment";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&[self.batch]])?;
        let suite = BeamSuite {
            batch: self.batch,
            hidden: self.hidden,
            bundle: self.bundle.clone(),
            threads: common.threads.clone(),
            settings: common.settings.clone(),
        };
        let mut peer = self.python.start()?;
        bench.begin(&common.settings.describe_comparison(), None);
        suite.run(&mut peer, &bench.host.clone(), |row| bench.add(row)).map(drop)
    }
}

/// Batches of channels whose median time counts.
const GENERATED: usize = 21;

/// What is measured.
#[derive(Debug)]
pub struct BeamSuite {
    /// Episodes of a training step.
    pub batch: usize,
    /// Width of the user's network in training.
    pub hidden: usize,
    /// The controller whose next beam is timed.
    pub bundle: PathBuf,
    /// Threads of a training step.
    pub threads: Vec<usize>,
    /// Lengths of the measurements.
    pub settings: Settings,
}

impl BeamSuite {
    /// Measures everything; `seen` is called after each figure.
    pub fn run(&self, peer: &mut Peer, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Result<Vec<TargetRow>> {
        let mut rows = Vec::new();
        for &threads in &self.threads {
            for row in self.training(threads, peer, host)? {
                seen(&row);
                rows.push(row);
            }
        }
        for (dtype, most) in [("f32", 60.0), ("q8", 40.0)] {
            let row = self.next_beam(dtype, most, host)?;
            seen(&row);
            rows.push(row);
        }
        Ok(rows)
    }

    /// The published network with this suite's width.
    fn config(&self) -> Result<BeamConfig> {
        Ok(BeamConfig { hidden: self.hidden, ..RunConfig::preset(PRESET)?.model })
    }

    fn case(&self, threads: usize, dtype: &str) -> Case {
        let measurements = RunConfig::preset(PRESET).map_or(0, |run| run.model.measurements);
        Case::of(&format!("beam c3 as published, gru 2x{}", self.hidden), Pass::Train, [self.batch, measurements, threads], dtype)
    }

    fn training(&self, threads: usize, peer: &mut Peer, host: &Host) -> Result<Vec<TargetRow>> {
        let (scratch, config) = (tempfile::tempdir().context("no directory for the peer's bundle")?, self.config()?);
        let case = self.case(threads, "f32");
        let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(threads).build()?);
        let mut calls = TrainCalls::new(&config, self.batch, Products::F32, pool.clone())?;
        calls.save(scratch.path())?;
        let theirs = PeerCase {
            library: Library::Pytorch,
            device: "cpu".to_owned(),
            dtype: "f32".to_owned(),
            bundle: scratch.path().join("bundle"),
            onnx: None,
            pass: Pass::Train,
            batch: self.batch,
            frames: case.frames,
            threads,
            inputs: scratch.path().join("inputs.safetensors"),
            outputs: scratch.path().join("outputs.safetensors"),
        };
        peer.prepare(&theirs)?;
        let agreed = agreement(&calls.answers()?, &read_answers(&theirs.outputs)?, "f32", None)?;
        ensure!(agreed.holds(), "the losses before and after an update differ: {agreed:?}");
        let mut narrow = TrainCalls::new(&config, self.batch, Products::Bf16, pool.clone())?;
        let mut rows = Vec::new();
        let mut fastest = f64::NAN;
        for (calls, dtype, least) in [(&mut calls, "f32", 1.6), (&mut narrow, "bf16", 2.0)] {
            let compared = harness::compare(&mut Timed(&mut *calls), peer, &self.settings)?;
            let (ours, theirs) = (formulas::calls_per_s(compared.ours_us.p50), formulas::calls_per_s(compared.theirs_us.p50));
            let evidence =
                format!("{ours:.2} steps/s, {} {theirs:.2}, channels of our side drawn anew in each", peer.versions().of(Library::Pytorch));
            let what = if dtype == "f32" { "training steps over PyTorch's" } else { "the same, products in bf16" };
            let found = TargetRow::new(host, self.case(threads, dtype), what, (compared.ratio, Limit::AtLeast(least), "x"), evidence);
            rows.push(TargetRow { found_ci: Some(compared.ratio_ci), ..found });
            if dtype == "f32" {
                fastest = compared.ours_us.p50;
            }
        }
        let peak = Peaks::of_threads(threads, &self.settings)?.gflop_per_s;
        let ours = formulas::gflop_per_s(formulas::training_flop(weight_uses(&config)? * self.batch as f64), fastest);
        let evidence = format!("{ours:.0} of {peak:.0} GFLOP/s, 6 per weight and use");
        let what = "training step, share of the machine's own f32 product";
        rows.push(TargetRow::new(host, case.clone(), what, (ours / peak, Limit::AtLeast(0.7), "share"), evidence));
        let generation = pool.install(|| generation_us(&config, self.batch))?;
        let evidence = format!("{generation:.0} us for {} channels and their noise, of {fastest:.0} us", self.batch);
        let share = 100.0 * generation / fastest;
        rows.push(TargetRow::new(host, case, "channels' share of a step", (share, Limit::AtMost(3.0), "%"), evidence));
        Ok(rows)
    }

    /// From a measurement to the next beam through a session of an engine, on one thread.
    fn next_beam(&self, dtype: &str, most: f64, host: &Host) -> Result<TargetRow> {
        let scratch = tempfile::tempdir().context("no directory for the weights")?;
        Registry::new([&BeamFamily as &dyn Family]).export(
            &Bundle::open(&self.bundle)?,
            Storage::parse(dtype)?,
            scratch.path().join(dtype),
        )?;
        let bundle = Bundle::open(scratch.path().join(dtype))?;
        let measured = harness::measure(&mut Timed(NextBeam::of(&bundle)?), &self.settings)?;
        let config: BeamConfig = bundle.config()?;
        let model = format!("{} gru x{}", self.bundle.display(), config.hidden);
        let case = Case { model, pass: Pass::Step, batch: 1, frames: 1, ..self.case(1, dtype) };
        let evidence = format!("p99 {:.1} us, a session of an engine", measured.latency_us.p99.unwrap_or(measured.latency_us.max));
        let what = format!("next beam for one user, {dtype} weights");
        Ok(TargetRow::new(host, case, what, (measured.latency_us.p50, Limit::AtMost(most), "us"), evidence))
    }
}

/// Steps of a session on the features that it holds.
struct NextBeam(Session);

impl NextBeam {
    /// Before the first measurement, of which nothing is known.
    fn of(bundle: &Bundle) -> Result<Self> {
        let model = Registry::new([&BeamFamily as &dyn Family]).load(bundle)?;
        let mut session = Engine::start(model, &Options { sessions: 1, ..Options::default() })?.open()?;
        session.floats_mut("features")?.fill(0.0);
        Ok(Self(session))
    }
}

impl Subject for NextBeam {
    fn run(&mut self) -> Result<()> {
        Ok(self.0.step()?)
    }
}

/// Median time of drawing a batch of channels and its noise, in microseconds.
fn generation_us(config: &BeamConfig, batch: usize) -> Result<f64> {
    let mut times = Vec::with_capacity(GENERATED);
    for i in 0..GENERATED {
        let start = Instant::now();
        let episodes = episodes(config, i as u64, batch)?;
        (0..batch).try_for_each(|b| episodes.noise(b).map(drop))?;
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(crate::stats::median(&crate::stats::sorted(&times)))
}

/// Every call is one update of the parameters on fresh channels.
struct TrainCalls {
    config: BeamConfig,
    update: Update,
    tapes: Tapes,
    batch: usize,
    number: u64,
    pool: Arc<rayon::ThreadPool>,
}

impl TrainCalls {
    fn new(config: &BeamConfig, batch: usize, products: Products, pool: Arc<rayon::ThreadPool>) -> Result<Self> {
        let params = Params::init(Random::new(0), &Device::Cpu);
        Beam::new(config, &params)?;
        let update = Update::like_the_peer(params.vars())?;
        Ok(Self { config: config.clone(), update, tapes: Tapes::new(products), batch, number: 0, pool })
    }

    /// Writes the network and the first batch for the peer.
    fn save(&self, directory: &Path) -> Result<()> {
        let tensors: BTreeMap<String, Tensor> =
            self.update.vars.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
        let manifest = Manifest::new(candle_models::beam::FAMILY, &self.config)?;
        bundle::save(directory.join("bundle"), &manifest, &tensors, serde_json::Value::Null, &[])?;
        let episodes = episodes(&self.config, 0, self.batch)?;
        let (channels, steps) = (&episodes.channels, episodes.measurements);
        let noise = (0..self.batch).map(|b| episodes.noise(b)).collect::<Result<Vec<_>, _>>()?.concat();
        let (paths, rx, tx) = (channels.paths(), channels.receive_elements(), channels.transmit_elements());
        let tensor = |values: &[f32], shape: &[usize]| Tensor::from_slice(values, shape, &Device::Cpu);
        let start: Vec<f32> = episodes.start.iter().map(|s| *s as f32).collect();
        let inputs = [
            ("gains", tensor(channels.gains(), &[self.batch, paths, 2])?),
            ("receive", tensor(channels.receive(), &[self.batch, paths, rx, 2])?),
            ("transmit", tensor(channels.transmit(), &[self.batch, paths, tx, 2])?),
            ("noise", tensor(&noise, &[self.batch, steps, 2])?),
            ("power", tensor(channels.power(), &[self.batch])?),
            ("start", tensor(&start, &[self.batch])?),
        ];
        let inputs: NamedTensors = inputs.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        Ok(inputs.save_safetensors(directory.join("inputs.safetensors"))?)
    }

    /// The loss on the first batch before and after the first update.
    fn answers(&mut self) -> Result<Answers> {
        let losses = vec![f64::from(self.update(0)?), f64::from(self.update(0)?)];
        Ok(Answers::from([("loss".to_owned(), losses)]))
    }

    fn update(&mut self, number: u64) -> Result<f32> {
        let Self { config, update, tapes, batch, pool, .. } = self;
        pool.install(|| {
            let episodes = episodes(config, number, *batch)?;
            let tensors = update.vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
            let model = Beam::new(config, &Params::given(tensors, &Device::Cpu))?;
            let decided = model.align(&episodes, tapes)?;
            let shares = alignment(&episodes.channels, episodes.measurements - 1, &decided.receive, &decided.transmit)?;
            update.by(&shares.narrow(1, 0, 1)?.mean_all()?.neg()?)
        })
    }
}

impl Subject for &mut TrainCalls {
    fn run(&mut self) -> Result<()> {
        self.number += 1;
        self.update(self.number).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::beam::tiny;

    #[test]
    fn an_update_moves_the_loss_and_the_peer_gets_what_it_needs() {
        let config = tiny();
        let pool = Arc::new(rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap());
        let mut calls = TrainCalls::new(&config, 8, Products::F32, pool).unwrap();
        let directory = tempfile::tempdir().unwrap();
        calls.save(directory.path()).unwrap();
        let bundle = Bundle::open(directory.path().join("bundle")).unwrap();
        assert_eq!(bundle.config::<BeamConfig>().unwrap(), config);
        let inputs = NamedTensors::load_safetensors(directory.path().join("inputs.safetensors")).unwrap();
        assert_eq!(inputs.get("noise").unwrap().dims(), [8, 3, 2]);
        let losses = calls.answers().unwrap().remove("loss").unwrap();
        assert!(losses[0] != losses[1] && losses.iter().all(|loss| (-1.0..0.0).contains(loss)), "{losses:?}");
        assert!(generation_us(&config, 8).unwrap() > 0.0);
        NextBeam::of(&bundle).unwrap().run().unwrap();
    }
}

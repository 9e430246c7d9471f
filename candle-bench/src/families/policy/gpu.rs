//! What the project holds itself to on a GPU, measured in one run and set against its limits, beside PyTorch.
//!
//! A figure that cannot be measured does not end the run: its row says why.

use crate::calls::{EngineCalls, Inputs};
use crate::case::{Case, Pass};
use crate::formulas;
use crate::harness::{self, OnDevice, Settings, Timed};
use crate::host::Host;
use crate::network::{Network, Place};
use crate::ops::gpu as roof;
use crate::peer::{Library, PeerCase, Processes};
use crate::peers::PeerSuite;
use crate::startup::Start;
use crate::stats::Interval;
use crate::suite::{Common, DeviceArgument, Python, Suite, SuiteRun};
use crate::target::{Judged, Limit, TargetRow};
use anyhow::{Context, Result, bail};
use candle_core::{DType, Tensor};
use candle_models::device::{self, Purpose};
use candle_models::ops::{self, Activation};
use candle_models::random::Random;

/// The figures that the project holds itself to on a GPU, of policies of usual sizes with random weights, beside PyTorch.
#[derive(clap::Args)]
pub struct Gpu {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Without comparisons with PyTorch.
    #[arg(long)]
    alone: bool,
    #[command(flatten)]
    python: Python,
}

impl Suite for Gpu {
    const NAME: &'static str = "gpu";
    const TITLE: &'static str = "On a GPU";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        let [dtype] = &common.dtypes[..] else { bail!("--dtypes: one at a time, found {}", common.dtypes.join(",")) };
        let usual = |kind: &str| super::usual(kind, bench.scratch())?.stored(dtype, bench.scratch());
        let suite = GpuSuite {
            mlp: usual("mlp")?,
            mamba: usual("mamba")?,
            place: self.device.open()?,
            sizes: Sizes::default(),
            settings: common.settings.clone(),
        };
        let mut peers = self.python.processes();
        if !self.alone {
            peers.of(Library::Pytorch)?;
        }
        bench.begin(&format!("{} {}", common.settings.describe(), common.settings.describe_comparison()), None);
        suite.run((!self.alone).then_some(&mut peers), &bench.host.clone(), |row| bench.add(row));
        common.settings.interrupt.check()
    }
}

/// What is measured.
#[derive(Debug)]
pub struct GpuSuite {
    /// The MLP policy, stored in the dtype that it computes in.
    pub mlp: Network,
    /// The Mamba policy, likewise.
    pub mamba: Network,
    /// Where.
    pub place: Place,
    /// Sizes of the operations.
    pub sizes: Sizes,
    /// Lengths of the measurements.
    pub settings: Settings,
}

/// Sizes of the operations.
#[derive(Debug, Clone)]
pub struct Sizes {
    /// Rows and columns of the matrices of a product.
    pub products: Vec<usize>,
    /// Sequences, frames, channels and states of a scan.
    pub scan: [usize; 4],
    /// Floats of a copy that no cache holds.
    pub copy: usize,
    /// Operations put on the device before it is waited for.
    pub calls: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { products: vec![4096, 8192], scan: [32, 1024, 512, 16], copy: 1 << 28, calls: 10 }
    }
}

/// Batch of a step, and what its median and its 99th percentile may be at most, in microseconds.
type StepLimits = (usize, f64, Option<f64>);

const MLP_STEPS: [StepLimits; 3] = [(1, 60.0, Some(100.0)), (32, 80.0, None), (256, 120.0, None)];
const MAMBA_STEPS: [StepLimits; 2] = [(1, 80.0, None), (256, 150.0, None)];
/// Batches that are compared with PyTorch.
const COMPARED: [usize; 3] = [1, 32, 256];

impl GpuSuite {
    /// Measures everything; `seen` is called after each figure. Without a peer there are no comparisons. What an interrupt keeps from
    /// being measured has no row.
    pub fn run(&self, mut peers: Option<&mut Processes>, host: &Host, mut seen: impl FnMut(&TargetRow)) -> Vec<TargetRow> {
        let mut rows = Vec::new();
        let mut add = |row: TargetRow| {
            if self.settings.interrupt.came() {
                return;
            }
            seen(&row);
            rows.push(row);
        };
        for (network, steps) in [(&self.mlp, &MLP_STEPS[..]), (&self.mamba, &MAMBA_STEPS[..])] {
            for &limits in steps {
                self.step(network, limits, host).into_iter().for_each(&mut add);
            }
        }
        if let Some(peers) = peers.as_deref_mut() {
            for network in [&self.mlp, &self.mamba] {
                for batch in COMPARED {
                    add(self.ratio(network, batch, peers, host));
                }
            }
        }
        add(self.scan(host));
        if let Some(peers) = peers {
            self.sizes.products.iter().for_each(|&size| add(self.product(size, peers, host)));
        }
        add(self.first_answer(host));
        rows
    }

    fn case(&self, network: &Network, pass: Pass, batch: usize, frames: usize) -> Case {
        self.place.of(network.case(pass, batch, frames, 1))
    }

    /// A row, with the figure and what it was made from, or why there is none.
    fn row(&self, host: &Host, case: Case, (what, limit, unit): (String, Limit, &str), found: Result<(f64, String)>) -> TargetRow {
        let (found, evidence) = found.unwrap_or_else(|error| (f64::NAN, format!("not measured: {error:#}")));
        TargetRow { host: host.clone(), case, what, found, found_ci: None, limit, unit: unit.to_owned(), evidence }
    }

    /// The same with the interval that comes with the figure.
    fn compared(&self, host: &Host, case: Case, what: (String, Limit, &str), found: Result<(f64, Interval, String)>) -> TargetRow {
        let interval = found.as_ref().ok().map(|found| found.1);
        TargetRow { found_ci: interval, ..self.row(host, case, what, found.map(|(found, _, evidence)| (found, evidence))) }
    }

    /// From an observation in host memory to an action in host memory.
    fn step(&self, network: &Network, (batch, p50, p99): StepLimits, host: &Host) -> Vec<TargetRow> {
        let case = self.case(network, Pass::Step, batch, 1);
        let measure = || {
            let model = network.load()?;
            let inputs = Inputs::random(&*model, &case);
            harness::measure(&mut Timed(EngineCalls::new(model, &case, &inputs, &self.place)?), &self.settings)
        };
        let found = measure().map_err(|error| format!("{error:#}"));
        let figure = |pick: &dyn Fn(&harness::Measurement) -> Option<f64>| {
            let measurement = found.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?;
            let latency = &measurement.latency_us;
            let steady = if measurement.steady { "" } else { ", not steady" };
            let evidence = format!("{} steps, p50 {:.1} us, max {:.1} us{steady}", latency.n, latency.p50, latency.max);
            Ok((pick(measurement).context("too few steps for this percentile")?, evidence))
        };
        let kind = network.kind();
        let mut rows = vec![self.row(
            host,
            case.clone(),
            (format!("{kind} step, host to host, p50"), Limit::AtMost(p50), "us"),
            figure(&|m| Some(m.latency_us.p50)),
        )];
        if let Some(p99) = p99 {
            let what = (format!("{kind} step, host to host, p99"), Limit::AtMost(p99), "us");
            rows.push(self.row(host, case.clone(), what, figure(&|m| m.latency_us.p99)));
        }
        rows
    }

    /// Our time over that of PyTorch in a CUDA graph, same weights, inputs and dtype.
    fn ratio(&self, network: &Network, batch: usize, peers: &mut Processes, host: &Host) -> TargetRow {
        let library = if self.place.device.is_cuda() { Library::PytorchGraphs } else { Library::Pytorch };
        let suite = PeerSuite {
            networks: vec![network.clone()],
            libraries: vec![library],
            passes: vec![Pass::Step],
            step_batches: vec![batch],
            window_batches: Vec::new(),
            train_batch: 1,
            window: 1,
            threads: vec![1],
            place: self.place.clone(),
        };
        let mut compare = || {
            let Judged { found, found_ci, evidence } = suite.run(peers, &self.settings, host, |_| {})?.beside_fastest();
            let interval = found_ci.with_context(|| evidence.clone())?;
            Ok((found, interval, evidence))
        };
        let what = format!("{} step over PyTorch's", network.kind());
        let found = compare();
        self.compared(host, self.case(network, Pass::Step, batch, 1), (what, Limit::AtMost(0.7), "x"), found)
    }

    /// Inputs and outputs of a scan over its time, as a share of what a copy on the device reaches.
    fn scan(&self, host: &Host) -> TargetRow {
        let [batch, frames, width, states] = self.sizes.scan;
        let measure = || {
            let (rows, dtype) = (batch * frames, self.dtype()?);
            let random = |shape: &[usize]| self.random(shape, dtype);
            let (u, packed) = (random(&[rows, width])?, random(&[rows, width + 2 * states])?);
            let (params, state) = (random(&[states + 1, width])?.abs()?.neg()?, random(&[batch, states, width])?);
            let (params, state) = (params.to_dtype(DType::F32)?, state.to_dtype(DType::F32)?);
            let resets = vec![false; rows];
            let bytes = (2 * u.elem_count() + packed.elem_count()) * dtype.size_in_bytes();
            let us = self.time(|| ops::selective_scan(&u, &packed, &params, &state, &resets))?;
            let (scan, copy) =
                (formulas::gb_per_s(bytes as f64, us), roof::rate_of_bytes(&self.place.device, 8 * self.sizes.copy, &self.settings)?);
            Ok((scan / copy, format!("{us:.1} us, {scan:.0} of {copy:.0} GB/s, inputs and outputs alone counted")))
        };
        let what = format!("selective scan {batch} x {frames} x {width}, {states} states, share of copy bandwidth");
        let found = measure();
        self.row(host, self.case(&self.mamba, Pass::Window, batch, frames), (what, Limit::AtLeast(0.5), "share"), found)
    }

    /// Our rate of a square product over PyTorch's.
    fn product(&self, size: usize, peers: &mut Processes, host: &Host) -> TargetRow {
        let case = self.case(&self.mlp, Pass::Product, size, self.sizes.calls);
        let mut compare = || {
            let theirs = PeerCase {
                library: Library::Pytorch,
                device: case.device.clone(),
                dtype: case.dtype.clone(),
                bundle: self.mlp.original.clone(),
                onnx: None,
                pass: Pass::Product,
                batch: size,
                frames: case.frames,
                threads: case.threads,
                inputs: Default::default(),
                outputs: Default::default(),
            };
            let peer = peers.of(theirs.library)?;
            peer.prepare(&theirs)?;
            let dtype = self.dtype()?;
            let [a, b] = [self.random(&[size, size], dtype)?, self.random(&[size, size], dtype)?];
            // As many products a call as the peer's.
            let products = || (0..case.frames).try_for_each(|_| ops::linear(&a, &b, None, Activation::None).map(drop));
            let mut ours = OnDevice { operation: products, calls: 1, device: self.place.device.clone() };
            let c = harness::compare(&mut ours, peer, &self.settings)?;
            let rate = |us: f64| formulas::gflop_per_s(formulas::product_flop(size, size, size) * case.frames as f64, us) / 1e3;
            Ok((
                c.ratio,
                c.ratio_ci,
                format!("{:.1} TFLOP/s, PyTorch {:.1}, {} rounds", rate(c.ours_us.p50), rate(c.theirs_us.p50), c.rounds),
            ))
        };
        let what = format!("{} product {size} x {size} x {size}, rate over PyTorch's", case.dtype);
        let found = compare();
        self.compared(host, case.clone(), (what, Limit::AtLeast(0.95), "x"), found)
    }

    /// From the start of a process to its first answer, its kernels in the cache.
    fn first_answer(&self, host: &Host) -> TargetRow {
        let measure = || {
            self.settings.interrupt.check()?;
            // The first run fills the cache, the other shows how long a start takes from then on.
            let start = Start::new(&self.mamba, self.place.choice)?;
            start.seconds()?;
            let seconds = start.seconds()?;
            Ok((seconds, "second of two processes, one step of the Mamba policy".to_owned()))
        };
        let what = "first answer after process start, kernels cached".to_owned();
        self.row(host, self.case(&self.mamba, Pass::Step, 1, 1), (what, Limit::AtMost(1.5), "s"), measure())
    }

    fn dtype(&self) -> Result<DType> {
        let requested = device::float_dtype(&self.mlp.dtype)?;
        Ok(device::compute_dtype(Some(requested), &self.place.device, Purpose::Inference)?)
    }

    fn random(&self, shape: &[usize], dtype: DType) -> Result<Tensor> {
        let mut values = vec![0.0; shape.iter().product()];
        Random::new(7).stream(&format!("{shape:?}")).fill_normal(0, &mut values);
        Ok(Tensor::from_vec(values, shape, &self.place.device)?.to_dtype(dtype)?)
    }

    /// The median time of an operation among others on the device, in microseconds.
    fn time<T>(&self, operation: impl Fn() -> candle_core::Result<T>) -> Result<f64> {
        let mut queued = OnDevice { operation, calls: self.sizes.calls, device: self.place.device.clone() };
        Ok(harness::measure(&mut queued, &self.settings)?.latency_us.p50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn suite(directory: &std::path::Path) -> GpuSuite {
        let network = |kind| testing::network(kind, directory);
        GpuSuite {
            mlp: network("mlp"),
            mamba: network("mamba"),
            place: Place::cpu(),
            sizes: Sizes { products: vec![8], scan: [2, 8, 16, 4], copy: 1 << 16, calls: 2 },
            settings: Settings { warm_up_s: 0.0, window_s: 0.001, ..Settings::default() },
        }
    }

    #[test]
    fn every_figure_without_a_peer_has_a_row() {
        let directory = tempfile::tempdir().unwrap();
        let mut seen = 0;
        let rows = suite(directory.path()).run(None, &Host::detect(None), |_| seen += 1);
        assert_eq!((rows.len(), seen), (8, 8));
        let named = |part: &str| rows.iter().filter(|row| row.what.contains(part)).collect::<Vec<_>>();
        assert!(named("step").iter().all(|row| row.found > 0.0 || row.what.ends_with("p99")), "{rows:?}");
        assert!(named("scan").iter().all(|row| row.found > 0.0 && row.evidence.contains("GB/s")), "{rows:?}");
    }

    #[test]
    fn what_cannot_be_measured_says_why_and_misses_its_limit() {
        let directory = tempfile::tempdir().unwrap();
        let mut suite = suite(directory.path());
        suite.mamba.bundle = directory.path().join("nowhere");
        let rows = suite.run(None, &Host::detect(None), |_| {});
        let broken: Vec<_> = rows.iter().filter(|row| row.evidence.starts_with("not measured: ")).collect();
        assert!(broken.iter().any(|row| row.what.starts_with("mamba step")) && broken.iter().all(|row| !row.met()), "{rows:?}");
        assert!(rows.iter().any(|row| row.what.starts_with("mlp step") && row.found > 0.0), "one failure does not end the run");
    }
}

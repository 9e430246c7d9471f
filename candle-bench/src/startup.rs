//! From the start of a process to its first answer, split, with cold and with warm caches.

use crate::calls::{EngineCalls, Inputs};
use crate::case::{Case, Pass};
use crate::figure::{Figure, Sense};
use crate::harness::{Settings, Subject};
use crate::host::{self, Host};
use crate::network::{FEW, Network, Place};
use crate::report::charts::{self, Bar, Lengths, Panel};
use crate::stats::{self, Summary};
use crate::suite::{Common, DeviceArgument, Suite, SuiteRun};
use crate::table::{NOT_TIMED, Record, Shown, longest, micros};
use Shown::{Csv, Everywhere};
use anyhow::{Context, Result, bail, ensure};
use candle_models::device::DeviceChoice;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// From the start of a process to its first answer, split, with cold and warm caches.
#[derive(clap::Args)]
pub struct Startup {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    device: DeviceArgument,
    /// Starts of each kind.
    #[arg(long, value_name = "N", default_value_t = 15)]
    starts: usize,
}

impl Suite for Startup {
    const NAME: &'static str = "startup";
    const TITLE: &'static str = "From process start to first answer";
    type Row = StartupRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<StartupRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[])?;
        let networks = bench.networks(common, FEW)?;
        let suite = StartupSuite { networks, starts: self.starts, device: self.device.device };
        bench.begin(&suite.describe(), None);
        suite.run(&common.settings, &bench.host.clone(), |row| bench.add(row))
    }
}

/// Where a CUDA process keeps compiled kernels.
const KERNEL_CACHE: &str = "CANDLE_KERNEL_CACHE";

/// Which caches a process finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cache {
    /// Program and bundle are read from the disk; on a GPU, kernels are compiled.
    Cold,
    /// Everything has been read and compiled before.
    Warm,
}

impl Cache {
    fn name(self) -> &'static str {
        match self {
            Self::Cold => "cold",
            Self::Warm => "warm",
        }
    }
}

/// The parts of a start, in their order.
pub const PARTS: [&str; 4] = ["process", "load", "prepare", "first step"];
/// Those that only a GPU has: the device is opened before the bundle is loaded, the others are no part of `prepare`.
pub const GPU_PARTS: [&str; 3] = ["open GPU", "kernels", "capture"];

/// When a process had done each part, in nanoseconds since 1970; page faults that the disk had to answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Marks {
    /// `main` began, the bundle was loaded, the pass was prepared, the first answer was there.
    at_ns: [u64; 4],
    /// How long each of [`GPU_PARTS`] took, on a GPU.
    gpu_ns: Option<[u64; 3]>,
    /// Page faults that needed the disk so far.
    disk_faults: u64,
}

/// What is measured.
#[derive(Debug, Clone)]
pub struct StartupSuite {
    /// The networks.
    pub networks: Vec<Network>,
    /// Starts of each kind.
    pub starts: usize,
    /// Where they compute.
    pub device: DeviceChoice,
}

/// Starts of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StartupRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// What the first answer is one of.
    #[serde(flatten)]
    pub case: Case,
    /// Which caches there were; nothing was measured where `unavailable` says why.
    pub cache: Cache,
    /// Median of each of [`PARTS`], in microseconds.
    pub parts_us: [f64; 4],
    /// Median of each of [`GPU_PARTS`], likewise, on a GPU.
    #[serde(default)]
    pub gpu_us: Option<[f64; 3]>,
    /// From the start of the process to its first answer, in microseconds.
    pub total_us: Option<Summary>,
    /// Median of the page faults that the disk had to answer.
    pub disk_faults: f64,
    /// Why there is no figure.
    #[serde(default)]
    pub unavailable: Option<String>,
}

impl Record for StartupRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Model", Csv),
        ("Backbone", Everywhere),
        ("Dtype", Everywhere),
        ("Cache", Everywhere),
        ("Process us", Everywhere),
        ("Load us", Everywhere),
        ("Prepare us", Everywhere),
        ("First step us", Everywhere),
        ("Open GPU us", Everywhere),
        ("Kernels us", Everywhere),
        ("Capture us", Everywhere),
        ("Total p50 us", Everywhere),
        ("Total max us", Everywhere),
        ("Disk faults", Everywhere),
        ("Starts", Everywhere),
        ("Not available", Csv),
        ("Device", Everywhere),
    ];
    const IDENTITY: &'static [&'static str] = &["Model", "Dtype", "Cache", "Device"];

    fn cells(&self) -> Vec<String> {
        let case = &self.case;
        let mut cells = vec![case.model.clone(), case.backbone.clone(), case.dtype.clone(), self.cache.name().to_owned()];
        match &self.total_us {
            Some(total) => {
                cells.extend(self.parts_us.map(micros));
                cells.extend(self.gpu_us.map_or_else(Default::default, |parts| parts.map(micros)));
                cells.extend([micros(total.p50), micros(total.max), format!("{:.0}", self.disk_faults), total.n.to_string()]);
            }
            None => cells.extend(["", "", "", "", "", "", "", "not available", "", "", "0"].map(str::to_owned)),
        }
        cells.extend([self.unavailable.clone().unwrap_or_default(), case.device.clone()]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        let none = Figure::new("mean start", "us", Sense::Time, f64::NAN);
        vec![self.total_us.as_ref().map_or(none, |total| Figure::mean("mean start", total))]
    }

    fn often(&self) -> String {
        self.total_us.as_ref().map_or_else(|| NOT_TIMED.to_owned(), |total| format!("{} starts", total.n))
    }

    /// The part that takes longest.
    fn bound(&self) -> Option<String> {
        self.total_us.as_ref().and_then(|_| longest(self.parts()))
    }

    fn charts(rows: &[Self]) -> Vec<Panel> {
        let parts = |row: &Self| row.parts().map(|(name, us)| (name.to_owned(), us)).collect();
        let bar = |row: &Self| Bar { label: format!("{}, {}", row.cache.name(), charts::network(&row.case)), parts: parts(row) };
        let bars = rows.iter().filter(|row| row.total_us.is_some()).map(bar).collect();
        charts::stacked("Where a start's time goes", "Median of each part", Lengths::Microseconds, bars)
    }
}

impl StartupRow {
    /// Every part and its median in microseconds.
    fn parts(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        PARTS.into_iter().zip(self.parts_us).chain(self.gpu_us.into_iter().flat_map(|parts| GPU_PARTS.into_iter().zip(parts)))
    }
}

impl StartupSuite {
    /// The method in words, for the report.
    pub fn describe(&self) -> String {
        format!(
            "Every start is a process of its own that opens a bundle, prepares a streaming step of one row and takes one; {} of each kind, cold and warm in turn. Process: until its main \
             function; load: bundle read and checked, model built; prepare: program recorded and weights packed; first step: inputs copied in, outputs there. On a GPU three parts are \
             counted apart: open GPU: driver and device; kernels: ours compiled or read from their cache, and loaded; capture: the pass recorded as a graph. Cold: program and bundle are copies whose pages the system was told to forget before each start, with an empty kernel \
             cache; shared libraries stay where they are. Times are those of the system's clock in both processes. Disk faults: pages that the process waited for.",
            self.starts
        )
    }

    /// Measures every network; `seen` is called for cold and warm starts of each.
    pub fn run(&self, settings: &Settings, host: &Host, mut seen: impl FnMut(&StartupRow)) -> Result<()> {
        ensure!(self.starts > 0, "starts: at least one is needed");
        for network in &self.networks {
            self.network(network, settings, host).with_context(|| network.name.clone())?.iter().for_each(&mut seen);
        }
        Ok(())
    }

    fn network(&self, network: &Network, settings: &Settings, host: &Host) -> Result<[StartupRow; 2]> {
        let scratch = tempfile::tempdir().context("no directory for copies of program and bundle")?;
        let cold = Start::copied(network, scratch.path(), self.device)?;
        let warm = Start { program: host::this_program()?, ..cold.clone() };
        // Fills the caches.
        warm.once(None)?;
        let mut found = [Vec::new(), Vec::new()];
        for _ in 0..self.starts {
            settings.interrupt.check()?;
            let kernels = scratch.path().join("kernels");
            let _ = std::fs::remove_dir_all(&kernels);
            cold.forget()?;
            found[0].push(cold.once(Some(&kernels))?);
            found[1].push(warm.once(None)?);
        }
        let [cold, warm] = found;
        Ok([self.row(network, host, Cache::Cold, &cold), self.row(network, host, Cache::Warm, &warm)])
    }

    fn row(&self, network: &Network, host: &Host, cache: Cache, starts: &[Started]) -> StartupRow {
        let median = |of: &dyn Fn(&Started) -> f64| stats::median(&stats::sorted(&starts.iter().map(of).collect::<Vec<_>>()));
        let totals: Vec<f64> = starts.iter().map(Started::total_us).collect();
        let disk_faults = median(&|start| start.marks.disk_faults as f64);
        let on_gpu = starts.iter().all(|start| start.marks.gpu_ns.is_some());
        // Where the pages could not be dropped (a file system in memory), a cold start would be a warm one under another name.
        let forgotten = cache == Cache::Warm || disk_faults > 0.0;
        StartupRow {
            host: host.clone(),
            case: Case { device: self.device.to_string(), ..network.case(Pass::Step, 1, 1, 1) },
            cache,
            parts_us: [0, 1, 2, 3].map(|i| median(&|start| start.parts_us()[i])),
            gpu_us: on_gpu.then(|| [0, 1, 2].map(|i| median(&|start| start.gpu_us()[i]))),
            total_us: forgotten.then(|| Summary::of(&totals)).flatten(),
            disk_faults,
            unavailable: (!forgotten).then(|| "the system kept the pages of program and bundle in memory".to_owned()),
        }
    }
}

/// A process to be started.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    program: PathBuf,
    bundle: PathBuf,
    dtype: String,
    device: DeviceChoice,
}

/// When it was started and what it said.
#[derive(Debug, Clone, Copy)]
struct Started {
    at_ns: u64,
    marks: Marks,
}

impl Started {
    /// Of [`PARTS`], without what a GPU takes.
    fn parts_us(&self) -> [f64; 4] {
        let mut from = self.at_ns;
        let [process, load, prepare, step] = self.marks.at_ns.map(|to| (to.saturating_sub(std::mem::replace(&mut from, to))) as f64 / 1e3);
        let [open, kernels, capture] = self.gpu_us();
        [process, load - open, prepare - kernels - capture, step]
    }

    /// Of [`GPU_PARTS`], nothing on a CPU.
    fn gpu_us(&self) -> [f64; 3] {
        self.marks.gpu_ns.unwrap_or_default().map(|ns| ns as f64 / 1e3)
    }

    /// From the start of the process to its first answer.
    fn total_us(&self) -> f64 {
        self.marks.at_ns[3].saturating_sub(self.at_ns) as f64 / 1e3
    }
}

impl Start {
    /// This program on a bundle.
    pub fn new(network: &Network, device: DeviceChoice) -> Result<Self> {
        let program = host::this_program()?;
        Ok(Self { program, bundle: network.bundle.clone(), dtype: network.dtype.clone(), device })
    }

    /// A copy of this program on a copy of a bundle, below a directory.
    fn copied(network: &Network, directory: &Path, device: DeviceChoice) -> Result<Self> {
        let original = Self::new(network, device)?;
        let (program, bundle) = (directory.join("program"), directory.join("bundle"));
        std::fs::copy(&original.program, &program).context("a copy of this program")?;
        std::fs::create_dir(&bundle)?;
        for entry in std::fs::read_dir(&network.bundle)? {
            let path = entry?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name()) {
                std::fs::copy(&path, bundle.join(name)).with_context(|| format!("a copy of {}", path.display()))?;
            }
        }
        Ok(Self { program, bundle, ..original })
    }

    /// Has the system forget what it has read of program and bundle.
    fn forget(&self) -> Result<()> {
        let files = std::fs::read_dir(&self.bundle)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
        files.iter().chain([&self.program]).try_for_each(|path| forget(path).with_context(|| path.display().to_string()))
    }

    /// Seconds from the start of the process to its first answer.
    pub fn seconds(&self) -> Result<f64> {
        Ok(self.once(None)?.total_us() / 1e6)
    }

    fn once(&self, kernels: Option<&Path>) -> Result<Started> {
        let mut command = host::start(&self.program, "first-answer");
        command.arg(&self.bundle).args(["--device", &self.device.to_string(), "--dtype", &self.dtype]);
        kernels.map(|dir| command.env(KERNEL_CACHE, dir));
        let at_ns = now_ns();
        let output = command.output().with_context(|| format!("{}: cannot be started", self.program.display()))?;
        if !output.status.success() {
            bail!("no answer from a second process: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let marks = serde_json::from_slice(&output.stdout).context("a second process did not say when it answered")?;
        Ok(Started { at_ns, marks })
    }
}

/// Nanoseconds since 1970 by the system's clock, which all processes share.
pub fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

/// What this process has spent on kernels and captures, in nanoseconds.
fn prepared_ns() -> [u64; 2] {
    #[cfg(feature = "cuda")]
    let spent = [candle_models::cuda::prepared().kernels, candle_models::cuda::prepared().captures];
    #[cfg(not(feature = "cuda"))]
    let spent = [std::time::Duration::ZERO; 2];
    spent.map(|time| time.as_nanos() as u64)
}

/// Takes one step of a bundle in this process, `began_ns` being when its main function began.
pub fn first_answer(began_ns: u64, network: &Network, device: DeviceChoice, dtype: &str) -> Result<Marks> {
    let opening = now_ns();
    let place = Place::open(device)?;
    let opened_ns = now_ns() - opening;
    let model = network.load()?;
    let loaded = now_ns();
    let case = Case { dtype: dtype.to_owned(), ..network.case(Pass::Step, 1, 1, 1) };
    let inputs = Inputs::random(&*model, &case);
    let before = prepared_ns();
    let mut calls = EngineCalls::new(model, &case, &inputs, &place)?;
    let (prepared, spent) = (now_ns(), prepared_ns());
    calls.run()?;
    let gpu_ns = place.device.is_cuda().then(|| [opened_ns, spent[0] - before[0], spent[1] - before[1]]);
    Ok(Marks { at_ns: [began_ns, loaded, prepared, now_ns()], gpu_ns, disk_faults: disk_faults().unwrap_or(0) })
}

/// Page faults of this process that needed the disk.
fn disk_faults() -> Option<u64> {
    host::status_field(12)
}

#[cfg(target_os = "linux")]
fn forget(path: &Path) -> Result<()> {
    use std::os::fd::AsRawFd;
    let file = File::open(path)?;
    // Pages that are not on the disk yet cannot be dropped.
    file.sync_all()?;
    // SAFETY: the descriptor is open for as long as the call.
    let code = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    ensure!(code == 0, "its pages stay in memory: error {code}");
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn forget(path: &Path) -> Result<()> {
    File::open(path).map(drop)?;
    bail!("only Linux can be asked to forget a file's pages")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn parts_follow_each_other_and_add_up() {
        let directory = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", directory.path());
        let before = now_ns();
        let marks = first_answer(before + 1000, &network, DeviceChoice::Cpu, "f32").unwrap();
        assert!(marks.at_ns.is_sorted(), "{marks:?}");
        let started = Started { at_ns: before, marks };
        let parts = started.parts_us();
        assert_eq!(parts[0], 1.0);
        assert!((parts.iter().sum::<f64>() - (marks.at_ns[3] - before) as f64 / 1e3).abs() < 1e-3);
        assert!(parts[1..].iter().all(|us| *us > 0.0), "{parts:?}");
        assert!((started.total_us() - parts.iter().sum::<f64>()).abs() < 1e-3 && marks.gpu_ns.is_none());
        // What a GPU takes is no part of the others, and nothing is counted twice.
        let on_gpu =
            Started { at_ns: 0, marks: Marks { at_ns: [1000, 9000, 20_000, 21_000], gpu_ns: Some([5000, 3000, 2000]), disk_faults: 0 } };
        assert_eq!((on_gpu.parts_us(), on_gpu.gpu_us()), ([1.0, 3.0, 6.0, 1.0], [5.0, 3.0, 2.0]));
        assert_eq!(on_gpu.total_us(), 21.0);
    }

    #[test]
    fn a_cold_start_that_was_warm_is_not_called_one() {
        let directory = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", directory.path());
        let suite = StartupSuite { networks: Vec::new(), starts: 2, device: DeviceChoice::Cpu };
        let row = |cache, disk_faults| {
            let start = Started { at_ns: 0, marks: Marks { at_ns: [1000, 3000, 6000, 10_000], gpu_ns: None, disk_faults } };
            suite.row(&network, &Host::detect(None), cache, &[start; 2])
        };
        for (row, measured) in [(row(Cache::Cold, 9), true), (row(Cache::Cold, 0), false), (row(Cache::Warm, 0), true)] {
            assert_eq!((row.total_us.is_some(), row.unavailable.is_none()), (measured, measured));
            assert_eq!(row.cells().len(), StartupRow::COLUMNS.len());
        }
        assert_eq!(row(Cache::Warm, 0).total_us.unwrap().p50, 10.0);
    }

    #[test]
    fn files_are_forgotten_and_a_missing_one_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(cfg!(not(target_os = "linux")) || forget(file.path()).is_ok());
        assert!(forget(Path::new("/nowhere/at/all")).is_err());
        assert!(disk_faults().is_some() || cfg!(not(target_os = "linux")));
    }
}

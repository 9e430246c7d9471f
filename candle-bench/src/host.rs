//! Where a number was measured: machine, commit and build.

use anyhow::Context;
use candle_models::nvml;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// This program's file, which suites start for what needs a process of its own.
///
/// # Errors
/// If the system does not say.
pub fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("this program cannot be found")
}

/// How many of this process's arguments stand before those of the benchmark: `bench` in `own_family bench latency`.
static BEFORE: OnceLock<usize> = OnceLock::new();

/// Notes which of this process's arguments are the benchmark's, behind the program's name: the last ones.
pub(crate) fn set_arguments(arguments: &[OsString]) {
    let own: Vec<OsString> = std::env::args_os().skip(1).collect();
    let before = arguments.get(1..).filter(|given| own.ends_with(given)).map_or(0, |given| own.len() - given.len());
    BEFORE.get_or_init(|| before);
}

/// The benchmark's own arguments.
pub(crate) fn arguments() -> Vec<String> {
    std::env::args().skip(1 + BEFORE.get().copied().unwrap_or(0)).collect()
}

/// A command of the benchmark in a process of its own; `program` is this program's file or a copy of it.
pub(crate) fn start(program: &Path, command: &str) -> Command {
    let mut process = Command::new(program);
    process.args(std::env::args_os().skip(1).take(BEFORE.get().copied().unwrap_or(0))).arg(command);
    process
}

/// The peak of this process's resident set in KiB.
pub fn peak_kilobytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status").context("the peak of memory is read from /proc, which is not there")?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).context("no VmHWM in /proc/self/status")?;
    line.trim().trim_end_matches("kB").trim().parse().context("VmHWM is not a number")
}

/// The machine and the program that gave a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Name of the machine.
    pub host: String,
    /// CPU model as the system names it.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
    /// Instruction sets that matter for speed and that the CPU has, joined by `+`.
    pub features: String,
    /// Abbreviated commit, with `-dirty` when files differ from it.
    pub commit: String,
    /// `release` or `debug`.
    pub profile: String,
    /// Day of the measurement, UTC, `2026-01-31`.
    pub date: String,
    /// GPUs and their driver, `2 x NVIDIA H200, driver 580.65.06`; empty without any.
    #[serde(default)]
    pub gpu: String,
    /// Cargo features that the program was built with, joined by `+`; empty without any.
    #[serde(default)]
    pub build: String,
}

impl fmt::Display for Host {
    /// In one line, without a full stop.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, cpu, cpus, features, commit, profile, date, gpu, build } = self;
        let gpu = if gpu.is_empty() { String::new() } else { format!("; {gpu}") };
        let with = if build.is_empty() { String::new() } else { format!(" with {build}") };
        write!(f, "Host {host}: {cpu}, {cpus} CPUs, {features}{gpu}. Commit {commit}, {date}, {profile} build{with}")
    }
}

impl Host {
    /// The columns of a table that say where a row was measured.
    pub const COLUMNS: [&str; 9] = ["Host", "CPU", "CPUs", "Features", "Commit", "Profile", "Date", "GPU", "Build"];

    /// The cells of these columns.
    pub fn cells(&self) -> [String; 9] {
        let Self { host, cpu, cpus, features, commit, profile, date, gpu, build } = self.clone();
        [host, cpu, cpus.to_string(), features, commit, profile, date, gpu, build]
    }

    /// In what another place differs from this one but for day and commit: times of such places say nothing about each other.
    pub fn differs(&self, other: &Self) -> Vec<&'static str> {
        let different = [
            ("host", self.host != other.host),
            ("cpu", self.cpu != other.cpu),
            ("cpus", self.cpus != other.cpus),
            ("features", self.features != other.features),
            ("profile", self.profile != other.profile),
            ("gpu", self.gpu != other.gpu),
            ("build", self.build != other.build),
        ];
        different.into_iter().filter(|(_, different)| *different).map(|(field, _)| field).collect()
    }

    /// Asks the system. What it does not say is `unknown`.
    pub fn detect(name: Option<String>) -> Self {
        let machine = candle_train::host::Host::detect();
        Self {
            host: name.unwrap_or(machine.name),
            cpu: machine.cpu,
            cpus: machine.cpus,
            features: features().join("+"),
            commit: commit(),
            profile: if cfg!(debug_assertions) { "debug" } else { "release" }.to_owned(),
            date: date(seconds_since_1970()),
            gpu: gpus(&nvml::gpus(), nvml::driver_version()),
            build: build().join("+"),
        }
    }
}

/// Equal names once, with their number.
fn gpus(names: &[String], driver: Option<String>) -> String {
    let counts = names.iter().fold(BTreeMap::<&str, usize>::new(), |mut counts, name| {
        *counts.entry(name).or_default() += 1;
        counts
    });
    let named = counts.into_iter().map(|(name, count)| if count == 1 { name.to_owned() } else { format!("{count} x {name}") });
    let driver = driver.filter(|_| !names.is_empty()).map(|version| format!("driver {version}"));
    named.chain(driver).collect::<Vec<_>>().join(", ")
}

/// Features of this crate that a build may have.
fn build() -> Vec<&'static str> {
    let features = [("cuda", cfg!(feature = "cuda")), ("flash-attn", cfg!(feature = "flash-attn"))];
    features.into_iter().filter(|(_, on)| *on).map(|(name, _)| name).collect()
}

/// How long threads of this process that are still there have waited for a processor so far, where the kernel says.
pub(crate) fn waited_for_cpu() -> Option<Duration> {
    let threads = std::fs::read_dir("/proc/self/task").ok()?;
    let waited = threads.filter_map(|thread| {
        // Nanoseconds on a processor, nanoseconds that it waited for one, turns.
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok().map(Duration::from_nanos)
    });
    waited.fold(None, |sum: Option<Duration>, waited| Some(sum.unwrap_or_default() + waited))
}

/// A number of this process's line in /proc/self/stat, by its place in proc(5): the third stands behind the name in parentheses.
pub(crate) fn status_field(place: usize) -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/stat").ok()?;
    status.rsplit_once(')')?.1.split_whitespace().nth(place.checked_sub(3)?)?.parse().ok()
}

/// Dependent multiplications of a [`chain`], some 15 us of them, and how often it is timed.
pub(crate) const CHAIN: u64 = 1 << 14;
const CHAINS: usize = 8;

/// How long a chain of dependent multiplications takes: it follows the processor's clock alone, for it uses no memory and leaves most of
/// a core to the thread beside it. The least of several, which no interruption made longer.
pub(crate) fn chain() -> Duration {
    let once = || {
        let start = Instant::now();
        std::hint::black_box((0..CHAIN).fold(std::hint::black_box(3u64), |x, _| x.wrapping_mul(x)));
        start.elapsed()
    };
    (0..CHAINS).map(|_| once()).min().unwrap_or_default()
}

fn unknown() -> String {
    "unknown".to_owned()
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<&'static str> {
    let mut found = Vec::new();
    macro_rules! probe {
        ($($name:tt),*) => { $(if std::arch::is_x86_feature_detected!($name) { found.push($name); })* };
    }
    probe!("avx2", "fma", "avx512f", "avx512vnni", "avx512bf16");
    // The compiler has no stable question for it, and Linux has a say in it.
    if candle_models::device::simd_available().contains(&"amx") {
        found.push("amx");
    }
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<&'static str> {
    vec![std::env::consts::ARCH]
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // Programs that have been carried elsewhere are told.
    let carried = || std::env::var("CANDLE_BENCH_COMMIT").ok().filter(|commit| !commit.is_empty());
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else { return carried().unwrap_or_else(unknown) };
    // Results of earlier runs are not part of the program.
    match git(&["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)candle-bench/runs"]) {
        Some(changes) if changes.is_empty() => commit,
        _ => format!("{commit}-dirty"),
    }
}

fn seconds_since_1970() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The civil date of a Unix time (proleptic Gregorian calendar; Hinnant, "chrono-compatible low-level date algorithms").
fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468; // since 0000-03-01
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153; // March is 0
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = 400 * era + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_known_times() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_709_251_199), "2024-02-29");
        assert_eq!(date(1_709_251_200), "2024-03-01");
        assert_eq!(date(4_107_542_400), "2100-03-01");
        assert_eq!(date(1_798_761_599), "2026-12-31");
    }

    #[test]
    fn another_commit_is_no_other_place() {
        let here = Host::detect(Some("bench-1".to_owned()));
        let later = Host { commit: "0123456789".to_owned(), date: "2100-01-01".to_owned(), ..here.clone() };
        assert!(here.differs(&later).is_empty());
        let elsewhere = Host { cpus: here.cpus + 1, profile: "other".to_owned(), ..here.clone() };
        assert_eq!(here.differs(&elsewhere), ["cpus", "profile"]);
    }

    #[test]
    fn equal_gpus_are_counted() {
        let names = ["NVIDIA H200", "NVIDIA H100", "NVIDIA H200"].map(str::to_owned);
        assert_eq!(gpus(&names, Some("580.65.06".to_owned())), "NVIDIA H100, 2 x NVIDIA H200, driver 580.65.06");
        assert_eq!(gpus(&names[..1], None), "NVIDIA H200");
        assert_eq!(gpus(&[], Some("580.65.06".to_owned())), "", "a driver without a GPU measures nothing");
    }

    #[test]
    fn a_name_given_wins() {
        let host = Host::detect(Some("bench-1".to_owned()));
        assert_eq!(host.host, "bench-1");
        assert!(host.cpus >= 1 && host.date.len() == 10);
    }
}

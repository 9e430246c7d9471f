//! Where a number was measured: machine, commit and build.

use serde::{Deserialize, Serialize};
use std::process::Command;

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
}

impl Host {
    /// The columns of a table that say where a row was measured.
    pub const COLUMNS: [&str; 7] = ["Host", "CPU", "CPUs", "Features", "Commit", "Profile", "Date"];

    /// The cells of these columns.
    pub fn cells(&self) -> [String; 7] {
        let Self { host, cpu, cpus, features, commit, profile, date } = self;
        [host.clone(), cpu.clone(), cpus.to_string(), features.clone(), commit.clone(), profile.clone(), date.clone()]
    }

    /// In what another place differs from this one but for day and commit: times of such places say nothing about each other.
    pub fn differs(&self, other: &Self) -> Vec<&'static str> {
        let different = [
            ("host", self.host != other.host),
            ("cpu", self.cpu != other.cpu),
            ("cpus", self.cpus != other.cpus),
            ("features", self.features != other.features),
            ("profile", self.profile != other.profile),
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
        }
    }
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
    let Some(commit) = git(&["rev-parse", "--short=10", "HEAD"]) else { return unknown() };
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
    fn a_name_given_wins() {
        let host = Host::detect(Some("bench-1".to_owned()));
        assert_eq!(host.host, "bench-1");
        assert!(host.cpus >= 1 && host.date.len() == 10);
    }
}

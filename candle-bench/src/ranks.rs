//! Runs of `candle-train` as one or more ranks of one thread each, and their steps by the trainer's own metrics.

use anyhow::{Context, Result, bail, ensure};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// First steps that do not count.
const COLD_STEPS: usize = 3;
/// Steps behind them that a figure needs.
const LEAST_STEPS: usize = 5;

/// A run of `candle-train` as one or more ranks of one thread each on this machine.
#[derive(Debug)]
pub(crate) struct RankRun<'a> {
    /// `candle-train`, for several ranks built with the feature `mpi`.
    pub program: &'a Path,
    /// Ranks.
    pub ranks: usize,
    /// Seconds that it trains.
    pub seconds: u32,
    /// Its family, and where model and data come from.
    pub arguments: Vec<OsString>,
    /// Keys of the configuration.
    pub sets: Vec<String>,
}

/// A step by the trainer's own metrics.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankStep {
    /// Wall time in microseconds.
    pub us: f64,
    /// Samples of all ranks over it.
    pub samples_per_s: f64,
    /// Share of it that waits for data.
    pub data: f64,
    /// Share of it that waits for other ranks.
    pub communication: f64,
}

impl RankRun<'_> {
    /// Its steps behind the first ones.
    ///
    /// # Errors
    /// With the last line that the program said, where it fails; where it made too few steps, or with another number of ranks.
    pub fn steps(&self, out: &Path) -> Result<Vec<RankStep>> {
        let place = self.program.display();
        let mut command = Command::new(self.program);
        if self.ranks > 1 {
            command.args(["launch", "--nproc", &self.ranks.to_string()]);
        }
        command.args(&self.arguments).args(["--device", "cpu", "--max-time", &format!("{}s", self.seconds)]);
        command.arg("--out").arg(out).env("CANDLE_THREADS", "1").args(["--set", "trainer.log_every=1"]);
        self.sets.iter().for_each(|set| {
            command.args(["--set", set]);
        });
        let output = command.output().with_context(|| format!("{place}: cannot be started"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = said.lines().last().unwrap_or("no word");
            bail!("{place}: {}", last.strip_prefix("error: ").unwrap_or(last));
        }
        let lines = std::fs::read_to_string(out.join("metrics.jsonl")).with_context(|| format!("{place}: no metrics from it"))?;
        let lines = lines.lines().map(serde_json::from_str::<serde_json::Value>).collect::<Result<Vec<_>, _>>()?;
        let steps: Vec<_> = lines.iter().filter(|line| line["ms"].is_number()).collect();
        let found = steps.first().and_then(|line| line["ranks"].as_u64());
        ensure!(found == Some(self.ranks as u64), "{place}: {found:?} ranks in its metrics, expected {}", self.ranks);
        let steps: Vec<_> = steps.into_iter().skip(COLD_STEPS).filter_map(rank_step).collect();
        ensure!(steps.len() >= LEAST_STEPS, "{place}: {} steps in its metrics, too few for a figure", steps.len());
        Ok(steps)
    }
}

fn rank_step(line: &serde_json::Value) -> Option<RankStep> {
    let number = |key: &str| line[key].as_f64();
    let (us, samples_per_s) = (number("ms")? * 1e3, number("samples_per_s")?);
    Some(RankStep { us, samples_per_s, data: number("data_wait")?, communication: number("comm_wait")? })
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use std::path::PathBuf;

    /// A program in the trainer's place.
    pub fn program(directory: &Path, script: &str) -> PathBuf {
        let program = directory.join("trainer");
        // Written by another process: a file that a thread beside this one holds open while it forks cannot be started.
        let write = r#"printf '#!/bin/sh\n%s\n' "$1" > "$0" && chmod +x "$0""#;
        assert!(Command::new("sh").arg("-c").arg(write).arg(&program).arg(script).status().unwrap().success());
        program
    }

    /// One that writes nine steps of 11 to 19 ms, of which a tenth waits for data and a fifth for other ranks, says below `directory`
    /// what it was asked, and is as many ranks as `ranks` says: `$n` for what it was asked for.
    pub fn trainer(directory: &Path, ranks: &str) -> PathBuf {
        let line =
            r#"{\"ranks\":RANKS,\"ms\":$((10 + i)),\"samples_per_s\":100.0,\"data_wait\":0.1,\"comm_wait\":0.2}"#.replace("RANKS", ranks);
        let script = r#"
            echo "$@" > ASKED
            n=1; [ "$1" = launch ] && n=$3
            while [ "$1" != --out ]; do shift; done
            mkdir -p "$2"
            for i in 1 2 3 4 5 6 7 8 9; do echo "LINE" >> "$2/metrics.jsonl"; done
            echo '{"evaluation":{}}' >> "$2/metrics.jsonl""#;
        let asked = directory.join("asked");
        program(directory, &script.replace("ASKED", &asked.display().to_string()).replace("LINE", &line))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{program, trainer};
    use super::*;

    fn run(program: &Path, ranks: usize) -> RankRun<'_> {
        RankRun { program, ranks, seconds: 1, arguments: vec!["family".into()], sets: vec!["epochs=7".to_owned()] }
    }

    #[test]
    fn the_steps_of_another_program_are_read_and_what_it_was_asked_is_right() {
        let directory = tempfile::tempdir().unwrap();
        let program = trainer(directory.path(), "2");
        let steps = run(&program, 2).steps(&directory.path().join("out")).unwrap();
        let us: Vec<f64> = steps.iter().map(|s| s.us).collect();
        assert_eq!(us, [14e3, 15e3, 16e3, 17e3, 18e3, 19e3], "the first three are cold");
        assert!(steps.iter().all(|s| (s.samples_per_s, s.data, s.communication) == (100.0, 0.1, 0.2)));
        let asked = std::fs::read_to_string(directory.path().join("asked")).unwrap();
        assert!(asked.starts_with("launch --nproc 2 family --device cpu --max-time 1s --out "), "{asked}");
        assert!(asked.trim_end().ends_with("--set trainer.log_every=1 --set epochs=7"), "{asked}");
        let error = run(&program, 4).steps(&directory.path().join("four")).unwrap_err().to_string();
        assert!(error.ends_with("Some(2) ranks in its metrics, expected 4"), "{error}");
    }

    #[test]
    fn a_program_that_fails_is_quoted_and_one_that_is_missing_named() {
        let directory = tempfile::tempdir().unwrap();
        let program = program(directory.path(), "echo error: built without the feature mpi >&2; exit 1");
        let error = run(&program, 2).steps(directory.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: built without the feature mpi", program.display()));
        let nowhere = directory.path().join("nowhere");
        let error = run(&nowhere, 1).steps(directory.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: cannot be started", nowhere.display()));
    }
}

//! What a second rank on a second core brings: `candle-train` on one thread, and as two ranks of one thread each.

use crate::host::Host;
use crate::policy::Network;
use crate::stats;
use crate::table::Pass;
use crate::targets::{Limit, TargetRow};
use anyhow::{Context, Result, bail, ensure};
use std::path::{Path, PathBuf};
use std::process::Command;

/// First steps that do not count.
const COLD_STEPS: usize = 3;

/// The program that trains, built with the feature `mpi`, and what it trains.
#[derive(Debug)]
pub struct RankSuite {
    /// `candle-train`.
    pub program: PathBuf,
    /// Sequences of a step, of all ranks together.
    pub batch: usize,
    /// Frames of a sequence.
    pub frames: usize,
    /// Runs of each kind, in turn.
    pub rounds: usize,
}

/// Medians of a run's steps.
#[derive(Debug, Clone, Copy)]
struct Figures {
    samples_per_s: f64,
    comm_wait: f64,
}

impl RankSuite {
    /// Two ranks over one, with gradients summed after the backward pass and during it.
    pub fn run(&self, network: &Network, host: &Host) -> Result<Vec<TargetRow>> {
        let scratch = tempfile::tempdir().context("no directory for the runs")?;
        let kinds = [(1, false), (2, false), (2, true)];
        let mut found = [const { Vec::new() }; 3];
        for round in 0..self.rounds.max(1) {
            for (found, (ranks, overlap)) in found.iter_mut().zip(kinds) {
                found.push(self.train(scratch.path(), round, ranks, overlap)?);
            }
        }
        let median = |runs: &[Figures], of: fn(&Figures) -> f64| stats::median(&stats::sorted(&runs.iter().map(of).collect::<Vec<_>>()));
        let [one, two, overlapped] = found;
        let row = |what: &str, runs: &[Figures], limit| {
            let [alone, together] = [&one[..], runs].map(|runs| median(runs, |f| f.samples_per_s));
            let wait = 100.0 * median(runs, |f| f.comm_wait);
            TargetRow {
                host: host.clone(),
                case: network.case(Pass::Train, self.batch, self.frames, 2),
                what: what.into(),
                found: together / alone,
                found_ci: None,
                limit,
                unit: "x".into(),
                evidence: format!(
                    "{together:.0} frames/s, one rank on one core {alone:.0}; {wait:.1}% of a step waiting for the other rank; medians of {} runs in turn",
                    runs.len()
                ),
            }
        };
        Ok(vec![
            row("two ranks on two cores over one on one", &two, Limit::AtLeast(1.7)),
            row("the same, gradients summed during the backward pass", &overlapped, Limit::AtLeast(1.7)),
        ])
    }

    fn train(&self, scratch: &Path, round: usize, ranks: usize, overlap: bool) -> Result<Figures> {
        let out = scratch.join(format!("{ranks}-{overlap}-{round}"));
        let mut command = Command::new(&self.program);
        if ranks > 1 {
            command.args(["launch", "--nproc", &ranks.to_string()]);
        }
        command.args(["policy", "--preset", "mamba", "--device", "cpu", "--max-time", "15s", "--cache"]).arg(scratch.join("shards"));
        command.arg("--out").arg(&out).env("CANDLE_THREADS", "1");
        let sets = [
            format!("data.batch={}", self.batch),
            format!("data.unroll={}", self.frames),
            format!("trainer.overlap={overlap}"),
            // Several buckets of this small model, or nothing could overlap.
            "trainer.bucket_mb=1".to_owned(),
            "trainer.log_every=1".to_owned(),
            "data.held_out=0".to_owned(),
            "epochs=1000".to_owned(),
        ];
        sets.iter().for_each(|set| {
            command.args(["--set", set]);
        });
        let output = command.output().with_context(|| self.program.display().to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            bail!("{}: {}", self.program.display(), said.lines().last().unwrap_or("no word"));
        }
        let lines = std::fs::read_to_string(out.join("metrics.jsonl"))?;
        let lines = lines.lines().map(serde_json::from_str::<serde_json::Value>).collect::<Result<Vec<_>, _>>()?;
        let steps = lines.get(COLD_STEPS..).unwrap_or_default();
        ensure!(steps.len() >= 5, "{} steps in the metrics, too few for a figure", lines.len());
        let median = |key: &str| {
            let all: Vec<f64> = steps.iter().filter_map(|line| line[key].as_f64()).collect();
            stats::median(&stats::sorted(&all))
        };
        ensure!(lines[0]["ranks"].as_u64() == Some(ranks as u64), "{} ranks, expected {ranks}", lines[0]["ranks"]);
        Ok(Figures { samples_per_s: median("samples_per_s"), comm_wait: median("comm_wait") })
    }
}

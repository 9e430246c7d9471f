//! What a second rank on a second core brings: `candle-train` on one thread, and as two ranks of one thread each.

use crate::case::Pass;
use crate::host::Host;
use crate::network::Network;
use crate::ranks::{RankRun, RankStep};
use crate::stats;
use crate::target::{Limit, TargetRow};
use anyhow::{Context, Result};
use candle_models::policy::FAMILY;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Seconds that a run trains.
const SECONDS: u32 = 15;

/// The program that trains, built with the feature `mpi`, and what it trains.
#[derive(Debug)]
pub(super) struct RankSuite {
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
        let mut arguments: Vec<OsString> = [FAMILY, "--preset", "mamba", "--cache"].map(OsString::from).into();
        arguments.push(scratch.join("shards").into());
        let sets = vec![
            format!("data.batch={}", self.batch),
            format!("data.unroll={}", self.frames),
            format!("trainer.overlap={overlap}"),
            // Several buckets of this small model, or nothing could overlap.
            "trainer.bucket_mb=1".to_owned(),
            "data.held_out=0".to_owned(),
            "epochs=1000".to_owned(),
        ];
        let run = RankRun { program: &self.program, ranks, seconds: SECONDS, arguments, sets };
        let steps = run.steps(&scratch.join(format!("{ranks}-{overlap}-{round}")))?;
        let median = |of: fn(&RankStep) -> f64| stats::median(&stats::sorted(&steps.iter().map(of).collect::<Vec<_>>()));
        Ok(Figures { samples_per_s: median(|s| s.samples_per_s), comm_wait: median(|s| s.communication) })
    }
}

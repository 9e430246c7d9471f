//! A step as it is written: an object for programs, a line for people. Every key is explained in `METRICS.md`.

use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// The figures of one step.
///
/// ```
/// use candle_train::metrics::{Reporter, StepFigures};
/// use std::time::Duration;
/// # fn main() -> candle_models::Result<()> {
/// let figures = StepFigures { step: 1, loss: 0.5, samples: 32, time: Duration::from_millis(8), ..StepFigures::default() };
/// Reporter::silent()?.step(&figures)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default)]
pub struct StepFigures {
    /// Steps done, this one included.
    pub step: u64,
    /// The loss.
    pub loss: f64,
    /// Gradient norm before clipping.
    pub norm: f64,
    /// The learning rate.
    pub learning_rate: f64,
    /// Wall time.
    pub time: Duration,
    /// Of it, waiting for data.
    pub waited: Duration,
    /// Of it, waiting for other ranks.
    pub communicated: Duration,
    /// Ranks that share the step; 0 counts as 1.
    pub ranks: usize,
    /// Samples in the step, of all ranks.
    pub samples: usize,
    /// Floating-point operations of the step, forward and backward, of all ranks; 0 where nobody counted.
    pub operations: f64,
    /// Factor on the loss, where there is one.
    pub scale: Option<f64>,
    /// Steps skipped so far.
    pub skipped: u64,
    /// The task's metrics by name.
    pub parts: BTreeMap<&'static str, f64>,
}

impl StepFigures {
    /// Of the wall time, the share that `part` of it takes.
    fn share(&self, part: Duration) -> f64 {
        part.as_secs_f64() / self.time.as_secs_f64().max(1e-9)
    }
}

/// What the reporter knows beside the step's own figures.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Surroundings {
    pub loss_z: f64,
    pub norm_z: f64,
    pub peak_mb: Option<f64>,
    pub gpu_mb: Option<f64>,
    pub elapsed_s: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Debug, Serialize)]
pub(super) struct Record<'a> {
    step: u64,
    loss: f64,
    loss_z: f64,
    norm: f64,
    norm_z: f64,
    learning_rate: f64,
    ms: f64,
    samples_per_s: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    gflops: Option<f64>,
    data_wait: f64,
    comm_wait: f64,
    ranks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<f64>,
    skipped: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    peak_mb: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_mb: Option<f64>,
    elapsed_s: f64,
    parts: &'a BTreeMap<&'static str, f64>,
}

impl<'a> Record<'a> {
    pub(super) fn new(figures: &'a StepFigures, around: Surroundings) -> Self {
        let Surroundings { loss_z, norm_z, peak_mb, gpu_mb, elapsed_s } = around;
        let seconds = figures.time.as_secs_f64().max(1e-9);
        let samples_per_s = figures.samples as f64 / seconds;
        Self {
            step: figures.step,
            loss: figures.loss,
            loss_z,
            norm: figures.norm,
            norm_z,
            learning_rate: figures.learning_rate,
            ms: figures.time.as_secs_f64() * 1e3,
            samples_per_s,
            gflops: (figures.operations > 0.0).then(|| figures.operations / seconds / 1e9),
            data_wait: figures.share(figures.waited),
            comm_wait: figures.share(figures.communicated),
            ranks: figures.ranks.max(1),
            scale: figures.scale.filter(|&scale| scale != 1.0),
            skipped: figures.skipped,
            peak_mb,
            gpu_mb,
            elapsed_s,
            parts: &figures.parts,
        }
    }

    /// The figures for people, samples called `unit`, the GPU's memory as `gpu` says it.
    pub(super) fn text(&self, unit: &str, gpu: &str) -> String {
        let Self { loss, loss_z, norm, norm_z, learning_rate, ms, samples_per_s, .. } = self;
        let mut text = format!(
            "loss {loss:.4} ({loss_z:+.1}z) | norm {norm:.3} ({norm_z:+.1}z) | lr {learning_rate:.2e} | {ms:.1} ms | {samples_per_s:.0} {unit}/s"
        );
        // Writing to a string does not fail.
        if let Some(gflops) = self.gflops {
            let _ = write!(text, " | {gflops:.1} GFLOP/s");
        }
        let _ = write!(text, " | data {:.0}%", self.data_wait * 100.0);
        if self.ranks > 1 {
            let _ = write!(text, " | comm {:.0}% of {} ranks", self.comm_wait * 100.0, self.ranks);
        }
        if let Some(mb) = self.peak_mb {
            let _ = write!(text, " | {mb:.0} MB");
        }
        text.push_str(gpu);
        if let Some(scale) = self.scale {
            let _ = write!(text, " | scale {scale}");
        }
        if self.skipped > 0 {
            let _ = write!(text, " | {} skipped", self.skipped);
        }
        text
    }
}

/// A time for people: `42s`, `3m20s`, `2h05m`, `3d04h`.
pub(crate) fn short_time(time: Duration) -> String {
    let s = time.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    fn everything() -> (StepFigures, Surroundings) {
        let figures = StepFigures {
            step: 7,
            loss: 1.5,
            norm: 2.0,
            learning_rate: 1e-3,
            time: Duration::from_millis(250),
            waited: Duration::from_millis(25),
            communicated: Duration::from_millis(50),
            ranks: 4,
            samples: 1000,
            operations: 5e9,
            scale: Some(65536.0),
            skipped: 2,
            parts: [("buttons", 0.5)].into(),
        };
        let around = Surroundings { loss_z: -1.0, norm_z: 2.0, peak_mb: Some(100.0), gpu_mb: Some(9.0), elapsed_s: 60.0 };
        (figures, around)
    }

    #[test]
    fn every_key_is_on_the_page_and_the_page_names_no_other() {
        let (figures, around) = everything();
        let Value::Object(record) = serde_json::to_value(Record::new(&figures, around)).unwrap() else { panic!("not an object") };
        let mut written: BTreeSet<String> =
            record.iter().map(|(key, value)| if value.is_object() { format!("{key}.*") } else { key.clone() }).collect();
        written.extend(["evaluation.*", "direction", "reliability"].map(str::to_owned)); // Reporter::evaluation.
        let page = include_str!("../../METRICS.md");
        let named = |line: &str| Some(line.strip_prefix("| `")?.split_once('`')?.0.to_owned());
        let explained: Vec<String> = page.lines().filter_map(named).collect();
        assert_eq!(explained.iter().cloned().collect::<BTreeSet<_>>(), written);
        assert_eq!(explained.len(), written.len(), "a key is explained twice");
    }

    #[test]
    fn shares_and_rates() {
        let (figures, around) = everything();
        let record = Record::new(&figures, around);
        assert_eq!((record.data_wait, record.comm_wait), (0.1, 0.2));
        assert_eq!((record.samples_per_s, record.gflops), (4000.0, Some(20.0)));
        assert_eq!(
            record.text("frames", " | GPU 9 MB"),
            "loss 1.5000 (-1.0z) | norm 2.000 (+2.0z) | lr 1.00e-3 | 250.0 ms | 4000 frames/s | 20.0 GFLOP/s | data 10% | \
             comm 20% of 4 ranks | 100 MB | GPU 9 MB | scale 65536 | 2 skipped"
        );
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let figures = StepFigures { scale: Some(1.0), ..StepFigures::default() };
        let record = serde_json::to_value(Record::new(&figures, Surroundings::default())).unwrap();
        for key in ["gflops", "scale", "peak_mb", "gpu_mb"] {
            assert!(record.get(key).is_none(), "{key}");
        }
        assert_eq!(record["ranks"], 1);
        let text = Record::new(&figures, Surroundings::default()).text("rows", "");
        assert_eq!(text, "loss 0.0000 (+0.0z) | norm 0.000 (+0.0z) | lr 0.00e0 | 0.0 ms | 0 rows/s | data 0%");
    }

    #[test]
    fn times_are_short() {
        let texts = [0, 59, 200, 7505, 273_600].map(|s| short_time(Duration::from_secs(s)));
        assert_eq!(texts, ["0s", "59s", "3m20s", "2h05m", "3d04h"]);
    }
}

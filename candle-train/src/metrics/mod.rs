//!
//! ```
//! use candle_train::metrics::{Reporter, StepFigures};
//! # fn main() -> candle_models::Result<()> {
//! let mut reporter = Reporter::silent()?; // with a directory it writes `metrics.jsonl` and event files there
//! reporter.step(&StepFigures { step: 1, loss: 0.5, ..StepFigures::default() })?;
//! # Ok(())
//! # }
//! ```
#![doc = include_str!("../../METRICS.md")]

mod events;
mod record;
mod window;

pub use record::StepFigures;

use crate::task::{Direction, Evaluation};
use candle_core::Device;
use candle_models::{Error, Result};
use events::Events;
use indicatif::{ProgressBar, ProgressStyle};
pub(crate) use record::short_time;
use record::{Record, Surroundings};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use window::Window;

/// The file of a run's metrics in its directory.
pub const METRICS: &str = "metrics.jsonl";

/// Writes the figures of a run.
///
/// ```
/// use candle_train::metrics::{METRICS, Reporter, StepFigures};
/// # fn main() -> candle_models::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("candle-train-metrics-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// // From step 0, 10 in all, a line for every fifth.
/// let mut reporter = Reporter::new(Some(&folder), 0, 10, 5, "frames")?;
/// for step in 1..=10 {
///     reporter.step(&StepFigures { step, loss: 1.0 / step as f64, samples: 32, ..StepFigures::default() })?;
/// }
/// drop(reporter);
/// let lines = std::fs::read_to_string(folder.join(METRICS)).unwrap();
/// assert!(lines.lines().next().unwrap().starts_with("{\"step\":1,\"loss\":1.0"), "{lines}");
/// assert_eq!(lines.lines().count(), 3); // the first, the fifth, the last
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reporter {
    files: Option<Files>,
    people: People,
    total: u64,
    every: u64,
    unit: &'static str,
    device: Device,
    loss: Window,
    norm: Window,
    start: Instant,
    /// The step that the reporter started after.
    first: u64,
    /// Seconds that the run took before.
    before_s: f64,
    /// The last step whose evaluation is in the file.
    evaluated: Option<u64>,
}

/// What is written for programs.
#[derive(Debug)]
struct Files {
    path: PathBuf,
    metrics: File,
    events: Events,
}

/// What is shown to people.
#[derive(Debug)]
enum People {
    Bar(ProgressBar),
    Lines,
    Nobody,
}

impl Reporter {
    /// A reporter of a run of `total` steps over samples called `unit` that shows the first step, the last and every
    /// `every`th. With a directory it appends to [`METRICS`] there and starts an event file for TensorBoard, after cutting what was
    /// logged beyond `step` by a run that was then stopped.
    pub fn new(directory: Option<&Path>, step: u64, total: u64, every: u64, unit: &'static str) -> Result<Self> {
        let (mut files, mut kept) = (None, Kept::default());
        if let Some(directory) = directory {
            let path = directory.join(METRICS);
            kept = cut_after(&path, step)?;
            let metrics = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
            files = Some(Files { path, metrics, events: Events::open(directory, step)? });
        }
        let people = if std::io::stderr().is_terminal() { People::Bar(bar(step, total)) } else { People::Lines };
        let (loss, norm, device) = (Window::default(), Window::default(), Device::Cpu);
        let (start, before_s, evaluated) = (Instant::now(), kept.elapsed_s, kept.evaluated);
        Ok(Self { files, people, total, every, unit, device, loss, norm, start, first: step, before_s, evaluated })
    }

    /// A reporter that writes and shows nothing: of the ranks beside the first.
    pub fn silent() -> Result<Self> {
        Ok(Self { people: People::Nobody, ..Self::new(None, 0, 0, 1, "samples")? })
    }

    /// Reports the memory in use on this device too.
    #[must_use]
    pub fn watching(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// Shows the run's configuration, in TOML, in TensorBoard.
    pub fn describing(mut self, configuration: &str) -> Result<Self> {
        if let Some(files) = &mut self.files {
            files.events.text("configuration", &format!("```toml\n{configuration}\n```"))?;
        }
        Ok(self)
    }

    /// Megabytes in use on the GPU, and the same for people: nothing for the CPU.
    fn gpu_memory(&self) -> (Option<f64>, String) {
        #[cfg(feature = "cuda")]
        if self.device.is_cuda() {
            use candle_models::nvml;
            let mb = nvml::device_memory_in_use(&self.device).map(|bytes| bytes as f64 / 1e6);
            return (mb, mb.map_or_else(|| format!(" | GPU {}", nvml::UNKNOWN), |mb| format!(" | GPU {mb:.0} MB")));
        }
        (None, String::new())
    }

    /// Changes the number of steps of the run, which is told from its pace where its budget is not one of steps.
    pub fn expect(&mut self, total: u64) {
        if let People::Bar(bar) = &self.people
            && self.total != total
        {
            bar.set_length(total);
        }
        self.total = total;
    }

    /// Takes in a step, and reports it if it is its turn.
    pub fn step(&mut self, figures: &StepFigures) -> Result<()> {
        let (loss_z, norm_z) = (self.loss.z_score(figures.loss), self.norm.z_score(figures.norm));
        let step = figures.step;
        if let People::Bar(bar) = &self.people {
            bar.set_position(step);
        }
        if matches!((&self.people, &self.files), (People::Nobody, None)) {
            return Ok(());
        }
        if step != 1 && step != self.total && !step.is_multiple_of(self.every.max(1)) {
            return Ok(());
        }
        let (gpu_mb, gpu) = self.gpu_memory();
        let (peak_mb, elapsed_s) = (peak_memory_mb(), self.elapsed_s());
        let record = Record::new(figures, Surroundings { loss_z, norm_z, peak_mb, gpu_mb, elapsed_s });
        self.write(step, &record)?;
        let text = record.text(self.unit, &gpu);
        match &self.people {
            People::Bar(bar) => bar.set_message(text),
            People::Lines => eprintln!("step {step}/{} | {text}{}", self.total, self.left(step, self.start.elapsed())),
            People::Nobody => {}
        }
        Ok(())
    }

    /// The time that the rest will take if it goes on as in the time since the start, for people.
    fn left(&self, step: u64, since_start: Duration) -> String {
        let (done, rest) = (step.saturating_sub(self.first), self.total.saturating_sub(step));
        // The first step is not like the others: it fills caches and compiles kernels.
        if done < 2 || rest == 0 {
            return String::new();
        }
        let left = since_start.as_secs_f64() / done as f64 * rest as f64;
        Duration::try_from_secs_f64(left).map_or(String::new(), |left| format!(" | {} left", short_time(left)))
    }

    fn elapsed_s(&self) -> f64 {
        self.before_s + self.start.elapsed().as_secs_f64()
    }

    /// Reports results on held-out data.
    pub fn evaluation(&mut self, step: u64, evaluation: &Evaluation) -> Result<()> {
        let results = evaluation.results();
        // A run that was killed between an evaluation and the note of its score makes it again, with the same results.
        if self.evaluated != Some(step) {
            let mut line = json!({ "step": step, "evaluation": results });
            if evaluation.score.is_some_and(|score| score.direction == Direction::Maximise) {
                line["direction"] = "maximise".into();
            }
            if !evaluation.reliability.is_empty() {
                line["reliability"] = json!(evaluation.reliability);
            }
            self.write(step, &line)?;
        }
        let shown: Vec<String> = results.iter().map(|(n, x)| format!("{n} {x:.4}")).collect();
        self.say(&format!("step {step}/{} | evaluation | {}", self.total, shown.join(" | ")));
        Ok(())
    }

    /// A line for people, above the progress bar.
    pub fn say(&self, line: &str) {
        match &self.people {
            People::Bar(bar) => bar.suspend(|| eprintln!("{line}")),
            People::Lines => eprintln!("{line}"),
            People::Nobody => {}
        }
    }

    fn write(&mut self, step: u64, object: &impl Serialize) -> Result<()> {
        let Some(files) = &mut self.files else { return Ok(()) };
        let line = serde_json::to_string(object).map_err(|e| Error::file(&files.path, e))?;
        let value: Value = serde_json::from_str(&line).map_err(|e| Error::file(&files.path, e))?;
        // One write per line: a killed run leaves at most one torn line at the end, which a resume cuts.
        files.metrics.write_all((line + "\n").as_bytes()).map_err(Error::io(&files.path))?;
        files.events.scalars(step, &value)
    }
}

impl Drop for People {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.abandon();
        }
    }
}

/// The figures get a line of their own: beside the bar there would be room for one or two of them.
fn bar(step: u64, total: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} [{elapsed} < {eta}, {per_sec}]\n{wide_msg}");
    ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_position(step)
}

/// What the lines that were kept say.
#[derive(Debug, Default)]
struct Kept {
    elapsed_s: f64,
    evaluated: Option<u64>,
}

/// Keeps the lines of steps up to `step`.
fn cut_after(path: &Path, step: u64) -> Result<Kept> {
    let mut kept = Kept::default();
    let Ok(file) = File::open(path) else { return Ok(kept) };
    let draft = path.with_extension("partial");
    let mut whole = BufWriter::new(File::create(&draft).map_err(Error::io(&draft))?);
    for line in BufReader::new(file).split(b'\n') {
        let line = line.map_err(Error::io(path))?;
        let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
        let Some(at) = value["step"].as_u64().filter(|&at| at <= step) else { continue };
        kept.elapsed_s = value["elapsed_s"].as_f64().unwrap_or(kept.elapsed_s);
        kept.evaluated = if value["evaluation"].is_object() { Some(at) } else { kept.evaluated };
        whole.write_all(&line).and_then(|()| whole.write_all(b"\n")).map_err(Error::io(&draft))?;
    }
    whole.flush().map_err(Error::io(&draft))?;
    fs::rename(&draft, path).map_err(Error::io(path))?;
    Ok(kept)
}

/// The highest resident memory of this process so far in MB, where the system tells.
pub fn peak_memory_mb() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kb = status.lines().find_map(|l| l.strip_prefix("VmHWM:"))?.trim().strip_suffix(" kB")?.parse::<f64>().ok()?;
    Some(kb / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(directory: &Path) -> Vec<Value> {
        let text = fs::read_to_string(directory.join(METRICS)).unwrap();
        text.lines().map(|l| serde_json::from_str(l).unwrap()).collect()
    }

    #[test]
    fn a_resumed_run_continues_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let before = "{\"step\":1}\n{\"step\":2,\"elapsed_s\":100}\n\n{\"step\":3,\"elapsed_s\":1e9}\n{\"step\":2,\"eva";
        fs::write(dir.path().join(METRICS), before).unwrap();
        let mut reporter = Reporter::new(Some(dir.path()), 2, 10, 1, "frames").unwrap();
        reporter.step(&StepFigures { step: 3, loss: 1.0, ..StepFigures::default() }).unwrap();
        drop(reporter);
        let lines = lines(dir.path());
        assert_eq!(lines.iter().map(|l| l["step"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3]);
        assert!((100.0..1e9).contains(&lines[2]["elapsed_s"].as_f64().unwrap()), "time goes on from step 2: {}", lines[2]);
    }

    #[test]
    fn an_evaluation_that_is_made_again_is_written_once() {
        let dir = tempfile::tempdir().unwrap();
        let results = Evaluation::new(crate::task::Score::minimise(0.5), []);
        for step in [4, 4, 8] {
            let mut reporter = Reporter::new(Some(dir.path()), step, 10, 1, "frames").unwrap();
            reporter.evaluation(step, &results).unwrap();
        }
        let steps: Vec<_> = lines(dir.path()).iter().map(|l| l["step"].as_u64().unwrap()).collect();
        assert_eq!(steps, [4, 8]);
    }

    #[test]
    fn the_rest_is_told_from_what_was_done() {
        let reporter = Reporter::new(None, 10, 50, 1, "frames").unwrap();
        let left = |step| reporter.left(step, Duration::from_secs(100));
        assert_eq!(left(30), " | 1m40s left");
        assert_eq!((left(11), left(50)), (String::new(), String::new()));
    }
}

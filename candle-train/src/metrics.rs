//! What a run says about itself: one JSON object per logged step in `metrics.jsonl`, a line or a progress bar for people.
//!
//! | key | meaning |
//! |---|---|
//! | `step` | optimiser steps done, skipped ones counted |
//! | `loss` | training loss of this step, in the task's unit (the policy: nats per frame) |
//! | `loss_z`, `norm_z` | distance from the mean of the last 100 steps, in standard deviations |
//! | `norm` | Euclidean norm of all gradients before clipping |
//! | `learning_rate` | of this step |
//! | `ms` | wall time of this step |
//! | `samples_per_s` | samples of this step over its wall time (the policy: frames) |
//! | `data_wait` | share of the wall time spent waiting for data |
//! | `peak_mb` | the process's highest resident memory so far (Linux; absent elsewhere) |
//! | `gpu_mb` | memory in use on the GPU that computes, that of other programs counted in (absent on the CPU and where the driver does not say) |
//! | `skipped` | steps skipped so far because a gradient was not finite |
//! | `parts.*` | the task's own shares of the loss |
//! | `evaluation.*` | results on held-out data, in lines of their own |

use candle_core::Device;
use candle_models::{Error, Result, nvml};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The figures of one step.
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
    /// Samples in the step.
    pub samples: usize,
    /// Of it, in communication with other ranks.
    pub communicating: Duration,
    /// Ranks that share the step.
    pub ranks: usize,
    /// What the loss was multiplied by for the backward pass.
    pub scale: f64,
    /// Steps skipped so far.
    pub skipped: u64,
    /// Shares of the loss by name.
    pub parts: BTreeMap<&'static str, f64>,
}

/// The last values of a figure, to say how unusual the next one is.
#[derive(Debug, Default)]
pub struct Window(VecDeque<f64>);

impl Window {
    const LENGTH: usize = 100;

    /// Distance of `value` from the window's mean in standard deviations, 0 while there are fewer than 8 values; then
    /// takes it in.
    pub fn z_score(&mut self, value: f64) -> f64 {
        let n = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / n.max(1.0);
        let variance = self.0.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let z = if self.0.len() >= 8 && variance > 0.0 { (value - mean) / variance.sqrt() } else { 0.0 };
        if value.is_finite() {
            if self.0.len() == Self::LENGTH {
                self.0.pop_front();
            }
            self.0.push_back(value);
        }
        if z.is_finite() { z } else { 0.0 }
    }
}

/// Writes the figures of a run.
#[derive(Debug)]
pub struct Reporter {
    file: Option<(PathBuf, File)>,
    bar: Option<ProgressBar>,
    total: u64,
    every: u64,
    unit: &'static str,
    device: Device,
    loss: Window,
    norm: Window,
}

impl Reporter {
    /// A reporter of a run of `total` steps over samples called `unit` that shows the first step, the last and every
    /// `every`th. With a directory it appends to `metrics.jsonl` there, after cutting what was logged beyond `step` by a run
    /// that was then stopped.
    pub fn new(directory: Option<&Path>, step: u64, total: u64, every: u64, unit: &'static str) -> Result<Self> {
        let open = |directory: &Path| {
            let path = directory.join("metrics.jsonl");
            cut_after(&path, step)?;
            let file = OpenOptions::new().create(true).append(true).open(&path).map_err(Error::io(&path))?;
            Ok::<_, Error>((path, file))
        };
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} [{elapsed}<{eta}] {wide_msg}");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())).with_position(step)
        });
        let (file, device) = (directory.map(open).transpose()?, Device::Cpu);
        Ok(Self { file, bar, total, every, unit, device, loss: Window::default(), norm: Window::default() })
    }

    /// Reports the memory in use on this device too.
    pub fn watching(mut self, device: &Device) -> Self {
        self.device = device.clone();
        self
    }

    /// Megabytes in use on the GPU, and the same for people: nothing for the CPU.
    fn gpu_memory(&self) -> (Option<f64>, String) {
        let mb = nvml::device_memory_in_use(&self.device).map(|bytes| bytes as f64 / 1e6);
        match (&self.device, mb) {
            (Device::Cuda(_), Some(mb)) => (Some(mb), format!(" | GPU {mb:.0} MB")),
            (Device::Cuda(_), None) => (None, format!(" | GPU {}", nvml::UNKNOWN)),
            _ => (None, String::new()),
        }
    }

    /// Takes in a step, and reports it if it is its turn.
    pub fn step(&mut self, f: &StepFigures) -> Result<()> {
        let (loss_z, norm_z) = (self.loss.z_score(f.loss), self.norm.z_score(f.norm));
        if f.step != 1 && f.step != self.total && !f.step.is_multiple_of(self.every.max(1)) {
            return Ok(());
        }
        let ms = f.time.as_secs_f64() * 1e3;
        let rate = f.samples as f64 / f.time.as_secs_f64().max(1e-9);
        let wait = f.waited.as_secs_f64() / f.time.as_secs_f64().max(1e-9);
        let memory = peak_memory_mb();
        let (gpu, gpu_text) = self.gpu_memory();
        let parts: Map<String, Value> = f.parts.iter().map(|(n, x)| ((*n).to_owned(), json!(x))).collect();
        self.write(&json!({
            "step": f.step, "loss": f.loss, "loss_z": loss_z, "norm": f.norm, "norm_z": norm_z,
            "learning_rate": f.learning_rate, "ms": ms, "samples_per_s": rate, "data_wait": wait, "peak_mb": memory,
            "gpu_mb": gpu, "skipped": f.skipped, "parts": parts,
        }))?;
        let memory = memory.map_or(String::new(), |mb| format!(" | {mb:.0} MB"));
        let skipped = if f.skipped > 0 { format!(" | {} skipped", f.skipped) } else { String::new() };
        let figures = format!(
            "loss {:.4} ({loss_z:+.1}z) | norm {:.3} ({norm_z:+.1}z) | lr {:.2e} | {ms:.1} ms | {rate:.0} {}/s | data {:.0}%{memory}{gpu_text}{skipped}",
            f.loss,
            f.norm,
            f.learning_rate,
            self.unit,
            wait * 100.0,
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(f.step);
                bar.set_message(figures);
            }
            None => eprintln!("step {}/{} | {figures}", f.step, self.total),
        }
        Ok(())
    }

    /// Reports results on held-out data.
    pub fn evaluation(&mut self, step: u64, results: &BTreeMap<String, f64>) -> Result<()> {
        self.write(&json!({ "step": step, "evaluation": results }))?;
        let shown: Vec<String> = results.iter().map(|(n, x)| format!("{n} {x:.4}")).collect();
        self.say(&format!("step {step}/{} | evaluation | {}", self.total, shown.join(" | ")));
        Ok(())
    }

    /// A line for people, above the progress bar.
    pub fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{line}")),
            None => eprintln!("{line}"),
        }
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        let Some((path, file)) = &mut self.file else { return Ok(()) };
        // One write per line: a killed run leaves at most one torn line at the end, which a resume cuts.
        file.write_all(format!("{value}\n").as_bytes()).map_err(Error::io(path))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.abandon();
        }
    }
}

/// Keeps the lines of steps up to `step`.
fn cut_after(path: &Path, step: u64) -> Result<()> {
    let Ok(file) = File::open(path) else { return Ok(()) };
    let keep = |line: &String| serde_json::from_str::<Value>(line).is_ok_and(|v| v["step"].as_u64().is_some_and(|s| s <= step));
    let lines: Vec<String> = BufReader::new(file).lines().map_while(|l| l.ok()).filter(keep).map(|l| l + "\n").collect();
    let draft = path.with_extension("partial");
    fs::write(&draft, lines.concat()).map_err(Error::io(&draft))?;
    fs::rename(&draft, path).map_err(Error::io(path))
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

    #[test]
    fn z_scores_need_a_history() {
        let mut window = Window::default();
        for i in 0..8 {
            assert_eq!(window.z_score(f64::from(i % 2)), 0.0);
        }
        // Mean 0.5, sample deviation sqrt(2 / 7).
        assert!((window.z_score(1.5) - (7f64 / 2.0).sqrt()).abs() < 1e-12);
        assert_eq!(window.z_score(f64::NAN), 0.0);
        assert!(window.z_score(1.0).is_finite(), "a value that is not finite does not enter the window");
    }

    #[test]
    fn a_resumed_run_continues_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("metrics.jsonl");
        fs::write(&path, "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"step\":2,\"eva").unwrap();
        let mut reporter = Reporter::new(Some(dir.path()), 2, 10, 1, "frames").unwrap();
        reporter.step(&StepFigures { step: 3, loss: 1.0, ..StepFigures::default() }).unwrap();
        drop(reporter);
        let steps: Vec<u64> = fs::read_to_string(&path)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str::<Value>(l).unwrap()["step"].as_u64().unwrap())
            .collect();
        assert_eq!(steps, [1, 2, 3]);
    }
}

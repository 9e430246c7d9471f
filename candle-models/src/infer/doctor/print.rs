//! The report as text and as JSON.

use super::driver::Gpu;
use super::gpus::Recommendation;
use super::speed::Speed;
use super::{BundleReport, FEATURES, Finding, Report};
use crate::infer::output::line;
use crate::{cli, nvml};
use anyhow::Result;
use serde_json::{Value, json};

/// What the table of recommendations is worth.
const ARITHMETIC: &str = "by arithmetic from datasheets, not measured";

/// `13.0` of 13000.
pub fn cuda(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

fn known(value: Option<String>) -> String {
    value.unwrap_or_else(|| nvml::UNKNOWN.to_owned())
}

impl Report {
    pub fn print_text(&self) -> Result<()> {
        let features: Vec<&str> = FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
        let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
        line(format_args!("candle-infer {}, optional features: {features}", env!("CARGO_PKG_VERSION")))?;
        let cpu = &self.cpu;
        line(format_args!("CPU: {} (of {}), {} threads", cpu.simd, cpu.available.join(", "), cpu.threads))?;
        let cuda_version = self.driver.as_ref().and_then(|d| d.cuda).map(cuda);
        line(format_args!("NVIDIA driver: {}, CUDA {}", known(self.driver_version.clone()), known(cuda_version)))?;
        line("CUDA libraries:")?;
        for library in &self.libraries {
            let version = if library.found { library.version.as_deref().unwrap_or("of unknown version") } else { "not found" };
            line(format_args!("  {:<13} {:<18} {version}", library.name, library.file))?;
        }
        line(if self.gpus().is_empty() { "devices: cpu" } else { "devices: cpu and" })?;
        for gpu in self.gpus() {
            let (major, minor) = gpu.capability;
            let free = known(gpu.free.ok().map(cli::bytes));
            line(format_args!(
                "  cuda:{}: {}, compute capability {major}.{minor}, {} multiprocessors, {} of memory, {free} free",
                gpu.ordinal,
                gpu.name,
                gpu.multiprocessors,
                cli::bytes(gpu.memory)
            ))?;
        }
        self.bundle.as_ref().map_or(Ok(()), print_bundle)?;
        line(if self.findings.is_empty() { "findings: none" } else { "findings:" })?;
        for Finding { severity, what, remedy } in &self.findings {
            line(format_args!("  {}: {what}\n    remedy: {remedy}", format!("{severity:?}").to_lowercase()))?;
        }
        Ok(())
    }

    fn gpus(&self) -> &[Gpu] {
        self.driver.as_ref().and_then(|d| d.devices.as_deref().ok()).unwrap_or_default()
    }

    pub fn print_json(&self) -> Result<()> {
        let gpu = |gpu: &Gpu| {
            json!({
                "device": format!("cuda:{}", gpu.ordinal),
                "name": gpu.name,
                "compute_capability": format!("{}.{}", gpu.capability.0, gpu.capability.1),
                "multiprocessors": gpu.multiprocessors,
                "memory_bytes": gpu.memory,
                "free_bytes": gpu.free.ok(),
            })
        };
        let bundle = self.bundle.as_ref().map(|bundle| {
            let layer = |(name, sides): &(String, [usize; 2])| json!({ "name": name, "shape": sides });
            json!({
                "path": bundle.path.display().to_string(),
                "footprint": bundle.footprint,
                "misaligned": bundle.misaligned.iter().map(layer).collect::<Vec<_>>(),
                "recommended": bundle.recommended,
                "recommended_from": ARITHMETIC,
                "steps": bundle.speeds,
            })
        });
        let features: serde_json::Map<String, Value> = FEATURES.iter().map(|(name, has)| ((*name).to_owned(), json!(has))).collect();
        Ok(line(json!({
            "version": env!("CARGO_PKG_VERSION"),
            "features": features,
            "cpu": self.cpu,
            "driver": self.driver.as_ref().map(|d| json!({ "version": self.driver_version, "cuda": d.cuda.map(cuda) })),
            "libraries": self.libraries,
            "devices": self.gpus().iter().map(gpu).collect::<Vec<_>>(),
            "bundle": bundle,
            "findings": self.findings,
        }))?)
    }
}

fn print_bundle(bundle: &BundleReport) -> Result<()> {
    let f = &bundle.footprint;
    line(format_args!(
        "bundle {}: {} of weights with matrices in bf16, {} of state per session, {} multiply-adds per row and frame",
        bundle.path.display(),
        cli::bytes(f.weight_bytes),
        cli::bytes(f.state_bytes),
        cli::count(f.products)
    ))?;
    line("a step on this CPU, measured for 20 ms each (candle-bench measures longer):")?;
    for Speed { dtype, threads, rows, us } in &bundle.speeds {
        line(format_args!("  {rows:>2} rows, {dtype:<4} on {threads} threads: {us:.1} us"))?;
    }
    line(format_args!("recommended load on GPUs, {ARITHMETIC} (method: --help):"))?;
    line(format_args!("  {:<12} {:>17} {:>26} {:>16}", "GPU", "step, sessions", "window, sequences x frames", "sessions that fit"))?;
    for Recommendation { gpu, step_batch, sequences, window, sessions } in &bundle.recommended {
        let shape = format!("{sequences} x {window}");
        line(format_args!("  {gpu:<12} {step_batch:>17} {shape:>26} {:>17}", cli::count(*sessions)))?;
    }
    Ok(())
}

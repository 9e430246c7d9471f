//! `candle-infer doctor`: what this machine and this program can compute on, what a bundle asks of them, and what to do about
//! what is off.

mod bundle;
mod driver;
mod gpus;
mod libraries;
mod print;
mod speed;

use super::family::InferFamily;
use crate::registry::Registry;
use crate::{device, nvml};
use anyhow::Result;
use bundle::BundleReport;
use driver::Driver;
use libraries::Library;
use serde::Serialize;
use std::path::PathBuf;

/// The optional parts of this program, and whether it has them.
const FEATURES: [(&str, bool); 2] = [("cuda", cfg!(feature = "cuda")), ("flash-attn", cfg!(feature = "flash-attn"))];
/// The CUDA that a driver must run: 13.0. Its first driver is 580.
const CUDA: u32 = 13_000;
/// The oldest compute capability that our kernels are compiled for: Ampere, the first with bf16 in its tensor cores.
const CAPABILITY: (u32, u32) = (8, 0);

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory to look at too.
    bundle: Option<PathBuf>,
    /// Print one JSON object instead of text.
    #[arg(long)]
    json: bool,
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: &Arguments) -> Result<()> {
    let report = Report::new(registry, arguments)?;
    if arguments.json { report.print_json() } else { report.print_text() }
}

/// What was found on this machine.
struct Report {
    cpu: Cpu,
    driver_version: Option<String>,
    driver: Option<Driver>,
    libraries: Vec<Library>,
    bundle: Option<BundleReport>,
    findings: Vec<Finding>,
}

/// How the CPU computes.
#[derive(Serialize)]
struct Cpu {
    /// The instruction set of the kernels.
    simd: &'static str,
    /// Those that the machine has, best first.
    available: Vec<&'static str>,
    /// Threads of a program that is not told otherwise.
    threads: usize,
}

/// How bad something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Severity {
    /// Worth knowing.
    Note,
    /// Slower than it could be.
    Warning,
    /// Does not work.
    Error,
}

/// Something that is off, and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Finding {
    severity: Severity,
    what: String,
    remedy: String,
}

impl Finding {
    fn new(severity: Severity, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { severity, what: what.into(), remedy: remedy.into() }
    }
}

impl Report {
    fn new(registry: &Registry<dyn InferFamily>, arguments: &Arguments) -> Result<Self> {
        let cpu = Cpu { simd: device::simd(), available: device::simd_available(), threads: device::threads(None)? };
        let (driver, libraries) = (driver::detect(), libraries::detect());
        let bundle = arguments.bundle.as_deref().map(|path| BundleReport::new(registry, path, cpu.threads)).transpose()?;
        let mut findings = of_driver(driver.as_ref(), cfg!(feature = "cuda"));
        let computes = driver.as_ref().is_some_and(|d| matches!(&d.devices, Ok(devices) if !devices.is_empty()));
        if computes || cfg!(feature = "cuda") {
            findings.extend(of_libraries(&libraries));
        }
        findings.extend(bundle.as_ref().and_then(|bundle| of_bundle(&bundle.misaligned)));
        findings.extend(bundle.as_ref().and_then(|bundle| of_operations(&bundle.on_tensors)));
        findings.extend(bundle.iter().flat_map(|bundle| speed::findings(&bundle.speeds)));
        Ok(Self { cpu, driver_version: nvml::driver_version(), driver, libraries, bundle, findings })
    }
}

/// What is off with driver and devices, for a program with or without CUDA.
fn of_driver(driver: Option<&Driver>, built: bool) -> Vec<Finding> {
    let severity = if built { Severity::Warning } else { Severity::Note };
    let Some(driver) = driver else {
        return vec![Finding::new(severity, "no NVIDIA driver: computing on the CPU", "for a GPU, install NVIDIA's driver 580 or newer")];
    };
    let devices = match &driver.devices {
        Ok(devices) if !devices.is_empty() => devices,
        found => {
            let status = found.as_ref().err().copied().unwrap_or(driver::Status(100));
            return vec![Finding::new(severity, format!("the NVIDIA driver offers no device: {status}"), status.remedy())];
        }
    };
    let mut findings = Vec::new();
    if !built {
        findings.push(Finding::new(
            Severity::Warning,
            "this program was built without CUDA and computes on the CPU",
            "build it with `--features cuda` (scripts/cuda-toolkit.sh makes a toolkit without root)",
        ));
    }
    if let Some(cuda) = driver.cuda.filter(|cuda| *cuda < CUDA) {
        let what = format!("the driver runs CUDA {} at most, this program wants {}", print::cuda(cuda), print::cuda(CUDA));
        findings.push(Finding::new(Severity::Error, what, "install NVIDIA's driver 580 or newer"));
    }
    for gpu in devices {
        let (major, minor) = gpu.capability;
        if gpu.capability < CAPABILITY {
            let what = format!("cuda:{} ({}) has compute capability {major}.{minor}, 8.0 is the least", gpu.ordinal, gpu.name);
            findings.push(Finding::new(Severity::Error, what, "use a GPU of the Ampere generation (2020) or newer, or `--device cpu`"));
        }
        if let Err(status) = gpu.free {
            let what = format!("cuda:{} ({}) cannot be opened: {status}", gpu.ordinal, gpu.name);
            findings.push(Finding::new(Severity::Error, what, status.remedy()));
        }
    }
    findings
}

/// What a CUDA build would not start without.
fn of_libraries(libraries: &[Library]) -> Option<Finding> {
    let missing: Vec<&str> = libraries.iter().filter(|l| l.needed && !l.found).map(|l| l.file).collect();
    let remedy = "install the CUDA 13 runtime libraries, or name their folder in LD_LIBRARY_PATH (PyTorch for CUDA 13 has them in \
                  site-packages/nvidia/cu13/lib, scripts/cuda-toolkit.sh fetches them without root)";
    (!missing.is_empty())
        .then(|| Finding::new(Severity::Error, format!("a CUDA build does not start here without {}", missing.join(", ")), remedy))
}

fn of_bundle(misaligned: &[(String, [usize; 2])]) -> Option<Finding> {
    let layers: Vec<String> = misaligned.iter().map(|(name, [inputs, outputs])| format!("{name} ({inputs} x {outputs})")).collect();
    let what =
        format!("products with sides that are no multiple of 8 miss the tensor cores in 16 bits, or are padded: {}", layers.join(", "));
    let remedy = "choose widths that are multiples of 8 where the configuration sets them; numbers of classes are the game's";
    (!layers.is_empty()).then(|| Finding::new(Severity::Note, what, remedy))
}

/// What runs on tensors, and so allocates memory in every step.
fn of_operations(on_tensors: &[&str]) -> Option<Finding> {
    let what = format!("operations without a kernel on the CPU run on tensors and allocate memory: {}", on_tensors.join(", "));
    let remedy = "give them a kernel: `Operation::compile`";
    (!on_tensors.is_empty()).then(|| Finding::new(Severity::Warning, what, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use driver::{Gpu, Status};

    fn gpu(capability: (u32, u32)) -> Gpu {
        Gpu { ordinal: 1, name: "NVIDIA Test".to_owned(), capability, multiprocessors: 100, memory: 8 << 30, free: Ok(7 << 30) }
    }

    fn found(driver: Option<&Driver>, built: bool) -> Vec<(Severity, String)> {
        let findings = of_driver(driver, built);
        assert!(findings.iter().all(|f| !f.remedy.is_empty()));
        findings.into_iter().map(|f| (f.severity, f.what)).collect()
    }

    #[test]
    fn a_machine_without_a_gpu_is_no_trouble_for_a_cpu_build() {
        assert_eq!(found(None, false), [(Severity::Note, "no NVIDIA driver: computing on the CPU".to_owned())]);
        assert_eq!(found(None, true)[0].0, Severity::Warning);
        let hidden = Driver { cuda: Some(13_000), devices: Err(Status(100)) };
        assert!(found(Some(&hidden), true)[0].1.ends_with("no CUDA device (status 100)"));
    }

    #[test]
    fn what_is_off_with_a_gpu_is_found() {
        let good = Driver { cuda: Some(13_000), devices: Ok(vec![gpu((9, 0))]) };
        assert!(found(Some(&good), true).is_empty());
        assert!(found(Some(&good), false)[0].1.contains("built without CUDA"));
        let old = Driver { cuda: Some(12_080), devices: Ok(vec![Gpu { free: Err(Status(999)), ..gpu((7, 5)) }]) };
        let whats: Vec<String> = found(Some(&old), true).into_iter().map(|(_, what)| what).collect();
        assert_eq!(whats.len(), 3, "{whats:?}");
        assert_eq!(whats[0], "the driver runs CUDA 12.8 at most, this program wants 13.0");
        assert!(whats[1].contains("cuda:1 (NVIDIA Test) has compute capability 7.5"));
        assert!(whats[2].contains("unknown error of the driver"));
    }

    #[test]
    fn a_missing_library_is_named_and_one_that_is_not_needed_is_not() {
        let library = |file, found, needed| Library { name: "x", file, found, version: None, needed };
        assert_eq!(of_libraries(&[library("a.so", true, true), library("b.so", false, false)]), None);
        let finding = of_libraries(&[library("a.so", false, true), library("b.so", false, true)]).unwrap();
        assert!(finding.what.ends_with("without a.so, b.so"), "{}", finding.what);
    }

    #[test]
    fn a_bundle_that_fits_says_nothing() {
        assert_eq!(of_bundle(&[]), None);
        assert!(of_bundle(&[("head".to_owned(), [64, 17])]).unwrap().what.ends_with("head (64 x 17)"));
    }
}

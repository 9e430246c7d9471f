//! Every suite in one run, on the shipped bundles: their reports in one directory, their tables on one page.

use anyhow::{Context, Result};
use candle_bench::host::Host;
use candle_bench::interrupt::EXIT_CODE;
use candle_bench::recommend::{self, Recommendation};
use candle_bench::run::{Run, SUITES};
use candle_bench::suite::{self, DeviceArgument, Python};
use candle_bench::{report, text};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

#[derive(clap::Args)]
pub struct All {
    /// A few cases of every suite, minutes in all, in place of whole tables.
    #[arg(long)]
    pub quick: bool,
    #[command(flatten)]
    pub device: DeviceArgument,
    /// Directory for the results [default: candle-bench/runs/DATE-HOST].
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Name of this machine in the results [default: its host name].
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    #[command(flatten)]
    pub python: Python,
}

/// The shipped bundles: two policies and a beam controller.
const POLICIES: &str = "weights/policy-mlp,weights/policy-mamba";
const BUNDLES: &str = "weights/policy-mlp,weights/policy-mamba,weights/beam-c3";

/// Most threads of a call in any of the suites.
pub const THREADS: usize = 2;

/// Short measurements: some tenths of a second a row.
const QUICK: &str = "--warm-up 0.02 --window-length 0.04 --max-windows 6 --rounds 4 --limit 1 --window 30";

/// A suite with its arguments, in full and for a quick look.
struct Part {
    suite: &'static str,
    full: String,
    quick: String,
}

fn parts(on_gpu: bool) -> Vec<Part> {
    let of = |bundles: &str, rest: &str| bundles.split(',').map(|b| format!("--bundles {b}")).collect::<Vec<_>>().join(" ") + " " + rest;
    let part = |suite, full: &str, quick: &str| Part { suite, full: full.to_owned(), quick: format!("{quick} {QUICK}") };
    // A GPU computes in its weights' dtype and has no use for threads.
    let (narrow, every, libraries) = match on_gpu {
        true => ("bf16", "f32,bf16,f16", "pytorch,pytorch-graphs"),
        false => ("q8", "f32,bf16,q8", "onnxruntime,pytorch,jax"),
    };
    let (threads, one) = (if on_gpu { "--threads 1" } else { "--threads 1,2" }, "--threads 1");
    let both = format!("--dtypes f32,{narrow}");
    // Products of the whole range, or of one size that is not over in an instant there.
    let (sizes, size) = ("512,1024,2048,4096,8192", if on_gpu { "512,2048,8192" } else { "512" });
    let trained = if on_gpu { "--dtypes f32,bf16" } else { "" };
    vec![
        part(
            "latency",
            &of(BUNDLES, &format!("--dtypes {every} --executions captured,eager {threads}")),
            &of(BUNDLES, &format!("{both} --batches 1,32,256 --window-batches 1 {one}")),
        ),
        part("batch-size", &of(BUNDLES, &format!("{both} {threads}")), &of(POLICIES, &format!("--dtypes {narrow} --most 256 {one}"))),
        part("graph", &of(BUNDLES, threads), &of(BUNDLES, &format!("--batches 1 {one}"))),
        part(
            "precision",
            &of(BUNDLES, &format!("--products {sizes} {threads}")),
            &of(POLICIES, &format!("--products {size} --rows 32 {one}")),
        ),
        part("startup", &of(BUNDLES, &both), &of(BUNDLES, "--starts 5")),
        part(
            "roofline",
            &of(BUNDLES, &format!("{both} {threads}")),
            &of(BUNDLES, &format!("--batches 1,32 --sequences 8 --rows 1 --only gelu,scan,gru,adamw {trained} {one}")),
        ),
        part(
            "load",
            &of(POLICIES, &format!("{both} {one}")),
            &of(POLICIES, &format!("--sessions 1,16,64 --arrivals ticks --duration 1 {one}")),
        ),
        part("train", &format!("{trained} {threads}"), &of(POLICIES, &format!("{trained} --batches 4 {one}"))),
        part("overlap", &of(POLICIES, threads), &of(POLICIES, &format!("--batches 4 {one}"))),
        part("memory", &of(POLICIES, ""), &of("weights/policy-mlp", "--rows 1 --batch 2 --episodes 8 --beam-hidden 64")),
        part("scaling", one, &format!("--backbones mamba --frames 15,30,60 --batches 1,8,64 --sessions 1,16 --load-seconds 0.3 {one}")),
        part(
            PEERS,
            &of(POLICIES, &format!("{both} --libraries {libraries} {threads}")),
            &of(POLICIES, &format!("--libraries {libraries} --batches 1 --passes step {one}")),
        ),
    ]
}

/// The suite that needs Python.
const PEERS: &str = "peers";

impl Part {
    /// The command line of the suite.
    fn line(&self, all: &All, out: &Path, host: &Host) -> Vec<String> {
        let mut line = vec!["candle-bench".to_owned(), self.suite.to_owned()];
        line.extend(if all.quick { &self.quick } else { &self.full }.split_whitespace().map(str::to_owned));
        line.extend(["--out".to_owned(), out.display().to_string(), "--host".to_owned(), host.host.clone()]);
        if self.on_cpu().is_none() {
            line.extend(["--device".to_owned(), all.device.device.to_string()]);
        }
        if self.suite == PEERS {
            let Python { python, script } = &all.python;
            line.extend(["--python".to_owned(), python.display().to_string(), "--script".to_owned(), script.display().to_string()]);
        }
        line
    }

    /// Why it measures the CPU alone, if it does.
    fn on_cpu(&self) -> Option<&'static str> {
        (self.suite == "memory").then_some("it sets allocators of the CPU beside each other")
    }

    /// Why it cannot run, where that is known before.
    fn not_available(&self, all: &All, on_gpu: bool) -> Option<String> {
        let python = &all.python.python;
        // A name alone is looked for where programs lie.
        if self.suite == PEERS && python.components().count() > 1 && !python.exists() {
            return Some(format!("{} is not there; candle-bench/peers/setup.sh makes it.", python.display()));
        }
        self.on_cpu().filter(|_| on_gpu).map(|why| format!("{why}; without --device it runs here too."))
    }
}

/// Runs every suite. One that cannot run is named with its reason, and the others go on; after an interrupt there is a page of what there is.
pub fn all(arguments: &All) -> Result<ExitCode> {
    let (start, host) = (Instant::now(), Host::detect(arguments.host.clone()));
    let out = suite::directory(arguments.out.as_deref(), &host);
    println!("{host}.\nLatencies in microseconds. Methods, every column and charts: {}", out.join(report::REPORT).display());
    let on_gpu = arguments.device.open()?.device.is_cuda();
    let (mut failed, mut interrupted) = (Vec::new(), false);
    for part in parts(on_gpu) {
        println!("\n## {}\n", part.suite);
        if let Some(why) = part.not_available(arguments, on_gpu) {
            println!("Not available: {why}");
            continue;
        }
        let line = part.line(arguments, &out, &host);
        let matches = crate::command().try_get_matches_from(&line).with_context(|| format!("the arguments of {}", part.suite))?;
        let (name, chosen) = matches.subcommand().context("a command line without a suite")?;
        let entry = SUITES.iter().find(|entry| entry.name == name).with_context(|| format!("no suite {name}"))?;
        eprintln!("{}: {:.0} s so far", part.suite, start.elapsed().as_secs_f64());
        match crate::code((entry.run)(chosen, Some(line.join(" ")))) {
            code if code == ExitCode::SUCCESS => {}
            code if code == ExitCode::from(EXIT_CODE) => {
                interrupted = true;
                break;
            }
            _ => failed.push(part.suite),
        }
    }
    let run = match Run::open(&out) {
        // Before the first row.
        Err(_) if interrupted => return Ok(ExitCode::from(EXIT_CODE)),
        run => run?,
    };
    let found = recommend::of_run(&out)?;
    recommendations(&found);
    report::write(&run, &found, &out.join(report::REPORT))?;
    eprintln!("{:.0} s; reports and {} in {}", start.elapsed().as_secs_f64(), report::REPORT, out.display());
    if interrupted {
        return Ok(ExitCode::from(EXIT_CODE));
    }
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("error: not all was measured in: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

fn recommendations(found: &[Recommendation]) {
    println!("\n## recommendations\n");
    if found.is_empty() {
        println!("None: no change that was measured gains {:.0}% or more for sure.", 100.0 * (recommend::LEAST_GAIN - 1.0));
    }
    let width = text::terminal_width();
    for Recommendation { kind, what, gain, evidence } in found {
        println!("{}", text::indented(&format!("- {kind}: {what}: {gain} ({evidence})"), width));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_models::device::DeviceChoice;

    #[test]
    fn every_part_is_a_suite_with_arguments_that_it_takes() {
        let host = Host::detect(Some("bench-1".to_owned()));
        for (quick, on_gpu) in [(true, false), (false, false), (true, true), (false, true)] {
            let python = Python { python: "python3".into(), script: "peer.py".into() };
            let device = DeviceArgument { device: if on_gpu { DeviceChoice::Cuda(0) } else { DeviceChoice::Cpu } };
            let all = All { quick, device, out: None, host: None, python };
            for part in parts(on_gpu) {
                let parsed = crate::command().try_get_matches_from(part.line(&all, Path::new("out"), &host)).unwrap();
                let name = parsed.subcommand_name().unwrap();
                assert!(name == part.suite && SUITES.iter().any(|entry| entry.name == name), "{}", part.suite);
                assert_eq!(part.not_available(&all, on_gpu).is_some(), on_gpu && part.suite == "memory");
            }
        }
    }
}

//! Every suite in one run, on the shipped bundles (beside other libraries on networks of usual sizes): their reports in one directory, their tables on one page.

use crate::family::Families;
use crate::host::Host;
use crate::interrupt::EXIT_CODE;
use crate::recommend::{self, Recommendation};
use crate::run::{Run, suites};
use crate::suite::{self, DeviceArgument, Programs, Python};
use crate::{report, text};
use anyhow::{Context, Result};
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
    pub programs: Programs,
}

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

/// Suites that take long, and those that train ahead, measure the bundles of the first family that ships some; the one with peers measures the
/// networks that every peer has, of usual sizes. Peers in Rust are compared with where they have been built.
fn parts(families: &Families, programs: &Programs, on_gpu: bool) -> Vec<Part> {
    let of = |bundles: &[&str], rest: &str| bundles.iter().map(|b| format!("--bundles {b}")).collect::<Vec<_>>().join(" ") + " " + rest;
    let every: Vec<&str> = families.iter().flat_map(|family| family.shipped()).copied().collect();
    let first = families.iter().map(|family| family.shipped()).find(|bundles| !bundles.is_empty()).unwrap_or_default();
    let one_bundle = &first[..first.len().min(1)];
    let part = |suite, full: &str, quick: &str| {
        let own = families.iter().map(|family| family.quick(suite)).collect::<Vec<_>>().join(" ");
        Part { suite, full: full.to_owned(), quick: format!("{quick} {own} {QUICK}") }
    };
    // A GPU computes in its weights' dtype and has no use for threads.
    let (narrow, dtypes, libraries) = match on_gpu {
        true => ("bf16", "f32,bf16,f16", "pytorch,pytorch-graphs"),
        false if programs.rust_peer.exists() => ("q8", "f32,bf16,q8", "onnxruntime,openvino,tract,candle,burn,pytorch,jax"),
        false => ("q8", "f32,bf16,q8", "onnxruntime,openvino,pytorch,jax"),
    };
    let (threads, one) = (if on_gpu { "--threads 1" } else { "--threads 1,2" }, "--threads 1");
    let both = format!("--dtypes f32,{narrow}");
    // Products of the whole range, or of one size that is not over in an instant there.
    let (sizes, size) = ("512,1024,2048,4096,8192", if on_gpu { "512,2048,8192" } else { "512" });
    let trained = if on_gpu { "--dtypes f32,bf16" } else { "" };
    vec![
        part(
            "latency",
            &of(&every, &format!("--dtypes {dtypes} --executions captured,eager {threads}")),
            &of(&every, &format!("{both} --batches 1,32,256 --window-batches 1 {one}")),
        ),
        part("batch-size", &of(&every, &format!("{both} {threads}")), &of(first, &format!("--dtypes {narrow} --most 256 {one}"))),
        part("graph", &of(&every, threads), &of(&every, &format!("--batches 1 {one}"))),
        part("precision", &of(&every, &format!("--products {sizes} {threads}")), &of(first, &format!("--products {size} --rows 32 {one}"))),
        part("startup", &of(&every, &both), &of(&every, "--starts 5")),
        part(
            "roofline",
            &of(&every, &format!("{both} {threads}")),
            &of(&every, &format!("--batches 1,32 --sequences 8 --rows 1 --only gelu,scan,gru,adamw {trained} {one}")),
        ),
        part("load", &of(first, &format!("{both} {one}")), &of(first, &format!("--sessions 1,16,64 --arrivals ticks --duration 1 {one}"))),
        part("train", &format!("{trained} {threads}"), &of(first, &format!("{trained} --batches 4 {one}"))),
        part("overlap", &of(first, threads), &of(first, &format!("--batches 4 {one}"))),
        part("memory", &of(first, ""), &of(one_bundle, "--rows 1 --batch 2")),
        part("scaling", one, &format!("--backbones mamba --frames 15,30,60 --batches 1,8,64 --sessions 1,16 --load-seconds 0.3 {one}")),
        part(
            PEERS,
            &format!("--backbones mlp,mamba {both} --libraries {libraries} {threads}"),
            &format!("--backbones mlp,mamba --libraries {libraries} --batches 1 --passes step {one}"),
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
            let Programs { python: Python { python, script }, rust_peer } = &all.programs;
            let files = [("--python", python), ("--script", script), ("--rust-peer", rust_peer)];
            line.extend(files.into_iter().flat_map(|(option, file)| [option.to_owned(), file.display().to_string()]));
        }
        line
    }

    /// Why it measures the CPU alone, if it does.
    fn on_cpu(&self) -> Option<&'static str> {
        (self.suite == "memory").then_some("it sets allocators of the CPU beside each other")
    }

    /// Why it cannot run, where that is known before.
    fn not_available(&self, all: &All, on_gpu: bool) -> Option<String> {
        let python = &all.programs.python.python;
        // A name alone is looked for where programs lie.
        if self.suite == PEERS && python.components().count() > 1 && !python.exists() {
            return Some(format!("{} is not there; candle-bench/peers/setup.sh makes it.", python.display()));
        }
        self.on_cpu().filter(|_| on_gpu).map(|why| format!("{why}; without --device it runs here too."))
    }
}

/// Runs every suite. One that cannot run is named with its reason, and the others go on; after an interrupt there is a page of what there is.
pub fn all(families: &Families, arguments: &All) -> Result<ExitCode> {
    let (start, host) = (Instant::now(), Host::detect(arguments.host.clone()));
    let out = suite::directory(arguments.out.as_deref(), &host);
    println!("{host}.\nLatencies in microseconds. Methods, every column and charts: {}", out.join(report::REPORT).display());
    let on_gpu = arguments.device.open()?.device.is_cuda();
    let (mut failed, mut interrupted) = (Vec::new(), false);
    for part in parts(families, &arguments.programs, on_gpu) {
        println!("\n## {}\n", part.suite);
        if let Some(why) = part.not_available(arguments, on_gpu) {
            println!("Not available: {why}");
            continue;
        }
        let line = part.line(arguments, &out, &host);
        let matches = super::command(families).try_get_matches_from(&line).with_context(|| format!("the arguments of {}", part.suite))?;
        let (name, chosen) = matches.subcommand().context("a command line without a suite")?;
        let entry = suites(families).into_iter().find(|entry| entry.name == name).with_context(|| format!("no suite {name}"))?;
        eprintln!("{}: {:.0} s so far", part.suite, start.elapsed().as_secs_f64());
        match super::code((entry.run)(families, chosen, Some(line.join(" ")))) {
            code if code == ExitCode::SUCCESS => {}
            code if code == ExitCode::from(EXIT_CODE) => {
                interrupted = true;
                break;
            }
            _ => failed.push(part.suite),
        }
    }
    let run = match Run::open(families, &out) {
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
    use crate::families;
    use candle_models::device::DeviceChoice;

    #[test]
    fn every_part_is_a_suite_with_arguments_that_it_takes() {
        let (host, families) = (Host::detect(Some("bench-1".to_owned())), &families::shipped());
        for (quick, on_gpu) in [(true, false), (false, false), (true, true), (false, true)] {
            let python = Python { python: "python3".into(), script: "peer.py".into() };
            let programs = Programs { python, rust_peer: "candle-bench-peer".into() };
            let device = DeviceArgument { device: if on_gpu { DeviceChoice::Cuda(0) } else { DeviceChoice::Cpu } };
            let all = All { quick, device, out: None, host: None, programs };
            for part in parts(families, &all.programs, on_gpu) {
                let parsed = crate::command::command(families).try_get_matches_from(part.line(&all, Path::new("out"), &host)).unwrap();
                let name = parsed.subcommand_name().unwrap();
                assert!(name == part.suite && suites(families).iter().any(|entry| entry.name == name), "{}", part.suite);
                assert_eq!(part.not_available(&all, on_gpu).is_some(), on_gpu && part.suite == "memory");
            }
        }
    }
}

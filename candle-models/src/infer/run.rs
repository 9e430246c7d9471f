//! `candle-infer run`: plan first, then frame by frame through every input.

use super::family::{Call, InferFamily, Opened, Reader, Source};
use super::options::{self, Options};
use super::output::{self, Output, line};
use super::{demo, tensors};
use crate::bundle::Bundle;
use crate::cli::{self, Usage};
use crate::device::{self, DeviceChoice};
use crate::engine::{Histogram, Placement};
use crate::registry::Registry;
use crate::tensors::NamedTensors;
use anyhow::{Context, Result, anyhow, bail};
use clap::{ArgMatches, Command};
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Frames between two printed ones.
const EVERY: usize = 60;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory.
    bundle: Option<PathBuf>,
    /// Named tensors (.safetensors, `[frames, ...]` or `[sequences, frames, ...]` of the model's inputs; where `reset` `[frames]` is 1, an
    /// episode begins).
    inputs: Vec<PathBuf>,
    /// Run part I of N, 0/8 to 7/8 say, for jobs of an array: of several inputs so many files, of one file of tensors so many blocks of
    /// 64 sequences. The outputs of all parts, one behind the other, are those of one run, byte for byte.
    #[arg(long, value_name = "I/N", default_value = "0/1", hide_default_value = true)]
    shard: Shard,
    #[command(flatten)]
    options: Options,
}

/// A part of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    number: usize,
    of: usize,
}

impl Shard {
    /// Everything.
    pub const WHOLE: Self = Self { number: 0, of: 1 };

    /// Its part of so many, in order and without gap.
    pub fn part(self, count: usize) -> Range<usize> {
        let start = |number: usize| (number as u128 * count as u128 / self.of as u128) as usize;
        start(self.number)..start(self.number + 1)
    }
}

impl std::str::FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        match parts {
            Some((number, of)) if number < of => Ok(Self { number, of }),
            _ => Err("expected I/N with I from 0 to N - 1".to_owned()),
        }
    }
}

impl Arguments {
    /// The shipped bundle on the shipped input.
    pub fn shipped(bundle: PathBuf, options: Options) -> Self {
        Self { bundle: Some(bundle), inputs: Vec::new(), shard: Shard::WHOLE, options }
    }
}

/// The command with what its families are run on.
pub fn describe(command: Command, registry: &Registry<dyn InferFamily>) -> Command {
    let shown = demo::first(registry);
    let helps = || registry.iter().map(|family| family.help());
    let joined = |first: String, parts: Vec<&'static str>, between: &str| {
        let parts = parts.into_iter().filter(|part| !part.is_empty());
        parts.fold(first, |text, part| text + between + part)
    };
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    command
        .about(joined(about, helps().map(|help| help.run).collect(), "; "))
        .mut_arg("bundle", |arg| match shown {
            Some(demo) => arg.help(format!("Model directory; {} if left out", demo.model)),
            None => arg,
        })
        .mut_arg("inputs", |arg| {
            let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
            let help = shown.map_or(help.clone(), |demo| format!("{help}; {} if left out", demo.name));
            arg.help(help.clone()).long_help(joined(help, helps().map(|help| help.inputs).collect(), "\n\n"))
        })
}

/// An input, by what reads it.
enum Input {
    /// What the family draws itself.
    Drawn,
    /// A file of a family's own kind, and that family.
    Own(PathBuf, &'static dyn InferFamily),
    Tensors(PathBuf),
}

/// Everything that can be wrong before the first frame has been looked at.
struct Plan<'a> {
    name: String,
    opened: Opened,
    inputs: Vec<Input>,
    place: Placement,
    /// Which sequences of a lone file of tensors.
    shard: Shard,
    /// What the input is, if it is the shipped one.
    remark: Option<&'static str>,
    options: &'a ArgMatches,
}

pub fn run(registry: &Registry<dyn InferFamily>, arguments: Arguments, typed: &ArgMatches) -> Result<()> {
    let Arguments { bundle, inputs, shard, options } = arguments;
    let plan = Plan::new(registry, (bundle, inputs, shard), &options, typed)?;
    let mut output = Output::open(options.out.as_deref())?;
    if matches!(output, Output::Tensors(..)) && plan.inputs.len() > 1 {
        let n = plan.inputs.len();
        return Err(Usage::error(format!("--out in .safetensors holds one input, found {n}: use .jsonl, or a call for each")));
    }
    let run =
        Run { every: plan.every(&options), plan, reader: None, times: Histogram::default(), frames: 0, failed: 0, unread: BTreeSet::new() };
    let (failed, inputs) = run.all(&mut output)?;
    // A part without inputs has an empty output, which the others are joined with.
    if failed < inputs || inputs == 0 {
        output.commit()?;
    }
    if failed > 0 {
        bail!("{failed} of {inputs} inputs failed");
    }
    Ok(())
}

impl<'a> Plan<'a> {
    fn new(
        registry: &Registry<dyn InferFamily>,
        (dir, paths, shard): (Option<PathBuf>, Vec<PathBuf>, Shard),
        options: &Options,
        typed: &'a ArgMatches,
    ) -> Result<Self> {
        let threads = cli::stream_threads(options.threads)?;
        // SAFETY: the caller of the command has promised that no other thread is running.
        unsafe { device::configure_threads(threads) };
        let shown = || demo::first(registry).ok_or_else(|| Usage::error("no bundle: name a model directory"));
        let dir = dir.map_or_else(|| demo::find_shipped(shown()?.bundle), Ok)?;
        let bundle = Bundle::open(&dir)?;
        let family = registry.family(&bundle).with_context(|| dir.display().to_string())?;
        options::check(registry, family, options::RUN, typed)?;
        let (inputs, remark) = match (paths.is_empty(), family.draws(), family.demo()) {
            (false, ..) => (Self::inputs(registry, family, paths)?, None),
            (true, true, _) => (vec![Input::Drawn], None),
            (true, false, Some(demo)) => (Self::inputs(registry, family, vec![demo::find_shipped(demo.input)?])?, Some(demo.remark)),
            (true, false, None) => return Err(Usage::error(format!("no inputs: a {} has none of its own", family.name()))),
        };
        family.check_options(typed, inputs.len())?;
        let (inputs, shard) = match &inputs[..] {
            [Input::Tensors(_)] => (inputs, shard),
            _ => {
                let part = shard.part(inputs.len());
                (inputs.into_iter().skip(part.start).take(part.len()).collect(), Shard::WHOLE)
            }
        };
        let opened = Opened::load(registry, bundle).with_context(|| dir.display().to_string())?;
        let name = dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
        let place = options.computing.placement(threads, options.launches)?;
        Ok(Self { name, opened, inputs, place, shard, remark, options: typed })
    }

    /// Tensors, and files that the family collects or, if it collects none, another: a folder may hold what the model cannot read.
    fn inputs(registry: &Registry<dyn InferFamily>, family: &'static dyn InferFamily, paths: Vec<PathBuf>) -> Result<Vec<Input>> {
        let (mut inputs, tensors) = (Vec::new(), |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")));
        for path in paths {
            if tensors(&path) && !path.is_dir() {
                inputs.push(Input::Tensors(path));
                continue;
            }
            let mut found = None;
            for owner in [family].into_iter().chain(registry.iter()) {
                found = owner.collect(&path)?.map(|files| (owner, files));
                if found.is_some() {
                    break;
                }
            }
            let Some((owner, files)) = found else { bail!("{}: expected named tensors (.safetensors)", path.display()) };
            inputs.extend(files.into_iter().map(|file| Input::Own(file, owner)));
        }
        Ok(inputs)
    }

    /// A table for every file of a folder would be read by nobody.
    fn every(&self, options: &Options) -> Option<usize> {
        match (options.every, &options.out) {
            (_, Some(_)) => None,
            (Some(every), _) => Some(usize::try_from(every).unwrap_or(usize::MAX)),
            (None, None) => (self.inputs.len() == 1).then_some(EVERY),
        }
    }
}

struct Run<'a> {
    plan: Plan<'a>,
    every: Option<usize>,
    /// Opened for the first input of the family's own kind.
    reader: Option<Box<dyn Reader>>,
    /// Of the tensor inputs; the family's reader keeps its own.
    times: Histogram,
    frames: u64,
    failed: usize,
    /// Tensors that no input names.
    unread: BTreeSet<String>,
}

impl Run<'_> {
    /// Tells how many inputs failed, and of how many.
    fn all(mut self, output: &mut Output) -> Result<(usize, usize)> {
        let start = Instant::now();
        let inputs = std::mem::take(&mut self.plan.inputs);
        if let (Some(remark), Output::Table) = (self.plan.remark, &*output) {
            line(format_args!("{} on {remark}", self.plan.opened.bundle.dir().display()))?;
        }
        let bar = (inputs.len() > 1).then(|| cli::progress(inputs.len() as u64, "inputs"));
        for input in &inputs {
            let done = self.one(input, output);
            if let Some(bar) = &bar {
                bar.inc(1);
            }
            match done {
                Ok(()) => {}
                // Alone, or with nowhere to write to: the end.
                Err(error) if inputs.len() == 1 || error.is::<output::Failed>() => return Err(error),
                Err(error) => {
                    self.failed += 1;
                    let report = || cli::report("error", &error);
                    bar.as_ref().map_or_else(report, |bar| bar.suspend(report));
                }
            }
        }
        if let Some(bar) = bar {
            bar.finish_and_clear();
        }
        if self.failed < inputs.len() {
            self.summary(inputs.len() - self.failed, start.elapsed())?;
        }
        Ok((self.failed, inputs.len()))
    }

    fn one(&mut self, input: &Input, output: &mut Output) -> Result<()> {
        let opened = &self.plan.opened;
        let family = opened.family;
        match input {
            Input::Drawn => self.reader()?.run(&Source::Drawn, output),
            Input::Own(path, owner) if owner.name() == family.name() => self.reader()?.run(&Source::File(path), output),
            Input::Own(path, owner) => {
                let (dir, name, wanted) = (opened.bundle.dir().display(), family.name(), owner.name());
                bail!("{dir}: a {wanted} is needed for {}, found a {name}", path.display())
            }
            Input::Tensors(path) => {
                let inputs = NamedTensors::load_safetensors(path)?;
                if family.reads(&inputs, opened.model().signature()) {
                    if self.plan.shard != Shard::WHOLE {
                        let reason = format!(
                            "--shard divides several files, or one of named tensors; {} is a {}'s own",
                            path.display(),
                            family.name()
                        );
                        return Err(Usage::error(reason));
                    }
                    return self.reader()?.run(&Source::Tensors(path, &inputs), output);
                }
                options::check_unused(family, options::RUN, self.plan.options, "named tensors")?;
                let (finish, every) = (family.finish(&opened.bundle)?, self.every);
                let done = tensors::run(
                    (opened.model(), &finish),
                    (path, inputs, self.plan.shard),
                    (self.plan.place, every),
                    output,
                    &self.times,
                )?;
                self.frames += done.frames;
                self.unread.extend(done.unread);
                Ok(())
            }
        }
    }

    fn reader(&mut self) -> Result<&mut Box<dyn Reader>> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => {
                let Plan { opened, options, place, .. } = &self.plan;
                opened.family.reader(&Call { opened, options, place, every: self.every })?
            }
        };
        Ok(self.reader.insert(reader))
    }

    fn summary(&self, inputs: usize, elapsed: Duration) -> Result<()> {
        let Placement { device, threads, .. } = self.plan.place;
        let on_cpu = device == DeviceChoice::Cpu || !candle_core::utils::cuda_is_available();
        let place = if on_cpu { format!("{threads} thread{}", if threads == 1 { "" } else { "s" }) } else { format!("device {device}") };
        if !self.unread.is_empty() {
            let names: Vec<&str> = self.unread.iter().map(String::as_str).collect();
            cli::report("warning", &anyhow!("no input has these names, they are not read: {}", names.join(", ")));
        }
        let mut frames = self.frames;
        if let Some(reader) = &self.reader {
            reader.summary(&self.plan.name, &place)?;
            frames += reader.frames();
        }
        if self.frames > 0 {
            line(format_args!("time per frame of tensors: {} (one pass of all sequences; {place})", tensors::percentiles(&self.times)))?;
        }
        if cfg!(debug_assertions) {
            line("this program was built for development: with `--release` it is faster")?;
        }
        line(format_args!("{frames} frames, {inputs} of {} inputs, in {:.3} s", inputs + self.failed, elapsed.as_secs_f64()))?;
        Ok(())
    }
}

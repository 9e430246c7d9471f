//! `candle-infer run`: plan first, then frame by frame through every input.

use crate::links::{self, Links};
use crate::options::Options;
use crate::output::{self, Output, line};
use crate::replays::Replays;
use crate::{demo, tensors};
use anyhow::{Context, Result, bail};
use candle_models::beam::{self, BeamConfig, Weighting};
use candle_models::bundle::Bundle;
use candle_models::cli::{self, Usage};
use candle_models::device::{self, DeviceChoice};
use candle_models::engine::{self, Histogram, Model, Placement};
use candle_models::policy::replay;
use candle_models::tensors::NamedTensors;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Frames between two printed ones.
const EVERY: usize = 60;

#[derive(clap::Args)]
pub struct Arguments {
    /// Model directory; the shipped policy if left out.
    bundle: Option<PathBuf>,
    /// Replays (.slp), folders (their .slp files at any depth) or named tensors (.safetensors, `[frames, ...]` or
    /// `[sequences, frames, ...]` of the model's inputs); the shipped simulated game if left out.
    ///
    /// A beam controller also takes channels [B, S, N_RX, N_TX, 2] of S = 1 or T and more steps, or the measurements [B, T, 2] of a
    /// sweep with the beams [B, T, 2 N_RX] that they were made with (those that the network asks for, if left out); with both, the
    /// first beam start and snr_db, one for each. Without inputs it draws channels like those of its training.
    inputs: Vec<PathBuf>,
    #[command(flatten)]
    options: Options,
}

impl Arguments {
    /// The shipped policy on the shipped game.
    pub fn demo(options: Options) -> Self {
        Self { bundle: None, inputs: Vec::new(), options }
    }
}

/// An input, by what reads it.
enum Input {
    /// Channels that a beam controller draws itself.
    Drawn,
    Replay(PathBuf),
    Tensors(PathBuf),
}

impl Input {
    fn path(&self) -> &Path {
        match self {
            Self::Drawn => Path::new(links::GENERATED),
            Self::Replay(path) | Self::Tensors(path) => path,
        }
    }
}

/// Everything that can be wrong before the first frame has been looked at.
struct Plan {
    name: String,
    bundle: Bundle,
    model: Arc<dyn Model>,
    inputs: Vec<Input>,
    place: Placement,
    /// The input is the shipped game.
    simulated: bool,
}

pub fn run(arguments: Arguments) -> Result<()> {
    let Arguments { bundle, inputs, options } = arguments;
    let plan = Plan::new(bundle, inputs, &options)?;
    let mut output = Output::open(options.out.as_deref())?;
    if matches!(output, Output::Tensors(..)) && plan.inputs.len() > 1 {
        let n = plan.inputs.len();
        return Err(Usage::error(format!("--out in .safetensors holds one input, found {n}: use .jsonl, or a call for each")));
    }
    let run = Run { every: plan.every(&options), plan, replays: None, links: None, times: Histogram::default(), frames: 0, failed: 0 };
    let (failed, inputs) = run.all(&options, &mut output)?;
    if failed < inputs {
        output.commit()?;
    }
    if failed > 0 {
        bail!("{failed} of {inputs} inputs failed");
    }
    Ok(())
}

impl Plan {
    fn new(bundle: Option<PathBuf>, inputs: Vec<PathBuf>, options: &Options) -> Result<Self> {
        let threads = cli::stream_threads(options.threads)?;
        // SAFETY: the program has started no thread yet.
        unsafe { device::configure_threads(threads) };
        let dir = bundle.map_or_else(demo::bundle, Ok)?;
        let bundle = Bundle::open(&dir)?;
        let family = bundle.manifest().family.as_str();
        options.check(family)?;
        let simulated = inputs.is_empty() && family != beam::FAMILY;
        let inputs = match (inputs.is_empty(), simulated) {
            (true, true) => Self::inputs(vec![demo::game()?])?,
            (true, false) => vec![Input::Drawn],
            (false, _) => Self::inputs(inputs)?,
        };
        let model = engine::load(&bundle).with_context(|| dir.display().to_string())?;
        let name = dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned());
        let place = options.computing.placement(threads, options.launches)?;
        Ok(Self { name, bundle, model, inputs, place, simulated })
    }

    fn inputs(paths: Vec<PathBuf>) -> Result<Vec<Input>> {
        let (mut inputs, tensors) = (Vec::new(), |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("safetensors")));
        for path in paths {
            if tensors(&path) && !path.is_dir() {
                inputs.push(Input::Tensors(path));
            } else {
                inputs.extend(replay::collect([path])?.into_iter().map(Input::Replay));
            }
        }
        Ok(inputs)
    }

    /// Makes of a network's beam the one that the user's array is set to; leaves everything else as it is.
    fn formed(&self) -> Result<impl Fn(&str, &mut [f32])> {
        let controller = self.model.family() == beam::FAMILY;
        let weights = if controller { self.bundle.config::<BeamConfig>()?.receive_weights } else { Weighting::Free };
        Ok(move |name: &str, values: &mut [f32]| {
            if controller && name == "beam" {
                weights.round(values);
            }
        })
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

struct Run {
    plan: Plan,
    every: Option<usize>,
    replays: Option<Replays>,
    links: Option<Links>,
    /// Of the tensor inputs; replays keep their own.
    times: Histogram,
    frames: u64,
    failed: usize,
}

impl Run {
    /// Tells how many inputs failed, and of how many.
    fn all(mut self, options: &Options, output: &mut Output) -> Result<(usize, usize)> {
        let start = Instant::now();
        let inputs = std::mem::take(&mut self.plan.inputs);
        if self.plan.simulated && matches!(output, Output::Table) {
            line(format_args!(
                "{} on a SIMULATED game of two scripted fighters (not a recording of Melee)",
                self.plan.bundle.dir().display()
            ))?;
        }
        let bar = (inputs.len() > 1).then(|| cli::progress(inputs.len() as u64, "inputs"));
        for input in &inputs {
            let done = self.one(input, options, output);
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
                    output.json(&json!({ "file": input.path().display().to_string(), "error": cli::one_line_of(&error) }))?;
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

    fn one(&mut self, input: &Input, options: &Options, output: &mut Output) -> Result<()> {
        match input {
            Input::Drawn => self.links(options)?.draw(input.path(), output),
            Input::Tensors(path) => {
                let inputs = NamedTensors::load_safetensors(path)?;
                let streams = self.plan.model.signature().inputs.iter().any(|spec| inputs.contains(&spec.name));
                if self.plan.model.family() == beam::FAMILY && !streams {
                    return self.links(options)?.run(path, &inputs, output);
                }
                let (times, every, formed) = (&self.times, self.every, self.plan.formed()?);
                self.frames += tensors::run((&self.plan.model, &formed), (path, inputs), (self.plan.place, every), output, times)?;
                Ok(())
            }
            Input::Replay(path) => {
                if self.replays.is_none() {
                    let mut replays = Replays::new(&self.plan.bundle, &self.plan.model, options, &self.plan.place)?;
                    replays.show(self.every);
                    self.replays = Some(replays);
                }
                let Some(replays) = &mut self.replays else { bail!("no model for {}", path.display()) };
                replays.watch(path, output)
            }
        }
    }

    fn links(&mut self, options: &Options) -> Result<&mut Links> {
        let links = match self.links.take() {
            Some(links) => links,
            None => Links::new(&self.plan.bundle, &self.plan.model, options, &self.plan.place, self.every)?,
        };
        Ok(self.links.insert(links))
    }

    fn summary(&self, inputs: usize, elapsed: Duration) -> Result<()> {
        let Placement { device, threads, .. } = self.plan.place;
        let on_cpu = device == DeviceChoice::Cpu || !candle_core::utils::cuda_is_available();
        let place = if on_cpu { format!("{threads} thread{}", if threads == 1 { "" } else { "s" }) } else { format!("device {device}") };
        let us = |time: Duration| time.as_secs_f64() * 1e6;
        let percentiles = |times: &Histogram| format!("p50 {:.1} us, p99 {:.1} us", us(times.percentile(0.5)), us(times.percentile(0.99)));
        let mut frames = self.frames;
        if let Some(replays) = &self.replays {
            line(replays.summary(&self.plan.name))?;
            let players = if replays.players() == 1 { "one player's" } else { "both players'" };
            let (time, rows) = (percentiles(&replays.times), replays.rows());
            line(format_args!(
                "time per frame: {time} ({players} observation and one pass of {rows} rows, the recorded and the chosen action; {place})"
            ))?;
            frames += replays.frames;
        }
        if let Some(links) = &self.links {
            links.summary(&place)?;
            frames += links.measurements;
        }
        if self.frames > 0 {
            line(format_args!("time per frame of tensors: {} (one pass of all sequences; {place})", percentiles(&self.times)))?;
        }
        line(format_args!("{frames} frames, {inputs} of {} inputs, in {:.3} s", inputs + self.failed, elapsed.as_secs_f64()))?;
        Ok(())
    }
}

//! Policies in the command `candle-infer`: replays are what they see.

mod agreement;
mod encode;
mod page;
mod play;
mod replays;
mod watch;

use super::PolicyFamily;
use super::actions::COMPONENTS;
use super::embedding::{ID_NAMES, SCHEMA};
use super::replay;
use crate::bundle::Bundle;
use crate::cli::Usage;
use crate::device::{self, Purpose};
use crate::engine::Placement;
use crate::infer::{
    Call, Columns, Comparison, Demo, Difference, Help, InferFamily, Measure, OnRandom, Opened, Player, Reader, find_shipped,
};
use crate::random::Random;
use crate::tensors::NamedTensors;
use agreement::{Agreement, Choices};
use anyhow::Result;
use candle_core::{DType, Device};
use clap::{ArgMatches, Args, Command, FromArgMatches};
use replays::Replays;
use std::path::{Path, PathBuf};

/// The shipped game: a simulation, not a recording.
const GAME: &str = "examples/data/simulated.slp";

/// Options of `run` and `demo`.
#[derive(Args, Default)]
pub struct Options {
    #[command(flatten)]
    choosing: Choosing,
    /// Write a page to look at each replay: both fighters, the player's controller beside the policy's, and how likely the policy finds what
    /// the player does. A name in .html is the page of one replay, any other a folder that gets a page of each, made if it is not there.
    #[arg(long, value_name = "PLACE")]
    html: Option<PathBuf>,
}

/// Options of `run` and `demo`.
#[derive(Args, Default)]
pub struct Choosing {
    #[command(flatten)]
    watched: Watched,
    /// Draw the actions from the policy's distribution instead of taking the most likely class of each component.
    #[arg(long)]
    sample: bool,
    /// Seed of the drawn actions, which the same seed draws alike for the same file.
    #[arg(long)]
    seed: Option<u64>,
}

impl Choosing {
    fn check(&self) -> Result<()> {
        if self.seed.is_some() && !self.sample {
            return Err(Usage::error("--seed without --sample means nothing to a policy"));
        }
        Ok(())
    }

    /// Where drawn actions come from; nothing where the most likely ones are taken.
    fn sampling(&self) -> Option<Random> {
        self.sample.then(|| drawn(self.seed))
    }
}

/// Where actions that are drawn come from.
fn drawn(seed: Option<u64>) -> Random {
    Random::new(seed.unwrap_or_default()).stream("action")
}

/// Options of `encode`, and of `run`, `demo` and `play`.
#[derive(Args, Default)]
pub struct Watched {
    /// Controller port of the player to watch, 1 to 4; both players if left out.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=4))]
    port: Option<u8>,
    /// Play like the player of this tag, one that the policy was trained with [default: the recorded player's own].
    #[arg(long, value_name = "TAG")]
    name: Option<String>,
}

/// Options of `export`.
#[derive(Args)]
struct ExportOptions {
    /// Replay (.slp) on which to compare the actions and likelihoods of a policy with the original's; may be repeated
    /// [default: the shipped simulated game].
    #[arg(long, value_name = "FILE")]
    replay: Vec<PathBuf>,
}

impl InferFamily for PolicyFamily {
    fn help(&self) -> Help {
        Help {
            run: "a policy on replays (.slp files, or folders or archives of them) too",
            inputs: "A policy also takes replays (.slp), folders (their .slp files at any depth) and archives of them (.zip, .tar, .tar.gz, .tgz).",
        }
    }

    fn options(&self, command: Command) -> Command {
        Options::augment_args(command)
    }

    fn check_options(&self, options: &ArgMatches, inputs: usize) -> Result<()> {
        let options = Options::from_arg_matches(options)?;
        if let Some(place) = options.html.as_deref().filter(|place| page::is_file(place) && inputs > 1) {
            let place = place.display();
            return Err(Usage::error(format!(
                "--html {place} is the page of one replay, found {inputs}: name a folder, it gets a page of each"
            )));
        }
        options.choosing.check()
    }

    fn collect(&self, path: &Path) -> Result<Option<Vec<PathBuf>>> {
        Ok(Some(replay::collect([path])?))
    }

    fn reader(&self, call: &Call) -> Result<Box<dyn Reader>> {
        let mut replays = Replays::new(&call.opened.bundle, call.opened.model(), &Options::from_arg_matches(call.options)?, call.place)?;
        replays.show(call.every);
        Ok(Box::new(replays))
    }

    fn encode_options(&self, command: Command) -> Command {
        Watched::augment_args(command)
    }

    fn encode(&self, bundle: &Bundle, path: &Path, options: &ArgMatches) -> Result<NamedTensors> {
        encode::encode(bundle, &Watched::from_arg_matches(options)?, path)
    }

    fn play_options(&self, command: Command) -> Command {
        play::Options::augment_args(command)
    }

    fn play(&self, call: &Call) -> Result<()> {
        play::play(call, &play::Options::from_arg_matches(call.options)?)
    }

    fn playback_options(&self, command: Command) -> Command {
        play::StandIn::augment_args(command)
    }

    fn playback(&self, recordings: &[PathBuf], options: &ArgMatches) -> Result<()> {
        play::StandIn::from_arg_matches(options)?.run(recordings)
    }

    fn columns(&self) -> Vec<Columns> {
        columns()
    }

    fn demo(&self) -> Option<Demo> {
        Some(Demo {
            bundle: "weights/policy-simulated",
            input: GAME,
            model: "a policy that learned from simulated games",
            name: "the shipped simulated game, one that it has not seen",
            remark: "a SIMULATED game of two scripted fighters (not a recording of Melee); the policy learned from other games of theirs",
            player: Some(Player {
                bundle: "weights/duel",
                options: &["--against", "script", "--every", "240"],
                about: "one that learned by playing in fights against a script",
            }),
        })
    }

    fn export_options(&self, command: Command) -> Command {
        ExportOptions::augment_args(command)
    }

    fn comparison(&self, original: &Opened, options: &ArgMatches) -> Result<Box<dyn Comparison>> {
        let named = ExportOptions::from_arg_matches(options)?.replay;
        // The shipped game if it is there.
        let replays = if named.is_empty() { find_shipped(GAME).into_iter().collect() } else { named };
        let choices = Choices::new(original, &replays, DType::F32)?;
        Ok(Box::new(OnReplays { sequences: OnRandom::new(&original.networks)?, replays, choices }))
    }
}

/// What the columns of a policy's tensors hold.
fn columns() -> Vec<Columns> {
    let fields = SCHEMA.iter().map(|field| Columns {
        tensor: "features",
        columns: field.offset..field.offset + field.width,
        name: field.name.to_owned(),
        meaning: format!("times {}, clipped to {} to {}", field.scale, field.clip[0], field.clip[1]),
    });
    let ids = ID_NAMES.iter().enumerate().map(|(i, name)| Columns {
        tensor: "ids",
        columns: i..i + 1,
        name: (*name).to_owned(),
        meaning: String::new(),
    });
    let components = COMPONENTS.iter().enumerate().map(|(i, component)| Columns {
        tensor: "action",
        columns: i..i + 1,
        name: component.name.to_owned(),
        meaning: format!("{} classes", component.classes),
    });
    fields.chain(ids).chain(components).collect()
}

/// Random sequences, and what both do on replays.
struct OnReplays {
    sequences: OnRandom,
    replays: Vec<PathBuf>,
    choices: Choices,
}

impl Comparison for OnReplays {
    fn over(&self) -> String {
        self.sequences.over()
    }

    fn measure(&self) -> Measure {
        self.sequences.measure()
    }

    fn differences(&mut self, exported: &Opened) -> crate::Result<Vec<Difference>> {
        self.sequences.differences(exported)
    }

    fn remarks(&mut self, exported: &Opened) -> Result<Vec<String>> {
        if self.replays.is_empty() {
            return Ok(Vec::new());
        }
        let agreement = |dtype| Ok::<_, anyhow::Error>(Agreement::between(&self.choices, &Choices::new(exported, &self.replays, dtype)?));
        let names: Vec<String> = self.replays.iter().map(|path| path.display().to_string()).collect();
        let mut remarks = vec![format!("on {}, with the recorded past in every frame:\n{}", names.join(", "), agreement(DType::F32)?)];
        let is_narrow = exported.bundle.parameters()?.iter().any(|parameter| parameter.dtype == "BF16");
        if is_narrow && device::compute_dtype(Some(DType::BF16), &Device::Cpu, Purpose::Inference).is_ok() {
            remarks.push(format!("computed in bf16 as well (--dtype bf16 of the command that runs it):\n{}", agreement(DType::BF16)?));
        }
        Ok(remarks)
    }
}

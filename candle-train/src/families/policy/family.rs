//! What the command knows of policies.

use super::config::RunConfig;
use super::dataset::{Dataset, Measured};
use super::loader::Order;
use super::replays::{EncodeArguments, ReplayArguments};
use super::run::Plan;
use super::{evaluate, export};
use crate::command::{Presets, RunArguments, TrainFamily, command_line};
use crate::trainer::Resources;
use anyhow::{Context, Result};
use candle_models::bundle::Bundle;
use candle_models::device::Purpose;
use candle_models::policy::baselines::Baselines;
use candle_models::policy::{BASELINES, Policy, PolicyFamily};
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::PathBuf;
use std::time::Instant;

#[derive(Debug, Args)]
struct PolicyArguments {
    #[command(flatten)]
    games: ReplayArguments,
    /// Begins with the parameters of this policy, whose architecture the run then has, in place of random ones.
    #[arg(long, value_name = "BUNDLE")]
    start_from: Option<PathBuf>,
    /// Trains on the first batch again and again, without regularisation: its loss must fall towards zero.
    #[arg(long)]
    overfit_batch: bool,
    /// Measures --model on the replays (those of --hold-out, if given) and prints the likelihood table.
    #[arg(long, requires = "model")]
    eval_only: bool,
    /// Model directory for --eval-only.
    #[arg(long, value_name = "BUNDLE")]
    model: Option<PathBuf>,
}

impl TrainFamily for PolicyFamily {
    fn about(&self) -> &'static str {
        "Trains a game policy by imitation of replays, or measures one"
    }

    fn presets(&self) -> Presets {
        let help = "quick (an MLP, five games, one epoch), standard (an MLP, all games) or mamba";
        Presets { names: &RunConfig::PRESETS, default: "quick", help }
    }

    fn options(&self, command: Command) -> Command {
        PolicyArguments::augment_args(command)
    }

    fn commands(&self) -> Vec<Command> {
        let encode = EncodeArguments::augment_args(Command::new("encode"));
        vec![encode.about("Encodes replays for training, all of them or a part, into a folder that --replays takes in their place")]
    }

    fn run(&self, _: &str, options: &ArgMatches) -> Result<()> {
        EncodeArguments::from_arg_matches(options)?.run()
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let own = PolicyArguments::from_arg_matches(options)?;
        if own.eval_only { measure(asked, &own) } else { asked.train(plan(asked, &own)?) }
    }

    /// Two games of those that are simulated, some ten steps.
    fn example(&self) -> &'static [&'static str] {
        &[
            "--set=data.files=1",
            "--set=data.held_out=0.1",
            "--set=data.batch=64",
            "--set=data.unroll=10",
            "--set=model.hidden=16",
            "--set=model.embedding=4",
            "--set=model.backbone.layers=[16]",
        ]
    }
}

fn plan(asked: &RunArguments, own: &PolicyArguments) -> Result<Plan> {
    let mut config = RunConfig::resolve(&asked.preset, asked.file()?.as_deref(), &asked.sets)?;
    let start = own.start_from.as_ref().map(Bundle::open).transpose()?;
    if let Some(start) = &start {
        if config.model != RunConfig::preset(&asked.preset)?.model {
            return Err(candle_models::Error::config("model", "the architecture is that of --start-from").into());
        }
        config.model = start.config()?;
    }
    let resources = asked.resources(PolicyFamily.name(), Purpose::Training)?;
    let shards = own.games.load(asked, &*resources.ranks)?;
    let games = own.games.split(&shards, config.data.held_out)?;
    let order = if own.overfit_batch { Order::FirstBatch } else { Order::Epochs };
    let mut plan = Plan::new(config, &games, order)?.on(resources)?;
    (plan.command, plan.simulated) = (command_line(), own.games.simulated());
    Ok(match &start {
        Some(start) => plan.start_from(start)?,
        None => plan,
    })
}

fn measure(asked: &RunArguments, own: &PolicyArguments) -> Result<()> {
    let directory = own.model.as_deref().context("--eval-only needs --model")?;
    let bundle = Bundle::open(directory)?;
    let Resources { device, ranks, .. } = asked.resources(PolicyFamily.name(), Purpose::Training)?;
    let policy = Policy::load_on(&bundle, &device)?;
    let tables = bundle.read_file(BASELINES)?.map(|bytes| Baselines::from_bytes(&bytes)).transpose()?;
    let shards = own.games.load(asked, &*ranks)?;
    let games = own.games.named(&shards)?.unwrap_or_else(|| shards.into_iter().map(Measured::from).collect());
    let data = Dataset::measured(&games, &policy.config().names, policy.config().delay)?;
    let start = Instant::now();
    let mut rows = Vec::new();
    match tables {
        Some(tables) => rows.extend(evaluate::tables(&tables, &data, &*ranks)?.into_iter().map(|(name, l)| (name.to_owned(), l))),
        None => eprintln!("warning: {}: no {BASELINES}, so there is nothing to compare with", directory.display()),
    }
    rows.push(("this policy".to_owned(), evaluate::policy(&policy, &data, &*ranks)?));
    if ranks.rank() > 0 {
        return Ok(());
    }
    println!("{} games, {:.1} s\n\n{}", data.shards().len(), start.elapsed().as_secs_f64(), export::table(&rows));
    Ok(())
}

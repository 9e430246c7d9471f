//! What the command knows of policies.

use super::config::RunConfig;
use super::dataset::{Dataset, Measured};
use super::loader::Order;
use super::replays::{EncodeArguments, ReplayArguments};
use super::run::Plan;
use super::{calibrate, evaluate, export};
use crate::command::{Presets, RunArguments, TrainFamily, Training, bundle_of, command_line, model_in};
use crate::trainer::Resources;
use anyhow::{Result, bail};
use candle_models::bundle::Bundle;
use candle_models::device::Purpose;
use candle_models::nn::Params;
use candle_models::ops::Format;
use candle_models::policy::baselines::Baselines;
use candle_models::policy::{BASELINES, Policy, PolicyFamily};
use candle_models::registry::Family;
use clap::{ArgMatches, Args, Command, FromArgMatches};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Debug, Args)]
struct PolicyArguments {
    #[command(flatten)]
    games: ReplayArguments,
    /// Begins with the parameters of this policy, whose architecture the run then has, in place of random ones.
    #[arg(long, value_name = "BUNDLE")]
    start_from: Option<PathBuf>,
    /// Policies to learn from beside what was recorded: `loss.teachers` is the share of the target that is the mean of their probabilities.
    #[arg(long, value_name = "BUNDLE", num_args = 1..)]
    teachers: Vec<PathBuf>,
    /// Trains on the first batch again and again, without regularisation: its loss must fall towards zero.
    #[arg(long)]
    overfit_batch: bool,
    /// Measures --model on the replays (those of --hold-out, if given) and prints the likelihood table.
    #[arg(long, requires = "model")]
    eval_only: bool,
    /// Fits on the replays (those of --hold-out, if given: of people whom the policy has not met) how far each component of --model is to be
    /// believed, and writes the policy with the factors in its weights to OUT/bundle.
    #[arg(long, requires = "model", conflicts_with = "eval_only")]
    calibrate: bool,
    /// With --calibrate, one factor a component to take in place of fitting them: for a policy that was trained on all games those of one that was
    /// trained alike without the held-out ones. The replays only measure it then.
    #[arg(long, requires = "calibrate", value_name = "F,F,F,F,F,F", value_delimiter = ',')]
    factors: Option<Vec<f64>>,
    /// Model directory for --eval-only and --calibrate.
    #[arg(long, value_name = "BUNDLE")]
    model: Option<PathBuf>,
}

impl TrainFamily for PolicyFamily {
    fn trainings(&self) -> &'static [&'static dyn Training] {
        &[&PolicyTraining]
    }

    fn commands(&self) -> Vec<Command> {
        let encode = EncodeArguments::augment_args(Command::new("encode"));
        vec![encode.about("Encodes replays for training, all of them or a part, into a folder that --replays takes in their place")]
    }

    fn run(&self, _: &str, options: &ArgMatches) -> Result<()> {
        EncodeArguments::from_arg_matches(options)?.run()
    }
}

/// Imitation of replays.
struct PolicyTraining;

impl Training for PolicyTraining {
    fn name(&self) -> &'static str {
        PolicyFamily.name()
    }

    fn about(&self) -> &'static str {
        "Trains a game policy by imitation of replays, or measures one"
    }

    fn presets(&self) -> Presets {
        let help = "quick (an MLP, five games, one epoch), standard (an MLP, all games), gru or mamba";
        Presets { names: &RunConfig::PRESETS, default: "quick", help }
    }

    fn options(&self, command: Command) -> Command {
        PolicyArguments::augment_args(command)
    }

    fn train(&self, asked: &RunArguments, options: &ArgMatches) -> Result<()> {
        let own = PolicyArguments::from_arg_matches(options)?;
        match &own.model {
            Some(model) if own.eval_only => Measurement::new(model, asked, &own)?.print("this policy"),
            Some(model) if own.calibrate => calibrate(Measurement::new(model, asked, &own)?, asked, own.factors.as_deref()),
            Some(_) => {
                let said = "it is measured with --eval-only or calibrated with --calibrate; --start-from begins a run with a policy";
                Err(candle_models::Error::config("--model", said).into())
            }
            None => asked.train(plan(asked, &own)?),
        }
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
    let teachers = own.teachers.iter().map(Bundle::open).collect::<candle_models::Result<Vec<_>>>()?;
    plan = plan.learn_from(&teachers)?;
    (plan.command, plan.simulated) = (command_line(), own.games.simulated());
    Ok(match &start {
        Some(start) => plan.start_from(start)?,
        None => plan,
    })
}

/// A trained policy and the games to measure it on.
struct Measurement {
    bundle: Bundle,
    policy: Policy,
    data: Dataset,
    with: Resources,
}

impl Measurement {
    fn new(model: &Path, asked: &RunArguments, own: &PolicyArguments) -> Result<Self> {
        let bundle = Bundle::open(model)?;
        let with = asked.resources(PolicyFamily.name(), Purpose::Training)?;
        let policy = Policy::load_on(&bundle, &with.device)?;
        let shards = own.games.load(asked, &*with.ranks)?;
        let games = own.games.named(&shards)?.unwrap_or_else(|| shards.into_iter().map(Measured::from).collect());
        let data = Dataset::measured(&games, &policy.config().names, policy.config().delay)?;
        Ok(Self { bundle, policy, data, with })
    }

    /// The likelihood table, the policy's row under that name, and the errors of its probabilities.
    fn table(&self, name: &str) -> Result<String> {
        let tables = self.bundle.read_file(BASELINES)?.map(|bytes| Baselines::from_bytes(&bytes)).transpose()?;
        let mut rows = Vec::new();
        match tables {
            Some(tables) => {
                let found = evaluate::tables(&tables, &self.data, &*self.with.ranks)?;
                rows.extend(found.into_iter().map(|(name, likelihood)| (name.to_owned(), likelihood)));
            }
            None => eprintln!("warning: {}: no {BASELINES}, so there is nothing to compare with", self.bundle.dir().display()),
        }
        let found = evaluate::policy(&self.policy, &self.data, &*self.with.ranks)?;
        rows.push((name.to_owned(), found.likelihood));
        Ok(format!("{}\n{}\n", export::table(&rows), found.calibration))
    }

    fn print(&self, name: &str) -> Result<()> {
        let start = Instant::now();
        let table = self.table(name)?;
        if self.with.ranks.rank() == 0 {
            println!("{} games, {:.1} s\n\n{table}", self.data.shards().len(), start.elapsed().as_secs_f64());
        }
        Ok(())
    }
}

/// Fits the factors, or takes those given, writes the calibrated policy and prints its table.
fn calibrate(before: Measurement, asked: &RunArguments, given: Option<&[f64]>) -> Result<()> {
    let Some(out) = asked.directory()? else { return Ok(()) };
    let config = before.policy.config().clone();
    let stored = before.bundle.read_parameters(&Policy::parameters(&config)?)?;
    if let Some((name, _)) = stored.iter().find(|(_, parameter)| !matches!(parameter.format, Format::F32)) {
        bail!("{name} is stored in fewer than 32 bits: calibrate the policy first, then export it so");
    }
    let parameters = stored.into_iter().map(|(name, parameter)| (name, parameter.tensor)).collect();
    let factors = match given {
        Some(given) => calibrate::checked(given)?,
        None => calibrate::fit(&config, &parameters, &before.data, &before.with.device, &*before.with.ranks)?,
    };
    let parameters = calibrate::scaled(&config, &parameters, &factors)?;
    let policy = Policy::new(&config, &Params::given(parameters.clone(), &before.with.device))?;
    let after = Measurement { policy, ..before };
    let (said, table) = (calibrate::describe(&factors), after.table("calibrated")?);
    if after.with.ranks.rank() > 0 {
        return Ok(());
    }
    let directory = bundle_of(out);
    let (fitted, games, command) = (given.is_none(), &after.data, &command_line());
    export::Calibrated { parameters: &parameters, factors: &said, fitted, games, table: &table, command }
        .save(&after.bundle, &directory)?;
    println!("factors: {said}\n\n{table}\n{}", model_in(&directory));
    Ok(())
}

//! Arguments, first as typed, then resolved; then the run.

mod beam;
mod beam_page;
mod launch;

use anyhow::{Context, Result};
use candle_models::bundle::Bundle;
use candle_models::cli::Computing;
use candle_models::device::Purpose;
use candle_models::policy::baselines::Baselines;
use candle_models::policy::{BASELINES, Policy, replay, simulation};
use candle_train::parallel::Communicator;
use candle_train::parallel::connect::{connect, gpus, local_device};
use candle_train::parallel::environment::from_environment;
use candle_train::policy::config::RunConfig;
use candle_train::policy::dataset::Dataset;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan, Trained};
use candle_train::policy::shards::{self, Shard};
use candle_train::policy::split::{HoldOut, split};
use candle_train::policy::{evaluate, export};
use candle_train::report;
use candle_train::run::Place;
use candle_train::stop::{Reason, Stop};
use candle_train::trainer::{Outcome, Resources};
use clap::{Args, Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Trains the models of candle-models.
#[derive(Debug, Parser)]
#[command(name = "candle-train", version)]
pub struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Trains a game policy by imitation of replays, or measures one.
    Policy(Box<PolicyArguments>),
    /// Trains a beam controller on fresh channels.
    Beam(Box<beam::BeamArguments>),
    /// Measures beam controllers beside baselines, and writes the tables and figures.
    BeamPage(beam_page::BeamPageArguments),
    /// Runs the command behind it in several processes of this machine, its ranks, which train together.
    Launch(launch::LaunchArguments),
    /// Makes report.html of a run again, from its metrics.
    Report(ReportArguments),
}

#[derive(Debug, Args)]
struct ReportArguments {
    /// Directory of the run.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

impl Arguments {
    /// How many threads were asked for.
    pub fn threads(&self) -> Option<usize> {
        match &self.task {
            Task::Policy(arguments) => arguments.run.threads,
            Task::Beam(arguments) => arguments.run.threads,
            Task::BeamPage(arguments) => arguments.threads,
            Task::Report(_) | Task::Launch(_) => None,
        }
    }
}

#[derive(Debug, Args)]
struct PolicyArguments {
    /// Replays (.slp), or folders of them. Without any, games are simulated.
    #[arg(long, value_name = "PATH", num_args = 1..)]
    replays: Vec<PathBuf>,
    /// quick (an MLP, five games, one epoch), standard (an MLP, all games) or mamba.
    #[arg(long, default_value = "quick")]
    preset: String,
    /// Replays to hold out, by name (`t02`) and separated by commas. Default: a share chosen by content, `data.held_out`.
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    hold_out: Vec<String>,
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
    /// Directory of encoded replays, to share between runs. Default: OUT/shards.
    #[arg(long, value_name = "DIR")]
    cache: Option<PathBuf>,
    #[command(flatten)]
    run: RunArguments,
}

/// What a run is asked whatever it trains.
#[derive(Debug, Args)]
struct RunArguments {
    /// Directory of the run: config.toml, metrics.jsonl, report.html, checkpoints/, and at the end the model in bundle/.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// TOML file whose keys replace those of the preset.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A key of the configuration, as in `--set trainer.schedule.peak=5e-4`; comes over --config. May be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Continues the run in --out, if there is one.
    #[arg(long)]
    resume: bool,
    /// Stops after this time with a checkpoint, as in 90s, 30m or 2h.
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    max_time: Option<Duration>,
    /// Checks and prints everything, trains nothing.
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    computing: Computing,
    /// Processors to compute with. Default: CANDLE_THREADS, or all that this process may use.
    #[arg(long)]
    threads: Option<usize>,
}

impl RunArguments {
    /// The text of --config.
    fn file(&self) -> Result<Option<String>> {
        let Some(path) = &self.config else { return Ok(None) };
        Ok(Some(std::fs::read_to_string(path).with_context(|| path.display().to_string())?))
    }

    /// What this process computes with, and the ranks that it computes with to train `what`.
    fn resources(&self, what: &str, purpose: Purpose) -> Result<Resources> {
        let launched = from_environment()?;
        let computing = self.computing.clone().on(|choice| local_device(choice, launched.as_ref(), gpus()))?;
        let (device, dtype) = computing.open(purpose)?;
        // That configurations are the same is checked, key by key, when the run begins.
        let ranks = connect(launched.as_ref(), &device, what)?;
        Ok(Resources { device, dtype, ranks })
    }

    /// Makes the directory of the run; none for a dry one.
    fn directory(&self) -> Result<Option<&Path>> {
        let out = match &self.out {
            _ if self.dry_run => return Ok(None),
            Some(out) => out,
            None => return Err(candle_models::Error::config("--out", "expected the directory of the run, or --dry-run").into()),
        };
        std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
        Ok(Some(out))
    }

    /// Where the run starts.
    fn place(&self, out: &Path) -> Place {
        if self.resume { Place::Resume(out.to_owned()) } else { Place::New(out.to_owned()) }
    }

    /// When it is to stop.
    fn stop(&self) -> Result<Stop> {
        Ok(Stop::after(self.max_time).on_signals()?)
    }
}

/// What a run of any task comes to.
struct End {
    outcome: Outcome,
    step: u64,
    /// The step whose parameters are shipped.
    shipped: u64,
    time: Duration,
}

/// Says how a run ended. If it is done, `save` writes the model to a directory below `out` and gives the figures to show.
fn conclude(end: &End, out: &Path, save: impl FnOnce(&Path) -> candle_models::Result<String>) -> Result<()> {
    let End { outcome, step, shipped, time } = *end;
    if let Outcome::Stopped(reason) = outcome {
        let why = match reason {
            Reason::Signal => "by a signal",
            Reason::Time => "by the time limit",
            Reason::NoImprovement => "because held-out scores no longer improve",
        };
        let then = if outcome.done() { "" } else { "; --resume continues" };
        println!("stopped {why} at step {step}{then}");
    }
    if !outcome.done() {
        return Ok(());
    }
    let bundle = out.join("bundle");
    let figures = save(&bundle)?;
    let best = if shipped == step { String::new() } else { format!(" of step {shipped}, the best score,") };
    println!("{figures}{step} steps in {:.1} s; model{best} in {}", time.as_secs_f64(), bundle.display());
    Ok(())
}

/// `on the CPU, in f32` and on how many ranks.
fn place_of(Resources { device, dtype, ranks }: &Resources) -> String {
    let (place, dtype) = (if device.is_cuda() { "CUDA" } else { "the CPU" }, dtype.as_str());
    let ranks = if ranks.size() == 1 { String::new() } else { format!(", on {} ranks", ranks.size()) };
    format!("on {place}, in {dtype}{ranks}")
}

/// Games and frames of each that are simulated where no replays are given.
const SIMULATED_GAMES: u64 = 12;
const SIMULATED_FRAMES: usize = 3600;

/// Runs the command.
pub fn run(arguments: Arguments) -> Result<()> {
    match arguments.task {
        Task::Policy(arguments) if arguments.eval_only => measure(&arguments),
        Task::Policy(arguments) => train(&arguments),
        Task::Beam(arguments) => beam::train(&arguments),
        Task::BeamPage(arguments) => beam_page::write(&arguments),
        Task::Report(arguments) => {
            println!("{}", report::write(&arguments.directory)?.display());
            Ok(())
        }
        Task::Launch(arguments) => launch::run(&arguments),
    }
}

fn train(arguments: &PolicyArguments) -> Result<()> {
    let asked = &arguments.run;
    let mut config = RunConfig::resolve(&arguments.preset, asked.file()?.as_deref(), &asked.sets)?;
    let start = arguments.start_from.as_ref().map(Bundle::open).transpose()?;
    if let Some(start) = &start {
        if config.model != RunConfig::preset(&arguments.preset)?.model {
            return Err(candle_models::Error::config("model", "the architecture is that of --start-from").into());
        }
        config.model = start.config()?;
    }
    let resources = asked.resources("policy", Purpose::Training)?;
    let leads = resources.ranks.rank() == 0;
    let shards = load(arguments, &*resources.ranks)?;
    let games = hold_out(arguments, shards, config.data.held_out)?;
    let order = if arguments.overfit_batch { Order::FirstBatch } else { Order::Epochs };
    let mut plan = Plan::new(config, &games, order)?.on(resources)?;
    if let Some(start) = &start {
        plan = plan.start_from(start)?;
    }
    if leads {
        describe(&plan)?;
    }
    let Some(out) = asked.directory()? else { return Ok(()) };
    let (place, stop) = (asked.place(out), asked.stop()?);
    let provenance = provenance(arguments, &games, plan.config.data.files);
    plan.command = provenance.command.clone();
    let trained = plan.train(&place, &stop)?;
    if !leads {
        return Ok(());
    }
    let Trained { outcome, step, shipped, time, .. } = trained;
    conclude(&End { outcome, step, shipped, time }, out, |bundle| {
        export::save(bundle, &trained, &provenance)?;
        Ok(if trained.table.is_empty() { String::new() } else { format!("\n{}\n", export::table(&trained.table)) })
    })
}

fn describe(plan: &Plan) -> Result<()> {
    let [(train, rows), (held, held_rows)] = plan.games();
    println!("{}\n{}", plan.config.to_toml()?, plan.summary);
    println!("{train} games ({rows} rows) to train on, {held} ({held_rows} rows) held out");
    println!("{} parameters, {} steps, {} an epoch; {}", plan.summary.values, plan.steps, plan.steps_per_epoch, place_of(plan.resources()));
    Ok(())
}

fn measure(arguments: &PolicyArguments) -> Result<()> {
    let directory = arguments.model.as_deref().context("--eval-only needs --model")?;
    let bundle = Bundle::open(directory)?;
    let Resources { device, ranks, .. } = arguments.run.resources("policy", Purpose::Training)?;
    let policy = Policy::load_on(&bundle, &device)?;
    let tables = bundle.read_file(BASELINES)?.map(|bytes| Baselines::from_bytes(&bytes)).transpose()?;
    let mut shards = load(arguments, &*ranks)?;
    if !arguments.hold_out.is_empty() {
        shards = split_shards(&shards, &HoldOut::Named(arguments.hold_out.clone()))?.held_out;
    }
    let data = Dataset::new(&shards, &policy.config().names, policy.config().delay)?;
    let start = Instant::now();
    let mut rows = Vec::new();
    match tables {
        Some(tables) => rows.extend(evaluate::tables(&tables, &data)?.into_iter().map(|(name, l)| (name.to_owned(), l))),
        None => eprintln!("warning: {}: no {BASELINES}, so there is nothing to compare with", directory.display()),
    }
    rows.push(("this policy".to_owned(), evaluate::policy(&policy, &data, &*ranks)?));
    if ranks.rank() > 0 {
        return Ok(());
    }
    println!("{} games, {:.1} s\n\n{}", data.shards().len(), start.elapsed().as_secs_f64(), export::table(&rows));
    Ok(())
}

/// The shards of the replays that were named, or of simulated ones. Rank 0 encodes them; others find them, or encode their own where
/// they have another disk.
fn load(arguments: &PolicyArguments, ranks: &dyn Communicator) -> Result<Vec<Arc<Shard>>> {
    if ranks.rank() > 0 {
        ranks.barrier()?;
    }
    let start = Instant::now();
    let temporary;
    let cache = match (&arguments.cache, &arguments.run.out) {
        (Some(cache), _) => cache.clone(),
        (None, Some(out)) => out.join("shards"),
        (None, None) => {
            temporary = std::env::temp_dir().join("candle-train-shards");
            temporary
        }
    };
    let replays = if arguments.replays.is_empty() { simulate(&cache)? } else { replay::collect(&arguments.replays)? };
    let prepared = shards::prepare(&replays, &cache)?;
    if ranks.rank() == 0 {
        ranks.barrier()?;
    } else if prepared.encoded == 0 {
        // Rank 0 has said all there is to say.
        return Ok(prepared.shards.into_iter().map(Arc::new).collect());
    }
    prepared.warnings.iter().for_each(|warning| eprintln!("warning: {warning}"));
    let bytes: usize = prepared.shards.iter().map(Shard::bytes).sum();
    let (games, encoded, seconds) = (prepared.shards.len(), prepared.encoded, start.elapsed().as_secs_f64());
    eprintln!("{games} games ({:.0} MB), {encoded} encoded now, {seconds:.1} s", bytes as f64 / 1e6);
    Ok(prepared.shards.into_iter().map(Arc::new).collect())
}

fn simulate(cache: &Path) -> Result<Vec<PathBuf>> {
    let directory = cache.join("simulated");
    std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
    eprintln!("no --replays: training on {SIMULATED_GAMES} simulated games");
    let write = |seed: u64| -> Result<PathBuf> {
        let path = directory.join(format!("simulated{seed:02}.slp"));
        // Always written: an older version's simulation must not be mistaken for this one's. Ranks that share the disk write the same.
        let mine = path.with_extension(std::process::id().to_string());
        replay::write(&simulation::simulate(seed, SIMULATED_FRAMES), &mine)?;
        std::fs::rename(&mine, &path).with_context(|| path.display().to_string())?;
        Ok(path)
    };
    (0..SIMULATED_GAMES).map(write).collect()
}

fn hold_out(arguments: &PolicyArguments, shards: Vec<Arc<Shard>>, share: f64) -> Result<Games> {
    let named = !arguments.hold_out.is_empty();
    let hold_out = if named { HoldOut::Named(arguments.hold_out.clone()) } else { HoldOut::Share(share) };
    split_shards(&shards, &hold_out)
}

fn split_shards(shards: &[Arc<Shard>], hold_out: &HoldOut) -> Result<Games> {
    let infos: Vec<_> = shards.iter().map(|shard| shard.info()).collect();
    let (train, held_out) = split(&infos, hold_out)?;
    let pick = |indices: Vec<usize>| indices.into_iter().map(|i| shards[i].clone()).collect();
    Ok(Games { train: pick(train), held_out: pick(held_out) })
}

fn provenance(arguments: &PolicyArguments, games: &Games, files: usize) -> export::Provenance {
    let line = |shard: &Arc<Shard>| {
        let info = shard.info();
        format!("{} ({} frames, SHA-256 {})", info.source, shard.rows() + 1, &info.replay[..16])
    };
    let used = if files == 0 { games.train.len() } else { files.min(games.train.len()) };
    export::Provenance {
        command: command_line(std::env::args().skip(1)),
        train: games.train[..used].iter().map(line).collect(),
        held_out: games.held_out.iter().map(line).collect(),
        simulated: arguments.replays.is_empty(),
    }
}

/// The command as it goes into a model card: absolute paths, which mean nothing elsewhere, by their last part.
fn command_line(arguments: impl Iterator<Item = String>) -> String {
    let word = |argument: String| {
        let path = Path::new(&argument);
        let name = path.file_name().filter(|_| path.is_absolute()).map(|name| name.to_string_lossy().into_owned());
        let word = name.unwrap_or(argument);
        if word.contains([' ', '\'', '"', '$']) { format!("'{}'", word.replace('\'', "'\\''")) } else { word }
    };
    std::iter::once("candle-train".to_owned()).chain(arguments.map(word)).collect::<Vec<_>>().join(" ")
}

/// `90s`, `30m`, `2h`, or seconds.
fn parse_time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((i, 's')) => (&text[..i], 1.0),
        Some((i, 'm')) => (&text[..i], 60.0),
        Some((i, 'h')) => (&text[..i], 3600.0),
        _ => (text, 1.0),
    };
    let seconds = number.parse::<f64>().ok().filter(|x| (0.0..=1e9).contains(x));
    seconds.map(|x| Duration::from_secs_f64(x * unit)).ok_or_else(|| format!("expected a time such as 90s, 30m or 2h, found '{text}'"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_as_they_are_written() {
        for (text, seconds) in [("90s", 90), ("1.5m", 90), ("2h", 7200), ("7", 7), ("0", 0)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "m", "-1s", "1e99h", "soon", "nan"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_card_shows_no_private_paths() {
        let arguments = ["policy", "--replays", "/games/slippi", "--set", "a.b=c d"].map(str::to_owned);
        assert_eq!(command_line(arguments.into_iter()), "candle-train policy --replays slippi --set 'a.b=c d'");
    }
}

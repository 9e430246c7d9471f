//! Encodes replays into shards and reads an epoch of batches from them, with the time that each takes. With a number behind them, so many
//! games of two seconds are simulated as replays first.
//!
//! `cargo run --release --example read_replays -- REPLAYS SHARDS [GAMES]`

use anyhow::{Context, Result};
use candle_core::Tensor;
use candle_models::policy::{replay, simulation::simulate};
use candle_models::random::Random;
use candle_train::lanes::StepShape;
use candle_train::policy::dataset::Dataset;
use candle_train::policy::loader::{Loader, LoaderConfig, Order};
use candle_train::policy::shards;
use std::hash::{DefaultHasher, Hasher};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Sequences and frames of a batch, as the presets have them.
const SHAPE: StepShape = StepShape { lanes: 32, unroll: 80 };

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let (replays, cache) = arguments.next().zip(arguments.next()).context("expected REPLAYS SHARDS [GAMES]")?;
    if let Some(games) = arguments.next() {
        write(Path::new(&replays), games.parse().with_context(|| games.clone())?)?;
    }
    let start = Instant::now();
    let files = shards::collect(&[replays.clone().into()])?;
    let prepared = shards::prepare(&files, Path::new(&cache))?;
    let seconds = start.elapsed().as_secs_f64();
    let games = prepared.shards.len();
    println!("{games} games, {} encoded now: {seconds:.2} s, {:.2} ms a game", prepared.encoded, 1e3 * seconds / games as f64);
    let [read, written] = [size(&replays)?, size(&cache)?];
    println!("{:.1} MB of shards for {:.1} MB of replays: {:.3}", written / 1e6, read / 1e6, written / read);

    let shards: Vec<_> = prepared.shards.into_iter().map(Arc::new).collect();
    let data = Arc::new(Dataset::new(&shards, &[], 0)?);
    let random = Random::new(1);
    let config = LoaderConfig { shape: SHAPE, lanes: 0..SHAPE.lanes, mirror: 0.5, burn_in: 0, order: Order::Epochs, random };
    let mut loader = Loader::new(data, config)?;
    let (steps, start) = (loader.steps_per_epoch(), Instant::now());
    for _ in 0..steps {
        loader.next()?;
    }
    let (rows, seconds) = (steps * SHAPE.rows() as u64, start.elapsed().as_secs_f64());
    println!("an epoch: {rows} rows in {seconds:.2} s, {:.0} a second; {} memory maps", rows as f64 / seconds, maps());

    // The next epoch has another order; its bits follow from the replays and the seed.
    let mut hash = DefaultHasher::new();
    for _ in 0..steps {
        let batch = loader.next()?.0;
        batch.inputs.iter().try_for_each(|(_, tensor)| add(&mut hash, tensor))?;
        add(&mut hash, &batch.returns)?;
    }
    println!("checksum of the next epoch: {:016x}", hash.finish());
    Ok(())
}

/// Short games, each another one.
fn write(folder: &Path, games: u64) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    for seed in 0..games {
        replay::write(&simulate(seed, 120), folder.join(format!("Game_{seed:06}.slp")))?;
    }
    Ok(())
}

fn add(hash: &mut DefaultHasher, tensor: &Tensor) -> Result<()> {
    let tensor = tensor.flatten_all()?;
    match tensor.to_vec1::<u32>() {
        Ok(ids) => ids.iter().for_each(|id| hash.write_u32(*id)),
        Err(_) => tensor.to_vec1::<f32>()?.iter().for_each(|value| hash.write_u32(value.to_bits())),
    }
    Ok(())
}

/// Bytes of a file, or of all files below a folder.
fn size(path: &str) -> Result<f64> {
    let mut bytes = 0;
    let mut below = vec![Path::new(path).to_owned()];
    while let Some(path) = below.pop() {
        match path.is_dir() {
            true => below.extend(path.read_dir()?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?),
            false => bytes += path.metadata()?.len(),
        }
    }
    Ok(bytes as f64)
}

/// Memory maps of this process, where the system tells.
fn maps() -> usize {
    std::fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count())
}

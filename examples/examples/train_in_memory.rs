//! Trains a small policy in memory on simulated games, compares it with the count tables and plays one frame with it.
//!
//! `cargo run --release --example train_in_memory -- [--epochs N] [--frames N]`

use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::engine::Runner;
use candle_models::nn::Params;
use candle_models::policy::actions::Action;
use candle_models::policy::embedding::{Embedding, IDS, WIDTH};
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, Policy};
use candle_models::{Error, device};
use candle_train::policy::config::RunConfig;
use candle_train::policy::loader::Order;
use candle_train::policy::run::{Games, Plan};
use candle_train::policy::shards::Shard;
use candle_train::run::Place;
use candle_train::stop::Stop;
use std::sync::Arc;

fn main() -> Result<()> {
    let threads = device::threads(None)?;
    // SAFETY: no other thread has been started yet.
    unsafe { device::configure_threads(threads) };
    let (mut epochs, mut frames) = (4, 2400);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{argument} needs a value"))?;
        match argument.as_str() {
            "--epochs" => epochs = value.parse().with_context(|| format!("--epochs {value}"))?,
            "--frames" => frames = value.parse().with_context(|| format!("--frames {value}"))?,
            _ => bail!("{argument}: expected --epochs N or --frames N"),
        }
    }

    // Games become rows of observations and actions; one is held out.
    let game = |seed| Ok::<_, Error>(Arc::new(Shard::from_game(&simulate(seed, frames), "simulated")?));
    let games = Games { train: (1..=6).map(game).collect::<Result<_, _>>()?, held_out: vec![game(7)?.into()] };

    let mut config = RunConfig::preset("quick")?;
    config.epochs = epochs;
    config.model.backbone = BackboneConfig::Gru { layers: 1 };
    config.model.hidden = 64;
    let trained = Plan::new(config, &games, Order::Epochs)?.train(&Place::memory(), &Stop::after(None))?;
    println!("nats per frame of a simulated game that was held out:");
    for (name, likelihood) in &trained.table {
        println!("{name:>28}  {:.3}", likelihood.all().total());
    }

    // The averaged parameters make a policy, as those of a bundle would.
    let policy = Policy::new(&trained.config.model, &Params::given(trained.ended.parameters, &Device::Cpu))?;
    let embedding = Embedding::new(&policy.config().names)?;
    let mut runner = Runner::new(Arc::new(policy), 1, 1)?;
    let (mut features, mut ids) = ([0.0; WIDTH], [0; IDS]);
    embedding.encode(&simulate(8, 2), 1, 0, None, &mut features, &mut ids)?;
    runner.set_f32("features", &features)?;
    runner.set_u32("ids", &ids)?;
    runner.step(&[true])?;
    println!("it opens a new game with: {}", Action::from_ids(runner.indices("action", 0)?)?);
    Ok(())
}

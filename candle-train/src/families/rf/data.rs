//! `candle-train rf-data`: data sets of events, their signals and features, in files that depend on the scenario and their number alone.

use super::scenario::{Row, Scenario};
use crate::command::DataArguments;
use crate::shards::MadeOn;
use anyhow::{Context, Result};
use candle_core::Device;
use candle_models::Error;
use candle_models::rf::features::{COUNT, FEATURES, STATISTICS};
use candle_models::rf::localiser::events::Events;
use clap::Args;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    data: DataArguments,
    /// compatible (the published generator and extractor) or physical (delays by distance, and the repaired features).
    #[arg(long, default_value = "compatible")]
    preset: String,
    /// A scenario in TOML whose keys stand in place of the preset's.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A key of the scenario, as events=1000 or signals.samples=20000; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

impl Arguments {
    /// Makes the files that are missing.
    ///
    /// # Errors
    /// If the scenario makes no sense or is not the one that lies there, or the disk is full.
    pub fn run(&self) -> Result<()> {
        let file =
            self.scenario.as_ref().map(|path| std::fs::read_to_string(path).with_context(|| path.display().to_string())).transpose()?;
        let mut scenario = Scenario::resolve(&self.preset, file.as_deref(), &self.sets)?;
        let (device, made_on) = self.data.device()?;
        scenario.device = made_on;
        scenario.validate()?;
        let events = Events::default();
        self.data.fill(&scenario, scenario.shards(), |numbers, done| make(&scenario, &events, numbers, &device, done))
    }
}

/// The bytes of a file.
fn make(
    scenario: &Scenario,
    events: &Events,
    numbers: Range<u64>,
    device: &Device,
    done: &(dyn Fn() + Sync),
) -> candle_models::Result<Vec<u8>> {
    let extractor = scenario.extractor()?;
    let row = |own: &mut _, event| {
        let named = |error: Error| Error::Input(format!("event {event}: {error}"));
        let row = scenario.row(events, own, event).map_err(named);
        done();
        row
    };
    let rows: Vec<Row> = match scenario.device {
        MadeOn::Cpu => numbers.clone().into_par_iter().map_init(|| extractor.clone(), row).collect::<candle_models::Result<_>>()?,
        MadeOn::Cuda => scenario.rows(events, &extractor, numbers.clone(), device, done)?,
    };
    let (n, receivers) = (rows.len(), events.receivers().len());
    let floats =
        |of: fn(&Row) -> &[f32]| rows.iter().flat_map(|row| bytemuck::cast_slice::<f32, u8>(of(row)).to_vec()).collect::<Vec<u8>>();
    let emitters: Vec<u8> = rows.iter().flat_map(|row| row.emitter).flat_map(f64::to_le_bytes).collect();
    let mut parts = vec![
        ("event", Dtype::U64, vec![n], numbers.flat_map(u64::to_le_bytes).collect()),
        ("emitter", Dtype::F64, vec![n, 2], emitters),
        ("receptions", Dtype::F32, vec![n, receivers, 3], floats(|row| &row.receptions)),
        ("features", Dtype::F32, vec![n, receivers, COUNT, STATISTICS.len()], floats(|row| &row.features)),
    ];
    if scenario.iq {
        parts.push(("iq", Dtype::F32, vec![n, receivers, scenario.samples(), 2], floats(|row| &row.iq)));
    }
    let views = parts.iter().map(|(name, dtype, shape, bytes)| TensorView::new(*dtype, shape.clone(), bytes).map(|view| (*name, view)));
    let metadata = HashMap::from([("features".to_owned(), FEATURES.map(|feature| feature.name).join(","))]);
    let bytes = views.collect::<std::result::Result<Vec<_>, _>>().and_then(|views| safetensors::serialize(views, Some(metadata)));
    bytes.map_err(|error| Error::Input(format!("events as safetensors: {error}")))
}

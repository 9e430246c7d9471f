//! `candle-train rf-data`: data sets of events, their signals and features, in files that depend on the scenario and their number alone.
//!
//! A file is complete or absent. Whoever is asked for a part of the files makes those of them that are missing: a run that was killed goes on where it was,
//! and several processes, jobs of an array or ranks, share the work. When none is missing, a manifest with their hashes is written.

use super::scenario::{MadeOn, Row, Scenario, Signals};
use crate::overlay;
use anyhow::{Context, Result, bail};
use candle_core::Device;
use candle_models::device::{ChosenDevice, DeviceChoice};
use candle_models::files::{remove_partial, write_atomic};
use candle_models::rf::features::{COUNT, FEATURES, STATISTICS};
use candle_models::rf::localiser::events::Events;
use candle_models::{Error, cli};
use clap::Args;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// The scenario as it was resolved, beside the data.
const SCENARIO: &str = "scenario.toml";
/// What all files are.
const MANIFEST: &str = "manifest.json";

#[derive(Debug, Args)]
pub struct Arguments {
    /// Where the files go; made if it is not there. What lies there of the same scenario is kept.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// compatible (the published generator and extractor) or physical (delays by distance, and the repaired features).
    #[arg(long, default_value = "compatible")]
    preset: String,
    /// A scenario in TOML whose keys stand in place of the preset's.
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A key of the scenario, as events=1000 or signals.samples=20000; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// The part of the files to make, as 0/4 for the first of four [default: that of an array of jobs or of an MPI launcher, or all].
    #[arg(long, value_name = "I/N")]
    part: Option<String>,
    /// Where the signals of the published generator are made: cpu, cuda, cuda:NUMBER, or auto (a GPU if there is one, or else the CPU with a warning). Those of a GPU
    /// differ by rounding, so a data set is made on one kind of device.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
    /// Threads [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
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
        // Physical signals are made on the CPU, whatever there is.
        let choice = match (&scenario.signals, self.device) {
            (Signals::Physical(_), DeviceChoice::Auto) => DeviceChoice::Cpu,
            (_, choice) => choice,
        };
        let ChosenDevice { device, fallback } = choice.open()?;
        fallback.iter().for_each(cli::warn);
        scenario.device = if device.is_cuda() { MadeOn::Cuda } else { MadeOn::Cpu };
        scenario.validate()?;
        let [part, parts] = self.part()?;
        std::fs::create_dir_all(&self.out).with_context(|| self.out.display().to_string())?;
        note(&self.out, &scenario)?;
        let mine: Vec<u64> = (0..scenario.shards()).filter(|shard| shard % parts == part).collect();
        let missing: Vec<u64> = mine.into_iter().filter(|shard| !self.out.join(name(*shard)).exists()).collect();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0)).build()?;
        let (began, progress) =
            (Instant::now(), cli::progress(missing.iter().map(|shard| scenario.events_of(*shard).count() as u64).sum(), "events"));
        let events = Events::default();
        for shard in &missing {
            // What a killed run left beside it.
            remove_partial(self.out.join(name(*shard)))?;
            let bytes = pool.install(|| make(&scenario, &events, *shard, &device, || progress.inc(1)))?;
            write_atomic(self.out.join(name(*shard)), &bytes)?;
        }
        progress.finish_and_clear();
        let (made, seconds) = (progress.position(), began.elapsed().as_secs_f64());
        if made > 0 {
            println!("{} events in {} files, {:.1} events a second", cli::count(made), missing.len(), made as f64 / seconds);
        }
        finish(&self.out, &scenario)
    }

    /// Which part of how many.
    fn part(&self) -> Result<[u64; 2]> {
        let variable = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
        let of_launcher =
            [("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")];
        let typed = self.part.as_ref().map(|typed| {
            let parsed = typed.split_once('/').and_then(|(part, parts)| Some([part.parse().ok()?, parts.parse().ok()?]));
            parsed
                .filter(|[part, parts]| part < parts)
                .ok_or_else(|| Error::config("--part", format!("expected a number and a greater one, as 0/4, found {typed}")))
        });
        let launched = of_launcher.iter().find_map(|(part, parts)| Some([variable(part)?, variable(parts)?]));
        match typed.transpose()?.or(launched) {
            None => Ok([0, 1]),
            Some([part, parts]) if part < parts => Ok([part, parts]),
            Some([part, parts]) => bail!("the launcher says part {part} of {parts}: name it with --part"),
        }
    }
}

fn name(shard: u64) -> String {
    format!("events-{shard:06}.safetensors")
}

/// Writes the scenario, or compares it with the one that lies there.
fn note(folder: &Path, scenario: &Scenario) -> Result<()> {
    let (path, text) = (folder.join(SCENARIO), overlay::to_toml(scenario)?);
    match std::fs::read_to_string(&path) {
        Ok(found) if found == text => Ok(()),
        Ok(found) => {
            let differs = found.lines().zip(text.lines()).find(|(found, new)| found != new);
            let how = differs.map_or_else(|| "another number of keys".to_owned(), |(found, new)| format!("`{found}` there, `{new}` here"));
            bail!("{}: data of another scenario: {how}; name another folder", path.display())
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(write_atomic(&path, text.as_bytes())?),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// The bytes of a file.
fn make(scenario: &Scenario, events: &Events, shard: u64, device: &Device, done: impl Fn() + Sync) -> Result<Vec<u8>> {
    let (extractor, numbers) = (scenario.extractor()?, scenario.events_of(shard));
    let row = |own: &mut _, event| {
        let row = scenario.row(events, own, event).with_context(|| format!("event {event}"));
        done();
        row
    };
    let rows: Vec<Row> = match scenario.device {
        MadeOn::Cpu => numbers.clone().into_par_iter().map_init(|| extractor.clone(), row).collect::<Result<_>>()?,
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
    let views = parts.iter().map(|(name, dtype, shape, bytes)| Ok((*name, TensorView::new(*dtype, shape.clone(), bytes)?)));
    let metadata = HashMap::from([("features".to_owned(), FEATURES.map(|feature| feature.name).join(","))]);
    Ok(safetensors::serialize(views.collect::<Result<Vec<_>>>()?, Some(metadata))?)
}

/// Writes the manifest if no file is missing.
fn finish(folder: &Path, scenario: &Scenario) -> Result<()> {
    let missing = (0..scenario.shards()).filter(|shard| !folder.join(name(*shard)).exists()).count();
    if missing > 0 {
        println!("{missing} files of other parts are missing");
        return Ok(());
    }
    let hashed = |shard: u64| {
        let path = folder.join(name(shard));
        let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let hash: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(serde_json::json!({ "file": name(shard), "events": scenario.events_of(shard).count(), "bytes": bytes.len(), "sha256": hash }))
    };
    let files: Vec<serde_json::Value> = (0..scenario.shards()).map(hashed).collect::<Result<_>>()?;
    let manifest = serde_json::json!({ "events": scenario.events, "scenario": scenario, "files": files });
    write_atomic(folder.join(MANIFEST), &serde_json::to_vec_pretty(&manifest)?)?;
    println!("{} files of {} events: {}", files.len(), cli::count(scenario.events), folder.join(MANIFEST).display());
    Ok(())
}

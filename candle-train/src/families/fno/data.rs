//! `candle-train pde-data`: data sets of fields that solvers make, in files that depend on the source and their number alone.

use super::config::within;
use super::source::{Equation, Source};
use crate::command::DataArguments;
use crate::overlay;
use crate::shards::{MadeOn, Shards};
use anyhow::{Context, Result};
use candle_core::Tensor;
use candle_models::Error;
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    data: DataArguments,
    /// darcy (media on a square and their flows), burgers (states on a line at 17 times), or ns (the vorticity of a flow at several times).
    #[arg(long, default_value = "darcy")]
    preset: String,
    /// A data set in TOML whose keys stand in place of the preset's.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A key of the data set, as source.count=1000 or source.equation.places=32; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
}

/// A data set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DataSet {
    /// Runs of a file.
    shard: u64,
    /// What runs are made on: the command's `--device` says it.
    device: MadeOn,
    source: Source,
}

impl DataSet {
    fn resolve(preset: &str, file: Option<&str>, sets: &[String]) -> candle_models::Result<Self> {
        let preset = Self { shard: 256, device: MadeOn::Cpu, source: Source { seed: 1, count: 1000, equation: Equation::preset(preset)? } };
        let found = overlay::resolve(&preset, file, sets, &overlay::kind_alone)?;
        overlay::check_counts(&[("shard", found.shard, 1 << 20)])?;
        found.source.validate().map_err(within("source"))?;
        Ok(found)
    }
}

impl Arguments {
    /// Makes the files that are missing: `x` and `y`, as `candle-train operator --fields` reads them.
    ///
    /// # Errors
    /// If the source makes no sense or is not the one that lies there, or the disk is full.
    pub fn run(&self) -> Result<()> {
        let file =
            self.config.as_ref().map(|path| std::fs::read_to_string(path).with_context(|| path.display().to_string())).transpose()?;
        let (device, made_on) = self.data.device()?;
        let mut set = DataSet::resolve(&self.preset, file.as_deref(), &self.sets)?;
        set.device = made_on;
        let shards = Shards { unit: "runs", rows: set.source.count, each: set.shard };
        self.data.fill(&set, shards, |runs, done| {
            let [x, y] = set.source.fields(runs, &device, done)?.tensors()?;
            let tensors: HashMap<&str, Tensor> = HashMap::from([("x", x), ("y", y)]);
            safetensors::serialize(&tensors, None).map_err(|error| Error::Input(format!("fields as safetensors: {error}")))
        })
    }
}

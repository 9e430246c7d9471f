//! What commands have in common that make data sets.

use crate::shards::{self, MadeOn, Shards};
use anyhow::{Result, bail};
use candle_core::Device;
use candle_models::device::{ChosenDevice, DeviceChoice};
use candle_models::{Error, cli};
use clap::Args;
use serde::Serialize;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Instant;

/// Where a data set goes, and how much of it is made here.
#[derive(Debug, Args)]
pub struct DataArguments {
    /// Where the files go; made if it is not there. What lies there of the same data set is kept.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// The part of the files to make, as 0/4 for the first of four [default: that of an array of jobs or of an MPI launcher, or all].
    #[arg(long, value_name = "I/N")]
    part: Option<String>,
    /// Threads [default: all cores].
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where the set is made: cpu, cuda, cuda:NUMBER, or auto (a GPU if there is one, or else the CPU with a warning). What a GPU makes differs by
    /// rounding, so a data set is made on one kind of device.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: DeviceChoice,
}

impl DataArguments {
    /// The device, and what the data set's description says of it.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device(&self) -> Result<(Device, MadeOn)> {
        let ChosenDevice { device, fallback } = self.device.open()?;
        fallback.iter().for_each(cli::warn);
        let made_on = if device.is_cuda() { MadeOn::Cuda } else { MadeOn::Cpu };
        Ok((device, made_on))
    }

    /// Makes the files that are missing: `make` the bytes of one from the numbers of its rows, and calls what it is given after each row.
    ///
    /// # Errors
    /// If another data set lies there, a file cannot be made, or the disk is full.
    pub fn fill(
        &self,
        description: &(impl Serialize + Sync),
        shards: Shards,
        make: impl Fn(Range<u64>, &(dyn Fn() + Sync)) -> candle_models::Result<Vec<u8>> + Sync,
    ) -> Result<()> {
        let part = self.part()?;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(self.threads.unwrap_or(0)).build()?;
        let missing = shards.missing(&self.out, part);
        let rows = missing.iter().map(|rows| rows.end - rows.start).sum();
        let (began, progress) = (Instant::now(), cli::progress(rows, shards.unit));
        let (made, there) = shards::fill(&self.out, description, (shards, part), |rows| pool.install(|| make(rows, &|| progress.inc(1))))?;
        progress.finish_and_clear();
        if made > 0 {
            let (unit, rate) = (shards.unit, made as f64 / began.elapsed().as_secs_f64());
            println!("{} {unit} in {} files, {rate:.1} {unit} a second", cli::count(made), missing.len());
        }
        println!("{there}");
        Ok(())
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

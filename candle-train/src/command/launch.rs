//! `candle-train launch`: ranks on this machine.

use crate::launch::{self, Ended, Ranks};
use crate::parallel::connect::gpus;
use anyhow::{Context, Result, bail};
use candle_models::device::{DeviceChoice, THREADS_VARIABLE};
use clap::Args;
use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct Arguments {
    /// Ranks on this machine: as many GPUs, or without GPUs mpirun's processes, which share the processors.
    #[arg(long, value_name = "N")]
    nproc: usize,
    /// Machines with GPUs, each of which runs this command.
    #[arg(long, value_name = "M", default_value_t = 1, requires_all = ["node_rank", "master_addr"])]
    nnodes: usize,
    /// This machine's number, from 0.
    #[arg(long, value_name = "K", default_value_t = 0)]
    node_rank: usize,
    /// Machine 0, as the others reach it.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    master_addr: String,
    /// A port that is free on machine 0, as is the next one.
    #[arg(long, value_name = "PORT", default_value_t = 29500)]
    master_port: u16,
    /// What every rank runs.
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// After SIGTERM a rank finishes its step and writes a checkpoint.
const GRACE: Duration = Duration::from_secs(120);

impl Arguments {
    /// Starts the ranks: this program with the arguments `before` those of the command. Ends this process with the code of the rank that failed
    /// first.
    pub fn run(&self, before: &[OsString]) -> Result<()> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = std::env::var_os(THREADS_VARIABLE).is_none().then(|| (processors / self.nproc.max(1)).max(1));
        let program = std::env::current_exe().context("the path of this program")?;
        let command = |mut command: Command| {
            if let Some(threads) = threads {
                command.env(THREADS_VARIABLE, threads.to_string());
            }
            command
        };
        if !self.on_gpus()? {
            let mut mpirun = command(launch::mpirun(self.nproc)?);
            return match launch::run_mpirun(mpirun.arg(program).args(before).args(&self.command))? {
                0 => Ok(()),
                // The rank, and mpirun, have said why.
                code => std::process::exit(code.into()),
            };
        }
        let ranks = Ranks {
            nproc: self.nproc,
            nnodes: self.nnodes,
            node_rank: self.node_rank,
            master_addr: self.master_addr.clone(),
            master_port: self.master_port,
            grace: GRACE,
        };
        let ended = launch::run(&ranks, &|| {
            let mut rank = command(Command::new(&program));
            rank.args(before).args(&self.command);
            rank
        })?;
        if let Ended::Badly { rank, code, why } = ended {
            crate::parallel::tell(&format_args!("rank {rank} {why}"));
            std::process::exit(code.into());
        }
        Ok(())
    }

    /// Whether the ranks compute on GPUs, and whether that can be.
    fn on_gpus(&self) -> Result<bool> {
        let typed = typed_device(&self.command).map(|text| text.parse().map_err(|e| anyhow::anyhow!("--device: {e}"))).transpose()?;
        let (nproc, gpus) = (self.nproc, gpus());
        match DeviceChoice::or_environment(typed)? {
            DeviceChoice::Cuda(ordinal) if ordinal > 0 && nproc > 1 => {
                bail!("launch: {nproc} ranks, all on cuda:{ordinal}: use --device cuda")
            }
            DeviceChoice::Cuda(_) => {}
            DeviceChoice::Auto if gpus > 0 => {}
            _ if self.nnodes > 1 => {
                bail!("launch: on CPUs, ranks of several machines are started by mpirun with a list of hosts, or by srun")
            }
            _ if !cfg!(feature = "mpi") => bail!("launch: no GPU, and built without the feature mpi for ranks on CPUs"),
            _ => return Ok(false),
        }
        if !cfg!(feature = "nccl") {
            bail!("launch: built without the feature nccl, by which ranks on GPUs talk");
        }
        if nproc > gpus {
            bail!("launch: {nproc} ranks, {gpus} GPUs here");
        }
        Ok(true)
    }
}

/// What `--device` says in the ranks' arguments.
fn typed_device(command: &[String]) -> Option<&str> {
    let after = |i: usize| command.get(i + 1).map(String::as_str);
    command.iter().enumerate().rev().find_map(|(i, word)| if word == "--device" { after(i) } else { word.strip_prefix("--device=") })
}

//! The ranks of this job, by what started it and what this program was built with.

use super::environment::{Launched, Launcher};
use super::{Communicator, Single};
use candle_core::Device;
use candle_models::device::DeviceChoice;
use candle_models::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

/// The environment variable for the longest time, in seconds, that ranks wait for each other.
pub const LIMIT: &str = "CANDLE_RANK_TIMEOUT";

/// Ten minutes: longer than rank 0 writes a checkpoint or a rank measures its share of the held-out games.
const DEFAULT_LIMIT: Duration = Duration::from_secs(600);

/// How long ranks wait for each other: [`LIMIT`], or ten minutes.
///
/// # Errors
/// If the variable holds no number of seconds from 1 to a million.
pub fn limit() -> Result<Duration> {
    let Some(value) = std::env::var_os(LIMIT) else { return Ok(DEFAULT_LIMIT) };
    let value = value.to_string_lossy();
    let seconds = value.parse::<f64>().ok().filter(|s| (1.0..=1e6).contains(s));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| Error::Input(format!("{LIMIT}: expected seconds from 1 to 1000000, found {value:?}")))
}

/// The device of this rank: of several GPUs that with its local rank. `cuda`, which is `cuda:0`, is any of them: on one GPU all
/// ranks would fail. A launcher that shows every process one GPU only (SLURM's `--gpus-per-task`) has chosen.
pub fn local_device(choice: DeviceChoice, launched: Option<&Launched>, gpus: usize) -> DeviceChoice {
    match (choice, launched) {
        (DeviceChoice::Auto | DeviceChoice::Cuda(0), Some(launched)) if launched.size > 1 && gpus > 1 => {
            DeviceChoice::Cuda(launched.local_rank)
        }
        _ => choice,
    }
}

/// GPUs that this process can see.
#[cfg(feature = "cuda")]
pub fn gpus() -> usize {
    let count = candle_core::cuda_backend::cudarc::driver::CudaContext::device_count();
    count.ok().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)
}

/// GPUs that this process can see: none, as it was built without CUDA.
#[cfg(not(feature = "cuda"))]
pub fn gpus() -> usize {
    0
}

/// The ranks of this job: over NCCL where `device` is a GPU, over MPI where it is the CPU and MPI's launcher or SLURM started it, none
/// where nothing did. `configuration` is the same text on every rank, or the ranks are refused.
///
/// # Errors
/// Where the job has several ranks and this program no way to reach them: which launcher or which feature is missing. Never a run
/// of one rank in place of several.
pub fn connect(launched: Option<&Launched>, device: &Device, configuration: &str) -> Result<Arc<dyn Communicator>> {
    let Some(launched) = launched.filter(|launched| launched.size > 1) else { return Ok(Arc::new(Single)) };
    let limit = limit()?;
    if device.is_cuda() { on_gpus(launched, device, configuration, limit) } else { on_cpus(launched, limit) }
}

fn started(launched: &Launched) -> String {
    format!("started as rank {} of {} by {}", launched.rank, launched.size, launched.launcher)
}

#[cfg(feature = "nccl")]
fn on_gpus(launched: &Launched, device: &Device, configuration: &str, limit: Duration) -> Result<Arc<dyn Communicator>> {
    Ok(Arc::new(super::nccl::NcclRank::join(launched, device, configuration, limit)?))
}

#[cfg(not(feature = "nccl"))]
fn on_gpus(launched: &Launched, _: &Device, _: &str, _: Duration) -> Result<Arc<dyn Communicator>> {
    Err(Error::Input(format!("{} on a GPU, but built without the feature nccl", started(launched))))
}

fn on_cpus(launched: &Launched, limit: Duration) -> Result<Arc<dyn Communicator>> {
    if launched.launcher == Launcher::Torchrun {
        let (started, size) = (started(launched), launched.size);
        return Err(Error::Input(format!("{started} without a GPU: on CPUs ranks talk over MPI, started by mpirun -n {size} or srun")));
    }
    over_mpi(launched, limit)
}

#[cfg(feature = "mpi")]
fn over_mpi(launched: &Launched, limit: Duration) -> Result<Arc<dyn Communicator>> {
    let ranks = super::mpi::MpiRank::join(limit)?;
    if (ranks.rank(), ranks.size()) != (launched.rank, launched.size) {
        // An mpirun of another MPI, or srun without it: every process would be a job of its own.
        let (rank, size) = (ranks.rank(), ranks.size());
        return Err(Error::Input(format!(
            "{}, but MPI counts rank {rank} of {size}: the launcher belongs to another MPI",
            started(launched)
        )));
    }
    Ok(Arc::new(ranks))
}

#[cfg(not(feature = "mpi"))]
fn over_mpi(launched: &Launched, _: Duration) -> Result<Arc<dyn Communicator>> {
    Err(Error::Input(format!("{}, but built without the feature mpi", started(launched))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::environment::read;

    fn launched(variables: &[(&str, &str)]) -> Option<Launched> {
        read(&|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned())).unwrap()
    }

    #[test]
    fn nothing_that_starts_several_ranks_trains_them_one_by_one() {
        assert_eq!(connect(None, &Device::Cpu, "").unwrap().size(), 1);
        let one = launched(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")]);
        assert_eq!(connect(one.as_ref(), &Device::Cpu, "").unwrap().size(), 1);
        let master = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
        let torchrun = launched(&[&[("RANK", "1"), ("WORLD_SIZE", "4")], &master[..]].concat());
        let error = connect(torchrun.as_ref(), &Device::Cpu, "").unwrap_err().to_string();
        assert!(error.contains("rank 1 of 4 by torchrun") && error.contains("mpirun -n 4"), "{error}");
    }

    #[cfg(not(feature = "mpi"))]
    #[test]
    fn a_missing_feature_is_named() {
        let mpirun = launched(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")]);
        let error = connect(mpirun.as_ref(), &Device::Cpu, "").unwrap_err().to_string();
        assert_eq!(error, "started as rank 1 of 4 by mpirun, but built without the feature mpi");
    }

    #[test]
    fn a_rank_takes_the_gpu_of_its_number_unless_told_otherwise() {
        let third = launched(&[("PMI_RANK", "5"), ("PMI_SIZE", "8"), ("MPI_LOCALRANKID", "2")]);
        for (choice, gpus, expected) in [
            (DeviceChoice::Auto, 4, DeviceChoice::Cuda(2)),
            (DeviceChoice::Auto, 1, DeviceChoice::Auto),
            (DeviceChoice::Auto, 0, DeviceChoice::Auto),
            (DeviceChoice::Cuda(0), 4, DeviceChoice::Cuda(2)),
            (DeviceChoice::Cuda(1), 4, DeviceChoice::Cuda(1)),
            (DeviceChoice::Cpu, 4, DeviceChoice::Cpu),
        ] {
            assert_eq!(local_device(choice, third.as_ref(), gpus), expected);
        }
        assert_eq!(local_device(DeviceChoice::Auto, None, 4), DeviceChoice::Auto);
    }
}

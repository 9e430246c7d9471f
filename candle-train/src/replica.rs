//! What the ranks of a run exchange: each holds a replica of the parameters and a share of every batch.

use crate::checkpoint::{Checkpoint, TaskFiles};
use crate::gradients::Gradients;
use crate::parallel::{Communicator, from_first, gather, share};
use crate::stop::Reason;
use candle_core::safetensors::load_buffer;
use candle_core::{Device, Tensor, Var};
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::collections::BTreeMap;

/// What is summed over the ranks beside gradients.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Figures that add up: means multiplied by the weight, and sums.
    pub figures: Tensor,
    /// The weight of all losses.
    pub weight: f64,
    /// How many samples.
    pub samples: usize,
    /// What the run has taken so far; that of rank 0 counts.
    pub seconds: f64,
    /// Whether a rank was asked to stop.
    pub stop: Option<Reason>,
}

/// Sums figures and weights over the ranks, and spreads a wish to stop to all of them in the same step. Parameters that any rank's
/// loss depended on count as present on all.
pub(crate) fn share_figures(ranks: &dyn Communicator, gradients: &mut Gradients, mine: Shared) -> Result<Shared> {
    if ranks.size() == 1 {
        return Ok(mine);
    }
    let Shared { figures, weight, samples, seconds, stop } = mine;
    let flag = |set: bool| f32::from(u8::from(set));
    let seconds = if ranks.rank() == 0 { seconds as f32 } else { 0.0 };
    let mut control = vec![weight as f32, samples as f32, flag(stop == Some(Reason::Signal)), flag(stop == Some(Reason::Time)), seconds];
    let first = control.len();
    control.extend(gradients.present().into_iter().map(flag));
    ranks.all_reduce(&mut control)?;
    let present: Vec<bool> = control[first..].iter().map(|n| *n > 0.0).collect();
    gradients.set_present(&present);
    let figures = sum(ranks, figures)?;
    let stop = if control[2] > 0.0 { Some(Reason::Signal) } else { (control[3] > 0.0).then_some(Reason::Time) };
    Ok(Shared { figures, weight: control[0].into(), samples: control[1] as usize, seconds: control[4].into(), stop })
}

/// The sum over all ranks of a contiguous f32 tensor.
fn sum(ranks: &dyn Communicator, tensor: Tensor) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if tensor.device().is_cuda() {
        ranks.all_reduce_cuda(&tensor)?;
        return Ok(tensor);
    }
    let mut values = tensor.flatten_all()?.to_vec1::<f32>()?;
    ranks.all_reduce(&mut values)?;
    Ok(Tensor::from_vec(values, tensor.shape(), tensor.device())?)
}

/// Gives every rank the parameters of rank 0.
pub(crate) fn broadcast_parameters(ranks: &dyn Communicator, vars: &BTreeMap<String, Var>) -> Result<()> {
    if ranks.size() == 1 {
        return Ok(());
    }
    for var in vars.values() {
        let mut values = var.flatten_all()?.to_vec1::<f32>()?;
        ranks.broadcast(bytemuck::cast_slice_mut(&mut values), 0)?;
        var.set(&Tensor::from_vec(values, var.shape(), var.device())?)?;
    }
    Ok(())
}

/// A hash of all bits of all parameters, in name order.
pub(crate) fn checksum(vars: &BTreeMap<String, Var>) -> Result<u64> {
    // FNV-1a over words: it finds what drifts, and is no protection against malice.
    vars.values().try_fold(0xcbf2_9ce4_8422_2325_u64, |hash, var| {
        let values = var.flatten_all()?.to_vec1::<f32>()?;
        Ok(values.iter().fold(hash, |hash, v| (hash ^ u64::from(v.to_bits())).wrapping_mul(0x0100_0000_01b3)))
    })
}

/// The carried tensors of all ranks, row after row.
pub(crate) fn all_rows(ranks: &dyn Communicator, mine: NamedTensors) -> Result<NamedTensors> {
    if ranks.size() == 1 {
        return Ok(mine);
    }
    let failed = |e: safetensors::SafeTensorError| Error::Input(format!("carried tensors: {e}"));
    let bytes = safetensors::serialize(mine.iter(), None).map_err(failed)?;
    let all = ranks.all_gather(&bytes)?;
    let all = all.iter().map(|bytes| load_buffer(bytes, &Device::Cpu)).collect::<candle_core::Result<Vec<_>>>()?;
    mine.map(|name, _| {
        let parts = all
            .iter()
            .enumerate()
            .map(|(rank, tensors)| tensors.get(name).ok_or_else(|| Error::Input(format!("rank {rank} carries no {name}"))));
        Ok(Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)?)
    })
}

/// The files that the tasks of all ranks wrote, by name with their hashes; or what kept a rank from it.
pub(crate) fn all_files(
    ranks: &dyn Communicator,
    mine: std::result::Result<&BTreeMap<String, String>, String>,
) -> Result<Result<BTreeMap<String, String>>> {
    let (mut all, mut failed) = (BTreeMap::new(), None);
    for (rank, files) in gather(ranks, &mine.cloned())?.into_iter().enumerate() {
        match files {
            Ok(files) => all.extend(files),
            Err(error) if ranks.size() > 1 => failed = failed.or_else(|| Some(Error::Input(format!("rank {rank}: {error}")))),
            Err(error) => failed = Some(Error::Input(error)),
        }
    }
    Ok(failed.map_or(Ok(all), Err))
}

/// This rank's rows of the carried tensors of all ranks.
pub(crate) fn own_rows(ranks: &dyn Communicator, all: &NamedTensors) -> Result<NamedTensors> {
    all.map(|_, tensor| {
        let rows = share(tensor.dim(0)?, ranks.rank(), ranks.size());
        Ok(tensor.narrow(0, rows.start, rows.len())?.contiguous()?)
    })
}

/// The checkpoint of rank 0 on every rank: the others need not see its disk, but for files of the task.
pub(crate) fn broadcast_checkpoint(ranks: &dyn Communicator, found: Option<Checkpoint>) -> Result<Option<Checkpoint>> {
    if ranks.size() == 1 {
        return Ok(found);
    }
    let failed = |e: &dyn std::fmt::Display| Error::Input(format!("checkpoint between ranks: {e}"));
    let head = found.as_ref().map(|c| (c.step, c.score, &c.state, c.tensors.keys().collect::<Vec<_>>(), &c.files));
    let head = from_first(ranks, serde_json::to_vec(&head).map_err(|e| failed(&e))?)?;
    type Head = (u64, Option<f64>, serde_json::Value, Vec<String>, TaskFiles);
    let head: Option<Head> = serde_json::from_slice(&head).map_err(|e| failed(&e))?;
    let Some((step, score, state, groups, files)) = head else { return Ok(None) };
    let mut checkpoint = Checkpoint { step, score, state, files, ..Checkpoint::default() };
    for group in groups {
        let mine = match &found {
            Some(found) => safetensors::serialize(found.group(&group)?.iter(), None).map_err(|e| failed(&e))?,
            None => Vec::new(),
        };
        let bytes = from_first(ranks, mine)?;
        checkpoint.tensors.insert(group, load_buffer(&bytes, &Device::Cpu)?.into_iter().collect());
    }
    Ok(Some(checkpoint))
}

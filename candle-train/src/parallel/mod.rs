//! Data parallelism: what ranks say to each other.
//!
//! A run has R ranks, each with all parameters and its share of every batch. After the backward pass the gradients are summed over
//! the ranks, so that all of them make the same update. [`Communicator`] is the little that training needs of a message-passing
//! library; [`Single`] is a run of one rank, [`threads`] ranks in one process, `mpi` processes on CPUs, `nccl` processes on GPUs.
//! [`connect`](connect::connect) picks one by what started this process.
//!
//! ```
//! use candle_train::parallel::{Communicator, Single, share};
//!
//! let ranks = Single; // a run alone is a group of one
//! assert_eq!(share(10, ranks.rank(), ranks.size()), 0..10);
//! assert_eq!((0..3).map(|rank| share(10, rank, 3)).collect::<Vec<_>>(), [0..3, 3..6, 6..10]);
//! ```

pub mod connect;
pub mod environment;
#[cfg(feature = "mpi")]
pub mod mpi;
#[cfg(feature = "nccl")]
pub mod nccl;
pub mod rendezvous;
pub mod threads;
pub mod watch;

use candle_models::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{fmt::Debug, io::Write};

/// A group of ranks. Every rank calls the same functions in the same order; a call returns when all ranks have made it.
///
/// # Errors
/// All functions fail when a rank is lost or does not come within the group's time limit; the message names it.
///
/// ```
/// use candle_train::parallel::{Communicator, share, threads};
/// use std::time::Duration;
/// # fn main() -> candle_models::Result<()> {
/// let sums = std::thread::scope(|scope| {
///     let rank = |rank: threads::ThreadRank| {
///         let mut mine = [share(10, rank.rank(), rank.size()).len() as f32]; // of ten samples
///         rank.all_reduce(&mut mine).map(|()| mine[0])
///     };
///     let ranks: Vec<_> = threads::group(3, Duration::from_secs(60)).into_iter().map(|r| scope.spawn(move || rank(r))).collect();
///     ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect::<candle_models::Result<Vec<f32>>>()
/// })?;
/// assert_eq!(sums, [10.0; 3]);
/// # Ok(())
/// # }
/// ```
pub trait Communicator: Debug + Send + Sync {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// Replaces `values` by their sum over all ranks: the same bits on every rank, whatever the order of their arrival.
    fn all_reduce(&self, values: &mut [f32]) -> Result<()>;

    /// Replaces `bytes` by those of rank `root`. All ranks pass the same length.
    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()>;

    /// What every rank passed, in the order of ranks; lengths may differ.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Waits for all ranks.
    fn barrier(&self) -> Result<()>;

    /// Tells the others that this rank gives up and why; their next call fails with that. May end the process.
    fn abandon(&self, why: &str);

    /// [`Self::all_reduce`] of a contiguous f32 tensor on a GPU, in place.
    #[cfg(feature = "cuda")]
    fn all_reduce_cuda(&self, tensor: &candle_core::Tensor) -> Result<()> {
        through_host(self, tensor)
    }
}

/// For communicators that reach no GPU: copied to the host and back.
#[cfg(feature = "cuda")]
fn through_host<C: Communicator + ?Sized>(ranks: &C, tensor: &candle_core::Tensor) -> Result<()> {
    let mut values = tensor.flatten_all()?.to_vec1::<f32>()?;
    ranks.all_reduce(&mut values)?;
    let sum = candle_core::Tensor::from_vec(values, tensor.shape(), tensor.device())?;
    Ok(tensor.slice_set(&sum, 0, 0)?)
}

/// A run of one rank.
#[derive(Debug, Clone, Copy, Default)]
pub struct Single;

impl Communicator for Single {
    fn rank(&self) -> usize {
        0
    }
    fn size(&self) -> usize {
        1
    }
    fn all_reduce(&self, _: &mut [f32]) -> Result<()> {
        Ok(())
    }
    fn broadcast(&self, _: &mut [u8], root: usize) -> Result<()> {
        check_root(self, root)
    }
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }
    fn barrier(&self) -> Result<()> {
        Ok(())
    }
    fn abandon(&self, _: &str) {}
    #[cfg(feature = "cuda")]
    fn all_reduce_cuda(&self, _: &candle_core::Tensor) -> Result<()> {
        Ok(())
    }
}

/// As much of a text as `limit` bytes hold.
fn shortened(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
    &text[..end]
}

fn check_root(ranks: &dyn Communicator, root: usize) -> Result<()> {
    if root >= ranks.size() {
        return Err(Error::Input(format!("rank {root} of {}", ranks.size())));
    }
    Ok(())
}

/// What every rank passed, in the order of ranks.
pub fn gather<T: Serialize + DeserializeOwned + Clone>(ranks: &dyn Communicator, mine: &T) -> Result<Vec<T>> {
    if ranks.size() == 1 {
        return Ok(vec![mine.clone()]);
    }
    let failed = |e: serde_json::Error| Error::Input(format!("between ranks: {e}"));
    let all = ranks.all_gather(&serde_json::to_vec(mine).map_err(failed)?)?;
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(failed)).collect()
}

/// The bytes of rank 0 on every rank. The others' `mine` is ignored.
pub fn from_first(ranks: &dyn Communicator, mine: Vec<u8>) -> Result<Vec<u8>> {
    let mut length = (mine.len() as u64).to_le_bytes();
    ranks.broadcast(&mut length, 0)?;
    let length = usize::try_from(u64::from_le_bytes(length)).map_err(|e| Error::Input(format!("between ranks: {e}")))?;
    let mut bytes = mine;
    bytes.resize(length, 0);
    ranks.broadcast(&mut bytes, 0)?;
    Ok(bytes)
}

/// Writes an error to standard error, as one line in one piece: a launcher forwards what many processes write between lines of its own,
/// and may cut wherever one write ends.
pub fn tell(error: &dyn std::fmt::Display) {
    let line = format!("error: {error:#}\n");
    // Where standard error cannot be written to, there is no other place to report to.
    drop(std::io::stderr().write_all(line.as_bytes()));
}

/// What is this rank's of `n` things in a row: shares differ by one at most, and lie in the order of ranks.
pub fn share(n: usize, rank: usize, size: usize) -> std::ops::Range<usize> {
    n * rank / size..n * (rank + 1) / size
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_cover_everything_once() {
        for (n, size) in [(8, 3), (2, 4), (7, 7), (0, 2), (32, 1)] {
            let all: Vec<usize> = (0..size).flat_map(|rank| share(n, rank, size)).collect();
            assert_eq!(all, (0..n).collect::<Vec<_>>());
            assert!((0..size).all(|rank| share(n, rank, size).len().abs_diff(n / size) <= 1));
        }
    }

    #[test]
    fn texts_are_cut_between_characters() {
        assert_eq!([0, 1, 2, 3, 9].map(|limit| shortened("aäb", limit)), ["", "a", "a", "aä", "aäb"]);
    }

    #[test]
    fn one_rank_is_alone() {
        let mut values = [1.0, 2.0];
        Single.all_reduce(&mut values).unwrap();
        assert_eq!(values, [1.0, 2.0]);
        assert_eq!(gather(&Single, &"x".to_owned()).unwrap(), ["x"]);
        assert!(Single.broadcast(&mut [], 1).is_err());
    }
}

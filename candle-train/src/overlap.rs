//! Gradients that are summed over the ranks while the backward pass still makes the others.
//!
//! Every parameter enters the last loss of a step through a [`Hook`], an identity whose backward is called when the parameter's
//! gradient is complete. A bucket whose gradients are all complete is reduced at once, on a thread of its own. Buckets are sent there in
//! one fixed order, the last one first, as a backward pass reaches late layers first and ranks must agree; those that are incomplete
//! at the end, as some parameter was not used, are sent then. The sums are those of [`Gradients::reduce`], bit for bit.

use crate::gradients::{Buckets, Gradients};
use crate::parallel::Communicator;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, Var};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The reduction of one step's gradients over the ranks, started before its last backward pass.
pub(crate) struct PendingReduction {
    buckets: Arc<SharedBuckets>,
    reducing: JoinHandle<Result<Vec<Bucket>>>,
}

/// Number and values of a bucket.
type Bucket = (usize, Vec<f32>);

struct SharedBuckets(Mutex<BucketState>);

/// What has not been given to the reducing thread yet.
struct BucketState {
    buckets: Buckets,
    /// Parameters whose gradients each bucket still waits for.
    missing: Vec<usize>,
    /// Buckets that have not been sent: all before this one.
    unsent: usize,
    sender: Sender<Bucket>,
}

impl SharedBuckets {
    fn lock(&self) -> MutexGuard<'_, BucketState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BucketState {
    fn add(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        let bucket = self.buckets.add_one(parameter, gradient)?;
        self.missing[bucket] -= 1;
        while self.unsent > 0 && self.missing[self.unsent - 1] == 0 {
            self.send_last();
        }
        Ok(())
    }

    fn send_last(&mut self) {
        self.unsent -= 1;
        // Where the thread has ended, its error is found by `PendingReduction::finish`.
        let _ = self.sender.send((self.unsent, self.buckets.take_bucket(self.unsent)));
    }
}

impl PendingReduction {
    /// Takes the gradients of a host until [`Self::finish`]; none where they lie elsewhere. Returns the parameters to compute the last
    /// loss with.
    pub fn start(
        gradients: &mut Gradients,
        vars: &BTreeMap<String, Var>,
        ranks: &Arc<dyn Communicator>,
    ) -> Result<Option<(Self, BTreeMap<String, Tensor>)>> {
        let Some(buckets) = gradients.take_buckets() else { return Ok(None) };
        let (sender, receiver) = channel();
        let missing = buckets.members();
        let state = BucketState { unsent: missing.len(), missing, buckets, sender };
        let buckets = Arc::new(SharedBuckets(Mutex::new(state)));
        let hooked = vars
            .iter()
            .enumerate()
            .map(|(parameter, (name, var))| Ok((name.clone(), var.as_tensor().apply_op1(Hook { parameter, buckets: buckets.clone() })?)));
        let hooked = hooked.collect::<Result<_>>()?;
        let ranks = ranks.clone();
        let reducing = std::thread::Builder::new().name("all-reduce".into()).spawn(move || reduce(&*ranks, &receiver));
        let reducing = reducing.map_err(|e| Error::Input(format!("cannot start the thread of the all-reduce: {e}")))?;
        Ok(Some((Self { buckets, reducing }, hooked)))
    }

    /// After the backward pass: waits until everything has been summed, and gives the gradients back.
    pub fn finish(self, gradients: &mut Gradients) -> Result<()> {
        let mut state = self.buckets.lock();
        state.buckets.clear_absent();
        while state.unsent > 0 {
            state.send_last();
        }
        // Without a sender the other thread ends.
        state.sender = channel().0;
        let reduced = self.reducing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut buckets = std::mem::take(&mut state.buckets);
        reduced.into_iter().for_each(|(bucket, values)| buckets.put_bucket(bucket, values));
        gradients.put_buckets(buckets);
        Ok(())
    }
}

fn reduce(ranks: &dyn Communicator, buckets: &Receiver<Bucket>) -> Result<Vec<Bucket>> {
    let mut reduced = Vec::new();
    for (bucket, mut values) in buckets {
        ranks.all_reduce(&mut values)?;
        reduced.push((bucket, values));
    }
    Ok(reduced)
}

/// The identity, whose backward says that a parameter's gradient is complete.
struct Hook {
    parameter: usize,
    buckets: Arc<SharedBuckets>,
}

impl CustomOp1 for Hook {
    fn name(&self) -> &'static str {
        "hook"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        match (storage, layout.contiguous_offsets()) {
            (CpuStorage::F32(values), Some((start, end))) => Ok((CpuStorage::F32(values[start..end].to_vec()), layout.shape().clone())),
            _ => candle_core::bail!("hook: expected a contiguous f32 parameter, found {layout:?}"),
        }
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, gradient: &Tensor) -> candle_core::Result<Option<Tensor>> {
        self.buckets.lock().add(self.parameter, gradient).map_err(candle_core::Error::wrap)?;
        Ok(None)
    }
}

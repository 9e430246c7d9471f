//! Gradients that are summed over the ranks while the backward pass still makes the others.
//!
//! Every parameter enters the last loss of a step through a [`Hook`], an identity whose backward is called when the parameter's
//! gradient is complete. A bucket whose parameters are all there leaves for the other ranks on a thread of its own. Buckets leave in
//! one fixed order, the last one first, as a backward pass reaches late layers first and ranks must agree; those that are still here
//! at the end, as some parameter was not used, leave then. The sums are those of [`Gradients::reduce`], bit for bit.

use crate::gradients::{Buckets, Gradients};
use crate::parallel::Communicator;
use candle_core::{CpuStorage, CustomOp1, Layout, Shape, Tensor, Var};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The gradients of one step on their way.
pub(crate) struct Flight {
    gate: Arc<Gate>,
    travelling: JoinHandle<Result<Vec<Bucket>>>,
}

/// Number and values of a bucket.
type Bucket = (usize, Vec<f32>);

struct Gate(Mutex<Boarding>);

/// What has not left yet.
struct Boarding {
    buckets: Buckets,
    /// Parameters that each bucket still waits for.
    missing: Vec<usize>,
    /// Buckets that have not left: all before this one.
    here: usize,
    leave: Sender<Bucket>,
}

impl Gate {
    fn lock(&self) -> MutexGuard<'_, Boarding> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Boarding {
    fn arrive(&mut self, parameter: usize, gradient: &Tensor) -> Result<()> {
        let bucket = self.buckets.add_one(parameter, gradient)?;
        self.missing[bucket] -= 1;
        while self.here > 0 && self.missing[self.here - 1] == 0 {
            self.send_last();
        }
        Ok(())
    }

    fn send_last(&mut self) {
        self.here -= 1;
        // Where the other end is gone, its error is found when the flight lands.
        let _ = self.leave.send((self.here, self.buckets.take_bucket(self.here)));
    }
}

impl Flight {
    /// Takes the gradients of a host until [`Self::land`]; none where they lie elsewhere. Returns the parameters to compute the last
    /// loss with.
    pub fn start(
        gradients: &mut Gradients,
        vars: &BTreeMap<String, Var>,
        ranks: &Arc<dyn Communicator>,
    ) -> Result<Option<(Self, BTreeMap<String, Tensor>)>> {
        let Some(buckets) = gradients.take_buckets() else { return Ok(None) };
        let (leave, arrivals) = channel();
        let missing = buckets.members();
        let boarding = Boarding { here: missing.len(), missing, buckets, leave };
        let gate = Arc::new(Gate(Mutex::new(boarding)));
        let hooked = vars
            .iter()
            .enumerate()
            .map(|(parameter, (name, var))| Ok((name.clone(), var.as_tensor().apply_op1(Hook { parameter, gate: gate.clone() })?)));
        let hooked = hooked.collect::<Result<_>>()?;
        let ranks = ranks.clone();
        let travel = std::thread::Builder::new().name("all-reduce".into()).spawn(move || travel(&*ranks, &arrivals));
        let travelling = travel.map_err(|e| Error::Input(format!("cannot start the thread of the all-reduce: {e}")))?;
        Ok(Some((Self { gate, travelling }, hooked)))
    }

    /// After the backward pass: waits until everything has been summed, and gives the gradients back.
    pub fn land(self, gradients: &mut Gradients) -> Result<()> {
        let mut boarding = self.gate.lock();
        boarding.buckets.clear_absent();
        while boarding.here > 0 {
            boarding.send_last();
        }
        // Without a sender the other thread ends.
        boarding.leave = channel().0;
        let landed = self.travelling.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let mut buckets = std::mem::take(&mut boarding.buckets);
        landed.into_iter().for_each(|(bucket, values)| buckets.put_bucket(bucket, values));
        gradients.put_buckets(buckets);
        Ok(())
    }
}

fn travel(ranks: &dyn Communicator, arrivals: &Receiver<Bucket>) -> Result<Vec<Bucket>> {
    let mut landed = Vec::new();
    for (bucket, mut values) in arrivals {
        ranks.all_reduce(&mut values)?;
        landed.push((bucket, values));
    }
    Ok(landed)
}

/// The identity, whose backward says that a parameter's gradient is complete.
struct Hook {
    parameter: usize,
    gate: Arc<Gate>,
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
        self.gate.lock().arrive(self.parameter, gradient).map_err(candle_core::Error::wrap)?;
        Ok(None)
    }
}

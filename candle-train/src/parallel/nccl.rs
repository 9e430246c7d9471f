//! Ranks as processes with a GPU each, over NCCL.
//!
//! Sums of tensors are put on the tensor's own stream and not waited for. What makes them safe to wait for is beside them:
//! the [`Watch`] knows within seconds of a process that is gone, and a clock of this rank sees a call that no rank may lose
//! but one does not make. Both abort the group, so that the stream goes on (with values that mean nothing), and the next call
//! of this rank fails with the culprit's name. Hence a [`barrier`](Communicator::barrier) before anything is kept, such as a checkpoint.

use super::environment::Launched;
use super::rendezvous::{Token, meet};
use super::watch::Watch;
use super::{Communicator, check_root};
use candle_core::backend::BackendDevice;
use candle_core::cuda_backend::cudarc::driver::CudaEvent;
use candle_core::cuda_backend::cudarc::nccl::result::{self, NcclError};
use candle_core::cuda_backend::cudarc::nccl::{Id, sys};
use candle_core::{CudaDevice, DType, Device, Tensor};
use candle_models::cuda::address;
use candle_models::{Error, Result};
use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const TICK: Duration = Duration::from_millis(100);
/// How long a call may wait for a rank that has ended before it.
const PARTING: Duration = Duration::from_secs(5);

/// This process as a rank of a group of GPUs.
pub struct NcclRank {
    rank: usize,
    size: usize,
    device: CudaDevice,
    group: Arc<Group>,
    clock: Option<JoinHandle<()>>,
}

/// What the watch's and the clock's threads share with the rank's.
struct Group {
    limit: Duration,
    watch: Watch,
    state: Mutex<State>,
    done: AtomicBool,
}

struct State {
    group: Stage,
    /// Calls on the stream that may not have ended, oldest first.
    calls: VecDeque<(Instant, CudaEvent)>,
    /// Why the group was aborted.
    failure: Option<String>,
}

enum Stage {
    Connecting(Instant),
    Connected(Handle),
    Ended,
}

/// NCCL's communicator.
struct Handle(sys::ncclComm_t);

// SAFETY: NCCL lets any thread use a communicator as long as one does at a time, which the mutex around `State` sees to.
unsafe impl Send for Handle {}

fn failed(what: &str, error: &NcclError) -> Error {
    // SAFETY: NCCL gives a static text for any code, and the text of this thread's last error for no communicator.
    let [text, last] = unsafe {
        [sys::ncclGetErrorString(error.0), sys::ncclGetLastError(std::ptr::null_mut())]
            .map(|text| if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() })
    };
    let last = last.trim();
    let hint = if last.is_empty() { "NCCL_DEBUG=INFO says more" } else { last };
    Error::Input(format!("NCCL: {what}: {text} ({hint})"))
}

impl NcclRank {
    /// Meets the other ranks, and connects their GPUs. Ranks wait for each other for `limit` at most.
    ///
    /// # Errors
    /// As those of [`meet`]; where NCCL cannot connect the GPUs.
    pub fn join(launched: &Launched, device: &Device, configuration: &str, limit: Duration) -> Result<Self> {
        let device = device.as_cuda_device()?.clone();
        let (watch, token) = meet(launched, configuration, limit, || {
            let id = Id::new().map_err(|e| failed("a new group", &e))?;
            Ok(id.internal().map(|c| c as u8))
        })?;
        let state = State { group: Stage::Connecting(Instant::now()), calls: VecDeque::new(), failure: None };
        let group = Arc::new(Group { limit, watch, state: Mutex::new(state), done: AtomicBool::new(false) });
        let clock = {
            let group = group.clone();
            std::thread::Builder::new().name("rank clock".into()).spawn(move || group.run())
        };
        let clock = Some(clock.map_err(|e| Error::Input(format!("rank clock: {e}")))?);
        let ranks = Self { rank: launched.rank, size: launched.size, device, group, clock };
        ranks.connect(token)?;
        Ok(ranks)
    }

    fn connect(&self, token: Token) -> Result<()> {
        let stream = self.device.cuda_stream();
        stream.context().bind_to_thread().map_err(|e| Error::Input(format!("CUDA: {e}")))?;
        let (size, rank) = (number(self.size)?, number(self.rank)?);
        let id = sys::ncclUniqueId { internal: token.map(|b| b as c_char) };
        let mut handle = std::ptr::null_mut();
        // SAFETY: `handle` is a place for the result; the context of this rank's GPU is current.
        unsafe { result::comm_init_rank(&raw mut handle, size, id, rank) }.map_err(|e| failed("connecting the ranks", &e))?;
        self.group.lock().group = Stage::Connected(Handle(handle));
        Ok(())
    }

    /// Puts a call on the stream.
    fn call(&self, what: &str, call: impl FnOnce(sys::ncclComm_t, sys::cudaStream_t) -> std::result::Result<(), NcclError>) -> Result<()> {
        self.group.check()?;
        let stream = self.device.cuda_stream();
        let mut state = self.group.lock();
        let Stage::Connected(handle) = &state.group else {
            return Err(Error::Input("NCCL: the group has ended".into()));
        };
        call(handle.0, stream.cu_stream().cast()).map_err(|e| failed(what, &e))?;
        let event = stream.record_event(None).map_err(|e| Error::Input(format!("CUDA: {e}")))?;
        state.calls.push_back((Instant::now(), event));
        self.group.watch.count();
        Ok(())
    }

    /// Waits for all calls so far, and checks that they were made by all ranks.
    fn settle(&self) -> Result<()> {
        self.device.synchronize()?;
        self.group.check()
    }

    fn upload(&self, bytes: &[u8]) -> Result<Tensor> {
        // NCCL wants an address even of nothing.
        let bytes = if bytes.is_empty() { &[0] } else { bytes };
        Ok(Tensor::from_slice(bytes, bytes.len(), &Device::Cuda(self.device.clone()))?)
    }

    /// The same number of bytes of every rank, one after the other.
    fn gather_equal(&self, mine: &[u8]) -> Result<Vec<u8>> {
        let mine = self.upload(mine)?;
        let all = Tensor::zeros(mine.elem_count() * self.size, DType::U8, mine.device())?;
        let (from, to) = (address(&mine)?, address(&all)?);
        self.call("gathering", |group, stream| {
            let kind = sys::ncclDataType_t::ncclUint8;
            // SAFETY: both tensors live until the stream has been waited for below, and are as long as the call says.
            unsafe { result::all_gather(from as *const c_void, to as *mut c_void, mine.elem_count(), kind, group, stream) }.map(drop)
        })?;
        self.settle()?;
        Ok(all.to_vec1()?)
    }
}

fn number(n: usize) -> Result<c_int> {
    c_int::try_from(n).map_err(|_| Error::Input(format!("NCCL: {n} ranks")))
}

impl Communicator for NcclRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<()> {
        if values.is_empty() {
            return self.barrier();
        }
        let sum = Tensor::from_slice(values, values.len(), &Device::Cuda(self.device.clone()))?;
        self.all_reduce_cuda(&sum)?;
        self.settle()?;
        values.copy_from_slice(&sum.to_vec1::<f32>()?);
        Ok(())
    }

    fn broadcast(&self, bytes: &mut [u8], root: usize) -> Result<()> {
        check_root(self, root)?;
        let tensor = self.upload(bytes)?;
        let (at, root) = (address(&tensor)?, number(root)?);
        self.call("a broadcast", |group, stream| {
            let kind = sys::ncclDataType_t::ncclUint8;
            // SAFETY: the tensor lives until the stream has been waited for below, and is as long as the call says.
            unsafe { result::broadcast(at as *const c_void, at as *mut c_void, tensor.elem_count(), kind, root, group, stream) }.map(drop)
        })?;
        self.settle()?;
        bytes.copy_from_slice(&tensor.to_vec1::<u8>()?[..bytes.len()]);
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = self.gather_equal(&(mine.len() as u64).to_le_bytes())?;
        let length = |bytes: &[u8]| bytes.iter().rev().fold(0_usize, |n, b| n << 8 | usize::from(*b));
        let lengths: Vec<usize> = lengths.chunks_exact(8).map(length).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0).max(1);
        let mut padded = mine.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_equal(&padded)?;
        Ok(all.chunks_exact(longest).zip(lengths).map(|(bytes, length)| bytes[..length].to_vec()).collect())
    }

    fn barrier(&self) -> Result<()> {
        self.all_reduce(&mut [0.0])
    }

    fn abandon(&self, why: &str) {
        self.group.watch.abandon(why);
        self.group.abort(format!("rank {}: {why}", self.rank));
    }

    /// Only put on the stream; see the module.
    fn all_reduce_cuda(&self, tensor: &Tensor) -> Result<()> {
        if tensor.dtype() != DType::F32 {
            return Err(Error::tensor("sum over ranks", "f32", tensor.dtype().as_str()));
        }
        let at = address(tensor)?;
        self.call("a sum", |group, stream| {
            let (kind, sum) = (sys::ncclDataType_t::ncclFloat32, sys::ncclRedOp_t::ncclSum);
            // SAFETY: contiguous values in place. Candle frees memory in the order of the stream that the call is on, so the tensor
            // may be dropped.
            unsafe { result::all_reduce(at as *const c_void, at as *mut c_void, tensor.elem_count(), kind, sum, group, stream) }.map(drop)
        })
    }
}

impl Group {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<()> {
        if let Some(why) = &self.lock().failure {
            return Err(Error::Input(why.clone()));
        }
        self.watch.check()
    }

    /// The clock's thread.
    fn run(&self) {
        while !self.done.load(Ordering::Relaxed) {
            std::thread::sleep(TICK);
            if let Some(why) = self.trouble() {
                return self.abort(why);
            }
        }
    }

    fn trouble(&self) -> Option<String> {
        if let Err(error) = self.watch.check() {
            return Some(error.to_string());
        }
        // A rank that hangs within NCCL holds the lock; the others name it.
        let mut state = self.state.try_lock().ok()?;
        let waited = match &state.group {
            Stage::Connecting(since) => since.elapsed(),
            Stage::Ended => return None,
            Stage::Connected(handle) => {
                let mut code = sys::ncclResult_t::ncclSuccess;
                // SAFETY: the communicator lives, and no other thread uses it under the lock.
                let asked = unsafe { sys::ncclCommGetAsyncError(handle.0, &raw mut code) };
                if let Err(error) = asked.result().and_then(|_| code.result()) {
                    return Some(failed("between calls", &error).to_string());
                }
                while state.calls.front().is_some_and(|(_, event)| event.is_complete()) {
                    state.calls.pop_front();
                }
                state.calls.front().map(|(since, _)| since.elapsed())?
            }
        };
        drop(state);
        let seconds = waited.as_secs_f64();
        if let Some(rank) = self.watch.left().filter(|_| waited > PARTING) {
            return Some(format!("rank {rank} has ended, and this one waits for it since {seconds:.1} s"));
        }
        let (rank, calls) = self.watch.slowest();
        let limit = super::connect::LIMIT;
        (waited > self.limit).then(|| format!("rank {rank} came no further than call {calls} within {seconds:.1} s; the limit is {limit}"))
    }

    /// Ends the group, so that the stream goes on and the next call fails.
    fn abort(&self, why: String) {
        let deadline = Instant::now() + PARTING;
        let mut state = loop {
            match self.state.try_lock() {
                Ok(state) => break state,
                Err(_) if Instant::now() < deadline => std::thread::sleep(TICK / 10),
                Err(_) => stop(&why),
            }
        };
        match std::mem::replace(&mut state.group, Stage::Ended) {
            // NCCL waits for the lost rank, and cannot be told.
            Stage::Connecting(_) => stop(&why),
            // SAFETY: it is used no more: nobody else has it, and what is on the stream ends with it.
            Stage::Connected(handle) => drop(unsafe { result::comm_abort(handle.0) }),
            Stage::Ended => {}
        }
        state.failure.get_or_insert(why);
    }
}

/// Ends a process whose own thread waits within NCCL, where nothing reaches it.
fn stop(why: &str) -> ! {
    super::tell(&why);
    std::process::exit(1)
}

impl Drop for NcclRank {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abandon("panicked");
        } else if self.settle().is_ok() {
            // Others may still read what this GPU has sent: none frees its buffers before all have waited for their streams.
            self.group.watch.leave(PARTING);
        }
        self.group.done.store(true, Ordering::Relaxed);
        if let Some(clock) = self.clock.take() {
            // Its panic has been printed.
            let _ = clock.join();
        }
        if let Stage::Connected(handle) = std::mem::replace(&mut self.group.lock().group, Stage::Ended) {
            // SAFETY: nobody else has it. Not destroyed in NCCL's orderly way, which waits for ranks that may be lost.
            drop(unsafe { result::comm_abort(handle.0) });
        }
    }
}

impl fmt::Debug for NcclRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclRank {} of {}", self.rank, self.size)
    }
}

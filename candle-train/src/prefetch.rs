//! Batches of named tensors, made ahead on a thread of their own and copied to a GPU a step before they are asked for.
//!
//! A [`Source`] makes batch n from n alone, so that the batches are the same however far ahead they are made, and a resumed run gets
//! those of one that never stopped. Floats go into memory that the source is handed (pinned, where they are copied to a GPU); tensors of
//! indices stay on the host, where operations check them before they go anywhere. What is no tensor, as masks, comes beside them.
//!
//! ```
//! use candle_models::{Result, candle_core::Device, signature::TensorSpec};
//! use candle_train::prefetch::{Prefetch, Source};
//!
//! struct Squares;
//!
//! impl Source for Squares {
//!     type Host = ();
//!     fn tensors(&self) -> Vec<TensorSpec> {
//!         vec![TensorSpec::f32("x", &[1])]
//!     }
//!     fn make(&mut self, number: u64, floats: &mut [&mut [f32]], _: &mut [&mut [u32]]) -> Result<()> {
//!         floats[0][0] = (number * number) as f32;
//!         Ok(())
//!     }
//! }
//!
//! # fn main() -> Result<()> {
//! let mut batches = Prefetch::new(Squares, &Device::Cpu);
//! let values = (0..4).map(|_| Ok(batches.next()?.0.get("x")?.to_vec1::<f32>()?[0])).collect::<Result<Vec<_>>>()?;
//! assert_eq!(values, [0.0, 1.0, 4.0, 9.0]);
//! # Ok(())
//! # }
//! ```

mod upload;

use candle_core::{DType, Device, Tensor};
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use upload::{Block, Blocks, Uploading, Uploads, between};

/// Batches that wait to be asked for at most.
const AHEAD: usize = 3;

/// What makes batches.
pub trait Source: Send + 'static {
    /// What belongs to a batch beside its tensors.
    type Host: Send + 'static;

    /// Names, dtypes and shapes of the tensors of every batch.
    fn tensors(&self) -> Vec<TensorSpec>;

    /// Makes a batch: writes every value of its tensors of floats and of those of indices, each in the order of [`Self::tensors`]. Nothing but
    /// the number decides what comes out.
    fn make(&mut self, number: u64, floats: &mut [&mut [f32]], indices: &mut [&mut [u32]]) -> Result<Self::Host>;
}

/// Hands out the batches of a source in order.
///
/// ```
/// use candle_models::Result;
/// use candle_models::candle_core::Device;
/// use candle_models::signature::TensorSpec;
/// use candle_train::prefetch::{Prefetch, Source};
///
/// /// Batch n holds n.
/// struct Count;
///
/// impl Source for Count {
///     type Host = u64;
///
///     fn tensors(&self) -> Vec<TensorSpec> {
///         vec![TensorSpec::f32("x", &[2])]
///     }
///
///     fn make(&mut self, number: u64, floats: &mut [&mut [f32]], _: &mut [&mut [u32]]) -> Result<u64> {
///         floats[0].fill(number as f32);
///         Ok(number)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// let mut batches = Prefetch::new(Count, &Device::Cpu);
/// batches.next()?;
/// let (tensors, number) = batches.next()?; // made ahead, on a thread
/// assert_eq!((tensors.get("x")?.to_vec1::<f32>()?, number), (vec![1.0, 1.0], 1));
/// assert_eq!(batches.get(7)?.1, 7); // where a resumed run goes on
/// # Ok(())
/// # }
/// ```
pub struct Prefetch<S: Source> {
    device: Device,
    specs: Vec<TensorSpec>,
    next: u64,
    /// While no thread has it.
    source: Option<S>,
    running: Option<Running<S>>,
}

impl<S: Source> Prefetch<S> {
    /// At batch 0. Floats lie on the device, indices on the host. Nothing is made before the first batch is asked for.
    pub fn new(source: S, device: &Device) -> Self {
        Self { device: device.clone(), specs: source.tensors(), next: 0, source: Some(source), running: None }
    }

    /// Goes to another batch: stops the thread, which the next batch starts again.
    ///
    /// # Errors
    /// If the thread has panicked.
    pub fn seek(&mut self, number: u64) -> Result<()> {
        if let Some(running) = self.running.take() {
            self.source = Some(running.stop()?);
        }
        self.next = number;
        Ok(())
    }

    /// The batch after the last one.
    ///
    /// # Errors
    /// As [`Self::get`].
    #[allow(clippy::should_implement_trait)] // Not an iterator: it never ends, and it fails.
    pub fn next(&mut self) -> Result<(NamedTensors, S::Host)> {
        self.get(self.next)
    }

    /// Batch `number`: at once where it is the one after the last, which was made ahead.
    ///
    /// # Errors
    /// What the source failed with; then the next call makes the batch anew.
    pub fn get(&mut self, number: u64) -> Result<(NamedTensors, S::Host)> {
        if number != self.next {
            self.seek(number)?;
        }
        let running = match self.running.take() {
            Some(running) => running,
            None => self.start()?,
        };
        let batch = self.running.insert(running).next(&self.specs);
        match batch {
            Ok(_) => self.next = number + 1,
            Err(_) => self.seek(number)?,
        }
        batch
    }

    fn start(&mut self) -> Result<Running<S>> {
        let source = self.source.take().ok_or_else(ended)?;
        let len = self.specs.iter().filter(|spec| is_floats(spec)).map(TensorSpec::width).sum();
        let (uploads, blocks) = between(&self.device, len, AHEAD + 1)?;
        let (sender, batches) = sync_channel(AHEAD);
        let (specs, number) = (self.specs.clone(), self.next);
        let work = move || work(source, &specs, blocks, number, &sender);
        let thread = std::thread::Builder::new().name("batches".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Input(format!("cannot start the thread that makes batches: {e}")))?;
        Ok(Running { line: Some(Line { batches, uploads, ahead: None }), thread: Some(thread) })
    }
}

fn is_floats(spec: &TensorSpec) -> bool {
    spec.dtype() == DType::F32
}

fn ended() -> Error {
    Error::Input("the thread that makes batches has ended".to_owned())
}

/// A batch with its floats in one piece, and the tensors of indices, each in the order of the specs.
struct Made<F, H> {
    floats: F,
    indices: Vec<Vec<u32>>,
    host: H,
}

/// The receiving end of the thread.
struct Line<H> {
    batches: Receiver<Result<Made<Block, H>>>,
    uploads: Uploads,
    /// The batch that comes next, if its copy has been started.
    ahead: Option<Result<Made<Uploading, H>>>,
}

/// The thread at work.
struct Running<S: Source> {
    line: Option<Line<S::Host>>,
    thread: Option<JoinHandle<S>>,
}

impl<S: Source> Running<S> {
    fn next(&mut self, specs: &[TensorSpec]) -> Result<(NamedTensors, S::Host)> {
        let line = self.line.as_mut().ok_or_else(ended)?;
        let Made { floats, indices, host } = match line.ahead.take() {
            Some(batch) => batch?,
            None => line.start(line.batches.recv().map_err(|_| ended())?)?,
        };
        if line.uploads.are_ahead() {
            line.ahead = line.batches.try_recv().ok().map(|made| line.start(made));
        }
        let (floats, mut at, mut tensors) = (floats.finish()?, 0, NamedTensors::new());
        for spec in specs.iter().filter(|spec| is_floats(spec)) {
            tensors.insert(&spec.name, floats.narrow(0, at, spec.width())?.reshape(spec.shape.as_slice())?);
            at += spec.width();
        }
        for (spec, values) in specs.iter().filter(|spec| !is_floats(spec)).zip(indices) {
            tensors.insert(&spec.name, Tensor::from_vec(values, spec.shape.as_slice(), &Device::Cpu)?);
        }
        Ok((tensors, host))
    }

    fn stop(mut self) -> Result<S> {
        self.line = None;
        self.thread.take().and_then(|thread| thread.join().ok()).ok_or_else(ended)
    }
}

impl<H> Line<H> {
    fn start(&self, made: Result<Made<Block, H>>) -> Result<Made<Uploading, H>> {
        let Made { floats, indices, host } = made?;
        Ok(Made { floats: self.uploads.start(floats)?, indices, host })
    }
}

impl<S: Source> Drop for Running<S> {
    fn drop(&mut self) {
        // The thread ends when nobody listens.
        self.line = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What the thread does, until nobody listens or a batch fails.
fn work<S: Source>(
    mut source: S,
    specs: &[TensorSpec],
    mut blocks: Blocks,
    first: u64,
    sender: &SyncSender<Result<Made<Block, S::Host>>>,
) -> S {
    for number in first.. {
        let made = match blocks.next() {
            Ok(Some(block)) => fill(&mut source, specs, number, block),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        let failed = made.is_err();
        if sender.send(made).is_err() || failed {
            break;
        }
    }
    source
}

fn fill<S: Source>(source: &mut S, specs: &[TensorSpec], number: u64, mut block: Block) -> Result<Made<Block, S::Host>> {
    let (floats, indices): (Vec<_>, Vec<_>) = specs.iter().partition(|spec| is_floats(spec));
    let (mut rest, mut tensors) = (block.values()?, Vec::with_capacity(floats.len()));
    for spec in floats {
        let (values, behind) = rest.split_at_mut(spec.width());
        tensors.push(values);
        rest = behind;
    }
    let mut indices: Vec<Vec<u32>> = indices.iter().map(|spec| vec![0; spec.width()]).collect();
    let host = source.make(number, &mut tensors, &mut indices.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>())?;
    Ok(Made { floats: block, indices, host })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Batch n is n, n + 1, ... in two tensors of floats around one of indices, which holds n; one of them fails.
    struct Count {
        fails: Option<u64>,
    }

    impl Source for Count {
        type Host = u64;
        fn tensors(&self) -> Vec<TensorSpec> {
            vec![TensorSpec::f32("a", &[2, 3]), TensorSpec::u32("ids", &[2, 1]), TensorSpec::f32("b", &[1])]
        }
        fn make(&mut self, number: u64, tensors: &mut [&mut [f32]], indices: &mut [&mut [u32]]) -> Result<u64> {
            if self.fails.take_if(|fails| *fails == number).is_some() {
                return Err(Error::Input(format!("batch {number} is lost")));
            }
            let values = tensors.iter_mut().flat_map(|tensor| tensor.iter_mut());
            values.zip(number..).for_each(|(x, i)| *x = i as f32);
            indices[0].fill(number as u32);
            Ok(number)
        }
    }

    fn check(batches: &mut Prefetch<Count>, number: u64) {
        let (tensors, host) = batches.get(number).unwrap();
        assert_eq!((host, tensors.get("a").unwrap().dims()), (number, [2, 3].as_slice()));
        let values = |name: &str| tensors.get(name).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(values("a"), (number..number + 6).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!(values("b"), [(number + 6) as f32]);
        assert_eq!(tensors.get("ids").unwrap().to_vec2::<u32>().unwrap(), [[number as u32]; 2]);
    }

    #[test]
    fn any_batch_comes_in_any_order() {
        let mut batches = Prefetch::new(Count { fails: None }, &Device::Cpu);
        for number in [0, 1, 2, 3, 4, 5, 2, 3, 1000, 1001, 0, 0] {
            check(&mut batches, number);
        }
        batches.seek(7).unwrap();
        check(&mut batches, 7);
    }

    #[test]
    fn a_batch_that_fails_comes_after_those_before_it_and_may_be_asked_for_again() {
        let mut batches = Prefetch::new(Count { fails: Some(3) }, &Device::Cpu);
        (0..3).for_each(|number| check(&mut batches, number));
        assert_eq!(batches.get(3).unwrap_err().to_string(), "batch 3 is lost");
        (3..8).for_each(|number| check(&mut batches, number));
    }
}

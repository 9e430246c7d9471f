//! Checkpoints written while training goes on.

use super::{Checkpoint, Store};
use candle_core::{Device, Tensor};
use candle_models::{Error, Result};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A tensor on the host that shares its memory with nothing that training changes: for a checkpoint that is written later.
pub fn host_copy(tensor: &Tensor) -> Result<Tensor> {
    let device = tensor.device();
    Ok(if device.is_cpu() { tensor.detach().copy()? } else { tensor.detach().to_device(&Device::Cpu)? })
}

/// Writes to a [`Store`] on a thread of its own, one checkpoint at a time, in the order of the calls.
#[derive(Debug)]
pub struct Writer {
    store: Arc<Store>,
    /// `None` while it is dropped.
    jobs: Option<Sender<Job>>,
    results: Receiver<Result<()>>,
    /// Jobs without a result yet.
    under_way: usize,
    /// What went wrong first and was not told yet.
    failed: Option<Error>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
enum Job {
    Save(Box<Checkpoint>),
    /// A checkpoint that came to nothing before it could be written.
    Lost {
        step: u64,
        error: Error,
    },
    Score {
        step: u64,
        score: f64,
    },
}

impl Writer {
    /// Starts the thread.
    pub fn new(store: Store) -> Result<Self> {
        let store = Arc::new(store);
        let (jobs, received) = channel();
        let (sent, results) = channel();
        let own = store.clone();
        let work = move || {
            let mut lost = None;
            for job in received {
                let _ = sent.send(run(&own, job, &mut lost)); // Nobody listens while the writer is dropped.
            }
        };
        let thread = std::thread::Builder::new().name("checkpoints".into()).spawn(work);
        let thread = thread.map_err(|e| Error::Input(format!("cannot start the thread that saves checkpoints: {e}")))?;
        Ok(Self { store, jobs: Some(jobs), results, under_way: 0, failed: None, thread: Some(thread) })
    }

    /// Where checkpoints are read. What is under way may or may not be there yet.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Starts to save a checkpoint, whose tensors nobody may change any more (see [`host_copy`]). Waits for the one before.
    ///
    /// # Errors
    /// What went wrong since the call before. This checkpoint is under way all the same: a disk that was full may have room now.
    pub fn save(&mut self, checkpoint: Checkpoint) -> Result<()> {
        let before = self.finish();
        self.start(Job::Save(Box::new(checkpoint)))?;
        before
    }

    /// Notes that there will be no checkpoint of a step: as a save that failed.
    ///
    /// # Errors
    /// What went wrong since the call before.
    pub fn lose(&mut self, step: u64, error: Error) -> Result<()> {
        let before = self.finish();
        self.start(Job::Lost { step, error })?;
        before
    }

    /// Notes the evaluation's result of a saved step, also of one that is under way. Does not wait.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn set_score(&mut self, step: u64, score: f64) -> Result<()> {
        self.start(Job::Score { step, score })
    }

    /// Waits until everything is on the disk.
    ///
    /// # Errors
    /// What went wrong since the last save was started: the first of it.
    pub fn finish(&mut self) -> Result<()> {
        self.wait();
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Waits as well, and tells whether all is well. What went wrong is left to be told by the next call.
    pub fn wait(&mut self) -> bool {
        while self.under_way > 0 {
            self.under_way -= 1;
            if let Err(error) = self.results.recv().unwrap_or_else(|_| Err(ended())) {
                self.failed.get_or_insert(error);
            }
        }
        self.failed.is_none()
    }

    fn start(&mut self, job: Job) -> Result<()> {
        self.jobs.as_ref().and_then(|jobs| jobs.send(job).ok()).ok_or_else(ended)?;
        self.under_way += 1;
        Ok(())
    }
}

impl Drop for Writer {
    /// Waits too: a run that ends with an error keeps the checkpoint that was under way.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn ended() -> Error {
    Error::Input("the thread that saves checkpoints has ended".to_owned())
}

/// `lost`: the step whose checkpoint could not be saved, which was said then.
fn run(store: &Store, job: Job, lost: &mut Option<u64>) -> Result<()> {
    match job {
        Job::Save(checkpoint) => {
            let saved = store.save(&checkpoint);
            *lost = saved.is_err().then_some(checkpoint.step);
            saved.map(drop)
        }
        Job::Lost { step, error } => {
            *lost = Some(step);
            Err(store.not_saved(step, &error))
        }
        Job::Score { step, .. } if *lost == Some(step) => Ok(()),
        Job::Score { step, score } => store.set_score(step, score),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::Retention;
    use candle_core::DType;
    use std::path::Path;

    fn writer(directory: &Path) -> Writer {
        Writer::new(Store::open(directory, Retention { last: 3, best: 1, every: 0 }).unwrap()).unwrap()
    }

    fn checkpoint(step: u64) -> Checkpoint {
        let tensor = Tensor::full(step as f32, 200_000, &Device::Cpu).unwrap();
        let tensors = [("parameters".to_owned(), [("w".to_owned(), tensor)].into_iter().collect())].into();
        Checkpoint { step, tensors, state: step.into(), ..Checkpoint::default() }
    }

    /// A directory in the way of that step's: its save fails and takes it away.
    fn block(directory: &Path, step: u64) {
        std::fs::create_dir(directory.join(format!(".partial-step-{step:012}"))).unwrap();
    }

    #[test]
    fn what_is_saved_and_scored_without_waiting_is_there_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        for step in 1..=4 {
            writer.save(checkpoint(step)).unwrap();
            writer.set_score(step, 10.0 - step as f64 % 3.0).unwrap();
        }
        writer.finish().unwrap();
        assert_eq!(writer.store().latest().unwrap().0.unwrap().step, 4);
        let best = writer.store().best().unwrap().unwrap();
        assert_eq!((best.step, best.score), (2, Some(8.0)));
        writer.finish().unwrap();
    }

    #[test]
    fn a_save_that_failed_is_told_at_the_next_one_and_does_not_stop_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = writer(dir.path());
        writer.save(checkpoint(1)).unwrap();
        writer.finish().unwrap();
        block(dir.path(), 2);
        writer.save(checkpoint(2)).unwrap();
        writer.set_score(2, 1.0).unwrap(); // Of a checkpoint that is not there: one error says enough.
        let error = writer.save(checkpoint(3)).unwrap_err().to_string();
        assert!(
            error.starts_with("checkpoint of step 2 not saved: ") && error.ends_with("the latest is still step-000000000001"),
            "{error}"
        );
        writer.finish().unwrap();
        assert_eq!(writer.store().latest().unwrap().0.unwrap().step, 3);
        block(dir.path(), 4);
        writer.save(checkpoint(4)).unwrap();
        assert!(writer.finish().unwrap_err().to_string().contains("step 4 not saved"));
        writer.finish().unwrap();
    }

    #[test]
    fn dropped_it_ends_what_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = writer(dir.path());
        first.save(checkpoint(1)).unwrap();
        first.set_score(1, 0.5).unwrap();
        drop(first);
        assert_eq!(writer(dir.path()).store().latest().unwrap().0.unwrap().score, Some(0.5));
    }

    #[test]
    fn a_copy_is_not_changed_with_its_variable() {
        let var = candle_core::Var::zeros(5, DType::F32, &Device::Cpu).unwrap();
        let copy = host_copy(&var).unwrap();
        var.set(&Tensor::ones(5, DType::F32, &Device::Cpu).unwrap()).unwrap();
        assert_eq!(copy.to_vec1::<f32>().unwrap(), [0.0; 5]);
    }
}

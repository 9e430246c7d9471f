//! A sequence in the hands of one request.

use super::keep::write_step;
use super::{Current, Entry, Name, Sequences, Slot, Why};
use crate::fault::{Fault, Kind};
use crate::snapshots::{Mark, Snapshot};
use candle_models::engine::{EngineError, Session};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;

/// A sequence in the hands of one request.
pub(crate) struct Lease {
    pub(super) sequences: Arc<Sequences>,
    pub(super) id: Name,
    pub(super) entry: Arc<Entry>,
    /// `None` only while another thread has it.
    pub(super) slot: Option<OwnedMutexGuard<Slot>>,
    /// Whether it is over once this request is.
    pub(super) ends: bool,
}

impl Lease {
    pub(super) fn slot(&mut self) -> &mut Slot {
        let Some(slot) = &mut self.slot else { unreachable!("a lease is used by one task, which waits for the other thread") };
        slot
    }

    /// A session for a sequence that begins.
    pub(super) fn open(&mut self, Current { engine, generation }: Current<'_>) -> Result<(), EngineError> {
        *self.slot() = Slot { session: Some(engine.open()?), generation, frames: 0, unsettled: false };
        Ok(())
    }

    /// A session that goes on from the sequence's snapshot.
    pub(super) async fn resume(&mut self, current: Current<'_>) -> Result<(), Fault> {
        let Some(found) = self.read(|_, _| true).await? else { return Err(self.sequences.unknown(&self.id)) };
        self.take(current, found).await?;
        self.keep();
        Ok(())
    }

    /// Goes on from the sequence's snapshot where another server has written it since. Only where every step is in one before its answer: there
    /// the last snapshot is the sequence, whichever server asks, and a step that was given up here is none of its. One that is not there, or cannot
    /// be read, is no better than the session.
    pub(super) async fn refresh(&mut self, current: Current<'_>) -> Result<(), Fault> {
        if !self.sequences.at_once.load(Relaxed) {
            return Ok(());
        }
        match self.read(Entry::is_foreign).await {
            Ok(Some(found)) => self.take(current, found).await,
            _ => Ok(()),
        }
    }

    /// The sequence's snapshot, if there is one that is `wanted` by its mark.
    async fn read(&self, wanted: impl FnOnce(&Entry, &Mark) -> bool + Send + 'static) -> Result<Option<(Snapshot, Mark)>, Fault> {
        let (sequences, id, entry) = (self.sequences.clone(), self.id.clone(), self.entry.clone());
        let read = move || {
            let _file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
            let found = sequences.snapshots.as_ref().map_or(Ok(None), |snapshots| snapshots.read(&id))?;
            Ok(found.filter(|(_, mark)| wanted(&entry, mark)))
        };
        tokio::task::spawn_blocking(read).await.map_err(|panic| Fault::new(Kind::Failed, panic.to_string()))?
    }

    /// A new session with the state of a snapshot.
    async fn take(&mut self, current: Current<'_>, (Snapshot { state, frames }, mark): (Snapshot, Mark)) -> Result<(), Fault> {
        let mut session = current.engine.open()?;
        // Not in the slot before it is restored: where the request is given up meanwhile, the next one reads the snapshot again.
        let restored = tokio::task::spawn_blocking(move || session.restore(&state).map(|()| session)).await;
        let session = restored.map_err(|panic| Fault::new(Kind::Failed, panic.to_string()))??;
        let new = Slot { session: Some(session), generation: current.generation, frames, unsettled: false };
        let old = std::mem::replace(self.slot(), new);
        self.entry.moved.store(false, Relaxed);
        *self.entry.saved() = Some(mark);
        // The last session of an engine waits for its thread when it is dropped.
        drop(tokio::task::spawn_blocking(move || drop(old)));
        Ok(())
    }

    /// Goes on in the model's present engine, if it has been loaded anew. A state that is lost stays so.
    pub(super) async fn catch_up(&mut self, current: Current<'_>) -> Result<(), Fault> {
        if self.slot().generation >= current.generation {
            return Ok(());
        }
        let mut new = current.engine.open()?;
        // The last session of an engine waits for its thread when it is dropped, which is done there as well.
        let moved = self.work(move |session| {
            let frames = session.frames()?;
            new.restore(&session.save()?)?;
            *session = new;
            Ok(frames)
        });
        match moved.await? {
            Ok(frames) => {
                let slot = self.slot();
                (slot.generation, slot.frames) = (current.generation, slot.frames + frames);
                Ok(())
            }
            Err(EngineError::StateLost) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Begins anew, with the model's present engine.
    pub fn restart(&mut self, current: Current<'_>) -> Result<(), EngineError> {
        if self.slot().generation < current.generation {
            return self.open(current);
        }
        self.slot().frames = 0;
        self.entry.moved.store(true, Relaxed);
        self.session().reset();
        Ok(())
    }

    /// Steps behind it.
    pub fn frames(&mut self) -> Result<u64, EngineError> {
        Ok(self.slot().frames + self.session().frames()?)
    }

    /// Says that the session's own frames are all that it has: it goes on from a state that was put there.
    pub fn forget_frames(&mut self) {
        self.entry.moved.store(true, Relaxed);
        self.slot().frames = 0;
    }

    /// Its session.
    pub fn session(&mut self) -> &mut Session {
        let Some(session) = &mut self.slot().session else { unreachable!("a lease is given out with a session") };
        session
    }

    /// The same, to be read.
    pub fn stepped(&self) -> &Session {
        let session = self.slot.as_ref().and_then(|slot| slot.session.as_ref());
        let Some(session) = session else { unreachable!("a lease is given out with a session") };
        session
    }

    /// How long it was not used before.
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.sequences.now().saturating_sub(self.entry.used.load(Relaxed)))
    }

    /// How many requests wait for it.
    pub fn waiting(&self) -> usize {
        self.entry.waiting.load(Relaxed)
    }

    /// Removes the snapshot of a sequence that has begun anew, or is over.
    pub async fn forget_snapshot(&mut self) -> Result<(), Fault> {
        let Some(snapshots) = self.sequences.snapshots.clone() else { return Ok(()) };
        let (id, entry) = (self.id.clone(), self.entry.clone());
        let removed = self.work(move |_| {
            let _file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
            snapshots.remove(&id);
            *entry.saved() = None;
        });
        removed.await
    }

    /// Writes the snapshot of a step that has been made, or of a state that was put there, where it has to be there before the answer.
    pub async fn keep_step(&mut self) -> Result<(), Fault> {
        let Some(snapshots) = self.sequences.snapshots.clone().filter(|_| self.sequences.at_once.load(Relaxed)) else { return Ok(()) };
        let (id, entry, before) = (self.id.clone(), self.entry.clone(), self.slot().frames);
        self.work(move |session| write_step(&snapshots, &id, &entry, (session, before))).await
    }

    /// Frames behind the last snapshot, if there is one.
    pub fn saved(&self) -> Option<u64> {
        self.entry.saved().as_ref().map(|mark| mark.frames)
    }

    /// Says that a step may be running from here on: where the request is given up, the next one waits for it on another thread.
    pub fn begin_step(&mut self) {
        self.entry.moved.store(true, Relaxed);
        self.slot().unsettled = true;
    }

    /// Says that the step has been answered.
    pub fn end_step(&mut self) {
        self.slot().unsettled = false;
    }

    /// The sequence stays once this request is over.
    pub fn keep(&mut self) {
        self.ends = false;
    }

    /// The sequence is over once this request is.
    pub fn end(&mut self, why: Why) {
        self.sequences.ended.count(why, 1);
        self.ends = true;
    }

    pub(super) async fn settle(&mut self) -> Result<(), Fault> {
        if self.slot().unsettled {
            // Waits for the step; whether the state was lost with it is the next step's to say.
            self.work(|session| drop(session.frames())).await?;
            self.end_step();
        }
        Ok(())
    }

    /// Does something with the session that may block, where it blocks nobody else. It is finished even where the request is given up.
    pub async fn work<T: Send + 'static>(&mut self, work: impl FnOnce(&mut Session) -> T + Send + 'static) -> Result<T, Fault> {
        let Some(mut slot) = self.slot.take() else { unreachable!("a lease is used by one task, which waits for the other thread") };
        let done = tokio::task::spawn_blocking(move || {
            let result = slot.session.as_mut().map(work);
            (slot, result)
        });
        let (slot, result) = done.await.map_err(|panic| Fault::new(Kind::Failed, format!("sequence {}: {panic}", self.id)))?;
        self.slot = Some(slot);
        result.ok_or_else(|| self.sequences.unknown(&self.id))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.entry.used.store(self.sequences.now(), Relaxed);
        let Some(slot) = &mut self.slot else { return };
        if !self.ends && slot.session.is_some() {
            return;
        }
        let session = slot.session.take();
        let mut table = self.sequences.table();
        // Another one may have been begun under this id after all were ended.
        if table.live.get(&self.id).is_some_and(|entry| Arc::ptr_eq(entry, &self.entry)) {
            table.live.remove(&self.id);
        }
        drop(table);
        drop(session);
    }
}

//! What becomes of sequences that nobody uses, and of all of them when a server ends: they are written into snapshots, if there are any.

use super::{Entry, Name, Sequences, Slot, Table, Why, remember};
use crate::snapshots::{Snapshot, Snapshots};
use candle_models::engine::{EngineError, Session};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;

/// Snapshots that are written at the same time: flushing one to the disk is waiting, mostly.
const WRITERS: usize = 8;
/// How long a snapshot waits for the step that its sequence is at; otherwise the next round writes it.
const TURN: Duration = Duration::from_secs(1);

impl Sequences {
    /// Ends those that were not used for too long; none that runs or that a request waits for. Takes its time.
    pub fn expire(&self) {
        let (now, idle) = (self.now(), self.idle.as_millis() as u64);
        let over = |entry: &Entry| now.saturating_sub(entry.used.load(Relaxed)) >= idle;
        self.each(over, |id, entry| {
            let Ok(mut slot) = entry.slot.try_lock() else { return };
            let kept = self.snapshots.as_ref().is_some_and(|snapshots| self.shelve(snapshots, id, entry, &mut slot));
            let mut table = self.table();
            // Whoever has come meanwhile has its turn.
            if entry.waiting.load(Relaxed) > 0 || !table.live.get(id).is_some_and(|found| Arc::ptr_eq(found, entry)) {
                return;
            }
            let session = slot.session.take();
            let Table { live, ended, .. } = &mut *table;
            live.remove(id);
            if !kept {
                remember(ended, id.clone(), Why::Idle.text());
                self.ended.count(Why::Idle, 1);
            }
            drop(table);
            // The last session of an engine waits for its thread.
            drop(session);
        });
    }

    /// Writes snapshots of those that have moved since their last one. Takes its time, and wants to be on a thread of a runtime that may block.
    pub fn save(&self) {
        let Some(snapshots) = &self.snapshots else { return };
        let runtime = Handle::current();
        self.each(
            |entry| entry.moved.load(Relaxed),
            |id, entry| {
                let turn = runtime.block_on(async { tokio::time::timeout(TURN, entry.slot.lock()).await });
                let Ok(mut slot) = turn else { return };
                // Held until the file is there, so that nobody removes it before; the sequence goes on meanwhile.
                let _file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
                // A request may have written it while this waited for its turn, and another server may have gone on from there.
                if !entry.moved.swap(false, Relaxed) || self.is_elsewhere(id, entry) {
                    return;
                }
                let state = state(&mut slot);
                drop(slot);
                write(snapshots, id, entry, state);
            },
        );
    }

    /// Whether another server has gone on with a sequence, which is its snapshot then: where every step is in one before its answer, what has moved here
    /// is a step that was given up. To be asked with the entry's `file` held.
    fn is_elsewhere(&self, id: &Name, entry: &Entry) -> bool {
        let snapshots = self.snapshots.as_ref().filter(|_| self.at_once.load(Relaxed));
        snapshots.is_some_and(|snapshots| matches!(snapshots.read(id), Ok(Some((_, mark))) if entry.is_foreign(&mark)))
    }

    /// Writes the state of a sequence that nobody uses, if it has moved. Whether there is a snapshot of the sequence as it is.
    fn shelve(&self, snapshots: &Snapshots, id: &Name, entry: &Entry, slot: &mut Slot) -> bool {
        let _file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
        !entry.moved.swap(false, Relaxed) || self.is_elsewhere(id, entry) || write(snapshots, id, entry, state(slot))
    }

    /// Does something with each sequence that is chosen, several at a time.
    fn each(&self, choice: impl Fn(&Entry) -> bool, work: impl Fn(&Name, &Arc<Entry>) + Sync) {
        let table = self.table();
        let chosen = table.live.iter().filter(|(_, entry)| choice(entry)).map(|(id, entry)| (id.clone(), entry.clone()));
        let chosen: Vec<(Name, Arc<Entry>)> = chosen.collect();
        drop(table);
        let next = AtomicUsize::new(0);
        let take = || {
            while let Some((id, entry)) = chosen.get(next.fetch_add(1, Relaxed)) {
                work(id, entry);
            }
        };
        std::thread::scope(|threads| {
            // This thread is one of them.
            (1..WRITERS.min(chosen.len())).for_each(|_| drop(threads.spawn(take)));
            take();
        });
    }
}

/// The state of a sequence, with all its frames; an error says that there is none.
fn state(slot: &mut Slot) -> Result<Option<Snapshot>, EngineError> {
    let frames = slot.frames;
    slot.session.as_mut().map(|session| snapshot(session, frames)).transpose()
}

fn snapshot(session: &mut Session, before: u64) -> Result<Snapshot, EngineError> {
    let state = session.save()?;
    Ok(Snapshot { state, frames: before + session.frames()? })
}

/// Writes a state; one that was lost leaves nothing to go on from. Whether there is a snapshot of the sequence as it is.
fn write(snapshots: &Snapshots, id: &Name, entry: &Entry, state: Result<Option<Snapshot>, EngineError>) -> bool {
    match state {
        // It has ended, and its snapshot with it.
        Ok(None) => false,
        Ok(Some(snapshot)) => {
            let written = snapshots.write(id, &snapshot);
            let kept = written.is_some();
            if kept {
                *entry.saved() = written;
            } else {
                entry.moved.store(true, Relaxed);
            }
            kept
        }
        Err(EngineError::StateLost) => {
            snapshots.remove(id);
            false
        }
        Err(error) => {
            snapshots.failed(id, &error);
            entry.moved.store(true, Relaxed);
            false
        }
    }
}

/// Writes the state of a sequence that somebody has the session of, with the frames of those before it.
pub(super) fn write_step(snapshots: &Snapshots, id: &Name, entry: &Entry, (session, before): (&mut Session, u64)) {
    let _file = entry.file.lock().unwrap_or_else(PoisonError::into_inner);
    entry.moved.store(false, Relaxed);
    write(snapshots, id, entry, snapshot(session, before).map(Some));
}

//! Sequences are sessions: each has a state that stays from request to request, and takes its requests one after the other.

mod keep;

use crate::fault::{Fault, Kind};
use crate::protocol::request::SequenceId;
use crate::snapshots::{Snapshot, Snapshots, Store};
use candle_models::engine::{Engine, EngineError, Session};
use candle_models::signature::Signature;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

/// Requests that may wait for the one that runs, of each sequence.
const WAITING: usize = 8;
/// Sequences whose end is remembered, to tell a client that comes back what became of its sequence.
const REMEMBERED: usize = 1024;
/// In place of the frames of a snapshot that is not there.
const NONE: u64 = u64::MAX;

/// What becomes of sequences that nobody uses.
#[derive(Clone)]
pub(crate) struct Keep {
    /// After how long one is ended.
    pub idle: Duration,
    /// Where its state is kept then, if it is.
    pub store: Option<Arc<dyn Store>>,
}

/// What a request wants of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// It goes on.
    GoOn,
    /// It goes on, or is opened where there is none.
    Open,
    /// It is opened, or begins anew.
    Start,
}

/// A model's engine, and how many it has had before: it is loaded anew now and then.
#[derive(Clone, Copy)]
pub(crate) struct Current<'a> {
    pub engine: &'a Engine,
    pub generation: u64,
}

/// The sequences of one model.
pub(crate) struct Sequences {
    /// In messages.
    model: String,
    idle: Duration,
    since: Instant,
    table: Mutex<Table>,
    /// Where those go on from that are not there, if anywhere.
    pub snapshots: Option<Arc<Snapshots>>,
}

#[derive(Default)]
struct Table {
    live: HashMap<SequenceId, Arc<Entry>>,
    /// Those that were ended without being asked to, and why.
    ended: VecDeque<(SequenceId, &'static str)>,
    /// Why no sequence can be begun any more.
    closed: Option<&'static str>,
}

struct Entry {
    slot: Arc<tokio::sync::Mutex<Slot>>,
    waiting: AtomicUsize,
    /// When it was last used, in milliseconds since the table's beginning.
    used: AtomicU64,
    /// Whether its state may be another one than that of its snapshot.
    moved: AtomicBool,
    /// Frames behind its snapshot.
    saved: AtomicU64,
    /// Held while its snapshot is written or removed.
    file: Mutex<()>,
}

/// Its session, unless the sequence is over.
struct Slot {
    session: Option<Session>,
    /// Which of the model's engines it is of.
    generation: u64,
    /// Frames that were made by sessions before this one.
    frames: u64,
    /// Whether a step was given up: it may still be running, and touching the session could block.
    unsettled: bool,
}

impl Sequences {
    /// None yet, of a model of that name and signature. One that was not used for too long is ended by [`Self::expire`].
    pub fn new(model: &str, signature: &Signature, Keep { idle, store }: &Keep) -> Arc<Self> {
        let snapshots = store.clone().map(|store| Arc::new(Snapshots::new(store, model, signature)));
        Arc::new(Self { model: model.to_owned(), idle: *idle, since: Instant::now(), table: Mutex::default(), snapshots })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.table().live.len()
    }

    /// How many requests wait for their turn.
    pub fn waiting(&self) -> usize {
        self.table().live.values().map(|entry| entry.waiting.load(Relaxed)).sum()
    }

    /// Waits for its turn in a sequence. A sequence that this opens is gone again unless [`Lease::keep`] is called; one that is to begin
    /// anew does so with [`Lease::restart`].
    pub async fn lease(
        self: &Arc<Self>,
        current: Current<'_>,
        id: &SequenceId,
        begin: Begin,
        deadline: Option<Instant>,
    ) -> Result<Lease, Fault> {
        loop {
            let entry = match self.find(id, begin)? {
                Found::Live(entry) => entry,
                // On a failure the lease takes the entry back.
                Found::New(mut lease) => {
                    match begin {
                        Begin::GoOn => lease.resume(current).await?,
                        Begin::Open | Begin::Start => lease.open(current)?,
                    }
                    return Ok(lease);
                }
            };
            let slot = self.wait(id, &entry, deadline).await?;
            // It ended while this request waited: another one is opened, or goes on from a snapshot.
            if slot.session.is_none() {
                continue;
            }
            let mut lease = Lease { sequences: self.clone(), id: id.clone(), entry, slot: Some(slot), ends: false };
            lease.settle().await?;
            if begin != Begin::Start {
                lease.catch_up(current).await?;
            }
            return Ok(lease);
        }
    }

    fn find(self: &Arc<Self>, id: &SequenceId, begin: Begin) -> Result<Found, Fault> {
        let mut table = self.table();
        if let Some(reason) = table.closed {
            return Err(Fault::new(Kind::Unavailable, format!("model '{}' {reason}", self.model)));
        }
        match table.live.get(id) {
            Some(entry) => Ok(Found::Live(entry.clone())),
            None if begin == Begin::GoOn && self.snapshots.is_none() => {
                drop(table);
                Err(self.unknown(id))
            }
            None => {
                let slot = Arc::new(tokio::sync::Mutex::new(Slot { session: None, generation: 0, frames: 0, unsettled: false }));
                let Ok(held) = slot.clone().try_lock_owned() else { unreachable!("nobody else has the new sequence yet") };
                let entry = Arc::new(Entry::new(slot, self.now()));
                table.live.insert(id.clone(), entry.clone());
                if begin != Begin::GoOn {
                    // What became of an earlier one of that id is over.
                    table.ended.retain(|(ended, _)| ended != id);
                }
                Ok(Found::New(Lease { sequences: self.clone(), id: id.clone(), entry, slot: Some(held), ends: true }))
            }
        }
    }

    /// Its turn, in order of arrival.
    async fn wait(&self, id: &SequenceId, entry: &Entry, deadline: Option<Instant>) -> Result<OwnedMutexGuard<Slot>, Fault> {
        if let Ok(slot) = entry.slot.clone().try_lock_owned() {
            return Ok(slot);
        }
        let waiting = Waiting(&entry.waiting);
        if waiting.0.fetch_add(1, Relaxed) >= WAITING {
            return Err(Fault::new(Kind::Overloaded, format!("sequence {id} of model '{}': {WAITING} requests wait for it", self.model)));
        }
        let turn = entry.slot.clone().lock_owned();
        match deadline {
            None => Ok(turn.await),
            Some(deadline) => tokio::time::timeout_at(deadline.into(), turn).await.map_err(|_| Fault::deadline()),
        }
    }

    /// A second sequence that goes on from a session.
    pub async fn adopt(self: &Arc<Self>, id: &SequenceId, (session, from): (Session, &Lease)) -> Result<(), Fault> {
        match self.find(id, Begin::Open)? {
            Found::Live(_) => Err(Fault::input(format!("sequence {id} of model '{}': expected a new id, found one in use", self.model))),
            Found::New(mut lease) => {
                let (generation, frames) = from.slot.as_ref().map_or((0, 0), |slot| (slot.generation, slot.frames));
                *lease.slot() = Slot { session: Some(session), generation, frames, unsettled: false };
                lease.forget_snapshot().await?;
                lease.keep();
                Ok(())
            }
        }
    }

    fn unknown(&self, id: &SequenceId) -> Fault {
        let table = self.table();
        let ended = table.ended.iter().rev().find(|(ended, _)| ended == id).map_or(String::new(), |(_, why)| format!(" (it {why})"));
        Fault::input(format!(
            "inference request for sequence {id} to model '{}' must specify the START flag on the first request of the sequence{ended}",
            self.model
        ))
    }

    /// Ends all of them, those that run after their step, and refuses new ones.
    pub fn close(&self, why: &'static str) {
        let mut table = self.table();
        table.closed = Some(why);
        let live = std::mem::take(&mut table.live);
        drop(table);
        drop(live);
    }
}

fn remember(ended: &mut VecDeque<(SequenceId, &'static str)>, id: SequenceId, why: &'static str) {
    if ended.len() == REMEMBERED {
        ended.pop_front();
    }
    ended.push_back((id, why));
}

impl Entry {
    fn new(slot: Arc<tokio::sync::Mutex<Slot>>, now: u64) -> Self {
        let (moved, saved) = (AtomicBool::new(true), AtomicU64::new(NONE));
        Self { slot, waiting: AtomicUsize::new(0), used: AtomicU64::new(now), moved, saved, file: Mutex::new(()) }
    }
}

enum Found {
    Live(Arc<Entry>),
    New(Lease),
}

/// A place in the line of a sequence.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

/// A sequence in the hands of one request.
pub(crate) struct Lease {
    sequences: Arc<Sequences>,
    id: SequenceId,
    entry: Arc<Entry>,
    /// `None` only while another thread has it.
    slot: Option<OwnedMutexGuard<Slot>>,
    /// Whether it is over once this request is.
    ends: bool,
}

impl Lease {
    fn slot(&mut self) -> &mut Slot {
        let Some(slot) = &mut self.slot else { unreachable!("a lease is used by one task, which waits for the other thread") };
        slot
    }

    /// A session for a sequence that begins.
    fn open(&mut self, Current { engine, generation }: Current<'_>) -> Result<(), EngineError> {
        *self.slot() = Slot { session: Some(engine.open()?), generation, frames: 0, unsettled: false };
        Ok(())
    }

    /// A session that goes on from the sequence's snapshot.
    async fn resume(&mut self, current: Current<'_>) -> Result<(), Fault> {
        let (sequences, id) = (self.sequences.clone(), self.id.clone());
        let read = move || sequences.snapshots.as_ref().map_or(Ok(None), |snapshots| snapshots.read(&id));
        let found = tokio::task::spawn_blocking(read).await.map_err(|panic| Fault::new(Kind::Failed, panic.to_string()))??;
        let Some(Snapshot { state, frames }) = found else { return Err(self.sequences.unknown(&self.id)) };
        let mut session = current.engine.open()?;
        // Not in the slot before it is restored: where the request is given up meanwhile, the next one reads the snapshot again.
        let restored = tokio::task::spawn_blocking(move || session.restore(&state).map(|()| session)).await;
        let session = restored.map_err(|panic| Fault::new(Kind::Failed, panic.to_string()))??;
        *self.slot() = Slot { session: Some(session), generation: current.generation, frames, unsettled: false };
        self.entry.moved.store(false, Relaxed);
        self.entry.saved.store(frames, Relaxed);
        self.keep();
        Ok(())
    }

    /// Goes on in the model's present engine, if it has been loaded anew. A state that is lost stays so.
    async fn catch_up(&mut self, current: Current<'_>) -> Result<(), Fault> {
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
    pub fn end(&mut self) {
        self.ends = true;
    }

    async fn settle(&mut self) -> Result<(), Fault> {
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

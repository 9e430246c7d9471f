//! Sequences are sessions: each has a state that stays from request to request, and takes its requests one after the other.

mod ended;
mod keep;
mod lease;
#[cfg(test)]
mod tests;

use crate::fault::{Fault, Kind};
use crate::keys::Principal;
use crate::log::Log;
use crate::protocol::request::SequenceId;
use crate::snapshots::{Mark, Snapshots, Store};
use candle_models::engine::{Engine, Session};
use candle_models::signature::Signature;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::OwnedMutexGuard;

pub(crate) use ended::{Ended, Why};
pub(crate) use lease::Lease;

/// Requests that may wait for the one that runs, of each sequence.
const WAITING: usize = 8;
/// Sequences whose end is remembered, to tell a client that comes back what became of its sequence.
const REMEMBERED: usize = 1024;

/// What becomes of sequences that nobody uses.
#[derive(Clone)]
pub(crate) struct Keep {
    /// After how long one is ended.
    pub idle: Duration,
    /// Where its state is kept then, if it is, and where it is said that it was not.
    pub store: Option<(Arc<dyn Store>, Arc<Log>)>,
    /// Whether a step is in a snapshot before it is answered, of all models.
    pub at_once: Arc<AtomicBool>,
    /// Counts those that end.
    pub ended: Arc<Ended>,
}

/// What a sequence is called: one of a principal is none of another's, whatever ids they choose.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    principal: Principal,
    id: SequenceId,
}

impl Name {
    /// The sequence of that id.
    pub fn new(principal: &Principal, id: &SequenceId) -> Self {
        Self { principal: principal.clone(), id: id.clone() }
    }

    /// The whole of it, as a text that is no other's: there is no line break in a principal.
    pub fn text(&self) -> String {
        format!("{}\n{}", self.principal.as_deref().unwrap_or_default(), self.id.as_str())
    }
}

/// The id, which is what the client knows it by.
impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
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
    at_once: Arc<AtomicBool>,
    /// How many have ended, of all models.
    pub ended: Arc<Ended>,
}

/// How many sequences there are.
#[derive(Debug, Default)]
pub(crate) struct Count {
    pub open: usize,
    /// Those that a request waits for.
    pub waiting: usize,
    /// Those that have a snapshot, which may be older than they are.
    pub snapshotted: usize,
}

#[derive(Default)]
struct Table {
    live: HashMap<Name, Arc<Entry>>,
    /// Those that were ended without being asked to, and why.
    ended: VecDeque<(Name, &'static str)>,
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
    /// Its snapshot, if there is one: the one that was written or read last.
    saved: Mutex<Option<Mark>>,
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
    pub fn new(model: &str, signature: &Signature, Keep { idle, store, at_once, ended }: &Keep) -> Arc<Self> {
        let snapshots = store.clone().map(|store| Arc::new(Snapshots::new(store, model, signature)));
        let (model, at_once, ended) = (model.to_owned(), at_once.clone(), ended.clone());
        Arc::new(Self { model, idle: *idle, since: Instant::now(), table: Mutex::default(), snapshots, at_once, ended })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        self.since.elapsed().as_millis() as u64
    }

    /// How many there are.
    pub fn count(&self) -> Count {
        let table = self.table();
        table.live.values().fold(Count::default(), |count, entry| Count {
            open: count.open + 1,
            waiting: count.waiting + usize::from(entry.waiting.load(Relaxed) > 0),
            snapshotted: count.snapshotted + usize::from(entry.saved().is_some()),
        })
    }

    /// How many requests wait for their turn.
    pub fn waiting(&self) -> usize {
        self.table().live.values().map(|entry| entry.waiting.load(Relaxed)).sum()
    }

    /// Waits for its turn in a sequence. A sequence that this opens is gone again unless [`Lease::keep`] is called; one that is to begin
    /// anew does so with [`Lease::restart`].
    pub async fn lease(self: &Arc<Self>, current: Current<'_>, id: &Name, begin: Begin, deadline: Option<Instant>) -> Result<Lease, Fault> {
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
                lease.refresh(current).await?;
            }
            return Ok(lease);
        }
    }

    fn find(self: &Arc<Self>, id: &Name, begin: Begin) -> Result<Found, Fault> {
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
    async fn wait(&self, id: &Name, entry: &Entry, deadline: Option<Instant>) -> Result<OwnedMutexGuard<Slot>, Fault> {
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
    pub async fn adopt(self: &Arc<Self>, id: &Name, (session, from): (Session, &Lease)) -> Result<(), Fault> {
        match self.find(id, Begin::Open)? {
            Found::Live(_) => Err(Fault::input(format!("sequence {id} of model '{}': expected a new id, found one in use", self.model))),
            Found::New(mut lease) => {
                let (generation, frames) = from.slot.as_ref().map_or((0, 0), |slot| (slot.generation, slot.frames));
                *lease.slot() = Slot { session: Some(session), generation, frames, unsettled: false };
                lease.forget_snapshot().await?;
                lease.keep_step().await?;
                lease.keep();
                Ok(())
            }
        }
    }

    fn unknown(&self, id: &Name) -> Fault {
        let table = self.table();
        let ended = table.ended.iter().rev().find(|(ended, _)| ended == id).map_or(String::new(), |(_, why)| format!(" (it {why})"));
        Fault::input(format!(
            "inference request for sequence {id} to model '{}' must specify the START flag on the first request of the sequence{ended}",
            self.model
        ))
    }

    /// Ends all of them, those that run after their step, and refuses new ones.
    pub fn close(&self, why: Why) {
        let mut table = self.table();
        table.closed = Some(why.text());
        let live = std::mem::take(&mut table.live);
        drop(table);
        self.ended.count(why, live.len());
        drop(live);
    }
}

fn remember(ended: &mut VecDeque<(Name, &'static str)>, id: Name, why: &'static str) {
    if ended.len() == REMEMBERED {
        ended.pop_front();
    }
    ended.push_back((id, why));
}

impl Entry {
    fn new(slot: Arc<tokio::sync::Mutex<Slot>>, now: u64) -> Self {
        let (moved, saved) = (AtomicBool::new(true), Mutex::default());
        Self { slot, waiting: AtomicUsize::new(0), used: AtomicU64::new(now), moved, saved, file: Mutex::new(()) }
    }

    fn saved(&self) -> MutexGuard<'_, Option<Mark>> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a snapshot that is there is another server's, written after the one that is known here. To be asked with `file` held: of a snapshot that is
    /// being written the one before it would be taken for another server's.
    fn is_foreign(&self, found: &Mark) -> bool {
        self.saved().as_ref().is_some_and(|own| own != found)
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

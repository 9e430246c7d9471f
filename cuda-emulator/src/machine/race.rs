//! Races between threads: two accesses of one word, at least one a plain write, with nothing that orders them.
//!
//! Time is a counter of synchronisations. An access is ordered before a later one of the same block by a barrier, of the
//! same warp by instructions of the warp that both took part in, of any block by a fence, an atomic or volatile access that
//! publishes and one of the same word that observes. A barrier of some threads counts for the whole block, a fence of one
//! thread for its block: such a race can be missed, but what is reported is one. Writes of the value that is there already
//! are tolerated.
use std::collections::HashMap;

use super::access::Place;
use crate::{
    decode::Program,
    error::{Code, Fault},
    ptx::Space,
};

/// An access that happened.
#[derive(Clone, Copy, Default)]
struct Record {
    /// The time of the access plus one; 0 for none.
    time: u32,
    block: u32,
    thread: u16,
    /// Which bytes of the word.
    mask: u8,
    /// Atomic or volatile: no race with its like.
    sync: bool,
    func: u16,
    pc: u32,
}

/// What is known of a word: its last writer and two readers of different threads.
#[derive(Clone, Copy, Default)]
struct Word {
    write: Record,
    reads: [Record; 2],
}

const PAGE: usize = 1024;
/// Words beyond these pages of global memory are not watched.
const MAX_PAGES: usize = 4096;

type Clock = HashMap<u32, u32>;

/// What a launch remembers over its blocks.
pub struct Grid {
    pub on: bool,
    now: u32,
    pages: HashMap<u64, Box<[Word; PAGE]>>,
    /// What an observer of a word knows of other blocks, by address.
    published: HashMap<u64, Clock>,
    /// What the blocks know of each other.
    known: HashMap<u32, Clock>,
}

impl Grid {
    pub fn new(on: bool) -> Self {
        Self { on, now: 0, pages: HashMap::new(), published: HashMap::new(), known: HashMap::new() }
    }

    fn tick(&mut self) -> u32 {
        self.now += 1;
        self.now
    }
}

/// What a block remembers.
pub struct Local {
    block: u32,
    shared: Vec<Word>,
    barrier: u32,
    fence: u32,
    warps: Vec<Warp>,
}

/// The synchronisations inside a warp.
struct Warp {
    /// The last of all its threads.
    whole: u32,
    /// For every lane: up to when it knows what each other lane did. Made when only some lanes synchronise.
    lanes: Option<Box<[[u32; 32]; 32]>>,
}

impl Local {
    pub fn new(on: bool, block: u32, shared: usize, threads: usize) -> Self {
        let warp = || Warp { whole: 0, lanes: None };
        let (words, warps) = if on { (shared.div_ceil(4), threads.div_ceil(32)) } else { (0, 0) };
        Self { block, shared: vec![Word::default(); words], barrier: 0, fence: 0, warps: (0..warps).map(|_| warp()).collect() }
    }

    /// Lanes of the warp that starts at thread `first` have met; `all` are those that still run.
    pub fn warp(&mut self, grid: &mut Grid, first: usize, members: u32, all: u32) {
        if !grid.on {
            return;
        }
        let now = grid.tick();
        let warp = &mut self.warps[first / 32];
        if members == all {
            warp.whole = now;
            return;
        }
        let lanes = warp.lanes.get_or_insert_with(|| Box::new([[0; 32]; 32]));
        let mut joined = [0u32; 32];
        for m in (0..32).filter(|m| members >> m & 1 == 1) {
            for (j, l) in joined.iter_mut().zip(&lanes[m]) {
                *j = (*j).max(*l);
            }
        }
        for m in (0..32).filter(|m| members >> m & 1 == 1) {
            joined[m] = now;
        }
        for m in (0..32).filter(|m| members >> m & 1 == 1) {
            lanes[m] = joined;
        }
    }

    pub fn barrier(&mut self, grid: &mut Grid) {
        self.barrier = grid.tick();
    }

    fn orders(&self, grid: &Grid, record: &Record, thread: usize) -> bool {
        if record.time == 0 {
            return true;
        }
        let time = record.time - 1;
        if record.block != self.block {
            return grid.known.get(&self.block).and_then(|k| k.get(&record.block)).is_some_and(|t| time < *t);
        }
        let other = usize::from(record.thread);
        if other == thread || time < self.barrier {
            return true;
        }
        if other / 32 == thread / 32 {
            let warp = &self.warps[thread / 32];
            if time < warp.whole || warp.lanes.as_ref().is_some_and(|l| time < l[thread % 32][other % 32]) {
                return true;
            }
        }
        grid.known.get(&self.block).and_then(|k| k.get(&self.block)).is_some_and(|t| time < *t)
    }
}

/// How an access takes part in the order of others.
#[derive(Clone, Copy, PartialEq)]
pub enum Class {
    Plain,
    /// Volatile, relaxed, atomic.
    Sync,
}

/// What one thread reports to.
pub struct Watch<'a> {
    pub grid: &'a mut Grid,
    pub block: &'a mut Local,
    pub program: &'a Program,
    pub thread: usize,
    pub func: usize,
}

impl Watch<'_> {
    pub fn read(&mut self, place: Place, len: usize, class: Class, pc: usize) -> Result<(), Fault> {
        if !self.watched(place) {
            return Ok(());
        }
        if class == Class::Sync {
            self.observe(place);
        }
        self.each(
            place,
            len,
            |watch, word, record| {
                watch.against(&word.write, &record, class, "write")?;
                let slot = match word.reads {
                    [a, _] if a.time == 0 || a.block == record.block && a.thread == record.thread => 0,
                    [_, b] if b.time == 0 || b.block == record.block && b.thread == record.thread => 1,
                    // A reader that is ordered before this one says nothing more than it.
                    [a, _] if watch.block.orders(watch.grid, &a, watch.thread) => 0,
                    _ => 1,
                };
                word.reads[slot] = record;
                Ok(())
            },
            class,
            pc,
        )
    }

    /// A write; `same` when the word holds the value already.
    pub fn write(&mut self, place: Place, len: usize, class: Class, same: bool, pc: usize) -> Result<(), Fault> {
        if !self.watched(place) {
            return Ok(());
        }
        if class == Class::Sync {
            self.publish(place);
        }
        self.each(
            place,
            len,
            |watch, word, record| {
                if !same {
                    watch.against(&word.write, &record, class, "write")?;
                }
                for read in word.reads {
                    watch.against(&read, &record, class, "read")?;
                }
                word.write = record;
                word.reads = [Record::default(); 2];
                Ok(())
            },
            class,
            pc,
        )
    }

    pub fn atomic(&mut self, place: Place, len: usize, pc: usize) -> Result<(), Fault> {
        if !self.watched(place) {
            return Ok(());
        }
        self.publish(place);
        self.observe(place);
        self.each(
            place,
            len,
            |watch, word, record| {
                watch.against(&word.write, &record, Class::Sync, "write")?;
                for read in word.reads {
                    watch.against(&read, &record, Class::Sync, "read")?;
                }
                word.write = record;
                word.reads = [Record::default(); 2];
                Ok(())
            },
            Class::Sync,
            pc,
        )
    }

    pub fn fence(&mut self) {
        if self.grid.on {
            self.block.fence = self.grid.tick();
        }
    }

    fn watched(&self, place: Place) -> bool {
        self.grid.on && matches!(place.space, Space::Global | Space::Shared)
    }

    /// Calls `f` for every word of an access.
    fn each(
        &mut self,
        place: Place,
        len: usize,
        f: impl Fn(&Self, &mut Word, Record) -> Result<(), Fault>,
        class: Class,
        pc: usize,
    ) -> Result<(), Fault> {
        let mut record = Record {
            time: self.grid.now + 1,
            block: self.block.block,
            thread: self.thread as u16,
            mask: 0,
            sync: class == Class::Sync,
            func: self.func as u16,
            pc: pc as u32,
        };
        let (mut at, end) = (place.address, place.address + len as u64);
        while at < end {
            let next = (at / 4 * 4 + 4).min(end);
            record.mask = (((1u16 << (next - at)) - 1) << (at % 4)) as u8;
            let Some(mut word) = self.word(place.space, at) else { return Ok(()) };
            f(self, &mut word, record).map_err(|fault| Fault::new(fault.code, format!("{} (address {at:#x})", fault.text)))?;
            self.put(place.space, at, word);
            at = next;
        }
        Ok(())
    }

    fn word(&mut self, space: Space, at: u64) -> Option<Word> {
        if space == Space::Shared {
            return self.block.shared.get(at as usize / 4).copied();
        }
        let full = self.grid.pages.len() >= MAX_PAGES;
        let page = at / (4 * PAGE as u64);
        if full && !self.grid.pages.contains_key(&page) {
            return None;
        }
        let words = self.grid.pages.entry(page).or_insert_with(|| Box::new([Word::default(); PAGE]));
        Some(words[at as usize / 4 % PAGE])
    }

    fn put(&mut self, space: Space, at: u64, word: Word) {
        if space == Space::Shared {
            self.block.shared[at as usize / 4] = word;
        } else if let Some(words) = self.grid.pages.get_mut(&(at / (4 * PAGE as u64))) {
            words[at as usize / 4 % PAGE] = word;
        }
    }

    fn against(&self, old: &Record, new: &Record, class: Class, what: &str) -> Result<(), Fault> {
        if old.mask & new.mask == 0 || class == Class::Sync && old.sync || self.block.orders(self.grid, old, self.thread) {
            return Ok(());
        }
        let func = &self.program.funcs[usize::from(old.func)];
        let statement = func.texts.get(old.pc as usize).map_or("", |t| t);
        let text = format!(
            "race: nothing orders it after the {what} by thread {} of block {} in `{}` statement {}: `{statement}`",
            old.thread, old.block, func.name, old.pc
        );
        Err(Fault::new(Code::LaunchFailed, text))
    }

    /// What this block did before its last fence becomes visible to who observes the word.
    fn publish(&mut self, place: Place) {
        let block = self.block.block;
        let fence = self.block.fence;
        let known = self.grid.known.get(&block).cloned().unwrap_or_default();
        if fence == 0 && known.is_empty() {
            return;
        }
        let clock = self.grid.published.entry(key(place, block)).or_default();
        join(clock, &known);
        join(clock, &HashMap::from([(block, fence)]));
    }

    fn observe(&mut self, place: Place) {
        let block = self.block.block;
        if let Some(clock) = self.grid.published.get(&key(place, block)) {
            join(self.grid.known.entry(block).or_default(), clock);
        }
    }
}

/// A word of shared memory is another one in every block.
fn key(place: Place, block: u32) -> u64 {
    match place.space {
        Space::Shared => 1 << 63 | u64::from(block) << 24 | place.address,
        _ => place.address,
    }
}

fn join(clock: &mut Clock, other: &Clock) {
    for (block, time) in other {
        let known = clock.entry(*block).or_default();
        *known = (*known).max(*time);
    }
}

//! Streams: queues that run when somebody waits.
use std::{cell::Cell, collections::VecDeque, ffi::c_void, sync::Arc};

use super::{Driver, Handle, Locked, api, current, put};
use crate::{
    error::{Code, Fault},
    log::Tally,
};

/// What a piece of work is, for the counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkKind {
    Kernel,
    Library,
    Copy,
    Memset,
    Alloc,
    Free,
    Host,
    /// Waits, records and launches of graphs, which are not counted themselves.
    Other,
}

type Run = dyn Fn(&mut Driver) -> Result<(), Fault> + Send + Sync;
pub type HostFn = extern "C" fn(*mut c_void);

/// A function of the program with its argument.
#[derive(Clone, Copy)]
pub struct HostCall {
    pub f: HostFn,
    pub data: usize,
}

#[derive(Clone)]
pub enum Action {
    Run(Arc<Run>),
    /// Waits until a stream has completed a number of works.
    Wait(usize, u64),
    Host(HostCall),
    Graph(Arc<super::Graph>, bool),
}

#[derive(Clone)]
pub struct Work {
    pub kind: WorkKind,
    pub action: Action,
}

impl Work {
    pub fn new(kind: WorkKind, run: impl Fn(&mut Driver) -> Result<(), Fault> + Send + Sync + 'static) -> Self {
        Self { kind, action: Action::Run(Arc::new(run)) }
    }

    pub fn count(&self, tally: &mut Tally) {
        match self.kind {
            WorkKind::Kernel => tally.kernels += 1,
            WorkKind::Library => tally.library += 1,
            WorkKind::Copy => tally.copies += 1,
            WorkKind::Memset => tally.memsets += 1,
            WorkKind::Alloc => tally.allocations += 1,
            WorkKind::Free => tally.frees += 1,
            WorkKind::Host => tally.host += 1,
            WorkKind::Other => {}
        }
    }
}

#[derive(Default)]
pub struct Stream {
    pub device: i32,
    pub flags: u32,
    pub priority: i32,
    /// The legacy stream waits for it and it for the legacy stream.
    pub blocking: bool,
    queue: VecDeque<Work>,
    pub enqueued: u64,
    pub completed: u64,
    /// A thread runs a function of the program that stands in the queue.
    running: bool,
    destroyed: bool,
    pub capture: Option<usize>,
}

const LEGACY: usize = 0x100;

thread_local! {
    static PER_THREAD: Cell<[usize; 16]> = const { Cell::new([0; 16]) };
}

impl Driver {
    /// The stream of a handle: 0 and 1 are the legacy stream, 2 is the thread's own.
    pub(crate) fn stream_key(&mut self, handle: Handle) -> Result<usize, Fault> {
        match handle as usize {
            0 | 1 => {
                let device = current()?;
                let key = LEGACY + device as usize;
                self.streams.entry(key).or_insert_with(|| Stream { device, ..Stream::default() });
                Ok(key)
            }
            2 => {
                let device = current()?;
                let mut keys = PER_THREAD.with(Cell::get);
                let slot = &mut keys[device as usize & 15];
                if !self.streams.contains_key(slot) {
                    *slot = self.handle();
                    self.streams.insert(*slot, Stream { device, blocking: true, ..Stream::default() });
                }
                PER_THREAD.with(|k| k.set(keys));
                Ok(keys[device as usize & 15])
            }
            key => match self.streams.get(&key) {
                Some(s) if !s.destroyed => Ok(key),
                _ => Err(Fault::new(Code::InvalidHandle, format!("no stream {key:#x}"))),
            },
        }
    }

    /// Puts work on a stream, or into the graph that it captures.
    pub(crate) fn enqueue(&mut self, key: usize, work: Work) -> Result<(), Fault> {
        if self.streams[&key].capture.is_some() {
            return self.capture_node(key, work);
        }
        let device = self.streams[&key].device;
        let legacy = LEGACY + device as usize;
        let before: Vec<usize> = if key == legacy {
            self.legacy_in_capture()?;
            self.streams.iter().filter(|(_, s)| s.blocking && s.device == device).map(|(k, _)| *k).collect()
        } else if self.streams[&key].blocking && self.streams.contains_key(&legacy) {
            vec![legacy]
        } else {
            Vec::new()
        };
        for other in before {
            let s = &self.streams[&other];
            if s.enqueued > s.completed {
                let wait = Work { kind: WorkKind::Other, action: Action::Wait(other, s.enqueued) };
                self.push(key, wait);
            }
        }
        self.push(key, work);
        Ok(())
    }

    fn push(&mut self, key: usize, work: Work) {
        if let Some(stream) = self.streams.get_mut(&key) {
            stream.queue.push_back(work);
            stream.enqueued += 1;
        }
    }

    pub(crate) fn idle(&self, key: usize) -> bool {
        self.streams.get(&key).is_none_or(|s| s.completed >= s.enqueued)
    }
}

impl Locked {
    /// Runs a stream until it has completed `position` works.
    pub(crate) fn run_until(&mut self, key: usize, position: u64) {
        loop {
            if self.sticky.is_some() {
                return;
            }
            let Some(stream) = self.streams.get_mut(&key) else { return };
            if stream.completed >= position {
                return;
            }
            if stream.running {
                // Another thread is inside a function of the program.
                self.unlocked(std::thread::yield_now);
                continue;
            }
            let Some(work) = stream.queue.pop_front() else { return };
            stream.running = true;
            self.perform(work);
            if let Some(stream) = self.streams.get_mut(&key) {
                stream.running = false;
                stream.completed += 1;
                if stream.destroyed && stream.completed >= stream.enqueued {
                    self.streams.remove(&key);
                    return;
                }
            }
        }
    }

    fn perform(&mut self, work: Work) {
        let driver: &mut Driver = self;
        work.count(&mut driver.counts.total);
        let result = match work.action {
            Action::Run(run) => run(driver),
            Action::Wait(key, position) => {
                self.run_until(key, position);
                Ok(())
            }
            Action::Host(call) => {
                self.unlocked(|| (call.f)(call.data as *mut c_void));
                Ok(())
            }
            Action::Graph(graph, auto_free) => {
                let tally = graph.tally();
                let driver: &mut Driver = self;
                driver.counts.graph(&driver.config, tally);
                let ready = graph.prepare(driver, auto_free);
                if ready.is_ok() {
                    for node in &graph.nodes {
                        if self.sticky.is_none() {
                            self.perform(node.clone());
                        }
                    }
                }
                ready
            }
        };
        if let Err(fault) = result {
            self.fail(&fault);
        }
    }

    pub(crate) fn run_stream(&mut self, key: usize) {
        let position = self.streams.get(&key).map_or(0, |s| s.enqueued);
        self.run_until(key, position);
    }

    /// Runs everything that is queued anywhere.
    pub(crate) fn run_all(&mut self) {
        let mut keys: Vec<usize> = self.streams.keys().copied().collect();
        keys.sort_unstable();
        for key in keys {
            self.run_stream(key);
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreate(stream: *mut Handle, flags: u32) -> i32 {
    cuStreamCreateWithPriority(stream, flags, 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamCreateWithPriority(stream: *mut Handle, flags: u32, priority: i32) -> i32 {
    api(|driver| {
        let device = current()?;
        let key = driver.handle();
        let priority = priority.clamp(-5, 0);
        driver.streams.insert(key, Stream { device, flags, priority, blocking: flags & 1 == 0, ..Stream::default() });
        put(stream, key as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: Handle) -> i32 {
    api(|driver| {
        if (stream as usize) < 3 {
            return Err(Code::InvalidHandle.into());
        }
        let key = driver.stream_key(stream)?;
        let idle = driver.idle(key);
        if let Some(capture) = driver.streams[&key].capture {
            driver.invalidate(capture, "its stream is destroyed");
        }
        if idle {
            driver.streams.remove(&key);
        } else if let Some(s) = driver.streams.get_mut(&key) {
            // Its work still runs.
            s.destroyed = true;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        driver.not_capturing(key, "cuStreamSynchronize")?;
        driver.run_stream(key);
        if stream as usize <= 1 {
            // The legacy stream's work comes after that of all blocking streams.
            let device = driver.streams[&key].device;
            let mut keys: Vec<usize> = driver.streams.iter().filter(|(_, s)| s.blocking && s.device == device).map(|(k, _)| *k).collect();
            keys.sort_unstable();
            for key in keys {
                driver.run_stream(key);
            }
        }
        Ok(())
    })
}

/// The first query of unfinished work says "not ready" and then runs it, so that polling ends.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamQuery(stream: Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        driver.not_capturing(key, "cuStreamQuery")?;
        if driver.idle(key) {
            return Ok(());
        }
        driver.run_stream(key);
        Err(Code::NotReady.into())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: Handle, event: Handle, _flags: u32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        let record = driver.event(event)?.record.clone();
        match record {
            super::Record::None => Ok(()),
            super::Record::Captured { capture, covered } => driver.join_capture(key, capture, &covered),
            super::Record::Stream { stream, position } => {
                if let Some(capture) = driver.streams[&key].capture {
                    driver.invalidate(capture, "it waits for an event that was recorded outside");
                    let text = "a capturing stream waits for an event that was recorded outside the capture";
                    return Err(Fault::new(Code::CaptureIsolation, text));
                }
                driver.enqueue(key, Work { kind: WorkKind::Other, action: Action::Wait(stream, position) })
            }
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuLaunchHostFunc(stream: Handle, f: Option<HostFn>, data: *mut c_void) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        let f = f.ok_or(Code::InvalidValue)?;
        driver.enqueue(key, Work { kind: WorkKind::Host, action: Action::Host(HostCall { f, data: data as usize }) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetFlags(stream: Handle, flags: *mut u32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(flags, driver.streams[&key].flags)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetPriority(stream: Handle, priority: *mut i32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(priority, driver.streams[&key].priority)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetId(stream: Handle, id: *mut u64) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(id, key as u64)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCtx(stream: Handle, context: *mut Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(context, super::context_handle(driver.streams[&key].device))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetDevice(stream: Handle, device: *mut i32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(device, driver.streams[&key].device)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamAttachMemAsync(stream: Handle, _at: u64, _length: usize, _flags: u32) -> i32 {
    api(|driver| driver.stream_key(stream).map(|_| ()))
}

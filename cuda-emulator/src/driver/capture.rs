//! Stream capture: which streams take part, what is illegal meanwhile.
use std::{collections::BTreeMap, sync::Arc, thread::ThreadId};

use super::{Driver, Graph, Handle, Work, api, put};
use crate::{
    error::{Code, Fault},
    log,
};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;

/// A capture under way.
pub struct Capture {
    origin: usize,
    mode: u32,
    thread: ThreadId,
    pub nodes: Vec<Work>,
    /// Per stream: its works in order, and how many of every stream come before its next.
    streams: BTreeMap<usize, Member>,
    invalid: Option<String>,
    /// Memory that the graph allocates and frees itself.
    pub allocated: Vec<u64>,
    pub freed: Vec<u64>,
}

#[derive(Default)]
struct Member {
    works: u64,
    covered: BTreeMap<usize, u64>,
}

thread_local! {
    static MODE: std::cell::Cell<u32> = const { std::cell::Cell::new(GLOBAL) };
}

impl Driver {
    pub(crate) fn invalidate(&mut self, capture: usize, why: &str) {
        if let Some(capture) = self.captures.get_mut(&capture) {
            capture.invalid.get_or_insert_with(|| why.to_string());
        }
    }

    /// Refuses a call that waits for a stream under capture.
    pub(crate) fn not_capturing(&mut self, key: usize, what: &str) -> Result<(), Fault> {
        let Some(capture) = self.streams[&key].capture else { return Ok(()) };
        self.invalidate(capture, what);
        Err(Fault::new(Code::CaptureUnsupported, format!("{what} on a capturing stream")))
    }

    /// Refuses a call that may synchronise with other streams, unless every capture is relaxed about it.
    pub(crate) fn unsafe_call(&mut self, what: &str) -> Result<(), Fault> {
        let (me, mode) = (std::thread::current().id(), MODE.with(std::cell::Cell::get));
        if mode > THREAD_LOCAL {
            return Ok(());
        }
        let hit = self.captures.iter().find(|(_, c)| match c.mode {
            GLOBAL => mode == GLOBAL || c.thread == me,
            THREAD_LOCAL => c.thread == me,
            _ => false,
        });
        let Some(capture) = hit.map(|h| *h.0) else { return Ok(()) };
        self.invalidate(capture, what);
        Err(Fault::new(Code::CaptureUnsupported, format!("{what} during a capture that is not relaxed")))
    }

    /// The legacy stream depends on all blocking streams: none of them may be capturing.
    pub(crate) fn legacy_in_capture(&mut self) -> Result<(), Fault> {
        let Some(capture) = self.streams.values().find(|s| s.blocking && s.capture.is_some()).and_then(|s| s.capture) else {
            return Ok(());
        };
        self.invalidate(capture, "use of the legacy stream");
        Err(Fault::new(Code::CaptureImplicit, "the legacy stream is used while a blocking stream captures"))
    }

    pub(crate) fn any_capture(&mut self, what: &str) -> Result<(), Fault> {
        let Some(capture) = self.captures.keys().next().copied() else { return Ok(()) };
        self.invalidate(capture, what);
        Err(Fault::new(Code::CaptureUnsupported, format!("{what} while a stream captures")))
    }

    pub(crate) fn capture_node(&mut self, key: usize, work: Work) -> Result<(), Fault> {
        let id = self.streams[&key].capture.unwrap_or(0);
        let Some(capture) = self.captures.get_mut(&id) else { return Err(Code::IllegalState.into()) };
        if let Some(why) = &capture.invalid {
            return Err(Fault::new(Code::CaptureInvalidated, format!("the capture was invalidated: {why}")));
        }
        capture.nodes.push(work);
        let member = capture.streams.entry(key).or_default();
        member.works += 1;
        member.covered.insert(key, member.works);
        Ok(())
    }

    /// What comes before an event that is recorded now.
    pub(crate) fn covered(&mut self, capture: usize, key: usize) -> Result<BTreeMap<usize, u64>, Fault> {
        let capture = self.captures.get(&capture).ok_or(Code::IllegalState)?;
        let mut covered = capture.streams.get(&key).map(|m| m.covered.clone()).unwrap_or_default();
        covered.entry(key).or_insert(0);
        Ok(covered)
    }

    /// A stream waits for an event of a capture: it takes part from now on.
    pub(crate) fn join_capture(&mut self, key: usize, id: usize, covered: &BTreeMap<usize, u64>) -> Result<(), Fault> {
        let Some(capture) = self.captures.get_mut(&id) else {
            return Err(Fault::new(Code::CapturedEvent, "the event belongs to a capture that has ended"));
        };
        let stream = self.streams.get_mut(&key).ok_or(Code::InvalidHandle)?;
        if stream.capture.is_some_and(|c| c != id) {
            capture.invalid.get_or_insert_with(|| "two captures would merge".to_string());
            return Err(Code::CaptureMerge.into());
        }
        stream.capture = Some(id);
        let member = capture.streams.entry(key).or_default();
        for (stream, works) in covered {
            let known = member.covered.entry(*stream).or_default();
            *known = (*known).max(*works);
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(stream: Handle, mode: u32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        if (stream as usize) < 2 {
            return Err(Fault::new(Code::CaptureUnsupported, "the legacy stream cannot be captured"));
        }
        if driver.streams[&key].capture.is_some() {
            return Err(Fault::new(Code::IllegalState, "the stream is capturing already"));
        }
        let id = driver.handle();
        let capture = Capture {
            origin: key,
            mode,
            thread: std::thread::current().id(),
            nodes: Vec::new(),
            streams: BTreeMap::from([(key, Member::default())]),
            invalid: None,
            allocated: Vec::new(),
            freed: Vec::new(),
        };
        driver.captures.insert(id, capture);
        if let Some(s) = driver.streams.get_mut(&key) {
            s.capture = Some(id);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(graph, std::ptr::null_mut())?;
        let id = driver.streams[&key].capture.ok_or_else(|| Fault::new(Code::IllegalState, "the stream is not capturing"))?;
        let capture = driver.captures.get(&id).ok_or(Code::IllegalState)?;
        if capture.origin != key {
            driver.invalidate(id, "ended on another stream");
            return Err(Code::CaptureUnmatched.into());
        }
        if capture.mode <= THREAD_LOCAL && capture.thread != std::thread::current().id() {
            return Err(Code::CaptureWrongThread.into());
        }
        for s in driver.streams.values_mut().filter(|s| s.capture == Some(id)) {
            s.capture = None;
        }
        let Some(capture) = driver.captures.remove(&id) else { return Err(Code::IllegalState.into()) };
        if let Some(why) = capture.invalid {
            for base in capture.allocated {
                driver.graph_memory.remove(&base);
                driver.memory.free(base)?;
            }
            return Err(Fault::new(Code::CaptureInvalidated, format!("the capture was invalidated: {why}")));
        }
        let joined = &capture.streams[&key].covered;
        if let Some((s, _)) = capture.streams.iter().find(|(s, m)| m.works > joined.get(s).copied().unwrap_or(0)) {
            return Err(Fault::new(Code::CaptureUnjoined, format!("the work of stream {s:#x} is not joined")));
        }
        let handle = driver.handle();
        driver.graphs.insert(handle, Arc::new(Graph::new(capture.nodes, capture.allocated, capture.freed)));
        if driver.config.log {
            log::error(&format!("captured a graph: {:?}", driver.graphs[&handle].tally()));
        }
        put(graph, handle as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut u32) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        if (stream as usize) < 2 {
            driver.legacy_in_capture()?;
        }
        let capture = driver.streams[&key].capture.and_then(|c| driver.captures.get(&c));
        put(status, capture.map_or(0, |c| if c.invalid.is_some() { 2 } else { 1 }))
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo(stream: Handle, status: *mut u32, id: *mut u64) -> i32 {
    let code = cuStreamIsCapturing(stream, status);
    if code != 0 || id.is_null() {
        return code;
    }
    api(|driver| {
        let key = driver.stream_key(stream)?;
        put(id, driver.streams[&key].capture.unwrap_or(0) as u64)
    })
}

/// The newer forms; the graph under construction and its nodes are not handed out.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v3(
    stream: Handle,
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut Handle,
    edges: *mut Handle,
    count: *mut usize,
) -> i32 {
    for out in [graph, dependencies, edges] {
        if !out.is_null() {
            // SAFETY: the caller passes valid places or null.
            unsafe { out.write(std::ptr::null_mut()) };
        }
    }
    if !count.is_null() {
        // SAFETY: as above.
        unsafe { count.write(0) };
    }
    cuStreamGetCaptureInfo(stream, status, id)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamGetCaptureInfo_v2(
    stream: Handle,
    status: *mut u32,
    id: *mut u64,
    graph: *mut Handle,
    dependencies: *mut Handle,
    count: *mut usize,
) -> i32 {
    cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, std::ptr::null_mut(), count)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> i32 {
    api(|_| {
        if mode.is_null() {
            return Err(Code::InvalidValue.into());
        }
        // SAFETY: the caller passes a valid place.
        let new = unsafe { mode.read() };
        put(mode, MODE.with(|m| m.replace(new)))
    })
}

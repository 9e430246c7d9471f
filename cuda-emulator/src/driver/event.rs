//! Events: a position in a stream, or a set of nodes of a capture.
use std::{collections::BTreeMap, time::Instant};

use super::{Driver, Handle, Work, WorkKind, api, put};
use crate::error::{Code, Fault};

/// What an event was recorded on last.
#[derive(Clone, Default)]
pub enum Record {
    #[default]
    None,
    Stream {
        stream: usize,
        position: u64,
    },
    /// In a capture: how many works of each stream come before it.
    Captured {
        capture: usize,
        covered: BTreeMap<usize, u64>,
    },
}

#[derive(Default)]
pub struct Event {
    flags: u32,
    pub record: Record,
    time: Option<Instant>,
}

const DISABLE_TIMING: u32 = 2;

impl Driver {
    pub(crate) fn event(&mut self, event: Handle) -> Result<&mut Event, Fault> {
        let key = event as usize;
        self.events.get_mut(&key).ok_or_else(|| Fault::new(Code::InvalidHandle, format!("no event {key:#x}")))
    }

    /// The event's place on its stream, if it has work before it that has not run.
    fn pending(&mut self, event: Handle) -> Result<Option<(usize, u64)>, Fault> {
        match self.event(event)?.record {
            Record::None => Ok(None),
            Record::Captured { .. } => Err(Fault::new(Code::CapturedEvent, "the event was recorded in a capture")),
            Record::Stream { stream, position } => {
                Ok(self.streams.get(&stream).filter(|s| s.completed < position).map(|_| (stream, position)))
            }
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventCreate(event: *mut Handle, flags: u32) -> i32 {
    api(|driver| {
        let key = driver.handle();
        driver.events.insert(key, Event { flags, ..Event::default() });
        put(event, key as Handle)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: Handle) -> i32 {
    api(|driver| {
        driver.event(event)?;
        driver.events.remove(&(event as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: Handle, stream: Handle) -> i32 {
    api(|driver| {
        let key = driver.stream_key(stream)?;
        driver.event(event)?;
        if let Some(capture) = driver.streams[&key].capture {
            let covered = driver.covered(capture, key)?;
            driver.event(event)?.record = Record::Captured { capture, covered };
            return Ok(());
        }
        let id = event as usize;
        driver.enqueue(
            key,
            Work::new(WorkKind::Other, move |driver| {
                if let Some(event) = driver.events.get_mut(&id) {
                    event.time = Some(Instant::now());
                }
                Ok(())
            }),
        )?;
        let position = driver.streams[&key].enqueued;
        driver.event(event)?.record = Record::Stream { stream: key, position };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecordWithFlags(event: Handle, stream: Handle, _flags: u32) -> i32 {
    cuEventRecord(event, stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: Handle) -> i32 {
    api(|driver| match driver.pending(event)? {
        None => Ok(()),
        Some((stream, position)) => {
            driver.run_until(stream, position);
            Err(Code::NotReady.into())
        }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: Handle) -> i32 {
    api(|driver| {
        if let Some((stream, position)) = driver.pending(event)? {
            driver.run_until(stream, position);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: Handle, end: Handle) -> i32 {
    api(|driver| {
        if driver.pending(start)?.is_some() || driver.pending(end)?.is_some() {
            return Err(Code::NotReady.into());
        }
        let mut times = [None; 2];
        for (slot, event) in times.iter_mut().zip([start, end]) {
            let event = driver.event(event)?;
            if event.flags & DISABLE_TIMING != 0 {
                return Err(Code::InvalidHandle.into());
            }
            *slot = event.time;
        }
        let [Some(a), Some(b)] = times else { return Err(Code::InvalidHandle.into()) };
        put(milliseconds, if b >= a { (b - a).as_secs_f32() * 1e3 } else { -((a - b).as_secs_f32() * 1e3) })
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, start: Handle, end: Handle) -> i32 {
    cuEventElapsedTime_v2(milliseconds, start, end)
}

//! Capture and replay, and what a capture forbids.
mod common;
use std::ptr::null_mut;

use common::*;
use cuda_emulator::driver::*;

const GLOBAL: u32 = 0;
const RELAXED: u32 = 2;
const AUTO_FREE: u64 = 1;

fn increment(s: &Session) -> Kernel {
    s.kernel(".param .u64 out", &format!("{INDEX} ld.global.u32 %r5, [%d1]; add.u32 %r5, %r5, 1; st.global.u32 [%d1], %r5; ret;"))
}

fn end(s: &Session, flags: u64) -> Handle {
    let (mut graph, mut exec) = (null_mut(), null_mut());
    ok(cuStreamEndCapture(s.stream, &mut graph));
    ok(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
    exec
}

#[test]
fn a_graph_replays_what_was_captured() {
    let s = Session::new();
    let (k, out) = (increment(&s), s.upload(&[0u32; 4]));
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    ok(s.launch(&k, 1, 4, &[out]));
    ok(s.launch(&k, 1, 2, &[out]));
    let exec = end(&s, 0);
    assert_eq!(s.download::<u32>(out, 4), [0; 4], "a capture runs nothing");
    for _ in 0..3 {
        ok(cuGraphLaunch(exec, s.stream));
    }
    assert_eq!(s.download::<u32>(out, 4), [6, 6, 3, 3]);
    let locked = Locked::new();
    assert_eq!((locked.counts.last_graph.kernels, locked.counts.total.kernels), (2, 6));
}

#[test]
fn memory_of_a_graph_lives_with_its_launches() {
    let s = Session::new();
    let (k, out) = (increment(&s), s.upload(&[5u32; 4]));
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    let (inside, kept) = (s.alloc(16), s.alloc(16));
    ok(cuMemcpyDtoDAsync_v2(inside, out, 16, s.stream));
    ok(s.launch(&k, 1, 4, &[inside]));
    ok(cuMemcpyDtoDAsync_v2(kept, inside, 16, s.stream));
    ok(cuMemFreeAsync(inside, s.stream));
    let exec = end(&s, 0);
    assert_eq!(cuMemFreeAsync(kept, s.stream), 1, "no launch has allocated it");
    ok(cuGraphLaunch(exec, s.stream));
    assert_eq!(s.download::<u32>(kept, 4), [6; 4]);
    assert_eq!(cuGraphLaunch(exec, s.stream), 1, "the memory of the last launch is not freed");
    ok(cuMemFreeAsync(kept, s.stream));
    ok(cuGraphLaunch(exec, s.stream));
    ok(s.sync());
    ok(s.launch(&k, 1, 4, &[inside]));
    assert_eq!(s.sync(), 700, "the graph has freed it");
}

#[test]
fn freeing_on_launch_allows_the_next() {
    let s = Session::new();
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    let kept = s.alloc(16);
    ok(cuMemsetD32Async(kept, 7, 4, s.stream));
    let exec = end(&s, AUTO_FREE);
    for _ in 0..2 {
        ok(cuGraphLaunch(exec, s.stream));
    }
    assert_eq!(s.download::<u32>(kept, 4), [7; 4]);
}

#[test]
fn synchronising_a_capturing_stream_invalidates_the_capture() {
    let s = Session::new();
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    assert_eq!(s.sync(), 900);
    let mut graph = null_mut();
    assert_eq!(cuStreamEndCapture(s.stream, &mut graph), 901);
    assert!(graph.is_null());
    ok(s.sync());
}

#[test]
fn a_global_capture_forbids_synchronous_calls_that_a_relaxed_one_allows() {
    let s = Session::new();
    let mut at = 0;
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    ok(cuMemAlloc_v2(&mut at, 16));
    end(&s, 0);
    ok(cuStreamBeginCapture_v2(s.stream, GLOBAL));
    assert_eq!(cuMemAlloc_v2(&mut at, 16), 900);
    assert_eq!(cuStreamEndCapture(s.stream, &mut null_mut()), 901);
}

#[test]
fn uploads_from_pageable_memory_and_frees_from_outside_are_refused() {
    let s = Session::new();
    let out = s.alloc(16);
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    assert_eq!(cuMemcpyHtoDAsync_v2(out, [0u32; 4].as_ptr().cast(), 16, s.stream), 900);
    assert_eq!(cuStreamEndCapture(s.stream, &mut null_mut()), 901);
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    assert_eq!(cuMemFreeAsync(out, s.stream), 1);
    assert_eq!(cuStreamEndCapture(s.stream, &mut null_mut()), 901);
}

#[test]
fn events_fork_and_join_a_capture() {
    let s = Session::new();
    let (k, out, other) = (increment(&s), s.upload(&[0u32; 4]), new_stream());
    let (mut fork, mut join) = (null_mut(), null_mut());
    ok(cuEventCreate(&mut fork, 2));
    ok(cuEventCreate(&mut join, 2));
    for joined in [true, false] {
        ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
        ok(s.launch(&k, 1, 4, &[out]));
        ok(cuEventRecord(fork, s.stream));
        ok(cuStreamWaitEvent(other, fork, 0));
        ok(cuMemsetD32Async(out + 8, 9, 2, other));
        ok(cuEventRecord(join, other));
        if joined {
            ok(cuStreamWaitEvent(s.stream, join, 0));
            ok(cuGraphLaunch(end(&s, 0), s.stream));
            assert_eq!(s.download::<u32>(out, 4), [1, 1, 9, 9]);
        } else {
            assert_eq!(cuStreamEndCapture(s.stream, &mut null_mut()), 904);
        }
    }
}

#[test]
fn a_capture_cannot_wait_for_an_event_from_outside() {
    let s = Session::new();
    let (other, mut event) = (new_stream(), null_mut());
    ok(cuEventCreate(&mut event, 2));
    ok(cuEventRecord(event, other));
    ok(cuStreamBeginCapture_v2(s.stream, RELAXED));
    assert_eq!(cuStreamWaitEvent(s.stream, event, 0), 905);
    assert_eq!(cuStreamEndCapture(s.stream, &mut null_mut()), 901);
}

//! What hardware would do wrong in silence, or abort for, is reported: each check fires, and correct code passes.
mod common;
use common::*;
use cuda_emulator::driver::*;

const ILLEGAL_ADDRESS: i32 = 700;
const MISALIGNED: i32 = 716;
const LAUNCH_FAILED: i32 = 719;
const TIMEOUT: i32 = 702;

fn store(s: &Session) -> Kernel {
    s.kernel(".param .u64 out", &format!("{INDEX} st.global.u32 [%d1], %r1; ret;"))
}

#[test]
fn one_element_past_the_end_is_an_illegal_address_that_sticks() {
    let s = Session::new();
    let k = store(&s);
    let out = s.alloc(4 * 63);
    ok(s.launch(&k, 2, 32, &[out]));
    assert_eq!(s.sync(), ILLEGAL_ADDRESS);
    assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    let mut at = 0;
    assert_eq!(cuMemAlloc_v2(&mut at, 16), ILLEGAL_ADDRESS);
}

#[test]
fn freed_memory_is_not_used_again() {
    let s = Session::new();
    let k = store(&s);
    let out = s.alloc(256);
    ok(s.run(&k, 1, 64, &[out]));
    ok(cuMemFreeAsync(out, s.stream));
    assert_ne!(s.alloc(256), out);
    assert_eq!(s.run(&k, 1, 64, &[out]), ILLEGAL_ADDRESS);
}

#[test]
fn freeing_twice_is_refused() {
    let s = Session::new();
    let out = s.alloc(256);
    ok(cuMemFreeAsync(out, s.stream));
    assert_eq!(cuMemFreeAsync(out, s.stream), 1);
    ok(s.sync());
    assert_eq!(cuMemFree_v2(out), 1);
}

#[test]
fn memory_of_another_stream_is_not_there_before_a_wait() {
    let s = Session::new();
    let k = store(&s);
    let other = new_stream();
    let mut out = 0;
    ok(cuMemAllocAsync(&mut out, 256, other));
    assert_eq!(s.run(&k, 1, 64, &[out]), ILLEGAL_ADDRESS);
}

#[test]
fn an_event_orders_two_streams() {
    let s = Session::new();
    let k = store(&s);
    let other = new_stream();
    let (mut out, mut event) = (0, std::ptr::null_mut());
    ok(cuMemAllocAsync(&mut out, 256, other));
    ok(cuEventCreate(&mut event, 2));
    ok(cuEventRecord(event, other));
    ok(cuStreamWaitEvent(s.stream, event, 0));
    ok(s.run(&k, 1, 64, &[out]));
    ok(cuEventQuery(event));
}

#[test]
fn misaligned_accesses_are_faults() {
    let s = Session::new();
    let k = store(&s);
    let out = s.alloc(256);
    assert_eq!(s.run(&k, 1, 1, &[out + 2]), MISALIGNED);
}

#[test]
fn shared_memory_has_bounds() {
    let s = Session::new();
    let text = format!(
        ".extern .shared .align 4 .b8 tile[]; .visible .entry k() {{ {REGISTERS} mov.u32 %r1, %tid.x; mul.lo.u32 %r1, %r1, 4;
        mov.u32 %r2, tile; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r1; ret; }}"
    );
    let k = s.module(&text);
    ok(s.launch_shared(&k, 1, 32, 128, &[]));
    ok(s.sync());
    ok(s.launch_shared(&k, 1, 33, 128, &[]));
    assert_eq!(s.sync(), ILLEGAL_ADDRESS);
}

#[test]
fn launches_have_limits() {
    let s = Session::new();
    let k = store(&s);
    let out = s.alloc(8192);
    assert_eq!(s.launch(&k, 1, 1025, &[out]), 1);
    assert_eq!(s.launch(&k, 0, 32, &[out]), 1);
    assert_eq!(s.launch_shared(&k, 1, 32, 50 << 10, &[out]), 1);
    ok(cuFuncSetAttribute(k.0, 8, 50 << 10));
    ok(s.launch_shared(&k, 1, 32, 50 << 10, &[out]));
    assert_eq!(cuFuncSetAttribute(k.0, 8, 228 << 10), 1);
    ok(s.sync());
}

#[test]
fn a_barrier_that_some_miss_is_a_deadlock() {
    let s = Session::new();
    let k = s.kernel("", "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 bra B; bar.sync 0; bra.uni E; B: bar.sync 1; E: ret;");
    assert_eq!(s.run(&k, 1, 32, &[]), TIMEOUT);
}

#[test]
fn a_shuffle_whose_lanes_do_not_come_is_a_deadlock() {
    let s = Session::new();
    let k = s.kernel(
        "",
        "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1, 7; @%p1 bra B; shfl.sync.idx.b32 %r2, %r1, 0, 31, -1; ret; B: bar.sync 0; ret;",
    );
    assert_eq!(s.run(&k, 1, 32, &[]), TIMEOUT);
}

#[test]
fn an_endless_loop_times_out() {
    let s = Session::with(Config { max_instructions: 1_000_000, ..Config::default() });
    let k = s.kernel("", "L: add.u32 %r1, %r1, 1; bra.uni L; ret;");
    assert_eq!(s.run(&k, 1, 32, &[]), TIMEOUT);
}

/// Every thread writes its word of shared memory and reads its neighbour's; `between` stands in the middle.
fn neighbours(s: &Session, between: &str, block: u32) -> i32 {
    let text = format!(
        ".shared .align 4 .b8 tile[4096]; .visible .entry k(.param .u64 out) {{ {REGISTERS} {INDEX} mov.u32 %r5, tile;
        mad.lo.u32 %r6, %r4, 4, %r5; st.shared.u32 [%r6], %r4; {between}
        xor.b32 %r7, %r4, 1; mad.lo.u32 %r7, %r7, 4, %r5; ld.shared.u32 %r8, [%r7]; st.global.u32 [%d1], %r8; ret; }}"
    );
    let (k, out) = (s.module(&text), s.alloc(4096));
    s.run(&k, 1, block, &[out])
}

#[test]
fn a_missing_barrier_is_a_race() {
    let s = Session::new();
    assert_eq!(neighbours(&s, "", 64), LAUNCH_FAILED);
}

#[test]
fn barriers_and_warp_synchronisation_order_accesses() {
    let s = Session::new();
    ok(neighbours(&s, "bar.sync 0;", 64));
    ok(neighbours(&s, "bar.warp.sync -1;", 64));
    ok(neighbours(&s, "shfl.sync.idx.b32 %r9, %r4, 0, 31, -1;", 64));
    ok(neighbours(&s, "shl.b32 %r9, 3, %r4; and.b32 %r10, %r4, 30; shl.b32 %r9, 3, %r10; bar.warp.sync %r9;", 32));
}

#[test]
fn a_shuffle_of_other_lanes_orders_nothing() {
    let s = Session::new();
    // Each lane meets the one two away, but reads from its neighbour.
    let between = "and.b32 %r10, %r4, 29; mov.u32 %r11, 5; shl.b32 %r9, %r11, %r10; bar.warp.sync %r9;";
    assert_eq!(neighbours(&s, between, 32), LAUNCH_FAILED);
}

#[test]
fn races_can_be_ignored() {
    let s = Session::with(Config { races: false, ..Config::default() });
    ok(neighbours(&s, "", 64));
}

#[test]
fn blocks_that_write_one_word_race_unless_atomically() {
    let s = Session::new();
    let out = s.upload(&[0u32; 1]);
    let k = s.kernel(".param .u64 out", "ld.param.u64 %d0, [out]; mov.u32 %r1, 1; red.global.add.u32 [%d0], %r1; ret;");
    ok(s.run(&k, 8, 32, &[out]));
    let k = s.kernel(".param .u64 out", "ld.param.u64 %d0, [out]; mov.u32 %r1, %ctaid.x; st.global.u32 [%d0], %r1; ret;");
    assert_eq!(s.run(&k, 8, 1, &[out]), LAUNCH_FAILED);
}

/// The last block to arrive adds up what all have written; the fence is what makes it legal.
fn last_block(s: &Session, fence: &str) -> (i32, u64) {
    let k = s.kernel(
        ".param .u64 out",
        &format!(
            "{INDEX} add.u32 %r5, %r2, 1; mul.wide.u32 %d2, %r2, 4; add.s64 %d2, %d0, %d2; st.global.u32 [%d2+8], %r5; {fence}
            mov.u32 %r6, %nctaid.x; sub.u32 %r7, %r6, 1; atom.global.inc.u32 %r8, [%d0], %r7; setp.ne.u32 %p1, %r8, %r7; @%p1 ret; {fence}
            mov.u32 %r9, 0; mov.u32 %r10, 0;
            L: mul.wide.u32 %d3, %r10, 4; add.s64 %d3, %d0, %d3; ld.global.u32 %r11, [%d3+8]; add.u32 %r9, %r9, %r11;
            add.u32 %r10, %r10, 1; setp.lt.u32 %p2, %r10, %r6; @%p2 bra L; st.global.u32 [%d0+4], %r9; ret;"
        ),
    );
    let out = s.upload(&[0u32; 12]);
    (s.run(&k, 10, 1, &[out]), out)
}

#[test]
fn a_fence_and_a_counter_order_blocks() {
    let s = Session::new();
    let (code, out) = last_block(&s, "membar.gl;");
    ok(code);
    assert_eq!(s.download::<u32>(out, 2), [0, 55]);
    assert_eq!(last_block(&s, "").0, LAUNCH_FAILED);
}

#[test]
fn an_unknown_instruction_is_named_at_the_launch() {
    let s = Session::new();
    let k = s.kernel("", "wgmma.fence.sync.aligned; ret;");
    assert_eq!(s.launch(&k, 1, 1, &[]), 218);
    // The driver goes on: nothing has run.
    ok(s.sync());
}

#[test]
fn an_assertion_stops_the_context() {
    let s = Session::new();
    let k = s.kernel("", "trap;");
    assert_eq!(s.run(&k, 1, 1, &[]), 715);
}

#[test]
fn memory_ends() {
    let s = Session::with(Config { memory: 1 << 20, fail_alloc: Some(3), ..Config::default() });
    let (first, mut at) = (s.alloc(600 << 10), 0);
    assert_eq!(cuMemAlloc_v2(&mut at, 600 << 10), 2);
    // Counted, not sized.
    assert_eq!(cuMemAllocAsync(&mut at, 16, s.stream), 2);
    // A queued free makes room.
    ok(cuMemFreeAsync(first, s.stream));
    ok(cuMemAllocAsync(&mut at, 600 << 10, s.stream));
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!((free, total), ((1 << 20) - (600 << 10), 1 << 20));
}

#[test]
fn without_devices_there_is_no_driver() {
    let _s = Session::new();
    reset(Config { devices: 0, ..Config::default() });
    assert_eq!(cuInit(0), 100);
    let mut count = 0;
    assert_eq!(cuDeviceGetCount(&mut count), 3);
}

#[test]
fn work_waits_until_somebody_does() {
    let s = Session::new();
    let mut host = std::ptr::null_mut();
    ok(cuMemHostAlloc(&mut host, 4, 0));
    let pinned = host.cast::<u32>();
    // SAFETY: four bytes of page-locked memory.
    unsafe { pinned.write(1) };
    let out = s.alloc(4);
    ok(cuMemcpyHtoDAsync_v2(out, host, 4, s.stream));
    // Too early: the copy reads what is there when it runs.
    // SAFETY: as above.
    unsafe { pinned.write(2) };
    assert_eq!(s.download::<u32>(out, 1), [2]);
    let mut pageable = 3u32;
    ok(cuMemcpyHtoDAsync_v2(out, std::ptr::from_ref(&pageable).cast(), 4, s.stream));
    pageable += 1;
    assert_eq!((s.download::<u32>(out, 1)[0], pageable), (3, 4));
}

#[test]
fn machine_code_is_refused_with_a_reason() {
    let _s = Session::new();
    let mut module = std::ptr::null_mut();
    let image = [0x7fu8, b'E', b'L', b'F', 0, 0, 0, 0];
    assert_eq!(cuModuleLoadData(&mut module, image.as_ptr().cast()), 209);
}

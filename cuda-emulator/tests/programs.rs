//! Small programs: reductions, barriers, atomics, divergence, calls, local memory, asynchronous copies, matrix products.
mod common;
use common::*;

#[test]
fn shuffles_reduce_a_warp() {
    let s = Session::new();
    let steps: String =
        [16, 8, 4, 2, 1].iter().map(|n| format!("shfl.sync.bfly.b32 %r6|%p1, %r5, {n}, 31, -1; add.s32 %r5, %r5, %r6;")).collect();
    let k = s.kernel(".param .u64 out", &format!("{INDEX} mul.lo.s32 %r5, %r1, %r1; {steps} st.global.u32 [%d1], %r5; ret;"));
    let out = s.alloc(256);
    ok(s.run(&k, 1, 64, &[out]));
    let sums: Vec<u32> = (0..64u32).map(|i| (i / 32 * 32..i / 32 * 32 + 32).map(|j| j * j).sum()).collect();
    assert_eq!(s.download::<u32>(out, 64), sums);
}

#[test]
fn shuffles_up_down_and_by_index_respect_the_segment() {
    let s = Session::new();
    let body = format!(
        "{INDEX} mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d0, %d2;
        shfl.sync.up.b32 %r5|%p1, %r1, 1, 0, -1; selp.u32 %r6, 1, 0, %p1;
        shfl.sync.down.b32 %r7, %r1, 3, 31, -1;
        shfl.sync.idx.b32 %r8, %r1, 2, 0x1807, -1;
        st.global.v4.u32 [%d1], {{%r5, %r6, %r7, %r8}}; ret;"
    );
    let k = s.kernel(".param .u64 out", &body);
    let out = s.alloc(32 * 16);
    ok(s.run(&k, 1, 32, &[out]));
    for (i, got) in s.download::<u32>(out, 128).chunks(4).enumerate() {
        let i = i as u32;
        assert_eq!(got, [i.saturating_sub(1), u32::from(i > 0), if i + 3 < 32 { i + 3 } else { i }, i / 8 * 8 + 2]);
    }
}

#[test]
fn a_block_sums_through_shared_memory() {
    let s = Session::new();
    let text = format!(
        ".visible .entry k(.param .u64 out) {{ {REGISTERS} .shared .align 4 .b8 buffer[1024]; {INDEX}
        mov.u32 %r10, buffer; mul.lo.u32 %r11, %r4, 4; add.s32 %r12, %r10, %r11; st.shared.u32 [%r12], %r4; mov.u32 %r13, 128;
        LOOP: bar.sync 0; setp.ge.u32 %p1, %r4, %r13; @%p1 bra SKIP;
        mul.lo.u32 %r14, %r13, 4; add.s32 %r14, %r12, %r14; ld.shared.u32 %r15, [%r14]; ld.shared.u32 %r16, [%r12];
        add.s32 %r16, %r16, %r15; st.shared.u32 [%r12], %r16;
        SKIP: shr.u32 %r13, %r13, 1; setp.ne.u32 %p2, %r13, 0; @%p2 bra LOOP;
        bar.sync 0; ld.shared.u32 %r17, [buffer]; st.global.u32 [%d1], %r17; ret; }}"
    );
    let k = s.module(&text);
    let out = s.alloc(1024);
    ok(s.run(&k, 1, 256, &[out]));
    assert_eq!(s.download::<u32>(out, 256), [255 * 128; 256]);
}

#[test]
fn atomics_of_all_blocks_add_up() {
    let s = Session::new();
    let k = s.kernel(
        ".param .u64 out",
        "ld.param.u64 %d0, [out]; atom.global.add.u32 %r1, [%d0], 3; mov.u32 %r2, %tid.x; red.global.max.u32 [%d0+4], %r2;
        mov.f32 %f1, 0f3F000000; red.global.add.f32 [%d0+8], %f1; atom.global.inc.u32 %r3, [%d0+12], 9;
        mov.b32 %r4, 0x3f803f80; red.global.add.noftz.bf16x2 [%d0+16], %r4; ret;",
    );
    let out = s.upload(&[0u32; 5]);
    ok(s.run(&k, 5, 20, &[out]));
    // bf16 stops growing at 256, where one is half a unit in the last place: 100 stays below.
    assert_eq!(s.download::<u32>(out, 5), [300, 19, 50f32.to_bits(), 0, 0x42c8_42c8]);
}

#[test]
fn a_lock_by_compare_and_swap_ends() {
    let s = Session::new();
    let k = s.kernel(
        ".param .u64 out",
        "ld.param.u64 %d0, [out];
        TRY: atom.global.cas.b32 %r1, [%d0], 0, 1; setp.ne.u32 %p1, %r1, 0; @%p1 bra TRY;
        membar.gl; ld.volatile.global.u32 %r2, [%d0+4]; add.s32 %r2, %r2, 1; st.volatile.global.u32 [%d0+4], %r2; membar.gl;
        atom.global.exch.b32 %r3, [%d0], 0; ret;",
    );
    let out = s.upload(&[0u32; 2]);
    ok(s.run(&k, 3, 64, &[out]));
    assert_eq!(s.download::<u32>(out, 2), [0, 192]);
}

#[test]
fn loops_diverge() {
    let s = Session::new();
    let k = s.kernel(
        ".param .u64 out",
        &format!(
            "{INDEX} mov.u32 %r5, 1; mov.u32 %r6, %r1;
            L: setp.eq.u32 %p1, %r6, 0; @%p1 bra E; mul.lo.u32 %r5, %r5, 3; sub.u32 %r6, %r6, 1; bra.uni L;
            E: activemask.b32 %r7; vote.sync.ballot.b32 %r8, %p1, -1; @!%p1 trap; st.global.u32 [%d1], %r5; ret;"
        ),
    );
    let out = s.alloc(128);
    ok(s.run(&k, 1, 32, &[out]));
    assert_eq!(s.download::<u32>(out, 32), (0..32).map(|i| 3u32.wrapping_pow(i)).collect::<Vec<_>>());
}

#[test]
fn votes_matches_and_reductions() {
    let s = Session::new();
    let k = s.kernel(
        ".param .u64 out",
        &format!(
            "{INDEX} mul.wide.u32 %d2, %r1, 16; add.s64 %d1, %d0, %d2; setp.lt.u32 %p1, %r1, 5; and.b32 %r5, %r1, 1;
            vote.sync.ballot.b32 %r6, !%p1, -1; match.any.sync.b32 %r7, %r5, -1; redux.sync.add.s32 %r8, %r1, -1;
            vote.sync.any.pred %p2, %p1, -1; selp.u32 %r9, 1, 0, %p2;
            st.global.v4.u32 [%d1], {{%r6, %r7, %r8, %r9}}; ret;"
        ),
    );
    let out = s.alloc(512);
    ok(s.run(&k, 1, 32, &[out]));
    for (i, got) in s.download::<u32>(out, 128).chunks(4).enumerate() {
        assert_eq!(got, [!31, if i % 2 == 0 { 0x5555_5555 } else { 0xaaaa_aaaa }, 496, 1]);
    }
}

#[test]
fn functions_recurse_and_locals_are_private() {
    let s = Session::new();
    let text = format!(
        ".func (.param .b32 result) fact(.param .b32 n) {{ .reg .pred %p<2>; .reg .b32 %r<5>; .local .align 4 .b8 keep[8];
            ld.param.u32 %r1, [n]; st.local.u32 [keep+4], %r1; setp.lt.u32 %p1, %r1, 2; mov.u32 %r3, 1; @%p1 bra DONE;
            sub.u32 %r2, %r1, 1; {{ .param .b32 a; .param .b32 b; st.param.b32 [a], %r2; call.uni (b), fact, (a); ld.param.b32 %r3, [b]; }}
            ld.local.u32 %r1, [keep+4]; mul.lo.u32 %r3, %r3, %r1;
            DONE: st.param.b32 [result], %r3; ret; }}
        .visible .entry k(.param .u64 out) {{ {REGISTERS} {INDEX}
            {{ .param .b32 x; .param .b32 y; st.param.b32 [x], %r1; call (y), fact, (x); ld.param.b32 %r5, [y]; }} st.global.u32 [%d1], %r5; ret; }}"
    );
    let k = s.module(&text);
    let out = s.alloc(40);
    ok(s.run(&k, 1, 10, &[out]));
    assert_eq!(s.download::<u32>(out, 10), [1, 1, 2, 6, 24, 120, 720, 5040, 40320, 362880]);
}

#[test]
fn variables_have_their_initial_values() {
    let s = Session::new();
    let text = format!(
        ".const .align 4 .b32 table[4] = {{7, 8, 9, 0x10}}; .global .align 8 .u64 pointer = table; .global .align 4 .f32 zero;
        .visible .entry k(.param .u64 out) {{ {REGISTERS} {INDEX} mov.u64 %d2, table; add.s64 %d2, %d2, 8; ld.const.u32 %r5, [%d2];
        ld.global.u64 %d3, [pointer]; ld.u32 %r6, [%d3+12]; ld.global.u32 %r7, [zero]; ld.const.u32 %r8, [table+4];
        st.global.v4.u32 [%d0], {{%r5, %r6, %r7, %r8}}; ret; }}"
    );
    let k = s.module(&text);
    let out = s.alloc(16);
    ok(s.run(&k, 1, 1, &[out]));
    assert_eq!(s.download::<u32>(out, 4), [9, 16, 0, 8]);
}

#[test]
fn asynchronous_copies_arrive_when_waited_for() {
    let s = Session::new();
    let text = format!(
        ".extern .shared .align 16 .b8 tile[]; .visible .entry k(.param .u64 out, .param .u64 in) {{ {REGISTERS} {INDEX}
        ld.param.u64 %d4, [in]; mul.wide.u32 %d5, %r4, 16; add.s64 %d4, %d4, %d5; mov.u32 %r5, tile; mad.lo.u32 %r6, %r4, 16, %r5;
        st.shared.u32 [%r6], 77; cp.async.cg.shared.global [%r6], [%d4], 16; cp.async.commit_group;
        ld.shared.u32 %r7, [%r6]; cp.async.wait_group 0; bar.sync 0;
        xor.b32 %r8, %r4, 1; mad.lo.u32 %r9, %r8, 16, %r5; ld.shared.u32 %r10, [%r9]; add.s32 %r10, %r10, %r7; st.global.u32 [%d1], %r10; ret; }}"
    );
    let k = s.module(&text);
    let (input, out) = (s.upload(&(0..256u32).collect::<Vec<_>>()), s.alloc(256));
    ok(s.launch_shared(&k, 1, 64, 1024, &[out, input]));
    // What was there before the wait, and the neighbour's word after it.
    assert_eq!(s.download::<u32>(out, 64), (0..64u32).map(|i| 77 + 4 * (i ^ 1)).collect::<Vec<_>>());
}

#[test]
fn a_matrix_instruction_multiplies() {
    let s = Session::new();
    let bf16 = |v: f32| (v.to_bits() >> 16) as u16;
    let (a, b): (Vec<f32>, Vec<f32>) = ((0..256).map(|i| (i % 13) as f32 - 6.).collect(), (0..128).map(|i| (i % 7) as f32 - 3.).collect());
    // A by rows through ldmatrix; B by columns, two values of a column in one register.
    let text = format!(
        ".shared .align 16 .b8 tile[512]; .visible .entry k(.param .u64 out, .param .u64 a, .param .u64 b) {{ {REGISTERS} {INDEX}
        ld.param.u64 %d4, [a]; mul.wide.u32 %d5, %r4, 16; add.s64 %d4, %d4, %d5; ld.global.v4.b32 {{%r5, %r6, %r7, %r8}}, [%d4];
        mov.u32 %r9, tile; mad.lo.u32 %r10, %r4, 16, %r9; st.shared.v4.b32 [%r10], {{%r5, %r6, %r7, %r8}}; bar.sync 0;
        and.b32 %r11, %r4, 15; shr.u32 %r12, %r4, 4; mad.lo.u32 %r13, %r11, 32, %r9; mad.lo.u32 %r13, %r12, 16, %r13;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%r5, %r6, %r7, %r8}}, [%r13];
        ld.param.u64 %d6, [b]; shr.u32 %r14, %r4, 2; and.b32 %r15, %r4, 3; mul.wide.u32 %d7, %r14, 32; mul.wide.u32 %d8, %r15, 4;
        add.s64 %d6, %d6, %d7; add.s64 %d6, %d6, %d8; ld.global.b32 %r16, [%d6]; ld.global.b32 %r17, [%d6+16];
        mov.f32 %f1, 0f3F800000;
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {{%f2, %f3, %f4, %f5}}, {{%r5, %r6, %r7, %r8}}, {{%r16, %r17}}, {{%f1, %f1, %f1, %f1}};
        mul.wide.u32 %d9, %r14, 32; mul.wide.u32 %d10, %r15, 8; add.s64 %d9, %d0, %d9; add.s64 %d9, %d9, %d10;
        st.global.v2.f32 [%d9], {{%f2, %f3}}; st.global.v2.f32 [%d9+256], {{%f4, %f5}}; ret; }}"
    );
    let k = s.module(&text);
    let a_bits: Vec<u16> = a.iter().map(|v| bf16(*v)).collect();
    let b_columns: Vec<u16> = (0..128).map(|i| bf16(b[i % 16 * 8 + i / 16])).collect();
    let (x, y, out) = (s.upload(&a_bits), s.upload(&b_columns), s.alloc(512));
    ok(s.run(&k, 1, 32, &[out, x, y]));
    let want: Vec<f32> = (0..128).map(|i| 1. + (0..16).map(|k| a[i / 8 * 16 + k] * b[k * 8 + i % 8]).sum::<f32>()).collect();
    assert_eq!(s.download::<f32>(out, 128), want);
}

#[test]
fn wide_sums_carry() {
    let s = Session::new();
    let k = s.kernel(
        ".param .u64 out",
        "ld.param.u64 %d0, [out]; mov.u32 %r1, 0xffffffff; add.cc.u32 %r2, %r1, 2; addc.cc.u32 %r3, %r1, 0; addc.u32 %r4, 0, 0;
        sub.cc.u32 %r5, 1, 2; subc.u32 %r6, 5, 0; mad.lo.cc.u32 %r7, %r1, %r1, %r1; madc.hi.u32 %r8, %r1, %r1, 0;
        st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5}; st.global.v4.u32 [%d0+16], {%r6, %r7, %r8, %r8}; ret;",
    );
    let out = s.alloc(32);
    ok(s.run(&k, 1, 1, &[out]));
    // (2^32 - 1)^2 + (2^32 - 1) = (2^32 - 1) 2^32
    assert_eq!(s.download::<u32>(out, 7), [1, 0, 1, u32::MAX, 4, 0, u32::MAX]);
}

//! One sequence of the selective scan: channels are the vector axis, so 16 channels share one B and one C and no sum crosses
//! lanes. A state lies as `[N, width]`.

use crate::ops::simd::{self, Level};
use crate::ops::{OutPointer, Rows};
use pulp::{Simd, WithSimd, bytemuck};
use std::ops::Range;

/// Sizes of one sequence.
#[derive(Clone, Copy)]
pub(crate) struct ScanShape {
    pub steps: usize,
    pub width: usize,
    pub states: usize,
}

/// What a sequence reads, frame by frame.
#[derive(Clone, Copy)]
pub(crate) struct ScanInput<'a> {
    /// `[steps, width]`.
    pub u: Rows<'a>,
    /// Step size before softplus, `[steps, width]`.
    pub dt: Rows<'a>,
    /// `[steps, states]`.
    pub b: Rows<'a>,
    /// `[steps, states]`.
    pub c: Rows<'a>,
    /// `[states, width]`, negative, times log2(e): the decay of a step is `2^(dt a)`.
    pub a: &'a [f32],
    /// `[width]`.
    pub skip: &'a [f32],
}

/// `2^x` for each x <= 0, relative error below 2e-7; saturates near 1e-38 instead of reaching 0. All vectors take a step before any takes the next: one of
/// them is a chain of a dozen instructions that wait for each other, longer than some processors look ahead.
#[inline(always)]
pub(super) fn exp2<S: Simd, const V: usize>(simd: S, mut x: [S::f32s; V]) -> [S::f32s; V] {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    let (least, round) = (simd.splat_f32s(-126.0), simd.splat_f32s(12_582_912.0));
    let mut t = x;
    for (t, x) in t.iter_mut().zip(&mut x) {
        *x = simd.max_f32s(*x, least);
        *t = simd.add_f32s(*x, round);
    }
    for (r, &t) in x.iter_mut().zip(&t) {
        *r = simd.sub_f32s(*r, simd.sub_f32s(t, round));
    }
    // Minimax polynomial on [-1/2, 1/2] with value 1 at 0; its linear term is not quite ln(2).
    const LINEAR: f32 = std::f32::consts::LN_2 - 1.788e-7;
    let mut p = [simd.splat_f32s(1.326_472_7e-3); V];
    for c in [9.671_513e-3, 5.550_733_6e-2, 0.240_222_42, LINEAR, 1.0] {
        for (p, &r) in p.iter_mut().zip(&x) {
            *p = simd.mul_add_e_f32s(*p, r, simd.splat_f32s(c));
        }
    }
    for (p, &t) in p.iter_mut().zip(&t) {
        let exponent = simd.wrapping_dyn_shl_u32s(simd.transmute_u32s_f32s(t), simd.splat_u32s(23));
        *p = simd.transmute_f32s_u32s(simd.add_u32s(simd.transmute_u32s_f32s(*p), exponent));
    }
    p
}

/// The first `count` of the next lanes' worth of values, zeros behind them.
#[inline(always)]
pub(super) unsafe fn load<S: Simd>(simd: S, from: *const f32, count: usize) -> S::f32s {
    if count >= S::F32_LANES {
        // SAFETY: the caller promises `count` values.
        unsafe { from.cast::<S::f32s>().read_unaligned() }
    } else {
        // SAFETY: as above.
        simd.partial_load_f32s(unsafe { std::slice::from_raw_parts(from, count) })
    }
}

/// Writes the first `count` lanes.
#[inline(always)]
pub(super) unsafe fn store<S: Simd>(simd: S, to: *mut f32, count: usize, x: S::f32s) {
    if count >= S::F32_LANES {
        // SAFETY: the caller promises room for `count` values.
        unsafe { to.cast::<S::f32s>().write_unaligned(x) }
    } else {
        // SAFETY: as above.
        simd.partial_store_f32s(unsafe { std::slice::from_raw_parts_mut(to, count) }, x)
    }
}

/// One sequence through a range of its channels.
struct Forward<'a> {
    shape: ScanShape,
    channels: Range<usize>,
    resets: &'a [bool],
    x: ScanInput<'a>,
    state: OutPointer,
    ahead: *const f32,
    out: OutPointer,
}

impl Forward<'_> {
    /// The `count` channels from `d` on, in `V` vectors: what a state reads again stays in registers over all states.
    #[inline(always)]
    unsafe fn group<S: Simd, const V: usize>(&self, simd: S, d: usize, count: usize) {
        let ScanShape { width, states, .. } = self.shape;
        let (lanes, zero, another_follows) = (S::F32_LANES, simd.splat_f32s(0.0), !std::ptr::eq(self.ahead, self.state.data));
        let (skip, a) = (&self.x.skip[d..d + count], &self.x.a[..states * width]);
        for (t, &reset) in self.resets.iter().enumerate() {
            let (u, raw) = (&self.x.u.row(t)[d..d + count], &self.x.dt.row(t)[d..d + count]);
            let (b, c) = (&self.x.b.row(t)[..states], &self.x.c.row(t)[..states]);
            let (mut dt, mut du, mut y) = ([zero; V], [zero; V], [zero; V]);
            let step: &mut [f32] = bytemuck::cast_slice_mut(&mut dt);
            step[..count].copy_from_slice(raw);
            step.iter_mut().for_each(|step| *step = simd::softplus::<S>(*step));
            for v in 0..V {
                let (at, left) = (v * lanes, count - v * lanes);
                // SAFETY: `u` and `skip` hold `count` values.
                unsafe {
                    let u = load(simd, u.as_ptr().add(at), left);
                    du[v] = simd.mul_f32s(dt[v], u);
                    y[v] = simd.mul_f32s(load(simd, skip.as_ptr().add(at), left), u);
                }
            }
            if reset {
                for n in 0..states {
                    for v in 0..V {
                        let at = n * self.state.stride + d + v * lanes;
                        // SAFETY: the state and its channels are the caller's promise.
                        unsafe { store(simd, self.state.data.add(at), count - v * lanes, zero) };
                    }
                }
            }
            for n in 0..states {
                let (b, c) = (simd.splat_f32s(b[n]), simd.splat_f32s(c[n]));
                if t == 0 && another_follows {
                    let ahead = self.ahead.wrapping_add(n * self.state.stride + d);
                    (0..V).for_each(|v| simd::prefetch(ahead.wrapping_add(v * lanes), Level::Second));
                }
                let mut exponents = dt;
                for v in 0..V {
                    // SAFETY: `a` is [states, width].
                    let a = unsafe { load(simd, a.as_ptr().add(n * width + d + v * lanes), count - v * lanes) };
                    exponents[v] = simd.mul_f32s(dt[v], a);
                }
                let decay = exp2(simd, exponents);
                for v in 0..V {
                    let (at, left) = (d + v * lanes, count - v * lanes);
                    // SAFETY: the state and its channels are the caller's promise.
                    unsafe {
                        let h = self.state.data.add(n * self.state.stride + at);
                        let after = simd.mul_add_e_f32s(decay[v], load(simd, h, left), simd.mul_f32s(du[v], b));
                        store(simd, h, left, after);
                        y[v] = simd.mul_add_e_f32s(c, after, y[v]);
                    }
                }
            }
            for (v, &y) in y.iter().enumerate() {
                // SAFETY: the caller's promise about the output's rows and channels.
                unsafe { store(simd, self.out.data.add(t * self.out.stride + d + v * lanes), count - v * lanes, y) };
            }
        }
    }
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (lanes, mut d) = (S::F32_LANES, self.channels.start);
        // SAFETY: the groups are parts of the channels that the caller of `scan_sequence` handed over.
        unsafe {
            while d + 4 * lanes <= self.channels.end {
                self.group::<S, 4>(simd, d, 4 * lanes);
                d += 4 * lanes;
            }
            while d + 2 * lanes <= self.channels.end {
                self.group::<S, 2>(simd, d, 2 * lanes);
                d += 2 * lanes;
            }
            if d + lanes <= self.channels.end {
                self.group::<S, 1>(simd, d, lanes);
                d += lanes;
            }
            if d < self.channels.end {
                self.group::<S, 1>(simd, d, self.channels.end - d);
            }
        }
    }
}

/// One sequence through the channels `channels`: `state` `[states, width]` is updated in place, `out` is `[steps, width]`.
/// `resets`: one per step. A channel's result depends on its own values only, so threads may share a sequence by channels.
///
/// `ahead`: the state of the sequence that is computed next, or this one's. It is asked for meanwhile: of many sequences the states do not fit into a near
/// cache, and lie too far apart for the processor to fetch them of itself. Nothing is read from it.
///
/// # Safety
/// `state` points at `shape.states` rows and `out` at `shape.steps` rows, each at least `channels.end` values long and its
/// stride apart from the next; nobody else touches these channels of them meanwhile.
pub(crate) unsafe fn scan_sequence(
    shape: ScanShape,
    channels: Range<usize>,
    resets: &[bool],
    x: ScanInput,
    (state, ahead): (OutPointer, *const f32),
    out: OutPointer,
) {
    assert!(channels.end <= shape.width && x.a.len() >= shape.states * shape.width);
    pulp::Arch::new().dispatch(Forward { shape, channels, resets: &resets[..shape.steps], x, state, ahead, out });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn values(name: &str, n: usize) -> Vec<f32> {
        let mut values = vec![0.0; n];
        Random::new(5).stream(name).fill_normal(0, &mut values);
        values
    }

    struct Exponentials<'a>(&'a [f32], &'a mut [f32]);

    impl WithSimd for Exponentials<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for (x, y) in self.0.iter().zip(self.1) {
                // SAFETY: one value each.
                unsafe { store(simd, y, 1, exp2(simd, [load(simd, x, 1)])[0]) };
            }
        }
    }

    #[test]
    fn powers_of_two_match_f64_and_saturate() {
        let x: Vec<f32> = (0..12_600).map(|i| i as f32 * -0.01).chain([-200.0, -1e30, f32::NEG_INFINITY]).collect();
        let mut y = vec![0.0; x.len()];
        pulp::Arch::new().dispatch(Exponentials(&x, &mut y));
        for (&x, y) in x.iter().zip(y) {
            let want = f64::from(x.max(-126.0)).exp2();
            assert!((f64::from(y) - want).abs() <= 2e-7 * want, "2^{x}: {y} instead of {want}");
        }
    }

    /// Runs one sequence in parts; returns output and state.
    fn run(shape: ScanShape, parts: &[Range<usize>]) -> (Vec<f32>, Vec<f32>) {
        let ScanShape { steps, width, states } = shape;
        let (u, dt, bc) = (values("u", steps * width), values("dt", steps * width), values("bc", steps * 2 * states));
        let a: Vec<f32> = values("a", states * width).iter().map(|a| -a.abs()).collect();
        let (skip, mut state, mut out) = (values("skip", width), values("state", states * width), vec![f32::NAN; steps * width]);
        let rows = |data, width, stride| Rows { data, rows: steps, width, stride };
        let x = ScanInput {
            u: rows(&u, width, width),
            dt: rows(&dt, width, width),
            b: rows(&bc, states, 2 * states),
            c: rows(&bc[states..], states, 2 * states),
            a: &a,
            skip: &skip,
        };
        let resets: Vec<bool> = (0..steps).map(|t| t % 4 == 2).collect();
        for part in parts {
            // SAFETY: both vectors outlive the call and have the shape's sizes.
            unsafe {
                scan_sequence(
                    shape,
                    part.clone(),
                    &resets,
                    x,
                    (OutPointer::rows(&mut state, width), a.as_ptr()),
                    OutPointer::rows(&mut out, width),
                )
            };
        }
        (out, state)
    }

    #[test]
    fn channels_in_parts_equal_the_whole_bit_for_bit() {
        for (steps, width, states) in [(1, 1, 1), (1, 7, 3), (5, 16, 4), (3, 33, 16), (2, 100, 5)] {
            let shape = ScanShape { steps, width, states };
            let (at, after) = (width / 3, width * 3 / 4);
            assert_eq!(
                run(shape, &[after..width, 0..at, at..after]),
                run(shape, std::slice::from_ref(&(0..width))),
                "{steps} x {width} x {states}"
            );
        }
    }
}

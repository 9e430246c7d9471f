//! Random numbers that are addressed, not drawn: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as
//! easy as 1, 2, 3", SC 2011).
//!
//! A value depends on (seed, stream, index) and on nothing else, so it is the same for any number of threads, workers and
//! ranks, in any order of evaluation, and after a resume. There is no generator state to save.
//!
//! ```
//! use candle_models::random::Random;
//!
//! let random = Random::new(7);
//! let noise = random.stream("noise").at(3); // the noise of example 3
//! let mut values = [0f32; 100];
//! noise.fill_normal(0, &mut values);
//! assert_eq!(values[42], noise.normal(42));
//! ```
//!
//! # Bit layout
//! What a kernel on another device has to repeat. Everything is integer arithmetic or a correctly rounded f32 addition,
//! multiplication or square root, so every value is equal bit for bit on every machine (a CUDA kernel is compiled with
//! `-fmad=false` or writes `__fmul_rn` and `__fadd_rn`).
//!
//! ```text
//! key     = [seed & 0xffff_ffff, seed >> 32]
//! counter = [block & 0xffff_ffff, block >> 32, stream & 0xffff_ffff, stream >> 32]
//! w[0..4] = philox4x32_10(counter, key)
//!
//! bits(i)    = w[i % 4]                  of block i / 4
//! uniform(i) = (bits(i) >> 8) * 2^-24    in [0, 1)
//! normal(i)  = radius * cos (i even) or radius * sin (i odd) of block i / 4, from the words of its pair,
//!              a = w[i % 4 & 2] and b = w[(i % 4 & 2) + 1]:
//!              radius = sqrt(-2 ln((a | 1) * 2^-32)), angle = b * 2 pi * 2^-32
//! below(i,n) = ((w[2j + 1] << 32 | w[2j]) * n) >> 64    with j = i % 2 of block i / 2
//! ```
//!
//! The functions of one stream read the same words: give each purpose a stream of its own.

use crate::ops::simd::kernel;
use serde::{Deserialize, Serialize};

/// The root stream of a seed, or a stream below it: a value to copy, without state.
///
/// ```
/// use candle_models::random::Random;
///
/// let shuffle = Random::new(7).stream("shuffle");
/// let mut order = shuffle.at(3).permutation(5); // that of epoch 3, whichever were drawn before
/// assert_eq!(order, shuffle.at(3).permutation(5));
/// order.sort();
/// assert_eq!(order, [0, 1, 2, 3, 4]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Random {
    seed: u64,
    stream: u64,
    first: u64,
}

// Tags that keep a named and a numbered child of one stream apart.
const NAMED: u64 = 0x6e61_6d65_6421_0001;
const NUMBERED: u64 = 0x6e75_6d62_6572_0002;

impl Random {
    /// The root stream of `seed`.
    pub fn new(seed: u64) -> Self {
        Self { seed, stream: 0, first: 0 }
    }

    /// The stream called `name` below this one. Names are hashed to 64 bits, so distinct paths of names collide with a
    /// probability of about n^2 / 2^65 for n streams.
    #[must_use]
    pub fn stream(self, name: &str) -> Self {
        Self { stream: mix(mix(self.stream ^ NAMED) ^ fnv1a(name.as_bytes())), first: 0, ..self }
    }

    /// Stream number `n` below this one: an example, an epoch, a row. Siblings never collide.
    #[must_use]
    pub fn at(self, n: u64) -> Self {
        Self { stream: mix(mix(self.stream ^ NUMBERED) ^ n), first: 0, ..self }
    }

    /// The same stream counted from index `first` on: index 0 of it is what `first` was. For a part of something larger, whose
    /// numbers must not depend on how it was divided. Streams below do not inherit it.
    #[must_use]
    pub fn from_index(self, first: u64) -> Self {
        Self { first: self.first.wrapping_add(first), ..self }
    }

    /// The index that this stream counts from.
    pub fn first_index(self) -> u64 {
        self.first
    }

    /// The seed: the key of the block function.
    pub fn seed(self) -> u64 {
        self.seed
    }

    /// The stream's address: the upper half of the counter.
    pub fn stream_id(self) -> u64 {
        self.stream
    }

    /// 32 random bits.
    pub fn bits(self, index: u64) -> u32 {
        let index = self.first.wrapping_add(index);
        self.block(index / 4)[(index % 4) as usize]
    }

    /// A number in [0, 1) with 24 random bits.
    pub fn uniform(self, index: u64) -> f32 {
        to_uniform(self.bits(index))
    }

    /// A number with mean 0 and variance 1 from the normal distribution (Box-Muller; absolute value at most 6.67).
    pub fn normal(self, index: u64) -> f32 {
        let index = self.first.wrapping_add(index);
        to_normals(self.block(index / 4))[(index % 4) as usize]
    }

    /// An integer in `0..n`; 0 where `n` is 0. The bias is below n / 2^64.
    pub fn below(self, index: u64, n: u32) -> u32 {
        let index = self.first.wrapping_add(index);
        let words = self.block(index / 2);
        let pair = (index % 2) as usize * 2;
        let bits = u64::from(words[pair + 1]) << 32 | u64::from(words[pair]);
        ((u128::from(bits) * u128::from(n)) >> 64) as u32
    }

    /// Writes `uniform(first_index)`, `uniform(first_index + 1)`, and so on; indices wrap around at 2^64.
    pub fn fill_uniform(self, first_index: u64, out: &mut [f32]) {
        self.fill(first_index, out, |words| words.map(to_uniform), uniforms);
    }

    /// Writes `normal(first_index)`, `normal(first_index + 1)`, and so on; indices wrap around at 2^64.
    pub fn fill_normal(self, first_index: u64, out: &mut [f32]) {
        self.fill(first_index, out, to_normals, normals);
    }

    /// A uniformly random order of `0..n` (Fisher-Yates).
    ///
    /// # Panics
    /// If `n` exceeds 2^32: the positions would not fit.
    pub fn permutation(self, n: usize) -> Vec<u32> {
        assert!(n as u64 <= 1 << 32, "a permutation of {n} values does not fit 32 bits");
        let mut order: Vec<u32> = (0..n as u64).map(|i| i as u32).collect();
        for i in (1..n).rev() {
            // i is below 2^32, and i + 1 is at most 2^32 - 1 unless n is 2^32, where the last position stays put.
            let j = self.below(i as u64, (i as u64 + 1).min(u64::from(u32::MAX)) as u32);
            order.swap(i, j as usize);
        }
        order
    }

    fn block(self, block: u64) -> [u32; 4] {
        let counter = [block as u32, (block >> 32) as u32, self.stream as u32, (self.stream >> 32) as u32];
        philox4x32_10(counter, [self.seed as u32, (self.seed >> 32) as u32])
    }

    /// `values` makes the numbers of a block, `many` those of as many blocks as fill what it is given.
    fn fill(self, first_index: u64, out: &mut [f32], values: impl Fn([u32; 4]) -> [f32; 4], many: impl Fn(Self, u64, &mut [f32])) {
        let first_index = self.first.wrapping_add(first_index);
        let (head, body) = out.split_at_mut(((4 - first_index % 4) % 4).min(out.len() as u64) as usize);
        let mut block = first_index / 4;
        if !head.is_empty() {
            let start = (first_index % 4) as usize;
            head.copy_from_slice(&values(self.block(block))[start..start + head.len()]);
            block = next(block, 1);
        }
        let (body, tail) = body.split_at_mut(body.len() / (4 * LANES) * (4 * LANES));
        if !body.is_empty() {
            many(self, block, body);
        }
        block = next(block, body.len() as u64 / 4);
        for chunk in tail.chunks_mut(4) {
            chunk.copy_from_slice(&values(self.block(block))[..chunk.len()]);
            block = next(block, 1);
        }
    }
}

/// Blocks that are computed side by side.
const LANES: usize = 16;

/// The block so many further on: indices wrap around at 2^64, and a block has four of them.
#[inline(always)]
fn next(block: u64, by: u64) -> u64 {
    block.wrapping_add(by) & (u64::MAX / 4)
}

kernel! {
    fn normals<S>(random: Random, first_block: u64, out: &'a mut [f32]) {
        for (i, out) in out.chunks_exact_mut(4 * LANES).enumerate() {
            let [a, b, c, d] = blocks(random, next(first_block, (i * LANES) as u64));
            for (lane, out) in out.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&to_normals([a[lane], b[lane], c[lane], d[lane]]));
            }
        }
    }
}

kernel! {
    fn uniforms<S>(random: Random, first_block: u64, out: &'a mut [f32]) {
        for (i, out) in out.chunks_exact_mut(4 * LANES).enumerate() {
            let words = blocks(random, next(first_block, (i * LANES) as u64));
            for (lane, out) in out.chunks_exact_mut(4).enumerate() {
                out.copy_from_slice(&words.map(|word| to_uniform(word[lane])));
            }
        }
    }
}

/// The words of [`LANES`] blocks, in loops without branches that the compiler turns into vector instructions.
#[inline(always)]
fn blocks(random: Random, first_block: u64) -> [[u32; LANES]; 4] {
    let counter = |lane: usize| next(first_block, lane as u64);
    let mut c0: [u32; LANES] = std::array::from_fn(|lane| counter(lane) as u32);
    let mut c1: [u32; LANES] = std::array::from_fn(|lane| (counter(lane) >> 32) as u32);
    let (mut c2, mut c3) = ([random.stream as u32; LANES], [(random.stream >> 32) as u32; LANES]);
    let [mut k0, mut k1] = [random.seed as u32, (random.seed >> 32) as u32];
    for _ in 0..10 {
        for lane in 0..LANES {
            let (p0, p1) = (u64::from(c0[lane]) * 0xd251_1f53, u64::from(c2[lane]) * 0xcd9e_8d57);
            (c0[lane], c2[lane]) = ((p1 >> 32) as u32 ^ c1[lane] ^ k0, (p0 >> 32) as u32 ^ c3[lane] ^ k1);
            (c1[lane], c3[lane]) = (p1 as u32, p0 as u32);
        }
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0, c1, c2, c3]
}

/// The class that `uniform` in [0, 1) falls on when `[0, 1)` is divided in proportion to `weights` (inverse of the
/// cumulative distribution, summed in f64 from the left).
///
/// The weights need not add up to one. A weight that is negative or not finite counts as zero, and a class of weight zero is
/// never chosen. A number below 0 gives the first class with weight, one of 1 or more (or NaN) the last. Without any weight
/// the answer is 0.
pub fn categorical(uniform: f32, weights: impl Iterator<Item = f32> + Clone) -> usize {
    let weight = |w: f32| if w.is_finite() && w > 0. { f64::from(w) } else { 0. };
    let target = f64::from(uniform) * weights.clone().map(weight).sum::<f64>();
    let (mut last, mut cumulative) = (0, 0.);
    for (class, w) in weights.enumerate() {
        let w = weight(w);
        if w == 0. {
            continue;
        }
        (last, cumulative) = (class, cumulative + w);
        if cumulative > target {
            break;
        }
    }
    last
}

/// The block function: 128 bits for every 128-bit counter under a 64-bit key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let p0 = u64::from(c0) * 0xd251_1f53;
        let p1 = u64::from(c2) * 0xcd9e_8d57;
        (c0, c1, c2, c3) = ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        k0 = k0.wrapping_add(0x9e37_79b9);
        k1 = k1.wrapping_add(0xbb67_ae85);
    }
    [c0, c1, c2, c3]
}

#[inline(always)]
fn to_uniform(bits: u32) -> f32 {
    (bits >> 8) as f32 * (1. / 16_777_216.)
}

#[inline(always)]
fn to_normals([a, b, c, d]: [u32; 4]) -> [f32; 4] {
    let ([x, y], [z, w]) = (box_muller(a, b), box_muller(c, d));
    [x, y, z, w]
}

/// Two independent normal numbers from 64 bits. The lowest bit is set so that the logarithm never sees zero.
#[inline(always)]
fn box_muller(a: u32, b: u32) -> [f32; 2] {
    let radius = (-2. * ln((a | 1) as f32 * (1. / 4_294_967_296.))).sqrt();
    let (sin, cos) = sin_cos_turn(b);
    [radius * cos, radius * sin]
}

/// Natural logarithm of a positive normal number (Cephes `logf`). The standard library's differs between platforms in the
/// last bit, and initial weights must not.
#[inline(always)]
fn ln(x: f32) -> f32 {
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2)): 0x3f3504f3 is sqrt(1/2).
    let shifted = x.to_bits().wrapping_sub(0x3f35_04f3);
    let e = (shifted as i32 >> 23) as f32;
    let m = f32::from_bits((shifted & 0x007f_ffff) + 0x3f35_04f3) - 1.;
    let z = m * m;
    let mut y = 7.037_683_6e-2;
    for c in
        [-1.151_461e-1, 1.167_699_9e-1, -1.242_014_1e-1, 1.424_932_3e-1, -1.666_805_8e-1, 2.000_071_5e-1, -2.499_999_4e-1, 3.333_333e-1]
    {
        y = y * m + c;
    }
    y = y * m * z + e * -2.121_944_4e-4 - 0.5 * z;
    m + y + e * 0.693_359_4
}

/// Sine and cosine of `turn / 2^32` of a full turn (Cephes `sinf`, `cosf` on an eighth of a turn to either side).
#[inline(always)]
pub(crate) fn sin_cos_turn(turn: u32) -> (f32, f32) {
    let quadrant = turn.wrapping_add(1 << 29) >> 30;
    let x = turn.wrapping_sub(quadrant << 30) as i32 as f32 * (std::f32::consts::TAU / 4_294_967_296.);
    let z = x * x;
    let sin = ((-1.951_529_6e-4 * z + 8.332_161e-3) * z - 1.666_665_5e-1) * z * x + x;
    let cos = ((2.443_315_7e-5 * z - 1.388_731_6e-3) * z + 4.166_664_6e-2) * z * z - 0.5 * z + 1.;
    // Without a branch: every second quarter has the two the other way round, and the signs are bits.
    let odd = quadrant & 1 == 1;
    let (sin, cos) = if odd { (cos, sin) } else { (sin, cos) };
    let sign = |x: f32, bit: u32| f32::from_bits(x.to_bits() ^ bit << 31);
    (sign(sin, quadrant >> 1 & 1), sign(cos, (quadrant >> 1 ^ quadrant) & 1))
}

fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

/// The finaliser of SplitMix64: a bijection that spreads every input bit over all output bits.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Uniform numbers one after the other, for tests that want a stream.
#[cfg(test)]
pub(crate) fn numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut index = 0..;
    move || Random::new(seed).uniform(index.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The file `kat_vectors` of the Random123 library, its lines `philox4x32 10`.
    #[test]
    fn published_vectors() {
        let vectors = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in vectors {
            assert_eq!(philox4x32_10(counter, key), expected, "counter {counter:08x?} key {key:08x?}");
        }
    }

    #[test]
    fn a_part_has_the_numbers_of_the_whole() {
        let (random, n) = (Random::new(3).stream("x"), 100);
        let mut whole = vec![0.0; n];
        random.fill_uniform(0, &mut whole);
        for first in [0, 1, 4, 6, 99] {
            let (part, mut found) = (random.from_index(first), vec![0.0; n - first as usize]);
            part.fill_uniform(0, &mut found);
            assert_eq!(found, whole[first as usize..]);
            assert_eq!(part.uniform(0), random.uniform(first));
            assert_eq!(part.normal(0), random.normal(first));
            assert_eq!(part.below(0, 1000), random.below(first, 1000));
            assert_eq!(part.at(1), random.at(1));
        }
    }

    /// The layout of the module's header, and values that a change of the mixing or of the polynomials would move: every
    /// stored seed in a model card depends on them.
    #[test]
    fn addresses_are_frozen() {
        let r = Random::new(0x0123_4567_89ab_cdef);
        let block = 0x1_0000_0002u64;
        assert_eq!(r.bits(block * 4 + 3), philox4x32_10([2, 1, 0, 0], [0x89ab_cdef, 0x0123_4567])[3]);
        let s = r.stream("weights").at(5);
        let id = s.stream_id();
        assert_eq!(s.bits(9), philox4x32_10([2, 0, id as u32, (id >> 32) as u32], [0x89ab_cdef, 0x0123_4567])[1]);
        assert_eq!(id, FROZEN_ID);
        assert_eq!([s.normal(0).to_bits(), s.normal(1).to_bits(), s.normal(6).to_bits()], FROZEN_NORMALS);
        assert_eq!([s.uniform(0).to_bits(), s.uniform(7).to_bits()], FROZEN_UNIFORMS);
        assert_eq!(s.permutation(8), FROZEN_ORDER);
    }
    const FROZEN_ID: u64 = 0x18bc_044d_45e7_ab7e;
    const FROZEN_NORMALS: [u32; 3] = [0x3fd5_0e08, 0x3f3f_e25e, 0x3df7_cf74];
    const FROZEN_UNIFORMS: [u32; 2] = [0x3e41_80ec, 0x3f4e_570d];
    const FROZEN_ORDER: [u32; 8] = [4, 1, 7, 3, 6, 0, 5, 2];

    #[test]
    fn filling_equals_single_values() {
        let r = Random::new(1).stream("fill");
        for first in [0u64, 1, 2, 3, 4, 1023, u64::MAX - 6] {
            for len in [0usize, 1, 2, 3, 4, 5, 7, 64, 65, 300] {
                let (mut uniform, mut normal) = (vec![0.; len], vec![0.; len]);
                r.fill_uniform(first, &mut uniform);
                r.fill_normal(first, &mut normal);
                for i in 0..len {
                    let index = first.wrapping_add(i as u64);
                    assert_eq!(uniform[i], r.uniform(index), "uniform {index}");
                    assert_eq!(normal[i], r.normal(index), "normal {index}");
                }
            }
        }
    }

    #[test]
    fn streams_differ() {
        let root = Random::new(3);
        let mut ids: Vec<u64> =
            (0..10_000).flat_map(|n| [root.at(n), root.stream(&n.to_string()), root.stream("a").at(n)]).map(Random::stream_id).collect();
        ids.extend([root.stream_id(), root.stream("a").stream("b").stream_id(), root.stream("b").stream("a").stream_id()]);
        ids.extend([root.stream("ab").stream_id(), root.stream("").stream_id(), root.at(1).at(2).stream_id()]);
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count);
        assert_eq!(root.stream("a"), Random::new(3).stream("a"));
        assert_ne!(root.stream("a").bits(0), Random::new(4).stream("a").bits(0));
    }

    #[test]
    fn uniform_fits_its_distribution() {
        const N: usize = 1 << 18;
        let mut values = vec![0.; N];
        Random::new(5).stream("uniform").fill_uniform(0, &mut values);
        assert!(values.iter().all(|v| (0. ..1.).contains(v)));
        let mut bins = [0f64; 256];
        values.iter().for_each(|v| bins[(v * 256.) as usize] += 1.);
        let expected = N as f64 / 256.;
        let chi2: f64 = bins.iter().map(|b| (b - expected).powi(2) / expected).sum();
        // 255 degrees of freedom: mean 255, standard deviation 22.6.
        assert!((chi2 - 255.).abs() < 5. * 22.6, "chi-square {chi2}");
        let mean = values.iter().map(|v| f64::from(*v)).sum::<f64>() / N as f64;
        assert!((mean - 0.5).abs() < 5. * (1. / 12f64 / N as f64).sqrt(), "mean {mean}");
    }

    #[test]
    fn normal_fits_its_distribution() {
        const N: usize = 1 << 20;
        let mut values = vec![0.; N];
        Random::new(6).stream("normal").fill_normal(0, &mut values);
        let moment = |k: i32| values.iter().map(|v| f64::from(*v).powi(k)).sum::<f64>() / N as f64;
        // The k-th sample moment has variance (E x^2k - (E x^k)^2) / N.
        for (k, expected, variance) in [(1, 0., 1.), (2, 1., 2.), (3, 0., 15.), (4, 3., 96.), (6, 15., 10_170.)] {
            let found = moment(k);
            assert!((found - expected).abs() < 5. * (variance / N as f64).sqrt(), "moment {k}: {found}");
        }
        // Tails: P(|x| > t).
        for (t, p) in [(1., 0.317_310_5), (2., 0.045_500_26), (3., 0.002_699_796), (4., 6.334_248e-5)] {
            let found = values.iter().filter(|v| v.abs() > t).count() as f64 / N as f64;
            assert!((found - p).abs() < 5. * (p / N as f64).sqrt(), "beyond {t}: {found}, expected {p}");
        }
        assert!(values.iter().all(|v| v.abs() < 6.67));
    }

    #[test]
    fn neighbours_are_uncorrelated() {
        const N: usize = 1 << 16;
        let fill = |r: Random| {
            let mut values = vec![0.; N + 4];
            r.fill_normal(0, &mut values);
            values
        };
        let r = Random::new(7);
        let base = fill(r.at(0));
        let near = [("next stream", fill(r.at(1))), ("next seed", fill(Random::new(8).at(0))), ("child", fill(r.at(0).at(0)))];
        for (name, other) in &near {
            let dot = base[..N].iter().zip(other).map(|(a, b)| f64::from(a * b)).sum::<f64>() / N as f64;
            assert!(dot.abs() < 5. / (N as f64).sqrt(), "{name}: correlation {dot}");
        }
        for lag in 1..4 {
            let dot = base[..N].iter().zip(&base[lag..]).map(|(a, b)| f64::from(a * b)).sum::<f64>() / N as f64;
            let squares = base[..N].iter().zip(&base[lag..]).map(|(a, b)| f64::from((a * a - 1.) * (b * b - 1.))).sum::<f64>() / N as f64;
            assert!(dot.abs() < 5. / (N as f64).sqrt(), "lag {lag}: correlation {dot}");
            assert!(squares.abs() < 5. * 2. / (N as f64).sqrt(), "lag {lag}: correlation of squares {squares}");
        }
    }

    #[test]
    fn polynomials_are_accurate() {
        for i in 0..200_000u64 {
            let bits = Random::new(9).bits(i) >> (i % 32);
            let x = (bits | 1) as f32 * (1. / 4_294_967_296.);
            let exact = f64::from(x).ln();
            assert!((f64::from(ln(x)) - exact).abs() <= 2e-7 * exact.abs().max(1e-7), "ln {x}: {} not {exact}", ln(x));
            let (sin, cos) = sin_cos_turn(bits);
            let angle = f64::from(bits) * std::f64::consts::TAU / 4_294_967_296.;
            assert!(
                (f64::from(sin) - angle.sin()).abs() < 2e-7 && (f64::from(cos) - angle.cos()).abs() < 2e-7,
                "turn {bits:#x}: {sin} {cos}"
            );
        }
        assert_eq!(ln(1.), 0.);
    }

    #[test]
    fn below_is_uniform_and_in_range() {
        let r = Random::new(10);
        let mut counts = [0f64; 7];
        (0..70_000).for_each(|i| counts[r.below(i, 7) as usize] += 1.);
        let chi2: f64 = counts.iter().map(|c| (c - 10_000.).powi(2) / 10_000.).sum();
        assert!(chi2 < 35., "chi-square {chi2} with 6 degrees of freedom");
        assert!((0..1000).all(|i| r.below(i, 1) == 0 && r.below(i, 0) == 0));
        assert!((0..1000).any(|i| r.below(i, u32::MAX) > 1 << 31));
    }

    #[test]
    fn permutations_are_uniform() {
        let r = Random::new(11);
        let mut counts = std::collections::BTreeMap::new();
        for n in 0..24_000 {
            *counts.entry(r.at(n).permutation(4)).or_insert(0f64) += 1.;
        }
        assert_eq!(counts.len(), 24);
        let chi2: f64 = counts.values().map(|c| (c - 1000.).powi(2) / 1000.).sum();
        assert!(chi2 < 60., "chi-square {chi2} with 23 degrees of freedom");
        let mut order = r.permutation(1000);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
        assert!(r.permutation(0).is_empty());
        assert_eq!(r.permutation(1), [0]);
    }

    #[test]
    fn categorical_follows_the_weights() {
        let weights = [1., 0., 3., 4.];
        let mut counts = [0f64; 4];
        let r = Random::new(12);
        (0..80_000).for_each(|i| counts[categorical(r.uniform(i), weights.into_iter())] += 1.);
        assert_eq!(counts[1], 0.);
        for (count, p) in counts.iter().zip([0.125, 0., 0.375, 0.5]) {
            assert!((count - 80_000. * p).abs() < 5. * (80_000f64 * 0.25).sqrt(), "{counts:?}");
        }
        assert_eq!(categorical(0.124_999, weights.into_iter()), 0);
        assert_eq!(categorical(0.125, weights.into_iter()), 2);
    }

    #[test]
    fn categorical_at_its_edges() {
        assert_eq!(categorical(0., [0., 0., 1., 0.].into_iter()), 2);
        assert_eq!(categorical(0.999_999_94, [1., 1., 0.].into_iter()), 1);
        assert_eq!(categorical(-1., [0., 1., 1.].into_iter()), 1);
        assert_eq!(categorical(1., [1., 1., 0.].into_iter()), 1);
        assert_eq!(categorical(f32::NAN, [1., 1., 0.].into_iter()), 1);
        assert_eq!(categorical(0.5, [f32::NAN, -1., f32::INFINITY, 2.].into_iter()), 3);
        assert_eq!(categorical(0.5, [0., f32::NAN].into_iter()), 0);
        assert_eq!(categorical(0.5, [].into_iter()), 0);
        assert_eq!(categorical(0.6, [f32::MAX, f32::MAX].into_iter()), 1);
    }
}

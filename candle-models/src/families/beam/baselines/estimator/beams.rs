//! The beams with the largest mean gain in dB over draws of a channel.

use super::super::super::channel::Channels;
use super::super::super::complex::{normalise, squared_norm};
use super::super::super::{Codebook, Link};
use super::super::genie;
use super::Conclusion;
use super::particles::LANES;
use crate::ops::simd;

/// Steps of the search for a beam, and turns of the search for a pair.
const CLIMB: [usize; 2] = [12, 3];
/// Draws from whose own best beams the search for a pair starts.
const STARTS: usize = 2;

/// What a beam at one end leaves of some channels: a vector of each, as many channels side by side as a vector register has lanes.
struct Vectors {
    elements: usize,
    /// `[channels / LANES, N, 2, LANES]`.
    values: Vec<[f32; LANES]>,
    /// The squared norm of each, `[channels]`.
    power: Vec<f64>,
}

impl Vectors {
    /// Of so many elements, which a function writes for a channel.
    fn new(channels: &Channels, elements: usize, write: impl Fn(Link, &mut [f32])) -> Self {
        let (count, mut one) = (channels.batch(), vec![0.0; 2 * elements]);
        let (mut values, mut power) = (vec![[0.0; LANES]; count / LANES * 2 * elements], Vec::with_capacity(count));
        for channel in 0..count {
            write(channels.at(channel, 0), &mut one);
            power.push(squared_norm(&one));
            let group = &mut values[channel / LANES * 2 * elements..][..2 * elements];
            group.iter_mut().zip(&one).for_each(|(to, x)| to[channel % LANES] = *x);
        }
        Self { elements, values, power }
    }

    /// `H f` of all channels.
    fn received(channels: &Channels, f: &[f32]) -> Self {
        Self::new(channels, channels.receive_elements(), |link, out| link.received(f, out))
    }

    /// `H^H w` of all channels.
    fn returned(channels: &Channels, w: &[f32]) -> Self {
        Self::new(channels, channels.transmit_elements(), |link, out| link.returned(w, out))
    }

    /// The unit-norm beam b with the largest mean of `10 log10 |b^H h|^2`, and that mean. A step goes where the gradient points, which is
    /// `h h^H b / |b^H h|^2` summed up; the first are those to the largest mean power.
    fn strongest(&self) -> (Vec<f32>, f64) {
        let count = self.power.len();
        let power = self.power.iter().sum::<f64>() / count as f64;
        // A vector that is hardly seen must not outweigh all others in a step, nor one in a null decide between beams.
        let [floor, null] = [1e-3, 1e-6].map(|share| (share * power) as f32);
        let loudest = (0..count).fold(0, |a, b| if self.power[b] > self.power[a] { b } else { a });
        let group = &self.values[loudest / LANES * 2 * self.elements..][..2 * self.elements];
        let mut beam: Vec<f32> = group.iter().map(|x| x[loudest % LANES]).collect();
        normalise(&mut beam);
        let (mut best, mut next, mut sum) = ((Vec::new(), f64::NEG_INFINITY), vec![[0.0; LANES]; beam.len()], 0.0);
        for step in 0..=CLIMB[0] {
            let floor = (step >= CLIMB[0] / 3).then_some(floor);
            climb(&self.values, &beam, null, floor, &mut next, &mut sum);
            let expected = 10.0 / std::f64::consts::LN_10 * sum / count as f64;
            if expected > best.1 || best.0.is_empty() {
                best = (beam.clone(), expected);
            }
            beam.iter_mut().zip(&next).for_each(|(b, next)| *b = next.iter().sum());
            normalise(&mut beam);
        }
        best
    }
}

simd::kernel! {
    /// The sum of `ln (|h^H b|^2 + null)` over vectors, and the sum of `h h^H b`, where there is a floor each over `|h^H b|^2 + floor`, in parts.
    fn climb<S = simd>(vectors: &'a [[f32; LANES]], beam: &'a [f32], null: f32, floor: Option<f32>, next: &'a mut [[f32; LANES]], sum: &'a mut f64) {
        let (registers, zero) = (LANES / S::F32_LANES, simd.splat_f32s(0.0));
        let (mut logarithms, mut gains) = ([0.0; LANES], [1.0f32; LANES]);
        next.fill([0.0; LANES]);
        let next = S::as_mut_simd_f32s(next.as_flattened_mut()).0;
        for vectors in vectors.chunks_exact(beam.len()) {
            let vectors = S::as_simd_f32s(vectors.as_flattened()).0;
            for r in 0..registers {
                let (mut re, mut im) = (zero, zero);
                for (h, b) in vectors.chunks_exact(2 * registers).zip(beam.chunks_exact(2)) {
                    let (h, b) = ([h[r], h[registers + r]], [simd.splat_f32s(b[0]), simd.splat_f32s(b[1])]);
                    re = simd.mul_add_e_f32s(h[0], b[0], simd.mul_add_e_f32s(h[1], b[1], re));
                    im = simd.mul_add_e_f32s(h[0], b[1], simd.negate_mul_add_e_f32s(h[1], b[0], im));
                }
                let gain = simd.mul_add_e_f32s(re, re, simd.mul_f32s(im, im));
                S::as_mut_simd_f32s(&mut gains).0[r] = simd.add_f32s(gain, simd.splat_f32s(null));
                if let Some(floor) = floor {
                    let weight = simd.div_f32s(simd.splat_f32s(1.0), simd.add_f32s(gain, simd.splat_f32s(floor)));
                    (re, im) = (simd.mul_f32s(weight, re), simd.mul_f32s(weight, im));
                }
                for (h, next) in vectors.chunks_exact(2 * registers).zip(next.chunks_exact_mut(2 * registers)) {
                    let h = [h[r], h[registers + r]];
                    next[r] = simd.mul_add_e_f32s(re, h[0], simd.negate_mul_add_e_f32s(im, h[1], next[r]));
                    next[registers + r] = simd.mul_add_e_f32s(re, h[1], simd.mul_add_e_f32s(im, h[0], next[registers + r]));
                }
            }
            for lane in 0..LANES {
                logarithms[lane] += simd::ln(f64::from(gains[lane]));
            }
        }
        *sum = logarithms.iter().sum();
    }
}

fn better(a: Conclusion, b: Conclusion) -> Conclusion {
    if b.expected_db > a.expected_db { b } else { a }
}

/// The best receive beam for each transmit beam of a codebook, and of all these pairs the best.
pub(super) fn best_of(channels: &Channels, swept: &Codebook) -> Conclusion {
    let with = |index: usize| {
        let transmit = swept.beam(index).to_vec();
        let (receive, expected_db) = Vectors::received(channels, &transmit).strongest();
        Conclusion { receive, transmit, index: Some(index), expected_db }
    };
    (1..swept.count()).map(with).fold(with(0), better)
}

/// Both beams in turn, from the best of some draws on.
pub(super) fn best_pair(channels: &Channels) -> Conclusion {
    let from = |start: usize| {
        let (mut w, mut f) = (vec![0.0; 2 * channels.receive_elements()], vec![0.0; 2 * channels.transmit_elements()]);
        genie::singular_vectors(&channels.at(start * channels.batch() / STARTS, 0), &mut w, &mut f);
        let mut expected_db = 0.0;
        for _ in 0..CLIMB[1] {
            w = Vectors::received(channels, &f).strongest().0;
            (f, expected_db) = Vectors::returned(channels, &w).strongest();
        }
        Conclusion { receive: w, transmit: f, index: None, expected_db }
    };
    (1..STARTS).map(from).fold(from(0), better)
}

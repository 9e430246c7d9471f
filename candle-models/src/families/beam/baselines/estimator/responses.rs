//! What beams receive from every direction, as a table.

use super::super::super::Array;
use super::super::super::complex::inner;
use super::particles::LANES;

/// Points of a table for each element of an array: from one to the next the phase of the last element turns by pi / 64.
const FINENESS: usize = 64;

/// `b^H a(u)` of some beams for direction cosines u from -1 to 1, real parts before imaginary ones, and zeros behind the last beam of both.
pub(super) struct Responses {
    points: usize,
    width: usize,
    /// `[points + 1, 2, width]`.
    values: Vec<f32>,
}

impl Responses {
    /// Of beams `[beams, N, 2]`.
    pub fn new(array: &Array, beams: &[f32]) -> Self {
        let (elements, points) = (2 * array.elements(), FINENESS * array.elements());
        let (mut steering, width) = (vec![0.0; elements], (beams.len() / elements).next_multiple_of(LANES));
        let mut values = vec![0.0; (points + 1) * 2 * width];
        for (point, values) in values.chunks_exact_mut(2 * width).enumerate() {
            array.response(2.0 * point as f64 / points as f64 - 1.0, 0.0, &mut steering);
            for (b, beam) in beams.chunks_exact(elements).enumerate() {
                [values[b], values[width + b]] = inner(beam, &steering);
            }
        }
        Self { points, width, values }
    }

    /// Those of a list of these beams, which may have a beam several times.
    pub fn of(&self, beams: &[usize]) -> Self {
        let width = beams.len().next_multiple_of(LANES);
        let mut values = vec![0.0; (self.points + 1) * 2 * width];
        for (to, from) in values.chunks_exact_mut(width).zip(self.values.chunks_exact(self.width)) {
            to.iter_mut().zip(beams).for_each(|(to, beam)| *to = from[*beam]);
        }
        Self { points: self.points, width, values }
    }

    /// Numbers of a part of a response: the beams, rounded up to whole registers.
    pub fn width(&self) -> usize {
        self.width
    }

    /// The points below directions with these sines, and how far from there to the next.
    #[inline(always)]
    pub fn places(&self, sines: &[f32; LANES]) -> ([i32; LANES], [f32; LANES]) {
        let (mut below, mut shares) = ([0; LANES], [0.0; LANES]);
        for lane in 0..LANES {
            let place = (sines[lane] + 1.0) * (0.5 * self.points as f32);
            below[lane] = (place as i32).clamp(0, self.points as i32 - 1);
            shares[lane] = place - below[lane] as f32;
        }
        (below, shares)
    }

    /// The responses at a point and at the next one, each `[2, width]`.
    #[inline(always)]
    pub fn around(&self, point: i32) -> [&[f32]; 2] {
        let size = 2 * self.width;
        let (below, above) = self.values[point as usize * size..][..2 * size].split_at(size);
        [below, above]
    }
}

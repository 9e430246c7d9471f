//! Searches over sets of beams.

use super::super::array::Array;
use super::super::channel::Link;
use super::super::codebook::Codebook;
use super::super::complex::{inner, normalise, squared_norm};
use super::Probe;
use crate::Result;

/// The transmit beam with the largest `||H f||`, and `w = H f`.
pub(super) fn best_with_mrc(codebook: &Codebook, link: &Link, w: &mut [f32], f: &mut [f32]) {
    let mut best = -1.;
    let mut received = vec![0.; w.len()];
    for beam in codebook.beams().chunks_exact(f.len()) {
        link.received(beam, &mut received);
        let power = squared_norm(&received);
        if power > best {
            best = power;
            f.copy_from_slice(beam);
            w.copy_from_slice(&received);
        }
    }
    normalise(w);
}

/// Every pair; probe number `c * receive.count() + d`.
pub(super) fn exhaustive(transmit: &Codebook, receive: &Codebook, probe: &Probe, w: &mut [f32], f: &mut [f32]) {
    let mut best = Strongest::default();
    let mut received = vec![0.; w.len()];
    for (c, beam) in transmit.beams().chunks_exact(f.len()).enumerate() {
        probe.link.received(beam, &mut received);
        for (d, receive_beam) in receive.beams().chunks_exact(w.len()).enumerate() {
            let index = c * receive.count() + d;
            best.offer(probe.noisy(index, inner(receive_beam, &received)), index);
        }
    }
    f.copy_from_slice(transmit.beam(best.index / receive.count()));
    w.copy_from_slice(receive.beam(best.index % receive.count()));
}

/// Beams of independent complex normal numbers.
pub(super) fn random(pairs: usize, probe: &Probe, w: &mut [f32], f: &mut [f32]) {
    let draw = |pair: usize, w: &mut [f32], f: &mut [f32]| {
        let beams = probe.noise.stream("beams").at(pair as u64);
        beams.fill_normal(0, f);
        beams.fill_normal(f.len() as u64, w);
        normalise(f);
        normalise(w);
    };
    let mut best = Strongest::default();
    for pair in 0..if pairs > 1 { pairs } else { 0 } {
        draw(pair, w, f);
        best.offer(probe.noisy(pair, probe.link.measure(w, f)), pair);
    }
    draw(best.index, w, f);
}

/// The index of the strongest measurement; the first of equals.
struct Strongest {
    power: f32,
    index: usize,
}

impl Default for Strongest {
    fn default() -> Self {
        Self { power: -1., index: 0 }
    }
}

impl Strongest {
    fn offer(&mut self, [re, im]: [f32; 2], index: usize) {
        let power = re * re + im * im;
        if power > self.power {
            *self = Self { power, index };
        }
    }
}

/// Beams of halving width for both sides. At level k an axis of an array is divided into `2^k` sectors of the direction cosine,
/// each with the beam of its first `2^k` elements, whose main lobe is as wide as the sector (the others are switched off);
/// an axis whose beams use all of its elements stays as it is.
#[derive(Debug, Clone)]
pub struct Hierarchy {
    transmit: Vec<Level>,
    receive: Vec<Level>,
}

#[derive(Debug, Clone)]
struct Level {
    beams: Codebook,
    /// The beams that a beam of the level before divides into.
    children: Vec<Vec<usize>>,
}

impl Hierarchy {
    /// The levels of two arrays.
    ///
    /// # Errors
    /// Arrays that are too small or too large.
    pub fn new(transmit: &Array, receive: &Array) -> Result<Self> {
        transmit.validate("transmit")?;
        receive.validate("receive")?;
        Ok(Self { transmit: levels(transmit)?, receive: levels(receive)? })
    }

    /// Measurements of one search.
    pub(super) fn probes(&self) -> usize {
        let children = |levels: &[Level], k: usize| levels.get(k).map_or(1, |level| level.children[0].len());
        (0..self.depth()).map(|k| children(&self.transmit, k) * children(&self.receive, k)).sum()
    }

    pub(super) fn check(&self, n_rx: usize, n_tx: usize) -> Result<()> {
        let check = |field, levels: &[Level], n| levels.iter().try_for_each(|level| level.beams.check_elements(field, n));
        check("receive", &self.receive, n_rx).and(check("transmit", &self.transmit, n_tx))
    }

    fn depth(&self) -> usize {
        self.transmit.len().max(self.receive.len())
    }

    pub(super) fn search(&self, probe: &Probe, w: &mut [f32], f: &mut [f32]) {
        let (mut sent, mut heard, mut index) = (0, 0, 0);
        for k in 0..self.depth() {
            // A side that has reached its narrowest beams keeps the one it has.
            let options = |levels: &[Level], chosen: usize| levels.get(k).map_or(vec![chosen], |level| level.children[chosen].clone());
            let beams = |levels: &[Level], c: usize| -> Vec<f32> { levels[k.min(levels.len() - 1)].beams.beam(c).to_vec() };
            let (senders, hearers) = (options(&self.transmit, sent), options(&self.receive, heard));
            let mut best = Strongest::default();
            for (i, c) in senders.iter().enumerate() {
                for (j, d) in hearers.iter().enumerate() {
                    let signal = probe.link.measure(&beams(&self.receive, *d), &beams(&self.transmit, *c));
                    best.offer(probe.noisy(index, signal), i * hearers.len() + j);
                    index += 1;
                }
            }
            (sent, heard) = (senders[best.index / hearers.len()], hearers[best.index % hearers.len()]);
            w.copy_from_slice(&beams(&self.receive, heard));
            f.copy_from_slice(&beams(&self.transmit, sent));
        }
    }
}

fn levels(array: &Array) -> Result<Vec<Level>> {
    let (rows, columns) = array.shape();
    let depth = |n: usize| n.next_power_of_two().ilog2();
    let mut levels = Vec::new();
    for k in 1..=depth(rows).max(depth(columns)) {
        let sectors = |n: usize, k: u32| 1usize << k.min(depth(n));
        let ((v, u), (v_before, u_before)) = ((sectors(rows, k), sectors(columns, k)), (sectors(rows, k - 1), sectors(columns, k - 1)));
        let mut beams = Codebook::dft(array, v, u)?.beams().to_vec();
        for beam in beams.chunks_exact_mut(2 * array.elements()) {
            for (n, pair) in beam.chunks_exact_mut(2).enumerate() {
                if n / columns >= v || n % columns >= u {
                    pair.fill(0.);
                }
            }
        }
        let parent = |c: usize| (c / u) * v_before / v * u_before + (c % u) * u_before / u;
        let children = (0..v_before * u_before).map(|p| (0..v * u).filter(|c| parent(*c) == p).collect()).collect();
        levels.push(Level { beams: Codebook::new(array.elements(), beams)?, children });
    }
    Ok(levels)
}

//! Orthogonal matching pursuit: the channel as a sum of few paths on a grid of angles, found one by one in the measurements.
//!
//! Probe t uses beams `w_t`, `f_t`; a path (d, c) of the grid looks like `phi_t = (w_t^H a_rx,d) (a_tx,c^H f_t)` in it.

use super::super::array::Array;
use super::super::channel::Link;
use super::super::codebook::{Codebook, CodebookConfig};
use super::super::complex::{add_scaled, inner, product, squared_norm};
use super::super::within;
use super::Probe;
use super::genie;
use crate::Result;

/// Grid points for each element of an axis.
const OVERSAMPLING: usize = 2;

/// Probes, grid and what every path of the grid looks like in the measurements.
#[derive(Debug, Clone)]
pub struct Omp {
    paths: usize,
    transmit: Codebook,
    receive: Codebook,
    grid_transmit: Codebook,
    grid_receive: Codebook,
    /// Unit-norm columns `[D * C, T, 2]`, one for each path, and the norms they had; a path that no probe sees has norm 0.
    dictionary: Vec<f32>,
    norms: Vec<f32>,
}

impl Omp {
    /// Pursuit of `paths` paths in `measurements` probes with random beams (fixed ones, the same for every channel), on a grid
    /// of twice as many directions as elements.
    ///
    /// # Errors
    /// Arrays, measurements (1 to 4096) or paths (1 to `measurements`) out of range.
    pub fn new(transmit: &Array, receive: &Array, measurements: usize, paths: usize) -> Result<Self> {
        within("measurements", measurements, 1..=4096)?;
        within("paths", paths, 1..=measurements)?;
        let probes = |array: &Array, seed: u64| Codebook::generate(&CodebookConfig::Random { count: measurements, seed }, array);
        let grid = |array: &Array| {
            let points = |n: usize| if n > 1 { OVERSAMPLING * n } else { 1 };
            let (rows, columns) = array.shape();
            Codebook::dft(array, points(rows), points(columns))
        };
        let mut omp = Self {
            paths,
            transmit: probes(transmit, 1)?,
            receive: probes(receive, 2)?,
            grid_transmit: grid(transmit)?,
            grid_receive: grid(receive)?,
            dictionary: Vec::new(),
            norms: Vec::new(),
        };
        within("measurements * grid", omp.atoms() * measurements, 1..=1 << 28)?;
        omp.build();
        Ok(omp)
    }

    pub(super) fn probes(&self) -> usize {
        self.transmit.count()
    }

    pub(super) fn check(&self, n_rx: usize, n_tx: usize) -> Result<()> {
        self.receive.check_elements("receive", n_rx).and(self.transmit.check_elements("transmit", n_tx))
    }

    fn atoms(&self) -> usize {
        self.grid_transmit.count() * self.grid_receive.count()
    }

    fn build(&mut self) {
        for atom in 0..self.atoms() {
            let (c, d) = (atom % self.grid_transmit.count(), atom / self.grid_transmit.count());
            let seen = |t: usize| {
                let heard = inner(self.receive.beam(t), self.grid_receive.beam(d));
                product(heard, inner(self.grid_transmit.beam(c), self.transmit.beam(t)))
            };
            let mut column: Vec<f32> = (0..self.probes()).flat_map(seen).collect();
            let norm = squared_norm(&column).sqrt() as f32;
            column.iter_mut().for_each(|x| *x = if norm > 0. { *x / norm } else { 0. });
            self.dictionary.extend(column);
            self.norms.push(norm);
        }
    }

    pub(super) fn search(&self, probe: &Probe, w: &mut [f32], f: &mut [f32]) {
        let measure = |t: usize| probe.noisy(t, probe.link.measure(self.receive.beam(t), self.transmit.beam(t)));
        let measured: Vec<f32> = (0..self.probes()).flat_map(measure).collect();
        let (atoms, gains) = self.pursue(&measured);
        let beams = |grid: &Codebook, index: fn(usize, usize) -> usize| -> Vec<f32> {
            atoms.iter().flat_map(|a| grid.beam(index(*a, self.grid_transmit.count()))).copied().collect()
        };
        let (receive, transmit) = (beams(&self.grid_receive, |a, n| a / n), beams(&self.grid_transmit, |a, n| a % n));
        genie::singular_vectors(&Link { gains: &gains, receive: &receive, transmit: &transmit, power: 0. }, w, f);
    }

    /// The chosen atoms and their gains by least squares.
    fn pursue(&self, measured: &[f32]) -> (Vec<usize>, Vec<f32>) {
        let width = measured.len();
        let (mut residual, mut atoms, mut fit) = (measured.to_vec(), Vec::new(), Fit::default());
        for _ in 0..self.paths {
            let power = |column: &[f32]| inner(column, &residual).iter().map(|x| x * x).sum::<f32>();
            let columns = self.dictionary.chunks_exact(width).enumerate();
            let (best, _) = columns.map(|(i, column)| (i, power(column))).fold((0, -1.), |a, b| if b.1 > a.1 { b } else { a });
            if !fit.explain(&self.dictionary[best * width..(best + 1) * width], &mut residual) {
                break;
            }
            atoms.push(best);
        }
        let gains = fit.gains();
        // The dictionary's columns were divided by their norms.
        let gains = gains.iter().zip(&atoms).flat_map(|(g, atom)| g.map(|x| x / self.norms[*atom])).collect();
        (atoms, gains)
    }
}

/// Least squares by Gram-Schmidt, one column after the other: `columns = Q U`, `U g = Q^H y`.
#[derive(Default)]
struct Fit {
    /// Orthonormal columns of Q.
    basis: Vec<Vec<f32>>,
    /// Columns of U, down to the diagonal.
    triangle: Vec<Vec<[f32; 2]>>,
    right: Vec<[f32; 2]>,
}

impl Fit {
    /// Takes from the residual what a column explains; false, and nothing is done, if that is nothing: the column lies in the
    /// span of those before.
    fn explain(&mut self, column: &[f32], residual: &mut [f32]) -> bool {
        let mut rest = column.to_vec();
        let mut shares = Vec::new();
        for q in &self.basis {
            let [re, im] = inner(q, &rest);
            add_scaled([-re, -im], q, &mut rest);
            shares.push([re, im]);
        }
        let norm = squared_norm(&rest).sqrt() as f32;
        if norm < 1e-4 {
            return false;
        }
        rest.iter_mut().for_each(|x| *x /= norm);
        let [re, im] = inner(&rest, residual);
        add_scaled([-re, -im], &rest, residual);
        shares.push([norm, 0.]);
        self.basis.push(rest);
        self.triangle.push(shares);
        self.right.push([re, im]);
        true
    }

    /// The columns' factors, by back-substitution.
    fn gains(mut self) -> Vec<[f32; 2]> {
        for k in (0..self.right.len()).rev() {
            self.right[k] = self.right[k].map(|x| x / self.triangle[k][k][0]);
            for i in 0..k {
                let [a, b] = product(self.triangle[k][i], self.right[k]);
                self.right[i] = [self.right[i][0] - a, self.right[i][1] - b];
            }
        }
        self.right
    }
}

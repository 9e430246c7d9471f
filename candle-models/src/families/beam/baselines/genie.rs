//! The dominant singular vectors of a channel by path.
//!
//! With `H = R A T^H` (columns of R and T are steering vectors, A holds the gains) the right singular vectors are combinations
//! `T c` of few steering vectors: `H^H H T c = T M c` with `M = A^H (R^H R) A (T^H T)`, L x L. Where there are more paths than
//! receive elements, `H H^H` is the smaller matrix.

use super::super::channel::Link;
use super::super::complex::{Complex, add_scaled, inner_f64, normalise};

/// Writes the unit-norm beams with the largest gain.
pub(super) fn singular_vectors(link: &Link, w: &mut [f32], f: &mut [f32]) {
    if link.paths() < w.len() / 2 {
        let c = dominant(path_matrix(link), link.paths());
        f.fill(0.);
        for (c, transmit) in c.iter().zip(link.transmit.chunks_exact(f.len())) {
            add_scaled([c.0 as f32, c.1 as f32], transmit, f);
        }
        normalise(f);
        link.received(f, w);
        normalise(w);
    } else {
        let matrix = link.matrix();
        let n = w.len() / 2;
        let row = |i: usize| &matrix[i * f.len()..(i + 1) * f.len()];
        // (H H^H)_ij = h_i . conj(h_j): the inner product that conjugates row j.
        let entries = (0..n * n).map(|k| inner_f64(row(k % n), row(k / n))).map(Complex::from).collect();
        for (w, c) in w.chunks_exact_mut(2).zip(dominant(entries, n)) {
            w.copy_from_slice(&[c.0 as f32, c.1 as f32]);
        }
        normalise(w);
        link.returned(w, f);
        normalise(f);
    }
}

/// `M = A^H (R^H R) A (T^H T)`, row by row.
fn path_matrix(link: &Link) -> Vec<Complex> {
    let paths = link.paths();
    let gram = |vectors: &[f32]| -> Vec<Complex> {
        let width = vectors.len() / paths;
        let vector = |l: usize| &vectors[l * width..(l + 1) * width];
        (0..paths * paths).map(|k| inner_f64(vector(k / paths), vector(k % paths))).map(Complex::from).collect()
    };
    let gain = |l: usize| Complex(f64::from(link.gains[2 * l]), f64::from(link.gains[2 * l + 1]));
    let mut receive = gram(link.receive);
    for (k, x) in receive.iter_mut().enumerate() {
        *x = gain(k / paths).conjugate() * *x * gain(k % paths);
    }
    multiplied(&receive, &gram(link.transmit), paths)
}

/// The eigenvector of the largest eigenvalue of an n x n matrix with real eigenvalues of 0 and more.
///
/// Squared 16 times the matrix is its power 65 536, in which that eigenvector is alone: two eigenvalues so close that both are
/// left differ by less than 10^-4, and so do the gains of their vectors.
fn dominant(mut matrix: Vec<Complex>, n: usize) -> Vec<Complex> {
    for _ in 0..16 {
        let largest = matrix.iter().map(|x| x.0.abs().max(x.1.abs())).fold(0., f64::max);
        if largest > 0. {
            matrix.iter_mut().for_each(|x| *x = x.scaled(largest.recip()));
        }
        matrix = multiplied(&matrix, &matrix, n);
    }
    let column = |j: usize| (0..n).map(move |i| i * n + j);
    let norm = |j: usize| column(j).map(|k| matrix[k].power()).sum::<f64>();
    let best = (1..n).fold(0, |best, j| if norm(j) > norm(best) { j } else { best });
    let norm = norm(best).sqrt();
    if norm == 0. {
        return (0..n).map(|i| Complex(f64::from(u8::from(i == 0)), 0.)).collect();
    }
    column(best).map(|k| matrix[k].scaled(norm.recip())).collect()
}

fn multiplied(a: &[Complex], b: &[Complex], n: usize) -> Vec<Complex> {
    let mut out = vec![Complex::default(); n * n];
    for i in 0..n {
        for k in 0..n {
            let factor = a[i * n + k];
            out[i * n..(i + 1) * n].iter_mut().zip(&b[k * n..(k + 1) * n]).for_each(|(out, b)| *out = *out + factor * *b);
        }
    }
    out
}

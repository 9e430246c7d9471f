//! The estimate by its definition, in f64: every pair of directions with a vector of its own.

use super::{GAIN, LEAST, LEAST_PROBABILITY, LOGARITHM, LOGIT, NOTHING, Pursuit, STEPS, SparseChannel, Tables, certainty, near};
use crate::families::beam::complex::Complex;
use crate::families::beam::user::ANTENNA_SCALE;

type Vector = Vec<Complex>;

fn sum(parts: impl Iterator<Item = Complex>) -> Complex {
    parts.fold(Complex::default(), |sum, x| sum + x)
}

/// `a^H b`.
fn inner(a: &[Complex], b: &[Complex]) -> Complex {
    sum(a.iter().zip(b).map(|(a, b)| a.conjugate() * *b))
}

fn power(x: &[Complex]) -> f64 {
    x.iter().map(|x| x.power()).sum()
}

fn times(matrix: &[Vector], x: &[Complex]) -> Vector {
    matrix.iter().map(|row| sum(row.iter().zip(x).map(|(a, x)| *a * *x))).collect()
}

fn transposed(matrix: &[Vector]) -> Vec<Vector> {
    (0..matrix[0].len()).map(|j| matrix.iter().map(|row| row[j].conjugate()).collect()).collect()
}

/// Vectors of so many complex numbers side by side.
fn vectors<T: Copy + Into<f64>>(x: &[T], length: usize) -> Vec<Vector> {
    let vector = |x: &[T]| x.chunks_exact(2).map(|x| Complex(x[0].into(), x[1].into())).collect();
    x.chunks_exact(2 * length).map(vector).collect()
}

/// `L` of `R = L L^H`.
fn cholesky(matrix: &[Vector]) -> Vec<Vector> {
    let mut lower = vec![vec![Complex::default(); matrix.len()]; matrix.len()];
    for i in 0..matrix.len() {
        for j in 0..=i {
            let rest = matrix[i][j] - sum((0..j).map(|k| lower[i][k] * lower[j][k].conjugate()));
            lower[i][j] = if i == j { Complex(rest.0.sqrt(), 0.0) } else { rest.scaled(1.0 / lower[j][j].0) };
        }
    }
    lower
}

/// `x` of `L x = b`.
fn forward(lower: &[Vector], b: &[Complex]) -> Vector {
    let mut x: Vector = Vec::with_capacity(b.len());
    for (row, b) in lower.iter().zip(b) {
        let rest = *b - sum(row.iter().zip(&x).map(|(a, x)| *a * *x));
        x.push(rest.scaled(1.0 / row[x.len()].0));
    }
    x
}

/// `x` of `L^H x = b`.
fn backward(lower: &[Vector], b: &[Complex]) -> Vector {
    let mut x = vec![Complex::default(); b.len()];
    for i in (0..b.len()).rev() {
        let rest = b[i] - sum((i + 1..b.len()).map(|k| lower[k][i].conjugate() * x[k]));
        x[i] = rest.scaled(1.0 / lower[i][i].0);
    }
    x
}

/// Vectors `u = H v` and `v` of norm 1 by the power method.
fn climb(channel: &[Vector], mut v: Vector) -> [Vector; 2] {
    for _ in 0..STEPS {
        v = times(&transposed(channel), &times(channel, &v));
        let norm = (power(&v) + LEAST).sqrt();
        v.iter_mut().for_each(|v| *v = v.scaled(1.0 / norm));
    }
    [times(channel, &v), v]
}

/// Matching pursuit of a beam among the steering vectors of a grid.
fn split(grid: &[Vector], beam: &[Complex]) -> Vec<f64> {
    let (mut rest, count) = (beam.to_vec(), grid.len());
    let path = |_| {
        let power: Vec<f64> = grid.iter().map(|b| inner(b, &rest).power()).collect();
        let most = (1..count).fold(0, |most, s| if power[s] > power[most] { s } else { most });
        let [before, behind] = [power[(most + count - 1) % count], power[(most + 1) % count]];
        let between = 0.5 * (behind - before) / (2.0 * power[most] - before - behind).max(LEAST);
        let d = (2.0 * (most as f64 + between) / count as f64 - 1.0) * power[most] / (power[most] + NOTHING * beam.len().pow(2) as f64);
        let b: Vector =
            (0..beam.len()).map(|m| std::f64::consts::PI * m as f64 * d).map(|angle| Complex(angle.cos(), angle.sin())).collect();
        let gain = inner(&b, &rest).scaled(1.0 / beam.len() as f64);
        rest.iter_mut().zip(&b).for_each(|(x, b)| *x = *x - gain * *b);
        [d, gain.0, gain.1]
    };
    (0..SparseChannel::TOLD).flat_map(path).collect()
}

/// What is found from one place: second moments and means of all paths, and what is left of the measurements, times the inverse of the covariance.
struct Found {
    gamma: Vec<f64>,
    mean: Vector,
    rest: Vector,
}

/// All steps, the first path being kept near the next place, if there are any; `places` are those before it. `factor` makes `L` of second moments and noise.
fn pass(
    pursuit: Pursuit,
    x: &[Vector],
    y: &[Complex],
    (noise, certainty, departures): (f64, f64, usize),
    factor: impl Fn(&[f64], f64) -> Vec<Vector>,
    places: &mut Vec<usize>,
) -> Found {
    let arrivals = x.len() / departures;
    let is_near = |a: usize, b: usize| {
        near(a / departures, b / departures, arrivals, pursuit.directions)
            && near(a % departures, b % departures, departures, pursuit.directions)
    };
    let mut y = y.to_vec();
    let mut moments = vec![vec![0.0; x.len()]; pursuit.paths];
    let mut mean = vec![Complex::default(); x.len()];
    for step in 0..pursuit.steps() {
        moments[pursuit.path(step)].fill(0.0);
        let gamma: Vec<f64> = (0..x.len()).map(|i| moments.iter().map(|moments| moments[i]).sum()).collect();
        // R^-1 = (L^-1)^H L^-1, so that products with it are those of what `L` makes of vectors.
        let lower = factor(&gamma, pursuit.noise(noise, step));
        let whitened = forward(&lower, &y);
        let path_of = |x: &Vector| {
            let x = forward(&lower, x);
            let variance = 1.0 / (1.0 / GAIN + power(&x));
            let m = inner(&x, &whitened);
            (certainty * m.power() * variance, m.scaled(variance), variance)
        };
        let each: Vec<(f64, Complex, f64)> = x.iter().map(path_of).collect();
        if step == 0 && pursuit.places > 0 {
            let free = (0..x.len()).filter(|i| !places.iter().any(|place| is_near(*place, *i)));
            places.push(free.reduce(|best, i| if each[i].0 > each[best].0 { i } else { best }).expect("a place"));
        }
        let kept = |i: usize| step > 0 || places.last().is_none_or(|place| is_near(*place, i));
        let most = (0..x.len()).filter(|i| kept(*i)).fold(0.0f64, |most, i| most.max(each[i].0));
        let likely: Vec<f64> = each.iter().enumerate().map(|(i, x)| if kept(i) { (x.0 - most).exp() * x.2.sqrt() } else { 0.0 }).collect();
        let all: f64 = likely.iter().sum();
        let share: Vec<f64> = likely.iter().map(|p| p / all).collect();
        mean = each.iter().zip(&share).map(|(x, p)| x.1.scaled(*p)).collect();
        if step + 1 == pursuit.steps() {
            let explained = |i: usize| sum(x.iter().zip(&mean).map(|(x, c)| x[i] * *c));
            y = (0..y.len()).map(|i| y[i] - explained(i)).collect();
            let before = forward(&lower, &y);
            let of = |x: &Vector| inner(&forward(&lower, x), &before);
            mean.iter_mut().zip(x).zip(&gamma).for_each(|((mean, x), gamma)| *mean = *mean + of(x).scaled(*gamma));
            y = backward(&lower, &before);
        }
        moments[pursuit.path(step)] = each.iter().zip(&share).map(|(x, p)| p * (x.1.power() + x.2)).collect();
    }
    let gamma = (0..x.len()).map(|i| moments.iter().map(|moments| moments[i]).sum()).collect();
    Found { gamma, mean, rest: y }
}

pub(super) fn estimate(tables: &Tables, pursuit: Pursuit, row: &[f64], noise: f64) -> Vec<f64> {
    let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
    let (arrive, leave, sent) = (vectors(&tables.steering[0], n), vectors(&tables.steering[1], m), vectors(&tables.beams, m));
    let measured = vectors(row, n);
    let size: Vec<f64> = measured.iter().map(|x| (power(x) + 1e-24).sqrt()).collect();
    let beams: Vec<Vector> = measured.iter().zip(&size).map(|(x, y)| x.iter().map(|x| x.scaled(1.0 / y)).collect()).collect();
    let y: Vector = size.iter().map(|y| Complex(y / f64::from(ANTENNA_SCALE), 0.0)).collect();
    let (whole, certainty) = (power(&y) + LEAST, certainty(noise));
    let noise = pursuit.assumed(noise, power(&y) / t as f64);
    let given = |r: usize, s: usize| (0..t).map(|i| inner(&beams[i], &arrive[r]) * inner(&leave[s], &sent[i])).collect::<Vector>();
    let x: Vec<Vector> = (0..arrivals * departures).map(|i| given(i / departures, i % departures)).collect();
    let factor = |gamma: &[f64], noise: f64| {
        let noise = |i, j| if i == j { noise } else { 0.0 };
        let entry =
            |i: usize, j: usize| sum(x.iter().zip(gamma).map(|(x, g)| (x[i] * x[j].conjugate()).scaled(*g))) + Complex(noise(i, j), 0.0);
        cholesky(&(0..t).map(|i| (0..t).map(|j| entry(i, j)).collect()).collect::<Vec<Vector>>())
    };
    let (mut gamma, mut mean, mut left) = (vec![0.0; x.len()], vec![Complex::default(); x.len()], 0.0);
    let mut places: Vec<usize> = Vec::new();
    for _ in 0..pursuit.starts() {
        let found = pass(pursuit, &x, &y, (noise, certainty, departures), factor, &mut places);
        let share = 1.0 / pursuit.starts() as f64;
        gamma.iter_mut().zip(found.gamma).for_each(|(to, x)| *to += share * x);
        mean.iter_mut().zip(found.mean).for_each(|(to, x)| *to = *to + x.scaled(share));
        left += share * noise * noise * power(&found.rest) / whole;
    }
    let part = |i: usize, j: usize| {
        sum(mean.iter().enumerate().map(|(k, c)| *c * arrive[k / departures][i] * leave[k % departures][j].conjugate()))
    };
    let mut channel: Vec<Vector> = (0..n).map(|i| (0..m).map(|j| part(i, j)).collect()).collect();

    let total = gamma.iter().sum::<f64>() + LEAST;
    let arrives: Vec<f64> = gamma.chunks_exact(departures).map(|gamma| gamma.iter().sum::<f64>() / total).collect();
    let leaves: Vec<f64> = (0..departures).map(|s| gamma.iter().skip(s).step_by(departures).sum::<f64>() / total).collect();
    let said = arrives.iter().chain(&leaves).map(|p| 1.0 + LOGARITHM * (p + LEAST_PROBABILITY).ln());
    let rest = [left].into_iter().chain(said);
    if !tables.choices.is_empty() {
        let answers: Vec<Vector> = vectors(&tables.choices, m).iter().map(|f| times(&channel, f)).collect();
        let total = answers.iter().map(|u| power(u)).sum::<f64>() + LEAST;
        let by = |u: &Vector| (n as f64 / (power(u) + LEAST)).sqrt();
        let beams = answers.iter().flat_map(|u| u.iter().flat_map(move |x| [by(u) * x.0, by(u) * x.1]));
        let logits = answers.iter().map(|u| LOGIT * (power(u) / total + LEAST_PROBABILITY).ln());
        return beams.chain(logits).chain(rest).collect();
    }
    let start = (0..m).map(|j| sum(leaves.iter().zip(&leave).map(|(p, b)| b[j].scaled(*p)))).collect();
    let first = climb(&channel, start);
    for (row, u) in channel.iter_mut().zip(&first[0]) {
        row.iter_mut().zip(&first[1]).for_each(|(h, v)| *h = *h - *u * v.conjugate());
    }
    let second = climb(&channel, times(&transposed(&channel), &vec![Complex(1.0, 0.0); n]));
    let norm = |pair: &[Vector; 2]| (power(&pair[0]) + LEAST).sqrt();
    let (strongest, next) = (norm(&first), norm(&second));
    let tell = |[u, v]: [Vector; 2], of_v: f64| {
        let tell = |x: Vector, by: f64| x.into_iter().flat_map(move |x| [by * x.0, by * x.1]);
        tell(u, (n as f64).sqrt() / strongest).chain(tell(v, of_v * (m as f64).sqrt()))
    };
    let beam: Vector = first[1].iter().map(|v| v.scaled((m as f64).sqrt())).collect();
    let told = split(&leave, &beam);
    told.into_iter().chain(tell(first, 1.0)).chain(tell(second, next / strongest)).chain(rest).collect()
}

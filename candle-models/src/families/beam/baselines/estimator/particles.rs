//! Particles, as many at a time as vector registers have lanes.

use super::draws::Draws;
use super::responses::Responses;
use crate::ops::simd;
use pulp::Simd;

/// Particles that are computed at once: a group.
pub(super) const LANES: usize = 16;

/// A number of each particle of a group. Complex numbers are two of these, the real part first.
type Lanes = [f64; LANES];

/// Uniform numbers that a move takes, and normal ones.
const NUMBERS: [usize; 2] = [5, 2];

/// A power of the noise.
#[derive(Debug, Clone, Copy)]
pub(super) struct Level {
    noise: f64,
    logarithm: f64,
}

impl Level {
    pub fn new(noise: f64) -> Self {
        Self { noise, logarithm: noise.ln() }
    }
}

/// What is known of an episode.
pub(super) struct Problem {
    /// Paths of the channel, L.
    pub paths: usize,
    /// Mean power of a gain.
    pub power: f64,
    /// Largest azimuth to either side, in radians.
    pub azimuth: f32,
    /// Measurements, T.
    pub steps: usize,
    /// `w_t^H a_rx` of all measurements.
    pub heard: Responses,
    /// `f_t^H a_tx` of all measurements.
    pub sent: Responses,
    /// What was measured: real parts, then imaginary ones, zeros behind the last of both, as in the responses.
    pub values: Vec<f32>,
    /// `||y||^2`.
    pub energy: f64,
}

impl Problem {
    /// Entries of the lower triangle of a matrix of paths.
    fn triangle(&self) -> usize {
        place(self.paths, 0)
    }
}

/// Where row i and column j, which is not above i, lie in a triangle.
fn place(i: usize, j: usize) -> usize {
    i * (i + 1) / 2 + j
}

/// Directions of all paths, and what follows from them, for groups of particles.
pub(super) struct Particles {
    /// Azimuths of arrival and departure in radians, `[groups, L, 2, LANES]`.
    angles: Vec<[f32; LANES]>,
    /// Phi, column by column: `[groups, L, LANES, 2, T]`.
    columns: Vec<f32>,
    /// The lower triangle of `Phi^H Phi`, row by row, and `Phi^H y`: `[groups, L (L + 1) / 2 + L, 2, LANES]`.
    products: Vec<Lanes>,
    /// The logarithm of the likelihood at the noise at hand, but for a constant: `[groups, LANES]`.
    likelihood: Vec<Lanes>,
}

/// A group of particles.
struct Group<'a> {
    angles: &'a mut [[f32; LANES]],
    columns: &'a mut [f32],
    products: &'a mut [Lanes],
    likelihood: &'a mut Lanes,
}

/// Memory for what becomes of a group if a path moves.
pub(super) struct Workspace {
    angles: [[f32; LANES]; 2],
    /// The columns of the path, `[LANES, 2, T]`.
    columns: Vec<f32>,
    products: Vec<Lanes>,
    solution: Solution,
}

/// Memory for a likelihood.
struct Solution {
    /// The lower triangle C of `C C^H = p Phi^H Phi + s I`, row by row. Its diagonal is real: there the second part is the reciprocal.
    lower: Vec<Lanes>,
    /// `C^-1 Phi^H y`.
    solved: Vec<Lanes>,
}

impl Workspace {
    pub fn new(problem: &Problem) -> Self {
        let zeros = |entries: usize| vec![[0.0; LANES]; 2 * entries];
        let solution = Solution { lower: zeros(problem.triangle()), solved: zeros(problem.paths) };
        let columns = vec![0.0; LANES * problem.values.len()];
        Self { angles: [[0.0; LANES]; 2], columns, products: zeros(problem.triangle() + problem.paths), solution }
    }
}

impl Particles {
    /// Particles of the prior.
    pub fn drawn(problem: &Problem, groups: usize, draws: &mut Draws, work: &mut Workspace) -> Self {
        let paths = problem.paths;
        let mut particles = Self {
            angles: vec![[0.0; LANES]; groups * paths * 2],
            columns: vec![0.0; groups * paths * LANES * problem.values.len()],
            products: vec![[0.0; LANES]; groups * 2 * (problem.triangle() + paths)],
            likelihood: vec![[0.0; LANES]; groups],
        };
        for path in 0..paths {
            // From nowhere every move is kept, and the last kind of them goes anywhere.
            particles.likelihood.fill([f64::NEG_INFINITY; LANES]);
            let [uniforms, normals] = draws.take(NUMBERS.map(|numbers| groups * numbers * LANES));
            uniforms.chunks_exact_mut(NUMBERS[0] * LANES).for_each(|numbers| numbers[..LANES].fill(1.0));
            move_all(problem, &mut particles, path, Level::new(1.0), uniforms, normals, work);
        }
        // Nothing has been measured yet: all are as likely.
        particles.likelihood.fill([0.0; LANES]);
        particles
    }

    /// How many groups there are.
    pub fn groups(&self) -> usize {
        self.likelihood.len()
    }

    /// Draws them anew by how much likelier they are at this noise than at the one before.
    pub fn resample(&mut self, problem: &Problem, level: Level, draws: &mut Draws, work: &mut Workspace) {
        let before = self.likelihood.clone();
        weigh(problem, self, level, work);
        let weights = self.likelihood.as_flattened().iter().zip(before.as_flattened()).map(|(after, before)| after - before);
        let [uniform, _] = draws.take([1, 0]);
        for (from, to) in copies(weights.collect(), uniform[0]) {
            self.copy(from, to);
        }
    }

    /// A move of a path of each, kept or not by Metropolis and Hastings.
    pub fn step(&mut self, problem: &Problem, path: usize, level: Level, draws: &mut Draws, work: &mut Workspace) {
        let groups = self.groups();
        let [uniforms, normals] = draws.take(NUMBERS.map(|numbers| groups * numbers * LANES));
        move_all(problem, self, path, level, uniforms, normals, work);
    }

    /// The directions on one side (0 arrival, 1 departure) of all paths of all particles, each with an elevation of 0: `[P, L, 2]`.
    pub fn directions(&self, side: usize, paths: usize) -> Vec<f32> {
        let of = |group: &[[f32; LANES]]| {
            let lanes = (0..LANES).flat_map(|lane| group[side..].iter().step_by(2).flat_map(move |angles| [angles[lane], 0.0]));
            lanes.collect::<Vec<f32>>()
        };
        self.angles.chunks_exact(2 * paths).flat_map(of).collect()
    }

    /// Gains of all paths as the measurements leave them, drawn: `[P, L, 2]`.
    pub fn gains(&self, problem: &Problem, level: Level, draws: &mut Draws, work: &mut Workspace) -> Vec<f32> {
        let n = problem.paths;
        // Mean p M^-1 Phi^H y and covariance p s M^-1, M = C C^H: both are C^-H times something.
        let spread = (level.noise / problem.power / 2.0).sqrt();
        let [_, normals] = draws.take([0, self.groups() * LANES * 2 * n]);
        let mut normals = normals.iter().map(|normal| spread * f64::from(*normal));
        let mut out = Vec::with_capacity(normals.len());
        for products in self.products.chunks_exact(work.products.len()) {
            solve_group(problem, products, level, &mut work.solution);
            let Solution { lower, solved } = &work.solution;
            for lane in 0..LANES {
                let mut gains: Vec<f64> = solved.iter().map(|x| x[lane]).zip(&mut normals).map(|(mean, normal)| mean + normal).collect();
                for i in (0..n).rev() {
                    for k in i + 1..n {
                        let [re, im] = [0, 1].map(|part| lower[2 * place(k, i) + part][lane]);
                        gains[2 * i] -= re * gains[2 * k] + im * gains[2 * k + 1];
                        gains[2 * i + 1] -= re * gains[2 * k + 1] - im * gains[2 * k];
                    }
                    let reciprocal = lower[2 * place(i, i) + 1][lane];
                    gains[2 * i..2 * i + 2].iter_mut().for_each(|gain| *gain *= reciprocal);
                }
                out.extend(gains.iter().map(|gain| (problem.power * gain) as f32));
            }
        }
        out
    }

    /// A particle becomes like another one.
    fn copy(&mut self, from: usize, to: usize) {
        fn lane<T: Copy>(numbers: &mut [[T; LANES]], groups: usize, from: usize, to: usize) {
            let each = numbers.len() / groups;
            for i in 0..each {
                numbers[to / LANES * each + i][to % LANES] = numbers[from / LANES * each + i][from % LANES];
            }
        }
        let groups = self.groups();
        lane(&mut self.angles, groups, from, to);
        lane(&mut self.products, groups, from, to);
        lane(&mut self.likelihood, groups, from, to);
        let paths = self.angles.len() / groups / 2;
        let width = self.columns.len() / groups / paths / LANES;
        for path in 0..paths {
            let [from, to] = [from, to].map(|particle| ((particle / LANES * paths + path) * LANES + particle % LANES) * width);
            self.columns.copy_within(from..from + width, to);
        }
    }

    fn each(&mut self) -> impl Iterator<Item = Group<'_>> {
        let groups = self.likelihood.len();
        let (angles, columns, products) = (self.angles.len() / groups, self.columns.len() / groups, self.products.len() / groups);
        let parts = self.angles.chunks_exact_mut(angles).zip(self.columns.chunks_exact_mut(columns));
        parts
            .zip(self.products.chunks_exact_mut(products))
            .zip(&mut self.likelihood)
            .map(|(((angles, columns), products), likelihood)| Group { angles, columns, products, likelihood })
    }
}

simd::kernel! {
    /// The likelihood of every particle.
    fn weigh<S = simd>(problem: &'a Problem, particles: &'a mut Particles, level: Level, work: &'a mut Workspace) {
        for group in particles.each() {
            solve(simd, problem, group.products, level, &mut work.solution);
            *group.likelihood = likelihood(problem, level, &work.solution);
        }
    }
}

simd::kernel! {
    /// One move of a path of every particle: both directions anew, or one or both by a little. Of the uniform numbers the first says which, then how far, what is
    /// kept, and where to if anywhere; normal ones say where to if not.
    fn move_all<S = simd>(problem: &'a Problem, particles: &'a mut Particles, path: usize, level: Level, uniforms: &'a [f32], normals: &'a [f32], work: &'a mut Workspace) {
        let numbers = uniforms.as_chunks::<LANES>().0.chunks_exact(NUMBERS[0]).zip(normals.as_chunks::<LANES>().0.chunks_exact(NUMBERS[1]));
        for (mut group, (uniforms, normals)) in particles.each().zip(numbers) {
            let mut inside = [true; LANES];
            for side in 0..2 {
                let (now, new) = (&group.angles[2 * path + side], &mut work.angles[side]);
                // Up to a quarter only the arrival moves, up to a half only the departure.
                let stays = [[0.25, 0.5], [0.0, 0.25]][side];
                for lane in 0..LANES {
                    // From a thousandth of half a radian to half a radian.
                    let scale = 0.5 * simd::exp::<S>(-3.0 * std::f32::consts::LN_10 * uniforms[1][lane]);
                    let kind = uniforms[0][lane];
                    let scale = if (kind >= stays[0]) & (kind < stays[1]) { 0.0 } else { scale };
                    let near = now[lane] + scale * normals[side][lane];
                    let anywhere = problem.azimuth * (2.0 * uniforms[3 + side][lane] - 1.0);
                    let angle = if kind < 0.85 { near } else { anywhere };
                    inside[lane] &= angle.abs() <= problem.azimuth;
                    new[lane] = angle.min(problem.azimuth).max(-problem.azimuth);
                }
            }
            try_path(simd, problem, &group, path, work);
            solve(simd, problem, &work.products, level, &mut work.solution);
            let likelihood = likelihood(problem, level, &work.solution);
            let mut kept = [0.0; LANES];
            for lane in 0..LANES {
                let likely = simd::ln(f64::from(uniforms[2][lane])) < likelihood[lane] - group.likelihood[lane];
                kept[lane] = if likely & inside[lane] { 1.0 } else { 0.0 };
            }
            keep(simd, &mut group, path, &kept, &likelihood, work);
        }
    }
}

/// What a group would be with the directions of a path that the workspace has.
#[inline(always)]
fn try_path<S: Simd>(simd: S, problem: &Problem, group: &Group, path: usize, work: &mut Workspace) {
    let mut sines = work.angles;
    for side in &mut sines {
        side.iter_mut().for_each(|x| *x = sine(*x));
    }
    let (heard, heard_share) = problem.heard.places(&sines[0]);
    let (sent, sent_share) = problem.sent.places(&sines[1]);
    work.products.copy_from_slice(group.products);
    let (paths, width, size) = (problem.paths, problem.heard.width(), LANES * problem.values.len());
    let values = S::as_simd_f32s(&problem.values).0;
    for lane in 0..LANES {
        let column = S::as_mut_simd_f32s(&mut work.columns[lane * 2 * width..][..2 * width]).0;
        let heard = (problem.heard.around(heard[lane]), heard_share[lane]);
        let sent = (problem.sent.around(sent[lane]), sent_share[lane]);
        answer(simd, heard, sent, column);
        for other in 0..paths {
            let with =
                if other == path { &*column } else { S::as_simd_f32s(&group.columns[other * size + lane * 2 * width..][..2 * width]).0 };
            // The row of the path, and the column: there its entries are conjugate.
            let (re, im) = inner(simd, column, with);
            let (entry, im) = if other <= path { (place(path, other), im) } else { (place(other, path), -im) };
            work.products[2 * entry][lane] = f64::from(re);
            work.products[2 * entry + 1][lane] = f64::from(im);
        }
        let right = place(paths, path);
        let (re, im) = inner(simd, column, values);
        work.products[2 * right][lane] = f64::from(re);
        work.products[2 * right + 1][lane] = f64::from(im);
    }
}

/// `(w^H a_rx) (f^H a_tx)^*` of all measurements, each factor between two points of its table.
#[inline(always)]
fn answer<S: Simd>(simd: S, heard: ([&[f32]; 2], f32), sent: ([&[f32]; 2], f32), column: &mut [S::f32s]) {
    let (re, im) = column.split_at_mut(column.len() / 2);
    let [heard_below, heard_above, sent_below, sent_above] =
        [S::as_simd_f32s(heard.0[0]).0, S::as_simd_f32s(heard.0[1]).0, S::as_simd_f32s(sent.0[0]).0, S::as_simd_f32s(sent.0[1]).0];
    let (heard_share, sent_share) = (simd.splat_f32s(heard.1), simd.splat_f32s(sent.1));
    for t in 0..re.len() {
        let i = re.len() + t;
        let heard_re = simd.mul_add_e_f32s(heard_share, simd.sub_f32s(heard_above[t], heard_below[t]), heard_below[t]);
        let heard_im = simd.mul_add_e_f32s(heard_share, simd.sub_f32s(heard_above[i], heard_below[i]), heard_below[i]);
        let sent_re = simd.mul_add_e_f32s(sent_share, simd.sub_f32s(sent_above[t], sent_below[t]), sent_below[t]);
        let sent_im = simd.mul_add_e_f32s(sent_share, simd.sub_f32s(sent_above[i], sent_below[i]), sent_below[i]);
        re[t] = simd.mul_add_e_f32s(heard_re, sent_re, simd.mul_f32s(heard_im, sent_im));
        im[t] = simd.negate_mul_add_e_f32s(heard_re, sent_im, simd.mul_f32s(heard_im, sent_re));
    }
}

/// `a^H b` of vectors with their real parts first.
#[inline(always)]
fn inner<S: Simd>(simd: S, a: &[S::f32s], b: &[S::f32s]) -> (f32, f32) {
    let ((ar, ai), (br, bi)) = (a.split_at(a.len() / 2), b.split_at(b.len() / 2));
    let (mut re, mut im) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
    for (((ar, ai), br), bi) in ar.iter().zip(ai).zip(br).zip(bi) {
        re = simd.mul_add_e_f32s(*ar, *br, simd.mul_add_e_f32s(*ai, *bi, re));
        im = simd.mul_add_e_f32s(*ar, *bi, simd.negate_mul_add_e_f32s(*ai, *br, im));
    }
    (simd.reduce_sum_f32s(re), simd.reduce_sum_f32s(im))
}

simd::kernel! {
    /// [`solve`].
    fn solve_group<S = simd>(problem: &'a Problem, products: &'a [Lanes], level: Level, solution: &'a mut Solution) {
        solve(simd, problem, products, level, solution);
    }
}

/// The triangle, and what it leaves of the measurements.
#[inline(always)]
fn solve<S: Simd>(simd: S, problem: &Problem, products: &[Lanes], level: Level, solution: &mut Solution) {
    let registers = LANES / S::F64_LANES;
    let (n, (gram, right)) = (problem.paths, products.split_at(2 * problem.triangle()));
    let (gram, right) = (S::as_simd_f64s(gram.as_flattened()).0, S::as_simd_f64s(right.as_flattened()).0);
    let lower = S::as_mut_simd_f64s(solution.lower.as_flattened_mut()).0;
    let solved = S::as_mut_simd_f64s(solution.solved.as_flattened_mut()).0;
    let [power, noise, one] = [problem.power, level.noise, 1.0].map(|x| simd.splat_f64s(x));
    for r in 0..registers {
        let at = |entry: usize| (2 * entry * registers + r, (2 * entry + 1) * registers + r);
        for i in 0..n {
            for j in 0..=i {
                let (entry_re, entry_im) = at(place(i, j));
                let (mut re, mut im) = (simd.mul_f64s(power, gram[entry_re]), simd.mul_f64s(power, gram[entry_im]));
                for k in 0..j {
                    let (a, b) = (at(place(i, k)), at(place(j, k)));
                    let (ar, ai, br, bi) = (lower[a.0], lower[a.1], lower[b.0], lower[b.1]);
                    re = simd.negate_mul_add_e_f64s(ar, br, simd.negate_mul_add_e_f64s(ai, bi, re));
                    im = simd.negate_mul_add_e_f64s(ai, br, simd.mul_add_e_f64s(ar, bi, im));
                }
                if i == j {
                    // What rounding leaves on the diagonal is not below the noise.
                    re = simd.sqrt_f64s(simd.max_f64s(simd.add_f64s(re, noise), noise));
                    im = simd.div_f64s(one, re);
                } else {
                    let reciprocal = lower[at(place(j, j)).1];
                    (re, im) = (simd.mul_f64s(re, reciprocal), simd.mul_f64s(im, reciprocal));
                }
                (lower[entry_re], lower[entry_im]) = (re, im);
            }
            let (of_re, of_im) = at(i);
            let (mut re, mut im) = (right[of_re], right[of_im]);
            for k in 0..i {
                let (a, b) = (at(place(i, k)), at(k));
                let (ar, ai, br, bi) = (lower[a.0], lower[a.1], solved[b.0], solved[b.1]);
                re = simd.negate_mul_add_e_f64s(ar, br, simd.mul_add_e_f64s(ai, bi, re));
                im = simd.negate_mul_add_e_f64s(ar, bi, simd.negate_mul_add_e_f64s(ai, br, im));
            }
            let reciprocal = lower[at(place(i, i)).1];
            (solved[of_re], solved[of_im]) = (simd.mul_f64s(re, reciprocal), simd.mul_f64s(im, reciprocal));
        }
    }
}

/// The logarithm of the likelihood, but for a constant.
#[inline(always)]
fn likelihood(problem: &Problem, level: Level, solution: &Solution) -> Lanes {
    let (mut explained, mut determinant) = ([0.0; LANES], [0.0; LANES]);
    for part in &solution.solved {
        for lane in 0..LANES {
            explained[lane] += part[lane] * part[lane];
        }
    }
    for i in 0..problem.paths {
        let diagonal = &solution.lower[2 * place(i, i)];
        for lane in 0..LANES {
            determinant[lane] += 2.0 * simd::ln(diagonal[lane]);
        }
    }
    let rest = (problem.steps as f64 - problem.paths as f64) * level.logarithm;
    let per_noise = level.noise.recip();
    for lane in 0..LANES {
        explained[lane] = (problem.power * explained[lane] - problem.energy) * per_noise - determinant[lane] - rest;
    }
    explained
}

/// Gives those particles what was tried that keep it, which have a 1.
#[inline(always)]
fn keep<S: Simd>(simd: S, group: &mut Group, path: usize, kept: &Lanes, likelihood: &Lanes, work: &Workspace) {
    choose(simd, kept, group.products.as_flattened_mut(), work.products.as_flattened());
    choose(simd, kept, group.likelihood, likelihood);
    let (size, width) = (work.columns.len(), work.columns.len() / LANES);
    for lane in (0..LANES).filter(|lane| kept[*lane] > 0.0) {
        for side in 0..2 {
            group.angles[2 * path + side][lane] = work.angles[side][lane];
        }
        group.columns[path * size + lane * width..][..width].copy_from_slice(&work.columns[lane * width..][..width]);
    }
}

/// Numbers of a group become new ones where the particle has a 1.
#[inline(always)]
fn choose<S: Simd>(simd: S, kept: &Lanes, now: &mut [f64], new: &[f64]) {
    let (kept, now, new) = (S::as_simd_f64s(kept).0, S::as_mut_simd_f64s(now).0, S::as_simd_f64s(new).0);
    for (now, new) in now.chunks_exact_mut(kept.len()).zip(new.chunks_exact(kept.len())) {
        for ((now, new), kept) in now.iter_mut().zip(new).zip(kept) {
            *now = simd.select_f64s(simd.greater_than_f64s(*kept, simd.splat_f64s(0.0)), *new, *now);
        }
    }
}

/// The sine of an angle between -pi and pi, within 1e-6.
#[inline(always)]
fn sine(x: f32) -> f32 {
    let z = x * x;
    let mut sum = 0.0;
    // Taylor's series as 1 - z / (2 * 3) (1 - z / (4 * 5) (...)).
    for k in [16.0f32, 14.0, 12.0, 10.0, 8.0, 6.0, 4.0, 2.0] {
        sum = (1.0 + sum) * z * (-1.0 / (k * (k + 1.0)));
    }
    x + x * sum
}

/// Which particles take the place of which, so that each is there as often as its weight says (systematic resampling): those that are drawn stay where they
/// are, and come again in the places of those that are not. Weights are logarithms.
fn copies(mut weights: Vec<f64>, uniform: f32) -> Vec<(usize, usize)> {
    let largest = weights.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    weights.iter_mut().for_each(|weight| *weight = (*weight - largest).exp());
    let total: f64 = weights.iter().sum();
    let (mut sum, mut at, mut drawn) = (weights[0], 0, vec![0usize; weights.len()]);
    for i in 0..weights.len() {
        let place = (i as f64 + f64::from(uniform)) / weights.len() as f64 * total;
        while sum < place && at + 1 < weights.len() {
            at += 1;
            sum += weights[at];
        }
        drawn[at] += 1;
    }
    let again = drawn.iter().enumerate().flat_map(|(i, times)| std::iter::repeat_n(i, times.saturating_sub(1)));
    again.zip((0..drawn.len()).filter(|i| drawn[*i] == 0)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::super::super::complex::{Complex, inner_f64, squared_norm};
    use super::super::super::super::{Array, Codebook, CodebookConfig};
    use super::*;
    use crate::random::Random;

    const NOISE: f64 = 0.3;

    /// `-y^H K^-1 y - ln det K` of a covariance matrix.
    fn density(covariance: &[Complex], y: &[Complex]) -> f64 {
        let n = y.len();
        let (mut lower, mut solved, mut sum) = (covariance.to_vec(), y.to_vec(), 0.0);
        for i in 0..n {
            for j in 0..=i {
                let entry = (0..j).fold(lower[i * n + j], |rest, k| rest - lower[i * n + k] * lower[j * n + k].conjugate());
                lower[i * n + j] = if i == j { Complex(entry.0.sqrt(), 0.0) } else { entry.scaled(lower[j * n + j].0.recip()) };
            }
            let rest = (0..i).fold(solved[i], |rest, k| rest - lower[i * n + k] * solved[k]);
            solved[i] = rest.scaled(lower[i * n + i].0.recip());
            sum -= solved[i].power() + 2.0 * lower[i * n + i].0.ln();
        }
        sum
    }

    /// With fewer and with more measurements than a register has lanes, drawn, drawn anew by weights, and moved: what a particle's likelihood says is what the
    /// covariance of the measurements says at its directions.
    #[test]
    fn the_likelihood_is_that_of_the_covariance_matrix() {
        let [receive, transmit] = [Array::Ula { elements: 8 }, Array::Ula { elements: 16 }];
        for (steps, paths) in [(5, 1), (16, 3), (21, 4)] {
            let beams = |array: &Array, count, seed| Codebook::generate(&CodebookConfig::Random { count, seed }, array).unwrap();
            let (heard, swept) = (beams(&receive, steps, 1), beams(&transmit, 4, 2));
            let sent: Vec<usize> = (0..steps).map(|t| (3 * t + 1) % 4).collect();
            let mut y = vec![0.0; 2 * steps];
            Random::new(3).fill_normal(0, &mut y);
            let table = Responses::new(&receive, heard.beams());
            let mut values = vec![0.0; 2 * table.width()];
            (0..steps).for_each(|t| [values[t], values[table.width() + t]] = [y[2 * t], y[2 * t + 1]]);
            let problem = Problem {
                paths,
                power: 0.7,
                azimuth: 1.2,
                steps,
                heard: table,
                sent: Responses::new(&transmit, swept.beams()).of(&sent),
                values,
                energy: squared_norm(&y),
            };
            let (mut draws, mut work, level) = (Draws::new(Random::new(4)), Workspace::new(&problem), Level::new(NOISE));
            let mut particles = Particles::drawn(&problem, 2, &mut draws, &mut work);
            for step in 0..8 {
                let [arrival, departure] = [0, 1].map(|side| particles.directions(side, paths));
                weigh(&problem, &mut particles, level, &mut work);
                for (p, found) in particles.likelihood.as_flattened().iter().enumerate() {
                    let (mut at, mut covariance) = ([vec![0.0; 16], vec![0.0; 32]], vec![Complex::default(); steps * steps]);
                    for l in 0..paths {
                        receive.steering(f64::from(arrival[2 * (p * paths + l)]), 0.0, &mut at[0]);
                        transmit.steering(f64::from(departure[2 * (p * paths + l)]), 0.0, &mut at[1]);
                        let one = |t: usize| {
                            Complex::from(inner_f64(heard.beam(t), &at[0])) * Complex::from(inner_f64(&at[1], swept.beam(sent[t])))
                        };
                        let column: Vec<Complex> = (0..steps).map(one).collect();
                        for (i, entry) in covariance.iter_mut().enumerate() {
                            let product = column[i / steps] * column[i % steps].conjugate();
                            *entry = *entry - product.scaled(-problem.power);
                        }
                    }
                    (0..steps).for_each(|i| covariance[i * steps + i] = covariance[i * steps + i] - Complex(-NOISE, 0.0));
                    let y: Vec<Complex> = y.chunks_exact(2).map(|y| Complex(y[0].into(), y[1].into())).collect();
                    let want = density(&covariance, &y);
                    assert!(
                        (found - want).abs() < 2e-2 * (1.0 + want.abs()),
                        "{steps} measurements, {paths} paths, step {step}: {found} and {want}"
                    );
                }
                particles.resample(&problem, level, &mut draws, &mut work);
                particles.step(&problem, step % paths, level, &mut draws, &mut work);
            }
            assert!(particles.angles.as_flattened().iter().all(|angle| angle.abs() <= 1.2));
        }
    }

    #[test]
    fn sines_are_right_to_a_millionth() {
        for i in -3100..=3100 {
            let x = 1e-3 * i as f32;
            assert!((f64::from(sine(x)) - f64::from(x).sin()).abs() < 1e-6, "{x}");
        }
    }

    /// With weights 0, 1 and 3 of 4 of four particles at hand: one stays, one comes three times.
    #[test]
    fn particles_come_as_often_as_they_weigh() {
        let weights = [f64::NEG_INFINITY, 1f64.ln(), f64::NEG_INFINITY, 3f64.ln()];
        assert_eq!(copies(weights.to_vec(), 0.5), [(3, 0), (3, 2)]);
        assert_eq!(copies(vec![0.0; 5], 0.9), []);
    }
}

//! From what beams are made of to the channel. Names and complex numbers are as in the module above.

use crate::families::beam::complex::{inner, product};
use crate::families::beam::sparse::{LEAST, LEAST_PROBABILITY, LOGIT, STEPS, SparseChannel, Tables, beams};
use crate::families::beam::steering::element;
use crate::ops::add_into;
use crate::ops::simd::kernel;
use std::f32::consts::PI;

/// From the strongest pair of singular vectors and the paths that are told to the channel `[N, 2, M]` and, in their place, to the shares of the directions of departure.
pub(super) fn of_strongest(tables: &Tables, (channel, leaves): (&[f32], &mut [f32]), dfound: &[f32], dchannel: &mut [f32]) {
    let [n, m] = tables.antennas;
    let (dtold, dfirst) = dfound.split_at(3 * SparseChannel::TOLD);
    let (du_told, dv_told) = dfirst[..2 * (n + m)].split_at(2 * n);
    // Steps of the power method: what went in and what came out of each.
    let mut v = vec![vec![0.0; 2 * m]];
    beams::departing(tables, leaves, &mut v[0]);
    let (mut u, mut norms) = (vec![vec![0.0; 2 * n]; STEPS], Vec::new());
    for u in &mut u {
        let mut next = v[v.len() - 1].clone();
        norms.push(beams::ascend(channel, u, &mut next));
        v.push(next);
    }
    let mut unit = vec![0.0; 2 * n];
    beams::forth(channel, &v[STEPS], &mut unit);
    let strength = beams::norm(&unit);
    unit.iter_mut().for_each(|u| *u /= strength);

    let mut beam = vec![0.0; 2 * m];
    beams::tell(&v[STEPS], &[], 1.0, 1.0, &mut beam);
    let mut dbeam = dv_told.to_vec();
    of_split(&tables.steering[1], &beam, dtold, &mut dbeam);
    let (mut dv, mut du) = (of_told(&dbeam), of_told(du_told));
    of_unit(&unit, strength, &mut du);
    let (mut of_v, mut of_u) = (vec![0.0; 2 * m], vec![0.0; 2 * n]);
    add_outer(&du, &v[STEPS], dchannel);
    beams::back(channel, &du, &mut of_v);
    add_into(&mut dv, &of_v);
    for i in (0..STEPS).rev() {
        of_unit(&v[i + 1], norms[i], &mut dv);
        // v = H^H u
        add_outer(&u[i], &dv, dchannel);
        beams::forth(channel, &dv, &mut of_u);
        // u = H v
        add_outer(&of_u, &v[i], dchannel);
        beams::back(channel, &of_u, &mut dv);
    }
    for (leaves, b) in leaves.iter_mut().zip(tables.steering[1].chunks_exact(2 * m)) {
        *leaves = b.chunks_exact(2).enumerate().map(|(j, b)| b[0] * dv[j] + b[1] * dv[m + j]).sum();
    }
}

/// From the beams to receive the choices with and their logits to the channel.
pub(super) fn of_answers(tables: &Tables, channel: &[f32], dfound: &[f32], dchannel: &mut [f32]) {
    let ([n, m], count) = (tables.antennas, tables.choices());
    let (danswers, dlogits) = dfound.split_at(2 * n * count);
    let choices: Vec<Vec<f32>> = tables.choices.chunks_exact(2 * m).map(|f| (0..2 * m).map(|i| f[i % m * 2 + i / m]).collect()).collect();
    let arrives: Vec<Vec<f32>> = choices
        .iter()
        .map(|f| {
            let mut u = vec![0.0; 2 * n];
            beams::forth(channel, f, &mut u);
            u
        })
        .collect();
    let power: Vec<f32> = arrives.iter().map(|u: &Vec<f32>| u.iter().map(|u| u * u).sum()).collect();
    let total = power.iter().sum::<f32>() + LEAST as f32;
    let dshares: Vec<f32> =
        power.iter().zip(dlogits).map(|(power, d)| LOGIT as f32 * d / (power / total + LEAST_PROBABILITY as f32)).collect();
    let mean = dshares.iter().zip(&power).map(|(d, power)| d * power / total).sum::<f32>();
    for (i, (f, u)) in choices.iter().zip(&arrives).enumerate() {
        let norm = (power[i] + LEAST as f32).sqrt();
        let unit: Vec<f32> = u.iter().map(|u| u / norm).collect();
        let mut du = of_told(&danswers[2 * n * i..][..2 * n]);
        of_unit(&unit, norm, &mut du);
        let dpower = (dshares[i] - mean) / total;
        du.iter_mut().zip(u).for_each(|(du, u)| *du += 2.0 * dpower * u);
        add_outer(&du, f, dchannel);
    }
}

/// From a beam as it is told, side by side with a mean square of 1/2, to the vector of norm 1.
fn of_told(dbeam: &[f32]) -> Vec<f32> {
    let mut d = vec![0.0; dbeam.len()];
    beams::apart(dbeam, &mut d);
    let by = ((dbeam.len() / 2) as f32).sqrt();
    d.iter_mut().for_each(|d| *d *= by);
    d
}

/// From a vector of norm 1 to the one that was divided by its norm, in its place.
pub(super) fn of_unit(unit: &[f32], norm: f32, d: &mut [f32]) {
    let along: f32 = unit.iter().zip(&*d).map(|(x, d)| x * d).sum();
    d.iter_mut().zip(unit).for_each(|(d, x)| *d = (*d - along * x) / norm);
}

kernel! {
    /// `H += u v^H`.
    fn add_outer<S>(u: &'a [f32], v: &'a [f32], channel: &'a mut [f32]) {
        let (n, m) = (u.len() / 2, v.len() / 2);
        let (v_re, v_im) = v.split_at(m);
        for (i, row) in channel.chunks_exact_mut(2 * m).enumerate() {
            let ((re, im), [a, b]) = (row.split_at_mut(m), [u[i], u[n + i]]);
            for j in 0..m {
                re[j] += a * v_re[j] + b * v_im[j];
                im[j] += b * v_re[j] - a * v_im[j];
            }
        }
    }
}

/// From paths of a beam `[M, 2]` to the beam: of each path the sine of its angle and the parts of its gain.
fn of_split(grid: &[f32], beam: &[f32], dtold: &[f32], dbeam: &mut [f32]) {
    let (antennas, count) = (beam.len() / 2, grid.len() / beam.len());
    let (mut power, mut told) = (vec![0.0; count], vec![0.0; dtold.len()]);
    // What is left of the beam before each path.
    let mut rests = vec![beam.to_vec()];
    for path in told.chunks_exact_mut(3) {
        let mut rest = vec![0.0; beam.len()];
        beams::split(grid, &rests[rests.len() - 1], &mut rest, &mut power, path);
        rests.push(rest);
    }
    let mut drest = vec![0.0; beam.len()];
    for (k, (told, dtold)) in told.chunks_exact(3).zip(dtold.chunks_exact(3)).enumerate().rev() {
        let (rest, gain) = (&rests[k], [told[1], told[2]]);
        // rest -= gain e, and gain = e^H rest / M before that.
        let (mut dgain, mut dangle) = ([dtold[1], dtold[2]], dtold[0]);
        for (i, d) in drest.chunks_exact(2).enumerate() {
            let [cos, sin] = element(i, told[0]);
            let [re, im] = product([cos, -sin], [d[0], d[1]]);
            dgain = [dgain[0] - re, dgain[1] - im];
        }
        for (i, (d, x)) in drest.chunks_exact_mut(2).zip(rest.chunks_exact(2)).enumerate() {
            let e = element(i, told[0]);
            let [a, b] = product([-d[0], -d[1]], [gain[0], -gain[1]]);
            let [c, f] = product([dgain[0], -dgain[1]], [x[0], x[1]]);
            let de = [a + c / antennas as f32, b + f / antennas as f32];
            // e = exp(i pi n d): its derivative is i pi n e.
            dangle += PI * i as f32 * (de[1] * e[0] - de[0] * e[1]);
            let [re, im] = product(dgain, e);
            (d[0], d[1]) = (d[0] + re / antennas as f32, d[1] + im / antennas as f32);
        }
        let around = beams::highest(grid, rest, &mut power);
        let [before, at, behind] = around.map(|s| power[s]);
        let (curve, slope) = (2.0 * at - before - behind, behind - before);
        if curve > LEAST as f32 {
            let dangle = dangle * 2.0 / count as f32;
            let bent = 0.5 * slope / (curve * curve);
            for (s, d) in around.into_iter().zip([bent - 0.5 / curve, -2.0 * bent, bent + 0.5 / curve]) {
                let b = &grid[s * beam.len()..][..beam.len()];
                let by = inner(b, rest).map(|x| 2.0 * d * dangle * x);
                for (d, b) in drest.chunks_exact_mut(2).zip(b.chunks_exact(2)) {
                    let [re, im] = product(by, [b[0], b[1]]);
                    (d[0], d[1]) = (d[0] + re, d[1] + im);
                }
            }
        }
    }
    add_into(dbeam, &drest);
}

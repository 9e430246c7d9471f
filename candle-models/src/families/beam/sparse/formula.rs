//! The estimate in standard operators. A Hermitian matrix `[T, T]` is the symmetric one `[2 T, 2 T]` of its real and imaginary parts, whose inverse is
//! made by sweeps of one column after the other.

use super::{CERTAIN, DOUBT, GAIN, LEAST, LEAST_PROBABILITY, LOGARITHM, LOGIT, NEVER, NOISE, NOTHING, STEPS, SparseChannel};
use crate::exec::graph::{Graph, Operator, Value};
use crate::families::beam::user::{ANTENNA_SCALE, SNR_SCALE};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// Real and imaginary parts.
type Parts = [Value; 2];

/// `a b`, or `conj(a) b`, by a product that is bilinear.
fn times(graph: &mut Graph, conjugate: bool, [a, b]: Parts, [c, d]: Parts, product: &Operator) -> Parts {
    let mut of = |a, b| graph.node(product.clone(), &[a, b]);
    let (ac, bd, ad, bc) = (of(a, c), of(b, d), of(a, d), of(b, c));
    if conjugate { [graph.add(ac, bd), graph.sub(ad, bc)] } else { [graph.sub(ac, bd), graph.add(ad, bc)] }
}

fn squares(graph: &mut Graph, [re, im]: Parts) -> Value {
    let [re, im] = [re, im].map(|x| graph.mul(x, x));
    graph.add(re, im)
}

/// The sum over the axes behind the batch, which stay with length 1.
fn total(graph: &mut Graph, mut x: Value, axes: usize) -> Value {
    for _ in 0..axes {
        x = graph.of(Operator::ReduceSum { axis: 1 }, x);
    }
    graph.by_row(x, &vec![1; axes])
}

fn more(graph: &mut Graph, x: Value, by: f64) -> Value {
    let by = graph.float(by as f32);
    graph.add(x, by)
}

fn scaled(graph: &mut Graph, x: Value, by: f64) -> Value {
    let by = graph.float(by as f32);
    graph.mul(x, by)
}

/// Steering vectors `[A, N]` as cosines and sines of products of short constants: a direction is `(2 d - A) / A`, and a turn has `2 A` of
/// the integers that are multiplied. Whole turns are taken off before integers become angles, which f32 would otherwise round by several units of 1e-6.
fn steering(graph: &mut Graph, antennas: usize, directions: usize) -> Result<Parts> {
    let turn = (2 * directions) as f64;
    let direction = (0..directions).map(|d| 2.0 * d as f32 - directions as f32);
    let down = graph.constant(Tensor::from_iter(direction, &Device::Cpu)?.reshape((directions, 1))?);
    let across = graph.constant(Tensor::from_iter((0..antennas).map(|i| i as f32), &Device::Cpu)?.reshape((1, antennas))?);
    let places = graph.mul(down, across);
    let turns = scaled(graph, places, 1.0 / turn);
    let turns = graph.of(Operator::CastToInt, turns);
    let turns = graph.of(Operator::CastToFloat, turns);
    let whole = scaled(graph, turns, turn);
    let places = graph.sub(places, whole);
    let angles = scaled(graph, places, std::f64::consts::TAU / turn);
    Ok([Operator::Cos, Operator::Sin].map(|of| graph.of(of, angles)))
}

/// The unit matrix.
fn unit(graph: &mut Graph, size: usize) -> Result<Value> {
    let numbers = Tensor::from_iter((0..size).map(|i| i as f32), &Device::Cpu)?;
    let [down, across] = [(size, 1), (1, size)].map(|shape| Ok::<_, Error>(graph.constant(numbers.reshape(shape)?)));
    let equal = graph.node(Operator::Equal, &[down?, across?]);
    let equal = graph.of(Operator::CastToInt, equal);
    Ok(graph.of(Operator::CastToFloat, equal))
}

/// The inverse of the symmetric positive definite matrix `[size, size]` of every row, times -1.
fn swept(graph: &mut Graph, mut matrix: Value, unit: Value, size: usize) -> Value {
    let one = graph.float(1.0);
    for k in 0..size {
        let at = graph.of(Operator::Slice { axis: 0, start: k, len: 1 }, unit);
        let others = graph.sub(one, at);
        let row = graph.of(Operator::Slice { axis: 1, start: k, len: 1 }, matrix);
        let pivot = graph.of(Operator::Slice { axis: 2, start: k, len: 1 }, row);
        let row = graph.mul(row, others);
        let row = graph.sub(row, at);
        let column = graph.by_row(row, &[size, 1]);
        let row = graph.node(Operator::Div, &[row, pivot]);
        let product = graph.mul(column, row);
        let down = graph.of(Operator::Reshape(vec![size as i64, 1]), others);
        matrix = graph.mul(matrix, others);
        matrix = graph.mul(matrix, down);
        matrix = graph.sub(matrix, product);
    }
    matrix
}

/// `u = H v` and `v` of norm 1, by the power method; the norm of `u`.
fn climb(graph: &mut Graph, channel: Parts, mut v: Parts) -> (Parts, Parts, Value) {
    let product = &Operator::MatMul;
    let norm = |graph: &mut Graph, x: Parts| {
        let power = squares(graph, x);
        let power = total(graph, power, 2);
        let power = more(graph, power, LEAST);
        graph.of(Operator::Sqrt, power)
    };
    let turned = channel.map(|x| graph.of(Operator::Transpose(vec![0, 2, 1]), x));
    for _ in 0..STEPS {
        let u = times(graph, false, channel, v, product);
        v = times(graph, true, turned, u, product);
        let norm = norm(graph, v);
        v = v.map(|v| graph.node(Operator::Div, &[v, norm]));
    }
    let u = times(graph, false, channel, v, product);
    let strength = norm(graph, u);
    (u, v, strength)
}

/// The largest of `x` and a small number.
fn at_least(graph: &mut Graph, x: Value, least: f64) -> Value {
    let x = more(graph, x, -least);
    let x = graph.of(Operator::Relu, x);
    more(graph, x, least)
}

/// Paths of a beam `[M, 1]`, by matching pursuit among the steering vectors of a grid `[D, M]`: what is told of each, `[15]`.
fn split(graph: &mut Graph, grid: Parts, mut rest: Parts, [antennas, count]: [usize; 2]) -> Result<Value> {
    let across = |count: usize| Tensor::from_iter((0..count).map(|i| i as f32), &Device::Cpu)?.reshape((1, count));
    let [numbers, elements] = [across(count)?, across(antennas)?].map(|x| graph.constant(x));
    let slice = |graph: &mut Graph, x, start, len| graph.of(Operator::Slice { axis: 1, start, len }, x);
    let mut told = Vec::new();
    for _ in 0..SparseChannel::TOLD {
        let found = times(graph, true, grid, rest, &Operator::MatMul);
        let power = squares(graph, found);
        let power = graph.by_row(power, &[count]);
        let most = graph.of(Operator::ArgMax, power);
        let most = graph.of(Operator::CastToFloat, most);
        let most = graph.by_row(most, &[1]);
        let chosen = graph.node(Operator::Equal, &[most, numbers]);
        let chosen = graph.of(Operator::CastToInt, chosen);
        let chosen = graph.of(Operator::CastToFloat, chosen);
        let [before, behind] = [count - 1, 1].map(|start| {
            let parts = [slice(graph, power, start, count - start), slice(graph, power, 0, start)];
            graph.node(Operator::Concat { axis: 1 }, &parts)
        });
        let [before, at, behind] = [before, power, behind].map(|power| {
            let power = graph.mul(power, chosen);
            let power = graph.of(Operator::ReduceSum { axis: 1 }, power);
            graph.by_row(power, &[1])
        });
        let slope = graph.sub(behind, before);
        let slope = scaled(graph, slope, 0.5);
        let curve = graph.add(at, at);
        let curve = graph.sub(curve, before);
        let curve = graph.sub(curve, behind);
        let curve = at_least(graph, curve, LEAST);
        let between = graph.node(Operator::Div, &[slope, curve]);
        let direction = graph.add(most, between);
        let direction = scaled(graph, direction, 2.0 / count as f64);
        let direction = more(graph, direction, -1.0);
        let whole = more(graph, at, NOTHING * (antennas * antennas) as f64);
        let something = graph.node(Operator::Div, &[at, whole]);
        let direction = graph.mul(direction, something);
        let angles = graph.mul(direction, elements);
        let angles = scaled(graph, angles, std::f64::consts::PI);
        let b = [Operator::Cos, Operator::Sin].map(|of| {
            let b = graph.of(of, angles);
            graph.by_row(b, &[antennas, 1])
        });
        let gain = times(graph, true, b, rest, &Operator::Mul).map(|x| {
            let sum = total(graph, x, 2);
            scaled(graph, sum, 1.0 / antennas as f64)
        });
        let explained = times(graph, false, b, gain, &Operator::Mul);
        rest = [0, 1].map(|i| graph.sub(rest[i], explained[i]));
        told.push(direction);
        told.extend(gain.map(|x| graph.by_row(x, &[1])));
    }
    Ok(graph.node(Operator::Concat { axis: 1 }, &told))
}

/// The power of the noise at an SNR `[1, 1]`.
fn noise(graph: &mut Graph, snr: Value) -> Value {
    let level = graph.by_row(snr, &[1, 1]);
    let logarithm = scaled(graph, level, -0.1 * f64::from(SNR_SCALE) * std::f64::consts::LN_10);
    let [least, most] = NOISE.map(f64::ln);
    let logarithm = at_least(graph, logarithm, least);
    let most = graph.float(most as f32);
    let logarithm = graph.node(Operator::Min, &[logarithm, most]);
    graph.of(Operator::Exp, logarithm)
}

/// Squares of the real and imaginary parts `[2, grid]` added, `[1, grid]`.
fn squared(graph: &mut Graph, parts: Value, grid: usize) -> Value {
    let power = graph.mul(parts, parts);
    let power = graph.of(Operator::ReduceSum { axis: 1 }, power);
    graph.by_row(power, &[1, grid])
}

/// Paths that the transmitter is told, and the strongest pairs of singular vectors of the channel `[N, M]`.
fn strongest(graph: &mut Graph, op: &SparseChannel, (mut channel, leave): (Parts, Parts), leaves: Value) -> Result<Vec<Value>> {
    let ([n, m], departures) = (op.tables.antennas, op.tables.directions()[1]);
    let start = graph.by_row(leaves, &[1, departures]);
    let start = leave.map(|b| {
        let start = graph.node(Operator::MatMul, &[start, b]);
        graph.by_row(start, &[m, 1])
    });
    let mut found = Vec::new();
    let (u, v, strongest) = climb(graph, channel, start);
    let beam = v.map(|v| scaled(graph, v, (m as f64).sqrt()));
    found.push(split(graph, leave, beam, [m, departures])?);
    let mut tell = |graph: &mut Graph, parts: Parts, antennas: usize, by: Value| {
        let by = scaled(graph, by, (antennas as f64).sqrt());
        let parts = parts.map(|x| graph.mul(x, by));
        let joined = graph.node(Operator::Concat { axis: 2 }, &parts);
        found.push(graph.by_row(joined, &[2 * antennas]));
    };
    let one = graph.float(1.0);
    let per = graph.node(Operator::Div, &[one, strongest]);
    tell(graph, u, n, per);
    tell(graph, v, m, one);
    let across = v.map(|v| graph.by_row(v, &[1, m]));
    let explained = times(graph, true, across, u, &Operator::Mul);
    channel = [0, 1].map(|i| graph.sub(channel[i], explained[i]));
    let [re, im] = channel.map(|x| graph.of(Operator::ReduceSum { axis: 1 }, x));
    let start = [re, graph.of(Operator::Neg, im)].map(|x| graph.by_row(x, &[m, 1]));
    let (u, v, next) = climb(graph, channel, start);
    let share = graph.node(Operator::Div, &[next, strongest]);
    tell(graph, u, n, per);
    tell(graph, v, m, share);
    Ok(found)
}

/// The beams to receive the transmitter's choices with, and their logits.
fn answers(graph: &mut Graph, op: &SparseChannel, channel: Parts) -> Result<Vec<Value>> {
    let ([n, m], count) = (op.tables.antennas, op.tables.choices());
    let choices = Tensor::from_slice(&op.tables.choices, (count, m, 2), &Device::Cpu)?;
    let part = |i| Ok::<_, Error>(choices.narrow(2, i, 1)?.squeeze(2)?.t()?.contiguous()?);
    let choices = [part(0)?, part(1)?].map(|x| graph.constant(x));
    let answers = times(graph, false, channel, choices, &Operator::MatMul);
    let powers = squares(graph, answers);
    let powers = graph.of(Operator::ReduceSum { axis: 1 }, powers);
    let norms = graph.by_row(powers, &[1, count]);
    let norms = more(graph, norms, LEAST);
    let norms = graph.of(Operator::Sqrt, norms);
    let norms = scaled(graph, norms, 1.0 / (n as f64).sqrt());
    let answers = answers.map(|x| {
        let x = graph.node(Operator::Div, &[x, norms]);
        let x = graph.of(Operator::Transpose(vec![0, 2, 1]), x);
        graph.by_row(x, &[count, n, 1])
    });
    let answers = graph.node(Operator::Concat { axis: 3 }, &answers);
    let powers = graph.by_row(powers, &[count]);
    let whole = total(graph, powers, 1);
    let whole = more(graph, whole, LEAST);
    let shares = graph.node(Operator::Div, &[powers, whole]);
    let shares = more(graph, shares, LEAST_PROBABILITY);
    let logits = graph.of(Operator::Log, shares);
    Ok(vec![graph.by_row(answers, &[2 * n * count]), scaled(graph, logits, LOGIT)])
}

/// Measurements in real numbers: the parts of a vector stand one behind the other, and a pair of directions is two columns.
struct Measured {
    /// `[2 T, 1]`.
    y: Value,
    /// What a path of gain 1 would give, the columns of all pairs of directions in front of those turned by a quarter, `[2 T, 2 A D]`; the first half; and transposed.
    given: Value,
    straight: Value,
    given_turned: Value,
    /// The unit matrix `[2 T, 2 T]`.
    unit: Value,
    noise: Value,
    certainty: Value,
}

/// The pairs of directions that are near the one with the largest exponent `[1, A D]` among those that are near none of the places before: ones among zeros.
fn place(graph: &mut Graph, op: &SparseChannel, exponent: Value, places: &[Value]) -> Result<Value> {
    let [arrivals, departures] = op.tables.directions();
    let mut free = exponent;
    for place in places {
        let never = scaled(graph, *place, NEVER);
        free = graph.add(free, never);
    }
    let free = graph.by_row(free, &[arrivals * departures]);
    let best = graph.of(Operator::ArgMax, free);
    let best = graph.of(Operator::CastToFloat, best);
    let best = graph.by_row(best, &[1, 1]);
    let row = more(graph, best, 0.5);
    let row = scaled(graph, row, 1.0 / departures as f64);
    let row = graph.of(Operator::CastToInt, row);
    let row = graph.of(Operator::CastToFloat, row);
    let rows = scaled(graph, row, departures as f64);
    let column = graph.sub(best, rows);
    let width = op.pursuit.directions as f64;
    let mut near = |place: Value, count: usize, shape: [usize; 2]| {
        let numbers = graph.constant(Tensor::from_iter((0..count).map(|i| i as f32), &Device::Cpu)?.reshape(&shape)?);
        let apart = graph.sub(numbers, place);
        let around = [0.0, count as f64, -(count as f64)].map(|turn| {
            let apart = more(graph, apart, turn);
            graph.mul(apart, apart)
        });
        let least = around.into_iter().reduce(|least, x| graph.node(Operator::Min, &[least, x])).expect("three distances");
        // Of squares of integers: one or more where they are at most that of the width.
        let inside = graph.of(Operator::Neg, least);
        let inside = more(graph, inside, width * width + 1.0);
        let inside = graph.of(Operator::Relu, inside);
        let one = graph.float(1.0);
        Ok::<_, Error>(graph.node(Operator::Min, &[inside, one]))
    };
    let (near_row, near_column) = (near(row, arrivals, [arrivals, 1])?, near(column, departures, [1, departures])?);
    let both = graph.mul(near_row, near_column);
    Ok(graph.by_row(both, &[1, arrivals * departures]))
}

/// All steps, the first path being kept near the next place, if there are any: second moments `[1, A D]` and means `[2, A D]` of all paths, and what is left of the
/// measurements, times the inverse of the covariance.
fn pass(graph: &mut Graph, op: &SparseChannel, measured: &Measured, places: &mut Vec<Value>) -> Result<[Value; 3]> {
    let Measured { mut y, given, straight, given_turned, unit, noise, certainty } = *measured;
    let (pursuit, t) = (op.pursuit, op.tables.measurements());
    let grid: usize = op.tables.directions().iter().product();
    let mut moments: Vec<Option<Value>> = vec![None; pursuit.paths];
    let sum = |graph: &mut Graph, moments: &[Option<Value>]| {
        let known: Vec<Value> = moments.iter().copied().flatten().collect();
        known.into_iter().reduce(|sum, moments| graph.add(sum, moments))
    };
    let mut mean = y;
    for step in 0..pursuit.steps() {
        moments[pursuit.path(step)] = None;
        let gamma = sum(graph, &moments);
        let noise = more(graph, noise, pursuit.noise(0.0, step));
        let mut covariance = graph.mul(unit, noise);
        if let Some(gamma) = gamma {
            let each = graph.node(Operator::Concat { axis: 2 }, &[gamma, gamma]);
            let weighted = graph.mul(given, each);
            let explained = graph.node(Operator::MatMul, &[weighted, given_turned]);
            covariance = graph.add(covariance, explained);
        }
        let inverse = swept(graph, covariance, unit, 2 * t);
        // The sweeps gave the inverse times -1.
        let inverse = graph.of(Operator::Neg, inverse);
        let match_all = |graph: &mut Graph, y: Value| {
            let solved = graph.node(Operator::MatMul, &[inverse, y]);
            let found = graph.node(Operator::MatMul, &[given_turned, solved]);
            (solved, graph.by_row(found, &[2, grid]))
        };
        let (_, matched) = match_all(graph, y);
        let power = graph.node(Operator::MatMul, &[inverse, straight]);
        let power = graph.mul(power, straight);
        let power = graph.of(Operator::ReduceSum { axis: 1 }, power);
        let power = graph.by_row(power, &[1, grid]);
        let power = graph.of(Operator::Relu, power);
        let precision = more(graph, power, 1.0 / GAIN);
        let one = graph.float(1.0);
        let variance = graph.node(Operator::Div, &[one, precision]);
        let exponent = squared(graph, matched, grid);
        let exponent = graph.mul(exponent, variance);
        let exponent = graph.mul(exponent, certainty);
        let wide = graph.of(Operator::Log, variance);
        let wide = scaled(graph, wide, 0.5);
        let mut logits = graph.add(exponent, wide);
        if step == 0 && pursuit.places > 0 {
            let near = place(graph, op, exponent, places)?;
            places.push(near);
            let never = scaled(graph, near, -NEVER);
            let never = more(graph, never, NEVER);
            logits = graph.add(logits, never);
        }
        let share = graph.of(Operator::Softmax, logits);
        let gain = graph.mul(matched, variance);
        let moment = squared(graph, gain, grid);
        let moment = graph.add(moment, variance);
        moments[pursuit.path(step)] = Some(graph.mul(share, moment));
        mean = graph.mul(gain, share);
        if step + 1 == pursuit.steps() {
            let column = graph.by_row(mean, &[2 * grid, 1]);
            let explained = graph.node(Operator::MatMul, &[given, column]);
            let rest = graph.sub(y, explained);
            let (solved, before) = match_all(graph, rest);
            y = solved;
            if let Some(gamma) = gamma {
                let before = graph.mul(before, gamma);
                mean = graph.add(mean, before);
            }
        }
    }
    Ok([sum(graph, &moments).unwrap_or(noise), mean, y])
}

/// What the operation makes of rows.
pub(super) fn of(op: &SparseChannel, graph: &mut Graph, [x, snr]: [Value; 2]) -> Result<Value> {
    let (tables, product) = (&op.tables, &Operator::MatMul);
    let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
    let grid = arrivals * departures;
    let (arrive, leave) = (steering(graph, n, arrivals)?, steering(graph, m, departures)?);
    let [arrive_turned, leave_turned] = [arrive, leave].map(|table| table.map(|x| graph.of(Operator::Transpose(vec![1, 0]), x)));
    let beams = Tensor::from_slice(&tables.beams, (t, m, 2), &Device::Cpu)?;
    let part = |i| Ok::<_, Error>(beams.narrow(2, i, 1)?.squeeze(2)?.contiguous()?);
    let beams = [part(0)?, part(1)?].map(|x| graph.constant(x));
    let unit = unit(graph, 2 * t)?;
    let noise = noise(graph, snr);
    let doubt = scaled(graph, noise, 1.0 / DOUBT);
    let doubt = more(graph, doubt, 1.0);
    let certain = graph.float(CERTAIN as f32);
    let certainty = graph.node(Operator::Div, &[certain, doubt]);

    // The beams, each turned by the phase of what was received, so that every measurement is real.
    let x = graph.by_row(x, &[t, n, 2]);
    let parts = [0, 1].map(|start| {
        let part = graph.of(Operator::Slice { axis: 3, start, len: 1 }, x);
        graph.by_row(part, &[t, n])
    });
    let received = squares(graph, parts);
    let received = graph.of(Operator::ReduceSum { axis: 2 }, received);
    let received = more(graph, received, 1e-24);
    let y = graph.of(Operator::Sqrt, received);
    let y = graph.by_row(y, &[t, 1]);
    let w = parts.map(|part| graph.node(Operator::Div, &[part, y]));
    let y = scaled(graph, y, 1.0 / f64::from(ANTENNA_SCALE));
    let zero = graph.sub(y, y);
    let y = graph.node(Operator::Concat { axis: 1 }, &[y, zero]);
    let whole = graph.mul(y, y);
    let received = total(graph, whole, 2);
    let whole = more(graph, received, LEAST);
    let noise = match op.pursuit.unexplained {
        0.0 => noise,
        share => {
            let least = scaled(graph, received, share / t as f64);
            let lacking = graph.sub(least, noise);
            let lacking = graph.of(Operator::Relu, lacking);
            graph.add(noise, lacking)
        }
    };

    let seen = times(graph, true, w, arrive_turned, product).map(|x| graph.by_row(x, &[t, arrivals, 1]));
    let sent = times(graph, true, beams, leave_turned, product);
    let sent = sent.map(|x| graph.of(Operator::Reshape(vec![t as i64, 1, departures as i64]), x));
    let [re, im] = times(graph, true, sent, seen, &Operator::Mul).map(|x| graph.by_row(x, &[t, grid]));
    let less = graph.of(Operator::Neg, im);
    let straight = graph.node(Operator::Concat { axis: 1 }, &[re, im]);
    let crossed = graph.node(Operator::Concat { axis: 1 }, &[less, re]);
    let given = graph.node(Operator::Concat { axis: 2 }, &[straight, crossed]);
    let given_turned = graph.of(Operator::Transpose(vec![0, 2, 1]), given);

    let measured = Measured { y, given, straight, given_turned, unit, noise, certainty };
    let mut places = Vec::new();
    let mut found = Vec::new();
    for _ in 0..op.pursuit.starts() {
        let [gamma, mean, rest] = pass(graph, op, &measured, &mut places)?;
        let left = graph.mul(rest, rest);
        found.push([gamma, mean, total(graph, left, 2)]);
    }
    let together = found.into_iter().reduce(|sum, x| [0, 1, 2].map(|i| graph.add(sum[i], x[i]))).expect("a pass or more");
    let [gamma, mean, left] =
        if op.pursuit.starts() == 1 { together } else { together.map(|x| scaled(graph, x, 1.0 / op.pursuit.starts() as f64)) };
    let left = graph.node(Operator::Div, &[left, whole]);
    let left = graph.mul(left, noise);
    let left = graph.mul(left, noise);
    let left = graph.by_row(left, &[1]);
    let mean = [0, 1].map(|start| {
        let part = graph.of(Operator::Slice { axis: 1, start, len: 1 }, mean);
        graph.by_row(part, &[arrivals, departures])
    });
    let conjugate = [leave[0], graph.of(Operator::Neg, leave[1])];
    let by_arrival = times(graph, false, mean, conjugate, product);
    let channel = times(graph, false, arrive_turned, by_arrival, product);

    let gamma = graph.by_row(gamma, &[arrivals, departures]);
    let whole = total(graph, gamma, 2);
    let whole = more(graph, whole, LEAST);
    let shares = graph.node(Operator::Div, &[gamma, whole]);
    let [arrives, leaves] = [2, 1].map(|axis| graph.of(Operator::ReduceSum { axis }, shares));
    let mut found = if tables.choices.is_empty() { strongest(graph, op, (channel, leave), leaves)? } else { answers(graph, op, channel)? };
    found.push(left);
    for p in [arrives, leaves] {
        let p = more(graph, p, LEAST_PROBABILITY);
        let logarithm = graph.of(Operator::Log, p);
        let said = scaled(graph, logarithm, LOGARITHM);
        found.push(more(graph, said, 1.0));
    }
    Ok(graph.node(Operator::Concat { axis: 1 }, &found))
}

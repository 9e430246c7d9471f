//! The search in standard operators.

use super::{FINE, LEAST, LEAST_PROBABILITY, LOGARITHM, MISFIT, Pursuit, SHARPNESS, UNSEEN, WEAK};
use crate::exec::graph::{Graph, Operator, Value};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// Real and imaginary parts.
type Complex = [Value; 2];

/// `a b`, or `conj(a) b`, by a product that is bilinear.
fn times(graph: &mut Graph, conjugate: bool, [a, b]: Complex, [c, d]: Complex, product: &Operator) -> Complex {
    let mut of = |a, b| graph.node(product.clone(), &[a, b]);
    let (ac, bd, ad, bc) = (of(a, c), of(b, d), of(a, d), of(b, c));
    if conjugate { [graph.add(ac, bd), graph.sub(ad, bc)] } else { [graph.sub(ac, bd), graph.add(ad, bc)] }
}

fn squares(graph: &mut Graph, [re, im]: Complex) -> Value {
    let [re, im] = [re, im].map(|x| graph.mul(x, x));
    graph.add(re, im)
}

/// The sum over the last of `axes` axes behind the batch, which stays with length 1.
fn total(graph: &mut Graph, x: Value, axes: &[usize]) -> Value {
    let sum = graph.of(Operator::ReduceSum { axis: axes.len() + 1 }, x);
    graph.by_row(sum, &[axes, &[1]].concat())
}

fn more(graph: &mut Graph, x: Value, by: f64) -> Value {
    let by = graph.float(by as f32);
    graph.add(x, by)
}

fn scaled(graph: &mut Graph, x: Value, by: f64) -> Value {
    let by = graph.float(by as f32);
    graph.mul(x, by)
}

/// Steering vectors `[2 N, N]` as cosines and sines of products of short constants: a direction is `(d - N) / N`.
fn steering(graph: &mut Graph, antennas: usize) -> Result<Complex> {
    let (n, directions) = (antennas as i64, (FINE * antennas) as i64);
    let numbers = |from: i64, to: i64, shape: (usize, usize)| Tensor::from_iter((from..to).map(|i| i as f32), &Device::Cpu)?.reshape(shape);
    let [down, across] = [numbers(-n, directions - n, (FINE * antennas, 1))?, numbers(0, n, (1, antennas))?].map(|x| graph.constant(x));
    let places = graph.mul(down, across);
    let angles = scaled(graph, places, std::f64::consts::PI / n as f64);
    Ok([Operator::Cos, Operator::Sin].map(|of| graph.of(of, angles)))
}

/// What the operation makes of rows.
pub(super) fn of(op: &Pursuit, graph: &mut Graph, x: Value) -> Result<Value> {
    let (tables, product) = (&op.tables, &Operator::MatMul);
    let ([n, m], [arrivals, departures], t) = (tables.antennas, tables.directions(), tables.measurements());
    let (arrive, leave) = (steering(graph, n)?, steering(graph, m)?);
    let [arrive_turned, leave_turned] = [arrive, leave].map(|table| table.map(|x| graph.of(Operator::Transpose(vec![1, 0]), x)));
    let beams = Tensor::from_slice(&tables.beams, (t, m, 2), &Device::Cpu)?;
    let part = |i| Ok::<_, Error>(beams.narrow(2, i, 1)?.squeeze(2)?.contiguous()?);
    let beams = [part(0)?, part(1)?].map(|x| graph.constant(x));
    let beams_turned = beams.map(|x| graph.of(Operator::Transpose(vec![1, 0]), x));
    // Its conjugate, which the search needs.
    let sent = times(graph, true, beams, leave_turned, product);

    let x = graph.by_row(x, &[t, n, 2]);
    let parts = [0, 1].map(|start| {
        let part = graph.of(Operator::Slice { axis: 3, start, len: 1 }, x);
        graph.by_row(part, &[t, n])
    });
    let received = squares(graph, parts);
    let received = total(graph, received, &[t]);
    let received = more(graph, received, 1e-24);
    let y = graph.of(Operator::Sqrt, received);
    let w = parts.map(|part| graph.node(Operator::Div, &[part, y]));
    let seen = times(graph, true, w, arrive_turned, product).map(|x| graph.of(Operator::Transpose(vec![0, 2, 1]), x));
    let (by_arrival, by_departure) = (squares(graph, seen), squares(graph, sent));
    let power = graph.node(Operator::MatMul, &[by_arrival, by_departure]);
    let floor = graph.by_row(power, &[arrivals * departures]);
    let floor = graph.of(Operator::ReduceMean, floor);
    let floor = scaled(graph, floor, UNSEEN);
    let floor = more(graph, floor, LEAST);
    let floor = graph.by_row(floor, &[1, 1]);
    let power = graph.add(power, floor);

    let y = graph.by_row(y, &[t]);
    let mut left = [y, graph.sub(y, y)];
    let whole = squares(graph, left);
    let whole = total(graph, whole, &[]);
    let whole = more(graph, whole, LEAST);
    let mut found = Vec::with_capacity(5 * op.paths);
    for _ in 0..op.paths {
        let energy = squares(graph, left);
        let energy = total(graph, energy, &[]);
        let energy = more(graph, energy, LEAST);
        let energy = graph.by_row(energy, &[1, 1]);
        let e = left.map(|e| graph.by_row(e, &[1, t]));
        let given = times(graph, true, seen, e, &Operator::Mul);
        let matched = times(graph, false, given, sent, product);
        let matched = squares(graph, matched);
        let matched = graph.node(Operator::Div, &[matched, power]);
        let explained = graph.node(Operator::Div, &[matched, energy]);
        let misfit = scaled(graph, explained, -1.0);
        let misfit = more(graph, misfit, 1.0);
        let misfit = graph.of(Operator::Relu, misfit);
        let misfit = more(graph, misfit, MISFIT);
        let logarithm = graph.of(Operator::Log, misfit);
        let logarithm = scaled(graph, logarithm, -f64::from(SHARPNESS));
        let p = graph.by_row(logarithm, &[arrivals * departures]);
        let p = graph.of(Operator::Softmax, p);
        let p = graph.by_row(p, &[arrivals, departures]);
        let arrives = graph.of(Operator::ReduceSum { axis: 2 }, p);
        let leaves = graph.of(Operator::ReduceSum { axis: 1 }, p);
        let u = arrive.map(|a| graph.node(Operator::MatMul, &[arrives, a]));
        let v = leave.map(|b| graph.node(Operator::MatMul, &[leaves, b]));
        let over = u.map(|u| graph.by_row(u, &[1, n]));
        let at = times(graph, true, w, over, &Operator::Mul).map(|x| graph.of(Operator::ReduceSum { axis: 2 }, x));
        let from = times(graph, true, v, beams_turned, product);
        let g = times(graph, false, at, from, &Operator::Mul);
        let size = squares(graph, g);
        let size = total(graph, size, &[]);
        let size = more(graph, size, WEAK);
        let gain = times(graph, true, g, left, &Operator::Mul).map(|x| {
            let sum = total(graph, x, &[]);
            graph.node(Operator::Div, &[sum, size])
        });
        let explained = times(graph, false, g, gain, &Operator::Mul);
        left = [graph.sub(left[0], explained[0]), graph.sub(left[1], explained[1])];
        let path = times(graph, false, u, gain, &Operator::Mul);
        for (parts, antennas) in [(path, n), (v, m)] {
            let parts = parts.map(|x| graph.by_row(x, &[antennas, 1]));
            let joined = graph.node(Operator::Concat { axis: 2 }, &parts);
            found.push(graph.by_row(joined, &[2 * antennas]));
        }
        let rest = squares(graph, left);
        let rest = total(graph, rest, &[]);
        found.push(graph.node(Operator::Div, &[rest, whole]));
        for p in [arrives, leaves] {
            let p = more(graph, p, LEAST_PROBABILITY);
            let logarithm = graph.of(Operator::Log, p);
            let said = scaled(graph, logarithm, LOGARITHM);
            found.push(more(graph, said, 1.0));
        }
    }
    Ok(graph.node(Operator::Concat { axis: 1 }, &found))
}

use super::*;
use crate::exec::tensors::TensorExecutor;
use crate::ops::check::{normal, refuses};
use crate::tensors::NamedTensors;

/// Random unit-norm beams of so many antennas, `[T, N, 2]`.
fn beams(name: &str, measurements: usize, antennas: usize) -> Vec<f32> {
    let mut beams = normal(name, &[measurements * antennas * 2]).to_vec1::<f32>().unwrap();
    for beam in beams.chunks_exact_mut(2 * antennas) {
        let norm = beam.iter().map(|x| x * x).sum::<f32>().sqrt();
        beam.iter_mut().for_each(|x| *x /= norm);
    }
    beams
}

/// A path: its gain, and the numbers of the directions where it arrives and leaves, also between those of the grid.
type Path = ([f64; 2], f64, f64);

/// `a^H b` of complex numbers side by side.
fn inner(a: &[f64], b: &[f64]) -> [f64; 2] {
    let pairs = a.chunks_exact(2).zip(b.chunks_exact(2));
    pairs.fold([0.0, 0.0], |sum, (a, b)| [sum[0] + a[0] * b[0] + a[1] * b[1], sum[1] + a[0] * b[1] - a[1] * b[0]])
}

fn response(antennas: usize, direction: f64) -> Vec<f64> {
    let u = 2.0 * direction / (FINE * antennas) as f64 - 1.0;
    (0..antennas).map(|n| std::f64::consts::PI * n as f64 * u).flat_map(|phase| [phase.cos(), phase.sin()]).collect()
}

fn times(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// `y_t w_t` without noise.
fn measured(paths: &[Path], receive: &[f32], transmit: &[f32], [n, m]: [usize; 2]) -> Vec<f32> {
    let wide = |beam: &[f32]| beam.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let beams = receive.chunks_exact(2 * n).zip(transmit.chunks_exact(2 * m));
    let row = beams.flat_map(|(w, f)| {
        let (w, f) = (wide(w), wide(f));
        let of = |(gain, arrives, leaves): &Path| times(*gain, times(inner(&w, &response(n, *arrives)), inner(&response(m, *leaves), &f)));
        let y = paths.iter().map(of).fold([0.0, 0.0], |sum, y| [sum[0] + y[0], sum[1] + y[1]]);
        w.chunks_exact(2).flat_map(|w| times(y, [w[0], w[1]])).collect::<Vec<_>>()
    });
    row.map(|x| x as f32).collect()
}

fn reference(op: &Pursuit, x: &[f32], dtype: DType) -> Vec<f64> {
    let rows = x.len() / op.inputs();
    let x = Tensor::from_slice(x, (rows, op.inputs()), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
    let (inputs, resets) = (NamedTensors::new(), vec![false; rows]);
    let mut executor = TensorExecutor::new(&inputs, &resets, Vec::new(), &Device::Cpu);
    let y = executor.reference(op, &[&x], &[] as &[&Indices], &[]).unwrap().into_floats().unwrap();
    y.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn forward(op: &Pursuit, x: &[f32]) -> Vec<f32> {
    let mut y = vec![9.0; op.outputs()];
    op.forward(&[x], &mut y);
    y
}

#[test]
fn the_search_is_the_reference() {
    for (antennas, measurements, paths) in [([1, 1], 1, 1), ([2, 3], 4, 2), ([16, 32], 16, 3), ([5, 9], 7, 2)] {
        let op = Pursuit::new(paths, antennas, &beams("transmit", measurements, antennas[1])).unwrap();
        for row in ["a", "b"] {
            let x = normal(row, &[op.inputs()]).to_vec1::<f32>().unwrap();
            let found = forward(&op, &x);
            for (i, (found, expected)) in found.iter().zip(reference(&op, &x, DType::F64)).enumerate() {
                assert!((f64::from(*found) - expected).abs() < 2e-3 * (1.0 + expected.abs()), "{antennas:?} {i}: {found} {expected}");
            }
        }
        refuses(&op, &[op.inputs() + 1]);
    }
}

/// The directions of two paths on the grid, and the power that is left when they are explained.
#[test]
fn it_finds_the_paths_of_a_channel() {
    let (antennas, t) = ([8, 12], 24);
    let (receive, transmit) = (beams("receive", t, 8), beams("transmit", t, 12));
    let op = Pursuit::new(2, antennas, &transmit).unwrap();
    let paths = [([2.0, 1.0], 3.0, 17.0), ([-0.5, 0.8], 11.0, 6.0)];
    let y = forward(&op, &measured(&paths, &receive, &transmit, antennas));
    for (found, (_, arrives, leaves)) in y.chunks_exact(op.each()).zip(&paths) {
        let said = &found[2 * (8 + 12) + 1..];
        let most = |p: &[f32]| (0..p.len()).max_by(|a, b| p[*a].total_cmp(&p[*b])).unwrap() as f64;
        assert_eq!([most(&said[..16]), most(&said[16..])], [*arrives, *leaves]);
    }
    let left = |k: usize| y[k * op.each() + 2 * (8 + 12)];
    assert!(left(0) < 0.3 && left(1) < 0.02, "{} {}", left(0), left(1));
}

/// A path between four pairs of directions of the grid is taken for one in between: its neighbours are likely and no others, and most of it is explained.
#[test]
fn a_path_between_the_directions_is_explained() {
    let (antennas, t) = ([8, 12], 24);
    let (receive, transmit) = (beams("receive", t, 8), beams("transmit", t, 12));
    let op = Pursuit::new(1, antennas, &transmit).unwrap();
    let y = forward(&op, &measured(&[([1.0, 0.0], 4.5, 9.5)], &receive, &transmit, antennas));
    let (left, said) = (y[2 * (8 + 12)], &y[2 * (8 + 12) + 1..]);
    let likely = |said: &[f32]| said.iter().map(|log| (f64::from(log - 1.0) / LOGARITHM).exp()).sum::<f64>();
    let [arrives, leaves] = [likely(&said[4..6]), likely(&said[16 + 9..16 + 11])];
    assert!(arrives > 0.9 && leaves > 0.9 && left < 0.4, "{arrives} {leaves} {left}");
}

/// Measurements that were not made change nothing, and without any there is no path and no number that is none.
#[test]
fn what_was_not_measured_says_nothing() {
    let (antennas, t) = ([4, 6], 8);
    let (receive, transmit) = (beams("receive", t, 4), beams("transmit", t, 6));
    let op = Pursuit::new(2, antennas, &transmit).unwrap();
    let mut x = measured(&[([1.0, 0.5], 2.0, 5.0)], &receive, &transmit, antennas);
    x[5 * 8..].fill(0.0);
    let fewer = Pursuit::new(2, antennas, &transmit[..5 * 12]).unwrap();
    for (found, expected) in forward(&op, &x).iter().zip(forward(&fewer, &x[..5 * 8])) {
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }
    let nothing = forward(&op, &vec![0.0; op.inputs()]);
    assert!(nothing.iter().all(|x| x.is_finite()) && nothing[..8] == [0.0; 8], "{nothing:?}");
    assert!(reference(&op, &vec![0.0; op.inputs()], DType::F32).iter().all(|x| x.is_finite()));
}

#[test]
fn what_cannot_be_searched_is_refused() {
    let some = [0.5; 12];
    for (paths, antennas, beams) in
        [(0, [2, 3], &some[..]), (1, [0, 3], &some), (1, [2, 0], &some), (1, [2, 3], &some[..0]), (1, [2, 3], &some[..7])]
    {
        assert!(Pursuit::new(paths, antennas, beams).is_err(), "{paths} {antennas:?}");
    }
}

use super::*;
use crate::exec::graph::Tables;
use crate::exec::program::{Output, Program, Recorder};
use crate::exec::tensors::TensorExecutor;
use crate::exec::{Executor, Target};
use crate::ops::check::{normal, refuses};
use crate::signature::{Signature, TensorSpec};
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

/// The first so many of random beams, over and over: `[T, N, 2]`.
fn swept(differing: usize, measurements: usize, antennas: usize) -> Vec<f32> {
    beams("transmit", differing, antennas).repeat(measurements.div_ceil(differing))[..measurements * antennas * 2].to_vec()
}

fn pursuit(paths: usize, again: usize, directions: usize) -> Pursuit {
    Pursuit { paths, again, directions, places: 0, unexplained: 0.0 }
}

fn from(places: usize, pursuit: Pursuit) -> Pursuit {
    Pursuit { places, ..pursuit }
}

fn leaving(unexplained: f64, pursuit: Pursuit) -> Pursuit {
    Pursuit { unexplained, ..pursuit }
}

/// A path: its gain, and the numbers of the directions where it arrives and leaves on grids of two for each antenna, also between those.
type Path = ([f64; 2], f64, f64);

/// `a^H b` of complex numbers side by side.
fn inner(a: &[f64], b: &[f64]) -> [f64; 2] {
    let pairs = a.chunks_exact(2).zip(b.chunks_exact(2));
    pairs.fold([0.0, 0.0], |sum, (a, b)| [sum[0] + a[0] * b[0] + a[1] * b[1], sum[1] + a[0] * b[1] - a[1] * b[0]])
}

fn response(antennas: usize, direction: f64) -> Vec<f64> {
    let u = direction / antennas as f64 - 1.0;
    (0..antennas).map(|n| std::f64::consts::PI * n as f64 * u).flat_map(|phase| [phase.cos(), phase.sin()]).collect()
}

fn times(a: [f64; 2], b: [f64; 2]) -> [f64; 2] {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

/// `2.4 y_t w_t` without noise.
fn measured(paths: &[Path], receive: &[f32], transmit: &[f32], [n, m]: [usize; 2]) -> Vec<f32> {
    let wide = |beam: &[f32]| beam.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
    let beams = receive.chunks_exact(2 * n).zip(transmit.chunks_exact(2 * m));
    let row = beams.flat_map(|(w, f)| {
        let (w, f) = (wide(w), wide(f));
        let of = |(gain, arrives, leaves): &Path| times(*gain, times(inner(&w, &response(n, *arrives)), inner(&response(m, *leaves), &f)));
        let y = paths.iter().map(of).fold([0.0, 0.0], |sum, y| [sum[0] + y[0], sum[1] + y[1]]);
        w.chunks_exact(2).flat_map(|w| times(y, [2.4 * w[0], 2.4 * w[1]])).collect::<Vec<_>>()
    });
    row.map(|x| x as f32).collect()
}

fn reference(op: &SparseChannel, x: &[f32], snr: f32) -> Vec<f64> {
    let wide = |x: &[f32]| Tensor::from_slice(x, (1, x.len()), &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
    let (inputs, resets) = (NamedTensors::new(), [false]);
    let mut executor = TensorExecutor::new(&inputs, &resets, Vec::new(), &Device::Cpu);
    let y = executor.reference(op, &[&wide(x), &wide(&[snr])], &[] as &[&Indices], &[]).unwrap().into_floats().unwrap();
    y.flatten_all().unwrap().to_vec1().unwrap()
}

fn forward(op: &SparseChannel, x: &[f32], snr: f32) -> Vec<f32> {
    let mut y = vec![9.0; op.outputs()];
    op.forward(&[x, &[snr]], &mut y);
    y
}

/// The formula, evaluated.
fn formula(op: &SparseChannel, x: &[f32], snr: f32) -> Vec<f32> {
    let signature = Signature {
        inputs: vec![TensorSpec::f32("x", &[op.inputs()]), TensorSpec::f32("snr", &[1])],
        outputs: vec![TensorSpec::f32("y", &[op.outputs()])],
        state: Vec::new(),
    };
    let record = |recorder: &mut Recorder| {
        let (x, snr) = (recorder.input("x")?, recorder.input("snr")?);
        Ok(vec![Output::Floats(recorder.apply(op.clone(), &[&x, &snr])?)])
    };
    let graph = Graph::of_program(&Program::new(&signature, Target::Cpu, record).unwrap(), [], Tables::AsStored).unwrap();
    let tensor = |name: &str, x: &[f32]| (name.to_owned(), Tensor::from_slice(x, (1, x.len()), &Device::Cpu).unwrap());
    let (found, _) = graph.step(&[tensor("x", x), tensor("snr", &[snr])].into_iter().collect(), &NamedTensors::new()).unwrap();
    found.get("y").unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn close(name: &str, found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{name}");
    for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < tolerance * (1.0 + expected.abs()), "{name} {i}: {found} {expected}");
    }
}

/// Of measurements that are noise and of those of a channel, at SNRs within and beyond the range that is reckoned with, for either kind of transmitter.
#[test]
fn rows_and_the_formula_are_the_reference() {
    for (antennas, t, differing, pursuit) in [
        ([1, 3], 2, 2, pursuit(1, 0, 2)),
        ([2, 3], 4, 1, pursuit(2, 2, 1)),
        ([3, 2], 4, 4, pursuit(1, 1, 3)),
        ([8, 16], 16, 16, pursuit(3, 0, 2)),
        ([8, 16], 16, 8, pursuit(3, 2, 3)),
        ([8, 16], 16, 8, from(3, leaving(0.05, pursuit(3, 2, 3)))),
        ([4, 9], 7, 7, from(2, pursuit(2, 0, 1))),
        ([5, 9], 7, 3, pursuit(6, 1, 2)),
    ] {
        let (receive, transmit) = (beams("receive", t, antennas[0]), swept(differing, t, antennas[1]));
        for choices in [Vec::new(), beams("choices", 5, antennas[1])] {
            let op = SparseChannel::new(pursuit, antennas, &transmit, &choices).unwrap();
            let two = [([2.0, 1.0], 0.7, 1.1), ([-0.5, 0.8], 1.0, 0.3)];
            for x in [normal("a", &[op.inputs()]).to_vec1::<f32>().unwrap(), measured(&two, &receive, &transmit, antennas)] {
                for snr in [-2.0, -0.3, 0.0, 0.4, 3.0] {
                    let name = format!("{antennas:?}, {:?}, {} choices, {snr}", op.pursuit, op.choices());
                    let expected = reference(&op, &x, snr);
                    close(&name, &forward(&op, &x, snr), &expected, 2e-3);
                    close(&format!("formula of {name}"), &formula(&op, &x, snr), &expected, 2e-3);
                }
            }
            refuses(&op, &[op.inputs() + 1, 1]);
            refuses(&op, &[op.inputs(), 2]);
        }
    }
}

/// To the bit, and the inverse.
#[test]
fn an_inverse_is_hermitian() {
    // Two vectors and noise a thousandth as strong.
    let t = 16;
    let vectors = normal("inverse", &[2, 2 * t]).to_vec2::<f32>().unwrap();
    let mut packed = vec![0.0; t * t];
    for vector in &vectors {
        let mut own = vec![0.0; t * t];
        hermitian::outer(vector, &mut own);
        packed.iter_mut().zip(own).for_each(|(sum, x)| *sum += x);
    }
    let (mut matrix, mut row) = (vec![0.0; 2 * t * t], vec![0.0; 2 * t]);
    hermitian::unpack(&packed, 0.01, &mut matrix, t);
    let original = matrix.clone();
    hermitian::invert(&mut matrix, &mut row, t);
    let at = |matrix: &[f32], i: usize, j: usize| [matrix[i * t + j], matrix[t * t + i * t + j]];
    for i in 0..t {
        for j in 0..t {
            let ([a, b], [c, d]) = (at(&matrix, i, j), at(&matrix, j, i));
            assert_eq!([a, b], [c, -d], "{i} {j}");
            let wide = |x: [f32; 2]| x.map(f64::from);
            let product =
                (0..t).map(|k| times(wide(at(&original, i, k)), wide(at(&matrix, k, j)))).fold([0.0; 2], |s, x| [s[0] + x[0], s[1] + x[1]]);
            assert!((product[0] - f64::from(u8::from(i == j))).abs() < 1e-2 && product[1].abs() < 1e-2, "{i} {j}: {product:?}");
        }
    }
}

/// The vectors of a channel of one path are the steering vectors of its directions, between those of the grid the mean of two, and its directions have
/// most of the power.
#[test]
fn the_channel_of_a_path_is_found() {
    let (antennas, t) = ([8, 12], 24);
    let (receive, transmit) = (beams("receive", t, 8), beams("transmit", t, 12));
    let op = SparseChannel::new(pursuit(1, 0, 2), antennas, &transmit, &[]).unwrap();
    for (arrives, leaves, least) in [(3.0, 17.0, 0.98), (4.5, 9.5, 0.75)] {
        let all = forward(&op, &measured(&[([1.0, 0.4], arrives, leaves)], &receive, &transmit, antennas), 0.5);
        let (told, y) = all.split_at(op.told());
        assert!((f64::from(told[0]) - (2.0 * leaves / 24.0 - 1.0)).abs() < 0.02 && told[1].hypot(told[2]) > 0.98, "{leaves}: {told:?}");
        for (found, (antennas, direction)) in [(&y[..16], (8, arrives)), (&y[16..40], (12, leaves))] {
            let found: Vec<f64> = found.iter().map(|x| f64::from(*x)).collect();
            let [re, im] = inner(&response(antennas, direction), &found);
            let share = (re * re + im * im) / (antennas * antennas) as f64;
            assert!(share > least, "{direction}: {share}");
        }
        let shares: Vec<f64> = y[81..].iter().map(|said| (f64::from(said - 1.0) / LOGARITHM).exp()).collect();
        for (shares, direction) in [(&shares[..16], arrives), (&shares[16..], leaves)] {
            let near: f64 = shares.iter().enumerate().filter(|(i, _)| (*i as f64 - direction).abs() < 1.0).map(|(_, share)| share).sum();
            assert!(near > 0.9, "{direction}: {shares:?}");
        }
        assert!(f64::from(y[80]) < 1.2 - least, "{}", y[80]);
    }
}

/// Where nothing is likely but near one place, it makes no difference to begin there alone.
#[test]
fn the_only_place_of_a_path_is_where_it_is_found() {
    let (antennas, t) = ([8, 12], 24);
    let (receive, transmit) = (beams("receive", t, 8), beams("transmit", t, 12));
    let x = measured(&[([1.0, 0.4], 3.0, 17.0), ([-0.3, 0.3], 11.0, 6.0)], &receive, &transmit, antennas);
    for choices in [Vec::new(), beams("choices", 5, 12)] {
        let of = |pursuit| forward(&SparseChannel::new(pursuit, antennas, &transmit, &choices).unwrap(), &x, 0.5);
        let everywhere: Vec<f64> = of(pursuit(2, 1, 2)).into_iter().map(f64::from).collect();
        close("near the place", &of(from(1, pursuit(2, 1, 2))), &everywhere, 5e-3);
    }
}

/// Measurements that were not made change nothing, and without any there is no channel and no number that is none.
#[test]
fn what_was_not_measured_says_nothing() {
    let (antennas, t) = ([4, 6], 12);
    let (receive, transmit) = (beams("receive", t, 4), beams("transmit", t, 6));
    let op = SparseChannel::new(pursuit(2, 0, 2), antennas, &transmit, &[]).unwrap();
    let mut x = measured(&[([1.0, 0.5], 2.0, 5.0)], &receive, &transmit, antennas);
    x[9 * 8..].fill(0.0);
    let fewer = SparseChannel::new(op.pursuit, antennas, &transmit[..9 * 12], &[]).unwrap();
    let expected: Vec<f64> = forward(&fewer, &x[..9 * 8], 0.2).into_iter().map(f64::from).collect();
    close("what was measured", &forward(&op, &x, 0.2), &expected, 1e-4);
    let nothing = vec![0.0; op.inputs()];
    for found in [forward(&op, &nothing, 0.2), formula(&op, &nothing, 0.2)] {
        close("nothing", &found, &reference(&op, &nothing, 0.2), 1e-5);
        assert_eq!(found[op.told()..][..20], [0.0; 20]);
    }
}

/// The same measurements make an estimate surer of its directions where there is less noise.
#[test]
fn the_snr_decides_how_much_is_believed() {
    let (antennas, t) = ([8, 12], 16);
    let (receive, transmit) = (beams("receive", t, 8), beams("transmit", t, 12));
    let op = SparseChannel::new(pursuit(2, 0, 2), antennas, &transmit, &[]).unwrap();
    let x = measured(&[([0.6, 0.3], 3.0, 17.0)], &receive, &transmit, antennas);
    // Logarithms of the shares of directions: the sharper, the surer.
    let sharpest = |snr| forward(&op, &x, snr)[op.outputs() - 24..].iter().fold(f32::MIN, |most, x| most.max(*x));
    let found = [-0.5, -0.1, 0.3].map(sharpest);
    assert!(found[0] < found[1] && found[1] < found[2], "{found:?}");
}

#[test]
fn what_cannot_be_estimated_is_refused() {
    let some = [0.5; 12];
    for (pursuit, antennas, beams, choices) in [
        (pursuit(0, 0, 2), [2, 3], &some[..], &some[..0]),
        (pursuit(1, 2, 2), [2, 3], &some, &some[..0]),
        (pursuit(1, 0, 0), [2, 3], &some, &some[..0]),
        (pursuit(1, 0, 2), [0, 3], &some, &some[..0]),
        (pursuit(1, 0, 2), [2, 0], &some, &some[..0]),
        (pursuit(1, 0, 2), [2, 3], &some[..0], &some[..0]),
        (pursuit(1, 0, 2), [2, 3], &some[..7], &some[..0]),
        (pursuit(1, 0, 2), [2, 3], &some, &some[..5]),
        (from(3, pursuit(1, 0, 2)), [2, 3], &some, &some[..0]),
        (from(9, pursuit(1, 0, 1)), [64, 3], &some, &some[..0]),
        (leaving(1.0, pursuit(1, 0, 2)), [2, 3], &some, &some[..0]),
        (leaving(f64::NAN, pursuit(1, 0, 2)), [2, 3], &some, &some[..0]),
    ] {
        let found = SparseChannel::new(pursuit, antennas, beams, choices);
        assert!(found.is_err(), "{pursuit:?} {antennas:?}");
    }
}

/// Gradients of what beams are made of against differences of the reference, of measurements that are like those of a channel: of others, the strongest direction of a
/// path jumps.
#[test]
fn gradients_of_measurements() {
    for (antennas, t, differing, pursuit) in [
        ([2, 3], 1, 1, pursuit(1, 0, 2)),
        ([3, 4], 5, 5, pursuit(1, 0, 2)),
        ([4, 6], 10, 10, pursuit(2, 0, 2)),
        ([4, 6], 9, 3, pursuit(2, 2, 3)),
        ([8, 16], 16, 16, pursuit(3, 0, 2)),
        ([8, 16], 16, 8, pursuit(3, 2, 3)),
        ([8, 16], 16, 8, from(2, pursuit(3, 2, 3))),
        ([8, 16], 16, 8, from(2, leaving(0.05, pursuit(3, 2, 3)))),
        ([4, 6], 9, 3, leaving(0.1, pursuit(2, 2, 3))),
    ] {
        let (receive, transmit) = (beams("receive", t, antennas[0]), swept(differing, t, antennas[1]));
        for (choices, snr) in [(Vec::new(), 0.4), (Vec::new(), -0.1), (beams("choices", 5, antennas[1]), 0.2)] {
            let op = SparseChannel::new(pursuit, antennas, &transmit, &choices).unwrap();
            let two = [([2.0, 1.0], 1.2, 3.1), ([-0.5, 0.8], 4.3, 6.6)];
            let mut x = measured(&two, &receive, &transmit, antennas);
            x.iter_mut().zip(normal("noise", &[op.inputs()]).to_vec1::<f32>().unwrap()).for_each(|(x, noise)| *x += 0.05 * noise);
            let beams = if choices.is_empty() { op.told() + 2 * (antennas[0] + antennas[1]) } else { op.choices() * (2 * antennas[0] + 1) };
            let mut dy = normal("dy", &[op.outputs()]).to_vec1::<f32>().unwrap();
            dy[beams..].fill(0.0);
            let (mut dx, mut dsnr) = (vec![9.0; op.inputs()], [9.0]);
            op.backward(&[&x, &[snr]], &forward(&op, &x, snr), &dy, &mut [&mut dx, &mut dsnr]);
            let loss = |x: &[f64]| {
                let found = super::reference::estimate(&op.tables, op.pursuit, x, noise(f64::from(snr)));
                found.iter().zip(&dy).map(|(y, dy)| y * f64::from(*dy)).sum::<f64>()
            };
            let wide: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let size = dx.iter().map(|x| f64::from(*x).abs()).fold(0.0, f64::max);
            for i in 0..x.len() {
                let at = |by: f64| {
                    let mut x = wide.clone();
                    x[i] += by;
                    loss(&x)
                };
                let expected = (at(1e-5) - at(-1e-5)) / 2e-5;
                let found = f64::from(dx[i]);
                assert!(
                    (found - expected).abs() < 5e-3 * (0.1 * size + expected.abs()),
                    "{antennas:?} {pursuit:?} {snr} {i}: {found} {expected}"
                );
            }
            assert!(size > 1e-3 && dsnr == [0.0], "{size}");
        }
    }
}

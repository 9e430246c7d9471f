use super::*;
use crate::exec::Executor;
use crate::exec::tensors::TensorExecutor;
use crate::ops::check::{check_with, normal, refuses};
use crate::tensors::NamedTensors;
use candle_core::DType;

/// Grid, modes and channels: a line; odd and even sizes; more modes than the grid has waves; every wave of a grid.
const SIZES: [([usize; 2], [usize; 2], [usize; 2]); 6] = [
    ([1, 9], [1, 4], [2, 3]),
    ([6, 8], [4, 3], [3, 2]),
    ([5, 7], [3, 4], [1, 17]),
    ([4, 6], [8, 9], [2, 2]),
    ([7, 4], [9, 3], [2, 1]),
    ([8, 8], [8, 5], [9, 8]),
];

fn parameters(modes: [usize; 2], [inputs, outputs]: [usize; 2]) -> [Tensor; 2] {
    [normal("weight", &[modes[0], modes[1], inputs, 2 * outputs]), normal("bias", &[outputs])]
}

fn dense(grid: [usize; 2], weight: &Tensor, bias: Option<&Tensor>) -> SpectralConv {
    SpectralConv::new(grid, &WaveWeight::Dense(weight.clone()), bias).unwrap()
}

fn run(op: SpectralConv, x: &Tensor) -> Tensor {
    let none = NamedTensors::new();
    let resets = vec![false; x.dim(0).unwrap()];
    let mut executor = TensorExecutor::new(&none, &resets, Vec::new(), &Device::Cpu);
    executor.apply(op, &[x]).unwrap()
}

fn f64s(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

#[test]
fn every_form_of_it_is_the_reference() {
    for (grid, modes, channels) in SIZES {
        let (parameters, width) = (parameters(modes, channels), grid[0] * grid[1] * channels[0]);
        // Weights of waves that the grid does not have get no gradient from the tape: they are cut before it.
        let fits = modes[0] <= grid[0] && modes[1] <= grid[1] / 2 + 1;
        if fits {
            check_with(&parameters, |p| dense(grid, &p[0], Some(&p[1])), &[width]);
            check_with(&parameters[..1], |p| dense(grid, &p[0], None), &[width]);
        } else {
            let cut = dense(grid, &parameters[0], None).weight;
            check_with(&[cut, parameters[1].clone()], |p| dense(grid, &p[0], Some(&p[1])), &[width]);
        }
    }
}

/// Both ways of a transform are taken on any grid here, not only on those where each is the faster one.
#[test]
fn ffts_are_the_reference_down_and_across() {
    for (grid, modes, channels) in SIZES {
        let cut = dense(grid, &parameters(modes, channels)[0], None).weight;
        let parameters = [cut, normal("bias", &[channels[1]])];
        for by_fft in [[false, true], [true, false], [true, true]] {
            let op = |p: &[Tensor]| {
                let op = dense(grid, &p[0], Some(&p[1]));
                SpectralConv { waves: Arc::new(Waves::with(grid, op.waves.kept, by_fft)), ..op }
            };
            check_with(&parameters, op, &[grid[0] * grid[1] * channels[0]]);
        }
    }
}

/// Few waves are products, and many of a long axis an FFT, which has fewer operations.
#[test]
fn an_fft_is_taken_for_many_waves_of_a_long_axis() {
    let flop = |grid, kept, by_fft| Waves::with(grid, kept, by_fft).flop();
    for (grid, kept, expected) in [
        ([16, 16], [16, 9], [false, false]),
        ([64, 64], [32, 17], [false, false]),
        ([128, 128], [64, 33], [true, true]),
        ([256, 64], [128, 9], [true, false]),
        // 127 is a prime.
        ([127, 128], [80, 41], [false, true]),
    ] {
        assert_eq!(Waves::new(grid, kept).flop(), flop(grid, kept, expected), "{grid:?} {kept:?}");
    }
    assert!(flop([128, 128], [64, 33], [true, true]) < 0.5 * flop([128, 128], [64, 33], [false, false]));
}

/// Values of an independent program (complex transforms in double precision) for `x[i, j] = ((3 i^2 + 5 j + i j) mod 7) / 7` and
/// `W[a, b] = .1 (1 + a - b) + .1 i (a + b^2 - 1)` on 8 by 8 places.
#[test]
fn it_has_the_values_of_another_program() {
    let x: Vec<f64> = (0..64).map(|p| (p / 8, p % 8)).map(|(i, j)| f64::from((3 * i * i + 5 * j + i * j) % 7) / 7.0).collect();
    let weight = |mode: i32| (f64::from(mode / 3), f64::from(mode % 3));
    let weight: Vec<f64> = (0..12).map(weight).flat_map(|(a, b)| [0.1 * (1.0 + a - b), 0.1 * (a + b * b - 1.0)]).collect();
    let weight = Tensor::from_vec(weight, (4, 3, 1, 2), &Device::Cpu).unwrap();
    let x = Tensor::from_vec(x, (1, 64), &Device::Cpu).unwrap();
    let y = f64s(&run(dense([8, 8], &weight, None), &x));
    for (got, want) in y.iter().zip([0.240_062_55, 0.129_807_84, 0.027_847_16, 0.192_218_1]) {
        assert!((got - want).abs() < 1e-8, "{got} {want}");
    }
    assert!((y[3 * 8 + 5] - 0.150_803_120_48).abs() < 1e-11, "{}", y[29]);
    assert!((y.iter().sum::<f64>() - 9.0).abs() < 1e-10);
    assert!((y.iter().map(|y| y * y).sum::<f64>() - 1.725_761_650_52).abs() < 1e-10);
}

/// A sum of waves on a grid, at the places of a finer one.
fn band_limited(grid: [usize; 2], channels: usize) -> Tensor {
    let value = |h: usize, w: usize, c: usize| {
        let wave = |k: i32, l: i32| {
            let angle = std::f64::consts::TAU * (f64::from(k) * h as f64 / grid[0] as f64 + f64::from(l) * w as f64 / grid[1] as f64);
            (angle + f64::from(k + 2 * l) + c as f64).cos()
        };
        0.3 + wave(1, 0) - 0.5 * wave(-1, 2) + 0.7 * wave(1, 1)
    };
    let places = (0..grid[0]).flat_map(|h| (0..grid[1]).map(move |w| (h, w)));
    let values: Vec<f64> = places.flat_map(|(h, w)| (0..channels).map(move |c| value(h, w, c))).collect();
    Tensor::from_vec(values, (1, grid[0] * grid[1] * channels), &Device::Cpu).unwrap()
}

#[test]
fn a_finer_grid_gives_the_same_where_both_have_a_place() {
    let [weight, bias] = parameters([4, 4], [2, 3]).map(|x| x.to_dtype(DType::F64).unwrap());
    let at = |grid| run(dense(grid, &weight, Some(&bias)), &band_limited(grid, 2)).reshape((grid[0], grid[1], 3)).unwrap();
    let (coarse, fine) = (at([8, 8]).to_vec3::<f64>().unwrap(), at([16, 24]).to_vec3::<f64>().unwrap());
    for (h, row) in coarse.iter().enumerate() {
        for (w, place) in row.iter().enumerate() {
            for (c, value) in place.iter().enumerate() {
                assert!((value - fine[2 * h][3 * w][c]).abs() < 1e-12, "{h} {w} {c}");
            }
        }
    }
}

#[test]
fn it_commutes_with_cyclic_shifts() {
    let (grid, shift) = ([6, 8], [2, 3]);
    let [weight, bias] = parameters([3, 4], [2, 2]).map(|x| x.to_dtype(DType::F64).unwrap());
    let shifted = |x: &Tensor, channels: usize| {
        let x = x.reshape((grid[0], grid[1], channels)).unwrap();
        x.roll(shift[0], 0).unwrap().roll(shift[1], 1).unwrap().reshape((1, grid[0] * grid[1] * channels)).unwrap()
    };
    let x = normal("x", &[1, grid[0] * grid[1] * 2]).to_dtype(DType::F64).unwrap();
    let op = dense(grid, &weight, Some(&bias));
    let (before, behind) = (f64s(&run(op.clone(), &shifted(&x, 2))), f64s(&shifted(&run(op, &x), 2)));
    assert!(before.iter().zip(&behind).all(|(a, b)| (a - b).abs() < 1e-12));
}

/// The transform as its definition has it, wave by wave in complex numbers: what an FFT computes.
#[test]
fn products_with_tables_are_the_transform() {
    use rustfft::num_complex::Complex64;
    let ([n, m], [k, l]) = ([6usize, 8usize], [5usize, 5usize]);
    let weight = normal("weight", &[k, l, 1, 2]).to_dtype(DType::F64).unwrap();
    let x = normal("x", &[1, n * m]).to_dtype(DType::F64).unwrap();
    let (values, weights) = (f64s(&x), f64s(&weight));
    let unit = |turns: f64| Complex64::cis(std::f64::consts::TAU * turns);
    let turns = |kx: f64, l: usize, h: usize, w: usize| kx * h as f64 / n as f64 + l as f64 * w as f64 / m as f64;
    let mut want = vec![0.0; n * m];
    for row in 0..k {
        let kx = row as f64 - (k / 2) as f64;
        for column in 0..l {
            let place = |p: usize| values[p] * unit(-turns(kx, column, p / m, p % m));
            let coefficient: Complex64 = (0..n * m).map(place).sum::<Complex64>() / (n * m) as f64;
            let at = 2 * (row * l + column);
            let y = coefficient * Complex64::new(weights[at], weights[at + 1]);
            for (p, want) in want.iter_mut().enumerate() {
                let (h, w) = (p / m, p % m);
                // The imaginary part of an own counterpart across is dropped behind the transform down.
                let part = y * unit(kx * h as f64 / n as f64);
                let own = column == 0 || 2 * column == m;
                let across = unit(column as f64 * w as f64 / m as f64);
                *want += if own { part.re * across.re } else { 2.0 * (part * across).re };
            }
        }
    }
    let y = f64s(&run(dense([n, m], &weight, None), &x));
    assert!(y.iter().zip(&want).all(|(y, want)| (y - want).abs() < 1e-12), "{y:?} {want:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let [weight, bias] = parameters([4, 3], [2, 3]);
    let op = dense([6, 6], &weight, Some(&bias));
    refuses(&op, &[71]);
    let refused = |grid, weight: &Tensor, bias: Option<&Tensor>| SpectralConv::new(grid, &WaveWeight::Dense(weight.clone()), bias).is_err();
    assert!(refused([0, 6], &weight, None));
    assert!(refused([6, 6], &weight, Some(&normal("b", &[2]))));
    assert!(refused([6, 6], &normal("w", &[4, 3, 2, 5]), None));
    assert!(refused([6, 6], &normal("w", &[4, 3, 6]), None));
}

//! The inverse of the normal distribution function: `z` with `P(Z < z) = u`. It is `sqrt(2) erfinv(2 u - 1)` by the polynomials in single precision of
//! Giles 2010 ("Approximating the erfinv function"), of `w = -ln(1 - (2 u - 1)^2)` near the middle and of its root in the tails. The
//! distribution function of the result is `u` up to 3e-7; CPU, CUDA and tensors compute the same polynomials.

use crate::exec::graph::{Graph, Operator, Value};
use candle_core::{Result, Tensor};
use std::f32::consts::SQRT_2;

/// Numbers below and above are taken as these: half a step and one step of [`Random::uniform`](crate::random::Random::uniform) from 0 and from 1, where
/// the result would be infinite. So `z` lies from -5.42 to 5.29.
const RANGE: [f32; 2] = [1.0 / (1 << 25) as f32, 1.0 - 1.0 / (1 << 24) as f32];
/// Where the tails begin.
const TAIL: f32 = 5.0;
/// Coefficients from the highest power down: of `w - 2.5`, and of `sqrt(w) - 3`.
const MIDDLE: [f32; 9] = [
    2.810_226_4e-8,
    3.432_739_4e-7,
    -3.523_387_7e-6,
    -4.391_506_5e-6,
    0.000_218_580_87,
    -0.001_253_725,
    -0.004_177_681_6,
    0.246_640_73,
    1.501_409_4,
];
const TAILS: [f32; 9] = [
    -0.000_200_214_26,
    0.000_100_950_56,
    0.001_349_343_2,
    -0.003_673_428_4,
    0.005_739_507_7,
    -0.007_622_461_3,
    0.009_438_870_5,
    1.001_674,
    2.832_976_8,
];

/// The quantile at `u` and its slope there, which is 0 outside the range.
pub(super) fn quantile(u: f32) -> (f32, f32) {
    let inside = u.clamp(RANGE[0], RANGE[1]);
    let w = -(4.0 * inside * (1.0 - inside)).ln();
    let horner = |x: f32, coefficients: &[f32; 9]| coefficients.iter().fold(0.0, |sum, c| sum * x + c);
    let p = if w < TAIL { horner(w - 2.5, &MIDDLE) } else { horner(w.sqrt() - 3.0, &TAILS) };
    let z = SQRT_2 * p * (2.0 * inside - 1.0);
    // One over the density.
    let slope = if inside == u { (2.0 * std::f32::consts::PI).sqrt() * (0.5 * z * z).exp() } else { 0.0 };
    (z, slope)
}

/// The same on tensors of any dtype, with gradients.
pub(super) fn on_tensors(u: &Tensor) -> Result<Tensor> {
    let u = u.maximum(f64::from(RANGE[0]))?.minimum(f64::from(RANGE[1]))?;
    let w = (&u * u.affine(-4.0, 4.0)?)?.log()?.neg()?;
    let horner = |x: &Tensor, coefficients: &[f32; 9]| {
        let first = x.zeros_like()?;
        coefficients.iter().try_fold(first, |sum, c| (sum * x)?.affine(1.0, f64::from(*c)))
    };
    let middle = horner(&w.affine(1.0, -2.5)?, &MIDDLE)?;
    // The root has no slope at 0, where it is not used.
    let tails = horner(&w.maximum(f64::from(TAIL))?.sqrt()?.affine(1.0, -3.0)?, &TAILS)?;
    let p = w.lt(f64::from(TAIL))?.where_cond(&middle, &tails)?;
    p * u.affine(2.0 * f64::from(SQRT_2), -f64::from(SQRT_2))?
}

/// The same in standard operators.
pub(super) fn formula(graph: &mut Graph, u: Value) -> Value {
    let [least, most] = RANGE.map(|x| graph.float(x));
    let (one, two, three, four) = (graph.float(1.0), graph.float(2.0), graph.float(3.0), graph.float(4.0));
    let u = graph.node(Operator::Min, &[u, most]);
    let below = graph.node(Operator::Less, &[u, least]);
    let u = graph.node(Operator::Where, &[below, least, u]);
    let (rest, u4) = (graph.sub(one, u), graph.mul(four, u));
    let product = graph.mul(u4, rest);
    let log = graph.of(Operator::Log, product);
    let w = graph.of(Operator::Neg, log);
    let horner = |graph: &mut Graph, x: Value, coefficients: &[f32; 9]| {
        let mut sum = graph.float(coefficients[0]);
        for c in &coefficients[1..] {
            let (product, c) = (graph.mul(sum, x), graph.float(*c));
            sum = graph.add(product, c);
        }
        sum
    };
    let (shift, tail) = (graph.float(2.5), graph.float(TAIL));
    let near = graph.sub(w, shift);
    let middle = horner(graph, near, &MIDDLE);
    let in_middle = graph.node(Operator::Less, &[w, tail]);
    let far = graph.node(Operator::Where, &[in_middle, tail, w]);
    let root = graph.of(Operator::Sqrt, far);
    let root = graph.sub(root, three);
    let tails = horner(graph, root, &TAILS);
    let p = graph.node(Operator::Where, &[in_middle, middle, tails]);
    let (twice, root_of_two) = (graph.mul(two, u), graph.float(SQRT_2));
    let centred = graph.sub(twice, one);
    let z = graph.mul(p, centred);
    graph.mul(root_of_two, z)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    /// `P(Z < z)` in f64.
    fn distribution(z: &[f32]) -> Vec<f64> {
        let x = Tensor::new(z, &Device::Cpu).unwrap().to_dtype(DType::F64).unwrap();
        (x * std::f64::consts::FRAC_1_SQRT_2).unwrap().erf().unwrap().affine(0.5, 0.5).unwrap().to_vec1().unwrap()
    }

    #[test]
    fn it_is_the_inverse_of_the_distribution() {
        let u: Vec<f32> = (0..1 << 12).map(|i| (i as f32 + 0.5) / 4096.0).chain([RANGE[0], 1e-6, 1e-4, 0.9999, RANGE[1]]).collect();
        let z: Vec<f32> = u.iter().map(|u| quantile(*u).0).collect();
        for ((u, z), p) in u.iter().zip(&z).zip(distribution(&z)) {
            assert!((p - f64::from(*u)).abs() < 3e-7, "{u}: {z}, whose distribution is {p}");
        }
        // Tables of the normal distribution.
        for (u, want) in [(0.5, 0.0), (0.841_344_8, 1.0), (0.975, 1.959_964), (0.001, -3.090_232), (1e-6, -4.753_424)] {
            assert!((quantile(u).0 - want).abs() < 2e-6 * (1.0 + want.abs()), "{u}: {} instead of {want}", quantile(u).0);
        }
    }

    #[test]
    fn it_is_finite_for_everything_that_can_be_drawn() {
        for (u, want) in [(0.0, -5.42), (-0.5, -5.42), (1.0 - 1.0 / 16_777_216.0, 5.29), (1.0, 5.29)] {
            assert!((quantile(u).0 - want).abs() < 0.01, "{u}: {}", quantile(u).0);
        }
    }
}

//! Weights of waves as a product of small tensors (Tucker 1966): a core that every axis enlarges by a matrix, `W = core x U_in x U_out x U_down x U_across`, in complex
//! numbers. Fewer numbers are learnt than a dense weight has.

use crate::Result;
use crate::nn::{Init, Params};
use candle_core::Tensor;

/// The core's axes for a weight of that shape, so that core and matrices have `rank` times as many numbers as the weight: every axis shrinks alike, to 1 at
/// least.
pub(super) fn ranks(shape: [usize; 4], rank: f64) -> [usize; 4] {
    let all = shape.iter().product::<usize>() as f64;
    let squares: f64 = shape.iter().map(|n| (n * n) as f64).sum();
    let count = |share: f64| all * share.powi(4) + squares * share;
    let (mut low, mut high) = (0.0, rank.max(1.0));
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if count(middle) < rank * all { low = middle } else { high = middle }
    }
    shape.map(|n| ((n as f64 * low).round() as usize).max(1))
}

/// The weight `[K, L, C, 2 O]` of a core and matrices from `params`. Its numbers have about that deviation.
///
/// # Errors
/// If a parameter is missing or has another shape.
pub(super) fn weight([down, across, inputs, outputs]: [usize; 4], rank: f64, deviation: f32, params: &Params) -> Result<Tensor> {
    let shape = [inputs, outputs, down, across];
    let ranks = ranks(shape, rank);
    let each = (f64::from(deviation) / ranks.iter().map(|r| (*r as f64).sqrt()).product::<f64>()).powf(0.2) as f32;
    let init = || Init::Normal(each * std::f32::consts::FRAC_1_SQRT_2);
    let core = params.get("core", &[ranks[0], ranks[1], ranks[2], ranks[3], 2], init())?;
    let factors = params.pp("factors");
    let mut parts = parts(&core)?;
    for (axis, (size, rank)) in shape.into_iter().zip(ranks).enumerate() {
        let [re, im] = self::parts(&factors.get(&format!("factor_{axis}"), &[size, rank, 2], init())?)?;
        let [x, y] = parts.map(|part| part.reshape((rank, ())));
        let (x, y) = (x?, y?);
        // The axis that is done goes behind the others.
        let turned = |part: Tensor| part.t()?.contiguous();
        parts = [turned((re.matmul(&x)? - im.matmul(&y)?)?)?, turned((re.matmul(&y)? + im.matmul(&x)?)?)?];
    }
    let [re, im] = parts.map(|part| part.reshape(&shape[..])?.permute((2, 3, 0, 1)));
    Ok(Tensor::cat(&[re?, im?], 3)?.contiguous()?)
}

/// Real and imaginary parts, which lie side by side.
fn parts(tensor: &Tensor) -> Result<[Tensor; 2]> {
    let last = tensor.rank() - 1;
    let part = |i: usize| tensor.narrow(last, i, 1)?.squeeze(last)?.contiguous();
    Ok([part(0)?, part(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use candle_core::{DType, Device};

    #[test]
    fn ranks_make_the_share_of_numbers_that_was_asked_for() {
        let shape = [32, 32, 16, 9];
        let ranks = ranks(shape, 0.42);
        let found: usize = ranks.iter().product::<usize>() + ranks.iter().zip(shape).map(|(r, n)| r * n).sum::<usize>();
        let share = found as f64 / shape.iter().product::<usize>() as f64;
        assert!((share - 0.42).abs() < 0.05, "{share} {ranks:?}");
        assert_eq!(super::ranks([4, 4, 2, 2], 1e-6), [1; 4]);
    }

    /// Every number written out.
    #[test]
    fn a_weight_is_the_product_of_its_parts() {
        let params = Params::init_dtype(Random::new(1), DType::F64, &Device::Cpu);
        let [k, l, c, o] = [3, 2, 4, 5];
        let found = weight([k, l, c, o], 0.8, 0.3, &params).unwrap();
        let found: Vec<f64> = found.flatten_all().unwrap().to_vec1().unwrap();
        let vars = params.vars();
        let read = |name: &str| vars[name].as_tensor().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let core = read("core");
        let factors: Vec<Vec<f64>> = (0..4).map(|i| read(&format!("factors.factor_{i}"))).collect();
        let r = ranks([c, o, k, l], 0.8);
        let product = |[a, b]: [f64; 2], [c, d]: [f64; 2]| [a * c - b * d, a * d + b * c];
        for (at, place) in [[0, 0, 0, 0], [3, 4, 2, 1], [1, 2, 0, 1], [2, 0, 1, 0]].into_iter().enumerate() {
            let mut want = [0.0; 2];
            for i in 0..r.iter().product() {
                let index = [i / (r[1] * r[2] * r[3]), i / (r[2] * r[3]) % r[1], i / r[3] % r[2], i % r[3]];
                let mut term = [core[2 * i], core[2 * i + 1]];
                for axis in 0..4 {
                    let from = 2 * (place[axis] * r[axis] + index[axis]);
                    term = product(term, [factors[axis][from], factors[axis][from + 1]]);
                }
                want = [want[0] + term[0], want[1] + term[1]];
            }
            let row = ((place[2] * l + place[3]) * c + place[0]) * 2 * o + place[1];
            assert!((found[row] - want[0]).abs() < 1e-12 && (found[row + o] - want[1]).abs() < 1e-12, "{at}");
        }
    }
}

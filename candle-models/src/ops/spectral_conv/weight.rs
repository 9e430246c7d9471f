//! Weights of waves, dense, or as a product of small tensors (Tucker 1966): a core that every axis enlarges by a matrix, `W = core x U_in x U_out x U_down x U_across`,
//! in complex numbers. Fewer numbers are learnt than a dense weight has.

use crate::Result;
use crate::exec::graph::{Graph, Operator, Value};
use crate::nn::{Init, Params};
use candle_core::Tensor;

/// The weight of every wave, a complex matrix from channels to channels.
#[derive(Debug, Clone)]
pub enum WaveWeight {
    /// `[K, L, C, 2 O]`.
    Dense(Tensor),
    /// A core `[r, r', r'', r''', 2]` and for each axis of `[C, O, K, L]` a matrix `[size, its r, 2]`; real and imaginary parts side by side.
    Tucker {
        /// The core.
        core: Tensor,
        /// The matrices.
        factors: [Tensor; 4],
    },
}

impl WaveWeight {
    /// A dense one from `params`, whose numbers have that deviation.
    ///
    /// # Errors
    /// If the parameter is missing or has another shape.
    pub fn dense([down, across, inputs, outputs]: [usize; 4], deviation: f32, params: &Params) -> Result<Self> {
        let init = Init::Normal(deviation * std::f32::consts::FRAC_1_SQRT_2);
        Ok(Self::Dense(params.get("weight", &[down, across, inputs, 2 * outputs], init)?))
    }

    /// A product from `params` with `rank` times as many numbers as a dense one, whose numbers have about that deviation.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn tucker([down, across, inputs, outputs]: [usize; 4], rank: f64, deviation: f32, params: &Params) -> Result<Self> {
        let (shape, params) = ([inputs, outputs, down, across], params.pp("weight"));
        let ranks = ranks(shape, rank);
        let each = (f64::from(deviation) / ranks.iter().map(|r| (*r as f64).sqrt()).product::<f64>()).powf(0.2) as f32;
        let init = || Init::Normal(each * std::f32::consts::FRAC_1_SQRT_2);
        let core = params.get("core", &[ranks[0], ranks[1], ranks[2], ranks[3], 2], init())?;
        let factor = |axis: usize| params.pp("factors").get(&format!("factor_{axis}"), &[shape[axis], ranks[axis], 2], init());
        Ok(Self::Tucker { core, factors: [factor(0)?, factor(1)?, factor(2)?, factor(3)?] })
    }

    /// All numbers, `[K, L, C, 2 O]`, with gradients.
    ///
    /// # Errors
    /// If the parts do not fit each other.
    pub fn numbers(&self) -> Result<Tensor> {
        let (core, factors) = match self {
            Self::Dense(weight) => return Ok(weight.clone()),
            Self::Tucker { core, factors } => (core, factors),
        };
        let mut parts = parts(core)?;
        for factor in factors {
            let [re, im] = self::parts(factor)?;
            let [x, y] = parts.map(|part| part.reshape((re.dim(1)?, ())));
            let (x, y) = (x?, y?);
            // The axis that is done goes behind the others.
            let turned = |part: Tensor| part.t()?.contiguous();
            parts = [turned((re.matmul(&x)? - im.matmul(&y)?)?)?, turned((re.matmul(&y)? + im.matmul(&x)?)?)?];
        }
        let shape = shape(factors)?;
        let [re, im] = parts.map(|part| part.reshape(&shape[..])?.permute((2, 3, 0, 1)));
        Ok(Tensor::cat(&[re?, im?], 3)?.contiguous()?)
    }

    /// The same in standard operators.
    pub(super) fn formula(&self, graph: &mut Graph) -> Result<Value> {
        let (core, factors) = match self {
            Self::Dense(weight) => return graph.tensor(weight),
            Self::Tucker { core, factors } => (core, factors),
        };
        let parts = |graph: &mut Graph, tensor: &Tensor| -> Result<[Value; 2]> {
            let (x, axis) = (graph.tensor(tensor)?, tensor.rank() - 1);
            Ok([0, 1].map(|start| graph.of(Operator::Slice { axis, start, len: 1 }, x)))
        };
        let shaped =
            |graph: &mut Graph, x: Value, shape: &[usize]| graph.of(Operator::Reshape(shape.iter().map(|n| *n as i64).collect()), x);
        let mut count = core.elem_count() / 2;
        let mut both = parts(graph, core)?;
        for factor in factors {
            let (size, rank, _) = factor.dims3()?;
            let [re, im] = parts(graph, factor)?.map(|part| shaped(graph, part, &[size, rank]));
            let [x, y] = both.map(|part| shaped(graph, part, &[rank, count / rank]));
            let product = |graph: &mut Graph, a: Value, b: Value| graph.node(Operator::MatMul, &[a, b]);
            let [rx, iy, ry, ix] = [product(graph, re, x), product(graph, im, y), product(graph, re, y), product(graph, im, x)];
            let found = [graph.sub(rx, iy), graph.add(ry, ix)];
            both = found.map(|part| graph.of(Operator::Transpose(vec![1, 0]), part));
            count = count / rank * size;
        }
        let shape = shape(factors)?;
        let both = both.map(|part| {
            let part = shaped(graph, part, &shape);
            graph.of(Operator::Transpose(vec![2, 3, 0, 1]), part)
        });
        Ok(graph.node(Operator::Concat { axis: 3 }, &both))
    }
}

/// Sizes of the axes that the matrices lead to.
fn shape(factors: &[Tensor; 4]) -> Result<[usize; 4]> {
    Ok([factors[0].dim(0)?, factors[1].dim(0)?, factors[2].dim(0)?, factors[3].dim(0)?])
}

/// The core's axes for a weight of that shape, so that core and matrices have `rank` times as many numbers as the weight: every axis shrinks alike, to 1 at
/// least.
fn ranks(shape: [usize; 4], rank: f64) -> [usize; 4] {
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
        let found = WaveWeight::tucker([k, l, c, o], 0.8, 0.3, &params).unwrap();
        let found: Vec<f64> = found.numbers().unwrap().flatten_all().unwrap().to_vec1().unwrap();
        let vars = params.vars();
        let read = |name: &str| vars[name].as_tensor().flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let core = read("weight.core");
        let factors: Vec<Vec<f64>> = (0..4).map(|i| read(&format!("weight.factors.factor_{i}"))).collect();
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

//! Self-consistency (Ye et al. 2021): what the dynamics expect is to look like what was then seen.
//!
//! The embedding that an unroll has come to and that of the observation there go through one projection; from the former's, a second network predicts
//! the latter's, and the loss is one minus the cosine between the two. No gradient goes into what was seen, without which everything would become alike
//! (Chen and He 2021). Both networks are of the training alone: bundles do not have them.

use candle_core::{D, Tensor};
use candle_models::Result;
use candle_models::exec::{Executor, program::Output};
use candle_models::network::{Layers, Network, Tapes};
use candle_models::nn::{Dense, Linear, Params};
use candle_models::ops::Activation;
use candle_models::signature::{Signature, TensorSpec};

/// Width of the projection and of the layers before it.
const WIDTH: usize = 128;

/// The two networks.
pub struct Consistency {
    projection: Network<TwoLayers>,
    prediction: Network<TwoLayers>,
}

impl Consistency {
    /// The networks over embeddings of that width, with parameters from `params`.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape.
    pub fn new(embedding: usize, params: &Params) -> Result<Self> {
        let network = |name: &'static str, inputs: usize| {
            let params = params.pp(name);
            let signature = Signature {
                inputs: vec![TensorSpec::f32("x", &[inputs])],
                outputs: vec![TensorSpec::f32("y", &[WIDTH])],
                state: Vec::new(),
            };
            let layers = TwoLayers(Dense::new(inputs, WIDTH, &params.pp("inner"))?, Linear::new(WIDTH, WIDTH, &params.pp("out"))?);
            Network::of((name, &inputs), signature, params.device(), layers)
        };
        Ok(Self { projection: network("projection", embedding)?, prediction: network("prediction", WIDTH)? })
    }

    /// What is to be predicted of the embeddings `[n, width]` of observations, without gradients.
    ///
    /// # Errors
    /// If they have another width.
    pub fn target(&self, seen: &Tensor, tapes: &Tapes) -> Result<Tensor> {
        Ok(self.projection.feed(&seen.detach(), tapes)?.detach())
    }

    /// One minus the cosine between the two, `[n]`, of the embeddings `[n, width]` of an unroll.
    ///
    /// # Errors
    /// If they have another width.
    pub fn loss(&self, expected: &Tensor, target: &Tensor, tapes: &Tapes) -> Result<Tensor> {
        let predicted = self.prediction.feed(&self.projection.feed(expected, tapes)?, tapes)?;
        let squares = |x: &Tensor| x.sqr()?.sum(D::Minus1)? + 1e-8;
        let lengths = (squares(&predicted)? * squares(target)?)?.sqrt()?;
        Ok(((&predicted * target)?.sum(D::Minus1)? / lengths)?.affine(-1.0, 1.0)?)
    }
}

/// A layer with norm and GELU, and one without.
struct TwoLayers(Dense, Linear);

impl Layers for TwoLayers {
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let x = e.input("x")?;
        let x = self.0.forward(e, &x)?;
        Ok(vec![Output::Floats(e.linear(&x, &self.1, Activation::None)?)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use candle_models::random::Random;

    fn normal(name: &str, shape: (usize, usize)) -> Tensor {
        let mut values = vec![0.0f32; shape.0 * shape.1];
        Random::new(1).stream(name).fill_normal(0, &mut values);
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn only_what_was_expected_is_led() {
        let params = Params::init(Random::new(2), &Device::Cpu);
        let (networks, tapes) = (Consistency::new(16, &params).unwrap(), Tapes::default());
        let [expected, seen] = ["expected", "seen"].map(|name| Var::from_tensor(&normal(name, (6, 16))).unwrap());
        let target = networks.target(&seen, &tapes).unwrap();
        let loss = |expected: &Tensor| networks.loss(expected, &target, &tapes).unwrap();
        let each = loss(&expected).to_vec1::<f32>().unwrap();
        assert!(each.iter().all(|x| (0.0..=2.0).contains(x)), "{each:?}");
        // The cosine does not depend on how long the target is.
        let longer = networks.loss(&expected, &(&target * 3.0).unwrap(), &tapes).unwrap().to_vec1::<f32>().unwrap();
        assert!(each.iter().zip(&longer).all(|(a, b)| (a - b).abs() < 1e-5));
        let gradients = loss(&expected).sum_all().unwrap().backward().unwrap();
        assert!(gradients.get(&seen).is_none());
        for (name, var) in params.vars() {
            assert!(gradients.get(&var).is_some(), "{name}");
        }
        let direction = normal("direction", (6, 16));
        let along = (gradients.get(&expected).unwrap() * &direction).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
        let at = |step: f64| {
            let moved = (expected.as_tensor() + (&direction * step).unwrap()).unwrap();
            loss(&moved).to_vec1::<f32>().unwrap().into_iter().map(f64::from).sum::<f64>()
        };
        let difference = (at(2e-3) - at(-2e-3)) / 4e-3;
        assert!((difference - f64::from(along)).abs() < 0.01 * difference.abs().max(0.1), "differences {difference}, gradients {along}");
    }

    /// Followed for some steps, the gradient makes what was expected look like what was seen.
    #[test]
    fn what_is_expected_comes_to_look_like_what_was_seen() {
        let params = Params::init(Random::new(2), &Device::Cpu);
        let (networks, tapes) = (Consistency::new(16, &params).unwrap(), Tapes::default());
        let (expected, target) =
            (Var::from_tensor(&normal("expected", (6, 16))).unwrap(), networks.target(&normal("seen", (6, 16)), &tapes).unwrap());
        let mean = |expected: &Tensor| networks.loss(expected, &target, &tapes).unwrap().mean_all().unwrap();
        let before = mean(&expected).to_scalar::<f32>().unwrap();
        for _ in 0..60 {
            let gradients = mean(&expected).backward().unwrap();
            for var in params.vars().values().chain([&expected]) {
                var.set(&(var.as_detached_tensor() - gradients.get(var).unwrap()).unwrap()).unwrap();
            }
        }
        let after = mean(&expected).to_scalar::<f32>().unwrap();
        assert!(after < 0.5 * before, "{before} {after}");
    }
}

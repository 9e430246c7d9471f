//! A small network and its family: what the engine has to know of it.

use candle_models::Result;
use candle_models::bundle::Manifest;
use candle_models::exec::Executor;
use candle_models::exec::program::Output;
use candle_models::network::{Layers, Network};
use candle_models::nn::Linear;
use candle_models::ops::Activation;
use candle_models::prelude::*;
use candle_models::registry::{Family, Networks};
use serde_json::json;
use std::sync::Arc;

const HIDDEN: usize = 32;

/// y `[1]` from x `[1]` through two layers.
pub struct Curve([Linear; 2]);

impl Curve {
    /// The network with parameters from `params`.
    pub fn network(params: &Params) -> Result<Network<Self>> {
        let [inputs, outputs] = ["x", "y"].map(|name| vec![TensorSpec::f32(name, &[1])]);
        let layers = Self([Linear::new(1, HIDDEN, &params.pp("hidden"))?, Linear::new(HIDDEN, 1, &params.pp("output"))?]);
        Network::of((CurveFamily.name(), &json!({})), Signature { inputs, outputs, state: vec![] }, params.device(), layers)
    }

    /// The mean squared error on rows of x and y `[n, 1]`.
    pub fn error(params: &Params, rows: &NamedTensors) -> Result<Tensor> {
        let (x, y) = (rows.get("x")?.unsqueeze(1)?, rows.get("y")?.unsqueeze(1)?); // A sequence of one frame each.
        let resets = vec![true; x.dim(0)?];
        let inputs = NamedTensors::from_iter([("x".to_owned(), x)]);
        let (outputs, _) = Self::network(params)?.unroll(&inputs, &resets, &NamedTensors::new())?;
        Ok((outputs.get("y")? - y)?.sqr()?.mean_all()?)
    }
}

impl Layers for Curve {
    /// Written once: for tensors with gradients, and for the engine.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<Vec<Output<E::V, E::I>>> {
        let x = e.input("x")?;
        let hidden = e.linear(&x, &self.0[0], Activation::Relu)?;
        Ok(vec![Output::Floats(e.linear(&hidden, &self.0[1], Activation::None)?)])
    }
}

/// By which a bundle is loaded.
pub struct CurveFamily;

impl Family for CurveFamily {
    fn name(&self) -> &'static str {
        "curve"
    }
    fn describe(&self, _: &Bundle) -> Result<String> {
        Ok("one hidden layer".to_owned())
    }
    fn networks(&self, _: &Bundle, params: &Params) -> Result<Networks> {
        Ok(vec![("curve", Arc::new(Curve::network(params)?))])
    }
    fn examples(&self) -> Result<Vec<Manifest>> {
        Ok(vec![Manifest::new(self.name(), &json!({}))?])
    }
}

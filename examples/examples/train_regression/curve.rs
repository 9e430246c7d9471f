//! A small network and its family: what the engine has to know of it.

use candle_models::Result;
use candle_models::bundle::Manifest;
use candle_models::exec::program::{Output, Recorder};
use candle_models::exec::{Executor, tensors};
use candle_models::nn::Linear;
use candle_models::ops::Activation;
use candle_models::prelude::*;
use candle_models::registry::{Family, Networks};
use serde_json::json;
use std::sync::Arc;

const HIDDEN: usize = 32;

/// y `[1]` from x `[1]` through two layers.
pub struct Curve(Signature, Device, [Linear; 2]);

impl Curve {
    /// The network with parameters from `params`.
    pub fn new(params: &Params) -> Result<Self> {
        let signature = Signature { inputs: vec![TensorSpec::f32("x", &[1])], outputs: vec![TensorSpec::f32("y", &[1])], state: vec![] };
        let layers = [Linear::new(1, HIDDEN, &params.pp("hidden"))?, Linear::new(HIDDEN, 1, &params.pp("output"))?];
        Ok(Self(signature, params.device().clone(), layers))
    }

    /// Written once: for tensors with gradients, and for the engine.
    fn pass<E: Executor>(&self, e: &mut E) -> Result<E::V> {
        let x = e.input("x")?;
        let hidden = e.linear(&x, &self.2[0], Activation::Relu)?;
        e.linear(&hidden, &self.2[1], Activation::None)
    }

    /// The mean squared error on rows of x and y `[n, 1]`.
    pub fn error(&self, rows: &NamedTensors) -> Result<Tensor> {
        let (x, y) = (rows.get("x")?.unsqueeze(1)?, rows.get("y")?.unsqueeze(1)?); // A sequence of one frame each.
        let resets = vec![true; x.dim(0)?];
        let (outputs, _) = self.unroll(&NamedTensors::from_iter([("x".to_owned(), x)]), &resets, &NamedTensors::new())?;
        Ok((outputs.get("y")? - y)?.sqr()?.mean_all()?)
    }
}

impl Recurrent for Curve {
    fn signature(&self) -> &Signature {
        &self.0
    }
    fn device(&self) -> &Device {
        &self.1
    }
    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        tensors::unroll((&self.0, &self.1), (inputs, resets, state), |executor| Ok(vec![self.pass(executor)?]))
    }
}

impl Model for Curve {
    fn family(&self) -> &'static str {
        CurveFamily.name()
    }
    fn config(&self) -> serde_json::Value {
        json!({})
    }
    fn record(&self, recorder: &mut Recorder) -> Result<Vec<Output>> {
        Ok(vec![Output::Floats(self.pass(recorder)?)])
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
        Ok(vec![("curve", Arc::new(Curve::new(params)?))])
    }
    fn examples(&self) -> Result<Vec<Manifest>> {
        Ok(vec![Manifest::new(self.name(), &json!({}))?])
    }
}

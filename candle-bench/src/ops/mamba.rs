//! A Mamba block as one operation, against the operations that it is made of: in plain form, and each fused for itself.

use super::Pair;
use super::training::{EPS, INNER, Operation, SCAN_BACKWARD, SCAN_FORWARD, STATES, Sizes, TAPS, WIDTH, function, product, scan_work};
use anyhow::{Context, Result};
use candle_core::{D, Result as CandleResult, Tensor};
use candle_models::exec::tensors::TensorExecutor;
use candle_models::nn::{Mamba, MambaConfig, Params};
use candle_models::ops::{self, Activation, NormKind};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Three inputs, the state and the resets to the output and the state behind it.
type Sequential = fn(&Tensor, &Tensor, &Tensor, &Tensor, &[bool]) -> CandleResult<(Tensor, Tensor)>;

/// What a Mamba block is made of.
pub(super) struct Parts {
    linear: fn(&Tensor, &Tensor, Option<&Tensor>, Activation) -> CandleResult<Tensor>,
    norm: fn(&Tensor, &Tensor) -> CandleResult<Tensor>,
    causal_conv: Sequential,
    selective_scan: Sequential,
    gate: fn(&Tensor, &Tensor) -> CandleResult<Tensor>,
}

pub(super) static FUSED: Parts = Parts {
    linear: ops::linear,
    norm: |x, weight| ops::norm(x, NormKind::Rms, EPS, weight, None, Activation::None),
    causal_conv: ops::causal_conv,
    selective_scan: ops::selective_scan,
    gate: ops::gate,
};

pub(super) static PLAIN: Parts = Parts {
    linear: ops::linear_reference,
    norm: |x, weight| ops::norm_reference(x, NormKind::Rms, EPS, weight, None),
    causal_conv: ops::causal_conv_reference,
    selective_scan: ops::selective_scan_reference,
    gate: ops::gate_reference,
};

impl Parts {
    /// The block of [`Mamba`], operation by operation, from its parameters by name.
    fn mamba(&self, x: &Tensor, weights: &BTreeMap<&str, Tensor>, states: &[Tensor; 2], resets: &[bool]) -> CandleResult<Tensor> {
        let get = |name: &str| weights.get(name).ok_or_else(|| candle_core::Error::msg(format!("{name}: no such parameter")));
        let linear = |x: &Tensor, name| (self.linear)(x, get(name)?, None, Activation::None);
        let xz = linear(&(self.norm)(x, get("norm.weight")?)?, "in_proj.weight")?;
        let (u, z) = (xz.narrow(1, 0, INNER)?, xz.narrow(1, INNER, INNER)?);
        let (u, _) = (self.causal_conv)(&u, get("conv.weight")?, get("conv.bias")?, &states[0], resets)?;
        let selection = linear(&u, "x_proj.weight")?;
        let rank = selection.dim(1)? - 2 * STATES;
        let low = selection.narrow(1, 0, rank)?;
        let dt = (self.linear)(&low, get("dt_proj.weight")?, Some(get("dt_proj.bias")?), Activation::None)?;
        let packed = Tensor::cat(&[dt, selection.narrow(1, rank, 2 * STATES)?], D::Minus1)?;
        let rates = get("a_log")?.t()?.contiguous()?.exp()?.neg()?;
        let params = Tensor::cat(&[rates, get("d")?.unsqueeze(0)?], 0)?;
        let (y, _) = (self.selective_scan)(&u, &packed, &params, &states[1], resets)?;
        x + linear(&(self.gate)(&y, &z)?, "out_proj.weight")?
    }
}

/// The names of a block's parameters.
const MAMBA: [&str; 10] = [
    "norm.weight",
    "in_proj.weight",
    "conv.weight",
    "conv.bias",
    "x_proj.weight",
    "dt_proj.weight",
    "dt_proj.bias",
    "a_log",
    "d",
    "out_proj.weight",
];

pub(super) fn block(name: &str, sizes: Sizes, plain: &'static Parts) -> Result<[Pair; 2]> {
    let (config, rows, resets) = (MambaConfig { state: STATES, expand: INNER / WIDTH, conv: TAPS }, sizes.rows(), sizes.resets());
    let params = Params::init(Random::new(5), sizes.device);
    Mamba::new(WIDTH, &config, &params, &mut Vec::new())?;
    let vars = params.vars();
    let mut inputs = vec![("x", sizes.normal("x", &[rows, WIDTH], 1.0)?)];
    for name in MAMBA {
        inputs.push((name, vars.get(name).with_context(|| format!("{name}: no such parameter"))?.as_detached_tensor()));
    }
    let before = [
        sizes.normal("conv state", &[sizes.batch, TAPS - 1, INNER], 1.0)?,
        sizes.normal("scan state", &[sizes.batch, STATES, INNER], 1.0)?,
    ];
    let (states, same) = (before.clone(), resets.clone());
    let rank = config.rank(WIDTH);
    let products: f64 =
        [[WIDTH, 2 * INNER], [INNER, rank + 2 * STATES], [rank, INNER], [INNER, WIDTH]].into_iter().map(|shape| product(rows, shape)).sum();
    let forward = products + scan_work(rows, SCAN_FORWARD);
    Operation {
        name,
        shape: sizes.describe(&format!("{WIDTH}, inner {INNER}, {STATES} states, {TAPS} taps")),
        inputs,
        fused: Arc::new(move |t| {
            let weights = MAMBA.iter().zip(&t[1..]).map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
            let block = Mamba::new(WIDTH, &config, &Params::given(weights, t[0].device()), &mut Vec::new())?;
            let (x, states, resets, none) = (t[0].clone(), before.clone(), resets.clone(), NamedTensors::new());
            Ok(Box::new(move || {
                let mut executor = TensorExecutor::new(&none, &resets, states.to_vec(), x.device());
                Ok(block.forward(&mut executor, &x)?)
            }))
        }),
        plain: function(move |t| plain.mamba(&t[0], &MAMBA.iter().copied().zip(t[1..].iter().cloned()).collect(), &states, &same)),
        outputs: rows * WIDTH,
        flop: [forward, 3.0 * products + scan_work(rows, SCAN_FORWARD + SCAN_BACKWARD)],
        values: None,
    }
    .pairs()
}

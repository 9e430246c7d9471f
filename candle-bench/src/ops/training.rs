//! The operations that training goes through: forward alone, and forward with the gradients of every input.

use super::{Calculation, Demand, Form, Pair, Work, doubles, mamba, normal};
use crate::calls::Answers;
use crate::formulas::product_flop;
use crate::harness::Subject;
use anyhow::{Context, Result};
use candle_core::{Device, Result as CandleResult, Tensor, Var};
use candle_models::exec::EXPONENTIAL;
use candle_models::ops::{self, Activation, LossGroup, NormKind};
use candle_models::random::Random;
use std::sync::Arc;

/// Model width of the recurrent backbones and inner width of a Mamba block.
pub(super) const WIDTH: usize = 256;
pub(super) const INNER: usize = 512;
pub(super) const STATES: usize = 16;
pub(super) const TAPS: usize = 4;
/// Width of the stream of the autoregressive heads.
const STREAM: usize = 128;
pub(super) const EPS: f64 = 1e-5;
/// Classes that are added to that stream as rows of a table, of two each.
const SWITCHES: usize = 8;
/// Floats of a frame, and ids with the width and the number of the rows that they stand for.
const FEATURES: usize = 288;
const IDS: usize = 6;
const EMBEDDING: usize = 64;
const ENTRIES: u32 = 432;
/// Groups of a loss: the switches together, of one logit each, and columns of so many classes.
const COLUMNS: [usize; 5] = [17, 17, 17, 17, 5];
const GROUPS: usize = 1 + COLUMNS.len();
const LOGITS: usize = SWITCHES + 4 * 17 + 5;

/// Operations a state and channel take in the scan's forward: decay (multiply, exponential), what comes in, the new state and
/// its share of the output (a multiply-add each).
pub(super) const SCAN_FORWARD: f64 = 6.0 + EXPONENTIAL;
/// And in its backward: the states once more (4 and an exponential), gradients of C, B, input, state and decay (9), of step size and A (6).
pub(super) const SCAN_BACKWARD: f64 = 19.0 + EXPONENTIAL;

/// Sequences and frames, and where they lie.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes<'a> {
    pub batch: usize,
    pub frames: usize,
    pub device: &'a Device,
}

impl Sizes<'_> {
    pub fn rows(self) -> usize {
        self.batch * self.frames
    }

    /// One game goes on at the start, another begins in the middle.
    pub fn resets(self) -> Vec<bool> {
        (0..self.rows()).map(|row| row % self.frames == self.frames / 2).collect()
    }

    /// Random numbers of that shape, normal with deviation `scale`.
    pub fn normal(self, name: &str, shape: &[usize], scale: f32) -> CandleResult<Tensor> {
        normal(name, shape, scale)?.to_device(self.device)
    }

    pub fn describe(self, rest: &str) -> String {
        format!("{} x {}, {rest}", self.batch, self.frames)
    }
}

type Make = fn(&str, Sizes) -> Result<[Pair; 2]>;

/// By name, in the order of the table.
pub(super) const OPERATIONS: &[(&str, Make)] = &[
    ("linear + bias", |n, s| linear(n, s, [WIDTH, 2 * INNER], Activation::None)),
    ("linear + bias + relu", |n, s| linear(n, s, [STREAM, STREAM], Activation::Relu)),
    ("linear + bias + gelu", |n, s| linear(n, s, [INNER, INNER], Activation::Gelu)),
    ("layer norm + gelu", |n, s| norm(n, s, INNER, NormKind::Layer, Activation::Gelu)),
    ("rms norm", |n, s| norm(n, s, WIDTH, NormKind::Rms, Activation::None)),
    ("linear, layer norm + gelu", dense),
    ("relu", |n, s| activation(n, s, Activation::Relu)),
    ("gelu", |n, s| activation(n, s, Activation::Gelu)),
    ("silu", |n, s| activation(n, s, Activation::Silu)),
    ("gate", gate),
    ("mask", mask),
    ("add rows + relu", add_rows),
    ("join rows", join_rows),
    ("causal convolution", causal_conv),
    ("selective scan", selective_scan),
    ("gru", gru),
    ("mamba block", |n, s| mamba::block(n, s, &mamba::PLAIN)),
    ("mamba block against its fused parts", |n, s| mamba::block(n, s, &mamba::FUSED)),
    ("cross entropy", cross_entropy),
];

pub(super) type Call = Box<dyn Fn() -> Result<Tensor> + Send>;
/// Takes its tensors once and gives a call on them.
pub(super) type Bind = Arc<dyn Fn(&[Tensor]) -> Result<Call> + Send + Sync>;

/// A function that reads its tensors at every call.
pub(super) fn function(f: impl Fn(&[Tensor]) -> CandleResult<Tensor> + Send + Sync + 'static) -> Bind {
    let f = Arc::new(f);
    Arc::new(move |tensors| {
        let (f, tensors) = (f.clone(), tensors.to_vec());
        Ok(Box::new(move || Ok(f(&tensors)?)))
    })
}

/// An operation with its inputs and both forms.
pub(super) struct Operation<'a> {
    pub name: &'a str,
    pub shape: String,
    pub inputs: Vec<(&'static str, Tensor)>,
    pub fused: Bind,
    pub plain: Bind,
    /// Values of the output.
    pub outputs: usize,
    /// Operations of the forward, and of forward and backward together.
    pub flop: [f64; 2],
    /// Values that both read or write, where it is not every input and output once, and in the backward these and their gradients.
    pub values: Option<[usize; 2]>,
}

/// Operations of a forward, and with a backward that takes twice as many.
pub(super) fn thrice(forward: f64) -> [f64; 2] {
    [forward, 3.0 * forward]
}

impl Operation<'_> {
    /// Values that the forward, and forward and backward together, read or write.
    fn values(&self) -> [usize; 2] {
        let inputs: usize = self.inputs.iter().map(|(_, tensor)| tensor.elem_count()).sum();
        self.values.unwrap_or([inputs + self.outputs, 3 * inputs + 2 * self.outputs])
    }

    pub fn pairs(self) -> Result<[Pair; 2]> {
        let [forward, both] = [0, 1].map(|i| Work::on_values(self.flop[i], self.values()[i]));
        let pair = |calculation, work| -> Result<Pair> {
            let form = |bind: &Bind| -> Result<Box<dyn Form>> { Ok(Box::new(Bound::new(bind, &self.inputs, calculation)?)) };
            Ok(Pair {
                operation: self.name.to_owned(),
                shape: self.shape.clone(),
                calculation,
                demand: Demand::of(work, "f32"),
                fused: form(&self.fused)?,
                plain: form(&self.plain)?,
            })
        };
        Ok([pair(Calculation::Forward, forward)?, pair(Calculation::ForwardBackward, both)?])
    }
}

/// One form of an operation on its inputs.
struct Bound {
    call: Call,
    /// Empty for a forward alone.
    variables: Vec<(&'static str, Var)>,
}

impl Bound {
    fn new(bind: &Bind, inputs: &[(&'static str, Tensor)], calculation: Calculation) -> Result<Self> {
        if calculation == Calculation::Forward {
            let tensors: Vec<Tensor> = inputs.iter().map(|(_, t)| t.clone()).collect();
            return Ok(Self { call: bind(&tensors)?, variables: Vec::new() });
        }
        let variables = inputs.iter().map(|(n, t)| Ok((*n, Var::from_tensor(t)?))).collect::<CandleResult<Vec<_>>>()?;
        let tensors: Vec<Tensor> = variables.iter().map(|(_, v)| v.as_tensor().clone()).collect();
        Ok(Self { call: bind(&tensors)?, variables })
    }
}

impl Subject for Bound {
    fn run(&mut self) -> Result<()> {
        let y = (self.call)()?;
        if !self.variables.is_empty() {
            // From a gradient of ones: no further operation in the graph.
            y.backward()?;
        }
        Ok(())
    }
}

impl Form for Bound {
    fn answers(&mut self) -> Result<Answers> {
        let y = (self.call)()?;
        let mut answers = Answers::from([("output".to_owned(), doubles(&y)?)]);
        if !self.variables.is_empty() {
            // A loss that weighs every output differently: the sum of a norm's outputs is a constant.
            let grads = (&y * normal("loss", y.dims(), 1.0)?.to_device(y.device())?)?.sum_all()?.backward()?;
            for (name, var) in &self.variables {
                let grad = grads.get(var).with_context(|| format!("{name}: no gradient"))?;
                answers.insert(format!("gradient of {name}"), doubles(grad)?);
            }
        }
        Ok(answers)
    }
}

/// Operations of a product and, with its two gradients, of forward and backward.
pub(super) fn product(rows: usize, [inputs, outputs]: [usize; 2]) -> f64 {
    product_flop(rows, inputs, outputs)
}

pub(super) fn scan_work(rows: usize, per: f64) -> f64 {
    per * (rows * INNER * STATES) as f64
}

fn layer(sizes: Sizes, [inputs, outputs]: [usize; 2]) -> CandleResult<Vec<(&'static str, Tensor)>> {
    let scale = 1.0 / (inputs as f32).sqrt();
    Ok(vec![
        ("x", sizes.normal("x", &[sizes.rows(), inputs], 1.0)?),
        ("weight", sizes.normal("weight", &[inputs, outputs], scale)?),
        ("bias", sizes.normal("bias", &[outputs], 0.1)?),
    ])
}

fn linear(name: &str, sizes: Sizes, shape: [usize; 2], act: Activation) -> Result<[Pair; 2]> {
    let flop = product(sizes.rows(), shape);
    Operation {
        name,
        shape: sizes.describe(&format!("{} to {}", shape[0], shape[1])),
        inputs: layer(sizes, shape)?,
        fused: function(move |t| ops::linear(&t[0], &t[1], Some(&t[2]), act)),
        plain: function(move |t| ops::linear_reference(&t[0], &t[1], Some(&t[2]), act)),
        outputs: sizes.rows() * shape[1],
        flop: thrice(flop),
        values: None,
    }
    .pairs()
}

/// Operations on every value: a norm's moments, scale and offset, activations, the gate.
const NORM: f64 = 8.0;
const ACTIVATION: f64 = 3.0 + EXPONENTIAL;
const GATE: f64 = 1.0 + ACTIVATION;
/// And on every logit of a loss: the largest, an exponential, the sums.
const LOSS: f64 = 5.0 + EXPONENTIAL;

fn norm(name: &str, sizes: Sizes, width: usize, kind: NormKind, act: Activation) -> Result<[Pair; 2]> {
    let mut inputs = vec![("x", sizes.normal("x", &[sizes.rows(), width], 1.0)?), ("weight", sizes.normal("weight", &[width], 1.0)?)];
    if kind == NormKind::Layer {
        inputs.push(("bias", sizes.normal("bias", &[width], 0.1)?));
    }
    Operation {
        name,
        shape: sizes.describe(&width.to_string()),
        inputs,
        fused: function(move |t| ops::norm(&t[0], kind, EPS, &t[1], t.get(2), act)),
        plain: function(move |t| act.reference(&ops::norm_reference(&t[0], kind, EPS, &t[1], t.get(2))?)),
        outputs: sizes.rows() * width,
        flop: thrice(NORM * (sizes.rows() * width) as f64),
        values: None,
    }
    .pairs()
}

/// A layer of the MLP: two operations, as it runs.
fn dense(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let mut inputs = layer(sizes, [INNER, INNER])?;
    inputs.extend([("gain", sizes.normal("gain", &[INNER], 1.0)?), ("offset", sizes.normal("offset", &[INNER], 0.1)?)]);
    let flop = product(sizes.rows(), [INNER, INNER]);
    Operation {
        name,
        shape: sizes.describe(&format!("{INNER} to {INNER}")),
        inputs,
        fused: function(|t| {
            let y = ops::linear(&t[0], &t[1], Some(&t[2]), Activation::None)?;
            ops::norm(&y, NormKind::Layer, EPS, &t[3], Some(&t[4]), Activation::Gelu)
        }),
        plain: function(|t| {
            let y = ops::linear_reference(&t[0], &t[1], Some(&t[2]), Activation::None)?;
            Activation::Gelu.reference(&ops::norm_reference(&y, NormKind::Layer, EPS, &t[3], Some(&t[4]))?)
        }),
        outputs: sizes.rows() * INNER,
        flop: thrice(flop),
        values: None,
    }
    .pairs()
}

fn activation(name: &str, sizes: Sizes, act: Activation) -> Result<[Pair; 2]> {
    let n = sizes.rows() * INNER;
    Operation {
        name,
        shape: sizes.describe(&INNER.to_string()),
        inputs: vec![("x", sizes.normal("x", &[sizes.rows(), INNER], 1.0)?)],
        fused: function(move |t| ops::activation(&t[0], act)),
        plain: function(move |t| act.reference(&t[0])),
        outputs: n,
        flop: thrice(if act == Activation::Relu { 1.0 } else { ACTIVATION } * n as f64),
        values: None,
    }
    .pairs()
}

fn gate(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let n = sizes.rows() * INNER;
    let matrix = |name| sizes.normal(name, &[sizes.rows(), INNER], 1.0);
    Operation {
        name,
        shape: sizes.describe(&INNER.to_string()),
        inputs: vec![("a", matrix("a")?), ("z", matrix("z")?)],
        fused: function(|t| ops::gate(&t[0], &t[1])),
        plain: function(|t| ops::gate_reference(&t[0], &t[1])),
        outputs: n,
        flop: thrice(GATE * n as f64),
        values: None,
    }
    .pairs()
}

fn mask(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let n = sizes.rows() * WIDTH;
    let random = Random::new(5).stream("mask");
    let factors: Vec<f32> = (0..n as u64).map(|i| if random.uniform(i) < 0.1 { 0.0 } else { 1.0 / 0.9 }).collect();
    let again = factors.clone();
    Operation {
        name,
        shape: sizes.describe(&WIDTH.to_string()),
        inputs: vec![("x", sizes.normal("x", &[sizes.rows(), WIDTH], 1.0)?)],
        fused: function(move |t| ops::mask(&t[0], factors.clone())),
        plain: function(move |t| &t[0] * Tensor::from_vec(again.clone(), t[0].shape(), t[0].device())?),
        outputs: n,
        flop: [n as f64, 2.0 * n as f64],
        // The factors are no input.
        values: Some([3 * n, 6 * n]),
    }
    .pairs()
}

/// Class by class, as many as there are `columns` a row.
fn indices(name: &str, rows: usize, columns: usize, classes: impl Fn(usize) -> u32) -> Vec<u32> {
    let random = Random::new(5).stream(name);
    (0..rows * columns).map(|i| random.below(i as u64, classes(i % columns))).collect()
}

/// Classes of the frame before into the inner layer of heads.
fn add_rows(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let rows = sizes.rows();
    let index: Vec<u32> =
        indices("switches", rows, SWITCHES, |_| 2).iter().enumerate().map(|(i, b)| (2 * (i % SWITCHES)) as u32 + b).collect();
    let again = index.clone();
    let n = rows * STREAM;
    Operation {
        name,
        shape: sizes.describe(&format!("{STREAM}, {SWITCHES} of {} rows", 2 * SWITCHES)),
        inputs: vec![("x", sizes.normal("x", &[rows, STREAM], 1.0)?), ("table", sizes.normal("table", &[2 * SWITCHES, STREAM], 0.1)?)],
        fused: function(move |t| ops::add_rows(&t[0], &t[1], index.clone(), SWITCHES, Activation::Relu)),
        plain: function(move |t| ops::add_rows_reference(&t[0], &t[1], &again, SWITCHES, Activation::Relu)),
        outputs: n,
        flop: thrice((SWITCHES * n) as f64),
        values: None,
    }
    .pairs()
}

/// The features of a frame and what its ids stand for.
fn join_rows(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let rows = sizes.rows();
    let index = indices("ids", rows, IDS, |_| ENTRIES);
    let again = index.clone();
    let (width, table) = (FEATURES + IDS * EMBEDDING, ENTRIES as usize * EMBEDDING);
    Operation {
        name,
        shape: sizes.describe(&format!("{FEATURES} and {IDS} x {EMBEDDING} of {ENTRIES} rows")),
        inputs: vec![
            ("x", sizes.normal("x", &[rows, FEATURES], 1.0)?),
            ("table", sizes.normal("table", &[ENTRIES as usize, EMBEDDING], 0.1)?),
        ],
        fused: function(move |t| ops::join_rows(&t[0], &t[1], index.clone(), IDS)),
        plain: function(move |t| ops::join_rows_reference(&t[0], &t[1], &again, IDS)),
        outputs: rows * width,
        flop: [0.0, (rows * IDS * EMBEDDING) as f64],
        // The gradient of the features is a part of the output's: nothing moves.
        values: Some([2 * rows * width, 2 * rows * width + rows * IDS * EMBEDDING + table]),
    }
    .pairs()
}

fn causal_conv(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let state = sizes.normal("conv state", &[sizes.batch, TAPS - 1, INNER], 1.0)?;
    let (again, resets) = (state.clone(), sizes.resets());
    let (same, n) = (resets.clone(), sizes.rows() * INNER);
    Operation {
        name,
        shape: sizes.describe(&format!("{INNER}, {TAPS} taps")),
        inputs: vec![
            ("x", sizes.normal("x", &[sizes.rows(), INNER], 1.0)?),
            ("weight", sizes.normal("weight", &[TAPS, INNER], 0.5)?),
            ("bias", sizes.normal("bias", &[INNER], 0.1)?),
        ],
        fused: function(move |t| Ok(ops::causal_conv(&t[0], &t[1], &t[2], &state, &resets)?.0)),
        plain: function(move |t| Ok(ops::causal_conv_reference(&t[0], &t[1], &t[2], &again, &same)?.0)),
        outputs: n,
        flop: thrice((2.0 * TAPS as f64 + ACTIVATION) * n as f64),
        values: None,
    }
    .pairs()
}

fn selective_scan(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let state = sizes.normal("scan state", &[sizes.batch, STATES, INNER], 1.0)?;
    let (again, resets) = (state.clone(), sizes.resets());
    let same = resets.clone();
    // Rates from -0.1 down, behind them the skip: as in a trained block, the states neither die at once nor grow.
    let rates = (sizes.normal("rates", &[STATES, INNER], 1.0)?.abs()?.neg()? - 0.1)?;
    let forward = scan_work(sizes.rows(), SCAN_FORWARD);
    Operation {
        name,
        shape: sizes.describe(&format!("{INNER}, {STATES} states")),
        inputs: vec![
            ("u", sizes.normal("u", &[sizes.rows(), INNER], 1.0)?),
            ("packed", sizes.normal("packed", &[sizes.rows(), INNER + 2 * STATES], 0.5)?),
            ("params", Tensor::cat(&[rates, sizes.normal("skip", &[1, INNER], 1.0)?], 0)?),
        ],
        fused: function(move |t| Ok(ops::selective_scan(&t[0], &t[1], &t[2], &state, &resets)?.0)),
        plain: function(move |t| Ok(ops::selective_scan_reference(&t[0], &t[1], &t[2], &again, &same)?.0)),
        outputs: sizes.rows() * INNER,
        flop: [forward, forward + scan_work(sizes.rows(), SCAN_BACKWARD)],
        values: None,
    }
    .pairs()
}

fn gru(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let state = sizes.normal("gru state", &[sizes.batch, WIDTH], 1.0)?;
    let (again, resets) = (state.clone(), sizes.resets());
    let same = resets.clone();
    let flop = product(sizes.rows(), [WIDTH, 3 * WIDTH]);
    Operation {
        name,
        shape: sizes.describe(&WIDTH.to_string()),
        inputs: vec![
            ("x", sizes.normal("x", &[sizes.rows(), 3 * WIDTH], 1.0)?),
            ("weight", sizes.normal("weight", &[WIDTH, 3 * WIDTH], 1.0 / (WIDTH as f32).sqrt())?),
            ("bias", sizes.normal("bias", &[3 * WIDTH], 0.1)?),
        ],
        fused: function(move |t| Ok(ops::gru(&t[0], &t[1], &t[2], &state, &resets)?.0)),
        plain: function(move |t| Ok(ops::gru_reference(&t[0], &t[1], &t[2], &again, &same)?.0)),
        outputs: sizes.rows() * WIDTH,
        flop: thrice(flop),
        values: None,
    }
    .pairs()
}

/// The switches together, then one group for each column.
fn groups() -> Vec<LossGroup> {
    let mut groups = vec![LossGroup { logit: 0, column: 0, columns: SWITCHES, classes: 2 }];
    let mut logit = SWITCHES;
    for (i, classes) in COLUMNS.into_iter().enumerate() {
        groups.push(LossGroup { logit, column: SWITCHES + i, columns: 1, classes });
        logit += classes;
    }
    groups
}

fn cross_entropy(name: &str, sizes: Sizes) -> Result<[Pair; 2]> {
    let (rows, columns) = (sizes.rows(), SWITCHES + COLUMNS.len());
    let classes = indices("classes", rows, columns, |column| column.checked_sub(SWITCHES).map_or(2, |i| COLUMNS[i] as u32));
    let classes = Tensor::from_vec(classes, (rows, columns), sizes.device)?;
    let (again, groups) = (classes.clone(), groups());
    let same = groups.clone();
    let forward = rows * (LOGITS + columns + GROUPS);
    Operation {
        name,
        shape: sizes.describe(&format!("{LOGITS} logits of {GROUPS} components")),
        inputs: vec![("logits", sizes.normal("logits", &[rows, LOGITS], 2.0)?)],
        fused: function(move |t| ops::cross_entropy(&t[0], &classes, &groups, 0.1)),
        plain: function(move |t| ops::cross_entropy_reference(&t[0], &again, &same, 0.1)),
        outputs: rows * GROUPS,
        flop: thrice(LOSS * (rows * LOGITS) as f64),
        values: Some([forward, forward + rows * (2 * LOGITS + columns + GROUPS)]),
    }
    .pairs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_known_case() {
        let sizes = Sizes { batch: 2, frames: 3, device: &Device::Cpu };
        // 6 rows through 256 x 1024: 6 * 256 * 1024 multiply-adds; two more products of that size in the backward. Floats: x, weight, bias and
        // output; then these but the output once more, its gradient, and theirs.
        let [forward, both] = linear("linear", sizes, [256, 1024], Activation::None).unwrap();
        let (inputs, outputs) = (6 * 256 + 256 * 1024 + 1024, 6 * 1024);
        assert_eq!(forward.demand.work, Work::on_values(3_145_728.0, inputs + outputs));
        assert_eq!(both.demand.work, Work::on_values(9_437_184.0, 3 * inputs + 2 * outputs));
        // 6 rows of 512 floats: two inputs and an output, then three inputs and two outputs.
        let [forward, both] = gate("gate", sizes).unwrap();
        assert_eq!((forward.demand.work.bytes, both.demand.work.bytes), (36_864.0, 98_304.0));
        // 6 rows, 512 channels, 16 states.
        let [forward, both] = selective_scan("scan", sizes).unwrap();
        assert_eq!((forward.demand.work.flop, both.demand.work.flop), (786_432.0, 2_211_840.0));
    }

    #[test]
    fn a_forward_alone_keeps_no_graph() {
        let mut bound = Bound::new(
            &function(|t| ops::gate_reference(&t[0], &t[0])),
            &[("x", normal("x", &[2, 3], 1.0).unwrap())],
            Calculation::Forward,
        )
        .unwrap();
        assert!(!(bound.call)().unwrap().track_op());
        assert_eq!(bound.answers().unwrap().len(), 1);
    }
}

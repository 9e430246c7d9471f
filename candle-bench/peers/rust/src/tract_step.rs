//! tract on the step that candle-models exports, optimised for the shapes of the case. It computes on one thread, as it does by default:
//! products as small as these its pool would leave to one thread, too.

use crate::Step;
use crate::layout::{self, Named, Values};
use crate::protocol::{Case, Unavailable};
use anyhow::{Context, Result};
use tract_onnx::prelude::*;
use tract_onnx::tract_hir::infer::Factoid;
use tract_onnx::tract_hir::internal::DimLike;

pub struct Tract {
    state: TypedSimpleState,
    /// By frame, in the order of the network's inputs; nothing in the place of a state.
    frames: Vec<Vec<Option<TValue>>>,
    next: usize,
    /// For each input that is a state, the output behind the frame.
    carried: Vec<(usize, usize)>,
    /// Outputs that are answers, by name.
    answers: Vec<(String, usize)>,
    /// What the last call gave.
    found: TVec<TValue>,
}

impl Tract {
    pub fn new(case: &Case) -> Result<Self> {
        let file = case.onnx.as_ref().ok_or_else(|| Unavailable("tract runs an exported step, and there is none".to_owned()))?;
        let mut model = tract_onnx::onnx().model_for_path(file)?;
        let inputs: Vec<String> = model.input_outlets()?.iter().map(|outlet| model.node(outlet.node).name.clone()).collect();
        let outputs: Vec<String> = model.output_outlets()?.iter().map(|outlet| model.node(outlet.node).name.clone()).collect();
        let mut initial = Vec::new();
        for (i, name) in inputs.iter().enumerate() {
            let fact = model.input_fact(i)?.clone();
            let open = fact.shape.dims().skip(1).map(|dim| dim.concretize().and_then(|dim| dim.to_usize().ok()));
            let row = open.collect::<Option<Vec<usize>>>().with_context(|| format!("{name} has no fixed shape behind its batch"))?;
            let shape: Vec<usize> = std::iter::once(case.batch).chain(row).collect();
            let kind = fact.datum_type.concretize().with_context(|| format!("{name} has no type"))?;
            model.set_input_fact(i, InferenceFact::dt_shape(kind, &shape))?;
            initial.push(Tensor::zero_dt(kind, &shape)?.into_tvalue());
        }
        let optimized = model.into_optimized()?;
        let place = |name: String| outputs.iter().position(|output| *output == name).with_context(|| format!("no output {name}"));
        let mut carried = Vec::new();
        for (i, name) in inputs.iter().enumerate() {
            if let Some(state) = name.strip_prefix("state.") {
                carried.push((i, place(format!("after.{state}"))?));
            }
        }
        let given = |found: Option<&Named>| {
            let Some(Named { shape, values }) = found else { return Ok(None) };
            let tensor = match values {
                Values::Floats(values) => Tensor::from_shape(shape, values)?,
                Values::Indices(values) => Tensor::from_shape(shape, &values.iter().map(|x| i64::from(*x)).collect::<Vec<_>>())?,
            };
            // Shared: a call takes it without a copy.
            Ok(Some(TValue::from_const(tensor.into_arc_tensor())))
        };
        let frames = layout::inputs(case)?;
        let frames = frames.iter().map(|frame| inputs.iter().map(|name| given(frame.get(name))).collect()).collect::<Result<_>>()?;
        let answers = outputs.iter().enumerate();
        let answers = answers.filter_map(|(i, name)| Some((name.strip_prefix("output.")?.to_owned(), i))).collect();
        // In the place of a first call's results: states of zeros.
        let mut found: TVec<TValue> =
            outputs.iter().map(|_| Tensor::zero::<f32>(&[0]).map(Tensor::into_tvalue)).collect::<TractResult<_>>()?;
        carried.iter().for_each(|(input, output)| found[*output] = initial[*input].clone());
        Ok(Self { state: optimized.into_runnable()?.spawn()?, frames, next: 0, carried, answers, found })
    }
}

impl Step for Tract {
    fn frames(&self) -> usize {
        self.frames.len()
    }

    fn call(&mut self) -> Result<()> {
        let frame = &self.frames[self.next];
        self.next = (self.next + 1) % self.frames.len();
        let mut inputs: TVec<Option<TValue>> = frame.iter().cloned().collect();
        for (input, output) in &self.carried {
            inputs[*input] = Some(self.found[*output].clone());
        }
        let inputs = inputs.into_iter().collect::<Option<TVec<TValue>>>().context("an input that the case does not have")?;
        self.found = self.state.run(inputs)?;
        Ok(())
    }

    fn outputs(&self) -> Result<Vec<(String, Values)>> {
        let read = |(name, place): &(String, usize)| {
            let tensor = &self.found[*place];
            let values = match tensor.datum_type() == f32::datum_type() {
                true => Values::Floats(tensor.to_plain_array_view::<f32>()?.iter().copied().collect()),
                false => Values::Indices(tensor.cast_to::<i64>()?.to_plain_array_view::<i64>()?.iter().map(|x| *x as u32).collect()),
            };
            Ok((name.clone(), values))
        };
        self.answers.iter().map(read).collect()
    }
}

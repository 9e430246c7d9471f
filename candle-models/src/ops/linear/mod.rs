//! `act(x W + b)`: `x` `[rows, I]`, `W` `[I, O]`, `b` `[O]` to `[rows, O]`; on CUDA with the sum right behind it, `then(act(x W + b) + g r)`. The same layer
//! at several places of a row, `[rows, places I]` to `[rows, places O]`, is a convolution whose kernel sees one place.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tensors;

pub(crate) use tensors::{Operand, TASK_ROWS, Target, column_sums, multiply};
use tensors::{join_places, linear_at_places, split_places};
pub use tensors::{linear, linear_reference};

use super::skip::Skip;
use super::{Activation, Format, Rows, activate, activate_backward, activate_into};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tape::Weight;
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{self, Derivative, Fused, Operation, Size, TapeBuilder, TapeStep, Values, Widths, Work, operands, same_width};
use crate::{Error, Result};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// A linear layer. The weight lies as `[inputs, outputs]`, the order the product reads it in: Candle repacks a transposed
/// one at every call (20.6 instead of 199 us for 8 rows by 512 x 512).
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::nn::{Linear, Params};
/// use candle_models::random::Random;
/// # fn main() -> candle_models::Result<()> {
/// let layer = Linear::new(3, 8, &Params::init(Random::new(1), &Device::Cpu))?;
/// assert_eq!(layer.weight.dims(), [3, 8]);
/// assert!(layer.bias.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Linear {
    /// `[inputs, outputs]`.
    pub weight: Tensor,
    /// `[outputs]`.
    pub bias: Option<Tensor>,
    /// How the weight was stored: the CPU's executor keeps it so.
    pub format: Format,
}

impl Linear {
    /// Weight and bias of a layer that has both.
    pub(crate) fn pair(&self) -> Result<[&Tensor; 2]> {
        match &self.bias {
            Some(bias) => Ok([&self.weight, bias]),
            None => Err(Error::tensor("bias", "a parameter", "nothing")),
        }
    }
}

/// The operation: operands `x`, and `r` if there is one.
#[derive(Debug, Clone)]
pub struct ActivatedLinear {
    layer: Linear,
    act: Activation,
    /// Places of a row.
    places: usize,
    /// How a second operand is added behind the activation.
    residual: Option<Skip>,
}

impl ActivatedLinear {
    /// Without a sum behind it.
    pub fn new(layer: &Linear, act: Activation) -> Self {
        Self::at_places(1, layer, act)
    }

    /// At every one of some places of a row.
    pub fn at_places(places: usize, layer: &Linear, act: Activation) -> Self {
        Self { layer: layer.clone(), act, places, residual: None }
    }

    fn split<'a>(&self, x: &[&'a Tensor]) -> Result<(&'a Tensor, Option<&'a Tensor>)> {
        if self.residual.is_some() {
            let [x, residual] = operands(self.name(), x)?;
            return Ok((x, Some(residual)));
        }
        let [x] = operands(self.name(), x)?;
        Ok((x, None))
    }

    /// What is made of the activation's result on tensors.
    fn behind(&self, pass: &mut TensorPass, y: Tensor, residual: Option<&Tensor>) -> Result<Values<Tensor, Indices>> {
        match (&self.residual, residual) {
            (Some(skip), Some(residual)) => skip.reference(pass, &[&y, residual], &[]),
            _ => Ok(Values::floats(y)),
        }
    }
}

impl Operation for ActivatedLinear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let (inputs, outputs) = self.layer.weight.dims2()?;
        let [width] = operands(self.name(), &x[..1.min(x.len())])?;
        same_width("linear", width, self.places * inputs)?;
        Ok(Widths::floats(self.places * outputs))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let (x, residual) = self.split(x)?;
        let x = split_places(self.places, &x.to_dtype(self.layer.weight.dtype())?)?;
        let y = join_places(self.places, linear_reference(&x, &self.layer.weight, self.layer.bias.as_ref(), self.act)?)?;
        self.behind(pass, y, residual)
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let x = *x.first().ok_or_else(|| Error::Input("linear: no operand".to_owned()))?;
        let (inputs, outputs) = self.layer.weight.dims2()?;
        let shaped = |graph: &mut Graph, x: Value, width: usize| graph.of(Operator::Reshape(vec![-1, width as i64]), x);
        let x = if self.places == 1 { x } else { shaped(graph, x, inputs) };
        let y = graph.linear(x, &self.layer)?;
        let y = self.act.formula(graph, y);
        graph::floats(if self.places == 1 { y } else { shaped(graph, y, self.places * outputs) })
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let (x, residual) = self.split(x)?;
        let (places, bias, act) = (self.places, self.layer.bias.as_ref(), self.act);
        let x = x.to_dtype(self.layer.weight.dtype())?;
        let y = emulated([&x, &self.layer.weight], |[x, weight]| Ok(linear_at_places(places, x, weight, bias, act)?))?;
        self.behind(pass, y, residual)
    }

    /// A sum right behind the product is the product's residual: one kernel on CUDA. On the CPU it would be one more pass over a block that
    /// lies in the cache anyway.
    fn absorb(&self, own: &Wires, (next, sum): (&dyn Operation, &Wires), target: exec::Target) -> Option<Fused> {
        let ([x], [product], [a, b], None) = (&own.x[..], &own.out[..], &sum.x[..], &self.residual) else { return None };
        if !matches!(target, exec::Target::Cuda { .. }) || (a == product) == (b == product) {
            return None;
        }
        let skip = match (next.downcast_ref::<Skip>(), next.downcast_ref::<super::Add>()) {
            (Some(skip), _) => skip.clone(),
            (_, Some(_)) => Skip { gain: None, act: Activation::None },
            _ => return None,
        };
        // The gain is that of the second operand, and has a value for each output of the layer.
        let outputs = own.out[0].width / self.places;
        if skip.gain.as_ref().is_some_and(|gain| b == product || gain.elem_count() != outputs) {
            return None;
        }
        let residual = if a == product { b } else { a };
        Some((Arc::new(Self { residual: Some(skip), ..self.clone() }), Wires { x: vec![*x, *residual], ..sum.clone() }))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        if self.residual.is_some() {
            return Ok(None);
        }
        let (x, out, act, places) = (wires.x[0], wires.out[0], self.act, self.places);
        let matrix = packer.pack(&self.layer, x.width / places)?;
        Ok(Some(Box::new(move |frame, threads| {
            cpu::product_at_places(threads, &matrix, act, places, frame.rows(x), frame.output(out));
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut exec::cuda::Compiler) -> Result<Option<exec::cuda::Run>> {
        use super::cuda::product::{Behind, Operand, product};
        use crate::cuda::Matrix;
        let (x, residual, out, act) = (wires.x[0], wires.x.get(1).copied(), wires.out[0], self.act);
        let (weight, bias) = (compiler.matrix(&self.layer.weight)?, compiler.vector_or_none(self.layer.bias.as_ref())?);
        let gain = compiler.vector_or_none(self.residual.as_ref().and_then(|skip| skip.gain.as_ref()))?;
        let then = self.residual.as_ref().map_or(Activation::None, |skip| skip.act);
        compiler.reserve(x, out.width);
        let places = self.places;
        // The places of all rows are rows where those lie one behind the other: others are copied so.
        let mut together = |slot: Slot| if places > 1 { (slot, compiler.scratch(slot.width)) } else { (slot, slot) };
        let (x, out, residual) = (together(x), together(out), residual.map(together));
        Ok(Some(Box::new(move |pass| {
            let place = |(slot, copy): (Slot, Slot)| if pass.matrix(slot).stride as usize == slot.width { slot } else { copy };
            let bring = |pair: (Slot, Slot)| {
                let at = place(pair);
                if at != pair.0 {
                    pass.copy(pair.0, at)?;
                }
                Ok::<_, Error>(at)
            };
            let (from, residual, to) = (bring(x)?, residual.map(bring).transpose()?, place(out));
            let at_places = |slot: Slot| {
                let operand = pass.operand(slot);
                let width = (slot.width / places) as u32;
                let stride = if places == 1 { operand.matrix.stride } else { width };
                Operand { matrix: Matrix { width, stride, ..operand.matrix }, ..operand }
            };
            let behind = Behind { bias, act, residual: residual.map_or(Operand::NONE, at_places), gain, then, ..Behind::NOTHING };
            let operands = (at_places(from), weight, at_places(to));
            // SAFETY: the plan gives every matrix of a pass its rows, and the weights live as long as the steps.
            unsafe { product(pass.gpu, pass.dtype, operands, pass.rows() * places, &behind, pass.product) }?;
            if to == out.0 { Ok(()) } else { pass.copy(to, out.0) }
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        if self.residual.is_some() {
            return Ok(None);
        }
        let (x, out, act, places) = (wires.x[0], wires.out[0], self.act, self.places);
        if places > 1 && !(tape.is_whole(x) && tape.is_whole(out)) {
            return Err(Error::Input("a layer at places of some columns of a matrix: a tape has none".to_owned()));
        }
        let before = matches!(act, Activation::Gelu | Activation::Silu).then(|| tape.matrix(out.width));
        let weight = tape.weight_at_places(&self.layer, places, [x, out])?;
        tape.scratch(x.width);
        if act != Activation::None {
            tape.keep_values(before.unwrap_or(out));
        }
        Ok(Some(Box::new(OnTape { x, out, act, places, before, weight })))
    }

    #[cfg(feature = "cuda")]
    fn differentiate_on_gpu(&self, wires: &Wires, tape: &mut exec::tape::cuda::Builder) -> Option<Box<dyn exec::tape::cuda::Derivative>> {
        if self.act != Activation::None || self.residual.is_some() || self.places > 1 || !tape.fits(&self.layer) {
            return None;
        }
        let (x, out) = (tape.matrix(&wires.x[0])?, tape.matrix(&wires.out[0])?);
        tape.product(&self.layer, (x, false), exec::tape::cuda::GradOf::Matrix(out));
        if let Some(bias) = &self.layer.bias {
            tape.prefill(out, bias);
        }
        Some(Box::new(cuda::OnTape { x, out, layer: self.layer.clone() }))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let [inputs, outputs] = [wires.x[0], wires.out[0]].map(|slot| slot.width / self.places);
        let (name, weights) = size.stored(&self.layer, inputs, outputs);
        let each = 2.0 * (inputs * outputs) as f64 + self.act.operations() * outputs as f64;
        Ok(Work {
            name: self.name(),
            flop: size.rows() * self.places as f64 * each,
            bytes: weights + size.values(wires),
            weights: Some(name),
        })
    }
}

/// The layer on a tape. `before` is what an activation was applied to, where its derivative does not follow from its result.
struct OnTape {
    x: Slot,
    out: Slot,
    act: Activation,
    places: usize,
    before: Option<Slot>,
    weight: Arc<Weight>,
}

/// Values of a block of places, which go through all of a step's work while they are in the cache.
const BLOCK: usize = 16_384;

impl OnTape {
    /// The rows of the product in blocks: those of a layer without places are one block, so that its weights are read once.
    fn blocks(&self, rows: usize) -> impl Iterator<Item = Range<usize>> {
        let (rows, each) = match self.places {
            1 => (rows, rows),
            places => (rows * places, (BLOCK * places / self.x.width.max(self.out.width)).max(64)),
        };
        (0..rows).step_by(each.max(1)).map(move |first| first..rows.min(first + each))
    }

    /// The rows of `x` that a block of the product reads.
    fn block<'a>(&self, x: Rows<'a>, block: &Range<usize>) -> Rows<'a> {
        let (width, stride) = (self.x.width / self.places, if self.places == 1 { x.stride } else { self.x.width / self.places });
        Rows { data: &x.data[block.start * stride..], rows: block.len(), width, stride }
    }
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        let width = self.out.width / self.places;
        let rows = step.rows();
        step.with_values(self.out, |step, out| {
            let Some(before) = self.before else {
                self.weight.multiply(self.block(step.value(self.x), &(0..rows * self.places)), out);
                return activate(self.act, out);
            };
            step.with_values(before, |step, before| {
                for block in self.blocks(rows) {
                    let values = block.start * width..block.end * width;
                    self.weight.multiply(self.block(step.value(self.x), &block), &mut before[values.clone()]);
                    activate_into(self.act, &before[values.clone()], &mut out[values]);
                }
            });
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        let [inputs, outputs] = [self.x, self.out].map(|slot| slot.width / self.places);
        let rows = step.rows();
        step.with_grads(self.out, |step, dy, scratch| {
            for block in self.blocks(rows) {
                let [from, values] = [inputs, outputs].map(|width| block.start * width..block.end * width);
                let dy = &mut dy[values.clone()];
                if self.act != Activation::None {
                    activate_backward(self.act, &step.all(self.before.unwrap_or(self.out))[values], dy);
                }
                step.with_sums(|step, sums| self.weight.add_sums(self.block(step.value(self.x), &block), dy, sums));
                if let Some(dx) = step.grad_in_place(self.x) {
                    self.weight.multiply_transposed(dy, &mut dx[from]);
                    continue;
                }
                let dx = &mut scratch[..from.len()];
                self.weight.multiply_transposed(dy, dx);
                if self.places == 1 {
                    step.deliver(self.x, dx);
                } else {
                    step.deliver_part(self.x, (0, from.start), dx);
                }
            }
        });
    }
}

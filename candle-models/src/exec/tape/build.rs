//! What the operations of a tape ask for while it is made, as data: memory, parameters, and products with weights.

use super::memory::{Matrix, Of};
use super::{Derivative, Differentiable, Parameters, Tape, Weight};
use crate::exec::program::{self, Slot};
use crate::ops::{Linear, Rows};
use crate::{Error, Result};
use candle_core::Tensor;
use std::ops::Range;
use std::sync::Arc;

/// Places of a row that are rows enough for a product.
const MANY_PLACES: usize = 256;

/// A weight whose gradient is `x^T dy` over all rows and steps.
pub(crate) struct Product {
    pub weight: Arc<Weight>,
    pub x: Slot,
    /// A matrix whose gradients make that of the weight.
    pub dy: Slot,
    /// Rows of the product in a row of the matrices.
    pub groups: usize,
    /// Whether `x` is what the step before made, and zero before the first.
    pub from_before: bool,
}

impl Product {
    /// The weight, and all rows of a tape whose product its gradient is.
    pub(super) fn operands<'a>(&'a self, net: &Differentiable, tape: &'a Tape) -> Option<(&'a Weight, [Rows<'a>; 2])> {
        let (x, dy) = (tape.all(net, Of::Values, self.x), tape.all(net, Of::Grads, self.dy));
        if self.from_before {
            let later = (tape.steps > 1).then(|| (tape.steps - 1) * tape.rows)?;
            return Some((&self.weight, [Rows { rows: later, ..x }, Rows { data: &dy.data[tape.rows * dy.stride..], rows: later, ..dy }]));
        }
        let split = |m: Rows<'a>| match self.groups {
            1 => m,
            groups => Rows { rows: m.rows * groups, width: m.width / groups, stride: m.width / groups, ..m },
        };
        Some((&self.weight, [split(x), split(dy)]))
    }
}

/// A tape in the making.
pub struct TapeBuilder {
    pub(super) matrices: Vec<Matrix>,
    pub(super) parameters: Parameters,
    pub(super) uses: Vec<Product>,
    pub(super) scratch: usize,
    /// By operation, up to the one at hand.
    pub(super) carried: Vec<usize>,
    /// Operations that make nothing but inputs into what they give: their gradients are for the inputs alone.
    pub(super) of_inputs: Vec<bool>,
    /// Buffers of the inputs, and of what such operations give.
    inputs: Vec<usize>,
}

impl TapeBuilder {
    pub(super) fn new(matrices: Vec<Matrix>, parameters: Parameters, inputs: &[Slot]) -> Self {
        let inputs = inputs.iter().map(|slot| slot.buffer).collect();
        Self { matrices, parameters, uses: Vec::new(), scratch: 0, carried: Vec::new(), of_inputs: Vec::new(), inputs }
    }

    pub(super) fn node(&mut self, node: &program::Node) -> Result<Box<dyn Derivative>> {
        self.carried.push(0);
        let (wires, asked) = (&node.wires, self.asked());
        let derivative = node.op.differentiate(wires, self)?;
        let of_inputs = self.asked() == asked && wires.states.is_empty() && wires.x.iter().all(|slot| self.inputs.contains(&slot.buffer));
        if of_inputs {
            self.inputs.extend(wires.out.iter().map(|slot| slot.buffer));
        }
        self.of_inputs.push(of_inputs);
        derivative.ok_or_else(|| Error::Input(format!("no derivative through time of the operation {}", node.op.name())))
    }

    /// How often operations asked for the place of a parameter.
    fn asked(&self) -> usize {
        self.parameters.summed.asked + self.parameters.multiplied.asked
    }

    /// A matrix of the tape's own, to whose gradient nobody adds.
    pub(crate) fn matrix(&mut self, width: usize) -> Slot {
        self.matrices.push(Matrix::of(width, self.carried.len() - 1));
        Slot { buffer: self.matrices.len() - 1, start: 0, width }
    }

    /// Whether a slot is all columns of its matrix.
    pub(crate) fn is_whole(&self, slot: Slot) -> bool {
        slot.width == self.matrices[slot.buffer].width
    }

    /// Takes what an operation works in on the CPU as a matrix of the tape's own.
    pub(crate) fn own(&mut self, scratch: Slot) {
        self.matrices[scratch.buffer].read_once = true;
    }

    /// The values of all steps are read again backwards.
    pub(crate) fn keep_values(&mut self, slot: Slot) {
        self.matrices[slot.buffer].keeps_values = true;
    }

    /// Room for so many values a row to work in.
    pub(crate) fn scratch(&mut self, width: usize) {
        self.scratch = self.scratch.max(width);
    }

    /// A gradient of so many values a row goes from a step to the step before.
    pub(crate) fn carry(&mut self, width: usize) {
        *self.carried.last_mut().expect("an operation asks for it") = width;
    }

    /// The place of a parameter's gradient among those that are summed on the way.
    pub(crate) fn sum(&mut self, parameter: &Tensor) -> Range<usize> {
        self.parameters.summed.of(parameter)
    }

    /// A layer's weight, packed.
    pub(crate) fn weight(&mut self, layer: &Linear) -> Result<Arc<Weight>> {
        if self.parameters.summed.has(&layer.weight) {
            return Err(Error::Input(
                "a weight at many places of a row is another operation's as well: a tape has no sum of both".to_owned(),
            ));
        }
        Ok(Arc::new(Weight::new(layer, false, &mut self.parameters)?))
    }

    /// The weight of a layer that makes `out` of `x` at so many places of a row. Where these are many, its gradient is summed on the way, while the row lies in
    /// the cache ([`Weight::add_sums`]); else it is a product behind all steps, which then has more rows.
    pub(crate) fn weight_at_places(&mut self, layer: &Linear, places: usize, [x, out]: [Slot; 2]) -> Result<Arc<Weight>> {
        let known = [&self.parameters.summed, &self.parameters.multiplied].map(|places| places.has(&layer.weight));
        let summed = known[0] || !known[1] && places >= MANY_PLACES;
        let weight = Arc::new(Weight::new(layer, summed, &mut self.parameters)?);
        if summed {
            self.keep_values(x);
        } else {
            self.product(Product { weight: weight.clone(), x, dy: out, groups: places, from_before: false });
        }
        Ok(weight)
    }

    /// The weights of a stack of matrices `[..., inputs, outputs]`, packed.
    pub(crate) fn weights(&mut self, stack: &Tensor) -> Result<Vec<Arc<Weight>>> {
        Ok(Weight::stack(stack, &mut self.parameters)?.into_iter().map(Arc::new).collect())
    }

    /// A product with a weight: its operands and gradients of all steps are kept, and make the weight's gradient at once.
    pub(crate) fn product(&mut self, product: Product) {
        self.keep_values(product.x);
        self.matrices[product.dy.buffer].keeps_grads = true;
        self.uses.push(product);
    }
}

//! Matrices side by side, of floats and of indices: `[rows, W_0]`, `[rows, W_1]` ... to `[rows, sum of W_i]`.

use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, TapeStep, Values, Widths, Work};
use candle_core::Tensor;

/// Of floats.
#[derive(Debug, Clone, Copy)]
pub struct Join;

/// Of indices.
#[derive(Debug, Clone, Copy)]
pub struct JoinIndices;

impl Operation for Join {
    fn name(&self) -> &'static str {
        "join"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        Ok(Widths::floats(x.iter().sum()))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        Ok(Values::floats(Tensor::cat(x, 1)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        graph::floats(graph.node(Operator::Concat { axis: 1 }, x))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (parts, out) = (wires.x.clone(), wires.out[0]);
        Ok(Some(Box::new(move |frame, _| {
            for r in 0..frame.rows {
                // SAFETY: this step has one part.
                let mut row = unsafe { frame.row_mut(out, r) };
                for part in &parts {
                    let (to, rest) = row.split_at_mut(part.width);
                    to.copy_from_slice(frame.row(*part, r));
                    row = rest;
                }
            }
            Ok(())
        })))
    }

    /// Copies the parts that are not written in their place.
    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let mut start = 0;
        let mut copies = Vec::new();
        for part in &wires.x {
            let to = wires.out[0].columns(start, part.width);
            start += part.width;
            if !compiler.is_same_place(*part, to) {
                copies.push((*part, to));
            }
        }
        Ok(Some(Box::new(move |pass| copies.iter().try_for_each(|(from, to)| pass.copy(*from, *to)))))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        wires.x.iter().for_each(|part| tape.scratch(part.width));
        Ok(Some(Box::new(OnTape { parts: wires.x.clone(), out: wires.out[0] })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: 0.0, bytes: 2.0 * size.floats(&wires.out), weights: None })
    }

    fn joins(&self) -> bool {
        true
    }
}

struct OnTape {
    parts: Vec<Slot>,
    out: Slot,
}

impl Derivative for OnTape {
    fn forward(&self, step: &mut TapeStep) {
        step.with_values(self.out, |step, out| {
            for (r, mut row) in out.chunks_exact_mut(self.out.width).enumerate() {
                for part in &self.parts {
                    let (to, rest) = row.split_at_mut(part.width);
                    to.copy_from_slice(step.value(*part).row(r));
                    row = rest;
                }
            }
        });
    }

    fn backward(&self, step: &mut TapeStep) {
        step.with_grads(self.out, |step, dy, scratch| {
            let mut start = 0;
            for part in &self.parts {
                let dx = &mut scratch[..step.rows() * part.width];
                for (to, from) in dx.chunks_exact_mut(part.width).zip(dy.chunks_exact(self.out.width)) {
                    to.copy_from_slice(&from[start..start + part.width]);
                }
                step.deliver(*part, dx);
                start += part.width;
            }
        });
    }
}

impl Operation for JoinIndices {
    fn name(&self) -> &'static str {
        "join-indices"
    }

    fn widths(&self, _: &[usize], ids: &[usize]) -> Result<Widths> {
        Ok(Widths::indices(ids.iter().sum()))
    }

    fn reference(&self, _: &mut TensorPass, _: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        Ok(Values::indices(Indices::join(ids)))
    }

    fn formula(&self, graph: &mut Graph, _: &[Value], ids: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        Ok(Some(Values::indices(graph.node(Operator::Concat { axis: 1 }, ids))))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (parts, out) = (wires.ids.clone(), wires.out_ids[0]);
        Ok(Some(Box::new(move |frame, _| {
            for r in 0..frame.rows {
                // SAFETY: this step has one part, and every index matrix has a place of its own.
                let mut row = unsafe { frame.ids_mut(out, r) };
                for part in &parts {
                    let (to, rest) = row.split_at_mut(part.columns);
                    to.copy_from_slice(frame.ids(*part, r));
                    row = rest;
                }
            }
            Ok(())
        })))
    }

    /// Copies the parts that are not written in their place: those that are inputs, or that another join has.
    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (out, mut start, mut copies) = (wires.out_ids[0], 0, Vec::new());
        for part in &wires.ids {
            if !compiler.stands_in(*part, out, start) {
                copies.push((*part, start));
            }
            start += part.columns;
        }
        Ok(Some(Box::new(move |pass| copies.iter().try_for_each(|(part, start)| pass.copy_indices(*part, out, *start)))))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        Ok(Work { name: self.name(), flop: 0.0, bytes: 2.0 * size.indices(&wires.out_ids), weights: None })
    }

    fn joins(&self) -> bool {
        true
    }
}

//! The indices of the frame before: `ids` `[rows, columns]`, state `[columns]`. In the first frame of a sequence, which has none before it, its
//! own.
//!
//! The state holds each index of the last frame plus one, in floats: a state begins with zeros, and a zero stands for "no frame yet".

#[cfg(feature = "cuda")]
mod cuda;

use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Operation, Size, Values, Widths, Work, operands};
use crate::{Error, Result};
use candle_core::{DType, Tensor};

/// The operation: operand `ids`, one state.
///
/// ```
/// use candle_models::candle_core::{DType, Device, Tensor};
/// use candle_models::exec::{Executor, tensors::TensorExecutor};
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let ids = Tensor::new(&[[[3u32], [4], [5]]], &Device::Cpu)?; // one sequence of three frames
/// let inputs = NamedTensors::from_iter([("ids".to_owned(), ids)]);
/// let state = vec![Tensor::zeros((1, 1), DType::F32, &Device::Cpu)?];
/// let mut e = TensorExecutor::new(&inputs, &[false; 3], state, &Device::Cpu);
/// let ids = e.indices("ids")?;
/// assert_eq!(e.before(&ids, 0)?.values(), [3, 3, 4]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Before;

/// The index of the frame before, from the state, and the state behind the frame.
fn step(index: u32, state: &mut f32) -> u32 {
    let before = if *state > 0.0 { *state as u32 - 1 } else { index };
    *state = index as f32 + 1.0;
    before
}

impl Operation for Before {
    fn name(&self) -> &'static str {
        "before"
    }

    fn widths(&self, _: &[usize], ids: &[usize]) -> Result<Widths> {
        let [columns] = operands(self.name(), ids)?;
        Ok(Widths::indices(columns))
    }

    fn reference(&self, pass: &mut TensorPass, _: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let [ids] = operands(self.name(), ids)?;
        let (state, resets) = (pass.state(0)?.clone(), pass.resets());
        let (batch, columns) = state.dims2()?;
        let rows = ids.values().len() / ids.width();
        if columns != ids.width() || batch == 0 || rows % batch != 0 || resets.len() != rows {
            return Err(Error::Input(format!("before: {rows} rows of {} indices for a state {:?}", ids.width(), state.dims())));
        }
        let mut after = state.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let mut before = Vec::with_capacity(ids.values().len());
        for (r, row) in ids.rows().enumerate() {
            let state = &mut after[r / (rows / batch) * columns..][..columns];
            if resets[r] {
                state.fill(0.0);
            }
            before.extend(row.iter().zip(state).map(|(index, state)| step(*index, state)));
        }
        pass.set_state(0, Tensor::from_vec(after, (batch, columns), state.device())?.to_dtype(state.dtype())?)?;
        Ok(Values::indices(Indices::new(before, columns)))
    }

    fn formula(&self, graph: &mut Graph, _: &[Value], ids: &[Value], states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([ids], [state]) = (operands(self.name(), ids)?, operands(self.name(), states)?);
        let (zero, one) = (graph.float(0.0), graph.float(1.0));
        let kept = graph.sub(state, one);
        let kept = graph.of(Operator::CastToInt, kept);
        let known = graph.node(Operator::Less, &[zero, state]);
        let before = graph.node(Operator::Where, &[known, kept, ids]);
        let floats = graph.of(Operator::CastToFloat, ids);
        states[0] = graph.add(floats, one);
        Ok(Some(Values::indices(before)))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (ids, state, out) = (wires.ids[0], wires.states[0], wires.out_ids[0]);
        Ok(Some(Box::new(move |frame, _| {
            for b in 0..frame.batch() {
                // SAFETY: this step has one part.
                let state = unsafe { frame.state(b, state) };
                for t in 0..frame.steps {
                    if frame.resets(b)[t] {
                        state.fill(0.0);
                    }
                    let row = b * frame.steps + t;
                    // SAFETY: as above, and every index matrix has a place of its own.
                    let before = unsafe { frame.ids_mut(out, row) };
                    for ((before, index), state) in before.iter_mut().zip(frame.ids(ids, row)).zip(state.iter_mut()) {
                        *before = step(*index, state);
                    }
                }
            }
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, _: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (ids, state, out) = (wires.ids[0], wires.states[0], wires.out_ids[0]);
        Ok(Some(Box::new(move |pass| {
            let args = cuda::Before {
                ids: pass.index(ids, 0, ids.columns),
                out: pass.index(out, 0, out.columns),
                state: pass.state(state),
                resets: pass.resets(),
                steps: pass.steps as u32,
            };
            // SAFETY: the plan gives every matrix of a pass its rows; every sequence has a slot.
            Ok(unsafe { args.launch(pass.gpu, pass.batch) }?)
        })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        // Indices and states of four bytes, each read and written once.
        let bytes = size.rows() * 4.0 * (2 * wires.out_ids[0].columns) as f64 + size.values(wires);
        Ok(Work { name: self.name(), flop: 0.0, bytes, weights: None })
    }
}

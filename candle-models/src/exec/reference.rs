//! What an executor does with an operation that it has no kernel for: the operation's form on tensors, on the host.

use super::Executor;
use super::operation::{Operation, Values};
use super::program::{Node, Wires};
use super::tensors::{Indices, TensorExecutor};
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

/// An operation of a program without a kernel.
pub(super) struct Fallback {
    op: Arc<dyn Operation>,
    pub wires: Wires,
    /// Shapes of its states.
    shapes: Vec<Vec<usize>>,
}

/// What it reads in a pass over `rows` rows: rows one behind the other, matrix by matrix; states by sequence.
pub(super) struct Operands {
    pub x: Vec<Vec<f32>>,
    pub ids: Vec<Vec<u32>>,
    pub states: Vec<Vec<f32>>,
    /// One a row.
    pub resets: Vec<bool>,
}

/// What it has made, in the same order.
pub(super) struct Results {
    pub out: Vec<Vec<f32>>,
    pub out_ids: Vec<Vec<u32>>,
    pub states: Vec<Vec<f32>>,
}

impl Fallback {
    pub fn new(node: &Node, signature: &Signature) -> Self {
        let shapes = node.wires.states.iter().map(|state| signature.state[state.number].shape.clone()).collect();
        Self { op: node.op.clone(), wires: node.wires.clone(), shapes }
    }

    /// One pass over `batch` sequences.
    ///
    /// # Errors
    /// If the operation fails, or its results are not as wide as it has said.
    pub fn run(&self, operands: Operands, batch: usize) -> Result<Results> {
        let (wires, rows) = (&self.wires, operands.resets.len());
        let matrix = |(values, slot): (Vec<f32>, &super::program::Slot)| Tensor::from_vec(values, (rows, slot.width), &Device::Cpu);
        let x = operands.x.into_iter().zip(&wires.x).map(matrix).collect::<candle_core::Result<Vec<_>>>()?;
        let ids: Vec<Indices> = operands.ids.into_iter().zip(&wires.ids).map(|(v, slot)| Indices::new(v, slot.columns)).collect();
        let state = |(values, shape): (Vec<f32>, &Vec<usize>)| Tensor::from_vec(values, [&[batch], &shape[..]].concat(), &Device::Cpu);
        let states = operands.states.into_iter().zip(&self.shapes).map(state).collect::<candle_core::Result<Vec<_>>>()?;
        let none = NamedTensors::new();
        let mut executor = TensorExecutor::new(&none, &operands.resets, states, &Device::Cpu);
        let numbers: Vec<usize> = (0..self.shapes.len()).collect();
        let (x, ids): (Vec<&Tensor>, Vec<&Indices>) = (x.iter().collect(), ids.iter().collect());
        let Values { floats, ids } = executor.run(self.op.clone(), &x, &ids, &numbers)?;
        let states = executor.into_states().iter().map(flat).collect::<Result<_>>()?;
        let widths = (floats.iter().map(|x| x.dims().to_vec()).collect::<Vec<_>>(), ids.iter().map(Indices::width).collect::<Vec<_>>());
        let expected = (
            wires.out.iter().map(|slot| vec![rows, slot.width]).collect::<Vec<_>>(),
            wires.out_ids.iter().map(|slot| slot.columns).collect::<Vec<_>>(),
        );
        if widths != expected {
            return Err(Error::Input(format!("{}: expected results of {expected:?}, found {widths:?}", self.op.name())));
        }
        let out = floats.iter().map(flat).collect::<Result<_>>()?;
        Ok(Results { out, out_ids: ids.iter().map(|ids| ids.values().to_vec()).collect(), states })
    }
}

fn flat(tensor: &Tensor) -> Result<Vec<f32>> {
    Ok(tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::cpu::CpuExecutor;
    use crate::exec::program::{Output, Program, Recorder, Sequence};
    use crate::exec::tensors::TensorPass;
    use crate::exec::{Target, Widths, operands};
    use crate::ops::Products;
    use crate::signature::TensorSpec;

    /// Adds what is read to its state, scaled by an index, and counts frames since the reset in another index: a reference and nothing else.
    #[derive(Debug, Clone, Copy)]
    struct Sums;

    impl Operation for Sums {
        fn name(&self) -> &'static str {
            "sums"
        }

        fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths> {
            let ([x], [_]) = (operands::<_, 1>(self.name(), x)?, operands::<_, 1>(self.name(), ids)?);
            Ok(Widths { out: vec![x], out_ids: vec![1], scratch: Vec::new() })
        }

        fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
            let ([x], [ids]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
            let (rows, mut state) = (x.to_vec2::<f32>()?, pass.state(0)?.to_vec2::<f32>()?);
            let (steps, mut y, mut counts) = (rows.len() / state.len(), Vec::new(), Vec::new());
            for (r, (row, ids)) in rows.iter().zip(ids.rows()).enumerate() {
                let state = &mut state[r / steps];
                if pass.resets()[r] {
                    state.fill(0.0);
                }
                state.iter_mut().zip(row).for_each(|(s, x)| *s += x * ids[0] as f32);
                *state.last_mut().unwrap() += 1.0;
                y.push(state[..row.len()].to_vec());
                counts.push(*state.last().unwrap() as u32);
            }
            pass.set_state(0, Tensor::new(state, &Device::Cpu)?)?;
            Ok(Values { floats: vec![Tensor::new(y, &Device::Cpu)?], ids: vec![Indices::new(counts, 1)] })
        }
    }

    #[test]
    fn an_operation_with_nothing_but_its_reference_runs_on_the_cpu() {
        let signature = Signature {
            inputs: vec![TensorSpec::f32("x", &[2]), TensorSpec::u32("factor", &[1])],
            outputs: vec![TensorSpec::f32("y", &[2]), TensorSpec::u32("count", &[1])],
            state: vec![TensorSpec::f32("other", &[4]), TensorSpec::f32("sums", &[3])],
        };
        let record = |recorder: &mut Recorder| {
            let (x, factor) = (recorder.input("x")?, recorder.indices("factor")?);
            let twice = recorder.add(&x, &x)?;
            let Values { floats, ids } = recorder.run(Arc::new(Sums), &[&twice], &[&factor], &[1])?;
            Ok(vec![Output::Floats(floats[0]), Output::Indices(ids[0])])
        };
        let program = Program::new(&signature, Target::Cpu, record).unwrap();
        let mut executor = CpuExecutor::new(program, (2, 3), 2, Products::F32).unwrap();
        assert_eq!(executor.on_tensors(), ["sums"]);
        let floats = [[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [7.0, 8.0, 9.0, 10.0, 11.0, 12.0]];
        let (indices, resets) = ([[1u32, 2, 3], [1, 1, 1]], [[false, false, true], [false; 3]]);
        let mut state = [[9.0f32, 9.0, 9.0, 9.0, 0.5, 0.0, 4.0], [0.0; 7]];
        let (mut y, mut count) = ([[0.0f32; 6]; 2], [[0u32; 3]; 2]);
        let sequence = |b: usize| Sequence {
            slot: b as u32,
            floats: &raw const floats[b][..],
            indices: &raw const indices[b][..],
            resets: &raw const resets[b][..],
            state: &raw mut state[b][..],
            out_floats: &raw mut y[b][..],
            out_indices: &raw mut count[b][..],
        };
        let sequences: Vec<Sequence> = (0..2).map(sequence).collect();
        // SAFETY: the slices are as long as the signature says, outlive the pass, and nobody else uses them.
        unsafe { executor.execute(&sequences) }.unwrap();
        assert_eq!(y, [[2.5, 4.0, 14.5, 20.0, 30.0, 36.0], [14.0, 16.0, 32.0, 36.0, 54.0, 60.0]]);
        assert_eq!(count, [[5, 6, 1], [1, 2, 3]]);
        assert_eq!(state, [[9.0, 9.0, 9.0, 9.0, 30.0, 36.0, 1.0], [0.0, 0.0, 0.0, 0.0, 54.0, 60.0, 3.0]]);
    }

    #[test]
    fn an_operation_that_makes_other_widths_than_it_says_is_an_error() {
        #[derive(Debug, Clone, Copy)]
        struct Liar;
        impl Operation for Liar {
            fn name(&self) -> &'static str {
                "liar"
            }
            fn widths(&self, _: &[usize], _: &[usize]) -> Result<Widths> {
                Ok(Widths::floats(3))
            }
            fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
                Ok(Values::floats(x[0].clone()))
            }
        }
        let wires = Wires { x: vec![slot(0, 2)], out: vec![slot(1, 3)], ..Wires::default() };
        let signature = Signature { inputs: Vec::new(), outputs: Vec::new(), state: Vec::new() };
        let fallback = Fallback::new(&Node { op: Arc::new(Liar), wires }, &signature);
        let operands = Operands { x: vec![vec![1.0, 2.0]], ids: Vec::new(), states: Vec::new(), resets: vec![false] };
        let error = fallback.run(operands, 1).err().unwrap().to_string();
        assert!(error.contains("liar: expected results of ([[1, 3]], []), found ([[1, 2]], [])"), "{error}");
    }

    fn slot(buffer: usize, width: usize) -> crate::exec::program::Slot {
        crate::exec::program::Slot { buffer, start: 0, width }
    }
}

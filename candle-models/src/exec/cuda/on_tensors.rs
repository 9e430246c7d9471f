//! The step of an operation without kernels: what it reads comes to the host, and what its form on tensors makes goes back.

use super::driver;
use super::plan::Pass;
use super::steps::Run;
use crate::Result;
use crate::cuda::{Matrix, States};
use crate::exec::reference::{Fallback, Operands, Results};
use crate::ops::cuda::product::Operand;
use candle_core::DType;
use candle_core::cuda_backend::cudarc::driver::result;
use half::{bf16, f16};

pub(super) fn step(fallback: Fallback) -> Run {
    Box::new(move |pass| {
        let wires = &fallback.wires;
        synchronize(pass)?;
        let states = wires.states.iter().map(|place| (pass.state(*place), place.width)).collect::<Vec<_>>();
        let operands = Operands {
            x: wires.x.iter().map(|slot| floats(pass, pass.operand(*slot))).collect::<Result<_>>()?,
            ids: wires.ids.iter().map(|slot| words(pass, pass.index(*slot, 0, slot.columns))).collect::<Result<_>>()?,
            states: states.iter().map(|(states, width)| read_states(pass, *states, *width)).collect::<Result<_>>()?,
            resets: read::<u8>(pass, pass.resets(), pass.rows())?.into_iter().map(|reset| reset != 0).collect(),
        };
        let Results { out, out_ids, states: after } = fallback.run(operands, pass.batch)?;
        for (slot, values) in wires.out.iter().zip(&out) {
            write_floats(pass, pass.operand(*slot), values)?;
        }
        for (slot, values) in wires.out_ids.iter().zip(&out_ids) {
            write_rows(pass, pass.index(*slot, 0, slot.columns), values)?;
        }
        for ((states, width), values) in states.iter().zip(&after) {
            for (b, values) in values.chunks_exact(*width).enumerate() {
                write(pass, address_of(pass, *states, b)?, values)?;
            }
        }
        synchronize(pass)
    })
}

fn synchronize(pass: &Pass) -> Result<()> {
    pass.gpu.stream().synchronize().map_err(|e| driver("an operation on tensors", &e))
}

fn read<T: Clone + Default>(pass: &Pass, address: u64, count: usize) -> Result<Vec<T>> {
    let mut values = vec![T::default(); count];
    pass.gpu.stream().context().bind_to_thread().map_err(|e| driver("an operand", &e))?;
    // SAFETY: the plan has these values at the address, all bits are numbers, and the copy is waited for.
    unsafe { result::memcpy_dtoh_async(&mut values, address, pass.gpu.stream().cu_stream()) }.map_err(|e| driver("an operand", &e))?;
    synchronize(pass)?;
    Ok(values)
}

fn write<T>(pass: &Pass, address: u64, values: &[T]) -> Result<()> {
    pass.gpu.stream().context().bind_to_thread().map_err(|e| driver("a result", &e))?;
    // SAFETY: the plan has room for the values at the address, and the copy is waited for before they go.
    unsafe { result::memcpy_htod_async(address, values, pass.gpu.stream().cu_stream()) }.map_err(|e| driver("a result", &e))?;
    synchronize(pass)
}

/// All rows of a matrix, one behind the other.
fn rows<T: Copy + Default>(pass: &Pass, matrix: Matrix) -> Result<Vec<T>> {
    let (rows, stride, width) = (pass.rows(), matrix.stride as usize, matrix.width as usize);
    let all = read::<T>(pass, matrix.data, (rows - 1) * stride + width)?;
    Ok(all.chunks(stride).flat_map(|row| &row[..width]).copied().collect())
}

fn write_rows<T: Copy>(pass: &Pass, matrix: Matrix, values: &[T]) -> Result<()> {
    let each = u64::from(matrix.stride) * size_of::<T>() as u64;
    values.chunks_exact(matrix.width as usize).enumerate().try_for_each(|(r, row)| write(pass, matrix.data + r as u64 * each, row))
}

fn words(pass: &Pass, matrix: Matrix) -> Result<Vec<u32>> {
    rows(pass, matrix)
}

fn floats(pass: &Pass, Operand { matrix, wide }: Operand) -> Result<Vec<f32>> {
    Ok(match pass.dtype {
        DType::BF16 if !wide => rows::<bf16>(pass, matrix)?.into_iter().map(bf16::to_f32).collect(),
        DType::F16 if !wide => rows::<f16>(pass, matrix)?.into_iter().map(f16::to_f32).collect(),
        _ => rows::<f32>(pass, matrix)?,
    })
}

fn write_floats(pass: &Pass, Operand { matrix, wide }: Operand, values: &[f32]) -> Result<()> {
    match pass.dtype {
        DType::BF16 if !wide => write_rows(pass, matrix, &values.iter().map(|v| bf16::from_f32(*v)).collect::<Vec<_>>()),
        DType::F16 if !wide => write_rows(pass, matrix, &values.iter().map(|v| f16::from_f32(*v)).collect::<Vec<_>>()),
        _ => write_rows(pass, matrix, values),
    }
}

/// Where the state of sequence `b` lies.
fn address_of(pass: &Pass, states: States, b: usize) -> Result<u64> {
    let slots = read::<u32>(pass, states.slots, pass.batch)?;
    Ok(states.data + 4 * u64::from(slots[b]) * states.stride)
}

fn read_states(pass: &Pass, states: States, width: usize) -> Result<Vec<f32>> {
    let each = (0..pass.batch).map(|b| read::<f32>(pass, address_of(pass, states, b)?, width));
    Ok(each.collect::<Result<Vec<_>>>()?.concat())
}

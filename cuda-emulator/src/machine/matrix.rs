//! The tensor-core instructions: `mma.sync.m16n8k8`, `m16n8k16` on 16-bit inputs and `ldmatrix`.
use super::{exec::widen, thread::Thread};
use crate::{
    decode::{FRAME_LOCAL, LdMatrix, Mma, Program, SHARED_WINDOW},
    error::{Code, Fault},
    ptx::{Space, Ty},
};

/// D = A B + C over the fragments of the 32 lanes: A is 16 x depth by rows, B depth x 8 by columns.
pub fn multiply(program: &Program, mma: &Mma, threads: &mut [Thread], members: u32) -> Result<(), Fault> {
    if members != !0 {
        return Err(Fault::new(Code::IllegalInstruction, "a matrix instruction without all lanes of the warp"));
    }
    let mut a = [[0f32; 16]; 16];
    let mut b = [[0f32; 8]; 16];
    let mut c = [[0f32; 8]; 16];
    let halves = mma.depth / 8;
    for (lane, t) in threads.iter().enumerate() {
        let (group, pair) = (lane / 4, lane % 4 * 2);
        for half in 0..2 {
            let element = |source: u32| widen(mma.ty, t.value(program, source) >> (16 * half) & 0xffff);
            for k in 0..halves {
                a[group][8 * k + pair + half] = element(mma.a[2 * k]);
                a[group + 8][8 * k + pair + half] = element(mma.a[2 * k + 1]);
                b[8 * k + pair + half][group] = element(mma.b[k]);
            }
            for row in 0..2 {
                c[group + 8 * row][pair + half] = match mma.f16_out {
                    true => widen(Ty::F16, t.value(program, mma.c[row]) >> (16 * half) & 0xffff),
                    false => f32::from_bits(t.value(program, mma.c[2 * row + half]) as u32),
                };
            }
        }
    }
    for (row, out) in a.iter().zip(&mut c) {
        for (j, value) in out.iter_mut().enumerate() {
            // Products of 16-bit values are exact in f64; hardware sums with at least f32's precision.
            let sum: f64 = (0..mma.depth).map(|k| f64::from(row[k]) * f64::from(b[k][j])).sum();
            *value = (sum + f64::from(*value)) as f32;
        }
    }
    for (lane, t) in threads.iter_mut().enumerate() {
        let (group, pair) = (lane / 4, lane % 4 * 2);
        for row in 0..2 {
            let values = &c[group + 8 * row][pair..pair + 2];
            if mma.f16_out {
                let bits = |v: f32| u64::from(::half::f16::from_f32(v).to_bits());
                t.set(mma.d[row], bits(values[0]) | bits(values[1]) << 16);
            } else {
                t.set(mma.d[2 * row], u64::from(values[0].to_bits()));
                t.set(mma.d[2 * row + 1], u64::from(values[1].to_bits()));
            }
        }
    }
    Ok(())
}

/// Loads 8 x 8 matrices of 16-bit elements: lane 8 i + r has the address of row r of matrix i.
pub fn load(program: &Program, load: &LdMatrix, threads: &mut [Thread], members: u32, shared: &[u8]) -> Result<(), Fault> {
    if members != !0 {
        return Err(Fault::new(Code::IllegalInstruction, "a matrix instruction without all lanes of the warp"));
    }
    for matrix in 0..load.count {
        let mut rows = [[0u16; 8]; 8];
        for (r, row) in rows.iter_mut().enumerate() {
            let t = &threads[8 * matrix + r];
            let base = if load.base == FRAME_LOCAL { 0 } else { t.value(program, load.base) };
            let mut at = base.wrapping_add(load.offset as u64);
            if load.space == Space::Generic {
                at = at.wrapping_sub(SHARED_WINDOW);
            }
            let bytes = usize::try_from(at).ok().and_then(|at| shared.get(at..at.checked_add(16)?));
            let bytes = bytes.filter(|_| at % 16 == 0).ok_or_else(|| {
                Fault::new(Code::IllegalAddress, format!("row {r} of matrix {matrix} at {at:#x}: outside shared memory or not aligned"))
            })?;
            for (value, pair) in row.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = u16::from_le_bytes([pair[0], pair[1]]);
            }
        }
        for (lane, t) in threads.iter_mut().enumerate() {
            let (group, pair) = (lane / 4, lane % 4 * 2);
            let at = |i: usize| if load.trans { rows[pair + i][group] } else { rows[group][pair + i] };
            t.set(load.d[matrix], u64::from(at(0)) | u64::from(at(1)) << 16);
        }
    }
    Ok(())
}

//! What the instructions of a warp compute, when all lanes of their mask have arrived.
use super::{
    matrix,
    thread::{Thread, Wait},
};
use crate::{
    decode::{Kind, Program, Reduce, Shuffle, Vote},
    error::{Code, Fault},
};

/// Executes one instruction for the lanes in `members` and lets them go on.
pub fn execute(program: &Program, kind: &Kind, threads: &mut [Thread], members: u32, shared: &mut [u8]) -> Result<(), Fault> {
    let lanes = || (0..32usize).filter(move |i| members >> i & 1 == 1);
    match *kind {
        Kind::Shfl { mode, d, p, a, b, c, .. } => {
            let values: Vec<u64> = threads.iter().map(|t| if t.wait == Wait::Done { 0 } else { t.value(program, a) }).collect();
            for lane in lanes() {
                let (b, c) = (threads[lane].value(program, b) as u32, threads[lane].value(program, c) as u32);
                let (from, inside) = source(mode, lane as u32, b, c);
                if inside && members >> from & 1 == 0 {
                    let text = format!("lane {lane} reads lane {from}, which does not take part (mask {members:#010x})");
                    return Err(Fault::new(Code::IllegalInstruction, text));
                }
                let from = if inside { from as usize } else { lane };
                threads[lane].set(p, u64::from(inside));
                threads[lane].set(d, values[from]);
            }
        }
        Kind::Vote { mode, d, p, a, negated, wide, .. } => {
            let cut = |v: u64| if wide { v } else { u64::from(v as u32) };
            let values: Vec<u64> = threads.iter().map(|t| if t.wait == Wait::Done { 0 } else { cut(t.value(program, a)) }).collect();
            let ballot = lanes().filter(|l| (values[*l] & 1 == 1) != negated).fold(0u32, |m, l| m | 1 << l);
            for lane in lanes() {
                let (result, flag) = match mode {
                    Vote::All => (u64::from(ballot == members), false),
                    Vote::Any => (u64::from(ballot != 0), false),
                    Vote::Uni => (u64::from(ballot == members || ballot == 0), false),
                    Vote::Ballot => (u64::from(ballot), false),
                    Vote::MatchAny => (lanes().filter(|l| values[*l] == values[lane]).fold(0, |m, l| m | 1 << l), false),
                    Vote::MatchAll => {
                        let same = lanes().all(|l| values[l] == values[lane]);
                        (if same { u64::from(members) } else { 0 }, same)
                    }
                    Vote::Elect => (u64::from(members.trailing_zeros()), members.trailing_zeros() == lane as u32),
                };
                threads[lane].set(p, u64::from(flag));
                threads[lane].set(d, result);
            }
        }
        Kind::Redux { op, signed, d, a, .. } => {
            let mut values = lanes().map(|l| threads[l].value(program, a) as u32);
            let first = values.next().unwrap_or(0);
            let result = values.fold(first, |x, y| match (op, signed) {
                (Reduce::Add, _) => x.wrapping_add(y),
                (Reduce::And, _) => x & y,
                (Reduce::Or, _) => x | y,
                (Reduce::Xor, _) => x ^ y,
                (Reduce::Min, false) => x.min(y),
                (Reduce::Max, false) => x.max(y),
                (Reduce::Min, true) => (x as i32).min(y as i32) as u32,
                (Reduce::Max, true) => (x as i32).max(y as i32) as u32,
            });
            for lane in lanes() {
                threads[lane].set(d, u64::from(result));
            }
        }
        Kind::Mma(ref mma) => matrix::multiply(program, mma, threads, members)?,
        Kind::LdMatrix(ref load) => matrix::load(program, load, threads, members, shared)?,
        _ => {}
    }
    for lane in lanes() {
        threads[lane].wait = Wait::Ready;
        threads[lane].pc += 1;
    }
    Ok(())
}

/// The lane that a shuffle reads, and whether it lies in the segment.
fn source(mode: Shuffle, lane: u32, b: u32, c: u32) -> (u32, bool) {
    let (b, clamp, segment) = (b & 31, c & 31, c >> 8 & 31);
    let max = (lane & segment) | (clamp & !segment);
    let min = lane & segment;
    match mode {
        Shuffle::Up => (lane.wrapping_sub(b) & 31, lane as i32 - b as i32 >= max as i32),
        Shuffle::Down => ((lane + b) & 31, lane + b <= max),
        Shuffle::Bfly => (lane ^ b, (lane ^ b) <= max),
        Shuffle::Idx => {
            let j = min | (b & !segment);
            (j, j <= max)
        }
    }
}

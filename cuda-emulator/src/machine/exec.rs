//! The loop that runs one thread until it waits, ends or has used up its slice.
use super::{
    Machine,
    access::{self, Spaces},
    atomic, printf, race,
    race::Class,
    thread::{Copy, Frame, Thread, Wait},
};
use crate::{
    decode::{
        Barrier, CONST, Call, Callee, CarryOp, FRAME_LOCAL, FUNCTION_WINDOW, Join, Kind, LOCAL_WINDOW, Mask, NO_GUARD, PARAM_WINDOW,
        SHARED_WINDOW, Special,
    },
    error::{Code, Fault},
    ops::{f32_of, half, int},
    ptx::{Space, Ty},
};

/// What a thread needs of its block.
pub struct Surroundings<'a> {
    pub shared: &'a mut [u8],
    pub index: [u32; 3],
    pub races: &'a mut race::Local,
}

/// Runs a thread for at most `budget` instructions; returns how many it ran.
pub fn run(machine: &mut Machine, block: &mut Surroundings, thread: &mut Thread, budget: u64) -> Result<u64, Fault> {
    let launch = machine.launch;
    let program = launch.program;
    let (mut pc, mut ran) = (thread.pc, 0u64);
    let races = race::Watch { grid: &mut machine.races, block: block.races, program, thread: thread.index, func: thread.func };
    let mut spaces = Spaces {
        global: &mut machine.global,
        shared: block.shared,
        local: &mut thread.local,
        frames: &mut thread.params,
        params: launch.params,
        params_base: thread.params_base,
        race: races,
    };
    macro_rules! attempt {
        ($e:expr) => {
            match $e {
                Ok(v) => v,
                Err(fault) => {
                    thread.pc = pc - 1;
                    return Err(Fault::from(fault));
                }
            }
        };
    }
    'frame: loop {
        let func = &program.funcs[thread.func];
        spaces.race.func = thread.func;
        let (code, consts) = (func.code.as_slice(), func.consts.as_slice());
        let regs = &mut thread.regs[thread.regs_base..thread.regs_base + func.registers];
        macro_rules! get {
            ($s:expr) => {{
                let s = $s;
                if s & CONST == 0 { regs[s as usize] } else { consts[(s ^ CONST) as usize] }
            }};
        }
        macro_rules! address {
            ($base:expr, $offset:expr) => {
                if $base == FRAME_LOCAL {
                    (thread.local_base as u64).wrapping_add($offset as u64)
                } else {
                    get!($base).wrapping_add($offset as u64)
                }
            };
        }
        loop {
            if ran >= budget {
                thread.pc = pc;
                return Ok(ran);
            }
            let inst = &code[pc];
            pc += 1;
            ran += 1;
            if inst.guard != NO_GUARD && (regs[inst.guard as usize] & 1 == 0) != inst.negated {
                continue;
            }
            match inst.kind {
                Kind::Un { f, d, a } => regs[d as usize] = f(get!(a)),
                Kind::Bin { f, d, a, b } => regs[d as usize] = f(get!(a), get!(b)),
                Kind::Tri { f, d, a, b, c } => regs[d as usize] = f(get!(a), get!(b), get!(c)),
                Kind::Mov { d, a } => regs[d as usize] = get!(a),
                Kind::Setp { f, join, negated, d, q, a, b, c } => {
                    let yes = f(get!(a), get!(b));
                    let (p, n) = match join {
                        Join::None => (yes, !yes),
                        _ => {
                            let c = (get!(c) & 1 == 1) != negated;
                            (joined(join, yes, c), joined(join, !yes, c))
                        }
                    };
                    regs[q as usize] = u64::from(n);
                    regs[d as usize] = u64::from(p);
                }
                Kind::Bra { to } => pc = to as usize,
                Kind::Selp { d, a, b, p } => regs[d as usize] = if get!(p) & 1 == 1 { get!(a) } else { get!(b) },
                Kind::Ld { d, access } => {
                    let size = access.ty.size();
                    let all = size * usize::from(access.n);
                    let at = address!(access.base, access.offset);
                    let place = attempt!(spaces.place(access.space, at, all, all, false));
                    attempt!(spaces.race.read(place, all, class(access.sync), pc - 1));
                    for (i, d) in d[..usize::from(access.n)].iter().enumerate() {
                        // SAFETY: `place` has checked that `all` bytes are there.
                        let value = unsafe { access::load(place.host.add(i * size), size, access.ty.signed()) };
                        regs[*d as usize] = value;
                    }
                }
                Kind::St { x, access } => {
                    let size = access.ty.size();
                    let all = size * usize::from(access.n);
                    let at = address!(access.base, access.offset);
                    let place = attempt!(spaces.place(access.space, at, all, all, true));
                    let mut same = true;
                    for (i, x) in x[..usize::from(access.n)].iter().enumerate() {
                        let value = get!(*x);
                        // SAFETY: as above.
                        same &= unsafe { access::replace(place.host.add(i * size), size, value) };
                    }
                    if access.release {
                        spaces.race.fence();
                    }
                    attempt!(spaces.race.write(place, all, class(access.sync), same, pc - 1));
                }
                Kind::Cvt { cvt, d, a } => regs[d as usize] = cvt.apply(get!(a)),
                Kind::CvtPack { cvt, d, a, b } => {
                    regs[d as usize] = (cvt.apply(get!(a)) & 0xffff) << 16 | (cvt.apply(get!(b)) & 0xffff);
                }
                Kind::Lop3 { table, d, a, b, c } => regs[d as usize] = int::lop3(get!(a), get!(b), get!(c), table),
                Kind::Bfi { wide, d, x } => {
                    regs[d as usize] = int::insert(get!(x[0]), get!(x[1]), get!(x[2]), get!(x[3]), if wide { 64 } else { 32 });
                }
                Kind::Carry { op, ty, carry_in, carry_out, d, x } => {
                    let carry = u128::from(carry_in && thread.carry);
                    let (value, flag) = carried(op, ty, get!(x[0]), get!(x[1]), get!(x[2]), carry);
                    regs[d as usize] = value;
                    if carry_out {
                        thread.carry = flag;
                    }
                }
                Kind::Slct { float, d, a, b, c } => {
                    let c = get!(c);
                    let first = if float { f32_of(c) >= 0.0 } else { c as i32 >= 0 };
                    regs[d as usize] = if first { get!(a) } else { get!(b) };
                }
                Kind::SetpPair { f, d, q, a, b } => {
                    let (a, b) = (get!(a), get!(b));
                    regs[d as usize] = u64::from(f(a & 0xffff, b & 0xffff));
                    regs[q as usize] = u64::from(f(a >> 16 & 0xffff, b >> 16 & 0xffff));
                }
                Kind::Set { f, join, negated, pair, yes, d, a, b, c } => {
                    let (a, b, c) = (get!(a), get!(b), (get!(c) & 1 == 1) != negated);
                    let one = |a, b| if joined(join, f(a, b), c) { u64::from(yes) } else { 0 };
                    regs[d as usize] =
                        if pair { one(a & 0xffff, b & 0xffff) | one(a >> 16 & 0xffff, b >> 16 & 0xffff) << 16 } else { one(a, b) };
                }
                Kind::Test { f, d, a } => regs[d as usize] = u64::from(f(get!(a))),
                Kind::Pack { d, bits, n, x } => {
                    let mask = u64::MAX >> (64 - u32::from(bits));
                    let mut value = 0;
                    for i in 0..n {
                        value |= (get!(x[usize::from(i)]) & mask) << (i * bits);
                    }
                    regs[d as usize] = value;
                }
                Kind::Unpack { d, bits, n, a } => {
                    let (value, mask) = (get!(a), u64::MAX >> (64 - u32::from(bits)));
                    for i in 0..n {
                        regs[d[usize::from(i)] as usize] = value >> (i * bits) & mask;
                    }
                }
                Kind::Special { d, special } => {
                    let axis = |v: [u32; 3], a: u8| u64::from(v[usize::from(a)]);
                    let lane = thread.index as u32 % 32;
                    regs[d as usize] = match special {
                        Special::Tid(a) => axis(thread.tid, a),
                        Special::Ntid(a) => axis(launch.block, a),
                        Special::Ctaid(a) => axis(block.index, a),
                        Special::Nctaid(a) => axis(launch.grid, a),
                        Special::LaneId => u64::from(lane),
                        Special::WarpId => thread.index as u64 / 32,
                        Special::NWarpId => u64::from(launch.block.iter().product::<u32>().div_ceil(32)),
                        Special::LaneMask(m) => u64::from(match m {
                            Mask::Eq => 1 << lane,
                            Mask::Lt => (1 << lane) - 1,
                            Mask::Le => (1u32 << lane) | ((1 << lane) - 1),
                            Mask::Gt => !((1u32 << lane) | ((1 << lane) - 1)),
                            Mask::Ge => !((1u32 << lane) - 1),
                        }),
                        Special::Clock | Special::GlobalTimer => machine.clock + ran,
                        Special::SmId => u64::from(block.index[0] % 132),
                        Special::NSmId => 132,
                        Special::DynamicShared => launch.shared as u64,
                        Special::TotalShared => (program.shared_dynamic + launch.shared) as u64,
                        Special::GridWorkspace { high } => machine.workspace >> (32 * u32::from(high)) & 0xffff_ffff,
                        Special::GridId | Special::Zero => 0,
                        Special::One => 1,
                    };
                }
                Kind::LocalAddress { d, offset } => regs[d as usize] = thread.local_base as u64 + offset,
                Kind::Atom { op, d, access, b, c } => {
                    let size = access.ty.size();
                    let at = address!(access.base, access.offset);
                    let place = attempt!(spaces.place(access.space, at, size, size, true));
                    if access.release {
                        spaces.race.fence();
                    }
                    attempt!(spaces.race.atomic(place, size, pc - 1));
                    // SAFETY: `place` has checked that `size` bytes are there.
                    let old = unsafe { access::load(place.host, size, false) };
                    let new = attempt!(atomic::apply(op, access.ty, old, get!(b), get!(c)).ok_or(Code::IllegalInstruction));
                    // SAFETY: as above.
                    unsafe { access::store(place.host, size, new) };
                    regs[d as usize] = old;
                }
                Kind::CpAsync { to, to_offset, from, from_offset, size, source } => {
                    let copy = Copy {
                        group: thread.groups,
                        to: address!(to, to_offset),
                        from: address!(from, from_offset),
                        size: size.into(),
                        source: (get!(source) as u32 as usize).min(size.into()),
                        pc: pc - 1,
                    };
                    thread.copies.push(copy);
                }
                Kind::CpCommit => thread.groups += 1,
                Kind::CpWait { left } => {
                    let due = if left == 0 { u32::MAX } else { thread.groups.saturating_sub(left) };
                    attempt!(finish_copies(&mut spaces, &mut thread.copies, due));
                }
                Kind::IsSpace { space, d, a } => {
                    let a = get!(a);
                    let is = match a {
                        a if (SHARED_WINDOW..LOCAL_WINDOW).contains(&a) => Space::Shared,
                        a if (LOCAL_WINDOW..PARAM_WINDOW).contains(&a) => Space::Local,
                        a if (PARAM_WINDOW..FUNCTION_WINDOW).contains(&a) => Space::Param,
                        _ => Space::Global,
                    };
                    regs[d as usize] = u64::from(is == space);
                }
                Kind::Fence => spaces.race.fence(),
                Kind::Nop => {}
                Kind::Brx { ref to, index } => {
                    let i = get!(index) as u32;
                    let target = to.get(i as usize).ok_or_else(|| Fault::new(Code::InvalidPc, format!("branch {i} of {}", to.len())));
                    pc = *attempt!(target) as usize;
                }
                Kind::Call(ref call) => {
                    let target = match call.callee {
                        Callee::Function(i) => i,
                        Callee::Pointer(s) => {
                            let i = get!(s).wrapping_sub(FUNCTION_WINDOW) as usize;
                            attempt!((i < program.funcs.len()).then_some(i).ok_or(Code::InvalidPc))
                        }
                        Callee::Printf => {
                            attempt!(printf::print(&mut spaces, &call.args, &call.returns));
                            continue;
                        }
                        Callee::AssertFail => {
                            let text = attempt!(printf::assertion(&mut spaces, &call.args));
                            attempt!(Err(Fault::new(Code::Assert, text)))
                        }
                    };
                    thread.frames.push(frame(
                        thread.func,
                        pc,
                        thread.regs_base,
                        thread.local_base,
                        thread.params_base,
                        call,
                        &program.funcs[target],
                    ));
                    let (from, callee) = (thread.params_base, &program.funcs[target]);
                    if thread.frames.len() > 512 {
                        attempt!(Err(Fault::new(Code::LaunchFailed, "a call depth of 512: stack overflow")))
                    }
                    thread.regs_base += func.registers;
                    thread.local_base += func.local_bytes.div_ceil(16) * 16;
                    thread.params_base += func.param_bytes.div_ceil(16) * 16;
                    thread.func = target;
                    thread.regs.resize(thread.regs.len().max(thread.regs_base + callee.registers), 0);
                    spaces.local.resize(spaces.local.len().max(thread.local_base + callee.local_bytes), 0xff);
                    spaces.frames.resize(spaces.frames.len().max(thread.params_base + callee.param_bytes), 0);
                    spaces.params_base = thread.params_base;
                    for ((at, size), param) in call.args.iter().zip(&callee.params) {
                        spaces.frames.copy_within(from + at..from + at + size.min(&param.size), thread.params_base + param.offset);
                    }
                    pc = 0;
                    continue 'frame;
                }
                Kind::Ret => {
                    let Some(frame) = thread.frames.pop() else {
                        attempt!(finish_copies(&mut spaces, &mut thread.copies, u32::MAX));
                        thread.wait = Wait::Done;
                        return Ok(ran);
                    };
                    for (to, from, size) in &frame.returns {
                        let from = thread.params_base + from;
                        spaces.frames.copy_within(from..from + size, frame.params + to);
                    }
                    (thread.func, pc) = (frame.func, frame.pc);
                    (thread.regs_base, thread.local_base, thread.params_base) = (frame.regs, frame.local, frame.params);
                    spaces.params_base = frame.params;
                    continue 'frame;
                }
                Kind::Exit => {
                    attempt!(finish_copies(&mut spaces, &mut thread.copies, u32::MAX));
                    thread.wait = Wait::Done;
                    return Ok(ran);
                }
                Kind::Trap => attempt!(Err(Fault::new(Code::IllegalInstruction, "trap"))),
                Kind::Bar { kind, id, count, .. } => {
                    let (id, count) = (get!(id) as usize & 15, get!(count) as u32);
                    thread.pc = pc - 1;
                    thread.wait = Wait::Barrier { id, count };
                    let _ = kind == Barrier::Arrive;
                    return Ok(ran);
                }
                Kind::WarpBar { mask } | Kind::Shfl { mask, .. } | Kind::Vote { mask, .. } | Kind::Redux { mask, .. } => {
                    let mask = get!(mask) as u32;
                    thread.pc = pc - 1;
                    if mask >> (thread.index % 32) & 1 == 0 {
                        return Err(Fault::new(Code::IllegalInstruction, format!("the lane is not in its own mask {mask:#010x}")));
                    }
                    thread.wait = Wait::Warp { mask };
                    return Ok(ran);
                }
                Kind::ActiveMask { .. } => {
                    thread.pc = pc - 1;
                    thread.wait = Wait::Warp { mask: 0 };
                    return Ok(ran);
                }
                Kind::Mma(_) | Kind::LdMatrix(_) => {
                    thread.pc = pc - 1;
                    thread.wait = Wait::Warp { mask: !0 };
                    return Ok(ran);
                }
            }
        }
    }
}

fn frame(func: usize, pc: usize, regs: usize, local: usize, params: usize, call: &Call, callee: &crate::decode::Func) -> Frame {
    let returns = call.returns.iter().zip(&callee.returns).map(|((to, size), p)| (*to, p.offset, (*size).min(p.size))).collect();
    Frame { func, pc, regs, local, params, returns }
}

fn class(sync: bool) -> Class {
    if sync { Class::Sync } else { Class::Plain }
}

fn joined(join: Join, yes: bool, c: bool) -> bool {
    match join {
        Join::None => yes,
        Join::And => yes && c,
        Join::Or => yes || c,
        Join::Xor => yes != c,
    }
}

fn carried(op: CarryOp, ty: Ty, a: u64, b: u64, c: u64, carry: u128) -> (u64, bool) {
    let bits = 8 * ty.size() as u32;
    let cut = |v: u64| u128::from(v) & (u128::MAX >> (128 - bits));
    let (x, y) = match op {
        CarryOp::Add | CarryOp::Sub => (cut(a), cut(b)),
        CarryOp::MadLow => (cut((cut(a).wrapping_mul(cut(b))) as u64), cut(c)),
        CarryOp::MadHigh => {
            let high = match ty {
                Ty::S32 => ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u64,
                Ty::S64 => ((i128::from(a as i64) * i128::from(b as i64)) >> 64) as u64,
                _ => (cut(a).wrapping_mul(cut(b)) >> bits) as u64,
            };
            (cut(high), cut(c))
        }
    };
    if op == CarryOp::Sub {
        let value = x.wrapping_sub(y).wrapping_sub(carry);
        return (cut(value as u64) as u64, x < y + carry);
    }
    let sum = x + y + carry;
    (cut(sum as u64) as u64, sum >> bits != 0)
}

/// Carries out the copies of all groups before `due`.
fn finish_copies(spaces: &mut Spaces, copies: &mut Vec<Copy>, due: u32) -> Result<(), Fault> {
    let mut rest = Vec::new();
    for copy in copies.drain(..) {
        if copy.group >= due {
            rest.push(copy);
            continue;
        }
        let mut bytes = [0u8; 16];
        if copy.source > 0 {
            let from = spaces.place(Space::Generic, copy.from, copy.source, copy.source.next_power_of_two().min(copy.size), false)?;
            spaces.race.read(from, copy.source, Class::Plain, copy.pc)?;
            // SAFETY: `place` has checked the source's bytes; the buffer has sixteen, the largest size.
            unsafe { std::ptr::copy_nonoverlapping(from.host, bytes.as_mut_ptr(), copy.source) };
        }
        let to = spaces.place(Space::Shared, copy.to, copy.size, copy.size, true)?;
        spaces.race.write(to, copy.size, Class::Plain, false, copy.pc)?;
        // SAFETY: as above, for the target.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.host, copy.size) };
    }
    *copies = rest;
    Ok(())
}

/// A 16-bit float as f32, for the matrix instructions.
pub fn widen(ty: Ty, bits: u64) -> f32 {
    if ty == Ty::F16 { half::h(bits) } else { half::b(bits) }
}

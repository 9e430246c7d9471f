//! One block: lets its threads run, gathers those that wait for each other, finds deadlocks.
use super::{
    Launch, Machine, exec, race,
    thread::{Thread, Wait},
    warp,
};
use crate::{
    decode::{Barrier, Kind},
    error::{Code, Fault},
};

/// Instructions that a thread runs before another has its turn: it may spin until that one has run.
const SLICE: u64 = 20_000;

#[derive(Clone, Copy, Default)]
struct Arrivals {
    /// Threads that arrived without waiting.
    passed: u32,
}

pub struct Block {
    index: [u32; 3],
    shared: Vec<u8>,
    threads: Vec<Thread>,
    barriers: [Arrivals; 16],
    races: race::Local,
    kernel: String,
}

impl Block {
    /// The `number`-th block of the grid; `spare` lends its memory.
    pub fn new(launch: &Launch, number: u64, spare: Option<Self>, races: bool) -> Self {
        let [x, y, _] = launch.grid.map(u64::from);
        let index = [(number % x) as u32, (number / x % y) as u32, (number / (x * y)) as u32];
        let count = launch.block.iter().product::<u32>() as usize;
        let (mut shared, mut threads) = spare.map(|s| (s.shared, s.threads)).unwrap_or_default();
        shared.clear();
        // What another block left there is not zero either.
        shared.resize(launch.program.shared_dynamic.max(launch.program.shared_static) + launch.shared, 0xff);
        threads.resize_with(count, Thread::default);
        for (i, thread) in threads.iter_mut().enumerate() {
            thread.start(launch.program, i, launch.block);
        }
        let races = race::Local::new(races, number as u32, shared.len(), count);
        Self { index, shared, threads, barriers: [Arrivals::default(); 16], races, kernel: launch.program.name.clone() }
    }

    /// Runs until all threads are done (true) or the clock passes `limit` (false).
    pub fn run(&mut self, machine: &mut Machine, limit: u64) -> Result<bool, Fault> {
        let warps = self.threads.len().div_ceil(32);
        let mut order: Vec<usize> = (0..warps).collect();
        machine.rng.shuffle(&mut order);
        loop {
            let mut progress = false;
            for warp in &order {
                progress |= self.run_warp(machine, *warp)?;
            }
            if self.threads.iter().all(|t| t.wait == Wait::Done) {
                return Ok(true);
            }
            progress |= self.barriers(machine)?;
            if !progress {
                let text = format!("deadlock in kernel `{}`, block {:?}: {}", self.kernel, self.index, self.state());
                return Err(Fault::new(Code::LaunchTimeout, text));
            }
            if machine.clock > limit {
                return Ok(false);
            }
        }
    }

    /// Lets a warp's threads run until none can without the rest of the block; false if none could.
    fn run_warp(&mut self, machine: &mut Machine, warp: usize) -> Result<bool, Fault> {
        let first = warp * 32;
        let mut lanes: [usize; 32] = std::array::from_fn(|i| first + i);
        let last = self.threads.len().min(first + 32);
        let lanes = &mut lanes[..last - first];
        machine.rng.shuffle(lanes);
        let mut progress = false;
        loop {
            let mut again = false;
            for t in lanes.iter() {
                if self.threads[*t].wait == Wait::Ready {
                    self.run_thread(machine, *t)?;
                    again = true;
                }
            }
            if self.threads[first..last].iter().any(|t| t.wait == Wait::Ready) {
                // A thread used up its slice: the other warps have their turn.
                return Ok(true);
            }
            again |= self.collective(machine, first, last)?;
            if !again {
                return Ok(progress);
            }
            progress = true;
        }
    }

    fn run_thread(&mut self, machine: &mut Machine, t: usize) -> Result<(), Fault> {
        let mut around = exec::Surroundings { shared: &mut self.shared, index: self.index, races: &mut self.races };
        match exec::run(machine, &mut around, &mut self.threads[t], SLICE) {
            Ok(ran) => {
                machine.clock += ran;
                Ok(())
            }
            Err(fault) => Err(self.explain(machine, t, fault)),
        }
    }

    /// Adds to a fault where it happened.
    fn explain(&self, machine: &Machine, t: usize, fault: Fault) -> Fault {
        let thread = &self.threads[t];
        let func = &machine.launch.program.funcs[thread.func];
        let statement = func.texts.get(thread.pc).map_or("end of the function", |t| t);
        let text = format!(
            "kernel `{}`, block {:?} of {:?}, thread {:?} of {:?}, `{}` statement {}: `{statement}`: {}",
            self.kernel, self.index, machine.launch.grid, thread.tid, machine.launch.block, func.name, thread.pc, fault.text
        );
        Fault::new(fault.code, text)
    }

    /// Carries out the warp instructions whose lanes have all arrived.
    fn collective(&mut self, machine: &mut Machine, first: usize, last: usize) -> Result<bool, Fault> {
        let program = machine.launch.program;
        let threads = &mut self.threads[first..last];
        let alive = threads.iter().enumerate().filter(|(_, t)| t.wait != Wait::Done).fold(0u32, |m, (i, _)| m | 1 << i);
        let mut done = false;
        for leader in 0..threads.len() {
            let Wait::Warp { mask } = threads[leader].wait else { continue };
            if mask == 0 {
                continue;
            }
            let (func, pc) = (threads[leader].func, threads[leader].pc);
            let kind = &program.funcs[func].code[pc].kind;
            let anywhere = matches!(kind, Kind::WarpBar { .. });
            let members = mask & alive;
            let arrived = (0..threads.len()).filter(|i| members >> i & 1 == 1).all(|i| {
                let same = (threads[i].func, threads[i].pc) == (func, pc)
                    || anywhere && matches!(program.funcs[threads[i].func].code[threads[i].pc].kind, Kind::WarpBar { .. });
                threads[i].wait == Wait::Warp { mask } && same
            });
            if arrived {
                if let Err(fault) = warp::execute(program, kind, threads, members, &mut self.shared) {
                    return Err(self.explain(machine, first + leader, fault));
                }
                self.races.warp(&mut machine.races, first, members, alive);
                done = true;
            }
        }
        Ok(done || self.active_mask(machine, first, last))
    }

    /// `activemask` sees the lanes that wait at the same place when no lane of the warp can run.
    fn active_mask(&mut self, machine: &Machine, first: usize, last: usize) -> bool {
        let program = machine.launch.program;
        let threads = &mut self.threads[first..last];
        let Some(leader) = threads.iter().position(|t| t.wait == Wait::Warp { mask: 0 }) else { return false };
        let place = (threads[leader].func, threads[leader].pc);
        let here = |t: &Thread| t.wait == Wait::Warp { mask: 0 } && (t.func, t.pc) == place;
        let mask = threads.iter().enumerate().filter(|(_, t)| here(t)).fold(0u64, |m, (i, _)| m | 1 << i);
        let Kind::ActiveMask { d } = program.funcs[place.0].code[place.1].kind else { return false };
        for t in threads.iter_mut().filter(|t| here(t)) {
            t.set(d, mask);
            t.pc += 1;
        }
        for (i, t) in threads.iter_mut().enumerate() {
            if mask >> i & 1 == 1 {
                t.wait = Wait::Ready;
            }
        }
        true
    }

    /// Opens the barriers at which enough threads have arrived; returns whether any thread can go on.
    fn barriers(&mut self, machine: &mut Machine) -> Result<bool, Fault> {
        let program = machine.launch.program;
        let alive = self.threads.iter().filter(|t| t.wait != Wait::Done).count() as u32;
        let mut progress = false;
        for id in 0..16 {
            let mut waiting = Vec::new();
            for t in 0..self.threads.len() {
                let thread = &mut self.threads[t];
                let Wait::Barrier { id: at, count } = thread.wait else { continue };
                if at != id {
                    continue;
                }
                if matches!(program.funcs[thread.func].code[thread.pc].kind, Kind::Bar { kind: Barrier::Arrive, .. }) {
                    self.barriers[id].passed += 1;
                    self.races.barrier(&mut machine.races);
                    thread.wait = Wait::Ready;
                    thread.pc += 1;
                    progress = true;
                } else {
                    waiting.push((t, count));
                }
            }
            let Some((_, count)) = waiting.first().copied() else { continue };
            if waiting.iter().any(|w| w.1 != count) {
                let text = format!("barrier {id} of kernel `{}` with different thread counts: {}", self.kernel, self.state());
                return Err(Fault::new(Code::IllegalInstruction, text));
            }
            let arrived = waiting.len() as u32 + self.barriers[id].passed;
            let wanted = if count == 0 { alive } else { count };
            if arrived < wanted {
                continue;
            }
            if arrived > wanted && count != 0 {
                let text = format!("{arrived} threads at barrier {id} of kernel `{}`, which is for {count}", self.kernel);
                return Err(Fault::new(Code::IllegalInstruction, text));
            }
            self.barriers[id].passed = 0;
            self.open(program, &waiting);
            self.races.barrier(&mut machine.races);
            progress = true;
        }
        Ok(progress)
    }

    fn open(&mut self, program: &crate::decode::Program, waiting: &[(usize, u32)]) {
        let vote = |thread: &Thread| match program.funcs[thread.func].code[thread.pc].kind {
            Kind::Bar { p, negated, .. } => (thread.value(program, p) & 1 == 1) != negated,
            _ => false,
        };
        let yes = waiting.iter().filter(|(t, _)| vote(&self.threads[*t])).count();
        for (t, _) in waiting {
            let thread = &mut self.threads[*t];
            if let Kind::Bar { kind, d, .. } = program.funcs[thread.func].code[thread.pc].kind {
                match kind {
                    Barrier::Popc => thread.set(d, yes as u64),
                    Barrier::And => thread.set(d, u64::from(yes == waiting.len())),
                    Barrier::Or => thread.set(d, u64::from(yes > 0)),
                    _ => {}
                }
            }
            thread.wait = Wait::Ready;
            thread.pc += 1;
        }
    }

    /// Who waits where, for messages.
    pub fn state(&self) -> String {
        let mut groups: Vec<(usize, usize, Wait, Vec<usize>)> = Vec::new();
        for (i, t) in self.threads.iter().enumerate() {
            match groups.iter_mut().find(|g| (g.0, g.1, g.2) == (t.func, t.pc, t.wait)) {
                Some(group) => group.3.push(i),
                None => groups.push((t.func, t.pc, t.wait, vec![i])),
            }
        }
        let line = |(func, pc, wait, who): &(usize, usize, Wait, Vec<usize>)| {
            format!("{} threads (first {:?}) {wait:?} at function {func} statement {pc}", who.len(), self.threads[who[0]].tid)
        };
        groups.iter().take(6).map(line).collect::<Vec<_>>().join("; ")
    }
}

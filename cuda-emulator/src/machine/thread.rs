//! One thread: its registers, stack and what it waits for.
use crate::decode::{Func, Program};

/// A caller, to return to.
#[derive(Clone, Debug)]
pub struct Frame {
    pub func: usize,
    pub pc: usize,
    pub regs: usize,
    pub local: usize,
    pub params: usize,
    /// Offsets and sizes of results: in the caller's frame, and in the callee's.
    pub returns: Vec<(usize, usize, usize)>,
}

/// Why a thread does not run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Wait {
    #[default]
    Ready,
    /// An instruction of the warp with the lanes that take part; none for `activemask`, which takes who is there.
    Warp {
        mask: u32,
    },
    Barrier {
        id: usize,
        count: u32,
    },
    Done,
}

/// A copy that `cp.async` has started and nobody has waited for.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub group: u32,
    pub to: u64,
    pub from: u64,
    pub size: usize,
    pub source: usize,
    /// Where it was started, for messages.
    pub pc: usize,
}

#[derive(Clone, Debug, Default)]
pub struct Thread {
    pub tid: [u32; 3],
    /// Index in the block.
    pub index: usize,
    pub regs: Vec<u64>,
    pub local: Vec<u8>,
    pub params: Vec<u8>,
    pub frames: Vec<Frame>,
    pub func: usize,
    pub pc: usize,
    pub regs_base: usize,
    pub local_base: usize,
    pub params_base: usize,
    pub carry: bool,
    pub wait: Wait,
    pub copies: Vec<Copy>,
    /// Groups of copies committed so far.
    pub groups: u32,
}

impl Thread {
    /// Puts it at the start of the kernel. Registers keep what the last block left: reading one unset is a bug of the program.
    pub fn start(&mut self, program: &Program, index: usize, block: [u32; 3]) {
        let i = index as u32;
        self.tid = [i % block[0], i / block[0] % block[1], i / (block[0] * block[1])];
        self.index = index;
        (self.func, self.pc, self.regs_base, self.local_base, self.params_base) = (0, 0, 0, 0, 0);
        self.frames.clear();
        self.copies.clear();
        self.groups = 0;
        self.wait = Wait::Ready;
        self.reserve(&program.funcs[0]);
    }

    /// Makes room for a function's frame at the present bases.
    pub fn reserve(&mut self, func: &Func) {
        let grow = |len: usize, need: usize| len.max(need);
        self.regs.resize(grow(self.regs.len(), self.regs_base + func.registers), 0);
        self.local.resize(grow(self.local.len(), self.local_base + func.local_bytes), 0xff);
        self.params.resize(grow(self.params.len(), self.params_base + func.param_bytes), 0);
    }

    pub fn value(&self, program: &Program, source: u32) -> u64 {
        use crate::decode::CONST;
        match source & CONST {
            0 => self.regs[self.regs_base + source as usize],
            _ => program.funcs[self.func].consts[(source ^ CONST) as usize],
        }
    }

    pub fn set(&mut self, register: u32, value: u64) {
        self.regs[self.regs_base + register as usize] = value;
    }
}

//! The decoded form: small, with operands as indices.
use crate::{
    ops::{Compare, cvt::Cvt},
    ptx::{Param, Space, Ty},
};

/// A source: a register of the frame, or with the top bit set a constant of the function.
pub type Src = u32;

pub const CONST: u32 = 1 << 31;
pub const NO_GUARD: u32 = u32::MAX;
/// The base of an address in the frame's local memory.
pub const FRAME_LOCAL: Src = u32::MAX;

/// Generic addresses of the windows into shared, local and parameter space, and of functions.
pub const SHARED_WINDOW: u64 = 1 << 32;
pub const LOCAL_WINDOW: u64 = 2 << 32;
pub const PARAM_WINDOW: u64 = 3 << 32;
pub const FUNCTION_WINDOW: u64 = 4 << 32;
pub const WINDOW_SIZE: u64 = 1 << 32;

/// A kernel and the functions that it reaches; the first is the kernel.
#[derive(Debug)]
pub struct Program {
    pub name: String,
    pub funcs: Vec<Func>,
    /// Bytes of shared variables, and where the dynamic array starts.
    pub shared_static: usize,
    pub shared_dynamic: usize,
    pub params: Vec<Param>,
    pub param_bytes: usize,
    pub max_threads: u32,
}

#[derive(Debug)]
pub struct Func {
    pub name: String,
    pub code: Vec<Inst>,
    pub consts: Vec<u64>,
    pub registers: usize,
    pub local_bytes: usize,
    /// Bytes of parameter space in a frame, for its own parameters and its calls.
    pub param_bytes: usize,
    pub params: Vec<Param>,
    pub returns: Vec<Param>,
    /// The statements, for messages.
    pub texts: Vec<Box<str>>,
}

#[derive(Clone, Debug)]
pub struct Inst {
    pub guard: u32,
    pub negated: bool,
    pub kind: Kind,
}

/// How a `setp` or `set` joins its comparison with a predicate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Join {
    None,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug)]
pub enum Special {
    Tid(u8),
    Ntid(u8),
    Ctaid(u8),
    Nctaid(u8),
    LaneId,
    WarpId,
    NWarpId,
    LaneMask(Mask),
    Clock,
    GlobalTimer,
    SmId,
    NSmId,
    GridId,
    /// Half of the address of the words through which the blocks of a cooperative grid meet.
    GridWorkspace {
        high: bool,
    },
    DynamicShared,
    TotalShared,
    Zero,
    One,
}

#[derive(Clone, Copy, Debug)]
pub enum Mask {
    Eq,
    Le,
    Lt,
    Ge,
    Gt,
}

/// Addition and multiplication with the carry flag.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CarryOp {
    Add,
    Sub,
    MadLow,
    MadHigh,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AtomOp {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
    Exch,
    Cas,
    Inc,
    Dec,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Shuffle {
    Up,
    Down,
    Bfly,
    Idx,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Vote {
    All,
    Any,
    Uni,
    Ballot,
    MatchAny,
    MatchAll,
    Elect,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reduce {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Barrier {
    Sync,
    Arrive,
    Popc,
    And,
    Or,
}

/// A load or store of `n` elements of `ty`.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    pub space: Space,
    pub ty: Ty,
    pub n: u8,
    /// Volatile, relaxed, acquire or release: no race with others of its kind.
    pub sync: bool,
    /// Fences before it: release or both.
    pub release: bool,
    pub base: Src,
    pub offset: i64,
}

/// `mma.sync.m16n8k8` or `m16n8k16` on 16-bit inputs, with f32 or f16 accumulators.
#[derive(Clone, Debug)]
pub struct Mma {
    pub ty: Ty,
    pub depth: usize,
    pub f16_out: bool,
    pub d: [u32; 4],
    pub a: [Src; 4],
    pub b: [Src; 4],
    pub c: [Src; 4],
}

#[derive(Clone, Debug)]
pub struct LdMatrix {
    pub count: usize,
    pub trans: bool,
    pub space: Space,
    pub d: [u32; 4],
    pub base: Src,
    pub offset: i64,
}

#[derive(Clone, Debug)]
pub enum Callee {
    Function(usize),
    Pointer(Src),
    Printf,
    AssertFail,
}

#[derive(Clone, Debug)]
pub struct Call {
    pub callee: Callee,
    /// Offset and size of each argument and result in the caller's frame.
    pub args: Vec<(usize, usize)>,
    pub returns: Vec<(usize, usize)>,
}

#[derive(Clone, Debug)]
pub enum Kind {
    Un {
        f: fn(u64) -> u64,
        d: u32,
        a: Src,
    },
    Bin {
        f: fn(u64, u64) -> u64,
        d: u32,
        a: Src,
        b: Src,
    },
    Tri {
        f: fn(u64, u64, u64) -> u64,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Cvt {
        cvt: Cvt,
        d: u32,
        a: Src,
    },
    /// Two values converted and packed, `a` above `b`.
    CvtPack {
        cvt: Cvt,
        d: u32,
        a: Src,
        b: Src,
    },
    Lop3 {
        table: u8,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Bfi {
        wide: bool,
        d: u32,
        x: [Src; 4],
    },
    Carry {
        op: CarryOp,
        ty: Ty,
        carry_in: bool,
        carry_out: bool,
        d: u32,
        x: [Src; 3],
    },
    Selp {
        d: u32,
        a: Src,
        b: Src,
        p: Src,
    },
    Slct {
        float: bool,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Setp {
        f: Compare,
        join: Join,
        negated: bool,
        d: u32,
        q: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    SetpPair {
        f: Compare,
        d: u32,
        q: u32,
        a: Src,
        b: Src,
    },
    Set {
        f: Compare,
        join: Join,
        negated: bool,
        pair: bool,
        yes: u32,
        d: u32,
        a: Src,
        b: Src,
        c: Src,
    },
    Test {
        f: fn(u64) -> bool,
        d: u32,
        a: Src,
    },
    Mov {
        d: u32,
        a: Src,
    },
    Pack {
        d: u32,
        bits: u8,
        n: u8,
        x: [Src; 4],
    },
    Unpack {
        d: [u32; 4],
        bits: u8,
        n: u8,
        a: Src,
    },
    Special {
        d: u32,
        special: Special,
    },
    LocalAddress {
        d: u32,
        offset: u64,
    },
    Ld {
        d: [u32; 4],
        access: Access,
    },
    St {
        x: [Src; 4],
        access: Access,
    },
    Atom {
        op: AtomOp,
        d: u32,
        access: Access,
        b: Src,
        c: Src,
    },
    CpAsync {
        to: Src,
        to_offset: i64,
        from: Src,
        from_offset: i64,
        size: u8,
        source: Src,
    },
    CpCommit,
    CpWait {
        left: u32,
    },
    IsSpace {
        space: Space,
        d: u32,
        a: Src,
    },
    Fence,
    Nop,
    Bra {
        to: u32,
    },
    Brx {
        to: Box<[u32]>,
        index: Src,
    },
    Call(Box<Call>),
    Ret,
    Exit,
    Trap,
    Bar {
        kind: Barrier,
        id: Src,
        count: Src,
        d: u32,
        p: Src,
        negated: bool,
    },
    WarpBar {
        mask: Src,
    },
    Shfl {
        mode: Shuffle,
        d: u32,
        p: u32,
        a: Src,
        b: Src,
        c: Src,
        mask: Src,
    },
    Vote {
        mode: Vote,
        d: u32,
        p: u32,
        a: Src,
        negated: bool,
        wide: bool,
        mask: Src,
    },
    Redux {
        op: Reduce,
        signed: bool,
        d: u32,
        a: Src,
        mask: Src,
    },
    ActiveMask {
        d: u32,
    },
    Mma(Box<Mma>),
    LdMatrix(Box<LdMatrix>),
}

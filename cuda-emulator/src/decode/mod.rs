//! From statements to instructions: register numbers, immediates in a pool, addresses of symbols, functions picked by type.
mod control;
mod inst;
mod memory;
mod scalar;
mod warp;

use std::collections::HashMap;

pub use inst::*;

use crate::{
    ops::Alu,
    ptx::{Body, Function, Module, Param, Space, Statement, Ty, Variable},
};

/// What the decoder needs to know of the device.
pub struct Target<'a> {
    pub module: &'a Module,
    /// Addresses of the module's `.global` and `.const` variables.
    pub globals: &'a HashMap<String, u64>,
}

/// A kernel with all functions that it reaches, ready to run.
pub fn kernel(target: &Target, name: &str) -> Result<Program, String> {
    let mut linker = Linker { target, order: vec![name.to_string()], shared: HashMap::new(), shared_end: 0, patches: Vec::new() };
    let mut funcs = Vec::new();
    // Functions found on the way are appended to `order`.
    while funcs.len() < linker.order.len() {
        let name = linker.order[funcs.len()].clone();
        let function = target.module.functions.get(&name).ok_or_else(|| format!("no function `{name}`"))?;
        funcs.push(function_code(&mut linker, function, funcs.len())?);
    }
    // The dynamic array follows all static ones.
    let dynamic = linker.shared_end.div_ceil(16) * 16;
    for (func, constant) in &linker.patches {
        let func: &mut Func = &mut funcs[*func];
        func.consts[*constant] += dynamic as u64;
    }
    let entry = &target.module.functions[name];
    let param_bytes = entry.params.iter().map(|p| p.offset + p.size).max().unwrap_or(0);
    Ok(Program {
        name: name.to_string(),
        funcs,
        shared_static: linker.shared_end,
        shared_dynamic: dynamic,
        params: entry.params.clone(),
        param_bytes,
        max_threads: entry.max_threads.unwrap_or(1024),
    })
}

struct Linker<'a> {
    target: &'a Target<'a>,
    order: Vec<String>,
    /// Offsets of the shared variables that the kernel uses.
    shared: HashMap<String, usize>,
    shared_end: usize,
    /// Constants (function, index) that hold an offset from the dynamic shared array.
    patches: Vec<(usize, usize)>,
}

impl Linker<'_> {
    fn function(&mut self, name: &str) -> usize {
        self.order.iter().position(|n| n == name).unwrap_or_else(|| {
            self.order.push(name.to_string());
            self.order.len() - 1
        })
    }

    fn shared_offset(&mut self, variable: &Variable) -> usize {
        if let Some(offset) = self.shared.get(&variable.name) {
            return *offset;
        }
        let offset = self.shared_end.div_ceil(variable.align.max(1)) * variable.align.max(1);
        self.shared_end = offset + variable.size;
        self.shared.insert(variable.name.clone(), offset);
        offset
    }
}

fn function_code(linker: &mut Linker, function: &Function, index: usize) -> Result<Func, String> {
    let at = |e: String| format!("{}: {e}", function.name);
    let range = function.body.clone().ok_or_else(|| at("is declared but not defined".into()))?;
    let text = &linker.target.module.text[range];
    // A function's own parameters and results lie at the start of its frame; an entry's are the launch's.
    let end = function.params.iter().map(|p| p.offset + p.size).max().unwrap_or(0);
    let returns_at = end.div_ceil(16) * 16;
    let returns: Vec<Param> = function.returns.iter().map(|p| Param { offset: p.offset + returns_at, ..p.clone() }).collect();
    let own = returns.iter().map(|p| p.offset + p.size).max().unwrap_or(end);
    let body = Body::parse(text, if function.entry { 0 } else { own }).map_err(at)?;
    let mut locals = HashMap::new();
    let mut local_bytes = 0usize;
    for variable in &body.variables {
        if variable.space == Space::Local {
            let offset = local_bytes.div_ceil(variable.align.max(1)) * variable.align.max(1);
            locals.insert(variable.name.clone(), offset);
            local_bytes = offset + variable.size;
        }
    }
    let mut decoder =
        Decoder { linker, function, returns: &returns, body: &body, locals, consts: Vec::new(), index, sink: body.registers, scope: 0 };
    let mut code = Vec::with_capacity(body.statements.len() + 1);
    for statement in &body.statements {
        decoder.scope = statement.scope;
        let kind = decoder.statement(statement).map_err(|e| at(format!("`{}`: {e}", statement.text)))?;
        let (guard, negated) = statement.guard.unwrap_or((NO_GUARD, false));
        code.push(Inst { guard, negated, kind });
    }
    code.push(Inst { guard: NO_GUARD, negated: false, kind: Kind::Ret });
    let consts = decoder.consts;
    Ok(Func {
        name: function.name.clone(),
        code,
        consts,
        registers: body.registers as usize + 1,
        local_bytes,
        param_bytes: body.param_bytes,
        params: function.params.clone(),
        returns,
        texts: body.statements.iter().map(|s| s.text.into()).collect(),
    })
}

/// Where a symbol is.
enum Place {
    Constant(u64),
    Dynamic,
    Local(usize),
    Param(usize),
    Frame(usize),
}

struct Decoder<'a, 'b> {
    linker: &'a mut Linker<'b>,
    function: &'a Function,
    returns: &'a [Param],
    body: &'a Body<'a>,
    locals: HashMap<String, usize>,
    consts: Vec<u64>,
    index: usize,
    /// A register nobody reads, for `_`.
    sink: u32,
    scope: usize,
}

impl Decoder<'_, '_> {
    fn statement(&mut self, s: &Statement) -> Result<Kind, String> {
        let name = s.parts[0];
        match name {
            "ld" | "ldu" | "st" | "atom" | "red" | "cp" | "cvta" | "isspacep" | "prefetch" | "prefetchu" | "discard" | "applypriority"
            | "membar" | "fence" | "createpolicy" => self.memory(s),
            "bra" | "brx" | "call" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" | "griddepcontrol" | "setmaxnreg" | "pmevent"
            | "bar" | "barrier" => self.control(s),
            "shfl" | "vote" | "match" | "activemask" | "redux" | "mma" | "ldmatrix" | "elect" | "movmatrix" => self.warp(s),
            _ => self.scalar(s),
        }
    }

    fn dst(&self, text: &str) -> Result<u32, String> {
        if text == "_" {
            return Ok(self.sink);
        }
        self.body.register(text, self.scope).map(|r| r.0).ok_or_else(|| format!("unknown register `{text}`"))
    }

    /// `a|b`, the second part optional.
    fn dst_pair(&self, text: &str) -> Result<(u32, u32), String> {
        match text.split_once('|') {
            Some((a, b)) => Ok((self.dst(a.trim())?, self.dst(b.trim())?)),
            None => Ok((self.dst(text)?, self.sink)),
        }
    }

    fn constant(&mut self, value: u64) -> Src {
        let at =
            self.consts.iter().position(|c| *c == value && !self.linker.patches.iter().any(|p| p.0 == self.index)).unwrap_or_else(|| {
                self.consts.push(value);
                self.consts.len() - 1
            });
        CONST | at as u32
    }

    /// A source operand: register, literal, or the address of a symbol.
    fn src(&mut self, text: &str, ty: Ty) -> Result<Src, String> {
        if let Some((register, _)) = self.body.register(text, self.scope) {
            return Ok(register);
        }
        if let Some(bits) = crate::ptx::literal(text, ty) {
            return Ok(self.constant(bits));
        }
        match text {
            "WARP_SZ" => return Ok(self.constant(32)),
            "_" => return Ok(self.constant(0)),
            _ => {}
        }
        let (name, addend) = match text.split_once('+') {
            Some((name, addend)) => (name.trim(), crate::ptx::literal(addend.trim(), Ty::U64).ok_or("bad addend")?),
            None => (text, 0),
        };
        match self.place(name) {
            Some(Place::Constant(at)) => Ok(self.constant(at.wrapping_add(addend))),
            Some(Place::Param(at)) => Ok(self.constant(PARAM_WINDOW + at as u64 + addend)),
            Some(Place::Dynamic) => {
                // Its own slot: the value is only known when all functions are decoded.
                self.consts.push(addend);
                self.linker.patches.push((self.index, self.consts.len() - 1));
                Ok(CONST | (self.consts.len() - 1) as u32)
            }
            Some(Place::Local(_)) => Err("the address of a local variable outside `mov`".into()),
            Some(Place::Frame(_)) => Err("the address of a call's parameter".into()),
            None => Err(format!("unknown operand `{text}`")),
        }
    }

    /// A predicate source, which may be negated.
    fn predicate(&mut self, text: &str) -> Result<(Src, bool), String> {
        let negated = text.starts_with('!');
        Ok((self.src(text.trim_start_matches('!'), Ty::Pred)?, negated))
    }

    fn place(&mut self, name: &str) -> Option<Place> {
        if let Some(param) = self.body.param(name, self.scope) {
            return Some(Place::Frame(param.offset));
        }
        if let Some(offset) = self.locals.get(name) {
            return Some(Place::Local(*offset));
        }
        if let Some(param) = self.function.params.iter().chain(self.returns).find(|p| p.name == name) {
            return Some(if self.function.entry { Place::Param(param.offset) } else { Place::Frame(param.offset) });
        }
        let body = self.body;
        let module = self.linker.target.module;
        if let Some(variable) = body.variables.iter().find(|v| v.name == name).or_else(|| module.variables.get(name)) {
            if variable.space == Space::Shared {
                return Some(if variable.size == 0 { Place::Dynamic } else { Place::Constant(self.linker.shared_offset(variable) as u64) });
            }
            if variable.space == Space::Global || variable.space == Space::Const {
                return self.linker.target.globals.get(name).map(|a| Place::Constant(*a));
            }
        }
        if module.functions.contains_key(name) {
            return Some(Place::Constant(FUNCTION_WINDOW + self.linker.function(name) as u64));
        }
        None
    }

    /// `[base+offset]`.
    fn address(&mut self, text: &str) -> Result<Address, String> {
        let inner = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).ok_or_else(|| format!("not an address: `{text}`"))?;
        let inner = inner.trim();
        let cut = inner.find(['+', '-']).filter(|i| *i > 0).unwrap_or(inner.len());
        let (base, rest) = (inner[..cut].trim(), inner[cut..].replace(' ', ""));
        let offset = match rest.trim_start_matches('+') {
            "" => 0,
            digits => crate::ptx::literal(digits, Ty::S64).ok_or_else(|| format!("bad offset in `{text}`"))? as i64,
        };
        match self.place(base) {
            Some(Place::Local(at)) => Ok(Address { base: FRAME_LOCAL, offset: offset + at as i64, frame: false }),
            Some(Place::Frame(at)) => Ok(Address { base: self.constant(0), offset: offset + at as i64, frame: true }),
            _ => Ok(Address { base: self.src(base, Ty::U64)?, offset, frame: false }),
        }
    }

    /// The registers of `{a, b}`, or the one.
    fn vector_dst(&self, text: &str) -> Result<([u32; 4], u8), String> {
        let mut out = [self.sink; 4];
        let items = vector(text);
        if items.len() > 4 {
            return Err("a vector of more than four".into());
        }
        for (slot, item) in out.iter_mut().zip(&items) {
            *slot = self.dst(item)?;
        }
        Ok((out, items.len() as u8))
    }

    fn vector_src(&mut self, text: &str, ty: Ty) -> Result<([Src; 4], u8), String> {
        let mut out = [CONST; 4];
        let items = vector(text);
        if items.len() > 4 {
            return Err("a vector of more than four".into());
        }
        for (slot, item) in out.iter_mut().zip(&items) {
            *slot = self.src(item, ty)?;
        }
        Ok((out, items.len() as u8))
    }

    fn alu(&mut self, alu: Alu, s: &Statement, ty: Ty) -> Result<Kind, String> {
        let wanted = match alu {
            Alu::Un(_) => 2,
            Alu::Bin(_) => 3,
            Alu::Tri(_) => 4,
        };
        if s.operands.len() != wanted {
            return Err(format!("{} operands, expected {wanted}", s.operands.len()));
        }
        let d = self.dst(s.operands[0])?;
        let mut x = [0; 3];
        for (slot, text) in x.iter_mut().zip(&s.operands[1..]) {
            *slot = self.src(text, ty)?;
        }
        let [a, b, c] = x;
        Ok(match alu {
            Alu::Un(f) => Kind::Un { f, d, a },
            Alu::Bin(f) => Kind::Bin { f, d, a, b },
            Alu::Tri(f) => Kind::Tri { f, d, a, b, c },
        })
    }
}

struct Address {
    base: Src,
    offset: i64,
    frame: bool,
}

fn vector(text: &str) -> Vec<&str> {
    match text.strip_prefix('{').and_then(|t| t.strip_suffix('}')) {
        Some(inner) => inner.split(',').map(str::trim).collect(),
        None => vec![text],
    }
}

/// The types named in an opcode, in order.
fn types(s: &Statement) -> Vec<Ty> {
    s.parts.iter().filter_map(|p| Ty::parse(p)).collect()
}

fn last_type(s: &Statement) -> Result<Ty, String> {
    types(s).last().copied().ok_or_else(|| "an instruction without a type".to_string())
}

fn unsupported() -> String {
    "unknown instruction: the emulator does not have it".into()
}

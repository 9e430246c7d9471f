//! Branches, calls and barriers.
use super::*;

impl Decoder<'_, '_> {
    pub(super) fn control(&mut self, s: &Statement) -> Result<Kind, String> {
        match s.parts[0] {
            "bra" => Ok(Kind::Bra { to: self.target(s.operands[0])? }),
            "brx" => {
                let body = self.body;
                let names = body.targets(s.operands[1], self.scope).ok_or("unknown branch targets")?;
                let to = names.iter().map(|n| self.target(n)).collect::<Result<_, _>>()?;
                Ok(Kind::Brx { to, index: self.src(s.operands[0], Ty::U32)? })
            }
            "call" => self.call(s),
            "ret" => Ok(Kind::Ret),
            "exit" => Ok(Kind::Exit),
            "trap" | "brkpt" => Ok(Kind::Trap),
            "bar" | "barrier" => self.barrier(s),
            _ => Ok(Kind::Nop),
        }
    }

    fn target(&self, name: &str) -> Result<u32, String> {
        self.body.label(name, self.scope).map(|at| at as u32).ok_or_else(|| format!("unknown label `{name}`"))
    }

    fn call(&mut self, s: &Statement) -> Result<Kind, String> {
        let mut operands = s.operands.iter();
        let mut next = operands.next().copied().ok_or("a call of nothing")?;
        let list = |text: &str| -> Vec<String> {
            text.trim_matches(['(', ')']).split(',').map(|p| p.trim().to_string()).filter(|p| !p.is_empty()).collect()
        };
        let mut returns = Vec::new();
        if next.starts_with('(') {
            returns = list(next);
            next = operands.next().copied().ok_or("a call of nothing")?;
        }
        let args = operands.next().map(|t| list(t)).unwrap_or_default();
        let place = |names: Vec<String>| -> Result<Vec<(usize, usize)>, String> {
            let find = |n: &String| {
                let param =
                    self.body.param(n, self.scope).or_else(|| self.returns.iter().chain(&self.function.params).find(|p| p.name == *n));
                param.map(|p| (p.offset, p.size)).ok_or_else(|| format!("unknown argument `{n}`"))
            };
            names.iter().map(find).collect()
        };
        let (args, returns) = (place(args)?, place(returns)?);
        let known = self.linker.target.module.functions.get(next);
        let callee = match next {
            "vprintf" => Callee::Printf,
            "__assertfail" => Callee::AssertFail,
            _ if known.is_some_and(|f| f.body.is_none()) => return Err(format!("`{next}` is declared but not defined")),
            _ if known.is_some() => Callee::Function(self.linker.function(next)),
            _ => Callee::Pointer(self.src(next, Ty::U64)?),
        };
        Ok(Kind::Call(Box::new(Call { callee, args, returns })))
    }

    fn barrier(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        if has("warp") {
            return Ok(Kind::WarpBar { mask: self.src(s.operands[0], Ty::U32)? });
        }
        if has("cluster") {
            return Err(unsupported());
        }
        let whole = self.constant(0);
        if has("red") {
            let kind = match () {
                () if has("popc") => Barrier::Popc,
                () if has("and") => Barrier::And,
                () => Barrier::Or,
            };
            let last = s.operands.len() - 1;
            let (p, negated) = self.predicate(s.operands[last])?;
            let d = self.dst(s.operands[0])?;
            let id = self.src(s.operands[1], Ty::U32)?;
            let count = if last == 3 { self.src(s.operands[2], Ty::U32)? } else { whole };
            return Ok(Kind::Bar { kind, id, count, d, p, negated });
        }
        let kind = if has("arrive") { Barrier::Arrive } else { Barrier::Sync };
        let sink = self.sink;
        let id = self.src(s.operands[0], Ty::U32)?;
        let count = match s.operands.get(1) {
            Some(text) => self.src(text, Ty::U32)?,
            None => whole,
        };
        Ok(Kind::Bar { kind, id, count, d: sink, p: CONST, negated: false })
    }
}

//! Loads, stores, atomics, asynchronous copies and address conversions.
use super::*;

impl Decoder<'_, '_> {
    pub(super) fn memory(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        match s.parts[0] {
            "ld" | "ldu" => {
                let (d, n) = self.vector_dst(s.operands[0])?;
                Ok(Kind::Ld { d, access: self.access(s, s.operands[1], n)? })
            }
            "st" => {
                let (x, n) = self.vector_src(s.operands[1], last_type(s)?)?;
                Ok(Kind::St { x, access: self.access(s, s.operands[0], n)? })
            }
            "atom" | "red" => self.atom(s),
            "cp" => self.cp_async(s),
            "cvta" => {
                let window = match s.parts.iter().find_map(|p| Space::parse(p)) {
                    Some(Space::Shared) => Some(SHARED_WINDOW),
                    Some(Space::Local) => Some(LOCAL_WINDOW),
                    // Global, constant and parameter addresses are generic already.
                    _ => None,
                };
                let d = self.dst(s.operands[0])?;
                if window == Some(LOCAL_WINDOW) && self.locals.contains_key(s.operands[1]) {
                    return Ok(Kind::LocalAddress { d, offset: LOCAL_WINDOW + self.locals[s.operands[1]] as u64 });
                }
                let a = self.src(s.operands[1], Ty::U64)?;
                let Some(window) = window else { return Ok(Kind::Mov { d, a }) };
                let b = self.constant(window);
                let f: fn(u64, u64) -> u64 = if has("to") { |a, w| a.wrapping_sub(w) } else { |a, w| a.wrapping_add(w) };
                Ok(Kind::Bin { f, d, a, b })
            }
            "isspacep" => {
                let space = s.parts.iter().find_map(|p| Space::parse(p)).ok_or_else(unsupported)?;
                Ok(Kind::IsSpace { space, d: self.dst(s.operands[0])?, a: self.src(s.operands[1], Ty::U64)? })
            }
            "membar" | "fence" => Ok(Kind::Fence),
            "createpolicy" => Ok(Kind::Mov { d: self.dst(s.operands[0])?, a: self.constant(0) }),
            _ => Ok(Kind::Nop),
        }
    }

    fn access(&mut self, s: &Statement, address: &str, n: u8) -> Result<Access, String> {
        let has = |p: &str| s.parts.contains(&p);
        let ty = last_type(s)?;
        let Address { base, offset, frame } = self.address(address)?;
        let mut space = s.parts.iter().find_map(|p| Space::parse(p.split("::").next().unwrap_or(p))).unwrap_or(Space::Generic);
        if s.parts.contains(&"shared::cluster") {
            return Err(unsupported());
        }
        if frame {
            space = Space::Frame;
        } else if space == Space::Param && !self.function.entry {
            return Err("a parameter of a function through a register".into());
        }
        let width = s.parts.iter().find_map(|p| match *p {
            "v2" => Some(2),
            "v4" => Some(4),
            "v8" => Some(8),
            _ => None,
        });
        if width.unwrap_or(1) != n {
            return Err(format!("a vector of {n} registers where {} are expected", width.unwrap_or(1)));
        }
        if ty.size() > 8 {
            return Err(unsupported());
        }
        let sync = has("volatile") || has("acquire") || has("release") || has("relaxed") || has("mmio");
        let release = has("release") || has("acq_rel");
        Ok(Access { space, ty, n, sync, release, base, offset })
    }

    fn atom(&mut self, s: &Statement) -> Result<Kind, String> {
        let red = s.parts[0] == "red";
        if s.operands.iter().any(|o| o.starts_with('{')) || s.parts.contains(&"async") {
            return Err(unsupported());
        }
        let op = s.parts[1..]
            .iter()
            .find_map(|p| {
                Some(match *p {
                    "add" => AtomOp::Add,
                    "min" => AtomOp::Min,
                    "max" => AtomOp::Max,
                    "and" => AtomOp::And,
                    "or" => AtomOp::Or,
                    "xor" => AtomOp::Xor,
                    "exch" => AtomOp::Exch,
                    "cas" => AtomOp::Cas,
                    "inc" => AtomOp::Inc,
                    "dec" => AtomOp::Dec,
                    _ => return None,
                })
            })
            .ok_or_else(unsupported)?;
        let ty = last_type(s)?;
        let at = usize::from(!red);
        let d = if red { self.sink } else { self.dst(s.operands[0])? };
        let mut access = self.access(s, s.operands[at], 1)?;
        access.sync = true;
        let b = self.src(s.operands[at + 1], ty)?;
        let c = match op {
            AtomOp::Cas => self.src(s.operands[at + 2], ty)?,
            _ => CONST,
        };
        Ok(Kind::Atom { op, d, access, b, c })
    }

    fn cp_async(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        if !has("async") || has("bulk") || has("mbarrier") || s.parts.contains(&"reduce") {
            return Err(unsupported());
        }
        if has("commit_group") {
            return Ok(Kind::CpCommit);
        }
        if has("wait_all") {
            return Ok(Kind::CpWait { left: 0 });
        }
        if has("wait_group") {
            let left = s.operands[0].parse().map_err(|_| "a group count that is not a literal")?;
            return Ok(Kind::CpWait { left });
        }
        let (to, from) = (self.address(s.operands[0])?, self.address(s.operands[1])?);
        let size = s.operands[2].parse().map_err(|_| "a size that is not a literal")?;
        let source = match s.operands.get(3) {
            // A predicate there means "ignore the source".
            Some(text) if !text.starts_with("%p") => self.src(text, Ty::U32)?,
            Some(_) => return Err(unsupported()),
            None => self.constant(u64::from(size)),
        };
        Ok(Kind::CpAsync { to: to.base, to_offset: to.offset, from: from.base, from_offset: from.offset, size, source })
    }
}

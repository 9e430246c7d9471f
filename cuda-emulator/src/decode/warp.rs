//! Instructions that a warp executes together.
use super::*;

impl Decoder<'_, '_> {
    pub(super) fn warp(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        let ty = types(s).last().copied();
        match s.parts[0] {
            "activemask" => Ok(Kind::ActiveMask { d: self.dst(s.operands[0])? }),
            "mma" => self.mma(s),
            "ldmatrix" => self.ldmatrix(s),
            "shfl" if has("sync") => {
                let mode = match () {
                    () if has("up") => Shuffle::Up,
                    () if has("down") => Shuffle::Down,
                    () if has("bfly") => Shuffle::Bfly,
                    () => Shuffle::Idx,
                };
                let (d, p) = self.dst_pair(s.operands[0])?;
                let mut x = [0; 4];
                for (slot, text) in x.iter_mut().zip(&s.operands[1..]) {
                    *slot = self.src(text, Ty::U32)?;
                }
                let [a, b, c, mask] = x;
                Ok(Kind::Shfl { mode, d, p, a, b, c, mask })
            }
            "vote" if has("sync") => {
                let mode = match () {
                    () if has("all") => Vote::All,
                    () if has("any") => Vote::Any,
                    () if has("uni") => Vote::Uni,
                    () => Vote::Ballot,
                };
                let (a, negated) = self.predicate(s.operands[1])?;
                let mask = self.src(s.operands[2], Ty::U32)?;
                Ok(Kind::Vote { mode, d: self.dst(s.operands[0])?, p: self.sink, a, negated, wide: false, mask })
            }
            "match" => {
                let mode = if has("all") { Vote::MatchAll } else { Vote::MatchAny };
                let (d, p) = self.dst_pair(s.operands[0])?;
                let (a, mask) = (self.src(s.operands[1], Ty::U64)?, self.src(s.operands[2], Ty::U32)?);
                Ok(Kind::Vote { mode, d, p, a, negated: false, wide: ty == Some(Ty::B64), mask })
            }
            "elect" => {
                let (d, p) = self.dst_pair(s.operands[0])?;
                let mask = self.src(s.operands[1], Ty::U32)?;
                Ok(Kind::Vote { mode: Vote::Elect, d, p, a: CONST, negated: false, wide: false, mask })
            }
            "redux" => {
                let op = s.parts.iter().find_map(|p| {
                    Some(match *p {
                        "add" => Reduce::Add,
                        "min" => Reduce::Min,
                        "max" => Reduce::Max,
                        "and" => Reduce::And,
                        "or" => Reduce::Or,
                        "xor" => Reduce::Xor,
                        _ => return None,
                    })
                });
                let op = op.ok_or_else(unsupported)?;
                let signed = match ty {
                    Some(Ty::S32) => true,
                    Some(Ty::U32 | Ty::B32) => false,
                    _ => return Err(unsupported()),
                };
                let (a, mask) = (self.src(s.operands[1], Ty::U32)?, self.src(s.operands[2], Ty::U32)?);
                Ok(Kind::Redux { op, signed, d: self.dst(s.operands[0])?, a, mask })
            }
            _ => Err(unsupported()),
        }
    }

    fn mma(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        let depth = match () {
            () if has("m16n8k16") => 16,
            () if has("m16n8k8") => 8,
            () => return Err(unsupported()),
        };
        let ty = types(s);
        let [out, first, second, acc] = ty[..] else { return Err(unsupported()) };
        if !matches!(first, Ty::F16 | Ty::Bf16) || first != second || out != acc || !matches!(out, Ty::F32 | Ty::F16) {
            return Err(unsupported());
        }
        let (d, _) = self.vector_dst(s.operands[0])?;
        let (a, _) = self.vector_src(s.operands[1], Ty::B32)?;
        let (b, _) = self.vector_src(s.operands[2], Ty::B32)?;
        let (c, _) = self.vector_src(s.operands[3], out)?;
        Ok(Kind::Mma(Box::new(Mma { ty: first, depth, f16_out: out == Ty::F16, d, a, b, c })))
    }

    fn ldmatrix(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        if !has("m8n8") || last_type(s)? != Ty::B16 {
            return Err(unsupported());
        }
        let (d, count) = self.vector_dst(s.operands[0])?;
        let Address { base, offset, .. } = self.address(s.operands[1])?;
        let shared = s.parts.iter().any(|p| p.starts_with("shared"));
        let space = if shared { Space::Shared } else { Space::Generic };
        Ok(Kind::LdMatrix(Box::new(LdMatrix { count: count.into(), trans: has("trans"), space, d, base, offset })))
    }
}

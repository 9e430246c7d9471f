//! Instructions on registers alone.
use super::*;
use crate::ops::{cvt, cvt::Cvt, float, half, int};

impl Decoder<'_, '_> {
    pub(super) fn scalar(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        let name = s.parts[0];
        match name {
            "mov" => return self.mov(s),
            "cvt" => return self.cvt(s),
            "setp" | "set" => return self.setp(s),
            "selp" => {
                let ty = last_type(s)?;
                let (d, a, b) = (self.dst(s.operands[0])?, self.src(s.operands[1], ty)?, self.src(s.operands[2], ty)?);
                let p = self.src(s.operands[3], Ty::Pred)?;
                return Ok(Kind::Selp { d, a, b, p });
            }
            "slct" => {
                let ty = types(s);
                let (d, a, b) = (self.dst(s.operands[0])?, self.src(s.operands[1], ty[0])?, self.src(s.operands[2], ty[0])?);
                let c = self.src(s.operands[3], ty[1])?;
                return Ok(Kind::Slct { float: ty[1] == Ty::F32, d, a, b, c });
            }
            "lop3" if s.operands.len() == 5 => {
                let (d, a, b) = (self.dst(s.operands[0])?, self.src(s.operands[1], Ty::B32)?, self.src(s.operands[2], Ty::B32)?);
                let c = self.src(s.operands[3], Ty::B32)?;
                let table = crate::ptx::literal(s.operands[4], Ty::U32).ok_or("a truth table that is not a literal")? as u8;
                return Ok(Kind::Lop3 { table, d, a, b, c });
            }
            "bfi" => {
                let d = self.dst(s.operands[0])?;
                let mut x = [0; 4];
                for (slot, text) in x.iter_mut().zip(&s.operands[1..]) {
                    *slot = self.src(text, Ty::B64)?;
                }
                return Ok(Kind::Bfi { wide: has("b64"), d, x });
            }
            "testp" => {
                let f = float::test(&s.parts, last_type(s)?).ok_or_else(unsupported)?;
                return Ok(Kind::Test { f, d: self.dst(s.operands[0])?, a: self.src(s.operands[1], last_type(s)?)? });
            }
            "addc" | "subc" | "madc" => return self.carry(s),
            "add" | "sub" | "mad" if has("cc") => return self.carry(s),
            _ => {}
        }
        let all = types(s);
        let ty = match (name, has("wide")) {
            // `dp4a.u32.s32` names the types of both factors.
            ("dp4a", _) => Ty::B32,
            (_, true) => all[0],
            _ => *all.last().ok_or_else(unsupported)?,
        };
        let alu = match ty {
            Ty::F32 | Ty::F64 => float::alu(name, &s.parts, ty),
            Ty::F16 | Ty::F16x2 | Ty::Bf16 | Ty::Bf16x2 => half::alu(name, &s.parts, ty),
            _ => int::alu(name, &s.parts, ty),
        };
        self.alu(alu.ok_or_else(unsupported)?, s, ty)
    }

    fn mov(&mut self, s: &Statement) -> Result<Kind, String> {
        let ty = last_type(s)?;
        let (to, from) = (s.operands[0], s.operands[1]);
        if to.starts_with('{') {
            let (d, n) = self.vector_dst(to)?;
            return Ok(Kind::Unpack { d, bits: (ty.size() * 8 / usize::from(n)) as u8, n, a: self.src(from, ty)? });
        }
        let d = self.dst(to)?;
        if from.starts_with('{') {
            let (x, n) = self.vector_src(from, ty)?;
            return Ok(Kind::Pack { d, bits: (ty.size() * 8 / usize::from(n)) as u8, n, x });
        }
        if self.body.register(from, self.scope).is_none() && from.starts_with('%') {
            return Ok(Kind::Special { d, special: special(from).ok_or_else(|| format!("unknown special register `{from}`"))? });
        }
        if let Some(offset) = self.locals.get(from) {
            return Ok(Kind::LocalAddress { d, offset: *offset as u64 });
        }
        Ok(Kind::Mov { d, a: self.src(from, ty)? })
    }

    fn cvt(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        let ty = types(s);
        let [to, from] = ty[..] else { return Err(unsupported()) };
        let d = self.dst(s.operands[0])?;
        let round = cvt::Round2::parse(&s.parts);
        let mut cvt = Cvt { to, from, round, sat: has("sat"), relu: has("relu"), ftz: has("ftz") };
        match to {
            Ty::F16x2 | Ty::Bf16x2 if s.operands.len() == 3 => {
                cvt.to = if to == Ty::F16x2 { Ty::F16 } else { Ty::Bf16 };
                let (a, b) = (self.src(s.operands[1], from)?, self.src(s.operands[2], from)?);
                return Ok(Kind::CvtPack { cvt, d, a, b });
            }
            Ty::F16x2 | Ty::Bf16x2 | Ty::E4m3x2 | Ty::E5m2x2 => return Err(unsupported()),
            _ => {}
        }
        let a = self.src(s.operands[1], from)?;
        if !cvt.sat
            && let Some(f) = cvt::quick(to, from)
        {
            return Ok(Kind::Un { f, d, a });
        }
        // The two conversions that bf16 and f16 code does all the time.
        if !cvt.sat && !cvt.ftz && to == Ty::F32 && from == Ty::Bf16 {
            return Ok(Kind::Un { f: |v| crate::ops::bits32(half::b(v)), d, a });
        }
        Ok(Kind::Cvt { cvt, d, a })
    }

    fn setp(&mut self, s: &Statement) -> Result<Kind, String> {
        let set = s.parts[0] == "set";
        let all = types(s);
        let ty = *all.last().ok_or_else(unsupported)?;
        let single = match ty {
            Ty::F16x2 => Ty::F16,
            Ty::Bf16x2 => Ty::Bf16,
            t => t,
        };
        let f = s.parts[1..]
            .iter()
            .find_map(|op| match single {
                Ty::F32 | Ty::F64 => float::compare(op, &s.parts, single),
                Ty::F16 | Ty::Bf16 => half::compare(op, single),
                _ => int::compare(op, single),
            })
            .ok_or_else(unsupported)?;
        let join = s.parts.iter().find_map(|p| match *p {
            "and" => Some(Join::And),
            "or" => Some(Join::Or),
            "xor" => Some(Join::Xor),
            _ => None,
        });
        let (a, b) = (self.src(s.operands[1], ty)?, self.src(s.operands[2], ty)?);
        let (c, negated) = match s.operands.get(3) {
            Some(text) => self.predicate(text)?,
            None => (CONST, false),
        };
        let join = join.unwrap_or(Join::None);
        if join != Join::None && s.operands.len() < 4 {
            return Err("a joined comparison without a predicate".into());
        }
        if set {
            let yes = match all[0] {
                Ty::F32 => 1f32.to_bits(),
                Ty::F16x2 | Ty::F16 => 0x3c00,
                Ty::Bf16x2 | Ty::Bf16 => 0x3f80,
                Ty::U16 | Ty::S16 => 0xffff,
                _ if single != ty => 0xffff,
                _ => !0,
            };
            let pair = single != ty;
            return Ok(Kind::Set { f, join, negated, pair, yes, d: self.dst(s.operands[0])?, a, b, c });
        }
        let (d, q) = self.dst_pair(s.operands[0])?;
        if single != ty {
            return Ok(Kind::SetpPair { f, d, q, a, b });
        }
        Ok(Kind::Setp { f, join, negated, d, q, a, b, c })
    }

    fn carry(&mut self, s: &Statement) -> Result<Kind, String> {
        let has = |p: &str| s.parts.contains(&p);
        let op = match s.parts[0] {
            "add" | "addc" => CarryOp::Add,
            "sub" | "subc" => CarryOp::Sub,
            _ if has("hi") => CarryOp::MadHigh,
            _ => CarryOp::MadLow,
        };
        let mut x = [CONST; 3];
        for (slot, text) in x.iter_mut().zip(&s.operands[1..]) {
            *slot = self.src(text, Ty::U64)?;
        }
        let ty = match last_type(s)? {
            Ty::S32 | Ty::U32 | Ty::B32 if op == CarryOp::MadHigh => last_type(s)?,
            t if t.size() == 4 => Ty::U32,
            t if op == CarryOp::MadHigh => t,
            _ => Ty::U64,
        };
        Ok(Kind::Carry { op, ty, carry_in: s.parts[0].ends_with('c'), carry_out: has("cc"), d: self.dst(s.operands[0])?, x })
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |s: &str| ["x", "y", "z"].iter().position(|a| *a == s).map(|i| i as u8);
    if let Some((base, a)) = name.split_once('.') {
        let a = axis(a)?;
        return Some(match base {
            "%tid" => Special::Tid(a),
            "%ntid" => Special::Ntid(a),
            "%ctaid" => Special::Ctaid(a),
            "%nctaid" => Special::Nctaid(a),
            "%clusterid" => Special::Ctaid(a),
            "%nclusterid" => Special::Nctaid(a),
            "%cluster_ctaid" => Special::Zero,
            "%cluster_nctaid" => Special::One,
            _ => return None,
        });
    }
    Some(match name {
        "%laneid" => Special::LaneId,
        "%warpid" => Special::WarpId,
        "%nwarpid" => Special::NWarpId,
        "%lanemask_eq" => Special::LaneMask(Mask::Eq),
        "%lanemask_le" => Special::LaneMask(Mask::Le),
        "%lanemask_lt" => Special::LaneMask(Mask::Lt),
        "%lanemask_ge" => Special::LaneMask(Mask::Ge),
        "%lanemask_gt" => Special::LaneMask(Mask::Gt),
        "%clock" | "%clock64" | "%clock_hi" => Special::Clock,
        "%globaltimer" | "%globaltimer_lo" | "%globaltimer_hi" => Special::GlobalTimer,
        "%smid" => Special::SmId,
        "%nsmid" => Special::NSmId,
        "%envreg1" => Special::GridWorkspace { high: true },
        "%envreg2" => Special::GridWorkspace { high: false },
        "%gridid" => Special::GridId,
        "%dynamic_smem_size" => Special::DynamicShared,
        "%total_smem_size" => Special::TotalShared,
        "%cluster_ctarank" => Special::Zero,
        "%cluster_nctarank" => Special::One,
        _ => return None,
    })
}

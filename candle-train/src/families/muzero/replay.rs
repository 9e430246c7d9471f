//! What was played, lane by lane, and what a network is to say of it.
//!
//! Every lane has a ring of positions. A position is what was seen, what was done and what came of it; behind the last move of an episode stands one more,
//! in which nothing was done, with what was seen at the end. Positions are drawn with a probability that a tree of sums keeps (Schaul et al. 2016).

mod floats;
mod sums;
#[cfg(test)]
mod tests;

use candle_envs::Symmetry;
use candle_models::random::Random;
use candle_models::{Error, Result};
use floats::Floats;
use std::io::{self, Read, Write};
use std::path::Path;
use sums::Sums;

/// A position that is put into the buffer.
#[derive(Debug, Clone, Copy)]
pub struct Position<'a> {
    /// What was seen.
    pub floats: &'a [f32],
    /// Which actions could be taken.
    pub legal: &'a [bool],
    /// What the search found: the policy to learn.
    pub policy: &'a [f32],
    /// What the rest is.
    pub rest: Rest,
}

/// The numbers of a position.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Rest {
    /// What the search said that it was worth, for who was to move.
    pub value: f32,
    /// What was done.
    pub action: u32,
    /// What it earned.
    pub reward: f32,
    /// Who was to move.
    pub player: u8,
    /// Whether it was done although the search had found something else: what came of it says nothing of what the positions before it are worth.
    pub drawn: bool,
    /// What became of the episode.
    pub end: End,
}

/// What became of the episode with a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// It went on.
    #[default]
    None,
    /// The game was over.
    Terminated,
    /// It was cut short.
    Truncated,
    /// Nothing was done: this is the position behind the last move.
    After,
}

/// Sizes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    /// Lanes.
    pub lanes: usize,
    /// Positions of each.
    pub positions: usize,
    /// Floats of an observation.
    pub floats: usize,
    /// Actions.
    pub actions: usize,
}

impl Sizes {
    /// Bytes of all that was seen in a buffer of that size.
    pub fn seen_bytes(self) -> u64 {
        (self.lanes * self.positions) as u64 * 4 * self.floats as u64
    }

    /// Bytes of all the rest.
    pub fn other_bytes(self) -> u64 {
        (self.lanes * self.positions) as u64 * (5 * self.actions + size_of::<Rest>() + 16) as u64
    }
}

/// How targets are made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Horizon {
    /// Steps that the model is unrolled over.
    pub unroll: usize,
    /// Rewards that a value sums up.
    pub rewards: usize,
    /// What a reward is worth a step later.
    pub discount: f64,
}

/// The positions.
#[derive(Debug)]
pub struct Replay {
    sizes: Sizes,
    floats: Floats,
    legal: Vec<bool>,
    policies: Vec<f32>,
    rests: Vec<Rest>,
    /// Positions that each lane has ever had.
    played: Vec<u64>,
    /// The first position of each lane that cannot be drawn yet.
    waiting: Vec<u64>,
    priorities: Sums,
}

/// What a network is to say over an unroll that begins at a position.
#[derive(Debug, Clone, Default)]
pub struct Targets {
    /// What is seen at the first position.
    pub floats: Vec<f32>,
    /// Actions of the unroll.
    pub actions: Vec<u32>,
    /// What each action earns.
    pub rewards: Vec<f32>,
    /// Whether that is known.
    pub reward_counts: Vec<f32>,
    /// Values, one more than actions.
    pub values: Vec<f32>,
    /// Whether they are known.
    pub value_counts: Vec<f32>,
    /// Policies likewise, one behind the other.
    pub policies: Vec<f32>,
    /// Whether they are known.
    pub policy_counts: Vec<f32>,
}

impl Replay {
    /// An empty one in memory.
    pub fn new(sizes: Sizes) -> Self {
        Self::with(sizes, Floats::Memory(vec![0.0; sizes.lanes * sizes.positions * sizes.floats]))
    }

    /// An empty one whose observations are kept in a file in a folder: the system has in memory what of it is used often.
    ///
    /// # Errors
    /// If there is no such folder, or no room in it.
    pub fn on_disk(sizes: Sizes, folder: &Path) -> Result<Self> {
        Ok(Self::with(sizes, Floats::on_disk(folder, sizes.seen_bytes()).map_err(Error::io(folder))?))
    }

    fn with(sizes: Sizes, floats: Floats) -> Self {
        let n = sizes.lanes * sizes.positions;
        Self {
            sizes,
            floats,
            legal: vec![false; n * sizes.actions],
            policies: vec![0.0; n * sizes.actions],
            rests: vec![Rest::default(); n],
            played: vec![0; sizes.lanes],
            waiting: vec![0; sizes.lanes],
            priorities: Sums::new(n),
        }
    }

    /// Its sizes.
    pub fn sizes(&self) -> Sizes {
        self.sizes
    }

    /// Positions in it.
    pub fn len(&self) -> usize {
        self.played.iter().map(|n| (*n).min(self.sizes.positions as u64) as usize).sum()
    }

    /// Whether nothing was played.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, lane: usize, number: u64) -> usize {
        lane * self.sizes.positions + (number % self.sizes.positions as u64) as usize
    }

    /// Adds the next position of a lane, in place of its oldest. A position can be drawn once all that its targets go by has been played: so many
    /// positions behind it, or the end of its episode.
    pub fn push(&mut self, lane: usize, position: Position, horizon: &Horizon) {
        let number = self.played[lane];
        let slot = self.slot(lane, number);
        let Sizes { floats, actions, .. } = self.sizes;
        self.floats[slot * floats..][..floats].copy_from_slice(position.floats);
        self.legal[slot * actions..][..actions].copy_from_slice(position.legal);
        self.policies[slot * actions..][..actions].copy_from_slice(position.policy);
        self.rests[slot] = position.rest;
        self.priorities.set(slot, 0.0);
        self.played[lane] += 1;
        let needed = (horizon.unroll + horizon.rewards) as u64;
        let (known, next) = match position.rest.end {
            End::After => (number, number + 1),
            _ => ((number + 1).saturating_sub(needed), (number + 1).saturating_sub(needed)),
        };
        self.offer(lane, known, next);
    }

    /// Lets positions of a lane be drawn, those below `known` that wait; `next` is the first that waits from now on.
    fn offer(&mut self, lane: usize, known: u64, next: u64) {
        let oldest = self.played[lane].saturating_sub(self.sizes.positions as u64);
        for known in self.waiting[lane].max(oldest)..known {
            let slot = self.slot(lane, known);
            self.priorities.set(slot, self.priorities.largest);
        }
        self.waiting[lane] = self.waiting[lane].max(next);
    }

    /// Cuts the episode of every lane short where it is: what is played next belongs to another one. The last position becomes the one behind the last
    /// move, as nobody knows what its own move led to.
    pub fn cut(&mut self) {
        for lane in 0..self.sizes.lanes {
            let Some(last) = self.played[lane].checked_sub(1) else { continue };
            let slot = self.slot(lane, last);
            if self.rests[slot].end == End::After {
                continue;
            }
            self.rests[slot].end = End::After;
            self.priorities.set(slot, 0.0);
            if let Some(before) = last.checked_sub(1).map(|before| self.slot(lane, before))
                && self.rests[before].end == End::None
            {
                self.rests[before].end = End::Truncated;
            }
            self.offer(lane, last, last + 1);
        }
    }

    /// Draws positions: their slots, and how likely each was as a multiple of what all alike would be.
    ///
    /// # Errors
    /// If there is nothing to draw yet.
    pub fn draw(&self, n: usize, random: Random) -> Result<Vec<(usize, f32)>> {
        let total = self.priorities.total();
        if total <= 0.0 {
            return Err(Error::Input("nothing has been played that can be learnt from".to_owned()));
        }
        let known = self.priorities.known;
        // One in each of n equal parts.
        let one = |i: usize| {
            let slot = self.priorities.find((i as f64 + f64::from(random.uniform(i as u64))) / n as f64 * total);
            (slot, (self.priorities.get(slot) / total * known as f64) as f32)
        };
        Ok((0..n).map(one).collect())
    }

    /// Says how wrong the values at slots were: their priority from now on. Slots that are no longer what they were have none.
    pub fn set_priorities(&mut self, slots: &[usize], errors: &[f32], exponent: f64) {
        for (slot, error) in slots.iter().zip(errors) {
            if self.priorities.get(*slot) > 0.0 && error.is_finite() {
                self.priorities.set(*slot, (f64::from(*error) + 1e-6).powf(exponent).max(1e-9));
            }
        }
    }

    /// Slots that can be searched again, `n` of them drawn alike.
    pub fn any(&self, n: usize, random: Random) -> Vec<usize> {
        let draw = |i: u64| {
            let lane = random.below(2 * i, self.sizes.lanes as u32) as usize;
            let there = self.played[lane].min(self.sizes.positions as u64);
            (there > 0).then(|| lane * self.sizes.positions + random.below(2 * i + 1, there as u32) as usize)
        };
        (0..n as u64).filter_map(draw).collect()
    }

    /// What was seen at a slot, and which actions could be taken.
    pub fn seen(&self, slot: usize) -> (&[f32], &[bool]) {
        let Sizes { floats, actions, .. } = self.sizes;
        (&self.floats[slot * floats..][..floats], &self.legal[slot * actions..][..actions])
    }

    /// Puts what a new search found in place of what an old one did.
    pub fn renew(&mut self, slot: usize, policy: &[f32], value: f32) {
        let actions = self.sizes.actions;
        self.policies[slot * actions..][..actions].copy_from_slice(policy);
        self.rests[slot].value = value;
    }

    /// The number of the position that a slot of a lane holds.
    fn number(&self, slot: usize) -> (usize, u64) {
        let (lane, place) = (slot / self.sizes.positions, (slot % self.sizes.positions) as u64);
        let positions = self.sizes.positions as u64;
        let newest = self.played[lane] - 1;
        let back = (newest % positions + positions - place) % positions;
        (lane, newest - back)
    }

    /// Appends what the network is to say from a slot on, of the game as it is or of one that a symmetry makes of it. Actions behind an end are drawn.
    pub fn targets(&self, slot: usize, horizon: &Horizon, (random, symmetry): (Random, Option<&Symmetry>), to: &mut Targets) {
        let (lane, first) = self.number(slot);
        let Sizes { actions, .. } = self.sizes;
        let class =
            |action: u32| symmetry.and_then(|s| s.classes.iter().position(|class| *class == action as usize)).map_or(action, |i| i as u32);
        turned(&mut to.floats, self.seen(slot).0, symmetry.map(|s| &s.floats[..]));
        // Where the episode ends, and how.
        let mut end = End::None;
        for k in 0..=horizon.unroll as u64 {
            let at = self.slot(lane, first + k);
            let known = end == End::None;
            let over = end == End::Terminated;
            let rest = self.rests[at];
            let flag = |counts: bool| if counts { 1.0 } else { 0.0 };
            to.values.push(if known { self.value(lane, first + k, horizon) } else { 0.0 });
            to.value_counts.push(flag(known || over));
            match known {
                true => turned(&mut to.policies, &self.policies[at * actions..][..actions], symmetry.map(|s| &s.classes[..])),
                false => to.policies.extend(std::iter::repeat_n(0.0, actions)),
            }
            to.policy_counts.push(flag(known));
            if k < horizon.unroll as u64 {
                to.actions.push(if known { class(rest.action) } else { random.below(k, actions as u32) });
                to.rewards.push(if known { rest.reward } else { 0.0 });
                to.reward_counts.push(flag(known || over));
            }
            if known {
                end = rest.end;
            }
        }
    }

    /// Appends what was seen in so many positions behind a slot, and whether anything was: nothing is behind the end of an episode.
    pub fn seen_behind(
        &self,
        slot: usize,
        positions: usize,
        symmetry: Option<&Symmetry>,
        (floats, counts): (&mut Vec<f32>, &mut Vec<f32>),
    ) {
        let (lane, first) = self.number(slot);
        let mut over = false;
        for k in 0..positions as u64 {
            over |= self.rests[self.slot(lane, first + k)].end == End::After;
            let seen = self.seen(self.slot(lane, first + k + 1)).0;
            match (over, symmetry) {
                (true, _) => floats.extend(std::iter::repeat_n(0.0, seen.len())),
                (false, symmetry) => turned(floats, seen, symmetry.map(|s| &s.floats[..])),
            }
            counts.push(if over { 0.0 } else { 1.0 });
        }
    }

    /// Rewards from a position on and what the search said behind them, for who was to move there: those up to a move that was drawn.
    fn value(&self, lane: usize, first: u64, horizon: &Horizon) -> f32 {
        let player = self.rests[self.slot(lane, first)].player;
        let sign = |rest: &Rest| if rest.player == player { 1.0 } else { -1.0 };
        let (mut sum, mut factor, mut number) = (0.0f64, 1.0f64, first);
        for _ in 0..horizon.rewards {
            let rest = &self.rests[self.slot(lane, number)];
            if rest.drawn {
                break;
            }
            sum += factor * sign(rest) * f64::from(rest.reward);
            (factor, number) = (factor * horizon.discount, number + 1);
            match rest.end {
                End::Terminated => return sum as f32,
                End::Truncated => break,
                End::None | End::After => {}
            }
        }
        let behind = &self.rests[self.slot(lane, number)];
        (sum + factor * sign(behind) * f64::from(behind.value)) as f32
    }

    /// Takes over a lane of another buffer that remembers as many positions of each.
    pub fn copy_lane(&mut self, lane: usize, from: &Self, other: usize) {
        let Sizes { positions, floats, actions, .. } = self.sizes;
        let places = |lane: usize, width: usize| lane * positions * width..(lane + 1) * positions * width;
        self.floats[places(lane, floats)].copy_from_slice(&from.floats[places(other, floats)]);
        self.legal[places(lane, actions)].copy_from_slice(&from.legal[places(other, actions)]);
        self.policies[places(lane, actions)].copy_from_slice(&from.policies[places(other, actions)]);
        self.rests[places(lane, 1)].copy_from_slice(&from.rests[places(other, 1)]);
        (self.played[lane], self.waiting[lane]) = (from.played[other], from.waiting[other]);
        places(lane, 1).zip(places(other, 1)).for_each(|(to, slot)| self.priorities.set(to, from.priorities.get(slot)));
        self.priorities.largest = self.priorities.largest.max(from.priorities.largest);
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// If the disk is full.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        to.write_all(bytemuck::cast_slice(&self.played))?;
        to.write_all(bytemuck::cast_slice(&self.waiting))?;
        to.write_all(&self.priorities.largest.to_le_bytes())?;
        to.write_all(bytemuck::cast_slice(&self.floats))?;
        to.write_all(bytemuck::cast_slice(&self.policies))?;
        to.write_all(&self.legal.iter().map(|legal| u8::from(*legal)).collect::<Vec<_>>())?;
        for rest in &self.rests {
            to.write_all(&rest.value.to_le_bytes())?;
            to.write_all(&rest.reward.to_le_bytes())?;
            to.write_all(&rest.action.to_le_bytes())?;
            to.write_all(&[rest.player, rest.end as u8, rest.drawn.into()])?;
        }
        to.write_all(bytemuck::cast_slice(self.priorities.leaves()))
    }

    /// Reads what [`write`](Self::write) wrote of a buffer of this size, in place of what it holds.
    ///
    /// # Errors
    /// If it breaks off or holds something else; what the buffer holds is of no use then.
    pub fn read(&mut self, from: &mut dyn Read) -> io::Result<()> {
        from.read_exact(bytemuck::cast_slice_mut(&mut self.played))?;
        from.read_exact(bytemuck::cast_slice_mut(&mut self.waiting))?;
        let mut largest = [0; 8];
        from.read_exact(&mut largest)?;
        from.read_exact(bytemuck::cast_slice_mut(&mut self.floats))?;
        from.read_exact(bytemuck::cast_slice_mut(&mut self.policies))?;
        let mut legal = vec![0u8; self.legal.len()];
        from.read_exact(&mut legal)?;
        self.legal.iter_mut().zip(legal).for_each(|(to, byte)| *to = byte != 0);
        let mut bytes = [0u8; 15];
        for rest in &mut self.rests {
            from.read_exact(&mut bytes)?;
            let word = |i: usize| [bytes[i], bytes[i + 1], bytes[i + 2], bytes[i + 3]];
            let end = [End::None, End::Terminated, End::Truncated, End::After].get(bytes[13] as usize).copied();
            *rest = Rest {
                value: f32::from_le_bytes(word(0)),
                reward: f32::from_le_bytes(word(4)),
                action: u32::from_le_bytes(word(8)),
                player: bytes[12],
                drawn: bytes[14] != 0,
                end: end.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("an end of kind {}", bytes[13])))?,
            };
        }
        let mut leaves = vec![0.0f64; self.rests.len()];
        from.read_exact(bytemuck::cast_slice_mut(&mut leaves))?;
        leaves.iter().enumerate().for_each(|(slot, priority)| self.priorities.set(slot, *priority));
        self.priorities.largest = f64::from_le_bytes(largest);
        Ok(())
    }
}

/// Appends the values of these places, or all of them.
fn turned(to: &mut Vec<f32>, values: &[f32], places: Option<&[usize]>) {
    match places {
        Some(places) => to.extend(places.iter().map(|place| values[*place])),
        None => to.extend_from_slice(values),
    }
}

//! What was played, lane by lane, and what a network is to say of it.
//!
//! Every lane has a ring of positions. A position is what was seen, what was done and what came of it; behind the last move of an episode stands one more,
//! in which nothing was done, with what was seen at the end. Positions are drawn with a probability that a tree of sums keeps (Schaul et al. 2016).

use candle_envs::Symmetry;
use candle_models::random::Random;
use candle_models::{Error, Result};
use memmap2::MmapMut;
use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::Path;

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

/// Floats in memory, or in a file that nobody else sees and that is gone with them.
#[derive(Debug)]
enum Floats {
    Memory(Vec<f32>),
    Disk(MmapMut),
}

impl Floats {
    fn on_disk(folder: &Path, bytes: u64) -> io::Result<Self> {
        let file = tempfile::tempfile_in(folder)?;
        reserve(&file, bytes)?;
        // SAFETY: the file has no name, so nobody else can change or shorten it.
        Ok(Self::Disk(unsafe { MmapMut::map_mut(&file)? }))
    }
}

/// Makes a file so long, of zeros. A disk that is full is to say so now: writing to a map of a file that has no room would kill the process.
fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::fd::AsRawFd;
        let length = libc::off_t::try_from(bytes).map_err(io::Error::other)?;
        // SAFETY: the file is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => Ok(()),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
    #[cfg(not(unix))]
    file.set_len(bytes)
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        match self {
            Self::Memory(floats) => floats,
            Self::Disk(map) => bytemuck::cast_slice(map),
        }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Memory(floats) => floats,
            Self::Disk(map) => bytemuck::cast_slice_mut(map),
        }
    }
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

/// Numbers whose sum is known for every range: a complete binary tree, the leaves last.
#[derive(Debug, Clone)]
struct Sums {
    /// Node 1 is the root, node i has 2 i and 2 i + 1 below it.
    nodes: Vec<f64>,
    leaves: usize,
    first: usize,
    /// Leaves above zero.
    known: usize,
    /// The largest that there ever was, 1 to begin with.
    largest: f64,
}

impl Sums {
    fn new(leaves: usize) -> Self {
        let first = leaves.next_power_of_two().max(1);
        Self { nodes: vec![0.0; 2 * first], leaves, first, known: 0, largest: 1.0 }
    }

    fn leaves(&self) -> &[f64] {
        &self.nodes[self.first..][..self.leaves]
    }

    fn get(&self, leaf: usize) -> f64 {
        self.nodes[self.first + leaf]
    }

    fn set(&mut self, leaf: usize, x: f64) {
        let mut node = self.first + leaf;
        if self.nodes[node] == x {
            return;
        }
        self.known = self.known + usize::from(x > 0.0) - usize::from(self.nodes[node] > 0.0);
        self.largest = self.largest.max(x);
        self.nodes[node] = x;
        while node > 1 {
            node /= 2;
            self.nodes[node] = self.nodes[2 * node] + self.nodes[2 * node + 1];
        }
    }

    fn total(&self) -> f64 {
        self.nodes[1]
    }

    /// The leaf in whose share of the total a number lies.
    fn find(&self, mut x: f64) -> usize {
        let mut node = 1;
        while node < self.first {
            let left = self.nodes[2 * node];
            // Rounding must not lead to a leaf that has nothing.
            let right = self.nodes[2 * node + 1];
            if (x < left && left > 0.0) || right <= 0.0 {
                node *= 2;
            } else {
                (x, node) = (x - left, 2 * node + 1);
            }
        }
        (node - self.first).min(self.leaves.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: Horizon = Horizon { unroll: 2, rewards: 2, discount: 0.5 };

    fn replay(positions: usize) -> Replay {
        Replay::new(Sizes { lanes: 1, positions, floats: 1, actions: 2 })
    }

    /// Position i of the lane: seen i, rewarded i, worth 10 i.
    fn push(replay: &mut Replay, i: u32, player: u8, end: End) {
        push_drawn(replay, (i, false), player, end);
    }

    fn push_drawn(replay: &mut Replay, (i, drawn): (u32, bool), player: u8, end: End) {
        let rest =
            Rest { value: 10.0 * i as f32, action: i % 2, reward: if end == End::After { 0.0 } else { i as f32 }, player, drawn, end };
        let policy = [0.25, 0.75];
        replay.push(0, Position { floats: &[i as f32], legal: &[true, true], policy: &policy, rest }, &HORIZON);
    }

    fn written(replay: &Replay) -> Vec<u8> {
        let mut bytes = Vec::new();
        replay.write(&mut bytes).unwrap();
        bytes
    }

    fn read(sizes: Sizes, mut bytes: &[u8]) -> io::Result<Replay> {
        let mut replay = Replay::new(sizes);
        replay.read(&mut bytes).map(|()| replay)
    }

    fn drawable(replay: &Replay) -> Vec<usize> {
        (0..replay.priorities.leaves).filter(|slot| replay.priorities.get(*slot) > 0.0).collect()
    }

    #[test]
    fn a_position_can_be_drawn_when_its_targets_are_known() {
        let mut replay = replay(8);
        for i in 0..5 {
            push(&mut replay, i, 0, End::None);
            assert_eq!(drawable(&replay), (0..(i as usize + 1).saturating_sub(4)).collect::<Vec<_>>(), "after {i}");
        }
        push(&mut replay, 5, 0, End::Terminated);
        push(&mut replay, 6, 0, End::After);
        assert_eq!(drawable(&replay), [0, 1, 2, 3, 4, 5]);
        // The ring forgets its oldest.
        push(&mut replay, 7, 0, End::None);
        push(&mut replay, 8, 0, End::None);
        assert_eq!((drawable(&replay), replay.len()), (vec![1, 2, 3, 4, 5], 8));
        for _ in 0..3 {
            let drawn = replay.draw(64, Random::new(3)).unwrap();
            assert!(drawn.iter().all(|(slot, share)| (1..=5).contains(slot) && (*share - 1.0).abs() < 1e-6), "{drawn:?}");
        }
    }

    #[test]
    fn targets_follow_the_episode_to_its_end_and_not_beyond() {
        let mut replay = replay(16);
        for (i, end) in [End::None, End::None, End::Terminated, End::After, End::None, End::Truncated, End::After].into_iter().enumerate() {
            push(&mut replay, i as u32, 0, end);
        }
        let of = |slot| {
            let mut targets = Targets::default();
            replay.targets(slot, &HORIZON, (Random::new(1), None), &mut targets);
            targets
        };
        let first = of(0);
        assert_eq!(first.floats, [0.0]);
        assert_eq!(first.rewards, [0.0, 1.0]);
        // 0 + .5 + .25 * 20; 1 + .5 * 2, behind which nothing comes; 2.
        assert_eq!(first.values, [5.5, 2.0, 2.0]);
        assert_eq!((first.policy_counts, first.value_counts), (vec![1.0; 3], vec![1.0; 3]));
        // Behind the end of a game all is zero and known; of policies nothing is.
        let last = of(2);
        assert_eq!((last.rewards, last.reward_counts), (vec![2.0, 0.0], vec![1.0, 1.0]));
        assert_eq!((last.values, last.value_counts), (vec![2.0, 0.0, 0.0], vec![1.0; 3]));
        assert_eq!(last.policy_counts, [1.0, 0.0, 0.0]);
        // Behind one that was cut short nothing is known, and its last value counts.
        let cut = of(4);
        assert_eq!(cut.values[..2], [4.0 + 0.5 * 5.0 + 0.25 * 60.0, 5.0 + 0.5 * 60.0]);
        assert_eq!((cut.value_counts, cut.reward_counts), (vec![1.0, 1.0, 0.0], vec![1.0, 1.0]));
    }

    #[test]
    fn an_episode_that_nobody_goes_on_with_is_cut_short() {
        for end in [End::None, End::Terminated, End::Truncated] {
            let mut replay = replay(16);
            (0..3).for_each(|i| push(&mut replay, i, 0, End::None));
            push(&mut replay, 3, 0, end);
            replay.cut();
            assert_eq!(drawable(&replay), [0, 1, 2]);
            let mut targets = Targets::default();
            replay.targets(1, &HORIZON, (Random::new(1), None), &mut targets);
            // Up to what the search said of position 3; of what was done there nothing is known.
            assert_eq!(targets.values[..2], [1.0 + 0.5 * 2.0 + 0.25 * 30.0, 2.0 + 0.5 * 30.0]);
            assert_eq!((targets.value_counts, targets.reward_counts), (vec![1.0, 1.0, 0.0], vec![1.0, 1.0]));
            // The next episode is another one, which cannot be drawn before its own targets are known; nothing is cut twice.
            replay.cut();
            (4..8).for_each(|i| push(&mut replay, i, 0, End::None));
            assert_eq!(drawable(&replay), [0, 1, 2]);
            push(&mut replay, 8, 0, End::None);
            assert_eq!(drawable(&replay), [0, 1, 2, 4]);
        }
        // Cut behind its first position it has no move.
        let mut replay = replay(16);
        [End::Terminated, End::After, End::None].into_iter().enumerate().for_each(|(i, end)| push(&mut replay, i as u32, 0, end));
        replay.cut();
        assert_eq!((drawable(&replay), replay.rests[1].end), (vec![0], End::After));
    }

    #[test]
    fn between_two_players_what_one_wins_the_other_loses() {
        let mut replay = replay(16);
        for (i, end) in [End::None, End::None, End::Terminated, End::After].into_iter().enumerate() {
            push(&mut replay, i as u32, i as u8 % 2, end);
        }
        let mut targets = Targets::default();
        replay.targets(0, &Horizon { rewards: 9, discount: 1.0, ..HORIZON }, (Random::new(1), None), &mut targets);
        assert_eq!(targets.values, [0.0 - 1.0 + 2.0, 1.0 - 2.0, 2.0]);
    }

    /// What comes of a drawn move counts neither for who made it nor before.
    #[test]
    fn values_go_by_the_search_from_a_drawn_move_on() {
        let mut replay = replay(16);
        for (i, end) in [End::None, End::None, End::None, End::Terminated, End::After].into_iter().enumerate() {
            push_drawn(&mut replay, (i as u32, i == 1), i as u8 % 2, end);
        }
        let mut targets = Targets::default();
        replay.targets(0, &Horizon { unroll: 3, rewards: 9, discount: 1.0 }, (Random::new(1), None), &mut targets);
        // 0 and what the search said to the other at position 1; that itself; the rewards 2 and 3 of either; 3.
        assert_eq!(targets.values, [0.0 - 10.0, 10.0, 2.0 - 3.0, 3.0]);
        assert_eq!(targets.value_counts, [1.0; 4]);
        let again = read(replay.sizes(), &written(&replay)).unwrap();
        assert_eq!(again.rests, replay.rests);
    }

    #[test]
    fn a_symmetry_turns_what_is_seen_and_what_is_done() {
        let mut replay = Replay::new(Sizes { lanes: 1, positions: 8, floats: 3, actions: 3 });
        for (i, end) in [End::None, End::Terminated, End::After].into_iter().enumerate() {
            let rest = Rest { action: i as u32, end, ..Rest::default() };
            let position = Position { floats: &[1.0, 2.0, 3.0], legal: &[true; 3], policy: &[0.5, 0.3, 0.2], rest };
            replay.push(0, position, &HORIZON);
        }
        let turn = Symmetry { floats: vec![1, 2, 0], classes: vec![2, 0, 1] };
        let mut targets = Targets::default();
        replay.targets(0, &HORIZON, (Random::new(1), Some(&turn)), &mut targets);
        assert_eq!(targets.floats, [2.0, 3.0, 1.0]);
        assert_eq!(targets.policies, [0.2, 0.5, 0.3, 0.2, 0.5, 0.3, 0.0, 0.0, 0.0]);
        // Action 0 is class 1 there, action 1 class 2.
        assert_eq!(targets.actions, [1, 2]);
        // The position behind the last move was seen, and nothing behind it.
        let (mut floats, mut counts) = (Vec::new(), Vec::new());
        replay.seen_behind(0, 3, Some(&turn), (&mut floats, &mut counts));
        assert_eq!((floats, counts), (vec![2.0, 3.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 0.0], vec![1.0, 1.0, 0.0]));
    }

    #[test]
    fn what_was_written_is_read_and_goes_on_alike_in_memory_and_on_disk() {
        let mut replay = replay(6);
        (0..9).for_each(|i| push(&mut replay, i, 0, End::None));
        replay.set_priorities(&[1], &[3.0], 0.5);
        let (bytes, dir) = (written(&replay), tempfile::tempdir().unwrap());
        let mut again = read(replay.sizes(), &bytes).unwrap();
        let mut on_disk = Replay::on_disk(replay.sizes(), dir.path()).unwrap();
        on_disk.copy_lane(0, &again, 0);
        assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "a file that could be left behind");
        for i in 9..12 {
            for other in [&mut again, &mut on_disk] {
                assert_eq!(other.draw(16, Random::new(i)).unwrap(), replay.draw(16, Random::new(i)).unwrap());
                push(other, i as u32, 0, End::None);
            }
            push(&mut replay, i as u32, 0, End::None);
        }
        assert_eq!((written(&again), written(&on_disk)), (written(&replay), written(&replay)));
        assert!(read(replay.sizes(), &bytes[..bytes.len() - 1]).is_err());
    }
}

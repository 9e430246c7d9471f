//! The choice of an action at up to 64 nodes at once.
//!
//! A search has many nodes whose next action is to be found and few actions at each: the values of an edge lie side by side for all nodes of
//! a tile, so every sum over actions is a loop without dependencies over nodes, and a node's result depends on its own values alone.

use super::method::Gumbel;
use crate::ops::simd::{self, kernel};
use pulp::Simd;

/// Nodes of a tile.
pub(super) const LANES: usize = 64;
/// Nodes are computed in steps of so many: the widest register.
const STEP: usize = 16;
/// A value of each node.
type Lane = [f32; LANES];

/// What is known of a node beside its edges.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known {
    /// Where it is among all nodes.
    pub place: u32,
    /// The model's value.
    pub raw: f32,
    /// The mean of the values behind it.
    pub value: f32,
    /// What stands before the prior in PUCT.
    pub factor: f32,
    /// Of a root of Gumbel's method: the visits that an action must have to be considered.
    pub considered: f32,
    /// What breaks ties: 0 where the lower action wins.
    pub ties: u32,
}

/// Nodes with their edges.
pub(super) struct Tile {
    actions: usize,
    /// `[3, A]`: visits, values (reward and discounted value behind it) and the prior's logits, the largest of which is about 0.
    edges: Vec<Lane>,
    /// `[A]`: at roots Gumbel's numbers, or negative infinity where an action is not legal; zeros elsewhere.
    extra: Vec<Lane>,
    /// `[A]`: the logits of the improved prior, or the prior before it is divided by its sum.
    work: Vec<Lane>,
    known: [Lane; 4],
    ties: [u32; LANES],
    places: [u32; LANES],
    chosen: [u32; LANES],
    len: usize,
}

impl Tile {
    pub fn new(actions: usize) -> Self {
        let lanes = |count| vec![[0.0; LANES]; count];
        Self {
            actions,
            edges: lanes(3 * actions),
            extra: lanes(actions),
            work: lanes(actions),
            known: [[0.0; LANES]; 4],
            ties: [0; LANES],
            places: [0; LANES],
            chosen: [0; LANES],
            len: 0,
        }
    }

    pub fn is_full(&self) -> bool {
        self.len == LANES
    }

    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a node with its edges `[3, A]`.
    pub fn push(&mut self, known: Known, edges: &[f32]) {
        let lane = self.len;
        self.edges.iter_mut().zip(edges).for_each(|(to, x)| to[lane] = *x);
        self.known.iter_mut().zip([known.raw, known.value, known.factor, known.considered]).for_each(|(to, x)| to[lane] = x);
        (self.ties[lane], self.places[lane]) = (known.ties, known.place);
        self.len += 1;
    }

    /// The numbers `[A]` of the root that was added last.
    pub fn add_extra(&mut self, extra: &[f32]) {
        let lane = self.len - 1;
        self.extra.iter_mut().zip(extra).for_each(|(to, x)| to[lane] = *x);
    }

    /// Takes an action of the node that was added last for one that is not likely at all, and was never taken.
    pub fn close(&mut self, action: usize) {
        let lane = self.len - 1;
        (self.edges[action][lane], self.edges[2 * self.actions + action][lane]) = (0.0, f32::MIN);
    }

    /// The places of the nodes and their actions.
    pub fn choices(&self) -> impl Iterator<Item = (u32, u32)> {
        self.places.iter().copied().zip(self.chosen).take(self.len)
    }

    /// The improved prior's logits at a node, after a choice by Gumbel's method.
    pub fn improved(&self, lane: usize) -> impl Iterator<Item = f32> + Clone {
        self.work.iter().map(move |work| work[lane])
    }

    /// The action with the greatest upper confidence bound at every node.
    pub fn choose_by_puct(&mut self) {
        puct(self);
    }

    /// The action whose visits lag farthest behind the improved prior.
    pub fn choose_inside(&mut self, gumbel: &Gumbel) {
        gumbel_inside(self, gumbel);
    }

    /// The action with the best sum of Gumbel's number, logit and value among those that are considered.
    pub fn choose_at_root(&mut self, gumbel: &Gumbel) {
        gumbel_root(self, gumbel);
    }

    /// Writes the logits of the improved prior, prior and transformed values, to `work`; returns the visits of all edges.
    #[inline(always)]
    fn improve<S: Simd>(&mut self, gumbel: &Gumbel) -> Lane {
        let (actions, len) = (self.actions, self.lanes());
        let ([visits, values, logits], work, raw) = (edges(&self.edges, actions), &mut self.work, &self.known[0]);
        let (mut sum, mut most, mut prior, mut mixed) = ([0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES], [0.0f32; LANES]);
        for a in 0..actions {
            let (n, q, l) = (&visits[a], &values[a], &logits[a]);
            for i in 0..len {
                let p = if n[i] > 0.0 { simd::exp::<S>(l[i]) } else { 0.0 };
                sum[i] += n[i];
                most[i] = if n[i] > most[i] { n[i] } else { most[i] };
                prior[i] += p;
                mixed[i] += p * q[i];
            }
        }
        for i in 0..len {
            let visited = if prior[i] > 0.0 { mixed[i] / prior[i] } else { 0.0 };
            mixed[i] = (raw[i] + sum[i] * visited) / (1.0 + sum[i]);
        }
        let (mut low, mut high) = ([f32::INFINITY; LANES], [f32::NEG_INFINITY; LANES]);
        for a in 0..actions {
            complete(len, &mut work[a], &visits[a], &values[a], &mixed);
            let w = &work[a];
            for i in 0..len {
                low[i] = if w[i] < low[i] { w[i] } else { low[i] };
                high[i] = if w[i] > high[i] { w[i] } else { high[i] };
            }
        }
        for i in 0..len {
            let range = high[i] - low[i];
            let range = if range > 1e-8 { range } else { 1e-8 };
            let range = if gumbel.rescale { range } else { 1.0 };
            low[i] = if gumbel.rescale { low[i] } else { 0.0 };
            most[i] = (gumbel.maxvisit_init + most[i]) * gumbel.value_scale / range;
        }
        for a in 0..actions {
            scale(len, &mut work[a], &logits[a], &low, &most);
        }
        sum
    }

    fn lanes(&self) -> usize {
        self.len.next_multiple_of(STEP).min(LANES)
    }

    #[inline(always)]
    fn puct_on<S: Simd>(&mut self) {
        let (actions, len) = (self.actions, self.lanes());
        let ([visits, values, logits], work) = (edges(&self.edges, actions), &mut self.work);
        let [_, value, factor, _] = &self.known;
        let (mut low, mut high, mut sum) = (*value, *value, [0.0f32; LANES]);
        for a in 0..actions {
            exponentials::<S>(len, &mut work[a], &logits[a]);
            let (n, q, w) = (&visits[a], &values[a], &work[a]);
            for i in 0..len {
                sum[i] += w[i];
                low[i] = if n[i] > 0.0 && q[i] < low[i] { q[i] } else { low[i] };
                high[i] = if n[i] > 0.0 && q[i] > high[i] { q[i] } else { high[i] };
            }
        }
        for i in 0..len {
            let range = high[i] - low[i];
            high[i] = if range > 1e-8 { range } else { 1e-8 };
        }
        let mut best = Best::new();
        for a in 0..actions {
            let (n, q, w, extra) = (&visits[a], &values[a], &work[a], &self.extra[a]);
            let mut score = [0.0f32; LANES];
            for i in 0..len {
                let value = if n[i] > 0.0 { (q[i] - low[i]) / high[i] } else { 0.0 };
                score[i] = value + factor[i] * (w[i] / sum[i]) / (n[i] + 1.0) + extra[i];
            }
            best.consider(len, a as u32, &score, &self.ties);
        }
        self.chosen = best.action;
    }

    #[inline(always)]
    fn inside_on<S: Simd>(&mut self, gumbel: &Gumbel) {
        let sum_of_visits = self.improve::<S>(gumbel);
        let (actions, len) = (self.actions, self.lanes());
        let ([visits, ..], work) = (edges(&self.edges, actions), &mut self.work);
        let (mut most, mut sum) = ([f32::NEG_INFINITY; LANES], [0.0f32; LANES]);
        for w in work.iter() {
            for i in 0..len {
                most[i] = if w[i] > most[i] { w[i] } else { most[i] };
            }
        }
        for w in work.iter_mut() {
            shifted_exponentials::<S>(len, w, &most);
            for i in 0..len {
                sum[i] += w[i];
            }
        }
        let mut best = Best::new();
        for (a, (n, w)) in visits.iter().zip(work.iter()).enumerate() {
            let mut score = [0.0f32; LANES];
            for i in 0..len {
                score[i] = w[i] / sum[i] - n[i] / (1.0 + sum_of_visits[i]);
            }
            best.consider(len, a as u32, &score, &self.ties);
        }
        self.chosen = best.action;
    }

    #[inline(always)]
    fn root_on<S: Simd>(&mut self, gumbel: &Gumbel) {
        self.improve::<S>(gumbel);
        let (actions, len) = (self.actions, self.lanes());
        let ([visits, ..], considered) = (edges(&self.edges, actions), &self.known[3]);
        let mut best = Best::new();
        for (a, (n, (w, extra))) in visits.iter().zip(self.work.iter().zip(&self.extra)).enumerate() {
            let mut score = [0.0f32; LANES];
            for i in 0..len {
                let sum = extra[i] + w[i];
                // An action that the model masks can be taken where it is the only one that is considered.
                let sum = if sum > -1e9 { sum } else { -1e9 };
                score[i] = if n[i] == considered[i] && extra[i] > f32::NEG_INFINITY { sum } else { f32::NEG_INFINITY };
            }
            best.consider(len, a as u32, &score, &self.ties);
        }
        self.chosen = best.action;
    }
}

kernel! {
    fn puct<S>(tile: &'a mut Tile) {
        tile.puct_on::<S>();
    }
}

kernel! {
    fn gumbel_inside<S>(tile: &'a mut Tile, gumbel: &'a Gumbel) {
        tile.inside_on::<S>(gumbel);
    }
}

kernel! {
    fn gumbel_root<S>(tile: &'a mut Tile, gumbel: &'a Gumbel) {
        tile.root_on::<S>(gumbel);
    }
}

/// Visits, values and logits, `[A]` each.
#[inline(always)]
fn edges(edges: &[Lane], actions: usize) -> [&[Lane]; 3] {
    let (visits, rest) = edges.split_at(actions);
    let (values, logits) = rest.split_at(actions);
    [visits, values, logits]
}

// What is written and what is read come as arguments of their own, which tells the compiler that they lie apart.

/// The values of edges, and the mixed value where there was no visit.
#[inline(always)]
fn complete(len: usize, to: &mut Lane, visits: &Lane, values: &Lane, mixed: &Lane) {
    for i in 0..len.min(LANES) {
        to[i] = if visits[i] > 0.0 { values[i] } else { mixed[i] };
    }
}

/// The logits, and the completed values brought to their scale.
#[inline(always)]
fn scale(len: usize, to: &mut Lane, logits: &Lane, low: &Lane, factor: &Lane) {
    for i in 0..len.min(LANES) {
        to[i] = logits[i] + factor[i] * (to[i] - low[i]);
    }
}

#[inline(always)]
fn exponentials<S: Simd>(len: usize, to: &mut Lane, x: &Lane) {
    for i in 0..len.min(LANES) {
        to[i] = simd::exp::<S>(x[i]);
    }
}

#[inline(always)]
fn shifted_exponentials<S: Simd>(len: usize, to: &mut Lane, shift: &Lane) {
    for i in 0..len.min(LANES) {
        to[i] = simd::exp::<S>(to[i] - shift[i]);
    }
}

/// The best action of every node so far.
struct Best {
    score: Lane,
    /// What its tie-breaker is.
    drawn: [u32; LANES],
    action: [u32; LANES],
}

impl Best {
    #[inline(always)]
    fn new() -> Self {
        Self { score: [f32::NEG_INFINITY; LANES], drawn: [0; LANES], action: [0; LANES] }
    }

    /// Takes an action where its score is greater; of equal ones that with the greater number drawn, or else the first.
    #[inline(always)]
    fn consider(&mut self, len: usize, action: u32, score: &Lane, ties: &[u32; LANES]) {
        for i in 0..len.min(LANES) {
            let drawn = if ties[i] == 0 { 0 } else { spread(ties[i].wrapping_add(action.wrapping_mul(0x9e37_79b9))) };
            let better = score[i] > self.score[i] || (score[i] == self.score[i] && score[i] > f32::NEG_INFINITY && drawn > self.drawn[i]);
            self.score[i] = if better { score[i] } else { self.score[i] };
            self.drawn[i] = if better { drawn } else { self.drawn[i] };
            self.action[i] = if better { action } else { self.action[i] };
        }
    }
}

/// A bijection of 32 bits that spreads every bit over all (Wellons' "lowbias32"): enough to break ties, and a few instructions.
#[inline(always)]
pub(super) fn spread(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tile(visits: &[f32], values: &[f32], logits: &[f32], known: Known) -> Tile {
        let mut tile = Tile::new(visits.len());
        tile.push(known, &[visits, values, logits].concat());
        tile
    }

    fn chosen(tile: &Tile) -> u32 {
        tile.choices().next().unwrap().1
    }

    #[test]
    fn completed_values_and_the_improved_prior_are_the_published_ones() {
        let gumbel = Gumbel::default();
        let mut tile = tile(&[2.0, 1.0, 0.0], &[1.0, 0.0, 0.0], &[0.0; 3], Known { raw: 0.5, ..Known::default() });
        tile.choose_inside(&gumbel);
        // The scores, from what is left of them: the improved prior before it is divided by its sum.
        let weights: Vec<f32> = tile.improved(0).collect();
        let sum: f32 = weights.iter().sum();
        let method: Vec<f32> = weights.iter().map(|w| w / sum).collect();
        for (found, expected) in method.iter().zip([0.926_106, 0.005_109, 0.068_785]) {
            assert!((found - expected).abs() < 1e-6, "{method:?}");
        }
        assert_eq!(chosen(&tile), 0, "scores .426106, -.244891, .068785");
        tile.choose_at_root(&gumbel);
        for (found, expected) in tile.improved(0).zip([5.2, 0.0, 2.6]) {
            assert!((found - expected).abs() < 1e-5, "{found} instead of {expected}");
        }
    }

    #[test]
    fn a_node_chooses_the_same_in_any_company() {
        let mut draw = crate::random::numbers(5);
        for actions in [1, 2, 5, 18] {
            let nodes: Vec<(Known, Vec<f32>, Vec<f32>)> = (0..LANES)
                .map(|place| {
                    let visits = (0..actions).map(|_| (draw() * 4.0).floor()).collect::<Vec<_>>();
                    let values = (0..actions).map(|_| draw() * 2.0 - 1.0).collect::<Vec<_>>();
                    let logits = (0..actions).map(|_| -draw() * 5.0).collect::<Vec<_>>();
                    let [raw, value, factor] = [draw(), draw(), draw() * 3.0];
                    let known = Known { place: place as u32, raw, value, factor, considered: 1.0, ties: (draw() * 1e6) as u32 };
                    (known, [visits, values, logits].concat(), (0..actions).map(|_| draw()).collect())
                })
                .collect();
            let choose: [fn(&mut Tile); 3] =
                [Tile::choose_by_puct, |t| t.choose_inside(&Gumbel::default()), |t| t.choose_at_root(&Gumbel::default())];
            for choose in choose {
                let run = |nodes: &[(Known, Vec<f32>, Vec<f32>)]| {
                    let mut tile = Tile::new(actions);
                    nodes.iter().for_each(|(known, edges, extra)| {
                        tile.push(*known, edges);
                        tile.add_extra(extra);
                    });
                    choose(&mut tile);
                    tile.choices().collect::<Vec<_>>()
                };
                let together = run(&nodes);
                let alone: Vec<_> = nodes.iter().flat_map(|node| run(std::slice::from_ref(node))).collect();
                assert_eq!(together, alone, "{actions} actions");
            }
        }
    }

    #[test]
    fn ties_are_broken_evenly_by_their_key_and_in_order_without_one() {
        let mut counts = [0; 3];
        for key in 0..3000u32 {
            let mut tile = tile(&[0.0; 3], &[0.0; 3], &[0.0; 3], Known { ties: spread(key) | 1, factor: 1.0, ..Known::default() });
            tile.choose_by_puct();
            counts[chosen(&tile) as usize] += 1;
        }
        assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
        let mut tile = tile(&[0.0; 3], &[0.0; 3], &[0.0; 3], Known { factor: 1.0, ..Known::default() });
        tile.choose_by_puct();
        assert_eq!(chosen(&tile), 0);
    }

    #[test]
    fn an_illegal_action_is_never_chosen() {
        let illegal = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
        for visits in [0.0, 3.0] {
            let choose: [fn(&mut Tile); 2] = [Tile::choose_by_puct, |t| t.choose_at_root(&Gumbel::default())];
            for choose in choose {
                let known = Known { considered: visits, ties: 77, ..Known::default() };
                let mut tile = tile(&[visits; 3], &[5.0, -9.0, 4.0], &[0.0, f32::MIN, -1.0], known);
                tile.add_extra(&illegal);
                choose(&mut tile);
                assert_eq!(chosen(&tile), 1);
            }
        }
    }
}

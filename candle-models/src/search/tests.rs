//! Searches against mctx's, against a naive reference, and against themselves in other company.

use super::tile::spread;
use super::*;
use crate::random::Random;
use serde::Deserialize;

/// A game of tables, as `scripts/mctx-check.py` makes it.
#[derive(Debug, Clone, Deserialize)]
struct Game {
    seed: u32,
    states: u32,
    actions: usize,
    players: u32,
    masks: bool,
}

/// What comes of an action.
struct Outcome {
    reward: f32,
    discount: f32,
    value: f32,
    state: u32,
}

impl Game {
    fn bits(&self, kind: u32, state: u32, action: usize) -> u32 {
        [kind, state, action as u32].iter().fold(self.seed, |x, part| spread(x.wrapping_mul(0x0100_0193).wrapping_add(part + 1)))
    }

    fn number(&self, kind: u32, state: u32, action: usize) -> f32 {
        (self.bits(kind, state, action) >> 16) as f32 / 32_768.0 - 1.0
    }

    fn value(&self, state: u32) -> f32 {
        self.number(3, state, 0)
    }

    fn logits(&self, state: u32) -> Vec<f32> {
        let masked = |action| self.masks && action > 0 && self.number(5, state, action) < -0.5;
        (0..self.actions).map(|action| if masked(action) { f32::MIN } else { 2.0 * self.number(2, state, action) }).collect()
    }

    fn step(&self, state: u32, action: usize) -> Outcome {
        let behind = self.bits(0, state, action) % self.states;
        let ends = self.players == 2 && self.number(4, state, action) < -0.8;
        let discount = if self.players == 2 { -1.0 } else { 0.9 };
        let (discount, value) = if ends { (0.0, 0.0) } else { (discount, self.value(behind)) };
        Outcome { reward: self.number(1, state, action), discount, value, state: behind }
    }

    fn legal(&self, state: u32) -> Vec<bool> {
        (0..self.actions).map(|action| !(self.masks && action > 0 && self.number(6, state, action) < -0.5)).collect()
    }

    fn roots(&self, states: &[u32]) -> Owned {
        let logits = |state: &u32| (0..self.actions).map(|action| 2.0 * self.number(2, *state, action)).collect::<Vec<_>>();
        Owned {
            logits: states.iter().flat_map(logits).collect(),
            values: states.iter().map(|state| self.value(*state)).collect(),
            embeddings: states.iter().map(|state| *state as f32).collect(),
            legal: states.iter().flat_map(|state| self.legal(*state)).collect(),
        }
    }

    fn sizes(&self, batch: usize, simulations: usize) -> Sizes {
        Sizes { batch, simulations, actions: self.actions, embedding: 1 }
    }
}

impl Dynamics for &Game {
    fn expand(&mut self, e: &mut Expansion) -> Result<()> {
        for row in 0..e.rows() {
            let action = e.actions()[row] as usize;
            let (from, to) = e.embeddings(row);
            let Outcome { reward, discount, value, state } = self.step(from[0] as u32, action);
            to[0] = state as f32;
            (e.rewards[row], e.discounts[row], e.values[row]) = (reward, discount, value);
            e.logits[row * self.actions..(row + 1) * self.actions].copy_from_slice(&self.logits(state));
        }
        Ok(())
    }
}

struct Owned {
    logits: Vec<f32>,
    values: Vec<f32>,
    embeddings: Vec<f32>,
    legal: Vec<bool>,
}

impl Owned {
    fn roots(&self) -> Roots<'_> {
        Roots { logits: &self.logits, values: &self.values, embeddings: &self.embeddings, legal: &self.legal }
    }
}

/// All that was found for a row, to the bit.
fn all(found: &Found, row: usize) -> (u32, u32, Vec<u32>, Vec<u32>, Vec<u32>, Branch) {
    let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect();
    let (weights, q) = (bits(found.weights(row)), bits(found.q(row)));
    (found.actions()[row], found.values()[row].to_bits(), found.visits(row).to_vec(), weights, q, found.tree(row))
}

fn both_methods() -> [Method; 2] {
    [Method::Gumbel(Gumbel::default()), Method::Puct(Puct::default())]
}

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    #[serde(flatten)]
    game: Game,
    simulations: usize,
    max_depth: Option<usize>,
    method: Method,
    noise: Vec<Vec<f32>>,
    expected: Expected,
}

#[derive(Deserialize)]
struct Expected {
    visits: Vec<Vec<u32>>,
    weights: Vec<Vec<f32>>,
    values: Vec<f32>,
    q: Vec<Vec<f32>>,
    parents: Vec<Vec<i32>>,
    node_visits: Vec<Vec<u32>>,
    node_values: Vec<Vec<f32>>,
    actions: Option<Vec<u32>>,
}

#[test]
fn searches_are_those_of_mctx_node_by_node() {
    let golden: Golden = serde_json::from_str(include_str!("../../tests/golden/mctx.json")).unwrap();
    let close = |what: &str, found: &[f32], expected: &[f32]| {
        let worst = found.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(found.len() == expected.len() && worst < 1e-5, "{what}: {found:?} instead of {expected:?}");
    };
    assert_eq!(golden.cases.len(), 11);
    for (number, case) in golden.cases.iter().enumerate() {
        let Case { game, simulations, max_depth, method, noise, expected } = case;
        let states: Vec<u32> = (0..noise.len() as u32).collect();
        let mut search = Search::new(game.sizes(states.len(), *simulations)).unwrap();
        let settings = Settings { method: *method, simulations: *simulations, max_depth: *max_depth };
        let found = search.run(&game.roots(&states).roots(), &settings, Noise::Given(&noise.concat()), &mut &*game).unwrap();
        close("values", found.values(), &expected.values);
        if let Some(actions) = &expected.actions {
            assert_eq!(found.actions(), actions, "case {number}");
        }
        for row in 0..states.len() {
            let at = format!("case {number}, row {row}");
            assert_eq!(found.visits(row), expected.visits[row], "{at}");
            close(&at, found.weights(row), &expected.weights[row]);
            close(&at, found.q(row), &expected.q[row]);
            let trees = &found.search.trees;
            let mut made = 0;
            for node in (0..=*simulations).filter(|node| expected.node_visits[row][*node] > 0) {
                let found = &trees.nodes[trees.place(row, node as u32)];
                assert_eq!(found.visits, expected.node_visits[row][node], "{at}, node {node}");
                assert!((found.value - expected.node_values[row][node]).abs() < 1e-5, "{at}, node {node}");
                assert!(node == 0 || found.parent as i32 == expected.parents[row][node], "{at}, node {node}");
                made += 1;
            }
            assert_eq!(nodes(&found.tree(row)), made, "{at}");
        }
    }
}

fn nodes(branch: &Branch) -> usize {
    1 + branch.children.iter().map(nodes).sum::<usize>()
}

#[test]
fn a_bandit_is_searched_as_published() {
    let mut bandit = |e: &mut Expansion| {
        for row in 0..e.rows() {
            e.rewards[row] = [20.0, 3.0, -1.0, 10.0][e.actions()[row] as usize];
        }
        [&mut *e.discounts, e.values, e.logits].into_iter().for_each(|x| x.fill(0.0));
        Ok(())
    };
    let mut search = Search::new(Sizes { batch: 1, simulations: 17, actions: 4, embedding: 0 }).unwrap();
    let gumbel = Gumbel { value_scale: 0.05, maxvisit_init: 60.0, ..Gumbel::default() };
    let settings = Settings { method: Method::Gumbel(gumbel), simulations: 17, max_depth: Some(3) };
    let roots = Roots { logits: &[0.0, -1.0, 2.0, 3.0], values: &[-5.0], embeddings: &[], legal: &[false, true, true, false] };
    let found = search.run(&roots, &settings, Noise::None, &mut bandit).unwrap();
    assert_eq!((found.visits(0), found.actions()), (&[0, 9, 8, 0][..], &[1][..]));
    // The value that completes is the root's among 17 visits, weighted by the prior of legal actions.
    let prior = [(-1f64).exp(), 2f64.exp()].map(|p| p / ((-1f64).exp() + 2f64.exp()));
    let mixed = (-5.0 + 17.0 * (prior[0] * 3.0 - prior[1])) / 18.0;
    let (low, high) = (mixed.min(-1.0), 3f64);
    let weight = |logit: f64, q: f64| (logit + 69.0 * 0.05 * (q - low) / (high - low)).exp();
    let weights = [weight(-1.0, 3.0), weight(2.0, -1.0)];
    let sum: f64 = weights.iter().sum();
    let expected = [0.0, weights[0] / sum, weights[1] / sum, 0.0];
    assert!(found.weights(0).iter().zip(expected).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-6), "{:?} {expected:?}", found.weights(0));
}

/// A node of the reference: everything about it is computed anew from what was found, in f64.
#[derive(Default)]
struct Naive {
    state: u32,
    reward: f64,
    discount: f64,
    raw: f64,
    logits: Vec<f64>,
    found: Vec<f64>,
    children: Vec<Option<Box<Naive>>>,
}

impl Naive {
    fn new(state: u32, raw: f32, logits: &[f32]) -> Self {
        let logits = logits.iter().map(|l| f64::from(*l)).collect::<Vec<_>>();
        let children = logits.iter().map(|_| None).collect();
        Self { state, raw: raw.into(), logits, children, ..Self::default() }
    }

    fn value(&self) -> f64 {
        (self.raw + self.found.iter().sum::<f64>()) / (1.0 + self.found.len() as f64)
    }

    fn n(&self, action: usize) -> f64 {
        self.children[action].as_ref().map_or(0.0, |child| 1.0 + child.found.len() as f64)
    }

    fn q(&self, action: usize) -> Option<f64> {
        self.children[action].as_ref().map(|child| child.reward + child.discount * child.value())
    }

    fn prior(&self) -> Vec<f64> {
        softmax(&self.logits)
    }

    fn puct(&self, puct: &Puct, legal: Option<&[bool]>) -> usize {
        let actions = 0..self.logits.len();
        let values: Vec<f64> = actions.clone().filter_map(|a| self.q(a)).chain([self.value()]).collect();
        let (low, high) = values.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        let visits = 1.0 + self.found.len() as f64;
        let (init, base) = (f64::from(puct.pb_c_init), f64::from(puct.pb_c_base));
        let prior = self.prior();
        let score = |a: usize| {
            let value = self.q(a).map_or(0.0, |q| (q - low) / (high - low).max(1e-8));
            value + visits.sqrt() * (init + ((visits + base + 1.0) / base).ln()) * prior[a] / (self.n(a) + 1.0)
        };
        best(actions.filter(|a| legal.is_none_or(|legal| legal[*a])), score)
    }

    /// The logits of the improved prior.
    fn improved(&self, gumbel: &Gumbel) -> Vec<f64> {
        let actions = 0..self.logits.len();
        let prior = self.prior();
        let visited: Vec<usize> = actions.clone().filter(|a| self.n(*a) > 0.0).collect();
        let sum: f64 = visited.iter().map(|a| prior[*a]).sum();
        let total: f64 = visited.iter().map(|a| self.n(*a)).sum();
        let weighted: f64 = visited.iter().map(|a| prior[*a] / sum * self.q(*a).unwrap()).sum();
        let mixed = (self.raw + total * weighted) / (1.0 + total);
        let completed: Vec<f64> = actions.clone().map(|a| self.q(a).unwrap_or(mixed)).collect();
        let (low, high) = completed.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
        let most = actions.clone().map(|a| self.n(a)).fold(0.0, f64::max);
        let scale = (f64::from(gumbel.maxvisit_init) + most) * f64::from(gumbel.value_scale);
        actions.map(|a| self.logits[a] + scale * (completed[a] - low) / (high - low).max(1e-8)).collect()
    }

    fn gumbel_inside(&self, gumbel: &Gumbel) -> usize {
        let method = softmax(&self.improved(gumbel));
        best(0..method.len(), |a| method[a] - self.n(a) / (1.0 + self.found.len() as f64))
    }

    /// The best of the legal actions with so many visits.
    fn gumbel_at_root(&self, gumbel: &Gumbel, legal: &[bool], considered: f64) -> usize {
        let improved = self.improved(gumbel);
        best((0..improved.len()).filter(|a| legal[*a] && self.n(*a) == considered), |a| improved[a])
    }

    /// A simulation below it, by that action: what it found.
    fn simulate(&mut self, game: &Game, method: &Method, action: usize) -> f64 {
        let behind = match &mut self.children[action] {
            Some(child) => {
                let action = match method {
                    Method::Puct(puct) => child.puct(puct, None),
                    Method::Gumbel(gumbel) => child.gumbel_inside(gumbel),
                };
                let found = child.simulate(game, method, action);
                child.reward + child.discount * found
            }
            none => {
                let Outcome { reward, discount, value, state } = game.step(self.state, action);
                let child = Self { reward: reward.into(), discount: discount.into(), ..Self::new(state, value, &game.logits(state)) };
                let found = child.reward + child.discount * child.raw;
                *none = Some(Box::new(child));
                found
            }
        };
        self.found.push(behind);
        behind
    }
}

fn softmax(logits: &[f64]) -> Vec<f64> {
    let most = logits.iter().copied().fold(f64::MIN, f64::max);
    let sum: f64 = logits.iter().map(|l| (l - most).exp()).sum();
    logits.iter().map(|l| (l - most).exp() / sum).collect()
}

/// The first of those with the greatest score.
fn best(actions: impl Iterator<Item = usize>, score: impl Fn(usize) -> f64) -> usize {
    actions.map(|a| (a, score(a))).fold((0, f64::NEG_INFINITY), |best, next| if next.1 > best.1 { next } else { best }).0
}

#[test]
fn searches_agree_with_a_naive_reference() {
    for seed in 0..40 {
        let (simulations, actions) = (10 + seed as usize, 2 + seed as usize % 5);
        let game = Game { seed, states: 40, actions, players: 1 + seed % 2, masks: seed % 3 == 0 };
        for method in both_methods() {
            let mut search = Search::new(game.sizes(3, simulations)).unwrap();
            let settings = Settings { method, simulations, max_depth: None };
            let found = search.run(&game.roots(&[0, 1, 2]).roots(), &settings, Noise::None, &mut &game).unwrap();
            for state in 0..3 {
                let legal = game.legal(state);
                let mut logits = game.roots(&[state]).logits;
                logits.iter_mut().zip(&legal).for_each(|(l, legal)| *l = if *legal { *l } else { f32::MIN });
                let mut naive = Naive::new(state, game.value(state), &logits);
                let mut halving = Vec::new();
                sequential_halving(legal.iter().filter(|l| **l).count().min(16), simulations, &mut halving);
                for considered in halving {
                    let action = match &method {
                        Method::Puct(puct) => naive.puct(puct, Some(&legal)),
                        Method::Gumbel(gumbel) => naive.gumbel_at_root(gumbel, &legal, considered.into()),
                    };
                    naive.simulate(&game, &method, action);
                }
                let visits: Vec<u32> = (0..actions).map(|a| naive.n(a) as u32).collect();
                let row = state as usize;
                assert_eq!(found.visits(row), visits, "seed {seed}, root {state}");
                assert!((f64::from(found.values()[row]) - naive.value()).abs() < 1e-5, "seed {seed}, root {state}");
                if let Method::Gumbel(gumbel) = &method {
                    let most = visits.iter().copied().max().unwrap();
                    assert_eq!(found.actions()[row] as usize, naive.gumbel_at_root(gumbel, &legal, most.into()));
                }
            }
        }
    }
}

#[test]
fn a_row_of_a_batch_is_the_row_alone_and_arrays_are_used_again() {
    for (method, masks) in both_methods().into_iter().flat_map(|method| [(method, false), (method, true)]) {
        let game = Game { seed: 9, states: 60, actions: 5, players: 2, masks };
        let states: Vec<u32> = (0..37).collect();
        let addresses: Vec<Random> = states.iter().map(|state| Random::new(4).at(u64::from(*state))).collect();
        let settings = Settings { method, simulations: 21, max_depth: None };
        // With room for more of everything, and used before.
        let mut large = Search::new(game.sizes(150, 64)).unwrap();
        let other = Settings { method: both_methods()[usize::from(masks)], simulations: 64, max_depth: Some(4) };
        let more: Vec<u32> = (0..150).map(|i| i % 60).collect();
        large.run(&game.roots(&more).roots(), &other, Noise::None, &mut &game).unwrap();
        let found = large.run(&game.roots(&states).roots(), &settings, Noise::Rows(&addresses), &mut &game).unwrap();
        for (row, state) in states.iter().enumerate() {
            let mut alone = Search::new(game.sizes(1, 21)).unwrap();
            let alone = alone.run(&game.roots(&[*state]).roots(), &settings, Noise::Rows(&addresses[row..=row]), &mut &game).unwrap();
            assert_eq!(all(&alone, 0), all(&found, row), "row {row}");
        }
    }
}

#[test]
fn visits_add_up_and_only_legal_actions_are_taken() {
    for method in both_methods() {
        for seed in 0..20 {
            let game = Game { seed, states: 30, actions: 1 + seed as usize % 20, players: 2, masks: true };
            let states: Vec<u32> = (0..30).collect();
            let addresses: Vec<Random> = (0..30).map(|i| Random::new(5).at(i)).collect();
            let simulations = 1 + seed as usize * 3;
            let max_depth = (seed % 4 > 0).then_some(seed as usize % 4);
            let mut search = Search::new(game.sizes(30, simulations)).unwrap();
            let settings = Settings { method, simulations, max_depth };
            let found = search.run(&game.roots(&states).roots(), &settings, Noise::Rows(&addresses), &mut &game).unwrap();
            for (row, state) in states.iter().enumerate() {
                let (legal, visits, weights) = (game.legal(*state), found.visits(row), found.weights(row));
                assert_eq!(visits.iter().sum::<u32>() as usize, simulations);
                assert!(legal.iter().zip(visits).all(|(legal, n)| *legal || *n == 0), "{legal:?} {visits:?}");
                assert!(
                    legal.iter().zip(weights).all(|(legal, w)| (*legal && (0.0..=1.0).contains(w)) || *w == 0.0),
                    "{legal:?} {weights:?}"
                );
                assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-5);
                assert!(visits[found.actions()[row] as usize] > 0, "an action that was taken");
                let tree = found.tree(row);
                assert!(max_depth.is_none_or(|most| depth(&tree) <= most));
                assert_eq!(tree.visits as usize, simulations + 1);
            }
        }
    }
}

fn depth(branch: &Branch) -> usize {
    branch.children.iter().map(|child| 1 + depth(child)).max().unwrap_or(0)
}

#[test]
fn deep_games_of_equal_actions_are_searched_evenly() {
    // Nothing tells actions apart: draws do, and different ones for different rows.
    let mut nothing = |e: &mut Expansion| {
        [&mut *e.rewards, e.discounts, e.values, e.logits].into_iter().for_each(|x| x.fill(0.0));
        Ok(())
    };
    let rows: Vec<Random> = (0..300).map(|i| Random::new(6).at(i)).collect();
    let mut search = Search::new(Sizes { batch: 300, simulations: 1, actions: 3, embedding: 0 }).unwrap();
    let roots = Roots { logits: &[0.0; 900], values: &[0.0; 300], embeddings: &[], legal: &[true; 900] };
    for method in [Method::Puct(Puct { dirichlet_fraction: 0.0, ..Puct::default() }), Method::Gumbel(Gumbel::default())] {
        let settings = Settings { method, simulations: 1, max_depth: None };
        let found = search.run(&roots, &settings, Noise::Rows(&rows), &mut nothing).unwrap();
        let mut counts = [0; 3];
        found.actions().iter().for_each(|action| counts[*action as usize] += 1);
        assert!(counts.iter().all(|n| (70..130).contains(n)), "{counts:?}");
    }
}

#[test]
fn what_is_wrong_is_named() {
    let game = Game { seed: 1, states: 10, actions: 2, players: 1, masks: false };
    let settings = Settings { method: both_methods()[0], simulations: 4, max_depth: None };
    let roots = game.roots(&[0, 1]);
    let roots = roots.roots();
    let mut search = Search::new(game.sizes(2, 4)).unwrap();
    let mut message = |roots: &Roots, settings: &Settings, noise| search.run(roots, settings, noise, &mut &game).err().unwrap().to_string();
    let none = Noise::None;
    assert_eq!(message(&Roots { values: &[], ..roots }, &settings, none), "tensor value: expected from 1 to 2 roots, found 0");
    assert_eq!(message(&Roots { values: &[0.0; 3], ..roots }, &settings, none), "tensor value: expected from 1 to 2 roots, found 3");
    assert_eq!(message(&Roots { logits: &[0.0; 3], ..roots }, &settings, none), "tensor logits: expected [2, 2], found 3 values");
    assert_eq!(message(&Roots { legal: &[true], ..roots }, &settings, none), "tensor legal: expected [2, 2], found 1 values");
    assert_eq!(message(&Roots { embeddings: &[], ..roots }, &settings, none), "tensor embedding: expected [2, 1], found 0 values");
    assert_eq!(message(&Roots { legal: &[true, true, false, false], ..roots }, &settings, none), "root 1: no action is legal");
    let infinite = [0.0, f32::NEG_INFINITY, 0.0, 0.0];
    let expected = "tensor logits: expected finite numbers, found -inf of row 0 in simulation 0";
    assert_eq!(message(&Roots { logits: &infinite, ..roots }, &settings, none), expected);
    assert_eq!(message(&roots, &settings, Noise::Given(&[0.0])), "tensor noise: expected 4 of 2 roots, found 1");
    assert_eq!(message(&roots, &settings, Noise::Rows(&[])), "tensor random addresses: expected 2 of 2 roots, found 0");
    let many = Settings { simulations: 5, ..settings };
    assert_eq!(message(&roots, &many, none), "config: simulations: expected at most 4, found 5");
    let zero = Settings { simulations: 0, ..settings };
    assert_eq!(message(&roots, &zero, none), "config: simulations: expected at least 1, found 0");

    let mut calls = 0;
    let mut broken = |e: &mut Expansion| {
        (&game).expand(e)?;
        calls += 1;
        e.values[1] = if calls == 3 { f32::NAN } else { 0.0 };
        Ok(())
    };
    let error = search.run(&roots, &settings, none, &mut broken).err().unwrap();
    assert_eq!(error.to_string(), "tensor value: expected finite numbers, found NaN of row 1 in simulation 3");
    let mut failing = |_: &mut Expansion| Err(Error::Input("no answer".to_owned()));
    assert_eq!(search.run(&roots, &settings, none, &mut failing).err().unwrap().to_string(), "no answer");
    // And the next search is as if nothing had happened.
    assert_eq!(search.run(&roots, &settings, none, &mut &game).unwrap().visits(1).iter().sum::<u32>(), 4);

    let none = Search::new(Sizes { actions: 0, ..game.sizes(1, 1) }).err().unwrap();
    assert_eq!(none.to_string(), "config: actions: expected at least 1, found 0");
    for huge in [Sizes { batch: usize::MAX, ..game.sizes(1, 1) }, Sizes { simulations: usize::MAX, ..game.sizes(1, 1) }] {
        assert!(Search::new(huge).err().unwrap().to_string().starts_with("config: search: "));
    }
}

#[test]
fn the_tree_is_shown_with_all_its_nodes() {
    let game = Game { seed: 3, states: 30, actions: 3, players: 2, masks: false };
    let settings = Settings { method: both_methods()[0], simulations: 20, max_depth: None };
    let mut search = Search::new(game.sizes(1, 20)).unwrap();
    let found = search.run(&game.roots(&[7]).roots(), &settings, Noise::None, &mut &game).unwrap();
    let tree = found.tree(0);
    assert_eq!((nodes(&tree), tree.visits, tree.value, tree.action), (21, 21, found.values()[0], None));
    for child in &tree.children {
        let action = child.action.unwrap() as usize;
        assert_eq!(child.visits, found.visits(0)[action]);
        assert!((child.reward + child.discount * child.value - found.q(0)[action]).abs() < 1e-6);
    }
    let json: serde_json::Value = serde_json::to_value(&tree).unwrap();
    assert_eq!(json["children"][0]["visits"], tree.children[0].visits);
    assert!(json.get("action").is_none() && json["children"][0]["prior"].as_f64().unwrap() > 0.0);
    let svg = tree.svg();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    assert_eq!((svg.matches("<circle").count(), svg.matches("<line").count()), (21, 20));
    assert!(!svg.contains("NaN") && !svg.contains("inf"));
}

/// A game of two without chance that ends after five moves at the latest, won, drawn or lost; a state is the moves that led to it, in base 4.
#[derive(Clone, Copy)]
struct Ending {
    seed: u32,
    bounds: [f32; 2],
}

impl Ending {
    const ACTIONS: usize = 3;

    fn bits(&self, state: u32) -> u32 {
        spread(spread(self.seed).wrapping_add(state))
    }

    fn next(state: u32, action: usize) -> u32 {
        4 * state + action as u32 + 1
    }

    fn over(&self, state: u32) -> bool {
        state >= 4u32.pow(4) || (state > 4 && self.bits(state).is_multiple_of(5))
    }

    /// For the one who made the last move.
    fn reward(&self, state: u32) -> f32 {
        if self.over(state) { (self.bits(state) >> 8) as f32 % 3.0 - 1.0 } else { 0.0 }
    }

    fn legal(&self, state: u32, action: usize) -> bool {
        action == 0 || !self.bits(Self::next(state, action) ^ 0x5555).is_multiple_of(4)
    }

    /// What is known of the game by playing all of it, for the one to move.
    fn worth(&self, state: u32) -> f32 {
        if self.over(state) {
            return 0.0;
        }
        (0..Self::ACTIONS).filter(|action| self.legal(state, *action)).map(|action| self.worth_of(state, action)).fold(f32::MIN, f32::max)
    }

    fn worth_of(&self, state: u32, action: usize) -> f32 {
        let next = Self::next(state, action);
        self.reward(next) - self.worth(next)
    }

    /// Holds what a tree takes for certain against what is.
    fn check(&self, branch: &Branch, state: u32) {
        assert!(!branch.certain || branch.value == self.worth(state), "{} in state {state}, not {}", branch.value, self.worth(state));
        branch.children.iter().for_each(|child| self.check(child, Self::next(state, child.action.unwrap() as usize)));
    }
}

impl Dynamics for Ending {
    fn expand(&mut self, e: &mut Expansion) -> Result<()> {
        for row in 0..e.rows() {
            let action = e.actions()[row] as usize;
            let (from, to) = e.embeddings(row);
            let state = Self::next(from[0] as u32, action);
            to[0] = state as f32;
            (e.rewards[row], e.discounts[row]) = (self.reward(state), -1.0);
            if self.over(state) {
                e.bounds[row] = [0.0; 2];
            }
            // What a model believes does not matter in the end.
            e.values[row] = (self.bits(state ^ 0xaaaa) >> 16) as f32 / 65_536.0 - 0.5;
            for action in 0..Self::ACTIONS {
                e.logits[row * Self::ACTIONS + action] = if self.legal(state, action) { 0.1 * action as f32 } else { f32::MIN };
            }
        }
        Ok(())
    }

    fn bounds(&self) -> [f32; 2] {
        self.bounds
    }
}

#[test]
fn where_the_ends_of_games_are_certain_so_is_what_leads_to_them() {
    let searched = |mut game: Ending, method: Method, simulations: usize| {
        let legal: Vec<bool> = (0..Ending::ACTIONS).map(|action| game.legal(0, action)).collect();
        let roots = Roots { logits: &[0.0; Ending::ACTIONS], values: &[0.0], embeddings: &[0.0], legal: &legal };
        let mut search = Search::new(Sizes { batch: 1, simulations, actions: Ending::ACTIONS, embedding: 1 }).unwrap();
        let settings = Settings { method, simulations, max_depth: None };
        let found = search.run(&roots, &settings, Noise::None, &mut game).unwrap();
        let (tree, action) = (found.tree(0), found.actions()[0] as usize);
        game.check(&tree, 0);
        assert!((found.weights(0).iter().sum::<f32>() - 1.0).abs() < 1e-5 && found.weights(0)[action] > 0.0);
        assert!(!tree.certain || game.worth_of(0, action) == game.worth(0), "action {action} lets value go");
        tree.certain
    };
    for method in both_methods() {
        let mut settled = [0; 3];
        for seed in 0..100 {
            let [open, closed] = [tree::UNBOUNDED, [-1.0, 1.0]].map(|bounds| Ending { seed, bounds });
            let all = [searched(closed, method, 40), searched(closed, method, 1000), searched(open, method, 1000)];
            settled.iter_mut().zip(all).for_each(|(to, certain)| *to += usize::from(certain));
        }
        // Gumbel's search tries everything in the end; PUCT stays with a root's action that it takes for the best although it has nothing left to find.
        let least = if matches!(method, Method::Gumbel(_)) { 100 } else { 80 };
        assert!(settled[1..].iter().all(|n| *n >= least) && (10..100).contains(&settled[0]), "{method:?}: {settled:?}");
    }
}

//! UCT: Monte Carlo tree search with UCB1 (Kocsis, Szepesvari, "Bandit based Monte-Carlo planning", 2006), the opponent without
//! learning.
//!
//! A simulation descends by `mean + sqrt(ln N / n)`, adds a node, and plays random moves from there to the end, once. Wins are 1, losses
//! -1. Whoever can win at once does so, in the tree and in the random moves.

use super::{Board, Player, any};
use crate::{Pcg64, Result};
use rayon::prelude::*;

/// UCT with so many simulations a move.
#[derive(Debug, Clone)]
pub struct Uct {
    simulations: u32,
    random: Pcg64,
}

impl Uct {
    /// A player that simulates so often before each move, with the random numbers of a seed.
    pub fn new(simulations: u32, seed: u64) -> Self {
        Self { simulations, random: Pcg64::new(seed) }
    }
}

impl<B: Board> Player<B> for Uct {
    /// Positions are searched on all cores, each with a seed of its own: what is chosen does not depend on their number.
    fn choose(&mut self, boards: &[B]) -> Result<Vec<u32>> {
        let seeds: Vec<u64> = boards.iter().map(|_| self.random.next_u64()).collect();
        let simulations = self.simulations;
        Ok(boards.par_iter().zip(seeds).map(|(board, seed)| search(board, simulations, &mut Pcg64::new(seed))).collect())
    }
}

struct Node {
    /// The move that led here.
    class: u32,
    /// Moves without a child yet.
    untried: u64,
    /// What the game is worth to the one to move where that is known without a search.
    known: Option<f32>,
    visits: f32,
    /// The sum of the results, for the one who moved here.
    sum: f32,
    /// The child that was added last, and the one that its parent had before it; 0 is none, since the root is nobody's child.
    child: u32,
    sibling: u32,
}

impl Node {
    fn new<B: Board>(class: u32, board: &B) -> Self {
        let untried = board.moves();
        let known = if board.winning() != 0 { Some(1.0) } else { (untried == 0).then_some(0.0) };
        Self { class, untried, known, visits: 0.0, sum: 0.0, child: 0, sibling: 0 }
    }
}

fn children(tree: &[Node], node: usize) -> impl Iterator<Item = usize> {
    let child = |at: u32| (at != 0).then_some(at as usize);
    std::iter::successors(child(tree[node].child), move |at| child(tree[*at].sibling))
}

/// The move that was simulated most often; one that wins at once without a simulation.
fn search<B: Board>(root: &B, simulations: u32, random: &mut Pcg64) -> u32 {
    if let Some(class) = any(root.winning(), random) {
        return class;
    }
    let mut tree = Vec::with_capacity(simulations as usize + 1);
    tree.push(Node::new(0, root));
    let mut path = Vec::new();
    for _ in 0..simulations {
        simulate(&mut tree, root.clone(), &mut path, random);
    }
    let most = children(&tree, 0).max_by(|a, b| tree[*a].visits.total_cmp(&tree[*b].visits));
    most.map(|node| tree[node].class).or_else(|| any(root.moves(), random)).unwrap_or(0)
}

fn simulate<B: Board>(tree: &mut Vec<Node>, mut board: B, path: &mut Vec<usize>, random: &mut Pcg64) {
    path.clear();
    path.push(0);
    let mut node = 0;
    while tree[node].known.is_none() && tree[node].untried == 0 {
        node = select(tree, node);
        board.play(tree[node].class);
        path.push(node);
    }
    let mut result = match (tree[node].known, any(tree[node].untried, random)) {
        (None, Some(class)) => {
            board.play(class);
            let new = tree.len();
            let sibling = std::mem::replace(&mut tree[node].child, new as u32);
            tree[node].untried ^= 1 << class;
            tree.push(Node { sibling, ..Node::new(class, &board) });
            path.push(new);
            tree[new].known.unwrap_or_else(|| rollout(board, random))
        }
        (known, _) => known.unwrap_or(0.0),
    };
    for node in path.iter().rev() {
        result = -result;
        tree[*node].visits += 1.0;
        tree[*node].sum += result;
    }
}

/// The child with the highest upper confidence bound.
fn select(tree: &[Node], node: usize) -> usize {
    let log = tree[node].visits.ln();
    let bound = |child: usize| {
        let Node { visits, sum, .. } = tree[child];
        sum / visits + (log / visits).sqrt()
    };
    let bounds = children(tree, node).map(|child| (bound(child), child));
    bounds.max_by(|a, b| a.0.total_cmp(&b.0)).map_or(node, |(_, child)| child)
}

/// What random moves make of the game for the one to move.
fn rollout<B: Board>(mut board: B, random: &mut Pcg64) -> f32 {
    let mut sign = 1.0;
    loop {
        if board.winning() != 0 {
            return sign;
        }
        let Some(class) = any(board.moves(), random) else { return 0.0 };
        board.play(class);
        sign = -sign;
    }
}

//! The trees of all roots in arrays that are allocated once.

use super::Sizes;

/// A node. Node 0 of a row is its root; simulation i makes node i.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Node {
    /// Number of the node above, in the same row.
    pub parent: u32,
    /// The action that leads here.
    pub action: u32,
    /// The action that the next simulation takes here.
    pub next: u32,
    /// Number of the node which that leads to; 0 where there is none yet.
    pub next_node: u32,
    /// Evaluations of this node and of all below it.
    pub visits: u32,
    /// The mean of what they found.
    pub value: f32,
    /// The model's value.
    pub raw: f32,
    /// Of the action that leads here.
    pub reward: f32,
    /// What the value counts for the node above.
    pub discount: f32,
    /// What all that comes can add up to, for the one who moves here: at least, and at most.
    pub bounds: Bounds,
    /// Whether some action here is not worth another simulation: see [`Trees::is_closed`].
    pub closed: bool,
}

impl Node {
    /// Whether it is known for certain what the node is worth.
    pub fn is_settled(&self) -> bool {
        self.bounds[0] == self.bounds[1]
    }

    /// The bounds of the action that leads here, for the one who takes it.
    pub fn bounds_above(&self) -> Bounds {
        if self.discount == 0.0 {
            return [self.reward; 2];
        }
        let [low, high] = self.bounds.map(|bound| self.reward + self.discount * bound);
        [low.min(high), low.max(high)]
    }

    /// What a number says of the node, given its bounds.
    pub fn within(&self, value: f32) -> f32 {
        let [low, high] = self.bounds;
        // Comparisons take one instruction each, where `max` and `min` would also ask which of both is no number.
        let value = if value > low { value } else { low };
        if value < high { value } else { high }
    }
}

/// The least and the most that something can be worth.
pub(super) type Bounds = [f32; 2];

/// Bounds of what nothing is known of.
pub(super) const UNBOUNDED: Bounds = [f32::NEG_INFINITY, f32::INFINITY];

/// Where a simulation ends: a node and the action to be evaluated there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Edge {
    pub parent: u32,
    pub action: u32,
    /// Number of the node which it leads to.
    pub child: u32,
}

/// What the model says of a node.
pub(super) struct Evaluation<'a> {
    pub reward: f32,
    pub discount: f32,
    pub value: f32,
    /// What is certain of the value.
    pub bounds: Bounds,
    /// `[A]`.
    pub logits: &'a [f32],
}

pub(super) struct Trees {
    actions: usize,
    /// Nodes of a row.
    pub nodes_each: usize,
    pub nodes: Vec<Node>,
    /// `[rows, nodes, 3, A]`: visits, values and the prior's logits of a node's actions, as a tile takes them.
    edges: Vec<f32>,
    /// `[rows, nodes, A]`: numbers of the nodes which they lead to, 0 for none.
    children: Vec<u32>,
    /// What any state can be worth.
    pub bounds: Bounds,
}

impl Trees {
    pub fn new(sizes: &Sizes) -> Self {
        let (actions, nodes_each) = (sizes.actions, sizes.simulations + 1);
        let nodes = sizes.batch * nodes_each;
        Self {
            actions,
            nodes_each,
            nodes: vec![Node::default(); nodes],
            edges: vec![0.0; nodes * 3 * actions],
            children: vec![0; nodes * actions],
            bounds: UNBOUNDED,
        }
    }

    /// Where a node of a row lies.
    pub fn place(&self, row: usize, node: u32) -> usize {
        row * self.nodes_each + node as usize
    }

    /// The edges `[3, A]` of the node at a place.
    pub fn edges(&self, place: usize) -> &[f32] {
        &self.edges[place * 3 * self.actions..][..3 * self.actions]
    }

    /// What the actions of the node at a place lead to, `[A]`.
    pub fn children(&self, place: usize) -> &[u32] {
        &self.children[place * self.actions..][..self.actions]
    }

    /// Notes what the node at a place does next.
    pub fn set_next(&mut self, place: usize, action: u32) {
        let next_node = self.children(place)[action as usize];
        let node = &mut self.nodes[place];
        (node.next, node.next_node) = (action, next_node);
    }

    /// Begins a row's tree.
    pub fn plant(&mut self, row: usize, value: f32, logits: &[f32]) {
        let place = self.place(row, 0);
        self.nodes[place] = Node { visits: 1, value, raw: value, bounds: self.bounds, ..Node::default() };
        self.grow(place, logits);
    }

    /// Walks from a row's root to the action to be evaluated; a node that is not there yet is to have the number `new`.
    pub fn descend(&self, row: usize, new: u32, max_depth: usize) -> Edge {
        let nodes = &self.nodes[row * self.nodes_each..][..self.nodes_each];
        let (mut parent, mut depth) = (0, 1);
        loop {
            let Node { next: action, next_node, .. } = nodes[parent as usize];
            if next_node == 0 {
                return Edge { parent, action, child: new };
            }
            if depth == max_depth || nodes[next_node as usize].is_settled() {
                return Edge { parent, action, child: next_node };
            }
            (parent, depth) = (next_node, depth + 1);
        }
    }

    /// Enters what the model says of the node which an edge leads to, and returns its place. Of a node that is settled already it has nothing to say.
    pub fn evaluate(&mut self, row: usize, edge: Edge, evaluation: &Evaluation) -> usize {
        let Edge { parent, action, child } = edge;
        let &Evaluation { reward, discount, value, bounds, logits } = evaluation;
        let (above, place) = (self.place(row, parent), self.place(row, child));
        if self.children(above)[action as usize] == child && self.nodes[place].is_settled() {
            self.nodes[place].visits += 1;
            return place;
        }
        let link = &mut self.children[above * self.actions + action as usize];
        let visits = if *link == 0 { 1 } else { self.nodes[place].visits + 1 };
        *link = child;
        // One that was there already lies at the greatest depth: it has nothing below it.
        let next = self.grow(place, logits);
        let node = Node { parent, action, next, next_node: 0, visits, value, raw: value, reward, discount, bounds, closed: false };
        // What is certain counts, whatever the model believes.
        let value = node.within(value);
        self.nodes[place] = Node { value, raw: value, ..node };
        place
    }

    /// Gives the node at a place its actions, none of them visited; returns the most likely one.
    fn grow(&mut self, place: usize, logits: &[f32]) -> u32 {
        let (mut most, mut best) = (f32::NEG_INFINITY, 0);
        for (action, logit) in logits.iter().enumerate() {
            (most, best) = if *logit > most { (*logit, action as u32) } else { (most, best) };
        }
        let (past, prior) = self.edges[place * 3 * self.actions..][..3 * self.actions].split_at_mut(2 * self.actions);
        past.fill(0.0);
        // A shift of all logits changes no prior, and their exponentials must not overflow.
        prior.iter_mut().zip(logits).for_each(|(to, logit)| *to = (*logit - most).max(f32::MIN));
        self.children[place * self.actions..][..self.actions].fill(0);
        best
    }

    /// Carries what was found below the node at a place one edge up; returns the place above. `found` becomes what was found below that, `narrowed`
    /// tells whether the bounds of the one have changed, and then those of the other.
    pub fn carry_up(&mut self, row: usize, place: usize, found: &mut f32, narrowed: &mut bool) -> usize {
        let Node { parent, action, reward, discount, value, .. } = self.nodes[place];
        let above = self.place(row, parent);
        if *narrowed {
            *narrowed = self.narrow(row, above);
        }
        let node = &mut self.nodes[above];
        *found = node.within(reward + discount * *found);
        let visits = node.visits as f32;
        node.value = node.within((node.value * visits + *found) / (visits + 1.0));
        node.raw = node.within(node.raw);
        node.visits += 1;
        let edge = above * 3 * self.actions + action as usize;
        self.edges[edge] += 1.0;
        self.edges[edge + self.actions] = reward + discount * value;
        above
    }

    /// The bounds of an action of the node at a place, for the one who moves there; none of what cannot be done.
    pub fn bounds_of(&self, row: usize, place: usize, action: usize) -> Option<Bounds> {
        let possible = self.edges(place)[2 * self.actions + action] > f32::MIN;
        possible.then(|| match self.children(place)[action] {
            0 => self.bounds,
            child => self.nodes[self.place(row, child)].bounds_above(),
        })
    }

    /// Whether an action of the node at a place is not worth another simulation: what it is worth is known for certain, or it cannot be more than
    /// another one is worth at least.
    pub fn is_closed(&self, row: usize, place: usize, action: usize) -> bool {
        self.bounds_of(row, place, action).is_some_and(|[low, high]| low == high || high <= self.nodes[place].bounds[0])
    }

    /// Finds the bounds of the node at a place from those of its actions (Winands et al. 2008, Cazenave and Saffidine 2010): as good as the best of
    /// them. Returns whether they have changed.
    fn narrow(&mut self, row: usize, place: usize) -> bool {
        let all = (0..self.actions).filter_map(|action| self.bounds_of(row, place, action));
        let bounds = all.fold([f32::NEG_INFINITY; 2], |most, bounds| [most[0].max(bounds[0]), most[1].max(bounds[1])]);
        let node = &mut self.nodes[place];
        // Something may have been certain of the node before there was anything below it.
        let bounds = [bounds[0].max(node.bounds[0]), bounds[1].min(node.bounds[1])];
        let changed = node.bounds != bounds;
        (node.bounds, node.closed) = (bounds, true);
        changed
    }
}

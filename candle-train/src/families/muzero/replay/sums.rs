//! Numbers of which one is drawn with a probability in proportion to it.

/// Numbers whose sum is known for every range: a complete binary tree, the leaves last.
#[derive(Debug, Clone)]
pub struct Sums {
    /// Node 1 is the root, node i has 2 i and 2 i + 1 below it.
    nodes: Vec<f64>,
    leaves: usize,
    first: usize,
    /// Leaves above zero.
    pub known: usize,
    /// The largest that there ever was, 1 to begin with.
    pub largest: f64,
}

impl Sums {
    pub fn new(leaves: usize) -> Self {
        let first = leaves.next_power_of_two().max(1);
        Self { nodes: vec![0.0; 2 * first], leaves, first, known: 0, largest: 1.0 }
    }

    pub fn leaves(&self) -> &[f64] {
        &self.nodes[self.first..][..self.leaves]
    }

    pub fn get(&self, leaf: usize) -> f64 {
        self.nodes[self.first + leaf]
    }

    pub fn set(&mut self, leaf: usize, x: f64) {
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

    pub fn total(&self) -> f64 {
        self.nodes[1]
    }

    /// The leaf in whose share of the total a number lies.
    pub fn find(&self, mut x: f64) -> usize {
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

//! A tree to look at: nested as JSON, drawn as SVG.

use super::tree::Trees;
use serde::Serialize;
use std::fmt::Write;

/// A node of a tree with all that is below it.
///
/// As JSON it is an object with its children in a list, `serde_json::to_string(&branch)`; as SVG a drawing with the root at the top.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Branch {
    /// The action that leads here; none to a root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<u32>,
    /// How likely the prior above takes that action; noise at the root is in it. 1 for a root.
    pub prior: f32,
    /// Evaluations of this node and of all below it.
    pub visits: u32,
    /// The mean of what they found, for the one who moves here.
    pub value: f32,
    /// Whether that is certain: enough of what can be done from here has been played to its end.
    pub certain: bool,
    /// What the action earned.
    pub reward: f32,
    /// What the value counts for the node above.
    pub discount: f32,
    /// The nodes behind the actions that were taken, in the order of actions.
    pub children: Vec<Branch>,
}

impl Branch {
    pub(super) fn root(trees: &Trees, row: usize) -> Self {
        let mut root = Self::of(trees, row, 0, 1.0);
        (root.action, root.reward, root.discount) = (None, 0.0, 1.0);
        root
    }

    /// Node `number` of a row.
    fn of(trees: &Trees, row: usize, number: u32, prior: f32) -> Self {
        let place = trees.place(row, number);
        let (node, links) = (&trees.nodes[place], trees.children(place));
        let logits = &trees.edges(place)[2 * links.len()..];
        let weight = |action: usize| logits[action].exp();
        let sum: f32 = (0..links.len()).map(weight).sum();
        let taken = links.iter().enumerate().filter(|(_, child)| **child != 0);
        let children = taken.map(|(action, child)| Self::of(trees, row, *child, weight(action) / sum)).collect();
        let &super::Node { action, visits, value, reward, discount, .. } = node;
        Self { action: Some(action), prior, visits, value, certain: node.is_settled(), reward, discount, children }
    }

    /// The tree as a drawing: layers from the root down, every node as wide a place as it has leaves below it, edges as thick as they were
    /// visited; the greenest nodes are the best for the one who moves there, and a tooltip says what is known of each.
    pub fn svg(&self) -> String {
        const MARGIN: f32 = 24.0;
        let (leaves, depth) = self.extent();
        let [width, height] = [leaves as f32 * COLUMN + 2.0 * MARGIN, depth as f32 * LAYER + 2.0 * MARGIN];
        let mut range = (f32::INFINITY, f32::NEG_INFINITY);
        self.values(&mut range);
        let mut drawing = Drawing { edges: String::new(), nodes: String::new(), most: self.visits, range };
        self.draw([MARGIN, MARGIN], &mut drawing);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
             font-family=\"sans-serif\" font-size=\"10\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}{}</svg>\n",
            drawing.edges, drawing.nodes
        )
    }

    /// Leaves below it, and edges down to the deepest.
    fn extent(&self) -> (usize, usize) {
        let below = self.children.iter().map(Self::extent);
        let (leaves, depth) = below.fold((0, 0), |(leaves, depth), (l, d)| (leaves + l, depth.max(d + 1)));
        (leaves.max(1), depth)
    }

    fn values(&self, range: &mut (f32, f32)) {
        *range = (range.0.min(self.value), range.1.max(self.value));
        self.children.iter().for_each(|child| child.values(range));
    }

    /// Draws it into a place whose left upper corner that is; returns where it stands, and how wide the place is.
    fn draw(&self, [left, top]: [f32; 2], drawing: &mut Drawing) -> ([f32; 2], f32) {
        let mut width = 0.0;
        let mut ends = Vec::new();
        for child in &self.children {
            let (end, wide) = child.draw([left + width, top + LAYER], drawing);
            ends.push((end, child));
            width += wide;
        }
        let width = width.max(COLUMN);
        let [x, y] = [left + width / 2.0, top];
        ends.into_iter().for_each(|(end, child)| drawing.edge([x, y], end, child));
        drawing.node([x, y], self);
        ([x, y], width)
    }
}

/// Width of a leaf's place, and height of a layer.
const COLUMN: f32 = 26.0;
const LAYER: f32 = 52.0;

/// Edges, and nodes that lie on top of them. Writing to a text cannot fail.
struct Drawing {
    edges: String,
    nodes: String,
    /// Visits of the root.
    most: u32,
    /// The least and the greatest value.
    range: (f32, f32),
}

impl Drawing {
    fn edge(&mut self, [x, y]: [f32; 2], [to_x, to_y]: [f32; 2], child: &Branch) {
        let thick = 0.5 + 7.5 * child.visits as f32 / self.most.max(1) as f32;
        let _ = writeln!(
            self.edges,
            "<line x1=\"{x:.1}\" y1=\"{y:.1}\" x2=\"{to_x:.1}\" y2=\"{to_y:.1}\" stroke=\"#9aa\" stroke-width=\"{thick:.1}\"/>"
        );
        let [at_x, at_y] = [(x + 2.0 * to_x) / 3.0, (y + 2.0 * to_y) / 3.0];
        let action = child.action.unwrap_or_default();
        let _ = writeln!(self.nodes, "<text x=\"{at_x:.1}\" y=\"{at_y:.1}\" fill=\"#33a\">{action}</text>");
    }

    fn node(&mut self, [x, y]: [f32; 2], branch: &Branch) {
        let (low, high) = self.range;
        let good = if high > low { (branch.value - low) / (high - low) } else { 0.5 };
        let hue = 120.0 * good;
        let Branch { prior, visits, value, reward, .. } = branch;
        let _ = writeln!(
            self.nodes,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"9\" fill=\"hsl({hue:.0},60%,70%)\" stroke=\"#445\"><title>visits {visits}, value {value:.3}, \
             reward {reward:.3}, prior {prior:.3}</title></circle><text x=\"{x:.1}\" y=\"{:.1}\">{visits}</text>",
            y + 3.5
        );
    }
}

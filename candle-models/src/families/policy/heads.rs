//! The heads of an action: six components in order (buttons, main stick x and y, c-stick x and y, shoulder).

use super::actions::{BUTTONS, COMPONENTS, GROUPS};
use crate::Result;
use crate::exec::Choice;
use crate::nn::{ActionHeads, Head, Heads, Params};

/// Width of the autoregressive stream and of the layer inside each component.
const STREAM: usize = 128;
/// Names of the groups in parameter names.
const KEYS: [&str; GROUPS] = ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"];
/// Widths of the layers inside independent components.
const WIDTHS: [usize; GROUPS] = [64, 64, 64, 64, 64, 32];

/// Heads of that kind over a trunk of `trunk` values.
pub(super) fn new(kind: Heads, trunk: usize, params: &Params) -> Result<ActionHeads> {
    let components: [_; GROUPS] = std::array::from_fn(|g| (KEYS[g], WIDTHS[g], Head::Classes(choice(g))));
    ActionHeads::new(kind, [trunk, STREAM], &components, params)
}

/// The columns of the action that group `g` holds: the eight buttons together, then one column each.
fn choice(g: usize) -> Choice {
    let (column, columns) = if g == 0 { (0, BUTTONS) } else { (BUTTONS + g - 1, 1) };
    Choice { column, columns, classes: COMPONENTS[column].classes as usize }
}

//! The heads of an action: six components in order (buttons, main stick x and y, c-stick x and y, shoulder).

use super::PolicyConfig;
use super::actions::{BUTTONS, COMPONENTS, GROUPS};
use crate::Result;
use crate::exec::Choice;
use crate::nn::{ActionHeads, Head, Params};

/// Width of the autoregressive stream and of the layer inside each component.
const STREAM: usize = 128;
/// Names of the groups in parameter names.
pub(super) const KEYS: [&str; GROUPS] = ["buttons", "main_x", "main_y", "c_x", "c_y", "shoulder"];
/// Columns of the shoulder buttons L and R.
pub(super) const LEFT_TRIGGER: usize = 5;
const RIGHT_TRIGGER: usize = 6;
/// Columns of the same frame that count tables of a component know beside what came before: the x axis of its stick, or both shoulder
/// buttons.
pub(super) const GIVEN: [&[usize]; GROUPS] = [&[], &[], &[BUTTONS], &[], &[BUTTONS + 2], &[LEFT_TRIGGER, RIGHT_TRIGGER]];
/// Widths of the layers inside independent components.
const WIDTHS: [usize; GROUPS] = [64, 64, 64, 64, 64, 32];

/// Heads of that kind over a trunk of `trunk` values.
pub(super) fn new(config: &PolicyConfig, params: &Params) -> Result<ActionHeads> {
    let components: [_; GROUPS] = std::array::from_fn(|g| (KEYS[g], WIDTHS[g], Head::Classes(choice(g))));
    ActionHeads::new(config.heads, [config.trunk(), STREAM], &components, config.prior.then_some(&GIVEN[..]), params)
}

/// The columns of the action that group `g` holds: the eight buttons together, then one column each.
pub(super) fn choice(g: usize) -> Choice {
    let (column, columns) = if g == 0 { (0, BUTTONS) } else { (BUTTONS + g - 1, 1) };
    Choice { column, columns, classes: COMPONENTS[column].classes as usize }
}

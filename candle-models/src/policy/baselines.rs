//! Count tables that a policy has to beat, and the table of likelihoods that shows whether it does.
//!
//! Most next actions equal the last one, so accuracy alone says nothing. Four tables, fitted on the actions of the training games,
//! set the scale. Each gives every component a distribution
//!
//! `P(class | context) = (n(context, class) + 0.1) / (n(context) + 0.1 * classes)`
//!
//! and they differ in the context:
//!
//! | table | button | stick axis | shoulder |
//! |---|---|---|---|
//! | [`MARGINAL`] | nothing | nothing | nothing |
//! | [`FIRST_ORDER`] | itself at t-1 | itself at t-1 | itself at t-1 |
//! | [`SECOND_ORDER`] | itself at t-1, t-2 | both axes of its stick at t-1, t-2 | itself at t-1, t-2 |
//! | [`CONDITIONED`] | as before | as before, and for y the x of frame t | as before, and L and R of frame t |

use super::actions::{ACTION, Action, COMPONENTS, GROUP_NAMES, GROUPS, group};

/// Tables that are fitted.
pub const TABLES: usize = 4;
/// Their names, as printed and stored.
pub const TABLE_NAMES: [&str; TABLES] = ["marginal", "first-order Markov", "second-order, joint stick", "second-order, conditioned"];
/// Index of the table of marginal frequencies.
pub const MARGINAL: usize = 0;
/// Index of the first-order Markov table, the unit of the column "over Markov".
pub const FIRST_ORDER: usize = 1;
/// Index of the second-order table with joint stick axes.
pub const SECOND_ORDER: usize = 2;
/// Index of the second-order table conditioned on the frame's earlier components: the rival of autoregressive heads.
pub const CONDITIONED: usize = 3;

/// Sums over some frames.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Tally {
    /// How many frames.
    pub frames: u64,
    /// Negative log-likelihood in nats, per reported component.
    pub nll: [f64; GROUPS],
    /// Frames in which the most likely class was the right one; all eight of the buttons.
    pub correct: [u64; GROUPS],
}

impl Tally {
    /// Adds the frames of another tally.
    pub fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.nll.iter_mut().zip(other.nll).for_each(|(sum, x)| *sum += x);
        self.correct.iter_mut().zip(other.correct).for_each(|(sum, x)| *sum += x);
    }

    /// Nats per frame and component; not a number without frames.
    pub fn per_frame(&self) -> [f64; GROUPS] {
        self.nll.map(|nll| nll / self.frames as f64)
    }

    /// Nats per frame, all components together; not a number without frames.
    pub fn total(&self) -> f64 {
        self.nll.iter().sum::<f64>() / self.frames as f64
    }

    /// Mean share of right components; not a number without frames.
    pub fn accuracy(&self) -> f64 {
        self.correct.iter().sum::<u64>() as f64 / (self.frames * GROUPS as u64) as f64
    }
}

/// How likely the recorded actions are to a model or a table.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Likelihood {
    /// Frames whose action differs from the one before.
    pub changed: Tally,
    /// The other frames.
    pub held: Tally,
}

impl Likelihood {
    /// Counts one frame: the action before it, its action, what that action cost and what was thought most likely.
    pub fn add(&mut self, previous: &Action, action: &Action, nll: &[f32; GROUPS], predicted: &Action) {
        let tally = if previous == action { &mut self.held } else { &mut self.changed };
        tally.frames += 1;
        tally.nll.iter_mut().zip(nll).for_each(|(sum, x)| *sum += f64::from(*x));
        let mut right = [true; GROUPS];
        for (i, (a, b)) in action.classes().into_iter().zip(predicted.classes()).enumerate() {
            right[group(i)] &= a == b;
        }
        tally.correct.iter_mut().zip(right).for_each(|(sum, right)| *sum += u64::from(right));
    }

    /// Adds the frames of another.
    pub fn merge(&mut self, other: &Self) {
        self.changed.merge(&other.changed);
        self.held.merge(&other.held);
    }

    /// All frames.
    pub fn all(&self) -> Tally {
        let mut all = self.changed;
        all.merge(&self.held);
        all
    }
}

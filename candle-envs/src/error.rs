//! What can be wrong with an environment or with what it is asked.

use std::ops::Range;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, EnvError>;

/// What can be wrong with an environment or with what it is asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum EnvError {
    /// An action that the rules do not allow.
    #[error("{env}, environment {lane}: illegal action {action}: {reason}")]
    IllegalAction {
        /// The environment's name.
        env: String,
        /// Which of those side by side.
        lane: usize,
        /// The action.
        action: String,
        /// What is expected instead.
        reason: String,
    },
    /// An environment gave a number that is not finite.
    #[error("{env}, environment {lane}: its {what} is {value}")]
    NotFinite {
        /// The environment's name.
        env: String,
        /// Which of those side by side.
        lane: usize,
        /// `observation` or `reward`.
        what: &'static str,
        /// The number.
        value: f64,
    },
    /// Nobody can move and the game is not over.
    #[error("{env}, environment {lane}: no action is legal, and the episode has not ended")]
    NothingLegal {
        /// The environment's name.
        env: String,
        /// Which of those side by side.
        lane: usize,
    },
    /// A step after the end of an episode, with [`Autoreset::Disabled`](crate::Autoreset::Disabled).
    #[error("{env}, environment {lane}: the episode has ended: reset it before the next step")]
    Ended {
        /// The environment's name.
        env: String,
        /// Which of those side by side.
        lane: usize,
    },
    /// Values that do not fit the environments.
    #[error("{what}: expected {expected}, found {found}")]
    Shape {
        /// What has the wrong size.
        what: &'static str,
        /// What fits.
        expected: usize,
        /// What was given.
        found: usize,
    },
    /// A name that no environment has.
    #[error("expected one of {known}, found {name:?}")]
    Unknown {
        /// The name that was asked for.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A saved state that is none of these environments.
    #[error("saved state of {env}: {reason}")]
    Saved {
        /// The environment's name.
        env: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Environments of Gymnasium, or the process that they are in.
    #[cfg(unix)]
    #[error("{env}, {}: {error}", numbers(lanes))]
    Gym {
        /// The environment's name.
        env: String,
        /// Which of those side by side.
        lanes: Range<usize>,
        /// What is wrong.
        error: crate::gym::GymError,
    },
    /// Something else: what an environment of one's own says.
    #[error("{0}")]
    Other(String),
}

/// Some environments in words.
#[cfg(unix)]
fn numbers(lanes: &Range<usize>) -> String {
    match lanes.len() {
        1 => format!("environment {}", lanes.start),
        _ => format!("environments {} to {}", lanes.start, lanes.end.saturating_sub(1)),
    }
}

impl EnvError {
    /// An action that the rules do not allow. Which environment it is [`Vector`](crate::Vector) adds.
    pub fn illegal(action: impl ToString, reason: impl ToString) -> Self {
        Self::IllegalAction { env: String::new(), lane: 0, action: action.to_string(), reason: reason.to_string() }
    }

    /// The same error of environment `number` of those called `name`.
    #[must_use]
    pub(crate) fn of(mut self, name: &str, number: usize) -> Self {
        if let Self::IllegalAction { env, lane, .. } = &mut self {
            (*env, *lane) = (name.to_owned(), number);
        }
        self
    }
}

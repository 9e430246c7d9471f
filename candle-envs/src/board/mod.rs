//! Board games of two in turn, opponents to measure a player against, and the measuring.
//!
//! ```
//! use candle_envs::board::{ConnectFour, RandomPlayer, Uct, play_games};
//!
//! # fn main() -> candle_envs::Result<()> {
//! let score = play_games::<ConnectFour>(&mut Uct::new(50, 1), &mut RandomPlayer::new(2), 40)?;
//! assert!(score.interval()[0] > 0.8);
//! # Ok(())
//! # }
//! ```

mod connect_four;
mod exhaustive;
mod games;
mod player;
mod rules;
#[cfg(feature = "solver")]
mod solver;
mod tictactoe;
mod uct;

pub use connect_four::ConnectFour;
pub use exhaustive::{Perfect, Replies, move_value, reply_tree, value};
pub use games::{Score, play_games};
pub use player::{Player, RandomPlayer};
pub use rules::RulesOf;
#[cfg(feature = "solver")]
pub use solver::{Solver, TestSet};
pub use tictactoe::TicTacToe;
pub use uct::Uct;

use crate::{Env, Pcg64, Spec, Step, Symmetry};
use candle_models::agent::{Component, Observation};

/// A game of two in turn without chance and with at most 64 moves: what a search on its rules needs beyond [`Env`].
///
/// A move is a class of the action's only component. Whoever makes the move that wins gets 1; every other move gives 0.
pub trait Board: Env {
    /// The legal moves: bit i is set where class i is one. None are once the game is over.
    fn moves(&self) -> u64;

    /// Those legal moves that win at once.
    fn winning(&self) -> u64 {
        bits(self.moves()).filter(|class| self.clone().play(*class).reward > 0.0).fold(0, |all, class| all | 1 << class)
    }

    /// Makes one of the legal [`moves`](Self::moves). [`Env::step`] checks that it is one, this does not: after another the position is
    /// none of the game's.
    fn play(&mut self, class: u32) -> Step;

    /// The position that shows this: what [`Env::observe`] writes.
    fn showing(floats: &[f32]) -> Self;
}

/// A board with a plane for the stones of the one to move and one for the other's, and that many moves.
fn spec(name: &'static str, [height, width]: [usize; 2], moves: usize) -> Spec {
    Spec {
        name: name.into(),
        observation: vec![Observation::Grid { name: "board".to_owned(), height, width, channels: 2, layers: Vec::new() }],
        action: vec![Component::Discrete { name: "move".to_owned(), classes: moves }],
        players: 2,
        max_steps: None,
    }
}

/// What a map of squares `[row, column]` makes of a board of [`spec`] whose classes are what `class` says of a square.
fn symmetry([height, width]: [usize; 2], map: impl Fn([usize; 2]) -> [usize; 2], class: impl Fn([usize; 2]) -> usize) -> Symmetry {
    let squares = || (0..height * width).map(|square| [square / width, square % width]);
    let floats = squares().map(&map).flat_map(|[row, column]| [0, 1].map(|plane| (row * width + column) * 2 + plane)).collect();
    let mut classes = vec![0; squares().map(&class).max().map_or(0, |last| last + 1)];
    squares().for_each(|square| classes[class(square)] = class(map(square)));
    Symmetry { floats, classes }
}

/// Writes which classes the moves are.
fn mask_of(moves: u64, mask: &mut [bool]) {
    mask.iter_mut().enumerate().for_each(|(class, legal)| *legal = moves >> class & 1 == 1);
}

/// The places of the bits that are set, lowest first.
fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let lowest = (mask != 0).then(|| mask.trailing_zeros());
        mask &= mask.wrapping_sub(1);
        lowest
    })
}

/// One of the bits that are set, all with the same probability.
fn any(mut mask: u64, random: &mut Pcg64) -> Option<u32> {
    for _ in 0..random.below(mask.count_ones()) {
        mask &= mask.wrapping_sub(1);
    }
    (mask != 0).then(|| mask.trailing_zeros())
}

/// The first position of a game.
fn start<B: Board>() -> B {
    let mut board = B::default();
    board.reset(Pcg64::default());
    board
}

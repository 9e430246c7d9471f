//! Who plays: anything that chooses a move in each of many positions.

use super::{Board, any};
use crate::{EnvError, Pcg64, Result};

/// Someone who plays. Many positions come at once, because networks answer in batches. A closure is one too:
///
/// ```
/// use candle_envs::board::{Board, Perfect, TicTacToe, reply_tree};
///
/// # fn main() -> candle_envs::Result<()> {
/// let mut first = |boards: &[TicTacToe]| Ok(boards.iter().map(|board| board.moves().trailing_zeros()).collect());
/// assert!(reply_tree(&mut first, 0)?.losses > 0);
/// assert_eq!(reply_tree::<TicTacToe>(&mut Perfect, 0)?.losses, 0);
/// # Ok(())
/// # }
/// ```
pub trait Player<B> {
    /// A move for each position. None of them is of a game that is over.
    ///
    /// # Errors
    /// Whatever the player cannot do.
    fn choose(&mut self, boards: &[B]) -> Result<Vec<u32>>;
}

impl<B, F: FnMut(&[B]) -> Result<Vec<u32>>> Player<B> for F {
    fn choose(&mut self, boards: &[B]) -> Result<Vec<u32>> {
        self(boards)
    }
}

/// What a player chooses, legal moves alone.
pub(super) fn chosen<B: Board>(player: &mut impl Player<B>, boards: &[B]) -> Result<Vec<u32>> {
    if boards.is_empty() {
        return Ok(Vec::new());
    }
    let classes = player.choose(boards)?;
    if classes.len() != boards.len() {
        return Err(EnvError::Shape { what: "moves of a player", expected: boards.len(), found: classes.len() });
    }
    let illegal = |(board, class): &(&B, &u32)| board.moves().checked_shr(**class).unwrap_or(0) & 1 == 0;
    match boards.iter().zip(&classes).enumerate().find(|(_, chosen)| illegal(chosen)) {
        Some((number, (_, class))) => Err(EnvError::illegal(class, "a player chose it").of(&B::spec().name, number)),
        None => Ok(classes),
    }
}

/// Plays every legal move with the same probability.
#[derive(Debug, Clone)]
pub struct RandomPlayer(Pcg64);

impl RandomPlayer {
    /// The player of a seed.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64::new(seed))
    }
}

impl<B: Board> Player<B> for RandomPlayer {
    fn choose(&mut self, boards: &[B]) -> Result<Vec<u32>> {
        Ok(boards.iter().map(|board| any(board.moves(), &mut self.0).unwrap_or(0)).collect())
    }
}

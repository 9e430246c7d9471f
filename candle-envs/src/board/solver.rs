//! How often a player of Connect Four lets value go, by a perfect solver.

use super::player::chosen;
use super::{Board, ConnectFour, Player};
use crate::{EnvError, Result};
use std::path::Path;

/// A perfect solver of Connect Four: alpha-beta search with a book of openings and a table of about 130 MB.
#[derive(Debug)]
pub struct Solver(connect_four_ai::Solver);

impl Default for Solver {
    fn default() -> Self {
        Self::new()
    }
}

impl Solver {
    /// A solver with an empty table.
    pub fn new() -> Self {
        Self(connect_four_ai::Solver::new())
    }

    /// The score of a position for the one to move if both play as well as can be: 0 is a draw; n a win with one's n-th last stone, -n a
    /// loss to the other's n-th last one, of the 21 that each player has.
    ///
    /// # Errors
    /// If the game is over.
    pub fn score(&mut self, board: &ConnectFour) -> Result<i8> {
        if board.moves() == 0 {
            return Err(EnvError::Other("connect-four: a game that is over has no score".to_owned()));
        }
        let [mover, other] = board.stones();
        let squares = (0..6).rev().flat_map(|row| (0..7).map(move |column| 7 * column + row));
        let text: String = squares
            .map(|square| match (mover >> square & 1, other >> square & 1) {
                (0, 0) => '.',
                (0, _) => 'o',
                _ => 'x',
            })
            .collect();
        let position = connect_four_ai::Position::from_board_string(&text).map_err(|e| EnvError::Other(format!("connect-four: {e}")))?;
        Ok(self.0.solve(&position))
    }

    /// Who wins after a legal move: 1 the one who makes it, -1 the other, 0 nobody.
    fn outcome(&mut self, board: &ConnectFour, class: u32) -> Result<i8> {
        let mut after = board.clone();
        let step = after.play(class);
        if step.terminated { Ok(step.reward as i8) } else { Ok(-self.score(&after)?.signum()) }
    }
}

/// Positions with their scores, as [`Solver::score`] gives them.
#[derive(Debug, Clone)]
pub struct TestSet {
    /// Positions and scores.
    pub positions: Vec<(ConnectFour, i8)>,
}

impl TestSet {
    /// Reads a file of lines `moves score`, the moves as columns from 1 to 7: Pons' sets, which `scripts/connect-four-sets.sh` fetches.
    ///
    /// # Errors
    /// If it cannot be read or a line is something else, with its number.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|e| EnvError::Other(format!("{}: {e}", path.display())))?;
        let of = |line: usize, why: String| EnvError::Other(format!("{}, line {}: {why}", path.display(), line + 1));
        let parse = |(number, line): (usize, &str)| {
            let (moves, score) = line.split_once(' ').ok_or_else(|| of(number, format!("expected moves and score, found {line:?}")))?;
            let board = moves.parse().map_err(|e: EnvError| of(number, e.to_string()))?;
            let score = score.trim().parse().map_err(|_| of(number, format!("expected a score, found {score:?}")))?;
            Ok((board, score))
        };
        Ok(Self { positions: text.lines().enumerate().map(parse).collect::<Result<_>>()? })
    }

    /// In how many of the positions the player's move loses value: a win becomes a draw or a loss, or a draw a loss.
    ///
    /// # Errors
    /// What the player cannot do, and its illegal moves.
    pub fn mistakes(&self, player: &mut impl Player<ConnectFour>, solver: &mut Solver) -> Result<usize> {
        let boards: Vec<ConnectFour> = self.positions.iter().map(|(board, _)| board.clone()).collect();
        let classes = chosen(player, &boards)?;
        let mut mistakes = 0;
        for ((board, score), class) in self.positions.iter().zip(classes) {
            mistakes += usize::from(solver.outcome(board, class)? < score.signum());
        }
        Ok(mistakes)
    }
}

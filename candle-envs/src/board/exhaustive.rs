//! Every line of play, for small games: values, a perfect player, and all that can be replied to a player.

use super::player::chosen;
use super::{Board, Player, bits, start};
use crate::Result;

/// What is still to be won by the one to move if both play as well as can be: 1, 0 or -1. 0 once the game is over.
///
/// It looks at every line of play: Tic-tac-toe takes milliseconds, Connect Four is out of reach.
pub fn value<B: Board>(board: &B) -> i32 {
    if board.winning() != 0 {
        return 1;
    }
    let mut best = None;
    for class in bits(board.moves()) {
        best = best.max(Some(move_value(board, class)));
        if best == Some(1) {
            break;
        }
    }
    best.unwrap_or(0)
}

/// The same after a legal move, for the one who makes it.
pub fn move_value<B: Board>(board: &B, class: u32) -> i32 {
    let mut after = board.clone();
    let step = after.play(class);
    if step.terminated { step.reward as i32 } else { -value(&after) }
}

/// Plays the first of the best moves, by [`value`]: for small games.
#[derive(Debug, Clone, Copy)]
pub struct Perfect;

impl<B: Board> Player<B> for Perfect {
    fn choose(&mut self, boards: &[B]) -> Result<Vec<u32>> {
        // Of equal ones `min_by_key` takes the first.
        let best = |board: &B| bits(board.moves()).min_by_key(|class| -move_value(board, *class)).unwrap_or(0);
        Ok(boards.iter().map(best).collect())
    }
}

/// How a player fares against everything that the other one can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replies {
    /// Lines of play that the player wins.
    pub wins: usize,
    /// Lines that end in a draw.
    pub draws: usize,
    /// Lines that it loses.
    pub losses: usize,
    /// Its moves, over all lines, after which the game was worth less to it than before: a win let go, or a draw.
    pub mistakes: usize,
}

/// Plays against every reply of the other side, with the player as number `side`: 0 moves first. For small games.
///
/// # Errors
/// What the player cannot do, and its illegal moves.
pub fn reply_tree<B: Board>(player: &mut impl Player<B>, side: usize) -> Result<Replies> {
    let mut replies = Replies::default();
    let mut boards = vec![start::<B>()];
    while let Some(first) = boards.first() {
        let ours = first.player() == side;
        let moves: Vec<u64> = if ours {
            let classes = chosen(player, &boards)?;
            replies.mistakes += boards.iter().zip(&classes).filter(|(board, class)| move_value(*board, **class) < value(*board)).count();
            classes.into_iter().map(|class| 1 << class).collect()
        } else {
            boards.iter().map(Board::moves).collect()
        };
        let mut next = Vec::new();
        for (board, class) in boards.iter().zip(moves).flat_map(|(board, moves)| bits(moves).map(move |class| (board, class))) {
            let mut after = board.clone();
            let step = after.play(class);
            match (step.reward > 0.0, step.terminated) {
                (true, _) if ours => replies.wins += 1,
                (true, _) => replies.losses += 1,
                (false, true) => replies.draws += 1,
                (false, false) => next.push(after),
            }
        }
        boards = next;
    }
    Ok(replies)
}

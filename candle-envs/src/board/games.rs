//! Games between two players.

use super::player::chosen;
use super::{Board, Player, start};
use crate::{Result, wilson};

/// How a player fared in games against another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// Games won.
    pub wins: usize,
    /// Games that nobody won.
    pub draws: usize,
    /// Games lost.
    pub losses: usize,
}

impl Score {
    /// How many games were played.
    pub fn games(&self) -> usize {
        self.wins + self.draws + self.losses
    }

    /// Points a game: a win is one, a draw a half.
    pub fn mean(&self) -> f64 {
        self.points() / self.games() as f64
    }

    /// Where the mean lies with 95 % confidence, by [`wilson`]. With draws it lies closer than that.
    pub fn interval(&self) -> [f64; 2] {
        wilson(self.points(), self.games())
    }

    fn points(&self) -> f64 {
        self.wins as f64 + self.draws as f64 / 2.0
    }
}

struct Game<B> {
    board: B,
    /// Who moves first: 0 is the player, 1 its opponent.
    first: usize,
}

impl<B: Board> Game<B> {
    fn mover(&self) -> usize {
        (self.first + self.board.player()) % 2
    }
}

/// Plays games side by side; in every other one the opponent begins. Each player gets all positions in which it is to move at once.
///
/// All games begin alike: two players without any randomness repeat the same two games.
///
/// # Errors
/// What a player cannot do, and its illegal moves.
pub fn play_games<B: Board>(player: &mut impl Player<B>, opponent: &mut impl Player<B>, games: usize) -> Result<Score> {
    let mut open: Vec<Game<B>> = (0..games).map(|i| Game { board: start(), first: i % 2 }).collect();
    let (mut wins, mut draws) = ([0; 2], 0);
    while !open.is_empty() {
        for (who, won) in wins.iter_mut().enumerate() {
            let classes = {
                let boards: Vec<B> = open.iter().filter(|game| game.mover() == who).map(|game| game.board.clone()).collect();
                if who == 0 { chosen(player, &boards)? } else { chosen(opponent, &boards)? }
            };
            let mut classes = classes.into_iter();
            open.retain_mut(|game| {
                let Some(class) = (game.mover() == who).then(|| classes.next()).flatten() else { return true };
                let step = game.board.play(class);
                *won += usize::from(step.reward > 0.0);
                draws += usize::from(step.terminated && step.reward == 0.0);
                !step.terminated
            });
        }
    }
    Ok(Score { wins: wins[0], draws, losses: wins[1] })
}

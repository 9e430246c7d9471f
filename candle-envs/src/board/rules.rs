//! The rules of a board game for searches: what is seen of it says where it stands.

use super::{Board, bits, mask_of};
use crate::View;
use candle_models::search::{Outcome, Rules};
use std::marker::PhantomData;

/// The rules of `B`.
#[derive(Debug)]
pub struct RulesOf<B>(PhantomData<fn() -> B>);

impl<B> Default for RulesOf<B> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<B: Board> Rules for RulesOf<B> {
    fn play(&self, seen: &[f32], action: u32, next: &mut [f32], legal: &mut [bool]) -> Outcome {
        let mut board = B::showing(seen);
        if action >= u64::BITS || board.moves() >> action & 1 == 0 {
            next.copy_from_slice(seen);
            legal.fill(false);
            return Outcome::over(0.0);
        }
        let step = board.play(action);
        board.observe(View { floats: next, ids: &mut [] });
        let ([low, high], all) = (self.bounds(), board.moves());
        let (bounds, moves) = match (board.winning(), holding(&board)) {
            (0, 0) => ([low, low], all),
            (0, holding) => ([low, high], holding),
            _ => ([high, high], all),
        };
        mask_of(moves, legal);
        Outcome { reward: step.reward as f32, next: (!step.terminated).then_some(bounds) }
    }

    /// A game is won or lost, or neither.
    fn bounds(&self) -> [f32; 2] {
        [-1.0, 1.0]
    }
}

/// The moves after which the other one does not win at once.
fn holding<B: Board>(board: &B) -> u64 {
    let holds = |class: &u32| {
        let mut after = board.clone();
        after.play(*class);
        after.winning() == 0
    };
    bits(board.moves()).filter(holds).fold(0, |all, class| all | 1 << class)
}

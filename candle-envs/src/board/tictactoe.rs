//! Tic-tac-toe: three stones in a line win. With the best play of both it is a draw.

use super::{Board, RulesOf, bits, mask_of, spec, symmetry};
use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, Symmetry, View};
use candle_models::search::Rules;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// All nine squares.
const SQUARES: u16 = 0b111_111_111;
/// Rows, columns and diagonals.
const LINES: [u16; 8] =
    [0b000_000_111, 0b000_111_000, 0b111_000_000, 0b001_001_001, 0b010_010_010, 0b100_100_100, 0b100_010_001, 0b001_010_100];

/// Tic-tac-toe: a move is the square, row by row from the top left.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct TicTacToe {
    mover: u16,
    other: u16,
    last: Option<u8>,
    random: Pcg64,
}

impl TicTacToe {
    /// The stones of the one to move and of the other one: bit `3 * row + column`, the row counted from the top.
    pub fn stones(&self) -> [u16; 2] {
        [self.mover, self.other]
    }
}

fn lines(stones: u16) -> impl Iterator<Item = u16> {
    LINES.into_iter().filter(move |line| stones & line == *line)
}

fn won(stones: u16) -> bool {
    lines(stones).next().is_some()
}

/// The middle of a square: across and down.
fn centre(square: u32) -> [f32; 2] {
    [(square % 3) as f32 + 0.5, (square / 3) as f32 + 0.5]
}

impl Board for TicTacToe {
    fn moves(&self) -> u64 {
        if won(self.other) { 0 } else { u64::from(!(self.mover | self.other) & SQUARES) }
    }

    fn play(&mut self, class: u32) -> Step {
        (self.mover, self.other) = (self.other, self.mover | 1 << class);
        self.last = Some(class as u8);
        let won = won(self.other);
        Step { reward: f64::from(won), terminated: won || self.mover | self.other == SQUARES, truncated: false }
    }

    fn showing(floats: &[f32]) -> Self {
        let stones = |plane: usize| (0..9).filter(|square| floats[square * 2 + plane] > 0.0).fold(0, |all, square| all | 1 << square);
        Self { mover: stones(0), other: stones(1), ..Self::default() }
    }
}

impl Env for TicTacToe {
    fn spec() -> Spec {
        spec("tictactoe", [3, 3], 9)
    }

    fn reset(&mut self, random: Pcg64) {
        *self = Self { random, ..Self::default() };
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let &[class] = action.classes else {
            return Err(EnvError::illegal(format!("{:?}", action.classes), "expected one square"));
        };
        let reason = match self.moves() {
            _ if class >= 9 => "expected one of 9 squares",
            0 => "the game is over",
            moves if moves >> class & 1 == 0 => "the square is occupied",
            _ => return Ok(self.play(class)),
        };
        Err(EnvError::illegal(class, reason))
    }

    fn rules() -> Option<Arc<dyn Rules>> {
        Some(Arc::new(RulesOf::<Self>::default()))
    }

    fn observe(&self, to: View) {
        to.floats.fill(0.0);
        for (plane, stones) in self.stones().into_iter().enumerate() {
            for square in bits(u64::from(stones & SQUARES)) {
                to.floats[square as usize * 2 + plane] = 1.0;
            }
        }
    }

    fn legal(&self, mask: &mut [bool]) {
        mask_of(self.moves(), mask);
    }

    fn player(&self) -> usize {
        (self.mover | self.other).count_ones() as usize % 2
    }

    /// The four turns of the board, and of its mirror image.
    fn symmetries() -> Vec<Symmetry> {
        let maps: [fn([usize; 2]) -> [usize; 2]; 8] = [
            |[y, x]| [y, x],
            |[y, x]| [x, 2 - y],
            |[y, x]| [2 - y, 2 - x],
            |[y, x]| [2 - x, y],
            |[y, x]| [y, 2 - x],
            |[y, x]| [x, y],
            |[y, x]| [2 - y, x],
            |[y, x]| [2 - x, 2 - y],
        ];
        maps.into_iter().map(|map| symmetry([3, 3], map, |[y, x]| 3 * y + x)).collect()
    }

    /// A move.
    fn rate() -> f32 {
        1.0
    }

    /// The first player's crosses and the second one's rings.
    fn draw(&self) -> Scene {
        const PAPER: [u8; 3] = [250, 248, 240];
        const INK: [u8; 3] = [60, 60, 60];
        const LAST: [u8; 3] = [255, 235, 160];
        let mut scene = Scene::new(3.0, 3.0, PAPER);
        let last = self.last.map(u32::from);
        if let Some([x, y]) = last.map(centre) {
            scene.rectangle([x - 0.5, y - 0.5], [1.0, 1.0], LAST);
        }
        for at in [1.0, 2.0] {
            scene.line([at, 0.1], [at, 2.9], 0.04, INK);
            scene.line([0.1, at], [2.9, at], 0.04, INK);
        }
        let [crosses, rings] = if self.player() == 0 { [self.mover, self.other] } else { [self.other, self.mover] };
        for [x, y] in bits(u64::from(crosses)).map(centre) {
            scene.line([x - 0.25, y - 0.25], [x + 0.25, y + 0.25], 0.1, [200, 60, 50]);
            scene.line([x - 0.25, y + 0.25], [x + 0.25, y - 0.25], 0.1, [200, 60, 50]);
        }
        for square in bits(u64::from(rings)) {
            scene.circle(centre(square), 0.3, [50, 90, 180]);
            scene.circle(centre(square), 0.2, if last == Some(square) { LAST } else { PAPER });
        }
        for line in lines(self.other) {
            scene.line(centre(line.trailing_zeros()), centre(line.ilog2()), 0.06, INK);
        }
        scene
    }
}

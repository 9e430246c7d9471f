//! Connect Four: four stones in a line win, and stones fall to the bottom of their column.
//!
//! Both players' stones are bits of a word, seven for each column from the left and from the bottom upwards. The seventh of a column is
//! never set, so that no line runs over the edge of the board into the next column.

use super::{Board, RulesOf, bits, mask_of, spec, symmetry};
use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, Symmetry, View};
use candle_models::search::Rules;
use serde::{Deserialize, Serialize};
use std::str::FromStr;
use std::sync::Arc;

const HEIGHT: u32 = 6;
const WIDTH: u32 = 7;
/// Bits of a column.
const COLUMN: u32 = HEIGHT + 1;
/// The lowest square of each column.
const BOTTOM: u64 = 0x0000_0408_1020_4081;
/// All squares.
const SQUARES: u64 = BOTTOM * ((1 << HEIGHT) - 1);
/// From a square to the next one upwards, to the right, and on both diagonals.
const DIRECTIONS: [u32; 4] = [1, COLUMN, COLUMN - 1, COLUMN + 1];

/// Connect Four on six rows and seven columns: a move is the column, from the left.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ConnectFour {
    mover: u64,
    other: u64,
    /// Where the last stone fell.
    last: Option<u8>,
    random: Pcg64,
}

impl ConnectFour {
    /// The stones of the one to move and of the other one: bit `7 * column + row`, the row counted from the bottom.
    pub fn stones(&self) -> [u64; 2] {
        [self.mover, self.other]
    }

    fn allows(&self, class: u32) -> std::result::Result<(), &'static str> {
        match self.moves() {
            _ if class >= WIDTH => Err("expected one of 7 columns"),
            0 => Err("the game is over"),
            moves if moves >> class & 1 == 0 => Err("the column is full"),
            _ => Ok(()),
        }
    }

    /// For each column the square on which a stone would come to lie.
    fn playable(&self) -> u64 {
        (self.mover | self.other).wrapping_add(BOTTOM) & SQUARES
    }
}

/// The squares that begin four in a row, and the direction of each.
fn fours(stones: u64) -> impl Iterator<Item = (u64, u32)> {
    DIRECTIONS.into_iter().map(move |by| {
        let pairs = stones & stones >> by;
        (pairs & pairs >> (2 * by), by)
    })
}

fn won(stones: u64) -> bool {
    fours(stones).any(|(begins, _)| begins != 0)
}

/// The row from the top and the column of a square.
fn place(square: u32) -> [u32; 2] {
    [(HEIGHT - 1).saturating_sub(square % COLUMN), square / COLUMN]
}

impl Board for ConnectFour {
    fn moves(&self) -> u64 {
        if won(self.other) {
            return 0;
        }
        let open = !((self.mover | self.other) >> (HEIGHT - 1)) & BOTTOM;
        // Column i's bit 7 i comes to 42 + i: of its seven copies 6, 12, ... 42 places further up, the one by 6 (7 - i).
        const GATHER: u64 = 0x0000_0410_4104_1040;
        open.wrapping_mul(GATHER) >> 42 & 0x7f
    }

    fn winning(&self) -> u64 {
        if won(self.other) {
            return 0;
        }
        let stones = self.mover;
        let squares = DIRECTIONS.into_iter().fold(0, |squares, by| {
            let (one, two, three) = (stones << by, stones << (2 * by), stones << (3 * by));
            let (next, second, third) = (stones >> by, stones >> (2 * by), stones >> (3 * by));
            squares | one & two & (three | next) | next & second & (one | third)
        });
        bits(squares & self.playable()).fold(0, |columns, square| columns | 1 << (square / COLUMN))
    }

    fn play(&mut self, class: u32) -> Step {
        let column = ((1 << HEIGHT) - 1) << (COLUMN * class);
        let square = self.playable() & column;
        (self.mover, self.other) = (self.other, self.mover | square);
        self.last = Some(square.trailing_zeros() as u8);
        let won = won(self.other);
        Step { reward: f64::from(won), terminated: won || self.mover | self.other == SQUARES, truncated: false }
    }

    fn showing(floats: &[f32]) -> Self {
        let shows = |square: &u32, plane: usize| {
            let [row, column] = place(*square);
            floats[(row * WIDTH + column) as usize * 2 + plane] > 0.0
        };
        let stones = |plane: usize| bits(SQUARES).filter(|square| shows(square, plane)).fold(0, |all, square| all | 1 << square);
        Self { mover: stones(0), other: stones(1), ..Self::default() }
    }
}

impl Env for ConnectFour {
    fn spec() -> Spec {
        spec("connect-four", [HEIGHT as usize, WIDTH as usize], WIDTH as usize)
    }

    fn reset(&mut self, random: Pcg64) {
        *self = Self { random, ..Self::default() };
    }

    fn random(&self) -> &Pcg64 {
        &self.random
    }

    fn step(&mut self, action: Action) -> Result<Step> {
        let &[class] = action.classes else {
            return Err(EnvError::illegal(format!("{:?}", action.classes), "expected one column"));
        };
        self.allows(class).map_err(|reason| EnvError::illegal(class, reason))?;
        Ok(self.play(class))
    }

    fn rules() -> Option<Arc<dyn Rules>> {
        Some(Arc::new(RulesOf::<Self>::default()))
    }

    fn observe(&self, to: View) {
        to.floats.fill(0.0);
        for (plane, stones) in self.stones().into_iter().enumerate() {
            for [row, column] in bits(stones & SQUARES).map(place) {
                to.floats[(row * WIDTH + column) as usize * 2 + plane] = 1.0;
            }
        }
    }

    fn legal(&self, mask: &mut [bool]) {
        mask_of(self.moves(), mask);
    }

    fn player(&self) -> usize {
        (self.mover | self.other).count_ones() as usize % 2
    }

    /// Itself and its mirror image.
    fn symmetries() -> Vec<Symmetry> {
        let (height, width) = (HEIGHT as usize, WIDTH as usize);
        [false, true]
            .into_iter()
            .map(|mirrored| symmetry([height, width], |[y, x]| [y, if mirrored { width - 1 - x } else { x }], |[_, x]| x))
            .collect()
    }

    /// A move.
    fn rate() -> f32 {
        1.0
    }

    fn draw(&self) -> Scene {
        let centre = |square: u32| place(square).map(|x| x as f32 + 0.5);
        let mut scene = Scene::new(WIDTH as f32, HEIGHT as f32, [30, 70, 160]);
        let first = if self.player() == 0 { self.mover } else { self.other };
        for square in bits(SQUARES) {
            let [y, x] = centre(square);
            let color = match ((self.mover | self.other) >> square & 1, first >> square & 1) {
                (0, _) => [235, 240, 250],
                (_, 1) => [220, 60, 50],
                _ => [245, 200, 60],
            };
            scene.circle([x, y], 0.4, color);
        }
        if let Some(last) = self.last {
            let [y, x] = centre(u32::from(last));
            scene.circle([x, y], 0.1, [40, 40, 40]);
        }
        for (begins, by) in fours(self.other & SQUARES) {
            for square in bits(begins) {
                let ([y0, x0], [y1, x1]) = (centre(square), centre(square + 3 * by));
                scene.line([x0, y0], [x1, y1], 0.1, [40, 40, 40]);
            }
        }
        scene
    }
}

/// The position after the moves that are written as columns from 1 to 7: `44355`.
impl FromStr for ConnectFour {
    type Err = EnvError;

    fn from_str(moves: &str) -> Result<Self> {
        let mut board = Self::default();
        for (number, column) in moves.chars().enumerate() {
            let class = column.to_digit(10).and_then(|column| column.checked_sub(1)).unwrap_or(WIDTH);
            if let Err(reason) = board.allows(class) {
                return Err(EnvError::Other(format!("move {} of {moves:?}: {reason}", number + 1)));
            }
            board.play(class);
        }
        Ok(board)
    }
}

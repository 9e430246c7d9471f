//! What the games share: the grid, the moves and chance.

use crate::{Color, EnvError, Pcg64, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Rows of a grid, and columns.
pub const SIDE: i8 = 10;

/// The rules of a game.
pub trait Game: Clone + Default + Send + Sync + Serialize + DeserializeOwned + 'static {
    /// The name of its environment.
    const NAME: &'static str;
    /// The colour of each channel.
    const COLORS: &'static [Color];

    /// Begins a game.
    fn reset(&mut self, draws: &mut impl Draws);

    /// Does something.
    fn step(&mut self, action: Move, draws: &mut impl Draws) -> Outcome;

    /// Sets the cells that are not empty.
    fn show(&self, grid: &mut Grid);
}

/// What a step gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The reward.
    pub reward: u32,
    /// Whether the game is over.
    pub over: bool,
}

/// What can be done, in the order of the action's classes. In most games some of it does nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Move {
    #[default]
    Nothing,
    Left,
    Up,
    Right,
    Down,
    Fire,
}

impl Move {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Nothing, Self::Left, Self::Up, Self::Right, Self::Down, Self::Fire];

    /// The move of an action's classes.
    pub fn of(classes: &[u32]) -> Result<Self> {
        let known = match classes {
            [class] => Self::ALL.get(*class as usize),
            _ => None,
        };
        known.copied().ok_or_else(|| EnvError::illegal(format!("{classes:?}"), "expected 0 to 5"))
    }

    /// How far it goes to the right and down.
    pub fn direction(self) -> [i8; 2] {
        match self {
            Self::Left => [-1, 0],
            Self::Up => [0, -1],
            Self::Right => [1, 0],
            Self::Down => [0, 1],
            Self::Nothing | Self::Fire => [0, 0],
        }
    }
}

/// All that a game leaves to chance goes through here: in play a generator, in tests the numbers that another program drew.
pub trait Draws {
    /// Whether something of this probability happens: whether a number in `[0, 1)` is below it.
    fn chance(&mut self, probability: f64) -> bool;

    /// A number below `n`.
    fn below(&mut self, n: u32) -> u32;
}

impl Draws for Pcg64 {
    fn chance(&mut self, probability: f64) -> bool {
        self.double() < probability
    }

    fn below(&mut self, n: u32) -> u32 {
        Pcg64::below(self, n)
    }
}

/// An empty grid in which cells are set, channels last.
#[derive(Debug)]
pub struct Grid<'a> {
    cells: &'a mut [f32],
    channels: usize,
}

impl<'a> Grid<'a> {
    /// Empties `cells`, ten rows of ten columns of `channels` each.
    pub fn empty(cells: &'a mut [f32], channels: usize) -> Self {
        cells.fill(0.0);
        Self { cells, channels }
    }

    /// Sets a cell; one outside of the grid is nothing.
    pub fn set(&mut self, [x, y]: [i8; 2], channel: usize) {
        if inside(x) && inside(y) {
            self.cells[(y as usize * SIDE as usize + x as usize) * self.channels + channel] = 1.0;
        }
    }

    /// Sets the cells of row `y` whose bits are set, column 0 the lowest.
    pub fn set_row(&mut self, y: i8, mut bits: u16, channel: usize) {
        let width = SIDE as usize * self.channels;
        let row = &mut self.cells[y as usize * width..][..width];
        while bits != 0 {
            row[bits.trailing_zeros() as usize * self.channels + channel] = 1.0;
            bits &= bits - 1;
        }
    }
}

/// Whether a row or column is one of the grid.
pub fn inside(x: i8) -> bool {
    (0..SIDE).contains(&x)
}

/// The sign of a direction.
pub fn sign(right: bool) -> i8 {
    if right { 1 } else { -1 }
}

//! Space Invaders.

use super::game::{Draws, Game, Grid, Move, Outcome, SIDE};
use crate::Color;
use serde::{Deserialize, Serialize};

const BOTTOM: usize = SIDE as usize - 1;
/// Columns of a row, from the left.
const LEFT_EDGE: u16 = 1;
const RIGHT_EDGE: u16 = 1 << BOTTOM;
/// Steps between two shots of the cannon, and of the aliens.
const RELOAD: u8 = 5;
const ALIENS_RELOAD: u8 = 10;
/// Steps between two moves of many aliens: of the first ones, and the least of later ones.
const SLOWEST: u8 = 12;
const FASTEST: u8 = 6;

/// A cannon shoots aliens, 1 each, which shoot back and come nearer.
///
/// The cannon moves in the last row and fires upwards, every fifth step at most. The aliens, four rows of six to begin with, go sideways
/// together; at an edge they turn and come down a row. The fewer they are, the faster: the steps between two moves are as many as there are
/// aliens, and 12 at most. Every tenth step the lowest of the column next to the cannon, the left one of two, shoots. Shots fly a cell a step.
/// When all are shot others come, which move faster, down to every sixth step. A shot or an alien that reaches the cannon ends the game, as
/// aliens do that would leave the last row.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct SpaceInvaders {
    cannon: i8,
    /// Steps until it may fire.
    reload: u8,
    /// A bit for each column of each row.
    aliens: [u16; SIDE as usize],
    shots: [u16; SIDE as usize],
    alien_shots: [u16; SIDE as usize],
    right: bool,
    /// Steps until they move, and between two moves of many.
    wait: u8,
    interval: u8,
    /// Steps until they shoot.
    aliens_reload: u8,
}

/// The aliens that come.
fn formation() -> [u16; SIDE as usize] {
    std::array::from_fn(|y| if y < 4 { 0b00_1111_1100 } else { 0 })
}

/// All rows one down, or up the other way round; what leaves the grid is gone.
fn lowered(rows: &[u16; SIDE as usize]) -> [u16; SIDE as usize] {
    std::array::from_fn(|y| if y == 0 { 0 } else { rows[y - 1] })
}

fn raised(rows: &[u16; SIDE as usize]) -> [u16; SIDE as usize] {
    std::array::from_fn(|y| if y == BOTTOM { 0 } else { rows[y + 1] })
}

impl SpaceInvaders {
    fn count(&self) -> u32 {
        self.aliens.iter().map(|row| row.count_ones()).sum()
    }

    /// Columns with an alien.
    fn columns(&self) -> u16 {
        self.aliens.iter().fold(0, |columns, row| columns | row)
    }

    fn at_cannon(&self, rows: &[u16; SIDE as usize]) -> bool {
        rows[BOTTOM] >> self.cannon & 1 != 0
    }

    /// The aliens move; whether that ends the game.
    fn advance(&mut self) -> bool {
        let mut over = false;
        if self.columns() & if self.right { RIGHT_EDGE } else { LEFT_EDGE } != 0 {
            self.right = !self.right;
            over = self.aliens[BOTTOM] != 0;
            self.aliens = lowered(&self.aliens);
        } else {
            let right = self.right;
            self.aliens = self.aliens.map(|row| if right { row << 1 } else { row >> 1 });
        }
        over || self.at_cannon(&self.aliens)
    }

    /// The lowest alien of the nearest column shoots.
    fn shoot(&mut self) {
        let columns = self.columns();
        let nearest = (0..SIDE).filter(|x| columns >> x & 1 != 0).min_by_key(|x| (x - self.cannon).abs());
        if let Some(x) = nearest
            && let Some(y) = self.aliens.iter().rposition(|row| row >> x & 1 != 0)
        {
            self.alien_shots[y] |= 1 << x;
        }
    }

    /// Aliens that are shot go with the shots; how many.
    fn hit(&mut self) -> u32 {
        let mut hits = 0;
        for (aliens, shots) in self.aliens.iter_mut().zip(&mut self.shots) {
            let hit = *aliens & *shots;
            hits += hit.count_ones();
            *aliens ^= hit;
            *shots ^= hit;
        }
        hits
    }
}

impl Game for SpaceInvaders {
    const NAME: &'static str = "space-invaders";
    const COLORS: &'static [Color] = &[[80, 200, 120], [230, 230, 230], [200, 200, 255], [255, 200, 200], [120, 255, 160], [255, 90, 90]];

    fn reset(&mut self, _: &mut impl Draws) {
        let (wait, interval, aliens_reload) = (SLOWEST, SLOWEST, ALIENS_RELOAD);
        *self = Self { cannon: 5, aliens: formation(), wait, interval, aliens_reload, ..Self::default() };
    }

    fn step(&mut self, action: Move, _: &mut impl Draws) -> Outcome {
        if action == Move::Fire && self.reload == 0 {
            self.shots[BOTTOM] |= 1 << self.cannon;
            self.reload = RELOAD;
        }
        self.cannon = (self.cannon + action.direction()[0]).clamp(0, SIDE - 1);
        self.shots = raised(&self.shots);
        self.alien_shots = lowered(&self.alien_shots);
        let mut over = self.at_cannon(&self.alien_shots) || self.at_cannon(&self.aliens);
        if self.wait == 0 {
            self.wait = self.count().min(u32::from(self.interval)) as u8;
            over |= self.advance();
        }
        if self.aliens_reload == 0 {
            self.aliens_reload = ALIENS_RELOAD;
            self.shoot();
        }
        let reward = self.hit();
        self.reload = self.reload.saturating_sub(1);
        self.wait -= 1;
        self.aliens_reload -= 1;
        if self.count() == 0 {
            self.interval -= u8::from(self.interval > FASTEST);
            self.aliens = formation();
        }
        Outcome { reward, over }
    }

    fn show(&self, grid: &mut Grid) {
        grid.set([self.cannon, BOTTOM as i8], 0);
        let direction = if self.right { 3 } else { 2 };
        for y in 0..SIDE {
            let row = y as usize;
            grid.set_row(y, self.aliens[row], 1);
            grid.set_row(y, self.aliens[row], direction);
            grid.set_row(y, self.shots[row], 4);
            grid.set_row(y, self.alien_shots[row], 5);
        }
    }
}

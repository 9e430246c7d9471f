//! Asterix.

use super::game::{Draws, Game, Grid, Move, Outcome, SIDE, inside, sign};
use crate::Color;
use serde::{Deserialize, Serialize};

/// Rows in which something may come.
const ROWS: usize = 8;
/// The first of them.
const TOP: i8 = 1;
/// Steps between two ramps.
const RAMP: u8 = 102;

/// Gold is to be picked up, 1 each, and enemies are to be avoided.
///
/// The player goes anywhere in rows 1 to 8. Gold (one of three) and enemies enter a free one of these rows from the left or right and cross it.
/// They come every 10 steps and all move together every 5; both becomes shorter with time, down to 1: every 102 steps the time between two that
/// enter, every other time the one between moves too.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Asterix {
    player: [i8; 2],
    things: [Option<Thing>; ROWS],
    spawn: Timer,
    motion: Timer,
    /// Steps until it becomes harder, and how often it has.
    ramp: (u8, u32),
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Thing {
    x: i8,
    right: bool,
    gold: bool,
}

/// Comes due every so many steps.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Timer {
    interval: u8,
    left: u8,
}

impl Timer {
    fn new(interval: u8) -> Self {
        Self { interval, left: interval }
    }

    /// Whether it is due in this step.
    fn due(&mut self) -> bool {
        let due = self.left == 0;
        if due {
            self.left = self.interval;
        }
        self.left -= 1;
        due
    }
}

impl Asterix {
    /// Something enters a row without anything, if there is one.
    fn enter(&mut self, draws: &mut impl Draws) {
        let right = draws.chance(0.5);
        let gold = draws.chance(1.0 / 3.0);
        let free = self.things.iter().filter(|thing| thing.is_none()).count();
        if free > 0 {
            let row = draws.below(free as u32) as usize;
            if let Some(row) = self.things.iter_mut().filter(|thing| thing.is_none()).nth(row) {
                *row = Some(Thing { x: if right { 0 } else { SIDE - 1 }, right, gold });
            }
        }
    }

    /// What the player touches.
    fn touch(&mut self, outcome: &mut Outcome) {
        let [x, y] = self.player;
        let row = &mut self.things[(y - TOP) as usize];
        if let Some(thing) = row.take_if(|thing| thing.x == x) {
            if thing.gold {
                outcome.reward += 1;
            } else {
                outcome.over = true;
                *row = Some(thing);
            }
        }
    }

    /// Everything goes on by a cell.
    fn advance(&mut self) {
        for row in &mut self.things {
            if let Some(thing) = row {
                thing.x += sign(thing.right);
            }
            row.take_if(|thing| !inside(thing.x));
        }
    }

    fn become_harder(&mut self) {
        let (left, times) = &mut self.ramp;
        let (spawn, motion) = (&mut self.spawn.interval, &mut self.motion.interval);
        if *spawn == 1 && *motion == 1 {
            return;
        }
        *left -= 1;
        if *left == 0 {
            *motion -= u8::from(*motion > 1 && *times % 2 == 1);
            *spawn -= u8::from(*spawn > 1);
            (*left, *times) = (RAMP, *times + 1);
        }
    }
}

impl Game for Asterix {
    const NAME: &'static str = "asterix";
    const COLORS: &'static [Color] = &[[80, 160, 255], [220, 60, 60], [90, 90, 90], [255, 200, 40]];

    fn reset(&mut self, _: &mut impl Draws) {
        *self = Self { player: [5, 5], things: [None; ROWS], spawn: Timer::new(10), motion: Timer::new(5), ramp: (RAMP, 0) };
    }

    fn step(&mut self, action: Move, draws: &mut impl Draws) -> Outcome {
        let mut outcome = Outcome::default();
        if self.spawn.due() {
            self.enter(draws);
        }
        let ([x, y], [across, down]) = (self.player, action.direction());
        self.player = [(x + across).clamp(0, SIDE - 1), (y + down).clamp(TOP, TOP + ROWS as i8 - 1)];
        self.touch(&mut outcome);
        if self.motion.due() {
            self.advance();
            self.touch(&mut outcome);
        }
        self.become_harder();
        outcome
    }

    fn show(&self, grid: &mut Grid) {
        grid.set(self.player, 0);
        for (y, thing) in (TOP..).zip(&self.things) {
            if let Some(thing) = thing {
                grid.set([thing.x, y], if thing.gold { 3 } else { 1 });
                grid.set([thing.x - sign(thing.right), y], 2);
            }
        }
    }
}

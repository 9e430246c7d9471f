//! Freeway.

use super::game::{Draws, Game, Grid, Move, Outcome, SIDE};
use crate::Color;
use serde::{Deserialize, Serialize};

const BOTTOM: i8 = SIDE - 1;
const COLUMN: i8 = 4;
const LANES: usize = 8;
/// Steps between two moves of the chicken.
const REST: u8 = 3;
const LENGTH: u32 = 2501;

/// A chicken crosses a road of eight lanes. Each crossing gives 1; a car throws it back to where it started.
///
/// It starts in the last row and moves up or down at every fourth step at most. In each of rows 1 to 8 drives a car, to the left or right, a
/// cell every 2 to 6 steps, and comes in again on the other side. After a crossing the chicken is back at the start, and the cars have other
/// speeds. A game takes 2501 steps.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Freeway {
    cars: [Car; LANES],
    chicken: i8,
    rest: u8,
    steps: u32,
}

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Car {
    x: i8,
    /// Steps that it stands between two moves, negative if it drives to the left.
    speed: i8,
    /// Those that are left.
    wait: i8,
}

impl Car {
    fn advance(&mut self) {
        if self.wait > 0 {
            self.wait -= 1;
        } else {
            self.wait = self.speed.abs();
            self.x = (self.x + self.speed.signum()).rem_euclid(SIDE);
        }
    }
}

impl Freeway {
    /// Gives the cars other speeds where they are.
    fn change_speeds(&mut self, draws: &mut impl Draws) {
        let speeds: [i8; LANES] = std::array::from_fn(|_| 1 + draws.below(5) as i8);
        for (car, speed) in self.cars.iter_mut().zip(speeds) {
            car.speed = if draws.chance(0.5) { -speed } else { speed };
            car.wait = speed;
        }
    }
}

impl Game for Freeway {
    const NAME: &'static str = "freeway";
    const COLORS: &'static [Color] =
        &[[255, 230, 80], [230, 230, 230], [230, 60, 60], [220, 110, 50], [190, 150, 40], [120, 130, 60], [70, 100, 80]];

    fn reset(&mut self, draws: &mut impl Draws) {
        *self = Self { chicken: BOTTOM, rest: REST, ..Self::default() };
        self.change_speeds(draws);
    }

    fn step(&mut self, action: Move, draws: &mut impl Draws) -> Outcome {
        let [_, down] = action.direction();
        if down != 0 && self.rest == 0 {
            self.rest = REST;
            self.chicken = (self.chicken + down).clamp(0, BOTTOM);
        }
        let crossed = self.chicken == 0;
        if crossed {
            self.change_speeds(draws);
            self.chicken = BOTTOM;
        }
        for (y, car) in (1..).zip(&mut self.cars) {
            let before = car.x;
            car.advance();
            if self.chicken == y && [before, car.x].contains(&COLUMN) {
                self.chicken = BOTTOM;
            }
        }
        self.rest = self.rest.saturating_sub(1);
        self.steps += 1;
        Outcome { reward: u32::from(crossed), over: self.steps >= LENGTH }
    }

    fn show(&self, grid: &mut Grid) {
        grid.set([COLUMN, self.chicken], 0);
        for (y, car) in (1..).zip(&self.cars) {
            grid.set([car.x, y], 1);
            let behind = (car.x - car.speed.signum()).rem_euclid(SIDE);
            grid.set([behind, y], 1 + car.speed.unsigned_abs() as usize);
        }
    }
}

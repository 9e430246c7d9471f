//! Seaquest.

use super::game::{Draws, Game, Grid, Move, Outcome, SIDE, inside, sign};
use crate::Color;
use serde::{Deserialize, Serialize};

/// The deepest row of the sea, below which are the gauges.
const DEEPEST: i8 = SIDE - 2;
const GAUGES: i8 = SIDE - 1;
const AIR: i32 = 200;
/// Divers that the boat holds.
const PLACES: i32 = 6;
/// Steps between two shots, of the boat and of an enemy.
const RELOAD: u8 = 5;
const ENEMY_RELOAD: u8 = 10;
/// Steps between two divers, and between two moves of one.
const DIVERS: u8 = 30;
const DIVERS_WAIT: u8 = 5;
/// Steps between two enemies and between two moves of one, to begin with.
const ENEMIES: u8 = 20;
const ENEMIES_WAIT: u8 = 5;
/// What the latter comes down to.
const SHORTEST_WAIT: u8 = 2;

/// A boat shoots enemies below the sea, 1 each, and brings divers to the surface before its air is used up.
///
/// The rules, in the order of a step; they were found by watching MinAtar's game in situations made for it:
/// - **Entering.** Every 20 steps to begin with an enemy comes, at the left or right edge with equal chances, in any of rows 1 to 8: one of three is
///   a submarine, the others are fish. If an enemy of the opposite direction is in that row, it does not come after all. Every 30 steps a
///   diver comes likewise, whoever is in its row.
/// - **Action.** The boat is two cells, of which only the front counts; the back is behind it, across. It moves a cell, in rows 0 to 8, and looks
///   where it last went across, left to begin with. It shoots every fifth step at most, from its front.
/// - **Shots of the boat**, from the latest on, fly a cell to where the boat looked. If an enemy is there, fish before submarines and the one that
///   came first before others, both are gone.
/// - **Divers**, from the latest on, move by a cell every sixth step. One who is in the boat's front before or after that is taken on board, as long
///   as there are fewer than six.
/// - **Submarines**, then **fish**, stand 5 steps to begin with between two moves by a cell. One that is in the boat's front before or after that
///   ends the game. One that moves to a shot of the boat, the oldest there, is gone with it. Every eleventh step a submarine shoots, also in the
///   step in which it is gone.
/// - **Shots of submarines** fly a cell, also in the step in which they start. In the boat's front, before or after that, they end the game.
/// - What has left the grid is gone.
/// - **Air.** The game is over if there is none left. Below the surface a step uses 1 of 200. To come up with nobody on board ends the game as well.
///   Otherwise coming up fills the air and lets a diver go. With six on board it first gives 1 for each full tenth of the air that was left,
///   and lets all six go before the one: so one is owed, and the next taken on board pays for it. Owing is not being empty: the boat may come up
///   again and owe another. Each time it comes up it becomes harder: the time between two enemies is a step shorter, down to 1, and every other
///   time the one between two of their moves, down to 2.
///
/// The last row shows the air in full tenths from the left, and those on board from its second last cell leftwards. Fish, submarines and divers have
/// a trail behind them.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Seaquest {
    boat: [i8; 2],
    /// Whether it looks to the right.
    right: bool,
    reload: u8,
    air: i32,
    /// On board; negative are owed.
    on_board: i32,
    at_surface: bool,
    /// Each from the first that came on.
    shots: Vec<Swimmer>,
    divers: Vec<Swimmer>,
    submarines: Vec<Submarine>,
    fish: Vec<Swimmer>,
    enemy_shots: Vec<Swimmer>,
    /// Steps until the next comes.
    enemy: u8,
    diver: u8,
    /// Steps between two enemies, and between two moves of one.
    enemies: u8,
    enemies_wait: u8,
    /// How often it became harder.
    ramps: u32,
}

/// Something that moves through a row.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Swimmer {
    at: [i8; 2],
    right: bool,
    /// Steps until its next move.
    wait: u8,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Submarine {
    body: Swimmer,
    reload: u8,
}

impl Swimmer {
    fn new(at: [i8; 2], right: bool, wait: u8) -> Self {
        Self { at, right, wait }
    }

    /// One that comes in at an edge, in any row.
    fn entering(right: bool, y: u32, wait: u8) -> Self {
        Self::new([if right { 0 } else { SIDE - 1 }, 1 + y as i8], right, wait)
    }

    /// Moves if its time has come; whether it did.
    fn advance(&mut self, interval: u8) -> bool {
        if self.wait > 0 {
            self.wait -= 1;
            return false;
        }
        self.wait = interval;
        self.at[0] += sign(self.right);
        true
    }

    fn gone(&self) -> bool {
        !inside(self.at[0])
    }

    fn behind(&self) -> [i8; 2] {
        [self.at[0] - sign(self.right), self.at[1]]
    }
}

/// Takes the first of those at a place out of a list; whether there was one.
fn take<T>(list: &mut Vec<T>, at: [i8; 2], place: impl Fn(&T) -> [i8; 2]) -> bool {
    let found = list.iter().position(|one| place(one) == at);
    found.map(|i| list.remove(i)).is_some()
}

impl Seaquest {
    fn enter(&mut self, draws: &mut impl Draws) {
        if self.enemy == 0 {
            self.enemy = self.enemies;
            let (right, submarine) = (draws.chance(0.5), draws.chance(1.0 / 3.0));
            let body = Swimmer::entering(right, draws.below(8), self.enemies_wait);
            let mut enemies = self.fish.iter().chain(self.submarines.iter().map(|submarine| &submarine.body));
            if !enemies.any(|other| other.at[1] == body.at[1] && other.right != right) {
                if submarine {
                    self.submarines.push(Submarine { body, reload: ENEMY_RELOAD });
                } else {
                    self.fish.push(body);
                }
            }
        }
        if self.diver == 0 {
            self.diver = DIVERS;
            let right = draws.chance(0.5);
            self.divers.push(Swimmer::entering(right, draws.below(8), DIVERS_WAIT));
        }
        self.enemy -= 1;
        self.diver -= 1;
    }

    fn act(&mut self, action: Move) {
        if action == Move::Fire && self.reload == 0 {
            self.reload = RELOAD;
            self.shots.push(Swimmer::new(self.boat, self.right, 0));
        }
        self.reload = self.reload.saturating_sub(1);
        let ([x, y], [across, down]) = (self.boat, action.direction());
        if across != 0 {
            self.right = across > 0;
        }
        self.boat = [(x + across).clamp(0, SIDE - 1), (y + down).clamp(0, DEEPEST)];
    }

    /// The boat's shots; how many enemies they hit.
    fn shoot(&mut self) -> u32 {
        let mut hits = 0;
        for i in (0..self.shots.len()).rev() {
            let shot = &mut self.shots[i];
            shot.advance(0);
            let (at, gone) = (shot.at, shot.gone());
            let hit = take(&mut self.fish, at, |fish| fish.at) || take(&mut self.submarines, at, |submarine| submarine.body.at);
            hits += u32::from(hit);
            if hit || gone {
                self.shots.remove(i);
            }
        }
        hits
    }

    fn take_divers(&mut self) {
        for i in (0..self.divers.len()).rev() {
            let diver = &mut self.divers[i];
            let before = diver.at;
            diver.advance(DIVERS_WAIT);
            let taken = self.on_board < PLACES && [before, diver.at].contains(&self.boat);
            self.on_board += i32::from(taken);
            if taken || diver.gone() {
                self.divers.remove(i);
            }
        }
    }

    fn move_submarines(&mut self, outcome: &mut Outcome) {
        for i in (0..self.submarines.len()).rev() {
            let Submarine { body, reload } = &mut self.submarines[i];
            let before = body.at;
            let moved = body.advance(self.enemies_wait);
            outcome.over |= [before, body.at].contains(&self.boat);
            let hit = moved && take(&mut self.shots, body.at, |shot| shot.at);
            outcome.reward += u32::from(hit);
            if *reload == 0 {
                *reload = ENEMY_RELOAD;
                self.enemy_shots.push(Swimmer::new(body.at, body.right, 0));
            } else {
                *reload -= 1;
            }
            if hit || body.gone() {
                self.submarines.remove(i);
            }
        }
    }

    fn move_fish(&mut self, outcome: &mut Outcome) {
        for i in (0..self.fish.len()).rev() {
            let fish = &mut self.fish[i];
            let before = fish.at;
            let moved = fish.advance(self.enemies_wait);
            outcome.over |= [before, fish.at].contains(&self.boat);
            let hit = moved && take(&mut self.shots, fish.at, |shot| shot.at);
            outcome.reward += u32::from(hit);
            if hit || fish.gone() {
                self.fish.remove(i);
            }
        }
    }

    fn move_enemy_shots(&mut self, outcome: &mut Outcome) {
        let boat = self.boat;
        self.enemy_shots.retain_mut(|shot| {
            let before = shot.at;
            shot.advance(0);
            outcome.over |= [before, shot.at].contains(&boat);
            !shot.gone()
        });
    }

    /// Uses air, or comes up.
    fn breathe(&mut self, outcome: &mut Outcome) {
        outcome.over |= self.air <= 0;
        if self.boat[1] > 0 {
            self.air -= 1;
            self.at_surface = false;
        } else if !self.at_surface {
            if self.on_board == 0 {
                outcome.over = true;
            } else {
                self.come_up(outcome);
            }
        }
    }

    fn come_up(&mut self, outcome: &mut Outcome) {
        self.at_surface = true;
        if self.on_board == PLACES {
            self.on_board = 0;
            outcome.reward += self.tenths() as u32;
        }
        self.on_board -= 1;
        self.air = AIR;
        if self.enemies > 1 || self.enemies_wait > SHORTEST_WAIT {
            self.enemies_wait -= u8::from(self.enemies_wait > SHORTEST_WAIT && self.ramps % 2 == 1);
            self.enemies -= u8::from(self.enemies > 1);
            self.ramps += 1;
        }
    }

    /// Full tenths of the air.
    fn tenths(&self) -> i8 {
        (self.air.max(0) * i32::from(SIDE) / AIR) as i8
    }
}

impl Game for Seaquest {
    const NAME: &'static str = "seaquest";
    const COLORS: &'static [Color] = &[
        [80, 160, 255],
        [50, 100, 170],
        [255, 255, 255],
        [50, 50, 60],
        [255, 90, 90],
        [230, 60, 60],
        [200, 60, 160],
        [90, 200, 220],
        [160, 220, 90],
        [255, 220, 90],
    ];

    fn reset(&mut self, _: &mut impl Draws) {
        *self = Self {
            boat: [5, 0],
            air: AIR,
            at_surface: true,
            enemy: ENEMIES,
            diver: DIVERS,
            enemies: ENEMIES,
            enemies_wait: ENEMIES_WAIT,
            ..Self::default()
        };
    }

    fn step(&mut self, action: Move, draws: &mut impl Draws) -> Outcome {
        self.enter(draws);
        self.act(action);
        let mut outcome = Outcome { reward: self.shoot(), over: false };
        self.take_divers();
        self.move_submarines(&mut outcome);
        self.move_fish(&mut outcome);
        self.move_enemy_shots(&mut outcome);
        self.breathe(&mut outcome);
        outcome
    }

    fn show(&self, grid: &mut Grid) {
        let [x, y] = self.boat;
        grid.set([x, y], 0);
        grid.set([x - sign(self.right), y], 1);
        self.shots.iter().for_each(|shot| grid.set(shot.at, 2));
        self.enemy_shots.iter().for_each(|shot| grid.set(shot.at, 4));
        let submarines = self.submarines.iter().map(|submarine| (&submarine.body, 6));
        let others = self.fish.iter().map(|fish| (fish, 5)).chain(self.divers.iter().map(|diver| (diver, 9)));
        for (swimmer, channel) in submarines.chain(others) {
            grid.set(swimmer.at, channel);
            grid.set(swimmer.behind(), 3);
        }
        (0..self.tenths()).for_each(|x| grid.set([x, GAUGES], 7));
        (0..self.on_board as i8).for_each(|i| grid.set([GAUGES - 1 - i, GAUGES], 8));
    }
}

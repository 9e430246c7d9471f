//! One simulated fighter: states, physics, attacks. Speeds are game units a frame.

use crate::families::policy::game::{Controller, Fighter, STAGES, buttons};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Melee's action state ids, as far as the simulation uses them.
pub mod state {
    #![allow(missing_docs)]
    pub const DEAD: u16 = 0;
    pub const REBIRTH: u16 = 12;
    pub const REBIRTH_WAIT: u16 = 13;
    pub const WAIT: u16 = 14;
    pub const WALK: u16 = 15;
    pub const TURN: u16 = 18;
    pub const DASH: u16 = 20;
    pub const RUN: u16 = 21;
    pub const JUMP_SQUAT: u16 = 24;
    pub const JUMP: u16 = 25;
    pub const DOUBLE_JUMP: u16 = 27;
    pub const FALL: u16 = 29;
    pub const LANDING: u16 = 42;
    pub const JAB: u16 = 44;
    pub const TILT: u16 = 53;
    pub const SMASH: u16 = 60;
    pub const AIR_NEUTRAL: u16 = 65;
    pub const AIR_FORWARD: u16 = 66;
    pub const DAMAGE: u16 = 75;
    pub const DAMAGE_FLY: u16 = 88;
    pub const GUARD_ON: u16 = 178;
    pub const GUARD: u16 = 179;
    pub const GUARD_OFF: u16 = 180;
    pub const GUARD_HIT: u16 = 181;
    pub const ENTRY: u16 = 322;
}

/// Half the width of the stage, in game units.
pub const EDGE: f32 = STAGES[5].2;

/// How far below the stage the fall still ends on its wall.
const WALL_DEPTH: f32 = -40.0;
/// How far from the middle a fighter is lost.
pub const BLAST_X: f32 = 246.0;
/// Heights between which a fighter is not lost.
pub const BLAST_Y: RangeInclusive<f32> = -140.0..=188.0;

const FULL_SHIELD: f32 = 60.0;
const SHIELD_LOSS: f32 = 0.28;
const SHIELD_GAIN: f32 = 0.07;
/// A shield this thin cannot be raised.
const SHIELD_LEAST: f32 = 10.0;

const KNOCKBACK_DECAY: f32 = 0.051;
const HITSTUN_PER_KNOCKBACK: f32 = 12.0;
/// Knockback speed from which a fighter tumbles.
const TUMBLE: f32 = 2.0;

/// What tells one fighter from another.
struct Traits {
    character: u8,
    walk: f32,
    dash: f32,
    friction: f32,
    air_acceleration: f32,
    air_speed: f32,
    gravity: f32,
    fall: f32,
    jump: f32,
    double_jump: f32,
    squat: u16,
    weight: f32,
    start: [f32; 2],
}

/// Who fights.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Marth,
    Fox,
}

const MARTH: Traits = Traits {
    character: 18,
    walk: 1.2,
    dash: 1.5,
    friction: 0.06,
    air_acceleration: 0.05,
    air_speed: 0.9,
    gravity: 0.085,
    fall: 2.2,
    jump: 2.4,
    double_jump: 2.1,
    squat: 4,
    weight: 87.0,
    start: [-60.0, 10.0],
};

const FOX: Traits = Traits {
    character: 1,
    walk: 1.3,
    dash: 1.9,
    friction: 0.08,
    air_acceleration: 0.08,
    air_speed: 0.83,
    gravity: 0.23,
    fall: 2.8,
    jump: 3.68,
    double_jump: 4.4,
    squat: 3,
    weight: 75.0,
    start: [60.0, 10.0],
};

impl Kind {
    fn traits(self) -> &'static Traits {
        match self {
            Self::Marth => &MARTH,
            Self::Fox => &FOX,
        }
    }
}

/// An attack: frames from `active.0` to `active.1` hit, all is over after `length`.
struct Attack {
    state: u16,
    active: (u16, u16),
    length: u16,
    /// From how far before the fighter it reaches, and how high.
    reach: [f32; 2],
    damage: f32,
    knockback: f32,
    /// Knockback speed for each percent of the victim's damage.
    growth: f32,
    /// Unit direction, away from the attacker and up.
    direction: [f32; 2],
}

const ATTACKS: [Attack; 5] = [
    Attack {
        state: state::JAB,
        active: (3, 6),
        length: 18,
        reach: [14.0, 12.0],
        damage: 4.0,
        knockback: 0.9,
        growth: 0.008,
        direction: [0.8, 0.6],
    },
    Attack {
        state: state::TILT,
        active: (7, 11),
        length: 28,
        reach: [19.0, 12.0],
        damage: 9.0,
        knockback: 1.1,
        growth: 0.017,
        direction: [0.8, 0.6],
    },
    Attack {
        state: state::SMASH,
        active: (12, 16),
        length: 42,
        reach: [22.0, 14.0],
        damage: 16.0,
        knockback: 1.6,
        growth: 0.036,
        direction: [0.8, 0.6],
    },
    Attack {
        state: state::AIR_NEUTRAL,
        active: (4, 16),
        length: 32,
        reach: [13.0, 13.0],
        damage: 9.0,
        knockback: 1.1,
        growth: 0.018,
        direction: [0.8, 0.6],
    },
    Attack {
        state: state::AIR_FORWARD,
        active: (6, 11),
        length: 30,
        reach: [17.0, 14.0],
        damage: 11.0,
        knockback: 1.2,
        growth: 0.021,
        direction: [0.6, 0.8],
    },
];

fn attack(state: u16) -> Option<&'static Attack> {
    ATTACKS.iter().find(|attack| attack.state == state)
}

/// What an attack does to the one it meets.
pub struct Hit {
    damage: f32,
    knockback: f32,
    growth: f32,
    /// Unit direction in stage coordinates.
    direction: [f32; 2],
}

/// A fighter in motion.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Body {
    kind: Kind,
    state: u16,
    /// Frames in the state, from 1.
    age: u16,
    position: [f32; 2],
    /// Own speed, and the one from attacks.
    speed: [f32; 2],
    knockback: [f32; 2],
    facing: f32,
    percent: f32,
    shield: f32,
    pub stocks: u8,
    jumps: u8,
    grounded: bool,
    hitstun: u16,
    invulnerable: u16,
    /// Buttons of the frame before: a press is a button that was up.
    held: u16,
    c_stick: bool,
    /// This attack has met somebody.
    has_hit: bool,
}

impl Body {
    pub fn new(kind: Kind) -> Self {
        let traits = kind.traits();
        Self {
            kind,
            state: state::ENTRY,
            age: 0,
            position: traits.start,
            speed: [0.0; 2],
            knockback: [0.0; 2],
            facing: -traits.start[0].signum(),
            percent: 0.0,
            shield: FULL_SHIELD,
            stocks: 4,
            jumps: 2,
            grounded: false,
            hitstun: 0,
            invulnerable: 0,
            held: 0,
            c_stick: false,
            has_hit: false,
        }
    }

    /// The fighter as a replay tells it.
    pub fn view(&self) -> Fighter {
        let [x, y] = self.speed;
        Fighter {
            character: self.kind.traits().character,
            action_state: self.state,
            action_frame: f32::from(self.age),
            position: self.position,
            facing: self.facing,
            percent: self.percent,
            shield: self.shield,
            stocks: self.stocks,
            jumps: self.jumps,
            on_ground: self.grounded,
            invulnerable: self.invulnerable > 0,
            hitstun: f32::from(self.hitstun),
            velocity: [x, if self.grounded { x } else { 0.0 }, y, self.knockback[0], self.knockback[1]],
        }
    }

    /// One frame: the controller decides the state, the state decides the motion.
    pub fn step(&mut self, id: i32, controller: &Controller) {
        self.age = self.age.saturating_add(1);
        self.invulnerable = self.invulnerable.saturating_sub(1);
        if self.state != state::GUARD && self.state != state::GUARD_ON {
            self.shield = (self.shield + SHIELD_GAIN).min(FULL_SHIELD);
        }
        let pressed = controller.buttons & !self.held;
        let flicked = controller.c_stick[0] != 0.0 && !self.c_stick;
        self.held = controller.buttons;
        self.c_stick = controller.c_stick[0] != 0.0;
        match self.state {
            state::ENTRY => {
                if id >= -1 {
                    self.enter(state::FALL);
                }
            }
            state::DEAD | state::REBIRTH | state::REBIRTH_WAIT => self.come_back(),
            state::DAMAGE | state::DAMAGE_FLY => self.suffer(),
            _ if self.grounded => self.act_on_ground(controller, pressed, flicked),
            _ => self.act_in_air(controller, pressed, flicked),
        }
        if !matches!(self.state, state::ENTRY | state::DEAD | state::REBIRTH | state::REBIRTH_WAIT) {
            self.travel();
        }
    }

    fn enter(&mut self, state: u16) {
        if state != self.state || attack(state).is_some() {
            self.state = state;
            self.age = 1;
            self.has_hit = false;
        }
    }

    fn come_back(&mut self) {
        match (self.state, self.age) {
            (state::DEAD, 60..) => {
                self.enter(state::REBIRTH);
                self.position = [0.0, 90.0];
                self.percent = 0.0;
                self.shield = FULL_SHIELD;
                self.jumps = 2;
                self.facing = 1.0;
            }
            (state::REBIRTH, 1..=60) => self.position[1] -= 0.75,
            (state::REBIRTH, _) => self.enter(state::REBIRTH_WAIT),
            (state::REBIRTH_WAIT, 30..) => {
                self.enter(state::FALL);
                self.invulnerable = 120;
            }
            _ => {}
        }
    }

    fn suffer(&mut self) {
        self.hitstun = self.hitstun.saturating_sub(1);
        if self.hitstun == 0 {
            self.enter(if self.grounded { state::WAIT } else { state::FALL });
        }
    }

    fn act_on_ground(&mut self, controller: &Controller, pressed: u16, flicked: bool) {
        let stick = controller.main_stick[0];
        match self.state {
            state::JUMP_SQUAT if self.age > self.kind.traits().squat => {
                self.grounded = false;
                self.jumps = 1;
                // Released before the feet leave the ground: a short hop.
                let full = self.held & (buttons::X | buttons::Y) != 0;
                self.speed[1] = self.kind.traits().jump * if full { 1.0 } else { 0.6 };
                self.speed[0] = self.speed[0] * 0.7 + stick * 0.4;
                self.enter(state::JUMP);
            }
            state::JUMP_SQUAT => {}
            state::LANDING if self.age <= 4 => self.brake(),
            state::GUARD_HIT if self.age <= 8 => self.brake(),
            state::GUARD_OFF if self.age <= 15 && pressed & buttons::X == 0 => self.brake(),
            state::GUARD_ON | state::GUARD | state::GUARD_HIT if self.held & buttons::R != 0 => self.guard(pressed),
            state::GUARD_ON | state::GUARD | state::GUARD_HIT => self.enter(state::GUARD_OFF),
            current if attack(current).is_some_and(|attack| self.age <= attack.length) => self.brake(),
            _ => self.choose(controller, pressed, flicked),
        }
    }

    fn guard(&mut self, pressed: u16) {
        self.brake();
        self.shield -= SHIELD_LOSS;
        if pressed & buttons::X != 0 {
            self.enter(state::JUMP_SQUAT);
        } else if self.shield < SHIELD_LEAST {
            self.enter(state::GUARD_OFF);
        } else if self.state != state::GUARD_ON || self.age > 8 {
            self.enter(state::GUARD);
        }
    }

    /// A free fighter on the ground.
    fn choose(&mut self, controller: &Controller, pressed: u16, flicked: bool) {
        let stick = controller.main_stick[0];
        if pressed & buttons::X != 0 {
            self.enter(state::JUMP_SQUAT);
        } else if self.held & buttons::R != 0 && self.shield > SHIELD_LEAST {
            self.enter(state::GUARD_ON);
        } else if flicked {
            self.facing = controller.c_stick[0].signum();
            self.enter(state::SMASH);
        } else if pressed & buttons::A != 0 {
            if stick != 0.0 {
                self.facing = stick.signum();
            }
            self.enter(if stick == 0.0 { state::JAB } else { state::TILT });
        } else {
            self.move_by(stick);
        }
    }

    fn move_by(&mut self, stick: f32) {
        if stick == 0.0 {
            self.brake();
            self.enter(state::WAIT);
        } else if stick * self.facing < 0.0 && self.state != state::TURN {
            self.enter(state::TURN);
            self.facing = -self.facing;
            self.brake();
        } else if stick.abs() > 0.8 {
            self.speed[0] = self.kind.traits().dash * stick;
            match self.state {
                state::RUN => {}
                state::DASH if self.age > 12 => self.enter(state::RUN),
                _ => self.enter(state::DASH),
            }
        } else {
            self.speed[0] = self.kind.traits().walk * stick;
            self.enter(state::WALK);
        }
    }

    fn brake(&mut self) {
        let slower = (self.speed[0].abs() - self.kind.traits().friction).max(0.0);
        self.speed[0] = slower * self.speed[0].signum();
    }

    fn act_in_air(&mut self, controller: &Controller, pressed: u16, flicked: bool) {
        let stick = controller.main_stick[0];
        let wanted = (self.speed[0] + stick * self.kind.traits().air_acceleration)
            .clamp(-self.kind.traits().air_speed, self.kind.traits().air_speed);
        self.speed[0] = wanted;
        // A fast fall: the stick down on the way down.
        if controller.main_stick[1] < -0.6 && self.speed[1] < 0.0 {
            self.speed[1] = -self.kind.traits().fall;
        }
        if attack(self.state).is_some_and(|attack| self.age <= attack.length) {
            return;
        }
        if pressed & buttons::X != 0 && self.jumps > 0 {
            self.jumps -= 1;
            self.speed = [stick * self.kind.traits().air_speed, self.kind.traits().double_jump];
            self.enter(state::DOUBLE_JUMP);
        } else if flicked || (pressed & buttons::A != 0 && stick * self.facing > 0.0) {
            self.enter(state::AIR_FORWARD);
        } else if pressed & buttons::A != 0 {
            self.enter(state::AIR_NEUTRAL);
        } else if self.speed[1] < 0.0 {
            self.enter(state::FALL);
        }
    }

    fn travel(&mut self) {
        let before = self.position;
        if !self.grounded {
            self.speed[1] = (self.speed[1] - self.kind.traits().gravity).max(-self.kind.traits().fall);
        }
        for axis in 0..2 {
            self.position[axis] += self.speed[axis] + self.knockback[axis];
        }
        self.decay();
        if self.grounded {
            self.walk_off(before);
        } else {
            self.meet_stage(before);
        }
        let [x, y] = self.position;
        if x.abs() > BLAST_X || !BLAST_Y.contains(&y) {
            self.die();
        }
    }

    /// Knockback fades along its direction.
    fn decay(&mut self) {
        let [x, y] = self.knockback;
        let speed = (x * x + y * y).sqrt();
        let scale = if speed > KNOCKBACK_DECAY { (speed - KNOCKBACK_DECAY) / speed } else { 0.0 };
        self.knockback = [x * scale, y * scale];
    }

    /// Fighters who walk or are busy stop at the edge; those who run or are struck go over it.
    fn walk_off(&mut self, before: [f32; 2]) {
        if self.position[0].abs() <= EDGE {
            return;
        }
        if matches!(self.state, state::DASH | state::RUN | state::DAMAGE | state::DAMAGE_FLY) {
            self.grounded = false;
            self.jumps = 1;
            if self.hitstun == 0 {
                self.enter(state::FALL);
            }
        } else {
            self.position[0] = before[0].clamp(-EDGE, EDGE);
            self.speed[0] = 0.0;
        }
    }

    fn meet_stage(&mut self, before: [f32; 2]) {
        let [x, y] = self.position;
        if before[1] >= 0.0 && y <= 0.0 && x.abs() <= EDGE {
            self.position[1] = 0.0;
            self.speed[1] = 0.0;
            self.knockback[1] = 0.0;
            self.grounded = true;
            self.jumps = 2;
            if self.hitstun == 0 {
                self.enter(state::LANDING);
            }
        } else if before[1] < 0.0 && y < 0.0 && y > WALL_DEPTH && before[0].abs() >= EDGE && x.abs() < EDGE {
            self.position[0] = EDGE * before[0].signum();
            self.speed[0] = 0.0;
        }
    }

    fn die(&mut self) {
        self.stocks = self.stocks.saturating_sub(1);
        self.position = [self.position[0].clamp(-BLAST_X, BLAST_X), self.position[1].clamp(*BLAST_Y.start(), *BLAST_Y.end())];
        self.speed = [0.0; 2];
        self.knockback = [0.0; 2];
        self.hitstun = 0;
        self.grounded = false;
        self.enter(state::DEAD);
    }

    /// Whether this fighter's attack meets the other in this frame.
    pub fn hit(&self, other: &Self) -> Option<Hit> {
        let attack = attack(self.state)?;
        let active = (attack.active.0..=attack.active.1).contains(&self.age);
        let away = matches!(other.state, state::DEAD | state::REBIRTH | state::REBIRTH_WAIT | state::ENTRY);
        if !active || self.has_hit || other.invulnerable > 0 || away {
            return None;
        }
        let ahead = (other.position[0] - self.position[0]) * self.facing;
        let above = (other.position[1] - self.position[1]).abs();
        if !(-4.0..=attack.reach[0]).contains(&ahead) || above > attack.reach[1] {
            return None;
        }
        let direction = [attack.direction[0] * self.facing, attack.direction[1]];
        Some(Hit { damage: attack.damage, knockback: attack.knockback, growth: attack.growth, direction })
    }

    /// This fighter's attack has met the other: it does so once.
    pub fn landed(&mut self) {
        self.has_hit = true;
    }

    /// Takes a hit, on the shield if it is up; tells how much of it was not.
    pub fn receive(&mut self, hit: &Hit) -> f32 {
        if matches!(self.state, state::GUARD_ON | state::GUARD | state::GUARD_HIT) {
            self.shield = (self.shield - hit.damage * 0.7).max(0.0);
            self.speed[0] = hit.direction[0].signum() * 0.6;
            self.enter(state::GUARD_HIT);
            return 0.0;
        }
        self.percent += hit.damage;
        let speed = (hit.knockback + hit.growth * self.percent) * (87.0 / self.kind.traits().weight);
        self.knockback = [hit.direction[0] * speed, hit.direction[1] * speed];
        self.speed = [0.0; 2];
        self.hitstun = (speed * HITSTUN_PER_KNOCKBACK) as u16;
        self.facing = -hit.direction[0].signum();
        self.grounded = false;
        self.state = if speed > TUMBLE { state::DAMAGE_FLY } else { state::DAMAGE };
        self.age = 1;
        self.has_hit = false;
        hit.damage
    }
}

//! What a simulated player does: a plan of some frames, chosen by what it sees, and the inputs that carry it out.

use super::Bot;
use super::fighter::{EDGE, state};
use crate::families::policy::game::{Controller, Fighter, buttons};
use crate::random::Random;
use serde::{Deserialize, Serialize};

/// A plan is followed until its time is over or something more urgent happens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Plan {
    Wait,
    Walk,
    Dash,
    Retreat,
    Jump,
    JumpAttack,
    Jab,
    Tilt,
    Smash,
    Shield,
    Recover,
}

/// Distance at which blows are exchanged.
const CLOSE: f32 = 18.0;
const FAR: f32 = 45.0;

/// Plans with their chances in sixteenths.
type Options = &'static [(Plan, u32)];

const ALONE: Options = &[(Plan::Wait, 4), (Plan::Walk, 4), (Plan::Jump, 4), (Plan::Retreat, 4)];
const PUNISH: Options = &[(Plan::Smash, 8), (Plan::Tilt, 4), (Plan::JumpAttack, 4)];
const TRADE: Options = &[(Plan::Jab, 5), (Plan::Tilt, 3), (Plan::Smash, 2), (Plan::Shield, 2), (Plan::Retreat, 2), (Plan::JumpAttack, 2)];
const APPROACH: Options =
    &[(Plan::JumpAttack, 5), (Plan::Dash, 4), (Plan::Walk, 3), (Plan::Retreat, 2), (Plan::Shield, 1), (Plan::Wait, 1)];
const CROSS: Options = &[(Plan::Dash, 8), (Plan::Walk, 4), (Plan::Jump, 2), (Plan::Wait, 2)];
const AIR_CLOSE: Options = &[(Plan::JumpAttack, 10), (Plan::Walk, 6)];
const AIR_FAR: Options = &[(Plan::Walk, 16)];

/// What the situation offers.
fn options(own: &Fighter, other: &Fighter) -> Options {
    let distance = (other.position[0] - own.position[0]).abs();
    match (own.on_ground, distance) {
        _ if matches!(other.action_state, state::DEAD | state::REBIRTH | state::REBIRTH_WAIT) => ALONE,
        (true, ..CLOSE) if other.hitstun > 6.0 => PUNISH,
        (true, ..CLOSE) => TRADE,
        (true, CLOSE..FAR) => APPROACH,
        (true, _) => CROSS,
        (false, ..CLOSE) => AIR_CLOSE,
        (false, _) => AIR_FAR,
    }
}

fn pick(options: Options, mut die: u32) -> Plan {
    for (plan, chance) in options {
        if die < *chance {
            return *plan;
        }
        die -= chance;
    }
    Plan::Wait
}

/// The player of the simulated games: plans of some frames, chosen by what it sees and by chance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Script {
    plans: Random,
    reactions: Random,
    plan: Plan,
    /// Frames since the plan was made.
    age: u32,
    length: u32,
    plans_made: u64,
    stick: f32,
}

impl Bot for Script {
    fn new(random: Random) -> Self {
        let (plans, reactions) = (random.stream("plans"), random.stream("reactions"));
        Self { plans, reactions, plan: Plan::Wait, age: 0, length: 20, plans_made: 0, stick: 0.0 }
    }

    fn decide(&mut self, id: i32, own: &Fighter, other: &Fighter) -> Controller {
        self.age += 1;
        let offstage = !own.on_ground && own.position[0].abs() > EDGE;
        let threatened = threat(own, other) && self.plan != Plan::Shield && own.on_ground;
        if offstage && self.plan != Plan::Recover {
            self.make(Plan::Recover, 200);
        } else if threatened && self.reactions.below(id as u64, 5) == 0 {
            self.make(Plan::Shield, 14);
        } else if self.age > self.length || (self.plan == Plan::Recover && !offstage) {
            self.choose(own, other);
        }
        self.inputs(own, other)
    }
}

impl Script {
    fn make(&mut self, plan: Plan, length: u32) {
        self.plan = plan;
        self.age = 1;
        self.length = length;
    }

    fn choose(&mut self, own: &Fighter, other: &Fighter) {
        self.plans_made += 1;
        let plan = pick(options(own, other), self.plans.below(2 * self.plans_made, 16));
        let time = 6 + self.plans.below(2 * self.plans_made + 1, 24);
        let length = match plan {
            Plan::Jab => 8,
            Plan::Tilt | Plan::Smash => 12,
            Plan::Jump | Plan::JumpAttack => 24 + time / 2,
            _ => time,
        };
        self.make(plan, length);
    }

    fn inputs(&mut self, own: &Fighter, other: &Fighter) -> Controller {
        let toward = if other.position[0] >= own.position[0] { 1.0 } else { -1.0 };
        let mut controller = Controller::default();
        let target = match self.plan {
            Plan::Wait | Plan::Shield | Plan::Jab | Plan::Smash => 0.0,
            Plan::Walk => toward * 0.5,
            Plan::Tilt => toward * 0.5,
            Plan::Dash | Plan::JumpAttack | Plan::Jump => toward,
            Plan::Retreat => -toward,
            Plan::Recover => -own.position[0].signum(),
        };
        let careful = own.on_ground && own.position[0] * target > 0.0 && own.position[0].abs() > EDGE - 8.0;
        self.stick = travel(self.stick, if careful { 0.0 } else { target });
        controller.main_stick[0] = self.stick;
        let landing = !own.on_ground && own.velocity[2] < 0.0 && matches!(self.plan, Plan::Jump | Plan::JumpAttack);
        if landing && own.position[1] > 4.0 {
            controller.main_stick[1] = -1.0;
        }
        match self.plan {
            Plan::Jab => press(&mut controller, buttons::A, self.age == 2),
            Plan::Tilt => press(&mut controller, buttons::A, self.age == 3),
            Plan::Smash if (2..5).contains(&self.age) => controller.c_stick[0] = toward,
            Plan::Shield => {
                press(&mut controller, buttons::R, true);
                controller.shoulder = 1.0;
            }
            Plan::Jump => press(&mut controller, buttons::X, (2..9).contains(&self.age)),
            Plan::JumpAttack => self.jump_attack(&mut controller, own, other),
            Plan::Recover => {
                let falling = own.velocity[2] < 0.0 && own.position[1] < 10.0;
                press(&mut controller, buttons::X, falling && self.age.is_multiple_of(4));
            }
            _ => {}
        }
        controller
    }

    /// A short hop, and a blow when the other is near.
    fn jump_attack(&self, controller: &mut Controller, own: &Fighter, other: &Fighter) {
        press(controller, buttons::X, own.on_ground && (2..4).contains(&self.age));
        let near = (other.position[0] - own.position[0]).abs() < CLOSE + 4.0;
        press(controller, buttons::A, !own.on_ground && near && self.age.is_multiple_of(3));
    }
}

pub(super) fn press(controller: &mut Controller, button: u16, down: bool) {
    if down {
        controller.buttons |= button;
    }
}

/// A stick takes two frames from side to side, and its values are those of a real one (steps of 1/80).
fn travel(from: f32, to: f32) -> f32 {
    from + (to - from).clamp(-1.0, 1.0)
}

/// Whether the other's blow is under way and would meet.
pub(super) fn threat(own: &Fighter, other: &Fighter) -> bool {
    let attacking = (state::JAB..=state::AIR_FORWARD).contains(&other.action_state) && other.action_frame < 12.0;
    let [x, y] = [other.position[0] - own.position[0], other.position[1] - own.position[1]];
    attacking && x.abs() < CLOSE + 8.0 && y.abs() < CLOSE
}

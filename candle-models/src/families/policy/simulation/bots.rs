//! Players of the simulation beside the scripted one.

use super::fighter::{EDGE, state};
use super::script::{press, threat};
use crate::families::policy::actions::{ACTION, Action, COMPONENTS};
use crate::families::policy::game::{Controller, Fighter, buttons};
use crate::random::Random;
use serde::{Deserialize, Serialize};

/// A player of the simulation that is a program.
pub trait Bot {
    /// One whose random numbers are those of `random`.
    fn new(random: Random) -> Self;

    /// What its controller says in frame `id`, from both fighters as they were after the frame before.
    fn decide(&mut self, id: i32, own: &Fighter, other: &Fighter) -> Controller;
}

/// Presses anything: every class of every component of an action is as likely as the others, in every frame.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Keys(Random);

impl Bot for Keys {
    fn new(random: Random) -> Self {
        Self(random)
    }

    fn decide(&mut self, id: i32, _: &Fighter, _: &Fighter) -> Controller {
        let random = self.0.at(id as u64);
        let classes: [u32; ACTION] = std::array::from_fn(|i| random.below(i as u64, u32::from(COMPONENTS[i].classes)));
        Action::from_ids(&classes).unwrap_or_default().to_controller()
    }
}

/// Waits for the other where its smash attack reaches, behind its shield while the other's blow is under way.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Punish;

impl Bot for Punish {
    fn new(_: Random) -> Self {
        Self
    }

    fn decide(&mut self, id: i32, own: &Fighter, other: &Fighter) -> Controller {
        let [x, y] = [other.position[0] - own.position[0], other.position[1] - own.position[1]];
        let (toward, home) = (if x >= 0.0 { 1.0 } else { -1.0 }, -own.position[0].signum());
        let mut controller = Controller::default();
        if !own.on_ground {
            controller.main_stick[0] = home;
            let lost = own.velocity[2] < 0.0 && own.position[1] < 10.0 && own.position[0].abs() > EDGE;
            press(&mut controller, buttons::X, lost && id % 4 == 0);
        } else if other.invulnerable || matches!(other.action_state, state::DEAD | state::REBIRTH | state::REBIRTH_WAIT) {
            controller.main_stick[0] = if own.position[0].abs() > 8.0 { home * 0.5 } else { 0.0 };
        } else if threat(own, other) && own.shield > 15.0 {
            press(&mut controller, buttons::R, true);
        } else if x.abs() < 21.0 && y.abs() < 30.0 {
            // The stick has to come back before it strikes again.
            controller.c_stick[0] = if id % 2 == 0 { toward } else { 0.0 };
        } else if x.abs() > 30.0 {
            controller.main_stick[0] = toward * 0.5;
        }
        controller
    }
}

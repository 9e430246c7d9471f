//! The controller on a keyboard.

use candle_models::policy::actions::{ACTION, Action};
use candle_models::policy::game::{Controller, buttons};

/// What the keys of [`held`] do, in words.
pub const KEYS: &str = "arrows to move, X or up to jump, Z to strike, A and D to smash left and right, S to shield";

/// What a person does in a [`Duel`](super::Duel) who holds keys, by their names in lower case: `arrowleft`, `x`.
///
/// ```
/// use candle_envs::duel::held;
/// use candle_models::policy::actions::Action;
///
/// assert_eq!(held(|_| false), Action::default().to_ids());
/// ```
pub fn held(key: impl Fn(&str) -> bool) -> [u32; ACTION] {
    let between = |less: &str, more: &str| f32::from(i8::from(key(more)) - i8::from(key(less)));
    let pressed = [("z", buttons::A), ("x", buttons::X), ("arrowup", buttons::X), ("s", buttons::R)];
    let pressed = pressed.into_iter().filter(|(name, _)| key(name)).fold(0, |all, (_, bits)| all | bits);
    let controller = Controller {
        buttons: pressed,
        main_stick: [between("arrowleft", "arrowright"), between("arrowdown", "arrowup")],
        c_stick: [between("a", "d"), 0.0],
        shoulder: 0.0,
    };
    Action::from_controller(&controller).to_ids()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_a_controller() {
        let held = |keys: &[&str]| Action::from_ids(&held(|key| keys.contains(&key))).unwrap().to_controller();
        let found = held(&["arrowleft", "z", "d"]);
        assert_eq!((found.buttons, found.main_stick, found.c_stick), (buttons::A, [-1.0, 0.0], [1.0, 0.0]));
        let found = held(&["arrowleft", "arrowright", "arrowup", "s", "q"]);
        assert_eq!((found.buttons, found.main_stick, found.c_stick), (buttons::X | buttons::R, [0.0, 1.0], [0.0, 0.0]));
    }
}

//! What a person does, as an action: a move that is typed or clicked, keys that are held.

use candle_envs::duel::{self, Duel};
use candle_envs::{Actions, Env, Spec};
use candle_models::agent::{Component, Observation};

/// The action of one environment.
pub type Hand = Actions;

/// How many moves lie beside each other and how many below, where the moves are the columns or the squares of a board.
fn board(spec: &Spec) -> Option<[usize; 2]> {
    match (&spec.observation[..], &spec.action[..]) {
        ([Observation::Grid { width, .. }], [Component::Discrete { classes, .. }]) if classes == width => Some([*width, 1]),
        ([Observation::Grid { width, height, .. }], [Component::Discrete { classes, .. }]) if *classes == width * height => {
            Some([*width, *height])
        }
        _ => None,
    }
}

/// The middle of a move's place in the scene of a board, of a column that of its highest square.
pub fn place(spec: &Spec, class: usize) -> Option<[f32; 2]> {
    let [across, _] = board(spec)?;
    Some([(class % across) as f32 + 0.5, (class / across) as f32 + 0.5])
}

/// Whether moves are made by clicks.
pub fn is_clicked(spec: &Spec) -> bool {
    spec.players == 2 && board(spec).is_some()
}

/// The move at a place in the scene.
///
/// # Errors
/// In words, if there is none or it cannot be made.
pub fn clicked(spec: &Spec, [x, y]: [f32; 2], legal: &[bool]) -> Result<Hand, String> {
    let [across, down] = board(spec).ok_or_else(|| format!("{} is not played by clicks", spec.name))?;
    let inside = x >= 0.0 && y >= 0.0 && x < across as f32 && (down == 1 || y < down as f32);
    let class = if down == 1 { x as usize } else { x as usize + across * y as usize };
    if inside { chosen(class, legal) } else { Err("no move is there".to_owned()) }
}

/// The move of that number, counted from 1.
///
/// # Errors
/// In words, if it is none or cannot be made.
pub fn typed(text: &str, legal: &[bool]) -> Result<Hand, String> {
    let number = text.trim().parse::<usize>().ok().filter(|number| (1..=legal.len()).contains(number));
    let class = number.ok_or_else(|| format!("{:?} is no move: {}", text.trim(), expected(legal)))? - 1;
    chosen(class, legal)
}

fn chosen(class: usize, legal: &[bool]) -> Result<Hand, String> {
    match legal.get(class) {
        Some(true) => Ok(Actions::classes(vec![class as u32])),
        _ => Err(format!("{} cannot be played: {}", class + 1, expected(legal))),
    }
}

fn expected(legal: &[bool]) -> String {
    let numbers: Vec<String> = (1..).zip(legal).filter(|(_, legal)| **legal).map(|(number, _): (usize, _)| number.to_string()).collect();
    format!("expected one of {}", numbers.join(", "))
}

/// Which keys play it, in words.
pub fn keys(spec: &Spec) -> Option<&'static str> {
    match &spec.action[..] {
        _ if spec.players != 1 => None,
        [Component::Discrete { classes: 2 | 3, .. }] | [Component::Gaussian { columns: 1, .. }] => Some("left and right arrow"),
        [Component::Discrete { classes: 6, .. }] => Some("arrows to move, space to fire"),
        action if *action == <Duel>::spec().action => Some(duel::KEYS),
        _ => None,
    }
}

/// What is done while keys are held, the one that was pressed last at the end. `last` is what was done before: a cart that has to go one way
/// or the other goes on.
///
/// # Errors
/// In words, if it is not played by keys.
pub fn held(spec: &Spec, keys: &[String], last: Option<&Hand>) -> Result<Hand, String> {
    let latest = |names: &[&str]| keys.iter().rev().find_map(|key| names.iter().position(|name| name == key));
    let side = latest(&["arrowleft", "arrowright"]);
    match &spec.action[..] {
        _ if self::keys(spec).is_none() => Err(format!("{} is not played by keys", spec.name)),
        [Component::Discrete { classes: 2, .. }] => {
            let before = last.and_then(|hand| hand.classes.first()).copied();
            Ok(Actions::classes(vec![side.map_or(before.unwrap_or(0), |side| side as u32)]))
        }
        [Component::Discrete { classes: 3, .. }] => Ok(Actions::classes(vec![side.map_or(1, |side| 2 * side as u32)])),
        [Component::Discrete { .. }] => {
            // In the order of the classes, behind the one that does nothing.
            let chosen = latest(&["arrowleft", "arrowup", "arrowright", "arrowdown", " "]);
            Ok(Actions::classes(vec![chosen.map_or(0, |class| class as u32 + 1)]))
        }
        [component @ Component::Gaussian { .. }] => {
            let [low, high] =
                component.gaussian().map_or([-1.0, 1.0], |gaussian| [gaussian.low, gaussian.high].map(|x| x.clamp(-3.0, 3.0)));
            Ok(Actions::numbers(vec![side.map_or(0.0, |side| [low, high][side])]))
        }
        _ => Ok(Actions::classes(duel::held(|name| keys.iter().any(|key| key == name)).to_vec())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_envs::shipped;

    fn spec(name: &str) -> Spec {
        shipped().get(name).unwrap().spec().clone()
    }

    fn down(keys: &[&str]) -> Vec<String> {
        keys.iter().map(|key| (*key).to_owned()).collect()
    }

    #[test]
    fn every_environment_is_played_by_clicks_or_by_keys() {
        for entry in shipped().iter() {
            let spec = entry.spec().clone();
            assert!(is_clicked(&spec) != keys(&spec).is_some(), "{}", spec.name);
            assert_eq!(held(&spec, &[], None).is_ok(), keys(&spec).is_some(), "{}", spec.name);
        }
    }

    #[test]
    fn moves_are_columns_or_squares() {
        let (four, three) = (spec("connect-four"), spec("tictactoe"));
        let mut legal = [true; 7];
        assert_eq!(clicked(&four, [3.2, 5.9], &legal), Ok(Actions::classes(vec![3])));
        assert_eq!(clicked(&three, [2.9, 1.1], &[true; 9]), Ok(Actions::classes(vec![5])));
        for at in [[7.0, 0.5], [-0.1, 0.5], [f32::NAN, 0.0], [1e9, 1.0]] {
            assert_eq!(clicked(&four, at, &legal), Err("no move is there".to_owned()));
        }
        legal[3] = false;
        assert_eq!(clicked(&four, [3.2, 0.5], &legal), Err("4 cannot be played: expected one of 1, 2, 3, 5, 6, 7".to_owned()));
        assert_eq!(typed("4", &legal), Err("4 cannot be played: expected one of 1, 2, 3, 5, 6, 7".to_owned()));
        assert_eq!(typed(" 7\n", &legal), Ok(Actions::classes(vec![6])));
        assert_eq!(typed("8", &legal), Err("\"8\" is no move: expected one of 1, 2, 3, 5, 6, 7".to_owned()));
        assert_eq!(place(&four, 6), Some([6.5, 0.5]));
        assert_eq!(place(&three, 5), Some([2.5, 1.5]));
        assert_eq!(place(&spec("breakout"), 1), None);
    }

    #[test]
    fn the_key_that_was_pressed_last_counts() {
        let classes = |name: &str, keys: &[&str], last: Option<u32>| {
            let last = last.map(|class| Actions::classes(vec![class]));
            held(&spec(name), &down(keys), last.as_ref()).unwrap().classes
        };
        assert_eq!(classes("cartpole", &["arrowleft", "arrowright"], None), [1]);
        assert_eq!(classes("cartpole", &[], Some(1)), [1]);
        assert_eq!(classes("acrobot", &[], None), [1]);
        assert_eq!(classes("acrobot", &["arrowright"], None), [2]);
        assert_eq!(classes("seaquest", &["arrowup", " ", "q"], None), [5]);
        assert_eq!(held(&spec("pendulum"), &down(&["arrowleft"]), None).unwrap().numbers, [-2.0]);
        assert_eq!(classes("duel", &["s", "z"], None), duel::held(|key| key == "s" || key == "z"));
    }
}

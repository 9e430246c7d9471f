//! A controller on the named pipe that Dolphin reads.

use crate::Error;
use crate::families::policy::game::{Controller, buttons};
use anyhow::{Result, bail};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Dolphin's names of the buttons.
pub const BUTTONS: [(u16, &str); 12] = [
    (buttons::A, "A"),
    (buttons::B, "B"),
    (buttons::X, "X"),
    (buttons::Y, "Y"),
    (buttons::Z, "Z"),
    (buttons::L, "L"),
    (buttons::R, "R"),
    (buttons::START, "START"),
    (buttons::D_UP, "D_UP"),
    (buttons::D_DOWN, "D_DOWN"),
    (buttons::D_LEFT, "D_LEFT"),
    (buttons::D_RIGHT, "D_RIGHT"),
];

/// From an attempt to open a pipe that nobody reads to the next.
const AGAIN: Duration = Duration::from_millis(200);

/// Presses a controller. Nothing here waits: what cannot be written is not pressed.
pub struct Pad {
    path: PathBuf,
    pipe: Option<File>,
    tried: Option<Instant>,
    /// What the user was told last.
    told: Told,
    text: String,
}

#[derive(PartialEq, Clone, Copy)]
enum Told {
    Nothing,
    Unread,
    Full,
}

impl Pad {
    /// A controller on a pipe, which need not have a reader yet.
    ///
    /// # Errors
    /// If it is no pipe.
    pub fn new(path: &Path) -> Result<Self> {
        let kind = path.metadata().map_err(Error::io(path))?.file_type();
        if !kind.is_fifo() {
            bail!("{}: no named pipe: make one with mkfifo, in Dolphin's folder Pipes", path.display());
        }
        Ok(Self { path: path.to_owned(), pipe: None, tried: None, told: Told::Nothing, text: String::new() })
    }

    /// Writes the whole state of the controller; what the user is to know, if there is news.
    pub fn press(&mut self, controller: &Controller) -> Option<String> {
        if self.pipe.is_none() && self.tried.is_none_or(|tried| tried.elapsed() >= AGAIN) {
            self.tried = Some(Instant::now());
            // A pipe without a reader would wait for one.
            let opened = OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.path);
            match opened {
                Ok(pipe) => self.pipe = Some(pipe),
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
                Err(error) => return self.tell(Told::Unread, &error.to_string()),
            }
        }
        let Some(pipe) = &mut self.pipe else {
            return self.tell(Told::Unread, "nobody reads this pipe: is Dolphin running, with this controller?");
        };
        describe(controller, &mut self.text);
        // Shorter than what a pipe takes at once: it is written as a whole or not at all.
        match pipe.write(self.text.as_bytes()) {
            Ok(_) => self.tell(Told::Nothing, "the pipe is read again"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => self.tell(Told::Full, "the pipe is full: Dolphin does not read it"),
            Err(error) => {
                self.pipe = None;
                self.tell(Told::Unread, &error.to_string())
            }
        }
    }

    fn tell(&mut self, now: Told, text: &str) -> Option<String> {
        let news = self.told != now;
        self.told = now;
        news.then(|| format!("{}: {text}", self.path.display()))
    }
}

/// The state of a controller as Dolphin's commands, one a line, the last of which makes it count.
fn describe(controller: &Controller, text: &mut String) {
    text.clear();
    for (bits, name) in BUTTONS {
        let verb = if controller.buttons & bits != 0 { "PRESS" } else { "RELEASE" };
        let _ = writeln!(text, "{verb} {name}");
    }
    let [[x, y], [c_x, c_y]] = [controller.main_stick, controller.c_stick].map(|axes| axes.map(axis));
    let _ = write!(text, "SET MAIN {x:.4} {y:.4}\nSET C {c_x:.4} {c_y:.4}\nSET L {:.4}\nSET R 0\nFLUSH\n", shoulder(controller.shoulder));
}

/// Dolphin spreads an axis over 254 steps and rounds down; the game takes 80 steps from the middle as all the way. A tenth of a step keeps the
/// rounding from losing one.
fn axis(value: f32) -> f32 {
    let steps = (value.clamp(-1.0, 1.0) * 80.0).round();
    if steps == 0.0 { 0.5 } else { 0.5 + (steps + 0.1) / 254.0 }
}

/// A shoulder has 255 steps, of which the game takes 140 as all the way.
fn shoulder(value: f32) -> f32 {
    let steps = (value.clamp(0.0, 1.0) * 140.0).round();
    if steps == 0.0 { 0.0 } else { (steps + 0.1) / 255.0 }
}

/// A controller as its commands leave it.
#[derive(Debug, Default)]
pub struct Commands {
    state: Controller,
}

impl Commands {
    /// Takes a line; the state, if that makes it count.
    ///
    /// # Errors
    /// If Dolphin would not know the line.
    pub fn take(&mut self, line: &str) -> Result<Option<Controller>, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let unknown = || format!("no command of a controller: {line:?}");
        let button = |name: &str| BUTTONS.iter().find(|(_, known)| *known == name).map(|(bits, _)| *bits).ok_or_else(unknown);
        let number = |text: &str| text.parse::<f32>().ok().filter(|x| (0.0..=1.0).contains(x)).ok_or_else(unknown);
        // The inverse of what is written: Melee's value of the steps that Dolphin makes of it.
        let axis = |x: f32| ((x - 0.5) * 254.0).floor().clamp(-80.0, 80.0) / 80.0;
        match words[..] {
            ["PRESS", name] => self.state.buttons |= button(name)?,
            ["RELEASE", name] => self.state.buttons &= !button(name)?,
            ["SET", "MAIN", x, y] => self.state.main_stick = [axis(number(x)?), axis(number(y)?)],
            ["SET", "C", x, y] => self.state.c_stick = [axis(number(x)?), axis(number(y)?)],
            ["SET", "L", x] => self.state.shoulder = (number(x)? * 255.0).floor().min(140.0) / 140.0,
            ["SET", "R", x] => drop(number(x)?),
            ["FLUSH"] => return Ok(Some(self.state)),
            _ => return Err(unknown()),
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::actions::{ACTION, Action, COMPONENTS};

    /// Every class of every component comes through the pipe's text and Dolphin's rounding as the class that was chosen.
    #[test]
    fn what_is_chosen_is_what_the_game_reads() {
        let mut text = String::new();
        for component in 0..ACTION {
            for class in 0..COMPONENTS[component].classes {
                let mut classes = Action::default().classes();
                classes[component] = class;
                let action = Action::new(classes).unwrap();
                describe(&action.to_controller(), &mut text);
                assert!(text.len() < 512, "{} bytes: POSIX lets a pipe tear what is longer", text.len());
                let mut commands = Commands::default();
                let states: Vec<Controller> = text.lines().filter_map(|line| commands.take(line).unwrap()).collect();
                assert_eq!(states.len(), 1);
                assert_eq!(Action::from_controller(&states[0]), action);
            }
        }
    }

    #[test]
    fn other_commands_are_refused() {
        for line in ["", "PRESS", "PRESS Q", "SET MAIN 0.5", "SET MAIN 2 0", "SET L x", "HOLD A"] {
            assert!(Commands::default().take(line).unwrap_err().contains("no command"), "{line}");
        }
    }
}

//! A scene in the terminal: two pixels in a character, one above the other, and typed moves.

use super::raster::Raster;
use super::show::Show;
use super::{Limits, Next, person};
use anyhow::Result;
use candle_envs::{Color, Scene, Shape};
use candle_models::Error;
use console::Term;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Write as _;
use std::io::{self, BufRead, ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Characters of a line and lines, where nobody says how many there are.
const SIZE: [usize; 2] = [80, 24];
/// Lines below a picture: how it stands, and what a search found.
const LINES: usize = 2;
/// How long the end of an episode is to be seen.
const END: Duration = Duration::from_millis(1500);
/// How long it takes at most until an interruption is noticed.
const NOTICED: Duration = Duration::from_millis(50);

/// The cursor, hidden as long as this lives.
struct Hidden;

impl Hidden {
    fn new() -> Self {
        // A terminal that is gone has no cursor.
        let _ = Term::stdout().hide_cursor();
        Self
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = Term::stdout().show_cursor();
    }
}

/// Shows frame after frame: in place and as fast as the environment is where somebody sees it, otherwise one below the other.
pub fn watch(show: &mut Show, limits: Limits, seen: bool) -> Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    let _hidden = if seen {
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, stop.clone())?;
        }
        Some(Hidden::new())
    } else {
        None
    };
    let (mut above, mut due) = (0, Instant::now());
    limits.over(show, |show| {
        let picture = picture(&show.scene(), &show.marks(), size(seen));
        let back = if seen && above > 0 { format!("\x1b[{above}A") } else { String::new() };
        above = picture.lines().count() + LINES;
        let (line, search) = (show.line(), show.search().unwrap_or_default());
        let columns = if seen { size(seen)[0] } else { usize::MAX };
        let mut text = format!("{back}{picture}");
        for line in [line, search] {
            // A line that is too long would be broken into two.
            text.extend(line.chars().take(columns));
            text += "\x1b[K\n";
        }
        if !print(&text)? {
            return Ok(Next::End);
        }
        if seen {
            due = Instant::now().max(due) + if show.ended() { END } else { Duration::from_secs_f32(1.0 / show.rate()) };
            while !stop.load(Ordering::Relaxed) && Instant::now() < due {
                std::thread::sleep(due.saturating_duration_since(Instant::now()).min(NOTICED));
            }
        }
        Ok(if stop.load(Ordering::Relaxed) { Next::End } else { Next::Step(None) })
    })
}

/// Plays a board game with somebody who types.
///
/// # Errors
/// [`Error::Config`] if it is no game of two in turn.
pub fn play(show: &mut Show, limits: Limits) -> Result<()> {
    if show.spec().players != 2 {
        let reason = format!("{} is not played by typed moves; the page of --web has keys", show.spec().name);
        return Err(Error::config("--play", reason).into());
    }
    show.begin(Some(0))?;
    let (mut lines, mut games) = (io::stdin().lock().lines(), 0);
    limits.over(show, |show| {
        if show.is_new() {
            if games > 0 {
                show.change_sides();
            }
            games += 1;
        }
        // Before the other moves there is nothing new to be seen; what its search found is told, what it would find for the person is not.
        if !show.waits() && !show.ended() {
            let told = show.search().map(|line| line + "\n").unwrap_or_default();
            return Ok(if print(&told)? { Next::Step(None) } else { Next::End });
        }
        let mut text = format!("{}{}\n", picture(&show.scene(), &[], size(true)), show.line());
        loop {
            if show.waits() {
                let _ = write!(text, "your move, 1 to {}, or q: ", show.legal().len());
            }
            if !print(&text)? {
                return Ok(Next::End);
            }
            if !show.waits() {
                return Ok(Next::Step(None));
            }
            let Some(line) = lines.next().transpose()? else { return Ok(Next::End) };
            match person::typed(&line, show.legal()) {
                _ if line.trim().eq_ignore_ascii_case("q") => return Ok(Next::End),
                Ok(hand) => return Ok(Next::Step(Some(hand))),
                Err(why) => text = format!("{why}\n"),
            }
        }
    })
}

/// Prints; false where nobody reads any more.
fn print(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        printed => printed.map(|()| true),
    }
}

/// Characters of a line, and lines.
fn size(seen: bool) -> [usize; 2] {
    let found = if seen { Term::stdout().size_checked() } else { None };
    found.map_or(SIZE, |(rows, columns)| [columns.into(), rows.into()])
}

/// A scene and what is marked on it as lines of characters, whose texts stay texts.
pub fn picture(scene: &Scene, marks: &[Shape], [columns, rows]: [usize; 2]) -> String {
    let mut raster = Raster::new(scene, [columns.max(1), 2 * rows.saturating_sub(LINES + 1).max(1)]);
    let mut letters = vec![None; raster.width * raster.height.div_ceil(2)];
    for shape in scene.shapes.iter().chain(marks) {
        let Shape::Text { x, y, size, text, color } = shape else {
            raster.draw(shape);
            continue;
        };
        let (left, middle) = ((x * raster.scale).round() as usize, ((y - size / 2.0) * raster.scale / 2.0) as usize);
        for (at, letter) in (left..raster.width).zip(text.chars()) {
            if let Some(cell) = letters.get_mut(middle * raster.width + at) {
                *cell = Some((letter, *color));
            }
        }
    }
    let mut lines = String::new();
    for (row, letters) in letters.chunks(raster.width).enumerate() {
        let mut last = None;
        for (x, letter) in letters.iter().enumerate() {
            let (upper, lower) = (raster.at(x, 2 * row), raster.at(x, 2 * row + 1));
            let (letter, front) = letter.unwrap_or(('\u{2580}', upper));
            if last != Some((front, lower)) {
                last = Some((front, lower));
                paint(&mut lines, front, lower);
            }
            lines.push(letter);
        }
        lines += "\x1b[0m\x1b[K\n";
    }
    lines
}

/// Colours of what follows.
fn paint(line: &mut String, front: Color, back: Color) {
    let ([r, g, b], [r2, g2, b2]) = (front, back);
    // Writing to a string cannot fail.
    let _ = write!(line, "\x1b[38;2;{r};{g};{b};48;2;{r2};{g2};{b2}m");
}

//! A replay to look at, with what a policy would have done: one page that needs nothing beside itself.
//!
//! Frames are packed by column, as the bytes of little-endian numbers in base64: a page of an eight-minute game has some 3 MB. What the
//! page says, its script makes of the data, which is text wherever it comes from a replay.

mod stages;
#[cfg(test)]
mod tests;

use super::replays::Decision;
use super::{Bundle, Options};
use crate::Error;
use crate::families::policy::PolicyConfig;
use crate::families::policy::actions::{Action, BUTTONS, COMPONENTS, GROUP_NAMES, GROUPS};
use crate::families::policy::calibration::{Bin, Calibration, expected_error};
use crate::families::policy::embedding::ACTION_CATEGORIES;
use crate::families::policy::game::{self, Fighter, Frame, Game, STAGES};
use crate::families::policy::replay;
use crate::files::write_atomic;
use crate::html;
use crate::infer::Failed;
use anyhow::{Result, anyhow};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytemuck::NoUninit;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// Parts of a game unit, and of a percent, that positions and damage are kept in: 16 bits reach beyond every blast zone.
const PARTS: f32 = 64.0;
/// Thousandths of a nat; what is less likely than 16 bits of them is shown as their end.
const MILLI: f32 = 1000.0;

/// Of action states that the policy's categories leave out: coming down at the start of a game, and what each fighter has of its own.
const OTHER_STATES: [(&str, u16, u16); 2] = [("entry", 322, 324), ("special move", 341, u16::MAX)];

/// Whether that place is one page, not a folder of pages.
pub fn is_file(place: &Path) -> bool {
    place.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("html")) && !place.is_dir()
}

/// Where pages go.
pub struct Pages {
    place: PathBuf,
    /// Names of the pages written to a folder.
    written: BTreeSet<PathBuf>,
    bytes: u64,
    /// What every page says of the policy.
    model: Value,
}

impl Pages {
    /// Refuses a place that cannot be written to before anything is computed.
    pub fn new(place: &Path, bundle: &Bundle, options: &Options) -> Result<Self> {
        let io = |e| Failed::from(Error::io(place)(e));
        if is_file(place) {
            drop(crate::files::AtomicFile::create(place).map_err(Failed::from)?);
        } else {
            fs::create_dir_all(place).map_err(io)?;
        }
        let full = fs::canonicalize(bundle.dir()).unwrap_or_else(|_| bundle.dir().to_owned());
        let model = json!({
            "name": full.file_name().map(|name| name.to_string_lossy()),
            "delay": bundle.config::<PolicyConfig>()?.delay,
            "seed": options.choosing.sample.then(|| options.choosing.seed.unwrap_or_default()),
            "plays_like": options.choosing.watched.name,
        });
        Ok(Self { place: place.to_owned(), written: BTreeSet::new(), bytes: 0, model })
    }

    /// Writes the page of a replay.
    pub fn write(&mut self, path: &Path, recording: &Recording) -> Result<()> {
        let page = recording.html(path, &self.model)?;
        let file = self.file(path);
        write_atomic(&file, page.as_bytes()).map_err(Failed::from)?;
        self.bytes += page.len() as u64;
        self.written.insert(file);
        Ok(())
    }

    /// In a folder a page has its replay's name, with a number behind it if another replay of that name had it before.
    fn file(&self, path: &Path) -> PathBuf {
        if is_file(&self.place) {
            return self.place.clone();
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let name = |n: usize| if n == 1 { format!("{stem}.html") } else { format!("{stem}-{n}.html") };
        let mut names = (1..).map(|n| self.place.join(name(n)));
        names.find(|file| !self.written.contains(file)).unwrap_or_default()
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, megabytes) = (self.place.display(), self.bytes as f64 / 1e6);
        match self.written.len() {
            1 if is_file(&self.place) => write!(f, "page: {place} ({megabytes:.1} MB)"),
            n => write!(f, "pages of {n} replays in {place} ({megabytes:.1} MB)"),
        }
    }
}

/// A game, and what was decided in it.
pub struct Recording {
    game: Game,
    /// By player.
    decided: [Option<Decided>; 2],
}

/// What one player did and the policy chose, from the first frame that could be predicted to the last.
#[derive(Default)]
struct Decided {
    /// The place of that frame in the replay.
    first: usize,
    recorded: Vec<[u8; ACTION_BYTES]>,
    chosen: Vec<[u8; ACTION_BYTES]>,
    nats: Vec<[u16; GROUPS]>,
    calibration: Calibration,
}

/// The buttons as bits, then a byte for each other component.
const ACTION_BYTES: usize = GROUPS;

fn packed(action: &Action) -> [u8; ACTION_BYTES] {
    let classes = action.classes();
    let mut bytes = [0; ACTION_BYTES];
    bytes[0] = (0..BUTTONS).fold(0, |bits, button| bits | classes[button] << button);
    bytes[1..].copy_from_slice(&classes[BUTTONS..]);
    bytes
}

impl Recording {
    /// The game of a replay, before anything is decided.
    pub fn new(path: &Path) -> Result<Self> {
        Ok(Self { game: replay::read(path)?, decided: [None, None] })
    }

    /// Takes the next decision of its player.
    pub fn add(&mut self, decision: &Decision) -> Result<()> {
        let player = self.game.players.iter().position(|player| player.port + 1 == decision.port);
        let player = player.ok_or_else(|| anyhow!("nobody plays on port {}", decision.port))?;
        let first = decision.frame;
        let decided = self.decided[player].get_or_insert_with(|| Decided { first, ..Decided::default() });
        decided.recorded.push(packed(&decision.recorded));
        decided.chosen.push(packed(&decision.chosen));
        decided.calibration.add(decision.logits, &decision.recorded);
        decided.nats.push(decision.nll.map(|nats| (nats * MILLI).round() as u16));
        Ok(())
    }

    fn html(&self, path: &Path, model: &Value) -> Result<String> {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        let mut page = html::head(&format!("{file}: replay"), include_str!("page.css"));
        page.push_str(include_str!("body.html"));
        page.push_str(&html::data("replay", &self.json(&file, model))?);
        page.push_str(concat!("<script>\n", include_str!("page.js"), "</script>\n</body>\n</html>\n"));
        Ok(page)
    }

    fn json(&self, file: &str, model: &Value) -> Value {
        let Game { stage, version: (major, minor, patch), players, frames, incomplete, .. } = &self.game;
        let name = STAGES.iter().find(|(id, ..)| id == stage).map(|(_, name, _)| name);
        let characters: Vec<_> = (0..=u8::MAX).map_while(game::character_name).collect();
        let dots: Vec<_> = frames.iter().map(dots).collect();
        let every: Vec<Dot> = dots.concat();
        json!({
            "file": file,
            "model": model,
            "version": format!("{major}.{minor}.{patch}"),
            "incomplete": incomplete,
            "stage": { "name": name, "shape": stages::stage(*stage) },
            "characters": characters,
            "states": ACTION_CATEGORIES.iter().chain(&OTHER_STATES).collect::<Vec<_>>(),
            "buttons": COMPONENTS[..BUTTONS].iter().map(|component| component.name).collect::<Vec<_>>(),
            "groups": GROUP_NAMES,
            "parts": PARTS,
            "ids": column("Int32", frames, |frame| frame.id),
            "players": (0..2).map(|player| json!({
                "port": players[player].port + 1,
                "name": players[player].name,
                "code": players[player].code,
                "computer": players[player].computer,
                "frames": fighters(frames, player),
                "decided": self.decided[player].as_ref().map(Decided::json),
            })).collect::<Vec<_>>(),
            "dots": {
                "count": column("Uint8", &dots, |dots| dots.len() as u8),
                "owner": column("Uint8", &every, |dot| dot.owner),
                "x": column("Int16", &every, |dot| parts(dot.position[0])),
                "y": column("Int16", &every, |dot| parts(dot.position[1])),
            },
        })
    }
}

impl Decided {
    fn json(&self) -> Value {
        json!({
            "first": self.first,
            "recorded": column("Uint8", &self.recorded, |action| *action),
            "chosen": column("Uint8", &self.chosen, |action| *action),
            "nats": column("Uint16", &self.nats, |nats| *nats),
            "calibration": calibration(&self.calibration),
        })
    }
}

/// Frames, sum of probabilities and presses of every bin, of each button and together, with their errors.
fn calibration(calibration: &Calibration) -> Value {
    let kind = |bins: &[Bin]| {
        let rows: Vec<_> = bins.iter().map(|bin| json!([bin.frames, bin.probability, bin.pressed])).collect();
        json!({ "error": expected_error(bins), "bins": rows })
    };
    json!({ "all": kind(&calibration.all()), "buttons": (0..BUTTONS).map(|button| kind(calibration.button(button))).collect::<Vec<_>>() })
}

/// Numbers of that kind of array in the page's script, a value or several of each item.
fn column<I, T: NoUninit>(kind: &str, items: &[I], value: impl Fn(&I) -> T) -> Value {
    let values: Vec<T> = items.iter().map(value).collect();
    json!({ "kind": kind, "data": STANDARD.encode(bytemuck::cast_slice::<T, u8>(&values)) })
}

fn parts(value: f32) -> i16 {
    (value * PARTS).round() as i16
}

/// One fighter by columns.
fn fighters(frames: &[Frame], player: usize) -> Value {
    let column = |kind: &str, value: &dyn Fn(&Fighter) -> i16| match kind {
        "Uint8" => column(kind, frames, |frame| value(&frame.players[player].fighter) as u8),
        _ => column(kind, frames, |frame| value(&frame.players[player].fighter)),
    };
    let flags = |f: &Fighter| {
        i16::from(f.on_ground) | i16::from(f.invulnerable) << 1 | i16::from(f.hitstun > 0.0) << 2 | i16::from(f.facing < 0.0) << 3
    };
    json!({
        "x": column("Int16", &|f| parts(f.position[0])),
        "y": column("Int16", &|f| parts(f.position[1])),
        // Damage is at most 999 in the game.
        "percent": column("Int16", &|f| (f.percent * 32.0).round() as i16),
        "state": column("Int16", &|f| f.action_state.min(i16::MAX as u16) as i16),
        "character": column("Uint8", &|f| f.character.into()),
        "stocks": column("Uint8", &|f| f.stocks.into()),
        "shield": column("Uint8", &|f| f.shield.clamp(0.0, 255.0).round() as i16),
        "flags": column("Uint8", &flags),
    })
}

/// Something small in the picture.
#[derive(Clone, Copy)]
struct Dot {
    /// Projectiles and items: the player, or 2; followers of the Ice Climbers: 4 and the player.
    owner: u8,
    position: [f32; 2],
}

fn dots(frame: &Frame) -> Vec<Dot> {
    let projectiles = frame.projectiles.iter().flatten().map(|p| Dot { owner: p.owner.unwrap_or(2), position: p.position });
    let followers =
        (0u8..).zip(&frame.players).filter_map(|(player, frame)| Some(Dot { owner: 4 + player, position: frame.nana?.position }));
    projectiles.chain(followers).collect()
}

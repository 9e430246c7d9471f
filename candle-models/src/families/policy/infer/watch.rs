//! Replays as a policy sees them: for every frame acted on, what each watched player knew and did.

use super::{Bundle, Watched};
use crate::Error;
use crate::engine::Runner;
use crate::families::policy::PolicyConfig;
use crate::families::policy::actions::{ACTION, Action};
use crate::families::policy::embedding::{Embedding, IDS, WIDTH};
use crate::families::policy::game::{self, Frame, Game};
use crate::families::policy::replay::Reader as ReplayReader;
use crate::random::Random;
use anyhow::{Result, anyhow};
use std::collections::VecDeque;
use std::io::{Read, Seek};
use std::path::Path;

/// Whom to watch, and how to show it to a policy. Memory does not grow with the replay.
pub struct Watch {
    embedding: Embedding,
    delay: usize,
    /// The player to imitate, by the policy's number; by default the one who plays.
    name: Option<usize>,
    port: Option<u8>,
}

/// The frame acted on.
#[derive(Clone, Copy)]
pub struct Moment {
    /// Its place in the replay.
    pub frame: usize,
    /// Its id.
    pub id: i32,
    /// What both players did in it and in the two frames before; in the second frame of a game the first counts twice.
    pub actions: [[Action; 2]; 3],
}

impl Moment {
    fn next(before: Option<Self>, frame: &Frame) -> Self {
        let actions = frame.players.map(|player| Action::from_controller(&player.controller));
        match before {
            None => Self { frame: 0, id: frame.id, actions: [actions; 3] },
            Some(Self { frame: last, actions: [a, b, _], .. }) => Self { frame: last + 1, id: frame.id, actions: [actions, a, b] },
        }
    }
}

/// Random numbers below zero: take the most likely class.
pub const GREEDY: [f32; ACTION] = [-1.0; ACTION];

/// The random numbers of a player's frame in the replay, or the game, of that name.
pub fn uniform(sampling: Option<Random>, name: &Path, port: u8, frame: usize) -> [f32; ACTION] {
    let mut uniform = GREEDY;
    if let Some(random) = sampling {
        let file = name.file_name().unwrap_or_default().to_string_lossy();
        random.stream(&file).at(u64::from(port)).fill_uniform((frame * ACTION) as u64, &mut uniform);
    }
    uniform
}

/// What a player knew.
pub struct Seen {
    /// The floats of the frame.
    pub features: [f32; WIDTH],
    /// Its ids.
    pub ids: [u32; IDS],
}

impl Seen {
    /// Fills a row of a policy's inputs: what was seen, the action before, the one that is given or to be chosen, and its random numbers.
    pub fn fill(&self, runner: &mut Runner, row: usize, previous: &Action, wanted: &[u32; ACTION], uniform: &[f32; ACTION]) -> Result<()> {
        runner.floats_mut("features", row)?.copy_from_slice(&self.features);
        runner.indices_mut("ids", row)?.copy_from_slice(&self.ids);
        runner.indices_mut("previous_action", row)?.copy_from_slice(&previous.to_ids());
        runner.indices_mut("action", row)?.copy_from_slice(wanted);
        runner.floats_mut("uniform", row)?.copy_from_slice(uniform);
        Ok(())
    }
}

/// Where moments go: the frame seen, the watched players, the frame acted on.
pub type Sink<'a> = dyn FnMut(&Game, &[usize], &Moment) -> Result<()> + 'a;

impl Watch {
    /// As the policy of a bundle sees replays.
    pub fn new(bundle: &Bundle, options: &Watched) -> Result<Self> {
        let config: PolicyConfig = bundle.config()?;
        let embedding = Embedding::new(&config.names)?;
        let name = options.name.as_deref().map(|name| embedding.name_index(name).ok_or_else(|| unknown_name(bundle, name, &config.names)));
        Ok(Self { embedding, delay: config.delay, name: name.transpose()?, port: options.port })
    }

    /// How many frames of a replay are acted on.
    pub fn frames(&self, path: &Path) -> Result<usize> {
        Ok(ReplayReader::open(path)?.count().saturating_sub(self.delay + 1))
    }

    /// Frames between the last one seen and the one acted on.
    pub fn delay(&self) -> usize {
        self.delay
    }

    /// The number of an acted frame among those.
    pub fn step(&self, now: &Moment) -> usize {
        now.frame - self.delay - 1
    }

    /// Hands out the moments of a replay; tells its frames and, of a damaged one, what is wrong with it.
    pub fn replay<R: Read + Seek>(&self, path: &Path, mut reader: ReplayReader<R>, sink: &mut Sink) -> Result<(usize, Option<String>)> {
        let mut view = Game { frames: vec![Frame::default()], ..reader.game().clone() };
        let players = self.watched(path, &view)?;
        // From the frame seen over those of the delay to the one acted on.
        let mut window: VecDeque<Frame> = VecDeque::with_capacity(self.delay + 2);
        let mut moment: Option<Moment> = None;
        let mut count = 0;
        for frame in reader.by_ref() {
            frame.check().map_err(|e| Error::file(path, format!("frame {}: {e}", frame.id)))?;
            window.push_back(frame);
            let now = Moment::next(moment, &frame);
            moment = Some(now);
            count += 1;
            if window.len() == self.delay + 2 {
                view.frames[0] = window[0];
                window.pop_front();
                sink(&view, &players, &now)?;
            }
        }
        if count < self.delay + 2 {
            let reason = format!("{count} frames, of which none can be predicted with a delay of {}", self.delay);
            return Err(Error::file(path, reason).into());
        }
        Ok((count, reader.game().incomplete.clone()))
    }

    /// [`players`](Self::players) of a file.
    pub fn watched(&self, path: &Path, game: &Game) -> Result<Vec<usize>> {
        Ok(self.players(game).map_err(|e| Error::file(path, e))?)
    }

    /// The players to watch, as places in the game: the human ones, or who plays on the port that was asked for.
    pub fn players(&self, game: &Game) -> crate::Result<Vec<usize>> {
        game::check_stage(game.stage)?;
        let Some(port) = self.port else {
            return Ok((0..game.players.len()).filter(|player| !game.players[*player].computer).collect());
        };
        let found = game.players.iter().position(|player| player.port + 1 == port);
        let [a, b] = game.players.each_ref().map(|player| player.port + 1);
        let nobody = || Error::Input(format!("nobody plays on port {port}: the players are on ports {a} and {b}"));
        let player = found.ok_or_else(nobody)?;
        if game.players[player].computer {
            return Err(Error::Input(format!("the computer plays on port {port}")));
        }
        Ok(vec![player])
    }

    /// What a player of the frame seen knew.
    pub fn see(&self, view: &Game, player: usize) -> Result<Seen> {
        let name = self.name.or_else(|| self.embedding.name_index(&view.players[player].name));
        let mut seen = Seen { features: [0.0; WIDTH], ids: [0; IDS] };
        self.embedding.encode(view, 1, player, name, &mut seen.features, &mut seen.ids)?;
        Ok(seen)
    }
}

/// The stage and who plays, for the eye.
pub fn describe(game: &Game) -> String {
    let stage = game::STAGES.iter().find(|(id, ..)| *id == game.stage).map_or("unknown stage", |(_, name, _)| name);
    let player = |player: &game::Player| {
        let fighter = game::internal_character(player.character).and_then(game::character_name).unwrap_or("unknown fighter");
        let name = if player.name.is_empty() { String::new() } else { format!(" \"{}\"", player.name) };
        format!("port {}{name} {fighter}{}", player.port + 1, if player.computer { " (the computer)" } else { "" })
    };
    format!("{stage}, {}, {}", player(&game.players[0]), player(&game.players[1]))
}

fn unknown_name(bundle: &Bundle, name: &str, known: &[String]) -> anyhow::Error {
    let known = if known.is_empty() { "no names".to_owned() } else { known.join(", ") };
    anyhow!("--name {name}: {} knows {known}", bundle.dir().display())
}

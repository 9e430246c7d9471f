//! Decisions frame by frame in one game, as its events arrive. A rollback takes the policy's state back to before the frames that are
//! played again, so that what is decided in the end is what the finished replay gives.

use super::super::watch::{GREEDY, Seen, Watch, describe, uniform};
use crate::engine::{Model, Placement, Runner};
use crate::families::policy::actions::{ACTION, Action, SAMPLE};
use crate::families::policy::embedding::{IDS, WIDTH};
use crate::families::policy::game::{Frame, Game};
use crate::families::policy::infer::Watched;
use crate::families::policy::replay::{Arrival, Arrivals};
use crate::infer::Call;
use crate::random::Random;
use crate::tensors::NamedTensors;
use anyhow::{Result, anyhow};
use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

/// A policy in live games, one after the other.
pub struct Live {
    watch: Watch,
    model: Arc<dyn Model>,
    place: Placement,
    runner: Runner,
    players: usize,
    sampling: Option<Random>,
    /// Whether the watched player is the policy itself.
    acts: bool,
    game: Option<Current>,
}

/// The game that is on.
struct Current {
    name: Arc<str>,
    arrivals: Arrivals,
    /// Who plays where, with the frame seen.
    view: Game,
    players: Vec<usize>,
    /// The first frame, and the first in which something was decided.
    first: Option<i32>,
    decided: Option<i32>,
    /// Up to this frame nothing is rolled back.
    settled: i32,
    /// The furthest frame that was seen.
    furthest: i32,
    past: VecDeque<Past>,
}

/// A frame that may be needed again: for the delay, or because it may be rolled back.
struct Past {
    frame: Frame,
    /// What was chosen when it had arrived.
    chosen: Action,
    /// The policy's state before that.
    before: Option<NamedTensors>,
}

/// What one player is to do.
#[derive(Debug, Clone)]
pub struct Decision {
    /// The game's name.
    pub game: Arc<str>,
    /// The controller port, 1 to 4.
    pub port: u8,
    /// The id of the frame acted on.
    pub frame: i32,
    /// What to press in it.
    pub chosen: Action,
    /// What the policy expects of the game.
    pub value: f32,
}

/// What happened in the game.
pub enum Step {
    /// It started; in words, where and who plays.
    Started(String),
    /// A frame was seen.
    Seen {
        /// Whether the frame had been seen before.
        again: bool,
        /// What the watched players are to do, once there is something to go by.
        decisions: Vec<Decision>,
    },
    /// It is over.
    Ended,
}

impl Live {
    /// A policy that watches, or one that acts.
    pub fn new(call: &Call, (watched, sampling): (&Watched, Option<Random>), acts: bool) -> Result<Self> {
        let (model, place) = (call.opened.model().clone(), *call.place);
        let watch = Watch::new(&call.opened.bundle, watched)?;
        let players = if watched.port.is_some() { 1 } else { 2 };
        let runner = warm(&model, players, &place)?;
        Ok(Self { watch, model, place, runner, players, sampling, acts, game: None })
    }

    /// The next game; what is left of the one before is forgotten.
    pub fn begin(&mut self, name: &str) {
        self.game = Some(Current {
            name: name.into(),
            arrivals: Arrivals::default(),
            view: Game::default(),
            players: Vec::new(),
            first: None,
            decided: None,
            settled: i32::MIN,
            furthest: i32::MIN,
            past: VecDeque::new(),
        });
    }

    /// Gives the game up; its name, if it was not over.
    pub fn abandon(&mut self) -> Option<String> {
        self.game.take().map(|game| game.name.to_string())
    }

    /// Bytes of events.
    pub fn push(&mut self, bytes: &[u8]) {
        if let Some(game) = &mut self.game {
            game.arrivals.push(bytes);
        }
    }

    /// The next step of the game, `None` until more bytes are there.
    ///
    /// # Errors
    /// If the game is damaged, or none that a policy can play.
    pub fn next(&mut self) -> Result<Option<Step>> {
        let Some(game) = &mut self.game else { return Ok(None) };
        match game.arrivals.next()? {
            None => Ok(None),
            Some(Arrival::Start) => self.start().map(Some),
            Some(Arrival::Frame { frame, settled }) => self.see(frame, settled).map(Some),
            Some(Arrival::End) => {
                self.game = None;
                Ok(Some(Step::Ended))
            }
        }
    }

    /// Decides the last frame once more for nothing: between two frames other programs take the caches, and a pass over cold weights takes
    /// twice the time.
    ///
    /// # Errors
    /// As for a decision.
    pub fn rehearse(&mut self) -> Result<()> {
        if self.game.as_ref().is_some_and(|game| game.decided.is_some()) {
            let state = self.runner.save()?;
            self.runner.step(&[false; 2][..self.players])?;
            self.runner.restore(&state)?;
        }
        Ok(())
    }

    fn start(&mut self) -> Result<Step> {
        let Some(game) = &mut self.game else { return Ok(Step::Ended) };
        game.view = Game { frames: vec![Frame::default()], ..game.arrivals.game().clone() };
        game.players = self.watch.players(&game.view)?;
        if game.players.len() != self.players {
            self.runner = warm(&self.model, game.players.len(), &self.place)?;
            self.players = game.players.len();
        }
        Ok(Step::Started(format!("{}: {}", game.name, describe(&game.view))))
    }

    fn see(&mut self, frame: Frame, settled: i32) -> Result<Step> {
        frame.check()?;
        self.roll_back(frame.id)?;
        let Some(game) = &mut self.game else { return Ok(Step::Ended) };
        let again = frame.id <= game.furthest;
        game.furthest = game.furthest.max(frame.id);
        game.first.get_or_insert(frame.id);
        game.settled = game.settled.max(settled);
        game.past.push_back(Past { frame, chosen: Action::default(), before: None });
        let decisions = self.decide()?;
        if let Some(game) = &mut self.game {
            // The frame before a rollback is needed, and those that the delay looks back to from there.
            let oldest = game.settled.saturating_sub(self.watch.delay() as i32 + 1);
            while game.past.front().is_some_and(|past| past.frame.id < oldest) {
                game.past.pop_front();
            }
        }
        Ok(Step::Seen { again, decisions })
    }

    /// Takes the state back to before the frame with that id, if it has been seen.
    fn roll_back(&mut self, id: i32) -> Result<()> {
        let Some(game) = &mut self.game else { return Ok(()) };
        let Some(back) = game.past.iter().position(|past| past.frame.id >= id) else { return Ok(()) };
        if id <= game.settled {
            return Err(anyhow!("frame {id} comes again, but was settled"));
        }
        if let Some(before) = &game.past[back].before {
            self.runner.restore(before)?;
        }
        game.past.truncate(back);
        Ok(())
    }

    /// What the watched players are to do after the newest frame.
    fn decide(&mut self) -> Result<Vec<Decision>> {
        let Some(game) = &mut self.game else { return Ok(Vec::new()) };
        let delay = self.watch.delay();
        let newest = game.past.len() - 1;
        let id = game.past[newest].frame.id;
        // Who acts goes by the newest frame, and what it does comes the delay later. Who watches looks back to what a player had seen who
        // acts in the next frame.
        let (seen, acted) = if self.acts { (Some(newest), id + 1 + delay as i32) } else { (newest.checked_sub(delay), id + 1) };
        let Some(seen) = seen else { return Ok(Vec::new()) };
        game.view.frames[0] = game.past[seen].frame;
        let fresh = *game.decided.get_or_insert(id) == id;
        if !fresh && game.settled < id {
            game.past[newest].before = Some(self.runner.save()?);
        }
        let at = (acted - game.first.unwrap_or(id)) as usize;
        for (row, &player) in game.players.iter().enumerate() {
            let previous = match (self.acts && delay > 0, newest.checked_sub(1)) {
                (false, _) => Action::from_controller(&game.past[newest].frame.players[player].controller),
                (true, before) => before.map_or(Action::default(), |before| game.past[before].chosen),
            };
            let uniform = uniform(self.sampling, Path::new(&*game.name), game.view.players[player].port, at);
            self.watch.see(&game.view, player)?.fill(&mut self.runner, row, &previous, &[SAMPLE; ACTION], &uniform)?;
        }
        self.runner.step(&[fresh; 2][..self.players])?;
        let mut decisions = Vec::with_capacity(self.players);
        for (row, &player) in game.players.iter().enumerate() {
            let chosen = Action::from_ids(self.runner.indices("action", row)?)?;
            let (port, value) = (game.view.players[player].port + 1, self.runner.floats("value", row)?[0]);
            decisions.push(Decision { game: game.name.clone(), port, frame: acted, chosen, value });
        }
        game.past[newest].chosen = decisions.first().map_or(Action::default(), |decision| decision.chosen);
        Ok(decisions)
    }
}

/// A runner whose first pass is over: that one touches all of the memory.
fn warm(model: &Arc<dyn Model>, players: usize, place: &Placement) -> Result<Runner> {
    let mut runner = Runner::on(model.clone(), (players, 1), place)?;
    let seen = Seen { features: [0.0; WIDTH], ids: [0; IDS] };
    for row in 0..players {
        seen.fill(&mut runner, row, &Action::default(), &[SAMPLE; ACTION], &GREEDY)?;
    }
    runner.step(&[true; 2][..players])?;
    Ok(runner)
}

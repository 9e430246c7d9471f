//! What is watched: an environment, who acts in it, and the seat that a person may take.

use super::person::{self, Hand};
use crate::agent::ppo::acting::{Acting, Game, Manner, Player};
use crate::episodes::failed;
use crate::muzero::config::Search;
use crate::muzero::play::Planned;
use candle_core::Device;
use candle_envs::{Actions, Autoreset, Entry, Scene, Shape, Spec, VectorEnv};
use candle_models::bundle::Bundle;
use candle_models::engine::Model;
use candle_models::muzero::{MuZeroConfig, MuZeroFamily};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::{Family, Registry};
use candle_models::{Error, Result};
use std::fmt::Write;
use std::sync::Arc;

/// Who acts where no person does.
enum Mind {
    /// Anyone: every legal action is as likely as the others.
    Random,
    /// A network that is stepped frame by frame.
    Network { model: Arc<dyn Model>, acting: Box<Acting<Arc<Game>>>, choice: Manner },
    /// Networks to plan with.
    Search(Planned),
}

/// What a search found for the position that is to be seen.
struct Found {
    visits: Vec<u32>,
    /// What the actions are worth to the one who moves.
    values: Vec<f32>,
    value: f32,
}

/// How a bundle plays.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Address of everything random.
    pub seed: u64,
    /// How actions are chosen of what a network says.
    pub choice: Manner,
    /// Simulations of a search for each step.
    pub simulations: usize,
}

/// An environment that is played, step by step. What will be done next is known before it is: it can be looked at.
pub struct Show {
    entry: Entry,
    spec: Spec,
    envs: Box<dyn VectorEnv>,
    mind: Mind,
    seed: u64,
    /// The seat of the person, where there is one.
    person: Option<usize>,
    /// Games that began by [`Self::begin`], and steps of all of them.
    begun: u64,
    step: u64,
    /// What is done next where no person does.
    next: Actions,
    found: Option<Found>,
    episode: usize,
    steps: u32,
    /// Rewards of the episode; of a game of two those of the first player.
    total: f64,
}

impl Show {
    /// The beginning of a game in which a bundle acts, of any of those families; anyone without a bundle.
    ///
    /// # Errors
    /// If the bundle cannot be read or its network sees or does something else; if the environment fails.
    pub fn new<F: Family + ?Sized>(entry: Entry, bundle: Option<&Bundle>, families: &Registry<F>, options: Options) -> Result<Self> {
        let (spec, envs) = (entry.spec().clone(), entry.make(1, Autoreset::NextStep).map_err(failed)?);
        if envs.draw(0).is_none() {
            return Err(Error::Input(format!("{}: nobody here can draw it", spec.name)));
        }
        let mind = match bundle {
            None => Mind::Random,
            Some(bundle) if bundle.manifest().family == MuZeroFamily.name() => {
                let config: MuZeroConfig = bundle.config()?;
                let parameters = Params::stored(bundle.read_parameters(&MuZeroFamily.parameters(bundle)?)?, &Device::Cpu);
                Mind::Search(Planned::of(&spec, &config, &parameters, (1, (entry.rules)()), (Search::Gumbel, options.simulations))?)
            }
            Some(bundle) => {
                let model = families.load(bundle)?;
                Mind::Network { acting: acting(&model, &spec, 1)?, model, choice: options.choice }
            }
        };
        let next = Actions::default();
        let (seed, found) = (options.seed, None);
        let mut new =
            Self { entry, spec, envs, mind, seed, person: None, begun: 0, step: 0, next, found, episode: 1, steps: 0, total: 0.0 };
        new.begin(None)?;
        Ok(new)
    }

    /// Begins a game, with a person in a seat or with nobody.
    ///
    /// # Errors
    /// If there is no such seat, or the environment or a network fails.
    pub fn begin(&mut self, person: Option<usize>) -> Result<()> {
        let seats = self.seats();
        if let Some(seat) = person.filter(|seat| *seat >= seats.len()) {
            return Err(Error::Input(format!("{}: expected a seat from 0 to {}, found {seat}", self.spec.name, seats.len() - 1)));
        }
        let lanes = if self.spec.players == 1 && seats.len() == 2 && person.is_some() { 2 } else { 1 };
        if lanes != self.envs.lanes() {
            let other = if lanes == 2 { (self.entry.for_two)() } else { None };
            self.envs = other.map_or_else(|| self.entry.make(1, Autoreset::NextStep).map_err(failed), Ok)?;
        }
        if let Mind::Network { model, acting, .. } = &mut self.mind {
            *acting = self::acting(model, &self.spec, lanes)?;
        }
        self.person = person;
        self.episode += usize::from(self.steps > 0);
        self.envs.reset(self.seed.wrapping_add(self.begun)).map_err(failed)?;
        self.begun += 1;
        (self.steps, self.total) = (0, 0.0);
        self.think()
    }

    /// The seats that a person can take, by name.
    pub fn seats(&self) -> &'static [&'static str] {
        match (self.spec.players, &self.mind) {
            (2, _) => &["first", "second"],
            (_, Mind::Network { .. }) if (self.entry.for_two)().is_some() => &["Marth", "Fox"],
            _ => &["player"],
        }
    }

    /// The person's seat.
    pub fn person(&self) -> Option<usize> {
        self.person
    }

    /// Puts the person on the other side of a game of two that has just begun.
    pub fn change_sides(&mut self) {
        self.person = self.person.map(|seat| 1 - seat.min(1));
    }

    /// What is seen and done.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Steps in a second (Hz).
    pub fn rate(&self) -> f32 {
        self.entry.rate.max(0.01)
    }

    /// Whether the episode has ended: the next step only begins another.
    pub fn ended(&self) -> bool {
        let frame = self.envs.frame();
        frame.terminated[0] || frame.truncated[0]
    }

    /// Whether nobody has moved yet.
    pub fn is_new(&self) -> bool {
        self.envs.frame().first[0]
    }

    /// Whether the game goes on only when the person has moved.
    pub fn waits(&self) -> bool {
        self.spec.players == 2 && self.lane_of_person().is_some()
    }

    /// Which lane's action is the person's now.
    fn lane_of_person(&self) -> Option<usize> {
        let seat = self.person.filter(|_| !self.ended())?;
        match (self.envs.lanes(), self.spec.players) {
            (2, _) => Some(seat),
            (_, 2) => (usize::from(self.envs.frame().players[0]) == seat).then_some(0),
            _ => Some(0),
        }
    }

    /// Which classes of the first lane can be chosen.
    pub fn legal(&self) -> &[bool] {
        &self.envs.frame().legal[..self.spec.classes()]
    }

    /// A step, with what the person does where that is asked for.
    ///
    /// # Errors
    /// If the environment or a network fails, or the person's action is none of the environment's.
    pub fn step(&mut self, person: Option<&Hand>) -> Result<()> {
        let mut actions = std::mem::take(&mut self.next);
        if let (Some(lane), Some(hand)) = (self.lane_of_person(), person) {
            let (columns, numbers) = (self.spec.columns(), self.spec.numbers());
            if (hand.classes.len(), hand.numbers.len()) != (columns, numbers) {
                return Err(Error::tensor("action", format!("{columns} classes and {numbers} numbers"), "another action"));
            }
            actions.classes[lane * columns..][..columns].copy_from_slice(&hand.classes);
            actions.numbers[lane * numbers..][..numbers].copy_from_slice(&hand.numbers);
        }
        let second = self.envs.frame().players[0] == 1;
        let lane = self.shown();
        let frame = self.envs.step(&actions).map_err(failed)?;
        if frame.ignored[0] {
            (self.steps, self.total) = (0, 0.0);
            self.episode += 1;
        } else {
            let reward = f64::from(frame.rewards[lane]);
            self.steps += 1;
            self.total += if second { -reward } else { reward };
        }
        self.step += 1;
        self.think()
    }

    /// Decides what is done next.
    fn think(&mut self) -> Result<()> {
        let (frame, random) = (self.envs.frame(), Random::new(self.seed).stream("watch").at(self.step));
        self.found = None;
        if self.ended() {
            let lanes = self.envs.lanes();
            self.next = Actions { classes: vec![0; lanes * self.spec.columns()], numbers: vec![0.0; lanes * self.spec.numbers()] };
            return Ok(());
        }
        self.next = match &mut self.mind {
            Mind::Random => Actions::random(&self.spec, frame, random),
            Mind::Network { acting, choice, .. } => acting.choose(frame, *choice, |lane| random.at(lane as u64))?.actions,
            Mind::Search(planned) => {
                let plan = planned.look(frame)?;
                self.found = Some(Found { visits: plan.visits(0).to_vec(), values: plan.q(0).to_vec(), value: plan.value(0) });
                Actions::classes(vec![plan.action(0)])
            }
        };
        Ok(())
    }

    /// The lane from which it is looked at.
    fn shown(&self) -> usize {
        if self.envs.lanes() == 2 { self.person.unwrap_or(0) } else { 0 }
    }

    /// What the environment looks like now.
    pub fn scene(&self) -> Scene {
        self.envs.draw(self.shown()).unwrap_or_else(|| Scene::new(1.0, 1.0, [0; 3]))
    }

    /// What a search found, over the places of the moves: visits, and below them what the move is worth to the one who moves.
    pub fn marks(&self) -> Vec<Shape> {
        const INK: [u8; 3] = [20, 20, 20];
        let mut over = Scene::new(0.0, 0.0, INK);
        let Some(found) = &self.found else { return Vec::new() };
        for (class, (visits, value)) in found.visits.iter().zip(&found.values).enumerate().filter(|(_, (visits, _))| **visits > 0) {
            let Some([x, y]) = person::place(&self.spec, class) else { continue };
            for (text, down) in [(visits.to_string(), -0.04), (worth(*value), 0.2)] {
                let size = 0.16;
                // A letter of a font of equal widths is about 0.84 as wide as a capital is high.
                over.text([x - 0.42 * size * text.len() as f32, y + down], size, text, INK);
            }
        }
        over.shapes
    }

    /// How it stands, in a line.
    pub fn line(&self) -> String {
        let (frame, lane) = (self.envs.frame(), self.shown());
        let (name, episode, steps, total) = (&self.spec.name, self.episode, self.steps, self.total);
        let mut line = format!("{name}, episode {episode}, step {steps}: reward {:.2}, return {total:.2}", frame.rewards[lane]);
        let player = |who: usize| if self.person == Some(who) { "you" } else { ["the first", "the second"][who.min(1)] };
        // Writing to a string cannot fail.
        let _ = match (self.spec.players, self.ended()) {
            (2, true) if total == 0.0 => write!(line, "; a draw"),
            (2, true) => write!(line, "; won by {}", player(usize::from(total < 0.0))),
            (2, false) => write!(line, "; {} to move", player(usize::from(frame.players[0]))),
            (_, true) => write!(line, "; over"),
            _ => Ok(()),
        };
        line
    }

    /// What a search found, in a line.
    pub fn search(&self) -> Option<String> {
        let Found { visits, values, value } = self.found.as_ref()?;
        let mut line = format!("search: worth {};", worth(*value));
        for (class, (visits, value)) in visits.iter().zip(values).enumerate().filter(|(_, (visits, _))| **visits > 0) {
            let _ = write!(line, " {}: {visits} x {}", class + 1, worth(*value));
        }
        Some(line)
    }

    /// What the person who plays by keys does while those are held.
    ///
    /// # Errors
    /// If it is not played by keys.
    pub fn hand(&self, keys: &[String], last: Option<&Hand>) -> std::result::Result<Hand, String> {
        person::held(&self.spec, keys, last)
    }
}

/// A value in words; what is rounded to nothing has no sign of its own.
fn worth(value: f32) -> String {
    format!("{:+.2}", (100.0 * value).round() / 100.0 + 0.0)
}

fn acting(model: &Arc<dyn Model>, spec: &Spec, lanes: usize) -> Result<Box<Acting<Arc<Game>>>> {
    let game = Arc::new(Game::new(spec.clone()));
    game.check_actor(&**model)?;
    let player = Player::new(model.clone(), &game, lanes, None)?;
    Ok(Box::new(Acting::new(game, player, lanes, None)))
}

//! How good a player is in duels.

use super::{Bot, Duel, NAMES, TIME, chances};
use crate::Result;
use crate::engine::Runner;
use crate::families::policy::actions::{ACTION, Action};
use crate::families::policy::embedding::{Embedding, IDS, WIDTH};
use crate::interval::wilson;
use crate::random::Random;
use serde::Serialize;
use std::fmt;

/// Where a game is played, one after the other.
#[derive(Debug, Clone)]
pub struct Seat<O> {
    /// The game as it stands.
    pub duel: Duel<O>,
    /// Its number; the player is Marth in games of even numbers and Fox in the others.
    pub game: u32,
    /// Whether it has just begun: nothing of the game before is to be remembered.
    pub first: bool,
    /// Where chances come from: the same in both games of a pair.
    pub seed: u64,
    over: bool,
}

/// What came of many games.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Score {
    /// As Marth and as Fox.
    pub sides: [Side; 2],
}

/// What came of the games as one of the fighters.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Side {
    /// How many there were.
    pub games: u32,
    /// Games won.
    pub wins: u32,
    /// Games that neither won.
    pub draws: u32,
    /// Frames of all games.
    pub frames: u64,
    /// Stocks that the opponent lost, and the player.
    pub stocks: [u32; 2],
    /// Damage that the opponent took, and the player, in percent.
    pub damage: [f64; 2],
}

impl Score {
    /// Games of both sides.
    pub fn games(&self) -> u32 {
        self.sides.iter().map(|side| side.games).sum()
    }

    /// The share of the points: a win is one, a draw half of one.
    pub fn share(&self) -> f64 {
        self.points() / f64::from(self.games().max(1))
    }

    /// Between which shares the true one lies, with a confidence of 95 %.
    pub fn interval(&self) -> [f64; 2] {
        wilson(self.points(), self.games() as usize)
    }

    fn points(&self) -> f64 {
        self.sides.iter().map(Side::points).sum()
    }
}

impl Side {
    /// The share of the points: a win is one, a draw half of one.
    pub fn share(&self) -> f64 {
        self.points() / f64::from(self.games.max(1))
    }

    fn points(&self) -> f64 {
        f64::from(self.wins) + 0.5 * f64::from(self.draws)
    }
}

/// Three lines: the share of the points with its interval, and what came of the games of each side, a game.
impl fmt::Display for Score {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [low, high] = self.interval();
        write!(f, "{} games: {:.3} of the points (95 %: {low:.3} to {high:.3})", self.games(), self.share())?;
        for (name, side) in NAMES.into_iter().zip(&self.sides) {
            let per = |sum: f64| sum / f64::from(side.games.max(1));
            let ([stocks, lost], [dealt, taken]) = (side.stocks.map(|n| per(n.into())), side.damage.map(per));
            write!(
                f,
                "\nas {name:5}: {} of {} games won, {} drawn; a game: {:.0} frames, stocks {stocks:.2} to {lost:.2}, damage {dealt:.0} to {taken:.0} %",
                side.wins,
                side.games,
                side.draws,
                per(side.frames as f64),
            )?;
        }
        Ok(())
    }
}

/// Plays `games` games, half as Marth and half as Fox, `seats` at a time.
///
/// In each frame `player` sees all seats and writes what it does in each; there it finds what it did before. In pairs of games the opponent has
/// the same chances on either side. A seat without another game stays as it is, and what is done there does not matter.
///
/// # Errors
/// Those of `player`.
pub fn score<O: Bot, E>(
    games: u32,
    seats: usize,
    seed: u64,
    mut player: impl FnMut(&[Seat<O>], &mut [Action]) -> Result<(), E>,
) -> Result<Score, E> {
    let mut next = 0..games;
    let mut seats: Vec<Seat<O>> = next.by_ref().take(seats.max(1)).map(|game| Seat::new(game, seed)).collect();
    let mut actions = vec![Action::default(); seats.len()];
    let mut score = Score::default();
    while seats.iter().any(|seat| !seat.over) {
        player(&seats, &mut actions)?;
        for (seat, action) in seats.iter_mut().zip(&mut actions).filter(|(seat, _)| !seat.over) {
            seat.play(action, &mut score);
            if seat.over
                && let Some(game) = next.next()
            {
                (*seat, *action) = (Seat::new(game, seed), Action::default());
            }
        }
    }
    Ok(score)
}

impl<O: Bot> Seat<O> {
    fn new(game: u32, seed: u64) -> Self {
        let seed = seed.wrapping_add(u64::from(game / 2));
        Self { duel: Duel::new((game % 2) as usize, seed), game, first: true, seed, over: false }
    }

    /// A frame, and what it changes in the score.
    fn play(&mut self, action: &Action, score: &mut Score) {
        let exchange = self.duel.play(action.to_controller());
        let side = &mut score.sides[(self.game % 2) as usize];
        let ([taken, dealt], [own, other]) = (exchange.damage, exchange.lost);
        for (sum, damage) in side.damage.iter_mut().zip([dealt, taken]) {
            *sum += f64::from(damage);
        }
        for (sum, lost) in side.stocks.iter_mut().zip([other, own]) {
            *sum += u32::from(lost);
        }
        side.frames += 1;
        let fight = self.duel.fight();
        (self.first, self.over) = (false, fight.is_over() || fight.frame() + 1 >= TIME as i32);
        if self.over {
            side.games += 1;
            side.wins += u32::from(fight.winner() == Some(self.duel.side()));
            side.draws += u32::from(fight.winner().is_none());
        }
    }
}

/// A bot as a player of [`score`].
pub fn bots<B: Bot, O: Bot>() -> impl FnMut(&[Seat<O>], &mut [Action]) -> Result<()> {
    let mut bots: Vec<B> = Vec::new();
    move |seats, actions| {
        for (i, (seat, action)) in seats.iter().zip(actions).enumerate() {
            if seat.first {
                let bot = B::new(chances(seat.seed, seat.duel.side()));
                if i < bots.len() { bots[i] = bot } else { bots.push(bot) }
            }
            let [own, other] = seat.duel.fighters();
            *action = Action::from_controller(&bots[i].decide(seat.duel.fight().frame() + 1, &own, &other));
        }
        Ok(())
    }
}

/// A network as a player of [`score`]: a game policy without delay, or an agent with the inputs and components of a [`Duel`]. It draws its actions
/// with the numbers of `random`, and without any takes the most likely ones.
///
/// # Errors
/// In the first frame if the network has other inputs, or the runner another number of rows than there are seats.
pub fn policy<O: Bot>(mut runner: Runner, random: Option<Random>) -> impl FnMut(&[Seat<O>], &mut [Action]) -> Result<()> {
    let embedding = Embedding::default();
    let remembers = runner.signature().inputs.iter().any(|input| input.name == "previous_action");
    let (mut features, mut ids, mut uniform) = (Vec::new(), Vec::new(), Vec::new());
    move |seats, actions| {
        features.resize(seats.len() * WIDTH, 0.0);
        ids.resize(seats.len() * IDS, 0);
        // A number below zero asks for the most likely class.
        uniform.resize(seats.len() * ACTION, -1.0);
        let rows = features.chunks_exact_mut(WIDTH).zip(ids.chunks_exact_mut(IDS)).zip(uniform.chunks_exact_mut(ACTION));
        for (seat, ((features, ids), uniform)) in seats.iter().zip(rows) {
            embedding.observe(&seat.duel.seen(), None, features, ids)?;
            if let Some(random) = random {
                let frame = (seat.duel.fight().frame() + 1) as u64;
                random.at(u64::from(seat.game)).fill_uniform(frame * ACTION as u64, uniform);
            }
        }
        runner.set_f32("features", &features)?;
        runner.set_u32("ids", &ids)?;
        runner.set_f32("uniform", &uniform)?;
        if remembers {
            let previous: Vec<u32> = actions.iter().flat_map(Action::to_ids).collect();
            runner.set_u32("previous_action", &previous)?;
        }
        let resets: Vec<bool> = seats.iter().map(|seat| seat.first).collect();
        runner.step(&resets)?;
        for (row, action) in actions.iter_mut().enumerate() {
            *action = Action::from_ids(runner.indices("action", row)?)?;
        }
        Ok(())
    }
}

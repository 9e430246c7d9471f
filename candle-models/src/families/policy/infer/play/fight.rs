//! `candle-infer play --against`: a policy fights a bot in the simulation, game after game.

use crate::Error;
use crate::engine::{Histogram, Runner};
use crate::families::policy::PolicyConfig;
use crate::families::policy::actions::Action;
use crate::families::policy::game::Fighter;
use crate::families::policy::infer::replays::short;
use crate::families::policy::simulation::{Bot, Duel, Keys, NAMES, Punish, Script, policy, score};
use crate::infer::{Call, line, percentiles};
use crate::random::Random;
use anyhow::Result;
use clap::ValueEnum;
use std::time::Instant;

/// Whom a policy fights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Against {
    /// The one whose games are simulated recordings.
    Script,
    /// One that waits behind its shield and strikes back.
    Punish,
    /// One that presses anything.
    Keys,
}

impl Against {
    fn describe(self) -> &'static str {
        match self {
            Self::Script => "the script",
            Self::Punish => "the bot that waits and punishes",
            Self::Keys => "the bot that presses anything",
        }
    }
}

/// How many games, and where their chances come from.
pub struct Games {
    pub count: u32,
    pub seed: u64,
    /// Where the actions of the policy are drawn; nothing takes the most likely ones.
    pub sampling: Option<Random>,
}

/// Plays the games, prints frames of the first one and what came of all.
pub fn fight(call: &Call, against: Against, games: &Games) -> Result<()> {
    match against {
        Against::Script => fight_bot::<Script>(call, against, games),
        Against::Punish => fight_bot::<Punish>(call, against, games),
        Against::Keys => fight_bot::<Keys>(call, against, games),
    }
}

fn fight_bot<O: Bot>(call: &Call, against: Against, games: &Games) -> Result<()> {
    let (bundle, other) = (&call.opened.bundle, against.describe());
    let delay = bundle.config::<PolicyConfig>()?.delay;
    if delay > 0 {
        let reason = format!("the policy acts on what it saw {delay} frames before; a simulated fight is played without delay");
        return Err(Error::file(bundle.dir(), reason).into());
    }
    let mut player = policy(Runner::on(call.opened.model().clone(), (1, 1), call.place)?, games.sampling);
    let &Games { count, seed, .. } = games;
    let (name, times, every) = (bundle.dir().display(), Histogram::default(), call.every.unwrap_or(usize::MAX));
    line(format_args!("{name} fights {other} in the SIMULATION (not Melee), {count} games from seed {seed}; frames of the first one:"))?;
    line(format_args!("{:>7}  {:<20}  {:<20}  pressed by the policy", "frame", "policy (o: a stock)", "bot"))?;
    // One game after the other, so that a pass is one decision of one player, as in a live game.
    let score = score::<O, anyhow::Error>(count, 1, seed, |seats, actions| {
        let start = Instant::now();
        player(seats, actions)?;
        times.record(start.elapsed());
        let (seat, action) = (&seats[0], &actions[0]);
        let acted = seat.duel.fight().frame() + 1;
        if seat.game == 0 && usize::try_from(acted).is_ok_and(|frame| frame.is_multiple_of(every)) {
            line(frame_line(acted, &seat.duel, action))?;
        }
        Ok(())
    })?;
    line(score)?;
    let (time, threads) = (percentiles(&times), call.place.threads);
    line(format_args!("time per frame of play: {time} (one player's observation and one pass of one row; threads: {threads})"))?;
    if cfg!(debug_assertions) {
        line("this program was built for development: with `--release` it is faster")?;
    }
    Ok(())
}

/// How both stood before a frame, and what the policy pressed in it.
fn frame_line<O: Bot>(frame: i32, duel: &Duel<O>, action: &Action) -> String {
    let stands =
        |player: usize, fighter: &Fighter| format!("{} {:.0}% {}", NAMES[player], fighter.percent, "o".repeat(fighter.stocks.into()));
    let (side, [own, other]) = (duel.side(), duel.fighters());
    format!("{frame:>7}  {:<20}  {:<20}  {}", stands(side, &own), stands(1 - side, &other), short(action))
}

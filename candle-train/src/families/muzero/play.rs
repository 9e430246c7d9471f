//! Playing with a search, many environments side by side: to learn from it, and to measure.

use super::config::{EvaluationConfig, Search};
use super::replay::{End, Horizon, Position, Replay, Rest};
use crate::episodes::{SEEDS, environments, failed, one_each};
use crate::parallel::Communicator;
use candle_envs::board::{Board, Player};
use candle_envs::{Actions, Entry, EnvError, Episode, Frame, Input, Spec, VectorEnv, View, any_legal};
use candle_models::agent::Observation;
use candle_models::engine::Placement;
use candle_models::muzero::{MuZero, MuZeroConfig};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::search::{Noise, Plan, Planner, PlannerOptions, Rules};
use candle_models::signature::TensorSpec;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// A search with the networks of some parameters, over so many games at once on so many threads, by the rules where nothing is learnt of what comes of an action.
///
/// # Errors
/// If a parameter is missing, the networks cannot be run, or there are no rules where they are needed.
pub fn planner(
    config: &MuZeroConfig,
    parameters: &Params,
    (games, rules): (usize, Option<Arc<dyn Rules>>),
    (search, simulations): (Search, usize),
    threads: usize,
) -> Result<Planner> {
    let MuZero { initial, recurrent } = MuZero::new(config, parameters)?;
    let place = Placement::cpu(threads);
    let options = PlannerOptions { batch: games, search: search.settings(simulations), discount: config.discount(), place };
    match (recurrent, rules) {
        (Some(recurrent), _) => Planner::new(Arc::new(initial), Arc::new(recurrent), &options),
        (None, Some(rules)) => Planner::by_rules(Arc::new(initial), &rules, &options),
        (None, None) => Err(Error::config("dynamics", "the environment has no rules that a search could go by")),
    }
}

/// What environments show, floats alone.
pub struct Inputs {
    /// With its places.
    pub inputs: Vec<Input>,
    /// Floats of an observation, and classes of an action.
    widths: [usize; 2],
}

impl Inputs {
    /// Those of that description.
    pub fn new(spec: &Spec) -> Self {
        Self { inputs: spec.inputs(), widths: [spec.floats(), spec.classes()] }
    }

    /// What a frame says of a lane: what is seen, and what can be done.
    fn of<'a>(&self, frame: &'a Frame, lane: usize) -> (&'a [f32], &'a [bool]) {
        let [floats, classes] = self.widths;
        (&frame.floats[lane * floats..][..floats], &frame.legal[lane * classes..][..classes])
    }

    /// Shows each game its lane of a frame.
    fn show_all(&self, planner: &mut Planner, frame: &Frame) -> Result<()> {
        (0..frame.players.len()).try_for_each(|lane| self.show(planner, lane, self.of(frame, lane)))
    }

    /// Shows a game what is seen and what can be done; where nothing can be done the game is over and everything may be searched.
    fn show(&self, planner: &mut Planner, game: usize, (floats, legal): (&[f32], &[bool])) -> Result<()> {
        for Input { spec, columns, .. } in &self.inputs {
            planner.floats_mut(&spec.name, game)?.copy_from_slice(&floats[columns.clone()]);
        }
        let nothing = !legal.contains(&true);
        planner.legal_mut(game)?.iter_mut().zip(legal).for_each(|(to, legal)| *to = *legal || nothing);
        Ok(())
    }

    /// Searches remembered positions again, `games` at once, and puts what is found in place of what was.
    ///
    /// # Errors
    /// If a network fails.
    pub fn reanalyse(&self, (planner, games): (&mut Planner, usize), replay: &mut Replay, slots: &[usize], random: Random) -> Result<()> {
        for (part, slots) in slots.chunks(games).enumerate() {
            for game in 0..games {
                // A last part that is not full repeats its first.
                let slot = slots.get(game).copied().unwrap_or(slots[0]);
                self.show(planner, game, replay.seen(slot))?;
            }
            let rows: Vec<Random> = (0..games).map(|game| random.at((part * games + game) as u64)).collect();
            let plan = planner.plan(Noise::Rows(&rows))?;
            slots.iter().enumerate().for_each(|(game, slot)| replay.renew(*slot, plan.weights(game), plan.value(game)));
        }
        Ok(())
    }
}

/// Environments that are played, and the last of what they showed.
pub struct Playing {
    /// The environments.
    pub envs: Box<dyn VectorEnv>,
    inputs: Inputs,
}

impl Playing {
    /// Those of that kind with these numbers, as [`environments`] seeds them.
    ///
    /// # Errors
    /// If there are none, or one of them fails.
    pub fn new(entry: &Entry, lanes: &Range<usize>, seed: u64) -> Result<Self> {
        let envs = environments(entry, lanes, seed)?;
        Ok(Self { inputs: Inputs::new(envs.spec()), envs })
    }

    /// One step of each, with the actions that a search chooses unless `other` knows one; what it found goes to `found`.
    fn step(
        &mut self,
        planner: &mut Planner,
        noise: Noise,
        other: impl Fn(&Frame, usize) -> Option<u32>,
        mut found: impl FnMut(&Frame, usize, Seen),
    ) -> Result<&Frame> {
        let (lanes, frame) = (self.envs.lanes(), self.envs.frame().clone());
        self.inputs.show_all(planner, &frame)?;
        let plan = planner.plan(noise)?;
        let others: Vec<Option<u32>> = (0..lanes).map(|lane| other(&frame, lane)).collect();
        let actions = others.iter().enumerate().map(|(lane, other)| other.unwrap_or_else(|| plan.action(lane)));
        let actions = Actions::classes(actions.collect());
        self.envs.step(&actions).map_err(failed)?;
        let after = self.envs.frame();
        for (lane, other) in others.into_iter().enumerate() {
            let end = match (after.ignored[lane], after.terminated[lane], after.truncated[lane]) {
                (true, ..) => End::After,
                (_, true, _) => End::Terminated,
                (_, _, true) => End::Truncated,
                _ => End::None,
            };
            let rest = Rest {
                value: plan.value(lane),
                action: actions.classes[lane],
                drawn: other.is_some(),
                reward: after.rewards[lane],
                player: frame.players[lane],
                end,
            };
            found(&frame, lane, Seen { rest, policy: plan.weights(lane) });
        }
        Ok(self.envs.frame())
    }

    /// Plays a round, a share of the moves drawn among the legal ones. `random` is the round's address, that of a lane the same whoever plays it.
    /// `go_on` is asked before each step; a round that does not go on holds what was played so far.
    ///
    /// # Errors
    /// If an environment or a network fails.
    pub fn round(
        &mut self,
        planner: &mut Planner,
        (steps, first_lane, share, random): (usize, usize, f64, Random),
        go_on: impl Fn() -> bool,
    ) -> Result<Round> {
        let (lanes, [floats, classes]) = (self.envs.lanes(), self.inputs.widths);
        let mut round = Round { lanes, widths: [floats, classes], ..Round::default() };
        for t in (0..steps).take_while(|_| go_on()) {
            let rows: Vec<Random> = (0..lanes).map(|lane| random.at(t as u64).at((first_lane + lane) as u64)).collect();
            let frame = self.step(
                planner,
                Noise::Rows(&rows),
                |frame, lane| {
                    let (legal, random) = (&frame.legal[lane * classes..][..classes], rows[lane].stream("moves"));
                    (f64::from(random.uniform(0)) < share).then(|| any_legal(legal, random, 1))
                },
                |frame, lane, Seen { rest, policy }| {
                    round.floats.extend_from_slice(&frame.floats[lane * floats..][..floats]);
                    round.legal.extend_from_slice(&frame.legal[lane * classes..][..classes]);
                    round.policies.extend_from_slice(policy);
                    round.rests.push(rest);
                },
            )?;
            round.ended.extend_from_slice(&frame.episodes);
        }
        Ok(round)
    }
}

/// What was played in some lanes: the positions of all of them in a step, then those of the next.
#[derive(Debug, Default)]
pub struct Round {
    lanes: usize,
    /// Floats of an observation, and classes of an action.
    widths: [usize; 2],
    floats: Vec<f32>,
    legal: Vec<bool>,
    policies: Vec<f32>,
    rests: Vec<Rest>,
    /// Episodes that ended.
    pub ended: Vec<Episode>,
}

impl Round {
    /// Puts it into a buffer, its lanes from number `first` on.
    pub fn remember(&self, replay: &mut Replay, first: usize, horizon: &Horizon) {
        let [floats, classes] = self.widths;
        for (i, rest) in self.rests.iter().enumerate() {
            let (floats, classes) = (i * floats..(i + 1) * floats, i * classes..(i + 1) * classes);
            let (legal, policy) = (&self.legal[classes.clone()], &self.policies[classes]);
            replay.push(first + i % self.lanes, Position { floats: &self.floats[floats], legal, policy, rest: *rest }, horizon);
        }
    }
}

/// What a search said of a lane, and what came of it.
struct Seen<'a> {
    rest: Rest,
    policy: &'a [f32],
}

/// Plays one episode in each of several environments, as the search finds best; every rank gets all of them. In a game of two it plays against random moves, first and second in turn, and the reward is its own.
///
/// # Errors
/// If an environment or a network fails.
pub fn evaluate(
    (config, parameters): (&MuZeroConfig, &Params),
    entry: &Entry,
    (search, evaluation): (Search, &EvaluationConfig),
    ranks: &dyn Communicator,
) -> Result<Vec<Episode>> {
    one_each(evaluation.episodes, ranks, |mine| {
        let mut playing = Playing::new(entry, &mine, SEEDS)?;
        let mut planner =
            planner(config, parameters, (mine.len(), (entry.rules)()), (search, evaluation.simulations), rayon::current_num_threads())?;
        let first = mine.start;
        let second = move |lane: usize| (first + lane) % 2;
        Ok(move |t| {
            let random = Random::new(SEEDS).stream("random moves").at(t);
            let other = |frame: &Frame, lane: usize| {
                let moves = config.players == 2 && usize::from(frame.players[lane]) != second(lane);
                let legal = &frame.legal[lane * config.actions..][..config.actions];
                moves.then(|| any_legal(legal, random.at((first + lane) as u64), 0))
            };
            let frame = playing.step(&mut planner, Noise::None, other, |_, _, _| ())?;
            let own = |episode: &Episode| {
                let sign = if config.players == 2 && second(episode.lane) == 1 { -1.0 } else { 1.0 };
                Episode { reward: sign * episode.reward, ..*episode }
            };
            Ok(frame.episodes.iter().map(own).collect())
        })
    })
}

/// A player that plans every move, without noise, many games at once: of board games, or of whatever environment.
pub struct Planned {
    planner: Planner,
    inputs: Inputs,
    games: usize,
}

impl Planned {
    /// With networks of these parameters, over so many games at once.
    ///
    /// # Errors
    /// As [`planner`].
    pub fn new<B: Board>(config: &MuZeroConfig, parameters: &Params, games: usize, of_play: (Search, usize)) -> Result<Self> {
        Self::of(&B::spec(), config, parameters, (games, B::rules()), of_play)
    }

    /// The same in environments of that description, with their rules if they have any.
    ///
    /// # Errors
    /// As [`planner`], or if the networks see or do something else.
    pub fn of(
        spec: &Spec,
        config: &MuZeroConfig,
        parameters: &Params,
        (games, rules): (usize, Option<Arc<dyn Rules>>),
        of_play: (Search, usize),
    ) -> Result<Self> {
        let (inputs, seen) = (Inputs::new(spec), config.observation.iter().map(Observation::spec));
        let shape = |spec: TensorSpec| (spec.name.clone(), spec.width());
        let (seen, shown): (Vec<_>, Vec<_>) =
            (seen.map(shape).collect(), inputs.inputs.iter().map(|input| shape(input.spec.clone())).collect());
        let of_env = |what| format!("{what}, as {} has", spec.name);
        if seen != shown {
            return Err(Error::config("observation", format!("expected {}, found {seen:?}", of_env(format!("{shown:?}")))));
        }
        if (spec.columns(), spec.classes(), spec.players) != (1, config.actions, config.players) {
            let expected = of_env(format!("{} actions and {} to play", spec.classes(), spec.players));
            return Err(Error::config("actions", format!("expected {expected}, found {} and {}", config.actions, config.players)));
        }
        Ok(Self { planner: planner(config, parameters, (games, rules), of_play, rayon::current_num_threads())?, inputs, games })
    }

    /// What it plans in each lane of a frame, of as many as it plans at once.
    ///
    /// # Errors
    /// If there are more lanes, or a network fails.
    pub fn look(&mut self, frame: &Frame) -> Result<Plan<'_>> {
        self.inputs.show_all(&mut self.planner, frame)?;
        self.planner.plan(Noise::None)
    }

    fn plan<B: Board>(&mut self, boards: &[B]) -> Result<Vec<u32>> {
        let spec = B::spec();
        let (mut floats, mut legal) = (vec![0.0; spec.floats()], vec![false; spec.classes()]);
        for game in 0..self.games {
            // A last part that is not full repeats its first.
            let board = boards.get(game).unwrap_or(&boards[0]);
            board.observe(View { floats: &mut floats, ids: &mut [] });
            board.legal(&mut legal);
            self.inputs.show(&mut self.planner, game, (&floats, &legal))?;
        }
        let plan = self.planner.plan(Noise::None)?;
        Ok((0..boards.len()).map(|game| plan.action(game)).collect())
    }
}

impl<B: Board> Player<B> for Planned {
    fn choose(&mut self, boards: &[B]) -> candle_envs::Result<Vec<u32>> {
        let mut chosen = Vec::with_capacity(boards.len());
        for part in boards.chunks(self.games) {
            chosen.extend(self.plan(part).map_err(|error| EnvError::Other(error.to_string()))?);
        }
        Ok(chosen)
    }
}

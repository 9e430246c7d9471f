//! Many environments side by side, on all cores.

use crate::{Action, Env, EnvError, Pcg64, Result, Scene, Spec, Step, View};
use candle_models::agent::Component;
use candle_models::ops::gaussian::Gaussian;
use candle_models::random::Random;
use serde::{Deserialize, Serialize};

/// Environments below which one thread steps them all: what another thread costs is some microseconds.
const SERIAL: usize = 256;

/// When an environment whose episode has ended is reset, as Gymnasium defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Autoreset {
    /// In the step after its end, which ignores the action and gives the first observation and no reward ([`Frame::ignored`]).
    NextStep,
    /// In the step that ends it: its last observation lies in [`Frame::final_floats`], the first one of the next episode among the others.
    SameStep,
    /// By [`VectorEnv::reset_lanes`] alone: a step of an episode that has ended is an error.
    Disabled,
}

/// The actions of all environments in a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Actions {
    /// `[lanes, columns]`.
    pub classes: Vec<u32>,
    /// `[lanes, numbers]`.
    pub numbers: Vec<f32>,
}

impl Actions {
    /// Actions of classes alone.
    pub fn classes(classes: Vec<u32>) -> Self {
        Self { classes, numbers: Vec::new() }
    }

    /// Actions of numbers alone.
    pub fn numbers(numbers: Vec<f32>) -> Self {
        Self { classes: Vec::new(), numbers }
    }

    /// Random ones: each legal class as likely as another, 0 where none is, numbers uniform within their bounds; of those
    /// without, within 3 of 0.
    pub fn random(spec: &Spec, frame: &Frame, random: Random) -> Self {
        let mut actions = Self::default();
        let (mut legal, mut index) = (&frame.legal[..], 0);
        for component in std::iter::repeat_n(&spec.action, frame.players.len()).flatten() {
            for _ in 0..component.columns() {
                let (column, rest) = legal.split_at(component.classes());
                actions.classes.push(any_legal(column, random, index));
                (legal, index) = (rest, index + 1);
            }
            if let Some(Gaussian { low, high }) = component.gaussian() {
                let (from, to) = if (high - low).is_finite() { (low, high) } else { (-3.0, 3.0) };
                for _ in 0..component.numbers() {
                    actions.numbers.push((from + (to - from) * random.uniform(index)).clamp(low, high));
                    index += 1;
                }
            }
        }
        actions
    }
}

/// One of the legal classes of a column, each as likely as another, by the random number of that index; 0 where none is legal.
pub fn any_legal(column: &[bool], random: Random, index: u64) -> u32 {
    let legal = || (0..).zip(column).filter(|(_, legal)| **legal);
    let chosen = random.below(index, legal().count().max(1) as u32) as usize;
    legal().nth(chosen).map_or(0, |(class, _)| class)
}

/// What all environments show after a reset or a step.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Frame {
    /// `[lanes, Spec::floats]`.
    pub floats: Vec<f32>,
    /// `[lanes, Spec::ids]`.
    pub ids: Vec<u32>,
    /// Which classes may be chosen now, `[lanes, Spec::classes]`.
    pub legal: Vec<bool>,
    /// Who is to move.
    pub players: Vec<u8>,
    /// Rewards of those who moved.
    pub rewards: Vec<f32>,
    /// Whether the episode ended because the game is over.
    pub terminated: Vec<bool>,
    /// Whether it ended although the game goes on: by its limit of steps.
    pub truncated: Vec<bool>,
    /// Whether the observation is the first of an episode.
    pub first: Vec<bool>,
    /// Whether the action was ignored, because the step reset the environment: nothing can be learnt from it.
    pub ignored: Vec<bool>,
    /// With [`Autoreset::SameStep`] the last floats of the episodes that have just ended, in their lanes; other rows are of earlier ones.
    pub final_floats: Vec<f32>,
    /// The last indices, likewise.
    pub final_ids: Vec<u32>,
    /// The episodes that have just ended, by lane.
    pub episodes: Vec<Episode>,
}

impl Frame {
    pub(crate) fn new(lanes: usize, spec: &Spec) -> Self {
        let (floats, ids) = (vec![0.0; lanes * spec.floats()], vec![0; lanes * spec.ids()]);
        let flags = vec![false; lanes];
        Self {
            legal: vec![true; lanes * spec.classes()],
            players: vec![0; lanes],
            rewards: vec![0.0; lanes],
            terminated: flags.clone(),
            truncated: flags.clone(),
            first: flags.clone(),
            ignored: flags,
            final_floats: floats.clone(),
            final_ids: ids.clone(),
            episodes: Vec::new(),
            floats,
            ids,
        }
    }
}

/// An episode that has ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Episode {
    /// Where it was.
    pub lane: usize,
    /// The sum of its rewards; of a game of two the first player's, who loses what the other wins.
    pub reward: f64,
    /// Its steps.
    pub steps: u32,
    /// Whether the game was over.
    pub terminated: bool,
}

/// Environments of one kind side by side, whichever kind it is.
pub trait VectorEnv: Send {
    /// What they show and take.
    fn spec(&self) -> &Spec;

    /// How many there are.
    fn lanes(&self) -> usize;

    /// Begins an episode in each, number i with the generator of `seed + i`.
    ///
    /// # Errors
    /// If one shows a number that is not finite, or lets nobody move.
    fn reset(&mut self, seed: u64) -> Result<&Frame>;

    /// Begins an episode in some, with random numbers from where they are. Of the others nothing changes.
    ///
    /// # Errors
    /// As [`reset`](Self::reset), or if there is not a flag for each.
    fn reset_lanes(&mut self, which: &[bool]) -> Result<&Frame>;

    /// A step of each.
    ///
    /// # Errors
    /// An illegal action, a number that is not finite, an episode that has ended: with the number of the environment. Others may have been
    /// stepped.
    fn step(&mut self, actions: &Actions) -> Result<&Frame>;

    /// What the last reset or step gave.
    fn frame(&self) -> &Frame;

    /// What one of them looks like now; `None` where nobody here can draw it.
    fn draw(&self, lane: usize) -> Option<Scene>;

    /// The same as what can be written down and gone on from; `None` where what they are lies in another process.
    fn resumable(&mut self) -> Option<&mut dyn Resumable>;
}

/// Environments that go on to the bit from what is written of them.
pub trait Resumable {
    /// All that they are, to go on from.
    ///
    /// # Errors
    /// If an environment of one's own cannot be written as JSON.
    fn save(&self) -> Result<Vec<u8>>;

    /// Goes on from what [`save`](Self::save) gave, also of another number of environments.
    ///
    /// # Errors
    /// If it is nothing of that kind.
    fn restore(&mut self, saved: &[u8]) -> Result<()>;
}

/// Environments of one kind side by side. They do not depend on each other, nor on the number of threads.
#[derive(Debug, Clone)]
pub struct Vector<E> {
    lanes: Vec<Lane<E>>,
    spec: Spec,
    widths: Widths,
    /// Classes of each column.
    columns: Vec<usize>,
    autoreset: Autoreset,
    frame: Frame,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Lane<E> {
    env: E,
    steps: u32,
    /// Of the first player.
    reward: f64,
    ended: bool,
}

impl<E: Env> Vector<E> {
    /// So many, to be [reset](VectorEnv::reset) first.
    ///
    /// # Errors
    /// If `lanes` is 0.
    pub fn new(lanes: usize, autoreset: Autoreset) -> Result<Self> {
        if lanes == 0 {
            return Err(EnvError::Shape { what: "environments", expected: 1, found: 0 });
        }
        let spec = E::spec();
        let lane = Lane { env: E::default(), steps: 0, reward: 0.0, ended: true };
        let classes = |component: &Component| std::iter::repeat_n(component.classes(), component.columns());
        let columns = spec.action.iter().flat_map(classes).collect();
        Ok(Self { lanes: vec![lane; lanes], frame: Frame::new(lanes, &spec), widths: Widths::new(&spec), columns, spec, autoreset })
    }

    /// One of them.
    pub fn env(&self, lane: usize) -> &E {
        &self.lanes[lane].env
    }

    fn each(&mut self, actions: &Actions, f: impl Fn(&mut Rows<E>, &Context) -> Result<Vec<Episode>> + Sync) -> Result<&Frame> {
        let Self { lanes, spec, widths, columns, autoreset, frame } = self;
        frame.episodes.clear();
        let rows = Rows {
            first: 0,
            lanes,
            floats: &mut frame.floats,
            ids: &mut frame.ids,
            legal: &mut frame.legal,
            players: &mut frame.players,
            rewards: &mut frame.rewards,
            terminated: &mut frame.terminated,
            truncated: &mut frame.truncated,
            begun: &mut frame.first,
            ignored: &mut frame.ignored,
            final_floats: &mut frame.final_floats,
            final_ids: &mut frame.final_ids,
            classes: &actions.classes,
            numbers: &actions.numbers,
        };
        let context = Context { spec, widths: *widths, columns, autoreset: *autoreset };
        frame.episodes = each(rows, &context, &f)?;
        Ok(frame)
    }

    /// Actions that nobody looks at.
    fn nothing(&self) -> Actions {
        let (lanes, Widths { columns, numbers, .. }) = (self.lanes.len(), self.widths);
        Actions { classes: vec![0; lanes * columns], numbers: vec![0.0; lanes * numbers] }
    }

    fn reset_some(&mut self, which: impl Fn(usize) -> Option<Option<Pcg64>> + Sync) -> Result<&Frame> {
        let nothing = self.nothing();
        self.each(&nothing, |rows, context| {
            for i in 0..rows.lanes.len() {
                let mut row = rows.row(i, context);
                let Some(random) = which(row.number) else { continue };
                let random = random.unwrap_or_else(|| row.lane.env.random().clone());
                (*row.reward, *row.terminated, *row.truncated, *row.ignored) = (0.0, false, false, false);
                row.begin(random)?;
            }
            Ok(Vec::new())
        })
    }
}

impl<E: Env> VectorEnv for Vector<E> {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn reset(&mut self, seed: u64) -> Result<&Frame> {
        self.reset_some(|lane| Some(Some(Pcg64::new(seed.wrapping_add(lane as u64)))))
    }

    fn reset_lanes(&mut self, which: &[bool]) -> Result<&Frame> {
        check("flags of environments to reset", self.lanes.len(), which.len())?;
        self.reset_some(|lane| which[lane].then_some(None))
    }

    fn step(&mut self, actions: &Actions) -> Result<&Frame> {
        check("classes of actions", self.lanes.len() * self.widths.columns, actions.classes.len())?;
        check("numbers of actions", self.lanes.len() * self.widths.numbers, actions.numbers.len())?;
        self.each(actions, |rows, context| rows.step(context))
    }

    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn draw(&self, lane: usize) -> Option<Scene> {
        Some(self.lanes[lane].env.draw())
    }

    fn resumable(&mut self) -> Option<&mut dyn Resumable> {
        Some(self)
    }
}

impl<E: Env> Resumable for Vector<E> {
    fn save(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(&self.lanes).map_err(|e| EnvError::Saved { env: self.spec.name.to_string(), reason: e.to_string() })
    }

    fn restore(&mut self, saved: &[u8]) -> Result<()> {
        let lanes: Vec<Lane<E>> =
            serde_json::from_slice(saved).map_err(|e| EnvError::Saved { env: self.spec.name.to_string(), reason: e.to_string() })?;
        if lanes.is_empty() {
            return Err(EnvError::Saved { env: self.spec.name.to_string(), reason: "no environment in it".to_owned() });
        }
        self.frame = Frame::new(lanes.len(), &self.spec);
        self.lanes = lanes;
        let nothing = self.nothing();
        self.each(&nothing, |rows, context| {
            for i in 0..rows.lanes.len() {
                rows.begun[i] = rows.lanes[i].steps == 0;
                rows.row(i, context).show()?;
            }
            Ok(Vec::new())
        })?;
        Ok(())
    }
}

pub(crate) fn check(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(EnvError::Shape { what, expected, found }) }
}

/// Values of an environment in each array.
#[derive(Debug, Clone, Copy)]
struct Widths {
    floats: usize,
    ids: usize,
    legal: usize,
    columns: usize,
    numbers: usize,
}

impl Widths {
    fn new(spec: &Spec) -> Self {
        Self { floats: spec.floats(), ids: spec.ids(), legal: spec.classes(), columns: spec.columns(), numbers: spec.numbers() }
    }
}

struct Context<'a> {
    spec: &'a Spec,
    widths: Widths,
    /// Classes of each column.
    columns: &'a [usize],
    autoreset: Autoreset,
}

impl Context<'_> {
    fn not_finite(&self, what: &'static str, lane: usize, value: f64) -> EnvError {
        EnvError::NotFinite { env: self.spec.name.to_string(), lane, what, value }
    }
}

/// Some of the environments with their parts of a frame.
struct Rows<'a, E> {
    /// The number of the first.
    first: usize,
    lanes: &'a mut [Lane<E>],
    floats: &'a mut [f32],
    ids: &'a mut [u32],
    legal: &'a mut [bool],
    players: &'a mut [u8],
    rewards: &'a mut [f32],
    terminated: &'a mut [bool],
    truncated: &'a mut [bool],
    begun: &'a mut [bool],
    ignored: &'a mut [bool],
    final_floats: &'a mut [f32],
    final_ids: &'a mut [u32],
    classes: &'a [u32],
    numbers: &'a [f32],
}

/// One environment with its part of a frame.
struct Row<'a, E> {
    number: usize,
    context: &'a Context<'a>,
    lane: &'a mut Lane<E>,
    floats: &'a mut [f32],
    ids: &'a mut [u32],
    legal: &'a mut [bool],
    player: &'a mut u8,
    reward: &'a mut f32,
    terminated: &'a mut bool,
    truncated: &'a mut bool,
    begun: &'a mut bool,
    ignored: &'a mut bool,
    final_floats: &'a mut [f32],
    final_ids: &'a mut [u32],
}

/// The first part of so many rows of a matrix; the rest stays.
fn take<'a, T>(rest: &mut &'a mut [T], n: usize) -> &'a mut [T] {
    let (first, others) = std::mem::take(rest).split_at_mut(n);
    *rest = others;
    first
}

impl<'a, E> Rows<'a, E> {
    /// The first `n` of them; the others stay.
    fn take(&mut self, n: usize, widths: &Widths) -> Self {
        let (classes, other_classes) = self.classes.split_at(n * widths.columns);
        let (numbers, other_numbers) = self.numbers.split_at(n * widths.numbers);
        (self.classes, self.numbers) = (other_classes, other_numbers);
        self.first += n;
        Self {
            first: self.first - n,
            lanes: take(&mut self.lanes, n),
            floats: take(&mut self.floats, n * widths.floats),
            ids: take(&mut self.ids, n * widths.ids),
            legal: take(&mut self.legal, n * widths.legal),
            players: take(&mut self.players, n),
            rewards: take(&mut self.rewards, n),
            terminated: take(&mut self.terminated, n),
            truncated: take(&mut self.truncated, n),
            begun: take(&mut self.begun, n),
            ignored: take(&mut self.ignored, n),
            final_floats: take(&mut self.final_floats, n * widths.floats),
            final_ids: take(&mut self.final_ids, n * widths.ids),
            classes,
            numbers,
        }
    }

    fn row<'b>(&'b mut self, i: usize, context: &'b Context<'b>) -> Row<'b, E> {
        let Widths { floats, ids, legal, .. } = context.widths;
        Row {
            number: self.first + i,
            context,
            lane: &mut self.lanes[i],
            floats: &mut self.floats[i * floats..][..floats],
            ids: &mut self.ids[i * ids..][..ids],
            legal: &mut self.legal[i * legal..][..legal],
            player: &mut self.players[i],
            reward: &mut self.rewards[i],
            terminated: &mut self.terminated[i],
            truncated: &mut self.truncated[i],
            begun: &mut self.begun[i],
            ignored: &mut self.ignored[i],
            final_floats: &mut self.final_floats[i * floats..][..floats],
            final_ids: &mut self.final_ids[i * ids..][..ids],
        }
    }
}

/// Calls `f` with all environments, on several threads where they are many; gives the episodes that ended by lane, or the error of the first
/// environment with one.
fn each<E: Env>(
    mut rows: Rows<E>,
    context: &Context,
    f: &(impl Fn(&mut Rows<E>, &Context) -> Result<Vec<Episode>> + Sync),
) -> Result<Vec<Episode>> {
    let lanes = rows.lanes.len();
    if lanes > SERIAL && rayon::current_num_threads() > 1 {
        let half = rows.take(lanes / 2, &context.widths);
        let (first, second) = rayon::join(|| each(half, context, f), || each(rows, context, f));
        let mut episodes = first?;
        episodes.append(&mut second?);
        return Ok(episodes);
    }
    f(&mut rows, context)
}

pub(crate) fn finite(values: &[f32]) -> bool {
    // Zero times a number is zero unless the number is not finite. Without a branch, so that many are checked at once.
    values.iter().fold(true, |all, x| all & (x * 0.0 == 0.0))
}

impl<E: Env> Rows<'_, E> {
    /// A step of each, with what becomes of episodes that have ended.
    fn step(&mut self, context: &Context) -> Result<Vec<Episode>> {
        self.begun.fill(false);
        self.ignored.fill(false);
        let mut episodes = Vec::new();
        for i in 0..self.lanes.len() {
            if self.lanes[i].ended {
                self.row(i, context).resume()?;
            } else if self.advance(i, context).map_err(|error| error.of(&context.spec.name, self.first + i))? {
                episodes.push(self.row(i, context).end()?);
            }
        }
        self.check(context)?;
        Ok(episodes)
    }

    /// A step of one whose episode has not ended. Gives whether it has now.
    #[inline]
    fn advance(&mut self, i: usize, context: &Context) -> Result<bool> {
        let Widths { floats, ids, legal, columns, numbers } = context.widths;
        let lane = &mut self.lanes[i];
        let action = Action { classes: &self.classes[i * columns..][..columns], numbers: &self.numbers[i * numbers..][..numbers] };
        let mover = lane.env.player();
        let Step { reward, terminated, truncated } = lane.env.step(action)?;
        lane.steps += 1;
        lane.reward += if mover == 0 { reward } else { -reward };
        let truncated = truncated || !terminated && context.spec.max_steps.is_some_and(|most| lane.steps >= most);
        lane.ended = terminated || truncated;
        (self.rewards[i], self.terminated[i], self.truncated[i]) = (reward as f32, terminated, truncated);
        lane.env.observe(View { floats: &mut self.floats[i * floats..][..floats], ids: &mut self.ids[i * ids..][..ids] });
        lane.env.legal(&mut self.legal[i * legal..][..legal]);
        self.players[i] = lane.env.player() as u8;
        Ok(lane.ended)
    }

    /// Whether what all of them show can be gone on from. One look at each kind of value costs less than one at each environment.
    fn check(&mut self, context: &Context) -> Result<()> {
        if finite(self.rewards) && finite(self.floats) && self.legal.iter().fold(true, |all, legal| all & legal) {
            return Ok(());
        }
        for i in 0..self.lanes.len() {
            if !self.rewards[i].is_finite() {
                return Err(context.not_finite("reward", self.first + i, self.rewards[i].into()));
            }
            self.row(i, context).check()?;
        }
        Ok(())
    }
}

impl<E: Env> Row<'_, E> {
    /// Begins an episode and shows it.
    fn begin(&mut self, random: Pcg64) -> Result<()> {
        self.lane.env.reset(random);
        (self.lane.steps, self.lane.reward, self.lane.ended, *self.begun) = (0, 0.0, false, true);
        self.show()
    }

    fn show(&mut self) -> Result<()> {
        let env = &self.lane.env;
        env.observe(View { floats: self.floats, ids: self.ids });
        env.legal(self.legal);
        *self.player = env.player() as u8;
        self.check()
    }

    /// Whether what is shown can be gone on from.
    fn check(&self) -> Result<()> {
        if !finite(self.floats) {
            let value = self.floats.iter().copied().find(|x| !x.is_finite()).map_or(f64::NAN, f64::from);
            return Err(self.context.not_finite("observation", self.number, value));
        }
        let mut rest = &*self.legal;
        for classes in self.context.columns {
            let (column, others) = rest.split_at(*classes);
            rest = others;
            if !self.lane.ended && !column.contains(&true) {
                return Err(EnvError::NothingLegal { env: self.context.spec.name.to_string(), lane: self.number });
            }
        }
        Ok(())
    }

    /// The step after the end of an episode.
    #[cold]
    fn resume(&mut self) -> Result<()> {
        if self.context.autoreset == Autoreset::Disabled {
            return Err(EnvError::Ended { env: self.context.spec.name.to_string(), lane: self.number });
        }
        (*self.reward, *self.terminated, *self.truncated, *self.ignored) = (0.0, false, false, true);
        let random = self.lane.env.random().clone();
        self.begin(random)
    }

    /// What becomes of an episode that has just ended.
    #[cold]
    fn end(&mut self) -> Result<Episode> {
        let Lane { reward, steps, .. } = *self.lane;
        let episode = Episode { lane: self.number, reward, steps, terminated: *self.terminated };
        if self.context.autoreset == Autoreset::SameStep {
            self.check()?;
            self.final_floats.copy_from_slice(self.floats);
            self.final_ids.copy_from_slice(self.ids);
            let random = self.lane.env.random().clone();
            self.begin(random)?;
        }
        Ok(episode)
    }
}

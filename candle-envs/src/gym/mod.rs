//! Environments of Python's [Gymnasium](https://gymnasium.farama.org), in processes of their own: what people have can be trained in.
//!
//! An id is what `gymnasium.make` takes: `CartPole-v1`, or `module:Env-v0`, where importing `module` registers it. Each process has a part of the
//! environments and steps all of them when it is told so by a byte; observations, actions, rewards and flags lie in memory that both processes see, in
//! a file without a name. The process ends with this one, whatever ends this one.
//!
//! | a space of | is |
//! |---|---|
//! | observations: `Box` | its numbers as f32, three axes as a grid; `uint8` from 0 to 255 is divided by 255 |
//! | `Discrete`, `MultiDiscrete` | a one for each value, zeros for the others |
//! | `MultiBinary` | zeros and ones |
//! | actions: `Discrete`, `MultiDiscrete`, `MultiBinary` | classes from 0 on; `start` is added for the environment |
//! | `Box` of floats | numbers within its bounds |
//!
//! Others have to be wrapped (`gymnasium.wrappers.FlattenObservation`). Where `info["action_mask"]` says which classes of `Discrete` or `MultiDiscrete`
//! actions are legal, the others are not taken.

mod process;

use crate::vector::{check, finite};
use crate::{Actions, Autoreset, Entry, EnvError, Episode, Frame, Result, Resumable, Scene, Spec, VectorEnv};
use candle_models::agent::Component;
use candle_models::ops::gaussian::Gaussian;
use process::{Process, Starting, Todo};
use std::ffi::OsString;
use std::ops::Range;
use std::process::ExitStatus;

/// What the names of these environments begin with: `gym:CartPole-v1`.
pub const PREFIX: &str = "gym";

/// What is wrong with an environment of another process.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GymError {
    /// There is no interpreter of that name.
    #[error("{python} cannot be started: {reason}; CANDLE_PYTHON names another Python")]
    NoPython {
        /// What was started.
        python: String,
        /// What the system says.
        reason: String,
    },
    /// The interpreter does not have the packages.
    #[error("{python} has no Gymnasium: {reason}; `{python} -m pip install gymnasium` gets it, CANDLE_PYTHON names another Python")]
    NoGymnasium {
        /// The interpreter.
        python: String,
        /// What it says.
        reason: String,
    },
    /// Gymnasium does not know the id, or cannot make one; in its own words.
    #[error("{0}")]
    Make(String),
    /// A space that is no array of numbers or classes.
    #[error("{0}")]
    Space(String),
    /// It raised an exception.
    #[error("an exception in its {during}:\n{traceback}")]
    Raised {
        /// `make`, `reset` or `step`.
        during: String,
        /// What Python prints of it.
        traceback: String,
    },
    /// Its process has ended although it was not asked to.
    #[error("its process has ended: {0}")]
    Ended(ExitStatus),
    /// Its process cannot be talked to, or says what was not asked.
    #[error("its process: {0}")]
    Process(String),
}

/// How environments of Gymnasium are run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The Python that runs them. Default: `CANDLE_PYTHON`, or `python3`.
    pub python: OsString,
    /// Processes that share them. Default: one for each thread of the present pool of rayon. There are never more than environments.
    pub processes: usize,
}

impl Default for Options {
    fn default() -> Self {
        let python = std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into());
        Self { python, processes: rayon::current_num_threads() }
    }
}

/// Environments of that id as a kind; one is made, to be asked what it shows and takes.
///
/// # Errors
/// If it cannot be made, or has spaces that are not supported.
pub fn entry(id: &str) -> Result<Entry> {
    let spec = Gym::new(id, 1, Autoreset::Disabled, &Options::default())?.spec;
    let id = id.to_owned();
    Ok(Entry::new(spec, "an environment of Gymnasium", move |lanes, autoreset| {
        Ok(Box::new(Gym::new(&id, lanes, autoreset, &Options::default())?))
    }))
}

/// Environments of Gymnasium side by side.
///
/// They cannot be written down: what they are lies in another process, and Python's way of writing objects down would run whatever program somebody has
/// put into a checkpoint. After an error of one of them a reset of all goes on, unless its process has ended.
///
/// ```no_run
/// use candle_envs::gym::{Gym, Options};
/// use candle_envs::{Actions, Autoreset, VectorEnv};
///
/// # fn main() -> candle_envs::Result<()> {
/// let mut poles = Gym::new("CartPole-v1", 8, Autoreset::NextStep, &Options::default())?;
/// poles.reset(42)?;
/// let frame = poles.step(&Actions::classes(vec![1; 8]))?;
/// assert_eq!(frame.rewards, [1.0; 8]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Gym {
    spec: Spec,
    widths: Widths,
    /// Classes of each column.
    columns: Vec<usize>,
    /// Bounds of each number.
    bounds: Vec<[f32; 2]>,
    autoreset: Autoreset,
    processes: Vec<Process>,
    lanes: Vec<Lane>,
    /// Whether all were seeded.
    seeded: bool,
    frame: Frame,
}

/// Values of an environment in each array.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Widths {
    floats: usize,
    columns: usize,
    numbers: usize,
    legal: usize,
}

impl Widths {
    fn new(spec: &Spec) -> Self {
        Self { floats: spec.floats(), columns: spec.columns(), numbers: spec.numbers(), legal: spec.classes() }
    }
}

/// An episode so far.
#[derive(Debug, Clone, Copy, Default)]
struct Lane {
    steps: u32,
    reward: f64,
    ended: bool,
}

impl Gym {
    /// So many of that id, to be [reset](VectorEnv::reset) first.
    ///
    /// # Errors
    /// If `lanes` is 0, there is no Python with Gymnasium, or an environment cannot be made or has spaces that are not supported.
    pub fn new(id: &str, lanes: usize, autoreset: Autoreset, options: &Options) -> Result<Self> {
        if lanes == 0 {
            return Err(EnvError::Shape { what: "environments", expected: 1, found: 0 });
        }
        let n = options.processes.clamp(1, lanes);
        // All start before the first is waited for: each takes some time to import what it needs.
        let starting = (0..n).map(|i| Process::start(options, id, i * lanes / n..(i + 1) * lanes / n)).collect::<Result<Vec<_>>>()?;
        let processes = starting.into_iter().map(Starting::ready).collect::<Result<Vec<_>>>()?;
        let spec = processes[0].1.clone();
        if let Some((process, _)) = processes.iter().find(|(_, other)| *other != spec) {
            let reason = "the same id has other spaces than in another process".to_owned();
            return Err(EnvError::Gym { env: spec.name.into_owned(), lanes: process.lanes(), error: GymError::Space(reason) });
        }
        let columns = spec.action.iter().flat_map(|component| std::iter::repeat_n(component.classes(), component.columns())).collect();
        let bounds = |component: &Component| {
            let bounds = component.gaussian().map(|Gaussian { low, high }| [low, high]);
            std::iter::repeat_n(bounds.unwrap_or_default(), component.numbers())
        };
        Ok(Self {
            widths: Widths::new(&spec),
            columns,
            bounds: spec.action.iter().flat_map(bounds).collect(),
            autoreset,
            processes: processes.into_iter().map(|(process, _)| process).collect(),
            lanes: vec![Lane { ended: true, ..Lane::default() }; lanes],
            seeded: false,
            frame: Frame::new(lanes, &spec),
            spec,
        })
    }

    /// The processes by their ids, with the environments that each has.
    pub fn processes(&self) -> impl Iterator<Item = (u32, Range<usize>)> {
        self.processes.iter().map(|process| (process.id(), process.lanes()))
    }

    /// Has every environment do what `todo` says of it, and takes over what those show that did something.
    fn round(&mut self, todo: impl Fn(usize) -> Todo) -> Result<()> {
        let Self { widths: Widths { floats, legal, .. }, processes, frame, .. } = self;
        for process in &mut *processes {
            let lanes = process.lanes();
            process.todo().iter_mut().zip(lanes).for_each(|(to, lane)| *to = todo(lane) as u8);
        }
        let sent: Vec<Result<bool>> = processes.iter_mut().map(|process| process.send()).collect();
        // All answers are read before an error is told, so that the next ones belong to the next questions.
        let answers = processes.iter_mut().zip(sent).map(|(process, sent)| if sent? { process.answer() } else { Ok(()) });
        answers.fold(Ok(()), Result::and)?;
        for process in &*processes {
            for (row, lane) in process.lanes().enumerate().filter(|(_, lane)| todo(*lane) != Todo::Nothing) {
                frame.floats[lane * *floats..][..*floats].copy_from_slice(&process.floats()[row * *floats..][..*floats]);
                let mask = &process.legal()[row * *legal..][..*legal];
                frame.legal[lane * *legal..][..*legal].iter_mut().zip(mask).for_each(|(to, legal)| *to = *legal != 0);
            }
        }
        Ok(())
    }

    /// Begins an episode in some, as what was asked for.
    fn begin(&mut self, which: impl Fn(usize) -> bool, todo: Todo) -> Result<&Frame> {
        self.frame.episodes.clear();
        for lane in (0..self.lanes.len()).filter(|lane| which(*lane)) {
            let Frame { rewards, terminated, truncated, ignored, .. } = &mut self.frame;
            (rewards[lane], terminated[lane], truncated[lane], ignored[lane]) = (0.0, false, false, false);
        }
        self.show_first(which, todo)?;
        Ok(&self.frame)
    }

    /// Begins an episode in some, and shows it.
    fn show_first(&mut self, which: impl Fn(usize) -> bool, todo: Todo) -> Result<()> {
        self.round(|lane| if which(lane) { todo } else { Todo::Nothing })?;
        for lane in (0..self.lanes.len()).filter(|lane| which(*lane)) {
            (self.lanes[lane], self.frame.first[lane]) = (Lane::default(), true);
            self.check_lane(lane)?;
        }
        Ok(())
    }

    /// Whether what one of them shows can be gone on from.
    fn check_lane(&self, lane: usize) -> Result<()> {
        let (env, Widths { floats, legal, .. }) = (&self.spec.name, self.widths);
        let not_finite = |what, value| Err(EnvError::NotFinite { env: env.to_string(), lane, what, value });
        if !self.frame.rewards[lane].is_finite() {
            return not_finite("reward", self.frame.rewards[lane].into());
        }
        let seen = &self.frame.floats[lane * floats..][..floats];
        if !finite(seen) {
            return not_finite("observation", seen.iter().copied().find(|x| !x.is_finite()).map_or(f64::NAN, f64::from));
        }
        let mut rest = &self.frame.legal[lane * legal..][..legal];
        for classes in &self.columns {
            let (column, others) = rest.split_at(*classes);
            rest = others;
            if !self.lanes[lane].ended && !column.contains(&true) {
                return Err(EnvError::NothingLegal { env: env.to_string(), lane });
            }
        }
        Ok(())
    }

    /// Refuses an action that an environment was not told that it can be given.
    fn check_action(&self, lane: usize, actions: &Actions) -> Result<()> {
        let Widths { columns, numbers, legal, .. } = self.widths;
        let illegal = |action: String, reason: String| Err(EnvError::illegal(action, reason).of(&self.spec.name, lane));
        let (classes, mut mask) = (&actions.classes[lane * columns..][..columns], &self.frame.legal[lane * legal..][..legal]);
        for (column, (class, of)) in classes.iter().zip(&self.columns).enumerate() {
            let (here, rest) = mask.split_at(*of);
            mask = rest;
            match here.get(*class as usize) {
                Some(true) => {}
                Some(false) => return illegal(format!("{classes:?}"), format!("its mask leaves out class {class} of column {column}")),
                None => return illegal(format!("{classes:?}"), format!("expected a class below {of} in column {column}")),
            }
        }
        let chosen = &actions.numbers[lane * numbers..][..numbers];
        match chosen.iter().zip(&self.bounds).position(|(x, [low, high])| !(x.is_finite() && (low..=high).contains(&x))) {
            Some(at) => {
                let [low, high] = self.bounds[at];
                illegal(format!("{chosen:?}"), format!("expected a finite number from {low} to {high} in place {at}"))
            }
            None => Ok(()),
        }
    }

    fn unseeded(&self) -> Result<()> {
        if self.seeded { Ok(()) } else { Err(EnvError::Ended { env: self.spec.name.to_string(), lane: 0 }) }
    }

    /// Clears what belongs to one step.
    fn clear(&mut self) {
        let Frame { first, ignored, episodes, .. } = &mut self.frame;
        first.fill(false);
        ignored.fill(false);
        episodes.clear();
    }
}

impl VectorEnv for Gym {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn lanes(&self) -> usize {
        self.lanes.len()
    }

    fn reset(&mut self, seed: u64) -> Result<&Frame> {
        for process in &mut self.processes {
            let lanes = process.lanes();
            process.seeds().iter_mut().zip(lanes).for_each(|(to, lane)| *to = seed.wrapping_add(lane as u64));
        }
        self.seeded = true;
        self.begin(|_| true, Todo::Seed)
    }

    fn reset_lanes(&mut self, which: &[bool]) -> Result<&Frame> {
        check("flags of environments to reset", self.lanes.len(), which.len())?;
        self.unseeded()?;
        self.begin(|lane| which[lane], Todo::Reset)
    }

    fn step(&mut self, actions: &Actions) -> Result<&Frame> {
        let (n, Widths { columns, numbers, .. }) = (self.lanes.len(), self.widths);
        check("classes of actions", n * columns, actions.classes.len())?;
        check("numbers of actions", n * numbers, actions.numbers.len())?;
        self.unseeded()?;
        // Those whose episode has ended are reset in place of a step.
        let resumed: Vec<bool> = self.lanes.iter().map(|lane| lane.ended).collect();
        for (lane, resumed) in resumed.iter().enumerate() {
            match resumed {
                true if self.autoreset == Autoreset::Disabled => return Err(EnvError::Ended { env: self.spec.name.to_string(), lane }),
                true => {}
                false => self.check_action(lane, actions)?,
            }
        }
        for process in &mut self.processes {
            let lanes = process.lanes();
            let (classes, chosen) =
                (&actions.classes[lanes.start * columns..lanes.end * columns], lanes.start * numbers..lanes.end * numbers);
            process.classes().iter_mut().zip(classes).for_each(|(to, class)| *to = i64::from(*class));
            process.numbers().copy_from_slice(&actions.numbers[chosen]);
        }
        self.clear();
        self.round(|lane| if resumed[lane] { Todo::Reset } else { Todo::Step })?;
        self.advance(&resumed)?;
        if self.autoreset == Autoreset::SameStep && !self.frame.episodes.is_empty() {
            self.begin_again()?;
        }
        Ok(&self.frame)
    }

    fn frame(&self) -> &Frame {
        &self.frame
    }

    fn draw(&self, _: usize) -> Option<Scene> {
        None
    }

    fn resumable(&mut self) -> Option<&mut dyn Resumable> {
        None
    }
}

impl Gym {
    /// Takes over what a step gave beside observations, of those that were not reset in its place.
    fn advance(&mut self, resumed: &[bool]) -> Result<()> {
        for process in &self.processes {
            for (row, number) in process.lanes().enumerate() {
                let (frame, lane) = (&mut self.frame, &mut self.lanes[number]);
                if resumed[number] {
                    *lane = Lane::default();
                    (frame.rewards[number], frame.terminated[number], frame.truncated[number]) = (0.0, false, false);
                    (frame.first[number], frame.ignored[number]) = (true, true);
                } else {
                    let (reward, terminated) = (process.rewards()[row], process.terminated()[row] != 0);
                    // Gymnasium also calls truncated what its limit of steps would have ended, if the game had not.
                    let truncated = process.truncated()[row] != 0 && !terminated;
                    *lane = Lane { steps: lane.steps + 1, reward: lane.reward + reward, ended: terminated || truncated };
                    (frame.rewards[number], frame.terminated[number], frame.truncated[number]) = (reward as f32, terminated, truncated);
                    if lane.ended {
                        frame.episodes.push(Episode { lane: number, reward: lane.reward, steps: lane.steps, terminated });
                    }
                }
            }
        }
        (0..self.lanes.len()).try_for_each(|lane| self.check_lane(lane))
    }

    /// Begins the next episodes in the step that ended the last ones.
    fn begin_again(&mut self) -> Result<()> {
        let ended: Vec<bool> = self.lanes.iter().map(|lane| lane.ended).collect();
        let floats = self.widths.floats;
        for lane in (0..ended.len()).filter(|lane| ended[*lane]) {
            let row = lane * floats..(lane + 1) * floats;
            self.frame.final_floats[row.clone()].copy_from_slice(&self.frame.floats[row]);
        }
        self.show_first(|lane| ended[lane], Todo::Reset)
    }
}

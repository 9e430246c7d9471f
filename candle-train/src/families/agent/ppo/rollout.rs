//! Playing: environments, the engine's runners of actor and critic, and what they went through.

use super::advantage::{self, advantages};
use crate::episodes::failed;
use candle_core::{Device, Tensor};
use candle_envs::{Actions, Frame, Spec, VectorEnv};
use candle_models::agent::{Component, Observation};
use candle_models::engine::{Model, Runner};
use candle_models::random::{Random, categorical};
use candle_models::signature::TensorSpec;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

/// An input that environments show: its name, and where it lies in their rows of floats or of indices.
#[derive(Debug, Clone)]
struct Shown {
    spec: TensorSpec,
    columns: Range<usize>,
    ids: bool,
}

/// What is known of the environments of a run.
#[derive(Debug, Clone)]
pub struct Game {
    /// What they show and take.
    pub spec: Spec,
    shown: Vec<Shown>,
    /// The class that stands for the action before the first step, in every column.
    neutral: Vec<u32>,
    /// Bounds of each number.
    bounds: Vec<[f32; 2]>,
}

impl Game {
    /// Of environments of that kind.
    pub fn new(spec: Spec) -> Self {
        let mut ends = [0, 0];
        let shown = spec.observation.iter().map(|input| {
            let (ids, spec) = (matches!(input, Observation::Ids { .. }), input.spec());
            let end = &mut ends[usize::from(ids)];
            *end += spec.width();
            Shown { columns: *end - spec.width()..*end, spec, ids }
        });
        let shown = shown.collect();
        let neutral = spec.action.iter().flat_map(|component| vec![component.neutral(); component.columns()]).collect();
        let bounds = spec.action.iter().flat_map(|component| {
            let bounds = component.gaussian().map(|gaussian| [gaussian.low, gaussian.high]);
            vec![bounds.unwrap_or([f32::NEG_INFINITY, f32::INFINITY]); component.numbers()]
        });
        let bounds = bounds.collect();
        Self { spec, shown, neutral, bounds }
    }
}

/// One network that plays along, all lanes in step.
pub struct Player {
    runner: Runner,
    /// Whether it wants to know the last action.
    knows_last: bool,
}

impl Player {
    /// A network with that state, over so many lanes.
    ///
    /// # Errors
    /// If the network cannot be run, or wants an input that environments do not show.
    pub fn new(model: Arc<dyn Model>, game: &Game, lanes: usize, state: Option<&NamedTensors>) -> Result<Self> {
        let knows_last = model.signature().inputs.iter().any(|spec| spec.name == "previous_action");
        for spec in model.signature().inputs.iter().filter(|spec| spec.is_required()) {
            if !game.shown.iter().any(|shown| shown.spec.name == spec.name) {
                let shown = game.shown.iter().map(|shown| shown.spec.name.as_str()).collect::<Vec<_>>().join(", ");
                return Err(Error::tensor(&spec.name, format!("one of what {} shows: {shown}", game.spec.name), "a network that reads it"));
            }
        }
        let mut runner = Runner::new(model, lanes, rayon::current_num_threads())?;
        if let Some(state) = state {
            runner.restore(state)?;
        }
        Ok(Self { runner, knows_last })
    }

    /// Shows it what the environments show, and the last actions.
    fn see(&mut self, game: &Game, frame: &Frame, last: &[u32]) -> Result<()> {
        let (lanes, floats, ids) = (frame.players.len(), game.spec.floats(), game.spec.ids());
        for lane in 0..lanes {
            for shown in &game.shown {
                let (name, columns) = (&shown.spec.name, shown.columns.clone());
                match shown.ids {
                    true => self.runner.indices_mut(name, lane)?.copy_from_slice(&frame.ids[lane * ids..][columns]),
                    false => self.runner.floats_mut(name, lane)?.copy_from_slice(&frame.floats[lane * floats..][columns]),
                }
            }
            if self.knows_last {
                let columns = game.neutral.len();
                self.runner.indices_mut("previous_action", lane)?.copy_from_slice(&last[lane * columns..][..columns]);
            }
        }
        Ok(())
    }
}

/// How actions are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Choice {
    /// The most likely class, the mean number.
    Greedy,
    /// Drawn.
    Sample,
}

/// An actor in its environments: sees, chooses, remembers its last actions.
pub struct Acting<'a> {
    game: &'a Game,
    player: Player,
    /// Classes of the last actions `[lanes, columns]`.
    last: Vec<u32>,
    drawn: Vec<f32>,
}

/// What was chosen in a step.
#[derive(Debug, Default)]
pub struct Chosen {
    /// What the environments get: numbers within bounds.
    pub actions: Actions,
    /// The numbers as they were drawn.
    pub raw: Vec<f32>,
    /// The distributions that they were drawn from: logits of classes, means and logarithms of deviations of numbers, lane by lane.
    pub distributions: [Vec<f32>; 2],
}

impl<'a> Acting<'a> {
    /// An actor that has just seen the actions `last`, `[lanes, columns]`; without them it begins.
    pub fn new(game: &'a Game, player: Player, lanes: usize, last: Option<Vec<u32>>) -> Self {
        let last = last.unwrap_or_else(|| game.neutral.repeat(lanes));
        Self { game, player, last, drawn: Vec::new() }
    }

    /// The state of its network.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn state(&mut self) -> Result<NamedTensors> {
        self.player.runner.save()
    }

    /// The classes of the last actions, those of a lane that begins anew neutral.
    pub fn last(&mut self, frame: &Frame) -> &[u32] {
        let columns = self.game.neutral.len();
        for (lane, _) in frame.first.iter().enumerate().filter(|(_, first)| **first) {
            self.last[lane * columns..][..columns].copy_from_slice(&self.game.neutral);
        }
        &self.last
    }

    /// Chooses actions for what the environments show; `random` is this step's address, the same for a lane however many there are beside it.
    ///
    /// # Errors
    /// If a class cannot be chosen and the network's heads do not know, or it cannot be run.
    pub fn choose(&mut self, frame: &Frame, choice: Choice, random: impl Fn(usize) -> Random) -> Result<Chosen> {
        self.last(frame);
        let (game, lanes) = (self.game, frame.players.len());
        self.player.see(game, frame, &self.last)?;
        let (columns, numbers, classes) = (game.neutral.len(), game.bounds.len(), game.spec.classes());
        self.drawn.resize(columns + numbers, -1.0);
        for lane in 0..lanes {
            if choice == Choice::Sample {
                random(lane).fill_uniform(0, &mut self.drawn);
            }
            self.player.runner.floats_mut("uniform", lane)?.copy_from_slice(&self.drawn);
        }
        self.player.runner.step(&frame.first)?;
        let mut chosen = Chosen::default();
        for lane in 0..lanes {
            let legal = &frame.legal[lane * classes..][..classes];
            if columns > 0 {
                let own = self.player.runner.indices("action", lane)?;
                match legal.contains(&false) && !frame.terminated[lane] {
                    true => {
                        let uniform = if choice == Choice::Sample { random(lane).uniform(0) } else { -1.0 };
                        chosen.actions.classes.push(legal_class(&game.spec, self.player.runner.floats("logits", lane)?, legal, uniform)?);
                    }
                    false => chosen.actions.classes.extend_from_slice(own),
                }
            }
            for (output, there, to) in [("logits", columns, 0), ("gaussian", numbers, 1)] {
                if there > 0 {
                    chosen.distributions[to].extend_from_slice(self.player.runner.floats(output, lane)?);
                }
            }
            for component in game.spec.action.iter().filter(|component| component.numbers() > 0) {
                chosen.raw.extend_from_slice(self.player.runner.floats(component.name(), lane)?);
            }
        }
        let within = |(i, x): (usize, &f32)| x.clamp(game.bounds[i % numbers][0], game.bounds[i % numbers][1]);
        chosen.actions.numbers = chosen.raw.iter().enumerate().map(within).collect();
        self.last.copy_from_slice(&chosen.actions.classes);
        Ok(chosen)
    }
}

/// A class that can be chosen, where a network did not know which those are.
fn legal_class(spec: &Spec, logits: &[f32], legal: &[bool], uniform: f32) -> Result<u32> {
    let [Component::Discrete { .. }] = &spec.action[..] else {
        let reason = format!("{}: some classes cannot be chosen, which an action of several components does not know", spec.name);
        return Err(Error::config("env", reason));
    };
    // Two classes have one logit, that of class 1 against class 0.
    let logits = if let [one] = logits { &[0.0, *one][..] } else { logits };
    let allowed = |class: &usize| legal[*class];
    let best = (0..logits.len()).filter(allowed).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
    let Some(best) = best else { return Ok(0) };
    if uniform < 0.0 {
        return Ok(best as u32);
    }
    let share = |class: usize| if legal[class] { (logits[class] - logits[best]).exp() } else { 0.0 };
    Ok(categorical(uniform, (0..logits.len()).map(share)) as u32)
}

/// What `lanes` environments went through in `steps` steps, lane by lane.
#[derive(Debug, Clone, Default)]
pub struct Rollout {
    /// Lanes.
    pub lanes: usize,
    /// Steps of each.
    pub steps: usize,
    floats: Vec<f32>,
    ids: Vec<u32>,
    last: Vec<u32>,
    classes: Vec<u32>,
    numbers: Vec<f32>,
    /// Of the policy that played.
    logits: Vec<f32>,
    gaussian: Vec<f32>,
    /// What is added to logits; empty where everything could be chosen.
    mask: Vec<f32>,
    rewards: Vec<f32>,
    terminated: Vec<bool>,
    truncated: Vec<bool>,
    first: Vec<bool>,
    ignored: Vec<bool>,
    /// `[lanes, steps + 1]`.
    values: Vec<f32>,
    advantages: Vec<f32>,
    /// The states of actor, critic and teacher before the first step.
    states: Vec<NamedTensors>,
}

/// Episodes that ended in a rollout: their rewards and steps.
pub type Ended = Vec<candle_envs::Episode>;

/// Added to the logit of a class that cannot be chosen.
const NEVER: f32 = -1e9;

impl Rollout {
    /// Lets an actor play on while a critic, and where there is one a teacher, watch. Their states, and the actor's last actions, are those that the
    /// rollout before left in `carried`.
    ///
    /// # Errors
    /// If an environment or a network fails.
    pub fn play(
        game: &Game,
        [actor, critic]: [Arc<dyn Model>; 2],
        teacher: Option<Arc<dyn Model>>,
        (envs, carried): (&mut dyn VectorEnv, &mut Carried),
        (steps, random): (usize, &dyn Fn(usize, usize) -> Random),
    ) -> Result<(Self, Ended)> {
        let lanes = envs.lanes();
        let mut rollout = Self { lanes, steps, states: carried.states.clone(), ..Self::default() };
        rollout.allocate(game);
        let player = |model, i: usize| Player::new(model, game, lanes, carried.states.get(i));
        let (actor, mut critic) = (player(actor, 0)?, player(critic, 1)?);
        // What a teacher without memory says of a step can be asked when it is needed.
        let mut teacher = teacher.filter(|teacher| !teacher.signature().state.is_empty()).map(|model| player(model, 2)).transpose()?;
        let mut acting = Acting::new(game, actor, lanes, carried.last.take());
        let mut ended = Vec::new();
        for t in 0..steps {
            rollout.value(&mut critic, game, (envs.frame(), acting.last(envs.frame())), t)?;
            if let Some(teacher) = &mut teacher {
                teacher.see(game, envs.frame(), acting.last(envs.frame()))?;
                teacher.runner.step(&envs.frame().first)?;
            }
            rollout.see(game, envs.frame(), acting.last(envs.frame()), t);
            let chosen = acting.choose(envs.frame(), Choice::Sample, |lane| random(t, lane))?;
            let frame = envs.step(&chosen.actions).map_err(failed)?;
            rollout.done(game, frame, &chosen, t);
            ended.extend_from_slice(&frame.episodes);
        }
        let teacher = teacher.as_mut().map_or_else(|| Ok(NamedTensors::new()), |teacher| teacher.runner.save())?;
        carried.states = vec![acting.state()?, critic.runner.save()?, teacher];
        let last = acting.last(envs.frame()).to_vec();
        rollout.value(&mut critic, game, (envs.frame(), &last), steps)?;
        carried.last = Some(last);
        Ok((rollout, ended))
    }

    fn allocate(&mut self, game: &Game) {
        let (n, spec) = (self.lanes * self.steps, &game.spec);
        self.floats = vec![0.0; n * spec.floats()];
        self.ids = vec![0; n * spec.ids()];
        (self.last, self.classes) = (vec![0; n * spec.columns()], vec![0; n * spec.columns()]);
        (self.numbers, self.gaussian) = (vec![0.0; n * spec.numbers()], vec![0.0; n * 2 * spec.numbers()]);
        self.logits = vec![0.0; n * spec.action.iter().map(|component| component.choice(0).logits()).sum::<usize>()];
        (self.rewards, self.advantages) = (vec![0.0; n], vec![0.0; n]);
        self.values = vec![0.0; n + self.lanes];
        for flags in [&mut self.terminated, &mut self.truncated, &mut self.first, &mut self.ignored] {
            *flags = vec![false; n];
        }
    }

    /// What the critic says of what the environments show.
    fn value(&mut self, critic: &mut Player, game: &Game, (frame, last): (&Frame, &[u32]), t: usize) -> Result<()> {
        critic.see(game, frame, last)?;
        critic.runner.step(&frame.first)?;
        for lane in 0..self.lanes {
            self.values[lane * (self.steps + 1) + t] = critic.runner.floats("gaussian", lane)?[0];
        }
        Ok(())
    }

    fn see(&mut self, game: &Game, frame: &Frame, last: &[u32], t: usize) {
        let (steps, spec) = (self.steps, &game.spec);
        for lane in 0..self.lanes {
            let row = lane * steps + t;
            copy(&mut self.floats, row, &frame.floats, lane, spec.floats());
            copy(&mut self.ids, row, &frame.ids, lane, spec.ids());
            copy(&mut self.last, row, last, lane, spec.columns());
            self.first[row] = frame.first[lane];
        }
        if frame.legal.contains(&false) {
            let logits = mask_of(spec, &frame.legal);
            let width = logits.len() / self.lanes;
            self.mask.resize(self.lanes * steps * width, 0.0);
            (0..self.lanes).for_each(|lane| copy(&mut self.mask, lane * steps + t, &logits, lane, width));
        }
    }

    fn done(&mut self, game: &Game, frame: &Frame, chosen: &Chosen, t: usize) {
        for lane in 0..self.lanes {
            let row = lane * self.steps + t;
            copy(&mut self.classes, row, &chosen.actions.classes, lane, game.spec.columns());
            copy(&mut self.numbers, row, &chosen.raw, lane, game.spec.numbers());
            for (to, from) in [&mut self.logits, &mut self.gaussian].into_iter().zip(&chosen.distributions) {
                copy(to, row, from, lane, from.len() / self.lanes);
            }
            self.rewards[row] = frame.rewards[lane];
            (self.terminated[row], self.truncated[row], self.ignored[row]) =
                (frame.terminated[lane], frame.truncated[lane], frame.ignored[lane]);
        }
    }

    /// Says how much better than expected every step was, with rewards divided by `scale`.
    pub fn estimate(&mut self, scale: f32, discount: f64, decay: f64) {
        self.rewards.iter_mut().for_each(|reward| *reward /= scale);
        let steps = self.steps;
        for lane in 0..self.lanes {
            let rows = lane * steps..(lane + 1) * steps;
            let seen = advantage::Lane {
                rewards: &self.rewards[rows.clone()],
                values: &self.values[lane * (steps + 1)..][..steps + 1],
                terminated: &self.terminated[rows.clone()],
                truncated: &self.truncated[rows.clone()],
                ignored: &self.ignored[rows.clone()],
            };
            advantages(seen, discount, decay, &mut self.advantages[rows]);
        }
    }

    /// Rewards of a lane, and whether its episodes ended, step by step.
    pub fn rewards(&self, lane: usize) -> impl Iterator<Item = (f32, bool)> {
        let rows = lane * self.steps..(lane + 1) * self.steps;
        rows.map(|row| (self.rewards[row], self.terminated[row] || self.truncated[row]))
    }

    /// Steps in which something was done.
    pub fn samples(&self) -> usize {
        self.ignored.iter().filter(|ignored| !**ignored).count()
    }

    /// Some of its sequences as a batch: whole lanes, or with `length` 1 single steps.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn batch(&self, game: &Game, sequences: &[u32], length: usize) -> Result<Minibatch> {
        let rows: Vec<usize> = sequences.iter().flat_map(|s| *s as usize * length..(*s as usize + 1) * length).collect();
        let (n, shape) = (rows.len(), (sequences.len(), length));
        let mut inputs = NamedTensors::new();
        for shown in &game.shown {
            let (columns, width) = (shown.columns.clone(), shown.columns.len());
            let tensor = match shown.ids {
                true => sequence(gather(&self.ids, &rows, game.spec.ids(), columns), (shape, width))?,
                false => sequence(gather(&self.floats, &rows, game.spec.floats(), columns), (shape, width))?,
            };
            // A shape of its own behind lanes and steps.
            let whole: Vec<usize> = [shape.0, shape.1].into_iter().chain(shown.spec.shape.iter().copied()).collect();
            inputs.insert(shown.spec.name.clone(), tensor.reshape(whole)?);
        }
        let columns = game.spec.columns();
        let all = |values: &[u32]| gather(values, &rows, columns, 0..columns);
        let (last, classes) = (sequence(all(&self.last), (shape, columns))?, sequence(all(&self.classes), (shape, columns))?);
        let numbers = game.spec.numbers();
        let numbers = Tensor::from_vec(gather(&self.numbers, &rows, numbers, 0..numbers), (n, numbers), &Device::Cpu)?;
        let mask = match self.mask.len() / (self.lanes * self.steps).max(1) {
            0 => None,
            width => Some(Tensor::from_vec(gather(&self.mask, &rows, width, 0..width), (n, width), &Device::Cpu)?),
        };
        let mut played = NamedTensors::new();
        for (name, values) in [("logits", &self.logits), ("gaussian", &self.gaussian)] {
            let width = values.len() / (self.lanes * self.steps).max(1);
            played.insert(name, Tensor::from_vec(gather(values, &rows, width, 0..width), (n, width), &Device::Cpu)?);
        }
        let resets = rows.iter().map(|row| self.first[*row]).collect();
        let counts = rows.iter().map(|row| !self.ignored[*row]).collect();
        let values = rows.iter().map(|row| self.values[row + row / self.steps]).collect();
        let whole = |state: &NamedTensors| if length == 1 { Ok(NamedTensors::new()) } else { state.gather_rows(sequences) };
        let states = self.states.iter().map(whole).collect::<Result<_>>()?;
        let advantages = rows.iter().map(|row| self.advantages[*row]).collect();
        Ok(Minibatch { inputs, last, classes, numbers, played, mask, resets, counts, values, advantages, states })
    }

    /// As a checkpoint keeps it: tensors with the lanes as their first axis.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn save(&self) -> Result<NamedTensors> {
        let mut saved = NamedTensors::new();
        let mut floats = |name: &str, values: &[f32]| -> Result<()> {
            saved.insert(name, Tensor::from_slice(values, (self.lanes, values.len() / self.lanes), &Device::Cpu)?);
            Ok(())
        };
        let flags = |flags: &[bool]| flags.iter().map(|flag| f32::from(u8::from(*flag))).collect::<Vec<_>>();
        for (name, values) in [
            ("floats", &self.floats),
            ("numbers", &self.numbers),
            ("logits", &self.logits),
            ("gaussian", &self.gaussian),
            ("mask", &self.mask),
            ("rewards", &self.rewards),
            ("values", &self.values),
            ("advantages", &self.advantages),
        ] {
            floats(name, values)?;
        }
        for (name, values) in
            [("terminated", &self.terminated), ("truncated", &self.truncated), ("first", &self.first), ("ignored", &self.ignored)]
        {
            floats(name, &flags(values))?;
        }
        for (name, values) in [("ids", &self.ids), ("last", &self.last), ("classes", &self.classes)] {
            saved.insert(name, Tensor::from_slice(values, (self.lanes, values.len() / self.lanes), &Device::Cpu)?);
        }
        for (state, whose) in self.states.iter().zip(WHOSE) {
            state.iter().for_each(|(name, tensor)| {
                saved.insert(format!("{whose}{name}"), tensor.clone());
            });
        }
        Ok(saved)
    }

    /// What [`save`](Self::save) gave.
    ///
    /// # Errors
    /// If it is nothing of that kind.
    pub fn restore(saved: &NamedTensors, game: &Game, (lanes, steps): (usize, usize)) -> Result<Self> {
        let mut rollout = Self { lanes, steps, ..Self::default() };
        rollout.allocate(game);
        let floats = |name: &str, length: Option<usize>| -> Result<Vec<f32>> {
            let values = saved.get(name)?.flatten_all()?.to_vec1::<f32>()?;
            match length.filter(|length| *length != values.len()) {
                Some(length) => Err(Error::tensor(name, format!("{length} values"), values.len())),
                None => Ok(values),
            }
        };
        for (name, values) in [
            ("floats", &mut rollout.floats),
            ("numbers", &mut rollout.numbers),
            ("logits", &mut rollout.logits),
            ("gaussian", &mut rollout.gaussian),
            ("rewards", &mut rollout.rewards),
            ("values", &mut rollout.values),
            ("advantages", &mut rollout.advantages),
        ] {
            *values = floats(name, Some(values.len()))?;
        }
        rollout.mask = floats("mask", None)?;
        for (name, flags) in [
            ("terminated", &mut rollout.terminated),
            ("truncated", &mut rollout.truncated),
            ("first", &mut rollout.first),
            ("ignored", &mut rollout.ignored),
        ] {
            *flags = floats(name, Some(flags.len()))?.into_iter().map(|flag| flag > 0.5).collect();
        }
        for (name, values) in [("ids", &mut rollout.ids), ("last", &mut rollout.last), ("classes", &mut rollout.classes)] {
            let found = saved.get(name)?.flatten_all()?.to_vec1::<u32>()?;
            if found.len() != values.len() {
                return Err(Error::tensor(name, format!("{} values", values.len()), found.len()));
            }
            *values = found;
        }
        rollout.states = WHOSE.map(|whose| part(saved, whose)).to_vec();
        Ok(rollout)
    }
}

/// How the states of actor, critic and teacher are called in checkpoints.
const WHOSE: [&str; 3] = ["actor.", "critic.", "teacher."];

/// The tensors whose names begin so, without that.
fn part(saved: &NamedTensors, prefix: &str) -> NamedTensors {
    saved.iter().filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))).collect()
}

/// What goes on from rollout to rollout beside the environments.
#[derive(Debug, Clone, Default)]
pub struct Carried {
    /// The states of actor, critic and teacher; none before the first rollout.
    pub states: Vec<NamedTensors>,
    /// The actor's last actions, likewise.
    pub last: Option<Vec<u32>>,
}

impl Carried {
    /// As a checkpoint keeps it, lanes first.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn save(&self, lanes: usize) -> Result<NamedTensors> {
        let mut saved = NamedTensors::new();
        for (state, whose) in self.states.iter().zip(WHOSE) {
            state.iter().for_each(|(name, tensor)| {
                saved.insert(format!("carried.{whose}{name}"), tensor.clone());
            });
        }
        if let Some(last) = &self.last {
            saved.insert("carried.last", Tensor::from_slice(last, (lanes, last.len() / lanes), &Device::Cpu)?);
        }
        Ok(saved)
    }

    /// What [`save`](Self::save) gave.
    ///
    /// # Errors
    /// If it is nothing of that kind.
    pub fn restore(saved: &NamedTensors) -> Result<Self> {
        let saved = part(saved, "carried.");
        let last = if saved.contains("last") { Some(saved.get("last")?.flatten_all()?.to_vec1()?) } else { None };
        let states = if last.is_some() { WHOSE.map(|whose| part(&saved, whose)).to_vec() } else { Vec::new() };
        Ok(Self { states, last })
    }
}

/// Sequences of a rollout, `[sequences, length]`, on the host.
#[derive(Debug)]
pub struct Minibatch {
    /// What the environments showed.
    pub inputs: NamedTensors,
    /// The classes of the action before, `[sequences, length, columns]`.
    pub last: Tensor,
    /// The classes that were chosen.
    pub classes: Tensor,
    /// The numbers that were drawn, `[rows, numbers]`.
    pub numbers: Tensor,
    /// The outputs `logits` and `gaussian` of the policy that played, `[rows, ...]`.
    pub played: NamedTensors,
    /// What is added to the logits, `[rows, logits]`, where not everything could be chosen.
    pub mask: Option<Tensor>,
    /// Whether a row is the first of an episode.
    pub resets: Vec<bool>,
    /// Whether something was done: other rows count nothing.
    pub counts: Vec<bool>,
    /// What the critic said.
    pub values: Vec<f32>,
    /// How much better than expected it was.
    pub advantages: Vec<f32>,
    /// The states of actor, critic and teacher before the first step; of single steps none.
    pub states: Vec<NamedTensors>,
}

/// What is added to logits where classes cannot be chosen; of two classes, which have one logit, the other one is made certain.
fn mask_of(spec: &Spec, legal: &[bool]) -> Vec<f32> {
    let (mut mask, mut start) = (Vec::new(), 0);
    while start < legal.len() {
        for component in &spec.action {
            for _ in 0..component.columns() {
                let column = &legal[start..][..component.classes()];
                start += column.len();
                match column {
                    [zero, one] => mask.push(if !one {
                        NEVER
                    } else if !zero {
                        -NEVER
                    } else {
                        0.0
                    }),
                    _ => mask.extend(column.iter().map(|legal| if *legal { 0.0 } else { NEVER })),
                }
            }
        }
    }
    mask
}

fn copy<T: Copy>(to: &mut [T], row: usize, from: &[T], lane: usize, width: usize) {
    to[row * width..][..width].copy_from_slice(&from[lane * width..][..width]);
}

/// Some columns of some rows of `width` values.
fn gather<T: Copy>(values: &[T], rows: &[usize], width: usize, columns: Range<usize>) -> Vec<T> {
    rows.iter().flat_map(|row| &values[row * width..][columns.clone()]).copied().collect()
}

fn sequence<T: candle_core::WithDType>(values: Vec<T>, ((sequences, length), width): ((usize, usize), usize)) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, (sequences, length, width), &Device::Cpu)?)
}

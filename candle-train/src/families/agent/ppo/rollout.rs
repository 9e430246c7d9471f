//! What an actor went through in environments while a critic watched.

use super::acting::{Acting, Chosen, Game, Manner, Player};
use super::advantage::{self, advantages};
use crate::episodes::failed;
use candle_core::{Device, Tensor};
use candle_envs::{Episode, Frame, Input, Spec, VectorEnv};
use candle_models::engine::Model;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use std::ops::Range;
use std::sync::Arc;

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
        (envs, carried): (&mut dyn VectorEnv, &mut Ongoing),
        (steps, random): (usize, &dyn Fn(usize, usize) -> Random),
    ) -> Result<(Self, Vec<Episode>)> {
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
                teacher.watch(game, envs.frame(), acting.last(envs.frame()))?;
            }
            rollout.see(game, envs.frame(), acting.last(envs.frame()), t);
            let chosen = acting.choose(envs.frame(), Manner::Sample, |lane| random(t, lane))?;
            let frame = envs.step(&chosen.actions).map_err(failed)?;
            rollout.done(game, frame, &chosen, t);
            ended.extend_from_slice(&frame.episodes);
        }
        let teacher = teacher.as_mut().map_or_else(|| Ok(NamedTensors::new()), Player::state)?;
        carried.states = vec![acting.state()?, critic.state()?, teacher];
        let last = acting.last(envs.frame()).to_vec();
        rollout.value(&mut critic, game, (envs.frame(), &last), steps)?;
        carried.last = Some(last);
        Ok((rollout, ended))
    }

    fn allocate(&mut self, game: &Game) {
        let (n, [floats, ids, _], [columns, numbers]) = (self.lanes * self.steps, game.widths, game.action());
        (self.floats, self.ids) = (vec![0.0; n * floats], vec![0; n * ids]);
        (self.last, self.classes) = (vec![0; n * columns], vec![0; n * columns]);
        (self.numbers, self.gaussian) = (vec![0.0; n * numbers], vec![0.0; n * 2 * numbers]);
        self.logits = vec![0.0; n * game.spec.action.iter().map(|component| component.choice(0).logits()).sum::<usize>()];
        (self.rewards, self.advantages) = (vec![0.0; n], vec![0.0; n]);
        self.values = vec![0.0; n + self.lanes];
        for flags in [&mut self.terminated, &mut self.truncated, &mut self.first, &mut self.ignored] {
            *flags = vec![false; n];
        }
    }

    /// What the critic says of what the environments show.
    fn value(&mut self, critic: &mut Player, game: &Game, (frame, last): (&Frame, &[u32]), t: usize) -> Result<()> {
        let said = critic.watch(game, frame, last)?;
        for lane in 0..self.lanes {
            self.values[lane * (self.steps + 1) + t] = said.floats("gaussian", lane)?[0];
        }
        Ok(())
    }

    fn see(&mut self, game: &Game, frame: &Frame, last: &[u32], t: usize) {
        let (steps, [floats, ids, _], [columns, _]) = (self.steps, game.widths, game.action());
        for lane in 0..self.lanes {
            let row = lane * steps + t;
            copy(&mut self.floats, row, &frame.floats, lane, floats);
            copy(&mut self.ids, row, &frame.ids, lane, ids);
            copy(&mut self.last, row, last, lane, columns);
            self.first[row] = frame.first[lane];
        }
        if frame.legal.contains(&false) {
            let logits = mask_of(&game.spec, &frame.legal);
            let width = logits.len() / self.lanes;
            self.mask.resize(self.lanes * steps * width, 0.0);
            (0..self.lanes).for_each(|lane| copy(&mut self.mask, lane * steps + t, &logits, lane, width));
        }
    }

    fn done(&mut self, game: &Game, frame: &Frame, chosen: &Chosen, t: usize) {
        let [columns, numbers] = game.action();
        for lane in 0..self.lanes {
            let row = lane * self.steps + t;
            copy(&mut self.classes, row, &chosen.actions.classes, lane, columns);
            copy(&mut self.numbers, row, &chosen.raw, lane, numbers);
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

    /// Some of its sequences as a batch: whole lanes, or with `length` 1 single steps.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn batch(&self, game: &Game, sequences: &[u32], length: usize) -> Result<Minibatch> {
        let rows: Vec<usize> = sequences.iter().flat_map(|s| *s as usize * length..(*s as usize + 1) * length).collect();
        let (n, shape) = (rows.len(), (sequences.len(), length));
        let mut inputs = NamedTensors::new();
        let ([floats, ids, _], [columns, numbers]) = (game.widths, game.action());
        for Input { spec, ids: is_ids, columns } in &game.inputs {
            let (columns, width) = (columns.clone(), columns.len());
            let tensor = match is_ids {
                true => sequence(gather(&self.ids, &rows, ids, columns), (shape, width))?,
                false => sequence(gather(&self.floats, &rows, floats, columns), (shape, width))?,
            };
            // A shape of its own behind lanes and steps.
            let whole: Vec<usize> = [shape.0, shape.1].into_iter().chain(spec.shape.iter().copied()).collect();
            inputs.insert(spec.name.clone(), tensor.reshape(whole)?);
        }
        let all = |values: &[u32]| gather(values, &rows, columns, 0..columns);
        let (last, classes) = (sequence(all(&self.last), (shape, columns))?, sequence(all(&self.classes), (shape, columns))?);
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
        // Of networks that remember nothing they are empty.
        let states = self.states.iter().map(|state| state.gather_rows(sequences)).collect::<Result<_>>()?;
        let advantages = rows.iter().map(|row| self.advantages[*row]).collect();
        Ok(Minibatch { inputs, last, classes, numbers, played, mask, resets, counts, values, advantages, states })
    }

    /// Its arrays by the names that checkpoints have for them.
    fn arrays(&mut self) -> Arrays<'_> {
        Arrays {
            floats: [
                ("floats", &mut self.floats),
                ("numbers", &mut self.numbers),
                ("logits", &mut self.logits),
                ("gaussian", &mut self.gaussian),
                ("mask", &mut self.mask),
                ("rewards", &mut self.rewards),
                ("values", &mut self.values),
                ("advantages", &mut self.advantages),
            ],
            flags: [
                ("terminated", &mut self.terminated),
                ("truncated", &mut self.truncated),
                ("first", &mut self.first),
                ("ignored", &mut self.ignored),
            ],
            indices: [("ids", &mut self.ids), ("last", &mut self.last), ("classes", &mut self.classes)],
        }
    }

    /// As a checkpoint keeps it: tensors with the lanes as their first axis.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub fn save(&mut self) -> Result<NamedTensors> {
        let (lanes, mut saved) = (self.lanes, NamedTensors::new());
        for (state, whose) in self.states.iter().zip(WHOSE) {
            state.iter().for_each(|(name, tensor)| drop(saved.insert(format!("{whose}{name}"), tensor.clone())));
        }
        let Arrays { floats, flags, indices } = self.arrays();
        for (name, values) in floats {
            saved.insert(name, Tensor::from_slice(values, (lanes, values.len() / lanes), &Device::Cpu)?);
        }
        for (name, flags) in flags {
            let flags: Vec<u8> = flags.iter().map(|flag| u8::from(*flag)).collect();
            saved.insert(name, Tensor::from_slice(&flags, (lanes, flags.len() / lanes), &Device::Cpu)?);
        }
        for (name, values) in indices {
            saved.insert(name, Tensor::from_slice(values, (lanes, values.len() / lanes), &Device::Cpu)?);
        }
        Ok(saved)
    }

    /// What [`save`](Self::save) gave.
    ///
    /// # Errors
    /// If it is nothing of that kind.
    pub fn restore(saved: &NamedTensors, game: &Game, (lanes, steps): (usize, usize)) -> Result<Self> {
        let mut rollout = Self { lanes, steps, states: WHOSE.map(|whose| part(saved, whose)).to_vec(), ..Self::default() };
        rollout.allocate(game);
        let Arrays { floats, flags, indices } = rollout.arrays();
        for (name, values) in floats {
            // A mask is there only where not everything could be chosen.
            let sized = if name == "mask" { saved.get(name)?.elem_count() } else { values.len() };
            *values = taken(saved, name, sized)?;
        }
        for (name, flags) in flags {
            *flags = taken::<u8>(saved, name, flags.len())?.into_iter().map(|flag| flag != 0).collect();
        }
        for (name, values) in indices {
            *values = taken(saved, name, values.len())?;
        }
        Ok(rollout)
    }
}

/// The arrays of a rollout by name.
struct Arrays<'a> {
    floats: [(&'static str, &'a mut Vec<f32>); 8],
    flags: [(&'static str, &'a mut Vec<bool>); 4],
    indices: [(&'static str, &'a mut Vec<u32>); 3],
}

/// So many values of a checkpoint.
fn taken<T: candle_core::WithDType>(saved: &NamedTensors, name: &str, n: usize) -> Result<Vec<T>> {
    let found = saved.get(name)?.flatten_all()?.to_vec1::<T>()?;
    if found.len() == n { Ok(found) } else { Err(Error::tensor(name, format!("{n} values"), found.len())) }
}

/// How the states of actor, critic and teacher are called in checkpoints.
const WHOSE: [&str; 3] = ["actor.", "critic.", "teacher."];

/// The tensors whose names begin so, without that.
fn part(saved: &NamedTensors, prefix: &str) -> NamedTensors {
    saved.iter().filter_map(|(name, tensor)| Some((name.strip_prefix(prefix)?.to_owned(), tensor.clone()))).collect()
}

/// What goes on from rollout to rollout beside the environments.
#[derive(Debug, Clone, Default)]
pub struct Ongoing {
    /// The states of actor, critic and teacher; none before the first rollout.
    pub states: Vec<NamedTensors>,
    /// The actor's last actions, likewise.
    pub last: Option<Vec<u32>>,
}

impl Ongoing {
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

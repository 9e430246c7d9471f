//! The clipped objective as a [`Task`]: rollouts in, losses of actor and critic out.
//!
//! A batch is a number: the rollout that it belongs to is played when its first batch is asked for its loss, with that step's parameters.

use super::acting::Game;
use super::config::{RunConfig, VALUE};
use super::evaluate;
use super::rollout::{Minibatch, Ongoing, Rollout};
use crate::agent::distribution::Distribution;
use crate::checkpoint::{SavedFiles, StateFiles};
use crate::episodes::{self, Recent, Resumed};
use crate::optim::ParameterGroup;
use crate::parallel::{Communicator, gather, share};
use crate::summary::Summary;
use crate::task::{Context, Evaluation, Loss, Metric, StepDone, Task, TaskState};
use candle_core::{D, Device, Tensor};
use candle_envs::{Entry, Spec, VectorEnv};
use candle_models::agent::{Agent, AgentConfig, Component};
use candle_models::engine::Model;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// The group of the critic's parameters.
pub const CRITIC: &str = "critic";

/// Makes the actor's network of its parameters.
pub type Build = Arc<dyn Fn(&Params) -> Result<Arc<dyn Model>> + Send + Sync>;

/// The critic: an agent whose one number is the value.
pub fn critic(config: &RunConfig, spec: &Spec) -> AgentConfig {
    let value = Component::Gaussian { name: VALUE.to_owned(), columns: 1, low: None, high: None };
    config.critic.agent(spec, vec![value])
}

/// An actor learning from what it does.
pub struct Ppo {
    config: RunConfig,
    entry: Entry,
    game: Game,
    envs: Box<dyn VectorEnv>,
    build: Build,
    critic: AgentConfig,
    teacher: Option<Arc<dyn Model>>,
    device: Device,
    /// This rank's first lane.
    first_lane: usize,
    carried: Ongoing,
    rollout: Rollout,
    /// The running return of each lane.
    returns: Vec<f32>,
    course: Course,
    /// Floating-point operations of a step in an update, forward and backward.
    operations: f64,
}

/// How far a run is, beside tensors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Course {
    /// Rollouts that have been played.
    rollouts: u64,
    /// Whether the actor is left alone until the next one: it has moved far enough.
    far: bool,
    recent: Recent,
    scale: Scale,
}

/// The standard deviation of discounted returns, which rewards are divided by: a critic's loss is then of the order of one whatever the game.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scale {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Scale {
    /// Takes in a rollout of every rank, with the returns of this one's lanes so far, and says what to divide its rewards by.
    fn observe(&mut self, rollout: &Rollout, (returns, discount): (&mut [f32], f64), ranks: &dyn Communicator) -> Result<f32> {
        let mut sums = [0.0; 3];
        for (lane, sum) in returns.iter_mut().enumerate() {
            for (reward, ended) in rollout.rewards(lane) {
                *sum = (f64::from(*sum) * discount + f64::from(reward)) as f32;
                let x = f64::from(*sum);
                sums = [sums[0] + 1.0, sums[1] + x, sums[2] + x * x];
                *sum = if ended { 0.0 } else { *sum };
            }
        }
        for of_rank in gather(ranks, &sums)? {
            (self.count, self.sum, self.squares) = (self.count + of_rank[0], self.sum + of_rank[1], self.squares + of_rank[2]);
        }
        let mean = self.sum / self.count;
        let deviation = (self.squares / self.count - mean * mean).max(0.0).sqrt();
        // Where every return is the same there is nothing to go by but their size.
        let size = if deviation > 1e-8 { deviation } else { mean.abs() };
        Ok(if size > 1e-8 { size as f32 } else { 1.0 })
    }
}

impl Ppo {
    /// A task at its first rollout. `lanes` of the configuration are shared out among the ranks.
    ///
    /// # Errors
    /// If the environment cannot be learnt in this way, or no lane is left for a rank.
    pub fn new(
        config: &RunConfig,
        entry: &Entry,
        (build, teacher): (Build, Option<Arc<dyn Model>>),
        device: &Device,
        ranks: &dyn Communicator,
    ) -> Result<Self> {
        let game = Game::new(entry.spec().clone());
        let lanes = share(config.rollout.lanes, ranks.rank(), ranks.size());
        let critic = critic(config, &game.spec);
        let description = Params::description();
        build(&description)?;
        Agent::new(&critic, &description.pp(CRITIC))?;
        let operations = 3.0 * Summary::new(&description.specs()).operations as f64;
        Ok(Self {
            config: config.clone(),
            entry: entry.clone(),
            game,
            envs: episodes::environments(entry, &lanes, config.seed)?,
            build,
            critic,
            teacher,
            device: device.clone(),
            first_lane: lanes.start,
            carried: Ongoing::default(),
            rollout: Rollout::default(),
            returns: vec![0.0; lanes.len()],
            course: Course::default(),
            operations,
        })
    }

    /// Whether its networks remember nothing, so that steps can be learnt from in any order.
    fn is_memoryless(&self, networks: [&dyn Model; 2]) -> bool {
        networks.iter().all(|network| network.signature().state.is_empty())
            && self.teacher.as_ref().is_none_or(|teacher| teacher.signature().state.is_empty())
    }

    fn networks(&self, parameters: &Params) -> Result<[Arc<dyn Model>; 2]> {
        Ok([(self.build)(parameters)?, Arc::new(Agent::new(&self.critic, &parameters.pp(CRITIC))?)])
    }

    /// Plays the next rollout.
    fn play(&mut self, networks: [Arc<dyn Model>; 2], ranks: &dyn Communicator) -> Result<()> {
        let random = Random::new(self.config.seed).stream("actions").at(self.course.rollouts);
        let first = self.first_lane;
        let address = |t: usize, lane: usize| random.at(t as u64).at((first + lane) as u64);
        let steps = self.config.rollout.steps;
        let teacher = self.teacher.clone();
        let (rollout, ended) = Rollout::play(&self.game, networks, teacher, (&mut *self.envs, &mut self.carried), (steps, &address))?;
        self.rollout = rollout;
        let (discount, decay) = (self.config.update.discount, self.config.update.decay);
        let scale = self.course.scale.observe(&self.rollout, (&mut self.returns, discount), ranks)?;
        self.rollout.estimate(scale, discount, decay);
        self.course.recent.add(&ended, ranks)?;
        (self.course.rollouts, self.course.far) = (self.course.rollouts + 1, false);
        Ok(())
    }

    /// Minibatch `number` of the present rollout.
    fn minibatch(&self, number: usize, length: usize) -> Result<Minibatch> {
        let (epoch, part) = (number / self.config.update.minibatches, number % self.config.update.minibatches);
        let sequences = self.rollout.lanes * self.rollout.steps / length;
        let random = Random::new(self.config.seed).stream("order").at(self.course.rollouts).at(epoch as u64);
        let order = random.permutation(sequences);
        let part = share(sequences, part, self.config.update.minibatches);
        if part.is_empty() {
            let reason = format!("{} parts of {sequences} sequences leave some empty", self.config.update.minibatches);
            return Err(Error::config("update.minibatches", reason));
        }
        self.rollout.batch(&self.game, &order[part], length)
    }

    /// Whether the actor is to move.
    fn moves_actor(&self) -> bool {
        !self.course.far && self.course.rollouts > self.config.update.critic_alone
    }
}

/// A minibatch on the device of the parameters, with what is counted over all ranks.
struct Prepared {
    /// Weights of the rows `[rows]`: they add up to one.
    weights: Tensor,
    advantages: Tensor,
    values: Tensor,
    returns: Tensor,
    /// Rows that count here, and on all ranks.
    samples: [f64; 2],
}

impl Prepared {
    fn new(batch: &Minibatch, device: &Device, ranks: &dyn Communicator) -> Result<Self> {
        let rows = batch.counts.len();
        let counted = |f: &dyn Fn(f64) -> f64| -> f64 {
            let rows = batch.advantages.iter().zip(&batch.counts).filter(|(_, counts)| **counts);
            rows.map(|(x, _)| f(f64::from(*x))).sum()
        };
        let mine = [counted(&|_| 1.0), counted(&|x| x), counted(&|x| x * x)];
        let all = gather(ranks, &mine)?.into_iter().fold([0.0; 3], |sum, of| std::array::from_fn(|i| sum[i] + of[i]));
        let n = all[0].max(1.0);
        let mean = all[1] / n;
        let deviation = ((all[2] - n * mean * mean).max(0.0) / (n - 1.0).max(1.0)).sqrt();
        let normal = |x: &f32| ((f64::from(*x) - mean) / (deviation + 1e-8)) as f32;
        let returns = batch.advantages.iter().zip(&batch.values).map(|(advantage, value)| advantage + value).collect::<Vec<f32>>();
        let share = (1.0 / mine[0].max(1.0)) as f32;
        let weights = batch.counts.iter().map(|counts| if *counts { share } else { 0.0 }).collect::<Vec<f32>>();
        let tensor = |values: Vec<f32>| Ok::<_, Error>(Tensor::from_vec(values, rows, device)?);
        Ok(Self {
            weights: tensor(weights)?,
            advantages: tensor(batch.advantages.iter().map(normal).collect())?,
            values: tensor(batch.values.clone())?,
            returns: tensor(returns)?,
            samples: [mine[0], all[0]],
        })
    }

    /// The mean over the rows that count.
    fn mean(&self, x: &Tensor) -> Result<Tensor> {
        Ok((x * &self.weights)?.sum_all()?)
    }
}

/// What a network says of a minibatch.
fn outputs(network: &dyn Model, batch: &Minibatch, state: Option<&NamedTensors>) -> Result<NamedTensors> {
    let specs = &network.signature().inputs;
    let mut inputs = NamedTensors::new();
    for spec in specs {
        let given = match spec.name.as_str() {
            "previous_action" => Some(&batch.last),
            "action" => Some(&batch.classes),
            name => batch.inputs.get(name).ok(),
        };
        given.into_iter().for_each(|given| {
            inputs.insert(spec.name.clone(), given.clone());
        });
    }
    let (sequences, length) = (batch.last.dim(0)?, batch.last.dim(1)?);
    let inputs = inputs.complete(specs, &[sequences, length])?;
    let state = match state {
        Some(state) => state.map(|_, tensor| Ok(tensor.to_device(network.device())?))?,
        None => network.initial_state(sequences)?,
    };
    Ok(network.unroll(&inputs, &batch.resets, &state)?.0)
}

/// `x` from `low` to `high`.
fn clamped(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    Ok(x.maximum(low)?.minimum(high)?)
}

impl Task for Ppo {
    /// The number of a minibatch in its rollout.
    type Batch = usize;

    fn unit(&self) -> &'static str {
        "frames"
    }

    fn next_batch(&mut self, context: &Context) -> Result<usize> {
        Ok((context.batch % self.config.updates()) as usize)
    }

    fn loss(&mut self, parameters: &Params, number: &usize, context: &Context) -> Result<Loss> {
        let networks = self.networks(parameters)?;
        if context.batch / self.config.updates() >= self.course.rollouts {
            self.play(networks.clone(), context.ranks)?;
        }
        let [actor, critic] = &networks;
        let length = if self.is_memoryless([&**actor, &**critic]) { 1 } else { self.config.rollout.steps };
        let batch = self.minibatch(*number, length)?;
        let prepared = Prepared::new(&batch, &self.device, context.ranks)?;
        let of = |network: &dyn Model, i: usize| outputs(network, &batch, batch.states.get(i));
        let found = of(&**critic, 1)?.get("gaussian")?.narrow(D::Minus1, 0, 1)?.flatten_all()?;
        let value = self.value_loss(&found, &prepared)?;
        let (mut loss, mut metrics) = ((&value * self.config.update.value)?, vec![Metric::mean(&["value"], value.detach().reshape(1)?)]);
        if self.moves_actor() {
            let new = self.distribution(&batch, &of(&**actor, 0)?)?;
            let teacher = self.teacher.as_ref().map(|teacher| self.distribution(&batch, &of(&**teacher, 2)?)).transpose()?;
            let (policy, of_policy) = self.policy_loss(&new, teacher, (&batch, &prepared))?;
            loss = (loss + policy)?;
            metrics.push(of_policy);
        }
        let [mine, all] = prepared.samples;
        metrics.extend(self.course.recent.metric(&self.device)?);
        Ok(Loss { weight: mine / all.max(1.0), metrics, ..Loss::new(loss, batch.counts.len()) })
    }

    /// Moves no further from the policy that played than the limit.
    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        let limit = self.config.update.limit;
        self.course.far |= limit > 0.0 && step.metrics.get("moved").is_some_and(|moved| *moved > limit);
        Ok(())
    }

    /// Mean reward of an episode that begins from a seed of its own.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        let episodes = evaluate::play((self.build)(parameters)?, &self.entry, &self.config.evaluation, ranks)?;
        Ok(episodes::evaluation(&episodes))
    }

    fn group(&self, name: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::with_mamba(name, shape.len())
    }

    fn operations(&self) -> f64 {
        self.operations
    }

    /// The rollout that is being learnt from, the environments behind it, and what goes on between rollouts.
    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        let cursor = serde_json::to_value(&self.course).map_err(|e| Error::Input(format!("the course of a run: {e}")))?;
        episodes::save(&mut *self.envs, files)?;
        let mut rows = if self.course.rollouts > 0 { self.rollout.save()? } else { NamedTensors::new() };
        let lanes = self.envs.lanes();
        rows.insert("returns", Tensor::from_slice(&self.returns, (lanes, 1), &Device::Cpu)?);
        self.carried.save(lanes)?.iter().for_each(|(name, tensor)| drop(rows.insert(name, tensor.clone())));
        Ok(TaskState { rows, cursor, ..TaskState::default() })
    }

    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        let lanes = self.envs.lanes();
        self.course = state.cursor()?;
        let random = Random::new(self.config.seed).stream("resumed").at(self.course.rollouts);
        self.returns = match episodes::restore(&mut *self.envs, self.first_lane, files, random)? {
            Resumed::Exactly => state.rows.get("returns")?.flatten_all()?.to_vec1()?,
            Resumed::Anew => vec![0.0; lanes],
        };
        self.carried = Ongoing::restore(&state.rows)?;
        if self.course.rollouts > 0 {
            self.rollout = Rollout::restore(&state.rows, &self.game, (lanes, self.config.rollout.steps))?;
        }
        Ok(())
    }
}

impl Ppo {
    fn distribution(&self, batch: &Minibatch, outputs: &NamedTensors) -> Result<Distribution> {
        let found = Distribution::new(&self.game.spec.action, outputs)?;
        match &batch.mask {
            Some(mask) => found.masked(&mask.to_device(&self.device)?),
            None => Ok(found),
        }
    }

    /// Half of the squared error, of the worse of what the critic says and what it may say by the clip.
    fn value_loss(&self, found: &Tensor, prepared: &Prepared) -> Result<Tensor> {
        let clip = self.config.update.clip;
        let near = (&prepared.values + clamped(&(found - &prepared.values)?, -clip, clip)?)?;
        let error = |x: &Tensor| (x - &prepared.returns)?.sqr();
        prepared.mean(&error(found)?.maximum(&error(&near)?)?.affine(0.5, 0.0)?)
    }

    /// What the actor is to lower, with the figures of it.
    fn policy_loss(
        &self,
        new: &Distribution,
        teacher: Option<Distribution>,
        (batch, prepared): (&Minibatch, &Prepared),
    ) -> Result<(Tensor, Metric)> {
        let update = &self.config.update;
        let classes = batch.classes.flatten(0, 1)?;
        let numbers = batch.numbers.to_device(&self.device)?;
        let played = batch.played.map(|_, tensor| Ok(tensor.to_device(&self.device)?))?;
        let old = self.distribution(batch, &played)?;
        let log_ratio = (new.log_probability(&classes, &numbers)? - old.log_probability(&classes, &numbers)?)?;
        let ratio = log_ratio.exp()?;
        let near = clamped(&ratio, 1.0 - update.clip, 1.0 + update.clip)?;
        let gain = prepared.mean(&(&ratio * &prepared.advantages)?.minimum(&(&near * &prepared.advantages)?)?)?;
        let entropy = prepared.mean(&new.entropy()?)?;
        let moved = prepared.mean(&old.divergence(new)?)?;
        let [from_teacher, to_teacher] = match teacher {
            Some(teacher) => {
                let teacher = teacher.detach();
                [prepared.mean(&new.divergence(&teacher)?)?, prepared.mean(&teacher.divergence(new)?)?]
            }
            None => [moved.zeros_like()?, moved.zeros_like()?],
        };
        let apart = (&from_teacher + to_teacher)?;
        let clipped = prepared.mean(&(ratio - 1.0)?.abs()?.gt(update.clip)?.to_dtype(candle_core::DType::F32)?)?;
        let loss = ((gain.neg()? - (&entropy * update.entropy)?)? + ((&moved * update.stay)? + (&apart * update.teacher)?)?)?;
        let figures = [&gain, &entropy, &moved, &from_teacher, &clipped].map(Tensor::detach);
        Ok((loss, Metric::mean(&["gain", "entropy", "moved", "from_teacher", "clipped"], Tensor::stack(&figures, 0)?)))
    }
}

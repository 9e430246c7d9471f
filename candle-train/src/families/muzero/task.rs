//! MuZero's loss as a [`Task`]: rounds of play and batches of unrolls in turn.
//!
//! With K steps of an unroll: `sum over k of w_k (CE of the reward + v CE of the value + CE of the policy)`, `w_0 = 1` and `w_k = 1 / K` otherwise. The
//! gradient of an embedding is halved where the dynamics read it, so that the encoder is not led by the last of them alone. Where it is asked for,
//! `sum over k > 0 of w_k c (1 - cosine)` comes on top (`consistency.rs`).

use super::actors::{Actors, PATIENCE, Script};
use super::config::RunConfig;
use super::consistency::Consistency;
use super::play::{Inputs, Playing, Round, evaluate, planner};
use super::replay::{Horizon, Replay, Sizes, Targets};
use crate::checkpoint::{SavedFiles, StateFiles};
use crate::episodes::{self, Recent, Resumed};
use crate::feed::feed;
use crate::optim::ParameterGroup;
use crate::parallel::{Communicator, share};
use crate::summary::Summary;
use crate::task::{Context, Evaluation, Loss, Metric, StepDone, Task, TaskState};
use candle_core::{D, DType, Device, Tensor};
use candle_envs::{Entry, Input, Symmetry};
use candle_models::muzero::{Initial, MuZero, MuZeroConfig, values::two_hot};
use candle_models::network::{Network, Tapes};
use candle_models::nn::Params;
use candle_models::ops::softmax::log_softmax;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use candle_models::{Error, Result};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::path::Path;

/// The share of an embedding's gradient that the dynamics pass on.
const KEPT: f64 = 0.5;
/// Where checkpoints keep what was played.
const REPLAY: &str = "replay";

/// A network learning to plan from what its own plans led to.
pub struct MuZeroTask {
    config: RunConfig,
    model: MuZeroConfig,
    entry: Entry,
    inputs: Inputs,
    players: Players,
    replay: Replay,
    symmetries: Vec<Symmetry>,
    horizon: Horizon,
    atoms: Vec<f32>,
    device: Device,
    tapes: Tapes,
    /// This rank's lanes among those of all.
    lanes: Range<usize>,
    course: Course,
    /// Slots of the batch that is being learnt from.
    slots: Vec<usize>,
    operations: f64,
}

/// Who plays.
enum Players {
    /// The learner itself, in turn with its updates.
    Learner(Playing),
    /// Actors beside it, once there are parameters to play with.
    Beside(Option<Actors>),
}

/// How far a run is.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Course {
    /// Rounds that have been played.
    rounds: u64,
    recent: Recent,
}

/// The networks of the training: those of the model and, where it is asked for, those of its self-consistency, which are no part of a bundle.
///
/// # Errors
/// If the configuration is out of range, or a parameter is missing or has another shape.
pub fn networks(config: &RunConfig, model: &MuZeroConfig, parameters: &Params) -> Result<(MuZero, Option<Consistency>)> {
    let asked = config.learn.consistency > 0.0;
    let consistency = asked.then(|| Consistency::new(model.embedding(), &parameters.pp("consistency"))).transpose()?;
    Ok((MuZero::new(model, parameters)?, consistency))
}

/// An empty buffer, where the configuration wants it.
fn buffer(config: &RunConfig, sizes: Sizes) -> Result<Replay> {
    match &config.learn.folder[..] {
        "" => Ok(Replay::new(sizes)),
        folder => Replay::on_disk(sizes, Path::new(folder)),
    }
}

/// Positions to learn from: how likely they were to be drawn, what is to be said of them and, for the self-consistency alone, what was seen in the
/// positions behind each, with 1 where anything was.
struct Drawn {
    shares: Vec<f32>,
    targets: Targets,
    behind: (Vec<f32>, Vec<f32>),
}

impl MuZeroTask {
    /// A task at its first round. Lanes and positions of the buffer are shared out among the ranks.
    ///
    /// # Errors
    /// If the environment cannot be learnt in this way, or the buffer is larger than the configuration allows.
    pub fn new(config: &RunConfig, entry: &Entry, device: &Device, ranks: &dyn Communicator) -> Result<Self> {
        let (spec, lanes) = (entry.spec(), share(config.play.lanes, ranks.rank(), ranks.size()));
        let model = config.model(spec)?;
        let description = Params::description();
        networks(config, &model, &description)?;
        let unroll = config.learn.unroll;
        let players = match config.play.actors {
            0 => Players::Learner(Playing::new(entry, &lanes, config.seed)?),
            actors if lanes.len() < actors => {
                return Err(Error::config("play.actors", format!("{actors} cannot share the {} environments of a rank", lanes.len())));
            }
            _ => Players::Beside(None),
        };
        Ok(Self {
            symmetries: (entry.symmetries)(),
            inputs: Inputs::new(spec),
            players,
            replay: buffer(config, Self::sizes(config, entry, &lanes)?)?,
            horizon: Horizon { unroll, rewards: config.learn.horizon, discount: config.learn.discount },
            atoms: model.support.atoms(),
            device: device.clone(),
            tapes: Tapes::default(),
            lanes,
            course: Course::default(),
            slots: Vec::new(),
            // Most parameters are those of the dynamics.
            operations: 3.0 * (unroll + 1) as f64 * Summary::new(&description.specs()).operations as f64,
            config: config.clone(),
            entry: entry.clone(),
            model,
        })
    }

    /// The buffer of a rank's lanes.
    ///
    /// # Errors
    /// If it is larger than the configuration allows.
    pub fn sizes(config: &RunConfig, entry: &Entry, lanes: &Range<usize>) -> Result<Sizes> {
        let spec = entry.spec();
        let (positions, floats, actions) = (config.learn.buffer / config.play.lanes, spec.floats(), config.model(spec)?.actions);
        let sizes = Sizes { lanes: lanes.len(), positions, floats, actions };
        let seen = if config.learn.folder.is_empty() { sizes.seen_bytes() } else { 0 };
        let (bytes, limit) = (seen + sizes.other_bytes(), config.learn.memory_mb);
        if bytes > limit * 1_000_000 {
            let [positions, mb] = [config.learn.buffer as u64, bytes / 1_000_000];
            let reason = format!("{positions} positions take {mb} MB of memory, more than learn.memory_mb {limit}");
            return Err(Error::config("learn.buffer", reason));
        }
        Ok(sizes)
    }

    /// Plays the next round with the present parameters, and searches some of what is remembered again.
    fn play(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<()> {
        let (play, lanes, first) = (&self.config.play, self.lanes.len(), self.lanes.start);
        let random = Random::new(self.config.seed).stream("round").at(self.course.rounds);
        let own = || {
            let (rules, threads) = ((self.entry.rules)(), rayon::current_num_threads());
            planner(&self.model, parameters, (lanes, rules), (play.search, play.simulations), threads)
        };
        let again = match (self.config.learn.reanalyse * (lanes * play.steps) as f64).round() as usize {
            n if n > 0 && self.course.rounds > play.warm_up => self.replay.any(n, random.stream("again").at(first as u64)),
            _ => Vec::new(),
        };
        let mut planner = if again.is_empty() && matches!(self.players, Players::Beside(_)) { None } else { Some(own()?) };
        if let Some(planner) = planner.as_mut().filter(|_| !again.is_empty()) {
            let random = random.stream("search again").at(first as u64);
            self.inputs.reanalyse((planner, lanes), &mut self.replay, &again, random)?;
        }
        let of_play = (play.steps, first, play.random, random.stream("search"));
        let rounds = match (&mut self.players, &mut planner) {
            (Players::Learner(playing), Some(planner)) => vec![(first, playing.round(planner, of_play, || true)?)],
            _ => self.rounds_of_actors(parameters)?,
        };
        let mut ended = Vec::new();
        for (lane, round) in rounds {
            round.remember(&mut self.replay, lane - first, &self.horizon);
            ended.extend(round.ended);
        }
        self.course.recent.add(&ended, ranks)?;
        self.course.rounds += 1;
        Ok(())
    }

    /// As many rounds of actors as there were at the beginning, whichever have played them; they go on with the present parameters.
    fn rounds_of_actors(&mut self, parameters: &Params) -> Result<Vec<(usize, Round)>> {
        let Players::Beside(begun) = &mut self.players else { return Ok(Vec::new()) };
        let actors = match begun {
            Some(actors) => {
                actors.publish(parameters)?;
                actors
            }
            none => {
                let (config, model, entry) = (self.config.clone(), self.model.clone(), self.entry.clone());
                let script = Script { config, model, entry, lanes: self.lanes.clone(), rounds: self.course.rounds };
                none.insert(Actors::begin(script, parameters, PATIENCE)?)
            }
        };
        (0..actors.count()).map(|_| actors.wait()).collect()
    }

    /// Positions to learn from: this rank's share of a batch.
    fn draw(&mut self, context: &Context) -> Result<Drawn> {
        let mine = share(self.config.learn.batch, context.ranks.rank(), context.ranks.size());
        let random = context.noise.stream("positions").at(mine.start as u64);
        let drawn = self.replay.draw(mine.len(), random)?;
        let (mut targets, mut behind) = (Targets::default(), (Vec::new(), Vec::new()));
        for (i, (slot, _)) in drawn.iter().enumerate() {
            let symmetry = self.symmetries.get(random.stream("symmetry").below(i as u64, self.symmetries.len().max(1) as u32) as usize);
            self.replay.targets(*slot, &self.horizon, (random.at(i as u64), symmetry), &mut targets);
            if self.config.learn.consistency > 0.0 {
                self.replay.seen_behind(*slot, self.horizon.unroll, symmetry, (&mut behind.0, &mut behind.1));
            }
        }
        self.slots = drawn.iter().map(|(slot, _)| *slot).collect();
        Ok(Drawn { shares: drawn.into_iter().map(|(_, share)| share).collect(), targets, behind })
    }

    /// The share of the run that is over, from 0 to 1.
    fn progress(&self, context: &Context) -> f64 {
        (context.step as f64 / self.config.updates().max(1) as f64).min(1.0)
    }

    /// Weights of the positions `[n]`: those that are drawn too often count less, in the end as if all were drawn alike (Schaul et al. 2016).
    fn weights(&self, shares: &[f32], progress: f64) -> Result<Tensor> {
        let exponent = -(0.4 + 0.6 * progress) as f32;
        let weights: Vec<f32> = shares.iter().map(|share| share.max(1e-9).powf(exponent)).collect();
        let most = weights.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
        Ok(Tensor::from_iter(weights.iter().map(|weight| weight / most), &self.device)?)
    }

    /// Distributions over the atoms, `[n, atoms]`, of column `k` of n rows.
    fn mixtures(&self, values: &[f32], (k, columns): (usize, usize)) -> Result<Tensor> {
        let (n, atoms) = (values.len() / columns, self.atoms.len());
        let mut mixtures = vec![0.0; n * atoms];
        for (row, mixture) in mixtures.chunks_exact_mut(atoms).enumerate() {
            two_hot(&self.atoms, values[row * columns + k], mixture);
        }
        Ok(Tensor::from_vec(mixtures, (n, atoms), &self.device)?)
    }

    fn column(&self, values: &[f32], (k, columns): (usize, usize)) -> Result<Tensor> {
        Ok(Tensor::from_iter(values.iter().skip(k).step_by(columns).copied(), &self.device)?)
    }

    /// The losses of an unroll from every position, weighted by `weights` `[n]`; the dynamics pass on a share of an embedding's gradient.
    fn unroll(&self, MuZero { initial, recurrent }: &MuZero, (targets, weights): (&Targets, &Tensor), kept: f64) -> Result<Unrolled> {
        let (n, unroll, actions) = (weights.dim(0)?, self.config.learn.unroll, self.model.actions);
        let mut outputs = feed(initial, &self.observation(&targets.floats)?, &self.tapes)?;
        let first_value = outputs.get("value")?.detach().flatten_all()?;
        let (mut sums, mut expected): ([Vec<Tensor>; 3], _) = (Default::default(), Vec::new());
        for k in 0..=unroll {
            let (scale, place) = (if k == 0 { 1.0 } else { 1.0 / unroll as f64 }, (k, unroll + 1));
            let mut add = |part: usize, (output, target): (&str, Tensor), counts: Tensor| -> Result<()> {
                let nats = cross_entropy(outputs.get(output)?, &target)?;
                sums[part].push(((nats * counts)? * weights)?.mean_all()?.affine(scale, 0.0)?);
                Ok(())
            };
            add(0, ("value_logits", self.mixtures(&targets.values, place)?), self.column(&targets.value_counts, place)?)?;
            let policy = |row: usize| &targets.policies[(row * (unroll + 1) + k) * actions..][..actions];
            let policy: Vec<f32> = (0..n).flat_map(policy).copied().collect();
            let policy = Tensor::from_vec(policy, (n, actions), &self.device)?;
            add(1, ("logits", policy), self.column(&targets.policy_counts, place)?)?;
            if k > 0 {
                let place = (k - 1, unroll);
                add(2, ("reward_logits", self.mixtures(&targets.rewards, place)?), self.column(&targets.reward_counts, place)?)?;
            }
            if let Some(recurrent) = recurrent.as_ref().filter(|_| k < unroll) {
                let actions = targets.actions.iter().skip(k).step_by(unroll).map(|action| *action as f32);
                let actions = Tensor::from_iter(actions, &self.device)?.unsqueeze(1)?;
                outputs = feed(recurrent, &[with_gradient(outputs.get("embedding")?, kept)?, actions], &self.tapes)?;
                expected.push(outputs.get("embedding")?.clone());
            }
        }
        let sum = |parts: &Vec<Tensor>| match &parts[..] {
            // Nothing is said of rewards where nothing is learnt of what comes of an action.
            [] => Ok::<_, Error>(Tensor::zeros((), DType::F32, &self.device)?),
            parts => Ok(Tensor::stack(parts, 0)?.sum_all()?),
        };
        let [value, policy, reward] = [sum(&sums[0])?, sum(&sums[1])?, sum(&sums[2])?];
        Ok(Unrolled { value, policy, reward, first_value, expected })
    }

    /// The loss of what the dynamics expected in every step, `[n, embedding]`, beside what was seen.
    fn consistency(
        &self,
        (initial, consistency): (&Network<Initial>, &Consistency),
        (expected, weights): (&[Tensor], &Tensor),
        (floats, counts): &(Vec<f32>, Vec<f32>),
    ) -> Result<Tensor> {
        let (expected, n, unroll) = (Tensor::stack(expected, 1)?, weights.dim(0)?, expected.len());
        let seen = feed(initial, &self.observation(floats)?, &self.tapes)?;
        let target = consistency.target(seen.get("embedding")?, &self.tapes)?;
        let losses = consistency.loss(&expected.flatten(0, 1)?, &target, &self.tapes)?;
        let counts = Tensor::from_slice(counts, (n, unroll), &self.device)?;
        Ok(((losses.reshape((n, unroll))? * counts)?.sum(1)? * weights)?.mean_all()?.affine(1.0 / unroll as f64, 0.0)?)
    }

    /// What the network sees at the first positions, `[n, width]` of every input.
    fn observation(&self, floats: &[f32]) -> Result<Vec<Tensor>> {
        let width = self.replay.sizes().floats;
        let n = floats.len() / width.max(1);
        let input = |Input { spec, columns, .. }: &Input| {
            let values: Vec<f32> = floats.chunks_exact(width).flat_map(|row| &row[columns.clone()]).copied().collect();
            Ok(Tensor::from_vec(values, (n, spec.width()), &self.device)?)
        };
        self.inputs.inputs.iter().map(input).collect()
    }
}

/// `- sum of target log softmax(logits)`, `[n]`.
fn cross_entropy(logits: &Tensor, target: &Tensor) -> Result<Tensor> {
    Ok((log_softmax(logits)? * target)?.sum(D::Minus1)?.neg()?)
}

/// The same with a share of its gradient.
fn with_gradient(x: &Tensor, share: f64) -> Result<Tensor> {
    Ok((x.affine(share, 0.0)? + x.detach().affine(1.0 - share, 0.0)?)?)
}

/// The parts of a loss, what the network said of the first positions `[n]`, and the embedding `[n, embedding]` behind each step.
struct Unrolled {
    value: Tensor,
    policy: Tensor,
    reward: Tensor,
    first_value: Tensor,
    expected: Vec<Tensor>,
}

impl Task for MuZeroTask {
    type Batch = ();

    fn unit(&self) -> &'static str {
        "positions"
    }

    fn next_batch(&mut self, _: &Context) -> Result<()> {
        Ok(())
    }

    fn loss(&mut self, parameters: &Params, (): &(), context: &Context) -> Result<Loss> {
        let due = self.config.play.warm_up + 1 + context.batch / self.config.learn.updates;
        while self.course.rounds < due {
            self.play(parameters, context.ranks)?;
        }
        let Drawn { shares, targets, behind } = self.draw(context)?;
        let n = shares.len();
        let weights = self.weights(&shares, self.progress(context))?;
        let (networks, consistency) = networks(&self.config, &self.model, parameters)?;
        let Unrolled { value, policy, reward, first_value, expected } = self.unroll(&networks, (&targets, &weights), KEPT)?;
        let mut loss = ((&value * self.config.learn.value)? + (&policy + &reward)?)?;
        let figures = Tensor::stack(&[&value, &policy, &reward].map(|x| x.detach()), 0)?;
        let mut metrics = vec![Metric::mean(&["value", "policy", "reward_nats"], figures)];
        if let Some(consistency) = &consistency {
            let alike = self.consistency((&networks.initial, consistency), (&expected, &weights), &behind)?;
            metrics.push(Metric::mean(&["consistency"], alike.detach().unsqueeze(0)?));
            loss = (loss + (alike * self.config.learn.consistency)?)?;
        }
        metrics.extend(self.course.recent.metric(&self.device)?);
        let error = (first_value - self.column(&targets.values, (0, self.config.learn.unroll + 1))?)?.abs()?;
        let outputs = NamedTensors::from_iter([("error".to_owned(), error)]);
        Ok(Loss { weight: n as f64 / self.config.learn.batch as f64, metrics, outputs, ..Loss::new(loss, n) })
    }

    /// Positions whose values were wrong are drawn more often.
    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        for outputs in step.outputs {
            let errors = outputs.get("error")?.to_vec1::<f32>()?;
            self.replay.set_priorities(&self.slots, &errors, self.config.learn.priority);
        }
        Ok(())
    }

    /// Mean reward of an episode that begins from a seed of its own.
    fn evaluate(&mut self, parameters: &Params, ranks: &dyn Communicator) -> Result<Evaluation> {
        let of_play = (self.config.play.search, &self.config.evaluation);
        let episodes = evaluate((&self.model, parameters), &self.entry, of_play, ranks)?;
        Ok(episodes::evaluation(&episodes))
    }

    fn group(&self, _: &str, shape: &[usize]) -> ParameterGroup {
        ParameterGroup::by_rank(shape.len())
    }

    fn operations(&self) -> f64 {
        self.operations
    }

    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        let cursor = serde_json::to_value(&self.course).map_err(|e| Error::Input(format!("the course of a run: {e}")))?;
        if let Players::Learner(playing) = &mut self.players {
            episodes::save(&mut *playing.envs, files)?;
        }
        files.write(REPLAY, |file| self.replay.write(file))?;
        Ok(TaskState { cursor, ..TaskState::default() })
    }

    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        self.course = state.cursor()?;
        // The lanes of this rank, whichever ranks had them.
        for rank in 0..files.ranks() {
            let theirs = share(self.config.play.lanes, rank, files.ranks());
            let common = theirs.start.max(self.lanes.start)..theirs.end.min(self.lanes.end);
            if common.is_empty() {
                continue;
            }
            let mut file = files.open_of(rank, REPLAY)?;
            if theirs == self.lanes {
                self.replay.read(&mut file).map_err(Error::io(REPLAY))?;
                continue;
            }
            let mut saved = buffer(&self.config, Sizes { lanes: theirs.len(), ..self.replay.sizes() })?;
            saved.read(&mut file).map_err(Error::io(REPLAY))?;
            common.for_each(|lane| self.replay.copy_lane(lane - self.lanes.start, &saved, lane - theirs.start));
        }
        let resumed = match &mut self.players {
            Players::Learner(playing) => {
                let random = Random::new(self.config.seed).stream("resumed").at(self.course.rounds);
                episodes::restore(&mut *playing.envs, self.lanes.start, files, random)?
            }
            Players::Beside(_) => {
                eprintln!("warning: the episodes of the actors begin anew: they are not in the checkpoint");
                Resumed::Anew
            }
        };
        if resumed == Resumed::Anew {
            self.replay.cut();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Single;
    use candle_core::Var;
    use std::collections::BTreeMap;

    /// Finite differences of the whole unrolled loss, along a random direction over all parameters at once, with all of an embedding's gradient kept.
    #[test]
    fn gradients_are_those_of_the_unrolled_loss() {
        let mut config = RunConfig::preset("classic").unwrap();
        (config.play.lanes, config.play.steps, config.play.simulations) = (4, 40, 4);
        (config.learn.unroll, config.learn.horizon) = (3, 3);
        config.network = candle_models::muzero::NetworkConfig::Mlp { width: 16, layers: 2 };
        let entry = candle_envs::shipped().get("cartpole").unwrap();
        let mut task = MuZeroTask::new(&config, &entry, &Device::Cpu, &Single).unwrap();
        let params = Params::init(Random::new(3), &Device::Cpu);
        MuZero::new(&task.model, &params).unwrap();
        // Heads start as zeros, behind which no gradient passes.
        let noise = |name: &str, n: usize, scale: f32| {
            let mut noise = vec![0.0; n];
            Random::new(4).stream(name).fill_normal(0, &mut noise);
            noise.iter().map(|x| scale * x).collect::<Vec<f32>>()
        };
        let vars: BTreeMap<String, Var> = params.vars();
        for (name, var) in &vars {
            let moved = (var.as_detached_tensor()
                + Tensor::from_vec(noise(name, var.elem_count(), 0.1), var.shape(), &Device::Cpu).unwrap())
            .unwrap();
            var.set(&moved).unwrap();
        }
        let tensors = || vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
        task.play(&Params::given(tensors(), &Device::Cpu), &Single).unwrap();
        let drawn = task.replay.draw(8, Random::new(5)).unwrap();
        let mut targets = Targets::default();
        drawn.iter().for_each(|(slot, _)| task.replay.targets(*slot, &task.horizon, (Random::new(6), None), &mut targets));
        let weights = Tensor::ones(8, candle_core::DType::F32, &Device::Cpu).unwrap();
        let loss = |parameters: &Params| {
            let Unrolled { value, policy, reward, .. } =
                task.unroll(&MuZero::new(&task.model, parameters).unwrap(), (&targets, &weights), 1.0).unwrap();
            ((value + policy).unwrap() + reward).unwrap()
        };
        let gradients = loss(&Params::given(tensors(), &Device::Cpu)).backward().unwrap();
        let directions: BTreeMap<&String, Tensor> = vars
            .iter()
            .map(|(name, var)| {
                (name, Tensor::from_vec(noise(&format!("{name} d"), var.elem_count(), 1.0), var.shape(), &Device::Cpu).unwrap())
            })
            .collect();
        let along: f32 = vars
            .iter()
            .map(|(name, var)| {
                let gradient = gradients.get(var).unwrap_or_else(|| panic!("{name} has no gradient"));
                (gradient * &directions[name]).unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap()
            })
            .sum();
        let at = |step: f64| {
            let moved = vars.iter().map(|(name, var)| {
                let moved = (var.as_detached_tensor() + (&directions[name] * step).unwrap()).unwrap();
                (name.clone(), moved)
            });
            f64::from(loss(&Params::given(moved.collect(), &Device::Cpu)).to_scalar::<f32>().unwrap())
        };
        let step = 2e-3;
        let difference = (at(step) - at(-step)) / (2.0 * step);
        assert!((difference - f64::from(along)).abs() < 0.02 * difference.abs().max(1.0), "differences {difference}, gradients {along}");
    }
}

//! Reinforcement learning under the trainer: actors on threads walk along a line to its goal, a replay buffer keeps what they saw, and a
//! network learns from it what a step to either side is worth (DQN, Mnih et al. 2015), with the actors' parameters as its target network.
//! Random numbers have addresses and actors hand in what they saw in one order: a run that was killed and resumed gives the same network.
//!
//! `cargo run --release --example train_actors -- [DIR]`; with the same DIR it continues.

use candle_core::{D, DType, Device, Tensor, Var};
use candle_models::nn::{Init, Params};
use candle_models::random::Random;
use candle_models::{Error, Result};
use candle_train::run::{Budget, Place, Run, Stop, TrainerConfig};
use candle_train::task::{Communicator, Context, Evaluation, Loss, Metric, SavedFiles, Score, StateFiles, StepDone, Task, TaskState};
use std::collections::BTreeMap;
use std::io::Read;
use std::sync::mpsc::{Receiver, Sender, channel};

const PLACES: usize = 11;
const GOAL: usize = 7;
const BATCH: usize = 64;
const ROUND: u64 = 20; // Steps of the trainer while the actors play a round.
type Tensors = BTreeMap<String, Tensor>;
/// Place, whether it went right, the next place, whether the episode went on.
type Transition = [f32; 4];
/// A thread that takes the number of a round and parameters to play it with, and gives what it saw, until nobody asks or listens.
type Actor = (Sender<(u64, Tensors)>, Receiver<Result<Vec<Transition>>>);

/// What a step to the left and one to the right are worth, `[n, 2]`, at places `[n, 1]`.
fn network(parameters: &Params, places: &Tensor) -> Result<Tensor> {
    let (hidden, _) = parameters.matrix("hidden.weight", [1, 32], Init::Normal(2.0))?;
    let bias = parameters.get("hidden.bias", &[32], Init::Uniform(2.0))?;
    let (output, _) = parameters.matrix("output.weight", [32, 2], Init::Normal(0.2))?;
    Ok((places / PLACES as f64)?.matmul(&hidden)?.broadcast_add(&bias)?.relu()?.matmul(&output)?)
}

/// The better side at every place.
fn goes_right(parameters: &Params) -> Result<Vec<bool>> {
    let worth = network(parameters, &Tensor::arange(0f32, PLACES as f32, &Device::Cpu)?.unsqueeze(1)?)?;
    Ok(worth.to_vec2::<f32>()?.iter().map(|worth| worth[1] > worth[0]).collect())
}

/// A round: 64 steps, three in ten to a random side; from the goal it goes on at a random place.
fn play(parameters: &Params, random: Random) -> Result<Vec<Transition>> {
    let (goes_right, mut at) = (goes_right(parameters)?, 0);
    let step = |i| {
        let [explores, side, start] = ["explores", "side", "start"].map(|name| random.stream(name).uniform(i));
        let right = if explores < 0.3 { side < 0.5 } else { goes_right[at] };
        let next = if right { (at + 1).min(PLACES - 1) } else { at.saturating_sub(1) };
        let seen = [at, usize::from(right), next, usize::from(next != GOAL)].map(|x| x as f32);
        at = if next == GOAL { (start * PLACES as f32) as usize } else { next };
        seen
    };
    Ok((0..64).map(step).collect())
}

fn actors() -> Vec<Actor> {
    let actor = |number| {
        let ((sender, rounds), (played, receiver)) = (channel::<(u64, Tensors)>(), channel());
        let play = move |(round, tensors)| play(&Params::given(tensors, &Device::Cpu), Random::new(1).stream("actor").at(number).at(round));
        std::thread::spawn(move || rounds.into_iter().map(play).try_for_each(|seen| played.send(seen)));
        (sender, receiver)
    };
    (0..2).map(actor).collect()
}

/// Actors that are always playing a round, and what was seen in those before.
pub struct Walk {
    actors: Vec<Actor>,
    target: Tensors, // Parameters of the actors and of the target network.
    replay: Vec<Transition>,
    round: u64,
}

impl Walk {
    fn start_round(&self) {
        self.actors.iter().for_each(|(sender, _)| drop(sender.send((self.round, self.target.clone()))));
    }

    fn next_round(&mut self, target: Tensors) -> Result<()> {
        for (_, seen) in &self.actors {
            self.replay.extend(seen.recv().map_err(|_| Error::Input("an actor has ended".to_owned()))??);
        }
        (self.target, self.round) = (target, self.round + 1);
        self.start_round();
        Ok(())
    }
}

impl Task for Walk {
    type Batch = Tensor; // Transitions `[n, 4]`.

    fn next_batch(&mut self, context: &Context) -> Result<Tensor> {
        let row = |i| self.replay[context.noise.below(i, self.replay.len() as u32) as usize];
        Ok(Tensor::from_iter((0..BATCH as u64).flat_map(row), &Device::Cpu)?.reshape((BATCH, 4))?)
    }
    fn loss(&mut self, parameters: &Params, batch: &Tensor, _: &Context) -> Result<Loss> {
        let [at, right, next, goes_on] = [0, 1, 2, 3].map(|i| batch.narrow(1, i, 1));
        let next = network(&Params::given(self.target.clone(), &Device::Cpu), &next?)?.max_keepdim(D::Minus1)?;
        let worth = ((goes_on? * next.affine(0.9, -1.0)?)? + 1.0)?; // The goal is worth 1, and nothing comes after it.
        let error = (network(parameters, &at?)?.gather(&right?.to_dtype(DType::U32)?, 1)? - worth)?.flatten_all()?;
        let largest = Metric::max(&["largest error"], error.abs()?.max_keepdim(0)?);
        Ok(Loss { metrics: vec![largest], ..Loss::new(error.sqr()?.mean_all()?, BATCH) })
    }
    fn after_step(&mut self, step: &StepDone) -> Result<()> {
        match step.step % ROUND {
            0 => self.next_round(step.parameters()?),
            _ => Ok(()),
        }
    }
    fn evaluate(&mut self, parameters: &Params, _: &dyn Communicator) -> Result<Evaluation> {
        let good = goes_right(parameters)?.iter().enumerate().filter(|(at, right)| *at == GOAL || **right == (*at < GOAL)).count();
        Ok(Evaluation::new(Score::maximise(good as f64 / PLACES as f64), [])) // From how many of all places it walks to the goal.
    }
    fn save(&mut self, files: &mut StateFiles) -> Result<TaskState> {
        files.write("replay", |file| self.replay.iter().flatten().try_for_each(|x| file.write_all(&x.to_le_bytes())))?;
        let (replicated, cursor) = (self.target.clone().into_iter().collect(), serde_json::json!([self.round, self.replay.len()]));
        Ok(TaskState { replicated, cursor, ..TaskState::default() })
    }
    fn restore(&mut self, state: &TaskState, files: &SavedFiles) -> Result<()> {
        let (round, kept): (u64, usize) = state.cursor()?;
        let (mut file, mut bytes) = (files.open("replay")?, [0; 4]);
        let mut next = || file.read_exact(&mut bytes).map(|()| f32::from_le_bytes(bytes)).map_err(Error::io("replay"));
        self.replay = (0..kept).map(|_| Ok([next()?, next()?, next()?, next()?])).collect::<Result<_>>()?;
        (self.target, self.round, self.actors) = (state.replicated.clone().into_iter().collect(), round, actors());
        self.start_round();
        Ok(())
    }
}

/// A run over so many transitions on one rank, its parameters and its task.
pub fn walk(transitions: u64) -> Result<(Run, BTreeMap<String, Var>, Walk)> {
    let mut config = TrainerConfig { log_every: 100, evaluate_every: 100, save_every: 25, ..TrainerConfig::default() };
    (config.optimiser.weight_decay, config.schedule.peak) = (0.0, 1e-2);
    let params = Params::init(Random::new(1).stream("parameters"), &Device::Cpu);
    network(&params, &Tensor::zeros((1, 1), DType::F32, &Device::Cpu)?)?;
    let target = params.vars().into_iter().map(|(name, var)| Ok((name, var.as_detached_tensor().copy()?))).collect::<Result<_>>()?;
    let mut walk = Walk { actors: actors(), target, replay: Vec::new(), round: 0 };
    walk.start_round();
    walk.next_round(walk.target.clone())?;
    Ok((Run::new(config, Budget::Samples(transitions), 1)?, params.vars(), walk))
}

fn main() -> Result<()> {
    let place = std::env::args().nth(1).map_or_else(Place::memory, Place::resume);
    let (run, vars, mut task) = walk(100_000)?;
    let ended = run.train(vars, &mut task, &place, &Stop::after(None).on_signals()?)?;
    let good = task.evaluate(&ended.params(), &candle_train::parallel::Single)?.results()["score"];
    println!("after {} steps it walks towards the goal from {:.0}% of all places", ended.step, 100.0 * good);
    Ok(())
}

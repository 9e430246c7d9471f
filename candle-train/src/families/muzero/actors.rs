//! Actors: threads that play with the newest parameters while the learner learns from what they have played.
//!
//! Each actor has some of the environments and a search of its own. What it plays goes to the learner through a queue with an end: where that is full
//! the actors wait, so that nothing is learnt from that was played with parameters much older than the present ones. An actor that dies is named with its
//! reason, and the others go on; when none is left, so is the run. One that makes no step for [`PATIENCE`] is named too.

use super::config::RunConfig;
use super::play::{Playing, Round, planner};
use candle_core::{Device, Tensor};
use candle_envs::Entry;
use candle_models::bundle::ParameterSpec;
use candle_models::muzero::MuZeroConfig;
use candle_models::nn::{Init, Params};
use candle_models::random::Random;
use candle_models::{Error, Result};
use std::any::Any;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this time without a step an actor is named.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Parameters by name.
type Snapshot = BTreeMap<String, Tensor>;

/// What all actors of a rank play.
pub struct Script {
    /// How they play and search.
    pub config: RunConfig,
    /// Their networks.
    pub model: MuZeroConfig,
    /// The kind of their environments.
    pub entry: Entry,
    /// The environments of this rank among those of all.
    pub lanes: Range<usize>,
    /// Rounds that were played before, whose addresses are not used again.
    pub rounds: u64,
}

/// Actors at work. They end when it is dropped.
pub struct Actors {
    actors: Vec<Actor>,
    queue: Receiver<(usize, Result<Round, String>)>,
    shared: Arc<Shared>,
    description: Vec<ParameterSpec>,
    patience: Duration,
}

struct Actor {
    /// Its environments among those of all.
    lanes: Range<usize>,
    state: State,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Playing,
    /// It has been named for making no step.
    Silent,
    Dead,
}

struct Shared {
    parameters: Mutex<Arc<Snapshot>>,
    stop: AtomicBool,
    begun: Instant,
    /// When each actor made its last step, in milliseconds from the beginning; [`WAITING`] while it waits for room in the queue.
    steps: Vec<AtomicU64>,
}

const WAITING: u64 = u64::MAX;

impl Shared {
    fn now(&self) -> u64 {
        self.begun.elapsed().as_millis() as u64
    }

    fn parameters(&self) -> Arc<Snapshot> {
        self.parameters.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Actors {
    /// Begins to play, with as many actors and as long a queue as the configuration says.
    ///
    /// # Errors
    /// If a parameter is missing, or a thread cannot be started.
    pub fn begin(script: Script, parameters: &Params, patience: Duration) -> Result<Self> {
        let description = Params::description();
        super::task::networks(&script.config, &script.model, &description)?;
        let description = description.specs();
        let (count, first, of_rank) = (script.config.play.actors, script.lanes.start, script.lanes.len());
        let shared = Arc::new(Shared {
            parameters: Mutex::new(Arc::new(snapshot(&description, parameters)?)),
            stop: AtomicBool::new(false),
            begun: Instant::now(),
            steps: (0..count).map(|_| AtomicU64::new(0)).collect(),
        });
        let (to, queue) = sync_channel(script.config.play.queue);
        let script = Arc::new(script);
        let start = |number: usize| {
            let mine = crate::parallel::share(of_rank, number, count);
            let lanes = first + mine.start..first + mine.end;
            let part = Part { script: script.clone(), shared: shared.clone(), number, lanes: lanes.clone(), to: to.clone() };
            let thread = std::thread::Builder::new().name(format!("actor {number}")).spawn(move || part.run());
            let thread = thread.map_err(|e| Error::Input(format!("actor {number} cannot be started: {e}")))?;
            Ok(Actor { lanes, state: State::Playing, thread: Some(thread) })
        };
        let actors = (0..count).map(start).collect::<Result<_>>()?;
        Ok(Self { actors, queue, shared, description, patience })
    }

    /// The number of actors that there were.
    pub fn count(&self) -> usize {
        self.actors.len()
    }

    /// Has rounds that begin from now on played with these parameters.
    ///
    /// # Errors
    /// If a parameter is missing, or the device fails.
    pub fn publish(&self, parameters: &Params) -> Result<()> {
        let new = Arc::new(snapshot(&self.description, parameters)?);
        *self.shared.parameters.lock().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// The next round of any of them, and the first of its environments among those of all.
    ///
    /// # Errors
    /// If none of them lives any more, or none has made a step for too long.
    pub fn wait(&mut self) -> Result<(usize, Round)> {
        loop {
            self.look()?;
            match self.queue.recv_timeout(self.patience / 4) {
                Ok((number, Ok(round))) => {
                    self.actors[number].state = State::Playing;
                    return Ok((self.actors[number].lanes.start, round));
                }
                Ok((number, Err(why))) => self.bury(number, &why)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Input("every actor has ended".to_owned())),
            }
        }
    }

    /// Names those that have made no step for too long.
    fn look(&mut self) -> Result<()> {
        let (now, patience) = (self.shared.now(), self.patience.as_millis() as u64);
        for (number, (actor, step)) in self.actors.iter_mut().zip(&self.shared.steps).enumerate() {
            let step = step.load(Ordering::Relaxed);
            let late = step != WAITING && now.saturating_sub(step) > patience;
            match actor.state {
                State::Playing if late => {
                    actor.state = State::Silent;
                    eprintln!("warning: {} has made no step for {} s", name(number, &actor.lanes), patience / 1000);
                }
                State::Silent if !late => actor.state = State::Playing,
                _ => {}
            }
        }
        if self.actors.iter().any(|actor| actor.state == State::Playing) {
            return Ok(());
        }
        let silent = self.actors.iter().enumerate().filter(|(_, actor)| actor.state == State::Silent);
        let names: Vec<String> = silent.map(|(number, actor)| name(number, &actor.lanes)).collect();
        Err(Error::Input(format!("nobody plays any more: {} made no step for {} s", names.join(", "), patience / 1000)))
    }

    fn bury(&mut self, number: usize, why: &str) -> Result<()> {
        self.actors[number].state = State::Dead;
        let (left, name) =
            (self.actors.iter().filter(|actor| actor.state != State::Dead).count(), name(number, &self.actors[number].lanes));
        if left == 0 {
            return Err(Error::Input(format!("the last of {} actors has died, {name}: {why}", self.count())));
        }
        eprintln!("warning: {name} has died, {left} of {} go on: {why}", self.count());
        Ok(())
    }
}

fn name(number: usize, lanes: &Range<usize>) -> String {
    format!("actor {number} (environments {} to {})", lanes.start, lanes.end - 1)
}

impl Drop for Actors {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        // Without a receiver nobody waits for room.
        self.queue = sync_channel(0).1;
        // One that does not step any more would not end either.
        for actor in self.actors.iter_mut().filter(|actor| actor.state != State::Silent) {
            let _ = actor.thread.take().map(JoinHandle::join);
        }
    }
}

/// What an actor works with.
struct Part {
    script: Arc<Script>,
    shared: Arc<Shared>,
    number: usize,
    lanes: Range<usize>,
    to: SyncSender<(usize, Result<Round, String>)>,
}

impl Part {
    fn run(self) {
        let why = match catch_unwind(AssertUnwindSafe(|| self.play())) {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => text(&*panic),
        };
        // Nobody listens at the end of a run.
        let _ = self.to.send((self.number, Err(why)));
    }

    /// Plays round by round until nobody wants any more.
    fn play(&self) -> Result<()> {
        let Script { config, model, entry, rounds, .. } = &*self.script;
        let (play, step) = (&config.play, &self.shared.steps[self.number]);
        // Environments begin anew in a run that goes on, and not with the episodes that it has seen.
        let anew = Random::new(config.seed).stream("resumed").at(*rounds).bits(0);
        let mut playing = Playing::new(entry, &self.lanes, if *rounds == 0 { config.seed } else { anew.into() })?;
        for number in *rounds.. {
            let parameters = Params::given((*self.shared.parameters()).clone(), &Device::Cpu);
            let mut planner = planner(model, &parameters, (self.lanes.len(), (entry.rules)()), (play.search, play.simulations), 1)?;
            let random = Random::new(config.seed).stream("round").at(number).stream("search");
            let go_on = || {
                step.store(self.shared.now(), Ordering::Relaxed);
                !self.shared.stop.load(Ordering::Relaxed)
            };
            let round = playing.round(&mut planner, (play.steps, self.lanes.start, play.random, random), go_on)?;
            step.store(WAITING, Ordering::Relaxed);
            if self.shared.stop.load(Ordering::Relaxed) || self.to.send((self.number, Ok(round))).is_err() {
                return Ok(());
            }
            step.store(self.shared.now(), Ordering::Relaxed);
        }
        Ok(())
    }
}

fn text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a word"))
}

/// A copy on the CPU that later updates do not change.
fn snapshot(description: &[ParameterSpec], parameters: &Params) -> Result<Snapshot> {
    let copy = |spec: &ParameterSpec| {
        let tensor = parameters.get(&spec.name, &spec.shape, Init::Constant(0.0))?.detach();
        Ok((spec.name.clone(), tensor.to_device(&Device::Cpu)?.copy()?))
    };
    description.iter().map(copy).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_envs::{Action, Env, Environments, Pcg64, Scene, Spec, Step, View};
    use candle_models::agent::{Component, Observation};
    use serde::{Deserialize, Serialize};
    use std::sync::{Condvar, MutexGuard};

    /// Whether what waits may go on.
    static GATE: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    fn open() -> MutexGuard<'static, bool> {
        GATE.0.lock().unwrap()
    }

    /// Waits in its third step until it may go on, and panics then.
    #[derive(Debug, Clone, Default, Serialize, Deserialize)]
    struct Stuck {
        steps: u32,
        random: Pcg64,
    }

    impl Env for Stuck {
        fn spec() -> Spec {
            Spec {
                name: "stuck".into(),
                observation: vec![Observation::Floats { name: "steps".to_owned(), shape: vec![1], low: None, high: None }],
                action: vec![Component::Discrete { name: "step".to_owned(), classes: 2 }],
                players: 1,
                max_steps: None,
            }
        }

        fn reset(&mut self, random: Pcg64) {
            self.random = random;
        }

        fn random(&self) -> &Pcg64 {
            &self.random
        }

        fn step(&mut self, _: Action) -> candle_envs::Result<Step> {
            self.steps += 1;
            if self.steps == 3 {
                drop(GATE.1.wait_while(open(), |open| !*open).unwrap());
                panic!("pushed");
            }
            Ok(Step { reward: 0.0, terminated: false, truncated: false })
        }

        fn observe(&self, to: View) {
            to.floats[0] = self.steps as f32;
        }

        fn draw(&self) -> Scene {
            Scene::new(1.0, 1.0, [0; 3])
        }
    }

    #[test]
    fn an_actor_that_makes_no_step_is_named_and_so_is_one_that_panics() {
        let mut config = RunConfig::preset("quick").unwrap();
        (config.play.lanes, config.play.actors, config.play.steps) = (4, 2, 4);
        let entry = Environments::default().with::<Stuck>("Waits").get("stuck").unwrap();
        let model = config.model(entry.spec()).unwrap();
        let drawn = Params::init(Random::new(1), &Device::Cpu);
        super::super::task::networks(&config, &model, &drawn).unwrap();
        let tensors = drawn.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor()));
        let parameters = Params::given(tensors.collect(), &Device::Cpu);
        let begin = |patience| {
            let script = Script { config: config.clone(), model: model.clone(), entry: entry.clone(), lanes: 4..8, rounds: 0 };
            Actors::begin(script, &parameters, patience).unwrap()
        };
        let silent = begin(Duration::from_millis(100)).wait().err().unwrap().to_string();
        assert_eq!(silent, "nobody plays any more: actor 0 (environments 4 to 5), actor 1 (environments 6 to 7) made no step for 0 s");
        *open() = true;
        GATE.1.notify_all();
        let dead = begin(Duration::from_secs(300)).wait().err().unwrap().to_string();
        assert!(dead.starts_with("the last of 2 actors has died, actor ") && dead.ends_with("it panicked: pushed"), "{dead}");
    }
}

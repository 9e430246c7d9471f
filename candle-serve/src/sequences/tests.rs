//! Sequences among clients, writers of snapshots and other servers, in orders that a seed stirs: nothing that was answered is taken back.

use super::{Begin, Current, Ended, Keep, Lease, Name, Sequences};
use crate::fault::Fault;
use crate::log::{Log, LogFormat};

use crate::protocol::request::SequenceId;
use crate::snapshots::Store;
use candle_models::candle_core::Device;
use candle_models::engine::{Engine, Model, Options};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// How long something may take that has to happen.
const PATIENCE: Duration = Duration::from_secs(60);
/// Orders that are tried, and requests of each client in one.
const SEEDS: u64 = 20;
const TURNS: u64 = 30;

/// Its state is how often it was stepped.
struct Counter(Signature);

impl Recurrent for Counter {
    fn signature(&self) -> &Signature {
        &self.0
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn unroll(&self, _: &NamedTensors, resets: &[bool], state: &NamedTensors) -> candle_models::Result<(NamedTensors, NamedTensors)> {
        let state = state.reset_rows(resets)?.map(|_, count| Ok((count + 1.0)?))?;
        let count = state.get("count")?.unsqueeze(1)?;
        Ok((NamedTensors::from_iter([("steps".to_owned(), count)]), state))
    }
}

impl Model for Counter {
    fn family(&self) -> &'static str {
        "counter"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

fn signature() -> Signature {
    let spec = |name| vec![TensorSpec::f32(name, &[1])];
    Signature { inputs: vec![TensorSpec::f32("x", &[1]).or_f32(&[0.0])], outputs: spec("steps"), state: spec("count") }
}

/// A store in memory whose calls take their time before and after what they do.
#[derive(Default)]
struct Slow {
    snapshots: Mutex<HashMap<String, Vec<u8>>>,
    pauses: Option<Random>,
    calls: AtomicU64,
}

impl Slow {
    fn stirred(seed: u64) -> Arc<Self> {
        Arc::new(Self { pauses: Some(Random::new(seed)), ..Self::default() })
    }

    fn pause(&self) {
        let Some(random) = self.pauses else { return };
        match random.below(self.calls.fetch_add(1, SeqCst), 8) {
            0..4 => {}
            4..6 => std::thread::yield_now(),
            more => std::thread::sleep(Duration::from_micros(if more == 6 { 50 } else { 500 })),
        }
    }

    fn within<T>(&self, work: impl FnOnce(&mut HashMap<String, Vec<u8>>) -> T) -> candle_models::Result<T> {
        self.pause();
        let done = work(&mut self.snapshots.lock().unwrap());
        self.pause();
        Ok(done)
    }
}

impl Store for Slow {
    fn put(&self, _: &str, key: &str, bytes: &[u8]) -> candle_models::Result<()> {
        self.within(|snapshots| drop(snapshots.insert(key.to_owned(), bytes.to_owned())))
    }

    fn get(&self, _: &str, key: &str) -> candle_models::Result<Option<Vec<u8>>> {
        self.within(|snapshots| snapshots.get(key).cloned())
    }

    fn remove(&self, _: &str, key: &str) -> candle_models::Result<()> {
        self.within(|snapshots| drop(snapshots.remove(key)))
    }

    fn sweep(&self) -> candle_models::Result<()> {
        Ok(())
    }
}

/// A server, as far as sequences know it.
struct Server {
    engine: Engine,
    sequences: Arc<Sequences>,
    at_once: Arc<AtomicBool>,
}

impl Server {
    /// Ends sequences as soon as nobody is at them.
    fn new(store: Arc<Slow>, at_once: bool) -> Arc<Self> {
        let engine = Engine::start(Arc::new(Counter(signature())), &Options::default()).unwrap();
        let at_once = Arc::new(AtomicBool::new(at_once));
        let store = Some((store as Arc<dyn Store>, Arc::new(Log::new(LogFormat::Text))));
        let keep = Keep { idle: Duration::ZERO, store, at_once: at_once.clone(), ended: Arc::new(Ended::default()) };
        Arc::new(Self { engine, sequences: Sequences::new("counter", &signature(), &keep), at_once })
    }

    fn current(&self) -> Current<'_> {
        Current { engine: &self.engine, generation: 0 }
    }

    async fn lease(&self, id: u64, begin: Begin) -> Result<Lease, Fault> {
        let name = Name::new(&None, &SequenceId::number(id).unwrap());
        self.sequences.lease(self.current(), &name, begin, None).await
    }

    /// A request for a step, as a model makes it: the frames behind the sequence before and after it.
    async fn step(&self, id: u64, begin: Begin) -> Result<[u64; 2], Fault> {
        let mut lease = self.lease(id, begin).await?;
        if begin == Begin::Start {
            lease.restart(self.current())?;
        }
        let before = lease.frames()?;
        lease.begin_step();
        lease.session().step_async().await?;
        lease.end_step();
        lease.keep();
        if begin == Begin::Start {
            lease.forget_snapshot().await?;
        }
        lease.keep_step().await?;
        let (after, counted) = (lease.frames()?, lease.stepped().floats("steps")?[0]);
        assert_eq!(after as f32, counted, "the state is not that of its frames");
        Ok([before, after])
    }

    /// A request that is given up while its step runs.
    async fn vanish(&self, id: u64) -> Result<(), Fault> {
        let mut lease = self.lease(id, Begin::GoOn).await?;
        lease.begin_step();
        let mut step = std::pin::pin!(lease.session().step_async());
        let _ = futures_util::poll!(&mut step);
        Ok(())
    }

    /// What a server does beside its requests, in no order, until it is told that it is over.
    fn tend(&self, random: Random, over: &AtomicBool) {
        for round in 0.. {
            if over.load(SeqCst) {
                return;
            }
            match random.below(round, 4) {
                0 => self.sequences.expire(),
                1 => std::thread::sleep(Duration::from_micros(200)),
                _ => self.sequences.save(),
            }
        }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(4).enable_all().build().unwrap()
}

/// Has every server tended while `clients` run.
fn tended(runtime: &Runtime, random: Random, servers: &[Arc<Server>], clients: impl Future<Output = ()>) {
    let over = Arc::new(AtomicBool::new(false));
    let tend = |(at, server): (usize, &Arc<Server>)| {
        let (server, over, random) = (server.clone(), over.clone(), random.at(at as u64));
        runtime.spawn_blocking(move || server.tend(random, &over))
    };
    let tending: Vec<_> = servers.iter().enumerate().map(tend).collect();
    // Also where a client fails.
    let ends = Ends(&over);
    runtime.block_on(async { tokio::time::timeout(PATIENCE, clients).await }).unwrap();
    drop(ends);
    tending.into_iter().for_each(|tends| runtime.block_on(tends).unwrap());
}

struct Ends<'o>(&'o AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn a_step_that_was_given_up_does_not_stand_against_another_server() {
    runtime().block_on(async {
        for saves in [false, true] {
            let store = Arc::new(Slow::default());
            let [first, second] = [(); 2].map(|()| Server::new(store.clone(), true));
            first.step(1, Begin::Start).await.unwrap();
            first.vanish(1).await.unwrap();
            assert_eq!(second.step(1, Begin::GoOn).await.unwrap(), [1, 2]);
            assert_eq!(second.step(1, Begin::GoOn).await.unwrap(), [2, 3]);
            if saves {
                let first = first.clone();
                tokio::task::spawn_blocking(move || first.sequences.save()).await.unwrap();
            }
            assert_eq!(first.step(1, Begin::GoOn).await.unwrap(), [3, 4]);
            assert_eq!(second.step(1, Begin::GoOn).await.unwrap(), [4, 5]);
        }
    });
}

/// One server, two clients of each sequence; snapshots are at once now and then.
#[test]
fn what_one_server_has_answered_is_not_taken_back() {
    let runtime = runtime();
    for seed in 0..SEEDS {
        let random = Random::new(seed);
        let server = Server::new(Slow::stirred(seed), false);
        let answered: Vec<AtomicU64> = (0..3).map(|_| AtomicU64::new(0)).collect();
        let client = async |at: usize| {
            let (id, answered, random) = (at as u64 % 3 + 1, &answered[at % 3], random.stream("client").at(at as u64));
            for turn in 0..TURNS {
                let least = answered.load(SeqCst);
                match random.below(turn, 8) {
                    0 => server.vanish(id).await.unwrap(),
                    1 => server.at_once.store(turn % 2 == 0, SeqCst),
                    _ => {
                        let [before, after] = server.step(id, Begin::GoOn).await.unwrap();
                        assert!(before >= least, "seed {seed}: sequence {id} goes on from {before}, after {least}");
                        answered.fetch_max(after, SeqCst);
                    }
                }
            }
        };
        tended(&runtime, random.stream("tend"), std::slice::from_ref(&server), async {
            for id in 1..=3 {
                server.step(id, Begin::Start).await.unwrap();
            }
            join_all((0..6).map(client)).await;
        });
    }
}

/// Two servers, of which any may be asked, as every step is in a snapshot before its answer.
#[test]
fn what_another_server_has_answered_is_not_taken_back() {
    let runtime = runtime();
    for seed in 0..SEEDS {
        let (random, store) = (Random::new(seed), Slow::stirred(seed));
        let servers = [(); 2].map(|()| Server::new(store.clone(), true));
        let client = async |id: u64| {
            let random = random.stream("client").at(id);
            for turn in 0..TURNS {
                let begin = if turn == 0 { Begin::Start } else { Begin::GoOn };
                let found = servers[random.below(turn, 2) as usize].step(id, begin).await.unwrap();
                assert_eq!(found, [turn, turn + 1], "seed {seed}: sequence {id}");
            }
        };
        tended(&runtime, random.stream("tend"), &servers, async { drop(join_all((1..=3).map(client)).await) });
    }
}

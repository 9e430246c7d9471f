//! The engine on the shipped policies: every session gives what a runner of its own would give.

use candle_core::{DType, Device, IndexOp, Tensor};
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, EngineError, Model, Options, Placement, Runner, Session};
use candle_models::exec::SAMPLE;
use candle_models::families;
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use candle_models::tensors::NamedTensors;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

const BUNDLES: [&str; 2] = ["../weights/policy-mlp", "../weights/policy-mamba"];

fn model(bundle: &str) -> Arc<dyn Model> {
    families::shipped().load(&Bundle::open(bundle).unwrap()).unwrap()
}

/// A test that hangs fails.
fn unless_it_hangs(test: impl FnOnce() + Send + 'static) {
    let (done, over) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = done.send(());
    });
    match over.recv_timeout(Duration::from_secs(300)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it hangs"),
        _ => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

/// The inputs of one frame of one agent.
struct Frame {
    floats: Vec<(&'static str, Vec<f32>)>,
    indices: Vec<(&'static str, Vec<u32>)>,
}

impl Frame {
    /// Random, with the action given: what is compared then hangs on no choice.
    fn random(model: &dyn Model, agent: u64, n: u64) -> Self {
        let random = Random::new(agent).at(n);
        let normal = |name: &'static str, width: usize| {
            let mut values = vec![0.0; width];
            random.stream(name).fill_normal(0, &mut values);
            (name, values)
        };
        let classes = |name: &'static str| {
            let spec = model.signature().inputs.iter().find(|spec| spec.name == name).unwrap();
            (name, spec.draw(&[1], &random).unwrap().flatten_all().unwrap().to_vec1().unwrap())
        };
        Self {
            floats: vec![normal("features", 288), ("uniform", vec![-1.0; 13])],
            indices: vec![classes("ids"), classes("previous_action"), classes("action")],
        }
    }

    fn fill(&self, session: &mut Session) {
        self.floats.iter().for_each(|(name, values)| session.set_f32(name, values).unwrap());
        self.indices.iter().for_each(|(name, values)| session.set_u32(name, values).unwrap());
    }
}

/// A runner of one row beside a session.
struct Oracle(Runner);

impl Oracle {
    fn new(model: &Arc<dyn Model>) -> Self {
        Self(Runner::new(model.clone(), 1, 1).unwrap())
    }

    fn step(&mut self, frame: &Frame, reset: bool) {
        frame.floats.iter().for_each(|(name, values)| self.0.set_f32(name, values).unwrap());
        frame.indices.iter().for_each(|(name, values)| self.0.set_u32(name, values).unwrap());
        self.0.step(&[reset]).unwrap();
    }

    fn check(&self, session: &Session, what: &str) {
        for name in ["logits", "value"] {
            for (i, (x, y)) in session.floats(name).unwrap().iter().zip(self.0.floats(name, 0).unwrap()).enumerate() {
                assert!((x - y).abs() <= 2e-5 * (1.0 + x.abs().max(y.abs())), "{what}: {name} at {i}: {x} and {y}");
            }
        }
        assert_eq!(session.indices("action").unwrap(), self.0.indices("action", 0).unwrap(), "{what}");
    }
}

fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::pin::Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn finish<F: Future + Unpin>(mut future: F) -> F::Output {
    loop {
        if let Poll::Ready(output) = poll(&mut future) {
            return output;
        }
        std::thread::yield_now();
    }
}

#[test]
fn sessions_on_many_threads_equal_runners_of_their_own() {
    unless_it_hangs(|| {
        for bundle in BUNDLES {
            let model = model(bundle);
            let engine = Engine::start(model.clone(), &Options { max_batch: 3, ..Default::default() }).unwrap();
            std::thread::scope(|scope| {
                for agent in 0..6 {
                    let (engine, model) = (&engine, &model);
                    scope.spawn(move || {
                        let (mut session, mut oracle) = (engine.open().unwrap(), Oracle::new(model));
                        for n in 0..40 {
                            let frame = Frame::random(&**model, agent, n);
                            let reset = Random::new(agent).stream("reset").uniform(n) < 0.1;
                            if reset {
                                session.reset();
                            }
                            frame.fill(&mut session);
                            session.step().unwrap();
                            oracle.step(&frame, reset);
                            oracle.check(&session, &format!("{bundle} agent {agent} frame {n}"));
                        }
                    });
                }
            });
            let stats = engine.stats();
            assert_eq!((stats.steps, stats.open), (240, 0), "{bundle}");
        }
    });
}

#[test]
fn batches_in_random_order_equal_runners() {
    unless_it_hangs(|| {
        for bundle in BUNDLES {
            let model = model(bundle);
            // The first of several requests waits a little for the next one, which may be the turn of another thread.
            let options = Options { max_batch: 8, max_wait: Some(Duration::from_millis(2)), ..Default::default() };
            let engine = Engine::start(model.clone(), &options).unwrap();
            let mut sessions: Vec<Session> = (0..11).map(|_| engine.open().unwrap()).collect();
            let mut oracles: Vec<Oracle> = (0..11).map(|_| Oracle::new(&model)).collect();
            let random = Random::new(5);
            let batches = || engine.stats().batch_sizes[1..].iter().sum::<u64>();
            for n in (0..).take_while(|n| *n < 30 || batches() == 0) {
                // A random part of the agents, in a random order, all waiting at once.
                let chosen = &random.at(n).permutation(11)[..1 + random.below(n, 11) as usize];
                let frames: Vec<Frame> = (0..11).map(|agent| Frame::random(&*model, agent, n)).collect();
                sessions.iter_mut().zip(&frames).for_each(|(session, frame)| frame.fill(session));
                let mut steps: Vec<_> = sessions.iter_mut().map(|session| Some(session.step_async())).collect();
                for &agent in chosen {
                    // This thread may be put aside long enough for an answer.
                    if let Poll::Ready(answer) = poll(steps[agent as usize].as_mut().unwrap()) {
                        answer.unwrap();
                        steps[agent as usize] = None;
                    }
                }
                chosen.iter().filter_map(|agent| steps[*agent as usize].take()).for_each(|step| finish(step).unwrap());
                drop(steps);
                for &agent in chosen {
                    let agent = agent as usize;
                    oracles[agent].step(&frames[agent], false);
                    oracles[agent].check(&sessions[agent], &format!("{bundle} agent {agent} frame {n}"));
                }
            }
        }
    });
}

#[test]
fn a_lone_session_plays_as_a_runner_does() {
    unless_it_hangs(|| {
        for bundle in BUNDLES {
            let model = model(bundle);
            let engine = Engine::start(model.clone(), &Options::default()).unwrap();
            let (mut session, mut oracle) = (engine.open().unwrap(), Oracle::new(&model));
            for n in 0..60 {
                let mut frame = Frame::random(&*model, 3, n);
                // It chooses, greedily and by chance.
                frame.indices[2].1.fill(SAMPLE);
                if n % 2 == 0 {
                    Random::new(9).at(n).fill_uniform(0, &mut frame.floats[1].1);
                }
                frame.fill(&mut session);
                session.step().unwrap();
                oracle.step(&frame, n == 0);
                oracle.check(&session, &format!("{bundle} frame {n}"));
            }
            assert_eq!(engine.stats().lone_steps, 60);
        }
    });
}

#[test]
fn states_can_be_saved_restored_and_forked_in_the_middle_of_a_game() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[1]);
        let engine = Engine::start(model.clone(), &Options::default()).unwrap();
        let (mut first, mut oracle) = (engine.open().unwrap(), Oracle::new(&model));
        let advance = |session: &mut Session, n: u64| {
            Frame::random(&*model, 1, n).fill(session);
            session.step().unwrap();
        };
        for n in 0..10 {
            advance(&mut first, n);
            oracle.step(&Frame::random(&*model, 1, n), false);
        }
        let saved = first.save().unwrap();
        saved.check(&model.signature().state, &[1]).unwrap();
        let mut fork = first.fork().unwrap();
        // Another game in the meantime.
        (0..5).for_each(|n| advance(&mut first, 100 + n));
        // A session keeps its engine running.
        let mut elsewhere = Engine::start(model.clone(), &Options::default()).unwrap().open().unwrap();
        elsewhere.restore(&saved).unwrap();
        first.restore(&saved).unwrap();
        for n in 10..20 {
            oracle.step(&Frame::random(&*model, 1, n), false);
            for (session, what) in [(&mut first, "restored"), (&mut fork, "forked"), (&mut elsewhere, "in another engine")] {
                advance(session, n);
                oracle.check(session, &format!("{what}, frame {n}"));
            }
        }
        assert_eq!((first.frames().unwrap(), fork.frames().unwrap()), (10, 20));
    });
}

#[test]
fn states_go_from_sessions_to_rows_of_a_runner_and_back() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[1]);
        let engine = Engine::start(model.clone(), &Options::default()).unwrap();
        let (mut played, mut fresh, mut runner) =
            (engine.open().unwrap(), engine.open().unwrap(), Runner::new(model.clone(), 2, 1).unwrap());
        let advance = |session: &mut Session, n: u64| {
            Frame::random(&*model, 1, n).fill(session);
            session.step().unwrap();
        };
        (0..5).for_each(|n| advance(&mut played, n));
        let row = played.save().unwrap();
        let states = runner.save().unwrap().scatter_rows(&[1], &row).unwrap();
        runner.restore(&states).unwrap();
        let error = runner.restore(&row).unwrap_err().to_string();
        assert!(error.contains("expected F32 [2, ") && error.contains("found F32 [1, "), "{error}");
        let frame = Frame::random(&*model, 1, 5);
        frame.floats.iter().for_each(|(name, values)| runner.set_f32(name, &values.repeat(2)).unwrap());
        frame.indices.iter().for_each(|(name, values)| runner.set_u32(name, &values.repeat(2)).unwrap());
        runner.step(&[false; 2]).unwrap();
        for (row, session) in [&mut fresh, &mut played].into_iter().enumerate() {
            advance(session, 5);
            for (x, y) in session.floats("logits").unwrap().iter().zip(runner.floats("logits", row).unwrap()) {
                assert!((x - y).abs() <= 2e-5 * (1.0 + x.abs().max(y.abs())), "row {row}: {x} and {y}");
            }
        }
        fresh.restore(&runner.save().unwrap().gather_rows(&[1]).unwrap()).unwrap();
        advance(&mut fresh, 6);
        advance(&mut played, 6);
        assert_eq!(fresh.indices("action").unwrap(), played.indices("action").unwrap());
    });
}

/// On a processor that multiplies bf16 faster than f32; elsewhere it is refused in words.
#[test]
fn products_in_bf16_stay_near_those_in_f32_and_a_row_does_not_depend_on_its_batch() {
    let place = Placement { dtype: Some(DType::BF16), ..Placement::cpu(1) };
    for bundle in BUNDLES {
        let model = model(bundle);
        let alone = match Runner::on(model.clone(), (1, 1), &place) {
            Ok(runner) => runner,
            Err(error) => {
                assert_eq!(error.to_string(), "config: dtype: expected f32 on this device, found bf16");
                continue;
            }
        };
        let (mut alone, mut wide) = (Oracle(alone), Oracle::new(&model));
        let mut batch = Runner::on(model.clone(), (5, 1), &place).unwrap();
        assert!(batch.bytes() < Runner::new(model.clone(), 5, 1).unwrap().bytes(), "weights are halved");
        let mut moved = 0.0f32;
        for t in 0..4 {
            let frames: Vec<Frame> = (0..5).map(|agent| Frame::random(&*model, agent, t)).collect();
            for (i, (name, _)) in frames[0].floats.iter().enumerate() {
                batch.set_f32(name, &frames.iter().flat_map(|frame| frame.floats[i].1.clone()).collect::<Vec<_>>()).unwrap();
            }
            for (i, (name, _)) in frames[0].indices.iter().enumerate() {
                batch.set_u32(name, &frames.iter().flat_map(|frame| frame.indices[i].1.clone()).collect::<Vec<_>>()).unwrap();
            }
            batch.step(&[t == 0; 5]).unwrap();
            let frame = &frames[3];
            alone.step(frame, t == 0);
            wide.step(frame, t == 0);
            let [alone, wide, batch] =
                [(&alone.0, 0), (&wide.0, 0), (&batch, 3)].map(|(runner, row)| runner.floats("logits", row).unwrap());
            for ((alone, wide), batch) in alone.iter().zip(wide).zip(batch) {
                // Sums in another order may round an activation to its other neighbour.
                assert!((alone - batch).abs() <= 5e-3 * (1.0 + alone.abs()), "{bundle}, frame {t}: {alone} alone, {batch} in a batch");
                let apart = (alone - wide).abs() / (1.0 + wide.abs());
                assert!(apart < 6e-2, "{bundle}, frame {t}: {alone} in bf16, {wide} in f32");
                moved = moved.max(apart);
            }
        }
        assert!(moved > 1e-5, "{bundle}: nothing was rounded");
    }
}

#[test]
fn the_bytes_of_an_input_or_output_are_those_of_its_slice() {
    let model = model(BUNDLES[0]);
    let engine = Engine::start(model.clone(), &Options::default()).unwrap();
    let (mut session, mut runner) = (engine.open().unwrap(), Runner::new(model.clone(), 3, 1).unwrap());
    let range = |start: *const u8, bytes: usize| (start.addr(), bytes);
    let of = |bytes: *const [u8]| range(bytes.cast(), bytes.len());
    for spec in &model.signature().inputs {
        let (of_session, of_row) = (session.input_bytes(spec).unwrap(), runner.input_bytes(spec, 2).unwrap());
        let (slice, row) = match spec.dtype() {
            candle_core::DType::U32 => {
                (session.indices_mut(&spec.name).unwrap().as_ptr().cast(), runner.indices_mut(&spec.name, 2).unwrap().as_ptr().cast())
            }
            _ => (session.floats_mut(&spec.name).unwrap().as_ptr().cast(), runner.floats_mut(&spec.name, 2).unwrap().as_ptr().cast()),
        };
        assert_eq!((of(of_session), of(of_row)), (range(slice, 4 * spec.width()), range(row, 4 * spec.width())), "{}", spec.name);
        assert!(runner.input_bytes(spec, 3).is_err());
    }
    for spec in &model.signature().outputs {
        let (slice, row) = match spec.dtype() {
            candle_core::DType::U32 => {
                (session.indices(&spec.name).unwrap().as_ptr().cast(), runner.indices(&spec.name, 2).unwrap().as_ptr().cast())
            }
            _ => (session.floats(&spec.name).unwrap().as_ptr().cast(), runner.floats(&spec.name, 2).unwrap().as_ptr().cast()),
        };
        let found = (of(session.output_bytes(spec).unwrap()), of(runner.output_bytes(spec, 2).unwrap()));
        assert_eq!(found, (range(slice, 4 * spec.width()), range(row, 4 * spec.width())), "{}", spec.name);
    }
}

#[test]
fn inputs_out_of_range_are_named_before_they_reach_the_model() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[0]);
        let engine = Engine::start(model.clone(), &Options::default()).unwrap();
        let mut session = engine.open().unwrap();
        let mut refused = |change: &dyn Fn(&mut Session)| {
            Frame::random(&*model, 1, 1).fill(&mut session);
            change(&mut session);
            session.step().unwrap_err().to_string()
        };
        assert_eq!(
            refused(&|s| s.floats_mut("features").unwrap()[7] = f32::NAN),
            "tensor features: expected finite numbers, found NaN in column 7"
        );
        assert_eq!(
            refused(&|s| s.floats_mut("uniform").unwrap()[2] = f32::INFINITY),
            "tensor uniform: expected finite numbers, found inf in column 2"
        );
        assert_eq!(
            refused(&|s| s.floats_mut("uniform").unwrap()[2] = 7.0),
            "tensor uniform: expected numbers from -1 to below 1, found 7 in column 2"
        );
        let limit = model.signature().inputs.iter().find(|spec| spec.name == "ids").unwrap().limit(5).unwrap();
        let expected = format!("tensor ids: expected an index up to {}, found {limit} in column 5", limit - 1);
        assert_eq!(refused(&|s| s.indices_mut("ids").unwrap()[5] = limit), expected);
        let expected = "tensor previous_action: expected an index up to 16, found SAMPLE in column 8";
        assert_eq!(refused(&|s| s.indices_mut("previous_action").unwrap()[8] = SAMPLE), expected);
        let expected = "tensor action: expected an index up to 4 or SAMPLE, found 5 in column 12";
        assert_eq!(refused(&|s| s.indices_mut("action").unwrap()[12] = 5), expected);
        assert_eq!(engine.stats().steps, 0);
        assert!(Engine::start(model, &Options { sessions: 0, ..Default::default() }).is_err());
    });
}

#[test]
fn a_burst_is_answered_or_refused_but_never_lost() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[1]);
        // The first two wait for the others, for whom there is no room: a second is more than 64 requests take.
        let max_wait = Some(Duration::from_secs(1));
        let engine = Engine::start(model.clone(), &Options { queue: 2, max_wait, ..Default::default() }).unwrap();
        let mut sessions: Vec<Session> = (0..64).map(|_| engine.open().unwrap()).collect();
        sessions.iter_mut().for_each(|session| Frame::random(&*model, 0, 0).fill(session));
        let mut steps: Vec<_> = sessions.iter_mut().map(Session::step_async).collect();
        let first: Vec<_> = steps.iter_mut().map(poll).collect();
        let refused = first.iter().filter(|answer| matches!(answer, Poll::Ready(Err(EngineError::Overloaded { queue: 2 })))).count();
        assert!(refused > 0, "more than two at a time were taken");
        for (step, answer) in steps.into_iter().zip(first) {
            if answer.is_pending() {
                finish(step).unwrap();
            }
        }
        let stats = engine.stats();
        assert_eq!((stats.steps, stats.overloaded), (64 - refused as u64, refused as u64));
    });
}

#[test]
fn cancelled_and_late_steps_leave_states_that_are_accounted_for() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[1]);
        let engine = Engine::start(model.clone(), &Options::default()).unwrap();
        let mut sessions: Vec<Session> = (0..4).map(|_| engine.open().unwrap()).collect();
        let mut oracles: Vec<Oracle> = (0..4).map(|_| Oracle::new(&model)).collect();
        for n in 0..50 {
            let frames: Vec<Frame> = (0..4).map(|agent| Frame::random(&*model, agent, n)).collect();
            sessions.iter_mut().zip(&frames).for_each(|(session, frame)| frame.fill(session));
            let before: Vec<u64> = sessions.iter_mut().map(|session| session.frames().unwrap()).collect();
            let [a, b, c, d] = &mut sessions[..] else { unreachable!() };
            let late = Instant::now() + Duration::from_micros(30);
            let (mut first, mut second, mut third) = (a.step_async(), b.step_async(), c.step_async_before(late));
            let _ = (poll(&mut first), poll(&mut second));
            let third = poll(&mut third).is_pending().then_some(third);
            d.step().unwrap();
            drop((first, second));
            // Whether it was in time or not hangs on the machine; the state tells.
            third.into_iter().for_each(|mut third| drop(poll(&mut third)));
            for (agent, session) in sessions.iter_mut().enumerate() {
                if session.frames().unwrap() > before[agent] {
                    oracles[agent].step(&frames[agent], false);
                    oracles[agent].check(session, &format!("agent {agent} frame {n}"));
                }
            }
        }
        assert_eq!(sessions[3].frames().unwrap(), 50);
    });
}

#[test]
fn an_engine_that_is_closed_releases_its_agents() {
    unless_it_hangs(|| {
        let model = model(BUNDLES[0]);
        let engine = Engine::start(model.clone(), &Options { max_batch: 2, ..Default::default() }).unwrap();
        let mut sessions: Vec<Session> = (0..4).map(|_| engine.open().unwrap()).collect();
        sessions.iter_mut().for_each(|session| Frame::random(&*model, 0, 0).fill(session));
        std::thread::scope(|scope| {
            for mut session in sessions {
                scope.spawn(move || {
                    let end = loop {
                        if let Err(error) = session.step() {
                            break error;
                        }
                    };
                    assert!(matches!(end, EngineError::Closed));
                });
            }
            while engine.stats().steps < 100 {
                std::thread::yield_now();
            }
            engine.close();
        });
    });
}

/// A model in plain Candle, as one brings it along: `y = tanh(x W + s)`, and `y` is the state behind the frame.
struct Plain {
    signature: Signature,
    weight: Tensor,
}

impl Plain {
    fn new() -> Self {
        let signature = Signature {
            inputs: vec![TensorSpec::f32("x", &[3])],
            outputs: vec![TensorSpec::f32("y", &[2]), TensorSpec::u32("best", &[1])],
            state: vec![TensorSpec::f32("last", &[2])],
        };
        let mut values = vec![0.0; 6];
        Random::new(3).fill_normal(0, &mut values);
        Self { signature, weight: Tensor::from_vec(values, (3, 2), &Device::Cpu).unwrap() }
    }
}

impl Recurrent for Plain {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> candle_models::Result<(NamedTensors, NamedTensors)> {
        let (x, mut state) = (inputs.get("x")?, state.clone());
        let (batch, steps, _) = x.dims3()?;
        let mut frames = Vec::new();
        for t in 0..steps {
            let reset: Vec<bool> = (0..batch).map(|b| resets[b * steps + t]).collect();
            state = state.reset_rows(&reset)?;
            let y = (x.i((.., t))?.contiguous()?.matmul(&self.weight)? + state.get("last")?)?.tanh()?;
            state.insert("last", y.clone());
            frames.push(y);
        }
        let y = Tensor::stack(&frames, 1)?;
        let best = y.argmax_keepdim(2)?;
        Ok(([("y".to_owned(), y), ("best".to_owned(), best)].into_iter().collect(), state))
    }
}

impl Model for Plain {
    fn family(&self) -> &'static str {
        "plain"
    }

    fn config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[test]
fn a_model_in_plain_candle_has_sessions_and_batches_too() {
    unless_it_hangs(|| {
        let model: Arc<dyn Model> = Arc::new(Plain::new());
        let engine = Engine::start(model.clone(), &Options::default()).unwrap();
        assert_eq!(engine.on_tensors(), ["unroll"]);
        let mut sessions: Vec<Session> = (0..3).map(|_| engine.open().unwrap()).collect();
        let mut oracles: Vec<NamedTensors> = (0..3).map(|_| model.initial_state(1).unwrap()).collect();
        let spec = &model.signature().inputs[0];
        for n in 0..20 {
            for (agent, (session, state)) in sessions.iter_mut().zip(&mut oracles).enumerate() {
                let x = spec.draw(&[1], &Random::new(agent as u64).at(n)).unwrap();
                session.set_f32("x", &x.flatten_all().unwrap().to_vec1::<f32>().unwrap()).unwrap();
                let (outputs, after) = model.step(&[("x".to_owned(), x)].into_iter().collect(), &[n == 0], state).unwrap();
                session.step().unwrap();
                let values = |name: &str| outputs.get(name).unwrap().flatten_all().unwrap();
                assert_eq!(session.floats("y").unwrap(), values("y").to_vec1::<f32>().unwrap(), "agent {agent} frame {n}");
                assert_eq!(session.indices("best").unwrap(), values("best").to_vec1::<u32>().unwrap());
                *state = after;
            }
        }
        let mut fork = sessions[1].fork().unwrap();
        let saved = sessions[1].save().unwrap();
        fork.step().unwrap();
        sessions[0].restore(&saved).unwrap();
        let same = sessions[1].floats("y").unwrap().to_vec();
        sessions[1].step().unwrap();
        assert_eq!(fork.floats("y").unwrap(), sessions[1].floats("y").unwrap());
        assert_ne!(fork.floats("y").unwrap(), same);
        // Windows of several sequences, with a reset inside, equal the unroll they are made of.
        let mut runner = Runner::windowed(model.clone(), 4, 5, 1).unwrap();
        let x = spec.draw(&[4, 5], &Random::new(9)).unwrap();
        runner.set_f32("x", &x.flatten_all().unwrap().to_vec1::<f32>().unwrap()).unwrap();
        let resets: Vec<bool> = (0..20).map(|i| i % 5 == 0 || i == 13).collect();
        runner.step(&resets).unwrap();
        let (outputs, _) = model.unroll(&[("x".to_owned(), x)].into_iter().collect(), &resets, &model.initial_state(4).unwrap()).unwrap();
        let expected = outputs.get("y").unwrap().flatten(0, 1).unwrap().to_vec2::<f32>().unwrap();
        for (row, expected) in expected.iter().enumerate() {
            assert_eq!(runner.floats("y", row).unwrap(), expected, "row {row}");
        }
        let error = candle_models::engine::work(&*model, 1, 1, candle_core::DType::F32).err().unwrap().to_string();
        assert!(error.starts_with("the model is not recorded"), "{error}");
    });
}

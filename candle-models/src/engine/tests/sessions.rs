//! What a session gives, alone and beside others.

use super::*;
use crate::engine::check::Checks;
use crate::engine::slab::Slab;
use crate::random::Random;

/// The fold that a session has to equal.
#[derive(Default)]
struct Expected([f32; 3]);

impl Expected {
    fn step(&mut self, x: [f32; 2]) -> [f32; 3] {
        self.0 = [self.0[0] + x[0], self.0[1] + x[1], self.0[2] + 1.0];
        self.0
    }
}

/// Random steps, blocking and not, with resets; every output is compared.
fn play(mut session: Session, id: u32, steps: u64) {
    let random = Random::new(u64::from(id));
    let mut expected = Expected::default();
    for n in 0..steps {
        if random.stream("reset").uniform(n) < 0.1 {
            session.reset();
            expected = Expected::default();
        }
        let x = [random.stream("x").uniform(n), random.stream("y").uniform(n)];
        session.set_f32("x", &x).unwrap();
        if random.stream("async").uniform(n) < 0.5 {
            session.step().unwrap()
        } else {
            block_on(session.step_async()).unwrap()
        }
        assert_eq!(sums(&session), expected.step(x), "session {id} step {n}");
        assert_eq!(session.indices("id").unwrap(), [id]);
        assert_eq!(session.frames().unwrap(), expected.0[2] as u64);
    }
}

#[test]
fn every_session_has_its_own_state_whoever_else_is_there() {
    unless_it_hangs(|| {
        for max_wait in [None, Some(Duration::from_micros(100))] {
            let (engine, control) = engine(&Options { max_batch: 3, sessions: 8, max_wait, ..Default::default() });
            std::thread::scope(|scope| {
                for id in 0..8 {
                    let session = session(&engine, id);
                    scope.spawn(move || play(session, id, 500));
                }
            });
            let stats = engine.stats();
            assert_eq!((stats.steps, stats.open, stats.failed, stats.overloaded), (4000, 0, 0, 0));
            let batched: u64 = stats.batch_sizes.iter().zip(1..).map(|(n, size)| n * size).sum();
            assert_eq!((batched + stats.lone_steps, stats.batch_sizes.len()), (4000, 3));
            assert_eq!(stats.batches + stats.lone_steps, control.batches().len() as u64);
            assert_eq!((stats.queue.count(), stats.reply.count()), (batched, batched));
            assert_eq!((stats.execute.count(), stats.lone.count()), (stats.batches, stats.lone_steps));
        }
    });
}

#[test]
fn a_lone_session_runs_on_its_own_thread() {
    unless_it_hangs(|| {
        let (engine, _) = engine(&Options::default());
        let mut first = session(&engine, 1);
        first.step().unwrap();
        let timing = first.timing();
        assert!(timing.execute > Duration::ZERO && timing.queue.is_zero() && timing.reply.is_zero(), "{timing:?}");
        assert_eq!(timing.batch, 1);
        assert_eq!((engine.stats().lone_steps, engine.stats().batches), (1, 0));
        let second = session(&engine, 2);
        first.step().unwrap();
        assert_eq!((engine.stats().lone_steps, engine.stats().batches), (1, 1));
        drop(second);
        first.step().unwrap();
        assert_eq!((engine.stats().lone_steps, engine.stats().batches, engine.stats().steps), (2, 1, 3));
        // A future never blocks its thread with the model.
        block_on(first.step_async()).unwrap();
        assert_eq!((engine.stats().lone_steps, engine.stats().batches), (2, 2));
        assert_eq!(sums(&first)[2], 4.0);
    });
}

#[test]
fn a_session_can_be_opened_and_step_while_another_runs_alone() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut lone = session(&engine, 1);
        control.shut();
        std::thread::scope(|scope| {
            let lone = scope.spawn(move || {
                lone.step().unwrap();
                lone.step().unwrap();
                sums(&lone)
            });
            control.wait_for(1);
            let mut other = session(&engine, 2);
            let mut step = other.step_async();
            assert!(poll(&mut step).is_pending());
            control.open();
            finish(step).unwrap();
            assert_eq!(lone.join().unwrap()[2], 2.0);
            assert_eq!(sums(&other)[2], 1.0);
        });
        assert_eq!(engine.stats().lone_steps, 1);
    });
}

#[test]
fn capacity_is_the_only_limit_to_opening() {
    unless_it_hangs(|| {
        let (engine, _) = engine(&Options { sessions: 1000, ..Default::default() });
        let opened: Vec<_> = (0..10_000).map(|_| engine.open()).collect();
        assert!(opened[..1000].iter().all(Result::is_ok));
        assert!(opened[1000..].iter().all(|r| matches!(r, Err(EngineError::Capacity { sessions: 1000 }))));
        let mut opened: Vec<Session> = opened.into_iter().flatten().collect();
        // All at once: more than any batch.
        let mut steps: Vec<_> = opened.iter_mut().map(Session::step_async).collect();
        let answers: Vec<_> = steps.iter_mut().map(poll).collect();
        let refused = answers.iter().filter(|a| matches!(a, Poll::Ready(Err(EngineError::Overloaded { queue: 256 })))).count();
        assert_eq!(refused as u64, engine.stats().overloaded);
        for (step, answer) in steps.into_iter().zip(answers) {
            if answer.is_pending() {
                finish(step).unwrap();
            }
        }
        assert_eq!(engine.stats().steps, 1000 - refused as u64);
        drop(opened);
        assert_eq!(engine.stats().open, 0);
        assert!((0..1000).map(|_| engine.open()).collect::<Vec<_>>().iter().all(Result::is_ok));
    });
}

#[test]
fn a_row_is_clean_when_it_is_opened_again() {
    let (engine, _) = engine(&Options { sessions: 1, ..Default::default() });
    let mut first = session(&engine, 9);
    first.set_f32("x", &[5.0, 6.0]).unwrap();
    first.step().unwrap();
    drop(first);
    let mut second = engine.open().unwrap();
    assert_eq!((second.floats_mut("x").unwrap().to_vec(), second.indices_mut("id").unwrap().to_vec()), (vec![0.0; 2], vec![0]));
    assert_eq!((sums(&second), second.frames().unwrap()), ([0.0; 3], 0));
    second.step().unwrap();
    assert_eq!(sums(&second), [0.0, 0.0, 1.0]);
}

#[test]
fn saved_restored_and_forked_states_go_on_alike() {
    let (engine, _) = engine(&Options::default());
    let (mut a, mut b) = (session(&engine, 1), session(&engine, 2));
    a.set_f32("x", &[1.0, 10.0]).unwrap();
    a.step().unwrap();
    let saved = a.save().unwrap();
    assert_eq!(saved.get("sum").unwrap().to_vec2::<f32>().unwrap(), [[1.0, 10.0]]);
    let mut fork = a.fork().unwrap();
    assert_eq!((sums(&fork), fork.frames().unwrap(), fork.indices("id").unwrap()), ([1.0, 10.0, 1.0], 1, &[1][..]));
    b.restore(&saved).unwrap();
    b.set_f32("x", &[1.0, 10.0]).unwrap();
    for session in [&mut a, &mut b, &mut fork] {
        session.step().unwrap();
        assert_eq!(sums(session), [2.0, 20.0, 2.0]);
    }
    // They are apart.
    fork.step().unwrap();
    fork.step().unwrap();
    a.step().unwrap();
    assert_eq!((sums(&a), sums(&b), sums(&fork)), ([3.0, 30.0, 3.0], [2.0, 20.0, 2.0], [4.0, 40.0, 4.0]));
    a.restore(&saved).unwrap();
    a.step().unwrap();
    assert_eq!((sums(&a), a.frames().unwrap()), ([2.0, 20.0, 2.0], 1));
    a.reset();
    a.step().unwrap();
    assert_eq!(sums(&a), [1.0, 10.0, 1.0]);
}

#[test]
fn misuse_is_refused_by_name_and_costs_nothing() {
    let (engine, control) = engine(&Options::default());
    let mut s = session(&engine, 1);
    let message = |e: Error| e.to_string();
    assert_eq!(message(s.floats_mut("z").unwrap_err()), "tensor z: expected an input of the model, found only [x, id]");
    assert_eq!(message(s.indices_mut("x").unwrap_err()), "tensor x: expected indices, found floats");
    assert_eq!(message(s.set_f32("x", &[1.0]).unwrap_err()), "tensor x: expected 2 values, found 1");
    assert_eq!(message(s.floats("id").unwrap_err()), "tensor id: expected floats, found indices");
    assert_eq!(message(s.indices("x").unwrap_err()), "tensor x: expected an output of the model, found only [y, count, id]");
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        s.set_f32("x", &[0.0, bad]).unwrap();
        let expected = format!("tensor x: expected finite numbers, found {bad} in column 1");
        assert_eq!(s.step().unwrap_err().to_string(), expected);
        assert_eq!(finish(s.step_async()).unwrap_err().to_string(), expected);
    }
    s.set_f32("x", &[0.0, 1.0]).unwrap();
    for (bad, found) in [(1_000_000, "1000000"), (u32::MAX, "SAMPLE")] {
        s.set_u32("id", &[bad]).unwrap();
        let expected = format!("tensor id: expected an index up to 999999, found {found} in column 0");
        assert_eq!(s.step().unwrap_err().to_string(), expected);
    }
    s.set_u32("id", &[999_999]).unwrap();
    s.step().unwrap();
    assert_eq!((sums(&s), control.batches().len()), ([0.0, 1.0, 1.0], 1));
    let mut state = s.save().unwrap();
    let nan = state.map(|_, t| Ok((t * f64::NAN)?)).unwrap();
    assert_eq!(s.restore(&nan).unwrap_err().to_string(), "tensor sum: expected finite numbers, found NaN");
    assert!(s.restore(&state.gather_rows(&[0, 0]).unwrap()).unwrap_err().to_string().starts_with("tensor sum: expected F32 [1, 2]"));
    state.insert("more", state.get("sum").unwrap().clone());
    assert_eq!(s.restore(&state).unwrap_err().to_string(), "tensor more: expected no such tensor in the signature, found one");
    s.step().unwrap();
    assert_eq!(sums(&s), [0.0, 2.0, 2.0], "a state that is refused changes nothing");
}

#[test]
fn sample_stands_only_where_the_model_allows_it() {
    let open = TensorSpec::u32("id", &[1]);
    let check = |spec: &TensorSpec, index| {
        let layout = Layout::new(&Signature { inputs: vec![spec.clone()], ..Signature::default() }, 1);
        Checks::new(&layout).check(&layout, &[], &[index]).map_err(|e| e.to_string())
    };
    let (given, chosen) = (open.clone().below(&[3]), open.clone().below(&[3]).or_sample());
    assert!(check(&chosen, u32::MAX).is_ok() && check(&given, 2).is_ok() && check(&open, u32::MAX).is_ok());
    assert_eq!(check(&given, u32::MAX).unwrap_err(), "tensor id: expected an index up to 2, found SAMPLE in column 0");
    assert_eq!(check(&chosen, 3).unwrap_err(), "tensor id: expected an index up to 2 or SAMPLE, found 3 in column 0");
}

/// Inputs of 3 frames: one that must be set, one with a default and one that the model chooses.
#[test]
fn an_input_holds_its_default_until_it_is_set_and_without_one_must_be_set() {
    let inputs = vec![
        TensorSpec::f32("x", &[2]),
        TensorSpec::f32("u", &[1]).within(-1.0..1.0).or_f32(&[-1.0]),
        TensorSpec::u32("last", &[2]).below(&[5, 3]).or_u32(&[4, 2]),
        TensorSpec::u32("next", &[2]).below(&[5, 3]).or_sample(),
        TensorSpec::u32("id", &[1]),
    ];
    let layout = Layout::new(&Signature { inputs, ..Signature::default() }, 3);
    let (slab, checks) = (Slab::new(&layout, 2).unwrap(), Checks::new(&layout));
    // SAFETY: the test owns the slab.
    let (floats, indices) = unsafe {
        slab.clear(1);
        (&mut *slab.row(1).floats, &mut *slab.row(1).indices)
    };
    assert_eq!(floats[6..], [-1.0; 3]);
    assert_eq!(indices[..12], [4, 2, 4, 2, 4, 2, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX, u32::MAX]);
    let check = |floats: &[f32], indices: &[u32]| checks.check(&layout, floats, indices).map_err(|e| e.to_string());
    assert_eq!(check(floats, indices).unwrap_err(), "tensor x: expected to be set before the first pass: it has no default, found nothing");
    floats[..5].fill(0.5);
    assert!(check(floats, indices).unwrap_err().starts_with("tensor x: expected to be set"), "one value of the last frame is open");
    floats[5] = f32::NAN;
    assert_eq!(check(floats, indices).unwrap_err(), "tensor x: expected finite numbers, found NaN in column 1 of row 2");
    floats[5] = 0.5;
    assert!(check(floats, indices).unwrap_err().starts_with("tensor id: expected to be set"));
    indices[12..].fill(7);
    check(floats, indices).unwrap();
    // Limits hold in every frame.
    indices[5] = 3;
    assert_eq!(check(floats, indices).unwrap_err(), "tensor last: expected an index up to 2, found 3 in column 1 of row 2");
    indices[5] = 2;
    floats[8] = 1.0;
    assert_eq!(check(floats, indices).unwrap_err(), "tensor u: expected numbers from -1 to below 1, found 1 in column 0 of row 2");
}

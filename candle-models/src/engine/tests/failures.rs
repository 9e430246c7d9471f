//! Panics, errors and the end of the engine.

use super::*;

/// Runs a batch of `sessions` while the engine is held up by another request; the answers in order.
fn together(engine: &Engine, control: &Control, sessions: &mut [Session]) -> Vec<Result<(), EngineError>> {
    let mut holder = session(engine, 99);
    let begun = control.begun.load(Ordering::SeqCst);
    control.shut();
    let mut held = holder.step_async();
    assert!(poll(&mut held).is_pending());
    control.wait_for(begun + 1);
    let mut steps: Vec<_> = sessions.iter_mut().map(Session::step_async).collect();
    steps.iter_mut().for_each(|step| assert!(poll(step).is_pending()));
    control.open();
    finish(held).unwrap();
    steps.into_iter().map(finish).collect()
}

#[test]
fn a_panic_costs_its_batch_and_nothing_else() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { max_batch: 2, ..Default::default() });
        let mut sessions: Vec<Session> = (0..4).map(|id| session(&engine, id)).collect();
        sessions.iter_mut().for_each(|s| s.step().unwrap());
        let saved = sessions[1].save().unwrap();
        sessions[1].set_f32("x", &[0.0, PANIC]).unwrap();
        let answers = together(&engine, &control, &mut sessions);
        for answer in &answers[..2] {
            assert!(matches!(answer, Err(EngineError::Panicked(text)) if &**text == "told to panic"), "{answer:?}");
        }
        assert!(answers[2..].iter().all(Result::is_ok));
        for lost in &mut sessions[..2] {
            lost.set_f32("x", &[1.0, 1.0]).unwrap();
            assert!(matches!(lost.step(), Err(EngineError::StateLost)));
            assert!(matches!(finish(lost.step_async()), Err(EngineError::StateLost)));
            assert!(matches!(lost.save(), Err(EngineError::StateLost)));
            assert!(matches!(lost.fork(), Err(EngineError::StateLost)));
            assert!(matches!(lost.frames(), Err(EngineError::StateLost)));
        }
        sessions[0].reset();
        sessions[1].restore(&saved).unwrap();
        sessions.iter_mut().for_each(|s| s.step().unwrap());
        assert_eq!((sums(&sessions[0]), sums(&sessions[1])), ([1.0, 1.0, 1.0], [1.0, 1.0, 2.0]));
        assert_eq!((sums(&sessions[2])[2], sums(&sessions[3])[2]), (3.0, 3.0));
        assert_eq!((engine.stats().failed, engine.stats().steps), (2, 4 + 2 + 1 + 4));
    });
}

#[test]
fn an_error_reaches_every_request_of_the_batch() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut sessions: Vec<Session> = (0..3).map(|id| session(&engine, id)).collect();
        sessions[2].set_f32("x", &[0.0, FAIL]).unwrap();
        for answer in together(&engine, &control, &mut sessions) {
            assert!(matches!(&answer, Err(EngineError::Failed(e)) if e.to_string() == "told to fail"), "{answer:?}");
            assert_eq!(answer.unwrap_err().to_string(), "the model failed: told to fail");
        }
        sessions[0].reset();
        sessions[0].step().unwrap();
        assert!(matches!(sessions[1].step(), Err(EngineError::StateLost)));
    });
}

#[test]
fn a_lone_session_fails_alike() {
    unless_it_hangs(|| {
        let (engine, _) = engine(&Options::default());
        let mut s = session(&engine, 1);
        s.set_f32("x", &[1.0, PANIC]).unwrap();
        assert!(matches!(s.step(), Err(EngineError::Panicked(_))));
        assert!(matches!(s.step(), Err(EngineError::StateLost)));
        s.reset();
        s.set_f32("x", &[1.0, FAIL]).unwrap();
        assert!(matches!(s.step(), Err(EngineError::Failed(_))));
        s.reset();
        s.set_f32("x", &[1.0, 1.0]).unwrap();
        s.step().unwrap();
        assert_eq!((sums(&s), engine.stats().failed), ([1.0; 3], 2));
    });
}

#[test]
fn a_cancelled_step_that_panics_is_seen_by_the_next() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut s = session(&engine, 1);
        s.set_f32("x", &[1.0, PANIC]).unwrap();
        control.shut();
        let mut step = s.step_async();
        assert!(poll(&mut step).is_pending());
        control.wait_for(1);
        drop(step);
        control.open();
        assert!(matches!(s.step(), Err(EngineError::StateLost)));
    });
}

#[test]
fn closing_answers_all_and_finishes_what_runs() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut sessions: Vec<Session> = (0..5).map(|id| session(&engine, id)).collect();
        let mut idle = sessions.remove(4);
        control.shut();
        std::thread::scope(|scope| {
            let mut steps: Vec<_> = sessions.iter_mut().map(|s| s.step_async()).collect();
            assert!(poll(&mut steps[0]).is_pending());
            control.wait_for(1);
            steps.iter_mut().skip(1).for_each(|step| assert!(poll(step).is_pending()));
            engine.close();
            assert!(matches!(engine.open(), Err(EngineError::Closed)));
            let mut steps = steps.into_iter();
            let running = steps.next().unwrap();
            // Those that waited are answered although the model is held up.
            steps.for_each(|step| assert!(matches!(finish(step), Err(EngineError::Closed))));
            let dropped = scope.spawn(move || drop(engine));
            control.open();
            finish(running).unwrap();
            dropped.join().unwrap();
        });
        assert!(matches!(idle.step(), Err(EngineError::Closed)));
        assert!(matches!(block_on(idle.step_async()), Err(EngineError::Closed)));
        assert!(matches!(idle.fork(), Err(EngineError::Closed)));
        // What a session holds is still there.
        idle.set_f32("x", &[1.0, 1.0]).unwrap();
        assert_eq!((sums(&sessions[0])[2], sessions[1].frames().unwrap()), (1.0, 0));
        sessions[0].save().unwrap();
    });
}

#[test]
fn blocked_threads_are_released_when_the_engine_is_closed() {
    unless_it_hangs(|| {
        for _ in 0..50 {
            let (engine, control) = engine(&Options { max_batch: 1, ..Default::default() });
            let sessions: Vec<Session> = (0..4).map(|id| session(&engine, id)).collect();
            control.shut();
            std::thread::scope(|scope| {
                for mut s in sessions {
                    scope.spawn(move || {
                        while s.step().is_ok() {}
                        assert!(matches!(s.step(), Err(EngineError::Closed)));
                    });
                }
                control.wait_for(1);
                control.open();
                engine.close();
            });
        }
    });
}

/// A waker that does the worst: it closes and drops the engine, on the engine's own thread, and panics.
struct Worst(Mutex<Option<Engine>>);

impl std::task::Wake for Worst {
    fn wake(self: Arc<Self>) {
        self.0.lock().unwrap().take().unwrap().close();
        panic!("a waker panics");
    }
}

#[test]
fn a_waker_cannot_hang_the_engine() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut sessions = [session(&engine, 1), session(&engine, 2)];
        let [a, b] = &mut sessions;
        control.shut();
        let (mut first, mut second) = (a.step_async(), b.step_async());
        // The first has a batch of its own.
        assert!(poll(&mut first).is_pending());
        control.wait_for(1);
        let waker = Arc::new(Worst(Mutex::new(Some(engine))));
        assert!(std::pin::Pin::new(&mut first).poll(&mut Context::from_waker(&waker.clone().into())).is_pending());
        assert!(poll(&mut second).is_pending());
        control.open();
        until(|| waker.0.lock().is_ok_and(|engine| engine.is_none()));
        finish(first).unwrap();
        assert!(matches!(finish(second), Err(EngineError::Closed)));
    });
}

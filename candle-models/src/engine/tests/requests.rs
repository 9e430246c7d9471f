//! Queue, batches, deadlines, cancelling.

use super::*;

#[test]
fn batches_are_filled_in_order_of_arrival() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { max_batch: 3, ..Default::default() });
        let mut sessions: Vec<Session> = (0..8).map(|id| session(&engine, id)).collect();
        control.shut();
        let mut steps: Vec<_> = sessions.iter_mut().map(Session::step_async).collect();
        assert!(poll(&mut steps[5]).is_pending());
        control.wait_for(1);
        for i in [7, 0, 3, 1, 6, 2, 4] {
            assert!(poll(&mut steps[i]).is_pending());
        }
        control.open();
        steps.into_iter().for_each(|step| finish(step).unwrap());
        assert_eq!(control.batches(), [vec![5], vec![7, 0, 3], vec![1, 6, 2], vec![4]]);
        assert_eq!(engine.stats().batch_sizes, [2, 0, 2]);
        assert_eq!(sessions.iter().map(|session| session.timing().batch).collect::<Vec<_>>(), [3, 3, 3, 3, 1, 1, 3, 3]);
    });
}

#[test]
fn a_full_queue_refuses_and_the_step_can_be_tried_again() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { queue: 2, ..Default::default() });
        let mut sessions: Vec<Session> = (0..4).map(|id| session(&engine, id)).collect();
        let [a, b, c, d] = &mut sessions[..] else { unreachable!() };
        control.shut();
        let mut running = a.step_async();
        assert!(poll(&mut running).is_pending());
        control.wait_for(1);
        let (mut first, mut second) = (b.step_async(), c.step_async());
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        assert!(matches!(d.step(), Err(EngineError::Overloaded { queue: 2 })));
        // A place that is given up is free.
        drop(second);
        let mut last = d.step_async();
        assert!(poll(&mut last).is_pending());
        control.open();
        for step in [running, first, last] {
            finish(step).unwrap();
        }
        assert_eq!((d.frames().unwrap(), c.frames().unwrap()), (1, 0));
        assert_eq!((engine.stats().overloaded, engine.stats().cancelled), (1, 1));
    });
}

#[test]
fn a_request_past_its_deadline_is_not_run() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let (mut a, mut b, mut c) = (session(&engine, 1), session(&engine, 2), session(&engine, 3));
        control.shut();
        let mut running = a.step_async();
        assert!(poll(&mut running).is_pending());
        control.wait_for(1);
        // A thread that is put aside may come too late with its request: then it tries again with more time.
        let (mut early, mut time) = (0, Duration::from_millis(5));
        let (deadline, late) = loop {
            let deadline = Instant::now() + time;
            let mut late = b.step_async_before(deadline);
            match poll(&mut late) {
                Poll::Pending => break (deadline, late),
                Poll::Ready(answer) => assert!(matches!(answer, Err(EngineError::DeadlineExceeded))),
            }
            (early, time) = (early + 1, 2 * time);
        };
        let mut timely = c.step_async_before(deadline + 10 * PATIENCE);
        assert!(poll(&mut timely).is_pending());
        std::thread::sleep(deadline.saturating_duration_since(Instant::now()));
        control.open();
        assert!(matches!(finish(late), Err(EngineError::DeadlineExceeded)));
        finish(timely).unwrap();
        finish(running).unwrap();
        assert_eq!(control.batches(), [[1], [3]]);
        assert_eq!(b.frames().unwrap(), 0);
        // Too late at once, beside others and alone.
        assert!(matches!(b.step_before(Instant::now()), Err(EngineError::DeadlineExceeded)));
        drop((a, c));
        assert!(matches!(b.step_before(Instant::now()), Err(EngineError::DeadlineExceeded)));
        b.step_before(Instant::now() + 10 * PATIENCE).unwrap();
        assert_eq!((sums(&b)[2], engine.stats().expired), (1.0, 3 + early));
    });
}

#[test]
fn a_request_that_is_cancelled_in_the_queue_is_not_run() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let (mut a, mut b, mut c) = (session(&engine, 1), session(&engine, 2), session(&engine, 3));
        control.shut();
        let mut running = a.step_async();
        assert!(poll(&mut running).is_pending());
        control.wait_for(1);
        let mut cancelled = b.step_async();
        assert!(poll(&mut cancelled).is_pending());
        drop(cancelled);
        let mut forgotten = c.step_async();
        assert!(poll(&mut forgotten).is_pending());
        std::mem::forget(forgotten);
        // Both rows are their sessions' own again although the engine is held up.
        assert_eq!((b.frames().unwrap(), sums(&c)[2], c.frames().unwrap()), (0, 0.0, 0));
        c.set_f32("x", &[1.0, 2.0]).unwrap();
        control.open();
        finish(running).unwrap();
        c.step().unwrap();
        b.step().unwrap();
        assert_eq!((sums(&c), sums(&b)[2]), ([1.0, 2.0, 1.0], 1.0));
        assert_eq!(control.batches(), [[1], [3], [2]]);
        assert_eq!(engine.stats().cancelled, 1);
    });
}

#[test]
fn a_step_that_is_over_after_its_deadline_is_answered_and_counted() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut s = session(&engine, 1);
        // On a busy machine a step may begin too late, and is refused: the next one has more time.
        for milliseconds in [20, 200, 2000, 20_000] {
            let deadline = Instant::now() + Duration::from_millis(milliseconds);
            let begun = control.batches().len();
            control.shut();
            let mut step = s.step_async_before(deadline);
            let mut answered = poll(&mut step).is_ready();
            while !answered && control.batches().len() == begun {
                std::thread::yield_now();
                answered = poll(&mut step).is_ready();
            }
            until(|| Instant::now() > deadline);
            control.open();
            if !answered {
                finish(step).unwrap();
                assert_eq!((engine.stats().late, engine.stats().steps), (1, 1));
                // Alone, with all the time in the world.
                s.step_before(Instant::now() + Duration::from_secs(600)).unwrap();
                assert_eq!((engine.stats().late, engine.stats().steps), (1, 2));
                return;
            }
        }
        panic!("no step began in 20 seconds");
    });
}

#[test]
fn a_request_that_is_cancelled_while_it_runs_moves_the_state() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut a = session(&engine, 1);
        a.set_f32("x", &[1.0, 2.0]).unwrap();
        control.shut();
        let mut running = a.step_async();
        assert!(poll(&mut running).is_pending());
        control.wait_for(1);
        drop(running);
        // Another step does not block its thread while that one is finished.
        let mut next = a.step_async();
        assert!(poll(&mut next).is_pending());
        control.open();
        finish(next).unwrap();
        assert_eq!((sums(&a), a.frames().unwrap()), ([2.0, 4.0, 2.0], 2));
        // Blocking calls wait for it.
        control.shut();
        let mut running = a.step_async();
        assert!(poll(&mut running).is_pending());
        control.wait_for(3);
        drop(running);
        let opener = std::thread::spawn({
            let control = control.clone();
            move || {
                std::thread::sleep(Duration::from_millis(20));
                control.open();
            }
        });
        assert_eq!(a.frames().unwrap(), 3);
        a.step().unwrap();
        assert_eq!(sums(&a), [4.0, 8.0, 4.0]);
        opener.join().unwrap();
        assert_eq!(engine.stats().cancelled, 2);
    });
}

#[test]
fn a_session_can_be_dropped_in_every_state() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { sessions: 3, ..Default::default() });
        for round in 0..20 {
            control.shut();
            let (mut running, mut queued, mut done) = (session(&engine, 1), session(&engine, 2), session(&engine, 3));
            let begun = control.begun.load(Ordering::SeqCst);
            let mut step = running.step_async();
            assert!(poll(&mut step).is_pending());
            control.wait_for(begun + 1);
            // A future that is forgotten leaves its request where it is.
            std::mem::forget(step);
            let mut step = queued.step_async();
            assert!(poll(&mut step).is_pending());
            std::mem::forget(step);
            drop(queued);
            assert_eq!(engine.stats().open, 2);
            drop(running);
            assert_eq!(engine.stats().open, 2, "the row of a request that runs is not free before it has ended");
            control.open();
            until(|| engine.stats().open == 1);
            control.shut();
            let mut step = done.step_async();
            assert!(poll(&mut step).is_pending());
            std::mem::forget(step);
            control.open();
            until(|| engine.stats().steps == 2 * (round + 1));
            if round % 2 == 0 {
                done.frames().unwrap();
            }
            drop(done);
            until(|| engine.stats().open == 0);
        }
        assert!(control.batches().iter().all(|ids| !ids.contains(&2)));
    });
}

#[test]
fn a_batch_is_held_back_only_as_long_as_it_may() {
    unless_it_hangs(|| {
        let step = |sessions: &mut [Session], deadline: Option<Instant>| {
            std::thread::scope(|scope| {
                for s in sessions {
                    scope.spawn(move || match deadline {
                        Some(deadline) => finish(s.step_async_before(deadline)).unwrap(),
                        None => finish(s.step_async()).unwrap(),
                    });
                }
            });
        };
        let wait = Duration::from_millis(300);
        let (waiting, control) = engine(&Options { max_wait: Some(wait), max_batch: 3, ..Default::default() });
        let mut sessions: Vec<Session> = (0..4).map(|id| session(&waiting, id)).collect();
        let start = Instant::now();
        step(&mut sessions[..1], None);
        assert!(start.elapsed() >= wait, "one of four waits for the others");
        assert_eq!(control.batches(), [[0]]);

        // Who waits here waits longer than this test may take.
        let (waiting, control) = engine(&Options { max_wait: Some(100 * PATIENCE), max_batch: 3, ..Default::default() });
        let mut sessions: Vec<Session> = (0..4).map(|id| session(&waiting, id)).collect();
        // A full batch waits for nobody.
        step(&mut sessions[..3], None);
        // A deadline is not waited away.
        step(&mut sessions[..1], Some(Instant::now() + 10 * PATIENCE));
        // Nobody else can come.
        sessions.truncate(2);
        step(&mut sessions, None);
        assert_eq!(control.batches().iter().map(Vec::len).collect::<Vec<_>>(), [3, 1, 2]);
    });
}

#[test]
fn many_tasks_that_are_cancelled_at_random_leave_a_true_count() {
    use crate::random::Random;
    unless_it_hangs(|| {
        let (engine, _) = engine(&Options { max_batch: 4, ..Default::default() });
        std::thread::scope(|scope| {
            for id in 0..6 {
                let engine = &engine;
                scope.spawn(move || {
                    let random = Random::new(u64::from(id));
                    let mut own = session(engine, id);
                    own.set_f32("x", &[1.0, 0.0]).unwrap();
                    for n in 0..400 {
                        let before = own.frames().unwrap();
                        let mut step = own.step_async();
                        if poll(&mut step).is_pending() {
                            for _ in 0..random.below(n, 40) {
                                std::hint::spin_loop();
                            }
                            if random.stream("drop").uniform(n) < 0.1 {
                                std::mem::forget(step);
                                own = session(engine, id);
                                own.set_f32("x", &[1.0, 0.0]).unwrap();
                                continue;
                            }
                        }
                        drop(step);
                        let (now, sum) = (own.frames().unwrap(), sums(&own)[0]);
                        assert!(now == before || now == before + 1);
                        // The outputs are those of the last frame that the state has behind it.
                        assert_eq!(now as f32, sum);
                    }
                });
            }
        });
        until(|| engine.stats().open == 0);
    });
}

//! Steps of several sessions as one future.

use super::*;
use crate::engine::Steps;

/// Steps of each.
fn step<'a>(sessions: impl IntoIterator<Item = &'a mut Session>, deadline: Option<Instant>) -> Result<(), EngineError> {
    let sessions = sessions.into_iter().collect();
    block_on(Box::pin(async { Steps::request(sessions, deadline).await?.await }))
}

/// A step that has been asked for.
fn requested(session: &mut Session) -> Steps<'_> {
    block_on(Box::pin(Steps::request(vec![session], None))).unwrap()
}

fn sessions(engine: &Engine, count: u32) -> Vec<Session> {
    (0..count).map(|id| session(engine, id)).collect()
}

#[test]
fn steps_asked_for_together_share_their_batches() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { max_batch: 4, ..Default::default() });
        let mut sessions = sessions(&engine, 6);
        for frame in 1..=3 {
            step(&mut sessions, None).unwrap();
            for (id, session) in sessions.iter_mut().enumerate() {
                assert_eq!((session.frames().unwrap(), session.indices("id").unwrap()), (frame, &[id as u32][..]));
            }
        }
        assert_eq!(control.batches(), (0..3).flat_map(|_| [vec![0, 1, 2, 3], vec![4, 5]]).collect::<Vec<_>>());
        assert_eq!(sessions.iter().map(|session| session.timing().batch).collect::<Vec<_>>(), [4, 4, 4, 4, 2, 2]);
        step([], None).unwrap();
    });
}

#[test]
fn short_batches_run_on_the_thread_that_polls() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options::default());
        let mut sessions = sessions(&engine, 2);
        // The first batch shows how long one takes; on a busy machine it may take too long.
        until(|| {
            step(&mut sessions, None).unwrap();
            control.last_thread() == Some(std::thread::current().id())
        });
        // Whoever waits shares the batch, and is woken.
        let (mut other, mine) = (session(&engine, 9), &mut sessions[0]);
        until(|| {
            let waiting = requested(&mut other);
            step([&mut *mine], None).unwrap();
            finish(waiting).unwrap();
            control.batches().last() == Some(&vec![9, 0]) && control.last_thread() == Some(std::thread::current().id())
        });
    });
}

#[test]
fn an_engine_that_holds_batches_back_runs_them_on_its_own_thread() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { max_wait: Some(Duration::from_micros(1)), ..Default::default() });
        let mut sessions = sessions(&engine, 2);
        for _ in 0..20 {
            step(&mut sessions, None).unwrap();
            assert_ne!(control.last_thread(), Some(std::thread::current().id()));
        }
    });
}

#[test]
fn steps_that_are_refused_or_given_up_leave_their_sessions_as_they_were() {
    unless_it_hangs(|| {
        let (engine, control) = engine(&Options { queue: 2, ..Default::default() });
        let mut three = sessions(&engine, 3);
        assert!(matches!(step(&mut three, None), Err(EngineError::Overloaded { queue: 2 })));
        assert!(matches!(step(three.iter_mut().take(2), Some(Instant::now())), Err(EngineError::DeadlineExceeded)));
        // One of them cannot be run: none is.
        three[1].set_u32("id", &[u32::MAX]).unwrap();
        assert!(matches!(step(three.iter_mut().take(2), None), Err(EngineError::Input(_))));
        drop(requested(&mut three[2]));
        assert!(three.iter_mut().all(|session| session.frames().unwrap() == 0));
        assert!(control.batches().is_empty());
        step([&mut three[2]], None).unwrap();
        assert_eq!((three[2].frames().unwrap(), engine.stats().cancelled), (1, 1));
    });
}

#[test]
fn sessions_of_several_engines_step_together() {
    unless_it_hangs(|| {
        let [(first, _), (second, _)] = [(); 2].map(|()| engine(&Options::default()));
        let mut all = [session(&first, 1), session(&second, 2), session(&first, 3)];
        all[1].set_f32("x", &[0.0, FAIL]).unwrap();
        assert!(matches!(step(&mut all, None), Err(EngineError::Failed(_))));
        assert_eq!((all[0].frames().unwrap(), all[2].frames().unwrap()), (1, 1));
        assert!(matches!(all[1].frames(), Err(EngineError::StateLost)));
        second.close();
        all[1].reset();
        assert!(matches!(step(&mut all, None), Err(EngineError::Closed)));
        assert_eq!((all[0].frames().unwrap(), all[2].frames().unwrap()), (1, 1));
    });
}

#[test]
fn threads_that_run_their_own_batches_beside_blocking_ones_lose_no_step() {
    unless_it_hangs(|| {
        let (engine, _) = engine(&Options { max_batch: 2, ..Default::default() });
        std::thread::scope(|scope| {
            for id in 0..6 {
                let engine = &engine;
                scope.spawn(move || {
                    let mut own = [session(engine, id), session(engine, id)];
                    for frame in 1..=200 {
                        match id % 3 {
                            0 => own.iter_mut().for_each(|session| session.step().unwrap()),
                            1 => own.iter_mut().for_each(|session| block_on(session.step_async()).unwrap()),
                            _ => step(&mut own, None).unwrap(),
                        }
                        assert!(own.iter().all(|session| sums(session)[2] == frame as f32));
                    }
                });
            }
        });
        assert_eq!(engine.stats().steps, 6 * 2 * 200);
    });
}

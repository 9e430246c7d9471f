//! Environments side by side.

use candle_envs::classic::CartPole;
use candle_envs::{
    Action, Actions, Autoreset, Env, EnvError, Pcg64, Resumable, Scene, Spec, Step, Symmetry, Vector, VectorEnv, View, shipped,
};
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::random::Random;
use serde::{Deserialize, Serialize};

/// What an environment shows and takes is the description of an agent.
#[test]
fn an_agent_can_be_described_for_every_kind() {
    for entry in shipped().iter() {
        let Spec { name, observation, action, .. } = entry.spec().clone();
        let described = AgentConfig { observation, action, ..AgentConfig::default() }.validate();
        assert!(described.is_ok(), "{name}: {described:?}");
    }
}

/// Every kind: a lane of many is the same environment alone, whatever the threads; a saved one goes on as the original; a seed is a game.
#[test]
fn lanes_do_not_depend_on_each_other() {
    for entry in shipped().iter() {
        for autoreset in [Autoreset::NextStep, Autoreset::SameStep] {
            let spec = entry.spec().clone();
            let lanes = 600;
            let (mut many, mut one, mut again) =
                (entry.make(lanes, autoreset).unwrap(), entry.make(1, autoreset).unwrap(), entry.make(1, autoreset).unwrap());
            let watched = 417;
            many.reset(3).unwrap();
            one.reset(3 + watched as u64).unwrap();
            for t in 0..300 {
                let all = Actions::random(&spec, many.frame(), Random::new(5).at(t));
                let (columns, numbers) = (spec.columns(), spec.numbers());
                let mine = Actions {
                    classes: all.classes[watched * columns..][..columns].to_vec(),
                    numbers: all.numbers[watched * numbers..][..numbers].to_vec(),
                };
                many.step(&all).unwrap();
                one.step(&mine).unwrap();
                let (of_many, of_one) = (many.frame(), one.frame());
                let floats = spec.floats();
                assert_eq!(of_many.floats[watched * floats..][..floats], of_one.floats, "{} step {t}", spec.name);
                assert_eq!(of_many.ids[watched * spec.ids()..][..spec.ids()], of_one.ids);
                assert_eq!(of_many.legal[watched * spec.classes()..][..spec.classes()], of_one.legal);
                assert_eq!(of_many.rewards[watched], of_one.rewards[0]);
                assert_eq!(
                    [of_many.terminated[watched], of_many.truncated[watched], of_many.first[watched], of_many.ignored[watched]],
                    [of_one.terminated[0], of_one.truncated[0], of_one.first[0], of_one.ignored[0]]
                );
                assert_eq!(of_many.players[watched], of_one.players[0]);
                if t == 100 {
                    let saved = one.resumable().unwrap().save().unwrap();
                    again.resumable().unwrap().restore(&saved).unwrap();
                }
                if t > 100 {
                    again.step(&mine).unwrap();
                    let (again, one) = (again.frame(), one.frame());
                    assert_eq!((&again.floats, &again.legal, &again.rewards), (&one.floats, &one.legal, &one.rewards), "{}", spec.name);
                }
            }
        }
    }
}

/// What is done in another view of a game shows the other view of what comes of it, to the end of many games.
#[test]
fn symmetries_change_nothing_of_a_game() {
    let mut kinds = 0;
    for entry in shipped().iter() {
        let [mut envs, mut others] = [0; 2].map(|_| entry.make(1, Autoreset::NextStep).unwrap());
        let (spec, symmetries) = (envs.spec().clone(), (entry.symmetries)());
        kinds += usize::from(!symmetries.is_empty());
        for (i, Symmetry { floats, classes }) in symmetries.iter().enumerate() {
            let identity = floats.iter().copied().eq(0..spec.floats());
            assert_eq!(identity, i == 0, "{}: symmetry {i}", spec.name);
            envs.reset(i as u64).unwrap();
            others.reset(i as u64).unwrap();
            let mut ended = 0;
            for t in 0..400 {
                let (frame, other) = (envs.frame(), others.frame());
                let seen: Vec<f32> = floats.iter().map(|place| frame.floats[*place]).collect();
                let legal: Vec<bool> = classes.iter().map(|place| frame.legal[*place]).collect();
                assert_eq!((&seen, &legal), (&other.floats, &other.legal), "{}: symmetry {i}, step {t}", spec.name);
                assert_eq!((&frame.rewards, &frame.terminated), (&other.rewards, &other.terminated));
                ended += frame.episodes.len();
                let actions = Actions::random(&spec, frame, Random::new(7).at(t));
                let class = classes.iter().position(|class| *class == actions.classes[0] as usize).unwrap() as u32;
                envs.step(&actions).unwrap();
                others.step(&Actions::classes(vec![class])).unwrap();
            }
            assert!(ended > 9, "{}: {ended}", spec.name);
        }
    }
    assert_eq!(kinds, 2);
}

/// What rules say of a move is what a step shows, to the end of many games; what cannot be done ends the search there.
#[test]
fn rules_are_those_of_the_steps() {
    let mut kinds = 0;
    for entry in shipped().iter() {
        let mut envs = entry.make(1, Autoreset::NextStep).unwrap();
        let Some(rules) = (entry.rules)() else { continue };
        kinds += 1;
        let spec = envs.spec().clone();
        let (mut next, mut legal) = (vec![0.0; spec.floats()], vec![false; spec.classes()]);
        envs.reset(1).unwrap();
        for t in 0..2000 {
            let before = envs.frame().clone();
            let actions = Actions::random(&spec, &before, Random::new(9).at(t));
            let over = before.terminated[0];
            if let Some(class) = before.legal.iter().position(|legal| !legal || over) {
                let outcome = rules.play(&before.floats, class as u32, &mut next, &mut legal);
                assert_eq!((&next, outcome.reward, outcome.next), (&before.floats, 0.0, None), "{}", spec.name);
                assert!(!legal.contains(&true));
            }
            envs.step(&actions).unwrap();
            let after = envs.frame();
            if over {
                continue;
            }
            let outcome = rules.play(&before.floats, actions.classes[0], &mut next, &mut legal);
            assert_eq!(next, after.floats, "{} step {t}", spec.name);
            assert_eq!((outcome.reward, outcome.next.is_none()), (after.rewards[0], after.terminated[0]), "{} step {t}", spec.name);
            // A win in one move is seen at once, and so is what loses to one: it is left out, unless there is nothing else.
            let said = legal.clone();
            let mut replies = |class: u32| rules.play(&after.floats, class, &mut next, &mut legal);
            let wins = (0..spec.classes() as u32).any(|class| replies(class).reward > 0.0);
            let mut holds = |class: usize| replies(class as u32).next.is_none_or(|[least, _]| least < 1.0);
            let holding: Vec<bool> = after.legal.iter().enumerate().map(|(class, legal)| *legal && holds(class)).collect();
            let sure = outcome.next.map(|[least, most]| (least > 0.0, most < 0.0));
            let lost = !wins && !holding.contains(&true);
            assert_eq!(sure, (!after.terminated[0]).then_some((wins, lost)), "{} step {t}", spec.name);
            assert_eq!(said, if wins || lost { after.legal.clone() } else { holding }, "{} step {t}", spec.name);
        }
    }
    assert_eq!(kinds, 2);
}

/// A game of `length` steps in which everything is known before.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Count {
    steps: u32,
    random: Pcg64,
    broken: u32,
}

const LENGTH: u32 = 3;

impl Env for Count {
    fn spec() -> Spec {
        Spec {
            name: "count".into(),
            observation: vec![Observation::Floats { name: "steps".to_owned(), shape: vec![1], low: None, high: None }],
            action: vec![Component::Discrete { name: "what".to_owned(), classes: 6 }],
            players: 1,
            max_steps: Some(10),
        }
    }
    fn reset(&mut self, random: Pcg64) {
        *self = Self { steps: 0, random, broken: 0 };
    }
    fn random(&self) -> &Pcg64 {
        &self.random
    }
    /// 0 ends it after some steps, 1 never; the others break something.
    fn step(&mut self, action: Action) -> candle_envs::Result<Step> {
        let reward = match action.classes[0] {
            3 => f64::NAN,
            4 => return Err(EnvError::illegal(4, "anything else")),
            _ => 1.0,
        };
        self.broken = action.classes[0];
        self.steps += 1;
        Ok(Step { reward, terminated: action.classes[0] == 0 && self.steps >= LENGTH, truncated: false })
    }
    fn observe(&self, to: View) {
        to.floats[0] = if self.broken == 5 { f32::INFINITY } else { self.steps as f32 };
    }
    fn legal(&self, mask: &mut [bool]) {
        mask.fill(self.broken != 2);
    }
    fn draw(&self) -> Scene {
        Scene::new(1.0, 1.0, [0; 3])
    }
}

fn counts(autoreset: Autoreset) -> Vector<Count> {
    let mut counts = Vector::new(2, autoreset).unwrap();
    counts.reset(0).unwrap();
    counts
}

#[test]
fn the_step_after_the_end_resets() {
    let mut counts = counts(Autoreset::NextStep);
    let mut seen = Vec::new();
    for _ in 0..5 {
        let frame = counts.step(&Actions::classes(vec![0, 1])).unwrap();
        seen.push((frame.floats[0], frame.rewards[0], frame.terminated[0], frame.first[0], frame.ignored[0]));
        assert_eq!(frame.episodes.len(), usize::from(frame.terminated[0]));
        assert!(!frame.terminated[1] && !frame.ignored[1]);
    }
    let expected = [
        (1.0, 1.0, false, false, false),
        (2.0, 1.0, false, false, false),
        (3.0, 1.0, true, false, false),
        (0.0, 0.0, false, true, true),
        (1.0, 1.0, false, false, false),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn the_step_that_ends_resets() {
    let mut counts = counts(Autoreset::SameStep);
    for t in 1..=20u32 {
        let frame = counts.step(&Actions::classes(vec![0, 1])).unwrap();
        let ends = t % LENGTH == 0;
        assert_eq!((frame.terminated[0], frame.first[0], frame.floats[0]), (ends, ends, (t % LENGTH) as f32), "step {t}");
        if ends {
            assert_eq!(frame.final_floats[0], LENGTH as f32);
            let episode = frame.episodes[0];
            assert_eq!((episode.lane, episode.reward, episode.steps, episode.terminated), (0, 3.0, 3, true));
        }
        // The other one has no end of its own.
        let truncated = t % 10 == 0;
        assert_eq!((frame.truncated[1], frame.terminated[1]), (truncated, false), "step {t}");
        if truncated {
            assert_eq!((frame.final_floats[1], frame.floats[1]), (10.0, 0.0));
        }
    }
}

#[test]
fn an_end_that_nobody_resets_is_an_error() {
    let mut counts = counts(Autoreset::Disabled);
    for _ in 0..LENGTH {
        counts.step(&Actions::classes(vec![0, 1])).unwrap();
    }
    assert!(counts.frame().terminated[0]);
    assert_eq!(counts.step(&Actions::classes(vec![0, 1])).unwrap_err(), EnvError::Ended { env: "count".to_owned(), lane: 0 });
    counts.reset_lanes(&[true, false]).unwrap();
    let frame = counts.frame();
    assert_eq!((frame.floats[0], frame.floats[1], frame.first[0]), (0.0, 3.0, true));
    counts.step(&Actions::classes(vec![0, 1])).unwrap();
}

#[test]
fn what_is_wrong_is_named() {
    let said = |classes: Vec<u32>| counts(Autoreset::SameStep).step(&Actions::classes(classes)).unwrap_err().to_string();
    assert_eq!(said(vec![0, 3]), "count, environment 1: its reward is NaN");
    assert_eq!(said(vec![5, 0]), "count, environment 0: its observation is inf");
    assert_eq!(said(vec![0, 2]), "count, environment 1: no action is legal, and the episode has not ended");
    assert_eq!(said(vec![4, 0]), "count, environment 0: illegal action 4: anything else");
    assert_eq!(said(vec![0]), "classes of actions: expected 2, found 1");
    assert_eq!(Vector::<Count>::new(0, Autoreset::NextStep).unwrap_err().to_string(), "environments: expected 1, found 0");
    let mut poles = Vector::<CartPole>::new(2, Autoreset::NextStep).unwrap();
    poles.reset(0).unwrap();
    assert!(poles.step(&Actions::classes(vec![0, 2])).unwrap_err().to_string().contains("environment 1: illegal action [2]"));
    assert!(poles.restore(b"[]").is_err() && poles.restore(b"{").is_err());
    assert!(shipped().get("chess").err().unwrap().to_string().starts_with("expected one of cartpole"));
}

#[test]
fn every_kind_can_be_drawn() {
    for entry in shipped().iter() {
        let mut envs = entry.make(1, Autoreset::NextStep).unwrap();
        envs.reset(0).unwrap();
        let mut scenes = vec![envs.draw(0).unwrap()];
        for t in 0..20 {
            envs.step(&Actions::random(envs.spec(), envs.frame(), Random::new(0).at(t))).unwrap();
            scenes.push(envs.draw(0).unwrap());
        }
        // JSON has no numbers that are not finite.
        assert!(scenes.iter().all(|scene| !serde_json::to_string(scene).unwrap().contains("null")), "{}", entry.name());
        assert!(scenes.iter().any(|scene| *scene != scenes[0]), "{} never changes", entry.name());
    }
}

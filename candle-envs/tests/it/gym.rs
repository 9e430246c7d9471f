//! Environments of Gymnasium, in processes of their own.

use candle_envs::classic::CartPole;
use candle_envs::gym::{Gym, GymError, Options};
use candle_envs::{Actions, Autoreset, EnvError, Frame, Spec, Vector, VectorEnv, shipped};
use candle_models::agent::{AgentConfig, Component, Observation};
use candle_models::random::Random;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A Python with Gymnasium: CANDLE_PYTHON, or python3.
fn gymnasium() -> Option<Options> {
    let options = Options::default();
    let found = Command::new(&options.python).args(["-c", "import gymnasium"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_GYMNASIUM").is_none(), "{} cannot import gymnasium", options.python.display());
        eprintln!("skipped: {} cannot import gymnasium", options.python.display());
    }
    found.then_some(options)
}

/// The same with the environments of `gym_cases.py`.
struct Cases {
    options: Options,
    /// Where the script lies that is the interpreter.
    folder: tempfile::TempDir,
}

/// A Python of that command line.
fn python(line: &str, processes: usize) -> Cases {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("python");
    fs::write(&script, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    Cases { options: Options { python: script.into(), processes }, folder }
}

fn cases(processes: usize) -> Option<Cases> {
    let Options { python: found, .. } = gymnasium()?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let (here, found) = (here.display(), found.display());
    Some(python(
        &format!("PYTHONPATH='{here}':$PYTHONPATH PYTHONDONTWRITEBYTECODE=1 exec '{found}' \"$@\" 2>>\"$(dirname \"$0\")/errors\""),
        processes,
    ))
}

impl Cases {
    fn make(&self, id: &str, lanes: usize, autoreset: Autoreset) -> candle_envs::Result<Gym> {
        Gym::new(&format!("gym_cases:{id}"), lanes, autoreset, &self.options)
    }

    /// Some that have begun.
    fn begun(&self, id: &str, lanes: usize) -> Gym {
        let mut envs = self.make(id, lanes, Autoreset::NextStep).unwrap();
        envs.reset(0).unwrap();
        let Spec { observation, action, .. } = envs.spec().clone();
        AgentConfig { observation, action, ..AgentConfig::default() }.validate().unwrap();
        envs
    }
}

/// The same frame to the bit.
#[track_caller]
fn same(found: &Frame, expected: &Frame, t: u64) {
    assert_eq!(
        found.floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>(),
        expected.floats.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
    );
    assert_eq!(found, expected, "step {t}");
}

/// Every bit of what is seen, earned and ended, whichever way episodes begin again; however many processes share the environments.
#[test]
fn gymnasiums_cartpole_is_ours() {
    let Some(options) = gymnasium() else { return };
    for (autoreset, processes, steps) in [(Autoreset::NextStep, 2, 1000), (Autoreset::SameStep, 1, 300), (Autoreset::Disabled, 5, 300)] {
        let mut theirs = Gym::new("CartPole-v1", 5, autoreset, &Options { processes, ..options.clone() }).unwrap();
        let mut ours = Vector::<CartPole>::new(5, autoreset).unwrap();
        same(theirs.reset(1 << 40).unwrap(), ours.reset(1 << 40).unwrap(), 0);
        for t in 0..steps {
            let actions = Actions::random(ours.spec(), ours.frame(), Random::new(3).at(t));
            same(theirs.step(&actions).unwrap(), ours.step(&actions).unwrap(), t);
            let ended: Vec<bool> = ours.frame().terminated.clone();
            if autoreset == Autoreset::Disabled && ended.contains(&true) {
                // Ours have been stepped up to the one that ended.
                let refused =
                    [theirs.step(&actions), ours.clone().step(&actions).map(|_| ours.frame())].map(|step| step.unwrap_err().to_string());
                assert_eq!(refused[0], refused[1].replace("cartpole", "gym:CartPole-v1"));
                same(theirs.reset_lanes(&ended).unwrap(), ours.reset_lanes(&ended).unwrap(), t);
            }
        }
        same(theirs.reset(8).unwrap(), ours.reset(8).unwrap(), steps);
    }
}

/// Numbers as actions, and episodes that are cut short.
#[test]
fn lanes_do_not_depend_on_the_processes() {
    let Some(options) = gymnasium() else { return };
    let make = |processes| {
        let mut envs = Gym::new("Pendulum-v1", 7, Autoreset::NextStep, &Options { processes, ..options.clone() }).unwrap();
        envs.reset(5).unwrap();
        envs
    };
    let (mut one, mut three) = (make(1), make(3));
    assert_eq!(three.processes().map(|(_, lanes)| lanes).collect::<Vec<_>>(), [0..2, 2..4, 4..7]);
    assert_eq!(one.spec().max_steps, Some(200));
    for t in 0..450 {
        let actions = Actions::random(one.spec(), one.frame(), Random::new(6).at(t));
        let (one, three) = (one.step(&actions).unwrap(), three.step(&actions).unwrap());
        same(one, three, t);
        assert_eq!(one.truncated, [t == 199 || t == 400; 7], "step {t}");
        assert_eq!(one.ignored, [t == 200 || t == 401; 7], "step {t}");
    }
}

fn bits(sizes: &[(usize, usize)]) -> Vec<f32> {
    sizes.iter().flat_map(|(n, one)| (0..*n).map(move |i| f32::from(u8::from(i == *one)))).collect()
}

#[test]
fn every_space_of_arrays_is_seen_and_done() {
    let Some(cases) = cases(1) else { return };
    let shows = |envs: &Gym| match &envs.spec().observation[..] {
        [Observation::Floats { shape, .. }] => shape.clone(),
        [Observation::Grid { height, width, channels, .. }] => vec![*height, *width, *channels],
        other => panic!("{other:?}"),
    };

    // Columns of different sizes are components of their own; a mask has a part for each.
    let mut mixed = cases.begun("Mixed-v0", 2);
    let names: Vec<&str> = mixed.spec().action.iter().map(Component::name).collect();
    assert_eq!((names, mixed.spec().classes(), shows(&mixed)), (vec!["choice_0", "choice_1"], 5, vec![5]));
    let frame = mixed.step(&Actions::classes(vec![1, 2, 0, 1])).unwrap();
    assert_eq!(frame.floats, bits(&[(2, 1), (3, 2), (2, 0), (3, 1)]));
    assert_eq!((&frame.rewards[..], &frame.legal[..]), (&[7.0, 5.0][..], &[true, true, false, true, true].repeat(2)[..]));
    let said = mixed.step(&Actions::classes(vec![1, 2, 0, 0])).unwrap_err().to_string();
    assert_eq!(said, "gym:gym_cases:Mixed-v0, environment 1: illegal action [0, 0]: its mask leaves out class 0 of column 1");

    let mut alike = cases.begun("Alike-v0", 1);
    assert_eq!(alike.spec().action, [Component::MultiDiscrete { name: "choice".to_owned(), classes: 3, columns: 4 }]);
    assert_eq!(alike.step(&Actions::classes(vec![0, 1, 2, 0])).unwrap().floats, bits(&[(3, 0), (3, 1), (3, 2), (3, 0)]));

    let mut switches = cases.begun("Switches-v0", 1);
    assert_eq!(switches.step(&Actions::classes(vec![1, 0, 1])).unwrap().floats, [1.0, 0.0, 1.0]);

    // Neighbours with the same bounds are one component.
    let mut numbers = cases.begun("Numbers-v0", 1);
    let control = |name: &str, columns, low, high| Component::Gaussian { name: name.to_owned(), columns, low, high };
    assert_eq!(numbers.spec().action, [control("control_0", 2, Some(-1.0), Some(1.0)), control("control_1", 1, Some(0.0), None)]);
    assert_eq!(numbers.step(&Actions::numbers(vec![-1.0, 0.1, 1e9])).unwrap().floats, [-1.0, 0.1, 1e9]);
    for (wrong, at) in [(vec![-1.5, 0.0, 0.0], 0), (vec![0.0, f32::NAN, 0.0], 1), (vec![0.0, 0.0, f32::INFINITY], 2)] {
        let said = numbers.step(&Actions::numbers(wrong)).unwrap_err().to_string();
        assert!(said.contains("environment 0: illegal action") && said.ends_with(&format!("in place {at}")), "{said}");
    }

    let mut numbered = cases.begun("Numbered-v0", 1);
    assert_eq!(numbered.step(&Actions::classes(vec![3])).unwrap().floats, bits(&[(4, 3)]));
    assert_eq!(numbered.frame().rewards, [5.0]);
    assert!(numbered.step(&Actions::classes(vec![4])).unwrap_err().to_string().ends_with("expected a class below 4 in column 0"));

    // Pixels are divided by 255, other small numbers are not; a mask is gone when there is none any more.
    for (id, scale) in [("Pixels-v0", 255.0), ("Few-v0", 1.0)] {
        let mut pixels = cases.begun(id, 1);
        assert_eq!(shows(&pixels), [2, 2, 3]);
        let frame = pixels.step(&Actions::classes(vec![2])).unwrap();
        assert_eq!((&frame.floats[..], &frame.legal[..]), (&[200.0 / scale; 12][..], &[true, true, false][..]));
        assert!(pixels.step(&Actions::classes(vec![2])).is_err());
        assert_eq!(pixels.step(&Actions::classes(vec![0])).unwrap().legal, [true; 3]);
    }

    for (id, space) in [("Dict-v0", "the observation space Dict"), ("Text-v0", "the action space Text")] {
        let error = cases.make(id, 1, Autoreset::NextStep).unwrap_err();
        assert!(matches!(&error, EnvError::Gym { error: GymError::Space(reason), .. } if reason.starts_with(space)), "{error}");
    }
}

/// The same episodes with a limit, whichever way the next ones begin.
#[test]
fn what_was_seen_last_is_told() {
    let Some(cases) = cases(2) else { return };
    let mut envs = cases.make("Limited-v0", 2, Autoreset::SameStep).unwrap();
    assert!(matches!(envs.step(&Actions::classes(vec![0, 0])), Err(EnvError::Ended { .. })), "nobody has reset them");
    envs.reset(0).unwrap();
    for _ in 0..2 {
        assert!(envs.step(&Actions::classes(vec![0, 1])).unwrap().episodes.is_empty());
    }
    let frame = envs.step(&Actions::classes(vec![1, 1])).unwrap();
    assert_eq!((&frame.floats[..], &frame.final_floats[..]), (&[1.0, 0.0, 1.0, 0.0][..], &[0.0, 1.0, 0.0, 1.0][..]));
    assert_eq!((&frame.truncated[..], &frame.first[..], &frame.ignored[..]), (&[true; 2][..], &[true; 2][..], &[false; 2][..]));
    assert_eq!(
        frame.episodes.iter().map(|episode| (episode.lane, episode.reward, episode.steps)).collect::<Vec<_>>(),
        [(0, 1.0, 3), (1, 3.0, 3)]
    );
}

/// What goes wrong in one of them is told with its number; what it prints and reads disturbs nobody.
#[test]
fn trouble_is_told_with_its_lane() {
    let Some(cases) = cases(2) else { return };
    let mut envs = cases.begun("Trouble-v0", 4);
    let mut said = |classes: [u32; 4]| {
        let said = envs.step(&Actions::classes(classes.to_vec())).map(drop).map_err(|error| error.to_string());
        envs.reset(1).unwrap();
        said.err().unwrap_or_default()
    };
    assert_eq!(said([0, 0, 0, 8]), "");
    let raised = said([0, 0, 1, 1]);
    assert!(raised.starts_with("gym:gym_cases:Trouble-v0, environment 2: an exception in its step:\nTraceback"), "{raised}");
    assert!(raised.ends_with("ValueError: it is out of order") && raised.contains("gym_cases.py"), "{raised}");
    assert_eq!(said([0, 0, 0, 2]), "gym:gym_cases:Trouble-v0, environment 3: its observation is NaN");
    assert_eq!(said([0, 3, 0, 0]), "gym:gym_cases:Trouble-v0, environment 1: its reward is inf");
    assert!(said([0, 0, 5, 0]).ends_with("environment 2: no action is legal, and the episode has not ended"));
    assert!(said([6, 0, 0, 0]).ends_with("SystemExit: it is enough"));
    assert!(said([0, 7, 0, 0]).ends_with("an observation has the shape (3,), the observation space (2,)"));
    assert!(said([0, 9, 0, 0]).ends_with("environment 1: illegal action [9]: expected a class below 9 in column 0"));
    assert_eq!(said([8, 8, 0, 0]), "", "after an error a reset goes on");
    let outside = cases.begun("Outside-v0", 1).step(&Actions::classes(vec![3])).unwrap_err().to_string();
    assert!(outside.ends_with("the observation 5 is not in the observation space"), "{outside}");
    let ended = envs.step(&Actions::classes(vec![0, 0, 4, 0])).unwrap_err();
    assert_eq!(ended.to_string(), "gym:gym_cases:Trouble-v0, environments 2 to 3: its process has ended: exit status: 7");
    assert_eq!(envs.reset(0).unwrap_err(), ended, "nobody goes on without it");
    let printed = fs::read_to_string(cases.folder.path().join("errors")).unwrap();
    assert!(printed.contains("....!!!!") && printed.contains("printed by a program"), "{printed}");
}

fn kill(process: u32) {
    assert!(Command::new("kill").args(["-9", &process.to_string()]).status().unwrap().success());
}

#[test]
fn a_process_that_is_killed_is_told_at_once() {
    let Some(options) = gymnasium() else { return };
    let mut poles = Gym::new("CartPole-v1", 4, Autoreset::NextStep, &Options { processes: 2, ..options }).unwrap();
    poles.reset(0).unwrap();
    let (process, lanes) = poles.processes().last().unwrap();
    if cfg!(target_os = "linux") {
        // The memory that it shares has no name that could stay behind.
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap();
        assert!(maps.lines().filter(|line| line.contains(" rw-s ")).all(|line| line.ends_with("(deleted)")), "{maps}");
    }
    kill(process);
    let error = poles.step(&Actions::classes(vec![0; 4])).unwrap_err();
    let EnvError::Gym { lanes: told, error: GymError::Ended(status), .. } = error else { panic!("{error}") };
    assert_eq!((told, status.signal()), (lanes, Some(9)));
}

/// Tells a process of this test that it is the one that is killed.
const SCENE: &str = "CANDLE_ENVS_KILLED";

/// Run by the test below in a process of its own: environments that nobody closes.
#[test]
#[ignore = "deep: nothing of its own; it is the process that the next test kills"]
fn the_process_that_is_killed() {
    if std::env::var_os(SCENE).is_none() {
        return;
    }
    let mut poles = Gym::new("CartPole-v1", 2, Autoreset::NextStep, &Options { processes: 2, ..Options::default() }).unwrap();
    poles.reset(0).unwrap();
    let processes: Vec<String> = poles.processes().map(|(process, _)| process.to_string()).collect();
    println!("\nprocesses {}", processes.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn the_processes_end_with_the_one_that_started_them() {
    if gymnasium().is_none() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "gym::the_process_that_is_killed", "--ignored", "--nocapture"]).env(SCENE, "1");
    let mut parent = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let processes = lines.into_iter().find_map(|line| line.strip_prefix("processes ").map(str::to_owned)).unwrap();
    kill(parent.id());
    assert_eq!(parent.wait().unwrap().signal(), Some(9));
    // They have its standard error, which ends with the last of them.
    parent.stderr.take().unwrap().read_to_end(&mut Vec::new()).unwrap();
    for process in processes.split(' ') {
        let left = fs::read_to_string(format!("/proc/{process}/cmdline")).unwrap_or_default();
        assert!(left.is_empty(), "{process} is left: {left}");
    }
}

#[test]
fn what_cannot_be_made_is_told() {
    let missing = Options { python: "/nowhere/python".into(), processes: 1 };
    let error = |id: &str, options: &Options| match Gym::new(id, 3, Autoreset::NextStep, options).unwrap_err() {
        EnvError::Gym { error, .. } => error,
        other => panic!("{other}"),
    };
    assert!(matches!(error("CartPole-v1", &missing), GymError::NoPython { python, .. } if python == "/nowhere/python"));
    let broken = python("exit 3", 2);
    assert!(matches!(error("CartPole-v1", &broken.options), GymError::Ended(status) if status.code() == Some(3)));
    let other = python("echo hello", 1);
    assert!(matches!(error("CartPole-v1", &other.options), GymError::Process(found) if found == "expected an answer, found \"hello\\n\""));
    let Some(options) = gymnasium() else { return };
    let bare = python(&format!("PYTHONPATH= exec '{}' -S \"$@\"", options.python.display()), 2);
    assert!(matches!(error("CartPole-v1", &bare.options), GymError::NoGymnasium { reason, .. } if reason.contains("No module named")));
    assert!(
        matches!(error("CartPoll-v1", &options), GymError::Make(said) if said.contains("`CartPoll` doesn't exist. Did you mean: `CartPole`"))
    );
    assert!(matches!(error("nowhere:CartPole-v1", &options), GymError::Make(said) if said.contains("No module named 'nowhere'")));
    assert!(Gym::new("CartPole-v1", 0, Autoreset::NextStep, &options).is_err());
}

#[test]
fn a_name_says_the_id() {
    let unknown = shipped().get("chess").unwrap_err().to_string();
    assert!(unknown.ends_with(", gym:ID, found \"chess\""), "{unknown}");
    if gymnasium().is_none() {
        return;
    }
    // Tables of states, with what is legal in each.
    let taxi = shipped().get("gym:Taxi-v4").unwrap();
    let mut envs = taxi.make(3, Autoreset::NextStep).unwrap();
    envs.reset(0).unwrap();
    assert!(envs.resumable().is_none() && envs.draw(0).is_none());
    for t in 0..250 {
        let actions = Actions::random(envs.spec(), envs.frame(), Random::new(1).at(t));
        let frame = envs.step(&actions).unwrap();
        assert!(frame.floats.chunks(500).all(|row| row.iter().sum::<f32>() == 1.0) && frame.legal.contains(&false));
    }
    assert_eq!(taxi.name(), "gym:Taxi-v4");
}

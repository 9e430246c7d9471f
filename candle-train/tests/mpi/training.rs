//! The command under mpirun: what one rank trains, several train; and what happens when one of them is killed.

use crate::games::{SETS, replays};
use crate::{alone, end};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-train");

/// Arguments of a small run: five lanes, which neither two nor four ranks share evenly; SGD, which does not divide by the rounding of
/// gradients near zero, with a learning rate that does not amplify it from step to step.
fn arguments(replays: &Path, out: &Path) -> Vec<String> {
    let mut arguments = ["policy", "--preset", "mamba", "--threads", "1", "--hold-out", "g0"].map(str::to_owned).to_vec();
    arguments.extend(["--replays".to_owned(), replays.display().to_string(), "--out".into(), out.display().to_string()]);
    let own = [
        "data.batch=5",
        "trainer.log_every=1",
        "trainer.compare_every=7",
        "trainer.optimiser.rule=sgd",
        "trainer.optimiser.clip=10.0",
        "trainer.schedule.peak=0.005",
    ];
    for set in SETS.into_iter().chain(own) {
        arguments.extend(["--set".to_owned(), set.to_owned()]);
    }
    arguments
}

/// Trains on so many ranks, without mpirun on one.
fn train(size: usize, arguments: &[String]) -> String {
    let mut command = if size == 1 { Command::new(PROGRAM) } else { alone(size) };
    if size > 1 {
        command.arg(PROGRAM);
    }
    let (code, said) = end(&command.args(arguments).output().unwrap());
    assert_eq!(code, 0, "{said}");
    said
}

fn latest(out: &Path) -> String {
    fs::read_to_string(out.join("checkpoints/latest")).unwrap_or_default()
}

/// The parameters of the last checkpoint, all in one.
fn parameters(out: &Path) -> Vec<f64> {
    let file = fs::read(out.join("checkpoints").join(latest(out)).join("parameters.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let tensors: BTreeMap<_, _> = tensors.tensors().into_iter().collect();
    let values = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]))).collect::<Vec<_>>();
    tensors.values().flat_map(|t| values(t.data())).collect()
}

fn norm(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Of two runs' parameters, over the norm of the first.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    norm(a.iter().zip(b).map(|(a, b)| a - b)) / norm(a.iter().copied())
}

#[test]
fn the_gradient_of_several_ranks_is_that_of_one() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, 420);
    // One step with the learning rate 1 and nothing else: the parameters move by the gradient.
    let step = |size: usize| {
        let out = dir.path().join(format!("{size}"));
        let mut arguments = arguments(&replays, &out);
        for set in ["schedule.peak=1.0", "schedule.warmup=0", "optimiser.clip=0.0", "optimiser.weight_decay=0.0", "optimiser.ema=0.0"] {
            arguments.extend(["--set".into(), format!("trainer.{set}")]);
        }
        arguments.extend(["--max-time".into(), "0".into()]);
        train(size, &arguments);
        let first = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let first: serde_json::Value = serde_json::from_str(first.lines().next().unwrap()).unwrap();
        (parameters(&out), first["norm"].as_f64().unwrap())
    };
    let (one, gradient) = step(1);
    for size in [2, 4] {
        let (several, found) = step(size);
        let error = norm(one.iter().zip(&several).map(|(a, b)| a - b)) / gradient;
        eprintln!("{size} ranks: gradient {error:.1e} from that of one rank");
        assert!(error < 1e-6 && (found - gradient).abs() < 1e-5 * gradient, "{size} ranks: {error:e}");
    }
}

#[test]
fn several_ranks_train_what_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, 3000);
    let run = |size: usize| {
        let out = dir.path().join(format!("{size}"));
        let said = train(size, &arguments(&replays, &out));
        let lines = fs::read_to_string(out.join("metrics.jsonl")).unwrap().lines().count();
        (parameters(&out), said, lines)
    };
    let (one, said, lines) = run(1);
    assert!(lines >= 50, "{lines} lines");
    for size in [2, 4] {
        let (several, said_by_several, lines_of_several) = run(size);
        let distance = distance(&one, &several);
        eprintln!("{size} ranks: parameters {distance:.1e} from those of one rank");
        assert!(distance < 1e-5, "{size} ranks: {distance:e}");
        assert_eq!(lines, lines_of_several, "one rank writes");
        assert!(said_by_several.contains(&format!("on {size} ranks")) && said_by_several.matches("model in ").count() == 1);
        // The same likelihoods, to the digits that are shown.
        let row = |said: &str| said.lines().find(|l| l.starts_with("| mamba")).map(str::to_owned).unwrap();
        assert_eq!(row(&said), row(&said_by_several));
    }
}

/// The process of a rank that `mpirun` has started.
fn rank(mpirun: &Child, rank: usize) -> Option<String> {
    let wanted = format!("OMPI_COMM_WORLD_RANK={rank}");
    let parent = mpirun.id().to_string();
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let status = fs::read_to_string(path.join("stat")).ok()?;
            let environment = String::from_utf8_lossy(&fs::read(path.join("environ")).ok()?).into_owned();
            let of_job = status.rsplit(')').next()?.split_whitespace().nth(1)? == parent;
            (of_job && environment.split('\0').any(|v| v == wanted)).then(|| path.file_name().unwrap().to_string_lossy().into_owned())
        })
        .next()
}

fn signal(name: &str, process: &str) {
    assert!(Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status().unwrap().success());
}

/// Starts it and waits for a checkpoint that was not there before.
fn start(command: &mut Command, out: &Path) -> Child {
    let before = latest(out);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    while latest(out) == before {
        assert!(child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(300), "no checkpoint");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn a_killed_rank_is_named_and_the_run_resumes_on_any_number_of_ranks() {
    let dir = tempfile::tempdir().unwrap();
    let replays = replays(dir.path(), 3, 3000);
    let (whole, killed) = (dir.path().join("whole"), dir.path().join("killed"));
    train(2, &arguments(&replays, &whole));
    let resume = [arguments(&replays, &killed), vec!["--resume".into()]].concat();
    for victim in [1, 0] {
        let child = start(alone(2).arg(PROGRAM).args(&resume), &killed);
        signal("KILL", &rank(&child, victim).expect("a process of that rank"));
        let (code, said) = end(&child.wait_with_output().unwrap());
        assert!(code != 0 && said.contains(&format!("process rank {victim} with PID")) && said.contains("signal 9"), "{said}");
    }
    // On as many ranks the rest is the same, bit for bit.
    let elsewhere = dir.path().join("elsewhere");
    assert!(Command::new("cp").arg("-r").arg(&killed).arg(&elsewhere).status().unwrap().success());
    let said = train(2, &resume);
    assert!(said.contains("continued from step "), "{said}");
    assert!(parameters(&killed) == parameters(&whole), "resumed on two ranks");
    train(1, &[arguments(&replays, &elsewhere), vec!["--resume".into()]].concat());
    let distance = distance(&parameters(&elsewhere), &parameters(&whole));
    assert!(distance < 1e-5, "resumed on one rank: {distance:e}");
}

#[test]
fn a_signal_to_launch_lets_the_ranks_save() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 3000), dir.path().join("out"));
    let arguments = [arguments(&replays, &out), vec!["--resume".into()]].concat();
    let launch = || {
        let mut command = Command::new(PROGRAM);
        command.args(["launch", "--nproc", "2", "--"]).args(&arguments);
        command
    };
    let child = start(&mut launch(), &out);
    signal("TERM", &child.id().to_string());
    let (code, said) = end(&child.wait_with_output().unwrap());
    assert!(code == 0 && said.matches("stopped by a signal at step ").count() == 1, "{code}: {said}");
    let (code, said) = end(&launch().output().unwrap());
    assert!(code == 0 && said.contains("continued from step ") && said.contains("model in "), "{code}: {said}");
}

#[test]
fn launch_ends_with_the_code_of_the_rank_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let arguments = arguments(&replays(dir.path(), 3, 420), &dir.path().join("out"));
        end(&Command::new(PROGRAM).args(["launch", "--nproc", "2", "--"]).args(arguments).args(more).output().unwrap())
    };
    let (code, said) = run(&["--set", "trainer.speed=1"]);
    assert!(code == 2 && said.contains("config: trainer.speed: no such key"), "{code}: {said}");
    let (code, said) = run(&["--set", "data.batch=1"]);
    assert!(code == 2 && said.contains("data.batch: 1 sequences cannot be shared by 2 ranks"), "{code}: {said}");
    let (code, said) = run(&["--device", "cuda"]);
    assert!(code == 1 && said.contains("error: launch: built without the feature nccl"), "{code}: {said}");
    let output = Command::new(PROGRAM).args(["launch", "--nproc", "2", "policy", "--dry-run"]).env("PATH", dir.path()).output().unwrap();
    let (code, said) = end(&output);
    assert!(code == 1 && said.contains("no mpirun in PATH; in Debian it is in the package openmpi-bin"), "{code}: {said}");
}

#[test]
fn ranks_of_different_configurations_are_told_which_key_differs() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = arguments(&replays(dir.path(), 3, 420), &dir.path().join("out"));
    let mut both = alone(1);
    both.arg(PROGRAM).args(&arguments).args([":", "-n", "1", PROGRAM]).args(&arguments).args(["--set", "trainer.accumulate=3"]);
    let (code, said) = end(&both.output().unwrap());
    assert!(code != 0 && said.contains("config.trainer.accumulate: 2 on rank 0, 3 on rank 1"), "{code}: {said}");
}

#[test]
fn several_ranks_measure_what_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 900), dir.path().join("out"));
    train(1, &arguments(&replays, &out));
    let [bundle, replays] = [out.join("bundle"), replays].map(|p| p.display().to_string());
    let measure = ["policy", "--eval-only", "--model", &bundle, "--replays", &replays, "--threads", "1"].map(str::to_owned);
    let table = |size: usize| train(size, &measure).lines().filter(|l| l.starts_with('|')).map(str::to_owned).collect::<Vec<_>>();
    let one = table(1);
    assert!(one.len() > 2);
    assert_eq!(one, table(2));
    assert_eq!(one, table(4));
}

//! What a run does when the disk is full, when a signal comes in mid-save, and when what it finds is not its own.

use crate::held::Held;
use crate::{replays, run, small, text};
use candle_core::{Device, Tensor};
use candle_models::policy::{replay, simulation};
use candle_models::random::Random;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// Every file below a directory with its content.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// The pointer's checkpoint, every file of it checked against its manifest.
fn latest(out: &Path) -> PathBuf {
    let checkpoints = out.join("checkpoints");
    let latest = checkpoints.join(fs::read_to_string(checkpoints.join("latest")).unwrap());
    let manifest: serde_json::Value = serde_json::from_slice(&fs::read(latest.join("manifest.json")).unwrap()).unwrap();
    for (name, hash) in manifest["files"].as_object().unwrap() {
        assert_eq!(hash_of(&fs::read(latest.join(name)).unwrap()), hash.as_str().unwrap(), "{}: {name}", latest.display());
    }
    latest
}

fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn step_of(checkpoint: &Path) -> u64 {
    checkpoint.file_name().unwrap().to_str().unwrap().strip_prefix("step-").unwrap().parse().unwrap()
}

/// Runs up to a checkpoint and stops there, as a signal does.
fn stopped(replays: &Path, out: &Path) {
    let done = run(small(replays, out).args(["--max-time", "0"]));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_eq!(step_of(&latest(out)), 1);
}

#[test]
fn a_signal_in_the_middle_of_a_save_ends_with_a_whole_checkpoint() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 700), dir.path().join("out"));
    stopped(&replays, &out);
    let partial = |e: std::io::Result<fs::DirEntry>| e.unwrap().file_name().to_string_lossy().starts_with(".partial-step-");
    let saving = || fs::read_dir(out.join("checkpoints")).unwrap().any(partial);
    for i in 0..6 {
        let before = latest(&out);
        let mut child = Held::start(small(&replays, &out).arg("--resume"));
        // Every second step is saved, while the next one is made: a save has begun, or is over already.
        child.steps(3);
        child.wait("save", || saving() || latest(&out) != before);
        sleep(Duration::from_micros(u64::from(Random::new(7).below(i, 3000))));
        // SAFETY: a call without memory, on a child that has not been waited for.
        unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
        let output = child.finish();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let said = text(&output.stdout);
        let step = said.lines().find_map(|line| line.strip_prefix("stopped by a signal at step ")?.split(';').next()?.parse::<u64>().ok());
        assert_eq!(Some(step_of(&latest(&out))), step, "the checkpoint is of the step that the run stopped at: {said}");
        assert!(!saving(), "nothing half written is left");
    }
}

/// The command in a process that cannot write files beyond `bytes`: every write behind that fails, as on a full disk.
#[cfg(unix)]
fn limited(command: &mut Command, bytes: u64) -> &mut Command {
    use std::os::unix::process::CommandExt;
    let limit = move || {
        let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
        // SAFETY: two system calls between fork and exec; `limit` outlives the first. Ignored, the signal becomes an error.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            if libc::setrlimit(libc::RLIMIT_FSIZE, &limit) == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        }
    };
    // SAFETY: as above.
    unsafe { command.pre_exec(limit) }
}

#[test]
fn a_full_disk_costs_checkpoints_and_not_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out, whole) = (replays(dir.path(), 3, 700), dir.path().join("out"), dir.path().join("whole"));
    stopped(&replays, &out);
    let before = files(&latest(&out));
    let size = |file: &str| fs::metadata(latest(&out).join(file)).unwrap().len();
    let limit = u64::midpoint(size("parameters.safetensors"), size("moments.safetensors"));

    let full = run(limited(small(&replays, &out).arg("--resume"), limit));
    let stderr = text(&full.stderr);
    assert_eq!(full.status.code(), Some(1), "the last checkpoint is missing: {stderr}");
    let warned: Vec<&str> = stderr.lines().filter(|line| line.ends_with("training goes on")).collect();
    assert!(warned.len() > 10, "a warning for every checkpoint in between: {stderr}");
    for part in
        ["warning: checkpoint of step 2 not saved: ", "moments.safetensors: File too large", "the latest is still step-000000000001"]
    {
        assert!(warned[0].contains(part), "no '{part}' in {}", warned[0]);
    }
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("error: checkpoint of step ") && last.contains("not saved"), "{last}");
    assert_eq!(files(&latest(&out)), before, "the older one is as it was");

    // On a signal too, and with room again the run goes on from where it was.
    let signalled = run(limited(small(&replays, &out).args(["--resume", "--max-time", "0"]), limit));
    assert_eq!(signalled.status.code(), Some(1), "{}", text(&signalled.stderr));
    assert!(run(small(&replays, &out).arg("--resume")).status.success());
    assert!(run(&mut small(&replays, &whole)).status.success());
    let tensors = |out: &Path| fs::read(latest(out).join("parameters.safetensors")).unwrap();
    assert!(tensors(&out) == tensors(&whole), "the parameters of a run that was never short of room");
}

/// Another value in a checkpoint, with a manifest that agrees: what an older program may have written.
fn forge(checkpoint: &Path, file: &str, change: impl FnOnce(&mut std::collections::HashMap<String, Tensor>)) {
    let path = checkpoint.join(file);
    let mut tensors = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    change(&mut tensors);
    candle_core::safetensors::save(&tensors, &path).unwrap();
    let path = checkpoint.join("manifest.json");
    let mut manifest: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    manifest["files"][file] = hash_of(&fs::read(checkpoint.join(file)).unwrap()).into();
    fs::write(path, serde_json::to_vec(&manifest).unwrap()).unwrap();
}

#[test]
fn a_checkpoint_of_another_architecture_is_refused_by_tensor_and_nothing_changes() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 3, 700), dir.path().join("out"));
    stopped(&replays, &out);
    let refused = |set: &[&str]| {
        let before = files(&out);
        let output = run(small(&replays, &out).arg("--resume").args(set));
        assert_eq!(output.status.code(), Some(1));
        assert!(files(&out) == before, "a refused run writes nothing");
        text(&output.stderr).lines().last().unwrap().to_owned()
    };
    let error = refused(&["--set", "model.hidden=32"]);
    assert!(error.contains("config.model.hidden: 16 in the checkpoint, 32 now; "), "{error}");
    assert!(error.contains("parameters: tensor blocks.0.a_log: expected F32 [64, 4], found F32 [32, 4]"), "{error}");

    let tensor = "blocks.0.norm.weight";
    forge(&latest(&out), "parameters.safetensors", |tensors| {
        let narrow = tensors[tensor].narrow(0, 0, 15).unwrap();
        tensors.insert(tensor.to_owned(), narrow);
    });
    let error = refused(&[]);
    assert!(error.ends_with("of another model: parameters: tensor blocks.0.norm.weight: expected F32 [16], found F32 [15]"), "{error}");
}

#[test]
fn games_that_changed_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (replays(dir.path(), 4, 700), dir.path().join("out"));
    stopped(&replays, &out);
    replay::write(&simulation::simulate(77, 700), replays.join("g2.slp")).unwrap();
    replay::write(&simulation::simulate(78, 700), replays.join("g9.slp")).unwrap();
    fs::rename(replays.join("g3.slp"), replays.join("g3.bak")).unwrap();
    let before = files(&out.join("checkpoints"));
    let output = run(small(&replays, &out).arg("--resume"));
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    let expected = "the training games are not those that it began with: with another content: g2.slp; new: g9.slp; gone: g3.slp";
    assert!(error.contains("this run cannot continue the checkpoint of step 1: data: ") && error.trim_end().ends_with(expected), "{error}");
    assert!(files(&out.join("checkpoints")) == before);
    // Under another name the games are the same.
    replay::write(&simulation::simulate(2, 700), replays.join("g2.slp")).unwrap();
    fs::remove_file(replays.join("g9.slp")).unwrap();
    fs::rename(replays.join("g3.bak"), replays.join("g4.slp")).unwrap();
    let output = run(small(&replays, &out).args(["--resume", "--max-time", "0"]));
    assert!(output.status.success(), "{}", text(&output.stderr));
}

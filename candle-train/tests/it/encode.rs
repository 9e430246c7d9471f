//! Replays that are encoded beforehand, in parts or by a program that dies: training from the shards is training from the replays.

use crate::{assert_equal_runs, replays, run, small, text, weights};
use candle_models::policy::{replay, simulation};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn encode(replays: &Path, out: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.args(["encode", "--threads", "1", "--replays"]).arg(replays).arg("--out").arg(out);
    command
}

/// The files below a folder, by their names in it.
fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = PathBuf::from(path.file_name().unwrap());
        match path.is_dir() {
            true => found.extend(files(&path).into_iter().map(|(inner, bytes)| (name.join(inner), bytes))),
            false => _ = found.insert(name, fs::read(path).unwrap()),
        }
    }
    found
}

/// Short games, enough for several files.
fn many(directory: &Path) -> PathBuf {
    let folder = directory.join("many");
    fs::create_dir(&folder).unwrap();
    (0..150).for_each(|seed| replay::write(&simulation::simulate(seed, 30), folder.join(format!("g{seed:03}.slp"))).unwrap());
    folder
}

#[test]
fn training_from_shards_or_an_archive_is_training_from_replays() {
    let dir = tempfile::tempdir().unwrap();
    let [from_replays, from_archive, from_shards, shards] = ["a", "b", "c", "shards"].map(|name| dir.path().join(name));
    let replays = replays(dir.path(), 3, 400);
    let done = run(&mut small(&replays, &from_replays));
    assert!(done.status.success(), "{}", text(&done.stderr));

    for part in ["1/2", "0/2"] {
        let done = run(encode(&replays, &shards).args(["--shard", part]));
        assert!(done.status.success(), "{}", text(&done.stderr));
    }
    let archive = dir.path().join("games.tar");
    let mut tar = tar::Builder::new(fs::File::create(&archive).unwrap());
    tar.append_dir_all("folder", &replays).unwrap();
    tar.into_inner().unwrap();
    fs::remove_dir_all(&replays).unwrap();

    for (source, out) in [(&shards, &from_shards), (&archive, &from_archive)] {
        let done = run(&mut small(source, out));
        assert!(done.status.success(), "{}", text(&done.stderr));
        assert_equal_runs(out, &from_replays);
        assert_eq!(weights(out), weights(&from_replays));
    }
    // A run that began with replays goes on without them: it ends where it has ended.
    let done = run(small(&shards, &from_replays).arg("--resume"));
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert_equal_runs(&from_replays, &from_shards);
}

#[test]
fn a_flipped_bit_ends_the_run_with_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let [shards, out] = ["shards", "out"].map(|name| dir.path().join(name));
    assert!(run(&mut encode(&replays(dir.path(), 3, 400), &shards)).status.success());
    let (name, mut bytes) = files(&shards).into_iter().find(|(name, _)| name.extension().unwrap() == "safetensors").unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(shards.join(&name), bytes).unwrap();
    let failed = run(&mut small(&shards, &out));
    let errors = text(&failed.stderr);
    assert_eq!(failed.status.code(), Some(1), "{errors}");
    assert!(errors.contains(&format!("{}: g", name.display())) && errors.contains("damaged: remove the file"), "{errors}");
}

#[test]
fn a_killed_encoder_leaves_nothing_that_is_taken_for_a_game() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, whole, killed) = (many(dir.path()), dir.path().join("whole"), dir.path().join("killed"));
    assert!(run(&mut encode(&replays, &whole)).status.success());
    let expected = files(&whole);
    // Killed when it has just written its next file.
    for _ in 0..3 {
        let before = files(&killed).len();
        let mut child = encode(&replays, &killed).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let limit = Instant::now() + Duration::from_secs(300);
        while files(&killed).len() <= before && child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < limit, "no file was written");
            sleep(Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for (name, bytes) in files(&killed).iter().filter(|(name, _)| !name.file_name().unwrap().to_string_lossy().starts_with('.')) {
            assert!(expected[name] == *bytes, "{}", name.display());
        }
    }
    assert!(run(&mut encode(&replays, &killed)).status.success());
    let found = files(&killed);
    assert!(expected.iter().all(|(name, bytes)| found[name] == *bytes));
}

#[test]
fn a_full_disk_is_said_and_leaves_no_half_file() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, out) = (many(dir.path()), dir.path().join("out"));
    // No file may become larger than that.
    let full = || {
        let limit = libc::rlimit { rlim_cur: 50_000, rlim_max: 50_000 };
        // SAFETY: calls between fork and exec that touch no memory but `limit`.
        match unsafe { (libc::signal(libc::SIGXFSZ, libc::SIG_IGN), libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit)).1 } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    let mut command = encode(&replays, &out);
    // SAFETY: as above.
    unsafe { command.pre_exec(full) };
    let failed = run(&mut command);
    let errors = text(&failed.stderr);
    assert_eq!((failed.status.code(), errors.lines().count()), (Some(1), 1), "{errors}");
    assert!(errors.contains("out") && errors.contains("File too large"), "{errors}");
    assert_eq!(files(&out), BTreeMap::new());
    assert!(run(&mut encode(&replays, &out)).status.success());
}

#[test]
fn what_encode_is_asked_wrongly_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let nothing = dir.path().join("nothing");
    fs::create_dir(&nothing).unwrap();
    let broken = dir.path().join("broken.slp");
    fs::write(&broken, "no replay").unwrap();
    for (replays, shard, code, words) in [
        (&nothing, "0/1", 1, "the folder holds no .slp file"),
        (&dir.path().join("none"), "0/1", 1, "No such file"),
        (&broken, "0/1", 1, "none of 1 replays can be used"),
        (&broken, "1/1", 2, "expected I/N with I from 0 to N - 1"),
    ] {
        let failed = run(encode(replays, &out).args(["--shard", shard]));
        let errors = text(&failed.stderr);
        assert!(failed.status.code() == Some(code) && errors.contains(words), "{errors}");
    }
    // Parts without replays have nothing to do.
    let done = run(encode(&broken, &out).args(["--shard", "1/2"]));
    assert!(done.status.success() && text(&done.stdout).ends_with("0 games (0 MB), 0 encoded now, 0.0 s\n"), "{}", text(&done.stdout));
}

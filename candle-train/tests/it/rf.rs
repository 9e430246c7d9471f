//! Data sets of radio events by the command: the same bytes for any number of workers and after a kill.

use crate::{run, text};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const SMALL: [&str; 6] =
    ["--set=events=14", "--set=shard=3", "--set=signals.samples=4000", "--set=chunk=0.004", "--set=iq=true", "--preset=compatible"];

fn command(out: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.arg("rf-data").arg("--out").arg(out).args(arguments);
    for variable in ["SLURM_ARRAY_TASK_ID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"] {
        command.env_remove(variable);
    }
    command
}

fn make(out: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output = run(&mut command(out, arguments));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The files of a data set, but for what a killed run left.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

#[test]
fn any_number_of_workers_makes_the_same_files() {
    let root = tempfile::tempdir().unwrap();
    let of = |name: &str| root.path().join(name);
    let (code, stdout, stderr) = make(&of("one"), &[&SMALL[..], &["--threads", "1"]].concat());
    assert!(code == 0 && stdout.contains("14 events in 5 files") && stdout.contains("manifest.json"), "{stdout}{stderr}");
    let expected = files(&of("one"));
    assert_eq!(expected.len(), 7);
    assert_eq!(make(&of("five"), &[&SMALL[..], &["--threads", "5"]].concat()).0, 0);
    assert_eq!(files(&of("five")), expected);
    // Parts by name, and by what a launcher says.
    assert!(make(&of("parts"), &[&SMALL[..], &["--part", "1/2"]].concat()).1.contains("3 files of other parts are missing"));
    let output = run(command(&of("parts"), &SMALL).envs([("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(files(&of("parts")), expected);
    // What is complete is not made again.
    let (_, stdout, _) = make(&of("one"), &SMALL);
    assert!(!stdout.contains("a second") && stdout.contains("5 files of 14 events"), "{stdout}");
}

#[test]
fn a_killed_run_goes_on_without_a_lost_or_repeated_event() {
    let root = tempfile::tempdir().unwrap();
    let [whole, killed] = ["whole", "killed"].map(|name| root.path().join(name));
    assert_eq!(make(&whole, &SMALL).0, 0);
    let mut child = command(&killed, &SMALL).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() && !killed.join("events-000001.safetensors").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    let _ = child.kill();
    child.wait().unwrap();
    // As if it had been killed while it wrote.
    fs::write(killed.join(".events-000003.safetensors.tmp-1-0"), b"half").unwrap();
    let _ = fs::remove_file(killed.join("events-000003.safetensors"));
    let _ = fs::remove_file(killed.join("manifest.json"));
    assert_eq!(make(&killed, &SMALL).0, 0);
    assert_eq!(files(&killed), files(&whole));
}

#[test]
fn a_physical_data_set_has_delays_and_a_foreign_one_is_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let physical = ["--set=events=2", "--set=shard=2", "--set=signals.samples=4000", "--set=chunk=0.01", "--preset=physical"];
    let (code, stdout, stderr) = make(root.path(), &physical);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let before = files(root.path());
    let (code, _, stderr) = make(root.path(), &SMALL);
    assert!(code == 1 && stderr.contains("scenario.toml: data of another scenario: `events = 2` there, `events = 14` here"), "{stderr}");
    for (arguments, code, message) in [
        (&["--part", "2/2"][..], 2, "config: --part: expected a number and a greater one, as 0/4, found 2/2"),
        (&["--set=chunk=0"], 2, "config: chunk: "),
        (&["--preset", "none"], 2, "config: preset: expected one of compatible, physical"),
        (&["--scenario", "nowhere.toml"], 1, "nowhere.toml"),
    ] {
        let (found, _, stderr) = make(root.path(), arguments);
        assert!(found == code && stderr.contains(message), "{arguments:?}: {found} {stderr}");
    }
    assert_eq!(files(root.path()), before);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_leaves_no_part_of_a_file() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("data");
    // No file may be larger than 8 blocks of 1024 bytes: what is written fails as on a full disk.
    let program = command(&out, &SMALL);
    let mut shell = Command::new("sh");
    let words: Vec<String> =
        std::iter::once(program.get_program()).chain(program.get_args()).map(|word| word.to_str().unwrap().to_owned()).collect();
    shell.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$@\"", "sh"]).args(&words);
    let output = run(&mut shell);
    assert!(!output.status.success() && text(&output.stderr).contains("events-000000.safetensors: "), "{}", text(&output.stderr));
    let left = files(&out);
    assert_eq!(left.keys().collect::<Vec<_>>(), ["scenario.toml"]);
}

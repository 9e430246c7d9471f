//! Data sets of radio events by the command: the same bytes for any number of workers and after a kill; and the page of radio networks.

use crate::{run, text};
use candle_core::Device;
use candle_models::bundle::{self, Manifest};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::rf::classifier::Scale;
use candle_models::rf::{ClassifierConfig, FAMILY, LocaliserConfig, RfConfig};
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
    assert!(code == 1 && stderr.contains("dataset.toml: data of another description: `events = 2` there, `events = 14` here"), "{stderr}");
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
    assert_eq!(left.keys().collect::<Vec<_>>(), ["dataset.toml"]);
}

fn save(directory: &Path, config: &RfConfig, seed: u64) {
    let params = Params::init(Random::new(seed), &Device::Cpu);
    config.networks(&params).unwrap();
    let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    bundle::save(directory, &Manifest::new(FAMILY, config).unwrap(), &tensors, serde_json::Value::Null, &[]).unwrap();
}

fn page(weights: &Path, out: &Path) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.arg("rf-page").arg("--weights").arg(weights).arg("--out").arg(out);
    let output = run(command.args(["--events=30", "--signals=11", "--tones=2", "--emitters=2", "--seconds=0.02"]));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// Of untrained networks: two seeds of a localiser, a classifier with the classes of a preset, and one with others.
#[test]
fn the_page_shows_networks_beside_bounds() {
    let root = tempfile::tempdir().unwrap();
    let (weights, out) = (root.path().join("weights"), root.path().join("page"));
    let (code, _, stderr) = page(&weights, &out);
    assert!(code == 1 && stderr.contains("expected bundles of radio networks, found none") && !out.exists(), "{stderr}");
    let localiser = RfConfig::Localiser(LocaliserConfig { hidden: 8, components: 2, ..LocaliserConfig::default() });
    save(&weights.join("localiser"), &localiser, 1);
    save(&weights.join("localiser-2"), &localiser, 2);
    let linear = ClassifierConfig::new(["BPSK", "QPSK", "8PSK", "16QAM", "64QAM"]);
    let coherent = ClassifierConfig { samples: 16, scale: Scale::Given, channels: 8, kernel: 1, blocks: 1, stride: 1, ..linear };
    save(&weights.join("classifier"), &RfConfig::Classifier(coherent.clone()), 1);
    save(&weights.join("other"), &RfConfig::Classifier(ClassifierConfig { samples: 17, ..coherent }), 1);
    let (code, stdout, stderr) = page(&weights, &out);
    assert!(code == 0 && stderr.contains("left out: classifier of 17 samples"), "{stderr}");
    let text = fs::read_to_string(out.join("README.md")).unwrap();
    let row = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap_or_else(|| panic!("no row '{name}' in {text}"));
        let numbers = line.split(" | ").skip(1).filter_map(|cell| cell.split([' ', '*']).find_map(|word| word.parse::<f64>().ok()));
        numbers.collect::<Vec<_>>()
    };
    let bound = row("exact posterior, powers of all receivers known");
    assert!(bound.len() == 5 && (5.0..60.0).contains(&bound[0]) && row("**localiser of up to 7 receivers")[0] > bound[0], "{text}");
    assert!(text.contains("(2 seeds)") && row("middle of the receivers that hear it")[0] > bound[0], "{text}");
    // A delay is known to some microseconds from 20 ms at 20 dB.
    let arrival = text.split("| dB | a delay, ns |").nth(1).unwrap().lines().find(|line| line.starts_with("| 20 |")).unwrap();
    let [_, delay, best, ..] =
        arrival.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).parse::<f64>().unwrap()).collect::<Vec<_>>()[..]
    else {
        panic!("{text}")
    };
    assert!(delay > 0.3 * best && delay < 3.0 * best, "{delay} {best}");
    // The most likely modulation is right more often than an untrained network.
    let coherent =
        text.split("| dB | right, % | most likely, % |").nth(1).unwrap().lines().find(|line| line.starts_with("| 16 |")).unwrap();
    let high: Vec<f64> = coherent.split(" | ").skip(1).map(|cell| cell.trim_matches(['|', ' ']).parse().unwrap()).collect();
    assert!(high[1] > high[0] && text.contains("## What kind a signal is: coherent") && text.contains("| 64QAM |"), "{text}");
    for name in ["map-1.svg", "map-2.svg", "arrival.svg", "coherent.svg"] {
        assert!(text.contains(&format!("({name})")) && stdout.contains(name), "{name}");
        assert!(fs::read_to_string(out.join(name)).unwrap().starts_with("<svg"), "{name}");
    }
}

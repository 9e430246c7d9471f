//! Data sets of fields by the command, and an operator that learns from several grids: what a killed run left is made good, and what does not fit is refused.

use crate::{run, text};
use std::fs;
use std::path::Path;
use std::process::Command;

fn command(arguments: &[&str]) -> (i32, String, String) {
    let output = run(Command::new(env!("CARGO_BIN_EXE_candle-train")).args(arguments));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn data(out: &Path, arguments: &[&str]) -> (i32, String, String) {
    command(&[&["pde-data", "--out", out.to_str().unwrap(), "--part", "0/1"], arguments].concat())
}

const SMALL: [&str; 6] = ["--set", "source.count=9", "--set", "shard=4", "--set", "source.equation.places=5"];

#[test]
fn fields_are_made_again_where_they_are_missing_and_learnt_from_on_two_grids() {
    let root = tempfile::tempdir().unwrap();
    let [five, six] = ["five", "six"].map(|name| root.path().join(name));
    let (code, stdout, stderr) = data(&five, &SMALL);
    assert!(code == 0 && stdout.contains("3 files of 9 runs"), "{stdout}{stderr}");
    let file = five.join("runs-000001.safetensors");
    let before = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    fs::remove_file(five.join("manifest.json")).unwrap();
    let fields = |first: &Path, second: &Path, sets: &[&str]| {
        let out = root.path().join("run");
        let run = ["operator", "--fields", first.to_str().unwrap(), second.to_str().unwrap(), "--out", out.to_str().unwrap()];
        let small = "batch=3 held_out=3 epochs=2 model.hidden=4 model.layers=1 model.modes=[4,4]".split(' ').flat_map(|set| ["--set", set]);
        command(&run.into_iter().chain(small).chain(sets.iter().copied()).collect::<Vec<_>>())
    };
    // A data set that is not complete is not learnt from.
    let (code, _, stderr) = fields(&five, &five, &[]);
    assert!(code == 1 && stderr.contains("not complete: manifest.json is missing"), "{code} {stderr}");
    assert_eq!(data(&five, &SMALL).0, 0);
    assert_eq!(fs::read(&file).unwrap(), before);
    assert_eq!(data(&six, &["--set", "source.count=4", "--set", "source.equation.places=6"]).0, 0);
    let (code, stdout, stderr) = fields(&five, &six, &[]);
    // Two batches of the first grid and one of the second, twice.
    assert!(code == 0 && stdout.contains("6 steps of 3 pairs"), "{stdout}{stderr}");
    assert!(stdout.contains("held out, 5 x 5: relative L2 "), "{stdout}");
    let config = fs::read_to_string(root.path().join("run/config.toml")).unwrap();
    assert!(!config.contains("[data"), "{config}");
}

#[test]
fn runs_of_flows_are_rolled_out_and_other_data_sets_are_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let out = root.path().join("flows");
    let flows = ["--preset", "ns", "--set", "source.count=4", "--set", "source.equation.places=6", "--set", "source.equation.states=2"];
    let flows = [&flows[..], &["--set", "source.equation.interval=0.02"]].concat();
    let (code, stdout, stderr) = data(&out, &flows);
    assert!(code == 0 && stdout.contains("1 files of 4 runs"), "{stdout}{stderr}");
    let (code, _, stderr) = data(&out, &SMALL);
    assert!(code == 1 && stderr.contains("dataset.toml: data of another description"), "{stderr}");
    for (set, message) in [
        ("source.equation.interval=0.005", "config: source.equation.interval: expected a whole number of steps"),
        ("source.equation.places=0", "config: source.equation.places: "),
        ("shard=0", "config: shard: expected 1 to "),
        ("source.depth=2", "config: source.depth: no such key"),
    ] {
        let (code, _, stderr) = data(&root.path().join("none"), &["--preset", "ns", "--set", set]);
        assert!(code == 2 && stderr.contains(message), "{set}: {code} {stderr}");
    }
    let run = root.path().join("run");
    let small =
        "batch=2 held_out=1 epochs=2 model.hidden=4 model.layers=1 model.modes=[4,4] noise=0.1".split(' ').flat_map(|set| ["--set", set]);
    let arguments = ["operator", "--preset", "ns", "--fields", out.to_str().unwrap(), "--out", run.to_str().unwrap()];
    let (code, stdout, stderr) = command(&arguments.into_iter().chain(small).collect::<Vec<_>>());
    assert!(code == 0 && stdout.contains("6 steps of 2 pairs"), "{stdout}{stderr}");
    assert!(stdout.contains("of roll-outs "), "{stdout}");
}

#[test]
fn operators_of_several_seeds_become_one_that_says_how_sure_it_is() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let fields = path("fields");
    assert_eq!(data(Path::new(&fields), &["--set", "source.count=24", "--set", "source.equation.places=6"]).0, 0);
    for (seed, layers) in [("1", "1"), ("2", "1"), ("3", "2")] {
        let sets = ["batch=4", "held_out=8", "epochs=4", "model.hidden=4", "model.modes=[4,4]"].map(str::to_owned);
        let sets =
            sets.into_iter().chain([format!("seed={seed}"), format!("model.layers={layers}")]).flat_map(|set| ["--set".to_owned(), set]);
        let run = ["operator", "--fields", &fields, "--out", &path(seed)].map(str::to_owned).into_iter().chain(sets).collect::<Vec<_>>();
        assert_eq!(command(&run.iter().map(String::as_str).collect::<Vec<_>>()).0, 0);
    }
    let [one, two, three] = ["1/bundle", "2/bundle", "3/bundle"].map(path);
    let (out, held) = (path("ensemble"), ["--held-out", "8"]);
    let ensemble = |members: &[&str], options: &[&str]| {
        command(&[&["fno-ensemble", "--out", &out, "--fields", &fields, "--members"], members, options].concat())
    };
    let (code, stdout, stderr) = ensemble(&[&one, &two], &[&held[..], &["--tests", &format!("{fields}/runs-000000.safetensors")]].concat());
    assert!(code == 0 && stdout.contains("1 blocks of 4 channels, 4 x 4 modes, 2 members"), "{stdout}{stderr}");
    let cells: Vec<&str> =
        stdout.lines().find(|line| line.starts_with("| held out of fields")).unwrap().split('|').map(str::trim).collect();
    // Of the values that the variance was found by, as many lie within as was asked for.
    assert_eq!((cells[2], cells[3]), ("8", "6 x 6"), "{stdout}");
    let within: f64 = cells[7].trim_end_matches('%').parse().unwrap();
    assert!((within - 90.0).abs() < 1.0, "{stdout}");
    assert!(stdout.contains("| runs-000000 | 24 | 6 x 6 | "), "{stdout}");
    let card = fs::read_to_string(Path::new(&out).join("README.md")).unwrap();
    assert!(card.contains("| held out of fields | 8 | ") && card.contains("fno-ensemble"), "{card}");
    // An ensemble is none of another one's members, and none is made of networks of another shape, too few, or of pairs that are not there.
    for (members, options, message) in [
        (&[&one, &three][..], &held, "expected members of one configuration"),
        (&[&out, &out], &held, "or an ensemble itself"),
        (&[&one, &one], &held, "expected members that differ"),
        (&[&one, &two], &["--held-out", "25"], "--held-out: expected 1 to 24, found 25"),
    ] {
        let members: Vec<&str> = members.iter().map(|path| path.as_str()).collect();
        let (code, _, stderr) = ensemble(&members, options);
        assert!(code != 0 && stderr.contains(message), "{message}: {code} {stderr}");
    }
}

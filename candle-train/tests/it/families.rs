//! What holds for the training of every shipped family, by the command as a user runs it.

use crate::family_names::assert_known_in_their_folders_only;
use crate::{assert_equal_runs, run, text, weights};
use candle_models::bundle::{Bundle, CARD};
use candle_train::command::{TrainFamily, Training};
use candle_train::families;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A run of that family below a directory; nothing is written elsewhere.
fn train(training: &dyn Training, directory: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    let output = run(command.arg(training.name()).args(arguments).args(["--threads", "1"]).current_dir(directory).env("TMPDIR", directory));
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

fn done(training: &dyn Training, directory: &Path, arguments: &[&str]) -> String {
    let (code, stdout, stderr) = train(training, directory, arguments);
    assert_eq!(code, 0, "{} {arguments:?}: {stderr}", training.name());
    stdout
}

/// Every way to train a shipped family.
fn trainings() -> Vec<(&'static dyn TrainFamily, &'static dyn Training)> {
    let of = |family: &'static dyn TrainFamily| family.trainings().iter().map(move |training| (family, *training));
    families::shipped().iter().flat_map(of).collect()
}

#[test]
fn every_preset_is_planned_and_its_table_fits_a_screen() {
    for (_, training) in trainings() {
        let (dir, presets) = (tempfile::tempdir().unwrap(), training.presets());
        assert!(presets.names.contains(&presets.default), "{presets:?}");
        for preset in presets.names {
            let stdout = done(training, dir.path(), &["--dry-run", "--preset", preset]);
            assert!(stdout.contains("[trainer.schedule]") && stdout.contains("; on the CPU, in f32"), "{stdout}");
            let table: Vec<&str> = stdout.lines().skip_while(|line| !line.starts_with("parameter ")).collect();
            let total = table.iter().position(|line| line.starts_with("total ")).unwrap();
            assert!((3..40).contains(&total), "{total} lines of the parameters of {} {preset}", training.name());
        }
        let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
        assert!(left.is_empty(), "dry runs of a {} left {left:?}", training.name());
        let (code, _, stderr) = train(training, dir.path(), &["--dry-run", "--preset", "no-such"]);
        let message = format!("error: config: preset: expected one of {}, found 'no-such'\n", presets.names.join(", "));
        assert_eq!((code, stderr), (2, message));
        let (code, _, stderr) = train(training, dir.path(), &[]);
        let message = "error: config: --out: expected the directory of the run, or --dry-run\n";
        assert!(code == 2 && stderr.ends_with(message), "{}: {stderr}", training.name());
    }
}

#[test]
fn a_run_that_was_stopped_and_resumed_is_the_same_and_leaves_a_bundle_of_its_family() {
    for (family, training) in trainings() {
        let (dir, name) = (tempfile::tempdir().unwrap(), training.name());
        let in_out = |out, arguments: &[&'static str]| [training.example(), &["--out", out], arguments].concat();
        let stdout = done(training, dir.path(), &in_out("whole", &[]));
        assert!(stdout.contains("model in whole/bundle"), "{stdout}");
        // A limit of no time at all lets it make one step.
        let stdout = done(training, dir.path(), &in_out("parts", &["--max-time", "0"]));
        assert!(stdout.contains("stopped by the time limit at step 1; --resume continues\n"), "{stdout}");
        assert!(stdout.contains("model in parts/bundle"), "{stdout}");
        let stopped = Bundle::open(dir.path().join("parts/bundle")).unwrap();
        let card = String::from_utf8(stopped.read_file(CARD).unwrap().unwrap()).unwrap();
        assert!(card.contains("The run was stopped at step 1"), "{card}");
        let (code, _, stderr) = train(training, dir.path(), &in_out("parts", &[]));
        assert!(code == 1 && stderr.contains("holds a run already; --resume continues it"), "{name}: {stderr}");
        // It goes on as it was asked for.
        let output =
            run(Command::new(env!("CARGO_BIN_EXE_candle-train")).current_dir(dir.path()).args(["resume", "parts", "--max-time=1h"]));
        assert!(output.status.success() && text(&output.stderr).contains("continued from step 1"), "{name}: {}", text(&output.stderr));
        let [whole, parts] = ["whole", "parts"].map(|out| dir.path().join(out));
        assert_equal_runs(&parts, &whole);
        assert_eq!(weights(&parts), weights(&whole), "{name}");

        // A run that was killed says nothing, and its checkpoint is as good.
        let exported = |arguments: &[&str]| {
            let output = Command::new(env!("CARGO_BIN_EXE_candle-train")).current_dir(dir.path()).arg("export").args(arguments).output();
            let output = output.unwrap();
            (output.status.code(), text(&output.stdout), text(&output.stderr))
        };
        fs::remove_dir_all(parts.join("bundle")).unwrap();
        let (code, stdout, stderr) = exported(&["parts"]);
        assert!(code == Some(0) && stdout.contains("model in parts/bundle"), "{name}: {stdout}{stderr}");
        let [ours, theirs] = [&parts, &whole].map(|run| Bundle::open(run.join("bundle")).unwrap());
        assert_eq!(ours.manifest(), theirs.manifest(), "{name}");
        assert_eq!(weights(&parts), weights(&whole), "{name}");
        for file in candle_models::families::shipped().family(&ours).unwrap().files() {
            assert_eq!(ours.read_file(file).unwrap(), theirs.read_file(file).unwrap(), "{name} {file}");
        }
        for (arguments, part) in [
            (&["parts", "--step", "7777"][..], "parts/checkpoints: no complete checkpoint: asked for 7777"),
            (&["nowhere"], "nowhere: expected the directory of a run"),
            (&["parts", "--step", "last"], "expected latest, best or a number, found 'last'"),
        ] {
            let (code, _, stderr) = exported(arguments);
            assert!(code != Some(0) && stderr.contains(part), "{name}: {stderr}");
        }

        let whole = Bundle::open(whole.join("bundle")).unwrap();
        assert_eq!(whole.manifest().family, family.name());
        assert!(!candle_models::families::shipped().networks(&whole).unwrap().is_empty());
        let card = String::from_utf8(whole.read_file(CARD).unwrap().unwrap()).unwrap();
        assert!(card.contains(&format!("candle-train {name} ")), "{card}");
        let report = fs::read_to_string(dir.path().join("whole/report.html")).unwrap();
        assert!(report.contains(&format!("candle-train {name} ")) && report.contains("<svg "), "{name}");
    }
}

#[test]
fn commands_have_names_of_their_own_and_what_is_trained_can_be_loaded() {
    let registry = families::shipped();
    let names: Vec<String> = registry
        .iter()
        .flat_map(|family| {
            let own = family.commands().into_iter().map(|command| command.get_name().to_owned());
            own.chain(family.trainings().iter().map(|training| training.name().to_owned())).collect::<Vec<_>>()
        })
        .chain(["launch", "report", "resume", "export", "watch", "help"].map(str::to_owned))
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    let loaded: Vec<&str> = candle_models::families::shipped().iter().map(|family| family.name()).collect();
    assert!(registry.iter().all(|family| loaded.contains(&family.name())), "{loaded:?}");
}

const PAGE_RULES: &str = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
                          script-src 'unsafe-inline'; connect-src 'self'; img-src data:\">";

/// Where the names of families may stand outside their folders, and why.
const ELSEWHERE: [(&str, &str); 2] = [
    // What the web calls its rules for a page.
    ("command/watch/web.html", PAGE_RULES),
    // The public paths from before there were families.
    ("lib.rs", "pub use families::{agent, beam, fno, muzero, policy, rf};"),
];

#[test]
fn families_are_known_by_name_in_their_folders_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_known_in_their_folders_only(&source, "families", &["policy", "policies", "beam"], &ELSEWHERE);
}

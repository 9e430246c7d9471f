//! The properties of operations and policies on the paths that a better machine does not take of itself.

use candle_models::device;
use std::process::Command;

fn with_path(path: &str, arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(std::env::current_exe().unwrap()).args(arguments).env(device::SIMD_VARIABLE, path).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

/// Runs tests of this program on every path below the one that this process takes.
fn hold_on_every_lower_path(tests: &str) {
    let paths = device::simd_available();
    assert_eq!(paths.last(), Some(&"portable"));
    for path in paths.into_iter().skip_while(|path| *path != device::simd()).skip(1) {
        let (passed, text, _) = with_path(path, &[tests]);
        assert!(passed && !text.contains(" 0 passed"), "{path}: {text}");
    }
}

#[test]
fn properties_of_operations_hold_on_every_lower_path() {
    hold_on_every_lower_path("ops::");
}

#[test]
#[ignore = "deep: the policies beside the operations of the test above"]
fn properties_of_policies_hold_on_every_lower_path() {
    hold_on_every_lower_path("policy::");
}

#[test]
fn the_variable_chooses_the_path_and_an_unknown_name_is_reported_once() {
    for path in device::simd_available() {
        let (passed, text, errors) = with_path(path, &["--exact", "simd::path_child", "--ignored", "--nocapture"]);
        assert!(passed && text.contains(&format!("PATH: {path}\n")) && !errors.contains("warning"), "{path}: {text}{errors}");
    }
    let (passed, text, errors) = with_path("sse9", &["--exact", "simd::path_child", "--ignored", "--nocapture"]);
    let best = device::simd_available()[0];
    assert!(passed && text.contains(&format!("PATH: {best}\n")), "{text}");
    let warnings: Vec<&str> = errors.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert!(
        matches!(warnings[..], [line] if line.contains("CANDLE_SIMD") && line.contains("\"sse9\"") && line.contains("portable")),
        "{errors}"
    );
}

/// Says which path this process has taken.
#[test]
#[ignore = "deep: nothing of its own; the test above starts it with the variable set"]
fn path_child() {
    println!("\nPATH: {}", device::simd());
    device::simd();
}

//! The client that others use, against this server.

use crate::client::{Running, options, weights};
use candle_models::families;
use std::path::Path;
use std::process::Command;

/// Runs a script that needs those modules with the arguments that it is given for a server of its own, whose models it loads and unloads.
/// What it prints.
fn run(script: &str, modules: &str, arguments: impl FnOnce(&Running, &Path) -> Vec<String>) -> Option<String> {
    let python = std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into());
    let import = format!("import {modules}");
    let found = Command::new(&python).args(["-c", &import]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_TRITONCLIENT").is_none(), "{} cannot import {modules}", python.display());
        eprintln!("skipped: {} cannot import {modules}", python.display());
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
    let folder = tempfile::tempdir().unwrap();
    for name in ["beam-c3", "classifier-coherent", "policy-mamba"] {
        std::fs::create_dir(folder.path().join(name)).unwrap();
        for entry in std::fs::read_dir(weights().join(name)).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), folder.path().join(name).join(entry.file_name())).unwrap();
        }
    }
    let mut options = options(folder.path());
    options.shared_memory = true;
    options.trace = Some(folder.path().join("trace.json"));
    let server = Running::new(options, families::shipped());
    let scratch = tempfile::tempdir().unwrap();
    let arguments = arguments(&server, scratch.path());
    let output = Command::new(python).arg(script).args(arguments).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    Some(text)
}

#[test]
fn the_python_client_of_triton_gets_along_with_it() {
    run("tests/it/triton_client.py", "tritonclient.http", |server, _| vec![server.address().to_string()]);
}

#[test]
fn the_python_client_of_triton_gets_along_with_its_grpc() {
    run("tests/it/triton_grpc.py", "tritonclient.grpc", |server, scratch| {
        let declarations = scratch.join("declarations");
        std::fs::write(&declarations, candle_serve::proto::DESCRIPTOR).unwrap();
        vec![server.grpc_address().to_string(), declarations.to_string_lossy().into_owned()]
    });
}

#[test]
fn the_python_clients_that_wait_for_nothing_get_along_with_it() {
    let modules = "tritonclient.http.aio, tritonclient.grpc.aio";
    run("tests/it/triton_aio.py", modules, |server, _| vec![server.address().to_string(), server.grpc_address().to_string()]);
}

#[test]
fn the_agent_loop_in_python_plays_its_frames() {
    let script = "clients/agent_loop.py";
    let played = run(script, "tritonclient.grpc", |server, _| {
        vec!["--url".into(), server.grpc_address().to_string(), "--frames".into(), "30".into()]
    });
    let Some(text) = played else { return };
    // How many frames are answered in their time is the machine's; the first one has all of it.
    let answered: usize = text.split(" of 30 frames answered, 0 times begun anew, last action [").next().unwrap().parse().unwrap();
    assert!((1..=30).contains(&answered), "{text}");
}

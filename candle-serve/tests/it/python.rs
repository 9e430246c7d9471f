//! The client that others use, against this server.

use crate::client::{Running, options, weights};
use candle_models::families;
use std::path::Path;
use std::process::Command;

#[test]
fn the_python_client_of_triton_gets_along_with_it() {
    let python = std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into());
    let found = Command::new(&python).args(["-c", "import tritonclient.http"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_TRITONCLIENT").is_none(), "{} cannot import tritonclient.http", python.display());
        eprintln!("skipped: {} cannot import tritonclient.http", python.display());
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/triton_client.py");
    // One of its own, whose models it loads and unloads.
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
    let server = Running::new(options, families::shipped());
    let output = Command::new(python).arg(script).arg(server.address().to_string()).env("PYTHONDONTWRITEBYTECODE", "1").output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&text));
}

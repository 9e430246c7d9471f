//! What other programs make of a bundle: the printed network in NumPy, and ONNX in ONNX Runtime, over the examples that the families give.

use crate::families::{Example, assert_close, flat, inputs, resets};
use candle_core::{DType, Device, Tensor};
use candle_models::bundle::{Bundle, Storage};
use candle_models::engine::Model;
use candle_models::families;
use candle_models::tensors::NamedTensors;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-infer");
const SIZE: (usize, usize) = (3, 7);

/// A Python with NumPy and ONNX Runtime: CANDLE_PYTHON, or python3.
fn python() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into()));
    let found = Command::new(&python).args(["-c", "import numpy, onnxruntime"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_ONNXRUNTIME").is_none(), "{} cannot import numpy and onnxruntime", python.display());
        eprintln!("skipped: {} cannot import numpy and onnxruntime", python.display());
    }
    found.then_some(python)
}

/// The same Python for programs that are run many times, each in a process that one which has imported both packages forks.
struct Warm {
    process: Child,
    scratch: TempDir,
}

impl Warm {
    fn new() -> Option<Self> {
        let (python, scratch) = (python()?, tempfile::tempdir().unwrap());
        let mut command = Command::new(python);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/warm.py"));
        command.args(["address", "python"].map(|name| scratch.path().join(name)));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Some(Self { process, scratch })
    }

    /// To be called as any Python is, with a program and its arguments.
    fn python(&self) -> PathBuf {
        self.scratch.path().join("python")
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

/// Standard output of a command that must not fail.
fn output<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, arguments: impl IntoIterator<Item = S>) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// What the printed network answers, output by output, `[frames, sequences, ...]` as f32.
fn printed(python: &Path, (bundle, network): (&Bundle, &str), model: &dyn Model, given: &NamedTensors, resets: &[bool]) -> Vec<Vec<f32>> {
    let (scratch, (batch, steps)) = (tempfile::tempdir().unwrap(), SIZE);
    let [program, asked, answered] = ["network.py", "asked.safetensors", "answered"].map(|name| scratch.path().join(name));
    fs::write(&program, output(PROGRAM, [OsStr::new("inspect"), OsStr::new("--forward"), bundle.dir().as_os_str()])).unwrap();
    let mut tensors = given.clone();
    let marks: Vec<u32> = resets.iter().map(|reset| u32::from(*reset)).collect();
    tensors.insert("resets", Tensor::from_vec(marks, (batch, steps), &Device::Cpu).unwrap());
    for (name, state) in model.initial_state(batch).unwrap().iter() {
        tensors.insert(format!("state.{name}"), state.clone());
    }
    tensors.save_safetensors(&asked).unwrap();
    let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/forward.py");
    let parameters = bundle.dir().join("model.safetensors");
    let arguments = [&driver, &program, Path::new(network), &parameters, &asked, &answered].map(|path: &Path| path.as_os_str());
    output(python, arguments);
    let bytes = fs::read(&answered).unwrap();
    let mut values = bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap()));
    model.signature().outputs.iter().map(|spec| values.by_ref().take(batch * steps * spec.width()).collect()).collect()
}

#[test]
fn a_printed_network_answers_like_the_engine() {
    let (Some(warm), (batch, steps)) = (Warm::new(), SIZE) else { return };
    for example in &Example::all() {
        let bundle = example.save("printed");
        for ((network, model), (what, _)) in example.networks.iter().zip(example.labelled()) {
            let (given, resets) = (inputs(&**model, SIZE, false), resets(batch, steps));
            let (want, _) = model.unroll(&given, &resets, &model.initial_state(batch).unwrap()).unwrap();
            let found = printed(&warm.python(), (&bundle, network), &**model, &given, &resets);
            for (found, spec) in found.iter().zip(&model.signature().outputs) {
                let by_frame = want.get(&spec.name).unwrap().to_dtype(DType::F32).unwrap().transpose(0, 1).unwrap();
                assert_close(&format!("{what} {}", spec.name), found, &flat(&by_frame.contiguous().unwrap()), 1e-5);
            }
        }
    }
}

#[test]
fn onnx_runtime_answers_like_the_engine_in_every_format() {
    let Some(warm) = Warm::new() else { return };
    let python = warm.python();
    for (i, example) in Example::all().iter().enumerate() {
        let whole = example.save("whole");
        // Formats concern the products, of which every example has the same kinds.
        let formats = [Storage::Float(DType::BF16), Storage::Q8].iter().filter(|_| i.is_multiple_of(4));
        let narrow = formats.enumerate().map(|(i, storage)| {
            let dir = example.bundle.dir().join(format!("narrow {i}"));
            families::shipped().export(&whole, *storage, &dir).unwrap();
            Bundle::open(dir).unwrap()
        });
        let folded = i.is_multiple_of(4).then(|| (whole.clone(), true));
        for (bundle, folded) in narrow.map(|bundle| (bundle, false)).chain([(whole.clone(), false)]).chain(folded) {
            let out = bundle.dir().with_extension(if folded { "folded" } else { "onnx" });
            let mut arguments = vec![OsStr::new("onnx"), bundle.dir().as_os_str(), out.as_os_str()];
            arguments.extend([OsStr::new("--runtime"), python.as_os_str()]);
            arguments.extend(folded.then_some(OsStr::new("--fold-tables")));
            let text = output(PROGRAM, arguments);
            assert!(text.contains("operator set 17") && text.contains("ONNX Runtime"), "{text}");
            for (network, _) in &example.networks {
                assert!(out.join(format!("{network}.onnx")).is_file(), "{text}");
            }
        }
    }
}

/// Programs without unsigned numbers say SAMPLE as -1, and what runs the file may hold its integers in fewer bits.
const NO_CLASS: &str = r#"
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
def answer(action):
    drawn, given = np.random.default_rng(1), {}
    for spec in session.get_inputs():
        shape = [size if isinstance(size, int) else 4 for size in spec.shape]
        given[spec.name] = np.zeros(shape, np.int64) if "int64" in spec.type else drawn.random(shape, np.float32)
    if action is not None:
        given["action"][:] = action
    return session.run(None, given)
names = [spec.name for spec in session.get_outputs()]
chosen = answer(2**32 - 1)
for action in [-1, -(2**31), 2**31 - 1, 999]:
    for name, found, want in zip(names, answer(action), chosen):
        assert np.array_equal(found, want), (name, action)
action = next(i for i, name in enumerate(names) if name.endswith("action"))
assert not answer(None)[action].any() and chosen[action].any(), "given classes are given"
"#;

#[test]
fn what_is_no_class_asks_an_exported_policy_to_choose() {
    let (Some(python), scratch) = (python(), tempfile::tempdir().unwrap()) else { return };
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights");
    for name in ["policy-mlp", "policy-mamba"] {
        let (bundle, out) = (weights.join(name), scratch.path().join(name));
        output(PROGRAM, [OsStr::new("onnx"), bundle.as_os_str(), out.as_os_str()]);
        output(&python, [OsStr::new("-c"), OsStr::new(NO_CLASS), out.join("policy.onnx").as_os_str()]);
    }
}

#[test]
fn an_onnx_file_that_cannot_be_checked_is_not_written() {
    let scratch = tempfile::tempdir().unwrap();
    let out = scratch.path().join("onnx");
    let run = |bundle: &str, runtime: &str| {
        let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights").join(bundle);
        let output = Command::new(PROGRAM).arg("onnx").arg(bundle).arg(&out).args(["--runtime", runtime]).output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(fs::read_dir(scratch.path()).unwrap().count(), 0, "something was left");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = run("policy-mlp", "/no/such/python");
    assert!(error.contains("policy.onnx: --runtime /no/such/python: No such file"), "{error}");
    let error = run("policy-mlp", "false");
    assert!(error.contains("false has not run the model: it says nothing"), "{error}");
    assert!(run("no-such-bundle", "false").contains("no-such-bundle"));
}

#[test]
fn the_program_of_the_guide_runs() {
    let (Some(python), scratch) = (python(), tempfile::tempdir().unwrap()) else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let guide = fs::read_to_string(root.join("docs/src/other_programs.md")).unwrap();
    let shown = guide.split("\n```python\n").nth(1).unwrap().split("\n```").next().unwrap();
    let printed = Command::new(PROGRAM).args(["inspect", "--forward", "weights/policy-mlp"]).current_dir(root).output().unwrap();
    fs::write(scratch.path().join("policy.py"), printed.stdout).unwrap();
    let others = std::env::var_os("PYTHONPATH").unwrap_or_default();
    let paths = std::iter::once(scratch.path().to_owned()).chain(std::env::split_paths(&others));
    let run = Command::new(python)
        .args(["-c", shown])
        .current_dir(root)
        .env("PYTHONPATH", std::env::join_paths(paths).unwrap())
        .output()
        .unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let action = String::from_utf8(run.stdout).unwrap();
    assert_eq!(action.split_whitespace().filter(|word| word.contains(|c: char| c.is_ascii_digit())).count(), 13, "{action}");
}

//! Programs in C and C++ against the header and the library that cargo has built beside this test.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use candle_models::bundle::Bundle;
use candle_models::candle_core::safetensors::load_buffer;
use candle_models::candle_core::{DType, Device};
use candle_models::engine::{Engine, EngineError, Options, Placement, Runner, Session};
use candle_models::exec::SAMPLE;
use candle_models::families;
use candle_models::signature::{TensorSpec, Values};
use candle_models::tensors::NamedTensors;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STRICT: [&str; 4] = ["-Wall", "-Wextra", "-pedantic", "-Werror"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn weights(name: &str) -> PathBuf {
    root().join("../weights").join(name)
}

/// What a command prints, which must end well.
fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{out}{errors}", output.status);
    out.into_owned()
}

fn include() -> String {
    format!("-I{}", root().join("include").display())
}

/// Compiles a program of this crate and links it to the shared library.
fn compile(source: &str, dir: &Path) -> PathBuf {
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let program = dir.join("program");
    let mut command = Command::new("cc");
    command.arg("-std=c99").args(STRICT).arg(include()).arg(root().join(source)).arg("-o").arg(&program).arg("-L").arg(&libraries);
    command.args(["-lcandle_models_c", "-lpthread", "-lm"]).arg(format!("-Wl,-rpath,{}", libraries.display()));
    printed(&mut command);
    program
}

/// The frame of `examples/agent.c`.
fn play(agent: &mut Session, frame: usize, out: &mut String) {
    for (i, feature) in agent.floats_mut("features").unwrap().iter_mut().enumerate() {
        *feature = ((frame * 31 + i * 7) % 21) as f32 / 20.0;
    }
    agent.indices_mut("ids").unwrap().fill((frame % 14) as u32);
    agent.step().unwrap();
    let action = agent.indices("action").unwrap().to_vec();
    writeln!(out, "{frame}: {}", joined(&action, " ")).unwrap();
    agent.set_u32("previous_action", &action).unwrap();
}

fn joined<T: ToString>(values: &[T], between: &str) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(between)
}

#[test]
fn an_agent_in_c_does_what_one_in_rust_does() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("examples/agent.c", dir.path());
    for bundle in [weights("policy-mlp"), weights("policy-mamba")] {
        let model = families::shipped().load(&Bundle::open(&bundle).unwrap()).unwrap();
        let mut expected = String::new();
        for input in &model.signature().inputs {
            let kind = if input.dtype() == DType::F32 { "floats" } else { "indices" };
            let required = if input.is_required() { ", to be set" } else { "" };
            writeln!(expected, "{}: {} {kind}{required}", input.name, input.width()).unwrap();
        }
        let engine = Engine::start(model, &Options { sessions: 1, ..Options::default() }).unwrap();
        let mut agent = engine.open().unwrap();
        (0..=60).for_each(|frame| play(&mut agent, frame, &mut expected));
        let last = expected.lines().last().unwrap().to_owned();
        writeln!(expected, "{last}\n{}", agent.floats_mut("feature").unwrap_err()).unwrap();
        assert_eq!(printed(Command::new(&program).arg(&bundle)), expected, "{}", bundle.display());
    }
}

fn described(kind: &str, spec: &TensorSpec) -> String {
    let below = match spec.values() {
        Values::Indices { below, .. } => joined(below, ", "),
        Values::Floats { .. } => String::new(),
    };
    let (name, count, shape, meaning) = (&spec.name, spec.width(), joined(&spec.shape, ", "), spec.meaning);
    let (dtype, required, sample) = ((spec.dtype() == DType::U32) as u8, spec.is_required() as u8, spec.can_sample() as u8);
    format!("{kind} {name}: dtype {dtype}, {count} values [{shape}], required {required}, can sample {sample}, below [{below}], {meaning}")
}

/// The lines that `faults.c` prints: statuses as numbers, since programs are compiled with them.
struct Faults(Vec<String>);

impl Faults {
    fn of(&mut self, status: u32, message: impl ToString) {
        self.0.push(format!("{status} {}", message.to_string()));
    }

    fn null(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.of(1, format!("{name} is NULL")));
    }
}

#[test]
fn faults_in_c_have_the_status_and_the_text_of_the_library() {
    let (bundle, other) = (weights("policy-mamba"), weights("policy-mlp"));
    let registry = families::shipped();
    let model = registry.load(&Bundle::open(&bundle).unwrap()).unwrap();
    let signature = model.signature().clone();
    let mut faults = Faults(Vec::new());
    faults.of(2, Bundle::open("nowhere").unwrap_err());
    faults.0.extend(signature.inputs.iter().map(|spec| described("input", spec)));
    faults.0.extend(signature.outputs.iter().map(|spec| described("output", spec)));
    faults.0.extend(signature.state.iter().map(|spec| described("state", spec)));

    // The arguments.
    faults.null(&["path", "model"]);
    faults.of(1, format!("path is not UTF-8: {}", String::from_utf8(vec![0xff]).unwrap_err().utf8_error()));
    faults.null(&["signature", "signature", "model", "engine", "engine", "engine", "session", "session", "runner", "options"]);

    // The options.
    let start = |options: &Options| Engine::start(model.clone(), options).err().unwrap();
    let cause = "candle_options_init was not called, or the library is older than the program's header";
    let (least, most) = (size_of::<usize>(), 7 * size_of::<usize>() + 8);
    faults.of(1, format!("options of {} bytes: expected from {least} to {most}; {cause}", most + 8));
    faults.of(1, format!("options of 0 bytes: expected from {least} to {most}; {cause}"));
    faults.of(1, start(&Options { place: Placement::cpu(0), ..Options::default() }));
    faults.of(1, start(&Options { max_wait: Some(Duration::from_secs(2)), ..Options::default() }));
    faults.of(1, "tpu".parse::<candle_models::device::DeviceChoice>().unwrap_err());
    faults.null(&["options.device"]);
    faults.of(1, candle_models::device::float_dtype("f64").unwrap_err());

    let engine = Engine::start(model.clone(), &Options { sessions: 2, ..Options::default() }).unwrap();
    let mut session = engine.open().unwrap();
    input_faults(&mut faults, &mut session);
    let others = Engine::start(registry.load(&Bundle::open(&other).unwrap()).unwrap(), &Options::default()).unwrap();
    let others = others.open().unwrap().save().unwrap();
    state_faults(&mut faults, &mut session, &others);
    // A fork beside the session and its first fork.
    let fork = session.fork().unwrap();
    faults.null(&["fork"]);
    faults.of(4, session.fork().err().unwrap());

    runner_faults(&mut faults, &model);
    faults.of(4, engine.open().err().unwrap());
    drop(fork);
    faults.of(9, EngineError::Closed);
    faults.of(9, EngineError::Closed);

    let dir = tempfile::tempdir().unwrap();
    let out = printed(Command::new(compile("tests/faults.c", dir.path())).args([&bundle, &other]).current_dir(dir.path()));
    assert_eq!(out.lines().collect::<Vec<_>>(), faults.0);
}

fn input_faults(faults: &mut Faults, session: &mut Session) {
    faults.of(3, session.step().unwrap_err());
    faults.of(3, session.floats_mut("feature").unwrap_err());
    faults.of(3, session.floats_mut("ids").unwrap_err());
    faults.null(&["name", "values", "count"]);
    session.floats_mut("features").unwrap().fill(0.1);
    session.indices_mut("ids").unwrap().fill(14);
    session.floats_mut("features").unwrap()[3] = f32::NAN;
    faults.of(3, session.step().unwrap_err());
    session.floats_mut("features").unwrap()[3] = 0.1;
    session.indices_mut("ids").unwrap()[0] = SAMPLE;
    faults.of(3, session.step().unwrap_err());
    session.indices_mut("ids").unwrap()[0] = 14;
    faults.of(6, session.step_before(Instant::now()).unwrap_err());
    session.step().unwrap();
}

fn state_faults(faults: &mut Faults, session: &mut Session, others: &NamedTensors) {
    let state = session.save().unwrap();
    let bytes = safetensors::serialize(state.iter(), None).unwrap();
    faults.null(&["size", "buffer"]);
    faults.of(10, format!("the state has {} bytes, the buffer {}", bytes.len(), bytes.len() - 1));
    // The state of another model.
    faults.of(3, session.restore(others).unwrap_err());
    faults.null(&["state"]);
    for bytes in [&[], &bytes[..bytes.len() - 1]] {
        let error = load_buffer(bytes, &Device::Cpu).unwrap_err();
        faults.of(1, format!("state: expected the bytes of a safetensors file: {error}"));
    }
    let mut damaged = bytes.clone();
    let end = damaged.len() - 4;
    damaged[end..].fill(0xff);
    let damaged = load_buffer(&damaged, &Device::Cpu).unwrap();
    faults.of(3, session.restore(&damaged.into_iter().collect()).unwrap_err());
}

fn runner_faults(faults: &mut Faults, model: &Arc<dyn candle_models::engine::Model>) {
    faults.of(1, Runner::new(model.clone(), 0, 1).err().unwrap());
    faults.null(&["runner"]);
    let mut runner = Runner::new(model.clone(), 3, 1).unwrap();
    faults.of(3, runner.step(&[false; 3]).unwrap_err());
    faults.of(1, runner.floats_mut("features", 3).unwrap_err());
    faults.of(3, runner.indices("value", 0).unwrap_err());
    faults.of(1, runner.step(&[false; 2]).unwrap_err());
    faults.null(&["resets"]);
}

#[test]
fn the_header_is_also_one_of_cpp() {
    if Command::new("c++").arg("--version").output().is_err() {
        assert!(std::env::var_os("CANDLE_REQUIRE_CXX").is_none(), "there is no c++");
        eprintln!("skipped: there is no c++");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("header.cpp");
    std::fs::write(&source, "#include \"candle_models.h\"\nint main() { return candle_version() == CANDLE_VERSION; }\n").unwrap();
    printed(Command::new("c++").arg("-std=c++11").args(STRICT).arg("-fsyntax-only").arg(include()).arg(source));
}

//! The command `candle-infer`, run as a user runs it.

use candle_core::{Device, Tensor};
use candle_models::bundle::{self, Bundle, Manifest};
use candle_models::nn::{MambaConfig, Params};
use candle_models::policy::actions::{self, ACTION, Action, GROUP_NAMES, LOGITS, SAMPLE};
use candle_models::policy::baselines::Baselines;
use candle_models::policy::embedding::{Embedding, IDS, WIDTH};
use candle_models::policy::game::Game;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BASELINES, BackboneConfig, FAMILY, Policy, PolicyConfig, replay};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-infer");

struct Answer {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn answer(command: &mut Command) -> Answer {
    let output = command.env_remove("CANDLE_THREADS").stdin(Stdio::null()).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Answer { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

fn infer<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> Answer {
    answer(Command::new(PROGRAM).args(arguments))
}

/// Runs and expects success without a word on standard error.
pub fn done<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>) -> String {
    let found = infer(arguments);
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""), "{}", found.stdout);
    found.stdout
}

/// Runs and expects that exit code and one line that names all `parts`.
pub fn refused<S: AsRef<OsStr>>(arguments: impl IntoIterator<Item = S>, code: i32, parts: &[&str]) {
    check_refusal(&infer(arguments), code, parts);
}

fn check_refusal(found: &Answer, code: i32, parts: &[&str]) {
    let text = &found.stderr;
    assert_eq!(found.code, Some(code), "{text}");
    assert!(text.starts_with("error: ") && text.lines().count() == 1 && !text.contains("panicked"), "{text}");
    parts.iter().for_each(|part| assert!(text.contains(part), "{part:?} is not in: {text}"));
}

pub fn small() -> PolicyConfig {
    let block = MambaConfig { state: 4, expand: 2, conv: 4 };
    let backbone = BackboneConfig::Mamba { layers: 1, block };
    PolicyConfig { hidden: 16, backbone, embedding: 4, names: vec!["Simulated 2".to_owned(), "Other".to_owned()], ..Default::default() }
}

fn actions_of(game: &Game, player: usize) -> Vec<Action> {
    game.frames.iter().map(|frame| Action::from_controller(&frame.players[player].controller)).collect()
}

/// A bundle as training would leave it, with random parameters.
fn save(dir: &Path, config: &PolicyConfig) -> Policy {
    let params = Params::init(Random::new(5), &Device::Cpu);
    let policy = Policy::new(config, &params).unwrap();
    let tensors: BTreeMap<_, _> = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
    let game = simulate(2, 2000);
    let baselines = Baselines::fit([actions_of(&game, 0), actions_of(&game, 1)]).to_bytes().unwrap();
    let files = [(BASELINES, baselines), (bundle::CARD, b"# A policy\nRandom parameters.\n".to_vec())];
    bundle::save(dir, &Manifest::new(FAMILY, config).unwrap(), &tensors, json!({ "training": { "step": 7 } }), &files).unwrap();
    policy
}

/// A folder with a small bundle `policy` and a simulated replay `game.slp`.
pub struct Place {
    root: TempDir,
    policy: Policy,
    pub game: Game,
}

impl Place {
    pub fn new(config: &PolicyConfig, frames: usize) -> Self {
        let root = tempfile::tempdir().unwrap();
        let policy = save(&root.path().join("policy"), config);
        let game = simulate(11, frames);
        replay::write(&game, root.path().join("game.slp")).unwrap();
        Self { root, policy, game }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn run(&self, more: &[&str]) -> Vec<String> {
        self.run_on("game.slp", more)
    }

    fn run_on(&self, input: &str, more: &[&str]) -> Vec<String> {
        let text = |path: PathBuf| path.to_str().unwrap().to_owned();
        let start = ["run".to_owned(), text(self.path("policy")), text(self.path(input))];
        start.into_iter().chain(more.iter().map(|s| (*s).to_owned())).collect()
    }

    fn out(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Names in the folder, to see that nothing partial was left.
    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.root.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn lines(path: &Path) -> Vec<Value> {
    fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Inputs of one player's whole game for an unrolled pass.
fn unrolled(policy: &Policy, game: &Game, player: usize, choose: bool) -> NamedTensors {
    let delay = policy.config().delay;
    let steps = game.frames.len() - 1 - delay;
    let (mut features, mut ids) = (vec![0.0; steps * WIDTH], vec![0; steps * IDS]);
    let embedding = Embedding::new(&policy.config().names).unwrap();
    let name = embedding.name_index(&game.players[player].name);
    embedding.encode_game(game, 1..steps + 1, player, name, &mut features, &mut ids).unwrap();
    let actions: Vec<u32> = actions_of(game, player).iter().flat_map(Action::to_ids).collect();
    let at = |frame: usize| actions[frame * ACTION..][..steps * ACTION].to_vec();
    let action = if choose { vec![SAMPLE; steps * ACTION] } else { at(1 + delay) };
    let classes = |values: Vec<u32>, width: usize| Tensor::from_vec(values, (1, steps, width), &Device::Cpu).unwrap();
    let inputs: NamedTensors = [
        ("features".to_owned(), Tensor::from_vec(features, (1, steps, WIDTH), &Device::Cpu).unwrap()),
        ("ids".to_owned(), classes(ids, IDS)),
        ("previous_action".to_owned(), classes(at(delay), ACTION)),
        ("action".to_owned(), classes(action, ACTION)),
        ("uniform".to_owned(), Tensor::full(-1f32, (1, steps, ACTION), &Device::Cpu).unwrap()),
    ]
    .into_iter()
    .collect();
    let resets: Vec<bool> = (0..steps).map(|t| t == 0).collect();
    policy.unroll(&inputs, &resets, &policy.initial_state(1).unwrap()).unwrap().0
}

fn values(outputs: &NamedTensors, name: &str) -> Vec<f32> {
    outputs.get(name).unwrap().to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 1e-4 * (1.0 + b.abs()), "{what} at {i}: found {a}, expected {b}");
    }
}

#[test]
fn every_frame_is_scored_as_by_an_unrolled_pass_over_the_game() {
    for delay in [0, 1, 5] {
        let place = Place::new(&PolicyConfig { delay, ..small() }, 300);
        let (json, tensors) = (place.out("all.jsonl"), place.out("all.safetensors"));
        done(place.run(&["--out", &json]));
        done(place.run(&["--out", &tensors]));
        let (found, stored) = (lines(&place.path("all.jsonl")), NamedTensors::load_safetensors(&tensors).unwrap());
        let steps = 299 - delay;
        assert_eq!(found.len(), 2 * steps);
        for player in 0..2 {
            let recorded = actions_of(&place.game, player);
            let (forced, chosen) =
                (unrolled(&place.policy, &place.game, player, false), unrolled(&place.policy, &place.game, player, true));
            let (logits, chosen) = (values(&forced, "logits"), values(&chosen, "action"));
            let row = |name: &str| {
                let tensor = stored.get(name).unwrap().get(player).unwrap();
                tensor.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
            };
            assert_close("logits", &row("logits"), &logits);
            assert_close("value", &row("value"), &values(&forced, "value"));
            assert_eq!(row("action"), chosen);
            let own: Vec<&Value> = found.iter().filter(|line| line["port"] == player + 1).collect();
            assert_eq!(own.len(), steps);
            for (t, line) in own.iter().enumerate() {
                let frame = t + 1 + delay;
                assert_eq!(line["frame"].as_i64(), Some(i64::from(place.game.frames[frame].id)));
                assert_eq!(line["recorded"].as_str().unwrap(), recorded[frame].to_string());
                let action: Vec<u32> = chosen[t * ACTION..][..ACTION].iter().map(|x| *x as u32).collect();
                assert_eq!(line["chosen"].as_str().unwrap(), Action::from_ids(&action).unwrap().to_string());
                let expected = actions::nll(logits[t * LOGITS..][..LOGITS].try_into().unwrap(), &recorded[frame]);
                let nll = GROUP_NAMES.map(|name| line["nll"][name].as_f64().unwrap() as f32);
                assert_close(&format!("delay {delay} player {player} frame {frame}"), &nll, &expected);
            }
        }
    }
}

#[test]
fn the_summary_shows_the_model_beside_its_baselines() {
    let place = Place::new(&small(), 400);
    let text = done(place.run(&["--every", "100"]));
    let game = &place.game;
    let baselines = Baselines::from_bytes(&fs::read(place.path("policy/baselines.safetensors")).unwrap()).unwrap();
    let mut markov = [0, 1].map(|player| baselines.evaluate(&actions_of(game, player))[1]);
    let other = markov[1];
    markov[0].merge(&other);
    let row = |name: &str| text.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap_or_else(|| panic!("{name}: {text}"));
    assert!(row("first-order Markov").contains(&format!("{:.3} |       1.000", markov[0].all().total())), "{text}");
    assert!(row("policy").split('|').count() == 14 && text.contains("p50") && text.contains("p99"), "{text}");
    assert!(text.contains("798 recorded actions") && text.contains("\"Simulated 1\"") && text.contains("399 frames"), "{text}");
    // Frames -122, -22, 78 and 178 of two players, each once.
    for frame in ["   -122", "    -22", "     78", "    178"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(&format!("{frame}    "))).count(), 2, "{frame}: {text}");
    }
}

#[test]
fn one_port_names_and_draws() {
    let place = Place::new(&small(), 200);
    let run = |name: &str, more: &[&str]| {
        let out = place.out(name);
        done(place.run(&[&["--out", &out], more].concat()));
        lines(Path::new(&out))
    };
    let both = run("both.jsonl", &[]);
    let second = run("second.jsonl", &["--port", "2"]);
    assert!(second.iter().eq(both.iter().filter(|line| line["port"] == 2)), "a port alone differs from both together");
    let chosen = |lines: &[Value]| lines.iter().filter_map(|line| line["chosen"].as_str().map(str::to_owned)).collect::<Vec<_>>();
    let drawn = run("a.jsonl", &["--port", "2", "--sample"]);
    assert_eq!(drawn, run("b.jsonl", &["--port", "2", "--sample", "--seed", "0"]));
    assert_ne!(chosen(&drawn), chosen(&second));
    assert_ne!(chosen(&drawn), chosen(&run("c.jsonl", &["--port", "2", "--sample", "--seed", "1"])));
    let drawn_together = run("d.jsonl", &["--sample"]);
    assert!(drawn.iter().eq(drawn_together.iter().filter(|line| line["port"] == 2)), "draws depend on who else is watched");
    // Player 2's own name is known to the policy, so it is what is used by default.
    assert_eq!(second, run("e.jsonl", &["--port", "2", "--name", "Simulated 2"]));
    assert_ne!(second, run("f.jsonl", &["--port", "2", "--name", "Other"]));
    refused(place.run(&["--name", "Nobody"]), 1, &["Nobody", "Simulated 2, Other"]);
    refused(place.run(&["--port", "3"]), 1, &["game.slp", "port 3", "ports 1 and 2"]);
}

#[test]
fn beside_the_computer_the_human_player_is_watched() {
    let place = Place::new(&small(), 120);
    let mut game = place.game.clone();
    game.players[0].computer = true;
    fs::create_dir(place.path("games")).unwrap();
    fs::copy(place.path("game.slp"), place.path("games/a.slp")).unwrap();
    candle_models::policy::replay::write(&game, place.path("games/b.slp")).unwrap();
    fs::copy(place.path("game.slp"), place.path("games/c.slp")).unwrap();
    // Between two games of two humans, so that the state of neither is left.
    done(place.run_on("games", &["--out", &place.out("games.jsonl")]));
    let text = done(place.run_on("games/b.slp", &["--every", "100"]));
    assert!(text.contains("(the computer)") && text.contains("one player's observation"), "{text}");
    let of = |lines: &[Value], file: &str, port: u64| -> Vec<Value> {
        let own = lines.iter().filter(|line| line["file"].as_str().is_some_and(|name| name.ends_with(file)) && line["port"] == port);
        own.map(|line| json!([line["frame"], line["chosen"], line["nll"]])).collect()
    };
    let lines = lines(&place.path("games.jsonl"));
    let both = [of(&lines, "a.slp", 1), of(&lines, "a.slp", 2)];
    assert_eq!([of(&lines, "c.slp", 1), of(&lines, "c.slp", 2)], both);
    assert_eq!(of(&lines, "b.slp", 1), [Value::Null; 0]);
    assert_eq!(of(&lines, "b.slp", 2), both[1], "the computer's play is seen like a human's");
    done(place.run_on("games/b.slp", &["--out", &place.out("b.safetensors")]));
    let frames = game.frames.len() - 1 - place.policy.config().delay;
    assert_eq!(NamedTensors::load_safetensors(place.path("b.safetensors")).unwrap().get("logits").unwrap().dims()[..2], [1, frames]);
    refused(place.run_on("games/b.slp", &["--port", "1"]), 1, &["b.slp", "the computer plays on port 1"]);
    game.players[1].computer = true;
    candle_models::policy::replay::write(&game, place.path("none.slp")).unwrap();
    refused(place.run_on("none.slp", &[]), 1, &["none.slp", "at least one of them human, found 0 human and 2 computer players"]);
}

/// Random inputs `[batch, steps, ...]` as the signature asks for.
fn random_inputs(batch: usize, steps: usize) -> NamedTensors {
    let (rows, random) = (batch * steps, Random::new(3));
    let floats = |name: &str, width: usize| {
        let mut values = vec![0.0; rows * width];
        random.stream(name).fill_uniform(0, &mut values);
        Tensor::from_vec(values, (batch, steps, width), &Device::Cpu).unwrap()
    };
    let classes = |name: &str, width: usize| {
        let values: Vec<u32> = (0..rows * width).map(|i| random.stream(name).below(i as u64, 2)).collect();
        Tensor::from_vec(values, (batch, steps, width), &Device::Cpu).unwrap()
    };
    let named = [
        ("features", floats("features", WIDTH)),
        ("ids", classes("ids", IDS)),
        ("previous_action", classes("previous", ACTION)),
        ("action", Tensor::full(SAMPLE, (batch, steps, ACTION), &Device::Cpu).unwrap()),
        ("uniform", floats("uniform", ACTION)),
    ];
    named.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

#[test]
fn named_tensors_run_from_the_signature_alone() {
    // More sequences than run together, and a last group that is not full.
    let (batch, steps) = (70, 3);
    let place = Place::new(&small(), 10);
    let inputs = random_inputs(batch, steps);
    inputs.save_safetensors(place.path("in.safetensors")).unwrap();
    let resets: Vec<bool> = (0..batch * steps).map(|i| i % steps == 0).collect();
    let (expected, _) = place.policy.unroll(&inputs, &resets, &place.policy.initial_state(batch).unwrap()).unwrap();
    done(place.run_on("in.safetensors", &["--out", &place.out("out.safetensors")]));
    let found = NamedTensors::load_safetensors(place.path("out.safetensors")).unwrap();
    assert_eq!(found.len(), 3);
    for (name, tensor) in expected.iter() {
        assert_eq!(found.get(name).unwrap().dims(), tensor.dims());
        assert_close(name, &values(&found, name), &values(&expected, name));
    }
    // One sequence without the leading axis.
    let one = inputs.map(|_, x| Ok(x.get(69)?)).unwrap();
    one.save_safetensors(place.path("one.safetensors")).unwrap();
    done(place.run_on("one.safetensors", &["--out", &place.out("one.jsonl"), "--threads", "2"]));
    let found = lines(&place.path("one.jsonl"));
    assert_eq!(found.len(), steps);
    let logits: Vec<f32> = found.iter().flat_map(|l| l["logits"].as_array().unwrap()).map(|x| x.as_f64().unwrap() as f32).collect();
    assert_close("one sequence", &logits, &values(&expected, "logits")[69 * steps * LOGITS..]);
    assert!(done(place.run_on("one.safetensors", &["--every", "2"])).contains("sequence 0 frame 2: logits ["));
}

#[test]
fn recorded_episodes_run_with_their_resets_and_what_no_input_names_is_left_unread() {
    let (frames, starts) = (14, [0, 5, 6, 11]);
    let place = Place::new(&small(), 10);
    let episodes = random_inputs(1, frames);
    let flags = |begins: &[usize]| (0..frames).map(|t| u32::from(begins.contains(&t))).collect::<Vec<_>>();
    let mut recorded = episodes.map(|_, x| Ok(x.get(0)?)).unwrap();
    recorded
        .insert("reset", Tensor::from_vec(flags(&starts[1..]), frames, &Device::Cpu).unwrap().to_dtype(candle_core::DType::U8).unwrap());
    recorded.insert("reward", Tensor::zeros(3, candle_core::DType::F32, &Device::Cpu).unwrap());
    recorded = recorded.into_iter().map(|(name, t)| (name.replace("uniform", "unifrom"), t)).collect();
    recorded.save_safetensors(place.path("episodes.safetensors")).unwrap();
    let found = infer(place.run_on("episodes.safetensors", &["--out", &place.out("out.safetensors")]));
    let said = "warning: no input has these names, they are not read: reward, unifrom (uniform?)\n";
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), said));

    // The state is the initial one where an episode begins, and nowhere else.
    let resets: Vec<bool> = (0..frames).map(|t| starts.contains(&t)).collect();
    let mut inputs = episodes.clone();
    let greedy = place.policy.signature().inputs.iter().find(|spec| spec.name == "uniform").unwrap().default_row().unwrap().unwrap();
    inputs.insert("uniform", greedy.broadcast_as((1, frames, ACTION)).unwrap().contiguous().unwrap());
    let (expected, _) = place.policy.unroll(&inputs, &resets, &place.policy.initial_state(1).unwrap()).unwrap();
    let found = NamedTensors::load_safetensors(place.path("out.safetensors")).unwrap();
    assert_eq!(found.get("logits").unwrap().dims(), [1, frames, LOGITS]);
    assert_close("logits", &values(&found, "logits"), &values(&expected, "logits"));

    // Side by side, each sequence has its own, and several files say once what was not read.
    let mut both = recorded.map(|name, x| Ok(if name == "reward" { x.clone() } else { Tensor::stack(&[x, x], 0)? })).unwrap();
    let second = [flags(&starts[1..]), flags(&[3])].concat();
    both.insert("reset", Tensor::from_vec(second, (2, frames), &Device::Cpu).unwrap());
    both.save_safetensors(place.path("both.safetensors")).unwrap();
    let arguments =
        [place.run_on("both.safetensors", &[]), vec![place.out("episodes.safetensors"), "--out".to_owned(), place.out("both.jsonl")]];
    let found = infer(arguments.concat());
    assert_eq!((found.code, found.stderr.as_str()), (Some(0), said));
    let resets: Vec<bool> = (0..frames).map(|t| [0, 3].contains(&t)).collect();
    let (second, _) = place.policy.unroll(&inputs, &resets, &place.policy.initial_state(1).unwrap()).unwrap();
    let logits = |sequence: usize| {
        let rows = lines(&place.path("both.jsonl"))
            .into_iter()
            .filter(|l| l["sequence"] == sequence && l["file"].as_str().unwrap().ends_with("both.safetensors"));
        rows.flat_map(|l| l["logits"].as_array().unwrap().clone()).map(|x| x.as_f64().unwrap() as f32).collect::<Vec<_>>()
    };
    assert_close("first", &logits(0), &values(&expected, "logits"));
    assert_close("second", &logits(1), &values(&second, "logits"));
}

#[test]
fn wrong_tensors_are_refused_by_name() {
    let place = Place::new(&small(), 10);
    let good = random_inputs(2, 3);
    let with = |name: &str, tensor: Tensor, parts: &[&str]| {
        let mut inputs = good.clone();
        inputs.insert(name, tensor);
        inputs.save_safetensors(place.path("in.safetensors")).unwrap();
        refused(place.run_on("in.safetensors", &["--out", &place.out("out.jsonl")]), 1, &[&["in.safetensors"], parts].concat());
        assert!(!place.path("out.jsonl").exists());
    };
    let floats = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap();
    with("features", floats(&[2, 3, 287]), &["features", "288", "287"]);
    with("features", floats(&[288]), &["features", "[sequences, frames, ...]", "[288]"]);
    with("ids", floats(&[2, 3, 6]), &["ids", "U32", "F32"]);
    with("uniform", floats(&[2, 4, 13]), &["uniform", "[2, 3, 13]"]);
    with("reset", floats(&[2, 3]), &["reset", "U32 [2, 3]", "F32 [2, 3]"]);
    with("reset", Tensor::zeros((2, 4), candle_core::DType::U32, &Device::Cpu).unwrap(), &["reset", "[2, 3]", "[2, 4]"]);
    with("reset", Tensor::full(2u32, (2, 3), &Device::Cpu).unwrap(), &["reset", "an index up to 1", "found 2 in column 0 of row 0"]);
    // One that must be there, with a slip in its name.
    let slip: NamedTensors = good.clone().into_iter().map(|(name, t)| (name.replace("features", "featurse"), t)).collect();
    slip.save_safetensors(place.path("in.safetensors")).unwrap();
    let missing = "tensor features: expected to be present, found only [action, featurse, ids, previous_action, uniform]; is it featurse?";
    refused(place.run_on("in.safetensors", &[]), 1, &["in.safetensors", missing]);
    with("ids", Tensor::full(500u32, (2, 3, 6), &Device::Cpu).unwrap(), &["row 0", "500"]);
    for (name, tensor) in good.iter().map(|(n, t)| (n.to_owned(), t.narrow(1, 0, 0).unwrap())).take(1) {
        with(&name, tensor, &["action"]);
    }
    fs::write(place.path("cut.safetensors"), &fs::read(place.path("in.safetensors")).unwrap()[..1000]).unwrap();
    refused(place.run_on("cut.safetensors", &[]), 1, &["cut.safetensors"]);
}

#[test]
fn inspect_says_what_a_bundle_is() {
    let place = Place::new(&small(), 10);
    let bundle = place.out("policy");
    let text = done(["inspect", &bundle]);
    for part in ["policy, format version 1", "features", "[288]", "logits", "# A policy", "multiply-adds", "\"step\":7"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let value: Value = serde_json::from_str(&done(["inspect", &bundle, "--json"])).unwrap();
    let stored = Bundle::open(&bundle).unwrap().parameters().unwrap();
    assert_eq!(value["parameters"].as_array().unwrap().len(), stored.len());
    assert_eq!(value["bytes"].as_u64().unwrap() as usize, stored.iter().map(|p| p.bytes).sum::<usize>());
    assert_eq!(value["values"].as_u64().unwrap() * 4, value["bytes"].as_u64().unwrap());
    let input = (WIDTH + IDS * 4) * 16;
    let operations = value["multiply_adds"].as_u64().unwrap() as usize;
    assert!(operations > input && operations < stored.iter().map(|p| p.shape.iter().product::<usize>()).sum());
}

#[test]
fn an_export_answers_like_the_original() {
    let place = Place::new(&small(), 60);
    let (bundle, original) = (place.out("policy"), done(place.run(&["--out", &place.out("original.safetensors")])));
    assert!(original.contains("118 recorded actions"));
    let original = NamedTensors::load_safetensors(place.path("original.safetensors")).unwrap();
    for (dtype, tolerance, width) in [("f32", 0.0, 4), ("f16", 5e-3, 2), ("bf16", 4e-2, 2)] {
        let out = place.out(dtype);
        let text = done(["export", &bundle, &out, "--dtype", dtype]);
        assert!(text.contains("logits differs by at most") && text.contains("action differs by at most 0.000e0"), "{text}");
        assert_eq!(text.contains("logits differs by at most 0.000e0"), dtype == "f32", "{text}");
        let exported = Bundle::open(&out).unwrap();
        assert!(exported.metadata().unwrap().is_null(), "training notes stay behind");
        for p in exported.parameters().unwrap() {
            assert_eq!(p.bytes, width * p.shape.iter().product::<usize>(), "{}", p.name);
        }
        let result = place.out("exported.safetensors");
        done(["run", &out, &place.out("game.slp"), "--out", &result]);
        let found = NamedTensors::load_safetensors(&result).unwrap();
        for (a, b) in values(&found, "logits").into_iter().zip(values(&original, "logits")) {
            assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{dtype}: {a} and {b}");
        }
    }
    // Once more over what is there.
    done(["export", &bundle, &place.out("f16"), "--dtype", "f16"]);
}

#[test]
fn an_export_that_cannot_answer_like_the_original_leaves_nothing() {
    let place = Place::new(&small(), 10);
    let bundle = place.out("policy");
    let stored = Bundle::open(&bundle).unwrap();
    let specs: Vec<_> = stored.parameters().unwrap().into_iter().map(|p| bundle::ParameterSpec::new(p.name, &p.shape)).collect();
    let mut tensors = stored.read_tensors(&specs).unwrap();
    let save = |tensors: &BTreeMap<String, Tensor>| {
        let baselines = stored.read_file(BASELINES).unwrap().unwrap();
        bundle::save(&bundle, stored.manifest(), tensors, Value::Null, &[(BASELINES, baselines)]).unwrap();
    };
    let name = "input.weight";
    let weight = tensors[name].clone();
    tensors.insert(name.to_owned(), weight.affine(1e9, 0.0).unwrap());
    save(&tensors);
    refused(["export", &bundle, &place.out("out"), "--dtype", "f16"], 1, &[name, "inf"]);
    // Weights that differ by less than a step of bf16 stand out behind a large factor.
    let noise = Tensor::from_vec((0..weight.elem_count()).map(|i| 1.0 + i as f32 * 1e-7).collect::<Vec<_>>(), weight.dims(), &Device::Cpu);
    tensors.insert(name.to_owned(), noise.unwrap().affine(1e3, 0.0).unwrap());
    let out = tensors["heads.stream.weight"].affine(1e3, 0.0).unwrap();
    tensors.insert("heads.stream.weight".to_owned(), out);
    save(&tensors);
    refused(["export", &bundle, &place.out("out"), "--dtype", "bf16"], 1, &["out", "logits differs", "0.08"]);
    refused(["export", &bundle, &bundle], 2, &["onto itself"]);
    refused(["export", &bundle, &place.out("out"), "--dtype", "f8"], 2, &["--dtype", "f8"]);
    refused(["export", &bundle, &place.out("no/such/folder")], 1, &["no/such/folder"]);
    assert_eq!(place.names(), ["game.slp", "policy"]);
}

#[test]
fn the_demo_finds_what_is_shipped_and_says_that_it_is_simulated() {
    let root = tempfile::tempdir().unwrap();
    let nested = root.path().join("a/b");
    for folder in [&nested, &root.path().join("weights"), &root.path().join("examples/data")] {
        fs::create_dir_all(folder).unwrap();
    }
    let demo = |arguments: &[&str]| answer(Command::new(PROGRAM).args(arguments).current_dir(&nested));
    // The program itself lies in a folder below which nothing is shipped, or below the repository: only its own bundle may be found.
    let shipped = Path::new(PROGRAM).ancestors().any(|folder| folder.join("weights/policy-simulated").exists());
    if !shipped {
        check_refusal(&demo(&["demo"]), 1, &["weights/policy-simulated", "name one"]);
    }
    save(&root.path().join("weights/policy-simulated"), &small());
    replay::write(&simulate(11, 200), root.path().join("examples/data/simulated.slp")).unwrap();
    if !shipped {
        check_refusal(&demo(&["demo"]), 1, &["weights/duel", "name one"]);
    }
    let [player, place] = [&Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/duel"), &root.path().join("weights/duel")];
    fs::create_dir(place).unwrap();
    for file in fs::read_dir(player).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), place.join(file.file_name())).unwrap();
    }
    for arguments in [&["demo"][..], &["run"], &["demo", "--port", "1", "--every", "1000"]] {
        let found = demo(arguments);
        assert_eq!((found.code, found.stderr.as_str()), (Some(0), ""));
        assert!(found.stdout.contains("SIMULATED") && found.stdout.contains("| policy-simulated "), "{}", found.stdout);
        let fight =
            ["weights/duel fights the script in the SIMULATION", "\n10 games: ", "as Marth: ", "as Fox  : ", "time per frame of play: "];
        let shown = fight.map(|part| found.stdout.contains(part));
        assert_eq!(shown, [arguments[0] == "demo"; 5], "{}", found.stdout);
    }
}

#[test]
fn wrong_calls_end_with_code_2() {
    let place = Place::new(&small(), 10);
    refused([""; 0], 2, &["--help"]);
    refused(["perform"], 2, &["perform"]);
    refused(["inspect"], 2, &["BUNDLE"]);
    for (arguments, parts) in [
        (&["--port", "0"][..], &["--port", "1..=4"][..]),
        (&["--port", "5"], &["--port"]),
        (&["--every", "0"], &["--every"]),
        (&["--threads", "0"], &["threads", "1024"]),
        (&["--seed", "3"], &["--sample"]),
        (&["--out", "table.csv"], &["table.csv", ".jsonl", ".safetensors"]),
        (&["--no-such-flag"], &["--no-such-flag"]),
    ] {
        refused(place.run(arguments), 2, parts);
    }
    let two = [place.run(&[]), vec![place.out("game.slp"), "--out".to_owned(), place.out("x.safetensors")]].concat();
    refused(two, 2, &[".safetensors", "found 2"]);
    assert!(
        done(["--help"]).contains("Usage") && done(["run", "--help"]).contains("--port") && done(["--version"]).starts_with("candle-infer")
    );
}

#[test]
fn inputs_that_are_no_replays_are_one_line_and_leave_nothing() {
    let place = Place::new(&small(), 40);
    let out = place.out("out.jsonl");
    let refuse = |input: &str, parts: &[&str]| refused(place.run_on(input, &["--out", &out]), 1, &[&[input], parts].concat());
    refuse("missing.slp", &["No such file"]);
    fs::write(place.path("empty.slp"), "").unwrap();
    refuse("empty.slp", &["too short"]);
    fs::write(place.path("text.slp"), "not a replay, but long enough to look at").unwrap();
    refuse("text.slp", &["signature"]);
    fs::create_dir(place.path("folder")).unwrap();
    refuse("folder", &["no .slp file"]);
    fs::create_dir(place.path("folder.slp")).unwrap();
    refuse("folder.slp", &["no .slp file"]);
    // The format stores a stage and fighters that the policy does not know.
    let game = Game { stage: 4, ..place.game.clone() };
    replay::write(&game, place.path("stage.slp")).unwrap();
    refuse("stage.slp", &["stage 4 is not supported"]);
    let mut game = place.game.clone();
    game.frames.iter_mut().for_each(|frame| frame.players[1].fighter.character = 31);
    replay::write(&game, place.path("boss.slp")).unwrap();
    refuse("boss.slp", &["character 31", "Giga Bowser"]);
    let mut game = place.game.clone();
    game.frames.truncate(1);
    replay::write(&game, place.path("short.slp")).unwrap();
    refuse("short.slp", &["1 frames"]);
    assert!(!place.path("out.jsonl").exists() && !place.names().iter().any(|name| name.contains("tmp")), "{:?}", place.names());
}

#[test]
fn a_truncated_replay_is_watched_as_far_as_it_goes() {
    let place = Place::new(&small(), 200);
    let bytes = fs::read(place.path("game.slp")).unwrap();
    fs::write(place.path("cut.slp"), &bytes[..bytes.len() / 2]).unwrap();
    let found = infer(place.run_on("cut.slp", &["--out", &place.out("out.jsonl")]));
    assert_eq!(found.code, Some(0), "{}", found.stderr);
    assert!(found.stderr.starts_with("warning: ") && found.stderr.lines().count() == 1, "{}", found.stderr);
    assert!(found.stderr.contains("cut.slp") && found.stderr.contains("frames recovered"), "{}", found.stderr);
    // Two players, and no policy acts in the first frame.
    let frames = lines(&place.path("out.jsonl")).len() / 2 + 1;
    assert!((50..150).contains(&frames), "{frames}");
    assert!(found.stderr.contains(&format!("{frames} frames recovered")), "{}", found.stderr);
}

#[test]
fn a_broken_replay_in_a_folder_is_reported_and_skipped() {
    let place = Place::new(&small(), 100);
    fs::create_dir_all(place.path("games/deeper")).unwrap();
    for name in ["games/b.slp", "games/deeper/c.slp", "games/z.SLP"] {
        fs::copy(place.path("game.slp"), place.path(name)).unwrap();
    }
    fs::write(place.path("games/a.slp"), "broken").unwrap();
    fs::write(place.path("games/notes.txt"), "not looked at").unwrap();
    let found = infer(place.run_on("games", &["--out", &place.out("out.jsonl")]));
    assert_eq!(found.code, Some(1));
    let errors: Vec<&str> = found.stderr.lines().collect();
    assert_eq!(errors.len(), 2, "{}", found.stderr);
    assert!(errors[0].starts_with("error: ") && errors[0].contains("games/a.slp"), "{}", found.stderr);
    assert_eq!(errors[1], "error: 1 of 4 inputs failed");
    let lines = lines(&place.path("out.jsonl"));
    assert_eq!(lines.len(), 3 * 2 * 99);
    // One schema from the first line to the last.
    let keys = |line: &Value| line.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert!(lines.iter().all(|line| keys(line) == keys(&lines[0])), "{:?}", keys(&lines[0]));
    assert!(found.stdout.contains("594 recorded actions"), "{}", found.stdout);
    // Nothing at all: no output.
    fs::remove_dir_all(place.path("games/deeper")).unwrap();
    ["b.slp", "z.SLP"].iter().for_each(|name| fs::write(place.path("games").join(name), "broken").unwrap());
    fs::remove_file(place.path("out.jsonl")).unwrap();
    assert_eq!(infer(place.run_on("games", &["--out", &place.out("out.jsonl")])).code, Some(1));
    assert!(!place.path("out.jsonl").exists());
}

#[test]
fn wrong_bundles_are_one_line_that_names_file_and_tensor() {
    let place = Place::new(&small(), 10);
    let dir = place.path("policy");
    let good = Bundle::open(&dir).unwrap();
    let specs: Vec<_> = good.parameters().unwrap().into_iter().map(|p| bundle::ParameterSpec::new(p.name, &p.shape)).collect();
    let tensors = good.read_tensors(&specs).unwrap();
    let refuse = |parts: &[&str]| {
        refused(place.run(&["--out", &place.out("out.jsonl")]), 1, parts);
        refused([OsStr::new("inspect"), dir.as_os_str()], 1, parts);
        refused([OsStr::new("export"), dir.as_os_str(), place.path("out").as_os_str()], 1, parts);
        assert_eq!(place.names(), ["game.slp", "policy"]);
    };
    let store = |tensors: &BTreeMap<String, Tensor>| {
        let tensors: NamedTensors = tensors.iter().map(|(n, t)| (n.clone(), t.clone())).collect();
        tensors.save_safetensors(dir.join(bundle::MODEL)).unwrap();
    };
    let change = |change: &dyn Fn(&mut BTreeMap<String, Tensor>), parts: &[&str]| {
        let mut changed = tensors.clone();
        change(&mut changed);
        store(&changed);
        refuse(&[&["model.safetensors"], parts].concat());
    };
    let name = "input.weight";
    change(&|t| drop(t.remove(name)), &[name, "no tensor of that name"]);
    change(&|t| drop(t.insert("extra".into(), t[name].clone())), &["extra"]);
    change(&|t| drop(t.insert(name.into(), t[name].t().unwrap().contiguous().unwrap())), &[name, "expected [312, 16], found [16, 312]"]);
    change(&|t| drop(t.insert(name.into(), t[name].affine(f64::NAN, 0.0).unwrap())), &[name, "NaN at index 0"]);
    store(&tensors);
    let bytes = fs::read(dir.join(bundle::MODEL)).unwrap();
    fs::write(dir.join(bundle::MODEL), &bytes[..bytes.len() - 4]).unwrap();
    refuse(&["model.safetensors", "truncated"]);
    fs::write(dir.join(bundle::MODEL), &bytes).unwrap();
    let config = fs::read_to_string(dir.join(bundle::CONFIG)).unwrap();
    let configure = |from: &str, to: &str, parts: &[&str]| {
        assert!(config.contains(from), "{config}");
        fs::write(dir.join(bundle::CONFIG), config.replacen(from, to, 1)).unwrap();
        refuse(parts);
    };
    configure("\"hidden\"", "\"hiden\"", &["config.json", "hiden"]);
    configure("\"hidden\": 16", "\"hidden\": 1099511627776", &["policy", "hidden", "1099511627776", "8..=4096"]);
    configure("\"policy\"", "\"poker\"", &["config.json", "poker"]);
    configure("\"format_version\": 1", "\"format_version\": 9", &["config.json", "format_version"]);
    fs::remove_file(dir.join(bundle::CONFIG)).unwrap();
    refuse(&["config.json", "No such file"]);
    refused(["inspect", &place.out("game.slp")], 1, &["game.slp", "directory"]);
}

#[test]
fn a_wrong_baselines_file_is_named() {
    let place = Place::new(&small(), 10);
    fs::write(place.path("policy/baselines.safetensors"), "{}").unwrap();
    refused(place.run(&[]), 1, &["baselines.safetensors"]);
    fs::remove_file(place.path("policy/baselines.safetensors")).unwrap();
    assert!(done(place.run(&[])).contains("no baselines"));
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_and_an_unwritable_place_leave_no_partial_output() {
    let place = Place::new(&small(), 500);
    // A limit on file sizes stands for the disk; without the trap its signal would end the program.
    let limited = |arguments: &[String]| {
        let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
        answer(Command::new("sh").args(["-c", script, PROGRAM]).args(arguments))
    };
    for name in ["out.jsonl", "out.safetensors"] {
        check_refusal(&limited(&place.run(&["--out", &place.out(name)])), 1, &[name, "too large"]);
    }
    for page in ["game.html", "pages"] {
        check_refusal(&limited(&place.run(&["--html", &place.out(page)])), 1, &[page, "too large"]);
    }
    assert_eq!(fs::read_dir(place.path("pages")).unwrap().count(), 0);
    fs::remove_dir(place.path("pages")).unwrap();
    let export = ["export".to_owned(), place.out("policy"), place.out("exported")];
    check_refusal(&limited(&export), 1, &["exported/model.safetensors", "too large"]);
    assert_eq!(place.names(), ["game.slp", "policy"]);
    std::os::unix::fs::symlink("/dev/full", place.path("full.jsonl")).unwrap();
    refused(place.run(&["--out", &place.out("full.jsonl")]), 1, &["full.jsonl", "No space left"]);
    refused(place.run(&["--out", &place.out("no/such.jsonl")]), 1, &["no/such.jsonl", "No such file"]);
    fs::create_dir(place.path("folder.jsonl")).unwrap();
    refused(place.run(&["--out", &place.out("folder.jsonl")]), 1, &["folder.jsonl", "directory"]);
    refused(place.run(&["--html", &place.out("no/such.html")]), 1, &["no/such.html", "No such file"]);
    refused(place.run(&["--html", &place.out("game.slp")]), 1, &["game.slp", "File exists"]);
    // What was there before a failure is still there.
    fs::write(place.path("old.jsonl"), "old").unwrap();
    check_refusal(&limited(&place.run(&["--out", &place.out("old.jsonl")])), 1, &["old.jsonl"]);
    assert_eq!(fs::read(place.path("old.jsonl")).unwrap(), b"old");
}

#[test]
fn a_reader_that_leaves_early_is_no_error() {
    let place = Place::new(&small(), 2000);
    let mut child = Command::new(PROGRAM).args(place.run(&["--every", "1"])).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]));
}

/// The data of a page.
fn page(path: &Path) -> Value {
    let page = fs::read_to_string(path).unwrap();
    let json = page.split("id=\"replay\">").nth(1).unwrap().split("</script>").next().unwrap();
    serde_json::from_str(json).unwrap()
}

#[test]
fn a_replay_becomes_a_page_and_a_folder_of_them_a_folder_of_pages() {
    let place = Place::new(&small(), 200);
    let (out, html) = (place.out("out.jsonl"), place.out("game.html"));
    let said = done(place.run(&["--html", &html]));
    assert!(said.contains(&format!("page: {html} (")), "{said}");
    let both = page(&place.path("game.html"));
    assert!(both["players"][0]["decided"].is_object() && both["players"][1]["decided"].is_object());
    assert_eq!((&both["file"], &both["model"]["name"]), (&json!("game.slp"), &json!("policy")));
    // The page beside a log, of one player, drawn.
    done(place.run(&["--html", &html, "--out", &out, "--port", "2", "--sample", "--seed", "7"]));
    assert_eq!(lines(&place.path("out.jsonl")).len(), 199);
    let one = page(&place.path("game.html"));
    assert!(one["players"][0]["decided"].is_null() && one["players"][1]["decided"]["first"] == 1);
    assert_eq!(one["model"]["seed"], 7);

    // Two of one name have a page each, in a folder that is made.
    for folder in ["games/a", "games/b"] {
        fs::create_dir_all(place.path(folder)).unwrap();
        fs::copy(place.path("game.slp"), place.path(folder).join("game.slp")).unwrap();
    }
    fs::write(place.path("games/broken.slp"), "not a replay, but long enough to look at").unwrap();
    let found = infer(place.run_on("games", &["--html", &place.out("pages/new")]));
    assert_eq!(found.code, Some(1), "{}", found.stderr);
    assert!(found.stdout.contains(&format!("pages of 2 replays in {} (", place.out("pages/new"))), "{}", found.stdout);
    let mut names: Vec<_> = fs::read_dir(place.path("pages/new")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["game-2.html", "game.html"]);
    assert_eq!(page(&place.path("pages/new/game.html")), page(&place.path("pages/new/game-2.html")));
    let one = place.out("one.html");
    refused(place.run_on("games", &["--html", &one]), 2, &["--html", &one, "one replay, found 3", "name a folder"]);
    assert!(!place.path("one.html").exists());
}

/// Arguments of the command whose memory is counted, a line each.
#[cfg(target_os = "linux")]
const COUNTED: &str = "CANDLE_INFER_TEST_COUNTED";

/// Runs the command and prints its highest resident memory in KiB, as the system counts it at its end. The system counts what its parent had
/// when it was started too, so that the parent must be a small process: this one, started anew.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "deep: nothing of its own; the test below starts it"]
fn memory_child() {
    let Ok(arguments) = std::env::var(COUNTED) else { return };
    #[allow(clippy::zombie_processes)] // It is waited for by its number.
    let child = Command::new(PROGRAM).args(arguments.lines()).stdout(Stdio::null()).spawn().unwrap();
    let (id, mut status) = (libc::pid_t::try_from(child.id()).unwrap(), 0);
    // SAFETY: a plain structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both results outlive the call, and nobody else waits for this child.
    let ended = unsafe { libc::wait4(id, &mut status, 0, &mut usage) };
    assert!(ended == id && status == 0, "wait status {status}");
    println!("\nPEAK: {}", usage.ru_maxrss);
}

/// The highest resident memory of a run in bytes.
#[cfg(target_os = "linux")]
fn peak_memory(arguments: &[String]) -> u64 {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "infer::memory_child", "--ignored", "--nocapture"]).env(COUNTED, arguments.join("\n"));
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let peak = said.lines().find_map(|line| line.strip_prefix("PEAK: ")?.parse::<u64>().ok());
    1024 * peak.unwrap_or_else(|| panic!("{said}{}", String::from_utf8_lossy(&output.stderr)))
}

#[cfg(target_os = "linux")]
#[test]
fn memory_stays_small_and_does_not_grow_with_the_replay() {
    let place = Place::new(&PolicyConfig::default(), 1500);
    // The players take many stocks from each other before this many frames are over: several games behind one another.
    let mut long = place.game.clone();
    while long.frames.len() < 9_000 {
        let next = long.frames.len() as i32 - 123;
        long.frames.extend(place.game.frames.iter().zip(next..).map(|(frame, id)| candle_models::policy::game::Frame { id, ..*frame }));
    }
    replay::write(&long, place.path("long.slp")).unwrap();
    let short = peak_memory(&place.run(&["--out", &place.out("a.safetensors")]));
    let long = peak_memory(&place.run_on("long.slp", &["--out", &place.out("b.safetensors")]));
    eprintln!("peak memory: {:.1} MB for 1500 frames, {:.1} MB for 9000", short as f64 / 1e6, long as f64 / 1e6);
    assert!(long < 60_000_000, "{long} bytes");
    assert!(long < short + 2_000_000, "{short} bytes for 1500 frames, {long} for 9000");
}

/// A folder of the real data, or `None` with a loud remark.
fn data(folder: &str) -> Option<PathBuf> {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED the command on real replays: CANDLE_DATA is not set");
        return None;
    };
    Some(Path::new(&root).join(folder))
}

#[test]
fn real_replays_are_watched_to_their_ends() {
    watch_real_replays(3);
}

#[test]
#[ignore = "deep: every real replay, where the test above takes three; needs CANDLE_DATA"]
fn every_real_replay_is_watched_to_its_end() {
    watch_real_replays(usize::MAX);
}

/// Runs a policy on so many real replays.
fn watch_real_replays(most: usize) {
    let Some(folder) = data("slippi") else { return };
    let place = Place::new(&PolicyConfig { backbone: BackboneConfig::Mlp { layers: vec![16] }, ..small() }, 10);
    let out = place.out("out.jsonl");
    let policy = place.out("policy");
    let mut truth: Vec<Value> = serde_json::from_slice(&fs::read(folder.join("truth.json")).unwrap()).unwrap();
    truth.truncate(most);
    let files: Vec<PathBuf> = truth.iter().map(|game| folder.join(game["file"].as_str().unwrap())).collect();
    let replays = files.iter().map(|file| file.as_os_str());
    done([OsStr::new("run"), OsStr::new(&policy), OsStr::new("--out"), OsStr::new(&out)].into_iter().chain(replays));
    let mut rows = BTreeMap::<String, u64>::new();
    for line in lines(Path::new(&out)) {
        let file = Path::new(line["file"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
        let nats: f64 = line["nll"].as_object().unwrap().values().map(|nats| nats.as_f64().unwrap()).sum();
        assert!(nats.is_finite(), "{line}");
        *rows.entry(file).or_default() += 1;
    }
    assert_eq!(rows.len(), truth.len());
    for expected in &truth {
        let name = expected["file"].as_str().unwrap();
        let frames = expected["frames_unique"].as_u64().unwrap();
        assert_eq!(rows[name], 2 * (frames - 1), "{name}");
    }
}

#[test]
fn every_odd_replay_is_a_result_or_one_line() {
    let Some(folder) = data("slippi_edge") else { return };
    let place = Place::new(&small(), 10);
    let files = replay::collect([&folder]).unwrap();
    assert_eq!(files.len(), 14);
    let mut failed = 0;
    for (number, file) in files.iter().enumerate() {
        let out = place.path(&format!("{number}.jsonl"));
        let policy = place.path("policy");
        let found = infer([OsStr::new("run"), policy.as_os_str(), file.as_os_str(), OsStr::new("--out"), out.as_os_str()]);
        let name = file.file_name().unwrap().to_str().unwrap();
        eprintln!("{name}: {:?} {}", found.code, found.stderr);
        if found.code == Some(0) {
            assert!(found.stderr.lines().all(|line| line.starts_with("warning: ") && line.contains(name)), "{name}: {}", found.stderr);
            assert!(lines(&out).iter().all(|line| line["chosen"].is_string()), "{name}");
        } else {
            check_refusal(&found, 1, &[name]);
            assert!(!out.exists());
            failed += 1;
        }
    }
    let all = infer([OsStr::new("run"), place.path("policy").as_os_str(), folder.as_os_str()]);
    assert_eq!(all.code, Some(i32::from(failed > 0)));
    assert_eq!(all.stderr.lines().filter(|line| line.starts_with("error: ") && line.contains(".slp")).count(), failed, "{}", all.stderr);
}

#[test]
fn a_replay_that_is_encoded_is_run_like_the_replay() {
    let place = Place::new(&small(), 60);
    let encode = |bundle: &str, out: &str, more: &[&str]| {
        let start = ["encode".to_owned(), bundle.to_owned(), place.out("game.slp"), "--out".to_owned(), place.out(out)];
        start.into_iter().chain(more.iter().map(|s| (*s).to_owned())).collect::<Vec<_>>()
    };
    let (bundle, frames) = (place.out("policy"), place.game.frames.len() - 1 - place.policy.config().delay);
    let told = done(encode(&bundle, "encoded.safetensors", &[]));
    assert!(told.contains(&format!("features F32 [2, {frames}, {WIDTH}]")) && told.contains("previous_action U32 [2, "), "{told}");
    done(place.run(&["--out", &place.out("replay.safetensors")]));
    done(place.run_on("encoded.safetensors", &["--out", &place.out("tensors.safetensors")]));
    let logits = |name: &str| NamedTensors::load_safetensors(place.path(name)).unwrap().get("logits").unwrap().clone();
    let (found, want) = (logits("tensors.safetensors"), logits("replay.safetensors"));
    assert_eq!(found.dims(), want.dims());
    let worst = (found - want).unwrap().abs().unwrap().flatten_all().unwrap().max(0).unwrap().to_scalar::<f32>().unwrap();
    // Batches of two and of four rows sum in different orders.
    assert!(worst < 1e-4, "{worst}");
    done(encode(&bundle, "encoded.safetensors", &["--port", "1"]));
    assert_eq!(NamedTensors::load_safetensors(place.path("encoded.safetensors")).unwrap().get("features").unwrap().dim(0).unwrap(), 1);

    let beams = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/beam-c3");
    refused(encode(beams.to_str().unwrap(), "x.safetensors", &[]), 1, &["game.slp", "a beam reads named tensors only"]);
    refused(encode(&bundle, "x.npz", &[]), 2, &["x.npz", "expected a name in .safetensors"]);
    refused(encode(&bundle, "x.safetensors", &["--sample"]), 2, &["--sample"]);
    assert!(!place.path("x.safetensors").exists());
}

#[test]
fn the_parts_of_a_run_are_the_whole_whatever_their_number() {
    let place = Place::new(&small(), 60);
    // Two blocks of 64 sequences and a part of one.
    let policy = &place.policy;
    let drawn = policy.signature().inputs.iter().map(|spec| (spec.name.clone(), spec.draw(&[150, 3], &Random::new(4)).unwrap()));
    drawn.collect::<NamedTensors>().save_safetensors(place.path("many.safetensors")).unwrap();
    fs::create_dir(place.path("games")).unwrap();
    for seed in 0..5 {
        replay::write(&simulate(seed, 30), place.path(&format!("games/{seed}.slp"))).unwrap();
    }
    for input in ["many.safetensors", "games"] {
        let whole = place.out("whole.jsonl");
        done(place.run_on(input, &["--out", &whole]));
        for of in [1, 2, 3, 7] {
            let part = |number: usize| {
                let (out, shard) = (place.out("part.jsonl"), format!("{number}/{of}"));
                done(place.run_on(input, &["--out", &out, "--shard", &shard]));
                fs::read(out).unwrap()
            };
            assert!((0..of).map(part).collect::<Vec<_>>().concat() == fs::read(&whole).unwrap(), "{input} in {of} parts");
        }
    }
    // Tensors by sequence.
    let whole = place.out("whole.safetensors");
    done(place.run_on("many.safetensors", &["--out", &whole]));
    let logits = |path: &str| NamedTensors::load_safetensors(path).unwrap().get("logits").unwrap().clone();
    let parts: Vec<Tensor> = (0..2)
        .map(|number| {
            let out = place.out("part.safetensors");
            done(place.run_on("many.safetensors", &["--out", &out, "--shard", &format!("{number}/2")]));
            logits(&out)
        })
        .collect();
    let flat = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(flat(&Tensor::cat(&parts, 0).unwrap()), flat(&logits(&whole)));
    for wrong in ["2/2", "1", "a/2", "0/0"] {
        refused(place.run(&["--shard", wrong]), 2, &["I/N"]);
    }
}

#[test]
fn inspect_names_every_column_and_prints_a_program() {
    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/policy-mamba");
    let report = infer([OsStr::new("inspect"), OsStr::new("--json"), bundle.as_os_str()]);
    let report: Value = serde_json::from_str(&report.stdout).unwrap();
    for (tensor, width) in [("features", 283), ("ids", IDS), ("action", ACTION)] {
        let columns = report["columns"].as_array().unwrap().iter().filter(|columns| columns["tensor"] == tensor);
        let mut next = 0;
        columns.for_each(|columns| {
            assert_eq!(columns["first"], next, "{columns}");
            next += columns["count"].as_u64().unwrap();
        });
        assert_eq!(next, width as u64, "{tensor}");
    }
    let program = infer([OsStr::new("inspect"), OsStr::new("--forward"), bundle.as_os_str()]).stdout;
    let expected = [
        "W[\"blocks.1.a_log\"]",
        "def policy(W, inputs, state):",
        "0           own.percent: times 0.01, clipped to 0 to 5",
        "# selective-scan",
    ];
    for part in expected {
        assert!(program.contains(part), "{part} in {program}");
    }
    let both = infer([OsStr::new("inspect"), OsStr::new("--forward"), OsStr::new("--json"), bundle.as_os_str()]);
    assert_eq!(both.code, Some(2), "{}", both.stderr);
}

//! Imitation by description: files to batches, what is learnt, and what is refused.

use crate::{run, text};
use candle_core::{DType, Device, Tensor};
use candle_models::agent::{AgentConfig, AgentFamily};
use candle_models::bundle::Bundle;
use candle_models::engine::{Engine, Options};
use candle_models::exec::SAMPLE;
use candle_models::nn::BackboneConfig;
use candle_models::random::Random;
use candle_models::registry::Family;
use candle_models::tensors::NamedTensors;
use candle_train::agent::config::{RunConfig, description};
use candle_train::agent::episodes::{self, Episodes, Listed, Recording};
use candle_train::agent::loader::Loader;
use candle_train::agent::run::{Plan, Trained};
use candle_train::agent::{example, likelihood::Frequencies};
use candle_train::lanes::StepShape;
use candle_train::plan::TrainingPlan;
use candle_train::run::{Place, Stop};
use candle_train::trainer::Resources;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

/// The description of the repository.
fn description_file() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/data/agent.toml")
}

fn train(backbone: BackboneConfig) -> Trained {
    let mut config = RunConfig::preset("quick").unwrap();
    (config.epochs, config.model.backbone, config.trainer.schedule.peak) = (50, backbone, 1e-2);
    let recordings = example::recordings(Random::new(3)).unwrap();
    let plan = Plan::new(config, &recordings, Resources::default(), String::new()).unwrap();
    plan.train(&Place::memory(), &Stop::after(None)).unwrap()
}

/// Nats of turn and speed by the Markov chain and by the agent.
fn nats(trained: &Trained) -> [Vec<f64>; 2] {
    let ([_, markov], agent) = trained.measured.as_ref().unwrap();
    [markov, agent].map(|likelihood| likelihood.nats().collect())
}

#[test]
fn what_asks_for_memory_is_learnt_with_memory_only() {
    let [markov, gru] = nats(&train(BackboneConfig::Gru { layers: 1 }));
    let [_, mlp] = nats(&train(BackboneConfig::Mlp { layers: vec![32] }));
    assert!(gru[0] < 0.3 * markov[0], "turn: {} nats with memory, Markov {}", gru[0], markov[0]);
    assert!(mlp[0] > 0.9 * markov[0], "turn: {} nats without memory, Markov {}", mlp[0], markov[0]);
    assert!(gru[1] < 0.6 * markov[1] && mlp[1] < 0.6 * markov[1], "speed: {} and {} nats, Markov {}", gru[1], mlp[1], markov[1]);
}

fn save(directory: &Path, name: &str, tensors: &NamedTensors) {
    tensors.save_safetensors(directory.join(name)).unwrap();
}

/// Several episodes `[N, T, ...]` or, with `reset`, one behind the other `[N T, ...]`.
fn several(seeds: std::ops::Range<u64>, frames: usize) -> [NamedTensors; 2] {
    let all: Vec<NamedTensors> = seeds.clone().map(|seed| example::play(Random::new(seed), frames).unwrap()).collect();
    let of = |name: &str| all.iter().map(|one| one.get(name).unwrap().clone()).collect::<Vec<_>>();
    let join = |join: fn(&[Tensor]) -> candle_core::Result<Tensor>| {
        let joined = ["distance", "signal", "action"].map(|name| (name.to_owned(), join(&of(name)).unwrap()));
        joined.into_iter().collect::<NamedTensors>()
    };
    let mut behind = join(|all| Tensor::cat(all, 0));
    let reset: Vec<u8> = (0..all.len() * frames).map(|t| u8::from(t % frames == 0)).collect();
    behind.insert("reset", Tensor::from_vec(reset, all.len() * frames, &Device::Cpu).unwrap());
    [join(|all| Tensor::stack(all, 0)), behind]
}

#[test]
fn a_folder_of_episodes_becomes_an_agent_that_plays() {
    let dir = tempfile::tempdir().unwrap();
    let games = dir.path().join("games");
    fs::create_dir(&games).unwrap();
    for seed in 0..4 {
        save(&games, &format!("game{seed}.safetensors"), &example::play(Random::new(seed), 40).unwrap());
    }
    let [mut beside, behind] = several(4..8, 30);
    beside.insert("reward", Tensor::zeros(3, DType::F32, &Device::Cpu).unwrap());
    save(&games, "beside.safetensors", &beside);
    save(&games, "behind.safetensors", &behind);
    fs::write(games.join("notes.txt"), "not an episode").unwrap();

    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.current_dir(dir.path()).args(["agent", "--preset=quick", "--threads=1", "--episodes=games", "--out=run", "--description"]);
    let output = run(command.arg(description_file()).args(["--set=data.batch=4", "--set=data.unroll=8", "--set=model.previous_action=2"]));
    let stdout = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(stdout.contains("not in the description and not read: reward\n"), "{stdout}");
    assert!(stdout.contains("| component | frequencies | Markov chain | this agent |"), "{stdout}");

    // The split is by file, and the run's directory says it.
    let noted: BTreeMap<String, Vec<Listed>> = serde_json::from_slice(&fs::read(dir.path().join("run/episodes.json")).unwrap()).unwrap();
    let files = |part: &str| noted[part].iter().map(|listed| listed.file.clone()).collect::<BTreeSet<_>>();
    assert_eq!((files("train").len(), files("held_out").len()), (5, 1));
    assert!(files("train").is_disjoint(&files("held_out")));
    let frames: usize = noted.values().flatten().map(|listed| listed.frames.len()).sum();
    assert_eq!((noted.values().flatten().count(), frames), (12, 4 * 40 + 8 * 30));

    let bundle = Bundle::open(dir.path().join("run/bundle")).unwrap();
    let engine = Engine::start(candle_models::families::shipped().load(&bundle).unwrap(), &Options::default()).unwrap();
    let mut session = engine.open().unwrap();
    let episode = example::play(Random::new(9), 20).unwrap();
    let (distance, signal) = (episode.get("distance").unwrap().to_vec2::<f32>().unwrap(), episode.get("signal").unwrap());
    let mut previous = vec![0, 2];
    for (distance, signal) in distance.iter().zip(signal.to_vec2::<u32>().unwrap()) {
        session.set_f32("distance", distance).unwrap();
        session.set_u32("signal", &signal).unwrap();
        session.set_u32("previous_action", &previous).unwrap();
        session.step().unwrap();
        previous = session.indices("action").unwrap().to_vec();
        let speed = session.floats("speed").unwrap()[0];
        assert_eq!(speed, (0.1 + 0.2 * f64::from(previous[1])) as f32, "the centre of bin {}", previous[1]);
    }
}

/// An episode whose frames say where they come from: the distance is `[episode / 8, frame / 64]`.
fn told(episode: usize, frames: usize) -> NamedTensors {
    let distance: Vec<f32> = (0..frames).flat_map(|t| [episode as f32 / 8.0, t as f32 / 64.0]).collect();
    let mut tensors = example::play(Random::new(episode as u64), frames).unwrap();
    tensors.insert("distance", Tensor::from_vec(distance, (frames, 2), &Device::Cpu).unwrap());
    tensors
}

#[test]
fn batches_hold_each_frame_with_its_action_and_the_one_before() {
    let config = AgentConfig { previous_action: 2, ..example::description() };
    let lengths = [13, 40, 7, 25];
    let played: Vec<NamedTensors> = lengths.iter().enumerate().map(|(episode, frames)| told(episode, *frames)).collect();
    let recording = |(i, tensors): (usize, &NamedTensors)| Arc::new(Recording::new(&i.to_string(), tensors, &config).unwrap());
    let recordings: Vec<_> = played.iter().enumerate().map(recording).collect();
    let [train, held_out] = episodes::split(&recordings, &config, 0.0, Random::new(1));
    assert!(held_out.is_empty());
    let shape = StepShape { lanes: 3, unroll: 5 };
    let mut loader = Loader::new(Arc::new(train), &config, (shape, 0..3), Random::new(2), &Device::Cpu).unwrap();
    let steps = loader.steps_per_epoch();
    assert_eq!(steps, lengths.iter().sum::<usize>() as u64 / 15);
    let actions: Vec<Vec<Vec<u32>>> = played.iter().map(|one| one.get("action").unwrap().to_vec2().unwrap()).collect();
    for epoch in 0..2 {
        let mut seen = BTreeSet::new();
        for step in 0..steps {
            let batch = loader.get(epoch * steps + step).unwrap();
            let rows = |name: &str| batch.inputs.get(name).unwrap().flatten(0, 1).unwrap();
            let (distance, signal) = (rows("distance").to_vec2::<f32>().unwrap(), rows("signal").to_vec2::<u32>().unwrap());
            let (action, previous) = (rows("action").to_vec2::<u32>().unwrap(), rows("previous_action").to_vec2::<u32>().unwrap());
            for row in 0..15 {
                let (episode, t) = ((distance[row][0] * 8.0) as usize, (distance[row][1] * 64.0) as usize);
                assert!(seen.insert((episode, t)), "frame {t} of {episode} comes twice");
                assert_eq!(action[row], actions[episode][t]);
                assert_eq!(signal[row], played[episode].get("signal").unwrap().to_vec2::<u32>().unwrap()[t]);
                assert_eq!(previous[row], if t == 0 { vec![0, 2] } else { actions[episode][t - 1].clone() });
                assert_eq!(batch.resets[row], t == 0 || (step == 0 && row % 5 == 0), "row {row} of step {step}");
            }
        }
    }
}

#[test]
fn frequencies_are_those_of_the_recorded_actions() {
    let config = description(
        "[[observation]]\nname = \"x\"\nkind = \"floats\"\nshape = [1]\n[[action]]\nname = \"a\"\nkind = \"binary\"\ncount = 1",
    );
    let (config, frames) = (config.unwrap(), 400);
    let alternating: Vec<u32> = (0..frames).map(|t| (t as u32 + 1) % 2).collect();
    let tensors = [
        ("x".to_owned(), Tensor::full(-300f32, (frames, 1), &Device::Cpu).unwrap()),
        ("action".to_owned(), Tensor::from_vec(alternating, (frames, 1), &Device::Cpu).unwrap()),
    ];
    let recording = Arc::new(Recording::new("alternating", &tensors.into_iter().collect(), &config).unwrap());
    assert_eq!(episodes::magnitudes(std::slice::from_ref(&recording), &config), [("x".to_owned(), 300.0)]);
    let [all, _]: [Episodes; 2] = episodes::split(&[recording], &config, 0.5, Random::new(1));
    let [marginal, markov] = Frequencies::count(&config, &all).unwrap().measure(&all).unwrap();
    assert!((marginal.total() - 2f64.ln()).abs() < 1e-4, "{}", marginal.total());
    assert!(markov.total() < 0.01, "{}", markov.total());
    assert_eq!(markov.accuracy().collect::<Vec<_>>(), [1.0]);
    assert_eq!(marginal.accuracy().collect::<Vec<_>>(), [0.5]);
}

#[test]
fn files_that_do_not_fit_the_description_are_refused_by_tensor_and_frame() {
    let (config, good) = (example::description(), || example::play(Random::new(1), 6).unwrap());
    let with = |name: &str, tensor: candle_core::Result<Tensor>| {
        let mut tensors = good();
        tensors.insert(name, tensor.unwrap());
        tensors
    };
    let without = |name: &str| good().into_iter().filter(|(own, _)| own != name).collect::<NamedTensors>();
    let (cpu, distance) = (&Device::Cpu, vec![0.5f32, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.5, 0.5, 0.5, 0.5, 0.5]);
    let cases = [
        (without("signal"), "tensor signal: expected to be present, found only [action, distance]"),
        (without("action"), "tensor action: expected to be present, found only [distance, signal]"),
        (
            with("distance", Tensor::from_vec(distance, (6, 2), cpu)),
            "tensor distance: expected numbers from 0 to below 1.0000001, found 1.5 in column 1 of row 3",
        ),
        (with("distance", Tensor::zeros((5, 2), DType::F32, cpu)), "tensor distance: expected floats [6, 2], found floats [5, 2]"),
        (with("signal", Tensor::zeros((6, 1), DType::F32, cpu)), "tensor signal: expected integers [6, 1], found floats [6, 1]"),
        (with("signal", Tensor::full(3u32, (6, 1), cpu)), "tensor signal: expected an index up to 2, found 3 in column 0 of row 0"),
        (
            with("action", Tensor::full(u32::MAX, (6, 2), cpu)),
            "tensor action: expected an index up to 2, found SAMPLE in column 0 of row 0",
        ),
        (with("action", Tensor::zeros(6, DType::U32, cpu)), "tensor action: expected [rows, 2] or [sequences, rows, 2], found [6]"),
        (with("action", Tensor::zeros((6, 3), DType::U32, cpu)), "tensor action: expected integers [6, 2], found integers [6, 3]"),
        (with("action", Tensor::zeros((0, 2), DType::U32, cpu)), "tensor action: expected at least one row, found [0, 2]"),
        (with("reset", Tensor::zeros((6, 1), DType::U8, cpu)), "tensor reset: expected integers [6], found integers [6, 1]"),
        (with("reset", Tensor::full(2u8, 6, cpu)), "tensor reset: expected an index up to 1, found 2 in column 0 of row 0"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("game.safetensors");
    for (tensors, message) in cases {
        tensors.save_safetensors(&file).unwrap();
        let error = Recording::open(&file, &config).unwrap_err().to_string();
        assert_eq!(error, format!("{}: {message}", file.display()));
    }
    fs::write(&file, "no tensors").unwrap();
    let error = episodes::open(dir.path(), &config).unwrap_err().to_string();
    assert!(error.starts_with(&file.display().to_string()), "{error}");
    fs::remove_file(&file).unwrap();
    let error = episodes::open(dir.path(), &config).unwrap_err().to_string();
    assert_eq!(error, format!("{}: expected files *.safetensors, found none", dir.path().display()));
}

#[test]
fn descriptions_that_cannot_be_are_refused_by_their_fields() {
    let good = fs::read_to_string(description_file()).unwrap();
    for (from, to, message) in [
        ("hidden = 64", "hiden = 32", "config: description: line 4: unknown field `hiden`"),
        ("hidden = 64", "hidden = 4", "config: hidden: 4 is outside 8..=4096"),
        ("hidden = 64", "hidden = -1", "config: description: line 4: invalid value: integer `-1`"),
        (
            "heads = \"independent\"",
            "heads = \"autoregressive\"",
            "config: previous_action: expected at least 1, found 0: autoregressive heads",
        ),
        ("kind = \"gru\"", "kind = \"lstm\"", "config: description: line 9: unknown variant `lstm`"),
        ("layers = 1", "layers = 0", "config: backbone.layers: 0 is outside 1..=16"),
        ("kind = \"floats\"", "kind = \"sounds\"", "config: description: line 14: unknown variant `sounds`"),
        ("shape = [2]", "shape = [2]\nwidth = 2", "config: description: line 12: unknown field `width`"),
        ("shape = [2]", "shape = []", "config: observation.distance.shape: 0 is outside 1..=4"),
        ("shape = [2]", "shape = [99999, 99999]", "config: observation.distance.shape: 9999800001 is outside"),
        (
            "low = 0.0\nhigh = 1.0\n\n[[obs",
            "low = 2.0\nhigh = 1.0\n\n[[obs",
            "config: observation.distance.low: expected numbers, low below high, found 2 and 1",
        ),
        ("name = \"signal\"", "name = \"distance\"", "config: observation.name: \"distance\": the name stands twice"),
        ("name = \"signal\"", "name = \"reset\"", "config: observation.name: \"reset\": the name has another meaning"),
        ("name = \"turn\"", "name = \"logits\"", "config: action.name: \"logits\": the name has another meaning"),
        ("name = \"turn\"", "name = \"a.b\"", "config: action.name: \"a.b\": expected a letter"),
        ("below = [3]", "below = [0]", "config: observation.signal.below: 0 is outside"),
        ("embedding = 4", "embedding = 0", "config: observation.signal.embedding: 0 is outside 1..=512"),
        ("classes = 3", "classes = 1", "config: action.turn.classes: 1 is outside 2..=65536"),
        ("bins = 5", "bins = 1", "config: action.speed.bins: 1 is outside 2..=65536"),
        (
            "low = 0.0\nhigh = 1.0\nbins",
            "low = nan\nhigh = 1.0\nbins",
            "config: action.speed.low: expected a number below high 1, found NaN",
        ),
    ] {
        assert!(good.contains(from), "{from}");
        let error = description(&good.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(message) && !error.contains('\n'), "{to}: {error}");
    }
    let grid = "[[observation]]\nname = \"map\"\nkind = \"grid\"\nheight = 4\nwidth = 4\nchannels = 1\n";
    for (layers, message) in [
        ("[{ channels = 8, kernel = [5, 5] }]", "config: observation.map.layers.0.kernel: no patch of [5, 5] fits into 4 x 4"),
        ("[{ channels = 8, kernel = [3, 3] }, { channels = 8, kernel = [3, 3] }]", "config: observation.map.layers.1.kernel: no patch"),
        ("[{ channels = 1, kernel = [3, 3] }]", "config: observation.map.layers.0.channels: 1 is outside 4..=1024"),
        ("[{ channels = 8, kernel = [0, 3] }]", "config: observation.map.layers.0.kernel: 0 is outside 1..=64"),
        (
            "[{ channels = 8, kernel = [3, 3], pool = { kind = \"max\", kernel = [2, 3] } }]",
            "config: observation.map.layers.0.pool.kernel: no patch of [2, 3] fits into 2 x 2",
        ),
        (
            "[{ channels = 8, kernel = [3, 3], pool = { kind = \"max\", kernel = [2, 2], stride = [0, 1] } }]",
            "config: observation.map.layers.0.pool.stride: 0 is outside 1..=64",
        ),
        (
            "[{ channels = 8, kernel = [3, 3], pool = { kind = \"least\", kernel = [2, 2] } }]",
            "config: description: line 1: unknown variant `least`, expected `max` or `average`",
        ),
        ("[{ channels = 8, kernel = [3, 3], padding = [3, 0] }]", "config: observation.map.layers.0.padding: 3 is outside 0..=2"),
    ] {
        let text = format!("{grid}layers = {layers}\n[[action]]\nname = \"a\"\nkind = \"discrete\"\nclasses = 3\n");
        let error = description(&text).unwrap_err().to_string();
        assert!(error.starts_with(message), "{layers}: {error}");
    }
}

#[test]
fn sequences_that_cannot_be_are_refused() {
    let sequence = |keys: &str| {
        let text = format!(
            "[[observation]]\nname = \"iq\"\nkind = \"sequence\"\nlength = 8\nchannels = 2\n{keys}\n[[action]]\nname = \"a\"\nkind = \"binary\"\ncount = 1"
        );
        description(&text)
    };
    let good =
        sequence("layers = [{ channels = 8, kernel = 5, stride = 2, padding = 2, pool = { kind = \"average\", kernel = 2 } }]").unwrap();
    // 8 places to 4 and to 2.
    assert_eq!(good.observation[0].width().unwrap(), 2 * 8);
    for (keys, message) in [
        ("layers = [{ channels = 8, kernel = 9 }]", "config: observation.iq.layers.0.kernel: no patch of [1, 9] fits into 1 x 8"),
        ("layers = [{ channels = 8, kernel = 1025 }]", "config: observation.iq.layers.0.kernel: 1025 is outside 1..=1024"),
        ("layers = [{ channels = 8, kernel = [3] }]", "config: description: line 1: invalid type: sequence, expected usize"),
        ("layers = [{ channels = 2, kernel = 3 }]", "config: observation.iq.layers.0.channels: 2 is outside 4..=1024"),
    ] {
        let error = sequence(keys).unwrap_err().to_string();
        assert!(error.starts_with(message), "{keys}: {error}");
    }
}

#[test]
fn descriptions_survive_toml_and_the_one_of_the_repository_is_that_of_the_example() {
    assert_eq!(description(&fs::read_to_string(description_file()).unwrap()).unwrap(), example::description());
    for manifest in AgentFamily.examples().unwrap() {
        let config: AgentConfig = serde_json::from_value(manifest.model.clone()).unwrap();
        assert_eq!(description(&toml::to_string(&config).unwrap()).unwrap(), config);
    }
}

/// Two numbers about lines of what is seen, the first with noise; where asked, beside a switch that says whether what is seen is above one half.
fn steering(switch: bool) -> AgentConfig {
    let switch = if switch { "[[action]]\nname = \"fire\"\nkind = \"binary\"\ncount = 1\n" } else { "" };
    let text = format!(
        "hidden = 32\n[[observation]]\nname = \"seen\"\nkind = \"floats\"\nshape = [1]\n[[action]]\nname = \"aim\"\nkind = \"gaussian\"\ncolumns = \
         2\nlow = -2.0\nhigh = 2.0\n{switch}"
    );
    description(&text).unwrap()
}

/// Noise of the first number.
const NOISE: f32 = 0.1;

fn steered(random: Random, frames: usize) -> NamedTensors {
    let seen: Vec<f32> = (0..frames as u64).map(|t| random.stream("seen").uniform(t)).collect();
    let noise = random.stream("noise");
    let aim: Vec<f32> = seen.iter().zip(0..).flat_map(|(x, t)| [1.2 * x - 0.4 + NOISE * noise.normal(t), 0.5 - x]).collect();
    let fire: Vec<u32> = seen.iter().map(|x| u32::from(*x > 0.5)).collect();
    let tensors = [
        ("seen".to_owned(), Tensor::from_vec(seen, (frames, 1), &Device::Cpu).unwrap()),
        ("aim".to_owned(), Tensor::from_vec(aim, (frames, 2), &Device::Cpu).unwrap()),
        ("action".to_owned(), Tensor::from_vec(fire, (frames, 1), &Device::Cpu).unwrap()),
    ];
    tensors.into_iter().collect()
}

#[test]
fn numbers_are_learnt_with_their_noise_and_played() {
    let dir = tempfile::tempdir().unwrap();
    for switch in [false, true] {
        let mut config = RunConfig::preset("quick").unwrap();
        (config.epochs, config.model, config.trainer.schedule.peak) = (50, steering(switch), 1e-2);
        let one = |episode: u64| Recording::new(&episode.to_string(), &steered(Random::new(5).at(episode), 64), &config.model).unwrap();
        let recordings: Vec<_> = (0..40).map(|episode| Arc::new(one(episode))).collect();
        assert_eq!(recordings[0].unused.is_empty(), switch, "classes are read where there are some");
        let plan = Plan::new(config, &recordings, Resources::default(), String::new()).unwrap();
        let trained = plan.train(&Place::memory(), &Stop::after(None)).unwrap();
        let ([marginal, markov], agent) = trained.measured.as_ref().unwrap();
        let aim = |likelihood: &candle_train::agent::likelihood::Likelihood| likelihood.nats().next().unwrap();
        // What is seen says nothing of the next frame: the line from the number before knows no more than the mean.
        assert!((aim(marginal) - aim(markov)).abs() < 0.05, "{} and {}", aim(marginal), aim(markov));
        // The first number can be known up to its noise, the second exactly: to the narrowest distribution there is, or nearly.
        let entropy = f64::from(NOISE).ln() + 0.5 * (2.0 * std::f64::consts::PI * std::f64::consts::E).ln();
        assert!((-5.0..-2.0).contains(&(aim(agent) - entropy)), "{} nats, of which the noise has {entropy}", aim(agent));
        let error = agent.accuracy().next().unwrap();
        assert!((0.03..0.06).contains(&error), "the mean distance is {error}");
        assert!(trained.table().contains(&format!("| aim | {:.3} (± ", aim(marginal))), "{}", trained.table());

        let bundle = dir.path().join(switch.to_string());
        candle_train::plan::TrainingResult::save(&trained, &bundle).unwrap();
        let model = candle_models::families::shipped().load(&Bundle::open(&bundle).unwrap()).unwrap();
        let mut session = Engine::start(model, &Options::default()).unwrap().open().unwrap();
        session.set_f32("seen", &[0.75]).unwrap();
        session.step().unwrap();
        let (aim, distribution) = (session.floats("aim").unwrap().to_vec(), session.floats("gaussian").unwrap().to_vec());
        assert_eq!(aim, distribution[..2], "the means");
        assert!((aim[0] - 0.5).abs() < 0.05 && (aim[1] + 0.25).abs() < 0.05, "{aim:?}");
        assert!((distribution[2].exp() - NOISE).abs() < 0.03, "a deviation of {}", distribution[2].exp());
        // A number of one deviation above the mean, and the mean; the first column is that of the switch.
        let uniform = [&[0.0][usize::from(!switch)..], &[0.841_344_8, 0.5]].concat();
        session.set_f32("uniform", &uniform).unwrap();
        session.reset();
        session.step().unwrap();
        let drawn = session.floats("aim").unwrap();
        assert!((drawn[0] - aim[0] - distribution[2].exp()).abs() < 1e-5 && (drawn[1] - aim[1]).abs() < 1e-6, "{drawn:?} of {aim:?}");
    }
}

/// A coin that nothing foretells, and a number that follows it.
fn tossed(random: Random, frames: usize) -> NamedTensors {
    let coin: Vec<u32> = (0..frames as u64).map(|t| u32::from(random.stream("coin").uniform(t) < 0.5)).collect();
    let noise = random.stream("noise");
    let aim: Vec<f32> = coin.iter().zip(0..).map(|(coin, t)| *coin as f32 - 0.5 + NOISE * noise.normal(t)).collect();
    let tensors = [
        ("seen".to_owned(), Tensor::zeros((frames, 1), DType::F32, &Device::Cpu).unwrap()),
        ("aim".to_owned(), Tensor::from_vec(aim, (frames, 1), &Device::Cpu).unwrap()),
        ("action".to_owned(), Tensor::from_vec(coin, (frames, 1), &Device::Cpu).unwrap()),
    ];
    tensors.into_iter().collect()
}

#[test]
fn numbers_follow_the_class_that_autoregressive_heads_have_chosen() {
    let text = "hidden = 32\nheads = \"autoregressive\"\nprevious_action = 2\n[[observation]]\nname = \"seen\"\nkind = \"floats\"\nshape = [1]\n\
                [[action]]\nname = \"aim\"\nkind = \"gaussian\"\n[[action]]\nname = \"coin\"\nkind = \"binary\"\ncount = 1\n";
    let mut config = RunConfig::preset("quick").unwrap();
    (config.epochs, config.model, config.trainer.schedule.peak) = (50, description(text).unwrap(), 1e-2);
    let one = |episode: u64| Recording::new(&episode.to_string(), &tossed(Random::new(6).at(episode), 64), &config.model).unwrap();
    let recordings: Vec<_> = (0..40).map(|episode| Arc::new(one(episode))).collect();
    let trained = Plan::new(config, &recordings, Resources::default(), String::new()).unwrap();
    let trained = trained.train(&Place::memory(), &Stop::after(None)).unwrap();
    // The coin cannot be known; the number can up to its noise once the coin is, and is one of two without it.
    let (_, agent) = trained.measured.as_ref().unwrap();
    let [aim, coin] = [0, 1].map(|i| agent.nats().nth(i).unwrap());
    let entropy = f64::from(NOISE).ln() + 0.5 * (2.0 * std::f64::consts::PI * std::f64::consts::E).ln();
    assert!((-0.1..0.3).contains(&(aim - entropy)), "{aim} nats, of which the noise has {entropy}");
    assert!((coin - 2f64.ln()).abs() < 0.1, "{coin} nats");

    let dir = tempfile::tempdir().unwrap();
    candle_train::plan::TrainingResult::save(&trained, &dir.path().join("bundle")).unwrap();
    let model = candle_models::families::shipped().load(&Bundle::open(dir.path().join("bundle")).unwrap()).unwrap();
    let mut session = Engine::start(model, &Options::default()).unwrap().open().unwrap();
    // Chosen by the random number of its column, or given.
    for (coin, drawn, wanted) in [(0, 0.01, SAMPLE), (1, 0.99, SAMPLE), (0, 0.99, 0), (1, 0.01, 1)] {
        session.set_f32("seen", &[0.0]).unwrap();
        session.set_u32("action", &[wanted]).unwrap();
        session.set_f32("uniform", &[drawn, -1.0]).unwrap();
        session.step().unwrap();
        let aim = session.floats("aim").unwrap()[0];
        assert_eq!(session.indices("action").unwrap(), [coin]);
        assert!((aim - (coin as f32 - 0.5)).abs() < 0.1, "{aim} after {coin}");
    }
}

#[test]
fn batches_hold_the_numbers_of_their_frames() {
    let config = steering(true);
    let played: Vec<NamedTensors> = (0..3).map(|episode| steered(Random::new(episode), 20 + episode as usize)).collect();
    let recordings: Vec<_> = played.iter().map(|tensors| Arc::new(Recording::new("game", tensors, &config).unwrap())).collect();
    let sizes: Vec<String> = episodes::magnitudes(&recordings, &config).into_iter().map(|(name, _)| name).collect();
    assert_eq!(sizes, ["aim", "seen"]);
    let [train, _] = episodes::split(&recordings, &config, 0.0, Random::new(1));
    let mut loader =
        Loader::new(Arc::new(train), &config, (StepShape { lanes: 2, unroll: 5 }, 0..2), Random::new(2), &Device::Cpu).unwrap();
    let known: Vec<Vec<f32>> = played.iter().flat_map(|one| one.get("aim").unwrap().to_vec2::<f32>().unwrap()).collect();
    for step in 0..2 * loader.steps_per_epoch() {
        let batch = loader.get(step).unwrap();
        let rows = |tensor: &Tensor| tensor.flatten(0, 1).unwrap().to_vec2::<f32>().unwrap();
        let (seen, numbers) = (rows(batch.inputs.get("seen").unwrap()), rows(batch.numbers.as_ref().unwrap()));
        for (seen, numbers) in seen.iter().zip(&numbers) {
            assert!((numbers[1] - (0.5 - seen[0])).abs() < 1e-6 && known.contains(numbers), "{numbers:?} beside {seen:?}");
        }
        assert!(!batch.inputs.iter().any(|(name, _)| name.contains("numbers")));
    }
}

#[test]
fn gaussian_components_that_cannot_be_are_refused() {
    let config = steering(false);
    let mut tensors = steered(Random::new(1), 4);
    for (aim, message) in [
        (Tensor::full(3f32, (4, 2), &Device::Cpu), "tensor aim: expected numbers from -2 to below 2.0000002, found 3 in column 0 of row 0"),
        (Tensor::full(f32::NAN, (4, 2), &Device::Cpu), "tensor aim: expected finite numbers, found NaN in column 0 of row 0"),
        (Tensor::zeros((4, 3), DType::F32, &Device::Cpu), "tensor aim: expected floats [4, 2], found floats [4, 3]"),
        (Tensor::zeros((4, 2), DType::U32, &Device::Cpu), "tensor aim: expected floats [4, 2], found integers [4, 2]"),
        (Tensor::zeros(4, DType::F32, &Device::Cpu), "tensor aim: expected [rows, 2] or [sequences, rows, 2], found [4]"),
    ] {
        tensors.insert("aim", aim.unwrap());
        assert_eq!(Recording::new("game", &tensors, &config).unwrap_err().to_string(), message);
    }
    let action = |keys: &str| format!("[[action]]\nname = \"aim\"\nkind = \"gaussian\"\n{keys}");
    let observation = "[[observation]]\nname = \"seen\"\nkind = \"floats\"\nshape = [1]\n";
    for (text, message) in [
        (format!("{observation}{}", action("columns = 0")), "config: action.aim.columns: 0 is outside 1..=256"),
        (
            format!("{observation}{}", action("low = 1.0\nhigh = 0.5")),
            "config: action.aim.low: expected numbers, low below high, found 1 and 0.5",
        ),
        (
            format!("heads = \"autoregressive\"\nprevious_action = 2\n{observation}{}", action("")),
            "config: previous_action: expected 0, found 2: no component has classes to look up",
        ),
        (
            format!("previous_action = 2\n{observation}{}", action("")),
            "config: previous_action: expected 0, found 2: no component has classes to look up",
        ),
        (format!("{observation}{}", action("").replace("aim", "seen")), "config: action.name: \"seen\": the name has another meaning"),
        (
            format!("{observation}{}", action("").replace("aim", "gaussian")),
            "config: action.name: \"gaussian\": the name has another meaning",
        ),
    ] {
        assert_eq!(description(&text).unwrap_err().to_string(), message);
    }
}

#[test]
fn a_command_that_lacks_half_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("bad.toml"), "hidden = 3\n").unwrap();
    for (arguments, message) in [
        (&["--episodes=games"][..], "--description <FILE>"),
        (&["--description=bad.toml", "--episodes=games"], "bad.toml: config: description: line 1: missing field `observation`"),
        (&["--set=data.batch=1000"], "config: data.batch: 4608 frames to train on are fewer than a step of 1000 x 32"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
        let output = run(command.current_dir(dir.path()).args(["agent", "--out=run"]).args(arguments));
        let stderr = text(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(message), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_recording_that_changes_under_a_run_ends_it_with_the_file_named() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..3 {
        save(dir.path(), &format!("game{seed}.safetensors"), &example::play(Random::new(seed), 40).unwrap());
    }
    let mut config = RunConfig::preset("quick").unwrap();
    (config.data.batch, config.data.unroll, config.data.held_out) = (4, 8, 0.0);
    let recordings = episodes::open(dir.path(), &config.model).unwrap();
    let plan = Plan::new(config, &recordings, Resources::default(), String::new()).unwrap();
    let file = dir.path().join("game1.safetensors");
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(400).unwrap();
    let error = plan.train(&Place::memory(), &Stop::after(None)).map(drop).unwrap_err().to_string();
    assert_eq!(error, format!("{}: the file has changed since it was opened", file.display()));
}

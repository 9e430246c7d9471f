//! Beam alignment: episodes with their gradients, and sweeps through the engine, against those of the host.

use crate::{assert_close, cases, cuda, flat, normal, on};
use candle_core::{DType, Device, Tensor, Var};
use candle_models::beam::channel::noise_deviation;
use candle_models::beam::{
    Array, Beam, BeamConfig, Channels, CodebookConfig, DecisionConfig, Episodes, Feedback, MemoryConfig, Mobility, Scheme, Sensing,
    Sounder, Sweep, Tapes, View, Weighting, alignment,
};
use candle_models::device::DeviceChoice;
use candle_models::engine::{Engine, Model, Options, Placement, Session};
use candle_models::exec::Launches;
use candle_models::nn::{MambaConfig, Params};
use candle_models::random::Random;
use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

const BATCH: usize = 3;

fn small(edit: impl Fn(&mut BeamConfig)) -> BeamConfig {
    let mut config = BeamConfig { measurements: 4, hidden: 16, base: 8, ..BeamConfig::default() };
    (config.channel.transmit, config.channel.receive) = (Array::Ula { elements: 8 }, Array::Ula { elements: 4 });
    config.codebook = CodebookConfig::Random { count: 3, seed: 4 };
    config.decision = DecisionConfig::measurements(16, 1);
    config.feedback = Feedback::Reals { values: 4 };
    edit(&mut config);
    config
}

/// Every scheme, view, memory, sweep, and what arrays can form, with channels that stay and channels that change.
fn variants() -> Vec<(&'static str, BeamConfig)> {
    let mamba = || MemoryConfig::Mamba { layers: 1, block: MambaConfig { state: 3, ..MambaConfig::default() } };
    vec![
        ("c3", small(|_| {})),
        ("c3 with mamba, a free sweep and moving users", {
            small(|c| (c.memory, c.sweep, c.channel.mobility) = (mamba(), Sweep::Free, Some(Mobility { doppler: 0.05, drift: 1.0 })))
        }),
        ("c3 as published", small(|c| (c.sweep, c.view, c.decision) = (Sweep::Free, View::Scalars, DecisionConfig::State))),
        ("c2 with phase shifters", {
            small(|c| (c.scheme, c.receive_weights, c.transmit_weights) = (Scheme::C2, Weighting::Phases, Weighting::Phases))
        }),
        ("c1 with mamba", small(|c| (c.scheme, c.feedback, c.memory, c.view) = (Scheme::C1, Feedback::Index, mamba(), View::Scalars))),
    ]
}

fn episodes(config: &BeamConfig) -> Episodes {
    let random = Random::new(9);
    let channels = Channels::generate(&config.channel, random.stream("channels"), 7, BATCH, config.measurements).unwrap();
    Episodes {
        channels: Arc::new(channels),
        measurements: config.measurements,
        start: if config.scheme == Scheme::C3 { vec![0, 2, 1] } else { vec![0; BATCH] },
        snr_db: vec![12.0, 3.0, 20.0],
        noise: random.stream("noise"),
        first: 7,
        sensing: Sensing::Measurements,
    }
}

/// What an episode led to, and the gradients of all parameters.
struct Run {
    values: Vec<(&'static str, Vec<f32>)>,
    gradients: BTreeMap<String, Vec<f32>>,
}

/// Episodes and how their beams fit, forward and backward, on parameters in f32 whose products are taken in `dtype`.
fn run(config: &BeamConfig, device: &Device, dtype: DType) -> Run {
    let fresh = Params::init(Random::new(3), device);
    Beam::new(config, &fresh).unwrap();
    let vars: BTreeMap<String, Var> = fresh.vars();
    let tensors = vars.iter().map(|(name, var)| (name.clone(), var.as_tensor().clone())).collect();
    let model = Beam::new(config, &Params::given(tensors, device).computing_in(dtype)).unwrap();
    let (episodes, tapes) = (episodes(config), Tapes::default());
    let decided = model.align(&episodes, &tapes).unwrap();
    let shares = alignment(&episodes.channels, config.measurements - 1, &decided.receive, &decided.transmit).unwrap();
    let logarithms = (&shares + 1e-2).unwrap().log().unwrap();
    // Every number of the shares and of what was said counts differently.
    let part = |name: &str, x: &Tensor| {
        let weights = on(&normal(name, x.dims()), device, x.dtype());
        (x * weights).unwrap().mean_all().unwrap()
    };
    let loss = (part("shares", &logarithms) + part("said", &decided.feedback)).unwrap();
    let store = loss.backward().unwrap();
    let gradient = |(name, var): (&String, &Var)| {
        let found = store.get(var).unwrap_or_else(|| panic!("{name} has no gradient"));
        assert_eq!(found.dtype(), DType::F32, "{name}");
        (name.clone(), flat(found))
    };
    let values =
        [("receive beam", &decided.receive), ("feedback", &decided.feedback), ("transmit beam", &decided.transmit), ("shares", &shares)];
    Run { values: values.map(|(name, x)| (name, flat(x))).to_vec(), gradients: vars.iter().map(gradient).collect() }
}

/// The largest difference as a share of the largest number.
fn error(found: &[f32], want: &[f32]) -> f32 {
    assert_eq!(found.len(), want.len());
    let largest = want.iter().fold(f32::MIN_POSITIVE, |m, x| m.max(x.abs()));
    let difference = found.iter().zip(want).map(|(f, w)| if f.is_finite() { (f - w).abs() } else { f32::INFINITY });
    difference.fold(0.0, f32::max) / largest
}

/// That values and the gradients of all parameters are near, as shares of the largest number of each.
fn assert_near(variant: &str, found: &Run, want: &Run, [values, gradients]: [f32; 2]) {
    for ((name, want), (_, found)) in want.values.iter().zip(&found.values) {
        let error = error(found, want);
        assert!(error < values, "{variant}: {name}: {error}");
    }
    assert!(found.gradients.keys().eq(want.gradients.keys()), "{variant}");
    for (name, want) in &want.gradients {
        let error = error(&found.gradients[name], want);
        assert!(error < gradients && want.iter().any(|x| *x != 0.0), "{variant}: gradient of {name}: {error}");
    }
}

#[test]
fn episodes_and_their_gradients_are_those_of_the_host() {
    let Some(device) = cuda() else { return };
    for (i, (variant, config)) in cases(variants(), 2).enumerate() {
        let [want, found] = [&Device::Cpu, &*device].map(|device| run(&config, device, DType::F32));
        // The host itself is up to 9e-6 away from the same gradients in f64: a processor that rounds otherwise may be as far again.
        assert_near(variant, &found, &want, [1e-5, 3e-5]);
        assert_eq!(found.gradients.contains_key("codebook"), config.scheme == Scheme::C3);
        if i == 0 {
            let again = run(&config, &device, DType::F32);
            assert!(found.values == again.values && found.gradients == again.gradients, "two runs differ");
        }
    }
}

/// A number in bf16 is off by up to 2^-9 of itself. About ten stand in a row between a measurement and a beam and twice as many
/// between the loss and a parameter; that steps pass their errors on, and that gradients cancel, is worth as much again, and more.
#[test]
fn episodes_in_bf16_stay_near() {
    let Some(device) = cuda() else { return };
    for (variant, config) in variants().into_iter().filter(|(variant, _)| ["c3", "c1 with mamba"].contains(variant)) {
        let [want, found] = [(&Device::Cpu, DType::F32), (&*device, DType::BF16)].map(|(device, dtype)| run(&config, device, dtype));
        assert_near(variant, &found, &want, [0.03, 0.15]);
    }
}

/// How many measurements a run of this program for [`launches`] makes.
const MEASUREMENTS: &str = "CANDLE_TEST_MEASUREMENTS";

/// What episodes of so many measurements, forward and backward, put on a GPU beside copies: the emulator counts it when a program ends,
/// so they run in one of their own. Nothing on a GPU that does not count.
fn launches(measurements: usize) -> Option<u64> {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program.args(["--exact", "beam::an_episode_takes_few_launches"]);
    let output = program.env(MEASUREMENTS, measurements.to_string()).env("CUDA_EMULATOR_LOG", "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let (_, tally) = text.split_once("cuda-emulator: in all Tally { ")?;
    let (tally, _) = tally.split_once(" }").unwrap();
    let counts = tally.split(", ").map(|count| count.split_once(": ").unwrap());
    let launched = counts.filter(|(what, _)| ["kernels", "library", "memsets"].contains(what));
    Some(launched.map(|(_, count)| count.parse::<u64>().unwrap()).sum())
}

#[test]
fn an_episode_takes_few_launches() {
    if let Ok(measurements) = std::env::var(MEASUREMENTS) {
        let device = cuda().expect("the test that started this has one");
        run(&small(|c| c.measurements = measurements.parse().unwrap()), &device, DType::F32);
        return;
    }
    if cuda().is_none() {
        return;
    }
    let Some([few, many]) = [4, 8].map(launches).into_iter().collect::<Option<Vec<_>>>().and_then(|n| <[u64; 2]>::try_from(n).ok()) else {
        eprintln!("no emulator: nobody counts launches");
        return;
    };
    // A measurement, two products for each of two gated units and one for the beam, three more kernels: and once more backwards.
    assert!(many - few <= 4 * 18, "{} launches for four more measurements", many - few);
    // Beside four measurements the making of the model, the codebook's sweep, the decision, the gain, the loss: plain tensor operations.
    assert!(few <= 700, "{few} launches for four measurements and all that comes before and behind");
}

fn model(config: &BeamConfig) -> Beam {
    let params = Params::init(Random::new(3), &Device::Cpu);
    Beam::new(config, &params).unwrap();
    let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
    Beam::new(config, &Params::given(tensors, &Device::Cpu)).unwrap()
}

/// A network in an engine on the GPU, with one session for each episode.
fn start(model: impl Model + 'static, launches: Launches) -> (Engine, Vec<Session>) {
    let place = Placement { device: DeviceChoice::Cuda(0), threads: 1, dtype: Some(DType::F32), launches };
    let options = Options { place, sessions: BATCH, max_batch: BATCH, ..Options::default() };
    let engine = Engine::start(Arc::new(model), &options).unwrap();
    let sessions = (0..BATCH).map(|_| engine.open().unwrap()).collect();
    (engine, sessions)
}

/// The episodes measurement by measurement, all of them in step, each network in an engine on the GPU: the user's beam, the feedback
/// and the base station's beam of each.
fn sweep(config: &BeamConfig, episodes: &Episodes, launches: Launches) -> Vec<[Vec<f32>; 3]> {
    let controller = model(config);
    let swept = flat(&controller.swept().unwrap());
    let Beam { user, decision, base, .. } = model(config);
    let [(_first, mut user), (_second, mut decision), (_third, mut base)] =
        [start(user, launches), start(decision, launches), start(base.unwrap(), launches)];
    let mut sounders: Vec<Sounder> = episodes.start.iter().map(|start| Sounder::new(&controller, *start).unwrap()).collect();
    for t in 0..config.measurements {
        for (b, (sounder, user)) in sounders.iter_mut().zip(&mut user).enumerate() {
            let sent = &swept[sounder.transmitted() * config.transmit_width()..][..config.transmit_width()];
            let [re, im] = episodes.channels.at(b, t).measure(sounder.beam(), sent);
            let (noise, snr) = (episodes.noise.at(episodes.first + b as u64), episodes.snr_db[b]);
            let [n, m] = [0, 1].map(|part| noise_deviation(snr).unwrap() * noise.normal(2 * t as u64 + part));
            sounder.observe([re + n, im + m], snr, user.floats_mut("features").unwrap()).unwrap();
            user.step().unwrap();
            sounder.follow(user.floats("beam").unwrap()).unwrap();
        }
    }
    let decide = |(b, sounder): (usize, &Sounder)| {
        decision[b].set_f32("measurements", sounder.measurements()).unwrap();
        decision[b].set_f32("state", user[b].floats("state").unwrap()).unwrap();
        decision[b].step().unwrap();
        let [mut receive, feedback] = ["beam", "feedback"].map(|name| decision[b].floats(name).unwrap().to_vec());
        config.receive_weights.round(&mut receive);
        base[b].set_f32("feedback", &feedback).unwrap();
        base[b].step().unwrap();
        let mut transmit = base[b].floats("beam").unwrap().to_vec();
        sounder.transmit(&mut transmit).unwrap();
        [receive, feedback, transmit]
    };
    sounders.iter().enumerate().map(decide).collect()
}

#[test]
fn a_sweep_through_the_engine_gives_the_beams_of_the_host() {
    let Some(_device) = cuda() else { return };
    // Rounded phases, so that rounding on the host between two steps of the engine is covered too.
    for config in [small(|_| {}), small(|c| c.receive_weights = Weighting::QuantisedPhases { bits: 4 })] {
        let episodes = episodes(&config);
        let want = model(&config).align(&episodes, &Tapes::default()).unwrap();
        let [captured, eager] = [Launches::Captured, Launches::Eager].map(|launches| sweep(&config, &episodes, launches));
        for (b, found) in captured.iter().enumerate() {
            for (found, want) in found.iter().zip([&want.receive, &want.feedback, &want.transmit]) {
                assert_close(&format!("episode {b}"), found, &flat(&want.get(b).unwrap()), 1e-5);
            }
        }
        assert_eq!(captured, eager, "a replayed graph is the eager pass bit for bit");
    }
}

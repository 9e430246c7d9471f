//! Beam controllers as a whole, beside the property suites of all families on their networks.

use candle_core::{DType, Device, Tensor};
use candle_models::beam::{
    Beam, BeamConfig, BeamFamily, Channels, DecisionConfig, Episodes, Evaluation, Feedback, Scheme, Sensing, Sounder, Tapes, Weighting,
};
use candle_models::bundle::Bundle;
use candle_models::engine::{Model, Runner};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::registry::Family;
use std::path::Path;
use std::sync::Arc;

fn small(edit: impl Fn(&mut BeamConfig)) -> BeamConfig {
    let mut config = BeamConfig { measurements: 6, hidden: 24, base: 16, ..BeamConfig::default() };
    config.decision = DecisionConfig::measurements(32, 1);
    edit(&mut config);
    config
}

/// The family's examples: every scheme, memory, view and kind of feedback.
fn configs() -> Vec<BeamConfig> {
    BeamFamily.examples().unwrap().into_iter().map(|manifest| serde_json::from_value(manifest.model).unwrap()).collect()
}

fn beam(config: &BeamConfig) -> Beam {
    let params = Params::init(Random::new(2), &Device::Cpu);
    Beam::new(config, &params).unwrap();
    let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
    Beam::new(config, &Params::given(tensors, &Device::Cpu)).unwrap()
}

fn flat(x: &Tensor) -> Vec<f32> {
    x.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, found: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= tolerance * (1.0 + y.abs()), "{what} at {i}: {x} and {y}");
    }
}

#[test]
fn a_sweep_measurement_by_measurement_ends_where_the_episode_ends() {
    for (i, config) in configs().iter().enumerate() {
        let (model, batch) = (beam(config), 4);
        let random = Random::new(8);
        let channels = Channels::generate(&config.channel, random.stream("channels"), 0, batch, config.measurements).unwrap();
        let episodes = Episodes {
            channels: Arc::new(channels),
            measurements: config.measurements,
            start: if config.scheme == Scheme::C3 { vec![0, 3, 7, 2] } else { vec![0; 4] },
            snr_db: vec![10.0, 0.0, 20.0, -5.0],
            noise: random.stream("noise"),
            first: 0,
            sensing: Sensing::Measurements,
        };
        let want = model.align(&episodes, &Tapes::default()).unwrap();
        let swept = flat(&model.swept().unwrap());
        let Beam { decision, base, .. } = beam(config);
        let [user, decision]: [Arc<dyn Model>; 2] = [Arc::new(beam(config).user), Arc::new(decision)];
        let base = base.map(|base| Arc::new(base) as Arc<dyn Model>);
        for b in 0..batch {
            let mut sounder = Sounder::new(&model, episodes.start[b]).unwrap();
            let mut network = Runner::new(user.clone(), 1, 1).unwrap();
            let mut noise = vec![0.0; 2 * config.measurements];
            random.stream("noise").at(b as u64).fill_normal(0, &mut noise);
            let deviation = candle_models::beam::channel::noise_deviation(episodes.snr_db[b]).unwrap();
            for t in 0..config.measurements {
                let sent = &swept[sounder.transmitted() * config.transmit_width()..][..config.transmit_width()];
                let [re, im] = episodes.channels.at(b, t).measure(sounder.beam(), sent);
                let y = [re + deviation * noise[2 * t], im + deviation * noise[2 * t + 1]];
                sounder.observe(y, episodes.snr_db[b], network.floats_mut("features", 0).unwrap()).unwrap();
                network.step(&[t == 0]).unwrap();
                sounder.follow(network.floats("beam", 0).unwrap()).unwrap();
            }
            let mut decide = Runner::new(decision.clone(), 1, 1).unwrap();
            decide.set_f32("measurements", sounder.measurements()).unwrap();
            decide.set_f32("state", network.floats("state", 0).unwrap()).unwrap();
            if config.pursuit().is_some() {
                decide.set_f32("snr", &[sounder.snr()]).unwrap();
            }
            decide.step(&[true]).unwrap();
            let row = |x: &Tensor| flat(&x.get(b).unwrap());
            let (index, receive) = config.keep(decide.floats("beam", 0).unwrap(), decide.floats("feedback", 0).unwrap()).unwrap();
            assert_close(&format!("config {i}, receive beam {b}"), &receive, &row(&want.receive), 2e-4);
            assert_close(&format!("config {i}, feedback {b}"), decide.floats("feedback", 0).unwrap(), &row(&want.feedback), 2e-4);
            if let Some(index) = index {
                let transmit = &swept[index * config.transmit_width()..][..config.transmit_width()];
                assert_close(&format!("config {i}, transmit beam {b}"), transmit, &row(&want.transmit), 0.0);
            }
            if let Some(base) = &base {
                let sent = Tensor::new(decide.floats("feedback", 0).unwrap(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
                let mut station = Runner::new(base.clone(), 1, 1).unwrap();
                station.set_f32("feedback", &flat(&config.feedback.send(&sent).unwrap())).unwrap();
                station.step(&[true]).unwrap();
                let mut transmit = station.floats("beam", 0).unwrap().to_vec();
                sounder.transmit(&mut transmit).unwrap();
                assert_close(&format!("config {i}, transmit beam {b}"), &transmit, &row(&want.transmit), 2e-4);
            }
        }
    }
}

#[test]
fn what_is_wrong_is_named() {
    let message = |edit: &dyn Fn(&mut BeamConfig)| small(edit).validate().unwrap_err().to_string();
    use candle_models::beam::{Array, ChannelModel, CodebookConfig, Geometric};
    for (found, field) in [
        (message(&|c| c.measurements = 0), "measurements"),
        (message(&|c| c.channel.receive = Array::Ula { elements: 1 }), "receive.elements"),
        (message(&|c| c.channel.model = ChannelModel::Geometric(Geometric { paths: 0, ..Geometric::default() })), "model.paths"),
        (message(&|c| c.feedback = Feedback::Quantised { values: 4, bits: 0 }), "feedback.bits"),
        (message(&|c| c.feedback = Feedback::Reals { values: 0 }), "feedback.values"),
        (message(&|c| c.feedback = Feedback::Index), "feedback.kind"),
        (message(&|c| c.codebook = CodebookConfig::Random { count: 0, seed: 1 }), "codebook.count"),
        (message(&|c| c.receive_weights = Weighting::QuantisedPhases { bits: 0 }), "receive_weights.bits"),
        (message(&|c| c.hidden = 0), "hidden"),
    ] {
        assert!(found.starts_with(&format!("config: {field}: ")), "{field}: {found}");
    }

    let config = small(|_| {});
    let model = beam(&config);
    let episodes = |snr: f32, start: u32, measurements: usize| {
        let channels = Channels::generate(&config.channel, Random::new(1), 0, 2, measurements.max(1)).unwrap();
        let (channels, noise) = (Arc::new(channels), Random::new(1));
        let sensing = Sensing::Measurements;
        let episodes = Episodes { channels, measurements, start: vec![start; 2], snr_db: vec![snr; 2], noise, first: 0, sensing };
        model.align(&episodes, &Tapes::default()).unwrap_err().to_string()
    };
    assert!(episodes(f32::NAN, 0, 6).starts_with("config: snr_db: NaN"), "{}", episodes(f32::NAN, 0, 6));
    assert!(episodes(f32::INFINITY, 0, 6).starts_with("config: snr_db: inf"));
    assert_eq!(episodes(10.0, 8, 6), "start: 8 in a codebook of 8 beams");
    assert!(episodes(10.0, 0, 0).starts_with("config: measurements: 0 is outside"));
    assert!(episodes(10.0, 0, 7).starts_with("config: measurements: 7 is outside"));

    let mut sounder = Sounder::new(&model, 0).unwrap();
    let mut features = vec![0.0; config.features()];
    assert!(Sounder::new(&model, 8).unwrap_err().to_string().starts_with("config: start: 8"));
    let error = sounder.observe([f32::NAN, 0.0], 10.0, &mut features).unwrap_err().to_string();
    assert_eq!(error, "measurement 0: expected finite numbers, found [NaN, 0.0] at 10 dB");
    assert!(sounder.observe([1.0, 0.0], 10.0, &mut features[1..]).unwrap_err().to_string().starts_with("tensor features: expected [268]"));
    assert_eq!(sounder.follow(&[0.0; 3]).unwrap_err().to_string(), "tensor beam: expected [32], found [3]");
    assert_eq!(sounder.step(), 0);
    for _ in 0..6 {
        sounder.observe([1.0, 0.0], 10.0, &mut features).unwrap();
    }
    assert!(sounder.observe([1.0, 0.0], 10.0, &mut features).unwrap_err().to_string().starts_with("config: measurements: 7"));
}

/// The page's first table says for every controller `| name | measurements | mean +- error | ...`.
#[test]
fn the_shipped_controllers_reach_what_their_page_says() {
    let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights");
    let page = std::fs::read_to_string(weights.join("beam/README.md")).unwrap();
    let (mut seen, count) = (0, 1024);
    for line in page.lines().filter(|line| line.starts_with("| beam-")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let (&[_, name, "16", gain, _, _, _, _, channels, _], Ok(bundle)) = (&cells[..], Bundle::open(weights.join(cells[1]))) else {
            continue;
        };
        let [mean, error] = [0, 1].map(|i| gain.split(" ± ").nth(i).unwrap().parse::<f64>().unwrap());
        let model = Beam::load(&bundle, &Device::Cpu).unwrap();
        let evaluation = Evaluation { seed: 1, snr_db: 10.0, measurements: 16, sensing: Sensing::Measurements, first: 0, count };
        let found = evaluation.controller(&model, &Tapes::default()).unwrap().summary().unwrap();
        let spread = error * (channels.parse::<f64>().unwrap() / count as f64).sqrt();
        assert!((found.mean_db - mean).abs() < 4.0 * spread, "{name}: {} instead of {mean} +- {spread}", found.mean_db);
        seen += 1;
    }
    assert!(seen >= 6, "the page shows {seen} controllers");
}

#[test]
fn a_channel_without_power_does_not_poison_a_batch() {
    let config = small(|_| {});
    let params = Params::init(Random::new(2), &Device::Cpu);
    let model = Beam::new(&config, &params).unwrap();
    let channels = Channels::generate(&config.channel, Random::new(1), 0, 3, 6).unwrap();
    let mut gains = channels.gains().to_vec();
    gains[..6].fill(0.0);
    let zeros = vec![0.0; gains.len()];
    let given = candle_models::beam::PathParameters { batch: 3, steps: 1, paths: 3, gains: &gains, departure: &zeros, arrival: &zeros };
    let channels = Arc::new(Channels::from_paths(&config.channel.receive, &config.channel.transmit, &given).unwrap());
    for sensing in [Sensing::Measurements, Sensing::Nothing] {
        let (start, noise) = (vec![0; 3], Random::new(1));
        let episodes = Episodes { channels: channels.clone(), measurements: 6, start, snr_db: vec![10.0; 3], noise, first: 0, sensing };
        let decided = model.align(&episodes, &Tapes::default()).unwrap();
        let shares = candle_models::beam::alignment(&channels, 5, &decided.receive, &decided.transmit).unwrap();
        assert_eq!(flat(&shares.get(0).unwrap()), [0.0; 3]);
        let grads = ((shares + 1e-3).unwrap().log().unwrap().mean_all().unwrap()).backward().unwrap();
        for (name, var) in params.vars() {
            assert!(flat(grads.get(&var).unwrap()).iter().all(|g| g.is_finite()), "{name} with {sensing:?}");
        }
    }
}

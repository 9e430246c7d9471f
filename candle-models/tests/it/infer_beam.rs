//! The command `candle-infer` on beam controllers, run as a user runs it.

use crate::infer::{done, refused};
use candle_core::{Device, Tensor};
use candle_models::beam::{
    Beam, BeamConfig, Channels, DecisionConfig, Episodes, FAMILY, Feedback, Mobility, Scheme, Sensing, Tapes, Weighting,
};
use candle_models::bundle::{self, Bundle, Manifest, Role};
use candle_models::cli;
use candle_models::engine::Runner;
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use tempfile::TempDir;

/// More than run side by side.
const COUNT: usize = 70;

fn configs() -> [BeamConfig; 3] {
    let decision = DecisionConfig::measurements(32, 1);
    let small = BeamConfig { measurements: 6, hidden: 24, base: 16, decision, ..BeamConfig::default() };
    let choosing = BeamConfig { scheme: Scheme::C1, feedback: Feedback::Index, ..small.clone() };
    let mut moving = BeamConfig { feedback: Feedback::Quantised { values: 8, bits: 4 }, ..small.clone() };
    moving.receive_weights = Weighting::QuantisedPhases { bits: 3 };
    moving.channel.mobility = Some(Mobility { doppler: 0.01, drift: 0.5 });
    [small, choosing, moving]
}

/// A folder with a bundle `beam` of random parameters.
struct Place {
    root: TempDir,
    model: Beam,
}

impl Place {
    fn new(config: &BeamConfig) -> Self {
        let root = tempfile::tempdir().unwrap();
        let params = Params::init(Random::new(4), &Device::Cpu);
        let model = Beam::new(config, &params).unwrap();
        let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
        let files = [(bundle::CARD, b"# A beam controller\n".to_vec())];
        bundle::save(root.path().join("beam"), &Manifest::new(FAMILY, config).unwrap(), &tensors, Value::Null, &files).unwrap();
        Self { root, model }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Draws `COUNT` channels of the bundle.
    fn generate(&self, name: &str, more: &[&str]) -> NamedTensors {
        let count = COUNT.to_string();
        let (out, bundle) = (self.text(name), self.text("beam"));
        done([&["generate", "beam", &out, "--bundle", &bundle, "--count", &count], more].concat());
        self.load(name)
    }

    fn load(&self, name: &str) -> NamedTensors {
        NamedTensors::load_safetensors(self.path(name)).unwrap()
    }

    /// Runs the bundle on a file and gives what it wrote.
    fn run(&self, input: &str, out: &str, more: &[&str]) -> NamedTensors {
        done([&["run", &self.text("beam"), &self.text(input), "--out", &self.text(out)], more].concat());
        self.load(out)
    }
}

fn flat(tensors: &NamedTensors, name: &str) -> Vec<f32> {
    tensors.get(name).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn indices(tensors: &NamedTensors, name: &str) -> Vec<u32> {
    tensors.get(name).unwrap().to_vec1().unwrap()
}

fn decibels(gain: f32) -> f32 {
    candle_models::beam::metrics::decibels(gain) as f32
}

fn assert_close(what: &str, found: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(found.len(), want.len(), "{what}");
    for (i, (x, y)) in found.iter().zip(want).enumerate() {
        assert!((x - y).abs() <= tolerance, "{what} at {i}: {x} and {y}");
    }
}

#[test]
fn channels_are_aligned_as_the_library_aligns_them() {
    for config in configs() {
        let place = Place::new(&config);
        let channels = place.generate("channels.safetensors", &["--seed", "3", "--snr", "12"]);
        let steps = if config.channel.mobility.is_some() { config.measurements } else { 1 };
        assert_eq!(channels.get("channels").unwrap().dims(), [COUNT, steps, 16, 32, 2]);
        assert_eq!(flat(&channels, "snr_db"), [12.0; COUNT]);
        let found = place.run("channels.safetensors", "found.safetensors", &["--seed", "9"]);
        let start = indices(&found, "start");
        assert_eq!(start.iter().any(|start| *start > 0), config.scheme == Scheme::C3);

        let (receive, transmit) = (&config.channel.receive, &config.channel.transmit);
        let channels = Channels::from_matrices(COUNT, steps, receive, transmit, &flat(&channels, "channels")).unwrap();
        let channels = Arc::new(channels);
        let (noise, sensing) = (Random::new(9).stream("noise"), Sensing::Measurements);
        let (measurements, snr_db) = (config.measurements, vec![12.0; COUNT]);
        let episodes = Episodes { channels: channels.clone(), measurements, start, snr_db, noise, first: 0, sensing };
        let want = place.model.align(&episodes, &Tapes::default()).unwrap();
        let [w, f] = [&want.receive, &want.transmit].map(|x| x.to_vec2::<f32>().unwrap());
        assert_close("receive", &flat(&found, "receive"), &w.concat(), 1e-3);
        assert_close("transmit", &flat(&found, "transmit"), &f.concat(), 1e-3);
        let gains: Vec<f32> = (0..COUNT).map(|b| channels.at(b, measurements - 1).gain(&w[b], &f[b])).collect();
        let gain_db: Vec<f32> = gains.into_iter().map(decibels).collect();
        assert_close("gain", &flat(&found, "gain_db"), &gain_db, 0.05);
        let satisfied: Vec<u32> = flat(&found, "gain_db").iter().map(|gain| u32::from(gain + 12.0 >= 20.0)).collect();
        assert_eq!(indices(&found, "satisfied"), satisfied);
        assert_eq!(found.contains("index"), config.scheme == Scheme::C1);
        if config.scheme == Scheme::C1 {
            let best = want.feedback.argmax(1).unwrap().to_vec1::<u32>().unwrap();
            assert_eq!(indices(&found, "index"), best);
        }
    }
}

/// Networks that have learned nothing measure with beams that say a little, and decide on beams that gain nothing.
#[test]
fn the_posterior_decides_on_request() {
    let [any, swept, moving] = configs();
    for config in [any, swept] {
        let place = Place::new(&config);
        place.generate("channels.safetensors", &["--seed", "3", "--snr", "20"]);
        let decided = place.run("channels.safetensors", "decided.safetensors", &[]);
        let [bundle, channels, out] = ["beam", "channels.safetensors", "found.safetensors"].map(|name| place.text(name));
        let said = done(["run", &bundle, &channels, "--posterior", "--out", &out]);
        assert!(said.contains("of it the decision by the posterior: "), "{said}");
        let found = place.load("found.safetensors");
        for name in ["measurements", "beams", "start"] {
            assert_eq!(found.get(name).unwrap().to_string(), decided.get(name).unwrap().to_string(), "{name}");
        }
        let mean = |tensors: &NamedTensors| flat(tensors, "gain_db").iter().sum::<f32>() / COUNT as f32;
        assert!(mean(&found) > mean(&decided) + 6.0, "{} and {} dB", mean(&found), mean(&decided));
        // Of what was recorded it says the same, whatever threads there are.
        let again = place.run("found.safetensors", "again.safetensors", &["--posterior", "--threads", "1"]);
        for name in ["receive", "transmit"] {
            assert_eq!(flat(&again, name), flat(&found, name), "{name}");
        }
        if config.scheme == Scheme::C1 {
            let (codebook, transmit) = (place.model.sweep().unwrap(), flat(&found, "transmit"));
            for (index, transmit) in indices(&found, "index").iter().zip(transmit.chunks_exact(config.transmit_width())) {
                assert_eq!(transmit, codebook.beam(*index as usize));
            }
        }
    }
    let place = Place::new(&moving);
    refused(["run", &place.text("beam"), "--posterior"], 1, &["--posterior: not with this controller: config: mobility: "]);
}

/// The page stands alone, has a row for every measurement and a field for some counts of them, and says what it does not know.
#[test]
fn a_page_shows_one_alignment() {
    let [any, swept, moving] = configs();
    for (config, knows) in [(any, true), (swept, true), (moving, false)] {
        let place = Place::new(&config);
        let (bundle, page) = (place.text("beam"), place.text("page.html"));
        done(["run", &bundle, "--html", &page, "--episode", "7"]);
        let drawn = fs::read_to_string(&page).unwrap();
        assert!(drawn.starts_with("<!doctype html>") && drawn.contains("<h1>Episode 7 at 10 dB</h1>") && !drawn.contains("<script"));
        // Two patterns for each measurement, and the two decided beams.
        assert_eq!(drawn.matches("fill-opacity").count(), 2 * config.measurements + 2);
        assert_eq!(drawn.matches("</svg>").count(), if knows { 2 } else { 1 });
        assert_eq!(drawn.contains(" measurements</text>"), knows);
        assert_eq!(drawn.contains("is not known: config: mobility: "), !knows);
        // Three paths at both ends, and a cross for each in four fields.
        assert_eq!(drawn.matches("stroke-dasharray").count(), 6);
        assert_eq!(drawn.matches("stroke=\"var(--warn)\" stroke-width=\"2\"").count(), if knows { 12 } else { 0 });
        assert!(!drawn.contains("NaN") && !drawn.contains("inf"), "{drawn}");

        place.generate("channels.safetensors", &[]);
        let channels = place.text("channels.safetensors");
        done(["run", &bundle, &channels, "--html", &page]);
        let of_matrices = fs::read_to_string(&page).unwrap();
        assert!(of_matrices.contains("Episode 0 at") && !of_matrices.contains("stroke-dasharray"));
        refused(["run", &bundle, &channels, "--html", &page, "--episode", "70"], 1, &["--episode: 70 of 70 episodes"]);
    }
}

#[test]
fn measurements_of_a_run_give_the_same_beams_again() {
    for config in configs() {
        let place = Place::new(&config);
        place.generate("channels.safetensors", &[]);
        let first = place.run("channels.safetensors", "first.safetensors", &["--snr", "-3"]);
        assert_eq!(flat(&first, "snr_db"), [-3.0; COUNT]);
        // The whole result is an input, and what it needs of it.
        let again = place.run("first.safetensors", "again.safetensors", &[]);
        let names = ["measurements", "snr_db", "start"];
        let needed: NamedTensors = names.into_iter().map(|name| (name.to_owned(), first.get(name).unwrap().clone())).collect();
        needed.save_safetensors(place.path("needed.safetensors")).unwrap();
        let asked = place.run("needed.safetensors", "asked.safetensors", &[]);
        for found in [&again, &asked] {
            for name in ["receive", "transmit", "beams", "measurements"] {
                // Recorded beams are rounded to what the array can form once more: the last bit moves.
                assert_close(name, &flat(found, name), &flat(&first, name), 1e-4);
            }
            assert!(!found.contains("gain_db") && !found.contains("satisfied"));
        }
        // Other beams than the network asked for mean other measurements.
        let mut moved = needed.clone();
        let beams = first.get("beams").unwrap();
        let turned = Tensor::cat(&[&beams.narrow(1, 1, config.measurements - 1).unwrap(), &beams.narrow(1, 0, 1).unwrap()], 1).unwrap();
        moved.insert("beams", turned);
        moved.save_safetensors(place.path("moved.safetensors")).unwrap();
        let other = flat(&place.run("moved.safetensors", "other.safetensors", &[]), "receive");
        let distance = other.iter().zip(flat(&first, "receive")).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
        assert!(distance > 0.01, "{distance}");
    }
}

#[test]
fn without_inputs_channels_are_drawn_as_generate_draws_them() {
    let place = Place::new(&configs()[0]);
    let bundle = place.text("beam");
    done(["generate", "beam", &place.text("channels.safetensors"), "--bundle", &bundle, "--seed", "5"]);
    let found = place.run("channels.safetensors", "found.safetensors", &["--seed", "5"]);
    done(["run", &bundle, "--seed", "5", "--out", &place.text("drawn.jsonl")]);
    let text = fs::read_to_string(place.path("drawn.jsonl")).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1000);
    let drawn: Vec<f32> = lines.iter().map(|line| line["gain_db"].as_f64().unwrap() as f32).collect();
    assert_close("gain", &drawn, &flat(&found, "gain_db"), 0.05);
    let mean = drawn.iter().sum::<f32>() / drawn.len() as f32;
    assert_eq!((&lines[7]["episode"], lines[7]["beams"].as_array().unwrap().len()), (&Value::from(7), 6 * 32));

    let table = done(["run", &bundle, "--every", "500", "--seed", "5"]);
    for part in ["1000 GENERATED channels", "episode 500: start ", "satisfied (gain + SNR of 20 dB or more)", "6000 frames, 1 of 1 inputs"]
    {
        assert!(table.contains(part), "{part:?} is not in {table}");
    }
    assert!(table.contains(&format!("gain {mean:.2} +- ")), "{mean} is not in {table}");
}

#[test]
fn generate_draws_what_it_is_told() {
    let place = Place::new(&configs()[0]);
    let generate = |name: &str, more: &[&str]| {
        done([&["generate", "beam", &place.text(name)], more].concat());
        place.load(name)
    };
    let channels = |more: &[&str]| generate("x.safetensors", more).get("channels").unwrap().clone();
    let values = |x: &Tensor| x.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    // A channel depends on its number, not on how many are drawn.
    let (few, many) = (channels(&["--count", "3", "--seed", "1"]), channels(&["--count", "100", "--seed", "1"]));
    assert_eq!(values(&few), values(&many.narrow(0, 0, 3).unwrap()));
    assert_ne!(values(&few), values(&channels(&["--count", "3", "--seed", "2"])));
    let power = |x: &Tensor| values(x).iter().map(|x| f64::from(x * x)).sum::<f64>() / x.dims()[0] as f64;
    let rician = channels(&["--count", "400", "--rician", "30", "--paths", "2"]);
    assert!((power(&rician) / 1024.0 - 1.0).abs() < 0.05, "{}", power(&rician));
    let moving =
        channels(&["--count", "2", "--transmit", "2x4", "--receive", "4", "--profile", "CDL-b", "--doppler", "0.1", "--steps", "5"]);
    assert_eq!(moving.dims(), [2, 5, 4, 8, 2]);
    assert_ne!(values(&moving.narrow(1, 0, 1).unwrap()), values(&moving.narrow(1, 4, 1).unwrap()));
    assert!(!generate("x.safetensors", &["--count", "1"]).contains("snr_db"));

    let bundle = place.text("beam");
    let bad: [(&[&str], &[&str]); 10] = [
        (&["--paths", "0"], &["model.paths", "0"]),
        (&["--azimuth", "nan"], &["model.azimuth", "NaN"]),
        (&["--rician", "inf"], &["model.rician_db", "inf"]),
        (&["--transmit", "1"], &["transmit.elements", "1"]),
        (&["--receive", "4by4"], &["--receive", "4by4"]),
        (&["--profile", "cdl-f"], &["--profile", "cdl-f", "cdl-a to cdl-e"]),
        (&["--profile", "cdl-a", "--paths", "2"], &["--profile", "--paths"]),
        (&["--steps", "4"], &["--doppler"]),
        (&["--bundle", &bundle, "--paths", "2"], &["--bundle", "--paths"]),
        (&["--snr", "nan"], &["--snr", "NaN"]),
    ];
    for (more, parts) in bad {
        refused([&["generate", "beam", &place.text("bad.safetensors")], more].concat(), 2, parts);
    }
    refused(["generate", "beam", &place.text("bad.csv")], 2, &["bad.csv", ".safetensors"]);
    refused(["generate", "beam", &place.text("bad.jsonl")], 2, &["bad.jsonl", ".safetensors"]);
    refused(["generate", "beam", &place.text("bad.safetensors"), "--count", "0"], 2, &["--count"]);
    assert!(!place.path("bad.safetensors").exists() && !place.path("bad.jsonl").exists());
}

/// The tensors of a file, and what is said about them.
type Case = (Vec<(&'static str, Tensor)>, Vec<&'static str>);

#[test]
fn what_is_wrong_in_a_file_is_named() {
    let place = Place::new(&configs()[0]);
    let zeros = |shape: &[usize]| Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).unwrap();
    let with = |shape: &[usize], at: usize, x: f32| {
        let mut values = vec![0.5; shape.iter().product()];
        values[at] = x;
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    };
    let (h, y) = ([2, 1, 16, 32, 2], [2, 6, 2]);
    let (channels, measurements) = (|| with(&h, 0, 0.5), || with(&y, 0, 0.5));
    let index = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
    let bad: Vec<Case> = vec![
        (vec![("channels", zeros(&[2, 1, 8, 32, 2]))], vec!["channels", "[1 or more, 1 or more, 16, 32, 2]", "[2, 1, 8, 32, 2]"]),
        (vec![("channels", zeros(&[16, 32, 2]))], vec!["channels", "[16, 32, 2]"]),
        (vec![("channels", zeros(&[0, 1, 16, 32, 2]))], vec!["channels", "[0, 1, 16, 32, 2]"]),
        (vec![("channels", zeros(&[2, 3, 16, 32, 2]))], vec!["channels", "1 step or 6", "3 steps"]),
        (vec![("channels", index(&[1]))], vec!["channels", "F32", "U32 [1]"]),
        (vec![("channels", with(&h, 7, f32::NAN))], vec!["channels", "finite numbers", "NaN at index 7"]),
        (vec![("channels", with(&h, 8, f32::INFINITY))], vec!["channels", "inf at index 8"]),
        (vec![("channels", with(&h, 0, 3e38))], vec!["episode 0", "finite"]),
        (vec![("channels", channels()), ("snr_db", with(&[3], 0, 1.0))], vec!["snr_db", "F32 [2]", "F32 [3]"]),
        (vec![("channels", channels()), ("snr_db", with(&[2], 1, f32::NAN))], vec!["snr_db", "NaN at index 1"]),
        (vec![("channels", channels()), ("snr_db", with(&[2], 1, 101.0))], vec!["snr_db", "101 is outside"]),
        (vec![("channels", channels()), ("start", index(&[0, 8]))], vec!["start", "codebook of 8", "8 at 1"]),
        (vec![("channels", channels()), ("start", zeros(&[2]))], vec!["start", "U32 [2]", "F32 [2]"]),
        (vec![("channels", channels()), ("noise", zeros(&[2]))], vec!["noise", "another name"]),
        (vec![("channels", channels()), ("measurements", measurements())], vec!["measurements", "both"]),
        (vec![("snr_db", zeros(&[2]))], vec!["channels", "features", "only [snr_db]"]),
        (vec![("measurements", zeros(&[2, 6]))], vec!["measurements", "[2, 6]"]),
        (vec![("measurements", zeros(&[2, 0, 2]))], vec!["measurements", "[2, 0, 2]"]),
        (vec![("measurements", zeros(&[2, 7, 2]))], vec!["measurements", "at most 6", "found 7"]),
        (vec![("measurements", with(&y, 3, f32::NAN))], vec!["measurements", "NaN at index 3"]),
        (vec![("measurements", measurements()), ("beams", zeros(&[2, 6, 30]))], vec!["beams", "[2, 6, 32]", "[2, 6, 30]"]),
        (vec![("measurements", measurements()), ("beams", zeros(&[2, 6, 32]))], vec!["beams", "norms of 1", "0 in sweep 0, step 0"]),
        (vec![("features", zeros(&[2, 6, 3]))], vec!["features", "[2, 6, 3]"]),
    ];
    for (tensors, parts) in bad {
        let tensors: NamedTensors = tensors.into_iter().map(|(name, x)| (name.to_owned(), x)).collect();
        tensors.save_safetensors(place.path("in.safetensors")).unwrap();
        let arguments = ["run", &place.text("beam"), &place.text("in.safetensors"), "--out", &place.text("out.safetensors")];
        refused(arguments, 1, &[&["in.safetensors"], parts.as_slice()].concat());
        assert!(!place.path("out.safetensors").exists());
    }
    let run = |more: &[&str], code, parts: &[&str]| refused([&["run", &place.text("beam")], more].concat(), code, parts);
    run(&["--snr", "inf"], 2, &["--snr", "inf"]);
    run(&["--port", "1"], 2, &["--port", "beam"]);
    run(&["--sample"], 2, &["--sample", "beam"]);
    run(&["--name", "X"], 2, &["--name", "beam"]);
    fs::write(place.path("game.slp"), "{}").unwrap();
    run(&[&place.text("game.slp")], 1, &["policy", "beam"]);
}

#[test]
fn features_run_frame_by_frame_and_the_other_commands_know_the_family() {
    let config = &configs()[0];
    let place = Place::new(config);
    let mut features = vec![0.0; 2 * 5 * config.features()];
    Random::new(1).fill_normal(0, &mut features);
    let features = Tensor::from_vec(features, (2, 5, config.features()), &Device::Cpu).unwrap();
    let file: NamedTensors = [("features".to_owned(), features)].into_iter().collect();
    file.save_safetensors(place.path("features.safetensors")).unwrap();
    assert_eq!(place.run("features.safetensors", "out.safetensors", &[]).get("beam").unwrap().dims(), [2, 5, 32]);

    assert!(done(["inspect", &place.text("beam")]).contains("beam, format version"));
    let channels = place.generate("channels.safetensors", &[]);
    assert_eq!(channels.len(), 1);
    let original = flat(&place.run("channels.safetensors", "original.safetensors", &[]), "gain_db");
    for (dtype, tolerance) in [("f32", 0.0), ("bf16", 1.0), ("q8", 1.0)] {
        let exported = place.text(dtype);
        let report = done(["export", &place.text("beam"), &exported, "--dtype", dtype]);
        for part in [
            "over 256 simulated links",
            "the user's state differs by at most",
            "the decision's feedback differs",
            "the base station's beam differs",
            "the mean gain (",
        ] {
            assert!(report.contains(part), "{part} is not in {report}");
        }
        let out = place.text("exported.safetensors");
        done(["run", &exported, &place.text("channels.safetensors"), "--out", &out]);
        let found = flat(&place.load("exported.safetensors"), "gain_db");
        let mut differences: Vec<f32> = found.iter().zip(&original).map(|(x, y)| (x - y).abs()).collect();
        differences.sort_by(f32::total_cmp);
        assert!(differences[COUNT / 2] <= tolerance, "{dtype}: {}", differences[COUNT / 2]);
    }
}

#[test]
fn inspect_counts_the_work_of_a_measurement_apart_from_that_of_a_decision() {
    for (i, config) in configs().iter().enumerate() {
        let place = Place::new(config);
        let specs = Beam::parameters(config).unwrap();
        let sum = |networks: &[&str]| -> usize {
            let belongs = |name: &str| networks.contains(&name.split('.').next().unwrap());
            specs.iter().filter(|p| p.role == Role::Matrix && belongs(&p.name)).map(|p| p.shape.iter().product::<usize>()).sum()
        };
        let (user, decided) = (sum(&["user"]), sum(&["decision", "base"]));
        // Two layers of 3 x 24 from 268 and from 24 numbers and from 24 of their state, and the beam.
        assert_eq!(user, (268 + 24 + 24 + 24) * 72 + 24 * 32);
        let value: Value = serde_json::from_str(&done(["inspect", &place.text("beam"), "--json"])).unwrap();
        let found =
            ["multiply_adds", "multiply_adds_per_episode", "measurements_per_episode"].map(|key| value[key].as_u64().unwrap() as usize);
        assert_eq!(found, [user, decided, 6], "configuration {i}");
        let [user, decided, all] = [user, decided, 6 * user + decided].map(|n| cli::count(n as u64));
        let text = done(["inspect", &place.text("beam")]);
        for part in [format!("{user} multiply-adds per measurement"), format!("{decided} per episode"), format!("{all} in an episode of 6")]
        {
            assert!(text.contains(&part), "{part} is not in {text}");
        }
    }
}

#[test]
fn a_file_of_features_gives_the_beams_that_the_array_is_set_to() {
    let config = &configs()[2];
    let place = Place::new(config);
    let (rows, steps, width) = (2, 5, config.features());
    let mut features = vec![0.0; rows * steps * width];
    Random::new(1).fill_normal(0, &mut features);
    let tensor = Tensor::from_slice(&features, (rows, steps, width), &Device::Cpu).unwrap();
    let file: NamedTensors = [("features".to_owned(), tensor)].into_iter().collect();
    file.save_safetensors(place.path("features.safetensors")).unwrap();
    let found = flat(&place.run("features.safetensors", "out.safetensors", &[]), "beam");

    let mut user = Runner::new(Arc::new(place.model.user), rows, 1).unwrap();
    let mut turned = 0;
    for t in 0..steps {
        for row in 0..rows {
            user.floats_mut("features", row).unwrap().copy_from_slice(&features[(row * steps + t) * width..][..width]);
        }
        user.step(&[t == 0; 2]).unwrap();
        for row in 0..rows {
            let mut beam = user.floats("beam", row).unwrap().to_vec();
            let found = &found[(row * steps + t) * beam.len()..][..beam.len()];
            turned += beam.iter().zip(found).filter(|(x, y)| (*x - *y).abs() > 1e-3).count();
            config.receive_weights.round(&mut beam);
            assert_close(&format!("row {row} at {t}"), found, &beam, 1e-6);
        }
    }
    assert!(turned > 100, "{turned} numbers were rounded");
}

/// What these controllers gain is next to nothing, with or without the networks that are damaged here.
#[test]
fn an_export_whose_networks_answer_otherwise_leaves_nothing() {
    let config = &configs()[0];
    for (weight, whose) in [("user.memory.0.input.weight", "the user's"), ("decision.input.weight", "the decision's")] {
        let place = Place::new(config);
        let bundle = Bundle::open(place.path("beam")).unwrap();
        let mut tensors = bundle.read_tensors(&Beam::parameters(config).unwrap()).unwrap();
        let (inputs, outputs) = tensors[weight].dims2().unwrap();
        let mut values = tensors[weight].flatten_all().unwrap().to_vec1::<f32>().unwrap();
        // Six measurements never come to the last of eight beams: what is read in its place is zero. Beside such a weight 8 bits leave
        // nothing of the others in its column.
        values[7 * 32 * outputs..8 * 32 * outputs].fill(1e4);
        tensors.insert(weight.to_owned(), Tensor::from_vec(values, (inputs, outputs), &Device::Cpu).unwrap());
        bundle::save(place.path("beam"), bundle.manifest(), &tensors, Value::Null, &[]).unwrap();
        for dtype in ["f32", "bf16"] {
            done(["export", &place.text("beam"), &place.text(dtype), "--dtype", dtype]);
        }
        let arguments = ["export", &place.text("beam"), &place.text("q8"), "--dtype", "q8"];
        refused(arguments, 1, &["not exported", "more than 0.08 of its root mean square", &format!("{whose} beam differs")]);
        assert!(!place.path("q8").exists());
    }
}

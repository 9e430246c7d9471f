//! The page of beam controllers, of small untrained ones.

use crate::{run, text};
use candle_core::Device;
use candle_models::beam::{
    Array, Baseline, Beam, BeamConfig, Cdl, ChannelConfig, ChannelModel, DecisionConfig, Evaluation, FAMILY, Feedback, Gains, Geometric,
    Mobility, Profile, Scheme, Sensing, Tapes,
};
use candle_models::bundle::{self, Bundle, Manifest};
use candle_models::nn::Params;
use candle_models::random::Random;
use candle_train::beam::page::{MEASUREMENTS_SNR_DB, SEED, SNR_DB};
use std::fs;
use std::path::Path;
use std::process::Command;

const CHANNELS: usize = 65;

fn small() -> BeamConfig {
    let decision = DecisionConfig::measurements(32, 1);
    BeamConfig { measurements: 6, hidden: 16, base: 16, decision, ..BeamConfig::default() }
}

fn save(directory: &Path, family: &str, config: &BeamConfig) {
    let params = Params::init(Random::new(2), &Device::Cpu);
    Beam::new(config, &params).unwrap();
    let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_detached_tensor())).collect();
    let manifest = Manifest::new(family, config).unwrap();
    fs::create_dir_all(directory.parent().unwrap()).unwrap();
    bundle::save(directory, &manifest, &tensors, serde_json::Value::Null, &[]).unwrap();
}

/// A setup with the usual arrays.
fn cdl() -> ChannelConfig {
    let model = ChannelModel::Cdl(Cdl { profile: Profile::A, rays: 1, rotation: 180.0 });
    ChannelConfig { model, mobility: Some(Mobility { doppler: 0.01, drift: 0.0 }), ..ChannelConfig::default() }
}

/// Models of schemes C1 and C3, one of another setup, and a bundle of another family.
fn bundles(weights: &Path) {
    save(&weights.join("beam-c1"), FAMILY, &BeamConfig { scheme: Scheme::C1, feedback: Feedback::Index, ..small() });
    save(&weights.join("beam-c3"), FAMILY, &small());
    let model = ChannelModel::Geometric(Geometric { azimuth: 60.0, normalise: true, ..Geometric::default() });
    let channel = ChannelConfig { transmit: Array::Ula { elements: 64 }, receive: Array::Ula { elements: 32 }, model, mobility: None };
    save(&weights.join("beam-peer"), FAMILY, &BeamConfig { channel, ..small() });
    save(&weights.join("beam-cdl"), FAMILY, &BeamConfig { channel: cdl(), ..small() });
    save(&weights.join("beam-stranger"), "policy", &small());
    save(&weights.join("other"), FAMILY, &small());
    fs::write(weights.join("beam-notes.md"), "not a bundle").unwrap();
}

fn page(weights: &Path, out: &Path, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.arg("beam-page").arg("--weights").arg(weights).arg("--out").arg(out).args(arguments);
    let output = run(&mut command);
    (output.status.code().unwrap(), text(&output.stdout), text(&output.stderr))
}

/// The cells of the row of a table below a heading.
fn row(page: &str, heading: &str, name: &str) -> Vec<String> {
    let section = page.split("\n## ").find(|section| section.starts_with(heading)).unwrap_or_else(|| panic!("no '{heading}' in\n{page}"));
    let row = section.lines().find(|line| line.starts_with(&format!("| {name} |")));
    let row = row.unwrap_or_else(|| panic!("no '{name}' in\n{section}"));
    row.trim_matches(['|', ' ']).split(" | ").skip(1).map(str::to_owned).collect()
}

/// Every element is closed in its turn, every attribute quoted; gives the number of elements.
pub fn well_formed(svg: &str) -> usize {
    let (mut open, mut found, mut rest) = (Vec::new(), 0, svg);
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "a stray bracket in {}", &rest[..start]);
        let end = start + rest[start..].find('>').expect("a tag without an end");
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<') && tag.matches('"').count() % 2 == 0, "<{tag}>");
        let name = |tag: &str| tag.trim_matches('/').split_whitespace().next().unwrap().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name(tag)));
        } else {
            found += 1;
            if !tag.ends_with('/') {
                open.push(name(tag));
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty() && svg.starts_with("<svg "), "{open:?}");
    found
}

fn mean(gains: &Gains) -> String {
    let summary = gains.summary().unwrap();
    format!("{:.2} ± {:.2}", summary.mean_db, summary.error_db)
}

#[test]
fn a_page_has_every_table_and_figure_and_the_library_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let (weights, out) = (dir.path().join("weights"), dir.path().join("new/page"));
    bundles(&weights);
    let channels = CHANNELS.to_string();
    let arguments = |threads| ["--channels", &channels, "--threads", threads];
    let (code, stdout, stderr) = page(&weights, &out, &arguments("2"));
    assert_eq!(code, 0, "{stderr}");
    assert!(stderr.contains("warning: left out: ") && stderr.contains("found policy"), "{stderr}");
    assert!(!stderr.contains("beam-notes") && !stderr.contains("panicked"), "{stderr}");

    let read = |out: &Path, name: &str| fs::read_to_string(out.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    let readme = read(&out, "README.md");
    let files = ["gain.svg", "satisfaction.svg", "steps.svg", "codebook.svg"];
    for name in files {
        let svg = read(&out, name);
        assert!(svg.len() < 200_000 && well_formed(&svg) > 20, "{name}: {} bytes", svg.len());
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        assert!(svg.contains("beam-c3") && readme.contains(&format!("({name})")) && stdout.contains(name), "{name}");
    }
    assert!(readme.contains("65 channels") && !readme.contains(&*dir.path().to_string_lossy()), "{readme}");
    assert!(!readme.contains("| other |") && !readme.contains("stranger"), "{readme}");

    // What the library finds on the same channels.
    let model = |name: &str| Beam::load(&Bundle::open(weights.join(name)).unwrap(), &Device::Cpu).unwrap();
    let tapes = Tapes::default();
    let sensing = Sensing::Measurements;
    let at = Evaluation { seed: SEED, snr_db: SNR_DB, measurements: 6, sensing, first: 0, count: CHANNELS };
    let setup = ChannelConfig::default();
    let baselines = Baseline::standard(&setup).unwrap();
    for baseline in &baselines {
        let gains = at.baseline(baseline, &setup).unwrap();
        assert_eq!(row(&readme, "At 10 dB", &baseline.name())[1], mean(&gains), "{}", baseline.name());
        assert_eq!(row(&readme, "Gain against SNR", &baseline.name())[5], mean(&gains), "{}", baseline.name());
    }
    for name in ["beam-c1", "beam-c3"] {
        let beam = model(name);
        let gains = |at: Evaluation| at.controller(&beam, &tapes).unwrap();
        let found = row(&readme, "At 10 dB", name);
        let summary = gains(at).summary().unwrap();
        assert_eq!(found[..2], ["6".to_owned(), mean(&gains(at))]);
        assert_eq!(found[2..4], [summary.db_of_mean, summary.percentiles_db[1]].map(|db| format!("{db:.2}")));
        assert_eq!((found[4].clone(), found[6].clone()), (format!("{:.3}", summary.satisfaction), CHANNELS.to_string()));
        let genie = at.baseline(&Baseline::Genie, &setup).unwrap().summary().unwrap();
        assert!(found[5].starts_with(&format!("{:.2} ± ", genie.mean_db - summary.mean_db)), "{found:?}");

        let some = Evaluation { count: CHANNELS / 4, ..at };
        let carried = row(&readme, "What the measurements carry", name);
        assert_eq!(carried[..2], [mean(&gains(some)), mean(&some.estimator(&beam, &tapes).unwrap())]);

        let low = gains(Evaluation { snr_db: -15.0, ..at });
        assert_eq!(row(&readme, "Gain against SNR", name)[0], mean(&low));
        assert_eq!(row(&readme, "Satisfaction against SNR", name)[0], format!("{:.3}", low.summary().unwrap().satisfaction));
        let counts = row(&readme, "Gain against the number", name);
        assert_eq!(counts.len(), 4, "T = 1, 3, 5 and 6");
        for (cell, measurements) in counts.iter().zip([1, 3, 5, 6]) {
            assert_eq!(*cell, mean(&gains(Evaluation { snr_db: MEASUREMENTS_SNR_DB, measurements, ..at })));
        }
        assert!(readme.contains(&format!("- {name}: the curve is ")));
        let ablations = row(&readme, "Ablations", name);
        for (cell, sensing) in ablations[1..].iter().zip([Sensing::Nothing, Sensing::Shuffled, Sensing::Noise]) {
            assert!(cell.starts_with(&mean(&gains(Evaluation { sensing, ..at }))), "{cell}");
        }
    }
    let c1 = model("beam-c1");
    let swept = c1.swept().unwrap().flatten_all().unwrap().to_vec1().unwrap();
    let ceiling = Baseline::Mrc(candle_models::beam::Codebook::new(32, swept).unwrap());
    assert!(readme.contains(&format!(
        "| beam-c1 | {} | {} |",
        row(&readme, "At 10 dB", "beam-c1")[1],
        mean(&at.baseline(&ceiling, &setup).unwrap())
    )));
    let peer = model("beam-peer");
    let summary = at.controller(&peer, &tapes).unwrap().summary().unwrap();
    assert_eq!(row(&readme, "Another setup, at 10 dB\n\n64 transmit", "beam-peer")[1], format!("{:.2}", summary.db_of_mean));
    assert!(readme.contains("64 transmit and 32 receive antennas, 3 paths within 60 degrees"), "{readme}");
    // A setup of the usual arrays has the usual models beside its own, and what learns nothing.
    let profile = "Another setup, at 10 dB\n\n32 transmit and 16 receive antennas, TR 38.901 profile CDL-A, moving: up to 0.01 cycles";
    for (found, gains) in [
        ("beam-cdl", at.controller(&model("beam-cdl"), &tapes)),
        ("beam-c3, trained on others", at.controller_on(&model("beam-c3"), &cdl(), &tapes)),
        ("exhaustive, 512 probes", at.baseline(baselines.iter().find(|b| b.name() == "exhaustive, 512 probes").unwrap(), &cdl())),
    ] {
        assert_eq!(row(&readme, profile, found)[3], mean(&gains.unwrap()), "{found}");
    }

    // Another number of threads; only the command in the page says so.
    let again = dir.path().join("again");
    let (code, _, stderr) = page(&weights, &again, &arguments("1"));
    assert_eq!(code, 0, "{stderr}");
    for name in files {
        assert!(read(&out, name) == read(&again, name), "{name}");
    }
    let without_command =
        |text: &str| text.lines().filter(|line| !line.starts_with("candle-train ")).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(without_command(&readme), without_command(&read(&again, "README.md")));
}

#[test]
fn models_of_other_setups_alone_make_a_page_too() {
    let dir = tempfile::tempdir().unwrap();
    let (weights, out) = (dir.path().join("weights"), dir.path().join("page"));
    let channel = ChannelConfig { receive: Array::Ula { elements: 4 }, ..ChannelConfig::default() };
    save(&weights.join("beam-a&b"), FAMILY, &BeamConfig { channel, scheme: Scheme::C2, ..small() });
    let (code, stdout, stderr) = page(&weights, &out, &["--channels", "1"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(stdout.lines().count(), 1, "no figure has anything to show: {stdout}");
    assert_eq!(row(&fs::read_to_string(out.join("README.md")).unwrap(), "Another setup", "beam-a&b").len(), 5);
}

#[test]
fn what_cannot_work_is_said_before_anything_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let [weights, empty, out, file] = ["weights", "empty", "out", "file"].map(|name| dir.path().join(name));
    save(&weights.join("beam-c3"), FAMILY, &small());
    save(&empty.join("beam-stranger"), "policy", &small());
    fs::write(&file, "").unwrap();
    fs::create_dir_all(dir.path().join("taken/README.md")).unwrap();
    for (weights, out, arguments, code, message) in [
        (&empty, &out, &[][..], 1, "expected bundles of beam controllers, beam-*, found none"),
        (&dir.path().join("nowhere"), &out, &[], 1, "nowhere: No such file"),
        (&weights, &file.join("page"), &[], 1, "file/page: "),
        (&weights, &dir.path().join("taken"), &[], 1, "README.md"),
        (&weights, &out, &["--channels", "0"], 2, "config: channels: expected 1 to 16777216, found 0"),
        (&weights, &out, &["--channels", "many"], 2, "invalid value 'many'"),
    ] {
        let (found, _, stderr) = page(weights, out, arguments);
        assert!(found == code && stderr.contains(message), "{message}: {found}, {stderr}");
        assert!(!stderr.contains(" s: "), "something was measured: {stderr}");
    }
    // A model that is damaged is no model that is left out.
    fs::write(weights.join("beam-c3/model.safetensors"), "damaged").unwrap();
    let (code, _, stderr) = page(&weights, &out, &[]);
    assert!(code == 1 && stderr.contains("beam-c3/model.safetensors"), "{stderr}");
}

//! Recordings of others and for others: real ones, metadata of every kind, and the validator of the standard's own library on what is written.

use candle_models::random::Random;
use candle_models::rf::Complex32;
use candle_models::rf::sigmf::{Annotation, Capture, Checked, Datatype, Extension, Geolocation, Meta, Recording, Writer};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of real recordings, or `None` with a loud remark.
fn data() -> Option<PathBuf> {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED the tests on real recordings: CANDLE_DATA is not set");
        return None;
    };
    Some(Path::new(&root).join("iq"))
}

#[test]
fn real_recordings_are_read_and_are_what_they_say() {
    let Some(folder) = data() else { return };
    let mut count = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "sigmf-meta") {
            continue;
        }
        let recording = Recording::open(&path).unwrap();
        assert_eq!((recording.check().unwrap(), recording.warnings.len()), (Checked::Same, 0), "{}", path.display());
        let mut samples = vec![Complex32::default(); recording.len() as usize];
        assert_eq!(recording.read(0, &mut samples), samples.len());
        assert!(samples.iter().all(|x| x.re.abs() <= 1.0 && x.im.abs() <= 1.0) && samples.iter().any(|x| x.norm() > 0.01));
        let real = !recording.meta.global.datatype.complex;
        assert_eq!(real, samples.iter().all(|x| x.im == 0.0));
        count += 1;
    }
    assert_eq!(count, 7);
}

/// Metadata without datasets: where a recording was made, which namespaces it uses, what nobody here knows and is kept.
#[test]
fn metadata_of_every_kind_is_read_and_kept() {
    let Some(folder) = data() else { return };
    let read = |name: &str| {
        let path = folder.join("meta_cases").join(name).with_extension("sigmf-meta");
        let meta = Meta::read(&path).unwrap();
        // What is read and written again is the same JSON.
        let [before, after] = [serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap(), serde_json::to_value(&meta).unwrap()];
        assert!(same(&before, &after), "{name}: {before} {after}");
        meta
    };
    let at = |meta: &Meta| meta.geolocation(0).map(|place| place.coordinates.clone());
    assert_eq!((read("minimal").captures.len(), at(&read("minimal"))), (0, None));
    assert_eq!(at(&read("global_geolocation")).unwrap(), [14.5053, -22.9576]);
    // A segment's own place is preferred to that of the whole.
    for name in ["capture_geolocation", "realistic_recording", "geolocation_foreign_members"] {
        assert_eq!(at(&read(name)).unwrap(), [14.5053, -22.9576, 7.0], "{name}");
    }
    assert_eq!(read("geolocation_foreign_members").geolocation(0).unwrap().others["gnss:satellites"], 11);
    let extensions = read("extensions").global.extensions;
    let needed = Extension { name: "capture_details".to_owned(), version: "1.0.0".to_owned(), optional: false };
    assert_eq!((extensions.len(), &extensions[1]), (2, &needed));
    let scoped = read("scoped_extension_keys");
    assert_eq!(scoped.captures[0].others["antenna:azimuth_angle"], 137.5);
    assert_eq!(scoped.annotations[0].others["my_ns:annotation_prop"], "annotation_val");
    assert_eq!(read("collection").global.others["core:collection"], "walvisbay-2026-07-16T09-14-22");
    let sample = Recording::open(folder.join("meta_cases/sample")).unwrap();
    let mut samples = [Complex32::default(); 16];
    assert_eq!((sample.read(0, &mut samples), sample.check().unwrap()), (16, Checked::Same));
    assert!(samples.iter().enumerate().all(|(i, x)| *x == Complex32::new(i as f32, 0.0)));
}

/// Whether two values are the same, numbers by what they stand for.
fn same(a: &serde_json::Value, b: &serde_json::Value) -> bool {
    use serde_json::Value::{Array, Number, Object};
    match (a, b) {
        (Number(a), Number(b)) => a.as_f64() == b.as_f64(),
        (Array(a), Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b)),
        (Object(a), Object(b)) => a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| same(a, b))),
        _ => a == b,
    }
}

#[test]
fn the_validator_of_the_standard_accepts_what_is_written() {
    let python = PathBuf::from(std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into()));
    if !Command::new(&python).args(["-c", "import sigmf"]).output().is_ok_and(|output| output.status.success()) {
        assert!(std::env::var_os("CANDLE_REQUIRE_SIGMF").is_none(), "{} cannot import sigmf", python.display());
        eprintln!("skipped: {} cannot import sigmf", python.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (name, datatype) in [("floats", Datatype::CF32), ("integers", Datatype::CI16)] {
        let mut meta = Meta::new(datatype, 200e3);
        meta.global.description = Some("drawn from a seed".to_owned());
        meta.global.geolocation = Some(Geolocation::new(7.672, 45.044, Some(250.0)));
        for (sample_start, frequency) in [(0, 145e6), (500, 433e6)] {
            let datetime = Some("2026-11-26T00:00:00.000Z".to_owned());
            meta.captures.push(Capture { sample_start, frequency: Some(frequency), datetime, ..Capture::default() });
        }
        let mut writer = Writer::create(folder.path().join(name), meta).unwrap();
        let random = Random::new(1);
        let sample = |i: u64| Complex32::new(random.uniform(2 * i) - 0.5, random.uniform(2 * i + 1) - 0.5);
        writer.write(&(0..1000).map(sample).collect::<Vec<_>>()).unwrap();
        let (label, comment) = (Some("noise".to_owned()), Some("all of it".to_owned()));
        let edges = (Some(144.9e6), Some(145.1e6));
        let (lower_frequency, upper_frequency) = edges;
        writer.meta.annotations.push(Annotation {
            sample_start: 0,
            sample_count: Some(500),
            lower_frequency,
            upper_frequency,
            label,
            comment,
            ..Annotation::default()
        });
        writer.finish().unwrap();
        let written = folder.path().join(name).with_extension("sigmf-meta");
        let output = Command::new(&python).args(["-m", "sigmf.validate"]).arg(&written).output().unwrap();
        assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        // And its reader finds the same samples.
        let program = "import sigmf, sys\nx = sigmf.fromfile(sys.argv[1])\nfor i in (0, 499, 999):\n    s = x.read_samples(i, 1)[0]\n    print(float(s.real), float(s.imag))";
        let output = Command::new(&python).args(["-c", program]).arg(&written).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let found: Vec<f32> = text.split_whitespace().map(|x| x.parse().unwrap()).collect();
        assert_eq!(found.len(), 6, "{}", String::from_utf8_lossy(&output.stderr));
        for (found, i) in found.chunks(2).zip([0, 499, 999]) {
            let apart = (found[0] - sample(i).re).abs().max((found[1] - sample(i).im).abs());
            assert!(apart <= if datatype == Datatype::CF32 { 0.0 } else { 1.0 / 32768.0 }, "{name} {i}: {found:?} {}", sample(i));
        }
    }
}

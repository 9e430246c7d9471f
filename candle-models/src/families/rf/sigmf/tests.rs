//! What is read of whole, damaged and hostile recordings, and that what is written is read.

use super::*;
use crate::random::Random;
use rustfft::num_complex::Complex32;
use sha2::{Digest, Sha512};
use std::fs;
use std::path::Path;

fn at(re: f32, im: f32) -> Complex32 {
    Complex32::new(re, im)
}

/// A recording of these bytes.
fn recording(folder: &Path, meta: &str, bytes: &[u8]) -> crate::Result<Recording> {
    fs::write(folder.join("a.sigmf-meta"), meta).unwrap();
    fs::write(folder.join("a.sigmf-data"), bytes).unwrap();
    Recording::open(folder.join("a"))
}

fn meta(global: &str, captures: &str) -> String {
    format!(r#"{{"global": {{"core:version": "1.2.6", {global}}}, "captures": [{captures}], "annotations": []}}"#)
}

fn all(recording: &Recording, channel: u64) -> Vec<Complex32> {
    let mut out = vec![Complex32::default(); recording.len() as usize + 1];
    let n = recording.read_channel(channel, 0, &mut out);
    out.truncate(n);
    out
}

/// The numbers -1, 0.5 and their like in each type, as bytes of the lower end first.
#[test]
fn every_datatype_is_read() {
    let folder = tempfile::tempdir().unwrap();
    type Numbers = (&'static str, Vec<Vec<u8>>, [f32; 4]);
    let bytes = |numbers: &[&[u8]]| numbers.iter().map(|n| n.to_vec()).collect::<Vec<_>>();
    let signed = [-1.0, 0.5, 0.0, -0.5];
    let cases: [Numbers; 8] = [
        ("f32", [-1.0f32, 0.5, 0.0, -0.5].map(|x| x.to_le_bytes().to_vec()).into(), signed),
        ("f64", [-1.0f64, 0.5, 0.0, -0.5].map(|x| x.to_le_bytes().to_vec()).into(), signed),
        ("i32", [i32::MIN, 1 << 30, 0, -(1 << 30)].map(|x| x.to_le_bytes().to_vec()).into(), signed),
        ("i16", [i16::MIN, 1 << 14, 0, -(1 << 14)].map(|x| x.to_le_bytes().to_vec()).into(), signed),
        ("i8", bytes(&[&[0x80], &[0x40], &[0], &[0xc0]]), signed),
        ("u32", [0, u32::MAX, 0x8000_0000, 0x4000_0000].map(|x| x.to_le_bytes().to_vec()).into(), [-1.0, 1.0, 1.0 / u32::MAX as f32, -0.5]),
        ("u16", [0u16, u16::MAX, 0x8000, 0x4000].map(|x| x.to_le_bytes().to_vec()).into(), [-1.0, 1.0, 1.0 / 65535.0, -32767.0 / 65535.0]),
        ("u8", bytes(&[&[0], &[255], &[128], &[127]]), [-1.0, 1.0, 1.0 / 255.0, -1.0 / 255.0]),
    ];
    for (kind, numbers, expected) in cases {
        for order in if numbers[0].len() == 1 { &[""][..] } else { &["_le", "_be"] } {
            let swapped = numbers.iter().flat_map(|number| {
                let mut number = number.clone();
                if *order == "_be" {
                    number.reverse();
                }
                number
            });
            let swapped: Vec<u8> = swapped.collect();
            for (part, expected) in [
                ("c", vec![at(expected[0], expected[1]), at(expected[2], expected[3])]),
                ("r", expected.iter().map(|x| at(*x, 0.0)).collect()),
            ] {
                let name = format!("{part}{kind}{order}");
                assert_eq!(name.parse::<Datatype>().unwrap().to_string(), name);
                let open = recording(folder.path(), &meta(&format!(r#""core:datatype": "{name}""#), ""), &swapped).unwrap();
                assert_eq!((all(&open, 0), &open.warnings), (expected, &vec![]), "{name}");
            }
        }
    }
}

#[test]
fn unknown_datatypes_are_refused() {
    for name in ["", "c", "cf32", "cf16_le", "xf32_le", "cf32_me", "ci24_le", "u8", "cé", "cf32_le "] {
        let folder = tempfile::tempdir().unwrap();
        let error = recording(folder.path(), &meta(&format!(r#""core:datatype": "{name}""#), ""), &[]).unwrap_err().to_string();
        assert!(error.contains("a.sigmf-meta: core:datatype: expected c or r") && error.contains("cf32_le"), "{error}");
    }
}

#[test]
fn channels_take_turns_and_segments_have_headers() {
    let folder = tempfile::tempdir().unwrap();
    let (global, captures) = (
        r#""core:datatype": "ri8", "core:num_channels": 2, "core:offset": 100, "core:trailing_bytes": 1"#,
        r#"{"core:sample_start": 100, "core:header_bytes": 3, "core:frequency": 1e6}, {"core:sample_start": 102, "core:header_bytes": 1, "core:frequency": 2e6}"#,
    );
    let bytes = [99, 99, 99, 0, 64, 32, 16, 99, 8, 4, 99];
    let open = recording(folder.path(), &meta(global, captures), &bytes).unwrap();
    assert_eq!(open.warnings, Vec::<String>::new());
    assert_eq!(all(&open, 0), [0, 32, 8].map(|x| at(x as f32 / 128.0, 0.0)));
    assert_eq!(all(&open, 1), [64, 16, 4].map(|x| at(x as f32 / 128.0, 0.0)));
    let mut two = [Complex32::default(); 2];
    assert_eq!((open.read(1, &mut two), two[1].re), (2, 8.0 / 128.0));
    assert_eq!(open.read(3, &mut two), 0);
    let frequency = |sample| open.meta.capture(sample).and_then(|capture| capture.frequency);
    assert_eq!((frequency(99), frequency(101), frequency(102), frequency(9999)), (None, Some(1e6), Some(2e6), Some(2e6)));
}

#[test]
fn what_is_whole_of_a_truncated_dataset_is_used() {
    let folder = tempfile::tempdir().unwrap();
    let global = r#""core:datatype": "ci16_le""#;
    let half = recording(folder.path(), &meta(global, ""), &[0; 11]).unwrap();
    assert_eq!((half.len(), half.warnings), (2, vec!["the dataset is cut off: 3 bytes are left behind the last whole sample".to_owned()]));
    let captures = r#"{"core:sample_start": 0}, {"core:sample_start": 5}, {"core:sample_start": 9}"#;
    let early = recording(folder.path(), &meta(global, captures), &[0; 12]).unwrap();
    assert_eq!((early.len(), early.warnings), (3, vec!["the dataset is cut off: a segment of 5 samples has 3".to_owned()]));
    // A hash of what is not all there is no reason to refuse the rest.
    let captures = r#"{"core:sample_start": 0}"#;
    let noted = meta(&format!(r#"{global}, "core:sha512": "00""#), captures)
        .replace(r#""annotations": []"#, r#""annotations": [{"core:sample_start": 4, "core:sample_count": 7}]"#);
    let cut = recording(folder.path(), &noted, &[0; 40]).unwrap();
    assert_eq!((cut.check().unwrap(), cut.warnings.len()), (Checked::Truncated, 1));
    assert!(recording(folder.path(), &noted, &[0; 44]).unwrap().check().is_err());
}

#[test]
fn what_has_no_sense_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let datatype = r#""core:datatype": "cu8""#;
    let with = |more: &str| meta(&format!("{datatype}, {more}"), "");
    let point = |coordinates: &str| with(&format!(r#""core:geolocation": {{"type": "Point", "coordinates": {coordinates}}}"#));
    let captures = |captures: &str| meta(datatype, captures);
    for (meta, named) in [
        (meta(r#""core:sample_rate": 1"#, ""), "missing field `core:datatype`"),
        (with(r#""core:sample_rate": 0"#), "global.core:sample_rate: expected samples a second, above 0"),
        (with(r#""core:sample_rate": -1.5"#), "found -1.5"),
        (with(r#""core:num_channels": 0"#), "global.core:num_channels: expected at least 1"),
        (with(r#""core:num_channels": 18446744073709551615"#), "global.core:num_channels: 18446744073709551615 channels are too many"),
        (with(r#""core:trailing_bytes": 5"#), "global.core:trailing_bytes: expected at most the dataset's 4 bytes, found 5"),
        (with(r#""core:dataset": "../secret""#), "global.core:dataset: expected the name of a file beside it, found ../secret"),
        (with(r#""core:dataset": "/etc/passwd""#), "global.core:dataset"),
        (with(r#""core:metadata_only": true"#), "global.core:metadata_only: there is no dataset to read"),
        (point("[200.0, 0.0]"), "global.core:geolocation: expected longitude and latitude in degrees"),
        (point("[1.0]"), "found [1.0]"),
        (captures(r#"{"core:sample_start": 5}, {"core:sample_start": 4}"#), "captures[1].core:sample_start: expected at least 5"),
        (captures(r#"{"core:sample_start": -1}"#), "invalid value: integer `-1`"),
        (captures(r#"{"core:frequency": 1}"#), "missing field `core:sample_start`"),
        (captures("1"), "invalid type"),
        ("{".to_owned(), "EOF"),
        ("[]".to_owned(), "a.sigmf-meta: "),
    ] {
        let error = recording(folder.path(), &meta, &[0; 4]).map(|open| open.len()).unwrap_err().to_string();
        assert!(error.contains("a.sigmf-meta: ") && error.contains(named), "{meta}: {error}");
    }
    // Numbers that no file has are no reason to overflow.
    let absurd = r#"{"core:sample_start": 0, "core:header_bytes": 18446744073709551615}, {"core:sample_start": 18446744073709551615}"#;
    let open = recording(folder.path(), &captures(absurd), &[0; 4]).unwrap();
    assert_eq!((open.len(), open.warnings.len()), (0, 1));
    fs::remove_file(folder.path().join("a.sigmf-data")).unwrap();
    assert!(Recording::open(folder.path().join("a.sigmf-data")).unwrap_err().to_string().contains("a.sigmf-data: "));
}

#[test]
fn what_is_written_is_read_and_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let samples: Vec<Complex32> =
        (0..40_000).map(|i| at(Random::new(1).uniform(2 * i) - 0.5, Random::new(1).uniform(2 * i + 1) - 0.5)).collect();
    for (datatype, most) in [(Datatype::CF32, 0.0), (Datatype::CI16, 0.5 / 32768.0)] {
        let mut meta = Meta::new(datatype, 200e3);
        meta.global.geolocation = Some(Geolocation::new(7.5, 45.0, Some(300.0)));
        meta.global.others.insert("my_ns:key".to_owned(), serde_json::json!({"a": [1, 2.5]}));
        meta.captures.push(Capture { frequency: Some(145e6), ..Capture::default() });
        let mut writer = Writer::create(folder.path().join("x.sigmf-data"), meta).unwrap();
        samples.chunks(777).for_each(|part| writer.write(part).unwrap());
        let label = Some("tone".to_owned());
        writer.meta.annotations.push(Annotation { sample_start: 10, sample_count: Some(20), label, ..Annotation::default() });
        assert!(!folder.path().join("x.sigmf-meta").exists());
        let noted = writer.meta.clone();
        assert_eq!(writer.finish().unwrap(), Written { samples: 40_000, clipped: 0 });
        let open = Recording::open(folder.path().join("x")).unwrap();
        let sha512 = open.meta.global.sha512.clone();
        assert_eq!(open.meta, Meta { global: Global { sha512, ..noted.global.clone() }, ..noted });
        assert_eq!((open.check().unwrap(), open.warnings.len()), (Checked::Same, 0));
        let found = all(&open, 0);
        assert!(found.iter().zip(&samples).all(|(a, b)| (a - b).re.abs() <= most && (a - b).im.abs() <= most));
        fs::write(folder.path().join("x.sigmf-data"), vec![1; 40_000 * datatype.bytes()]).unwrap();
        let error = Recording::open(folder.path().join("x")).unwrap().check().unwrap_err().to_string();
        assert!(error.contains("global.core:sha512: expected "), "{error}");
        fs::remove_file(folder.path().join("x.sigmf-meta")).unwrap();
    }
}

#[test]
fn a_recording_that_is_not_finished_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    let mut writer = Writer::create(&path, Meta::new(Datatype::CI16, 1.0)).unwrap();
    writer.write(&[at(1.0, -2.0)]).unwrap();
    let error = writer.write(&[at(0.0, 0.0), at(f32::NAN, 0.0)]).unwrap_err().to_string();
    assert!(error.contains("x.sigmf-data: sample 2: expected finite numbers"), "{error}");
    drop(writer);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let mut clipped = Writer::create(&path, Meta::new(Datatype::CI16, 1.0)).unwrap();
    clipped.write(&[at(1.0, -2.0)]).unwrap();
    assert_eq!(clipped.finish().unwrap(), Written { samples: 1, clipped: 2 });
    for (datatype, rate) in [("cf32_be", 1.0), ("cf32_le", 0.0), ("cf32_le", f64::NAN)] {
        assert!(Writer::create(&path, Meta::new(datatype.parse().unwrap(), rate)).is_err(), "{datatype} {rate}");
    }
}

#[test]
fn recordings_in_archives_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.sigmf");
    let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
    let mut add = |name: &str, bytes: &[u8]| {
        let mut header = tar::Header::new_ustar();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, name, bytes).unwrap();
    };
    for (name, byte) in [("one", 64), ("two", 32)] {
        let bytes = [byte; 6];
        let hash: String = Sha512::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        add(&format!("{name}/{name}.sigmf-data"), &bytes);
        add(&format!("{name}/{name}.sigmf-meta"), meta(&format!(r#""core:datatype": "ri8", "core:sha512": "{hash}""#), "").as_bytes());
    }
    archive.finish().unwrap();
    let error = Recording::open(&path).unwrap_err().to_string();
    assert!(error.contains("holds 2 recordings (one, two): name one, as "), "{error}");
    for (name, value) in [("one", 0.5), ("two", 0.25)] {
        let open = Recording::open(path.join(name)).unwrap();
        assert_eq!((all(&open, 0), open.check().unwrap()), (vec![at(value, 0.0); 6], Checked::Same));
    }
    assert!(Recording::open(path.join("three")).unwrap_err().to_string().contains("holds no recording three"));
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..700]).unwrap();
    assert!(Recording::open(&path).unwrap_err().to_string().contains("two.sigmf: "));
}

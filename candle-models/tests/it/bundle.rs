//! Bundles: what is saved comes back, what is damaged is refused in one line, and nothing partial is left behind.
// The lint allows it in tests, but not in what they share.
#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Tensor};
use candle_models::Result;
use candle_models::bundle::{self, Bundle, Manifest, Parameter, ParameterSpec};
use candle_models::ops::Format;
use candle_models::random::Random;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two tensors, 8 + 3 numbers.
fn specs() -> Vec<ParameterSpec> {
    vec![ParameterSpec::new("a.weight", &[2, 4]), ParameterSpec::new("b.bias", &[3])]
}

fn tensors(dtype: DType) -> BTreeMap<String, Tensor> {
    let tensor = |spec: ParameterSpec| {
        let mut values = vec![0.; spec.shape.iter().product()];
        Random::new(1).stream(&spec.name).fill_normal(0, &mut values);
        let tensor = Tensor::from_vec(values, spec.shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        (spec.name, tensor)
    };
    specs().into_iter().map(tensor).collect()
}

fn manifest() -> Manifest {
    Manifest::new("policy", &json!({"hidden": 4})).unwrap()
}

fn save(dir: &Path, seed: u64) -> Result<()> {
    let card = format!("# A test model of seed {seed}\n").into_bytes();
    bundle::save(dir, &manifest(), &tensors(DType::F32), json!({ "seed": seed }), &[(bundle::CARD, card)])
}

fn load(dir: &Path) -> Result<BTreeMap<String, Tensor>> {
    Bundle::open(dir)?.read_tensors(&specs())
}

/// A valid bundle in a temporary directory, and its path.
fn valid() -> (tempfile::TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("model");
    save(&dir, 1).unwrap();
    (root, dir)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The file of a header and of zeros, as long as asked for.
fn write_raw(dir: &Path, header: &Value, data: usize) {
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    fs::write(dir.join(bundle::MODEL), bytes).unwrap();
}

fn entry(dtype: &str, shape: &[u64], start: u64, end: u64) -> Value {
    json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] })
}

/// Loading fails with one line that starts with the file and says all of `parts`.
#[track_caller]
fn refused(dir: &Path, file: &str, parts: &[&str]) {
    let error = load(dir).expect_err("a damaged bundle was accepted").to_string();
    let start = format!("{}: ", if file.is_empty() { dir.to_owned() } else { dir.join(file) }.display());
    assert!(error.starts_with(&start), "expected {start}..., found {error}");
    assert!(!error.contains(char::is_control) && error.len() < start.len() + 600, "not one readable line: {error:?}");
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing in: {error}");
    }
}

#[test]
fn what_is_saved_comes_back() {
    let (root, dir) = valid();
    let bundle = Bundle::open(&dir).unwrap();
    assert_eq!(bundle.manifest(), &manifest());
    assert_eq!(bundle.metadata().unwrap(), json!({"seed": 1}));
    assert_eq!(bundle.read_file(bundle::CARD).unwrap().unwrap(), b"# A test model of seed 1\n");
    assert_eq!(bundle.read_file(bundle::TOKENIZER).unwrap(), None);
    let loaded = bundle.read_tensors(&specs()).unwrap();
    for (name, tensor) in tensors(DType::F32) {
        let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!((flat(&loaded[&name]), loaded[&name].dims()), (flat(&tensor), tensor.dims()), "{name}");
    }
    let parameters = bundle.parameters().unwrap();
    assert_eq!(parameters[0], bundle::StoredParameter { name: "a.weight".into(), shape: vec![2, 4], dtype: "F32".into(), bytes: 32 });
    assert_eq!(names(root.path()), ["model"]);
    assert_eq!(names(&dir), ["README.md", "config.json", "model.safetensors"]);
    // The same content gives the same bytes.
    let bytes = fs::read(dir.join(bundle::MODEL)).unwrap();
    save(&dir, 1).unwrap();
    assert_eq!(fs::read(dir.join(bundle::MODEL)).unwrap(), bytes);
}

#[test]
fn narrow_dtypes_are_stored_narrow_and_read_as_f32() {
    for (dtype, name) in [(DType::F16, "F16"), (DType::BF16, "BF16")] {
        let dir = tempfile::tempdir().unwrap();
        bundle::save(dir.path(), &manifest(), &tensors(dtype), Value::Null, &[]).unwrap();
        let bundle = Bundle::open(dir.path()).unwrap();
        assert!(bundle.parameters().unwrap().iter().all(|p| p.dtype == name));
        assert_eq!(bundle.metadata().unwrap(), Value::Null);
        let loaded = bundle.read_tensors(&specs()).unwrap();
        let expected = tensors(dtype)["a.weight"].to_dtype(DType::F32).unwrap();
        assert_eq!(loaded["a.weight"].to_vec2::<f32>().unwrap(), expected.to_vec2::<f32>().unwrap());
    }
}

#[test]
fn the_safetensors_crate_reads_it_too() {
    let (_root, dir) = valid();
    let bytes = fs::read(dir.join(bundle::MODEL)).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.tensor("b.bias").unwrap().shape(), [3]);
}

#[test]
fn configuration_is_checked() {
    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Config {
        hidden: usize,
    }
    let (_root, dir) = valid();
    let bundle = Bundle::open(&dir).unwrap();
    assert_eq!(bundle.config::<Config>().unwrap().hidden, 4);
    bundle.require_family(&["beam", "policy"]).unwrap();
    let error = bundle.require_family(&["beam"]).unwrap_err().to_string();
    assert!(error.ends_with("config.json: family: expected one of [beam], found policy"), "{error}");

    let config = |text: &str| fs::write(dir.join(bundle::CONFIG), text).unwrap();
    for (text, parts) in [
        ("", vec!["EOF"]),
        ("{", vec!["EOF"]),
        ("[]", vec!["expected struct Manifest"]),
        ("\u{0}\n\u{7}", vec!["expected value"]),
        (r#"{"family": "policy", "model": {}}"#, vec!["missing field `format_version`"]),
        (r#"{"family": "policy", "format_version": 2, "later": 1, "model": {}}"#, vec!["format_version: expected 1, found 2"]),
        (r#"{"family": "policy", "format_version": "1", "model": {}}"#, vec!["format_version: expected 1, found \"1\""]),
        (r#"{"family": "policy", "format_version": 1, "model": {}, "lr\nate": 1}"#, vec!["unknown field `lr\\nate`"]),
        (r#"{"family": 7, "format_version": 1, "model": {}}"#, vec!["invalid type: integer `7`"]),
    ] {
        config(text);
        refused(&dir, bundle::CONFIG, &parts);
    }
    config(&"[".repeat(1 << 19));
    refused(&dir, bundle::CONFIG, &["recursion limit"]);
    config(&" ".repeat((1 << 20) + 1));
    refused(&dir, bundle::CONFIG, &["expected at most 1048576 bytes, found 1048577"]);
    config(r#"{"family": "policy", "format_version": 1, "model": {"hidden": 4, "hiden": 5}}"#);
    let error = Bundle::open(&dir).unwrap().config::<Config>().unwrap_err().to_string();
    assert!(error.contains("config.json: model: unknown field `hiden`, expected `hidden`"), "{error}");
}

#[test]
fn what_is_no_bundle_is_refused() {
    let (root, dir) = valid();
    refused(&root.path().join("absent"), "", &["No such file"]);
    refused(&dir.join(bundle::CONFIG), "", &["expected a model directory", "found a file"]);
    fs::remove_file(dir.join(bundle::MODEL)).unwrap();
    refused(&dir, bundle::MODEL, &["No such file"]);
    fs::create_dir(dir.join(bundle::MODEL)).unwrap();
    refused(&dir, bundle::MODEL, &["expected a file, found a directory"]);
    fs::remove_file(dir.join(bundle::CONFIG)).unwrap();
    refused(&dir, bundle::CONFIG, &["No such file"]);
    assert!(Bundle::open(root.path()).is_err());
}

#[test]
fn tensors_are_checked_by_name_shape_and_dtype() {
    let (_root, dir) = valid();
    let model = |header: Value, data| write_raw(&dir, &header, data);
    model(json!({"a.weight": entry("F32", &[2, 4], 0, 32)}), 32);
    refused(&dir, bundle::MODEL, &["tensor b.bias: expected [3], found no tensor of that name"]);
    let (a, b) = (entry("F32", &[2, 4], 0, 32), entry("F32", &[3], 32, 44));
    model(json!({"a.weight": a, "b.bias": b, "c": entry("F32", &[1], 44, 48)}), 48);
    refused(&dir, bundle::MODEL, &["tensor c: expected no tensor of that name in this model, found F32 [1]"]);
    model(json!({"a.weight": a, "b.bias": b, "c\nd\u{1b}[31m": entry("F32", &[1], 44, 48)}), 48);
    refused(&dir, bundle::MODEL, &["tensor c\\nd\\u{1b}[31m: expected no tensor"]);
    model(json!({"a.weight": entry("F32", &[4, 2], 0, 32), "b.bias": b}), 44);
    refused(&dir, bundle::MODEL, &["tensor a.weight: expected [2, 4], found [4, 2]"]);
    model(json!({"a.weight": entry("I32", &[2, 4], 0, 32), "b.bias": b}), 44);
    refused(&dir, bundle::MODEL, &["tensor a.weight: expected F32, F16 or BF16, found I32"]);
    model(json!({"a.weight": a, "b.bias": entry("F64", &[3], 32, 56)}), 56);
    refused(&dir, bundle::MODEL, &["tensor b.bias: expected F32, F16 or BF16, found F64"]);
    model(json!({"a.weight": a, "b.bias": b}), 44);
    load(&dir).unwrap();
}

/// `a.weight` in 8 bits: integers and factors as raw bytes, behind a header that can be changed.
fn write_8_bit(dir: &Path, change: impl FnOnce(&mut Value), integers: [i8; 8], factors: [f32; 4]) {
    let mut header = json!({
        "a.weight.scale": entry("F32", &[4], 0, 16), "b.bias": entry("F32", &[3], 16, 28), "a.weight": entry("I8", &[2, 4], 28, 36)
    });
    change(&mut header);
    let text = header.to_string();
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.extend(factors.into_iter().chain([0.0; 3]).flat_map(f32::to_le_bytes));
    bytes.extend(integers.map(|q| q as u8));
    fs::write(dir.join(bundle::MODEL), bytes).unwrap();
}

fn matrix_specs() -> Vec<ParameterSpec> {
    vec![ParameterSpec::matrix("a.weight", [2, 4]), ParameterSpec::new("b.bias", &[3])]
}

#[test]
fn weights_of_8_bits_are_integers_times_their_columns_factor() {
    let (_root, dir) = valid();
    let (integers, factors) = ([127, -128, 5, 0, -1, 64, -127, 9], [0.5, 0.001, 3.0, 0.0]);
    write_8_bit(&dir, |_| {}, integers, factors);
    let bundle = Bundle::open(&dir).unwrap();
    let parameters = bundle.read_parameters(&matrix_specs()).unwrap();
    let weight = &parameters["a.weight"];
    let values = weight.tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(values, [63.5, -128.0 * 0.001, 15.0, 0.0, -0.5, 64.0 * 0.001, -381.0, 0.0]);
    assert_eq!(weight.format, Format::Q8(factors.into()));
    assert_eq!(parameters["b.bias"].format, Format::F32);
    let listed = bundle.parameters().unwrap();
    assert_eq!(
        listed.iter().map(|p| (p.name.as_str(), p.dtype.as_str(), p.bytes)).collect::<Vec<_>>(),
        [("a.weight", "I8", 8 + 16), ("b.bias", "F32", 12)]
    );
    // Saved once more it is the same, but for what a factor of zero makes of an integer.
    bundle::save_parameters(&dir, &manifest(), &parameters, Value::Null, &[]).unwrap();
    let again = Bundle::open(&dir).unwrap().read_parameters(&matrix_specs()).unwrap();
    assert_eq!(again["a.weight"].format, weight.format);
    assert_eq!(again["a.weight"].tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap(), values);
    let bytes = fs::read(dir.join(bundle::MODEL)).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(stored.tensor("a.weight").unwrap().data(), [127, -128, 5, 0, -1, 64, -127, 0i8].map(|q| q as u8));
}

#[test]
fn weights_of_8_bits_are_checked() {
    let (_root, dir) = valid();
    let load = |specs: &[ParameterSpec]| Bundle::open(&dir).unwrap().read_tensors(specs).map(|_| ());
    let check = |specs: &[ParameterSpec], part: &str| {
        let error = load(specs).expect_err(part).to_string();
        assert!(error.contains(part) && !error.contains(char::is_control), "{part:?} is not in: {error}");
    };
    let (good, ones) = ([1; 8], [1.0; 4]);
    write_8_bit(&dir, |_| {}, good, ones);
    load(&matrix_specs()).unwrap();
    check(&specs(), "tensor a.weight: expected F32, F16 or BF16, found I8");
    for (factor, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (-1e-9, "-0.000000001")] {
        write_8_bit(&dir, |_| {}, good, [1.0, factor, 1.0, 1.0]);
        check(&matrix_specs(), &format!("tensor a.weight.scale: expected finite numbers that are not negative, found {text} at index 1"));
    }
    write_8_bit(&dir, |_| {}, [0, 0, 0, 0, 0, 127, 0, 0], [1.0, 1e38, 1.0, 1.0]);
    check(&matrix_specs(), "tensor a.weight: expected finite numbers, found inf at index 5");
    let renamed = |h: &mut Value| {
        let scale = h.as_object_mut().unwrap().remove("a.weight.scale").unwrap();
        h["a.scale"] = scale;
    };
    write_8_bit(&dir, renamed, good, ones);
    check(&matrix_specs(), "tensor a.weight.scale: expected [4], found no tensor of that name");
    for (what, entry, part) in [
        ("shape", entry("F32", &[2, 2], 0, 16), "tensor a.weight.scale: expected [4], found [2, 2]"),
        ("dtype", entry("I32", &[4], 0, 16), "tensor a.weight.scale: expected F32, found I32"),
    ] {
        write_8_bit(&dir, |h| h["a.weight.scale"] = entry, good, ones);
        let error = load(&matrix_specs()).expect_err(what).to_string();
        assert!(error.contains(part), "{error}");
    }
    write_8_bit(&dir, |h| h["a.weight"] = entry("U8", &[2, 4], 28, 36), good, ones);
    check(&matrix_specs(), "tensor a.weight: expected F32, F16, BF16 or I8, found U8");
    write_8_bit(&dir, |h| h["a.weight"] = entry("I8", &[4, 2], 28, 36), good, ones);
    check(&matrix_specs(), "tensor a.weight: expected [2, 4], found [4, 2]");
    // Factors beside a weight that needs none.
    let float = json!({
        "a.weight.scale": entry("F32", &[4], 0, 16), "b.bias": entry("F32", &[3], 16, 28), "a.weight": entry("F32", &[2, 4], 28, 60)
    });
    write_raw(&dir, &float, 60);
    check(&matrix_specs(), "tensor a.weight.scale: expected no tensor of that name in this model, found F32 [4]");
    // Factors that do not fit the weight are not saved.
    let wrong = Parameter { tensor: tensors(DType::F32)["a.weight"].clone(), format: Format::Q8([1.0; 3].into()) };
    let saved = bundle::save_parameters(&dir, &manifest(), &[("a.weight".to_owned(), wrong)].into(), Value::Null, &[]);
    assert!(saved.unwrap_err().to_string().contains("a.weight: expected [inputs, 3]"));
}

#[test]
fn headers_that_lie_are_refused() {
    let (_root, dir) = valid();
    let (a, b) = (entry("F32", &[2, 4], 0, 32), entry("F32", &[3], 32, 44));
    let exa = 1_000_000_000_000_000_000u64;
    for (what, header, data) in [
        ("absurd shape", json!({"a.weight": entry("F32", &[exa, exa], 0, 32), "b.bias": b}), 44),
        ("absurd shape, product 0", json!({"a.weight": entry("F32", &[exa, exa, 0], 0, 0)}), 0),
        ("absurd offsets", json!({"a.weight": entry("F32", &[exa], 0, 4 * exa)}), 44),
        ("offsets near the end of u64", json!({"a.weight": entry("U8", &[u64::MAX], 0, u64::MAX)}), 44),
        ("overlap", json!({"a.weight": a, "b.bias": entry("F32", &[3], 28, 40)}), 40),
        ("gap", json!({"a.weight": a, "b.bias": entry("F32", &[3], 36, 48)}), 48),
        ("reversed offsets", json!({"a.weight": entry("F32", &[2, 4], 32, 0), "b.bias": b}), 44),
        ("size and shape disagree", json!({"a.weight": a, "b.bias": entry("F32", &[3], 32, 40)}), 40),
        ("truncated", json!({"a.weight": a, "b.bias": b}), 43),
        ("too long", json!({"a.weight": a, "b.bias": b}), 45),
        ("unknown dtype", json!({"a.weight": entry("F\n1", &[2, 4], 0, 32), "b.bias": b}), 44),
        ("a shape of text", json!({"a.weight": {"dtype": "F32", "shape": "2x4", "data_offsets": [0, 32]}}), 44),
        ("negative shape", json!({"a.weight": {"dtype": "F32", "shape": [-2, -4], "data_offsets": [0, 32]}}), 44),
        ("no tensors", json!({}), 0),
        ("not an object", json!([1, 2]), 0),
    ] {
        write_raw(&dir, &header, data);
        let error = load(&dir).expect_err(what).to_string();
        assert!(error.contains("model.safetensors: ") && !error.contains(char::is_control), "{what}: {error:?}");
    }
    // The length of the header itself.
    for length in [0, 1, 7, 8, 1 << 22, 1 << 40, u64::MAX - 8, u64::MAX] {
        for rest in [0, 1, 100] {
            let bytes: Vec<u8> = length.to_le_bytes().into_iter().chain(std::iter::repeat_n(b'{', rest)).collect();
            fs::write(dir.join(bundle::MODEL), bytes).unwrap();
            refused(&dir, bundle::MODEL, &[]);
        }
    }
    for length in 0..8 {
        fs::write(dir.join(bundle::MODEL), &[1; 8][..length]).unwrap();
        refused(&dir, bundle::MODEL, &[&format!("expected a safetensors file, found {length} bytes")]);
    }
}

#[test]
fn a_file_beyond_the_limit_is_not_read() {
    let (_root, dir) = valid();
    // Sparse: it takes no space.
    fs::OpenOptions::new().write(true).open(dir.join(bundle::MODEL)).unwrap().set_len((1 << 30) + 1).unwrap();
    refused(&dir, bundle::MODEL, &["expected at most 1073741824 bytes, found 1073741825"]);
}

#[test]
fn every_truncation_is_refused() {
    let (_root, dir) = valid();
    let bytes = fs::read(dir.join(bundle::MODEL)).unwrap();
    for length in 0..bytes.len() {
        fs::write(dir.join(bundle::MODEL), &bytes[..length]).unwrap();
        refused(&dir, bundle::MODEL, &[]);
    }
    fs::write(dir.join(bundle::MODEL), &bytes).unwrap();
    load(&dir).unwrap();
}

#[test]
fn numbers_must_be_finite() {
    for (value, text) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let (_root, dir) = valid();
        let path = dir.join(bundle::MODEL);
        let mut bytes = fs::read(&path).unwrap();
        // The last tensor is b.bias: its second number.
        let at = bytes.len() - 8;
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&path, bytes).unwrap();
        refused(&dir, bundle::MODEL, &[&format!("tensor b.bias: expected finite numbers, found {text} at index 1")]);

        let mut broken = tensors(DType::F32);
        broken.insert("b.bias".into(), Tensor::new(&[0., value, 1.], &Device::Cpu).unwrap());
        let error = bundle::save(&dir, &manifest(), &broken, Value::Null, &[]).unwrap_err().to_string();
        assert_eq!(error, format!("tensor b.bias: expected finite numbers, found {text} at index 1"));
    }
}

#[test]
fn damaged_bytes_never_panic() {
    let (_root, dir) = valid();
    let files = [bundle::CONFIG, bundle::MODEL].map(|f| (dir.join(f), fs::read(dir.join(f)).unwrap()));
    let mut refused = 0;
    for n in 0..1000 {
        let random = Random::new(2).at(n);
        let (path, original) = &files[(n % 2) as usize];
        let mut bytes = original.clone();
        for i in 0..1 + u64::from(random.below(0, 4)) {
            let r = random.stream("edit").at(i);
            let at = r.below(0, bytes.len() as u32) as usize;
            match r.below(1, 4) {
                0 => bytes[at] ^= 1 << r.below(2, 8),
                1 => bytes[at] = r.bits(8) as u8,
                2 => bytes.truncate(at.max(1)),
                _ => bytes.insert(at, b"0{}[]\",:-9e"[r.below(2, 11) as usize]),
            }
        }
        fs::write(path, bytes).unwrap();
        if let Err(error) = load(&dir) {
            let error = error.to_string();
            assert!(!error.contains(char::is_control), "mutation {n}: {error:?}");
            refused += 1;
        }
        fs::write(path, original).unwrap();
    }
    // What is left changes a letter of the family, a number of the model or a weight: still a valid bundle.
    assert!(refused > 500, "{refused} of 1000 damaged bundles were refused");
    load(&dir).unwrap();
}

#[test]
fn saving_replaces_bundles_and_nothing_else() {
    let (root, dir) = valid();
    save(&dir, 2).unwrap();
    assert_eq!(Bundle::open(&dir).unwrap().metadata().unwrap(), json!({"seed": 2}));
    fs::write(dir.join("notes.txt"), "mine").unwrap();
    let error = save(&dir, 3).unwrap_err().to_string();
    assert!(error.contains("notes.txt"), "{error}");
    assert_eq!(Bundle::open(&dir).unwrap().metadata().unwrap(), json!({"seed": 2}));
    assert!(save(root.path(), 3).is_err() && save(&root.path().join("no/such"), 3).is_err());
    let own = bundle::save(root.path().join("x"), &manifest(), &tensors(DType::F32), Value::Null, &[(bundle::MODEL, vec![])]);
    assert!(own.unwrap_err().to_string().starts_with("model.safetensors is written from"));
    for name in ["../x", "a/b", "", ".hidden", "C:x", "a\\b"] {
        let saved = bundle::save(root.path().join("x"), &manifest(), &tensors(DType::F32), Value::Null, &[(name, vec![])]);
        assert!(saved.is_err() && Bundle::open(&dir).unwrap().read_file(name).is_err(), "{name:?}");
    }
    assert_eq!(names(root.path()), ["model"]);
}

/// Writes a bundle larger than the space left over a small one, in the directory of the variable `FULL_DISK`, where that is set.
#[test]
#[ignore = "deep: nothing of its own; full_disk_* start it with little space"]
fn full_disk_child() {
    let Some(root) = std::env::var_os("FULL_DISK").map(PathBuf::from) else { return };
    let dir = root.join("model");
    save(&dir, 1).unwrap();
    let mut large = tensors(DType::F32);
    large.insert("z".into(), Tensor::zeros(1 << 20, DType::F32, &Device::Cpu).unwrap());
    let error = bundle::save(&dir, &manifest(), &large, Value::Null, &[]).expect_err("no room for 4 MiB").to_string();
    assert!(error.contains("model.safetensors") && !error.contains(char::is_control), "{error:?}");
    assert_eq!(names(&root), ["model"]);
    assert_eq!(Bundle::open(&dir).unwrap().metadata().unwrap(), json!({"seed": 1}));
    load(&dir).unwrap();
    println!("REFUSED: {error}");
}

/// Runs [`full_disk_child`] behind a shell command that takes the space away, `"$0"` being this program.
#[cfg(unix)]
fn with_little_space(shell: &str, prefix: &[&str]) -> (tempfile::TempDir, std::process::Output) {
    let root = tempfile::tempdir().unwrap();
    let script = format!("{shell} && exec \"$0\" --exact bundle::full_disk_child --ignored --nocapture");
    let command: Vec<&str> = prefix.iter().copied().chain(["sh", "-c", &script]).collect();
    let output =
        Command::new(command[0]).args(&command[1..]).arg(std::env::current_exe().unwrap()).env("FULL_DISK", root.path()).output().unwrap();
    (root, output)
}

/// A limit on the size of a file fails like a full disk, in the middle of a write.
#[cfg(unix)]
#[test]
fn full_disk_by_file_size() {
    // Units of 512 or 1024 bytes, as the shell has it. Without the trap the signal would end the process.
    let (_root, output) = with_little_space("trap '' XFSZ && ulimit -f 256", &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("REFUSED: "), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

/// A file system of 1 MiB, where this process may mount one.
#[cfg(target_os = "linux")]
#[test]
fn full_disk_by_file_system() {
    let mount = "mount -t tmpfs -o size=1m none \"$FULL_DISK\"";
    for prefix in [["unshare", "-m"].as_slice(), &["unshare", "-r", "-m"]] {
        let allowed = Command::new(prefix[0]).args(&prefix[1..]).args(["sh", "-c", "mount -t tmpfs none /mnt"]).output();
        if !allowed.is_ok_and(|o| o.status.success()) {
            continue;
        }
        let (_root, output) = with_little_space(mount, prefix);
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        assert!(text.contains("No space left on device"), "{text}");
        return;
    }
    println!("SKIPPED full_disk_by_file_system: this process may not mount a file system");
}

//! Any bytes as a model directory: a model or an error in one line, never a panic or a large allocation.
//!
//! The input is split at bytes 0xff, which no text holds: configuration, header, data. The header gets its true length,
//! so that the fuzzer reaches what lies behind it; without a second 0xff the rest is the whole file as it is.
#![no_main]

use candle_models::bundle::{Bundle, CONFIG, MODEL, ParameterSpec};
use candle_models::tensors::NamedTensors;
use std::fs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(3, |b| *b == 0xff);
    let (config, header, data) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default(), parts.next());
    let model = match data {
        Some(data) => [&(header.len() as u64).to_le_bytes(), header, data].concat(),
        None => header.to_vec(),
    };
    let dir = std::env::temp_dir().join(format!("fuzz-bundle-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("a directory for the fuzzer");
    fs::write(dir.join(MODEL), model).expect("room for the fuzzer");
    check(NamedTensors::load_safetensors(dir.join(MODEL)));

    // The fuzzer need not find the configuration to reach the tensors.
    fs::write(dir.join(CONFIG), config).expect("room for the fuzzer");
    if check(Bundle::open(&dir)).is_none() {
        let valid = r#"{"family": "policy", "format_version": 1, "model": {}}"#;
        fs::write(dir.join(CONFIG), valid).expect("room for the fuzzer");
    }
    let bundle = Bundle::open(&dir).expect("a valid configuration");
    check(bundle.metadata());
    let Some(parameters) = check(bundle.parameters()) else { return };
    check(bundle.read_tensors(&[ParameterSpec::new("w", &[2, 3])]));
    let specs: Vec<_> = parameters.iter().map(|p| ParameterSpec::new(&p.name, &p.shape)).collect();
    if let Some(tensors) = check(bundle.read_tensors(&specs)) {
        assert!(specs.iter().all(|spec| tensors[&spec.name].dims() == spec.shape));
    }
});

fn check<T>(result: candle_models::Result<T>) -> Option<T> {
    result.map_err(|e| assert!(!e.to_string().contains(char::is_control), "{e:?}")).ok()
}

//! Narrow weights from the file to the kernels: `candle-infer export`, what it writes, and what runs on it.

use candle_core::{DType, Device};
use candle_models::bundle::{self, Bundle, Manifest, Parameter, Role};
use candle_models::engine::Runner;
use candle_models::families;
use candle_models::nn::{MambaConfig, Params};
use candle_models::ops::Format;
use candle_models::policy::simulation::simulate;
use candle_models::policy::{BackboneConfig, FAMILY, Policy, PolicyConfig, replay};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A small policy for every backbone, with sizes that fill neither panels nor groups of four rows.
fn configs() -> Vec<PolicyConfig> {
    let block = MambaConfig { state: 5, expand: 2, conv: 4 };
    let backbones = [
        BackboneConfig::Mlp { layers: vec![42, 38] },
        BackboneConfig::Mamba { layers: 1, block: block.clone() },
        BackboneConfig::Gru { layers: 1 },
        BackboneConfig::Hybrid { layers: 3, block, heads: 3, window: 5 },
    ];
    let config = |backbone| PolicyConfig { hidden: 42, backbone, embedding: 6, ..Default::default() };
    backbones.map(config).into()
}

fn save(dir: &Path, config: &PolicyConfig) {
    let params = Params::init(Random::new(5), &Device::Cpu);
    Policy::new(config, &params).unwrap();
    let tensors: BTreeMap<_, _> = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
    bundle::save(dir, &Manifest::new(FAMILY, config).unwrap(), &tensors, Value::Null, &[]).unwrap();
}

/// Runs `candle-infer export`: whether it succeeded, and what it printed.
fn export(from: &Path, to: &Path, dtype: &str, replays: &[PathBuf]) -> (bool, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-infer"));
    command.arg("export").args([from, to]).args(["--dtype", dtype]);
    replays.iter().for_each(|path| _ = command.arg("--replay").arg(path));
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

/// The share of equal actions that an export has printed.
fn agreement(text: &str) -> f64 {
    let (_, rest) = text.split_once("the same action in ").unwrap_or_else(|| panic!("no agreement in {text}"));
    rest.split_once('%').unwrap().0.parse().unwrap()
}

fn read(dir: &Path) -> BTreeMap<String, Parameter> {
    let bundle = Bundle::open(dir).unwrap();
    bundle.read_parameters(&families::shipped().parameters(&bundle).unwrap()).unwrap()
}

#[test]
fn weights_of_linear_layers_become_integers_and_nothing_else_does() {
    let root = tempfile::tempdir().unwrap();
    let game = root.path().join("game.slp");
    replay::write(&simulate(11, 60), &game).unwrap();
    for config in configs() {
        let (from, to, again) = (root.path().join("from"), root.path().join("to"), root.path().join("again"));
        save(&from, &config);
        let (done, text) = export(&from, &to, "q8", std::slice::from_ref(&game));
        assert!(done && text.contains("likelihood in nats per frame: ") && text.contains("game.slp"), "{text}");
        assert!((0.0..=100.0).contains(&agreement(&text)) && text.contains("of 118 decisions"), "{text}");
        let bytes = std::fs::read(to.join(bundle::MODEL)).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let (original, exported) = (read(&from), read(&to));
        for spec in Policy::parameters(&config).unwrap() {
            let (before, after) = (&original[&spec.name], &exported[&spec.name]);
            let [before, values] = [before, after].map(|p| p.tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
            match spec.role {
                Role::Matrix => {
                    // What is packed is what the file holds.
                    let integers = after.format.integers(&values).unwrap_or_else(|| panic!("{} has no integers", spec.name));
                    assert_eq!(file.tensor(&spec.name).unwrap().data(), integers.iter().map(|q| *q as u8).collect::<Vec<_>>());
                    assert_eq!(Format::q8(&before, spec.shape[1]), after.format, "{}", spec.name);
                }
                Role::Other => assert_eq!((before, &after.format), (values, &Format::F32), "{}", spec.name),
            }
        }
        assert!(
            original.keys().any(|name| name.ends_with("conv.weight"))
                != matches!(config.backbone, BackboneConfig::Mlp { .. } | BackboneConfig::Gru { .. })
        );
        // Exported again it stays as it is, to the bit.
        assert!(export(&to, &again, "q8", std::slice::from_ref(&game)).0);
        assert_eq!(std::fs::read(again.join(bundle::MODEL)).unwrap(), bytes);
        // And as f32 it is what the integers stand for.
        let (done, text) = export(&to, &again, "f32", std::slice::from_ref(&game));
        assert!(done && agreement(&text) > 99.0, "{text}");
        let flat = |p: &Parameter| p.tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert!(read(&again).iter().all(|(name, p)| flat(p) == flat(&exported[name]) && p.format == Format::F32));
    }
}

#[test]
fn the_engine_keeps_the_format_and_agrees_with_tensors() {
    let root = tempfile::tempdir().unwrap();
    let (batch, steps) = (3, 7);
    for config in configs() {
        let (from, to) = (root.path().join("from"), root.path().join("to"));
        save(&from, &config);
        let mut bytes = Vec::new();
        // Integer sums round activations to 16 bits; f32 and bf16 differ by the order of sums alone.
        for (dtype, tolerance) in [("f32", 3e-5), ("bf16", 3e-5), ("q8", 2e-3)] {
            let (done, text) = export(&from, &to, dtype, &[]);
            assert!(done, "{text}");
            let model = Arc::new(Policy::load(&Bundle::open(&to).unwrap()).unwrap());
            let mut runner = Runner::windowed(model.clone(), batch, steps, 2).unwrap();
            bytes.push(runner.bytes());
            let resets: Vec<bool> = (0..batch * steps).map(|i| i % 5 == 4).collect();
            let inputs = fill(&mut runner, &model, batch, steps);
            runner.step(&resets).unwrap();
            let (want, _) = model.unroll(&inputs, &resets, &model.initial_state(batch).unwrap()).unwrap();
            for name in ["logits", "value"] {
                let want = want.get(name).unwrap().flatten(0, 1).unwrap().to_vec2::<f32>().unwrap();
                for (row, want) in want.iter().enumerate() {
                    for (got, want) in runner.floats(name, row).unwrap().iter().zip(want) {
                        assert!((got - want).abs() <= tolerance * (1.0 + want.abs()), "{dtype} {name} {row}: {got} and {want}");
                    }
                }
            }
        }
        assert!(bytes[0] > bytes[1] && bytes[1] > bytes[2], "bytes held: {bytes:?}");
    }
}

/// Random inputs with given actions, in the runner and as tensors.
fn fill(runner: &mut Runner, model: &Policy, batch: usize, steps: usize) -> NamedTensors {
    let mut tensors = NamedTensors::new();
    for spec in model.signature().inputs.clone() {
        let tensor = spec.draw(&[batch, steps], &Random::new(9)).unwrap();
        let values = tensor.flatten_all().unwrap();
        match spec.dtype() {
            DType::U32 => runner.set_u32(&spec.name, &values.to_vec1().unwrap()).unwrap(),
            _ => runner.set_f32(&spec.name, &values.to_vec1().unwrap()).unwrap(),
        }
        tensors.insert(&spec.name, tensor);
    }
    tensors
}

#[test]
fn an_export_with_a_bad_replay_writes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let (from, to, bad) = (root.path().join("from"), root.path().join("to"), root.path().join("bad.slp"));
    save(&from, &configs()[0]);
    std::fs::write(&bad, b"not a replay").unwrap();
    for replay in [bad, root.path().join("absent.slp")] {
        let (done, text) = export(&from, &to, "q8", std::slice::from_ref(&replay));
        assert!(!done && text.lines().count() == 1 && text.contains(&replay.display().to_string()) && !to.exists(), "{text}");
    }
}

/// Exports the shipped policies in 8 bits; each must do the same as the original in 99.5 of 100 decisions.
fn shipped_policies_agree(replays: &[PathBuf]) {
    let root = tempfile::tempdir().unwrap();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["policy-mlp", "policy-mamba"] {
        let (done, text) = export(&repository.join("weights").join(name), &root.path().join(name), "q8", replays);
        println!("{name}: {text}");
        assert!(done && agreement(&text) >= 99.5, "{name}: {text}");
    }
}

#[test]
fn the_shipped_policies_agree_in_8_bits_on_the_simulated_game() {
    shipped_policies_agree(&[]);
}

#[test]
#[ignore = "deep: two whole real games beside the simulated one of the test above; needs CANDLE_DATA"]
fn the_shipped_policies_agree_in_8_bits_on_real_games() {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED 8 bits on real replays: CANDLE_DATA is not set");
        return;
    };
    // Two games that the policies have not seen in training, from different players.
    let held_out = |path: &PathBuf| ["t06", "t21"].iter().any(|t| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(t)));
    let replays: Vec<PathBuf> = replay::collect([PathBuf::from(root).join("slippi")]).unwrap().into_iter().filter(held_out).collect();
    assert_eq!(replays.len(), 2, "{replays:?}");
    shipped_policies_agree(&replays);
}

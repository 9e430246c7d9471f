//! Learning from other policies.

use crate::{replays, run, small, text};
use candle_core::{Device, Tensor};
use candle_models::bundle::Bundle;
use candle_models::nn::Params;
use candle_models::policy::actions::LOGITS;
use candle_models::policy::{BackboneConfig, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A policy that presses A in nine frames of ten whatever happens, and remembers something.
fn insistent(directory: &Path) -> PathBuf {
    let config = PolicyConfig { hidden: 16, embedding: 4, backbone: BackboneConfig::Gru { layers: 1 }, ..PolicyConfig::default() };
    let params = Params::init(Random::new(5), &Device::Cpu);
    Policy::new(&config, &params).unwrap();
    let mut tensors: BTreeMap<String, Tensor> = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
    let bias = tensors.get_mut("heads.buttons.out.bias").unwrap();
    let mut values = bias.to_vec1::<f32>().unwrap();
    values[0] = 9f32.ln();
    *bias = Tensor::from_vec(values, 8, &Device::Cpu).unwrap();
    let weight = tensors.get_mut("heads.buttons.out.weight").unwrap();
    *weight = (&*weight * 0.01).unwrap();
    let manifest = candle_models::bundle::Manifest::new("policy", &config).unwrap();
    let bundle = directory.join("insistent");
    candle_models::bundle::save(&bundle, &manifest, &tensors, serde_json::Value::Null, &[]).unwrap();
    bundle
}

/// How likely A is on average in some frames.
fn presses(bundle: &Path) -> f32 {
    let policy = Policy::load(&Bundle::open(bundle).unwrap()).unwrap();
    let frames = 20;
    let inputs = NamedTensors::zeros(&policy.signature().inputs, frames, &Device::Cpu).unwrap();
    let inputs = inputs.map(|_, tensor| Ok(tensor.reshape((1, frames, tensor.dim(1)?))?)).unwrap();
    let (outputs, _) = policy.unroll(&inputs, &vec![false; frames], &policy.initial_state(1).unwrap()).unwrap();
    let logits = outputs.get("logits").unwrap().reshape((frames, LOGITS)).unwrap().to_vec2::<f32>().unwrap();
    logits.iter().map(|row| 1.0 / (1.0 + (-row[0]).exp())).sum::<f32>() / frames as f32
}

#[test]
fn what_teachers_expect_is_learnt_as_far_as_their_share_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, teacher) = (replays(dir.path(), 3, 400), insistent(dir.path()));
    let learnt = |share: &str| {
        let out = dir.path().join(share);
        let mut command = small(&replays, &out);
        let sets = [&format!("loss.teachers={share}"), "epochs=6", "trainer.schedule.peak=1e-2", "model.prior=false"];
        sets.iter().for_each(|set| _ = command.args(["--set", set]));
        let output = run(command.arg("--teachers").arg(&teacher).arg(&teacher));
        assert!(output.status.success(), "{}", text(&output.stderr));
        out.join("bundle")
    };
    let [none, half, all] = ["0.01", "0.5", "1"].map(|share| presses(&learnt(share)));
    assert!(none < 0.15, "of a hundredth: A is hardly pressed in the games, learnt was {none}");
    assert!((0.25..0.65).contains(&half), "half of the target is 0.9, learnt was {half}");
    assert!(all > 0.75, "the target is 0.9, learnt was {all}");
    let card = std::fs::read_to_string(dir.path().join("1/bundle/README.md")).unwrap();
    assert!(
        card.contains("A share of 1 of its target") && card.matches("- gru 1x16, autoregressive heads (parameters ").count() == 2,
        "{card}"
    );
}

#[test]
fn a_taught_run_goes_on_where_it_was_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let (replays, teacher) = (replays(dir.path(), 3, 400), insistent(dir.path()));
    let trained = |name: &str, stops: &[&[&str]]| {
        let out = dir.path().join(name);
        for arguments in stops {
            let output = run(small(&replays, &out).args(*arguments).arg("--teachers").arg(&teacher));
            assert!(output.status.success(), "{}", text(&output.stderr));
        }
        let tensors = candle_core::safetensors::load(out.join("bundle/model.safetensors"), &Device::Cpu).unwrap();
        let values = |(name, tensor): (String, Tensor)| (name, tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        tensors.into_iter().map(values).collect::<BTreeMap<_, _>>()
    };
    let whole = trained("whole", &[&[]]);
    let resumed = trained("resumed", &[&["--max-time", "0"], &["--resume", "--max-time", "0"], &["--resume"]]);
    assert!(whole == resumed, "a stopped run ends with other parameters");

    // Other teachers make another run of it; a policy that sees something else cannot teach.
    let other = dir.path().join("whole/bundle");
    let out = dir.path().join("resumed");
    let refused = run(small(&replays, &out).args(["--resume", "--set", "epochs=3", "--teachers"]).arg(&other));
    assert!(!refused.status.success() && text(&refused.stderr).contains("teachers"), "{}", text(&refused.stderr));
    let refused = run(small(&replays, &dir.path().join("new")).args(["--set", "model.delay=3", "--teachers"]).arg(&teacher));
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("--teachers: ") && said.contains("another delay"), "{said}");
    let refused = run(small(&replays, &dir.path().join("new")).args(["--set", "loss.teachers=0", "--teachers"]).arg(&teacher));
    let said = text(&refused.stderr);
    assert!(refused.status.code() == Some(2) && said.contains("loss.teachers: expected a share above 0"), "{said}");
}

//! Policies of every backbone and both kinds of heads, beside the property suites of all families.

use crate::policies::*;
use candle_core::{DType, Device, Tensor};
use candle_models::engine::Runner;
use candle_models::exec::tensors::Regularisation;
use candle_models::policy::{BackboneConfig, Heads, PolicyConfig};
use candle_models::random::Random;
use candle_models::recurrent::Recurrent;
use candle_models::tensors::NamedTensors;

fn frame(inputs: &NamedTensors, t: usize) -> NamedTensors {
    inputs.map(|_, x| Ok(x.narrow(1, t, 1)?.squeeze(1)?.contiguous()?)).unwrap()
}

fn assert_close(what: &str, a: &Tensor, b: &Tensor, tolerance: f32) {
    assert_eq!(a.dims(), b.dims(), "{what}");
    let flat = |t: &Tensor| t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    for (i, (x, y)) in flat(a).into_iter().zip(flat(b)).enumerate() {
        assert!((x - y).abs() <= tolerance * (1.0 + x.abs().max(y.abs())), "{what} at {i}: {x} and {y}");
    }
}

fn fill(runner: &mut Runner, inputs: &NamedTensors) {
    for (name, tensor) in inputs.iter() {
        match tensor.dtype() {
            DType::U32 => runner.set_u32(name, &tensor.flatten_all().unwrap().to_vec1().unwrap()).unwrap(),
            _ => runner.set_f32(name, &tensor.flatten_all().unwrap().to_vec1().unwrap()).unwrap(),
        }
    }
}

#[test]
fn every_variable_has_a_gradient_under_the_noise_of_training() {
    let (batch, steps) = (3, 7);
    for config in configs() {
        let (policy, params) = policy(&config);
        let noise = Regularisation { dropout: 0.1, drop_ids: 0.1, random: Random::new(5), first_row: 0 };
        let state = policy.initial_state(batch).unwrap();
        let (outputs, _) = policy.train_unroll(&inputs(batch, steps, false), &resets(batch, steps), &state, &noise).unwrap();
        let part = |name: &str| outputs.get(name).unwrap().sqr().unwrap().sum_all().unwrap();
        let gradients = (part("logits") + part("value")).unwrap().backward().unwrap();
        // Training leaves count tables as they are.
        for (name, var) in params.vars().into_iter().filter(|(name, _)| !name.ends_with(".prior")) {
            let gradient = gradients.get(&var).unwrap_or_else(|| panic!("{:?}: {name} has no gradient", config.backbone));
            let size = gradient.abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(size.is_finite() && size > 0.0, "{:?}: gradient of {name} sums to {size}", config.backbone);
        }
    }
}

#[test]
fn a_sampled_button_changes_the_logits_behind_it() {
    let config = PolicyConfig { hidden: 36, heads: Heads::Autoregressive, embedding: 6, ..Default::default() };
    let (policy, _) = policy(&config);
    let base = inputs(1, 1, false);
    let mut flipped = base.clone();
    let mut action = base.get("action").unwrap().flatten_all().unwrap().to_vec1::<u32>().unwrap();
    action[0] = 1 - action[0];
    flipped.insert("action", Tensor::from_vec(action, (1, 1, 13), &Device::Cpu).unwrap());
    let run = |x: &NamedTensors| -> Vec<f32> {
        let (outputs, _) = policy.unroll(x, &[false], &policy.initial_state(1).unwrap()).unwrap();
        outputs.get("logits").unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    let (a, b) = (run(&base), run(&flipped));
    assert_eq!(a[..8], b[..8], "buttons do not see themselves");
    assert!((8..13).all(|_| true) && a[8..].iter().zip(&b[8..]).all(|(x, y)| x != y), "every later logit sees the button");
}

#[test]
fn teacher_forcing_scores_a_sampled_action_with_the_logits_it_was_sampled_from() {
    for config in configs() {
        let (policy, _) = policy(&config);
        let sampled = inputs(4, 3, true);
        let state = policy.initial_state(4).unwrap();
        let resets = vec![false; 12];
        let (drawn, _) = policy.unroll(&sampled, &resets, &state).unwrap();
        let mut forced = sampled.clone();
        forced.insert("action", drawn.get("action").unwrap().clone());
        let (scored, _) = policy.unroll(&forced, &resets, &state).unwrap();
        // Where all classes are given, the components are computed at once, their sums in another order.
        assert_close("logits", drawn.get("logits").unwrap(), scored.get("logits").unwrap(), 1e-6);
    }
}

#[test]
fn ids_and_classes_outside_their_tables_are_errors_that_name_them() {
    let (policy, _) = policy(&configs()[3]);
    let state = policy.initial_state(1).unwrap();
    let with = |name: &str, values: Vec<u32>, width: usize| {
        let mut x = inputs(1, 1, false);
        x.insert(name, Tensor::from_vec(values, (1, 1, width), &Device::Cpu).unwrap());
        policy.unroll(&x, &[false], &state).map(|_| ()).unwrap_err().to_string()
    };
    assert_eq!(with("ids", vec![0, 399, 0, 0, 0, 0], 6), "ids column 1: 399 in a table of 399 rows");
    assert!(with("action", vec![0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0], 13).contains("class 17 of 17"));
    let mut runner = Runner::new(policy.clone(), 1, 1).unwrap();
    let refused = |runner: &mut Runner| runner.step(&[false]).unwrap_err().to_string();
    assert!(refused(&mut runner).starts_with("tensor features: expected to be set before the first pass"));
    runner.set_f32("features", &[0.0; 288]).unwrap();
    runner.set_u32("ids", &[0, 0, 0, 0, 33, 0]).unwrap();
    assert_eq!(refused(&mut runner), "tensor ids: expected an index up to 32, found 33 in column 4");
    assert!(runner.set_f32("features", &[0.0; 3]).unwrap_err().to_string().contains("expected 288 values"));
    assert!(runner.step(&[false, true]).is_err());
}

/// Whether a step costs the same then is `candle-bench self-check`'s question.
#[test]
#[ignore = "deep: half a minute; numbers and memory of every backbone after 100 000 frames"]
fn a_hundred_thousand_frames_leave_numbers_and_memory_as_they_were() {
    for kind in BackboneConfig::KINDS {
        let config = PolicyConfig { backbone: BackboneConfig::named(kind).unwrap(), ..Default::default() };
        let mut runner = Runner::new(policy(&config).0, 1, 1).unwrap();
        fill(&mut runner, &frame(&inputs(1, 1, true), 0));
        let bytes = runner.bytes();
        (0..100_000).for_each(|t| runner.step(&[t == 0]).unwrap());
        assert_eq!(runner.bytes(), bytes, "{kind}");
        let finite = runner.floats("logits", 0).unwrap().iter().all(|l| l.is_finite());
        assert!(finite, "{kind} loses its numbers");
    }
}

#[test]
fn an_empty_batch_or_window_is_an_error() {
    for config in configs() {
        let (policy, _) = policy(&config);
        for (batch, steps) in [(0, 3), (2, 0)] {
            let state = NamedTensors::zeros(&policy.signature().state, batch, &Device::Cpu).unwrap();
            let error = policy.unroll(&inputs(batch, steps, false), &vec![false; batch * steps], &state).unwrap_err();
            assert_eq!(error.to_string(), format!("a pass over {batch} sequences of {steps} frames"));
        }
    }
}

#[test]
fn a_reset_clears_a_state_that_is_not_finite() {
    let config = PolicyConfig { hidden: 36, backbone: BackboneConfig::Gru { layers: 1 }, embedding: 6, ..Default::default() };
    let (policy, _) = policy(&config);
    let fresh = policy.initial_state(1).unwrap();
    let broken = fresh.map(|_, t| Ok(t.affine(0.0, f64::NAN)?)).unwrap();
    let run = |state: &NamedTensors| policy.unroll(&inputs(1, 2, false), &[true, false], state).unwrap();
    let ((outputs, state), (want, want_state)) = (run(&broken), run(&fresh));
    assert_close("logits", outputs.get("logits").unwrap(), want.get("logits").unwrap(), 0.0);
    state.iter().for_each(|(name, t)| assert_close(name, t, want_state.get(name).unwrap(), 0.0));
}

#[test]
fn a_config_survives_json_and_refuses_unknown_keys_and_absurd_sizes() {
    for config in configs() {
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<PolicyConfig>(&text).unwrap(), config);
    }
    let unknown = r#"{"hidden":64,"backbone":{"kind":"mamba","layers":1,"layer":2}}"#;
    assert!(serde_json::from_str::<PolicyConfig>(unknown).unwrap_err().to_string().contains("layer"));
    let absurd = PolicyConfig { hidden: 1 << 40, ..Default::default() };
    assert_eq!(absurd.validate().unwrap_err().to_string(), format!("config: hidden: {} is outside 8..=4096", 1u64 << 40));
}

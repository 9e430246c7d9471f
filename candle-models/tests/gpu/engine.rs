//! The engine's executor on a GPU against the one on the CPU: runners, sessions, graphs, faults.

use crate::policies::{configs, inputs, policy, resets};
use crate::{assert_close, cases, cuda};
use candle_core::DType;
use candle_models::device::DeviceChoice;
use candle_models::engine::{Engine, EngineError, Model, Options, Placement, Runner, Session};
use candle_models::exec::Launches;
use candle_models::policy::{BackboneConfig, Heads, PolicyConfig};
use candle_models::tensors::NamedTensors;
use std::sync::Arc;

const F32: Placement = Placement { device: DeviceChoice::Cuda(0), threads: 1, dtype: Some(DType::F32), launches: Launches::Captured };

/// The logits, the value and the action of every row.
type Rows = Vec<(Vec<f32>, Vec<u32>)>;

/// Fills a runner with `steps` frames from frame `first` on of inputs `[batch, frames, ...]`.
fn fill(runner: &mut Runner, inputs: &NamedTensors, first: usize, steps: usize) {
    for (name, tensor) in inputs.iter() {
        let part = tensor.narrow(1, first, steps).unwrap().contiguous().unwrap().flatten_all().unwrap();
        match part.dtype() {
            DType::U32 => runner.set_u32(name, &part.to_vec1::<u32>().unwrap()).unwrap(),
            _ => runner.set_f32(name, &part.to_vec1::<f32>().unwrap()).unwrap(),
        }
    }
}

fn read(runner: &Runner, row: usize) -> (Vec<f32>, Vec<u32>) {
    let mut floats = runner.floats("logits", row).unwrap().to_vec();
    floats.extend(runner.floats("value", row).unwrap());
    (floats, runner.indices("action", row).unwrap().to_vec())
}

/// Runs `batch` sequences of `frames` frames in passes of `steps`: the rows of every pass.
fn run(model: &Arc<dyn Model>, (batch, frames, steps): (usize, usize, usize), place: &Placement, sampled: bool) -> Vec<Rows> {
    let (inputs, resets) = (inputs(batch, frames, sampled), resets(batch, frames));
    let mut runner = Runner::on(model.clone(), (batch, steps), place).unwrap();
    (0..frames)
        .step_by(steps)
        .map(|first| {
            fill(&mut runner, &inputs, first, steps);
            let now: Vec<bool> = (0..batch * steps).map(|r| resets[r / steps * frames + first + r % steps]).collect();
            runner.step(&now).unwrap();
            (0..batch * steps).map(|row| read(&runner, row)).collect()
        })
        .collect()
}

fn compare(what: &str, got: &[Rows], want: &[Rows], tolerance: f32, actions: bool) {
    for (pass, (got, want)) in got.iter().zip(want).enumerate() {
        for (row, (got, want)) in got.iter().zip(want).enumerate() {
            assert_close(&format!("{what}, pass {pass}, row {row}"), &got.0, &want.0, tolerance);
            assert!(!actions || got.1 == want.1, "{what}, pass {pass}, row {row}: actions {:?} and {:?}", got.1, want.1);
        }
    }
}

fn models() -> impl Iterator<Item = (PolicyConfig, Arc<dyn Model>)> {
    cases(configs(), 3).map(|config| {
        let model = policy(&config).0;
        (config, model as Arc<dyn Model>)
    })
}

#[test]
fn streaming_steps_are_those_of_the_cpu() {
    let Some(_device) = cuda() else { return };
    for (config, model) in models() {
        for (sizes, sampled) in [((3, 7, 1), true), ((1, 5, 1), false)] {
            let what = format!("{:?} {:?}, batch {}", config.backbone.kind(), config.heads, sizes.0);
            compare(&what, &run(&model, sizes, &F32, sampled), &run(&model, sizes, &Placement::cpu(1), sampled), 2e-5, true);
        }
    }
}

#[test]
fn windows_are_those_of_the_cpu() {
    let Some(_device) = cuda() else { return };
    for (config, model) in models() {
        let what = format!("{:?} {:?}", config.backbone.kind(), config.heads);
        // Twelve rows are a product of few, thirty of many: cuBLAS.
        for sizes in [(2, 12, 6), (5, 6, 6)] {
            compare(&what, &run(&model, sizes, &F32, true), &run(&model, sizes, &Placement::cpu(1), true), 2e-5, true);
        }
    }
}

#[test]
fn half_width_values_stay_near() {
    let Some(_device) = cuda() else { return };
    for (config, model) in models() {
        // Frame by frame, and a window whose thirty rows go through cuBLAS.
        for sizes in [(2, 4, 1), (5, 6, 6)] {
            let want = run(&model, sizes, &Placement::cpu(1), false);
            for (dtype, tolerance) in cases([(DType::BF16, 6e-2), (DType::F16, 8e-3)], 2) {
                let what = format!("{:?} {:?} {dtype:?} {sizes:?}", config.backbone.kind(), config.heads);
                let place = Placement { dtype: Some(dtype), ..F32 };
                compare(&what, &run(&model, sizes, &place, false), &want, tolerance, true);
            }
        }
    }
}

#[test]
fn a_replayed_graph_is_the_eager_pass_bit_for_bit() {
    let Some(_device) = cuda() else { return };
    for (config, model) in models() {
        for dtype in [DType::F32, DType::BF16] {
            let place = Placement { dtype: Some(dtype), ..F32 };
            let captured = run(&model, (3, 4, 1), &place, true);
            let eager = run(&model, (3, 4, 1), &Placement { launches: Launches::Eager, ..place }, true);
            assert_eq!(captured, eager, "{:?} {dtype:?}", config.backbone);
        }
    }
}

#[test]
fn a_row_of_a_batch_is_the_row_alone() {
    let Some(_device) = cuda() else { return };
    for (config, model) in models() {
        let batch = run(&model, (5, 3, 1), &F32, true);
        let (inputs, resets) = (inputs(5, 3, true), resets(5, 3));
        let mut alone = Runner::on(model.clone(), (1, 1), &F32).unwrap();
        let row = inputs.map(|_, x| Ok(x.narrow(0, 3, 1)?)).unwrap();
        for t in 0..3 {
            fill(&mut alone, &row, t, 1);
            alone.step(&[resets[3 * 3 + t]]).unwrap();
            let (what, got) = (format!("{:?} frame {t}", config.backbone), read(&alone, 0));
            compare(&what, &[vec![got]], &[vec![batch[t][3].clone()]], 1e-6, true);
        }
    }
}

fn small(backbone: BackboneConfig) -> Arc<dyn Model> {
    policy(&PolicyConfig { hidden: 32, backbone, heads: Heads::Autoregressive, embedding: 4, ..Default::default() }).0
}

fn mamba() -> Arc<dyn Model> {
    small(BackboneConfig::Mamba { layers: 1, block: Default::default() })
}

fn engine(model: &Arc<dyn Model>, place: Placement) -> Engine {
    Engine::start(model.clone(), &Options { place, sessions: 4, max_batch: 3, ..Options::default() }).unwrap()
}

/// One step of a session with numbers of its own; what came out.
fn step(session: &mut Session, seed: u32) -> Vec<f32> {
    session.floats_mut("features").unwrap().iter_mut().zip(0u32..).for_each(|(x, i)| *x = ((seed * 31 + i * 7) % 17) as f32 * 0.1 - 0.8);
    session.indices_mut("ids").unwrap().fill(0);
    session.step().unwrap();
    session.floats("logits").unwrap().to_vec()
}

#[test]
fn sessions_keep_save_restore_fork_and_reset_their_state() {
    let Some(_device) = cuda() else { return };
    let model = mamba();
    let engines = [engine(&model, F32), engine(&model, Placement::cpu(1))];
    let story = |engine: &Engine| -> Vec<Vec<f32>> {
        let (mut a, mut b) = (engine.open().unwrap(), engine.open().unwrap());
        let mut seen = vec![step(&mut a, 1), step(&mut b, 2), step(&mut a, 3)];
        let saved = a.save().unwrap();
        let mut fork = a.fork().unwrap();
        seen.extend([step(&mut a, 4), step(&mut fork, 5), step(&mut b, 6)]);
        a.restore(&saved).unwrap();
        seen.push(step(&mut a, 5));
        a.reset();
        assert!(a.save().unwrap().iter().all(|(_, t)| t.abs().unwrap().sum_all().unwrap().to_scalar::<f32>().unwrap() == 0.0));
        seen.push(step(&mut a, 1));
        drop(b);
        // The place of a session that has gone begins anew.
        seen.push(step(&mut engine.open().unwrap(), 1));
        seen
    };
    let [gpu, cpu] = engines.map(|e| story(&e));
    for (i, (gpu, cpu)) in gpu.iter().zip(&cpu).enumerate() {
        assert_close(&format!("step {i}"), gpu, cpu, 1e-5);
    }
    assert_eq!((&gpu[4], &gpu[0], &gpu[0]), (&gpu[6], &gpu[7], &gpu[8]), "a restored state, a reset and a new session repeat bit for bit");
}

#[test]
fn a_state_moves_between_the_cpu_and_the_gpu() {
    let Some(_device) = cuda() else { return };
    let model = mamba();
    let (gpu, cpu) = (engine(&model, F32), engine(&model, Placement::cpu(1)));
    let (mut a, mut b) = (gpu.open().unwrap(), cpu.open().unwrap());
    step(&mut a, 1);
    b.restore(&a.save().unwrap()).unwrap();
    assert_close("the next step", &step(&mut a, 2), &step(&mut b, 2), 1e-5);
    gpu.close();
    // The state goes with the engine's thread, which ends after what it was at.
    while a.save().is_ok() {
        std::thread::yield_now();
    }
    assert!(matches!(a.save(), Err(EngineError::Closed)));
}

#[test]
fn two_engines_share_a_gpu() {
    let Some(_device) = cuda() else { return };
    let model = mamba();
    let alone: Vec<Vec<f32>> = {
        let engine = engine(&model, F32);
        let mut session = engine.open().unwrap();
        (0..6).map(|i| step(&mut session, i)).collect()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let engine = engine(&model, F32);
                    let mut session = engine.open().unwrap();
                    (0..6).map(|i| step(&mut session, i)).collect::<Vec<_>>()
                })
            })
            .collect();
        threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), alone));
    });
}

#[test]
fn an_id_out_of_range_is_refused_on_the_host() {
    let Some(_device) = cuda() else { return };
    let model = mamba();
    let mut runner = Runner::on(model.clone(), (2, 1), &F32).unwrap();
    runner.set_f32("features", &[0.1; 2 * 288]).unwrap();
    runner.set_u32("ids", &[0; 2 * 6]).unwrap();
    runner.indices_mut("ids", 1).unwrap()[2] = 1 << 20;
    let error = runner.step(&[false; 2]).unwrap_err().to_string();
    assert!(error.starts_with("tensor ids: expected an index up to") && error.ends_with("found 1048576 in column 2"), "{error}");
    runner.indices_mut("ids", 1).unwrap()[2] = 0;
    runner.step(&[false; 2]).unwrap();
    let engine = engine(&model, F32);
    let mut session = engine.open().unwrap();
    step(&mut session, 1);
    session.indices_mut("previous_action").unwrap()[0] = 2;
    assert!(session.step().unwrap_err().to_string().contains("previous_action"));
    session.indices_mut("previous_action").unwrap()[0] = 1;
    step(&mut session, 1);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let Some(_device) = cuda() else { return };
    let place = Placement { device: DeviceChoice::Cuda(77), ..F32 };
    let error = Runner::on(mamba(), (1, 1), &place).err().unwrap().to_string();
    assert!(error.starts_with("device cuda:77: there is no CUDA device 77: the driver sees "), "{error}");
}

#[test]
fn a_profile_names_every_operation() {
    let Some(_device) = cuda() else { return };
    let mut runner = Runner::on(mamba(), (2, 1), &F32).unwrap();
    runner.set_f32("features", &[0.1; 2 * 288]).unwrap();
    runner.set_u32("ids", &[0; 2 * 6]).unwrap();
    let names: Vec<&str> = runner.profile(&[false; 2]).unwrap().iter().map(|(name, _)| *name).collect();
    let (first, last) = (names.first().copied(), names.last().copied());
    assert_eq!((first, last), (Some("copy-in"), Some("copy-out")), "{names:?}");
    assert!(["lookup-linear", "mamba", "autoregressive"].iter().all(|op| names.contains(op)), "{names:?}");
}

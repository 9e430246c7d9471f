//! Stepping a model by hand, with its state as a value: save a moment, go on in two ways, come back.
//!
//! `cargo run --release --example load_and_step -- [BUNDLE]`
//!
//! Without a bundle a small one with random parameters is written to a temporary folder and loaded from there.

use anyhow::Result;
use candle_core::{DType, Device};
use candle_models::bundle::{self, Bundle, Manifest};
use candle_models::engine::Model;
use candle_models::families;
use candle_models::nn::Params;
use candle_models::policy::{FAMILY, Policy, PolicyConfig};
use candle_models::random::Random;
use candle_models::tensors::NamedTensors;
use std::path::{Path, PathBuf};

fn main() -> Result<()> {
    let temporary = std::env::temp_dir().join(format!("load-and-step-{}", std::process::id()));
    let dir = match std::env::args().nth(1) {
        Some(dir) => PathBuf::from(dir),
        None => save(&temporary).map(|()| temporary.clone())?,
    };
    let result = step_by_hand(&dir);
    if dir == temporary {
        std::fs::remove_dir_all(&temporary)?;
    }
    result
}

fn save(dir: &Path) -> Result<()> {
    let config = PolicyConfig { hidden: 64, ..Default::default() };
    let params = Params::init(Random::new(0), &Device::Cpu);
    Policy::new(&config, &params)?;
    let tensors = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
    Ok(bundle::save(dir, &Manifest::new(FAMILY, &config)?, &tensors, Default::default(), &[])?)
}

fn step_by_hand(dir: &Path) -> Result<()> {
    let model = families::shipped().load(&Bundle::open(dir)?)?;
    println!("{}: a {} that eats {:?}", dir.display(), model.family(), names(&model.signature().inputs));

    // Two rows walk twenty frames together, each with its own state.
    let mut state = model.initial_state(2)?;
    for t in 0..20 {
        (_, state) = model.step(&frame(&*model, t, 2)?, &[t == 0; 2], &state)?;
    }

    // A state is named tensors: it is forked by copying rows. Four branches begin in row 0's moment.
    let moment = state.gather_rows(&[0, 0, 0, 0])?;
    let (branches, _) = model.step(&frame(&*model, 20, 4)?, &[false; 4], &moment)?;
    for (name, output) in branches.iter() {
        println!("{name:>8} of four branches: {:?}", output.to_dtype(DType::F32)?.narrow(1, 0, 1)?.flatten_all()?.to_vec1::<f32>()?);
    }

    // The moment has not moved: the same step from it gives the same answer, and a reset row begins anew.
    let (again, _) = model.step(&frame(&*model, 20, 4)?, &[false; 4], &moment)?;
    let (anew, _) = model.step(&frame(&*model, 20, 4)?, &[true, false, false, false], &moment)?;
    println!("the same step again differs by {}", distance(&branches, &again, 0)?);
    println!("row 0 after a reset differs by {}, row 1 by {}", distance(&branches, &anew, 0)?, distance(&branches, &anew, 1)?);
    Ok(())
}

fn names(specs: &[candle_models::signature::TensorSpec]) -> Vec<&str> {
    specs.iter().map(|spec| spec.name.as_str()).collect()
}

/// Random inputs for frame `t`, different in every row. Those that have a default are left out: the policy chooses its actions.
fn frame(model: &dyn Model, t: u64, rows: usize) -> candle_models::Result<NamedTensors> {
    let required = model.signature().inputs.iter().filter(|spec| spec.is_required());
    required.map(|spec| Ok((spec.name.clone(), spec.draw(&[rows], &Random::new(t))?))).collect()
}

/// The largest difference of a row's outputs.
fn distance(a: &NamedTensors, b: &NamedTensors, row: usize) -> Result<f32> {
    let (a, b) = (a.get("logits")?.get(row)?, b.get("logits")?.get(row)?);
    Ok((a - b)?.abs()?.max_all()?.to_scalar()?)
}

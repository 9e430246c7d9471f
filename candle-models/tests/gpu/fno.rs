//! Solvers: what a GPU makes of random runs is what the CPU makes of them but for rounding, whatever runs are made beside them.

use super::cuda;
use candle_core::{Device, Result, Tensor};
use candle_models::fno::burgers::Burgers;
use candle_models::fno::darcy::Darcy;
use candle_models::fno::navier_stokes::{NavierStokes, Views};
use candle_models::random::Random;
use std::ops::Range;

/// Three runs on both devices, and one of them alone.
fn check(what: &str, device: &Device, tolerance: f32, generate: impl Fn(Range<u64>, &Device) -> candle_models::Result<Tensor>) {
    let flat = |x: &Tensor| -> Result<Vec<f32>> { x.flatten_all()?.to_vec1::<f32>() };
    let (cpu, gpu, alone) = (generate(4..7, &Device::Cpu).unwrap(), generate(4..7, device).unwrap(), generate(6..7, device).unwrap());
    assert!(gpu.dims() == cpu.dims() && gpu.device().is_cuda(), "{what}");
    let (expected, found) = (flat(&cpu).unwrap(), flat(&gpu).unwrap());
    let most = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    for (at, (found, expected)) in found.iter().zip(&expected).enumerate() {
        assert!((found - expected).abs() <= tolerance * most, "{what} at {at}: {found}, on the CPU {expected}");
    }
    let last = &found[2 * found.len() / 3..];
    for (found, last) in flat(&alone).unwrap().iter().zip(last) {
        assert!((found - last).abs() <= tolerance * most, "{what}, alone: {found}, beside others {last}");
    }
}

#[test]
fn flows_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for (places, views) in
        [(8, Views { skipped: 2, steps: 3, count: 2, every: 2 }), (12, Views { skipped: 0, steps: 1, count: 3, every: 1 })]
    {
        let solver = NavierStokes { places, viscosity: 1e-3, ..NavierStokes::default() }.solver().unwrap();
        check(&format!("{places} places"), &device, 1e-6, |runs, device| solver.generate_on(Random::new(5), runs, &views, device));
    }
    let solver = NavierStokes { places: 8, step: 0.1, force: 100.0, viscosity: 0.0 }.solver().unwrap();
    let views = Views { skipped: 60, steps: 1, count: 1, every: 1 };
    for device in [&Device::Cpu, &*device] {
        let error = solver.generate_on(Random::new(5), 2..3, &views, device).unwrap_err().to_string();
        assert!(error.contains("run 2: ") && error.contains("step: 0.1 is too long"), "{error}");
        for views in [Views { every: 3, ..views.clone() }, Views { every: 0, ..views.clone() }, Views { count: 0, ..views.clone() }] {
            assert!(solver.generate_on(Random::new(5), 0..1, &views, device).is_err());
        }
    }
}

#[test]
fn waves_of_burgers_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let solver = Burgers { places: 4, times: 129, viscosity: 0.01 }.solver().unwrap();
    check("128 places", &device, 1e-6, |runs, device| solver.generate_on(Random::new(5), runs, device));
}

/// Where the random field is nearly nothing a medium may change its side by rounding; no node of these does.
#[test]
fn media_and_their_flows_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    for darcy in [Darcy { places: 6, finer: 2, ..Darcy::default() }, Darcy { places: 2, finer: 1, ..Darcy::default() }] {
        check(&format!("{darcy:?}"), &device, 1e-6, |runs, device| darcy.generate_on(Random::new(5), runs, device));
    }
    let none = Darcy { contrast: 0.0, ..Darcy::default() };
    assert!(none.generate_on(Random::new(5), 0..1, &device).unwrap_err().to_string().contains("contrast"));
}

//! Pairs of fields that solvers make on the device.

use crate::cuda;
use candle_core::Device;
use candle_train::fno::source::{Equation, Source};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// They are those of the CPU but for rounding, in the same order, and every run is counted once.
#[test]
fn pairs_are_those_of_the_cpu() {
    let Some(device) = cuda() else { return };
    let flow = Equation::NavierStokes { places: 8, viscosity: 1e-2, interval: 0.01, states: 2, skipped: 0 };
    for equation in [Equation::Darcy { places: 3 }, flow] {
        let source = Source { seed: 3, count: 4, equation };
        let made = |device: &Device| {
            let done = AtomicU64::new(0);
            let count = || {
                done.fetch_add(1, Relaxed);
            };
            let pairs = source.fields(1..4, device, &count).unwrap();
            assert_eq!(done.load(Relaxed), 3);
            pairs
        };
        let (cpu, gpu) = (made(&Device::Cpu), made(&device));
        assert_eq!((gpu.len(), gpu.grid, gpu.states), (cpu.len(), cpu.grid, cpu.states));
        for i in 0..cpu.len() {
            for (found, expected) in gpu.pair(i).into_iter().zip(cpu.pair(i)) {
                let far = found.iter().zip(expected).position(|(a, b)| (a - b).abs() > 1e-5);
                assert!(far.is_none(), "{:?}, pair {i}: {far:?}", source.equation);
            }
        }
    }
}

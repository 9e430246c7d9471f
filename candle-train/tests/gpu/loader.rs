//! Batches that were copied to the device ahead of time, beside those of the host.

use crate::cuda;
use candle_core::{Device, Tensor};
use candle_models::policy::simulation::simulate;
use candle_models::random::Random;
use candle_train::policy::dataset::Dataset;
use candle_train::policy::loader::{Batch, Loader, LoaderConfig, Order};
use candle_train::policy::plan::StepShape;
use candle_train::policy::shards::Shard;
use std::sync::Arc;
use std::time::Duration;

const STEPS: usize = 40;

fn loader(device: &Device) -> Loader {
    let shards: Vec<_> =
        (0..2).map(|seed| Arc::new(Shard::from_game(&simulate(seed, 150), &format!("simulated{seed}")).unwrap())).collect();
    let data = Arc::new(Dataset::new(&shards, &[], 2).unwrap());
    let shape = StepShape { lanes: 4, unroll: 7 };
    let config = LoaderConfig { shape, lanes: 1..4, mirror: 0.5, burn_in: 3, order: Order::Epochs, random: Random::new(4) };
    Loader::new(data, config).unwrap().on(device)
}

fn floats(batch: &Batch) -> [Tensor; 3] {
    let features = batch.inputs.get("features").unwrap();
    [features, &batch.weights, &batch.returns].map(|tensor| tensor.flatten_all().unwrap())
}

fn bits(tensors: &[Tensor; 3]) -> Vec<u32> {
    tensors.iter().flat_map(|t| t.to_vec1::<f32>().unwrap()).map(f32::to_bits).collect()
}

fn expected() -> Vec<Vec<u32>> {
    let mut host = loader(&Device::Cpu);
    (0..STEPS).map(|_| bits(&floats(&host.next().unwrap().0))).collect()
}

#[test]
fn batches_equal_those_of_the_host() {
    let Some(device) = cuda() else { return };
    let expected = expected();
    for pause in [0, 5] {
        let (mut host, mut there) = (loader(&Device::Cpu), loader(&device));
        for (step, expected) in expected.iter().enumerate() {
            let [host, there] = [&mut host, &mut there].map(|loader| loader.next().unwrap().0);
            assert!(floats(&there).iter().all(|t| t.device().is_cuda()));
            assert!(there.inputs.get("ids").unwrap().device().is_cpu(), "indices stay where they are read");
            assert!(&bits(&floats(&there)) == expected, "step {step}, {pause} ms between steps");
            assert_eq!((there.resets, there.weight, there.next), (host.resets, host.weight, host.next));
            // The thread comes to wait for blocks; the next copy may be done, or not even begun, when it is asked for.
            std::thread::sleep(Duration::from_millis(pause));
        }
    }
}

#[test]
fn nothing_is_overwritten_while_the_device_lags_behind() {
    let Some(device) = cuda() else { return };
    let expected = expected();
    let mut loader = loader(&device);
    // Nobody waits for the device while it gets ten times as many batches as there are pinned blocks, and as many sums of them.
    let batches: Vec<_> = (0..STEPS)
        .map(|_| {
            let batch = floats(&loader.next().unwrap().0);
            let sums = batch.each_ref().map(|tensor| (tensor + 1.0).unwrap());
            (batch, sums)
        })
        .collect();
    drop(loader);
    for (step, ((batch, sums), expected)) in batches.iter().zip(&expected).enumerate() {
        let sums: Vec<f32> = bits(sums).into_iter().map(f32::from_bits).collect();
        let plus_one: Vec<f32> = expected.iter().map(|&bits| f32::from_bits(bits) + 1.0).collect();
        assert!(sums == plus_one, "sums of step {step}");
        assert!(&bits(batch) == expected, "step {step}");
    }
}

#[test]
fn a_copy_that_nobody_asks_for_is_given_up() {
    let Some(device) = cuda() else { return };
    let expected = expected();
    let mut loader = loader(&device);
    let mut kept = Vec::new();
    for round in 0..5 {
        loader.seek(Default::default()).unwrap();
        for expected in &expected[..=round] {
            kept.push((floats(&loader.next().unwrap().0), expected));
        }
        // Time for the thread to have the next batch ready, whose copy then starts with the last of this round.
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(loader);
    assert!(kept.iter().all(|(batch, expected)| &bits(batch) == *expected));
}

//! Operations with memory: resets, carried state, and batches whose rows do not touch each other.

use crate::{assert_close, cases, check, cuda, flat, normal, on};
use candle_core::{DType, Device, Result, Tensor};
use candle_models::ops;
use candle_models::random::Random;

fn resets(batch: usize, steps: usize) -> Vec<bool> {
    (0..batch * steps).map(|i| Random::new(9).uniform(i as u64) < 0.2).collect()
}

/// An operation over sequences: activations `[B * T, ...]`, parameters, states `[B, ...]` and resets.
type Sequential = fn(&[Tensor], &Tensor, &[bool]) -> Result<(Tensor, Tensor)>;

struct Sequences {
    name: String,
    batch: usize,
    steps: usize,
    rows: Vec<Tensor>,
    params: Vec<Tensor>,
    state: Tensor,
    op: Sequential,
    /// How far a sequence alone may be from the same one in a batch: products of other sizes may add in another order.
    alone: f32,
}

impl Sequences {
    fn check(&self, device: &Device) {
        for resets in [vec![false; self.batch * self.steps], resets(self.batch, self.steps)] {
            check(device, &self.name, &self.rows, &self.params, &|x| {
                let (y, after) = (self.op)(x, &on(&self.state, x[0].device(), DType::F32), &resets)?;
                Ok(vec![y, after])
            });
            self.check_parts(device, &resets);
        }
    }

    /// Runs frames `from..from + steps` of some sequences from a state.
    fn run(&self, device: &Device, [first, batch]: [usize; 2], [from, steps]: [usize; 2], state: &Tensor, resets: &[bool]) -> [Tensor; 2] {
        let part = |x: &Tensor| {
            let frames: Vec<Tensor> =
                (first..first + batch).map(|b| x.narrow(0, b * self.steps + from, steps).unwrap().contiguous().unwrap()).collect();
            on(&Tensor::cat(&frames, 0).unwrap(), device, DType::F32)
        };
        let inputs: Vec<Tensor> = self.rows.iter().map(part).chain(self.params.iter().map(|p| on(p, device, DType::F32))).collect();
        let resets: Vec<bool> = (first..first + batch).flat_map(|b| resets[b * self.steps + from..][..steps].to_vec()).collect();
        let (y, after) = (self.op)(&inputs, state, &resets).unwrap();
        [y, after]
    }

    /// A sequence alone is the same as in a batch, and a window in two parts nearly the same as in one.
    fn check_parts(&self, device: &Device, resets: &[bool]) {
        let Self { name, batch, steps, .. } = self;
        let state = on(&self.state, device, DType::F32);
        let [y, after] = self.run(device, [0, *batch], [0, *steps], &state, resets);
        let last = batch - 1;
        let own = state.narrow(0, last, 1).unwrap().contiguous().unwrap();
        let [alone, alone_after] = self.run(device, [last, 1], [0, *steps], &own, resets);
        let together = [y.narrow(0, last * steps, *steps).unwrap(), after.narrow(0, last, 1).unwrap()];
        assert_close(&format!("{name}: a sequence alone"), &flat(&alone), &flat(&together[0]), self.alone);
        assert_close(&format!("{name}: the state of a sequence alone"), &flat(&alone_after), &flat(&together[1]), self.alone);
        if *steps > 1 {
            let [first, between] = self.run(device, [last, 1], [0, steps - 1], &own, resets);
            let [second, end] = self.run(device, [last, 1], [steps - 1, 1], &between, resets);
            let parts = [flat(&first), flat(&second)].concat();
            assert_close(&format!("{name}: in two parts"), &parts, &flat(&alone), 1e-6);
            assert_close(&format!("{name}: state behind two parts"), &flat(&end), &flat(&alone_after), 1e-6);
        }
    }
}

#[test]
fn convolutions() {
    let Some(device) = cuda() else { return };
    for (batch, steps, width, taps) in cases([(1, 1, 3, 4), (2, 6, 17, 4), (3, 2, 130, 3), (2, 5, 8, 2), (2, 70, 5, 4), (1, 40, 3, 16)], 2)
    {
        let op: Sequential = |x, state, resets| ops::causal_conv(&x[0], &x[1], &x[2], state, resets);
        Sequences {
            name: format!("conv {batch} x {steps} x {width}, {taps} taps"),
            batch,
            steps,
            rows: vec![normal("x", &[batch * steps, width])],
            params: vec![normal("w", &[taps, width]), normal("b", &[width])],
            state: normal("state", &[batch, taps - 1, width]),
            op,
            alone: 0.0,
        }
        .check(&device);
    }
}

#[test]
fn a_convolution_of_columns() {
    let Some(device) = cuda() else { return };
    let (resets, state) = (resets(2, 5), normal("state", &[2, 3, 7]));
    let params = [normal("w", &[4, 7]), normal("b", &[7])];
    check(&device, "conv of columns", &[normal("wide", &[10, 20])], &params, &|x| {
        let (y, after) = ops::causal_conv(&x[0].narrow(1, 5, 7)?, &x[1], &x[2], &on(&state, x[0].device(), DType::F32), &resets)?;
        Ok(vec![y, after])
    });
}

#[test]
fn selective_scans() {
    let Some(device) = cuda() else { return };
    // One frame and many; one tile and several; states below, at and above what a block, a group and a thread take.
    let sizes = [
        (1, 1, 1, 1),
        (2, 7, 16, 4),
        (3, 4, 37, 5),
        (2, 1, 40, 16),
        (1, 35, 70, 16),
        (2, 18, 33, 20),
        (1, 3, 2, 64),
        (1, 10, 3, 70),
        (1, 2, 1, 256),
    ];
    for (batch, steps, width, states) in cases(sizes, 3) {
        let a = (normal("a", &[states, width]).abs().unwrap() + 0.1).unwrap().neg().unwrap();
        let op: Sequential = |x, state, resets| ops::selective_scan(&x[0], &x[1], &x[2], state, resets);
        Sequences {
            name: format!("scan {batch} x {steps} x {width}, {states} states"),
            batch,
            steps,
            rows: vec![normal("u", &[batch * steps, width]), normal("packed", &[batch * steps, width + 2 * states])],
            params: vec![Tensor::cat(&[a, normal("skip", &[1, width])], 0).unwrap()],
            state: normal("state", &[batch, states, width]),
            op,
            alone: 0.0,
        }
        .check(&device);
    }
}

#[test]
fn recurrent_units() {
    let Some(device) = cuda() else { return };
    for (batch, steps, width) in cases([(1, 1, 1), (3, 1, 7), (1, 5, 16), (3, 4, 130)], 2) {
        let op: Sequential = |x, state, resets| ops::gru(&x[0], &x[1], &x[2], state, resets);
        let scale = 1.0 / (width as f64).sqrt();
        Sequences {
            name: format!("gru {batch} x {steps} x {width}"),
            batch,
            steps,
            rows: vec![normal("x", &[batch * steps, 3 * width])],
            // Weights that every dtype can hold: the operation rounds them to that of the activations.
            params: vec![on(&(normal("w", &[width, 3 * width]) * scale).unwrap(), &Device::Cpu, DType::BF16), normal("b", &[3 * width])],
            state: normal("state", &[batch, width]),
            op,
            alone: 1e-6,
        }
        .check(&device);
    }
}

#[test]
fn a_reset_clears_a_state_that_is_not_finite() {
    let Some(device) = cuda() else { return };
    let bad = |shape: &[usize]| Tensor::full(f32::NAN, shape, &device).unwrap();
    let x = |name, shape: &[usize]| on(&normal(name, shape), &device, DType::F32);
    let resets = [true, false];
    let results = [
        ops::causal_conv(&x("x", &[2, 5]), &x("w", &[4, 5]), &x("b", &[5]), &bad(&[1, 3, 5]), &resets).unwrap(),
        ops::selective_scan(&x("u", &[2, 5]), &x("p", &[2, 13]), &x("a", &[5, 5]), &bad(&[1, 4, 5]), &resets).unwrap(),
        ops::gru(&x("x", &[2, 15]), &x("w", &[5, 15]), &x("b", &[15]), &bad(&[1, 5]), &resets).unwrap(),
    ];
    for (i, (y, after)) in results.iter().enumerate() {
        assert!(flat(y).iter().chain(&flat(after)).all(|x| x.is_finite()), "operation {i}");
    }
}

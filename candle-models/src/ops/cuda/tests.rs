//! Launches that only recorded programs use, against the operations on the CPU. Without a CUDA device they pass.

use crate::cuda::{self, Gpu, Matrix, States};
use crate::device::DeviceChoice;
use crate::ops::add_rows::cuda as rows;
use crate::ops::elementwise::cuda as elementwise;
use crate::ops::mamba::cuda::{MambaConv, MambaScan, slices};
use crate::ops::{self, Activation};
use crate::random::Random;
use candle_core::{DType, Device, Tensor};
use std::sync::Arc;

fn gpu() -> Option<(Arc<Gpu>, Device)> {
    match DeviceChoice::Cuda(0).open() {
        Ok(chosen) => {
            Some((Gpu::of(cuda::device_of(&Tensor::zeros(1, DType::F32, &chosen.device).unwrap()).unwrap()).unwrap(), chosen.device))
        }
        Err(error) => {
            assert!(!std::env::var("CANDLE_REQUIRE_CUDA").is_ok_and(|v| v == "1"), "{error}");
            None
        }
    }
}

fn normal(name: &str, shape: &[usize]) -> Tensor {
    let mut values = vec![0.0; shape.iter().product()];
    Random::new(3).stream(name).fill_normal(0, &mut values);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    let (got, want) = (flat(got), flat(want));
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f32, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what} at {i}: {g} instead of {w}");
    }
}

/// Sizes of a block.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    batch: usize,
    inner: usize,
    states: usize,
    rank: usize,
    taps: usize,
}

impl Sizes {
    fn columns(self) -> usize {
        self.rank + 2 * self.states
    }
}

/// What a step reads, on the CPU: `[x z]`, taps, bias, projection, step's weight and bias, A with skip, and the states of more slots
/// than there are sequences.
struct Step {
    xz: Tensor,
    weight: Tensor,
    bias: Tensor,
    projection: Tensor,
    dt_weight: Tensor,
    dt_bias: Tensor,
    params: Tensor,
    states: [Tensor; 2],
    slots: Vec<u32>,
    resets: Vec<bool>,
}

impl Step {
    fn new(sizes: Sizes, dtype: DType) -> Self {
        let Sizes { batch, inner, states, rank, taps } = sizes;
        let rounded = |x: Tensor| x.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
        let a = (normal("a", &[states, inner]).abs().unwrap() + 0.1).unwrap().neg().unwrap();
        Self {
            xz: rounded(normal("xz", &[batch, 2 * inner])),
            weight: normal("w", &[taps, inner]),
            bias: normal("b", &[inner]),
            projection: rounded((normal("p", &[inner, sizes.columns()]) * 0.3).unwrap()),
            dt_weight: rounded(normal("dt", &[rank, inner])),
            dt_bias: normal("dtb", &[inner]),
            params: Tensor::cat(&[a, normal("skip", &[1, inner])], 0).unwrap(),
            states: [normal("s0", &[batch + 2, taps - 1, inner]), normal("s1", &[batch + 2, states, inner])],
            slots: (0..batch as u32).map(|b| batch as u32 + 1 - b).collect(),
            resets: (0..batch).map(|b| b % 3 == 1).collect(),
        }
    }

    /// Operation by operation on the CPU: the output, and all slots.
    fn plain(&self, Sizes { inner, rank, states, .. }: Sizes) -> [Tensor; 3] {
        let index = Tensor::new(self.slots.as_slice(), &Device::Cpu).unwrap();
        let [conv_state, scan_state] = self.states.each_ref().map(|s| s.index_select(&index, 0).unwrap());
        let (x, z) = (self.xz.narrow(1, 0, inner).unwrap(), self.xz.narrow(1, inner, inner).unwrap());
        let (u, conv_state) = ops::causal_conv(&x, &self.weight, &self.bias, &conv_state, &self.resets).unwrap();
        let selection = u.matmul(&self.projection).unwrap();
        let low = selection.narrow(1, 0, rank).unwrap().contiguous().unwrap();
        let dt = low.matmul(&self.dt_weight).unwrap().broadcast_add(&self.dt_bias).unwrap();
        let packed = Tensor::cat(&[dt, selection.narrow(1, rank, 2 * states).unwrap()], 1).unwrap();
        let (y, scan_state) = ops::selective_scan(&u, &packed, &self.params, &scan_state, &self.resets).unwrap();
        let scatter = |all: &Tensor, rows: &Tensor| {
            let mut slots: Vec<Tensor> = all.chunk(all.dim(0).unwrap(), 0).unwrap();
            for (b, &slot) in self.slots.iter().enumerate() {
                slots[slot as usize] = rows.narrow(0, b, 1).unwrap();
            }
            Tensor::cat(&slots, 0).unwrap()
        };
        [ops::gate(&y, &z).unwrap(), scatter(&self.states[0], &conv_state), scatter(&self.states[1], &scan_state)]
    }

    /// The two kernels.
    fn fused(&self, sizes: Sizes, dtype: DType, gpu: &Gpu, device: &Device) -> [Tensor; 3] {
        let Sizes { batch, inner, states, rank, taps } = sizes;
        let up = |x: &Tensor, dtype| x.to_dtype(dtype).unwrap().to_device(device).unwrap();
        let [xz, projection, dt_weight] = [&self.xz, &self.projection, &self.dt_weight].map(|x| up(x, dtype));
        let [weight, bias, dt_bias, params] = [&self.weight, &self.bias, &self.dt_bias, &self.params].map(|x| up(x, DType::F32));
        let after = self.states.each_ref().map(|s| up(s, DType::F32));
        let slots = Tensor::new(self.slots.as_slice(), device).unwrap();
        let resets = super::Resets::new(&self.resets, device).unwrap();
        let empty = |shape: &[usize], dtype| cuda::empty(shape, dtype, gpu.device()).unwrap();
        let (u, out) = (empty(&[batch, inner], dtype), empty(&[batch, inner], dtype));
        let shares = empty(&[batch, slices(inner), sizes.columns()], DType::F32);
        let address = |t: &Tensor| cuda::address(t).unwrap();
        let state = |t: &Tensor| States { data: address(t), stride: (t.elem_count() / (batch + 2)) as u64, slots: address(&slots) };
        let (matrix, size) = (|t: &Tensor| cuda::matrix(t).unwrap(), dtype.size_in_bytes());
        let conv = MambaConv {
            x: matrix(&xz).columns(0, inner, size),
            u: matrix(&u),
            projection: matrix(&projection),
            weight: address(&weight),
            bias: address(&bias),
            state: state(&after[0]),
            resets: resets.address().unwrap(),
            shares: address(&shares),
            taps: taps as u32,
        };
        let scan = MambaScan {
            u: conv.u,
            z: matrix(&xz).columns(inner, inner, size),
            out: matrix(&out),
            dt_weight: matrix(&dt_weight),
            dt_bias: address(&dt_bias),
            a: address(&params),
            skip: address(&params) + (4 * states * inner) as u64,
            state: state(&after[1]),
            resets: conv.resets,
            shares: conv.shares,
            slices: slices(inner) as u32,
            rank: rank as u32,
            states: states as u32,
        };
        // SAFETY: the tensors have the stated sizes and live until they are read back; every sequence has a slot of its own.
        unsafe {
            conv.launch(gpu, dtype, batch).unwrap();
            scan.launch(gpu, dtype, batch).unwrap();
        }
        let [conv_state, scan_state] = after;
        [out, conv_state, scan_state]
    }
}

#[test]
fn a_step_of_a_mamba_block_in_two_kernels_is_the_operations_one_by_one() {
    let Some((gpu, device)) = gpu() else { return };
    for sizes in [
        Sizes { batch: 1, inner: 1, states: 1, rank: 1, taps: 2 },
        Sizes { batch: 5, inner: 70, states: 16, rank: 3, taps: 4 },
        Sizes { batch: 2, inner: 130, states: 5, rank: 9, taps: 16 },
        Sizes { batch: 2, inner: 33, states: 129, rank: 2, taps: 5 },
    ] {
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 1e-2), (DType::F16, 2e-3)] {
            let step = Step::new(sizes, dtype);
            let (want, got) = (step.plain(sizes), step.fused(sizes, dtype, &gpu, &device));
            for (what, (got, want)) in ["output", "convolution's state", "scan's state"].iter().zip(got.iter().zip(&want)) {
                assert_close(&format!("{sizes:?}, {dtype:?}: {what}"), got, want, tolerance);
            }
            let again = step.fused(sizes, dtype, &gpu, &device);
            assert_eq!(got.map(|t| flat(&t)), again.map(|t| flat(&t)), "{sizes:?}, {dtype:?}: two runs differ");
        }
    }
}

#[test]
fn epilogues_with_bias_and_residual_work_in_place() {
    let Some((gpu, device)) = gpu() else { return };
    let (x, residual, bias) = (normal("x", &[3, 70]), normal("r", &[3, 70]), normal("b", &[70]));
    let activated = Activation::Gelu.reference(&x.broadcast_add(&bias).unwrap()).unwrap();
    let [on_x, on_residual, bias] = [&x, &residual, &bias].map(|t| t.to_device(&device).unwrap());
    let (x_rows, bias) = (cuda::matrix(&on_x).unwrap(), cuda::address(&bias).unwrap());
    let epilogue = elementwise::Epilogue::new(x_rows, x_rows, bias, Activation::Gelu);
    let residual_rows = cuda::matrix(&on_residual).unwrap();
    // SAFETY: the matrices have three rows of 70 values each.
    unsafe {
        epilogue.with_residual(residual_rows).launch(&gpu, DType::F32, 3).unwrap();
        elementwise::Epilogue::add(x_rows, residual_rows, residual_rows).launch(&gpu, DType::F32, 3).unwrap();
    }
    let once = (activated + &residual).unwrap();
    assert_close("act(x + bias) + residual", &on_x, &once, 1e-5);
    assert_close("the sum on top", &on_residual, &(once + residual).unwrap(), 1e-5);
}

#[test]
fn table_rows_by_mapped_columns_of_ids() {
    let Some((gpu, device)) = gpu() else { return };
    let (x, table) = (normal("x", &[2, 5]), normal("table", &[9, 5]));
    // Columns 2 and 0 of three; their id 0 is row 4 and row 1 of the table.
    let (ids, map) = ([[1u32, 99, 3], [0, 99, 4]], [[2u32, 4], [0, 1]]);
    let want = ops::add_rows(&x, &table, vec![7, 2, 8, 1], 2, Activation::Relu).unwrap();
    let (on_x, on_table) = (x.to_device(&device).unwrap(), table.to_device(&device).unwrap());
    let (ids, map) = (Tensor::new(&ids, &device).unwrap(), Tensor::new(&map, &device).unwrap());
    let lookup = rows::Lookup { ids: cuda::address(&ids).unwrap(), map: cuda::address(&map).unwrap(), stride: 3, columns: 2 };
    let x: Matrix = cuda::matrix(&on_x).unwrap();
    let args = rows::AddRows::new(x, x, cuda::matrix(&on_table).unwrap(), lookup, Activation::Relu);
    // SAFETY: every id names a row of the table.
    unsafe { args.launch(&gpu, DType::F32, 2).unwrap() };
    assert_close("rows added", &on_x, &want, 1e-6);
}

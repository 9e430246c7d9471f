//! Operations in the executor on a GPU against the one on the CPU: those that no shipped model has, and one without kernels.

use crate::{assert_close, cuda, normal};
use candle_core::{DType, Device, Tensor};
use candle_models::beam::{Pursuit, SparseChannel, SteeredBeam};
use candle_models::device::DeviceChoice;
use candle_models::engine::{Placement, Runner};
use candle_models::exec::program::Output;
use candle_models::exec::tensors::{Indices, TensorPass};
use candle_models::exec::{Executor, Launches, Operation, Values, Widths, operands};
use candle_models::network::{Layers, Network};
use candle_models::ops::conv2d::{Conv2d, Conv2dShape};
use candle_models::ops::gaussian::Gaussian;
use candle_models::ops::grid::{Coordinates, Window};
use candle_models::ops::multiply::Multiply;
use candle_models::ops::pool2d::{Pool2d, Pooling};
use candle_models::ops::set_attention::SetAttention;
use candle_models::ops::sigmoid::Sigmoid;
use candle_models::ops::skip::Skip;
use candle_models::ops::softmax::Softmax;
use candle_models::ops::spectral_conv::{SpectralConv, WaveWeight};
use candle_models::ops::tanh::Tanh;
use candle_models::ops::{ActivatedLinear, Activation, Format, Linear};
use candle_models::recurrent::Recurrent;
use candle_models::signature::{Signature, TensorSpec};
use std::sync::Arc;

/// A model of one operation over inputs `x0`, `x1` ...
struct One {
    inputs: usize,
    op: Arc<dyn Operation>,
    states: Vec<usize>,
}

impl One {
    fn new(op: impl Operation, widths: &[usize], state: Option<usize>) -> Arc<Network<Self>> {
        let out = op.widths(widths, &[]).unwrap().out[0];
        let inputs = widths.iter().enumerate().map(|(i, width)| TensorSpec::f32(format!("x{i}"), &[*width])).collect();
        let state: Vec<TensorSpec> = state.iter().map(|width| TensorSpec::f32("state", &[*width])).collect();
        let states = (0..state.len()).collect();
        let signature = Signature { inputs, outputs: vec![TensorSpec::f32("y", &[out])], state };
        let layers = Self { inputs: widths.len(), op: Arc::new(op), states };
        Arc::new(Network::of(("operation", &()), signature, &Device::Cpu, layers).unwrap())
    }

    /// Two passes of `steps` frames.
    fn run(model: &Arc<Network<Self>>, (batch, steps): (usize, usize), place: &Placement) -> (Vec<f32>, Vec<&'static str>) {
        let mut runner = Runner::on(model.clone(), (batch, steps), place).unwrap();
        let mut found = Vec::new();
        for pass in 0..2 {
            for spec in &model.signature().inputs {
                let values = normal(&format!("{}, {pass}", spec.name), &[batch * steps * spec.width()]).to_vec1::<f32>().unwrap();
                runner.set_f32(&spec.name, &values).unwrap();
            }
            runner.step(&(0..batch * steps).map(|r| r == 1).collect::<Vec<_>>()).unwrap();
            (0..batch * steps).for_each(|r| found.extend(runner.floats("y", r).unwrap()));
        }
        (found, runner.on_tensors().to_vec())
    }
}

impl Layers for One {
    fn pass<E: Executor>(&self, e: &mut E) -> candle_models::Result<Vec<Output<E::V, E::I>>> {
        let x = (0..self.inputs).map(|i| e.input(&format!("x{i}"))).collect::<candle_models::Result<Vec<_>>>()?;
        let y = e.run(self.op.clone(), &x.iter().collect::<Vec<_>>(), &[], &self.states)?;
        Ok(vec![Output::Floats(y.into_floats()?)])
    }
}

const PLACE: Placement = Placement { device: DeviceChoice::Cuda(0), threads: 1, dtype: Some(DType::F32), launches: Launches::Captured };

fn check(op: impl Operation, widths: &[usize], state: Option<usize>, on_tensors: &[&str]) {
    let model = One::new(op, widths, state);
    for sizes in [(1, 1), (3, 1), (2, 3)] {
        let (want, _) = One::run(&model, sizes, &Placement::cpu(1));
        for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::BF16, 3e-2), (DType::F16, 4e-3)] {
            let (got, names) = One::run(&model, sizes, &Placement { dtype: Some(dtype), ..PLACE });
            assert_close(&format!("{} {widths:?} {sizes:?} {dtype:?}", model.layers().op.name()), &got, &want, tolerance);
            assert_eq!(names, on_tensors);
        }
    }
}

#[test]
fn operations_by_value_and_by_group() {
    let Some(_device) = cuda() else { return };
    for width in [1, 33, 300] {
        check(Tanh, &[width], None, &[]);
        check(Sigmoid, &[width], None, &[]);
        check(Multiply, &[width, width], None, &[]);
        check(Softmax { group: None }, &[width], None, &[]);
    }
    check(Softmax { group: Some(5) }, &[35], None, &[]);
    for n in [1, 40] {
        check(Gaussian { low: f32::NEG_INFINITY, high: 1.5 }, &[2 * n, n], None, &[]);
    }
}

#[test]
fn convolutions_over_two_axes() {
    let Some(_device) = cuda() else { return };
    for ([input, kernel, stride, padding], channels, outputs, bias) in [
        ([[1, 1], [1, 1], [1, 1], [0, 0]], 1, 1, true),
        ([[5, 7], [3, 3], [1, 1], [1, 1]], 3, 4, true),
        ([[6, 5], [3, 2], [2, 3], [0, 1]], 2, 130, false),
        ([[2, 3], [4, 5], [1, 2], [2, 3]], 1, 2, true),
    ] {
        let shape = Conv2dShape { input, channels, kernel, stride, padding };
        let weight = normal("weight", &[kernel[0] * kernel[1] * channels, outputs]);
        let layer = Linear { weight, bias: bias.then(|| normal("bias", &[outputs])), format: Format::F32 };
        check(Conv2d::new(shape, layer).unwrap(), &[input[0] * input[1] * channels], None, &[]);
    }
}

#[test]
fn pooling_over_two_axes() {
    let Some(_device) = cuda() else { return };
    for ([input, kernel, stride], channels) in
        [([[1, 1], [1, 1], [1, 1]], 1), ([[5, 7], [3, 2], [1, 2]], 5), ([[7, 6], [2, 3], [3, 4]], 130)]
    {
        let shape = Conv2dShape { input, channels, kernel, stride, padding: [0, 0] };
        for pooling in [Pooling::Max, Pooling::Average] {
            check(Pool2d::new(pooling, shape).unwrap(), &[input[0] * input[1] * channels], None, &[]);
        }
    }
}

#[test]
fn attention_over_a_set() {
    let Some(_device) = cuda() else { return };
    for [queries, elements, heads, width] in [[1, 1, 1, 1], [1, 7, 2, 8], [7, 7, 4, 64], [2, 40, 1, 33]] {
        let op = SetAttention::new([queries, elements], heads, width).unwrap();
        check(op, &[queries * width, elements * 2 * width, elements], None, &[]);
    }
}

/// In f32 alone, what rounds directions and measurements to bf16 being told in full by beams of many antennas.
fn check_f32(op: impl Operation, widths: &[usize], tolerance: f32) {
    let model = One::new(op, widths, None);
    for sizes in [(1, 1), (3, 1), (2, 3)] {
        let (want, _) = One::run(&model, sizes, &Placement::cpu(1));
        let (got, names) = One::run(&model, sizes, &PLACE);
        assert_close(&format!("{} {widths:?} {sizes:?}", model.layers().op.name()), &got, &want, tolerance);
        assert!(names.is_empty(), "{names:?}");
    }
}

#[test]
fn steered_beams() {
    let Some(_device) = cuda() else { return };
    for (paths, antennas) in [(1, 1), (3, 100)] {
        check_f32(SteeredBeam::new(paths, antennas).unwrap(), &[3 * paths], 1e-4);
    }
}

#[test]
fn sparse_channels() {
    let Some(_device) = cuda() else { return };
    for (antennas, measurements, paths, again, directions, places, unexplained) in [
        ([2, 3], 4, 1, 0, 2, 0, 0.0),
        ([5, 9], 7, 2, 2, 3, 0, 0.05),
        ([8, 16], 12, 3, 0, 2, 0, 0.0),
        ([8, 16], 12, 3, 2, 2, 0, 0.05),
        ([8, 16], 12, 1, 0, 2, 2, 0.0),
        ([8, 16], 12, 3, 2, 2, 3, 0.05),
    ] {
        let beams = normal("beams", &[measurements * antennas[1] * 2]).to_vec1::<f32>().unwrap();
        for choices in [&[][..], &beams[..6 * antennas[1]]] {
            let op = SparseChannel::new(Pursuit { paths, again, directions, places, unexplained }, antennas, &beams, choices).unwrap();
            let width = op.inputs();
            check_f32(op, &[width, 1], 2e-3);
        }
    }
}

#[test]
fn operations_on_grids() {
    let Some(_device) = cuda() else { return };
    for (grid, modes, [inputs, outputs]) in
        [([1, 9], [1, 4], [2, 3]), ([5, 7], [3, 4], [1, 130]), ([6, 6], [8, 4], [33, 2]), ([18, 24], [12, 12], [9, 5])]
    {
        let weight = WaveWeight::Dense(normal("weight", &[modes[0], modes[1], inputs, 2 * outputs]));
        for bias in [None, Some(&normal("bias", &[outputs]))] {
            check(SpectralConv::new(grid, &weight, bias).unwrap(), &[grid[0] * grid[1] * inputs], None, &[]);
        }
    }
    for act in [Activation::None, Activation::Gelu] {
        check(Skip { gain: None, act }, &[300, 300], None, &[]);
        check(Skip { gain: Some(normal("gain", &[5])), act }, &[35, 35], None, &[]);
        let layer = Linear { weight: normal("weight", &[9, 34]), bias: Some(normal("bias", &[34])), format: Format::F32 };
        check(ActivatedLinear::at_places(7, &layer, act), &[7 * 9], None, &[]);
    }
    for (grid, margin, channels) in [([1, 9], [0, 2], 3), ([5, 4], [1, 2], 33)] {
        let [small, large] = [[0, 0], margin].map(|margin| (grid[0] + 2 * margin[0]) * (grid[1] + 2 * margin[1]) * channels);
        for periodic in [false, true] {
            check(Coordinates { grid, channels, periodic }, &[small], None, &[]);
        }
        check(Window::pad(grid, margin, channels), &[small], None, &[]);
        check(Window::crop(grid, margin, channels), &[large], None, &[]);
    }
}

/// What is read added to a state: a reference and nothing else.
#[derive(Debug)]
struct Sums;

impl Operation for Sums {
    fn name(&self) -> &'static str {
        "sums"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> candle_models::Result<Widths> {
        let [x] = operands(self.name(), x)?;
        Ok(Widths::floats(x))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> candle_models::Result<Values<Tensor, Indices>> {
        let (rows, mut states) = (x[0].to_vec2::<f32>()?, pass.state(0)?.to_vec2::<f32>()?);
        let steps = rows.len() / states.len();
        let mut y = Vec::new();
        for (r, row) in rows.iter().enumerate() {
            let state = &mut states[r / steps];
            if pass.resets()[r] {
                state.fill(0.0);
            }
            state.iter_mut().zip(row).for_each(|(s, x)| *s += x);
            y.push(state.clone());
        }
        pass.set_state(0, Tensor::new(states, &Device::Cpu)?)?;
        Ok(Values::floats(Tensor::new(y, &Device::Cpu)?))
    }
}

#[test]
fn an_operation_without_kernels_runs_on_the_host() {
    let Some(_device) = cuda() else { return };
    check(Sums, &[5], Some(5), &["sums"]);
}

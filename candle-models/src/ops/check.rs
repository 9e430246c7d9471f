//! What every operation has to hold, for the tests beside them: all its forms are the reference, a row does not depend on its batch, a pass
//! on the CPU allocates nothing, and its gradients are those of finite differences in f64.

use crate::engine::tests::allocation::allocations_here;
use crate::exec::cpu::CpuExecutor;
use crate::exec::graph::{Graph, Tables};
use crate::exec::program::{Output, Program, Sequence};
use crate::exec::tape::{Differentiable, Tapes};
use crate::exec::tensors::{Indices, TensorExecutor};
use crate::exec::{Executor, Operation, Target};
use crate::ops::Products;
use crate::random::Random;
use crate::signature::{Signature, TensorSpec};
use crate::tensors::NamedTensors;
use candle_core::{DType, Device, Tensor, Var};
use std::sync::Arc;

const ROWS: usize = 5;

/// Random numbers of that shape.
pub(crate) fn normal(name: &str, shape: &[usize]) -> Tensor {
    let mut values = vec![0.0f32; shape.iter().product()];
    Random::new(31).stream(name).fill_normal(0, &mut values);
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

fn assert_close(what: &str, got: &[f64], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    let scale = want.iter().fold(1.0f64, |m, x| m.max(x.abs()));
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what} at {i}: {g} instead of {w} (scale {scale})");
    }
}

/// Operands of other widths are refused.
pub(crate) fn refuses(op: &dyn Operation, widths: &[usize]) {
    assert!(op.widths(widths, &[]).is_err(), "{} takes {widths:?}", op.name());
}

/// An operation without parameters, memory or indices.
pub(crate) fn check(op: impl Operation + Clone, widths: &[usize]) {
    check_with(&[], |_| op.clone(), widths);
}

/// An operation with parameters, made from them.
pub(crate) fn check_with<O: Operation>(parameters: &[Tensor], make: impl Fn(&[Tensor]) -> O, widths: &[usize]) {
    let case =
        Case { parameters, make, widths, x: widths.iter().enumerate().map(|(i, w)| normal(&format!("x{i}"), &[ROWS, *w])).collect() };
    let plain = case.values();
    case.gradients(&plain);
    case.on_the_cpu(&plain);
    case.in_standard_operators(&plain);
}

struct Case<'a, F> {
    parameters: &'a [Tensor],
    make: F,
    widths: &'a [usize],
    x: Vec<Tensor>,
}

fn loss(y: &Tensor) -> Tensor {
    (y * normal("loss", y.dims()).to_dtype(y.dtype()).unwrap()).unwrap().sum_all().unwrap()
}

impl<O: Operation, F: Fn(&[Tensor]) -> O> Case<'_, F> {
    /// The form on tensors, or the plain one.
    fn on_tensors(&self, x: &[Tensor], parameters: &[Tensor], plain: bool) -> Tensor {
        let (none, resets, op) = (NamedTensors::new(), [false; ROWS], Arc::new((self.make)(parameters)));
        let mut executor = TensorExecutor::new(&none, &resets, Vec::new(), &Device::Cpu);
        let x: Vec<&Tensor> = x.iter().collect();
        let values = if plain { executor.reference(&*op, &x, &[] as &[&Indices], &[]) } else { executor.run(op, &x, &[], &[]) };
        values.unwrap().into_floats().unwrap()
    }

    fn doubles(&self) -> [Vec<Tensor>; 2] {
        [&self.x[..], self.parameters].map(|all| all.iter().map(|x| x.to_dtype(DType::F64).unwrap()).collect())
    }

    /// The reference in f64, to which the other form on tensors is compared.
    fn values(&self) -> Vec<f64> {
        let [x, parameters] = self.doubles();
        let plain = flat(&self.on_tensors(&x, &parameters, true));
        assert_close("on tensors", &flat(&self.on_tensors(&self.x, self.parameters, false)), &plain, 1e-5);
        assert_close("plain in f32", &flat(&self.on_tensors(&self.x, self.parameters, true)), &plain, 1e-5);
        plain
    }

    fn gradients(&self, plain: &[f64]) {
        let all: Vec<Tensor> = self.doubles().concat();
        let vars: Vec<Var> = all.iter().map(|x| Var::from_tensor(x).unwrap()).collect();
        let tensors: Vec<Tensor> = vars.iter().map(|v| v.as_tensor().clone()).collect();
        let split = self.x.len();
        let store = loss(&self.on_tensors(&tensors[..split], &tensors[split..], true)).backward().unwrap();
        let exact: Vec<Vec<f64>> = vars.iter().map(|v| flat(store.get(v).expect("every operand has a gradient"))).collect();
        for (i, x) in all.iter().enumerate() {
            let values = flat(x);
            for place in (0..values.len()).step_by(values.len().div_ceil(8)) {
                let at = |delta: f64| {
                    let (mut moved, mut all) = (values.clone(), all.clone());
                    moved[place] += delta;
                    all[i] = Tensor::from_vec(moved, x.dims(), &Device::Cpu).unwrap();
                    flat(&loss(&self.on_tensors(&all[..split], &all[split..], true)))[0]
                };
                let want = (at(1e-6) - at(-1e-6)) / 2e-6;
                let got = exact[i][place];
                assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "finite difference of {i} at {place}: {got}, {want}");
            }
        }
        self.on_a_tape(plain, &exact);
    }

    fn program(&self, target: Target) -> Program {
        let name = |i: usize| format!("x{i}");
        let op = (self.make)(self.parameters);
        let out = op.widths(self.widths, &[]).unwrap().out[0];
        let inputs = self.widths.iter().enumerate().map(|(i, w)| TensorSpec::f32(name(i), &[*w])).collect();
        let signature = Signature { inputs, outputs: vec![TensorSpec::f32("y", &[out])], state: Vec::new() };
        let record = |recorder: &mut crate::exec::program::Recorder| {
            let x = (0..self.widths.len()).map(|i| recorder.input(&name(i))).collect::<crate::Result<Vec<_>>>()?;
            Ok(vec![Output::Floats(recorder.apply(op, &x.iter().collect::<Vec<_>>())?)])
        };
        Program::new(&signature, target, record).unwrap()
    }

    fn on_a_tape(&self, plain: &[f64], exact: &[Vec<f64>]) {
        let net = Differentiable::new(&self.program(Target::Tape), Products::F32).unwrap();
        let mut tape = Tapes::default().take(&net, ROWS, 1);
        for (i, x) in self.x.iter().enumerate() {
            tape.input_mut(&net, i, 0).copy_from_slice(&x.flatten_all().unwrap().to_vec1::<f32>().unwrap());
        }
        tape.forward(&net, 0);
        let y: Vec<f64> = (0..ROWS).flat_map(|r| tape.output(&net, 0, 0).row(r).to_vec()).map(f64::from).collect();
        assert_close("forward on a tape", &y, plain, 1e-5);
        let weights = normal("loss", &[ROWS, y.len() / ROWS]).to_vec2::<f32>().unwrap();
        tape.clear(&net, 0);
        tape.add_output_grad(&net, 0, 0, |r, grad| grad.iter_mut().zip(&weights[r]).for_each(|(g, w)| *g += w));
        tape.backward(&net, 0);
        for (i, exact) in exact[..self.x.len()].iter().enumerate() {
            let rows = tape.input_grad(&net, i, 0);
            let grad: Vec<f64> = (0..ROWS).flat_map(|r| rows.row(r).to_vec()).map(f64::from).collect();
            assert_close(&format!("gradient of operand {i} on a tape"), &grad, exact, 3e-5);
        }
        let found = net.gradients(&[&tape]).unwrap();
        for (parameter, exact) in self.parameters.iter().zip(&exact[self.x.len()..]) {
            let place = net.parameters().iter().position(|known| known.id() == parameter.id()).expect("a parameter of the tape");
            assert_close("gradient of a parameter on a tape", &flat(&found[place]), exact, 3e-5);
        }
    }

    /// A pass over some of the rows, and how often the second one allocates.
    fn run(&self, rows: std::ops::Range<usize>) -> (Vec<f32>, usize) {
        let program = self.program(Target::Cpu);
        let width = (self.make)(self.parameters).widths(self.widths, &[]).unwrap().out[0];
        let mut executor = CpuExecutor::new(program, (rows.len(), 1), 1, Products::F32).unwrap();
        assert!(executor.on_tensors().is_empty(), "it has a kernel");
        let x: Vec<Vec<Vec<f32>>> = self.x.iter().map(|x| x.to_vec2().unwrap()).collect();
        let floats: Vec<Vec<f32>> = rows.map(|r| x.iter().flat_map(|x| x[r].clone()).collect()).collect();
        let (mut out, resets) = (vec![vec![0.0f32; width]; floats.len()], [false]);
        let sequence = |(floats, out): (&Vec<f32>, &mut Vec<f32>)| Sequence {
            slot: 0,
            floats: &raw const floats[..],
            indices: std::ptr::slice_from_raw_parts(std::ptr::dangling(), 0),
            resets: &raw const resets[..],
            state: std::ptr::slice_from_raw_parts_mut(std::ptr::dangling_mut(), 0),
            out_floats: &raw mut out[..],
            out_indices: std::ptr::slice_from_raw_parts_mut(std::ptr::dangling_mut(), 0),
        };
        let sequences: Vec<Sequence> = floats.iter().zip(&mut out).map(sequence).collect();
        // SAFETY: the slices are as long as the signature says, outlive both passes, and nobody else uses them.
        unsafe { executor.execute(&sequences) }.unwrap();
        let allocations = allocations_here(|| {
            // SAFETY: as above.
            unsafe { executor.execute(&sequences) }.unwrap();
        });
        drop(sequences);
        (out.concat(), allocations)
    }

    fn in_standard_operators(&self, plain: &[f64]) {
        let graph = Graph::of_program(&self.program(Target::Cpu), [], Tables::AsStored).unwrap();
        let inputs = self.x.iter().enumerate().map(|(i, x)| (format!("x{i}"), x.clone())).collect();
        let (outputs, _) = graph.step(&inputs, &NamedTensors::new()).unwrap();
        assert_close("in standard operators", &flat(outputs.get("y").unwrap()), plain, 1e-5);
    }

    fn on_the_cpu(&self, plain: &[f64]) {
        let (batch, allocations) = self.run(0..ROWS);
        assert_close("on the CPU", &batch.iter().copied().map(f64::from).collect::<Vec<_>>(), plain, 1e-5);
        assert_eq!(allocations, 0, "a pass allocates");
        for (r, row) in batch.chunks_exact(batch.len() / ROWS).enumerate() {
            // A product of more rows takes another tile, whose sums round in another order.
            let [alone, row] = [&self.run(r..r + 1).0[..], row].map(|row| row.iter().copied().map(f64::from).collect::<Vec<_>>());
            assert_close(&format!("row {r} alone"), &alone, &row, 1e-6);
        }
    }
}

#[test]
fn every_form_of_the_operations_that_models_are_made_of() {
    use super::{ActivatedLinear, ActivatedNorm, Activation, Add, Format, Gate, Join, Linear, Norm, NormKind};
    check(Add, &[7, 7]);
    check(Gate, &[19, 19]);
    check(Join, &[3, 4, 1]);
    for act in [Activation::None, Activation::Relu, Activation::Gelu, Activation::Silu] {
        let parameters = [normal("weight", &[9, 34]), normal("bias", &[34])];
        let layer = |p: &[Tensor]| Linear { weight: p[0].clone(), bias: p.get(1).cloned(), format: Format::F32 };
        check_with(&parameters, |p| ActivatedLinear::new(&layer(p), act), &[9]);
        check_with(&parameters[..1], |p| ActivatedLinear::new(&layer(p), act), &[9]);
        check_with(&parameters, |p| ActivatedLinear::at_places(3, &layer(p), act), &[27]);
        let parameters = [normal("gain", &[12]), normal("offset", &[12])];
        for (kind, count) in [(NormKind::Layer, 2), (NormKind::Rms, 1)] {
            let norm = |p: &[Tensor]| Norm { kind, eps: 1e-5, weight: p[0].clone(), bias: p.get(1).cloned() };
            // Two groups a row.
            check_with(&parameters[..count], |p| ActivatedNorm { norm: norm(p), act }, &[24]);
        }
    }
}

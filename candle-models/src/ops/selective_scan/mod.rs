//! Selective scan (Gu and Dao 2023): `h = exp(s A) h + s u B`, `y = C h + D u` with `s = softplus(dt)` for every channel: `u`, `dt`
//! `[rows, W]`, B and C side by side `[rows, 2 N]`, `A = -exp(a_log)` from `[W, N]`, D `[W]`, state `[N, W]`.

mod backward;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod forward;
mod tape;
mod tensors;

pub(crate) use backward::ScanBackward;
pub(crate) use forward::{ScanInput, ScanShape, scan_sequence};
pub use tensors::{selective_scan, selective_scan_reference};

use super::OutPointer;
use crate::Result;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Derivative, EXPONENTIAL, Operation, Size, TapeBuilder, Values, Widths, Work, operands, same_width};
use candle_core::Tensor;

/// Floating-point operations of a state of a channel: decay (multiply, exponential), what comes in, the new state and its share of the
/// output (a multiply-add each).
const OPERATIONS: f64 = 6.0 + EXPONENTIAL;

/// The operation: operands `u`, `dt` before softplus, B and C side by side; one state.
#[derive(Debug, Clone)]
pub struct SelectiveScan {
    /// `[W, N]`.
    pub a_log: Tensor,
    /// D, `[W]`.
    pub skip: Tensor,
}

type Form = fn(&Tensor, &Tensor, &Tensor, &Tensor, &[bool]) -> candle_core::Result<(Tensor, Tensor)>;

impl SelectiveScan {
    /// A `[N, W]`, negative.
    pub(crate) fn decay(a_log: &Tensor) -> candle_core::Result<Tensor> {
        a_log.t()?.contiguous()?.exp()?.neg()
    }

    fn run(&self, form: Form, pass: &mut TensorPass, x: &[&Tensor]) -> Result<Values<Tensor, Indices>> {
        let [u, dt, bc] = operands(self.name(), x)?;
        let packed = Tensor::cat(&[dt, bc], 1)?;
        let params = Tensor::cat(&[Self::decay(&self.a_log)?, self.skip.unsqueeze(0)?], 0)?;
        let state = pass.state(0)?;
        let (y, after) = pass.remembering([u, &packed], |[u, packed]| Ok(form(u, packed, &params, state, pass.resets())?))?;
        pass.set_state(0, after)?;
        Ok(Values::floats(y))
    }
}

impl Operation for SelectiveScan {
    fn name(&self) -> &'static str {
        "selective-scan"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([u, dt, bc], (width, states)) = (operands(self.name(), x)?, self.a_log.dims2()?);
        same_width("selective-scan", u, width)?;
        same_width("selective-scan", dt, width)?;
        same_width("B and C of selective-scan", bc, 2 * states)?;
        Ok(Widths::floats(u))
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(selective_scan_reference, pass, x)
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], states: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let ([u, dt, bc], [state], (width, n)) = (operands(self.name(), x)?, operands(self.name(), states)?, self.a_log.dims2()?);
        let (a_log, skip) = (graph.tensor(&self.a_log)?, graph.tensor(&self.skip)?);
        let log = graph.of(Operator::Transpose(vec![1, 0]), a_log);
        let rate = graph.of(Operator::Exp, log);
        let a = graph.of(Operator::Neg, rate);
        let dt = graph.of(Operator::Softplus, dt);
        let [b, c] = [0, 1].map(|i| graph.columns(bc, i * n, n)).map(|x| graph.by_row(x, &[n, 1]));
        let share = graph.mul(dt, u);
        let [dt, share] = [dt, share].map(|x| graph.by_row(x, &[1, width]));
        let exponent = graph.mul(dt, a);
        let decay = graph.of(Operator::Exp, exponent);
        let (kept, new) = (graph.mul(decay, state), graph.mul(b, share));
        states[0] = graph.add(kept, new);
        let seen = graph.mul(states[0], c);
        let sum = graph.of(Operator::ReduceSum { axis: 1 }, seen);
        let past = graph.mul(u, skip);
        graph::floats(graph.add(sum, past))
    }

    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.run(if pass.is_through_time() { selective_scan_reference } else { selective_scan }, pass, x)
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let ([u, dt, bc], state, out) = (operands(self.name(), &wires.x)?, wires.states[0], wires.out[0]);
        let (width, states) = self.a_log.dims2()?;
        // The kernel's exponential has base 2.
        let a = packer.values(&(self.a_log.t()?.contiguous()?.exp()? * -std::f64::consts::LOG2_E)?)?;
        let skip = packer.values(&self.skip)?;
        Ok(Some(Box::new(move |frame, threads| {
            let shape = ScanShape { steps: frame.steps, width, states };
            cpu::for_channels(threads, (width, (frame.rows * width * states) as f32 * 2e-4), |channels| {
                for b in 0..frame.batch() {
                    let input = ScanInput {
                        u: frame.sequence(u, b),
                        dt: frame.sequence(dt, b),
                        b: frame.sequence(bc.columns(0, states), b),
                        c: frame.sequence(bc.columns(states, states), b),
                        a: &a,
                        skip: &skip,
                    };
                    let ahead = frame.state_at((b + 1).min(frame.batch() - 1), state);
                    let (state, out) = (OutPointer { data: frame.state_at(b, state), stride: width }, frame.sequence_at(out, b));
                    // SAFETY: every channel of state and output belongs to one part.
                    unsafe { scan_sequence(shape, channels.clone(), frame.resets(b), input, (state, ahead), out) };
                }
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let (x, state, states) = (operands(self.name(), &wires.x)?, wires.states[0], self.a_log.dim(1)?);
        let (a, skip) = (compiler.vector(&Self::decay(&self.a_log)?)?, compiler.vector(&self.skip)?);
        Ok(Some(compiler.with_narrow(x, wires.out[0], move |pass, [u, dt, bc], out| {
            let (b, c) = (pass.matrix(bc.columns(0, states)), pass.matrix(bc.columns(states, states)));
            let inputs = [pass.matrix(u), pass.matrix(dt), b, c];
            let behind = cuda::ScanOut { out: pass.matrix(out), state: pass.state(state) };
            let args = cuda::Scan::new(inputs, [a, skip], pass.resets(), pass.steps, behind);
            // SAFETY: the plan gives every matrix of a pass its rows; every sequence has a slot.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.batch) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::Scan::new(self, wires, tape)?)))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let each = OPERATIONS * self.a_log.elem_count() as f64;
        let bytes = size.parameter(&self.a_log) + size.values(wires);
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes, weights: None })
    }
}

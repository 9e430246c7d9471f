//! `act(w (x - mean) / sqrt(var + eps) + b)` (layer), `act(w x / sqrt(mean of x^2 + eps))` (RMS) over every group of a row that is as wide
//! as `w` `[G]`: `x` `[rows, n G]` to the same shape.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod tape;
mod tensors;

pub use tensors::{NormKind, norm, norm_reference};
pub(crate) use tensors::{norm_row, norm_row_backward, norm_rows, norm_rows_backward};

use super::Activation;
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{self, Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass, emulated};
use crate::exec::{Derivative, Operation, Size, TapeBuilder, Values, Widths, Work, operands};
use crate::{Error, Result};
use candle_core::Tensor;

/// A normalisation with its gain and, for layer normalisation, its offset.
///
/// ```
/// use candle_models::candle_core::Device;
/// use candle_models::nn::{Norm, Params};
/// # fn main() -> candle_models::Result<()> {
/// let params = Params::description();
/// assert!(Norm::layer(8, &params.pp("first"))?.bias.is_some());
/// assert!(Norm::rms(8, &params.pp("second"))?.bias.is_none());
/// let names: Vec<String> = params.specs().into_iter().map(|spec| spec.name).collect();
/// assert_eq!(names, ["first.bias", "first.weight", "second.weight"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Norm {
    /// Layer or RMS.
    pub kind: NormKind,
    /// Added to the variance.
    pub eps: f64,
    /// Gain `[width]`.
    pub weight: Tensor,
    /// Offset `[width]`.
    pub bias: Option<Tensor>,
}

/// The operation: one operand.
#[derive(Debug, Clone)]
pub struct ActivatedNorm {
    /// The normalisation.
    pub norm: Norm,
    /// What follows it.
    pub act: Activation,
}

impl ActivatedNorm {
    /// The normalisation of the last axis in standard operators.
    fn of_group(&self, graph: &mut Graph, x: Value) -> Result<Value> {
        let Norm { kind, eps, weight, bias } = &self.norm;
        let (gain, offset) = (graph.tensor(weight)?, bias.as_ref().map(|bias| graph.tensor(bias)).transpose()?);
        let y = match (kind, offset) {
            (NormKind::Layer, offset) => {
                let operands: Vec<Value> = [x, gain].into_iter().chain(offset).collect();
                graph.node(Operator::LayerNormalization { epsilon: *eps as f32 }, &operands)
            }
            (NormKind::Rms, offset) => {
                let (squares, eps) = (graph.mul(x, x), graph.float(*eps as f32));
                let mean = graph.of(Operator::ReduceMean, squares);
                let sum = graph.add(mean, eps);
                let root = graph.of(Operator::Sqrt, sum);
                let scaled = graph.node(Operator::Div, &[x, root]);
                let y = graph.mul(scaled, gain);
                offset.map_or(y, |offset| graph.add(y, offset))
            }
        };
        Ok(self.act.formula(graph, y))
    }

    /// Runs `f` on rows that are groups.
    fn by_group(&self, x: &Tensor, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Values<Tensor, Indices>> {
        let (width, x) = (self.norm.weight.dim(0)?, x.contiguous()?);
        // A reshape is a node of the graph, whose gradient is cleared, added to and written once more.
        if x.dim(1)? == width {
            return Ok(Values::floats(f(&x)?));
        }
        Ok(Values::floats(f(&x.reshape(((), width))?)?.reshape(x.dims())?))
    }
}

impl Operation for ActivatedNorm {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
        let ([x], group) = (operands(self.name(), x)?, self.norm.weight.dim(0)?);
        if group == 0 || x % group != 0 {
            return Err(Error::Input(format!("norm: {x} values a row in groups of {group}")));
        }
        Ok(Widths::floats(x))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], Norm { kind, eps, weight, bias }) = (operands(self.name(), x)?, &self.norm);
        self.by_group(x, |x| Ok(self.act.reference(&norm_reference(x, *kind, *eps, weight, bias.as_ref())?)?))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], _: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let [x] = operands(self.name(), x)?;
        graph::floats(graph.by_group(x, self.norm.weight.dim(0)?, |graph, x| self.of_group(graph, x))?)
    }

    fn tensors(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([x], Norm { kind, eps, weight, bias }) = (operands(self.name(), x)?, &self.norm);
        self.by_group(x, |x| emulated([x], |[x]| Ok(norm(x, *kind, *eps, weight, bias.as_ref(), self.act)?)))
    }

    fn compile(&self, wires: &Wires, packer: &mut Packer) -> Result<Option<cpu::Run>> {
        let (x, out, act) = (wires.x[0], wires.out[0], self.act);
        let (kind, eps, weight) = (self.norm.kind, self.norm.eps as f32, packer.values(&self.norm.weight)?);
        let bias = self.norm.bias.as_ref().map(|b| packer.values(b)).transpose()?.unwrap_or_default();
        Ok(Some(Box::new(move |frame, threads| {
            let group = weight.len();
            cpu::share_rows(threads, frame.rows, x.width, |r| {
                // SAFETY: every row belongs to one part.
                let out = unsafe { frame.row_mut(out, r) };
                for (x, out) in frame.row(x, r).chunks(group).zip(out.chunks_mut(group)) {
                    norm_row(kind, eps, act, x, &weight, &bias, out);
                }
            });
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let Norm { kind, eps, weight, bias } = &self.norm;
        let (kind, eps, act, group) = (*kind, *eps, self.act, weight.dim(0)?);
        let (weight, bias) = (compiler.vector(weight)?, compiler.vector_or_none(bias.as_ref())?);
        Ok(Some(compiler.with_narrow([wires.x[0]], wires.out[0], move |pass, [x], out| {
            let args = cuda::Norm::new([pass.matrix(x), pass.matrix(out)], [weight, bias], (pass.rows(), group), (kind, eps), act);
            // SAFETY: the plan gives every matrix of a pass its rows, and the weights live as long as the steps.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype) }?)
        })))
    }

    fn differentiate(&self, wires: &Wires, tape: &mut TapeBuilder) -> Result<Option<Box<dyn Derivative>>> {
        Ok(Some(Box::new(tape::OnTape::new(self, wires, tape)?)))
    }

    /// With a gain that is no parameter.
    #[cfg(feature = "cuda")]
    fn differentiate_on_gpu(
        &self,
        wires: &Wires,
        tape: &mut crate::exec::tape::cuda::Builder,
    ) -> Option<Box<dyn crate::exec::tape::cuda::Derivative>> {
        let weight = &self.norm.weight;
        let fixed = !weight.track_op() && weight.dtype() == candle_core::DType::F32 && self.norm.bias.is_none();
        if self.act != Activation::None || !tape.is_read_once(&wires.x[0]) || !fixed || weight.elem_count() > cuda::MOST {
            return None;
        }
        let (x, out) = (tape.matrix(&wires.x[0])?, tape.matrix(&wires.out[0])?);
        Some(Box::new(cuda::OnTape { x, out, norm: self.norm.clone() }))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let scaled = if self.norm.kind == NormKind::Layer { 6.0 } else { 3.0 };
        let offset = if self.norm.bias.is_some() { 1.0 } else { 0.0 };
        let each = (scaled + 1.0 + offset + self.act.operations()) * wires.out[0].width as f64;
        let bytes = size.parameter(&self.norm.weight) + size.values(wires);
        Ok(Work { name: self.name(), flop: size.rows() * each, bytes, weights: None })
    }
}

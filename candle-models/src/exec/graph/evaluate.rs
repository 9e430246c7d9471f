//! A graph on Candle tensors, operator by operator: slow, and written from the definition of ONNX rather than from the kernels. A model made
//! of a graph is compared with the one that the graph was made from.

use super::{Definition, Graph, Operator, Value};
use crate::engine::Model;
use crate::ops::softmax;
use crate::recurrent::Recurrent;
use crate::signature::Signature;
use crate::tensors::NamedTensors;
use crate::{Error, Result};
use candle_core::{D, DType, Device, Tensor};

impl Graph {
    /// One frame: inputs `[B, ...]` and the states before it to outputs and the states behind it.
    ///
    /// # Errors
    /// If inputs or states are missing or have other shapes than the signature says.
    pub fn step(&self, inputs: &NamedTensors, state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        let signature = &self.signature;
        let last = self.last_uses();
        let mut values: Vec<Option<Tensor>> = Vec::with_capacity(self.definitions.len());
        for (at, definition) in self.definitions.iter().enumerate() {
            let value = match definition {
                Definition::Input(number) => {
                    let input = inputs.get(&signature.inputs[*number].name)?.flatten_from(1)?;
                    if input.dtype() == DType::U32 { input.to_dtype(DType::I64)? } else { input }
                }
                Definition::State(number) => state.get(&signature.state[*number].name)?.clone(),
                Definition::Parameter { tensor, .. } | Definition::Constant(tensor) => tensor.clone(),
                Definition::Float(value) => Tensor::new(*value, &Device::Cpu)?,
                Definition::Integer(value) => Tensor::new(*value, &Device::Cpu)?,
                Definition::Node { operator, operands, .. } => {
                    let read = operands.iter().map(|value| known(&values, *value)).collect::<Result<Vec<_>>>()?;
                    let value = apply(operator, &read)?;
                    // Rows side by side times hundreds of values are gigabytes.
                    operands.iter().filter(|Value(i)| last[*i] == Some(at)).for_each(|Value(i)| values[*i] = None);
                    value
                }
            };
            values.push(Some(value));
        }
        let outputs = self.outputs.iter().zip(&signature.outputs).map(|(value, spec)| {
            let value = known(&values, *value)?.clone();
            Ok((spec.name.clone(), if value.dtype() == DType::I64 { value.to_dtype(DType::U32)? } else { value }))
        });
        let after =
            self.after.iter().zip(&signature.state).map(|(value, spec)| Ok((spec.name.clone(), known(&values, *value)?.contiguous()?)));
        Ok((outputs.collect::<Result<_>>()?, after.collect::<Result<_>>()?))
    }

    /// The node that each value is read by last; none of what is a result, and of what no node reads.
    fn last_uses(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.definitions.len()];
        for (at, definition) in self.definitions.iter().enumerate() {
            if let Definition::Node { operands, .. } = definition {
                operands.iter().for_each(|Value(i)| last[*i] = Some(at));
            }
        }
        self.outputs.iter().chain(&self.after).for_each(|Value(i)| last[*i] = None);
        last
    }
}

fn known(values: &[Option<Tensor>], Value(i): Value) -> Result<&Tensor> {
    values[i].as_ref().ok_or_else(|| Error::Input(format!("value {i} of a graph is read before it is computed")))
}

fn apply(operator: &Operator, operands: &[&Tensor]) -> Result<Tensor> {
    let x = *operands.first().ok_or_else(|| Error::Input(format!("{operator:?} without operands")))?;
    let y = operands.get(1).copied().unwrap_or(x);
    Ok(match operator {
        Operator::Add => x.broadcast_add(y)?,
        Operator::Sub => x.broadcast_sub(y)?,
        Operator::Mul => x.broadcast_mul(y)?,
        Operator::Div => x.broadcast_div(y)?,
        Operator::Min => x.broadcast_minimum(y)?,
        Operator::MatMul => x.contiguous()?.broadcast_matmul(&y.contiguous()?)?,
        Operator::Neg => x.neg()?,
        Operator::Exp => x.exp()?,
        Operator::Log => x.log()?,
        Operator::Sqrt => x.sqrt()?,
        Operator::Erf => x.erf()?,
        Operator::Cos => x.cos()?,
        Operator::Sin => x.sin()?,
        Operator::Tanh => x.tanh()?,
        Operator::Sigmoid => (x.neg()?.exp()? + 1.0)?.recip()?,
        Operator::Relu => x.relu()?,
        // Without overflow: max(x, 0) + ln(1 + e^-|x|).
        Operator::Softplus => (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?,
        Operator::Softmax => softmax::reference(x)?,
        Operator::LayerNormalization { epsilon } => {
            let x = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
            let deviation = (x.sqr()?.mean_keepdim(D::Minus1)? + f64::from(*epsilon))?.sqrt()?;
            let scaled = x.broadcast_div(&deviation)?.broadcast_mul(y)?;
            operands.get(2).map_or(Ok(scaled.clone()), |offset| scaled.broadcast_add(offset))?
        }
        Operator::ReduceMean => x.mean_keepdim(D::Minus1)?,
        Operator::ReduceSum { axis } => x.sum(*axis)?,
        Operator::CumSum => x.cumsum(D::Minus1)?,
        Operator::ArgMax => x.argmax(D::Minus1)?.to_dtype(DType::I64)?,
        Operator::Concat { axis } => Tensor::cat(operands, *axis)?,
        Operator::Slice { axis, start, len } => x.narrow(*axis, *start, *len)?,
        Operator::Gather => {
            let shape: Vec<usize> = y.dims().iter().chain(&x.dims()[1..]).copied().collect();
            x.index_select(&y.flatten_all()?.contiguous()?, 0)?.reshape(shape)?
        }
        Operator::Reshape(dims) => reshape(x, dims)?,
        Operator::Transpose(axes) => x.permute(axes.as_slice())?.contiguous()?,
        Operator::Conv { strides, pads } => convolve(x, y, operands.get(2).copied(), (*strides, *pads))?,
        Operator::MaxPool { kernel: [down, across], strides } => x.max_pool2d_with_stride((*down, *across), (strides[0], strides[1]))?,
        Operator::AveragePool { kernel: [down, across], strides } => {
            x.avg_pool2d_with_stride((*down, *across), (strides[0], strides[1]))?
        }
        Operator::Less => x.broadcast_lt(y)?,
        Operator::LessOrEqual => x.broadcast_le(y)?,
        Operator::Equal => x.broadcast_eq(y)?,
        Operator::Where => {
            let other = operands.get(2).copied().unwrap_or(y);
            let shape = x.shape().broadcast_shape_binary_op(y.shape(), "where")?.broadcast_shape_binary_op(other.shape(), "where")?;
            x.broadcast_as(&shape)?.where_cond(&y.broadcast_as(&shape)?, &other.broadcast_as(&shape)?)?
        }
        Operator::CastToInt => x.to_dtype(DType::I64)?,
        Operator::CastToFloat => x.to_dtype(DType::F32)?,
    })
}

fn reshape(x: &Tensor, dims: &[i64]) -> Result<Tensor> {
    let known: i64 = dims.iter().filter(|n| **n >= 0).product();
    let rest = x.elem_count() as i64 / known.max(1);
    Ok(x.reshape(dims.iter().map(|n| if *n < 0 { rest } else { *n } as usize).collect::<Vec<_>>())?)
}

/// Candle's convolution has one stride for both axes: that of stride 1, of which the places in between are left out.
fn convolve(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, (strides, pads): ([usize; 2], [usize; 2])) -> Result<Tensor> {
    let padded = x.pad_with_zeros(2, pads[0], pads[0])?.pad_with_zeros(3, pads[1], pads[1])?;
    let mut y = padded.conv2d(weight, 0, 1, 1, 1)?;
    for (axis, stride) in [(2, strides[0]), (3, strides[1])] {
        let places: Vec<u32> = (0..y.dim(axis)? as u32).step_by(stride).collect();
        y = y.contiguous()?.index_select(&Tensor::new(places, y.device())?, axis)?;
    }
    Ok(bias.map_or(Ok(y.clone()), |bias| y.broadcast_add(&bias.reshape((1, (), 1, 1))?))?)
}

/// A model made of the graph of another: frame by frame, operator by operator.
#[derive(Debug, Clone)]
pub struct Evaluated {
    graph: Graph,
    family: &'static str,
    config: serde_json::Value,
}

impl Evaluated {
    /// The graph of that model.
    pub fn new(graph: Graph, model: &dyn Model) -> Self {
        Self { graph, family: model.family(), config: model.config() }
    }
}

impl Recurrent for Evaluated {
    fn signature(&self) -> &Signature {
        &self.graph.signature
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn unroll(&self, inputs: &NamedTensors, resets: &[bool], state: &NamedTensors) -> Result<(NamedTensors, NamedTensors)> {
        let first = self.graph.signature.inputs.first().ok_or_else(|| Error::Input("a model without inputs".to_owned()))?;
        let (batch, steps) = (inputs.get(&first.name)?.dim(0)?, inputs.get(&first.name)?.dim(1)?);
        let (mut state, mut frames) = (state.clone(), Vec::with_capacity(steps));
        for t in 0..steps {
            let reset: Vec<bool> = (0..batch).map(|row| resets[row * steps + t]).collect();
            let before = state.reset_rows(&reset)?;
            let (outputs, after) = self.graph.step(&inputs.map(|_, x| Ok(x.narrow(1, t, 1)?.squeeze(1)?))?, &before)?;
            frames.push(outputs);
            state = after;
        }
        let outputs = self.graph.signature.outputs.iter().map(|spec| {
            let parts = frames.iter().map(|frame| frame.get(&spec.name)).collect::<Result<Vec<_>>>()?;
            Ok((spec.name.clone(), Tensor::stack(&parts, 1)?))
        });
        Ok((outputs.collect::<Result<_>>()?, state))
    }
}

impl Model for Evaluated {
    fn family(&self) -> &'static str {
        self.family
    }

    fn config(&self) -> serde_json::Value {
        self.config.clone()
    }
}

//! A graph as an ONNX model: operator set 17, IR version 8.

use super::proto::{
    Attribute, Dimension, Element, Entry, Graph as Proto, Length, Model, Node, OperatorSet, Shape, Tensor, TensorType, Type, ValueInfo,
};
use crate::Result;
use crate::exec::graph::{Definition, Graph, Operator, Value};
use crate::infer::inspect;
use crate::ops::Format;
use crate::signature::TensorSpec;
use candle_core::DType;
use half::bf16;
use prost::Message;
use std::collections::BTreeMap;

/// The operator set of ONNX that the operators are taken from.
pub const OPERATOR_SET: i64 = 17;
/// The version of the file format that came with it.
pub const IR_VERSION: i64 = 8;

/// The bytes of a model. Inputs keep their names; before states stands `state.`, before outputs `output.`, before the states behind the
/// frame `after.`.
///
/// # Errors
/// If a parameter cannot be read.
pub fn model(name: &str, about: String, metadata: &[(&str, String)], graph: &Graph) -> Result<Vec<u8>> {
    let mut writer = Writer { proto: Proto { name: name.to_owned(), ..Proto::default() }, names: Vec::new(), integers: BTreeMap::new() };
    writer.write(graph)?;
    let entry = |(key, value): &(&str, String)| Entry { key: (*key).to_owned(), value: value.clone() };
    let model = Model {
        ir_version: IR_VERSION,
        producer_name: "candle-models".to_owned(),
        producer_version: env!("CARGO_PKG_VERSION").to_owned(),
        doc_string: about,
        graph: Some(writer.proto),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPERATOR_SET }],
        metadata_props: metadata.iter().map(entry).collect(),
    };
    Ok(model.encode_to_vec())
}

struct Writer {
    proto: Proto,
    /// What each value of the graph is called.
    names: Vec<String>,
    /// Constants of integers that operators take as operands, by their values.
    integers: BTreeMap<Vec<i64>, String>,
}

impl Writer {
    fn write(&mut self, graph: &Graph) -> Result<()> {
        let signature = graph.signature();
        self.proto.input = signature.inputs.iter().map(|spec| info(&spec.name, spec, inspect::explained(spec))).collect();
        let state =
            |spec: &TensorSpec| info(&format!("state.{}", spec.name), spec, "zeros before the first frame and after a reset".to_owned());
        self.proto.input.extend(signature.state.iter().map(state));
        for (value, definition) in graph.definitions() {
            let name = match definition {
                Definition::Input(number) => self.input(&signature.inputs[*number]),
                Definition::State(number) => format!("state.{}", signature.state[*number].name),
                Definition::Parameter { name, tensor, format } => self.parameter(name, tensor, format)?,
                Definition::Constant(tensor) if tensor.dtype() == DType::I64 => {
                    let values: Vec<i64> = tensor.flatten_all()?.to_vec1()?;
                    self.initializer(constant(value), tensor.dims(), Element::Int64, bytes(&values, |x| x.to_le_bytes()))
                }
                Definition::Constant(tensor) => self.floats(constant(value), tensor)?,
                Definition::Float(x) => self.initializer(constant(value), &[], Element::Float, x.to_le_bytes().to_vec()),
                Definition::Integer(x) => self.initializer(constant(value), &[], Element::Int64, x.to_le_bytes().to_vec()),
                Definition::Node { operator, operands, operation } => {
                    let operands = operands.iter().map(|value| self.names[value.number()].clone()).collect();
                    let name = format!("{}.{operation}.{}", graph.operation(*operation), value.number());
                    self.operator(operator, operands, name)
                }
            };
            self.names.push(name);
        }
        // A value may be an output and a state at once, or an input: each gets a name of its own.
        let ends = [("output", graph.outputs(), &signature.outputs), ("after", graph.after(), &signature.state)];
        for (prefix, values, specs) in ends {
            for (value, spec) in values.iter().zip(specs) {
                let (from, to) = (self.names[value.number()].clone(), format!("{prefix}.{}", spec.name));
                self.proto.output.push(info(&to, spec, spec.meaning.to_owned()));
                // Some runtimes keep integers in a type of their own, which a cast ends.
                match spec.dtype() {
                    DType::U32 => self.node("Cast", vec![from], to, vec![int("to", Element::Int64 as i64)]),
                    _ => self.node("Identity", vec![from], to, Vec::new()),
                };
            }
        }
        Ok(())
    }

    /// An input as a matrix.
    fn input(&mut self, spec: &TensorSpec) -> String {
        if spec.shape.len() == 1 {
            return spec.name.clone();
        }
        let shape = self.integers(&[-1, spec.width() as i64], false);
        self.node("Reshape", vec![spec.name.clone(), shape], format!("{}.matrix", spec.name), Vec::new())
    }

    fn initializer(&mut self, name: String, dims: &[usize], element: Element, raw_data: Vec<u8>) -> String {
        let dims = dims.iter().map(|n| *n as i64).collect();
        self.proto.initializer.push(Tensor { dims, data_type: element as i32, name: name.clone(), raw_data });
        name
    }

    fn floats(&mut self, name: String, tensor: &candle_core::Tensor) -> Result<String> {
        let values: Vec<f32> = tensor.flatten_all()?.to_vec1()?;
        Ok(self.initializer(name, tensor.dims(), Element::Float, bytes(&values, |x| x.to_le_bytes())))
    }

    /// A parameter as the bundle stores it, and what makes f32 of it.
    fn parameter(&mut self, name: &str, tensor: &candle_core::Tensor, format: &Format) -> Result<String> {
        let values = || -> Result<Vec<f32>> { Ok(tensor.flatten_all()?.to_vec1()?) };
        match format {
            Format::F32 => self.floats(name.to_owned(), tensor),
            Format::Bf16 => {
                let raw = bytes(&values()?, |x| bf16::from_f32(*x).to_le_bytes());
                let stored = self.initializer(name.to_owned(), tensor.dims(), Element::Bfloat16, raw);
                Ok(self.node("Cast", vec![stored], format!("{name}.f32"), vec![int("to", Element::Float as i64)]))
            }
            Format::Q8(scale) => {
                let integers = format.integers(&values()?).unwrap_or_default();
                let stored = self.initializer(name.to_owned(), tensor.dims(), Element::Int8, bytes(&integers, |x| x.to_le_bytes()));
                let scale = self.initializer(format!("{name}.scale"), &[scale.len()], Element::Float, bytes(scale, |x| x.to_le_bytes()));
                Ok(self.node("DequantizeLinear", vec![stored, scale], format!("{name}.f32"), vec![int("axis", 1)]))
            }
        }
    }

    /// Integers as an operand: a vector, or the one as a scalar.
    fn integers(&mut self, values: &[i64], scalar: bool) -> String {
        let key: Vec<i64> = std::iter::once(i64::from(scalar)).chain(values.iter().copied()).collect();
        if let Some(name) = self.integers.get(&key) {
            return name.clone();
        }
        let dims: &[usize] = if scalar { &[] } else { &[values.len()] };
        let name = self.initializer(format!("integers.{}", self.integers.len()), dims, Element::Int64, bytes(values, |x| x.to_le_bytes()));
        self.integers.insert(key, name.clone());
        name
    }

    fn node(&mut self, op_type: &str, input: Vec<String>, output: String, attribute: Vec<Attribute>) -> String {
        let node = Node { input, output: vec![output.clone()], name: output.clone(), op_type: op_type.to_owned(), attribute };
        self.proto.node.push(node);
        output
    }

    fn operator(&mut self, operator: &Operator, mut operands: Vec<String>, name: String) -> String {
        let (op_type, attributes) = match operator {
            Operator::Add => ("Add", vec![]),
            Operator::Sub => ("Sub", vec![]),
            Operator::Mul => ("Mul", vec![]),
            Operator::Div => ("Div", vec![]),
            Operator::Min => ("Min", vec![]),
            Operator::MatMul => ("MatMul", vec![]),
            Operator::Neg => ("Neg", vec![]),
            Operator::Exp => ("Exp", vec![]),
            Operator::Log => ("Log", vec![]),
            Operator::Sqrt => ("Sqrt", vec![]),
            Operator::Erf => ("Erf", vec![]),
            Operator::Cos => ("Cos", vec![]),
            Operator::Sin => ("Sin", vec![]),
            Operator::Tanh => ("Tanh", vec![]),
            Operator::Sigmoid => ("Sigmoid", vec![]),
            Operator::Relu => ("Relu", vec![]),
            Operator::Softplus => ("Softplus", vec![]),
            Operator::Softmax => ("Softmax", vec![int("axis", -1)]),
            Operator::LayerNormalization { epsilon } => ("LayerNormalization", vec![int("axis", -1), float("epsilon", *epsilon)]),
            Operator::ReduceMean => ("ReduceMean", vec![ints("axes", &[-1]), int("keepdims", 1)]),
            Operator::ReduceSum { axis } => {
                operands.push(self.integers(&[*axis as i64], false));
                ("ReduceSum", vec![int("keepdims", 0)])
            }
            Operator::CumSum => {
                operands.push(self.integers(&[-1], true));
                ("CumSum", vec![])
            }
            Operator::ArgMax => ("ArgMax", vec![int("axis", -1), int("keepdims", 0)]),
            Operator::Concat { axis } => ("Concat", vec![int("axis", *axis as i64)]),
            Operator::Slice { axis, start, len } => {
                operands.extend([*start, start + len, *axis].map(|n| self.integers(&[n as i64], false)));
                ("Slice", vec![])
            }
            Operator::Gather => ("Gather", vec![int("axis", 0)]),
            Operator::Reshape(dims) => {
                operands.push(self.integers(dims, false));
                ("Reshape", vec![])
            }
            Operator::Transpose(axes) => ("Transpose", vec![ints("perm", &axes.iter().map(|n| *n as i64).collect::<Vec<_>>())]),
            Operator::Conv { strides, pads } => {
                let [down, across] = pads.map(|n| n as i64);
                ("Conv", vec![ints("strides", &strides.map(|n| n as i64)), ints("pads", &[down, across, down, across])])
            }
            Operator::MaxPool { kernel, strides } | Operator::AveragePool { kernel, strides } => {
                let op_type = if matches!(operator, Operator::MaxPool { .. }) { "MaxPool" } else { "AveragePool" };
                let sides = |name, pair: &[usize; 2]| ints(name, &pair.map(|n| n as i64));
                (op_type, vec![sides("kernel_shape", kernel), sides("strides", strides)])
            }
            Operator::Less => ("Less", vec![]),
            Operator::LessOrEqual => ("LessOrEqual", vec![]),
            Operator::Equal => ("Equal", vec![]),
            Operator::Where => ("Where", vec![]),
            Operator::CastToInt => ("Cast", vec![int("to", Element::Int64 as i64)]),
            Operator::CastToFloat => ("Cast", vec![int("to", Element::Float as i64)]),
        };
        self.node(op_type, operands, name, attributes)
    }
}

fn constant(value: Value) -> String {
    format!("constant.{}", value.number())
}

fn bytes<T, const N: usize>(values: &[T], of: impl Fn(&T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(of).collect()
}

fn int(name: &str, i: i64) -> Attribute {
    Attribute { name: name.to_owned(), i: Some(i), kind: 2, ..Attribute::default() }
}

fn ints(name: &str, values: &[i64]) -> Attribute {
    Attribute { name: name.to_owned(), ints: values.to_vec(), kind: 7, ..Attribute::default() }
}

fn float(name: &str, f: f32) -> Attribute {
    Attribute { name: name.to_owned(), f: Some(f), kind: 1, ..Attribute::default() }
}

/// An input or output with the batch as its first axis.
fn info(name: &str, spec: &TensorSpec, doc_string: String) -> ValueInfo {
    let element = if spec.dtype() == DType::U32 { Element::Int64 } else { Element::Float };
    let lengths = std::iter::once(Length::Named("batch".to_owned())).chain(spec.shape.iter().map(|n| Length::Value(*n as i64)));
    let shape = Shape { dim: lengths.map(|length| Dimension { length: Some(length) }).collect() };
    let tensor_type = TensorType { elem_type: element as i32, shape: Some(shape) };
    ValueInfo { name: name.to_owned(), kind: Some(Type { tensor_type: Some(tensor_type) }), doc_string }
}

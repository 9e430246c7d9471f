//! A model's step as a graph of standard operators: what [`Recorder`](super::program::Recorder) has noted, each operation written out by
//! [`Operation::formula`](super::Operation::formula) in operators of ONNX (operator set 17). The graph is printed as a program, exported as ONNX, and evaluated on
//! Candle tensors to compare it with what it was made from.
//!
//! A step is one frame of `B` rows. Its inputs and states come in, its outputs and the states behind the frame go out; a reset is the
//! caller's: zeros in place of the row's states. Indices are 64-bit integers, as ONNX wants them, and mean what they mean in the signature.
//!
//! ```
//! use candle_models::bundle::Bundle;
//! use candle_models::exec::graph::{Definition, Tables};
//! use candle_models::families;
//! # fn main() -> candle_models::Result<()> {
//! let graphs = families::shipped().graphs(&Bundle::open("../weights/policy-mlp")?, Tables::AsStored)?;
//! let (name, graph) = &graphs[0];
//! let products = graph.definitions().filter(|(_, definition)| {
//!     matches!(definition, Definition::Parameter { name, .. } if name.ends_with("linear.weight"))
//! });
//! assert_eq!(*name, "policy");
//! assert!(products.count() >= 1); // parameters keep their names
//! # Ok(())
//! # }
//! ```

mod evaluate;

use super::Target;
use super::operation::Values;
use super::program::{Output, Program, Slot};
use crate::engine::Model;
use crate::ops::{Format, Linear};
use crate::signature::Signature;
use crate::{Error, Result};
use candle_core::{DType, Device, Tensor, TensorId};
pub use evaluate::Evaluated;
use std::collections::HashMap;

/// A value of a graph: a tensor whose first axis is the batch, or a constant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value(usize);

impl Value {
    /// Its place among the graph's definitions.
    pub fn number(self) -> usize {
        self.0
    }
}

/// An operator as ONNX defines it. Axes count the batch as 0; operands are broadcast as in NumPy.
#[derive(Debug, Clone, PartialEq)]
pub enum Operator {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a b`, value by value.
    Mul,
    /// `a / b`.
    Div,
    /// The smaller of two.
    Min,
    /// The matrix product of the last two axes.
    MatMul,
    /// `-x`.
    Neg,
    /// `exp(x)`.
    Exp,
    /// The natural logarithm.
    Log,
    /// The square root.
    Sqrt,
    /// The error function.
    Erf,
    /// The cosine of radians.
    Cos,
    /// The sine of radians.
    Sin,
    /// The hyperbolic tangent.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `max(x, 0)`.
    Relu,
    /// `ln(1 + exp(x))`.
    Softplus,
    /// `exp(x) / sum of exp(x)` over the last axis.
    Softmax,
    /// Operands `x`, gain and, if there is one, offset; over the last axis.
    LayerNormalization {
        /// Added to the variance.
        epsilon: f32,
    },
    /// The mean over the last axis, which stays with length 1.
    ReduceMean,
    /// The sum over an axis, which goes.
    ReduceSum {
        /// The axis.
        axis: usize,
    },
    /// Sums from the first value to each, over the last axis.
    CumSum,
    /// The place of the largest value of the last axis, which goes; the first of several.
    ArgMax,
    /// Operands side by side.
    Concat {
        /// The axis.
        axis: usize,
    },
    /// Some places of an axis.
    Slice {
        /// The axis.
        axis: usize,
        /// The first place.
        start: usize,
        /// How many.
        len: usize,
    },
    /// Rows of the table (first operand) that the indices (second operand) name.
    Gather,
    /// Another shape for the same values; -1 stands for the axis that takes the rest.
    Reshape(Vec<i64>),
    /// Axes in another order.
    Transpose(Vec<usize>),
    /// Convolution of `[B, C, H, W]` with `[O, C, K, L]` and, if there is one, a bias `[O]`; pairs are down and across.
    Conv {
        /// From a patch to the next.
        strides: [usize; 2],
        /// Zeros around the input.
        pads: [usize; 2],
    },
    /// The largest values of patches of `[B, C, H, W]`.
    MaxPool {
        /// Height and width of a patch.
        kernel: [usize; 2],
        /// From a patch to the next.
        strides: [usize; 2],
    },
    /// The means of patches of `[B, C, H, W]`.
    AveragePool {
        /// Height and width of a patch.
        kernel: [usize; 2],
        /// From a patch to the next.
        strides: [usize; 2],
    },
    /// `a < b`.
    Less,
    /// `a <= b`.
    LessOrEqual,
    /// `a == b`.
    Equal,
    /// The second operand where the first is true, else the third.
    Where,
    /// True and false as 1 and 0, floats without what stands behind their point.
    CastToInt,
    /// Integers as floats.
    CastToFloat,
}

/// Where a value comes from.
#[derive(Debug, Clone)]
pub enum Definition {
    /// The input of that number in the signature: `[B, values of a row]`.
    Input(usize),
    /// The state of that number in the signature before the frame: `[B, ...]`.
    State(usize),
    /// A parameter of the model, in f32, and how it is stored.
    Parameter {
        /// Its name in the bundle.
        name: String,
        /// Its values.
        tensor: Tensor,
        /// How a bundle holds it.
        format: Format,
    },
    /// Values that stand in no bundle: f32, or 64-bit integers.
    Constant(Tensor),
    /// A number.
    Float(f32),
    /// An integer.
    Integer(i64),
    /// The result of an operator.
    Node {
        /// The operator.
        operator: Operator,
        /// Its operands.
        operands: Vec<Value>,
        /// The number of the recorded operation that it is a part of.
        operation: usize,
    },
}

/// How tables are written whose rows go into a product with weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// As the bundle holds them, beside the weights.
    AsStored,
    /// Multiplied by the weights beforehand, as the engine does: constants that are larger, and a product that is smaller. Only with weights
    /// in f32: 8-bit and bf16 ones would not be themselves any more.
    Folded,
}

/// A model's step. Values are defined in order: an operand before its operator.
#[derive(Debug, Clone)]
pub struct Graph {
    signature: Signature,
    tables: Tables,
    names: HashMap<TensorId, String>,
    definitions: Vec<Definition>,
    known: HashMap<TensorId, Value>,
    operations: Vec<&'static str>,
    /// Columns of the matrices that operations read.
    widths: HashMap<Value, usize>,
    outputs: Vec<Value>,
    after: Vec<Value>,
}

impl Graph {
    /// The step of a model whose parameters have these names.
    ///
    /// # Errors
    /// [`Error::NotRecorded`] for a model in plain Candle; if one of its operations has no formula, the error names it.
    pub fn new<'a>(model: &dyn Model, parameters: impl IntoIterator<Item = (&'a String, &'a Tensor)>, tables: Tables) -> Result<Self> {
        let program = Program::new(model.signature(), Target::Cpu, |recorder| model.record(recorder))?;
        Self::of_program(&program, parameters, tables)
    }

    pub(crate) fn of_program<'a>(
        program: &Program,
        parameters: impl IntoIterator<Item = (&'a String, &'a Tensor)>,
        tables: Tables,
    ) -> Result<Self> {
        let mut graph = Self {
            signature: program.signature.clone(),
            tables,
            names: parameters.into_iter().map(|(name, tensor)| (tensor.id(), name.clone())).collect(),
            definitions: Vec::new(),
            known: HashMap::new(),
            operations: Vec::new(),
            widths: HashMap::new(),
            outputs: Vec::new(),
            after: Vec::new(),
        };
        graph.write(program)?;
        Ok(graph)
    }

    /// What the model reads, gives and remembers.
    pub fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Every value, in order.
    pub fn definitions(&self) -> impl Iterator<Item = (Value, &Definition)> {
        self.definitions.iter().enumerate().map(|(i, definition)| (Value(i), definition))
    }

    /// How it writes tables.
    pub fn tables(&self) -> Tables {
        self.tables
    }

    /// What the recorded operation of that number is called.
    pub fn operation(&self, number: usize) -> &'static str {
        self.operations[number]
    }

    /// The outputs in the signature's order, `[B, ...]`.
    pub fn outputs(&self) -> &[Value] {
        &self.outputs
    }

    /// The states behind the frame in the signature's order, `[B, ...]`.
    pub fn after(&self) -> &[Value] {
        &self.after
    }

    fn write(&mut self, program: &Program) -> Result<()> {
        let mut buffers: HashMap<usize, (Value, usize)> = HashMap::new();
        let mut indices: HashMap<usize, Value> = HashMap::new();
        let mut place = |output: &Output, value: Value| match output {
            Output::Floats(slot) => drop(buffers.insert(slot.buffer, (value, slot.width))),
            Output::Indices(slot) => drop(indices.insert(slot.at, value)),
        };
        for (number, slot) in program.inputs.iter().enumerate() {
            place(slot, self.define(Definition::Input(number)));
        }
        let mut states: Vec<Value> = (0..self.signature.state.len()).map(|number| self.define(Definition::State(number))).collect();
        for node in &program.nodes {
            self.operations.push(node.op.name());
            let x = node.wires.x.iter().map(|slot| self.read(&buffers, slot)).collect::<Result<Vec<_>>>()?;
            let ids = node.wires.ids.iter().map(|slot| Ok((find(&indices, slot.at)?, slot.columns))).collect::<Result<Vec<_>>>()?;
            self.widths.extend(ids.iter().copied());
            let ids: Vec<Value> = ids.into_iter().map(|(value, _)| value).collect();
            let mut own: Vec<Value> = node.wires.states.iter().map(|state| states[state.number]).collect();
            let missing = || Error::Input(format!("the operation {:?} has no formula in standard operators", node.op.name()));
            let Values { floats, ids } = node.op.formula(self, &x, &ids, &mut own)?.ok_or_else(missing)?;
            buffers.extend(node.wires.out.iter().zip(floats).map(|(slot, value)| (slot.buffer, (value, slot.width))));
            indices.extend(node.wires.out_ids.iter().zip(ids).map(|(slot, value)| (slot.at, value)));
            node.wires.states.iter().zip(own).for_each(|(state, value)| states[state.number] = value);
        }
        self.operations.push("outputs");
        for (output, spec) in program.outputs.iter().zip(self.signature.outputs.clone()) {
            let value = match output {
                Output::Floats(slot) => self.read(&buffers, slot)?,
                Output::Indices(slot) => find(&indices, slot.at)?,
            };
            let value = if spec.shape.len() == 1 { value } else { self.by_row(value, &spec.shape) };
            self.outputs.push(value);
        }
        self.after = states;
        Ok(())
    }

    /// A matrix of the recorded pass: a whole buffer or some columns of it.
    fn read(&mut self, buffers: &HashMap<usize, (Value, usize)>, slot: &Slot) -> Result<Value> {
        let (value, width) = find(buffers, slot.buffer)?;
        self.widths.insert(value, width);
        let value = self.columns(value, slot.start, slot.width);
        self.widths.insert(value, slot.width);
        Ok(value)
    }

    fn define(&mut self, definition: Definition) -> Value {
        self.definitions.push(definition);
        Value(self.definitions.len() - 1)
    }

    /// The result of an operator.
    pub fn node(&mut self, operator: Operator, operands: &[Value]) -> Value {
        let operation = self.operations.len().saturating_sub(1);
        self.define(Definition::Node { operator, operands: operands.to_vec(), operation })
    }

    /// A tensor that the operation holds: a parameter where the model has it under a name, otherwise a constant.
    pub fn tensor(&mut self, tensor: &Tensor) -> Result<Value> {
        self.stored(tensor, &Format::F32)
    }

    fn stored(&mut self, tensor: &Tensor, format: &Format) -> Result<Value> {
        if let Some(value) = self.known.get(&tensor.id()) {
            return Ok(*value);
        }
        let values = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?;
        let definition = match self.names.get(&tensor.id()) {
            Some(name) => Definition::Parameter { name: name.clone(), tensor: values, format: format.clone() },
            None => Definition::Constant(values),
        };
        let value = self.define(definition);
        self.known.insert(tensor.id(), value);
        Ok(value)
    }

    /// Columns of an operand.
    ///
    /// # Errors
    /// If it is none.
    pub fn width(&self, x: Value) -> Result<usize> {
        self.widths.get(&x).copied().ok_or_else(|| Error::Input("the width of a value that is no operand".to_owned()))
    }

    /// `f` of every group of that many columns of an operand, `[B, n, group]` to the same shape.
    pub fn by_group(&mut self, x: Value, group: usize, f: impl FnOnce(&mut Self, Value) -> Result<Value>) -> Result<Value> {
        let width = self.width(x)?;
        if width == group {
            return f(self, x);
        }
        let groups = self.by_row(x, &[width / group, group]);
        let y = f(self, groups)?;
        Ok(self.by_row(y, &[width]))
    }

    /// A number.
    pub fn float(&mut self, value: f32) -> Value {
        self.define(Definition::Float(value))
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) -> Value {
        self.define(Definition::Integer(value))
    }

    /// Values that are no parameter.
    pub fn constant(&mut self, tensor: Tensor) -> Value {
        self.define(Definition::Constant(tensor))
    }

    // Short forms of what operations write most.

    /// `a + b`.
    pub fn add(&mut self, a: Value, b: Value) -> Value {
        self.node(Operator::Add, &[a, b])
    }

    /// `a - b`.
    pub fn sub(&mut self, a: Value, b: Value) -> Value {
        self.node(Operator::Sub, &[a, b])
    }

    /// `a b`, value by value.
    pub fn mul(&mut self, a: Value, b: Value) -> Value {
        self.node(Operator::Mul, &[a, b])
    }

    /// An operator of one operand.
    pub fn of(&mut self, operator: Operator, x: Value) -> Value {
        self.node(operator, &[x])
    }

    /// Some columns of a matrix.
    pub fn columns(&mut self, x: Value, start: usize, len: usize) -> Value {
        if self.widths.get(&x) == Some(&len) {
            return x;
        }
        self.node(Operator::Slice { axis: 1, start, len }, &[x])
    }

    /// The same values with that shape behind the batch.
    pub fn by_row(&mut self, x: Value, shape: &[usize]) -> Value {
        let dims = std::iter::once(-1).chain(shape.iter().map(|n| *n as i64)).collect();
        self.node(Operator::Reshape(dims), &[x])
    }

    /// `x W + b`.
    pub fn linear(&mut self, x: Value, layer: &Linear) -> Result<Value> {
        let weight = self.stored(&layer.weight, &layer.format)?;
        let y = self.node(Operator::MatMul, &[x, weight]);
        self.biased(y, layer)
    }

    /// `y + b`.
    pub fn biased(&mut self, y: Value, layer: &Linear) -> Result<Value> {
        let Some(bias) = &layer.bias else { return Ok(y) };
        let bias = self.tensor(bias)?;
        Ok(self.add(y, bias))
    }

    /// Columns of an index matrix `[B, columns]`, each plus the table row that its index 0 means: `[B, wanted columns]`.
    pub fn shifted(&mut self, ids: Value, columns: &super::IndexColumns) -> Result<Value> {
        let mut parts: Vec<(usize, usize)> = Vec::new();
        for &(column, _) in columns {
            match parts.last_mut().filter(|(start, len)| start + len == column) {
                Some((_, len)) => *len += 1,
                None => parts.push((column, 1)),
            }
        }
        let parts: Vec<Value> = parts.into_iter().map(|(start, len)| self.columns(ids, start, len)).collect();
        let chosen = if let [one] = parts[..] { one } else { self.node(Operator::Concat { axis: 1 }, &parts) };
        if columns.iter().all(|(_, base)| *base == 0) {
            return Ok(chosen);
        }
        let bases: Vec<i64> = columns.iter().map(|(_, base)| *base as i64).collect();
        let bases = self.constant(Tensor::from_vec(bases, columns.len(), &Device::Cpu)?);
        Ok(self.add(chosen, bases))
    }
}

fn find<T: Copy>(known: &HashMap<usize, T>, place: usize) -> Result<T> {
    known.get(&place).copied().ok_or_else(|| Error::Input("a recorded pass reads a matrix that nothing has written".to_owned()))
}

/// A formula with one matrix of floats.
pub fn floats(value: Value) -> Result<Option<Values<Value, Value>>> {
    Ok(Some(Values::floats(value)))
}

#[cfg(test)]
mod tests {
    use super::super::tensors::{Indices, TensorPass};
    use super::super::{Executor, Operation, Widths};
    use super::*;
    use crate::signature::TensorSpec;

    /// An operation of which nobody has written the formula.
    #[derive(Debug)]
    struct Own;

    impl Operation for Own {
        fn name(&self) -> &'static str {
            "own"
        }

        fn widths(&self, x: &[usize], _: &[usize]) -> Result<Widths> {
            Ok(Widths::floats(x[0]))
        }

        fn reference(&self, _: &mut TensorPass, x: &[&Tensor], _: &[&Indices]) -> Result<Values<Tensor, Indices>> {
            Ok(Values::floats(x[0].clone()))
        }
    }

    #[test]
    fn an_operation_without_a_formula_is_named() {
        let signature =
            Signature { inputs: vec![TensorSpec::f32("x", &[2])], outputs: vec![TensorSpec::f32("y", &[2])], state: Vec::new() };
        let record = |recorder: &mut super::super::program::Recorder| {
            let x = recorder.input("x")?;
            Ok(vec![Output::Floats(recorder.apply(Own, &[&x])?)])
        };
        let program = Program::new(&signature, Target::Cpu, record).unwrap();
        let error = Graph::of_program(&program, [], Tables::AsStored).unwrap_err().to_string();
        assert!(error.contains("the operation \"own\" has no formula in standard operators"), "{error}");
    }
}

//! `candle-infer inspect --forward`: a bundle's networks as a program in NumPy. It is read as equations, and run it answers like the engine:
//! with the bundle's parameters it is all that another implementation needs.

use super::family::{Columns, Opened};
use super::inspect;
use crate::exec::graph::{Definition, Graph, Operator, Value};
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use std::collections::BTreeSet;
use std::fmt::Write;

/// A part of an expression that is longer has a name of its own.
const LINE: usize = 64;
/// Constants of more values stand in no program.
const MOST: usize = 4096;

/// What the program calls beside NumPy, each written out where it is used.
const HELPERS: [(&str, &str); 8] = [
    ("conv2d", include_str!("conv2d.py")),
    ("erf", include_str!("erf.py")),
    ("layer_norm", include_str!("layer_norm.py")),
    ("pool2d", include_str!("pool2d.py")),
    ("relu", include_str!("relu.py")),
    ("sigmoid", include_str!("sigmoid.py")),
    ("softmax", include_str!("softmax.py")),
    ("softplus", include_str!("softplus.py")),
];

/// The program of a bundle: a function for each network.
///
/// # Errors
/// If a network has an operation without a formula, or a constant that stands in no bundle and is too large to print.
pub fn program(opened: &Opened, graphs: &[(&'static str, Graph)]) -> Result<String> {
    let mut functions = String::new();
    let mut helpers = BTreeSet::new();
    for (name, graph) in graphs {
        let _ = write!(functions, "\n\n{}", Function::new(graph, &mut helpers).write(name)?);
    }
    let mut text = format!(
        "\"\"\"{}, one frame at a time, in NumPy.\n\nPrinted by `candle-infer inspect --forward`. W holds the parameters: W = load(\"{}/model.safetensors\").\n\
         Rows are independent; a row begins with a state of zeros, and a reset puts zeros there again.\n{}\"\"\"\n\nimport json\n",
        opened.describe()?,
        opened.bundle.dir().display(),
        columns(&opened.family.columns())
    );
    if helpers.contains("erf") {
        text.push_str("import math\n");
    }
    text.push_str("import pathlib\n\nimport numpy as np\n\n\n");
    text.push_str(include_str!("load.py"));
    for (_, helper) in HELPERS.iter().filter(|(name, _)| helpers.contains(name)) {
        let _ = write!(text, "\n\n{helper}");
    }
    text.push_str(&functions);
    Ok(text)
}

/// What the columns of tensors hold, a line each.
fn columns(all: &[Columns]) -> String {
    let mut text = String::new();
    for of in all.chunk_by(|a, b| a.tensor == b.tensor) {
        let _ = writeln!(text, "\nColumns of {}:", of[0].tensor);
        for Columns { columns, name, meaning, .. } in of {
            let places = if columns.len() == 1 { columns.start.to_string() } else { format!("{} to {}", columns.start, columns.end - 1) };
            let _ = writeln!(text, "    {places:<12}{name}{}{meaning}", if meaning.is_empty() { "" } else { ": " });
        }
    }
    text
}

/// How tightly an expression binds, as Python has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    Comparison,
    Sum,
    Product,
    Sign,
    Atom,
}

#[derive(Debug, Clone)]
struct Expression {
    text: String,
    binding: Binding,
}

impl Expression {
    fn atom(text: impl Into<String>) -> Self {
        Self { text: text.into(), binding: Binding::Atom }
    }

    /// The text, in parentheses where it binds less tightly.
    fn within(&self, binding: Binding) -> String {
        if self.binding < binding { format!("({})", self.text) } else { self.text.clone() }
    }
}

/// A network's function in the making.
struct Function<'a> {
    graph: &'a Graph,
    /// The operation that alone reads a value, once.
    reader: Vec<Option<usize>>,
    expressions: Vec<Expression>,
    helpers: &'a mut BTreeSet<&'static str>,
    lines: String,
    /// The operation whose lines are being written, and the number of the next name.
    at: (Option<usize>, usize),
}

impl<'a> Function<'a> {
    fn new(graph: &'a Graph, helpers: &'a mut BTreeSet<&'static str>) -> Self {
        let mut readers: Vec<Vec<Option<usize>>> = vec![Vec::new(); graph.definitions().count()];
        for (_, definition) in graph.definitions() {
            if let Definition::Node { operands, operation, .. } = definition {
                operands.iter().for_each(|value| readers[value.number()].push(Some(*operation)));
            }
        }
        graph.outputs().iter().chain(graph.after()).for_each(|value| readers[value.number()].push(None));
        let reader = readers.into_iter().map(|all| if let [one] = all[..] { one } else { None }).collect();
        Self { graph, reader, expressions: Vec::new(), helpers, lines: String::new(), at: (None, 1) }
    }

    fn write(mut self, name: &str) -> Result<String> {
        let graph = self.graph;
        for (value, definition) in graph.definitions() {
            let expression = self.expression(definition)?;
            let expression = self.named(value, definition, expression);
            self.expressions.push(expression);
        }
        let signature = graph.signature();
        let mut text = format!("def {name}(W, inputs, state):\n    \"\"\"inputs, [B, ...] each:\n");
        for spec in &signature.inputs {
            let _ = writeln!(text, "        {} {:?} {:?}: {}", spec.name, spec.dtype(), spec.shape, inspect::explained(spec));
        }
        let specs = |text: &mut String, title: &str, specs: &[crate::signature::TensorSpec]| {
            let list: Vec<String> = specs.iter().map(|spec| format!("{} {:?} {:?}", spec.name, spec.dtype(), spec.shape)).collect();
            let _ = writeln!(text, "    {title}: {}", if list.is_empty() { "none".to_owned() } else { list.join(", ") });
        };
        specs(&mut text, "state, zeros at first", &signature.state);
        specs(&mut text, "gives outputs and the state behind the frame; outputs", &signature.outputs);
        text.push_str("    \"\"\"\n");
        text.push_str(&self.lines);
        let dictionary = |specs: &[crate::signature::TensorSpec], values: &[Value]| -> String {
            let entry = |(spec, value): (&crate::signature::TensorSpec, &Value)| {
                format!("\"{}\": {}", spec.name, self.expressions[value.number()].text)
            };
            format!("{{{}}}", specs.iter().zip(values).map(entry).collect::<Vec<_>>().join(", "))
        };
        let _ = writeln!(text, "    outputs = {}", dictionary(&signature.outputs, graph.outputs()));
        let _ = writeln!(text, "    after = {}", dictionary(&signature.state, graph.after()));
        text.push_str("    return outputs, after\n");
        Ok(text)
    }

    /// A name for what is read more than once, by another operation or from a long line.
    fn named(&mut self, value: Value, definition: &Definition, expression: Expression) -> Expression {
        let Definition::Node { operation, .. } = definition else { return expression };
        if self.reader[value.number()] == Some(*operation) && expression.text.len() <= LINE {
            return expression;
        }
        if self.at.0 != Some(*operation) {
            self.at.0 = Some(*operation);
            let _ = writeln!(self.lines, "    # {}", self.graph.operation(*operation));
        }
        let name = format!("x{}", self.at.1);
        self.at.1 += 1;
        let _ = writeln!(self.lines, "    {name} = {}", expression.text);
        Expression::atom(name)
    }

    fn expression(&mut self, definition: &Definition) -> Result<Expression> {
        let signature = self.graph.signature();
        Ok(Expression::atom(match definition {
            Definition::Input(number) => {
                let spec = &signature.inputs[*number];
                let matrix = if spec.shape.len() == 1 { String::new() } else { format!(".reshape(-1, {})", spec.width()) };
                format!("inputs[\"{}\"]{matrix}", spec.name)
            }
            Definition::State(number) => format!("state[\"{}\"]", signature.state[*number].name),
            Definition::Parameter { name, .. } => format!("W[\"{name}\"]"),
            Definition::Constant(tensor) => constant(tensor)?,
            Definition::Float(value) => format!("{value:?}"),
            Definition::Integer(value) => value.to_string(),
            Definition::Node { operator, operands, .. } => return Ok(self.operator(operator, operands)),
        }))
    }

    fn operator(&mut self, operator: &Operator, operands: &[Value]) -> Expression {
        let operand = |i: usize| &self.expressions[operands[i].number()];
        let infix = |sign: &str, binding: Binding| {
            // Python groups from the left.
            let right = if binding == Binding::Sum { Binding::Product } else { Binding::Sign };
            let right = if binding == Binding::Comparison { Binding::Sum } else { right };
            let left = if binding == Binding::Comparison { Binding::Sum } else { binding };
            Expression { text: format!("{} {sign} {}", operand(0).within(left), operand(1).within(right)), binding }
        };
        let list = || operands.iter().map(|value| self.expressions[value.number()].text.as_str()).collect::<Vec<_>>().join(", ");
        let method = |call: String| Expression::atom(format!("{}.{call}", operand(0).within(Binding::Atom)));
        let places =
            |axis: usize, at: String| Expression::atom(format!("{}[{}{at}]", operand(0).within(Binding::Atom), ":, ".repeat(axis)));
        let (helper, expression) = match operator {
            Operator::Add => (None, infix("+", Binding::Sum)),
            Operator::Sub => (None, infix("-", Binding::Sum)),
            Operator::Mul => (None, infix("*", Binding::Product)),
            Operator::Div => (None, infix("/", Binding::Product)),
            Operator::MatMul => (None, infix("@", Binding::Product)),
            Operator::Less => (None, infix("<", Binding::Comparison)),
            Operator::LessOrEqual => (None, infix("<=", Binding::Comparison)),
            Operator::Equal => (None, infix("==", Binding::Comparison)),
            Operator::Neg => (None, Expression { text: format!("-{}", operand(0).within(Binding::Sign)), binding: Binding::Sign }),
            Operator::Min => (None, Expression::atom(format!("np.minimum({})", list()))),
            Operator::Exp => (None, Expression::atom(format!("np.exp({})", list()))),
            Operator::Log => (None, Expression::atom(format!("np.log({})", list()))),
            Operator::Sqrt => (None, Expression::atom(format!("np.sqrt({})", list()))),
            Operator::Cos => (None, Expression::atom(format!("np.cos({})", list()))),
            Operator::Sin => (None, Expression::atom(format!("np.sin({})", list()))),
            Operator::Tanh => (None, Expression::atom(format!("np.tanh({})", list()))),
            Operator::Where => (None, Expression::atom(format!("np.where({})", list()))),
            Operator::CumSum => (None, method("cumsum(-1)".to_owned())),
            Operator::ArgMax => (None, method("argmax(-1)".to_owned())),
            Operator::ReduceMean => (None, method("mean(-1, keepdims=True)".to_owned())),
            Operator::ReduceSum { axis } => (None, method(format!("sum({axis})"))),
            Operator::CastToInt => (None, method("astype(np.int64)".to_owned())),
            Operator::CastToFloat => (None, method("astype(np.float32)".to_owned())),
            Operator::Concat { axis } => (None, Expression::atom(format!("np.concatenate([{}], {axis})", list()))),
            Operator::Slice { axis, start, len } => (None, places(*axis, format!("{start}:{}", start + len))),
            Operator::Gather => (None, places(0, operand(1).text.clone())),
            Operator::Reshape(dims) => (None, method(format!("reshape({})", joined(dims)))),
            Operator::Transpose(axes) => (None, method(format!("transpose({})", joined(axes)))),
            Operator::Erf => (Some("erf"), Expression::atom(format!("erf({})", list()))),
            Operator::Sigmoid => (Some("sigmoid"), Expression::atom(format!("sigmoid({})", list()))),
            Operator::Relu => (Some("relu"), Expression::atom(format!("relu({})", list()))),
            Operator::Softplus => (Some("softplus"), Expression::atom(format!("softplus({})", list()))),
            Operator::Softmax => (Some("softmax"), Expression::atom(format!("softmax({})", list()))),
            Operator::LayerNormalization { epsilon } => {
                let offset = if operands.len() > 2 { "" } else { ", 0" };
                (Some("layer_norm"), Expression::atom(format!("layer_norm({}{offset}, {epsilon:?})", list())))
            }
            Operator::Conv { strides, pads } => {
                let bias = if operands.len() > 2 { "" } else { ", 0" };
                (Some("conv2d"), Expression::atom(format!("conv2d({}{bias}, {strides:?}, {pads:?})", list())))
            }
            Operator::MaxPool { kernel, strides } => {
                (Some("pool2d"), Expression::atom(format!("pool2d({}, np.max, {kernel:?}, {strides:?})", list())))
            }
            Operator::AveragePool { kernel, strides } => {
                (Some("pool2d"), Expression::atom(format!("pool2d({}, np.mean, {kernel:?}, {strides:?})", list())))
            }
        };
        self.helpers.extend(helper);
        expression
    }
}

fn joined<T: ToString>(values: &[T]) -> String {
    values.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// A small constant as it stands in a program.
fn constant(tensor: &Tensor) -> Result<String> {
    if tensor.elem_count() > MOST {
        return Err(Error::Input(format!("a constant of the shape {:?} that stands in no bundle is too large to print", tensor.dims())));
    }
    let flat = tensor.flatten_all()?;
    let (values, dtype) = match tensor.dtype() {
        DType::I64 => (joined(&flat.to_vec1::<i64>()?), "int64"),
        _ => (flat.to_vec1::<f32>()?.iter().map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", "), "float32"),
    };
    let shape = if tensor.rank() == 1 { String::new() } else { format!(".reshape({})", joined(tensor.dims())) };
    Ok(format!("np.array([{values}], np.{dtype}){shape}"))
}

//! The heads of an action. [`Choose`]: classes of a component from its logits. [`Autoregressive`]: components one after the other over a
//! residual stream; each reads the stream and its own class of the frame before, and adds what was chosen to the stream of the next.

mod choices;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod draw;

pub(crate) use choices::{ChoiceGroup, ChoiceWeights, choices};
use draw::Draws;

use super::{Activation, Digit, JointIndex, Linear, Rows, add_into, is_on_host};
use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{Graph, Operator, Value};
use crate::exec::program::{Slot, Wires};
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{
    Block, Choice, EXPONENTIAL, Executor, Operation, SAMPLE, Size, Target, Values, Widths, Work, host, operands, same_width,
};
use crate::{Error, Result};
use candle_core::{DType, Tensor};

/// Floating-point operations of a logit from which a class is drawn: the largest, an exponential, two sums.
const OPERATIONS: f64 = 3.0 + EXPONENTIAL;

/// The operation: operands logits, random numbers in [0, 1) (negative for the most likely class), wanted classes ([`SAMPLE`] for "choose
/// one").
#[derive(Debug, Clone, Copy)]
pub struct Choose(pub Choice);

impl Operation for Choose {
    fn name(&self) -> &'static str {
        "choose"
    }

    fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths> {
        let ([logits, uniform], [wanted]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        same_width("the logits of choose", logits, self.0.logits())?;
        if self.0.column + self.0.columns > uniform.min(wanted) {
            return Err(Error::Input(format!("choose: {:?} of {wanted} classes and {uniform} random numbers a row", self.0)));
        }
        Ok(Widths::indices(self.0.columns))
    }

    fn reference(&self, _: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let (choice, [logits, uniform], [wanted]) = (self.0, operands(self.name(), x)?, operands(self.name(), ids)?);
        let wanted = wanted.classes(choice)?;
        if !wanted.values().contains(&SAMPLE) {
            return Ok(Values::indices(wanted));
        }
        let flat = |x: &Tensor| -> Result<Vec<f32>> { Ok(x.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?) };
        let (logits, uniform) = (flat(logits)?, flat(&uniform.narrow(1, choice.column, choice.columns)?)?);
        let mut values = wanted.values().to_vec();
        let rows = values.len() / choice.columns;
        let matrix = |data, width| Rows { data, rows, width, stride: width };
        let draws = Draws { columns: choice.columns, logits: matrix(&logits, choice.logits()), uniform: matrix(&uniform, choice.columns) };
        draws.replace(&mut values);
        Ok(Values::indices(Indices::new(values, choice.columns)))
    }

    fn formula(&self, graph: &mut Graph, x: &[Value], ids: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let (Choice { column, columns, classes }, [logits, uniform], [wanted]) =
            (self.0, operands(self.name(), x)?, operands(self.name(), ids)?);
        let (uniform, wanted, zero) = (graph.columns(uniform, column, columns), graph.columns(wanted, column, columns), graph.float(0.0));
        let (likeliest, drawn) =
            if classes == 2 { two_classes(graph, logits, uniform) } else { many_classes(graph, logits, uniform, self.0)? };
        let greedy = graph.node(Operator::Less, &[uniform, zero]);
        let chosen = graph.node(Operator::Where, &[greedy, likeliest, drawn]);
        // Whatever is no class is SAMPLE: runtimes that keep integers in 32 bits (OpenVINO) read -1 for it.
        let (none, end) = (graph.integer(0), graph.integer(classes as i64));
        let (below, within) = (graph.node(Operator::Less, &[wanted, none]), graph.node(Operator::Less, &[wanted, end]));
        let given = graph.node(Operator::Where, &[within, wanted, chosen]);
        Ok(Some(Values::indices(graph.node(Operator::Where, &[below, chosen, given]))))
    }

    #[cfg(feature = "cuda")]
    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        let ([logits, uniform], [wanted]) = (operands(self.name(), x)?, operands(self.name(), ids)?);
        let wanted_classes = wanted.classes(self.0)?;
        if !logits.device().is_cuda() || !wanted_classes.values().contains(&SAMPLE) {
            return self.reference(pass, x, ids);
        }
        let values = cuda::choose(logits, wanted_classes.values(), uniform, self.0)?;
        Ok(Values::indices(Indices::new(values, self.0.columns)))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let Choice { column, columns, classes } = self.0;
        let (logits, uniform, wanted, out) = (wires.x[0], wires.x[1], wires.ids[0], wires.out_ids[0]);
        Ok(Some(Box::new(move |frame, _| {
            // SAFETY: this step has one part, and every index matrix has a place of its own.
            let chosen = unsafe { frame.all_ids_mut(out) };
            for r in 0..frame.rows {
                let wanted = &frame.ids(wanted, r)[column..][..columns];
                if let Some(i) = wanted.iter().position(|class| *class != SAMPLE && *class as usize >= classes) {
                    return Err(Error::Input(format!("action column {}: class {} of {classes}", column + i, wanted[i])));
                }
                chosen[r * columns..][..columns].copy_from_slice(wanted);
            }
            Draws { columns, logits: frame.rows(logits), uniform: frame.rows(uniform).columns(column, columns) }.replace(chosen);
            Ok(())
        })))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, _: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        let Choice { column, columns, classes } = self.0;
        let (logits, uniform, wanted, out) = (wires.x[0], wires.x[1], wires.ids[0], wires.out_ids[0]);
        Ok(Some(Box::new(move |pass| {
            let args = cuda::Choose {
                logits: pass.matrix(logits),
                uniform: pass.matrix(uniform.columns(column, columns)),
                wanted: pass.index(wanted, column, columns),
                out: pass.index(out, 0, columns),
                rows: pass.rows() as u32,
                columns: columns as u32,
                classes: classes as u32,
            };
            // SAFETY: the plan gives every matrix of a pass its rows, and logits are f32.
            Ok(unsafe { args.launch(pass.gpu, DType::F32) }?)
        })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let flop = size.rows() * OPERATIONS * wires.x[0].width as f64;
        Ok(Work { name: self.name(), flop, bytes: size.values(wires), weights: None })
    }

    fn wide(&self, wires: &Wires) -> Vec<Slot> {
        vec![wires.x[0]]
    }
}

/// Of each column of `logits` `[B, columns]`: class 1 where its logit is positive, and the class that `uniform` falls on.
fn two_classes(graph: &mut Graph, logits: Value, uniform: Value) -> (Value, Value) {
    let (zero, one) = (graph.float(0.0), graph.float(1.0));
    let likeliest = graph.node(Operator::Less, &[zero, logits]);
    let up = graph.of(Operator::Sigmoid, logits);
    let down = graph.sub(one, up);
    let drawn = graph.node(Operator::LessOrEqual, &[down, uniform]);
    (graph.of(Operator::CastToInt, likeliest), graph.of(Operator::CastToInt, drawn))
}

/// Of each column of `logits` `[B, columns * classes]`: the likeliest class, and the one that `uniform` falls on when [0, 1) is divided in
/// proportion to the classes' probabilities.
fn many_classes(graph: &mut Graph, logits: Value, uniform: Value, choice: Choice) -> Result<(Value, Value)> {
    let Choice { columns, classes, .. } = choice;
    let logits = graph.by_row(logits, &[columns, classes]);
    let likeliest = graph.of(Operator::ArgMax, logits);
    let probabilities = graph.of(Operator::Softmax, logits);
    let reached = graph.of(Operator::CumSum, probabilities);
    let uniform = graph.by_row(uniform, &[columns, 1]);
    let passed = graph.node(Operator::LessOrEqual, &[reached, uniform]);
    let passed = graph.of(Operator::CastToInt, passed);
    let (sum, last) = (graph.of(Operator::ReduceSum { axis: 2 }, passed), graph.integer(classes as i64 - 1));
    Ok((likeliest, graph.node(Operator::Min, &[sum, last])))
}

/// Logits for several components, each under those before it. Operands: the trunk, a random number for each column, the classes of the
/// frame before, those wanted, and where components have a prior those of the frame before that one; results: the logits of all components
/// side by side, and the classes.
#[derive(Debug, Clone)]
pub struct Autoregressive {
    /// The trunk into the stream.
    pub(crate) stream: Linear,
    pub(crate) components: Vec<HeadComponent>,
}

/// One component of an action.
#[derive(Debug, Clone)]
pub(crate) struct HeadComponent {
    pub choice: Choice,
    /// The stream into the inner layer.
    pub hidden: Linear,
    /// The class of the frame before into the inner layer: one row per class of each column.
    pub previous: Tensor,
    pub out: Linear,
    /// What a chosen class adds to the stream; zero at the start.
    pub chosen: Option<Tensor>,
    /// Columns of this component inside the action, and the table row of each column's class 0.
    pub columns: Vec<(usize, usize)>,
    /// The same inside the component's own classes.
    pub own: Vec<(usize, usize)>,
    pub prior: Option<Prior>,
}

/// Where a component's logits begin: a row of a table for each of its columns, by the classes that the column had in the last two frames and
/// those that columns before it have in this one. Learned elsewhere: it has no gradient.
#[derive(Debug, Clone)]
pub(crate) struct Prior {
    /// `[columns * contexts, logits]`.
    pub table: Tensor,
    /// Columns of this frame's action that the context knows, and how many classes each has. They belong to components before.
    pub given: Vec<(usize, usize)>,
}

impl Prior {
    /// Contexts of a column of `choice`, where those columns are given.
    pub fn contexts(choice: Choice, given: &[(usize, usize)]) -> usize {
        choice.classes * choice.classes * given.iter().map(|(_, classes)| classes).product::<usize>()
    }

    /// The digits of each column's context: operand 0 is the action of the last frame, 1 that of the one before, and `chosen` says where a column of
    /// this frame lies.
    fn digits(&self, choice: Choice, chosen: impl Fn(usize) -> (usize, usize)) -> Vec<Vec<Digit>> {
        let given = |&(column, values): &(usize, usize)| {
            let (operand, column) = chosen(column);
            Digit { operand, column, values }
        };
        let of = |column: usize| {
            let own = [0, 1].map(|operand| Digit { operand, column, values: choice.classes });
            own.into_iter().chain(self.given.iter().map(given)).collect()
        };
        (choice.column..choice.column + choice.columns).map(of).collect()
    }

    /// Columns of the contexts' numbers, and the table row that number 0 of each means.
    fn rows(&self, choice: Choice) -> Vec<(usize, usize)> {
        (0..choice.columns).map(|i| (i, i * Self::contexts(choice, &self.given))).collect()
    }
}

impl Autoregressive {
    /// What is chosen, in its order.
    pub(crate) fn choices(&self) -> impl Iterator<Item = Choice> {
        self.components.iter().map(|c| c.choice)
    }

    /// Where `compose` has a column of this frame: the operand behind the two frames that is its component's, and the column there.
    fn place(&self, column: usize) -> (usize, usize) {
        let holds = |choice: &Choice| (choice.column..choice.column + choice.columns).contains(&column);
        let component = self.choices().position(|choice| holds(&choice)).unwrap_or(self.components.len());
        (2 + component, column - self.choices().nth(component).map_or(0, |choice| choice.column))
    }

    /// Whether the action of the frame before the last is an operand.
    fn has_prior(&self) -> bool {
        self.components.iter().any(|c| c.prior.is_some())
    }

    /// The classes of the frame before, those wanted, and those of the frame before that one, if they are asked for.
    fn classes<'a, T>(&self, ids: &[&'a T]) -> Result<(&'a T, &'a T, Option<&'a T>)> {
        if !self.has_prior() {
            let [previous, wanted] = operands(self.name(), ids)?;
            return Ok((previous, wanted, None));
        }
        let [previous, wanted, before] = operands(self.name(), ids)?;
        Ok((previous, wanted, Some(before)))
    }

    /// What the components' priors say where all classes are given, `[rows, logits]`; nothing without priors.
    fn offsets(&self, (previous, wanted, before): (&Indices, &Indices, Option<&Indices>)) -> Result<Option<Vec<f32>>> {
        let Some(before) = before else { return Ok(None) };
        let width: usize = self.choices().map(|c| c.logits()).sum();
        let mut all = vec![0.0; previous.rows().count() * width];
        let mut start = 0;
        for HeadComponent { choice, prior, .. } in &self.components {
            if let Some(prior) = prior {
                let operands = [previous, before, wanted];
                let contexts = JointIndex(prior.digits(*choice, |column| (2, column))).indices(&operands);
                let (table, rows) = (host(&prior.table)?, prior.rows(*choice));
                for (contexts, out) in contexts.rows().zip(all.chunks_mut(width)) {
                    for (number, (_, first)) in contexts.iter().zip(&rows) {
                        add_into(&mut out[start..start + choice.logits()], &table[(*number as usize + first) * choice.logits()..]);
                    }
                }
            }
            start += choice.logits();
        }
        Ok(Some(all))
    }

    /// Shapes and parameters, for all components as one operation.
    fn weights(&self) -> Result<(Vec<ChoiceGroup>, ChoiceWeights<'_>)> {
        let groups = self.choices().map(|c| ChoiceGroup { columns: c.columns, classes: c.classes, logits: c.logits() }).collect();
        let of = |layer: fn(&HeadComponent) -> &Linear| self.components.iter().map(layer).map(Linear::pair).collect::<Result<Vec<_>>>();
        let weights = ChoiceWeights {
            stream: self.stream.pair()?,
            hidden: of(|c| &c.hidden)?,
            previous: self.components.iter().map(|c| &c.previous).collect(),
            out: of(|c| &c.out)?,
            chosen: self.components.iter().filter_map(|c| c.chosen.as_ref()).collect(),
        };
        Ok((groups, weights))
    }
}

impl Operation for Autoregressive {
    fn name(&self) -> &'static str {
        "autoregressive"
    }

    fn widths(&self, x: &[usize], ids: &[usize]) -> Result<Widths> {
        let (ids, [trunk, uniform]) = (ids.iter().collect::<Vec<_>>(), operands(self.name(), x)?);
        let (previous, wanted, before) = self.classes(&ids)?;
        same_width("the trunk of heads", trunk, self.stream.weight.dim(0)?)?;
        let columns = self.choices().map(|c| c.column + c.columns).max().unwrap_or(0);
        if columns > uniform.min(*previous).min(*wanted).min(*before.unwrap_or(previous)) {
            let found = format!("{previous}, {wanted} and {uniform}");
            return Err(Error::Input(format!("autoregressive: {columns} columns of classes and random numbers, found {found}")));
        }
        let width = self.stream.weight.dim(1)?;
        Ok(Widths {
            out: vec![self.choices().map(|c| c.logits()).sum()],
            out_ids: vec![self.choices().map(|c| c.columns).sum()],
            // The stream, and the inner layers of all components.
            scratch: vec![width, width * self.components.len()],
        })
    }

    fn reference(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        self.compose(pass.executor(), x, ids)
    }

    /// All classes are given: their logits at once.
    fn tensors(&self, pass: &mut TensorPass, x: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        if !self.is_one_on_tensors(pass, x, ids) {
            return self.reference(pass, x, ids);
        }
        let ([trunk, _], classes) = (operands(self.name(), x)?, self.classes(ids)?);
        let (previous, wanted, _) = classes;
        let (mut parts, mut columns, mut base) = (Vec::new(), Vec::new(), 0);
        for choice in self.choices() {
            previous.classes(choice)?;
            parts.push(wanted.classes(choice)?);
            columns.extend((0..choice.columns).map(|i| (choice.column + i, base + i * choice.classes)));
            base += choice.columns * choice.classes;
        }
        let (groups, weights) = self.weights()?;
        let rows = [previous.shifted(&columns), wanted.shifted(&columns)];
        let logits = choices(trunk, groups, &weights, rows, self.offsets(classes)?)?;
        Ok(Values { floats: vec![logits], ids: vec![Indices::join(&parts.iter().collect::<Vec<_>>())] })
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, wires: &Wires, compiler: &mut crate::exec::cuda::Compiler) -> Result<Option<crate::exec::cuda::Run>> {
        use crate::ops::cuda::product::{Behind, product};
        use cuda::{HeadGroup, Heads};
        let [trunk, uniform] = operands(self.name(), &wires.x)?;
        let (previous, wanted, before) = self.classes(&wires.ids.iter().collect::<Vec<_>>())?;
        let (previous, wanted, before) = (*previous, *wanted, before.copied());
        let (logits, out, [stream, inner]) = (wires.out[0], wires.out_ids[0], operands(self.name(), &wires.scratch)?);
        let width = stream.width;
        let together = |of: fn(&HeadComponent) -> Result<&Tensor>, axis: usize| -> Result<Tensor> {
            Ok(Tensor::cat(&self.components.iter().map(of).collect::<Result<Vec<_>>>()?, axis)?)
        };
        // The inner layers of all components as one.
        let (hidden, hidden_bias) = (together(|c| Ok(c.hidden.pair()?[0]), 1)?, together(|c| Ok(c.hidden.pair()?[1]), 0)?);
        let factors = [compiler.matrix(&self.stream.weight)?, compiler.matrix(&hidden)?];
        let biases = [compiler.vector_or_none(self.stream.bias.as_ref())?, compiler.vector(&hidden_bias)?];
        let mut groups = Vec::new();
        for (number, component) in self.components.iter().enumerate() {
            let Choice { column, columns, classes } = component.choice;
            let known = component.prior.as_ref().map_or(&[][..], |prior| &prior.given);
            let mut given = [[0; 2]; cuda::GIVEN];
            if known.len() > given.len() {
                return Err(Error::Input(format!(
                    "a prior on CUDA knows {} columns of its frame at most, found {}",
                    given.len(),
                    known.len()
                )));
            }
            given.iter_mut().zip(known).for_each(|(given, (column, classes))| *given = [*column as u32, *classes as u32]);
            // What a class adds to the stream, as what it adds to the inner layers behind.
            let behind = width * (number + 1);
            let chosen = match &component.chosen {
                Some(chosen) if behind < inner.width => {
                    let layers = hidden.narrow(1, behind, inner.width - behind)?.contiguous()?;
                    compiler.vector(&chosen.to_dtype(DType::F32)?.matmul(&layers.to_dtype(DType::F32)?)?)?
                }
                _ => 0,
            };
            groups.push(HeadGroup {
                prior: component.prior.as_ref().map_or(Ok(0), |prior| compiler.matrix(&prior.table))?,
                contexts: component.prior.as_ref().map_or(0, |prior| Prior::contexts(component.choice, &prior.given)) as u32,
                given_count: known.len() as u32,
                given,
                previous: compiler.matrix(&component.previous)?,
                out: compiler.matrix(&component.out.weight)?,
                out_bias: compiler.vector_or_none(component.out.bias.as_ref())?,
                chosen,
                column: column as u32,
                columns: columns as u32,
                classes: classes as u32,
                logits: component.choice.logits() as u32,
            });
        }
        let count = groups.len() as u32;
        let outputs = groups.iter().map(|group| group.logits as usize).max().unwrap_or(0);
        let groups = compiler.words(groups.iter().flat_map(HeadGroup::words).collect())?;
        compiler.reserve(trunk, width);
        compiler.reserve(stream, inner.width);
        Ok(Some(Box::new(move |pass| {
            let layers = [(trunk, stream), (stream, inner)].into_iter().zip(factors.into_iter().zip(biases));
            for ((from, to), (factor, bias)) in layers {
                let operands = (pass.operand(from), factor, pass.operand(to));
                // SAFETY: the plan gives every matrix of a pass its rows, and the weights live as long as the steps.
                unsafe { product(pass.gpu, pass.dtype, operands, pass.rows(), &Behind { bias, ..Behind::NOTHING }, pass.product) }?;
            }
            let args = Heads {
                inner: pass.matrix(inner),
                logits: pass.matrix(logits),
                out: pass.index(out, 0, out.columns),
                previous: pass.index(previous, 0, previous.columns),
                wanted: pass.index(wanted, 0, wanted.columns),
                before: before.map_or(crate::cuda::Matrix::NONE, |before| pass.index(before, 0, before.columns)),
                uniform: pass.matrix(uniform),
                groups,
                width: width as u32,
                count,
                rows: 0,
                chunk: 0,
            };
            // SAFETY: the plan gives every matrix of a pass its rows; who runs a pass promises classes inside their tables.
            Ok(unsafe { args.launch(pass.gpu, pass.dtype, pass.rows(), outputs) }?)
        })))
    }

    /// Sums, of which classes are chosen.
    fn wide(&self, wires: &Wires) -> Vec<Slot> {
        wires.out.iter().chain(&wires.scratch).copied().collect()
    }
}

impl Block for Autoregressive {
    fn states(&self) -> Vec<usize> {
        Vec::new()
    }

    fn is_one(&self, target: Target) -> bool {
        matches!(target, Target::Cuda { .. })
    }

    /// A class that is to be chosen depends on the logits before it: one after the other.
    fn is_one_on_tensors(&self, _: &TensorPass, x: &[&Tensor], ids: &[&Indices]) -> bool {
        ids.get(1).is_some_and(|wanted| !wanted.values().contains(&SAMPLE)) && x.first().is_some_and(|trunk| is_on_host(trunk))
    }

    fn compose<E: Executor>(&self, e: &mut E, x: &[&E::V], ids: &[&E::I]) -> Result<Values<E::V, E::I>> {
        let ([trunk, uniform], (previous, wanted, before)) = (operands(self.name(), x)?, self.classes(ids)?);
        let mut stream = e.linear(trunk, &self.stream, Activation::None)?;
        let (mut logits, mut classes): (Vec<E::V>, Vec<E::I>) = (Vec::new(), Vec::new());
        for part in &self.components {
            let h = e.linear(&stream, &part.hidden, Activation::None)?;
            let h = e.add_rows(&h, &part.previous, previous, &part.columns, Activation::Relu)?;
            let mut l = e.linear(&h, &part.out, Activation::None)?;
            if let (Some(prior), Some(before)) = (&part.prior, before) {
                // Behind the two frames, the components that have been chosen.
                let known: Vec<&E::I> = [previous, before].into_iter().chain(&classes).collect();
                let contexts = e.joint(&known, prior.digits(part.choice, |column| self.place(column)))?;
                l = e.add_rows(&l, &prior.table, &contexts, &prior.rows(part.choice), Activation::None)?;
            }
            let class = e.choose(&l, wanted, uniform, part.choice)?;
            if let Some(chosen) = &part.chosen {
                stream = e.add_rows(&stream, chosen, &class, &part.own, Activation::None)?;
            }
            logits.push(l);
            classes.push(class);
        }
        Ok(Values { floats: vec![e.join(&logits)?], ids: vec![e.join_indices(&classes)?] })
    }
}

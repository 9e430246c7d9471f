//! All components of an action at once, where every class is given (`nn::Autoregressive` has the network).
//!
//! What component g reads is `s_g = s + the chosen rows of the components before it`, and its inner layer is linear up to
//! the ReLU. So `s_g W_g = s W_g + the rows of (chosen W_g)`: one product of the stream by all inner layers side by side,
//! one small product of the tables by them, and table rows added. The backward goes the same way: sums of rows by class,
//! then products of the tables' size.

use crate::ops::activate_backward;
use crate::ops::linear::{Operand, TASK_ROWS, Target, column_sums};
use crate::ops::{Activation, Products, Rows, add_into, contiguous, rows_of, sum_in_order, sum_of_rows, with_rows};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;
use std::sync::OnceLock;

/// Rows per task of the sums by class: each has tables of its own to add up.
const SUM_ROWS: usize = 256;

/// A component.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChoiceGroup {
    /// Columns, one class each.
    pub columns: usize,
    /// Classes of a column.
    pub classes: usize,
    /// Logits of all columns.
    pub logits: usize,
}

/// The parameters: weights with their biases, and tables. `S` is the width of the stream.
pub(crate) struct ChoiceWeights<'a> {
    /// `[D, S]` and `[S]`.
    pub stream: [&'a Tensor; 2],
    /// `[S, S]` and `[S]` by component.
    pub hidden: Vec<[&'a Tensor; 2]>,
    /// `[columns * classes, S]` by component.
    pub previous: Vec<&'a Tensor>,
    /// `[S, logits]` and `[logits]` by component.
    pub out: Vec<[&'a Tensor; 2]>,
    /// `[columns * classes, S]` by component but the last.
    pub chosen: Vec<&'a Tensor>,
}

impl<'a> ChoiceWeights<'a> {
    /// In the order in which they are packed: by kind, so that tables and biases lie one below the other.
    fn all(&self) -> Vec<&'a Tensor> {
        let layers = |layers: &[[&'a Tensor; 2]]| {
            let (weights, biases): (Vec<_>, Vec<_>) = layers.iter().map(|[weight, bias]| (*weight, *bias)).unzip();
            [weights, biases].concat()
        };
        let parts = [self.stream.to_vec(), layers(&self.hidden), self.previous.clone(), layers(&self.out), self.chosen.clone()];
        parts.concat()
    }
}

/// The packed parameters, or their gradients.
struct Parts<T> {
    stream: T,
    stream_bias: T,
    /// `[S, S]` by component.
    hidden: T,
    /// `[components * S]`.
    hidden_bias: T,
    /// `[classes, S]`.
    previous: T,
    /// `[S, logits]` by component.
    out: T,
    out_bias: T,
    /// `[classes but the last component's, S]`.
    chosen: T,
}

struct ChoicesOp {
    products: Products,
    groups: Vec<ChoiceGroup>,
    /// Width of the trunk.
    trunk: usize,
    /// Width of the stream (S).
    width: usize,
    /// Component of each column.
    column_group: Vec<usize>,
    /// Rows of the stacked tables by row and column: the classes of the frame before, and those chosen.
    rows: [Vec<u32>; 2],
    /// What the logits begin with, `[rows, logits]`.
    offsets: Option<Vec<f32>>,
    kept: OnceLock<Kept>,
}

/// What the backward reads again.
struct Kept {
    /// The stream before any choice, `[rows, S]`.
    stream: Vec<f32>,
    /// The inner layers side by side, `[S, components * S]`.
    hidden: Vec<f32>,
    /// Behind the ReLU, `[rows, components * S]`.
    inner: Vec<f32>,
}

impl ChoicesOp {
    /// Width of all inner layers.
    fn all(&self) -> usize {
        self.groups.len() * self.width
    }

    fn logits(&self) -> usize {
        self.groups.iter().map(|g| g.logits).sum()
    }

    fn lengths(&self) -> [usize; 8] {
        let (s, classes) = (self.width, self.groups.iter().map(|g| g.columns * g.classes).sum::<usize>());
        let last = self.groups.last().map_or(0, |g| g.columns * g.classes);
        let all = self.all();
        [self.trunk * s, s, all * s, all, classes * s, s * self.logits(), self.logits(), (classes - last) * s]
    }

    fn split<'a>(&self, packed: &'a [f32]) -> Parts<&'a [f32]> {
        let mut rest = packed;
        let [stream, stream_bias, hidden, hidden_bias, previous, out, out_bias, chosen] =
            self.lengths().map(|n| rest.split_off(..n).unwrap_or_default());
        Parts { stream, stream_bias, hidden, hidden_bias, previous, out, out_bias, chosen }
    }

    fn split_mut<'a>(&self, packed: &'a mut [f32]) -> Parts<&'a mut [f32]> {
        let mut rest = packed;
        let [stream, stream_bias, hidden, hidden_bias, previous, out, out_bias, chosen] =
            self.lengths().map(|n| rest.split_off_mut(..n).unwrap_or_default());
        Parts { stream, stream_bias, hidden, hidden_bias, previous, out, out_bias, chosen }
    }

    /// The columns of a frame: its component, and its rows in the tables.
    fn columns(&self, r: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let columns = self.column_group.len();
        let [previous, chosen] = self.rows.each_ref().map(|rows| &rows[r * columns..][..columns]);
        self.column_group.iter().zip(previous).zip(chosen).map(|((g, p), c)| (*g, *p as usize, *c as usize))
    }

    /// First column of each component among the logits.
    fn starts(&self) -> impl Iterator<Item = (usize, usize)> {
        self.groups.iter().scan(0, |next, g| {
            *next += g.logits;
            Some((*next - g.logits, g.logits))
        })
    }

    fn forward(&self, x: Rows, packed: &[f32]) -> Vec<f32> {
        let (s, all, logits) = (self.width, self.all(), self.logits());
        let p = self.split(packed);
        let mut stream = self.products.product_new(x.into(), Operand::new(p.stream, s));
        stream.par_chunks_mut(TASK_ROWS * s).for_each(|block| block.chunks_mut(s).for_each(|row| add_into(row, p.stream_bias)));
        let hidden = side_by_side(p.hidden, s);
        let tables = self.products.product_new(Operand::new(p.chosen, s), Operand::new(&hidden, all));
        let mut inner = self.products.product_new(Operand::new(&stream, s), Operand::new(&hidden, all));
        let mut out = vec![0.0; x.rows * logits];
        let blocks = inner.par_chunks_mut(TASK_ROWS * all).zip(out.par_chunks_mut(TASK_ROWS * logits));
        blocks.enumerate().for_each(|(task, (inner, out))| {
            for (i, z) in inner.chunks_mut(all).enumerate() {
                for (g, (z, bias)) in z.chunks_mut(s).zip(p.hidden_bias.chunks(s)).enumerate() {
                    let columns = || self.columns(task * TASK_ROWS + i);
                    let own = columns().filter(|(group, ..)| *group == g).map(|(_, previous, _)| previous * s);
                    let before = columns().filter(|(group, ..)| *group < g).map(|(.., chosen)| chosen * all + g * s);
                    add_into(z, bias);
                    sum_of_rows(z, None, p.previous, own, Activation::None);
                    sum_of_rows(z, None, &tables, before, Activation::Relu);
                }
            }
            for (i, row) in out.chunks_mut(logits).enumerate() {
                row.copy_from_slice(p.out_bias);
                if let Some(offsets) = &self.offsets {
                    add_into(row, &offsets[(task * TASK_ROWS + i) * logits..][..logits]);
                }
            }
            let inner = Rows { data: inner, rows: inner.len() / all, width: all, stride: all };
            for (g, (start, n)) in self.starts().enumerate() {
                let weight = Operand::new(&p.out[start * s..][..n * s], n);
                self.products.product_alone(inner.columns(g * s, s).into(), weight, &mut out[start..], logits, Target::Sum);
            }
        });
        self.kept.get_or_init(|| Kept { stream, hidden, inner });
        out
    }

    /// The gradients of the trunk and of the packed parameters.
    fn backward(&self, x: Rows, packed: &[f32], kept: &Kept, grad: Rows) -> (Vec<f32>, Vec<f32>) {
        let (s, all) = (self.width, self.all());
        let p = self.split(packed);
        let mut dpacked = vec![0.0; packed.len()];
        let d = self.split_mut(&mut dpacked);
        let through = self.inner_gradient(p.out, kept, grad);
        let through = Rows { data: &through, rows: x.rows, width: all, stride: all };
        d.out_bias.copy_from_slice(&column_sums(grad));
        d.hidden_bias.copy_from_slice(&column_sums(through));
        self.out_gradient(kept, grad, d.out);

        let (sums, previous) = self.sums_by_class(through, d.chosen.len() / s, d.previous.len());
        d.previous.copy_from_slice(&previous);
        self.products.product(Operand::new(&sums, all), Operand::new(&kept.hidden, all).t(), d.chosen, s, Target::Fresh);
        let mut hidden = self.products.product_new(Operand::new(&kept.stream, s).t(), through.into());
        self.products.product(Operand::new(p.chosen, s).t(), Operand::new(&sums, all), &mut hidden, all, Target::Sum);
        one_below_the_other(&hidden, s, d.hidden);

        let dstream = self.products.product_new(through.into(), Operand::new(&kept.hidden, all).t());
        d.stream_bias.copy_from_slice(&column_sums(Rows { data: &dstream, rows: x.rows, width: s, stride: s }));
        self.products.product(Operand::from(x).t(), Operand::new(&dstream, s), d.stream, s, Target::Fresh);
        (self.products.product_new(Operand::new(&dstream, s), Operand::new(p.stream, s).t()), dpacked)
    }

    /// The gradient before the ReLU of all inner layers, `[rows, components * S]`.
    fn inner_gradient(&self, out: &[f32], kept: &Kept, grad: Rows) -> Vec<f32> {
        let (s, all) = (self.width, self.all());
        let mut through = vec![0.0; kept.inner.len()];
        let blocks = through.par_chunks_mut(TASK_ROWS * all).zip(kept.inner.par_chunks(TASK_ROWS * all));
        blocks.enumerate().for_each(|(task, (through, inner))| {
            let grad = Rows { rows: inner.len() / all, ..grad.rows_from(task * TASK_ROWS) };
            for (g, (start, n)) in self.starts().enumerate() {
                let weight = Operand::new(&out[start * s..][..n * s], n).t();
                self.products.product_alone(grad.columns(start, n).into(), weight, &mut through[g * s..], all, Target::Fresh);
            }
            activate_backward(Activation::Relu, inner, through);
        });
        through
    }

    /// The gradients of the last layers, a component each task.
    fn out_gradient(&self, kept: &Kept, grad: Rows, out: &mut [f32]) {
        let (s, all, mut rest) = (self.width, self.all(), out);
        let parts: Vec<_> = self.starts().map(|(start, n)| (start, n, rest.split_off_mut(..n * s).unwrap_or_default())).collect();
        parts.into_par_iter().enumerate().for_each(|(g, (start, n, out))| {
            let inner = Rows { data: &kept.inner, rows: grad.rows, width: all, stride: all };
            self.products.product_alone(Operand::from(inner.columns(g * s, s)).t(), grad.columns(start, n).into(), out, n, Target::Fresh);
        });
    }

    /// The sums over the rows that chose a class of what the later components' inner layers got, `[classes, components * S]`, and
    /// the gradient of the tables of the frame before.
    fn sums_by_class(&self, through: Rows, classes: usize, previous: usize) -> (Vec<f32>, Vec<f32>) {
        let (s, all) = (self.width, self.all());
        let task = |task: usize| {
            let mut sums = vec![0.0; classes * all + previous];
            let (by_chosen, by_previous) = sums.split_at_mut(classes * all);
            for r in task * SUM_ROWS..through.rows.min((task + 1) * SUM_ROWS) {
                for (g, previous, chosen) in self.columns(r) {
                    let (own, later) = through.row(r)[g * s..].split_at(s);
                    add_into(&mut by_previous[previous * s..][..s], own);
                    if !later.is_empty() {
                        add_into(&mut by_chosen[chosen * all + (g + 1) * s..][..later.len()], later);
                    }
                }
            }
            sums
        };
        let mut sums = sum_in_order((0..through.rows.div_ceil(SUM_ROWS)).into_par_iter().map(task).collect());
        let previous = sums.split_off(classes * all);
        (sums, previous)
    }
}

/// Square matrices `[S, S]` one below the other as columns of one `[S, n * S]`.
fn side_by_side(matrices: &[f32], s: usize) -> Vec<f32> {
    let n = matrices.len() / (s * s);
    (0..s).flat_map(|k| (0..n).flat_map(move |g| &matrices[(g * s + k) * s..][..s])).copied().collect()
}

/// The way back.
fn one_below_the_other(columns: &[f32], s: usize, matrices: &mut [f32]) {
    let n = matrices.len() / (s * s);
    for (i, row) in matrices.chunks_mut(s).enumerate() {
        row.copy_from_slice(&columns[(i % s * n + i / s) * s..][..s]);
    }
}

impl CustomOp2 for ChoicesOp {
    fn name(&self) -> &'static str {
        "choices"
    }

    fn cpu_fwd(&self, x: &CpuStorage, xl: &Layout, w: &CpuStorage, wl: &Layout) -> Result<(CpuStorage, Shape)> {
        let (x, packed) = (rows_of(x, xl)?, contiguous(w, wl)?);
        Ok((CpuStorage::F32(self.forward(x, packed)), (x.rows, self.logits()).into()))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let Some(kept) = self.kept.get() else { bail!("choices: a backward before the forward") };
        let (dx, dpacked) = with_rows(&[x, &w.unsqueeze(0)?, &grad.contiguous()?], |inputs| {
            Ok(self.backward(inputs[0], inputs[1].row(0), kept, inputs[2]))
        })?;
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), Some(Tensor::from_vec(dpacked, w.shape(), w.device())?)))
    }
}

/// The logits `[rows, all components' logits]` over the trunk `x` `[rows, D]`. `rows`: for every row and column, the row of the
/// tables (all components' one below the other) of the class of the frame before, and of the class chosen. `offsets`: what the logits begin with,
/// without a gradient. f32 on the CPU.
pub(crate) fn choices(
    x: &Tensor,
    groups: Vec<ChoiceGroup>,
    weights: &ChoiceWeights,
    rows: [Vec<u32>; 2],
    offsets: Option<Vec<f32>>,
) -> Result<Tensor> {
    let (trunk, width) = weights.stream[0].dims2()?;
    let column_group = groups.iter().enumerate().flat_map(|(g, group)| vec![g; group.columns]).collect();
    let op = ChoicesOp { products: Products::current(), groups, trunk, width, column_group, rows, offsets, kept: OnceLock::new() };
    let flat = weights.all().into_iter().map(Tensor::flatten_all).collect::<Result<Vec<_>>>()?;
    let packed = Tensor::cat(&flat, 0)?;
    let classes: usize = op.groups.iter().map(|g| g.columns * g.classes).sum();
    let fits = |indices: &Vec<u32>| indices.len() == x.dims()[0] * op.column_group.len() && indices.iter().all(|i| (*i as usize) < classes);
    if x.dim(1)? != trunk
        || packed.elem_count() != op.lengths().iter().sum::<usize>()
        || !op.rows.iter().all(fits)
        || op.offsets.as_ref().is_some_and(|offsets| offsets.len() != x.dims()[0] * op.logits())
    {
        bail!("choices: rows {:?} and {} parameters for {:?}", x.dims(), packed.elem_count(), op.groups);
    }
    x.contiguous()?.apply_op2(&packed, op)
}

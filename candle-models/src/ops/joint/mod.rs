//! Several indices as one: the number whose digits they are. It names the row of a table over all their combinations.
//!
//! `out[j] = (..(d_1 n_2 + d_2) n_3 + ..)` where digit `d_k`, one of the operands' columns, is below `n_k`.

use crate::exec::cpu::{self, Packer};
use crate::exec::graph::{Graph, Operator, Value};
use crate::exec::program::Wires;
use crate::exec::tensors::{Indices, TensorPass};
use crate::exec::{Operation, Size, Values, Widths, Work};
use crate::{Error, Result};
use candle_core::Tensor;

/// A digit: which operand it is taken from, its column there, and how many values it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Digit {
    /// Number of the operand.
    pub operand: usize,
    /// Its column.
    pub column: usize,
    /// It lies below this.
    pub values: usize,
}

/// The operation: operands of indices; a number for each list of digits, the highest digit first.
///
/// ```
/// use candle_models::candle_core::{Device, Tensor};
/// use candle_models::exec::{Executor, tensors::TensorExecutor};
/// use candle_models::ops::Digit;
/// use candle_models::tensors::NamedTensors;
/// # fn main() -> candle_models::Result<()> {
/// let cards = Tensor::new(&[[[3u32, 12]]], &Device::Cpu)?; // a suit of four and a rank of thirteen
/// let inputs = NamedTensors::from_iter([("cards".to_owned(), cards)]);
/// let mut e = TensorExecutor::new(&inputs, &[false], Vec::new(), &Device::Cpu);
/// let cards = e.indices("cards")?;
/// let [suit, rank] = [(0, 4), (1, 13)].map(|(column, values)| Digit { operand: 0, column, values });
/// assert_eq!(e.joint(&[&cards], vec![vec![suit, rank], vec![rank]])?.values(), [51, 12]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct JointIndex(pub Vec<Vec<Digit>>);

impl JointIndex {
    /// The numbers of a row; `digit` says what an operand holds in a column.
    fn row<'a>(&'a self, digit: impl Fn(&Digit) -> u32 + 'a) -> impl Iterator<Item = u32> + 'a {
        self.0.iter().map(move |digits| digits.iter().fold(0, |number: u32, d| number.wrapping_mul(d.values as u32).wrapping_add(digit(d))))
    }

    /// The numbers of all rows.
    pub(super) fn indices(&self, ids: &[&Indices]) -> Indices {
        let rows = ids.first().map_or(0, |first| first.values().len() / first.width());
        let digit = |r: usize| move |d: &Digit| ids[d.operand].values()[r * ids[d.operand].width() + d.column];
        Indices::new((0..rows).flat_map(|r| self.row(digit(r))).collect(), self.0.len())
    }
}

impl Operation for JointIndex {
    fn name(&self) -> &'static str {
        "joint-index"
    }

    fn widths(&self, _: &[usize], ids: &[usize]) -> Result<Widths> {
        for digits in &self.0 {
            if let Some(bad) = digits.iter().find(|d| ids.get(d.operand).is_none_or(|columns| d.column >= *columns)) {
                return Err(Error::Input(format!("joint-index: {bad:?} of operands with {ids:?} columns")));
            }
            if digits.iter().try_fold(1u32, |all, d| all.checked_mul(u32::try_from(d.values).ok()?)).is_none() {
                return Err(Error::Input(format!("joint-index: the combinations of {digits:?} exceed 32 bits")));
            }
        }
        Ok(Widths::indices(self.0.len()))
    }

    fn reference(&self, _: &mut TensorPass, _: &[&Tensor], ids: &[&Indices]) -> Result<Values<Tensor, Indices>> {
        Ok(Values::indices(self.indices(ids)))
    }

    fn formula(&self, graph: &mut Graph, _: &[Value], ids: &[Value], _: &mut [Value]) -> Result<Option<Values<Value, Value>>> {
        let mut numbers = Vec::with_capacity(self.0.len());
        for digits in &self.0 {
            let mut number = None;
            for d in digits {
                let digit = graph.columns(ids[d.operand], d.column, 1);
                number = Some(match number {
                    None => digit,
                    Some(higher) => {
                        let values = graph.integer(d.values as i64);
                        let higher = graph.mul(higher, values);
                        graph.add(higher, digit)
                    }
                });
            }
            numbers.extend(number);
        }
        let one = if let [one] = numbers[..] { one } else { graph.node(Operator::Concat { axis: 1 }, &numbers) };
        Ok(Some(Values::indices(one)))
    }

    fn compile(&self, wires: &Wires, _: &mut Packer) -> Result<Option<cpu::Run>> {
        let (ids, out, own) = (wires.ids.clone(), wires.out_ids[0], self.clone());
        Ok(Some(Box::new(move |frame, _| {
            for r in 0..frame.rows {
                let numbers = own.row(|d| frame.ids(ids[d.operand], r)[d.column]);
                // SAFETY: this step has one part, and every index matrix has a place of its own.
                unsafe { frame.ids_mut(out, r) }.iter_mut().zip(numbers).for_each(|(out, number)| *out = number);
            }
            Ok(())
        })))
    }

    fn work(&self, wires: &Wires, size: &Size) -> Result<Work> {
        let digits: usize = self.0.iter().map(Vec::len).sum();
        let bytes = size.rows() * 4.0 * (digits + wires.out_ids[0].columns) as f64;
        Ok(Work { name: self.name(), flop: 0.0, bytes, weights: None })
    }
}

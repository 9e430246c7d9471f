//! The table that describes a model before it is trained: names, shapes, values and operations.
//!
//! ```
//! use candle_models::policy::{Policy, PolicyConfig};
//! use candle_train::summary::Summary;
//! # fn main() -> candle_models::Result<()> {
//! let summary = Summary::new(&Policy::parameters(&PolicyConfig::default())?);
//! assert_eq!(summary.rows.iter().map(|row| row.values).sum::<u64>(), summary.values);
//! # Ok(())
//! # }
//! ```

use candle_models::bundle::{ParameterSpec, Role};
use std::collections::BTreeMap;
use std::fmt::{self, Display};

/// Rows of the table at most; a larger model is shown by groups of names.
const ROWS: usize = 36;

/// Values and operations of a model.
///
/// ```
/// use candle_models::bundle::ParameterSpec;
/// use candle_train::summary::Summary;
///
/// let summary = Summary::new(&[ParameterSpec::matrix("weight", [288, 512]), ParameterSpec::new("bias", &[512])]);
/// assert_eq!((summary.values, summary.operations), (288 * 512 + 512, 2 * 288 * 512));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Parameters by name, or groups of them.
    pub rows: Vec<Row>,
    /// Values to train.
    pub values: u64,
    /// Floating-point operations of one sample's forward pass in the linear layers: a multiplication and an addition per value of
    /// a matrix. Vectors, norms, convolution taps and tables, which are looked up, count nothing: in the models here that leaves out
    /// a few per cent.
    pub operations: u64,
}

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Name of the parameter, or of a group, as `blocks.0.*`.
    pub name: String,
    /// Shape of the parameter, or how many there are in the group.
    pub shape: String,
    /// Values.
    pub values: u64,
    /// Operations per sample.
    pub operations: u64,
}

impl Summary {
    /// The summary of a model that has these parameters.
    pub fn new(parameters: &[ParameterSpec]) -> Self {
        let (values, operations) = parameters.iter().map(count).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let mut rows = parameters.iter().map(single).collect::<Vec<_>>();
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        // From the longest names down, until the table fits.
        let deepest = parameters.iter().map(|p| p.name.split('.').count()).max().unwrap_or(1);
        for depth in (1..deepest).rev() {
            if rows.len() <= ROWS {
                break;
            }
            rows = folded(parameters, depth);
        }
        if rows.len() > ROWS {
            let rest = rows.split_off(ROWS - 1);
            let sum = |f: fn(&Row) -> u64| rest.iter().map(f).sum();
            let (values, operations) = (sum(|r| r.values), sum(|r| r.operations));
            rows.push(Row { name: "*".into(), shape: format!("{} more", rest.len()), values, operations });
        }
        Self { rows, values, operations }
    }
}

/// Values and operations of a parameter.
fn count(parameter: &ParameterSpec) -> (u64, u64) {
    let values = parameter.shape.iter().map(|&n| n as u64).product();
    (values, if parameter.role == Role::Matrix { 2 * values } else { 0 })
}

fn single(parameter: &ParameterSpec) -> Row {
    let (values, operations) = count(parameter);
    let shape = parameter.shape.iter().map(ToString::to_string).collect::<Vec<_>>().join(" x ");
    Row { name: parameter.name.clone(), shape, values, operations }
}

/// Parameters that agree in the first `depth` parts of their names as one row.
fn folded(parameters: &[ParameterSpec], depth: usize) -> Vec<Row> {
    let mut groups: BTreeMap<String, Vec<&ParameterSpec>> = BTreeMap::new();
    for parameter in parameters {
        let prefix: Vec<&str> = parameter.name.split('.').take(depth).collect();
        groups.entry(prefix.join(".")).or_default().push(parameter);
    }
    let row = |(prefix, group): (String, Vec<&ParameterSpec>)| match group.as_slice() {
        [one] => single(one),
        group => {
            let (values, operations) = group.iter().map(|p| count(p)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
            Row { name: format!("{prefix}.*"), shape: format!("{} tensors", group.len()), values, operations }
        }
    };
    groups.into_iter().map(row).collect()
}

impl Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let head = ["parameter", "shape", "values", "operations"].map(str::to_owned);
        let row = |r: &Row| [r.name.clone(), r.shape.clone(), grouped(r.values), grouped(r.operations)];
        let total = ["total".to_owned(), String::new(), grouped(self.values), grouped(self.operations)];
        let cells: Vec<[String; 4]> = std::iter::once(head).chain(self.rows.iter().map(row)).chain([total]).collect();
        let width = |i: usize| cells.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
        let [a, b, c, d] = std::array::from_fn(width);
        for (i, [name, shape, values, operations]) in cells.iter().enumerate() {
            if i == 1 || i + 1 == cells.len() {
                writeln!(f, "{}", "-".repeat(a + b + c + d + 6))?;
            }
            writeln!(f, "{name:<a$}  {shape:<b$}  {values:>c$}  {operations:>d$}")?;
        }
        Ok(())
    }
}

/// `1 234 567`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let chunk = |chunk: &[u8]| chunk.iter().map(|&b| char::from(b)).collect::<String>();
    let mut chunks: Vec<String> = digits.as_bytes().rchunks(3).map(chunk).collect();
    chunks.reverse();
    chunks.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_model_is_shown_whole() {
        let parameters = [
            ParameterSpec::new("characters", &[33, 64]),
            ParameterSpec::matrix("input.weight", [672, 512]),
            ParameterSpec::new("input.bias", &[512]),
        ];
        let expected = "\
parameter     shape       values  operations
--------------------------------------------
characters    33 x 64      2 112           0
input.bias    512            512           0
input.weight  672 x 512  344 064     688 128
--------------------------------------------
total                    346 688     688 128
";
        assert_eq!(Summary::new(&parameters).to_string(), expected);
    }

    #[test]
    fn every_model_fits_a_screen_and_its_rows_add_up() {
        let layers = |n: usize| (0..n).map(move |i| ParameterSpec::matrix(format!("layers.{i}.weight"), [4, 4]));
        let mut models = vec![Vec::new(), layers(2).collect(), layers(36).collect(), layers(500).collect()];
        // No prefix to fold by.
        models.push((0..100).map(|i| ParameterSpec::new(format!("w{i}"), &[3])).collect());
        // Names of several depths, of which the deepest are too many.
        let parts = (0..12).flat_map(|i| ["in", "out"].map(|part| format!("blocks.{i}.{part}")));
        let block = parts
            .flat_map(|name| [ParameterSpec::matrix(format!("{name}.weight"), [8, 4]), ParameterSpec::new(format!("{name}.bias"), &[4])]);
        models.push(block.chain([ParameterSpec::new("norm", &[4])]).collect());
        for parameters in models {
            let summary = Summary::new(&parameters);
            let lines = summary.to_string().lines().count();
            assert!(lines <= 40, "{lines} lines of {} parameters", parameters.len());
            assert_eq!(summary.rows.iter().map(|r| r.values).sum::<u64>(), summary.values);
            assert_eq!(summary.rows.iter().map(|r| r.operations).sum::<u64>(), summary.operations);
            assert_eq!(summary.values, parameters.iter().map(|p| p.shape.iter().product::<usize>() as u64).sum::<u64>());
        }
    }

    #[test]
    fn groups_are_named_by_their_prefix() {
        let parameters: Vec<_> = (0..20)
            .flat_map(|i| {
                [ParameterSpec::matrix(format!("blocks.{i}.out.weight"), [8, 4]), ParameterSpec::new(format!("blocks.{i}.out.bias"), &[4])]
            })
            .chain([ParameterSpec::new("norm", &[4])])
            .collect();
        let rows = Summary::new(&parameters).rows;
        assert_eq!(rows.len(), 21);
        assert_eq!(rows[0], Row { name: "blocks.0.out.*".into(), shape: "2 tensors".into(), values: 36, operations: 64 });
        assert_eq!(rows[20].name, "norm");
    }
}

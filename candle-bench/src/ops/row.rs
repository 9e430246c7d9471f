//! A row of the table of operations.

use super::{Placed, Work};
use crate::calls::Agreement;
use crate::figure::Figure;
use crate::formulas::Roofs;
use crate::harness::Comparison;
use crate::host::Host;
use crate::table::{Record, Shown, compared_sides, micros, rounds_in_turn};
use Shown::{Csv, Everywhere};
use serde::{Deserialize, Serialize};

/// What is done with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calculation {
    /// The output alone, on tensors that ask for no gradient.
    Forward,
    /// The output, then the gradients of all inputs.
    ForwardBackward,
    /// A step of an optimiser.
    Update,
    /// The output, by the CPU's executor with packed weights.
    Inference,
}

impl Calculation {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardBackward => "forward + backward",
            Self::Update => "update",
            Self::Inference => "inference",
        }
    }
}

/// One operation in both forms.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OpRow {
    /// Where.
    #[serde(flatten)]
    pub host: Host,
    /// The operation.
    pub operation: String,
    /// Its sizes.
    pub shape: String,
    /// What is done with it.
    pub calculation: Calculation,
    /// Threads of a call.
    pub threads: usize,
    /// How far outputs and gradients are apart.
    pub agreement: Agreement,
    /// How long: ours is the fused form, theirs the plain one. Nothing where they disagree.
    pub comparison: Option<Comparison>,
    /// What a call computes or moves.
    pub work: Work,
    /// The most that the machine reaches in such work on these threads. Nothing where nothing was timed.
    pub roofs: Option<Roofs>,
}

impl OpRow {
    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let found = match &self.comparison {
            Some(c) => format!("{} us, plain {} us, {}", micros(c.ours_us.p50), micros(c.theirs_us.p50), c.in_words()),
            None => format!("forms disagree: {}", self.agreement),
        };
        format!("{} | {} | {} | {} threads | {found}", self.operation, self.shape, self.calculation.name(), self.threads)
    }

    /// The fused form under its roofs.
    fn placed(&self) -> Option<Placed> {
        Some(Placed { work: self.work, us: self.comparison.as_ref()?.ours_us.p50, roofs: self.roofs? })
    }
}

impl Record for OpRow {
    const COLUMNS: &'static [(&'static str, Shown)] = &[
        ("Operation", Everywhere),
        ("Shape", Everywhere),
        ("Pass", Everywhere),
        ("Threads", Everywhere),
        ("Worst difference", Everywhere),
        ("Tolerance", Csv),
        ("Fused p50 us", Everywhere),
        ("Plain p50 us", Everywhere),
        ("Ratio", Everywhere),
        ("Ratio low", Csv),
        ("Ratio high", Csv),
        ("95% of the ratio", Everywhere),
        ("GFLOP/s", Everywhere),
        ("GB/s", Everywhere),
        ("FLOP/byte", Csv),
        ("Share of roof %", Everywhere),
        ("Bound", Everywhere),
        ("Roof GFLOP/s", Csv),
        ("Roof GB/s", Csv),
        ("Rounds", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Operation", "Shape", "Pass", "Threads"];

    fn cells(&self) -> Vec<String> {
        let mut cells = vec![
            self.operation.clone(),
            self.shape.clone(),
            self.calculation.name().to_owned(),
            self.threads.to_string(),
            self.agreement.difference(),
            format!("{:.1e}", self.agreement.tolerance),
        ];
        match &self.comparison {
            Some(c) => cells.extend([
                micros(c.ours_us.p50),
                micros(c.theirs_us.p50),
                format!("{:.2}", c.ratio),
                format!("{:.2}", c.ratio_ci.low),
                format!("{:.2}", c.ratio_ci.high),
                format!("{:.2} to {:.2}", c.ratio_ci.low, c.ratio_ci.high),
            ]),
            None => cells.extend(["", "", &format!("disagree ({})", self.agreement.output), "", "", ""].map(str::to_owned)),
        }
        cells.extend(self.placed().map_or_else(Default::default, |placed| placed.cells()));
        cells.push(self.comparison.as_ref().map_or_else(String::new, |c| c.rounds.to_string()));
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        compared_sides(self.comparison.as_ref(), "fused form's mean", "plain over fused")
    }

    fn often(&self) -> String {
        rounds_in_turn(self.comparison.as_ref())
    }

    fn bound(&self) -> Option<String> {
        self.placed().map(|placed| placed.in_words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{Interval, Summary};
    use crate::table::markdown;

    fn row(work: Work, us: Option<f64>) -> OpRow {
        let comparison = us.map(|us| Comparison {
            ours_us: Summary::of(&[us]).unwrap(),
            theirs_us: Summary::of(&[3.0 * us]).unwrap(),
            ratio: 3.0,
            ratio_ci: Interval { low: 2.5, high: 3.5 },
            ratio_range: Interval { low: 2.0, high: 4.0 },
            rounds: 12,
        });
        OpRow {
            host: Host::detect(None),
            operation: "linear".to_owned(),
            shape: "8 x 512 to 512".to_owned(),
            calculation: Calculation::Forward,
            threads: 1,
            agreement: Agreement { output: "output".to_owned(), worst: 1e-6, tolerance: 1e-4 },
            comparison,
            work,
            roofs: us.map(|_| Roofs { gflop_per_s: 100.0, gb_per_s: 20.0 }),
        }
    }

    #[test]
    fn rates_have_the_units_of_their_columns_and_a_share_is_of_the_lower_roof() {
        // 4.2 million operations on 84 kB in 84 microseconds: 50 of 100 GFLOP/s at 50 FLOP/byte. 40 kB in 4 microseconds: 10 of 20 GB/s.
        let text = markdown(&[
            row(Work { flop: 4.2e6, bytes: 8.4e4 }, Some(84.0)),
            row(Work { flop: 1e4, bytes: 4e4 }, Some(4.0)),
            row(Work { flop: 1e3, bytes: 4e3 }, Some(4.0)),
        ]);
        assert!(text.contains("| 84.0 | 252 | 3.00 | 2.50 to 3.50 | 50.0 | 1.0 | 50.0 | compute |"), "{text}");
        assert!(text.contains("| 4.00 | 12.0 | 3.00 | 2.50 to 3.50 | 2.5 | 10.0 | 50.0 | memory |"), "{text}");
        assert!(text.contains("| 0.2 | 1.0 | 5.0 | overhead |"), "{text}");
    }

    #[test]
    fn a_slower_form_is_called_slower() {
        let row = row(Work { flop: 4.2e6, bytes: 8.4e4 }, Some(84.0));
        assert!(row.line().ends_with("84.0 us, plain 252 us, 3.00 times faster"), "{}", row.line());
        let comparison = row.comparison.clone().map(|c| Comparison { ratio: 0.0939, ..c });
        let line = OpRow { comparison, ..row }.line();
        assert!(line.ends_with("10.6 times slower") && !line.contains("faster"), "{line}");
    }

    #[test]
    fn every_column_has_a_cell() {
        let work = Work { flop: 1.0, bytes: 1.0 };
        for us in [Some(1.0), None] {
            assert_eq!(row(work, us).cells().len(), OpRow::COLUMNS.len());
        }
        assert!(markdown(&[row(work, None)]).contains("disagree (output)"));
    }
}

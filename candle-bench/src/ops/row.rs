//! A row of the table of operations.

use super::{Peaks, Work};
use crate::compare::Figure;
use crate::formulas::speed_in_words;
use crate::harness::Comparison;
use crate::host::Host;
use crate::table::{Agreement, Record, Shown, compared_sides, micros};
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
    /// The most that the machine reaches in such work: operations or bytes a second, in billions. Reports of before have none, and
    /// their shares are of the peaks.
    #[serde(default)]
    pub roof: Option<f64>,
    /// What the machine reaches on these threads in f32 products and in memory.
    pub peaks: Peaks,
}

/// A rate of the fused form and its share of the roof over it.
struct Rate {
    gflop_per_s: Option<f64>,
    gb_per_s: Option<f64>,
    share: f64,
}

impl OpRow {
    /// In one line, for the terminal.
    pub fn line(&self) -> String {
        let found = match &self.comparison {
            Some(c) => format!("{} us, plain {} us, {}", micros(c.ours_us.p50), micros(c.theirs_us.p50), speed_in_words(c.ratio)),
            None => format!("forms disagree: {} by {:.1e}", self.agreement.output, self.agreement.worst),
        };
        format!("{} | {} | {} | {} threads | {found}", self.operation, self.shape, self.calculation.name(), self.threads)
    }

    fn rate(&self) -> Option<Rate> {
        let rate = self.work.giga_per_s(self.comparison.as_ref()?.ours_us.p50);
        Some(match self.work {
            Work::Flop(_) => Rate { gflop_per_s: Some(rate), gb_per_s: None, share: rate / self.roof.unwrap_or(self.peaks.gflop_per_s) },
            Work::Bytes(_) => Rate { gflop_per_s: None, gb_per_s: Some(rate), share: rate / self.roof.unwrap_or(self.peaks.gb_per_s) },
        })
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
        ("Share of roof %", Everywhere),
        ("Roof G/s", Csv),
        ("Peak GFLOP/s", Csv),
        ("Peak GB/s", Csv),
        ("Rounds", Csv),
    ];
    const IDENTITY: &'static [&'static str] = &["Operation", "Shape", "Pass", "Threads"];

    fn cells(&self) -> Vec<String> {
        let shown = |x: Option<f64>| x.map_or_else(String::new, |x| format!("{x:.1}"));
        let mut cells = vec![
            self.operation.clone(),
            self.shape.clone(),
            self.calculation.name().to_owned(),
            self.threads.to_string(),
            format!("{:.1e}", self.agreement.worst),
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
        let rate = self.rate();
        cells.extend([
            shown(rate.as_ref().and_then(|r| r.gflop_per_s)),
            shown(rate.as_ref().and_then(|r| r.gb_per_s)),
            shown(rate.as_ref().map(|r| 100.0 * r.share)),
            shown(self.roof),
            format!("{:.1}", self.peaks.gflop_per_s),
            format!("{:.1}", self.peaks.gb_per_s),
            self.comparison.as_ref().map_or_else(String::new, |c| c.rounds.to_string()),
        ]);
        cells
    }

    fn host(&self) -> &Host {
        &self.host
    }

    fn figures(&self) -> Vec<Figure> {
        compared_sides(self.comparison.as_ref(), "fused form's mean", "plain over fused")
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
            roof: None,
            peaks: Peaks { threads: 1, gflop_per_s: 100.0, gb_per_s: 20.0 },
        }
    }

    #[test]
    fn rates_have_the_units_of_their_columns() {
        // 4.2 million operations in 84 microseconds are 50 GFLOP/s; 40 kB in 4 microseconds 10 GB/s.
        let text = markdown(&[row(Work::Flop(4.2e6), Some(84.0)), row(Work::Bytes(4e4), Some(4.0))]);
        assert!(text.contains("| 84.0 | 252 | 3.00 | 2.50 to 3.50 | 50.0 |  | 50.0 |"), "{text}");
        assert!(text.contains("| 4.00 | 12.0 | 3.00 | 2.50 to 3.50 |  | 10.0 | 50.0 |"), "{text}");
    }

    #[test]
    fn a_share_is_of_the_roof_and_a_slower_form_is_called_slower() {
        let row = OpRow { roof: Some(80.0), ..row(Work::Flop(4.2e6), Some(84.0)) };
        assert!(markdown(std::slice::from_ref(&row)).contains("| 50.0 |  | 62.5 |"));
        assert!(row.line().ends_with("84.0 us, plain 252 us, 3.00 times faster"), "{}", row.line());
        let comparison = row.comparison.clone().map(|c| Comparison { ratio: 0.0939, ..c });
        let line = OpRow { comparison, ..row }.line();
        assert!(line.ends_with("10.6 times slower") && !line.contains("faster"), "{line}");
    }

    #[test]
    fn every_column_has_a_cell() {
        for us in [Some(1.0), None] {
            assert_eq!(row(Work::Bytes(1.0), us).cells().len(), OpRow::COLUMNS.len());
        }
        assert!(markdown(&[row(Work::Bytes(1.0), None)]).contains("disagree (output)"));
    }
}

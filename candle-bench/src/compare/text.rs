//! A comparison as a table for a terminal of any width.

use super::{Compared, ComparedFigure, ComparedRow, ComparedSuite, Identity, Value, Verdict};
use crate::table::micros;
use crate::text::{GAP, LEAST_WIDTH, wrap};
use std::fmt::Write as _;

/// Verdicts in the order of the summary.
const VERDICTS: [Verdict; 7] =
    [Verdict::Faster, Verdict::Slower, Verdict::Better, Verdict::Worse, Verdict::Lost, Verdict::Found, Verdict::Unclear];

impl Verdict {
    /// In a word.
    pub fn word(self) -> &'static str {
        match self {
            Self::Faster => "faster",
            Self::Slower => "slower",
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Unclear => "unclear",
            Self::Lost => "lost",
            Self::Found => "found",
        }
    }
}

impl Compared {
    /// The tables of all suites, then the regressions by name, in lines of at most `width` characters.
    pub fn text(&self, width: usize) -> String {
        let mut page = Page { width: width.max(LEAST_WIDTH), text: String::new() };
        let [before, after] = self.directories.each_ref().map(|d| d.display());
        page.paragraph(0, &format!("before: {before}"));
        page.paragraph(0, &format!("after: {after}"));
        page.paragraph(0, &format!("A change below {}% counts as unclear.", round(100.0 * self.threshold)));
        self.elsewhere(&mut page);
        self.suites.iter().for_each(|suite| suite.print(&mut page));
        for (what, names) in [
            ("Suites only before", &self.only_before),
            ("Suites only after", &self.only_after),
            ("Not known to this version", &self.unknown),
        ] {
            if !names.is_empty() {
                page.paragraph(0, "");
                page.paragraph(0, &format!("{what}: {}", names.join(", ")));
            }
        }
        page.paragraph(0, "");
        match self.regressions {
            0 => page.paragraph(0, "No regression."),
            n => page.paragraph(0, &format!("Regressions: {n}")),
        }
        for suite in &self.suites {
            for row in &suite.rows {
                row.regressions().for_each(|figure| page.paragraph(2, &sentence(suite, row, figure)));
            }
        }
        page.text
    }

    /// Says where machines or builds differ.
    fn elsewhere(&self, page: &mut Page) {
        let rows = || self.suites.iter().flat_map(|suite| &suite.rows);
        let count = rows().filter(|row| !row.elsewhere.is_empty()).count();
        if count > 0 {
            let mut fields: Vec<&str> = rows().flat_map(|row| row.elsewhere.iter().copied()).collect();
            fields.sort_unstable();
            fields.dedup();
            let all = rows().count();
            page.paragraph(
                0,
                &format!(
                    "warning: {count} of {all} rows were measured elsewhere (other {}): what is slower there is no regression",
                    fields.join(", ")
                ),
            );
        }
    }
}

/// `latency: mlp 512-512, step, batch 1: mean latency 73.9 to 80.1 us (+8.4%), slower`.
fn sentence(suite: &ComparedSuite, row: &ComparedRow, figure: &ComparedFigure) -> String {
    let (change, unit) = (change(figure), &figure.unit);
    let change = if change.is_empty() { change } else { format!(" ({change})") };
    let (before, after, verdict) = (number(figure.before.value), number(figure.after.value), figure.verdict.word());
    let unit = if figure.after.value.is_finite() { format!(" {unit}") } else { String::new() };
    format!("{}: {}: {} {before} to {after}{unit}{change}, {verdict}", suite.name, row.case, figure.name)
}

impl ComparedSuite {
    fn print(&self, page: &mut Page) {
        let count = |verdict| self.rows.iter().flat_map(|row| &row.figures).filter(|figure| figure.verdict == verdict).count();
        let counts = VERDICTS.map(|verdict| (verdict, count(verdict)));
        let counts: Vec<_> = counts.iter().filter(|(_, n)| *n > 0).map(|(verdict, n)| format!("{n} {}", verdict.word())).collect();
        page.paragraph(0, "");
        page.paragraph(0, &format!("{}: {} rows in both, {}", self.name, self.rows.len(), counts.join(", ")));
        if let Some((name, unit)) = self.only_figure() {
            page.paragraph(2, &format!("{name} in {unit}"));
        }
        if self.commands[0] != self.commands[1] {
            page.paragraph(2, &format!("before: {}", self.commands[0]));
            page.paragraph(2, &format!("after: {}", self.commands[1]));
        }
        for (which, interrupted) in ["before", "after"].into_iter().zip(self.interrupted) {
            if interrupted {
                page.paragraph(2, &format!("{which}: interrupted, rows are missing"));
            }
        }
        page.table(&self.cells());
        for (what, rows) in [
            ("Only before", &self.only_before),
            ("Only after", &self.only_after),
            ("Measured more than once, not compared", &self.repeated),
        ] {
            page.list(&format!("{what}: {}", rows.len()), rows);
        }
    }

    /// Name and unit of the figures, where they are the same in all rows.
    fn only_figure(&self) -> Option<(&'static str, &str)> {
        let mut figures = self.rows.iter().flat_map(|row| &row.figures).map(|figure| (figure.name, figure.unit.as_str()));
        let first = figures.next()?;
        figures.all(|figure| figure == first).then_some(first)
    }

    /// Two lines a figure: numbers, and below them half of their intervals' widths and what the verdict rests on.
    fn cells(&self) -> Vec<[String; 5]> {
        let mut cells = vec![["case", "before", "after", "change", "verdict"].map(str::to_owned)];
        for row in &self.rows {
            for figure in &row.figures {
                let case = match self.only_figure() {
                    Some(_) => row.case.to_string(),
                    None => format!("{}: {}, {}", row.case, figure.name, figure.unit),
                };
                let why = figure.why.or_else(|| (!row.elsewhere.is_empty()).then_some("elsewhere")).unwrap_or_default();
                let two = |a: String, b: &str| if b.is_empty() { a } else { format!("{a}\n{b}") };
                cells.push([
                    case,
                    two(number(figure.before.value), &half_width(figure.before)),
                    two(number(figure.after.value), &half_width(figure.after)),
                    change(figure),
                    two(figure.verdict.word().to_owned(), why),
                ]);
            }
        }
        cells
    }
}

fn number(value: f64) -> String {
    match value {
        v if !v.is_finite() => "none".to_owned(),
        v if v.abs() < 1.0 => format!("{v:.3}"),
        v => micros(v),
    }
}

/// A percentage without needless digits.
fn round(percent: f64) -> f64 {
    (10.0 * percent).round() / 10.0
}

fn change(figure: &ComparedFigure) -> String {
    if figure.change.is_finite() { format!("{:+.1}%", 100.0 * figure.change) } else { String::new() }
}

/// Half the width of the interval, relative to the value.
fn half_width(value: Value) -> String {
    let share = value.interval.map(|i| 50.0 * (i.high - i.low) / value.value.abs()).filter(|share| share.is_finite());
    share.map_or_else(String::new, |share| format!("±{share:.1}%"))
}

/// Lines of limited width.
struct Page {
    width: usize,
    text: String,
}

impl Page {
    /// A text whose later lines are indented further.
    fn paragraph(&mut self, indent: usize, text: &str) {
        for (i, line) in wrap(text, self.width - indent - GAP).iter().enumerate() {
            let indent = if i == 0 { indent } else { indent + GAP };
            let _ = writeln!(self.text, "{}", format!("{:indent$}{line}", "").trim_end());
        }
    }

    fn list(&mut self, heading: &str, rows: &[Identity]) {
        if !rows.is_empty() {
            self.paragraph(0, heading);
            rows.iter().for_each(|row| self.paragraph(2, &row.to_string()));
        }
    }

    /// The first column takes what the others leave, and is wrapped.
    fn table(&mut self, rows: &[[String; 5]]) {
        let widest = |column: usize| rows.iter().flat_map(|row| row[column].lines()).map(|line| line.chars().count()).max().unwrap_or(0);
        let widths = [1, 2, 3, 4].map(widest);
        let rest = self.width.saturating_sub(widths.iter().sum::<usize>() + 4 * GAP);
        let first = widest(0).min(rest.max(16));
        for row in rows {
            let mut columns = vec![wrap(&row[0], first)];
            columns.extend(row[1..].iter().map(|cell| cell.lines().map(str::to_owned).collect()));
            for i in 0..columns.iter().map(Vec::len).max().unwrap_or(0) {
                let cell = |column: usize| columns[column].get(i).map_or("", String::as_str);
                let mut line = format!("{:first$}", cell(0));
                for (column, width) in widths.iter().enumerate() {
                    // Numbers end where the ones above end; the verdict begins where the one above begins.
                    let cell = cell(column + 1);
                    let _ = if column == 3 { write!(line, "  {cell}") } else { write!(line, "  {cell:>width$}") };
                }
                let _ = writeln!(self.text, "{}", line.trim_end());
            }
        }
    }
}

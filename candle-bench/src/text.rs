//! Text for a terminal of any width.

use crate::figure::Identity;
use crate::table::{Record, Report, Shown};
use std::fmt::Write as _;

/// Below this nothing would be left for what a row is about; a narrower terminal wraps the lines itself.
pub(crate) const LEAST_WIDTH: usize = 60;
/// Spaces between columns.
pub(crate) const GAP: usize = 2;
/// A column of words is not made narrower than this.
const LEAST_WORDS: usize = 24;

/// Characters of a line where nobody says how many fit.
const WIDTH: usize = 100;

/// Characters of a line of the terminal; of `COLUMNS` where the output goes elsewhere.
pub fn terminal_width() -> usize {
    let asked = || std::env::var("COLUMNS").ok()?.parse().ok();
    console::Term::stdout().size_checked().map(|(_, columns)| columns.into()).or_else(asked).unwrap_or(WIDTH)
}

/// Lines of at most `width` characters, broken at spaces, or within a word that is longer.
pub(crate) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let characters: Vec<char> = word.chars().collect();
        let mut pieces: Vec<String> = characters.chunks(width).map(|piece| piece.iter().collect()).collect();
        if pieces.is_empty() {
            pieces.push(String::new());
        }
        for (i, piece) in pieces.iter().enumerate() {
            let last = lines.len() - 1;
            let taken = lines[last].chars().count();
            if taken == 0 {
                lines[last].push_str(piece);
            } else if i == 0 && taken + 1 + piece.chars().count() <= width {
                lines[last].push(' ');
                lines[last].push_str(piece);
            } else {
                lines.push(piece.clone());
            }
        }
    }
    lines
}

/// A paragraph of at most `width` characters a line, all but the first moved in.
pub fn indented(text: &str, width: usize) -> String {
    wrap(text, width.max(LEAST_WIDTH) - GAP).join(&format!("\n{:GAP$}", ""))
}

/// The number of a cell that is one, or a limit, or the first of two that belong together: `<= 0.7`, `1.50 to 2.50`, `12.0 / 15.0`.
pub(crate) fn number(cell: &str) -> Option<f64> {
    let bare = cell.trim_start_matches(['<', '>', '=', ' ']);
    let parts = bare.split_once(" to ").or_else(|| bare.split_once(" / ")).map_or_else(|| vec![bare], |(a, b)| vec![a, b]);
    let numbers: Option<Vec<f64>> = parts.iter().map(|part| part.parse().ok()).collect();
    numbers?.first().copied()
}

impl<R: Record> Report<R> {
    /// The table with command and method above it, for a terminal: no line is wider than `width` characters.
    pub fn text(&self, width: usize) -> String {
        let width = width.max(LEAST_WIDTH);
        let Self { command, method, .. } = self;
        let mark = if self.interrupted { "Interrupted: rows are missing. " } else { "" };
        let mut page = wrap(&format!("Command: {command}"), width);
        page.push(String::new());
        page.extend(wrap(&format!("{mark}{method} Latencies in microseconds."), width));
        page.push(String::new());
        let (names, lines) = self.lines();
        page.push(table(&names, R::IDENTITY, &lines, width));
        page.join("\n")
    }

    /// The table alone, a line a row: the columns from the right on that do not fit are left out and named.
    pub fn table_text(&self, width: usize) -> String {
        let (names, lines) = self.lines();
        let kept = (1..=names.len()).rev().find(|&kept| fits(&names[..kept], &lines, width)).unwrap_or(1);
        let first = |line: &Line| Line { title: line.title.clone(), cells: line.cells[..kept].to_vec() };
        let text = table(&names[..kept], R::IDENTITY, &lines.iter().map(first).collect::<Vec<_>>(), width);
        let left: Vec<String> = names[kept..].iter().map(|name| (*name).to_owned()).collect();
        if left.is_empty() { text } else { format!("{text}{}\n", wrap(&format!("Not shown: {}.", left.join(", ")), width).join("\n")) }
    }

    /// The columns of a table and its rows.
    fn lines(&self) -> (Vec<&'static str>, Vec<Line>) {
        let shown: Vec<usize> = (0..R::COLUMNS.len()).filter(|&i| R::COLUMNS[i].1 == Shown::Everywhere).collect();
        let names: Vec<&'static str> = shown.iter().map(|&i| R::COLUMNS[i].0).collect();
        let line = |row: &R| {
            let cells = row.cells();
            Line { title: Identity::new(row.identity()).to_string(), cells: shown.iter().map(|&i| cells[i].clone()).collect() }
        };
        (names, self.rows.iter().map(line).collect())
    }
}

/// A row: what tells it from the others in one line, and the cells of all columns.
pub(crate) struct Line {
    pub(crate) title: String,
    pub(crate) cells: Vec<String>,
}

/// Columns that differ between rows, and those that all rows share: the latter are said once.
fn parted(names: &[&str], rows: &[Line]) -> (Vec<usize>, Vec<usize>) {
    let all_alike = |column: usize| rows.iter().all(|row| row.cells[column] == rows[0].cells[column]);
    (0..names.len()).partition(|&column| rows.len() > 1 && all_alike(column))
}

fn columns<'a>(names: &[&'a str], rows: &'a [Line], picked: &[usize]) -> Vec<Column<'a>> {
    picked.iter().map(|&i| Column::of(names[i], rows.iter().map(|row| row.cells[i].as_str()))).collect()
}

/// Whether rows can stand below each other.
fn fits(names: &[&str], rows: &[Line], width: usize) -> bool {
    fitted(&columns(names, rows, &parted(names, rows).1), width.max(LEAST_WIDTH)).is_some()
}

/// Rows below each other where they fit into `width` characters, and else one block of lines for each, in which the columns that the
/// title tells of are left out.
pub(crate) fn table(names: &[&str], titled: &[&str], rows: &[Line], width: usize) -> String {
    let width = width.max(LEAST_WIDTH);
    let mut text = String::new();
    let (shared, differing) = parted(names, rows);
    let pairs = shared.iter().map(|&column| pair(names[column], &rows[0].cells[column])).filter(|pair| !pair.is_empty());
    let said = filled(&pairs.collect::<Vec<_>>(), width);
    if !said.is_empty() {
        let _ = writeln!(text, "{}\n", said.join("\n"));
    }
    let columns = columns(names, rows, &differing);
    match fitted(&columns, width) {
        Some(widths) => aligned(&mut text, &columns, &widths, rows.len()),
        None => {
            let columns: Vec<Column> = columns.into_iter().filter(|column| !titled.contains(&column.name)).collect();
            stacked(&mut text, &columns, rows, width);
        }
    }
    text
}

/// A column with its cells from top to bottom.
struct Column<'a> {
    name: &'a str,
    cells: Vec<&'a str>,
    numeric: bool,
}

impl<'a> Column<'a> {
    fn of(name: &'a str, cells: impl Iterator<Item = &'a str>) -> Self {
        let cells: Vec<&str> = cells.collect();
        let numeric = cells.iter().all(|cell| cell.is_empty() || number(cell).is_some());
        Self { name, cells, numeric }
    }

    /// The name, a word a line.
    fn head(&self) -> Vec<&'a str> {
        self.name.split(' ').flat_map(|word| word.split_inclusive('/')).collect()
    }

    fn width(&self) -> usize {
        self.head().iter().chain(&self.cells).map(|text| text.chars().count()).max().unwrap_or(0)
    }
}

/// Widths of the columns in a line of that width, the widest column of words made narrower if that is enough.
fn fitted(columns: &[Column], width: usize) -> Option<Vec<usize>> {
    let mut widths: Vec<usize> = columns.iter().map(Column::width).collect();
    let excess = (widths.iter().sum::<usize>() + GAP * columns.len().saturating_sub(1)).saturating_sub(width);
    if excess > 0 {
        let words = (0..columns.len()).filter(|&i| !columns[i].numeric).max_by_key(|&i| widths[i])?;
        widths[words] = widths[words].checked_sub(excess).filter(|left| *left >= LEAST_WORDS)?;
    }
    Some(widths)
}

fn aligned(text: &mut String, columns: &[Column], widths: &[usize], rows: usize) {
    let depth = columns.iter().map(|column| column.head().len()).max().unwrap_or(0);
    for i in 0..depth {
        // The last words of all names stand right above their cells.
        let words = columns.iter().map(|c| i.checked_sub(depth - c.head().len()).map_or("", |i| c.head()[i]).to_owned());
        line(text, columns, widths, &words.collect::<Vec<_>>());
    }
    for row in 0..rows {
        let cells: Vec<Vec<String>> = columns.iter().zip(widths).map(|(column, width)| wrap(column.cells[row], *width)).collect();
        for i in 0..cells.iter().map(Vec::len).max().unwrap_or(0) {
            let cells = cells.iter().map(|lines| lines.get(i).cloned().unwrap_or_default());
            line(text, columns, widths, &cells.collect::<Vec<_>>());
        }
    }
}

fn line(text: &mut String, columns: &[Column], widths: &[usize], cells: &[String]) {
    let mut line = String::new();
    for ((column, width), cell) in columns.iter().zip(widths).zip(cells) {
        let _ = if column.numeric { write!(line, "{cell:>width$}") } else { write!(line, "{cell:width$}") };
        line.extend(std::iter::repeat_n(' ', GAP));
    }
    let _ = writeln!(text, "{}", line.trim_end());
}

fn stacked(text: &mut String, columns: &[Column], rows: &[Line], width: usize) {
    for (i, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "{}", wrap(&row.title, width).join("\n"));
        let pairs = columns.iter().map(|column| pair(column.name, column.cells[i])).filter(|pair| !pair.is_empty());
        for line in filled(&pairs.collect::<Vec<_>>(), width - GAP) {
            let _ = writeln!(text, "{:GAP$}{line}", "");
        }
    }
}

/// A name and its cell; nothing for an empty cell.
fn pair(name: &str, cell: &str) -> String {
    if cell.is_empty() { String::new() } else { format!("{name} {cell}") }
}

/// Lines with as many pieces as fit, each piece whole where it can be.
fn filled(pieces: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for piece in pieces {
        match lines.last_mut().filter(|line| line.chars().count() + GAP + piece.chars().count() <= width) {
            Some(line) => line.extend(["  ", piece]),
            None => lines.extend(wrap(piece, width)),
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::LatencyRow;
    use crate::load::LoadRow;
    use crate::peers::PeerRow;
    use crate::target::TargetRow;
    use serde::de::DeserializeOwned;
    use std::path::Path;

    #[test]
    fn lines_break_at_spaces_and_within_words_that_are_too_long() {
        assert_eq!(wrap("mlp 512-512, step, batch 1", 12), ["mlp 512-512,", "step, batch", "1"]);
        assert_eq!(wrap("a /very/long/path", 6), ["a", "/very/", "long/p", "ath"]);
        assert_eq!(wrap("", 10), [""]);
    }

    fn rows(count: usize, columns: usize) -> Vec<Line> {
        let cells = |i: usize| (0..columns).map(|c| format!("{}", 1000 * c + i)).chain(["same".to_owned()]).collect();
        (0..count).map(|i| Line { title: format!("row {i} of a long name, batch {i}"), cells: cells(i) }).collect()
    }

    #[test]
    fn what_fits_is_aligned_and_what_does_not_is_stacked() {
        let names = ["p50 latency", "p99 latency", "Inferences/Second", "Device"];
        assert_eq!(
            table(&names, &[], &rows(2, 3), 60),
            "Device same\n\n    p50      p99  Inferences/\nlatency  latency       Second\n      0     1000         2000\n      1     1001         2001\n"
        );
        let many: Vec<String> = (0..12).map(|c| format!("column {c}")).chain(["Device".to_owned()]).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let text = table(&many, &["column 0"], &rows(2, 12), 60);
        assert!(text.contains("\nrow 1 of a long name, batch 1\n  column 1 1001  column 2 2001"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 60) && text.contains("column 11 11001"), "{text}");
        assert_eq!(
            table(&names, &[], &[], 60).trim_end(),
            "    p50      p99  Inferences/\nlatency  latency       Second  Device".trim_end()
        );
    }

    #[test]
    fn one_long_column_is_wrapped_and_nothing_of_it_lost() {
        let row = |cell: &str| Line { title: String::new(), cells: vec![cell.len().to_string(), cell.to_owned()] };
        let long = "10003 frames a second, one rank on one core; a tenth of a step waiting for the other rank";
        let text = table(&["Found", "From"], &[], &[row(long), row("short")], 60);
        assert!(text.lines().all(|line| line.chars().count() <= 60) && text.contains("Found  From"), "{text}");
        assert_eq!(text.split_whitespace().filter(|word| *word == "rank").count(), 2, "{text}");
    }

    /// Every committed run at the widths that terminals have.
    #[test]
    fn no_line_of_a_report_is_wider_than_the_terminal_and_no_row_is_missing() {
        fn check<R: Record + DeserializeOwned>(run: &str, suite: &str) {
            let report: Report<R> = crate::run::report(&Path::new(env!("CARGO_MANIFEST_DIR")).join("runs").join(run), suite).unwrap();
            for width in [40, 60, 80, 100, 200] {
                let table = report.table_text(width);
                assert!(table.lines().all(|line| line.chars().count() <= width.max(60)), "{table}");
                let text = report.text(width);
                let longest = text.lines().map(|line| line.chars().count()).max().unwrap();
                assert!(longest <= width.max(60), "{suite} in {width}: {longest}\n{text}");
                assert!(text.lines().count() > report.rows.len(), "{suite}: {text}");
            }
            assert_eq!(report.text(10), report.text(60));
        }
        check::<LatencyRow>("2026-11-21-2-core-xeon", "latency");
        check::<PeerRow>("2026-11-20-2-core-epyc", "peers");
        check::<LoadRow>("2026-11-21-2-core-xeon", "load");
        check::<TargetRow>("2026-11-21-2-core-xeon", "targets");
    }

    #[test]
    fn limits_and_pairs_are_numbers_and_sizes_are_not() {
        assert_eq!(
            ["0.472", "<= 0.7", ">= 1.6", "1.50 to 2.50", "12.0 / 15.0", "2.3e-7"].map(number),
            [0.472, 0.7, 1.6, 1.5, 12.0, 2.3e-7].map(Some)
        );
        assert_eq!(["32 x 60, 256 to 1024", "2x256", "unknown", "window 60", "outputs disagree (logits)"].map(number), [None; 5]);
    }
}

//! The table of a suite, its rows with what a reader may ask of each.

use super::places;
use crate::figure::Figure;
use crate::run::{Row, SuiteReport};
use crate::table::{Shown, micros};
use crate::text::number;
use candle_models::html::escape;
use std::fmt::Write as _;

/// Writes the table; what a click on a row shows is in the row's attributes.
// Writing to a string does not fail.
pub(super) fn write(page: &mut String, name: &str, suite: &SuiteReport) {
    if suite.rows.is_empty() {
        page.push_str("<p class=\"note\">No rows.</p>\n");
        return;
    }
    let columns: Vec<Column> = suite.columns.iter().enumerate().map(|(i, column)| Column::of(i, column, &suite.rows)).collect();
    if columns.iter().any(|column| column.more) {
        let _ =
            writeln!(page, "<input type=\"checkbox\" class=\"more\" id=\"{name}-more\"><label for=\"{name}-more\">More columns</label>");
    }
    let _ = writeln!(
        page,
        "<div class=\"box\" tabindex=\"0\" role=\"region\" aria-label=\"Rows of {name}\"><table class=\"rows\">\n<thead><tr>"
    );
    for column in &columns {
        let _ = writeln!(page, "<th scope=\"col\"{}>{}</th>", column.class(), escape(column.name).replace('/', "/<wbr>"));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    let places = places(suite);
    for row in &suite.rows {
        let place = places.iter().position(|place| **place == row.host).unwrap_or(0);
        write_row(page, row, place, &columns);
    }
    page.push_str("</tbody></table></div>\n");
}

/// How a column is shown.
struct Column<'a> {
    name: &'a str,
    /// Whether it is left out until more columns are asked for.
    more: bool,
    /// Whether its cells are numbers, to be aligned and sorted as such.
    numeric: bool,
}

impl<'a> Column<'a> {
    fn of(i: usize, (name, shown): &(&'a str, Shown), rows: &[Row]) -> Self {
        let cells = rows.iter().filter_map(|row| row.cells.get(i)).filter(|cell| !cell.is_empty());
        let (numbers, texts): (Vec<&String>, Vec<&String>) = cells.partition(|cell| number(cell).is_some());
        // A word here and there, for what could not be measured, leaves a column of numbers one.
        Self { name, more: *shown == Shown::Csv, numeric: !numbers.is_empty() && texts.len() <= numbers.len() }
    }

    fn class(&self) -> &'static str {
        match (self.more, self.numeric) {
            (true, true) => " class=\"extra n\"",
            (true, false) => " class=\"extra\"",
            (false, true) => " class=\"n\"",
            (false, false) => "",
        }
    }
}

fn write_row(page: &mut String, row: &Row, place: usize, columns: &[Column]) {
    let marks = marks(row);
    let class = if marks.is_empty() { "" } else { " class=\"marked\"" };
    let _ = write!(page, "<tr{class} data-place=\"{place}\"");
    let figures: Vec<String> = row.figures.iter().map(in_words).collect();
    let (what, bound) = (row.identity.to_string(), row.bound.clone().unwrap_or_default());
    for (name, text) in [("what", what), ("figures", figures.join("; ")), ("often", row.often.clone()), ("bound", bound)] {
        let _ = write!(page, " data-{name}=\"{}\"", escape(&text));
    }
    page.push('>');
    let first = columns.iter().position(|column| !column.more).unwrap_or(0);
    for (i, (column, cell)) in columns.iter().zip(&row.cells).enumerate() {
        let text = if cell == "NaN" { "not measured".to_owned() } else { escape(cell) };
        let value = number(cell).filter(|value| column.numeric && value.is_finite() && cell.parse::<f64>().is_err());
        let value = value.map_or_else(String::new, |value| format!(" data-value=\"{value}\""));
        let marks = if i == first { marks.as_str() } else { "" };
        let prose = if cell.chars().count() > 30 { " prose" } else { "" };
        let class = format!("{}{}{prose}", if column.more { "extra " } else { "" }, if column.numeric { "n" } else { "" });
        let class = if class.is_empty() { class } else { format!(" class=\"{}\"", class.trim()) };
        let _ = write!(page, "<td{class}{value}>{text}{marks}</td>");
    }
    page.push_str("</tr>\n");
}

/// What a reader must know before the numbers of a row are believed.
fn marks(row: &Row) -> String {
    let any = |test: fn(&Figure) -> bool| row.figures.iter().any(test);
    let marks = [
        ("not measured", any(|figure| !figure.value.is_finite())),
        ("unsteady", any(|figure| !figure.steady)),
        ("misses its limit", any(|figure| figure.kept == Some(false) && figure.value.is_finite())),
    ];
    let shown = marks.into_iter().filter(|(_, shown)| *shown);
    shown.fold(String::new(), |text, (mark, _)| text + " <span class=\"mark\">" + mark + "</span>")
}

/// `mean latency 73.9 us, 95% from 73.6 to 74.3`.
fn in_words(figure: &Figure) -> String {
    let shown = |value: f64| if value.abs() < 1.0 { format!("{value:.3}") } else { micros(value) };
    if !figure.value.is_finite() {
        return format!("{}: not measured", figure.name);
    }
    let interval = figure.interval.map_or_else(String::new, |i| format!(", 95% interval {} to {}", shown(i.low), shown(i.high)));
    format!("{} {} {}{interval}", figure.name, shown(figure.value), figure.unit)
}

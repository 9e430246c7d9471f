//! What is drawn of the rows of a suite, as data: each suite says which of its numbers belong into a picture.

use crate::case::Case;

/// Charts of one kind beside each other.
#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    /// What they show, with the units of both axes.
    pub heading: &'static str,
    /// How to read them; may be empty.
    pub note: &'static str,
    /// Whether a reader sees them at once.
    pub shown: Shown,
    /// The charts.
    pub charts: Vec<Chart>,
}

/// Whether a panel is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// At once.
    Open,
    /// A click away.
    Folded,
}

/// One picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// What it is of.
    pub title: String,
    /// What is drawn.
    pub content: Content,
}

/// The kinds of pictures.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Lines; values on a logarithmic axis.
    Lines(Across, Vec<Series>),
    /// Stacked bars.
    Bars(Lengths, Vec<Bar>),
    /// Rates over intensities, below what the machine allows.
    Roofline(Vec<Roof>, Vec<Placed>),
}

/// The axis from left to right.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across {
    /// Logarithmic.
    Logarithmic,
    /// These names at 0, 1, 2 and so on.
    Names(&'static [&'static str]),
}

/// A line with its points.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// In the legend.
    pub name: String,
    /// What is not finite, or not positive on a logarithmic axis, is not drawn.
    pub points: Vec<(f64, f64)>,
}

/// What the length of a stacked bar says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lengths {
    /// Microseconds on one scale for all bars of the chart.
    Microseconds,
    /// Nothing: every bar is as long, and its parts are shares.
    Shares,
}

/// A time and the parts that it splits into.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// What took it.
    pub label: String,
    /// Names of the parts and their microseconds.
    pub parts: Vec<(String, f64)>,
}

/// What a machine reaches at most.
#[derive(Debug, Clone, PartialEq)]
pub struct Roof {
    /// `1 thread, f32`.
    pub name: String,
    /// Its arithmetic, in GFLOP/s.
    pub gflop_per_s: f64,
    /// Its memory, in GB/s.
    pub gb_per_s: f64,
}

/// A piece of work below a roof.
#[derive(Debug, Clone, PartialEq)]
pub struct Placed {
    /// What it is.
    pub name: String,
    /// Floating-point operations for every byte that it moves.
    pub intensity: f64,
    /// What it reaches, in GFLOP/s.
    pub gflop_per_s: f64,
    /// What bounds it: `memory`, `compute`, `overhead`.
    pub bound: String,
}

/// A point, before it is known which chart and which line it belongs to.
pub(crate) struct Sample {
    pub chart: String,
    pub series: String,
    pub point: (f64, f64),
}

/// Lines by chart and name, in the order of their first points. Charts without a line of two points say nothing and are left out.
pub(crate) fn lines(across: Across, samples: impl IntoIterator<Item = Sample>) -> Vec<Chart> {
    let mut charts: Vec<(String, Vec<Series>)> = Vec::new();
    for Sample { chart, series, point } in samples {
        let series_of_chart = entry(&mut charts, &chart);
        match series_of_chart.iter_mut().find(|s| s.name == series) {
            Some(found) => found.points.push(point),
            None => series_of_chart.push(Series { name: series, points: vec![point] }),
        }
    }
    charts.retain(|(_, series)| series.iter().any(|s| s.points.iter().any(|p| p.0 != s.points[0].0)));
    let chart = |(title, mut series): (String, Vec<Series>)| {
        let names = told_apart(&names(&series));
        series.iter_mut().zip(names).for_each(|(series, name)| series.name = name);
        Chart { title, content: Content::Lines(across, series) }
    };
    charts.into_iter().map(chart).collect()
}

fn names(series: &[Series]) -> Vec<String> {
    series.iter().map(|s| s.name.clone()).collect()
}

pub(crate) fn entry<'a, T>(map: &'a mut Vec<(String, Vec<T>)>, key: &str) -> &'a mut Vec<T> {
    let at = map.iter().position(|(name, _)| name == key).unwrap_or_else(|| {
        map.push((key.to_owned(), Vec::new()));
        map.len() - 1
    });
    &mut map[at].1
}

/// Stacked bars, labelled with what tells them apart; nothing without any.
pub(crate) fn stacked(heading: &'static str, title: &str, lengths: Lengths, bars: Vec<Bar>) -> Vec<Panel> {
    let labels: Vec<String> = bars.iter().map(|bar| bar.label.clone()).collect();
    let bars: Vec<Bar> = bars.into_iter().zip(told_apart(&labels)).map(|(bar, label)| Bar { label, ..bar }).collect();
    let chart = (!bars.is_empty()).then(|| Chart { title: title.to_owned(), content: Content::Bars(lengths, bars) });
    present([(heading, "Beside each bar is the sum of its parts.", Shown::Open, chart.into_iter().collect())])
}

/// Names without those of their parts, set apart by commas, that all of them have.
fn told_apart(names: &[String]) -> Vec<String> {
    let parts: Vec<Vec<&str>> = names.iter().map(|name| name.split(", ").collect()).collect();
    let shared = |part: &&str| parts.len() > 1 && parts.iter().all(|others| others.contains(part));
    let short = |(parts, name): (&Vec<&str>, &String)| {
        let kept: Vec<&str> = parts.iter().copied().filter(|part| !shared(part)).collect();
        if kept.is_empty() { name.clone() } else { kept.join(", ") }
    };
    parts.iter().zip(names).map(short).collect()
}

pub(crate) fn threads(n: usize) -> String {
    if n == 1 { "1 thread".to_owned() } else { format!("{n} threads") }
}

/// What calls of several batches share.
pub(crate) fn calls(case: &Case) -> String {
    format!("{}, {}, {}", case.pass_name(), threads(case.threads), case.device)
}

pub(crate) fn network(case: &Case) -> String {
    format!("{}, {}", case.model, case.dtype)
}

pub(crate) fn present<const N: usize>(panels: [(&'static str, &'static str, Shown, Vec<Chart>); N]) -> Vec<Panel> {
    let panels = panels.into_iter().filter(|(.., charts)| !charts.is_empty());
    panels.map(|(heading, note, shown, charts)| Panel { heading, note, shown, charts }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(chart: &str, series: &str, point: (f64, f64)) -> Sample {
        Sample { chart: chart.to_owned(), series: series.to_owned(), point }
    }

    #[test]
    fn lines_keep_their_order_and_a_lone_point_is_no_line() {
        let samples = [
            sample("b", "mlp, heads", (1.0, 2.0)),
            sample("a", "gru, heads", (1.0, 2.0)),
            sample("b", "gru, heads", (1.0, 3.0)),
            sample("b", "mlp, heads", (8.0, 4.0)),
        ];
        let charts = lines(Across::Logarithmic, samples);
        assert_eq!(charts.len(), 1);
        let Content::Lines(_, series) = &charts[0].content else { panic!("{charts:?}") };
        let series: Vec<_> = series.iter().map(|s| (s.name.as_str(), s.points.as_slice())).collect();
        assert_eq!((charts[0].title.as_str(), series), ("b", vec![("mlp", &[(1.0, 2.0), (8.0, 4.0)][..]), ("gru", &[(1.0, 3.0)])]));
    }

    #[test]
    fn names_keep_what_tells_them_apart() {
        let apart = |names: &[&str]| told_apart(&names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>());
        assert_eq!(apart(&["mlp, heads, f32", "mlp, heads, q8"]), ["f32", "q8"]);
        assert_eq!(apart(&["mlp, heads, f32"]), ["mlp, heads, f32"]);
        assert_eq!(apart(&["mlp", "mlp, q8"]), ["mlp", "q8"]);
    }
}

//! A chart as SVG: lines and points over one axis, used by the reports of training and of benchmarks. Colours that must follow the
//! reader's light or dark mode are left to the page's style sheet.

use candle_models::html::escape;
use candle_models::{Error, Result};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// One set of points.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Where they lie; what is not finite is not drawn.
    pub points: Vec<(f64, f64)>,
    /// Readable on white and on nearly black.
    pub color: RGBColor,
    /// Of the line, in pixels of the picture, which is shown at about half its size.
    pub width: u32,
    /// What is drawn.
    pub mark: Mark,
    /// What a pointer that rests on a dot is told, one for every point; none where it is empty.
    pub titles: Vec<String>,
}

/// How points are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// A line; with dots too where there are few points.
    Line,
    /// A line without dots.
    Bare,
    /// Dots without a line.
    Dots,
}

/// How large a picture is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// As wide as the page.
    Wide,
    /// Three or four beside each other.
    Small,
    /// As wide as the page, and high.
    Large,
}

/// Where the axis of values starts, and how it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// At 0.
    FromZero,
    /// Around the values; logarithmic where the positive ones span more than twentyfold and others are rare: those (the loss of a step
    /// without weight) are then not drawn.
    Around,
    /// Logarithmic; values that are not positive are not drawn.
    Logarithmic,
}

/// The other axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Across<'a> {
    /// A count, such as that of steps.
    Count,
    /// Logarithmic; what is not positive is not drawn.
    Logarithmic,
    /// Names, at 0, 1, 2 and so on.
    Names(&'a [&'a str]),
}

/// A text beside a point; left out where it would cover another.
#[derive(Debug, Clone, PartialEq)]
pub struct Note {
    /// The point.
    pub at: (f64, f64),
    /// The text.
    pub text: String,
    /// Where it stands.
    pub side: Side,
}

/// Where a text stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// On any side of its point.
    Any,
    /// Left of its point, above or below the line that ends there.
    Line,
}

/// A chart to be drawn.
#[derive(Debug, Clone, Copy)]
pub struct Chart<'a> {
    /// Of the picture.
    pub size: Size,
    /// The axis from left to right.
    pub across: Across<'a>,
    /// The axis of values.
    pub axis: Axis,
    /// What is drawn, the last on top.
    pub lines: &'a [Line],
    /// Texts beside points, the most important first.
    pub notes: &'a [Note],
}

/// The greatest value over the least from which an axis is logarithmic.
const DECADES: f64 = 20.0;
/// Values that are not positive are rare where there is at most one in so many.
const RARE: usize = 20;
/// Points that get a dot of their own.
const DOTS: usize = 40;
/// Of the lines and parts of a chart, in this order. Each is readable on white and on nearly black.
pub const PALETTE: [RGBColor; 8] = [
    RGBColor(37, 122, 222),
    RGBColor(214, 96, 27),
    RGBColor(40, 140, 90),
    RGBColor(150, 90, 215),
    RGBColor(205, 65, 125),
    RGBColor(20, 140, 155),
    RGBColor(150, 118, 20),
    RGBColor(115, 125, 140),
];
const GREY: RGBColor = RGBColor(128, 128, 128);

/// Sizes in pixels of a picture.
struct Paper {
    size: (u32, u32),
    font: u32,
    /// Width of the labels of the axis of values.
    label: u32,
    /// About as many marks as the other axis has.
    marks: u32,
}

impl Size {
    fn paper(self) -> Paper {
        match self {
            Self::Wide => Paper { size: (1800, 520), font: 26, label: 130, marks: 10 },
            Self::Small => Paper { size: (640, 400), font: 24, label: 100, marks: 4 },
            Self::Large => Paper { size: (1080, 620), font: 22, label: 96, marks: 10 },
        }
    }
}

/// An axis of numbers as it is drawn: a logarithmic one is a linear one of logarithms.
struct Scale {
    low: f64,
    high: f64,
    logarithmic: bool,
}

impl Scale {
    fn of_values(axis: Axis, values: &[f64]) -> Option<Self> {
        let (y0, y1) = bounds(values.iter().copied())?;
        let positive = bounds(values.iter().copied().filter(|y| *y > 0.0));
        let logarithmic = match axis {
            Axis::FromZero => None,
            Axis::Around => positive.filter(|(y0, y1)| {
                let others = values.iter().filter(|y| **y <= 0.0).count();
                others * RARE <= values.len() && y1 / y0 > DECADES
            }),
            Axis::Logarithmic => Some(positive?),
        };
        let (low, high) = match (logarithmic, axis) {
            (Some((y0, y1)), _) => widened(y0.log10(), y1.log10()),
            (None, Axis::FromZero) => widened(y0.min(0.0), y1),
            (None, _) => widened(y0, y1),
        };
        Some(Self { low, high, logarithmic: logarithmic.is_some() })
    }

    fn across(across: Across, values: &[f64]) -> Option<Self> {
        let logarithmic = across == Across::Logarithmic;
        let (x0, x1) = match across {
            Across::Names(names) => (-0.2, (names.len() as f64 - 0.8).max(0.2)),
            Across::Count => bounds(values.iter().copied())?,
            Across::Logarithmic => {
                let (x0, x1) = bounds(values.iter().copied().filter(|x| *x > 0.0))?;
                (x0.log10(), x1.log10())
            }
        };
        let (low, high) = if x0 == x1 { (x0 - 0.5, x1 + 0.5) } else { (x0, x1) };
        Some(Self { low, high, logarithmic })
    }

    /// Where a value lies; not finite where it cannot be drawn.
    fn place(&self, value: f64) -> f64 {
        if self.logarithmic { value.log10() } else { value }
    }

    fn value(&self, place: f64) -> f64 {
        if self.logarithmic { 10f64.powf(place) } else { place }
    }

    fn ticks(&self, wanted: u32) -> Vec<f64> {
        if self.logarithmic { log_ticks(self.low, self.high) } else { ticks(self.low, self.high, wanted) }
    }

    fn ruler(&self, ticks: Vec<f64>) -> Ruler {
        Ruler { ends: self.low..self.high, ticks }
    }
}

impl Chart<'_> {
    /// The picture, or `None` when there is no point to draw.
    ///
    /// # Errors
    /// Where the drawing fails, which it does for no values.
    pub fn svg(&self) -> Result<Option<String>> {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let positive = |value: f64| value.is_finite() && value > 0.0;
        let has_logarithms =
            |p: &&(f64, f64)| (self.across != Across::Logarithmic || positive(p.0)) && (self.axis != Axis::Logarithmic || positive(p.1));
        let (xs, ys): (Vec<f64>, Vec<f64>) = points().filter(has_logarithms).copied().unzip();
        let (Some(x), Some(y)) = (Scale::across(self.across, &xs), Scale::of_values(self.axis, &ys)) else { return Ok(None) };
        let Paper { size, font, label, marks } = self.size.paper();
        let (x_ticks, y_ticks) = match self.across {
            Across::Names(names) => ((0..names.len()).map(|i| i as f64).collect(), y.ticks(5)),
            _ => (x.ticks(marks), y.ticks(5)),
        };
        let x_text = |place: &f64| match self.across {
            Across::Names(names) => names.get(place.round() as usize).map_or_else(String::new, |name| (*name).to_owned()),
            Across::Logarithmic if x.value(*place) < 1.0 => number(x.value(*place)),
            _ => count(x.value(*place)),
        };
        let y_text = |place: &f64| number(y.value(*place));
        let mut titles = Vec::new();
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
            let mut chart = ChartBuilder::on(&area)
                .margin(12)
                .margin_right(40)
                .x_label_area_size(font * 2)
                .y_label_area_size(label)
                .build_cartesian_2d(x.ruler(x_ticks), y.ruler(y_ticks))
                .map_err(failed)?;
            chart
                .configure_mesh()
                .light_line_style(TRANSPARENT)
                .bold_line_style(GREY.mix(0.25))
                .axis_style(GREY)
                .label_style(("sans-serif", font))
                .x_labels(20)
                .y_labels(20)
                .x_label_formatter(&x_text)
                .y_label_formatter(&y_text)
                .draw()
                .map_err(failed)?;
            for Line { points, color, width, mark, titles: told } in self.lines {
                let placed = points.iter().map(|&(a, b)| (x.place(a), y.place(b))).enumerate();
                let shown: Vec<_> = placed.filter(|(_, p)| p.0.is_finite() && p.1.is_finite()).collect();
                let places = || shown.iter().map(|(_, place)| *place);
                if *mark != Mark::Dots {
                    chart.draw_series(LineSeries::new(places(), color.stroke_width(*width))).map_err(failed)?;
                }
                if *mark == Mark::Dots || (*mark == Mark::Line && points.len() <= DOTS) {
                    chart.draw_series(places().map(|point| Circle::new(point, width + 3, color.filled()))).map_err(failed)?;
                    titles.extend(shown.iter().map(|(i, _)| told.get(*i).map_or("", String::as_str)));
                }
            }
            let pixel = |&(a, b): &(f64, f64)| {
                let place = (x.place(a), y.place(b));
                (place.0.is_finite() && place.1.is_finite()).then(|| chart.backend_coord(&place))
            };
            let mut taken: Vec<Covered> = Vec::new();
            for Line { points, mark, .. } in self.lines.iter().filter(|_| !self.notes.is_empty()) {
                let places: Vec<_> = points.iter().filter_map(pixel).collect();
                match mark {
                    Mark::Dots => taken.extend(places.into_iter().map(|place| Covered::around(place, 6))),
                    Mark::Line | Mark::Bare => taken.extend(places.windows(2).flat_map(|ends| Covered::along(ends[0], ends[1]))),
                }
            }
            for Note { at, text, side } in self.notes {
                let Some(point) = pixel(at) else { continue };
                let free = |covered: &Covered| {
                    let inside = covered.left > label as i32 && covered.right < size.0 as i32 && covered.top > 0;
                    inside && !taken.iter().any(|other| other.meets(covered))
                };
                if let Some(covered) = Covered::beside(point, text, font, *side).into_iter().find(free) {
                    let corner = (covered.left, covered.top);
                    area.draw(&Text::new(text.clone(), corner, ("sans-serif", font))).map_err(failed)?;
                    taken.push(covered);
                }
            }
            area.present().map_err(failed)?;
        }
        Ok(Some(titled(&text, "circle", &titles)))
    }
}

/// Pixels that something is drawn on.
struct Covered {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
}

impl Covered {
    fn around((x, y): (i32, i32), reach: i32) -> Self {
        Self { left: x - reach, top: y - reach, right: x + reach, bottom: y + reach }
    }

    /// A line from one point to another, in small pieces.
    fn along((x0, y0): (i32, i32), (x1, y1): (i32, i32)) -> impl Iterator<Item = Self> {
        const PIECE: i32 = 6;
        let pieces = ((x1 - x0).abs().max((y1 - y0).abs()) / PIECE).max(1);
        (0..=pieces).map(move |i| Self::around((x0 + (x1 - x0) * i / pieces, y0 + (y1 - y0) * i / pieces), PIECE / 2))
    }

    /// The places of a text around a point, the best first.
    fn beside((x, y): (i32, i32), text: &str, font: u32, side: Side) -> Vec<Self> {
        // Nobody here knows the reader's font: letters of a usual one are not quite half as wide as the font is high.
        let (width, height) = ((text.chars().count() as f64 * 0.46 * f64::from(font)).ceil() as i32, font as i32);
        let corners = match side {
            Side::Any => {
                vec![(x + 10, y - height / 2), (x - 10 - width, y - height / 2), (x - width / 2, y - height - 8), (x - width / 2, y + 8)]
            }
            Side::Line => vec![(x - width, y - height - 4), (x - width, y + 4)],
        };
        corners.into_iter().map(|(left, top)| Self { left, top, right: left + width, bottom: top + height }).collect()
    }

    fn meets(&self, other: &Self) -> bool {
        self.left < other.right && other.left < self.right && self.top < other.bottom && other.top < self.bottom
    }
}

/// The picture with a title in every element of that name, in the order in which they were drawn; the drawing crate has none.
pub fn titled(svg: &str, element: &str, titles: &[&str]) -> String {
    let opening = format!("<{element} ");
    let mut titles = titles.iter();
    let mut text = String::with_capacity(svg.len());
    for line in svg.split_inclusive('\n') {
        let title = if line.starts_with(&opening) { titles.next().filter(|title| !title.is_empty()) } else { None };
        match (title, line.trim_end().strip_suffix("/>")) {
            (Some(title), Some(tag)) => text.extend([tag, "><title>", &escape(title), "</title></", element, ">\n"]),
            _ => text.push_str(line),
        }
    }
    text
}

/// An axis with its marks.
struct Ruler {
    ends: Range<f64>,
    ticks: Vec<f64>,
}

impl Ranged for Ruler {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        // Halves: the difference of two large numbers may not be finite.
        let share = (value / 2.0 - self.ends.start / 2.0) / (self.ends.end / 2.0 - self.ends.start / 2.0);
        limit.0 + (f64::from(limit.1 - limit.0) * share).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _: Hint) -> Vec<f64> {
        self.ticks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.ends.clone()
    }
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Input(format!("chart: {error}"))
}

fn bounds(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|x| x.is_finite()).fold(None, |found, x| {
        let (low, high) = found.unwrap_or((x, x));
        Some((low.min(x), high.max(x)))
    })
}

/// With some room above and, unless it starts at 0, below.
fn widened(low: f64, high: f64) -> (f64, f64) {
    let room = ((high / 2.0 - low / 2.0) * 0.1).max(high.abs().max(low.abs()) * 1e-3).max(1e-12);
    (if low == 0.0 { 0.0 } else { low - room }, high + room)
}

/// Round numbers in a range, about `wanted` of them.
fn ticks(low: f64, high: f64, wanted: u32) -> Vec<f64> {
    let rough = (high / f64::from(wanted)) - (low / f64::from(wanted));
    let magnitude = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * magnitude).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let first = (low / step).ceil();
    // Multiples of the step, not sums of it: 0.3 and not 0.30000000000000004 times ten.
    (0..=2 * wanted).map(|i| (first + f64::from(i)) * step).take_while(|tick| *tick <= high * (1.0 + 1e-12)).collect()
}

/// Logarithms of round numbers in a range of logarithms.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let decades = high - low;
    let digits: &[f64] = if decades < 2.5 { &[1.0, 2.0, 5.0] } else { &[1.0] };
    let stride = (decades / 6.0).ceil().max(1.0) as usize;
    let exponents = (low.floor() as i32..=high.ceil() as i32).step_by(stride);
    let all = exponents.flat_map(|e| digits.iter().map(move |d| f64::from(e) + d.log10()));
    all.filter(|tick| (low..=high).contains(tick) && 10f64.powf(*tick).is_normal()).collect()
}

/// A count: `500`, `20k`, `1.5M`.
pub fn count(x: f64) -> String {
    match x.abs() {
        0.0..1e4 => trimmed(x, 1),
        1e4..1e6 => trimmed(x / 1e3, 1) + "k",
        1e6..1e9 => trimmed(x / 1e6, 2) + "M",
        _ => format!("{x:.1e}"),
    }
}

/// A value in at most about four digits.
pub fn number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".into(),
        1e-3..1.0 => trimmed(x, 4),
        1.0..100.0 => trimmed(x, 2),
        100.0..1e5 => trimmed(x, 0),
        _ => {
            let text = format!("{x:.1e}");
            text.replace(".0e", "e")
        }
    }
}

fn trimmed(x: f64, decimals: usize) -> String {
    let text = format!("{x:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Line {
        Line { points: points.to_vec(), color: BLUE, width: 2, mark: Mark::Line, titles: Vec::new() }
    }

    fn drawn(across: Across, axis: Axis, points: &[(f64, f64)]) -> Option<String> {
        Chart { size: Size::Small, across, axis, lines: &[line(points)], notes: &[] }.svg().unwrap()
    }

    fn chart(points: &[(f64, f64)], axis: Axis) -> String {
        drawn(Across::Count, axis, points).unwrap()
    }

    /// The texts of the labels.
    fn labels(svg: &str) -> Vec<&str> {
        let mut lines = svg.lines();
        let mut found = Vec::new();
        while let Some(line) = lines.next() {
            if line.starts_with("<text") {
                found.extend(lines.next());
            }
        }
        found
    }

    #[test]
    fn axes_have_round_numbers() {
        assert_eq!(ticks(0.0, 1.0, 5), [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(ticks(7.0, 1003.0, 4), [500.0, 1000.0]);
        let linear = chart(&[(1.0, 0.9), (100.0, 1.1)], Axis::Around);
        assert!(labels(&linear).contains(&"1.05") && labels(&linear).contains(&"50"), "{:?}", labels(&linear));
        let logarithmic = chart(&[(1.0, 25.0), (100.0, 0.3)], Axis::Around);
        assert!(["0.5", "1", "20"].iter().all(|l| labels(&logarithmic).contains(l)), "{:?}", labels(&logarithmic));
        let mut falling: Vec<(f64, f64)> = (0..50).map(|i| (f64::from(i), 0.8f64.powi(i))).collect();
        falling[0].1 = 0.0;
        assert!(labels(&chart(&falling, Axis::Around)).contains(&"0.01"), "one zero does not spoil a logarithmic axis");
        let shares = chart(&[(1.0, 25.0), (100.0, 0.3)], Axis::FromZero);
        assert!(["0", "10", "20"].iter().all(|l| labels(&shares).contains(l)), "{:?}", labels(&shares));
    }

    #[test]
    fn any_values_make_a_chart() {
        for points in [
            vec![(5.0, 2.0)],
            vec![(1.0, 0.0), (2.0, 0.0)],
            vec![(1.0, -1e308), (2.0, 1e308)],
            vec![(1.0, 1e-300), (2.0, 1e300)],
            vec![(0.0, -3.0), (u64::MAX as f64, 3.0)],
            vec![(1.0, 1.0), (2.0, 1.0 + f64::EPSILON)],
            (0..100_000).map(|i| (f64::from(i), f64::from(i).sin())).collect(),
        ] {
            for axis in [Axis::Around, Axis::FromZero] {
                let chart = chart(&points, axis);
                assert!(chart.starts_with("<svg ") && chart.trim_end().ends_with("</svg>"));
                assert!(!chart.contains("NaN") && !chart.contains("inf"), "{:?}", &points[0]);
            }
        }
        assert!(drawn(Across::Count, Axis::Around, &[]).is_none());
    }

    #[test]
    fn a_logarithmic_axis_leaves_out_what_has_no_logarithm() {
        let points = [(1.0, 10.0), (0.0, 20.0), (256.0, f64::NAN), (64.0, -1.0), (256.0, 1000.0)];
        let chart = drawn(Across::Logarithmic, Axis::Logarithmic, &points).unwrap();
        assert_eq!(chart.matches("<circle ").count(), 2);
        assert!(["1", "10", "100", "1000"].iter().all(|l| labels(&chart).contains(l)), "{:?}", labels(&chart));
        assert!(drawn(Across::Logarithmic, Axis::Logarithmic, &[(1.0, 0.0), (f64::INFINITY, 1.0)]).is_none());
    }

    #[test]
    fn names_stand_below_their_points() {
        let chart = drawn(Across::Names(&["p50", "p99", "max"]), Axis::Logarithmic, &[(0.0, 5.0), (2.0, 50.0)]).unwrap();
        assert!(["p50", "p99", "max"].iter().all(|l| labels(&chart).contains(l)), "{:?}", labels(&chart));
    }

    #[test]
    fn a_dot_says_what_it_is_and_a_note_covers_none_before_it() {
        let titles = vec!["<b>first".to_owned(), "not drawn".to_owned(), "third".to_owned()];
        let lines = [Line { titles, mark: Mark::Dots, ..line(&[(1.0, 1.0), (2.0, f64::NAN), (3.0, 9.0)]) }];
        let note = |at, text: &str| Note { at, text: text.to_owned(), side: Side::Any };
        let notes = [note((1.0, 1.0), "one"), note((3.0, 9.0), "nine & more"), note((1.0, 1.0), &"too long".repeat(30))];
        let chart = Chart { size: Size::Large, across: Across::Count, axis: Axis::Around, lines: &lines, notes: &notes };
        let svg = chart.svg().unwrap().unwrap();
        assert!(svg.contains("><title>&lt;b&gt;first</title></circle>") && svg.contains("<title>third</title>"), "{svg}");
        assert!(!svg.contains("not drawn") && !svg.contains("stroke=\"#0000FF\""), "{svg}");
        assert!(labels(&svg).contains(&"nine &amp; more") && !svg.contains("too long"), "{svg}");
    }

    #[test]
    fn no_note_lies_on_a_line() {
        let lines = [Line { mark: Mark::Bare, ..line(&[(1.0, 1.0), (9.0, 9.0)]) }];
        let note = |at, side| Note { at, text: "beside".to_owned(), side };
        let notes = [note((5.0, 5.0), Side::Any), note((9.0, 9.0), Side::Line)];
        let chart = Chart { size: Size::Large, across: Across::Count, axis: Axis::Around, lines: &lines, notes: &notes };
        let svg = chart.svg().unwrap().unwrap();
        let places: Vec<(f64, f64)> = svg
            .lines()
            .zip(svg.lines().skip(1))
            .filter(|(_, text)| *text == "beside")
            .map(|(tag, _)| {
                let number = |name: &str| tag.split(name).nth(1).unwrap().split('"').next().unwrap().parse::<f64>().unwrap();
                (number("x=\""), number("y=\""))
            })
            .collect();
        // Of the first, every side touches the line; the second stands above it, left of its end.
        assert_eq!(places.len(), 1, "{places:?}");
        assert!(places[0].0 < 1000.0 && places[0].1 < 100.0, "{places:?}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 2e-3, 0.25, 3e-4, 1.5e-7, 42.0, 1234.0, 2e7].map(number),
            ["0", "0.002", "0.25", "3e-4", "1.5e-7", "42", "1234", "2e7"]
        );
        assert_eq!([0.0, 500.0, 20_000.0, 1_500_000.0].map(count), ["0", "500", "20k", "1.5M"]);
    }
}

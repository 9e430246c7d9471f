//! A chart as SVG: lines over the steps. Colours that must follow the reader's light or dark mode are left to the page's style sheet.

use candle_models::{Error, Result};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;
use std::ops::Range;

/// A line, or dots joined by it where there are few points.
pub(super) struct Line {
    pub(super) points: Vec<(f64, f64)>,
    pub(super) color: RGBColor,
    /// In pixels of the picture, which is shown at about half its size.
    pub(super) width: u32,
}

/// How large a picture is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Size {
    /// As wide as the page.
    Wide,
    /// Three or four beside each other.
    Small,
}

/// Where the axis of values starts, and how it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Axis {
    /// At 0.
    FromZero,
    /// Around the values; logarithmic where the positive ones span more than [`DECADES`] and others are rare: those (the loss of a step
    /// without weight) are then not drawn.
    Around,
}

/// The greatest value over the least from which an axis is logarithmic.
const DECADES: f64 = 20.0;
/// Values that are not positive are rare where there is at most one in so many.
const RARE: usize = 20;
/// Points that get a dot of their own.
const DOTS: usize = 40;
const GREY: RGBColor = RGBColor(128, 128, 128);

/// The chart, or `None` when there is no point.
pub(super) fn svg(size: Size, axis: Axis, lines: &[Line]) -> Result<Option<String>> {
    let points = || lines.iter().flat_map(|line| &line.points);
    let Some((x0, x1)) = bounds(points().map(|p| p.0)) else { return Ok(None) };
    let Some((y0, y1)) = bounds(points().map(|p| p.1)) else { return Ok(None) };
    let positive = bounds(points().map(|p| p.1).filter(|y| *y > 0.0)).filter(|_| {
        let others = points().filter(|p| p.1 <= 0.0).count();
        axis == Axis::Around && others * RARE <= points().count()
    });
    let logarithmic = positive.filter(|(y0, y1)| y1 / y0 > DECADES);
    let (low, high) = match (logarithmic, axis) {
        (Some((y0, y1)), _) => widened(y0.log10(), y1.log10()),
        (None, Axis::FromZero) => widened(y0.min(0.0), y1),
        (None, Axis::Around) => widened(y0, y1),
    };
    let logarithmic = logarithmic.is_some();
    // The coordinates are those of the paper: a logarithmic axis is a linear one of logarithms.
    let place = |y: f64| if logarithmic { y.log10() } else { y };
    let y_ticks = if logarithmic { log_ticks(low, high) } else { ticks(low, high, 5) };
    let y_text = |y: &f64| number(if logarithmic { 10f64.powf(*y) } else { *y });
    let x_text = |x: &f64| count(*x);
    let (paper, font, label) = match size {
        Size::Wide => ((1800, 520), 26, 130),
        Size::Small => ((640, 400), 24, 100),
    };

    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, paper).into_drawing_area();
        let (x0, x1) = if x0 == x1 { (x0 - 0.5, x1 + 0.5) } else { (x0, x1) };
        let x_ticks = ticks(x0, x1, if size == Size::Wide { 10 } else { 4 });
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .margin_right(40)
            .x_label_area_size(font * 2)
            .y_label_area_size(label)
            .build_cartesian_2d(Ruler { ends: x0..x1, ticks: x_ticks }, Ruler { ends: low..high, ticks: y_ticks })
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
        for Line { points, color, width } in lines {
            let shown = || points.iter().map(|&(x, y)| (x, place(y))).filter(|p| p.1.is_finite());
            chart.draw_series(LineSeries::new(shown(), color.stroke_width(*width))).map_err(failed)?;
            if points.len() <= DOTS {
                chart.draw_series(shown().map(|point| Circle::new(point, width + 3, color.filled()))).map_err(failed)?;
            }
        }
        area.present().map_err(failed)?;
    }
    Ok(Some(text))
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

/// A number of steps: `500`, `20k`, `1.5M`.
pub(super) fn count(x: f64) -> String {
    match x.abs() {
        0.0..1e4 => trimmed(x, 1),
        1e4..1e6 => trimmed(x / 1e3, 1) + "k",
        1e6..1e9 => trimmed(x / 1e6, 2) + "M",
        _ => format!("{x:.1e}"),
    }
}

/// A value in at most about four digits.
pub(super) fn number(x: f64) -> String {
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

    fn chart(points: &[(f64, f64)], axis: Axis) -> String {
        svg(Size::Small, axis, &[Line { points: points.to_vec(), color: BLUE, width: 2 }]).unwrap().unwrap()
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
        assert!(svg(Size::Wide, Axis::Around, &[]).unwrap().is_none());
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

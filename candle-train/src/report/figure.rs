//! The figures of pages about models: lines beside their names, solid for what was learnt, dashed for what it is compared with.

use candle_models::{Error, Result};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::ops::Range;

/// Grid and axes.
pub const GREY: RGBColor = RGBColor(128, 128, 128);
/// Colours that people who see fewer of them tell apart (Okabe and Ito); then again from the first.
pub const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(148, 103, 59),
];
/// Of all texts.
pub const FONT: (&str, i32) = ("sans-serif", 14);
/// Width of a plot and of the legend beside it.
pub const WIDTHS: (u32, u32) = (640, 340);
/// Height of a plot.
pub const HEIGHT: u32 = 460;
/// What is drawn on.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A line of a chart.
pub struct Line {
    /// What the legend says.
    pub name: String,
    /// Dashed where nothing was learnt.
    pub dashed: bool,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

/// The axes of a chart.
pub struct Axes {
    /// From left to right, and what it is.
    pub across: (Range<f64>, &'static str),
    /// Upwards, and what it is.
    pub up: (Range<f64>, String),
}

/// The colour of a line by its number.
pub fn colour(number: usize) -> RGBColor {
    COLOURS[number % COLOURS.len()]
}

/// A drawing that failed.
pub fn failed(error: impl std::fmt::Display) -> Error {
    Error::Input(format!("figure: {error}"))
}

/// Draws lines.
///
/// # Errors
/// If the drawing crate fails.
pub fn chart(axes: &Axes, lines: &[Line]) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTHS.0 + WIDTHS.1, HEIGHT)).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        let (plot, beside) = area.split_horizontally(WIDTHS.0);
        let mut chart = ChartBuilder::on(&plot)
            .margin(12)
            .x_label_area_size(46)
            .y_label_area_size(60)
            .build_cartesian_2d(axes.across.0.clone(), axes.up.0.clone())
            .map_err(failed)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GREY.mix(0.3))
            .axis_style(GREY)
            .label_style(FONT)
            .x_desc(axes.across.1)
            .y_desc(&axes.up.1)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .draw()
            .map_err(failed)?;
        for (number, Line { dashed, points, .. }) in lines.iter().enumerate() {
            let (points, style) = (points.iter().copied(), colour(number).stroke_width(2));
            if *dashed {
                chart.draw_series(DashedLineSeries::new(points, 6, 4, style)).map_err(failed)?;
            } else {
                chart.draw_series(LineSeries::new(points.clone(), style)).map_err(failed)?;
                chart.draw_series(points.map(|point| Circle::new(point, 3, colour(number).filled()))).map_err(failed)?;
            }
        }
        legend(&beside, lines.iter().map(|line| (line.name.clone(), line.dashed)))?;
        area.present().map_err(failed)?;
    }
    Ok(text)
}

/// Names beside samples of their lines.
///
/// # Errors
/// If the drawing crate fails.
pub fn legend(area: &Area, names: impl Iterator<Item = (String, bool)>) -> Result<()> {
    for (number, (name, dashed)) in names.enumerate() {
        let (y, style) = (24 + 22 * number as i32, colour(number).stroke_width(2));
        let ends = [(8, y), (36, y)];
        if dashed {
            area.draw(&plotters::element::DashedPathElement::new(ends, 6, 4, style)).map_err(failed)?;
        } else {
            area.draw(&PathElement::new(ends.to_vec(), style)).map_err(failed)?;
        }
        area.draw(&Text::new(name, (44, y - 7), FONT)).map_err(failed)?;
    }
    Ok(())
}

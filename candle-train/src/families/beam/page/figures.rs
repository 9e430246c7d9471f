//! The page's figures as SVG.

use super::measure::Row;
use super::{MEASUREMENTS_SNR_DB, Model, SNRS_DB};
use crate::report::figure::{Area, Axes, FONT, GREY, Line, WIDTHS, chart, colour, failed, legend};
use candle_models::Result;
use candle_models::beam::complex::inner;
use candle_models::beam::metrics::SATISFIED_DB;
use plotters::prelude::*;
use std::ops::Range;

/// The least gain of a pattern that is shown, in dB.
const PATTERN_FLOOR_DB: f64 = -30.0;
/// Points of all patterns together: they keep a file well below 200 KB.
const PATTERN_POINTS: usize = 16_000;

/// Gain against SNR.
pub(super) fn gain(rows: &[Row]) -> Result<String> {
    let lines = by_snr(rows, |summary| summary.mean_db);
    chart(&Axes { across: snrs(), up: (around(&lines), "mean of 10 log10 G (dB)".into()) }, &lines)
}

/// Satisfaction against SNR.
pub(super) fn satisfaction(rows: &[Row]) -> Result<String> {
    let lines = by_snr(rows, |summary| summary.satisfaction);
    let what = format!("links with G and SNR of {SATISFIED_DB} dB");
    chart(&Axes { across: snrs(), up: (0.0..1.05, what) }, &lines)
}

/// Gain against the number of measurements.
pub(super) fn measurements(rows: &[Row]) -> Result<String> {
    let of = |row: &Row| {
        let points = row.model.as_ref()?.by_measurements.iter().map(|(t, summary)| (*t as f64, summary.mean_db)).collect();
        Some(Line { name: row.name.clone(), dashed: false, points })
    };
    let lines: Vec<Line> = rows.iter().filter_map(of).collect();
    let most = lines.iter().flat_map(|line| &line.points).fold(2.0, |most: f64, (t, _)| most.max(*t));
    let what = format!("mean of 10 log10 G at {MEASUREMENTS_SNR_DB} dB (dB)");
    chart(&Axes { across: (0.0..most + 1.0, "measurements"), up: (around(&lines), what) }, &lines)
}

fn snrs() -> (Range<f64>, &'static str) {
    (f64::from(SNRS_DB[0])..f64::from(SNRS_DB[SNRS_DB.len() - 1]), "SNR (dB)")
}

fn by_snr(rows: &[Row], value: impl Fn(&candle_models::beam::Summary) -> f64) -> Vec<Line> {
    let points = |row: &Row| SNRS_DB.iter().zip(&row.by_snr).map(|(snr, summary)| (f64::from(*snr), value(summary))).collect();
    rows.iter().map(|row| Line { name: row.name.clone(), dashed: row.model.is_none(), points: points(row) }).collect()
}

/// A range with the values of all lines and some room.
fn around(lines: &[Line]) -> Range<f64> {
    let values = || lines.iter().flat_map(|line| &line.points).map(|point| point.1);
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
    low - 1.0..high + 1.0
}

/// Patterns of learned codebooks, a half disc for each model: azimuth around it, broadside up, gain in dB from its middle outwards.
pub(super) fn patterns(models: &[&Model]) -> Result<String> {
    let beams: usize = models.iter().map(|model| model.beam.config.codebook.count()).sum();
    let points = (PATTERN_POINTS / beams).clamp(2, 361);
    let mut text = String::new();
    {
        let size = (WIDTHS.0 + WIDTHS.1 / 2, 380 * models.len() as u32);
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        area.fill(&WHITE).map_err(failed)?;
        for (model, panel) in models.iter().zip(area.split_evenly((models.len(), 1))) {
            pattern(model, points, &panel)?;
        }
        area.present().map_err(failed)?;
    }
    Ok(text)
}

fn pattern(Model { name, beam }: &Model, points: usize, area: &Area) -> Result<()> {
    let (plot, beside) = area.split_horizontally(WIDTHS.0);
    let mut chart =
        ChartBuilder::on(&plot).margin(8).caption(name, ("sans-serif", 18)).build_cartesian_2d(-1.15..1.15, -0.1..1.1).map_err(failed)?;
    let azimuths = |count: usize| (0..count).map(move |i| (i as f64 / (count - 1) as f64 - 0.5) * std::f64::consts::PI);
    let at = |radius: f64, azimuth: f64| (radius * azimuth.sin(), radius * azimuth.cos());
    let radius = |db: f64| (1.0 - db / PATTERN_FLOOR_DB).max(0.0);
    for db in [-20.0, -10.0, 0.0] {
        chart.draw_series(LineSeries::new(azimuths(91).map(|phi| at(radius(db), phi)), GREY.mix(0.4))).map_err(failed)?;
        let (x, _) = at(radius(db), std::f64::consts::FRAC_PI_2);
        chart.draw_series([Text::new(format!("{db} dB"), (x - 0.05, -0.02), FONT)]).map_err(failed)?;
    }
    for degrees in (-90..=90).step_by(30) {
        let azimuth = f64::from(degrees).to_radians();
        chart.draw_series(LineSeries::new([(0.0, 0.0), at(1.0, azimuth)], GREY.mix(0.4))).map_err(failed)?;
        let (x, y) = at(1.06, azimuth);
        chart.draw_series([Text::new(format!("{degrees}°"), (x - 0.03, y + 0.02), FONT)]).map_err(failed)?;
    }
    let array = &beam.config.channel.transmit;
    let swept = beam.swept()?.to_vec2::<f32>()?;
    let mut steering = vec![0.0; 2 * array.elements()];
    for (number, beam) in swept.iter().enumerate() {
        let mut line = Vec::with_capacity(points);
        for azimuth in azimuths(points) {
            array.steering(azimuth, 0.0, &mut steering);
            let [re, im] = inner(&steering, beam).map(f64::from);
            let db = 10.0 * ((re * re + im * im) / array.elements() as f64).max(1e-20).log10();
            line.push(at(radius(db), azimuth));
        }
        chart.draw_series(LineSeries::new(line, colour(number).stroke_width(1))).map_err(failed)?;
    }
    // As many as there is room for.
    legend(&beside, (0..swept.len().min(15)).map(|number| (format!("beam {number}"), false)))
}

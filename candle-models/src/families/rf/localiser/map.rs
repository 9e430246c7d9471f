//! A map to look at: receivers, where the emitter may be, and where it is if that is known.

use super::{Heard, Mixture, UNIT_KM};
use crate::rf::geometry::Place;
use std::fmt::Write;

/// Pixels across, and cells of the density across.
const WIDTH: f64 = 640.0;
const CELLS: usize = 96;
/// How far the map reaches beyond what is on it, km.
const MARGIN: f64 = 30.0;
/// Shares of the greatest density at which the shading gets darker.
const SHADES: [f64; 5] = [0.02, 0.1, 0.25, 0.5, 0.8];

/// A drawing of a mixture on the plane around `middle`: darker where the emitter is more likely, a triangle for each receiver with what it heard, a circle at
/// the mixture's mean, a cross at the truth.
///
/// ```
/// use candle_models::rf::geometry::Place;
/// use candle_models::rf::localiser::{Heard, Mixture, map_svg};
///
/// # fn main() -> candle_models::Result<()> {
/// let middle = Place::new(45.0, 8.0, 300.0);
/// let heard = [Heard { receiver: Place::new(45.1, 7.8, 600.0), power_dbm: -80.0, snr_db: 40.0, frequency_offset_hz: 3.0 }];
/// let mixture = Mixture::of(&[0.0], &[0.2, 0.1], &[1.0, 0.0, 1.0])?;
/// assert!(map_svg(&middle, &heard, &mixture, Some(&middle)).starts_with("<svg"));
/// # Ok(())
/// # }
/// ```
pub fn map_svg(middle: &Place, heard: &[Heard], mixture: &Mixture, truth: Option<&Place>) -> String {
    let mean = mixture.mean().map(|x| x * UNIT_KM);
    let places: Vec<[f64; 2]> = heard.iter().map(|one| middle.plane_km(&one.receiver)).collect();
    let truth = truth.map(|place| middle.plane_km(place));
    let all = || places.iter().copied().chain([mean]).chain(truth);
    let range = |i: usize| all().fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], at| [low.min(at[i]), high.max(at[i])]);
    let [x, y] = [range(0), range(1)].map(|[low, high]| [low - MARGIN, high + MARGIN]);
    let scale = WIDTH / (x[1] - x[0]);
    let height = (y[1] - y[0]) * scale;
    let at = |[east, north]: [f64; 2]| [(east - x[0]) * scale, (y[1] - north) * scale];
    let cell = WIDTH / CELLS as f64;
    let rows = (height / cell).ceil() as usize;
    let density = |column: usize, row: usize| {
        let [east, north] = [x[0] + (column as f64 + 0.5) * cell / scale, y[1] - (row as f64 + 0.5) * cell / scale];
        mixture.log_density([east / UNIT_KM, north / UNIT_KM])
    };
    let cells: Vec<f64> = (0..rows).flat_map(|row| (0..CELLS).map(move |column| density(column, row))).collect();
    let most = cells.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH:.0} {height:.0}\" width=\"{WIDTH:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (i, log) in cells.iter().enumerate() {
        let shade = SHADES.iter().filter(|share| (log - most).exp() >= **share).count();
        if shade > 0 {
            let (left, top, opacity) = ((i % CELLS) as f64 * cell, (i / CELLS) as f64 * cell, 0.15 * shade as f64);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{cell:.2}\" height=\"{cell:.2}\" fill=\"#1663a6\" opacity=\"{opacity:.2}\"/>"
            );
        }
    }
    for (one, place) in heard.iter().zip(&places) {
        let [x, y] = at(*place);
        let _ = writeln!(text, "<path d=\"M{x:.1} {:.1}l6 11h-12z\" fill=\"#222\"/>", y - 7.0);
        let _ = writeln!(text, "<text x=\"{x:.1}\" y=\"{:.1}\">{:.0} dBm</text>", y + 17.0, one.power_dbm);
    }
    let [x, y] = at(mean);
    let _ = writeln!(text, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"6\" fill=\"none\" stroke=\"#c22\" stroke-width=\"2\"/>");
    if let Some([x, y]) = truth.map(at) {
        let _ = writeln!(text, "<path d=\"M{:.1} {:.1}l12 12m0 -12l-12 12\" stroke=\"#080\" stroke-width=\"2.5\"/>", x - 6.0, y - 6.0);
    }
    let length = 50.0 * scale;
    let _ = writeln!(text, "<path d=\"M14 {:.1}h{length:.1}\" stroke=\"#222\"/>", height - 14.0);
    let _ = writeln!(text, "<text x=\"{:.1}\" y=\"{:.1}\">50 km</text>\n</svg>", 14.0 + length / 2.0, height - 20.0);
    text
}

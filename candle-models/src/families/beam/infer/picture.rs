//! A picture of one alignment: what was measured with, what that left to believe, and the beams that were decided on.

use super::episode::Episode;
use crate::Result;
use crate::families::beam::baselines::{Estimator, Measured, Transmits};
use crate::families::beam::channel::noise_power;
use crate::families::beam::complex::{inner_f64, squared_norm};
use crate::families::beam::metrics::decibels;
use crate::families::beam::{Array, Codebook, Link};
use crate::html;
use crate::random::Random;
use std::fmt::Write as _;

/// The lowest gain that a pattern shows, in dB below that of a beam that points there.
const FLOOR_DB: f64 = -20.0;
/// Pixels from one measurement's pattern to the next, and of a decided beam's.
const ROW: [f64; 2] = [26.0, 56.0];
/// Pixels of a pattern's width, and of a field of directions.
const WIDTHS: [f64; 2] = [400.0, 184.0];
/// Where patterns of receive and transmit beams begin.
const COLUMNS: [f64; 2] = [130.0, 585.0];

/// One episode, and who knows what its measurements say.
pub struct Scene<'a> {
    pub number: usize,
    pub snr_db: f32,
    /// Receive array, transmit array.
    pub arrays: [&'a Array; 2],
    pub swept: &'a Codebook,
    /// The number of the beam that each measurement was sent with.
    pub sent: &'a [usize],
    pub episode: &'a Episode,
    /// The channel at the last measurement, where it is known, and whether its paths are those that it was drawn with.
    pub channel: Option<(Link<'a>, bool)>,
    /// Or why nobody does.
    pub estimator: Result<Estimator>,
    pub transmits: Transmits,
}

/// A path: azimuths of arrival and departure in degrees, and its share of the power of all.
type Path = ([f64; 2], f64);

impl Scene<'_> {
    /// The page.
    ///
    /// # Errors
    /// Measurements that are not finite.
    pub fn page(&self) -> Result<String> {
        let title = format!("Episode {} at {} dB", self.number, self.snr_db);
        let style = "body { max-width: 1080px; }\nsvg { width: 100%; height: auto; }\nfigure { margin: 16px 0; }\nfigcaption { color: var(--muted); }\n";
        let gain = self.episode.gain.map_or(String::new(), |gain| format!(" They gain {:.2} dB.", decibels(gain)));
        let known = if self.paths().is_empty() { "" } else { " Dotted lines and crosses are the paths that the channel has." };
        let mut page = html::head(&title, style);
        let _ = write!(
            page,
            "<h1>{}</h1>\n<figure>{}<figcaption>Gain over azimuth of the beams that were measured with, first to last, and below them of the two that were decided on, \
             from {FLOOR_DB} dB to that of a beam that points there.{gain}{known} To the left: the beam that was sent with, and the power that was received.</figcaption></figure>\n",
            html::escape(&title),
            self.patterns()
        );
        match &self.estimator {
            Ok(estimator) => {
                let fields = self.fields(estimator)?;
                let _ = writeln!(
                    page,
                    "<figure>{fields}<figcaption>What the measurements leave to believe: directions of paths in draws of the channel given the first of them, larger where a path has more of \
                     the power; the gain that the best beams for these draws are expected to have{}.</figcaption></figure>",
                    if self.channel.is_some() { ", and the one that they have" } else { "" }
                );
            }
            Err(why) => {
                let _ = writeln!(page, "<p>What its measurements leave to believe is not known: {}.</p>", html::escape(&why.to_string()));
            }
        }
        page.push_str("</body>\n</html>\n");
        Ok(page)
    }

    /// The paths of the channel, where they are known.
    fn paths(&self) -> Vec<Path> {
        let Some((link, true)) = self.channel else { return Vec::new() };
        let width = |vectors: &[f32]| vectors.len() / link.paths();
        let vectors = link.receive.chunks_exact(width(link.receive)).zip(link.transmit.chunks_exact(width(link.transmit)));
        vectors.zip(shares(link.gains)).map(|((receive, transmit), share)| ([receive, transmit].map(azimuth), share)).collect()
    }

    /// Patterns of all beams, below each other.
    fn patterns(&self) -> String {
        let steps = self.sent.len();
        let bottom = 30.0 + steps as f64 * ROW[0] + ROW[1] + 20.0;
        let mut svg =
            format!("<svg viewBox=\"0 0 1000 {:.0}\" role=\"img\" font-size=\"12\" aria-label=\"Patterns of beams\">\n", bottom + 40.0);
        for (column, what) in COLUMNS.iter().zip(["received with", "sent with"]) {
            let _ = writeln!(svg, "<text x=\"{column}\" y=\"14\">{what}</text>");
            for azimuth in (-90..=90).step_by(30) {
                let x = column + WIDTHS[0] * (f64::from(azimuth) + 90.0) / 180.0;
                let _ = writeln!(
                    svg,
                    "<path d=\"M{x:.1} 22V{bottom:.1}\" stroke=\"var(--rule)\"/><text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{azimuth}°</text>",
                    bottom + 16.0
                );
            }
        }
        for (directions, share) in self.paths() {
            for (column, direction) in COLUMNS.iter().zip(directions) {
                let x = column + WIDTHS[0] * (direction + 90.0) / 180.0;
                let _ = writeln!(
                    svg,
                    "<path d=\"M{x:.1} 22V{bottom:.1}\" stroke=\"var(--warn)\" stroke-dasharray=\"2 4\" stroke-width=\"{:.1}\"/>",
                    1.0 + 2.0 * share
                );
            }
        }
        let width = 2 * self.arrays[0].elements();
        for (t, (sent, y)) in self.sent.iter().zip(self.episode.measurements.chunks_exact(2)).enumerate() {
            let base = 30.0 + (t + 1) as f64 * ROW[0];
            let _ = writeln!(svg, "<text x=\"0\" y=\"{base:.1}\">{t}: beam {sent}, {:.1} dB</text>", decibels(y[0] * y[0] + y[1] * y[1]));
            for ((column, array), beam) in
                COLUMNS.iter().zip(self.arrays).zip([&self.episode.beams[t * width..][..width], self.swept.beam(*sent)])
            {
                ridge(&mut svg, [*column, base], ROW[0] - 2.0, &pattern(array, beam), "var(--muted)");
            }
        }
        let base = 30.0 + steps as f64 * ROW[0] + ROW[1] + 10.0;
        let index = self.episode.index.map_or(String::new(), |index| format!(": beam {index}"));
        let _ = writeln!(svg, "<text x=\"0\" y=\"{base:.1}\">decided{index}</text>");
        for ((column, array), beam) in COLUMNS.iter().zip(self.arrays).zip([&self.episode.receive, &self.episode.transmit]) {
            ridge(&mut svg, [*column, base], ROW[1] - 4.0, &pattern(array, beam), "var(--link)");
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Directions that are left after more and more measurements.
    fn fields(&self, estimator: &Estimator) -> Result<String> {
        let steps = self.sent.len();
        let mut counts: Vec<usize> = [1, 2, 4, 8].into_iter().filter(|count| *count < steps).collect();
        counts.push(steps);
        let [size, gap] = [WIDTHS[1], 14.0];
        let mut svg = format!(
            "<svg viewBox=\"0 0 1000 {:.0}\" role=\"img\" font-size=\"12\" aria-label=\"Directions that the measurements leave\">\n",
            size + 76.0
        );
        let noise = noise_power(self.snr_db)?;
        for (i, count) in counts.into_iter().enumerate() {
            let (left, top) = (i as f64 * (size + gap) + 4.0, 36.0);
            let place = |[arrival, departure]: [f64; 2]| [left + size * (arrival + 90.0) / 180.0, top + size * (90.0 - departure) / 180.0];
            let beams = &self.episode.beams[..count * self.episode.receive.len()];
            let measured = Measured { beams, sent: &self.sent[..count], values: &self.episode.measurements[..2 * count], noise };
            let random = Random::new(count as u64).stream("picture");
            let posterior = estimator.posterior(&measured, random)?;
            let found = estimator.beams(&posterior, self.transmits)?;
            let gains = self
                .channel
                .map_or(String::new(), |(link, _)| format!(", gains {:.1}", decibels(link.gain(&found.receive, &found.transmit))));
            let plural = if count == 1 { "" } else { "s" };
            let _ = writeln!(
                svg,
                "<text x=\"{left:.1}\" y=\"14\">{count} measurement{plural}</text><text x=\"{left:.1}\" y=\"29\">expects {:.1} dB{gains}</text>\n\
                 <rect x=\"{left:.1}\" y=\"{top}\" width=\"{size}\" height=\"{size}\" fill=\"none\" stroke=\"var(--rule)\"/>",
                found.expected_db
            );
            let mut dots = [(5.0, 0.5, String::new()), (3.0, 0.15, String::new()), (1.5, 0.0, String::new())];
            let degrees = |angles: &[f32]| f64::from(angles[0].to_degrees());
            let parameters = posterior.parameters();
            let directions = parameters.arrival.chunks_exact(2).zip(parameters.departure.chunks_exact(2));
            let directions: Vec<[f64; 2]> = directions.map(|(arrival, departure)| [degrees(arrival), degrees(departure)]).collect();
            for (directions, gains) in directions.chunks_exact(parameters.paths).zip(parameters.gains.chunks_exact(2 * parameters.paths)) {
                for (direction, share) in directions.iter().zip(shares(gains)) {
                    let [x, y] = place(*direction);
                    if let Some((_, _, path)) = dots.iter_mut().find(|(_, least, _)| share >= *least) {
                        let _ = write!(path, "M{x:.0} {y:.0}h0");
                    }
                }
            }
            for (width, _, path) in dots.iter().filter(|(_, _, path)| !path.is_empty()) {
                let _ = writeln!(
                    svg,
                    "<path d=\"{path}\" fill=\"none\" stroke=\"var(--link)\" stroke-opacity=\"0.35\" stroke-linecap=\"round\" stroke-width=\"{width}\"/>"
                );
            }
            for (directions, share) in self.paths() {
                let ([x, y], arm) = (place(directions), 4.0 + 6.0 * share);
                let _ = writeln!(
                    svg,
                    "<path d=\"M{:.1} {y:.1}h{:.1}M{x:.1} {:.1}v{:.1}\" stroke=\"var(--warn)\" stroke-width=\"2\"/>",
                    x - arm,
                    2.0 * arm,
                    y - arm,
                    2.0 * arm
                );
            }
            for (x, anchor, text) in [(left, "start", "-90°"), (left + size / 2.0, "middle", "arrival"), (left + size, "end", "90°")] {
                let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{text}</text>", top + size + 16.0);
            }
        }
        let _ = writeln!(svg, "<text x=\"4\" y=\"{:.1}\">upwards: departure, from -90° to 90°</text></svg>", size + 72.0);
        Ok(svg)
    }
}

/// The share that each gain `[L, 2]` has of the power of all.
fn shares(gains: &[f32]) -> Vec<f64> {
    let powers: Vec<f64> = gains.chunks_exact(2).map(squared_norm).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
}

/// The azimuth of a steering vector in degrees, from what its phase turns by between neighbours.
fn azimuth(steering: &[f32]) -> f64 {
    let turned = inner_f64(&steering[..2], &steering[2..4]);
    (turned[1].atan2(turned[0]) / std::f64::consts::PI).clamp(-1.0, 1.0).asin().to_degrees()
}

/// A beam's gain in dB below that of one that points there, at every degree from -90 to 90.
fn pattern(array: &Array, beam: &[f32]) -> Vec<f64> {
    let mut steering = vec![0.0; beam.len()];
    let mut at = |degrees: i32| {
        array.steering(f64::from(degrees).to_radians(), 0.0, &mut steering);
        let [re, im] = inner_f64(beam, &steering);
        10.0 * ((re * re + im * im) / array.elements() as f64).max(1e-12).log10()
    };
    (-90..=90).map(&mut at).collect()
}

/// A pattern above a line that begins there.
fn ridge(svg: &mut String, [left, base]: [f64; 2], height: f64, pattern: &[f64], colour: &str) {
    let _ = write!(svg, "<path d=\"M{left:.1} {base:.1}");
    for (i, gain) in pattern.iter().enumerate() {
        let x = left + WIDTHS[0] * i as f64 / (pattern.len() - 1) as f64;
        let _ = write!(svg, "L{x:.1} {:.1}", base - height * (1.0 - gain / FLOOR_DB).clamp(0.0, 1.0));
    }
    let _ = writeln!(svg, "L{:.1} {base:.1}z\" fill=\"{colour}\" fill-opacity=\"0.35\" stroke=\"{colour}\"/>", left + WIDTHS[0]);
}

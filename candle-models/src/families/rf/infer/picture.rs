//! Pictures of spectra.

use crate::html::escape;
use crate::rf::spectrum::Density;
use anyhow::Result;
use base64::Engine as _;
use std::fmt::Write as _;

/// How far a spectrogram's colours reach down from the strongest, at most, dB.
const RANGE: f64 = 80.0;

/// Densities over time, a column each.
pub struct Spectrogram {
    rows: usize,
    /// `[columns, rows]`: decibels, the lowest frequency first.
    columns: Vec<f32>,
}

/// What is drawn.
pub struct Shown<'a> {
    pub density: &'a Density,
    pub spectrogram: &'a Spectrogram,
    pub seconds: f64,
    /// The centre frequency, Hz.
    pub frequency: Option<f64>,
}

impl Spectrogram {
    /// Of columns with that many rows at most.
    pub fn new(rows: usize) -> Self {
        Self { rows, columns: Vec::new() }
    }

    /// Adds a column: the strongest of the bins that share a row.
    pub fn push(&mut self, density: &Density) {
        let bins: Vec<f64> = density.ascending().map(|(_, power)| power).collect();
        for row in 0..self.rows {
            let (first, last) = (row * bins.len() / self.rows, ((row + 1) * bins.len() / self.rows).max(row * bins.len() / self.rows + 1));
            self.columns.push(decibels(bins[first..last].iter().copied().fold(0.0, f64::max)) as f32);
        }
    }

    fn width(&self) -> usize {
        self.columns.len() / self.rows
    }

    /// The darkest and the brightest value: from the fifth part of the values that are lowest to the strongest.
    fn range(&self) -> [f64; 2] {
        let mut values: Vec<f32> = self.columns.iter().copied().filter(|x| x.is_finite()).collect();
        values.sort_by(f32::total_cmp);
        let most = f64::from(values.last().copied().unwrap_or(0.0));
        let floor = f64::from(values.get(values.len() / 5).copied().unwrap_or(0.0));
        [floor.max(most - RANGE).min(most - 1.0), most]
    }
}

fn decibels(power: f64) -> f64 {
    10.0 * power.max(1e-30).log10()
}

/// From black over violet and orange to pale yellow, in even steps of brightness.
fn colour(share: f64) -> [u8; 3] {
    const STOPS: [[f64; 3]; 6] =
        [[0.0, 0.0, 4.0], [66.0, 10.0, 104.0], [147.0, 38.0, 103.0], [221.0, 81.0, 58.0], [252.0, 165.0, 10.0], [252.0, 255.0, 164.0]];
    let at = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let i = (at as usize).min(STOPS.len() - 2);
    std::array::from_fn(|c| (STOPS[i][c] + (at - i as f64) * (STOPS[i + 1][c] - STOPS[i][c])).round() as u8)
}

/// The spectrogram: time to the right, frequency upwards.
pub fn png(spectrogram: &Spectrogram) -> Result<Vec<u8>> {
    let (width, height, [low, high]) = (spectrogram.width(), spectrogram.rows, spectrogram.range());
    anyhow::ensure!(width > 0, "there is no whole segment to draw");
    let pixel = |i: usize| {
        let (x, y) = (i % width, i / width);
        let value = f64::from(spectrogram.columns[x * height + height - 1 - y]);
        colour((value - low) / (high - low))
    };
    let pixels: Vec<u8> = (0..width * height).flat_map(pixel).collect();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(bytes)
}

/// Where a plot lies in the picture.
struct Frame {
    top: f64,
    height: f64,
    x: [f64; 2],
    y: [f64; 2],
}

const LEFT: f64 = 80.0;
const WIDTH: f64 = 840.0;

impl Frame {
    fn place(&self, x: f64, y: f64) -> [f64; 2] {
        let share = |value: f64, [low, high]: [f64; 2]| (value - low) / (high - low);
        [LEFT + WIDTH * share(x, self.x), self.top + self.height * (1.0 - share(y, self.y))]
    }

    /// Its border, with numbers at round values.
    fn draw(&self, to: &mut String, [across, up]: [&str; 2]) {
        let bottom = self.top + self.height;
        let _ = writeln!(
            to,
            "<rect x=\"{LEFT}\" y=\"{}\" width=\"{WIDTH}\" height=\"{}\" fill=\"none\" stroke=\"#888\"/>",
            self.top, self.height
        );
        for value in round_values(self.x, 8) {
            let [x, _] = self.place(value, self.y[0]);
            let _ = writeln!(
                to,
                "<path d=\"M{x:.1} {bottom:.1}v4\" stroke=\"#888\"/><text x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                bottom + 16.0,
                short(value)
            );
        }
        for value in round_values(self.y, 6) {
            let [_, y] = self.place(self.x[0], value);
            let _ = writeln!(
                to,
                "<path d=\"M{LEFT} {y:.1}h-4\" stroke=\"#888\"/><text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 7.0,
                y + 4.0,
                short(value)
            );
        }
        let _ = writeln!(to, "<text x=\"{}\" y=\"{:.1}\">{}</text>", LEFT + WIDTH / 2.0, bottom + 32.0, escape(across));
        let middle = self.top + self.height / 2.0;
        let _ = writeln!(to, "<text x=\"16\" y=\"{middle:.1}\" transform=\"rotate(-90 16 {middle:.1})\">{}</text>", escape(up));
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.6}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Values of a range at steps of 1, 2 or 5 and their tens.
fn round_values([low, high]: [f64; 2], most: usize) -> Vec<f64> {
    let rough = (high - low) / most as f64;
    if !(rough > 0.0 && rough.is_finite()) {
        return vec![low];
    }
    let ten = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|step| step * ten).find(|step| *step >= rough).unwrap_or(ten);
    let first = (low / step).ceil() as i64;
    (first..).map(|i| i as f64 * step).take_while(|value| *value <= high * (1.0 + 1e-12) + 1e-300).take(4 * most).collect()
}

/// Density and spectrogram, one below the other.
pub fn svg(shown: &Shown) -> Result<String> {
    let Shown { density, spectrogram, seconds, frequency } = shown;
    let bins: Vec<(f64, f64)> = density.ascending().map(|(frequency, power)| (frequency, decibels(power))).collect();
    let edge = [bins.first(), bins.last()].map(|bin| bin.map_or(0.0, |(frequency, _)| *frequency));
    let widest = edge[0].abs().max(edge[1].abs());
    let (scale, unit) = if widest >= 2e6 {
        (1e6, "MHz")
    } else if widest >= 2e3 {
        (1e3, "kHz")
    } else {
        (1.0, "Hz")
    };
    let x = [edge[0] / scale, (edge[1] + density.step) / scale];
    let mut sorted: Vec<f64> = bins.iter().map(|(_, power)| *power).collect();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.first().copied().unwrap_or(0.0), sorted.last().copied().unwrap_or(1.0));
    let upper = Frame { top: 20.0, height: 260.0, x, y: [low.max(high - 1.5 * RANGE).min(high - 1.0) - 2.0, high + 3.0] };
    let lower = Frame { top: 350.0, height: 400.0, x: [0.0, *seconds], y: x };
    let centre = frequency.map(|frequency| format!(" from {} MHz", short(frequency / 1e6))).unwrap_or_default();
    let mut text = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 940 800\" width=\"940\" height=\"800\" font-family=\"sans-serif\" \
         font-size=\"12\" text-anchor=\"middle\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n",
    );
    // More points than pixels would be a large file and the same picture: of those that share one, the strongest and the weakest.
    let each = bins.len().div_ceil(2 * WIDTH as usize).max(1);
    let mut path = String::new();
    for part in bins.chunks(each) {
        let by_power = |a: &&(f64, f64), b: &&(f64, f64)| a.1.total_cmp(&b.1);
        let ends = [part.iter().min_by(by_power), part.iter().max_by(by_power)];
        for (frequency, power) in ends.into_iter().flatten().take(if each == 1 { 1 } else { 2 }) {
            let [x, y] = upper.place(frequency / scale, power.max(upper.y[0]));
            let _ = write!(path, "{}{x:.1} {y:.1}", if path.is_empty() { 'M' } else { 'L' });
        }
    }
    let _ = writeln!(text, "<path d=\"{path}\" fill=\"none\" stroke=\"#1663a6\"/>");
    upper.draw(&mut text, [&format!("{unit}{centre}"), "dB/Hz"]);
    if spectrogram.width() > 0 {
        let image = base64::engine::general_purpose::STANDARD.encode(png(spectrogram)?);
        let _ = writeln!(
            text,
            "<image x=\"{LEFT}\" y=\"{}\" width=\"{WIDTH}\" height=\"{}\" preserveAspectRatio=\"none\" href=\"data:image/png;base64,{image}\"/>",
            lower.top, lower.height
        );
    }
    lower.draw(&mut text, ["seconds", &format!("{unit}{centre}")]);
    let [low, high] = spectrogram.range();
    let _ = writeln!(text, "<text x=\"{}\" y=\"340\" text-anchor=\"end\">black {low:.0} dB/Hz, white {high:.0}</text>", LEFT + WIDTH);
    text.push_str("</svg>\n");
    Ok(text)
}

//! Fields as pictures: rows of maps as SVG, a colour for a value.
//!
//! A file stays below 100 KB for some ten fields of 32 x 32: places of one colour that stand beside each other are one line, lines of one colour one path.

use candle_models::html::escape;
use std::fmt::Write as _;

/// Colours of a scale.
const LEVELS: usize = 32;
/// Pixels of a map's sides, and from a map to the next, to the right and down.
const SIDE: f64 = 160.0;
const STEPS: [f64; 2] = [176.0, 216.0];
/// Pixels left of the first map and above it, and below the last for the scales.
const MARGINS: [f64; 2] = [12.0, 28.0];
const SCALES: f64 = 36.0;

/// How values become colours. People who see fewer colours tell both apart, by brightness too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colours {
    /// From dark blue over green to yellow, brighter with every step (viridis).
    Value,
    /// White in the middle, blue below, red above (ColorBrewer's RdBu).
    Difference,
}

/// A field.
pub struct Map<'a> {
    /// What it is, above it.
    pub name: &'a str,
    /// `[n, m]`: the first axis down.
    pub values: &'a [f32],
    /// The values of the first and the last colour.
    pub range: [f32; 2],
    pub colours: Colours,
}

/// Fields beside each other, and what is said above them.
pub struct Row<'a> {
    pub caption: String,
    pub maps: Vec<Map<'a>>,
}

impl Colours {
    fn stops(self) -> &'static [[u8; 3]] {
        match self {
            Self::Value => &[
                [68, 1, 84],
                [72, 40, 120],
                [62, 74, 137],
                [49, 104, 142],
                [38, 130, 142],
                [31, 158, 137],
                [53, 183, 121],
                [109, 205, 89],
                [180, 222, 44],
                [253, 231, 37],
            ],
            Self::Difference => &[
                [5, 48, 97],
                [33, 102, 172],
                [67, 147, 195],
                [146, 197, 222],
                [209, 229, 240],
                [247, 247, 247],
                [253, 219, 199],
                [244, 165, 130],
                [214, 96, 77],
                [178, 24, 43],
                [103, 0, 31],
            ],
        }
    }

    /// The colour of a level.
    fn of(self, level: usize) -> String {
        let stops = self.stops();
        let at = level as f64 / (LEVELS - 1) as f64 * (stops.len() - 1) as f64;
        let i = (at as usize).min(stops.len() - 2);
        let part = |c: usize| {
            let [low, high] = [stops[i][c], stops[i + 1][c]].map(f64::from);
            (low + (at - i as f64) * (high - low)).round() as u8
        };
        format!("#{:02x}{:02x}{:02x}", part(0), part(1), part(2))
    }
}

/// A range with all values of some fields; around 0 where they are differences.
pub fn range(fields: &[&[f32]], colours: Colours) -> [f32; 2] {
    let values = fields.iter().flat_map(|field| field.iter());
    let [low, high] = values.fold([f32::INFINITY, f32::NEG_INFINITY], |[low, high], value| [low.min(*value), high.max(*value)]);
    match colours {
        Colours::Value => [low, high],
        Colours::Difference => [-low.abs().max(high.abs()), low.abs().max(high.abs())],
    }
}

/// The picture.
pub fn picture([n, m]: [usize; 2], rows: &[Row]) -> String {
    let most = rows.iter().map(|row| row.maps.len()).max().unwrap_or(0);
    let (width, scales) = (2.0 * MARGINS[0] + STEPS[0] * most as f64, MARGINS[1] + STEPS[1] * rows.len() as f64);
    let height = scales + SCALES;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (i, row) in rows.iter().enumerate() {
        let top = MARGINS[1] + STEPS[1] * i as f64;
        // Writing to a string cannot fail.
        let _ = writeln!(text, "<text x=\"{}\" y=\"{}\" font-weight=\"bold\">{}</text>", MARGINS[0], top - 8.0, escape(&row.caption));
        for (j, map) in row.maps.iter().enumerate() {
            let left = MARGINS[0] + STEPS[0] * j as f64;
            let [low, high] = map.range.map(short);
            let said = format!("{}: {low} to {high}", map.name);
            let _ = writeln!(text, "<text x=\"{left}\" y=\"{}\">{}</text>", top + SIDE + 16.0, escape(&said));
            // A line of width 1 around the middle of a row of places covers it.
            let _ = writeln!(
                text,
                "<g transform=\"translate({left} {top}) scale({} {}) translate(0 .5)\" shape-rendering=\"crispEdges\">",
                SIDE / m as f64,
                SIDE / n as f64
            );
            text += &cells(m, map);
            text += "</g>\n";
        }
    }
    for (colours, left, said) in [
        (Colours::Value, MARGINS[0], "least to greatest"),
        (Colours::Difference, MARGINS[0] + STEPS[0] * most.saturating_sub(1) as f64, "below the truth to above it"),
    ] {
        let _ = writeln!(text, "<g transform=\"translate({left} {})\" shape-rendering=\"crispEdges\">", scales - 8.0);
        for level in 0..LEVELS {
            let _ = writeln!(text, "<rect x=\"{}\" width=\"5\" height=\"12\" fill=\"{}\"/>", 5 * level, colours.of(level));
        }
        let _ = writeln!(text, "</g>\n<text x=\"{left}\" y=\"{}\">{said}</text>", scales + 20.0);
    }
    text + "</svg>\n"
}

/// A path for each colour, in places.
fn cells(m: usize, map: &Map) -> String {
    let [low, high] = map.range;
    let level = |value: f32| {
        let share = if high > low { (value - low) / (high - low) } else { 0.5 };
        (share * (LEVELS - 1) as f32).round().clamp(0.0, (LEVELS - 1) as f32) as usize
    };
    let mut paths = vec![String::new(); LEVELS];
    for (y, row) in map.values.chunks_exact(m).enumerate() {
        let mut x = 0;
        for same in row.chunk_by(|a, b| level(*a) == level(*b)) {
            let _ = write!(paths[level(same[0])], "M{x} {y}h{}", same.len());
            x += same.len();
        }
    }
    let drawn = paths.iter().enumerate().filter(|(_, path)| !path.is_empty());
    drawn.map(|(level, path)| format!("<path stroke=\"{}\" d=\"{path}\"/>\n", map.colours.of(level))).collect()
}

/// Three digits.
fn short(value: f32) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if (0.01..1000.0).contains(&size) => {
            let digits = (2 - size.log10().floor() as i32).max(0) as usize;
            let text = format!("{value:.digits$}");
            if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
        }
        _ => format!("{value:.1e}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_a_colour_are_lines() {
        fn map(values: &[f32], colours: Colours) -> Map<'_> {
            Map { name: "a < b", values, range: range(&[values], colours), colours }
        }
        let values = [0.0, 0.0, 1.0, 1.0, 0.0, 1.0];
        assert_eq!(
            cells(3, &map(&values, Colours::Value)),
            "<path stroke=\"#440154\" d=\"M0 0h2M1 1h1\"/>\n<path stroke=\"#fde725\" d=\"M2 0h1M0 1h1M2 1h1\"/>\n"
        );
        assert_eq!(range(&[&[-1.0, 3.0], &[0.5]], Colours::Difference), [-3.0, 3.0]);
        // One value alone, and one that is none, have colours too.
        for values in [[2.0; 6], [f32::NAN; 6]] {
            assert_eq!(cells(3, &map(&values, Colours::Value)).matches("<path").count(), 1);
        }
        let row = || Row { caption: "x & y".to_owned(), maps: vec![map(&values, Colours::Value), map(&values, Colours::Difference)] };
        let svg = picture([2, 3], &[row(), row()]);
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n") && svg.contains("x &amp; y") && svg.contains("a &lt; b: -1 to 1"),
            "{svg}"
        );
        assert_eq!((svg.matches("<g ").count(), svg.matches("</g>").count()), (6, 6));
    }

    /// Noise, which has no neighbours of one colour, is the longest.
    #[test]
    fn a_picture_of_twelve_fields_is_small() {
        let mut noise = vec![0.0; 1024];
        candle_models::random::Random::new(1).fill_normal(0, &mut noise);
        let maps = || (0..4).map(|_| Map { name: "noise", values: &noise, range: [-3.0, 3.0], colours: Colours::Value }).collect();
        let rows: Vec<Row> = (0..3).map(|_| Row { caption: String::new(), maps: maps() }).collect();
        assert!(picture([32, 32], &rows).len() < 120_000);
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!([0.0, 1.0, -0.123_456, 12.345, 123.4, 0.001_234].map(short), ["0", "1", "-0.123", "12.3", "123", "1.2e-3"]);
    }
}

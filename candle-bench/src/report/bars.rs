//! Stacked bars: times and the parts that they split into.

use super::charts::{Bar, Lengths};
use super::draw::Key;
use crate::table::micros;
use anyhow::{Result, anyhow};
use candle_train::report::chart::PALETTE;
use candle_train::report::chart::titled;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Pixels of the picture, which is shown at about two thirds of its size.
const WIDTH: i32 = 640;
/// From one bar to the next: a line of text, the bar, and a gap.
const PITCH: i32 = 62;
const TEXT: i32 = 24;
/// Letters of some fonts are higher than they say.
const TOP: i32 = 6;
const BAR: i32 = 22;
/// Bars of a picture at most: more are for the table.
const BARS: usize = 40;
/// The part that stands for all the small ones.
const OTHER: &str = "other";

/// A picture with its legend.
pub(super) struct Drawn {
    pub(super) keys: Vec<Key>,
    pub(super) svg: Option<String>,
}

/// The first [`BARS`] bars that have a part above zero; no picture where there are none.
pub(super) fn draw(lengths: Lengths, bars: &[Bar]) -> Result<Drawn> {
    let bars: Vec<&Bar> = bars.iter().filter(|bar| sum(bar) > 0.0).take(BARS).collect();
    let longest = bars.iter().map(|bar| sum(bar)).fold(0.0, f64::max);
    if bars.is_empty() {
        return Ok(Drawn { keys: Vec::new(), svg: None });
    }
    let keys: Vec<Key> = names(&bars).into_iter().zip(PALETTE).collect();
    let mut text = String::new();
    let mut titles = Vec::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH as u32, (bars.len() as i32 * PITCH) as u32)).into_drawing_area();
        let failed = |error: DrawingAreaErrorKind<_>| anyhow!("chart: {error}");
        let style = |position: HPos| ("sans-serif", TEXT).into_font().color(&BLACK).pos(Pos::new(position, VPos::Top));
        for (i, bar) in bars.iter().enumerate() {
            let (top, sum) = (TOP + i as i32 * PITCH, sum(bar));
            area.draw(&Text::new(shortened(&bar.label), (0, top), style(HPos::Left))).map_err(failed)?;
            area.draw(&Text::new(format!("{} µs", micros(sum)), (WIDTH, top), style(HPos::Right))).map_err(failed)?;
            let whole = match lengths {
                Lengths::Shares => sum,
                Lengths::Microseconds => longest,
            };
            let place = |us: f64| (f64::from(WIDTH) * us / whole).round() as i32;
            let mut before = 0.0;
            for (name, us) in grouped(bar, &keys) {
                let (from, to) = (place(before), place(before + us));
                before += us;
                // A part too thin to be seen is no rectangle.
                if to > from {
                    let color = keys.iter().find(|(key, _)| *key == name).map_or(PALETTE[PALETTE.len() - 1], |(_, color)| *color);
                    let corners = [(from, top + TEXT + 4), (to, top + TEXT + 4 + BAR)];
                    area.draw(&Rectangle::new(corners, color.filled())).map_err(failed)?;
                    titles.push(format!("{}, {name}: {} µs, {:.1}%", bar.label, micros(us), 100.0 * us / sum));
                }
            }
        }
        area.present().map_err(failed)?;
    }
    let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
    Ok(Drawn { keys, svg: Some(titled(&text, "rect", &titles)) })
}

/// Parts that are times; whatever else was found is none.
fn parts(bar: &Bar) -> impl Iterator<Item = (&str, f64)> {
    bar.parts.iter().filter(|(_, us)| us.is_finite() && *us > 0.0).map(|(name, us)| (name.as_str(), *us))
}

fn sum(bar: &Bar) -> f64 {
    parts(bar).map(|(_, us)| us).sum()
}

/// Names of the parts in the order of the bars: all of them if there are colours enough, or else those with the largest shares.
fn names(bars: &[&Bar]) -> Vec<String> {
    let mut shares: Vec<(&str, f64)> = Vec::new();
    for bar in bars {
        // One that took no time here keeps its place, and so its colour.
        for (name, us) in &bar.parts {
            let share = if us.is_finite() && *us > 0.0 { us / sum(bar) } else { 0.0 };
            match shares.iter_mut().find(|(known, _)| known == name) {
                Some((_, most)) => *most = most.max(share),
                None => shares.push((name.as_str(), share)),
            }
        }
    }
    let mut by_share: Vec<f64> = shares.iter().map(|(_, share)| *share).collect();
    by_share.sort_by(|a, b| b.total_cmp(a));
    let enough = shares.len() <= PALETTE.len();
    // The last colour is for the others.
    let least = if enough { 0.0 } else { by_share[PALETTE.len() - 1] };
    let kept = shares.iter().filter(|(_, share)| enough || *share > least).map(|(name, _)| (*name).to_owned());
    let mut names: Vec<String> = kept.collect();
    if !enough {
        names.push(OTHER.to_owned());
    }
    names
}

/// The parts of a bar that are named, then the sum of the others.
fn grouped(bar: &Bar, keys: &[Key]) -> Vec<(String, f64)> {
    let named = |name: &str| keys.iter().any(|(key, _)| key == name);
    let mut grouped: Vec<(String, f64)> = Vec::new();
    for (key, _) in keys {
        let us: f64 = parts(bar).filter(|(name, _)| name == key).map(|(_, us)| us).sum();
        grouped.push((key.clone(), us));
    }
    let others: f64 = parts(bar).filter(|(name, _)| !named(name)).map(|(_, us)| us).sum();
    if let Some((_, us)) = grouped.iter_mut().find(|(name, _)| name == OTHER) {
        *us += others;
    }
    grouped
}

/// A label that leaves room for the time at the other end of its line.
fn shortened(label: &str) -> String {
    const MOST: usize = 40;
    if label.chars().count() <= MOST { label.to_owned() } else { label.chars().take(MOST - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, parts: &[(&str, f64)]) -> Bar {
        Bar { label: label.to_owned(), parts: parts.iter().map(|(name, us)| ((*name).to_owned(), *us)).collect() }
    }

    /// Widths of the rectangles.
    fn widths(drawn: &Drawn) -> Vec<i32> {
        let svg = drawn.svg.as_ref().unwrap();
        let rects = svg.split("<rect ").skip(1).map(|rect| rect.split("width=\"").nth(1).unwrap());
        rects.map(|rest| rest.split('"').next().unwrap().parse().unwrap()).collect()
    }

    #[test]
    fn lengths_are_shares_or_times() {
        let bars = [bar("a", &[("queue", 25.0), ("execute", 75.0)]), bar("b", &[("queue", 100.0), ("execute", 100.0)])];
        let shares = draw(Lengths::Shares, &bars).unwrap();
        assert_eq!(widths(&shares), [WIDTH / 4, 3 * WIDTH / 4, WIDTH / 2, WIDTH / 2]);
        let times = draw(Lengths::Microseconds, &bars).unwrap();
        assert_eq!(widths(&times), [WIDTH / 8, 3 * WIDTH / 8, WIDTH / 2, WIDTH / 2]);
        let names: Vec<_> = times.keys.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["queue", "execute"]);
        assert!(times.svg.unwrap().contains("<title>a, queue: 25.0 µs, 25.0%</title>"));
    }

    #[test]
    fn what_is_no_time_is_no_part() {
        let odd = [("nan", f64::NAN), ("negative", -1.0), ("infinite", f64::INFINITY), ("zero", 0.0)];
        assert!(draw(Lengths::Shares, &[bar("a", &odd), bar("b", &[])]).unwrap().svg.is_none());
        let drawn = draw(Lengths::Shares, &[bar("<b>", &[("nan", f64::NAN), ("time", 2.0)])]).unwrap();
        assert_eq!(widths(&drawn), [WIDTH]);
        assert!(!drawn.svg.unwrap().contains("<b>"));
    }

    #[test]
    fn small_parts_share_the_last_colour_and_nothing_is_lost() {
        let parts: Vec<(String, f64)> = (0..12).map(|i| (format!("part {i}"), 1.0 + f64::from(i))).collect();
        let bars = [Bar { label: "many".to_owned(), parts: parts.clone() }];
        let drawn = draw(Lengths::Shares, &bars).unwrap();
        assert_eq!((drawn.keys.len(), drawn.keys[0].0.as_str(), drawn.keys[7].0.as_str()), (8, "part 5", OTHER));
        assert_eq!(widths(&drawn).iter().sum::<i32>(), WIDTH);
        let equal = Bar { label: "equal".to_owned(), parts: parts.iter().map(|(name, _)| (name.clone(), 1.0)).collect() };
        assert_eq!(widths(&draw(Lengths::Shares, &[equal]).unwrap()), [WIDTH]);
        let many: Vec<Bar> = (0..400).map(|_| bar("x", &[("y", 1.0)])).collect();
        assert_eq!(widths(&draw(Lengths::Shares, &many).unwrap()).len(), BARS);
    }
}

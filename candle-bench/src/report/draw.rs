//! Charts as figures of a page.

use super::bars;
use super::charts::{Across, Chart, Content, Placed, Roof, Series};
use anyhow::Result;
use candle_models::html::escape;
use candle_train::report::chart::{self, Axis, Line, Mark, Note, PALETTE, Side, Size, number};
use plotters::style::RGBColor;
use std::fmt::Write as _;

const GREY: RGBColor = RGBColor(128, 128, 128);
/// What bounds a piece of work, with its colour.
const BOUNDS: [(&str, RGBColor); 3] = [("memory", PALETTE[0]), ("compute", PALETTE[1]), ("overhead", PALETTE[4])];
/// Of what is bound by anything else.
const OTHER: RGBColor = PALETTE[6];

/// Writes the chart; nothing where it has no point to show. More lines than there are colours make several figures.
pub(super) fn figures(page: &mut String, chart: &Chart) -> Result<()> {
    match &chart.content {
        Content::Lines(across, series) => {
            let count = series.len().div_ceil(PALETTE.len());
            for (i, some) in series.chunks(PALETTE.len()).enumerate() {
                let title = if count > 1 { format!("{} ({} of {count})", chart.title, i + 1) } else { chart.title.clone() };
                lines(page, &title, *across, some)?;
            }
        }
        Content::Bars(lengths, all) => {
            let drawn = bars::draw(*lengths, all)?;
            figure(page, "", &chart.title, &drawn.keys, drawn.svg.as_deref());
        }
        Content::Roofline(roofs, points) => roofline(page, &chart.title, roofs, points)?,
    }
    Ok(())
}

/// A name in a legend and its colour.
pub(super) type Key = (String, RGBColor);

fn lines(page: &mut String, title: &str, across: Across, series: &[Series]) -> Result<()> {
    let place = |x: f64| match across {
        Across::Logarithmic => number(x),
        Across::Names(names) => names.get(x as usize).map_or_else(String::new, |name| (*name).to_owned()),
    };
    let line = |(series, color): (&Series, RGBColor)| Line {
        titles: series.points.iter().map(|(x, y)| format!("{}, {}: {}", series.name, place(*x), number(*y))).collect(),
        points: series.points.clone(),
        color,
        width: 3,
        mark: Mark::Line,
    };
    let drawn: Vec<Line> = series.iter().zip(PALETTE).map(line).collect();
    let across = match across {
        Across::Logarithmic => chart::Across::Logarithmic,
        Across::Names(names) => chart::Across::Names(names),
    };
    let svg = chart::Chart { size: Size::Small, across, axis: Axis::Logarithmic, lines: &drawn, notes: &[] }.svg()?;
    let keys: Vec<Key> = series.iter().map(|s| s.name.clone()).zip(PALETTE).collect();
    figure(page, "", title, &keys, svg.as_deref());
    Ok(())
}

fn roofline(page: &mut String, title: &str, roofs: &[Roof], points: &[Placed]) -> Result<()> {
    let positive = |x: &f64| x.is_finite() && *x > 0.0;
    let ridges = roofs.iter().map(|roof| roof.gflop_per_s / roof.gb_per_s);
    let intensities: Vec<f64> = points.iter().map(|p| p.intensity).chain(ridges).filter(positive).collect();
    let (low, high) = intensities.iter().fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(*x), high.max(*x)));
    let (low, high) = (low / 2.0, high * 2.0);
    let roof = |roof: &Roof| {
        let at = |x: f64| (x, roof.gflop_per_s.min(x * roof.gb_per_s));
        let ridge = roof.gflop_per_s / roof.gb_per_s;
        let points = vec![at(low), at(ridge), at(high)];
        Line { points, color: GREY, width: 3, mark: Mark::Bare, titles: Vec::new() }
    };
    let mut drawn: Vec<Line> = roofs.iter().map(roof).collect();
    let (dots, mut keys) = by_bound(points);
    drawn.extend(dots);
    let ceilings = roofs.iter().map(|roof| Note { at: (high, roof.gflop_per_s), side: Side::Line, text: roof.name.clone() });
    let limits = roofs.iter().map(|roof| {
        let Roof { name, gflop_per_s, gb_per_s } = roof;
        (format!("{name}: {} GFLOP/s, {} GB/s", number(*gflop_per_s), number(*gb_per_s)), GREY)
    });
    keys.extend(limits);
    let operations = points.iter().map(|p| Note { at: (p.intensity, p.gflop_per_s), text: p.name.clone(), side: Side::Any });
    let notes: Vec<Note> = ceilings.chain(operations).collect();
    let across = chart::Across::Logarithmic;
    let svg = chart::Chart { size: Size::Large, across, axis: Axis::Logarithmic, lines: &drawn, notes: &notes }.svg()?;
    figure(page, "large", &format!("{title}, GFLOP/s over FLOP/byte"), &keys, svg.as_deref());
    Ok(())
}

/// The dots of all points that one thing bounds, with its name, for each of these things.
fn by_bound(points: &[Placed]) -> (Vec<Line>, Vec<Key>) {
    let (mut drawn, mut keys) = (Vec::new(), Vec::new());
    let mut bounds: Vec<&str> = Vec::new();
    for bound in BOUNDS.iter().map(|(bound, _)| *bound).chain(points.iter().map(|p| p.bound.as_str())) {
        if !bounds.contains(&bound) {
            bounds.push(bound);
        }
    }
    for bound in bounds {
        let bound_so: Vec<&Placed> = points.iter().filter(|p| p.bound == bound).collect();
        if bound_so.is_empty() {
            continue;
        }
        let color = BOUNDS.iter().find(|(known, _)| *known == bound).map_or(OTHER, |(_, color)| *color);
        keys.push((format!("bound by {bound}"), color));
        let title = |p: &&Placed| format!("{}: {} FLOP/byte, {} GFLOP/s, {}", p.name, number(p.intensity), number(p.gflop_per_s), p.bound);
        drawn.push(Line {
            titles: bound_so.iter().map(title).collect(),
            points: bound_so.iter().map(|p| (p.intensity, p.gflop_per_s)).collect(),
            color,
            width: 3,
            mark: Mark::Dots,
        });
    }
    (drawn, keys)
}

/// A picture below its title and its legend.
fn figure(page: &mut String, class: &str, title: &str, keys: &[Key], svg: Option<&str>) {
    let Some(svg) = svg else { return };
    let title = escape(title);
    let _ = write!(page, "<figure class=\"{class}\"><figcaption>{title}<span class=\"keys\">");
    for (name, RGBColor(r, g, b)) in keys {
        let _ = write!(page, "<span class=\"key\" style=\"--line:rgb({r},{g},{b})\">{}</span>", escape(name));
    }
    let svg = svg.replacen("<svg ", &format!("<svg role=\"img\" aria-label=\"{title}\" "), 1);
    let _ = writeln!(page, "</span></figcaption><div class=\"picture\">{svg}</div></figure>");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Contrast as WCAG 2 defines it.
    fn contrast(RGBColor(r, g, b): RGBColor, RGBColor(r2, g2, b2): RGBColor) -> f64 {
        let linear = |c: u8| {
            let c = f64::from(c) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        };
        let luminance = |r, g, b| 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        let (a, b) = (luminance(r, g, b), luminance(r2, g2, b2));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn every_colour_is_seen_on_light_and_on_dark_paper() {
        for color in PALETTE {
            for paper in [RGBColor(255, 255, 255), RGBColor(20, 23, 28)] {
                assert!(contrast(color, paper) >= 3.0, "{color:?} on {paper:?}: {}", contrast(color, paper));
            }
        }
    }

    fn drawn(content: Content) -> String {
        let mut page = String::new();
        figures(&mut page, &Chart { title: "<title>".to_owned(), content }).unwrap();
        assert!(!page.contains("NaN") && !page.contains("inf,") && !page.contains("<title>\""), "{page}");
        page
    }

    #[test]
    fn a_roofline_has_its_roofs_and_its_points() {
        let roof = Roof { name: "1 thread".to_owned(), gflop_per_s: 200.0, gb_per_s: 15.0 };
        let placed = |name: &str, intensity, gflop_per_s, bound: &str| Placed {
            name: name.to_owned(),
            intensity,
            gflop_per_s,
            bound: bound.to_owned(),
        };
        let points = vec![
            placed("copy <a>", 0.25, 3.0, "memory"),
            placed("product", 80.0, 180.0, "compute"),
            placed("broken", f64::NAN, 1.0, "memory"),
            placed("nothing", 0.0, 0.0, "overhead"),
            placed("upload", 1.0, 2.0, "the link"),
        ];
        let page = drawn(Content::Roofline(vec![roof.clone()], points));
        assert_eq!((page.matches("<polyline ").count() >= 1, page.matches("<circle ").count()), (true, 3), "{page}");
        assert!(
            page.contains("copy &lt;a&gt;: 0.25 FLOP/byte, 3 GFLOP/s, memory")
                && page.contains("bound by compute")
                && page.contains("bound by the link"),
            "{page}"
        );
        assert!(page.contains("1 thread: 200 GFLOP/s, 15 GB/s"), "{page}");
        assert_eq!(drawn(Content::Roofline(Vec::new(), Vec::new())), "");
        assert!(drawn(Content::Roofline(vec![roof], Vec::new())).contains("<svg "));
    }

    #[test]
    fn more_lines_than_colours_make_several_figures() {
        let series: Vec<_> =
            (0..9).map(|i| Series { name: format!("line {i}"), points: vec![(1.0, 1.0), (2.0, 3.0 + f64::from(i))] }).collect();
        let page = drawn(Content::Lines(Across::Logarithmic, series));
        assert_eq!((page.matches("<svg ").count(), page.matches("class=\"key\"").count()), (2, 9));
        assert!(page.contains("(2 of 2)") && page.contains("<title>line 8, 2: 11</title>"), "{page}");
        let none = Series { name: "none".to_owned(), points: vec![(1.0, f64::NAN), (2.0, 0.0)] };
        assert_eq!(drawn(Content::Lines(Across::Logarithmic, vec![none])), "");
    }
}

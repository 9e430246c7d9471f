//! The page around the charts.

use super::About;
use super::chart::{Across, Axis, Chart, Line, Mark, Size, count, number};
use super::curves::{Curve, Curves};
use crate::metrics::short_time;
use candle_models::Result;
use candle_models::html::{self, escape};
use plotters::style::RGBColor;
use std::fmt::Write;
use std::time::Duration;

/// Readable on white and on nearly black.
const STRONG: RGBColor = RGBColor(37, 122, 222);
const PALE: RGBColor = RGBColor(148, 163, 184);
const WARM: RGBColor = RGBColor(222, 108, 37);

/// Small charts at most: more belong into TensorBoard.
const SMALL_CHARTS: usize = 40;

/// The whole file.
pub(super) fn html(name: &str, about: &About, configuration: &str, curves: &Curves) -> Result<String> {
    let mut page = html::head(&format!("{name}: training report"), include_str!("page.css"));
    let _ = writeln!(page, "<h1>{}</h1>", escape(name));
    head(&mut page, about, configuration, curves);
    wide(&mut page, curves, &unit_per_second(about))?;
    small(&mut page, curves)?;
    reliability(&mut page, curves)?;
    page.push_str("</body>\n</html>\n");
    Ok(page)
}

fn unit_per_second(about: &About) -> String {
    let unit = if about.unit.is_empty() { "samples" } else { &about.unit };
    format!("{} per second", escape(unit))
}

// Writing to a string does not fail.
fn head(page: &mut String, about: &About, configuration: &str, curves: &Curves) {
    let last = |key: &str| curves.last[key].as_f64();
    let mean = |key: &str| curves.get(key).map(Curve::mean);
    let steps = match (last("step").unwrap_or(0.0), about.steps as f64) {
        (done, planned) if planned > done => format!("{} of {}", count(done), count(planned)),
        (done, _) => count(done),
    };
    let time = |s: f64| Duration::try_from_secs_f64(s).map_or_else(|_| "unknown".into(), short_time);
    let smoothed = curves.get("loss").and_then(|loss| loss.smooth().last().copied());
    let facts = [
        ("steps", Some(steps)),
        ("last loss, smoothed", smoothed.map(|p| number(p.1))),
        ("best held-out score", curves.best.map(|(step, score)| format!("{} at {}", number(score), count(step as f64)))),
        ("time", last("elapsed_s").map(time)),
        ("parameters", (about.parameters > 0).then(|| count(about.parameters as f64))),
        ("per second, mean", mean("samples_per_s").map(count)),
        ("waiting for data", mean("data_wait").map(|x| format!("{:.1}%", x * 100.0))),
        ("waiting for ranks", mean("comm_wait").filter(|_| several_ranks(curves)).map(|x| format!("{:.1}%", x * 100.0))),
        ("GFLOP/s", mean("gflops").map(number)),
        ("skipped steps", last("skipped").map(|x| format!("{x}"))),
        ("peak memory, MB", last("peak_mb").map(|x| format!("{x:.0}"))),
    ];
    page.push_str("<div class=\"facts\">\n");
    for (name, value) in facts.into_iter().filter_map(|(name, value)| Some((name, value?))) {
        let _ = writeln!(page, "<div><b>{value}</b><span>{name}</span></div>");
    }
    page.push_str("</div>\n<dl>\n");
    let lines = [("command", &about.command), ("host", &about.host), ("device", &about.device)];
    for (name, text) in lines.into_iter().chain(about.data.iter().map(|line| ("data", line))).filter(|line| !line.1.is_empty()) {
        let _ = writeln!(page, "<dt>{name}</dt><dd>{}</dd>", escape(text));
    }
    page.push_str("</dl>\n");
    for (name, text) in [("Configuration", configuration), ("Model", &about.model)].into_iter().filter(|(_, text)| !text.is_empty()) {
        let _ = writeln!(page, "<details><summary>{name}</summary><pre>{}</pre></details>", escape(text));
    }
    if curves.unreadable > 0 {
        let _ = writeln!(page, "<p class=\"note\">{} lines of metrics could not be read.</p>", curves.unreadable);
    }
    if curves.by_key.is_empty() {
        page.push_str("<p class=\"note\">Nothing has been logged yet.</p>\n");
    }
}

fn several_ranks(curves: &Curves) -> bool {
    curves.get("ranks").is_some_and(|ranks| ranks.mean() > 1.0)
}

fn wide(page: &mut String, curves: &Curves, rate: &str) -> Result<()> {
    let both = |key: &str| {
        curves.get(key).map_or_else(Vec::new, |c| vec![("each step", line(c.raw(), PALE, 2)), ("smoothed", line(c.smooth(), STRONG, 4))])
    };
    let plain = |key: &str| curves.get(key).map_or_else(Vec::new, |c| vec![("", line(c.raw(), STRONG, 4))]);
    let per_cent = |curve: &Curve| curve.smooth().into_iter().map(|(step, share)| (step, share * 100.0)).collect();
    let mut waits = Vec::new();
    let shown = [("data", "data_wait", STRONG), ("other ranks", "comm_wait", WARM)];
    for (name, key, color) in shown.into_iter().filter(|w| w.1 != "comm_wait" || several_ranks(curves)) {
        waits.extend(curves.get(key).map(|c| (name, line(per_cent(c), color, 4))));
    }
    figure(page, Size::Wide, Axis::Around, "Loss", both("loss"))?;
    figure(page, Size::Wide, Axis::Around, "Held-out score", plain("evaluation.score"))?;
    figure(page, Size::Wide, Axis::Around, "Gradient norm", both("norm"))?;
    figure(page, Size::Wide, Axis::FromZero, "Learning rate", plain("learning_rate"))?;
    figure(page, Size::Wide, Axis::FromZero, rate, both("samples_per_s"))?;
    figure(page, Size::Wide, Axis::FromZero, "Time spent waiting, per cent", waits)
}

/// The parts of the loss, beside them the held-out result of the same name; then the other held-out results.
fn small(page: &mut String, curves: &Curves) -> Result<()> {
    let (part, result) = ("parts.", "evaluation.");
    let names = |prefix: &'static str| curves.by_key.keys().filter_map(move |key| key.strip_prefix(prefix));
    let held_out = |name: &str| curves.get(&format!("{result}{name}")).map(|c| ("held out", line(c.raw(), WARM, 4)));
    let trained = |name: &str| curves.get(&format!("{part}{name}")).map(|c| ("training, smoothed", line(c.smooth(), STRONG, 4)));
    let parts: Vec<&str> = names(part).collect();
    let results: Vec<&str> = names(result).filter(|name| *name != "score" && !parts.contains(name)).collect();
    for (title, names) in [("Parts of the loss", parts), ("Held-out results", results)] {
        if names.is_empty() {
            continue;
        }
        let _ = writeln!(page, "<h2>{title}</h2>\n<div class=\"small\">");
        for name in names.into_iter().take(SMALL_CHARTS) {
            let lines = trained(name).into_iter().chain(held_out(name)).collect();
            figure(page, Size::Small, Axis::Around, &escape(name), lines)?;
        }
        page.push_str("</div>\n");
    }
    Ok(())
}

/// Whether what was called so likely came true so often.
fn reliability(page: &mut String, curves: &Curves) -> Result<()> {
    let bins: Vec<(f64, f64)> = curves.reliability.iter().map(|(probability, share)| (100.0 * probability, 100.0 * share)).collect();
    if bins.is_empty() {
        return Ok(());
    }
    let ideal = Line { mark: Mark::Bare, ..line(vec![(0.0, 0.0), (100.0, 100.0)], PALE, 2) };
    let found = line(bins, WARM, 4);
    figure(
        page,
        Size::Large,
        Axis::FromZero,
        "Came true, in per cent, of what was called so many per cent likely",
        vec![("as it should be", ideal), ("held out", found)],
    )
}

pub(super) fn line(points: Vec<(f64, f64)>, color: RGBColor, width: u32) -> Line {
    Line { points, color, width, mark: Mark::Line, titles: Vec::new() }
}

/// A chart under its title, the names of its lines beside it if there are several. The title is HTML.
pub(super) fn figure(page: &mut String, size: Size, axis: Axis, title: &str, lines: Vec<(&str, Line)>) -> Result<()> {
    let (names, lines): (Vec<&str>, Vec<Line>) = lines.into_iter().unzip();
    let Some(svg) = (Chart { size, across: Across::Count, axis, lines: &lines, notes: &[] }).svg()? else { return Ok(()) };
    let level = if size == Size::Wide { "h2" } else { "h3" };
    let _ = write!(page, "<figure>\n<{level}>{title}");
    for (name, Line { color: RGBColor(r, g, b), .. }) in names.iter().zip(&lines).filter(|(name, _)| lines.len() > 1 && !name.is_empty()) {
        let _ = write!(page, "<span class=\"key\" style=\"--line:rgb({r},{g},{b})\">{name}</span>");
    }
    let _ = writeln!(page, "</{level}>\n{svg}</figure>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{ABOUT, CONFIGURATION, REPORT, write};
    use super::*;
    use crate::metrics::METRICS;
    use std::fs;
    use std::path::Path;

    const EVIL: &str = "<script>alert('x')</script>&\"";

    fn report(directory: &Path) -> String {
        assert_eq!(write(directory).unwrap(), directory.join(REPORT));
        fs::read_to_string(directory.join(REPORT)).unwrap()
    }

    #[test]
    fn nothing_from_a_file_becomes_markup() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("<b>run");
        fs::create_dir(&run).unwrap();
        let text = EVIL.to_owned();
        let (command, host, device, model, unit) = (text.clone(), text.clone(), text.clone(), text.clone(), text.clone());
        About { command, host, device, model, unit, data: vec![text], ..About::default() }.save(&run).unwrap();
        fs::write(run.join(CONFIGURATION), EVIL).unwrap();
        let key = serde_json::to_string(EVIL).unwrap();
        let lines = format!(
            "{{\"step\":1,\"loss\":1,\"samples_per_s\":5,\"parts\":{{{key}:1}}}}\n{{\"step\":1,\"evaluation\":{{\"a{}:2}}}}\n",
            &key[1..]
        );
        fs::write(run.join(METRICS), lines).unwrap();
        let page = report(&run);
        assert!(!page.contains("<script") && !page.contains("<b>run"), "{page}");
        assert_eq!(page.matches("&lt;script&gt;").count(), 9, "command, host, device, data, model, configuration, unit, two titles");
    }

    #[test]
    fn the_size_of_a_report_does_not_grow_with_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let mut text = String::new();
        let parts: Vec<String> = (0..12).map(|i| format!("\"part{i}\":0.{i}")).collect();
        let parts = parts.join(",");
        // As many as fill every place of every chart; a million give the same size.
        for step in 1..=50_000u32 {
            let noise = f64::from(step.wrapping_mul(2_654_435_761)) / 4e9;
            let _ = writeln!(
                text,
                "{{\"step\":{step},\"loss\":{noise},\"norm\":{noise},\"samples_per_s\":{noise},\"data_wait\":{noise},\
                 \"learning_rate\":{noise},\"parts\":{{{parts}}}}}"
            );
            if step % 50 == 0 {
                let _ = writeln!(text, "{{\"step\":{step},\"evaluation\":{{\"score\":{noise},{parts}}}}}");
            }
        }
        fs::write(dir.path().join(METRICS), text).unwrap();
        let page = report(dir.path());
        assert_eq!(page.matches("<svg ").count(), 6 + 12);
        assert!(page.len() < 1_000_000, "{} bytes", page.len());
    }

    #[test]
    fn a_run_of_any_age_has_a_report() {
        let dir = tempfile::tempdir().unwrap();
        assert!(write(dir.path()).unwrap_err().to_string().contains(METRICS), "no metrics, no report");
        fs::write(dir.path().join(METRICS), "").unwrap();
        assert!(report(dir.path()).contains("Nothing has been logged yet."));
        fs::write(dir.path().join(METRICS), "{\"step\":1,\"loss\":null}\n").unwrap();
        assert!(!report(dir.path()).contains("<svg "));
        fs::write(dir.path().join(METRICS), "{\"step\":10,\"loss\":2}\n{\"step\":10,\"evaluation\":{\"score\":3}}\n{\"st").unwrap();
        About { steps: 40, ..About::default() }.save(dir.path()).unwrap();
        let page = report(dir.path());
        assert!(page.contains("<b>10 of 40</b>") && page.contains("<b>3 at 10</b>") && page.contains("1 lines of metrics"));
        assert!(!page.contains("Came true"));
        let evaluated = "{\"step\":11,\"evaluation\":{\"score\":3},\"reliability\":[[0.1,0.2],[0.5,null],[0.9,0.8]]}\n";
        fs::write(dir.path().join(METRICS), evaluated).unwrap();
        assert!(report(dir.path()).contains("Came true, in per cent"));
        fs::write(dir.path().join(ABOUT), "{").unwrap();
        assert!(write(dir.path()).unwrap_err().to_string().contains(ABOUT));
    }
}

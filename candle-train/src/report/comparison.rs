//! Learning curves of several runs on one page: runs that differ in nothing but their seed are one curve, their mean with its spread.

use super::chart::{Axis, Line, Mark, PALETTE, Size, count, number};
use super::curves::Curves;
use super::page::{figure, line};
use super::{About, CONFIGURATION, read};
use candle_models::files::write_atomic;
use candle_models::html::{self, escape};
use candle_models::{Error, Result};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

const SCORE: &str = "evaluation.score";

/// A run.
struct Member {
    name: String,
    about: About,
    curves: Curves,
}

/// Runs of one configuration.
struct Group {
    /// Without its seed.
    configuration: toml::Table,
    runs: Vec<Member>,
}

/// Where runs were measured: a step, their mean there, and the standard deviation of several.
struct Point {
    step: f64,
    mean: f64,
    spread: Option<f64>,
}

impl Group {
    fn names(&self) -> String {
        self.runs.iter().map(|run| run.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Steps of an environment in an update, for runs that say how many there are in all; 1 for others.
    fn frames(&self) -> f64 {
        let updates = self.runs.iter().map(|run| run.about.steps).max().unwrap_or(0);
        match self.configuration.get("frames").and_then(toml::Value::as_integer) {
            Some(frames) if updates > 0 => frames as f64 / updates as f64,
            _ => 1.0,
        }
    }

    /// Where all runs have been measured.
    fn points(&self) -> Vec<Point> {
        let mut values: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
        for (step, value) in self.runs.iter().filter_map(|run| run.curves.get(SCORE)).flat_map(|curve| curve.raw()) {
            values.entry(step as u64).or_default().push(value);
        }
        let everywhere = values.into_iter().filter(|(_, values)| values.len() == self.runs.len());
        everywhere.map(|(step, values)| Point::of(step as f64 * self.frames(), &values)).collect()
    }
}

impl Point {
    fn of(step: f64, values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        Self { step, mean, spread: (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt()) }
    }

    fn text(&self) -> String {
        let spread = self.spread.map_or_else(String::new, |spread| format!(" \u{b1} {}", number(spread)));
        format!("{}{spread}", number(self.mean))
    }
}

/// Writes the page of these runs to `out`: a chart for every set of data or environment, in it a curve for every configuration, and a table.
///
/// # Errors
/// If a run has no metrics, or its configuration cannot be read; if the file cannot be written.
pub fn compare(directories: &[PathBuf], out: &Path) -> Result<()> {
    let mut charts: Vec<(Vec<String>, Vec<Group>)> = Vec::new();
    for directory in directories {
        let (about, curves) = (About::read(directory)?, Curves::read(directory)?);
        let path = directory.join(CONFIGURATION);
        let mut configuration: toml::Table =
            read(&path)?.unwrap_or_default().parse().map_err(|error: toml::de::Error| Error::file(&path, error))?;
        configuration.remove("seed");
        let at = charts.iter().position(|(data, _)| *data == about.data).unwrap_or_else(|| {
            charts.push((about.data.clone(), Vec::new()));
            charts.len() - 1
        });
        let groups = &mut charts[at].1;
        let group = groups.iter().position(|group| group.configuration == configuration).unwrap_or_else(|| {
            groups.push(Group { configuration, runs: Vec::new() });
            groups.len() - 1
        });
        groups[group].runs.push(Member { name: super::name(directory)?, about, curves });
    }
    let mut page = html::head("Learning curves", include_str!("page.css"));
    page.push_str("<h1>Learning curves</h1>\n<p class=\"note\">Runs that differ in nothing but the seed are one curve: the mean of their held-out scores, between thin lines one standard deviation to either side.</p>\n");
    for (data, groups) in &charts {
        chart(&mut page, data, groups)?;
    }
    page.push_str("</body>\n</html>\n");
    write_atomic(out, page.as_bytes())
}

fn chart(page: &mut String, data: &[String], groups: &[Group]) -> Result<()> {
    let names: Vec<String> = groups.iter().map(|group| escape(&group.names())).collect();
    let mut lines = Vec::new();
    for ((group, name), color) in groups.iter().zip(&names).zip(PALETTE.into_iter().cycle()) {
        let points = group.points();
        for side in [-1.0, 1.0] {
            let edge = points.iter().filter_map(|p| Some((p.step, p.mean + side * p.spread?))).collect();
            lines.push(("", Line { mark: Mark::Bare, ..line(edge, color, 1) }));
        }
        lines.push((name.as_str(), line(points.iter().map(|p| (p.step, p.mean)).collect(), color, 4)));
    }
    let title = if data.is_empty() { "Held-out score".to_owned() } else { escape(&data.join("; ")) };
    figure(page, Size::Wide, Axis::FromZero, &title, lines)?;
    let _ = writeln!(page, "<table><tr><th>runs</th><th>steps</th><th>each run's last score</th><th>mean and deviation</th></tr>");
    for (group, name) in groups.iter().zip(&names) {
        let last: Vec<(f64, f64)> = group.runs.iter().filter_map(|run| run.curves.get(SCORE)?.raw().last().copied()).collect();
        let scores: Vec<f64> = last.iter().map(|(_, score)| *score).collect();
        let (each, steps) =
            (scores.iter().map(|x| number(*x)).collect::<Vec<_>>().join(", "), last.iter().map(|(step, _)| *step).fold(0.0, f64::max));
        let mean = if scores.is_empty() { String::new() } else { Point::of(0.0, &scores).text() };
        let _ = writeln!(page, "<tr><td>{name}</td><td>{}</td><td>{each}</td><td>{mean}</td></tr>", count(steps * group.frames()));
    }
    page.push_str("</table>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::METRICS;
    use std::fs;

    fn run(root: &Path, name: &str, configuration: &str, scores: &[(u64, f64)]) -> PathBuf {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        let data = vec!["plays <pole>".to_owned()];
        About { data, steps: 20, ..About::default() }.save(&directory).unwrap();
        fs::write(directory.join(CONFIGURATION), configuration).unwrap();
        let lines = scores.iter().map(|(step, score)| format!("{{\"step\":{step},\"evaluation\":{{\"score\":{score}}}}}\n"));
        fs::write(directory.join(METRICS), lines.collect::<String>()).unwrap();
        directory
    }

    #[test]
    fn runs_that_differ_in_their_seed_are_one_curve() {
        let root = tempfile::tempdir().unwrap();
        let of = |seed: u32, rate: u32| format!("seed = {seed}\nframes = 2000\nrate = {rate}\n");
        let runs = [
            run(root.path(), "a1", &of(1, 1), &[(10, 1.0), (20, 4.0)]),
            run(root.path(), "a2", &of(2, 1), &[(10, 3.0), (20, 8.0)]),
            run(root.path(), "<i>b", &of(1, 2), &[(10, 2.0), (20, 5.0)]),
        ];
        let out = root.path().join("page.html");
        compare(&runs, &out).unwrap();
        let page = fs::read_to_string(&out).unwrap();
        assert_eq!(page.matches("<svg ").count(), 1, "one environment");
        assert!(page.contains("<td>a1, a2</td><td>2000</td><td>4, 8</td><td>6 \u{b1} 2.83</td>"), "{page}");
        assert!(page.contains("&lt;i&gt;b") && page.contains("plays &lt;pole&gt;") && !page.contains("<i>b"));
        // A run that has not come as far is a part of the curve up to there.
        let group = |scores: &[(u64, f64)]| {
            let runs = [scores, &[(10, 3.0)]].map(|scores| {
                let directory = tempfile::tempdir().unwrap();
                let directory = run(directory.path(), "x", "", scores);
                Member { name: "x".to_owned(), about: About::default(), curves: Curves::read(&directory).unwrap() }
            });
            Group { configuration: toml::Table::new(), runs: runs.into() }
        };
        let points = group(&[(10, 1.0), (20, 4.0)]).points();
        assert_eq!(points.iter().map(|p| (p.step, p.mean)).collect::<Vec<_>>(), [(10.0, 2.0)]);
        assert!((points[0].spread.unwrap() - 2f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_run_is_named() {
        let root = tempfile::tempdir().unwrap();
        let broken = run(root.path(), "broken", "= 1", &[(1, 1.0)]);
        let out = root.path().join("page.html");
        assert!(compare(&[broken], &out).unwrap_err().to_string().contains(CONFIGURATION));
        assert!(compare(&[root.path().join("nothing")], &out).unwrap_err().to_string().contains(METRICS));
        assert!(!out.exists());
    }
}

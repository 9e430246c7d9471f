//! The report of a run: one HTML file with every table, charts, and the method of every number, which needs nothing beside itself.
//!
//! It is made from what [`Run`] reads, so that it can be made again for any run. Everything that comes from a file is escaped.

mod bars;
pub mod charts;
mod draw;
mod table;

use crate::host::Host;
use crate::recommend::Recommendation;
use crate::run::{Run, SuiteReport};
use anyhow::{Context, Result};
use candle_models::files::write_atomic;
use candle_models::html::{self, escape};
use charts::{Panel, Shown};
use std::fmt::Write as _;
use std::path::Path;

/// The file of the report in a run's directory.
pub const REPORT: &str = "report.html";

/// Writes the report of a run.
///
/// # Errors
/// Names the file that cannot be written.
pub fn write(run: &Run, recommendations: &[Recommendation], file: &Path) -> Result<()> {
    let page = html(run, recommendations)?;
    if let Some(directory) = file.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("{}: cannot be made", directory.display()))?;
    }
    write_atomic(file, page.as_bytes()).with_context(|| format!("{}: cannot be written", file.display()))
}

/// The whole file. It forbids itself to ask any other place for anything.
pub fn html(run: &Run, recommendations: &[Recommendation]) -> Result<String> {
    let full = std::fs::canonicalize(&run.directory).unwrap_or_else(|_| run.directory.clone());
    let title = full.file_name().map_or("run".into(), |name| name.to_string_lossy());
    let mut page = html::head(&format!("{title}: candle-bench"), include_str!("page.css"));
    let _ = writeln!(page, "<header><h1>{}</h1><button id=\"theme\" type=\"button\" hidden>Theme</button></header>", escape(&title));
    head(&mut page, run);
    contents(&mut page, run, recommendations);
    advice(&mut page, recommendations);
    for (name, about, suite) in run.in_order() {
        section(&mut page, name, about, suite)?;
    }
    let _ = write!(page, "<script>\n{}</script>\n</body>\n</html>\n", include_str!("page.js"));
    Ok(page)
}

/// The values that a field has in a run, each once.
fn each<'a>(hosts: &[&'a Host], field: impl Fn(&'a Host) -> String) -> String {
    let mut values: Vec<String> = Vec::new();
    for value in hosts.iter().map(|host| field(host)) {
        if !values.contains(&value) {
            values.push(value);
        }
    }
    values.join(", ")
}

// Writing to a string does not fail.
fn head(page: &mut String, run: &Run) {
    let hosts: Vec<&Host> = run.suites.values().flat_map(|suite| &suite.rows).map(|row| &row.host).collect();
    let rows: usize = run.suites.values().map(|suite| suite.rows.len()).sum();
    let facts = [
        ("Host", each(&hosts, |h| h.host.clone())),
        ("CPU", each(&hosts, |h| h.cpu.clone())),
        ("CPUs", each(&hosts, |h| h.cpus.to_string())),
        ("Instruction sets", each(&hosts, |h| h.features.replace('+', " "))),
        ("Commit", each(&hosts, |h| h.commit.clone())),
        ("Measured", each(&hosts, |h| h.date.clone())),
        ("Build", each(&hosts, |h| h.profile.clone())),
        ("Rows", rows.to_string()),
    ];
    page.push_str("<dl class=\"facts\">\n");
    for (name, value) in facts.into_iter().filter(|(_, value)| !value.is_empty()) {
        let _ = writeln!(page, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    page.push_str("</dl>\n");
    let mut warn = |text: &str| {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(text));
    };
    if hosts.iter().any(|host| host.profile != "release") {
        warn("Some of it was measured by a debug build: those times say nothing.");
    }
    if hosts.iter().any(|host| host.commit.ends_with("-dirty")) {
        warn("Some of it was measured by a program that differs from its commit.");
    }
    if !run.unknown.is_empty() {
        warn(&format!("Not shown, for this version does not know them: {}.", run.unknown.join(", ")));
    }
}

fn contents(page: &mut String, run: &Run, recommendations: &[Recommendation]) {
    page.push_str("<nav aria-label=\"Contents\">\n<ul>\n");
    if !recommendations.is_empty() {
        let _ = writeln!(page, "<li><a href=\"#recommendations\">Recommendations</a> <span>{}</span></li>", recommendations.len());
    }
    for (name, about, suite) in run.in_order() {
        let mark = if suite.interrupted { ", interrupted" } else { "" };
        let _ = writeln!(page, "<li><a href=\"#{name}\">{about}</a> <span>{} rows{mark}</span></li>", suite.rows.len());
    }
    page.push_str("</ul>\n</nav>\n");
}

fn advice(page: &mut String, recommendations: &[Recommendation]) {
    if recommendations.is_empty() {
        return;
    }
    page.push_str(
        "<section id=\"recommendations\">\n<h2>Recommendations</h2>\n<div class=\"box\"><table>\n\
         <thead><tr><th>Kind</th><th>What to do</th><th>Expected</th><th>Measured</th></tr></thead>\n<tbody>\n",
    );
    for Recommendation { kind, what, gain, evidence } in recommendations {
        let _ = write!(page, "<tr>");
        for cell in [kind, what, gain, evidence] {
            let _ = write!(page, "<td class=\"prose\">{}</td>", escape(cell));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n</section>\n");
}

fn section(page: &mut String, name: &str, about: &str, suite: &SuiteReport) -> Result<()> {
    let _ = writeln!(page, "<section id=\"{name}\" class=\"suite\">\n<h2>{about} <code>{name}</code></h2>");
    if suite.interrupted {
        page.push_str("<p class=\"warning\">Interrupted: rows are missing.</p>\n");
    }
    method(page, name, suite);
    for panel in &suite.charts {
        draw_panel(page, panel)?;
    }
    table::write(page, name, suite);
    page.push_str("</section>\n");
    Ok(())
}

/// The command, the method, and the places that rows name by their numbers.
fn method(page: &mut String, name: &str, suite: &SuiteReport) {
    let _ = writeln!(
        page,
        "<details class=\"method\"><summary>Command and method</summary>\n<pre>{}</pre>\n<p id=\"{name}-method\">{} Latencies in microseconds.</p>",
        escape(&suite.command),
        escape(&suite.method)
    );
    for (i, host) in places(suite).into_iter().enumerate() {
        let _ = write!(page, "<dl id=\"{name}-place-{i}\" class=\"place\">");
        for (column, cell) in Host::COLUMNS.iter().zip(host.cells()).filter(|(_, cell)| !cell.is_empty()) {
            let _ = write!(page, "<dt>{column}</dt><dd>{}</dd>", escape(&cell));
        }
        page.push_str("</dl>\n");
    }
    page.push_str("</details>\n");
}

/// Where its rows were measured, each place once.
fn places(suite: &SuiteReport) -> Vec<&Host> {
    suite.rows.iter().fold(Vec::new(), |mut places, row| {
        if !places.contains(&&row.host) {
            places.push(&row.host);
        }
        places
    })
}

fn draw_panel(page: &mut String, panel: &Panel) -> Result<()> {
    let mut figures = String::new();
    panel.charts.iter().try_for_each(|chart| draw::figures(&mut figures, chart))?;
    if figures.is_empty() {
        return Ok(());
    }
    let (open, close) = match panel.shown {
        Shown::Open => (format!("<h3>{}</h3>", panel.heading), ""),
        Shown::Folded => (format!("<details class=\"panel\"><summary>{}</summary>", panel.heading), "</details>\n"),
    };
    let note = if panel.note.is_empty() { String::new() } else { format!("<p class=\"note\">{}</p>\n", panel.note) };
    let _ = write!(page, "{open}\n{note}<div class=\"figures\">\n{figures}</div>\n{close}");
    Ok(())
}

#[cfg(test)]
mod tests;

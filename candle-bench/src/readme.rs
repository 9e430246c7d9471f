//! Tables of a Markdown file, generated from committed runs: what stands between `<!-- table: NAME RUN-DIRECTORY -->` and
//! `<!-- end -->`, the directory relative to the file's own.

use crate::case::Pass;
use crate::family::Families;
use crate::run;
use crate::serve::Serve;
use crate::suite::Suite;
use crate::table::Report;
use crate::target::{FLOOR, Limit, OVER_F32, Sides, TargetRow};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Makes a table from the rows of a suite.
pub type Layout = fn(&[TargetRow]) -> String;

/// A table that a file can ask for.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// By this name.
    pub name: &'static str,
    /// The suite whose report it is made from.
    pub suite: &'static str,
    /// Which of its rows it has.
    pub rows: fn(&TargetRow) -> bool,
    /// How they are laid out.
    pub layout: Layout,
}

const OPEN: &str = "<!-- table: ";
const CLOSE: &str = "<!-- end -->";

/// A file with its tables as the runs say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// The whole text.
    pub text: String,
    /// The tables that said something else before, with their lines.
    pub stale: Vec<String>,
    /// How many tables there are.
    pub tables: usize,
}

/// The tables of all families, and that of the server.
pub fn tables(families: &Families) -> Vec<Table> {
    let server = Table { name: "serve", suite: Serve::NAME, rows: any, layout: with_evidence };
    families.iter().flat_map(|family| family.tables()).chain([server]).collect()
}

/// The Markdown files of some folders that ask for a table.
///
/// # Errors
/// Names what cannot be read; if there is no such file.
pub fn with_tables(folders: &[&Path]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for folder in folders {
        let unreadable = || format!("{}: cannot be read", folder.display());
        for entry in std::fs::read_dir(folder).with_context(unreadable)? {
            let file = entry.with_context(unreadable)?.path();
            if file.extension().is_some_and(|extension| extension == "md") {
                let text = std::fs::read_to_string(&file).with_context(|| format!("{}: cannot be read", file.display()))?;
                files.extend(text.lines().any(|line| line.starts_with(OPEN)).then_some(file));
            }
        }
    }
    let places = folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>();
    ensure!(!files.is_empty(), "{}: no file asks for a table", places.join(", "));
    files.sort();
    Ok(files)
}

/// Fills the tables of a Markdown file.
///
/// # Errors
/// Names the line of a marker that is none, of an unknown table, or of one whose run is missing or of another version.
pub fn fill(tables: &[Table], file: &Path) -> Result<Filled> {
    let place = file.display();
    let old = std::fs::read_to_string(file).with_context(|| format!("{place}: cannot be read"))?;
    let root = file.parent().map_or_else(PathBuf::new, Path::to_owned);
    let mut filled = Filled { text: String::with_capacity(old.len()), stale: Vec::new(), tables: 0 };
    let mut lines = old.split_inclusive('\n').enumerate();
    while let Some((number, line)) = lines.next() {
        filled.text.push_str(line);
        let at = format!("{place}:{}", number + 1);
        ensure!(line.trim() != CLOSE, "{at}: {CLOSE} without {OPEN}NAME RUN-DIRECTORY --> before it");
        let Some(asked) = line.trim().strip_prefix(OPEN) else { continue };
        let table = generate(tables, asked, &root).with_context(|| at.clone())?;
        let mut before = String::new();
        let close = loop {
            match lines.next() {
                Some((_, line)) if line.trim() == CLOSE => break line,
                Some((_, line)) if !line.trim_start().starts_with(OPEN) => before.push_str(line),
                _ => bail!("{at}: no {CLOSE} behind the table"),
            }
        };
        if before != table {
            filled.stale.push(format!("{at}: {}", asked.trim_end_matches("-->").trim()));
        }
        filled.text.extend([table.as_str(), close]);
        filled.tables += 1;
    }
    Ok(filled)
}

/// The table that `NAME RUN-DIRECTORY -->` asks for.
fn generate(tables: &[Table], asked: &str, root: &Path) -> Result<String> {
    let words: Vec<&str> = asked.strip_suffix("-->").context("a marker ends with -->")?.split_whitespace().collect();
    let [name, directory] = words[..] else { bail!("a marker is {OPEN}NAME RUN-DIRECTORY -->, found {OPEN}{asked}") };
    let known = || tables.iter().map(|table| table.name).collect::<Vec<_>>().join(", ");
    let table = tables.iter().find(|table| table.name == name).with_context(|| format!("table {name}: not one of {}", known()))?;
    let Report { rows, interrupted, .. } = run::report::<TargetRow>(&root.join(directory), table.suite)?;
    ensure!(!interrupted, "{directory}: {} was interrupted, rows are missing", table.suite);
    let rows: Vec<TargetRow> = rows.into_iter().filter(table.rows).collect();
    ensure!(!rows.is_empty(), "{directory}: {} has no row for table {name}", table.suite);
    Ok((table.layout)(&rows))
}

/// Every row.
pub fn any(_: &TargetRow) -> bool {
    true
}

/// Rows that compare two times.
pub fn is_ratio(row: &TargetRow) -> bool {
    row.unit == "x"
}

/// Those of them that are one frame of one agent.
pub fn is_answer(row: &TargetRow) -> bool {
    is_ratio(row) && row.case.batch == 1 && row.case.pass == Pass::Step
}

/// Rows that are shares of a pass's floor.
pub fn is_floor(row: &TargetRow) -> bool {
    row.unit == FLOOR
}

/// Rows that compare a pass with the same in f32.
pub fn is_gain(row: &TargetRow) -> bool {
    row.unit == OVER_F32
}

/// Rows that are nothing of these.
pub fn is_other(row: &TargetRow) -> bool {
    !is_ratio(row) && !is_floor(row) && !is_gain(row)
}

/// Rows that differ in their threads alone, in the order of the first of each, and every number of threads there is.
fn paired(rows: &[TargetRow]) -> (Vec<Vec<&TargetRow>>, Vec<usize>) {
    let mut groups: Vec<Vec<&TargetRow>> = Vec::new();
    for row in rows {
        let of_group = |group: &&mut Vec<&TargetRow>| (&group[0].what, group[0].case.batch) == (&row.what, row.case.batch);
        match groups.iter_mut().find(of_group) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    let mut threads: Vec<usize> = rows.iter().map(|row| row.case.threads).collect();
    threads.sort_unstable();
    threads.dedup();
    (groups, threads)
}

/// Our time and theirs on each number of threads; a ratio that misses its limit is bold.
pub fn beside_peers(rows: &[TargetRow]) -> String {
    let (groups, threads) = paired(rows);
    let threads = threads.iter().map(usize::to_string).collect::<Vec<_>>().join(" / ");
    let mut table = head(&[&format!("threads {threads}"), "ours, us", "peer", "theirs, us", "ratio", "limit"], &[1, 3, 4, 5]);
    for group in groups {
        let sides: Vec<Option<Sides>> = group.iter().map(|row| Sides::read(&row.evidence)).collect();
        let each = |show: fn(&Sides) -> String| {
            let shown = sides.iter().map(|sides| sides.as_ref().map_or_else(|| "-".to_owned(), show));
            shown.collect::<Vec<_>>().join(" / ")
        };
        let mut peers: Vec<&str> = sides.iter().flatten().map(|sides| sides.peer.as_str()).collect();
        peers.dedup();
        let ratios: Vec<String> =
            group.iter().map(|row| marked(row, if row.found.is_finite() { ratio(row) } else { row.evidence.clone() })).collect();
        let what = group[0].what.split(" over ").next().unwrap_or_default();
        line(
            &mut table,
            &[
                format!("{what}, batch {}", group[0].case.batch),
                each(|sides| time(sides.ours_us)),
                peers.join(", "),
                each(|sides| time(sides.theirs_us)),
                ratios.join(" / "),
                bare_limit(group[0].limit),
            ],
        );
    }
    table
}

/// Microseconds with no more digits than the evidence has.
fn time(us: f64) -> String {
    if us < 100.0 { format!("{us:.1}") } else { thousands(&format!("{us:.0}")) }
}

fn ratio(row: &TargetRow) -> String {
    format!("{:.3}", row.found)
}

/// A column for each number of threads, in brackets what the figure was made from; one that misses its limit is bold.
pub fn by_threads(rows: &[TargetRow]) -> String {
    let (groups, threads) = paired(rows);
    let counts: Vec<String> = threads.iter().map(|n| if *n == 1 { "one thread".to_owned() } else { format!("{n} threads") }).collect();
    let names: Vec<&str> = [""].into_iter().chain(counts.iter().map(String::as_str)).chain(["limit"]).collect();
    let mut table = head(&names, &(1..names.len()).collect::<Vec<_>>());
    for group in groups {
        let found = threads.iter().map(|n| {
            let row = group.iter().find(|row| row.case.threads == *n);
            row.map_or_else(String::new, |row| {
                let from = row.evidence.split([',', ';']).next().unwrap_or_default();
                let from = if from.is_empty() { String::new() } else { format!(" ({from})") };
                marked(row, with_unit(row.found, &row.unit)) + &from
            })
        });
        let cells: Vec<String> = [group[0].what.clone()].into_iter().chain(found).chain([limit(group[0])]).collect();
        line(&mut table, &cells);
    }
    table
}

/// A line for every figure, with its threads and all that it was made from; one that misses its limit is bold.
pub fn with_evidence(rows: &[TargetRow]) -> String {
    each(rows, "threads", |row| row.case.threads)
}

/// The same for rows that differ in their batch.
pub fn by_batch(rows: &[TargetRow]) -> String {
    each(rows, "batch", |row| row.case.batch)
}

fn each(rows: &[TargetRow], name: &str, number: fn(&TargetRow) -> usize) -> String {
    let mut table = head(&["", name, "found", "limit", "from"], &[1, 2, 3]);
    for row in rows {
        let found = marked(row, with_unit(row.found, &row.unit));
        line(&mut table, &[row.what.clone(), number(row).to_string(), found, limit(row), row.evidence.clone()]);
    }
    table
}

/// The first two lines of a table; the columns in `right` are aligned there.
fn head(names: &[&str], right: &[usize]) -> String {
    let mut table = String::new();
    line(&mut table, &names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    let rules = (0..names.len()).map(|i| if right.contains(&i) { "---:" } else { "---" });
    // Writing to a string does not fail.
    let _ = writeln!(table, "|{}|", rules.collect::<Vec<_>>().join("|"));
    table
}

fn line(table: &mut String, cells: &[String]) {
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|").replace('\n', " ")).collect();
    let text = cells.iter().fold("|".to_owned(), |text, cell| if cell.is_empty() { text + " |" } else { text + " " + cell + " |" });
    let _ = writeln!(table, "{text}");
}

fn marked(row: &TargetRow, text: String) -> String {
    if row.met() { text } else { format!("**{text}**") }
}

fn limit(row: &TargetRow) -> String {
    let bound = match row.limit {
        Limit::AtMost(_) => "at most",
        Limit::AtLeast(_) => "at least",
    };
    unit(&format!("{bound} {}", bare_limit(row.limit)), &row.unit)
}

fn bare_limit(limit: Limit) -> String {
    match limit {
        Limit::AtMost(bound) | Limit::AtLeast(bound) => bound.to_string(),
    }
}

fn with_unit(found: f64, name: &str) -> String {
    if found.is_finite() { unit(&significant(found), name) } else { "not measured".to_owned() }
}

/// Ratios and shares have no unit.
fn unit(number: &str, name: &str) -> String {
    match name {
        "x" | "share" | FLOOR | OVER_F32 => number.to_owned(),
        "%" => format!("{number}%"),
        name => format!("{number} {name}"),
    }
}

/// Shares of the floor, or speeds beside f32, on each number of threads: a line for every model and dtype, a column for every pass. What misses its limit is bold.
pub fn by_pass(rows: &[TargetRow]) -> String {
    let pass = |row: &TargetRow| format!("{}, batch {}", row.case.pass_name(), row.case.batch);
    let model = |row: &TargetRow| format!("{}, {}", row.case.backbone, row.case.dtype);
    let (passes, models, threads) = (distinct(rows, pass), distinct(rows, model), distinct(rows, |row| row.case.threads.to_string()));
    let first = format!("threads {}", threads.join(" / "));
    let names: Vec<&str> = [first.as_str()].into_iter().chain(passes.iter().map(String::as_str)).collect();
    let mut table = head(&names, &(1..names.len()).collect::<Vec<_>>());
    for named in models {
        let found = passes.iter().map(|column| {
            let cells = rows.iter().filter(|row| model(row) == named && pass(row) == *column);
            let share = |row: &TargetRow| if row.found.is_finite() { format!("{:.2}", row.found) } else { "above".to_owned() };
            cells.map(|row| marked(row, share(row))).collect::<Vec<_>>().join(" / ")
        });
        line(&mut table, &[named.clone()].into_iter().chain(found).collect::<Vec<_>>());
    }
    table
}

/// What rows differ in, each once in the order of the rows.
fn distinct(rows: &[TargetRow], of: impl Fn(&TargetRow) -> String) -> Vec<String> {
    let mut found = Vec::new();
    for text in rows.iter().map(of) {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

/// About three digits.
fn significant(value: f64) -> String {
    match value.abs() {
        100.0.. => thousands(&format!("{value:.0}")),
        10.0..100.0 => format!("{value:.1}"),
        1.0..10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A number with its thousands apart: `2 954`.
fn thousands(number: &str) -> String {
    let whole = number.chars().position(|c| c == '.').unwrap_or(number.len());
    let apart = |(i, c): (usize, char)| {
        let gap = i > 0 && i < whole && (whole - i).is_multiple_of(3);
        if gap { vec![' ', c] } else { vec![c] }
    };
    number.chars().enumerate().flat_map(apart).collect()
}

#[cfg(test)]
mod tests;

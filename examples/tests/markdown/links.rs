//! Links within the repository.

use crate::{Document, root};
use std::fs;
use std::path::Path;

/// The targets of a document's links to files and headings, with their lines.
pub fn local(document: &Document) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in document.prose() {
        // What stands between backticks is code.
        let prose: String = text.split('`').enumerate().map(|(at, part)| if at % 2 == 0 { part } else { "code" }).collect();
        let targets = prose.split("](").skip(1).filter_map(|rest| rest.split(')').next().map(str::to_owned));
        found.extend(targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).map(|target| (line, target)));
    }
    found
}

/// The anchors of a document: its headings in lower case, words joined by hyphens, without punctuation.
fn anchors(document: &Document) -> Vec<String> {
    let headings = document.prose().map(|(_, line)| line).filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#'));
    let kept = |c: char| c.is_alphanumeric() || c == ' ' || c == '-' || c == '_';
    headings.map(|title| title.trim().to_lowercase().chars().filter(|c| kept(*c)).collect::<String>().replace(' ', "-")).collect()
}

/// That the target of a link is there.
pub fn check(document: &Document, target: &str) -> Result<(), String> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { document.path.clone() } else { document.path.parent().unwrap_or(Path::new("")).join(file) };
    let place = root().join(&path);
    if !file.is_empty() && !place.exists() {
        return Err(format!("no file {}", path.display()));
    }
    let Some(anchor) = anchor else { return Ok(()) };
    let known = if file.is_empty() {
        anchors(document)
    } else {
        anchors(&Document::new(&path, &fs::read_to_string(&place).map_err(|error| format!("{}: {error}", path.display()))?))
    };
    if known.iter().any(|known| known == anchor) { Ok(()) } else { Err(format!("no heading {anchor}, found {known:?}")) }
}

#[test]
fn a_link_that_leads_nowhere_is_found() {
    let text =
        "# A, and `b`\n[x](#a-and-b) [y](#c) ![z](README.md) `[no](link)`\n```text\n[no](link)\n```\n[w](none.md) [v](https://x.y)\n";
    let document = Document::new(Path::new("A.md"), text);
    let found = local(&document);
    assert_eq!(found, [(2, "#a-and-b"), (2, "#c"), (2, "README.md"), (6, "none.md")].map(|(line, target)| (line, target.to_owned())));
    let there: Vec<bool> = found.iter().map(|(_, target)| check(&document, target).is_ok()).collect();
    assert_eq!(there, [true, false, true, false]);
}

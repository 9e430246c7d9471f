//! What the Markdown files of the repository say is true: every code block is compiled, run or parsed, every link leads somewhere, and the
//! guide has every chapter once.
#![allow(clippy::unwrap_used)]

mod blocks;
mod links;
mod shell;

use std::fs;
use std::path::{Path, PathBuf};

/// A Markdown file of the repository.
struct Document {
    /// From the repository's root.
    path: PathBuf,
    lines: Vec<Line>,
}

/// A line of a file, or one within a code block.
struct Line {
    text: String,
    /// The line on which its block opens, if it is in one; that of the fences is in none.
    block: Option<usize>,
}

/// A fenced block of code.
struct Block {
    /// `path:line` of the opening fence.
    place: String,
    /// What stands behind the fence: the language, and what follows it behind commas.
    language: String,
    attributes: Vec<String>,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// The documents of the repository: those of folders that build, fetch or run are none.
fn documents() -> Vec<Document> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let own = |name: &str| !name.starts_with('.') && !["target", "node_modules", "runs"].contains(&name);
            if path.is_dir() && (own(&name) || path.ends_with("candle-bench/runs")) {
                folders.push(path);
            } else if name.ends_with(".md") {
                found.push(Document::new(path.strip_prefix(root()).unwrap(), &fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

impl Document {
    fn new(path: &Path, text: &str) -> Self {
        let (mut lines, mut open) = (Vec::new(), None);
        for (at, line) in text.lines().enumerate() {
            let fence = line.trim_start().starts_with("```");
            let block = if fence { None } else { open };
            lines.push(Line { text: line.to_owned(), block });
            if fence {
                open = if open.is_none() { Some(at) } else { None };
            }
        }
        assert!(open.is_none(), "{}:{}: this block is not closed", path.display(), open.unwrap_or_default() + 1);
        Self { path: path.to_owned(), lines }
    }

    fn blocks(&self) -> Vec<Block> {
        let mut blocks = Vec::new();
        let mut lines = self.lines.iter().enumerate();
        while let Some((at, line)) = lines.next() {
            let Some(info) = line.text.trim_start().strip_prefix("```") else { continue };
            let mut words = info.split(',').map(|word| word.trim().to_owned());
            let (language, attributes) = (words.next().unwrap(), words.collect());
            let inside = lines.by_ref().map(|(_, line)| line).take_while(|line| line.block.is_some());
            let text = inside.map(|line| format!("{}\n", line.text)).collect();
            blocks.push(Block { place: format!("{}:{}", self.path.display(), at + 1), language, attributes, text });
        }
        blocks
    }

    /// Lines outside of code, with their numbers.
    fn prose(&self) -> impl Iterator<Item = (usize, &str)> {
        let lines = self.lines.iter().enumerate().filter(|(_, line)| line.block.is_none());
        lines.map(|(at, line)| (at + 1, line.text.as_str()))
    }
}

#[test]
fn every_block_of_every_document_is_held() {
    let found = documents();
    let (mut count, mut wrong) = (0, Vec::new());
    for document in &found {
        for block in document.blocks() {
            count += 1;
            wrong.extend(blocks::check(document, &block).err().map(|reason| format!("{}: {reason}", block.place)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 50, "{count} blocks in {} files", found.len());
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let found = documents();
    let (mut count, mut wrong) = (0, Vec::new());
    for document in &found {
        for (line, target) in links::local(document) {
            count += 1;
            wrong.extend(
                links::check(document, &target).err().map(|reason| format!("{}:{line}: {target}: {reason}", document.path.display())),
            );
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count > 40, "{count} links in {} files", found.len());
}

#[test]
fn the_guide_has_every_chapter_once() {
    let found = documents();
    let summary = found.iter().find(|document| document.path == Path::new("docs/src/SUMMARY.md")).unwrap();
    let mut listed: Vec<PathBuf> = links::local(summary).into_iter().map(|(_, target)| Path::new("docs/src").join(target)).collect();
    listed.sort();
    let files = found.iter().map(|document| &document.path).filter(|path| path.starts_with("docs") && **path != summary.path);
    assert_eq!(listed.iter().collect::<Vec<_>>(), files.collect::<Vec<_>>(), "docs/src/SUMMARY.md beside the files of docs");
}

//! Pages about models: sections of text and figures, which a command writes beside each other.

use crate::host::Host;
use candle_models::files::{AtomicFile, write_atomic};
use candle_models::{Error, Result};
use std::path::{Path, PathBuf};

/// The page's text.
const README: &str = "README.md";

/// A part of a page: its text, and its figures by name.
#[derive(Debug, Default)]
pub struct Section {
    pub text: String,
    pub figures: Vec<(String, String)>,
}

impl Section {
    /// Shows a figure, with what it is and what printed it.
    pub fn show(&mut self, name: String, (says, printed): (&str, &str), svg: String) {
        self.text += &format!("\n![{says}]({name})\n\n*{says}* {printed}\n");
        self.figures.push((name, svg));
    }
}

/// The beginning of a page: what wrote it, and where.
pub fn head(title: &str, command: &str) -> String {
    format!("# {title}\n\nWritten by\n\n```sh\n{command}\n```\n\non {}.", Host::detect())
}

/// Finds out whether a page can be written to a directory, before anything is measured.
///
/// # Errors
/// If it cannot.
pub fn reserve(out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).map_err(Error::io(out))?;
    AtomicFile::create(out.join(README)).map(drop)
}

/// Writes a page; gives its files. The text comes last: it shows the figures.
///
/// # Errors
/// If the disk is full.
pub fn write(out: &Path, head: String, sections: Vec<Section>) -> Result<Vec<PathBuf>> {
    let (mut text, mut files) = (head, Vec::new());
    for section in sections {
        text += &section.text;
        files.extend(section.figures);
    }
    files.push((README.to_owned(), text));
    let write = |(name, content): (String, String)| {
        let path = out.join(name);
        write_atomic(&path, content.as_bytes())?;
        Ok(path)
    };
    files.into_iter().map(write).collect()
}

/// A figure of several seeds: the mean, and from the least to the greatest where there are several.
pub fn of_seeds(values: &[f64], digits: usize) -> String {
    let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (least, most) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), x| (least.min(*x), most.max(*x)));
    if values.len() < 2 { format!("{mean:.digits$}") } else { format!("{mean:.digits$} ({least:.digits$} to {most:.digits$})") }
}

//! What can go wrong, in one type: every message names the file, field or tensor at fault.

use std::path::{Path, PathBuf};

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate. The text is one line and says what was expected and what was found.
///
/// ```
/// use candle_models::Error;
/// use candle_models::bundle::Bundle;
///
/// assert_eq!(Error::tensor("ids", "[6]", "[5]").to_string(), "tensor ids: expected [6], found [5]");
/// assert!(matches!(Bundle::open("nowhere"), Err(Error::Io { path, .. }) if path.ends_with("nowhere")));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading or writing a file failed.
    #[error("{}: {cause}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The operating system's answer. It is a part of the text and no source of its own, or it would be printed twice.
        cause: std::io::Error,
    },
    /// A file was read but does not hold what it should: a damaged replay, a bundle with a wrong tensor.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A configuration value is out of range or contradicts another.
    #[error("config: {field}: {reason}")]
    Config {
        /// The field, dotted from the top (`backbone.state`).
        field: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor has the wrong name, dtype or shape.
    #[error("tensor {name}: expected {expected}, found {found}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What the signature or the model asks for.
        expected: String,
        /// What came.
        found: String,
    },
    /// An input value outside the range that its field allows.
    #[error("{0}")]
    Input(String),
    /// A model has no recorded form: it runs by its `unroll` alone.
    #[error("the model is not recorded: it runs on tensors by its `unroll`, and its operations are not known one by one")]
    NotRecorded,
    /// The engine could not open a session or make a step.
    #[error(transparent)]
    Engine(#[from] crate::engine::EngineError),
    /// An error inside Candle.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// An I/O error with the path it happened on: `map_err(Error::io(path))`.
    pub fn io(path: impl AsRef<Path>) -> impl FnOnce(std::io::Error) -> Self {
        move |cause| Self::Io { path: path.as_ref().to_owned(), cause }
    }

    /// A file whose content is wrong.
    pub fn file(path: impl AsRef<Path>, reason: impl ToString) -> Self {
        Self::File { path: path.as_ref().to_owned(), reason: reason.to_string() }
    }

    /// A configuration field at fault.
    pub fn config(field: impl ToString, reason: impl ToString) -> Self {
        Self::Config { field: field.to_string(), reason: reason.to_string() }
    }

    /// A tensor that is not what was asked for.
    pub fn tensor(name: impl ToString, expected: impl ToString, found: impl ToString) -> Self {
        Self::Tensor { name: name.to_string(), expected: expected.to_string(), found: found.to_string() }
    }
}

/// A stranger's text on its way into a message: on one line, and not longer than one can read.
///
/// ```
/// use candle_models::one_line;
///
/// assert_eq!(one_line("a\nb"), r"a\nb");
/// assert_eq!(one_line(&"x".repeat(300)), format!("{}...", "x".repeat(200)));
/// ```
pub fn one_line(text: &str) -> String {
    const LIMIT: usize = 200;
    let mut line = String::new();
    for c in text.chars().take(LIMIT) {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    if text.chars().nth(LIMIT).is_some() {
        line.push_str("...");
    }
    line
}

/// Bytes, such as a hash, as they are written: two hexadecimal digits each.
///
/// ```
/// assert_eq!(candle_models::hex([0, 0xAB]), "00ab");
/// ```
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

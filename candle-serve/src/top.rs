//! `candle-serve top`: what a server is at, as a table that is drawn anew. It knows nothing but what `/metrics` says.

mod connection;
mod table;
mod text;

use clap::Parser;
use connection::Source;
use hyper::header::HeaderValue;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use text::Reading;

pub use connection::Place;

/// Where a key is found that no file has.
const KEY: &str = "CANDLE_SERVE_KEY";

/// Shows what a server is at: requests, steps and their times by model, drawn anew every second.
#[derive(Debug, Parser)]
#[command(
    name = "candle-serve top",
    version,
    about,
    after_help = "The environment variable CANDLE_SERVE_KEY has the key where --key-file does not say another."
)]
pub struct TopArguments {
    /// The server's port for HTTP: http://HOST:PORT, https://HOST:PORT, or unix:PATH.
    #[arg(default_value = "http://127.0.0.1:8000")]
    pub address: Place,

    /// How often the table is drawn anew, in seconds.
    #[arg(long, value_name = "S", default_value = "1", value_parser = interval)]
    pub every: Duration,

    /// One table, of what happens within that time.
    #[arg(long)]
    pub once: bool,

    /// Certificates in PEM that a server with TLS is known by.
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,

    /// A file with a key, where the server asks for one.
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| format!("expected from 0.05 to 86400 seconds, found {text:?}"))
}

impl TopArguments {
    fn key(&self) -> Result<Option<HeaderValue>, String> {
        let key = match &self.key_file {
            Some(path) => Some(std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?),
            None => std::env::var(KEY).ok(),
        };
        let header = |key: String| {
            let mut header = HeaderValue::try_from(format!("Bearer {}", key.trim())).map_err(|_| "expected a key, found other bytes")?;
            header.set_sensitive(true);
            Ok(header)
        };
        key.filter(|key| !key.trim().is_empty()).map(header).transpose()
    }
}

/// A moment and what the server said then.
struct Seen {
    at: Instant,
    reading: Reading,
}

/// Draws tables until the output is closed; with `once` a single one. A server that goes away is asked again.
///
/// # Errors
/// In words, if an argument is no good, the output cannot be written to, or with `once` if the server does not answer.
pub async fn top(arguments: TopArguments) -> Result<(), String> {
    let key = arguments.key()?;
    let place = arguments.address.to_string();
    let mut source = Source::new(arguments.address, arguments.ca.as_deref(), key)?;
    let mut before = None;
    let mut ticks = tokio::time::interval(arguments.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let seen = source.read().await.and_then(|text| Ok(Seen { at: Instant::now(), reading: Reading::parse(&text)? }));
        let lines = match (seen, &mut before) {
            (Err(reason), _) if arguments.once => return Err(format!("{place}: {reason}")),
            (Err(reason), _) => vec![format!("{place}: {reason}; it is asked again every {:?}", arguments.every)],
            (Ok(seen), None) => {
                before = Some(seen);
                continue;
            }
            (Ok(seen), Some(before)) => {
                let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
                let lines = table::table(&place, &before.reading, &seen.reading, seen.at - before.at, unix);
                *before = seen;
                lines
            }
        };
        match draw(&lines) {
            // Whoever reads has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
            drawn => drawn.map_err(|e| e.to_string())?,
        }
        if arguments.once {
            return Ok(());
        }
    }
}

/// In the place of the last table where that is a terminal, and no more than it has room for; otherwise behind it.
fn draw(lines: &[String]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if !out.is_terminal() {
        lines.iter().try_for_each(|line| writeln!(out, "{line}"))?;
        writeln!(out)?;
        return out.flush();
    }
    let (height, width) = console::Term::stdout().size();
    let (height, width) = (usize::from(height).max(2) - 1, usize::from(width));
    let mut text = String::from("\x1b[H");
    for line in lines.iter().take(height) {
        text.extend(line.chars().take(width));
        text += "\x1b[K\r\n";
    }
    text += "\x1b[J";
    out.write_all(text.as_bytes())?;
    out.flush()
}

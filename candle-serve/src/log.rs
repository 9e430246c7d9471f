//! What a server says of itself while it runs: one event for each model that comes or goes, each beginning and end, and each request that
//! fails; of every request where a client asks for that. Which kinds of events there are can be changed at run time.
//!
//! Events are those of [`tracing`]: [`to_stderr`] writes them as lines, and a program that has a [`Server`](crate::Server) of its own can do with
//! them what it likes.

use crate::fault::{Fault, Kind, one_line};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;
use tracing::{Level, debug, error, info, warn};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt, registry};

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// An object of JSON each.
    Json,
}

/// Writes the events of this crate to standard error from now on.
///
/// # Errors
/// If the process has somebody who takes events already.
pub fn to_stderr(format: LogFormat) -> std::io::Result<()> {
    let own = Targets::new().with_target(env!("CARGO_CRATE_NAME"), Level::TRACE);
    let lines = fmt::layer().with_writer(std::io::stderr).with_target(false).with_ansi(false);
    let lines = match format {
        LogFormat::Text => lines.boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_current_span(false).with_span_list(false).boxed(),
    };
    registry().with(lines.with_filter(own)).try_init().map_err(std::io::Error::other)
}

/// Which events there are, as the protocol has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct LogSettings {
    /// Always standard error, which has no name.
    pub log_file: &'static str,
    pub log_info: bool,
    pub log_warning: bool,
    pub log_error: bool,
    /// From 1 on every request is one.
    pub log_verbose_level: u32,
    pub log_format: &'static str,
}

/// What is to be changed.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogChange {
    pub log_file: Option<String>,
    pub log_info: Option<bool>,
    pub log_warning: Option<bool>,
    pub log_error: Option<bool>,
    pub log_verbose_level: Option<u32>,
    pub log_format: Option<String>,
}

/// The log of a server.
#[derive(Debug)]
pub(crate) struct Log {
    info: AtomicBool,
    warning: AtomicBool,
    error: AtomicBool,
    verbose: AtomicU32,
    format: LogFormat,
}

impl Log {
    /// Everything but single requests that succeed.
    pub fn new(format: LogFormat) -> Self {
        let on = || AtomicBool::new(true);
        Self { info: on(), warning: on(), error: on(), verbose: AtomicU32::new(0), format }
    }

    /// Which events there are.
    pub fn settings(&self) -> LogSettings {
        LogSettings {
            log_file: "",
            log_info: self.info.load(Relaxed),
            log_warning: self.warning.load(Relaxed),
            log_error: self.error.load(Relaxed),
            log_verbose_level: self.verbose.load(Relaxed),
            log_format: match self.format {
                LogFormat::Text => "default",
                LogFormat::Json => "json",
            },
        }
    }

    /// Changes all that is given, or nothing.
    pub fn change(&self, change: &LogChange) -> Result<(), Fault> {
        let LogSettings { log_file, log_format, .. } = self.settings();
        let fixed = |name, now: &str, wanted: &Option<String>| match wanted.as_deref().filter(|wanted| *wanted != now) {
            Some(wanted) => {
                let reason = format!("{name}: expected {now:?}, which is set where the server is started, found {:?}", one_line(wanted));
                Err(Fault::input(reason))
            }
            None => Ok(()),
        };
        fixed("log_file", log_file, &change.log_file)?;
        fixed("log_format", log_format, &change.log_format)?;
        let flags = [(&self.info, change.log_info), (&self.warning, change.log_warning), (&self.error, change.log_error)];
        flags.into_iter().for_each(|(flag, wanted)| flag.store(wanted.unwrap_or(flag.load(Relaxed)), Relaxed));
        if let Some(level) = change.log_verbose_level {
            self.verbose.store(level, Relaxed);
        }
        Ok(())
    }

    /// Something about the whole server.
    pub fn server(&self, what: &str) {
        if self.info.load(Relaxed) {
            info!("{what}");
        }
    }

    /// A model was loaded, or not.
    pub fn load(&self, model: &str, loaded: &Result<(), Fault>, time: Duration) {
        match loaded {
            Ok(()) if self.info.load(Relaxed) => info!(model, ms = ms(time), "loaded"),
            Err(fault) if self.error.load(Relaxed) => {
                error!(model = one_line(model), error = fault.message, ms = ms(time), "failed to load");
            }
            _ => {}
        }
    }

    /// A trace could not be written.
    pub fn trace_lost(&self, error: &std::io::Error) {
        if self.error.load(Relaxed) {
            error!(error = error.to_string(), "a trace was not written");
        }
    }

    /// Files that have changed cannot be used.
    pub fn not_renewed(&self, what: &str, error: &candle_models::Error) {
        if self.error.load(Relaxed) {
            error!(error = error.to_string(), "{what} stay as they were");
        }
    }

    /// Something is wrong with a snapshot of a sequence.
    pub fn snapshot(&self, model: &str, what: &str, error: &dyn std::fmt::Display) {
        if self.error.load(Relaxed) {
            error!(model, error = one_line(&error.to_string()).to_string(), "{}", one_line(what));
        }
    }

    /// Snapshots that were kept for too long could not be removed.
    pub fn sweep(&self, error: &candle_models::Error) {
        if self.error.load(Relaxed) {
            error!(error = error.to_string(), "old snapshots were not removed");
        }
    }

    /// Spans did not come to their collector.
    pub fn spans_lost(&self, count: usize, error: &str) {
        if self.error.load(Relaxed) {
            error!(count, error, "spans were not exported");
        }
    }

    /// A model was unloaded.
    pub fn unload(&self, model: &str) {
        if self.info.load(Relaxed) {
            info!(model, "unloaded");
        }
    }

    /// A request was answered, or refused.
    pub fn request(&self, request: Request<'_>, time: Duration, fault: Option<&Fault>) {
        let Request { protocol, call, model } = request;
        let (call, ms) = (|| one_line(call), ms(time));
        match fault {
            Some(Fault { kind, message }) if matches!(kind, Kind::Failed | Kind::StateLost) => {
                if self.error.load(Relaxed) {
                    error!(protocol, call = call(), model, kind = ?kind, error = message, ms, "request failed");
                }
            }
            Some(Fault { kind, message }) => {
                if self.warning.load(Relaxed) {
                    warn!(protocol, call = call(), model, kind = ?kind, error = message, ms, "request refused");
                }
            }
            None => {
                if self.verbose.load(Relaxed) > 0 {
                    debug!(protocol, call = call(), model, ms, "request answered");
                }
            }
        }
    }
}

/// A request in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub protocol: &'static str,
    /// What was called: a path, or a method.
    pub call: &'a str,
    pub model: Option<&'a str>,
}

/// To a microsecond.
fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

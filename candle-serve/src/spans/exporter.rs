//! What takes spans to the collector, and says now and then that it cannot.

use crate::log::Log;
use opentelemetry_otlp::SpanExporter as Otlp;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A collector that is away is not told of more often than that.
const QUIET: Duration = Duration::from_secs(60);

/// Tells the log of spans that were lost.
pub(super) struct Exporter {
    inner: Otlp,
    log: Arc<Log>,
    lost: Mutex<Lost>,
}

/// Spans that were lost, and when the log was told of it.
#[derive(Debug, Default)]
struct Lost {
    spans: usize,
    told: Option<Instant>,
}

impl Exporter {
    pub fn new(inner: Otlp, log: Arc<Log>) -> Self {
        Self { inner, log, lost: Mutex::default() }
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("lost", &self.lost).finish_non_exhaustive()
    }
}

impl SpanExporter for Exporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let exported = self.inner.export(batch).await;
        if let Err(error) = &exported {
            let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
            lost.spans += count;
            if lost.told.is_none_or(|told| told.elapsed() >= QUIET) {
                self.log.spans_lost(std::mem::take(&mut lost.spans), &error.to_string());
                lost.told = Some(Instant::now());
            }
        }
        exported
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

//! Whether the server is well, for those who ask by gRPC's own protocol.

use super::services::SERVICE;
use crate::listen::Phase;
use crate::server::Shared;
use std::sync::Arc;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Tells the reporter whether the server is ready, each time that this changes, until the server closes.
pub(crate) async fn report(reporter: HealthReporter, shared: Arc<Shared>) {
    let (mut phase, mut loaded) = (shared.phase.clone(), shared.loaded.subscribe());
    loop {
        let ready = shared.readiness().is_none();
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in ["", SERVICE] {
            reporter.set_service_status(name, status).await;
        }
        let watched = tokio::select! {
            changed = phase.changed() => changed,
            changed = loaded.changed() => changed,
        };
        if watched.is_err() || *phase.borrow() == Phase::Closing {
            return;
        }
    }
}

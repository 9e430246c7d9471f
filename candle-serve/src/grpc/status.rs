//! Faults as statuses.

use crate::fault::{Fault, Kind};
use crate::options::Limits;
use tonic::metadata::MetadataValue;
use tonic::{Code, Status};

/// How long a client that asks again by itself waits for that, in milliseconds: what `Retry-After` is over HTTP.
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The code of each kind of fault.
pub(super) fn code(kind: Kind) -> Code {
    match kind {
        Kind::Input => Code::InvalidArgument,
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::Forbidden => Code::PermissionDenied,
        Kind::NotFound => Code::NotFound,
        Kind::StateLost => Code::FailedPrecondition,
        Kind::TooLarge | Kind::Overloaded => Code::ResourceExhausted,
        Kind::Failed => Code::Internal,
        Kind::Method | Kind::Encoding | Kind::Unsupported => Code::Unimplemented,
        Kind::Unavailable => Code::Unavailable,
        Kind::Slow | Kind::Deadline => Code::DeadlineExceeded,
    }
}

/// What became of a request that is not answered.
pub(super) fn status(fault: Fault) -> Status {
    let mut status = Status::new(code(fault.kind), fault.message);
    if fault.kind == Kind::Overloaded {
        status.metadata_mut().insert(PUSHBACK, MetadataValue::from(1000));
    }
    status
}

/// Of a message that is too large; tonic has another code for it.
pub(super) fn too_large(limits: &Limits) -> Status {
    status(Fault::new(Kind::TooLarge, format!("expected a message of at most {} bytes, found more", limits.body)))
}

/// Of a call that does not end by itself, where the server ends.
pub(super) fn ending() -> Status {
    Status::unavailable("the server is about to end")
}

//! Why a request is not answered, in words and in one of the kinds that every protocol has a code for.

use candle_models::Error;
use candle_models::engine::EngineError;
pub(crate) use candle_models::one_line;

/// What a client has to tell apart. The HTTP status of each stands behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The request is wrong, and will be wrong the next time: 400.
    Input,
    /// There is no such model, sequence or page: 404.
    NotFound,
    /// The page is there, and takes another method: 405.
    Method,
    /// The body did not come in time: 408.
    Slow,
    /// The state of a sequence was lost in a failed step: 409.
    StateLost,
    /// The body is too large: 413.
    TooLarge,
    /// The body is encoded in a way that is not read here: 415.
    Encoding,
    /// Too many at once; the same request may work a moment later: 429.
    Overloaded,
    /// The model failed: 500.
    Failed,
    /// A part of the protocol that this server does not have: 501.
    Unsupported,
    /// The model is not loaded, or the server is about to end: 503.
    Unavailable,
    /// The request's deadline was over: 504.
    Deadline,
}

/// Why a request is not answered.
///
/// ```
/// use candle_serve::{Fault, Kind};
///
/// let fault = Fault::tensor("ids", "datatype UINT32", "INT64");
/// assert_eq!((fault.kind, fault.to_string().as_str()), (Kind::Input, "tensor ids: expected datatype UINT32, found INT64"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    /// What a client has to tell apart.
    pub kind: Kind,
    /// One line for people: what is at fault, what was expected and what was found.
    pub message: String,
}

impl Fault {
    /// A fault of that kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A wrong request.
    pub fn input(message: impl Into<String>) -> Self {
        Self::new(Kind::Input, message)
    }

    /// A tensor of a request that is not what the model wants.
    pub fn tensor(name: &str, expected: impl std::fmt::Display, found: impl std::fmt::Display) -> Self {
        Self::input(format!("tensor {}: expected {expected}, found {found}", one_line(name)))
    }

    /// A deadline that was over.
    pub fn deadline() -> Self {
        Self::new(Kind::Deadline, EngineError::DeadlineExceeded.to_string())
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        let kind = match &error {
            EngineError::Capacity { .. } | EngineError::Overloaded { .. } => Kind::Overloaded,
            EngineError::DeadlineExceeded => Kind::Deadline,
            EngineError::StateLost => Kind::StateLost,
            EngineError::Closed => Kind::Unavailable,
            EngineError::Input(_) => Kind::Input,
            // `Panicked`, `Failed`, and whatever a later engine adds.
            _ => Kind::Failed,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        match error {
            Error::Tensor { .. } | Error::Input(_) => Self::input(error.to_string()),
            Error::Engine(error) => error.into(),
            other => Self::new(Kind::Failed, other.to_string()),
        }
    }
}

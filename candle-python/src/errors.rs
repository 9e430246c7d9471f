//! Errors of the library as exceptions of `candle_models`, with the same texts.

use candle_models::Error;
use candle_models::engine::EngineError;
use pyo3::prelude::*;

/// The exception for an error of the library.
pub fn raised(error: impl Into<Error>) -> PyErr {
    let error = error.into();
    let class = match &error {
        Error::Io { .. } => "FileError",
        Error::File { .. } => "BundleError",
        Error::Config { .. } | Error::Tensor { .. } | Error::Input(_) => "InputError",
        Error::Engine(error) => match error {
            EngineError::Input(_) => "InputError",
            EngineError::DeadlineExceeded => "DeadlineExceeded",
            EngineError::Capacity { .. } => "CapacityError",
            EngineError::Overloaded { .. } => "OverloadedError",
            EngineError::Panicked(_) | EngineError::Failed(_) => "ModelError",
            EngineError::StateLost => "StateLostError",
            EngineError::Closed => "ClosedError",
            _ => "CandleError",
        },
        Error::Candle(_) | Error::NotRecorded => "ModelError",
        _ => "CandleError",
    };
    exception(class, error.to_string())
}

/// An argument that is not what it should be.
pub fn wrong_input(text: impl ToString) -> PyErr {
    raised(Error::Input(text.to_string()))
}

/// An exception of that class of `candle_models._errors`.
pub fn exception(class: &str, text: String) -> PyErr {
    Python::attach(|py| {
        let made = py.import("candle_models._errors").and_then(|errors| errors.getattr(class)?.call1((text,)));
        made.map_or_else(|error| error, PyErr::from_value)
    })
}

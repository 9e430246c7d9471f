//! candle-train.

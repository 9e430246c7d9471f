//! candle-bench.

//! Any bytes as a request for an inference over gRPC: what an engine can be asked or a fault in one line, never a panic.
//! `CANDLE_FUZZ_SEEDS=DIR cargo test -p candle-serve --test it fuzz` writes requests to begin with.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| candle_serve::fuzz::grpc(bytes));

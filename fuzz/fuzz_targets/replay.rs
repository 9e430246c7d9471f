//! Any bytes read as a replay: a game or an error, never a panic, a hang or a large allocation.
#![no_main]

use candle_models::policy::replay;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(game) = replay::read_bytes(bytes, "fuzz") {
        assert!(!game.frames.is_empty() && game.frames.len() <= game.raw_frames);
        assert!(game.frames.windows(2).all(|pair| pair[0].id + 1 == pair[1].id));
        let _ = game.check();
    }
});

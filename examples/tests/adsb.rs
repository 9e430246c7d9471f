//! The example `adsb` on a real recording: every message that another decoder found, at its sample, and no other.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "../examples/adsb.rs"]
mod adsb;

use candle_models::rf::sigmf::Recording;
use std::collections::BTreeSet;
use std::path::PathBuf;

#[test]
fn all_messages_of_a_real_recording_are_found_and_none_else() {
    let Some(root) = std::env::var_os("CANDLE_DATA") else {
        eprintln!("SKIPPED the messages of a real recording: CANDLE_DATA is not set");
        return;
    };
    let recording = Recording::open(PathBuf::from(root).join("iq/adsb-1090mhz-modes1")).unwrap();
    let found: BTreeSet<(u64, String)> = adsb::decode(&recording).unwrap().iter().map(|found| (found.sample, found.to_string())).collect();
    let noted = recording.meta.annotations.iter().map(|note| (note.sample_start, note.comment.clone().unwrap()));
    assert_eq!((found.len(), found), (214, noted.collect()));
}

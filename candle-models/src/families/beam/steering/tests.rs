use super::*;
use crate::ops::check::{check, refuses};

#[test]
fn beams_and_their_gradients() {
    for (paths, antennas) in [(1, 1), (2, 5), (3, 32)] {
        let op = SteeredBeam::new(paths, antennas).unwrap();
        check(op.clone(), &[op.inputs()]);
        refuses(&op, &[op.inputs() + 1]);
    }
    assert!(SteeredBeam::new(0, 4).is_err() && SteeredBeam::new(1, 0).is_err());
}

/// A path towards the side turns by half a turn from antenna to antenna, one straight ahead not at all.
#[test]
fn directions_are_sines() {
    let op = SteeredBeam::new(2, 3).unwrap();
    let mut y = [9.0; 6];
    op.forward(&[&[0.0, 1.0, 0.0, 1.0, 0.0, 1.0]], &mut y);
    for (found, expected) in y.iter().zip([1.0, 1.0, 1.0, -1.0, 1.0, 1.0]) {
        assert!((found - expected).abs() < 1e-6, "{y:?}");
    }
}

//! Calibration of the buttons: whether a button that a policy calls 30% likely is pressed in 30% of the frames.
//!
//! Frames are put into bins by the probability of "pressed", of equal width. The expected calibration error (ECE) is the mean
//! distance, over frames, between the mean probability of a bin and the share of its frames in which the button was pressed.
//!
//! ```
//! use candle_models::policy::actions::{Action, LOGITS};
//! use candle_models::policy::calibration::{Calibration, expected_error};
//!
//! let mut calibration = Calibration::default();
//! calibration.add(&[0.0; LOGITS], &Action::default()); // one in two, and nothing is pressed
//! assert_eq!(expected_error(&calibration.all()), 0.5);
//! ```

use super::actions::{Action, BUTTONS, COMPONENTS, LOGITS};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Bins of equal width between the probabilities 0 and 1.
pub const BINS: usize = 15;

/// Frames that a policy found about equally likely.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    /// How many.
    pub frames: u64,
    /// In how many of them the button was pressed.
    pub pressed: u64,
    /// The sum of the probabilities that it would be.
    pub probability: f64,
}

impl Bin {
    fn merge(&mut self, other: &Self) {
        self.frames += other.frames;
        self.pressed += other.pressed;
        self.probability += other.probability;
    }
}

/// Bins of every button.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    bins: [[Bin; BINS]; BUTTONS],
}

impl Calibration {
    /// Counts a frame: the logits, given the recorded action, and that action.
    pub fn add(&mut self, logits: &[f32; LOGITS], recorded: &Action) {
        for (button, class) in recorded.classes()[..BUTTONS].iter().enumerate() {
            let probability = 1.0 / (1.0 + (-f64::from(logits[COMPONENTS[button].logit])).exp());
            let bin = ((probability * BINS as f64) as usize).min(BINS - 1);
            self.bins[button][bin].merge(&Bin { frames: 1, pressed: u64::from(*class), probability });
        }
    }

    /// Adds the frames of another.
    pub fn merge(&mut self, other: &Self) {
        let bins = |bins: &mut [Bin; BINS], other: &[Bin; BINS]| bins.iter_mut().zip(other).for_each(|(sum, bin)| sum.merge(bin));
        self.bins.iter_mut().zip(&other.bins).for_each(|(sum, other)| bins(sum, other));
    }

    /// Of one button, from the least likely to the most.
    pub fn button(&self, button: usize) -> &[Bin; BINS] {
        &self.bins[button]
    }

    /// Of all buttons together.
    pub fn all(&self) -> [Bin; BINS] {
        let mut all = [Bin::default(); BINS];
        self.bins.iter().for_each(|bins| all.iter_mut().zip(bins).for_each(|(sum, bin)| sum.merge(bin)));
        all
    }
}

/// The ECE of some bins, 0 to 1; 0 where they are empty.
pub fn expected_error(bins: &[Bin]) -> f64 {
    let frames: u64 = bins.iter().map(|bin| bin.frames).sum();
    let distance: f64 = bins.iter().map(|bin| (bin.pressed as f64 - bin.probability).abs()).sum();
    distance / frames.max(1) as f64
}

/// The errors in percent, together and of each button.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |bins: &[Bin]| 100.0 * expected_error(bins);
        write!(f, "expected calibration error of the buttons in {BINS} bins: {:.3}% (", percent(&self.all()))?;
        for (i, (component, bins)) in COMPONENTS.iter().zip(&self.bins).enumerate() {
            write!(f, "{}{} {:.2}%", if i == 0 { "" } else { ", " }, component.name, percent(bins))?;
        }
        f.write_str(")")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_that_computed_by_hand() {
        let mut calibration = Calibration::default();
        // The first button in four frames; the others are always called one in two likely and never pressed.
        for (probability, pressed) in [(0.1f32, 0), (0.1, 0), (0.5, 1), (0.95, 1)] {
            let mut logits = [0.0; LOGITS];
            logits[0] = (probability / (1.0 - probability)).ln();
            let mut classes = Action::default().classes();
            classes[0] = pressed;
            calibration.add(&logits, &Action::new(classes).unwrap());
        }
        let near = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "found {found}, expected {expected}");
        // (|0 - 0.2| + |1 - 0.5| + |1 - 0.95|) / 4, in the bins 1, 7 and 14.
        near(expected_error(calibration.button(0)), 0.1875);
        let places: Vec<usize> = (0..BINS).filter(|bin| calibration.button(0)[*bin].frames > 0).collect();
        assert_eq!(places, [1, 7, 14]);
        // |0 - 4 / 2| / 4.
        near(expected_error(calibration.button(3)), 0.5);
        // (0.2 + |1 - (0.5 + 28 / 2)| + 0.05) / 32.
        near(expected_error(&calibration.all()), 13.75 / 32.0);
        let text = calibration.to_string();
        assert!(text.contains("15 bins: 42.969% (A 18.75%, B 50.00%,") && text.ends_with("D_up 50.00%)"), "{text}");
    }

    #[test]
    fn certainty_has_a_bin_and_nothing_has_no_error() {
        assert_eq!(expected_error(&Calibration::default().all()), 0.0);
        let mut calibration = Calibration::default();
        let mut classes = Action::default().classes();
        classes[..BUTTONS].fill(1);
        calibration.add(&[f32::MAX; LOGITS], &Action::new(classes).unwrap());
        calibration.add(&[f32::MIN; LOGITS], &Action::default());
        assert_eq!((calibration.all()[0].frames, calibration.all()[BINS - 1].frames), (8, 8));
        assert_eq!(expected_error(&calibration.all()), 0.0);
    }
}

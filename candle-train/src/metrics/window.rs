//! How unusual a value is among the last ones.

use std::collections::VecDeque;

/// The last values of a figure, to say how unusual the next one is.
#[derive(Debug, Default)]
pub(super) struct Window(VecDeque<f64>);

impl Window {
    const LENGTH: usize = 100;

    /// Distance of `value` from the window's mean in standard deviations, 0 while there are fewer than 8 values; then
    /// takes it in.
    pub(super) fn z_score(&mut self, value: f64) -> f64 {
        let n = self.0.len() as f64;
        let mean = self.0.iter().sum::<f64>() / n.max(1.0);
        let variance = self.0.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let z = if self.0.len() >= 8 && variance > 0.0 { (value - mean) / variance.sqrt() } else { 0.0 };
        if value.is_finite() {
            if self.0.len() == Self::LENGTH {
                self.0.pop_front();
            }
            self.0.push_back(value);
        }
        if z.is_finite() { z } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn z_scores_need_a_history() {
        let mut window = Window::default();
        for i in 0..8 {
            assert_eq!(window.z_score(f64::from(i % 2)), 0.0);
        }
        // Mean 0.5, sample deviation sqrt(2 / 7).
        assert!((window.z_score(1.5) - (7f64 / 2.0).sqrt()).abs() < 1e-12);
        assert_eq!(window.z_score(f64::NAN), 0.0);
        assert!(window.z_score(1.0).is_finite(), "a value that is not finite does not enter the window");
    }
}

//! Phases as parts of a turn in 64 bits, which wrap around by themselves and lose nothing over any number of samples.

/// A frequency as the part of a turn that a sample is, and the phase at any sample.
#[derive(Debug, Clone, Copy)]
pub struct Oscillator {
    step: u64,
}

impl Oscillator {
    /// Of so many turns a sample.
    pub fn new(turns: f64) -> Self {
        Self { step: of_turns(turns) }
    }

    /// The phase at a sample.
    #[inline(always)]
    pub fn phase(self, sample: u64) -> u64 {
        self.step.wrapping_mul(sample)
    }

    /// What a sample adds.
    pub fn step(self) -> u64 {
        self.step
    }
}

/// A part of a turn, whole turns left out. Exact to 2^-53 of a turn.
pub fn of_turns(turns: f64) -> u64 {
    // In two halves: a part of a turn has more bits than an integer of f64 holds.
    let part = turns - turns.floor();
    let high = (part * 4_294_967_296.0).floor();
    let low = (part * 4_294_967_296.0 - high) * 4_294_967_296.0;
    ((high as u64) << 32).wrapping_add(low as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_exact_after_any_number_of_samples() {
        for turns in [0.0, 0.25, -0.25, 50.0 / 200e3, -1e-7, 3.75] {
            let oscillator = Oscillator::new(turns);
            for sample in [0u64, 1, 1000, 200_000, 1 << 30] {
                let exact = (turns * sample as f64).rem_euclid(1.0);
                let found = oscillator.phase(sample) as f64 / 2f64.powi(64);
                let apart = (found - exact + 0.5).rem_euclid(1.0) - 0.5;
                assert!(apart.abs() < 1e-7 * (1.0 + sample as f64 * 1e-9), "{turns} {sample}: {found} {exact}");
            }
        }
    }
}

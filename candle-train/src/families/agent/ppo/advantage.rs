//! Generalised advantage estimation (Schulman et al. 2016).

/// What a lane went through in a rollout, step by step.
#[derive(Debug, Clone, Copy)]
pub struct Lane<'a> {
    /// Rewards of the steps.
    pub rewards: &'a [f32],
    /// What the critic expected before each step and behind the last one: one more than there are steps.
    pub values: &'a [f32],
    /// Whether the episode ended with the step, because the game was over.
    pub terminated: &'a [bool],
    /// Whether it ended although the game went on. What the critic says of the observation behind it counts.
    pub truncated: &'a [bool],
    /// Whether the step did nothing but reset the environment.
    pub ignored: &'a [bool],
}

/// Of each step how much better than expected it turned out, `A`; what the critic should have expected is `A` plus what it did. For discount `g` and
/// decay `l`: `A[t] = d[t] + g l A[t+1]` within an episode, where `d[t] = r[t] + g v[t+1] - v[t]` and a game that is over has no value. Steps that
/// were ignored have zero.
///
/// ```
/// use candle_train::agent::ppo::advantage::{Lane, advantages};
///
/// let none = [false; 2];
/// let lane = Lane { rewards: &[1.0, 1.0], values: &[0.5, 0.5, 2.0], terminated: &[false, true], truncated: &none, ignored: &none };
/// let mut found = [0.0; 2];
/// advantages(lane, 0.5, 1.0, &mut found);
/// assert_eq!(found, [1.0, 0.5]); // 1 + .25 - .5 + .5 * .5, 1 - .5
/// ```
pub fn advantages(lane: Lane, discount: f64, decay: f64, to: &mut [f32]) {
    let mut behind = 0.0;
    for t in (0..to.len()).rev() {
        if lane.ignored[t] {
            (behind, to[t]) = (0.0, 0.0);
            continue;
        }
        let value = |t: usize| f64::from(lane.values[t]);
        let next = if lane.terminated[t] { 0.0 } else { discount * value(t + 1) };
        let carried = if lane.terminated[t] || lane.truncated[t] { 0.0 } else { discount * decay * behind };
        behind = f64::from(lane.rewards[t]) + next - value(t) + carried;
        to[t] = behind as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: [bool; 6] = [false; 6];

    /// With a decay of 1 an advantage is the discounted return to the end of the episode, less the value: by its definition.
    #[test]
    fn a_decay_of_one_gives_returns() {
        let (rewards, values) = ([1.0, -2.0, 0.5, 3.0, 1.0, 2.0], [0.3, 0.1, -0.2, 0.7, 5.0, 0.2, 4.0]);
        let terminated = [false, false, true, false, false, false];
        let (mut found, discount) = ([0.0; 6], 0.9f64);
        advantages(
            Lane { rewards: &rewards, values: &values, terminated: &terminated, truncated: &NONE, ignored: &NONE },
            discount,
            1.0,
            &mut found,
        );
        for t in 0..6 {
            let end = if t < 3 { 3 } else { 6 };
            let mut sum: f64 = (t..end).map(|k| discount.powi((k - t) as i32) * f64::from(rewards[k])).sum();
            if end == 6 {
                sum += discount.powi((6 - t) as i32) * 4.0;
            }
            assert!((f64::from(found[t]) - (sum - f64::from(values[t]))).abs() < 1e-6, "step {t}: {found:?}");
        }
    }

    /// The observation behind a truncated episode counts, that of the next episode does not; the step that resets says nothing.
    #[test]
    fn ends_are_told_apart() {
        let (rewards, values) = ([1.0; 6], [0.0, 0.0, 10.0, 7.0, 0.0, 0.0, 0.0]);
        let (truncated, ignored) = ([false, true, false, false, false, false], [false, false, true, false, false, false]);
        let mut found = [0.0; 6];
        advantages(
            Lane { rewards: &rewards, values: &values, terminated: &NONE, truncated: &truncated, ignored: &ignored },
            0.5,
            0.5,
            &mut found,
        );
        assert_eq!(found[1], 1.0 + 0.5 * 10.0);
        assert_eq!(found[0], 1.0 + 0.25 * found[1]);
        assert_eq!(found[2], 0.0);
        let without = Lane { rewards: &rewards, values: &values, terminated: &truncated, truncated: &NONE, ignored: &ignored };
        advantages(without, 0.5, 0.5, &mut found);
        assert_eq!(found[1], 1.0);
    }
}

//! How far two policies agree on replays: what each would do, and how likely each finds what was done.

use super::replays::Replays;
use super::{Opened, Options, Placement};
use crate::families::policy::actions::{Action, BUTTONS, GROUP_NAMES, GROUPS};
use anyhow::Result;
use candle_core::DType;
use std::fmt;
use std::path::PathBuf;

/// Counts over decisions: frames times players. Both policies see the recorded past in every frame, so that one different
/// choice does not make another history.
#[derive(Debug, Default)]
pub struct Agreement {
    decisions: usize,
    /// The same greedy action in every component.
    equal: usize,
    components: [usize; GROUPS],
    /// Sums of nats of the recorded actions, of the original and of the other.
    nats: [f64; 2],
}

/// What a policy makes of replays, decision by decision.
pub struct Choices(Vec<(Action, [f32; GROUPS])>);

impl Choices {
    /// Both players of every replay are watched, by the policy computed in that dtype on the CPU.
    pub fn new(opened: &Opened, replays: &[PathBuf], dtype: DType) -> Result<Self> {
        let mut choices = Vec::new();
        if !replays.is_empty() {
            let place = Placement { dtype: Some(dtype), ..Placement::cpu(1) };
            let mut watcher = Replays::new(&opened.bundle, opened.model(), &Options::default(), &place)?;
            for path in replays {
                choices.extend(watcher.choices(path)?);
            }
        }
        Ok(Self(choices))
    }
}

impl Agreement {
    /// Of two policies on the same replays.
    pub fn between(original: &Choices, other: &Choices) -> Self {
        let mut found = Self::default();
        original.0.iter().zip(&other.0).for_each(|((a, nats), (b, other_nats))| found.add((a, b), [nats, other_nats]));
        found
    }

    fn add(&mut self, (a, b): (&Action, &Action), nats: [&[f32; GROUPS]; 2]) {
        let (a, b) = (a.to_ids(), b.to_ids());
        self.decisions += 1;
        self.equal += usize::from(a == b);
        for (group, count) in self.components.iter_mut().enumerate() {
            let columns = if group == 0 { 0..BUTTONS } else { BUTTONS + group - 1..BUTTONS + group };
            *count += usize::from(a[columns.clone()] == b[columns]);
        }
        for (sum, nats) in self.nats.iter_mut().zip(nats) {
            *sum += nats.iter().copied().map(f64::from).sum::<f64>();
        }
    }
}

impl fmt::Display for Agreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |n: usize| 100.0 * n as f64 / self.decisions as f64;
        let parts: Vec<String> = GROUP_NAMES.iter().zip(self.components).map(|(name, n)| format!("{name} {:.2}%", share(n))).collect();
        let [original, other] = self.nats.map(|sum| sum / self.decisions as f64);
        let (equal, parts) = (share(self.equal), parts.join(", "));
        writeln!(f, "  the same action in {equal:.3}% of {} decisions ({parts})", self.decisions)?;
        write!(f, "  likelihood in nats per frame: {other:.5}, was {original:.5} ({:+.5})", other - original)
    }
}

//! How a search chooses: the constants of both methods, and what a run is told.

use crate::{Error, Result};
use serde::{Deserialize, Serialize};

/// How actions are chosen inside the tree and at its root.
///
/// ```
/// use candle_models::search::{Gumbel, Method};
///
/// let method: Method = serde_json::from_str(r#"{"kind": "gumbel", "max_considered": 4}"#)?;
/// assert_eq!(method, Method::Gumbel(Gumbel { max_considered: 4, ..Gumbel::default() }));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Method {
    /// MuZero's (Schrittwieser et al. 2020, appendix B).
    Puct(Puct),
    /// Gumbel MuZero's (Danihelka et al. 2022): better with few simulations.
    Gumbel(Gumbel),
}

/// Upper confidence bounds with the prior, noise from a Dirichlet distribution at the root, actions in proportion to visits.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Puct {
    /// The noise's part of the root's prior, from 0 to 1; by default 0.25.
    pub dirichlet_fraction: f32,
    /// The noise's concentration, above 0; by default 0.3.
    pub dirichlet_alpha: f32,
    /// The weight of the prior; by default 1.25.
    pub pb_c_init: f32,
    /// Visits at which that weight begins to grow; by default 19 652.
    pub pb_c_base: f32,
    /// An action is drawn in proportion to `visits^(1 / temperature)`; at 0 it is the most visited one. By default 1.
    pub temperature: f32,
}

impl Default for Puct {
    fn default() -> Self {
        Self { dirichlet_fraction: 0.25, dirichlet_alpha: 0.3, pb_c_init: 1.25, pb_c_base: 19_652.0, temperature: 1.0 }
    }
}

impl Puct {
    /// What stands before `P / (n + 1)` at a node of so many visits, its own evaluation counted.
    pub(super) fn factor(&self, visits: usize) -> f32 {
        let visits = visits as f32;
        visits.sqrt() * (self.pb_c_init + ((visits + self.pb_c_base + 1.0) / self.pb_c_base).ln())
    }
}

/// Actions drawn without replacement and sorted out by sequential halving at the root; below it, visits that follow the improved prior.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Gumbel {
    /// Actions that the root considers at most; by default 16.
    pub max_considered: usize,
    /// The scale of values against logits; by default 0.1.
    pub value_scale: f32,
    /// Visits that are added to the most visited action's in that scale; by default 50.
    pub maxvisit_init: f32,
    /// Whether values are brought to [0, 1] at every node first; by default they are. Without it the paper's scale is 1.
    pub rescale: bool,
}

impl Default for Gumbel {
    fn default() -> Self {
        Self { max_considered: 16, value_scale: 0.1, maxvisit_init: 50.0, rescale: true }
    }
}

/// What a run is told beside its roots.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// How actions are chosen.
    pub method: Method,
    /// Simulations from every root: calls of the model.
    pub simulations: usize,
    /// Edges from the root to the deepest node; by default as many as there are simulations. A simulation that reaches the bottom evaluates
    /// the node there once more.
    #[serde(default)]
    pub max_depth: Option<usize>,
}

impl Settings {
    /// Names the field that is out of range.
    ///
    /// # Errors
    /// [`Error::Config`].
    pub fn validate(&self) -> Result<()> {
        let check = |field: &str, right: bool, reason: &str| if right { Ok(()) } else { Err(Error::config(field, reason)) };
        check("simulations", self.simulations > 0, "expected at least 1, found 0")?;
        check("max_depth", self.max_depth != Some(0), "expected at least 1, found 0")?;
        match &self.method {
            Method::Puct(p) => {
                check("dirichlet_fraction", (0.0..=1.0).contains(&p.dirichlet_fraction), "expected a number from 0 to 1")?;
                check("dirichlet_alpha", p.dirichlet_alpha > 0.0 && p.dirichlet_alpha.is_finite(), "expected a number above 0")?;
                check("pb_c_init", p.pb_c_init >= 0.0 && p.pb_c_init.is_finite(), "expected a number from 0 on")?;
                check("pb_c_base", p.pb_c_base > 0.0 && p.pb_c_base.is_finite(), "expected a number above 0")?;
                check("temperature", p.temperature >= 0.0 && p.temperature.is_finite(), "expected a number from 0 on")
            }
            Method::Gumbel(g) => {
                check("max_considered", g.max_considered > 0, "expected at least 1, found 0")?;
                check("value_scale", g.value_scale >= 0.0 && g.value_scale.is_finite(), "expected a number from 0 on")?;
                check("maxvisit_init", g.maxvisit_init >= 0.0 && g.maxvisit_init.is_finite(), "expected a number from 0 on")
            }
        }
    }
}

/// Appends the visits that sequential halving (Karnin et al. 2013) asks of an action in each of `simulations`, of `considered` actions: the
/// action to take is the best of those with so many.
pub(super) fn sequential_halving(considered: usize, simulations: usize, sequence: &mut Vec<u32>) {
    let end = sequence.len() + simulations;
    if considered <= 1 {
        return sequence.extend(0..simulations as u32);
    }
    let rounds = considered.next_power_of_two().ilog2() as usize;
    // Actions that are still considered all have the same number of visits.
    let (mut visits, mut left) = (0, considered);
    while sequence.len() < end {
        for _ in 0..(simulations / (rounds * left)).max(1) {
            sequence.extend(std::iter::repeat_n(visits, left.min(end - sequence.len())));
            visits += 1;
        }
        left = (left / 2).max(2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halving_gives_the_published_sequences() {
        let sequence = |considered, simulations| {
            let mut sequence = Vec::new();
            sequential_halving(considered, simulations, &mut sequence);
            sequence
        };
        assert_eq!(sequence(8, 24), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6]);
        assert_eq!(sequence(3, 10), [0, 0, 0, 1, 1, 2, 2, 3, 3, 4]);
        let pairs = (4..12).flat_map(|n| [n, n]);
        let expected: Vec<u32> = [[0; 7].as_slice(), &[1; 3], &[2; 3], &[3; 3]].concat().into_iter().chain(pairs).collect();
        assert_eq!(sequence(7, 32), expected);
        assert_eq!(sequence(1, 4), [0, 1, 2, 3]);
        assert_eq!(sequence(0, 2), [0, 1]);
        assert_eq!(sequence(16, 5), [0; 5]);
    }

    #[test]
    fn settings_out_of_range_name_the_field() {
        let message = |method, simulations, max_depth| Settings { method, simulations, max_depth }.validate().unwrap_err().to_string();
        let [puct, gumbel] = [Method::Puct(Puct::default()), Method::Gumbel(Gumbel::default())];
        assert!(Settings { method: puct, simulations: 1, max_depth: Some(1) }.validate().is_ok());
        assert_eq!(message(puct, 0, None), "config: simulations: expected at least 1, found 0");
        assert_eq!(message(gumbel, 1, Some(0)), "config: max_depth: expected at least 1, found 0");
        let cold = Method::Puct(Puct { temperature: f32::NAN, ..Puct::default() });
        assert_eq!(message(cold, 1, None), "config: temperature: expected a number from 0 on");
        let none = Method::Gumbel(Gumbel { max_considered: 0, ..Gumbel::default() });
        assert_eq!(message(none, 1, None), "config: max_considered: expected at least 1, found 0");
    }

    #[test]
    fn the_prior_weighs_as_published() {
        let term = Puct::default().factor(10) * 0.5 / 3.0;
        assert!((term - 0.659_103).abs() < 1e-6, "{term}");
    }
}

//! What recorded games say of a policy that reads them from the first frame to the last, and of the count tables.

use super::dataset::{Buffers, Dataset, Pass};
use super::loader::inputs;
use crate::parallel::{Communicator, gather};
use candle_models::Result;
use candle_models::policy::Policy;
use candle_models::policy::actions::{ACTION, Action, LOGITS, most_likely, nll};
use candle_models::policy::baselines::{Baselines, Likelihood, TABLE_NAMES, TABLES};
use candle_models::policy::calibration::Calibration;
use candle_models::recurrent::Recurrent;
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Games side by side, and frames of each in one pass: few enough rows to stay in the cache and to keep memory small.
const LANES: usize = 8;
const FRAMES: usize = 120;

/// What was found of a policy: how likely it finds what was recorded, and whether its probabilities of buttons are right.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluated {
    /// How likely the recorded actions were.
    pub likelihood: Likelihood,
    /// Of the buttons.
    pub calibration: Calibration,
}

impl Evaluated {
    fn add(&mut self, previous: &Action, action: &Action, logits: &[f32; LOGITS]) {
        self.likelihood.add(previous, action, &nll(logits, action), &most_likely(logits));
        self.calibration.add(logits, action);
    }

    fn merge(&mut self, other: &Self) {
        self.likelihood.merge(&other.likelihood);
        self.calibration.merge(&other.calibration);
    }
}

/// A policy on the recorded actions of all games, both players, with state carried through each game. Every rank measures some of the games; all
/// get the sum, to the bit what one rank alone would find.
pub fn policy(policy: &Policy, data: &Dataset, ranks: &dyn Communicator) -> Result<Evaluated> {
    let add = |found: &mut Evaluated, previous: &Action, action: &Action, logits: &[[f32; LOGITS]]| {
        logits.iter().for_each(|logits| found.add(previous, action, logits));
    };
    let mut all = Evaluated::default();
    over_frames(&[policy], data, ranks, add)?.iter().for_each(|one| all.merge(one));
    Ok(all)
}

/// What `add` gathers of all frames: it is given the action before, the recorded one and the logits of every policy. There is one sum for some
/// games each, in the same order on every rank.
pub(super) fn over_frames<S, F>(policies: &[&Policy], data: &Dataset, ranks: &dyn Communicator, add: F) -> Result<Vec<S>>
where
    S: Default + Clone + Serialize + DeserializeOwned,
    F: Fn(&mut S, &Action, &Action, &[[f32; LOGITS]]),
{
    let mut passes = data.passes();
    // Games of like length side by side: the shorter ones of a group wait for the longest.
    passes.sort_by_key(|pass| std::cmp::Reverse(data.rows(pass.game)));
    let groups: Vec<&[Pass]> = passes.chunks(LANES).collect();
    let own = groups.iter().skip(ranks.rank()).step_by(ranks.size());
    let own: Vec<S> = own.map(|group| over_group(policies, data, group, &add)).collect::<Result<_>>()?;
    let found = gather(ranks, &own)?;
    Ok((0..groups.len()).map(|group| found[group % ranks.size()][group / ranks.size()].clone()).collect())
}

fn over_group<S: Default>(
    policies: &[&Policy],
    data: &Dataset,
    group: &[Pass],
    add: &impl Fn(&mut S, &Action, &Action, &[[f32; LOGITS]]),
) -> Result<S> {
    let longest = group.iter().map(|pass| data.rows(pass.game)).max().unwrap_or(0);
    let mut states = policies.iter().map(|policy| policy.initial_state(group.len())).collect::<Result<Vec<_>>>()?;
    let mut found = S::default();
    for start in (0..longest).step_by(FRAMES) {
        let frames = FRAMES.min(longest - start);
        let mut rows = Buffers::zeros(group.len() * frames);
        // Rows of each lane in this pass; a game that is over has none.
        let counts: Vec<usize> = group.iter().map(|pass| data.rows(pass.game).saturating_sub(start).min(frames)).collect();
        for (lane, (pass, &n)) in group.iter().zip(&counts).enumerate().filter(|(_, (_, n))| **n > 0) {
            data.read(*pass, start..start + n, rows.rows().part(lane * frames..lane * frames + n))?;
        }
        let (previous, action) = (rows.previous.clone(), rows.action.clone());
        let resets: Vec<bool> = (0..group.len() * frames).map(|i| start == 0 && i % frames == 0).collect();
        let inputs = inputs(rows, group.len(), frames)?;
        let mut logits = Vec::with_capacity(policies.len());
        for (policy, state) in policies.iter().zip(&mut states) {
            let (outputs, next) = policy.unroll(&inputs, &resets, state)?;
            *state = next.map(|_, t| Ok(t.detach()))?;
            logits.push(outputs.get("logits")?.flatten_all()?.to_vec1::<f32>()?);
        }
        for (lane, n) in counts.into_iter().enumerate() {
            for row in lane * frames..lane * frames + n {
                let at = |ids: &[u32]| Action::from_ids(&ids[row * ACTION..(row + 1) * ACTION]);
                let of = |logits: &Vec<f32>| std::array::from_fn(|i| logits[row * LOGITS + i]);
                add(&mut found, &at(&previous)?, &at(&action)?, &logits.iter().map(of).collect::<Vec<_>>());
            }
        }
    }
    Ok(found)
}

/// Passes whose actions are in memory at a time, on each thread.
const COUNTED: usize = 16;

/// The count tables of some games. Every rank counts in some of them; all get the sum.
pub fn fit_tables(data: &Dataset, ranks: &dyn Communicator) -> Result<Baselines> {
    let sum = |mut all: Baselines, one: Baselines| {
        all.merge(&one);
        all
    };
    let fit = |passes: &[Pass]| -> Result<Baselines> {
        let actions: Vec<_> = passes.iter().map(|pass| data.actions(*pass)).collect::<Result<_>>()?;
        Ok(Baselines::fit(actions))
    };
    let none = || Baselines::fit([[]; 0]);
    let own = own_passes(data, ranks).par_chunks(COUNTED).map(fit).try_reduce(none, |a, b| Ok(sum(a, b)))?;
    if ranks.size() == 1 {
        return Ok(own);
    }
    let all = ranks.all_gather(&own.to_bytes()?)?;
    all.iter().try_fold(none(), |all, one| Ok(sum(all, Baselines::from_bytes(one)?)))
}

/// How likely the count tables find the same frames as [`policy`], by the tables' names; by all ranks together, as there.
pub fn tables(baselines: &Baselines, data: &Dataset, ranks: &dyn Communicator) -> Result<Vec<(&'static str, Likelihood)>> {
    let evaluate = |pass: &Pass| Ok(baselines.evaluate(&data.actions(*pass)?));
    let own: Vec<[Likelihood; TABLES]> = own_passes(data, ranks).par_iter().map(evaluate).collect::<Result<_>>()?;
    let found = gather(ranks, &own)?;
    let mut all: Vec<_> = TABLE_NAMES.iter().map(|name| (*name, Likelihood::default())).collect();
    for pass in 0..data.passes().len() {
        let one = &found[pass % ranks.size()][pass / ranks.size()];
        all.iter_mut().zip(one).for_each(|(sum, one)| sum.1.merge(one));
    }
    Ok(all)
}

/// This rank's share of the passes.
fn own_passes(data: &Dataset, ranks: &dyn Communicator) -> Vec<Pass> {
    data.passes().into_iter().skip(ranks.rank()).step_by(ranks.size()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::shards::testing;
    use crate::parallel::{Single, threads};
    use candle_core::Device;
    use candle_models::nn::Params;
    use candle_models::policy::{BackboneConfig, PolicyConfig};
    use candle_models::random::Random;

    #[test]
    fn games_side_by_side_are_measured_like_each_alone() {
        let backbone = BackboneConfig::Gru { layers: 1 };
        let config = PolicyConfig { hidden: 16, embedding: 4, backbone, delay: 2, ..PolicyConfig::default() };
        let policy_ = Policy::new(&config, &Params::init(Random::new(1), &Device::Cpu)).unwrap();
        let lengths = [FRAMES + 50, 40, 2 * FRAMES + 3, FRAMES + 1, 90];
        let data = Dataset::new(&testing::shards(&lengths), &[], 2).unwrap();
        let found = policy(&policy_, &data, &Single).unwrap().likelihood;

        let mut expected = Likelihood::default();
        for pass in data.passes() {
            let n = data.rows(pass.game);
            let mut rows = Buffers::zeros(n);
            data.read(pass, 0..n, rows.rows().part(0..n)).unwrap();
            let (previous, action) = (rows.previous.clone(), rows.action.clone());
            let state = policy_.initial_state(1).unwrap();
            let (outputs, _) = policy_.unroll(&inputs(rows, 1, n).unwrap(), &vec![false; n], &state).unwrap();
            let logits = outputs.get("logits").unwrap().squeeze(0).unwrap().to_vec2::<f32>().unwrap();
            for (t, logits) in logits.iter().enumerate() {
                let at = |ids: &[u32]| Action::from_ids(&ids[t * ACTION..(t + 1) * ACTION]).unwrap();
                let logits: &[f32; LOGITS] = logits.as_slice().try_into().unwrap();
                expected.add(&at(&previous), &at(&action), &nll(logits, &at(&action)), &most_likely(logits));
            }
        }
        assert_eq!(found.all().frames, 2 * lengths.iter().map(|&n| n as u64 - 3).sum::<u64>());
        assert_eq!((found.all().frames, found.changed.frames), (expected.all().frames, expected.changed.frames));
        for (found, expected) in found.all().nll.iter().zip(expected.all().nll) {
            assert!((found - expected).abs() < 1e-4 * expected, "expected {expected}, found {found}");
        }
        // The tables are asked about the same frames.
        let tables = tables(&fit_tables(&data, &Single).unwrap(), &data, &Single).unwrap();
        for (name, likelihood) in tables {
            assert_eq!(likelihood.all().frames, expected.all().frames, "{name}");
            assert_eq!(likelihood.changed.frames, expected.changed.frames, "{name}");
        }
    }

    #[test]
    fn count_tables_are_the_same_for_any_number_of_ranks() {
        let data = Dataset::new(&testing::shards(&[40, 70, 33]), &[], 2).unwrap();
        let fitted = fit_tables(&data, &Single).unwrap();
        let sequences: Vec<_> = data.passes().into_iter().map(|pass| data.actions(pass).unwrap()).collect();
        assert_eq!(fitted, Baselines::fit(sequences));
        let expected = tables(&fitted, &data, &Single).unwrap();
        // More ranks than passes, too.
        for size in [2, 4, 7] {
            std::thread::scope(|scope| {
                let (data, fitted, expected) = (&data, &fitted, &expected);
                let check = |rank: threads::ThreadRank| {
                    assert_eq!(fit_tables(data, &rank).unwrap(), *fitted);
                    assert_eq!(tables(fitted, data, &rank).unwrap(), *expected);
                };
                let ranks = threads::group(size, std::time::Duration::from_secs(120));
                let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(move || check(rank))).collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
            });
        }
    }
}

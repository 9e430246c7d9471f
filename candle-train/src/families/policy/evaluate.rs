//! Likelihood of recorded games: of a policy that reads them from the first frame to the last, and of the count tables.

use super::dataset::{Buffers, Dataset, Pass};
use super::loader::inputs;
use crate::parallel::{Communicator, gather};
use candle_core::Tensor;
use candle_models::Result;
use candle_models::policy::actions::{ACTION, Action, LOGITS, most_likely, nll};
use candle_models::policy::baselines::{Baselines, Likelihood, TABLE_NAMES};
use candle_models::policy::{Policy, prior};
use candle_models::recurrent::Recurrent;

/// Games side by side, and frames of each in one pass: few enough rows to stay in the cache and to keep memory small.
const LANES: usize = 8;
const FRAMES: usize = 120;

/// How likely the policy finds the recorded actions of all games, both players, with state carried through each game. Every rank
/// measures some of the games; all get the sum, to the bit what one rank alone would find.
pub fn policy(policy: &Policy, data: &Dataset, ranks: &dyn Communicator) -> Result<Likelihood> {
    let mut passes = data.passes();
    // Games of like length side by side: the shorter ones of a group wait for the longest.
    passes.sort_by_key(|pass| std::cmp::Reverse(data.rows(pass.game)));
    let groups: Vec<&[Pass]> = passes.chunks(LANES).collect();
    let own = groups.iter().skip(ranks.rank()).step_by(ranks.size());
    let own: Vec<Likelihood> = own.map(|group| evaluate_group(policy, data, group)).collect::<Result<_>>()?;
    let found = gather(ranks, &own)?;
    let mut all = Likelihood::default();
    (0..groups.len()).for_each(|group| all.merge(&found[group % ranks.size()][group / ranks.size()]));
    Ok(all)
}

fn evaluate_group(policy: &Policy, data: &Dataset, group: &[Pass]) -> Result<Likelihood> {
    let longest = group.iter().map(|pass| data.rows(pass.game)).max().unwrap_or(0);
    let mut state = policy.initial_state(group.len())?;
    let mut likelihood = Likelihood::default();
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
        let (outputs, next) = policy.unroll(&inputs(rows, group.len(), frames)?, &resets, &state)?;
        state = next.map(|_, t| Ok(t.detach()))?;
        let logits = outputs.get("logits")?.flatten_all()?.to_vec1::<f32>()?;
        for (lane, n) in counts.into_iter().enumerate() {
            for t in 0..n {
                let row = lane * frames + t;
                let at = |ids: &[u32]| Action::from_ids(&ids[row * ACTION..(row + 1) * ACTION]);
                let mut frame = [0f32; LOGITS];
                frame.copy_from_slice(&logits[row * LOGITS..(row + 1) * LOGITS]);
                let action = at(&action)?;
                likelihood.add(&at(&previous)?, &action, &nll(&frame, &action), &most_likely(&frame));
            }
        }
    }
    Ok(likelihood)
}

/// The count tables of some games.
pub fn fit_tables(data: &Dataset) -> Result<Baselines> {
    let mut failed = None;
    // No more than one game's actions are in memory.
    let sequences = data.passes().into_iter().map_while(|pass| data.actions(pass).map_err(|error| failed = Some(error)).ok());
    let baselines = Baselines::fit(sequences);
    failed.map_or(Ok(baselines), Err)
}

/// How likely the count tables find the same frames as [`policy`], by the tables' names.
pub fn tables(baselines: &Baselines, data: &Dataset) -> Result<Vec<(&'static str, Likelihood)>> {
    let mut all: Vec<_> = TABLE_NAMES.iter().map(|name| (*name, Likelihood::default())).collect();
    for pass in data.passes() {
        all.iter_mut().zip(baselines.evaluate(&data.actions(pass)?)).for_each(|(sum, one)| sum.1.merge(&one));
    }
    Ok(all)
}

/// A prior of some games.
pub(super) fn fit_prior(data: &Dataset) -> Result<Vec<(String, Tensor)>> {
    prior::fit(data.passes().into_iter().map(|pass| data.actions(pass)).collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::shards::testing;
    use crate::parallel::Single;
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
        let found = policy(&policy_, &data, &Single).unwrap();

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
        let tables = tables(&fit_tables(&data).unwrap(), &data).unwrap();
        for (name, likelihood) in tables {
            assert_eq!(likelihood.all().frames, expected.all().frames, "{name}");
            assert_eq!(likelihood.changed.frames, expected.changed.frames, "{name}");
        }
    }
}

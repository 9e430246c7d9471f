//! Which games are trained on and which are held out: whole games, never parts, and the same ones in every run.

use super::shards::Info;
use candle_models::{Error, Result};

/// How games are held out.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldOut {
    /// Replays by name: the file name without its extension, or what stands before its first `_`, `-`, `.` or space.
    Named(Vec<String>),
    /// About this share, chosen by the hash of the replay's content, and at least one.
    Share(f64),
}

/// Positions in `games`: to train on, held out.
///
/// # Errors
/// If a name fits no game, or nothing is left to train on.
pub fn split(games: &[&Info], hold_out: &HoldOut) -> Result<(Vec<usize>, Vec<usize>)> {
    let held: Vec<usize> = match hold_out {
        HoldOut::Named(names) => {
            if let Some(name) = names.iter().find(|name| !games.iter().any(|game| fits(&game.source, name))) {
                return Err(Error::Input(format!("--hold-out {name}: no replay of that name")));
            }
            (0..games.len()).filter(|&i| names.iter().any(|name| fits(&games[i].source, name))).collect()
        }
        HoldOut::Share(share) => {
            let position = |i: &usize| hash_to_unit_interval(&games[*i].replay);
            let chosen: Vec<usize> = (0..games.len()).filter(|i| position(i) < *share).collect();
            // Few games can all hash beyond the share: the nearest one is held out then.
            let nearest = || (0..games.len()).min_by(|a, b| position(a).total_cmp(&position(b)));
            if chosen.is_empty() && *share > 0.0 && games.len() > 1 { nearest().into_iter().collect() } else { chosen }
        }
    };
    let train: Vec<usize> = (0..games.len()).filter(|i| !held.contains(i)).collect();
    if train.is_empty() {
        return Err(Error::Input(format!("all {} games are held out, none is left to train on", games.len())));
    }
    Ok((train, held))
}

fn fits(source: &str, name: &str) -> bool {
    let stem = source.rsplit_once('.').map_or(source, |(stem, _)| stem);
    source == name || stem == name || stem.strip_prefix(name).is_some_and(|rest| rest.starts_with(['_', '-', '.', ' ']))
}

/// A number in [0, 1) from the first 64 bits of a hexadecimal hash.
fn hash_to_unit_interval(hash: &str) -> f64 {
    let bits = hash.get(..16).and_then(|h| u64::from_str_radix(h, 16).ok()).unwrap_or(0);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn games(hashes: &[(&str, &str)]) -> Vec<Info> {
        hashes.iter().map(|(source, hash)| Info::named(source, &format!("{hash}{}", "0".repeat(48)))).collect()
    }

    fn run(games: &[Info], hold_out: HoldOut) -> Result<(Vec<usize>, Vec<usize>)> {
        split(&games.iter().collect::<Vec<_>>(), &hold_out)
    }

    #[test]
    fn names_choose_whole_words() {
        let games = games(&[("t1_a.slp", "1"), ("t10_b.slp", "2"), ("t2.slp", "3")]);
        let named = |names: &[&str]| run(&games, HoldOut::Named(names.iter().map(|n| (*n).to_owned()).collect()));
        assert_eq!(named(&["t1"]).unwrap(), (vec![1, 2], vec![0]));
        assert_eq!(named(&["t10_b", "t2.slp"]).unwrap(), (vec![0], vec![1, 2]));
        assert_eq!(named(&["t3"]).unwrap_err().to_string(), "--hold-out t3: no replay of that name");
        assert!(named(&["t1", "t10", "t2"]).is_err());
    }

    #[test]
    fn a_share_depends_on_the_content_only() {
        let (low, high) = ("1000000000000000", "f000000000000000");
        let forward = games(&[("a.slp", low), ("b.slp", high), ("c.slp", high)]);
        assert_eq!(run(&forward, HoldOut::Share(0.2)).unwrap(), (vec![1, 2], vec![0]));
        let renamed = games(&[("x.slp", high), ("y.slp", high), ("z.slp", low)]);
        assert_eq!(run(&renamed, HoldOut::Share(0.2)).unwrap(), (vec![0, 1], vec![2]));
        assert_eq!(run(&forward, HoldOut::Share(0.01)).unwrap().1, [0], "at least one");
        assert_eq!(run(&forward, HoldOut::Share(0.0)).unwrap().1, [] as [usize; 0]);
        assert!(run(&forward, HoldOut::Share(1.0)).is_err());
    }
}

//! Which games a run trains on, in the run's directory: so that a resumed run can say which of them changed.

use super::shards::Info;
use candle_models::{Error, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// The file in the run's directory.
pub(super) const FILE: &str = "games.json";
/// Games of a kind that a message names.
const NAMED: usize = 3;

/// One game: its file's name and the SHA-256 of its content.
type Game = (String, String);

fn list<'a>(games: impl Iterator<Item = &'a Info>) -> Vec<Game> {
    games.map(|info| (info.source.clone(), info.replay.clone())).collect()
}

/// The games in the order in which they are trained on, as they are noted.
pub(super) fn list_as_json<'a>(games: impl Iterator<Item = &'a Info>) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(&list(games)).map_err(|e| Error::file(FILE, e))
}

/// What is different from the games that were noted, in words. `None` if nothing is, or nothing was noted.
pub(super) fn difference<'a>(directory: &Path, games: impl Iterator<Item = &'a Info>) -> Option<String> {
    let noted: Vec<Game> = serde_json::from_slice(&std::fs::read(directory.join(FILE)).ok()?).ok()?;
    let now = list(games);
    if noted.iter().map(|game| &game.1).eq(now.iter().map(|game| &game.1)) {
        return None;
    }
    // A content that both know is the same game, whatever its file is called.
    let contents = |games: &[Game]| games.iter().map(|game| game.1.clone()).collect::<BTreeSet<_>>();
    let (before, after) = (contents(&noted), contents(&now));
    let only = |games: &[Game], others: &BTreeSet<String>| -> BTreeSet<String> {
        games.iter().filter(|game| !others.contains(&game.1)).map(|game| game.0.clone()).collect()
    };
    let (gone, new) = (only(&noted, &after), only(&now, &before));
    let kinds = [(&gone & &new, "with another content"), (&new - &gone, "new"), (&gone - &new, "gone")];
    let said: Vec<String> = kinds.iter().filter(|(names, _)| !names.is_empty()).map(|(names, what)| say(names, what)).collect();
    let said = if said.is_empty() { "they come in another order".to_owned() } else { said.join("; ") };
    Some(format!("the training games are not those that it began with: {said}"))
}

/// `new: a.slp, b.slp, c.slp and 4 more`.
fn say(names: &BTreeSet<String>, what: &str) -> String {
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let named: Vec<&str> = names.iter().take(NAMED).map(String::as_str).collect();
    format!("{what}: {}{more}", named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(before: &[(&str, &str)], after: &[(&str, &str)]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let infos = |games: &[(&str, &str)]| games.iter().map(|(source, replay)| Info::named(source, replay)).collect::<Vec<_>>();
        assert_eq!(difference(dir.path(), infos(after).iter()), None, "nothing was noted");
        std::fs::write(dir.path().join(FILE), list_as_json(infos(before).iter()).unwrap()).unwrap();
        let said = difference(dir.path(), infos(after).iter())?;
        Some(said.strip_prefix("the training games are not those that it began with: ").unwrap().to_owned())
    }

    #[test]
    fn what_changed_is_named() {
        let games = [("a", "1"), ("b", "2"), ("c", "3")];
        assert_eq!(said(&games, &games), None);
        assert_eq!(said(&games, &[("x", "1"), ("b", "2"), ("c", "3")]), None, "another name, the same game");
        assert_eq!(said(&games, &[("a", "1"), ("b", "9"), ("c", "3")]).unwrap(), "with another content: b");
        assert_eq!(said(&games, &[("a", "1"), ("c", "3"), ("d", "4")]).unwrap(), "new: d; gone: b");
        assert_eq!(said(&games, &[("b", "2"), ("a", "1"), ("c", "3")]).unwrap(), "they come in another order");
        let many: Vec<(&str, &str)> = games.into_iter().chain([("d", "4"), ("e", "5"), ("f", "6"), ("g", "7"), ("h", "8")]).collect();
        assert_eq!(said(&games, &many).unwrap(), "new: d, e, f and 2 more");
    }
}

//! Which games are trained on and which are held out, so that what is measured is how a policy does with people whom it never met: games are
//! divided by their players, never by file. Players of one evening meet each other again and again, and their games are alike.
//!
//! A player is who has a connect code, or without one a name; whoever has neither is one with all such players of the same evening. A name of one
//! letter again and again (`xxxxxx`), or `ANON`, is a placeholder of an anonymised recording, and no name.

use super::shards::Info;
use candle_models::policy::game::is_placeholder;
use candle_models::{Error, Result, hex};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// Seconds without a new game after which an evening is over, and its longest duration.
const PAUSE: i64 = 4 * 3600;
const EVENING: i64 = 24 * 3600;

/// How games are held out.
#[derive(Debug, Clone, PartialEq)]
pub enum HoldOut {
    /// Replays by name (the file name without its extension, or what stands before its first `_`, `-`, `.` or space), or players by connect code or
    /// name.
    Named(Vec<String>),
    /// The players of about this share of the games, chosen by a hash of who they are, and at least one.
    Share(f64),
}

/// Games by their positions in a list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    /// To train on: no player who is measured is in them, unless `known` says so.
    pub train: Vec<usize>,
    /// To measure on, and the views of which of their players.
    pub held_out: Vec<(usize, [bool; 2])>,
    /// Of the games to train on those with a player who is measured, or of the same evening: only replays that were named have such.
    pub known: Vec<usize>,
}

/// Divides games.
///
/// # Errors
/// If a name fits no game and no player, nothing is left to train on, or a share is asked for of games that all are of the same players.
pub fn split(games: &[&Info], hold_out: &HoldOut) -> Result<Split> {
    let who = identities(games);
    let held_out = match hold_out {
        HoldOut::Named(names) => named(games, names)?,
        HoldOut::Share(share) => {
            let held = strangers(&who, *share)?;
            views(&who, |identity| held.contains(identity))
        }
    };
    let held: BTreeSet<usize> = held_out.iter().map(|(game, _)| *game).collect();
    let train: Vec<usize> = (0..games.len()).filter(|game| !held.contains(game)).collect();
    if train.is_empty() {
        return Err(Error::Input(format!("all {} games are held out, none is left to train on", games.len())));
    }
    let mut measured: BTreeSet<&String> = held_out.iter().flat_map(|(game, views)| pick(&who[*game], *views)).collect();
    measured.remove(&COMPUTER.to_owned());
    let known = train.iter().copied().filter(|game| who[*game].iter().any(|identity| measured.contains(identity))).collect();
    Ok(Split { train, held_out, known })
}

/// What the computer is recognised by, which is on both sides.
const COMPUTER: &str = "computer";

/// Of both players of each game what they are recognised by.
fn identities(games: &[&Info]) -> Vec<[String; 2]> {
    let known = |game: &Info, player: usize| {
        if game.computers[player] {
            return Some(COMPUTER.to_owned());
        }
        let [code, name] = [("code", &game.codes[player]), ("name", &game.names[player])];
        [code, name].into_iter().find(|(_, text)| !is_placeholder(text)).map(|(kind, text)| format!("{kind} {text}"))
    };
    let mut found: Vec<[Option<String>; 2]> = games.iter().map(|game| [0, 1].map(|player| known(game, player))).collect();
    let mut anonymous: Vec<usize> = (0..games.len()).filter(|i| found[*i].iter().any(Option::is_none)).collect();
    anonymous.sort_by_key(|i| (games[*i].recorded, &games[*i].replay));
    let (mut began, mut last) = (i64::MIN, i64::MIN);
    for i in anonymous {
        let evening = match games[i].recorded {
            Some(time) => {
                if time.saturating_sub(last) > PAUSE || time.saturating_sub(began) > EVENING {
                    began = time;
                }
                last = time;
                format!("evening {began}")
            }
            None => format!("game {}", games[i].replay),
        };
        found[i].iter_mut().for_each(|identity| _ = identity.get_or_insert_with(|| evening.clone()));
    }
    found.into_iter().map(|players| players.map(Option::unwrap_or_default)).collect()
}

fn named(games: &[&Info], names: &[String]) -> Result<Vec<(usize, [bool; 2])>> {
    let is = |game: usize, player: usize, name: &str| {
        let (code, own) = (&games[game].codes[player], &games[game].names[player]);
        [code, own].into_iter().any(|text| !is_placeholder(text) && text.eq_ignore_ascii_case(name))
    };
    let mut held = vec![[false; 2]; games.len()];
    for name in names {
        let mut found = false;
        for (game, views) in held.iter_mut().enumerate() {
            let file = fits(&games[game].source, name);
            for (player, view) in views.iter_mut().enumerate() {
                let fits = file || is(game, player, name);
                (*view, found) = (*view || fits, found || fits);
            }
        }
        if !found {
            return Err(Error::Input(format!("--hold-out {name}: no replay and no player of that name")));
        }
    }
    Ok(held.into_iter().enumerate().filter(|(_, views)| views.contains(&true)).collect())
}

/// Who is held out: by a hash of each, so that more games of other players change nothing.
fn strangers(who: &[[String; 2]], share: f64) -> Result<BTreeSet<String>> {
    let mut games: BTreeMap<&String, usize> = BTreeMap::new();
    for players in who {
        let both: BTreeSet<&String> = players.iter().filter(|identity| *identity != COMPUTER).collect();
        both.into_iter().for_each(|identity| *games.entry(identity).or_default() += 1);
    }
    if share <= 0.0 || who.len() < 2 {
        return Ok(BTreeSet::new());
    }
    // A game is held out for either of its players, so each of them is for half as much, or a little more.
    let limit =
        |identity: &str| if identity.starts_with("evening") || identity.starts_with("game") { share } else { 1.0 - (1.0 - share).sqrt() };
    let mut order: Vec<(f64, &String)> = games.keys().map(|identity| (position(identity) / limit(identity), *identity)).collect();
    order.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Whoever has most of the games is there to be learnt from.
    let order = order.into_iter().filter(|(_, identity)| 2 * games[identity] <= who.len());
    let held: BTreeSet<String> =
        order.enumerate().filter(|(i, (place, _))| *i == 0 || *place < 1.0).map(|(_, (_, identity))| identity.clone()).collect();
    if held.is_empty() {
        let reason = "are of the same players or of one evening, so that none can be held out as strangers: name some with --hold-out, or hold none out with \
                      --set data.held_out=0";
        return Err(Error::Input(format!("these {} games {reason}", who.len())));
    }
    Ok(held)
}

/// The games of some players, and which of the two they are.
fn views(who: &[[String; 2]], held: impl Fn(&String) -> bool) -> Vec<(usize, [bool; 2])> {
    let views = who.iter().map(|players| players.each_ref().map(&held)).enumerate();
    views.filter(|(_, views)| views.contains(&true)).collect()
}

fn pick(players: &[String; 2], views: [bool; 2]) -> impl Iterator<Item = &String> {
    players.iter().zip(views).filter(|(_, view)| *view).map(|(identity, _)| identity)
}

fn fits(source: &str, name: &str) -> bool {
    let stem = source.rsplit_once('.').map_or(source, |(stem, _)| stem);
    source == name || stem == name || stem.strip_prefix(name).is_some_and(|rest| rest.starts_with(['_', '-', '.', ' ']))
}

/// A number in [0, 1) from the hash of a text.
fn position(text: &str) -> f64 {
    let bits = u64::from_str_radix(&hex(&Sha256::digest(text)[..8]), 16).unwrap_or(0);
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Games by source, players and hour.
    fn games(list: &[(&str, [&str; 2], Option<i64>)]) -> Vec<Info> {
        let info = |(i, (source, codes, hour)): (usize, &(&str, [&str; 2], Option<i64>))| {
            let mut info = Info::named(source, &hex(Sha256::digest(format!("{source} {i}"))));
            (info.codes, info.recorded) = (codes.map(str::to_owned), hour.map(|hour| hour * 3600));
            info
        };
        list.iter().enumerate().map(info).collect()
    }

    fn run(games: &[Info], hold_out: HoldOut) -> Result<Split> {
        split(&games.iter().collect::<Vec<_>>(), &hold_out)
    }

    fn held(split: &Split) -> Vec<usize> {
        split.held_out.iter().map(|(game, _)| *game).collect()
    }

    #[test]
    fn names_choose_whole_words_and_players() {
        let games =
            games(&[("t1_a.slp", ["AX#1", "BX#2"], None), ("t10_b.slp", ["CX#3", "AB#1"], None), ("t2.slp", ["AX#1", "CX#3"], None)]);
        let named = |names: &[&str]| run(&games, HoldOut::Named(names.iter().map(|n| (*n).to_owned()).collect()));
        assert_eq!(named(&["t1"]).unwrap(), Split { train: vec![1, 2], held_out: vec![(0, [true; 2])], known: vec![2] });
        assert_eq!(
            named(&["t10_b", "t2.slp"]).unwrap(),
            Split { train: vec![0], held_out: vec![(1, [true; 2]), (2, [true; 2])], known: vec![0] }
        );
        assert_eq!(named(&["ab#1"]).unwrap(), Split { train: vec![0, 2], held_out: vec![(1, [false, true])], known: vec![] });
        assert_eq!(named(&["t3"]).unwrap_err().to_string(), "--hold-out t3: no replay and no player of that name");
        assert!(named(&["t1", "t10", "t2"]).is_err());
    }

    #[test]
    fn anonymous_players_are_those_of_their_evening() {
        let nobody = ["xxxxxx", ""];
        let list = [
            ("a", nobody, Some(0)),
            ("b", ["XX#111", "Xxx"], Some(3)),
            ("c", nobody, Some(6)),
            ("d", nobody, Some(11)),
            ("e", nobody, None),
            ("f", nobody, None),
            ("g", ["Y#1", "AX#2"], Some(1)),
        ];
        let games = games(&list);
        let who = identities(&games.iter().collect::<Vec<_>>());
        assert!((0..3).all(|i| who[i] == who[0]) && who[0][0] == who[0][1], "{who:?}");
        assert!(who[3] != who[0] && who[4] != who[5], "{who:?}");
        // One letter alone is a name; of a code it is a placeholder.
        assert!(who[6][0].starts_with("evening") && who[6][1] == "code AX#2", "{who:?}");
        assert!(!is_placeholder("x") && is_placeholder("") && is_placeholder("xx") && is_placeholder("x#12") && is_placeholder("Anon#3"));
        // An evening does not last for ever.
        let long: Vec<_> = (0..20).map(|i| ("h", nobody, Some(3 * i))).collect();
        let evenings: BTreeSet<_> = identities(&self::games(&long).iter().collect::<Vec<_>>()).into_iter().flatten().collect();
        assert_eq!(evenings.len(), 3);
    }

    #[test]
    #[cfg(feature = "slippi")]
    fn real_games_of_one_evening_stay_together() {
        let Some(data) = std::env::var_os("CANDLE_DATA") else {
            eprintln!("SKIPPED: CANDLE_DATA is not set");
            return;
        };
        let paths = candle_models::policy::replay::collect([std::path::Path::new(&data).join("slippi")]).unwrap();
        let info = |path: &std::path::PathBuf| {
            let reader = candle_models::policy::replay::Reader::open(path).unwrap();
            let (name, game) = (path.file_name().unwrap().to_string_lossy(), reader.game());
            let mut info = Info::named(&name, &hex(Sha256::digest(name.as_bytes())));
            info.names = game.players.each_ref().map(|player| player.name.clone());
            info.codes = game.players.each_ref().map(|player| player.code.clone());
            info.recorded = game.recorded;
            info
        };
        let games: Vec<Info> = paths.iter().map(info).collect();
        let mut evenings: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (game, [one, _]) in games.iter().zip(identities(&games.iter().collect::<Vec<_>>())) {
            evenings.entry(one).or_default().push(&game.source[..3]);
        }
        let together: BTreeSet<&[&str]> = evenings.values().map(Vec::as_slice).filter(|games| games.len() > 1).collect();
        let evening = ["t10", "t11", "t13", "t14", "t15", "t16", "t17", "t18", "t19", "t20", "t21", "t22", "t23", "t24", "t25"];
        assert_eq!((evenings.len(), together), (9, BTreeSet::from([&["t01", "t05"][..], &evening])));
    }

    #[test]
    fn no_player_is_on_both_sides() {
        let names: Vec<String> = (0..40).map(|i| format!("P{i}X#{i}")).collect();
        let game = |i: usize| ("game", [names[i * 7 % 40].as_str(), names[(i * 11 + 1) % 40].as_str()], None);
        let list: Vec<_> = (0..300).map(game).filter(|(_, [a, b], _)| a != b).collect();
        let games = games(&list);
        for share in [0.1, 0.2, 0.5] {
            let split = run(&games, HoldOut::Share(share)).unwrap();
            assert!(split.known.is_empty());
            assert_eq!(split.train.len() + split.held_out.len(), games.len());
            let part = split.held_out.len() as f64 / games.len() as f64;
            assert!((part - share).abs() < 0.17, "{part} of {share}");
            let trained: BTreeSet<&String> = split.train.iter().flat_map(|i| &games[*i].codes).collect();
            for (game, views) in &split.held_out {
                let strangers = games[*game].codes.each_ref().map(|code| !trained.contains(code));
                assert!(views.iter().zip(strangers).all(|(view, stranger)| !view || stranger), "game {game}");
            }
        }
        // Who is held out does not change with games of others.
        let [few, many] = [150, games.len()].map(|n| run(&games[..n], HoldOut::Share(0.3)).unwrap());
        assert!(held(&few).iter().eq(held(&many).iter().filter(|i| **i < 150)));
    }

    #[test]
    fn the_computer_is_nobody() {
        let list: Vec<_> = (0..8).map(|i| ("game", [["AB#1", "CD#1", "EF#1", "GH#1"][i % 4], "xx"], Some(i as i64))).collect();
        let mut games = games(&list);
        games.iter_mut().for_each(|game| game.computers = [false, true]);
        let split = run(&games, HoldOut::Share(0.1)).unwrap();
        assert_eq!(split.known, [0; 0]);
        assert!(split.held_out.len() == 2 && split.held_out.iter().all(|(_, views)| *views == [true, false]), "{split:?}");
        let named = run(&games, HoldOut::Named(vec!["AB#1".to_owned()])).unwrap();
        assert_eq!((named.held_out, named.known), (vec![(0, [true, false]), (4, [true, false])], vec![]));
    }

    #[test]
    fn what_cannot_be_divided_is_said() {
        let same: Vec<_> = (0..6).map(|i| ("game", ["AB#1", "CD#2"], Some(i))).collect();
        let error = run(&games(&same), HoldOut::Share(0.2)).unwrap_err().to_string();
        assert!(error.starts_with("these 6 games are of the same players or of one evening"), "{error}");
        assert_eq!(run(&games(&same), HoldOut::Share(0.0)).unwrap().held_out, []);
        assert_eq!(run(&games(&same[..1]), HoldOut::Share(0.5)).unwrap().held_out, [], "one game is trained on");
        // Two evenings: the smaller one, however small the share.
        let two: Vec<_> = [0, 1, 2, 40].map(|hour| ("game", ["", ""], Some(hour))).into_iter().collect();
        assert_eq!(held(&run(&games(&two), HoldOut::Share(0.01)).unwrap()), [3]);
        assert!(run(&games(&two), HoldOut::Share(1.0)).is_ok());
    }
}
